"""The host of a cluster file: read, refused where it contradicts itself, and used by what is offloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.files.loading import load_cluster

Ask = Callable[..., str]

CLUSTER = """\
schema_version: 1
name: mine
device: a100-80gb
levels:
  - {{name: nvlink, size: 8, bandwidth: 300 GB/s, latency: 4 us}}
  - {{name: network, bandwidth: 25 GB/s, latency: 10 us}}
{host}
source: {{device: made up}}
"""
SMALL = ("estimate", "gpt3-1.3b", "--gpus", "8", "--batch", "8", "--seq", "2048", "--zero", "1")


def cluster(folder: Path, host: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(CLUSTER.format(host=f"host: {host}" if host else ""))
    return str(path)


def test_the_numbers_of_a_file(tmp_path: Path) -> None:
    host = load_cluster(
        cluster(tmp_path, "{devices: 8, memory: 1 TiB, memory_bandwidth: 200 GB/s, link: 16 GB/s, link_shared_by: 4}")
    ).cluster.host
    assert host.memory_bytes == 2**40
    assert host.link_per_device == 4e9
    assert load_cluster(cluster(tmp_path, "")).cluster.host is None


@pytest.mark.parametrize(
    ("host", "place", "message"),
    [
        ("{devices: 8, memory: 1}", "host.memory", "unit"),
        ("{devices: 0, memory: 1 TB}", "host.devices", "must be at least 1, got 0"),
        ("{memory: 1 TB}", "host", "missing key 'devices'"),
        (
            "{devices: 8, memory: 1 TB, link: 16 GB/s, link_shared_by: 3}",
            "host.link_shared_by",
            "does not divide the 8",
        ),
        ("{devices: 8, memory: 1 TB, bandwidth: 1 GB/s}", "host.bandwidth", "unknown key 'bandwidth'"),
    ],
)
def test_what_cannot_be_has_a_place(tmp_path: Path, fails: Any, host: str, place: str, message: str) -> None:
    path = cluster(tmp_path, host)
    err = fails(*SMALL, "--cluster", path)
    assert f": {place}" in err
    assert message in err


def test_every_bundled_host_has_a_source() -> None:
    import yaml

    folder = Path(load_cluster("dgx-h100").path).parent
    known = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    with_host = [file for file in known if "host" in file]
    assert {"dgx-a100", "dgx-h100", "gb200-nvl72"} <= {file["name"] for file in with_host}
    assert all(file["source"].get("host") for file in with_host)


def test_offloading_takes_as_long_as_the_link_and_the_memory_of_the_host(tmp_path: Path, answer: Ask) -> None:
    """Adam on the host: 6 bytes per weight over the link, 30 bytes through memory (as on the device), no overlap."""

    def offloaded(host: str) -> float:
        path = cluster(tmp_path, host)
        found = json.loads(answer(*SMALL, "--cluster", path, "--offload", "optimizer", "--json"))
        return found["plans"][0]["offload_s"] + found["plans"][0]["optimizer_s"]

    fast = offloaded("{devices: 8, memory: 1 TB, memory_bandwidth: 4000 GB/s, link: 1000 GB/s}")
    slow_link = offloaded("{devices: 8, memory: 1 TB, memory_bandwidth: 4000 GB/s, link: 10 GB/s}")
    shared = offloaded("{devices: 8, memory: 1 TB, memory_bandwidth: 4000 GB/s, link: 10 GB/s, link_shared_by: 2}")
    slow_memory = offloaded("{devices: 8, memory: 1 TB, memory_bandwidth: 40 GB/s, link: 1000 GB/s}")
    assert shared - fast == pytest.approx(2 * (slow_link - fast), rel=0.03)
    assert slow_memory > 20 * fast


def test_an_assumption_of_the_user_comes_before_the_file(answer: Ask) -> None:
    asked = (*SMALL, "--cluster", "dgx-a100", "--json")
    found = {a["name"]: a for a in json.loads(answer(*asked))["assumptions"]}
    assert found["host_bytes_per_s"]["source"] == "cluster file"
    assert float(found["host_bytes_per_s"]["value"]) == pytest.approx(12.6e9)
    assert found["host memory"]["value"].startswith("1.82 TiB per 8 GPUs")
    found = {a["name"]: a for a in json.loads(answer(*asked, "--assume", "host_bytes_per_s=5e9"))["assumptions"]}
    assert (found["host_bytes_per_s"]["source"], found["host_bytes_per_s"]["value"]) == ("given", "5e+09")


def test_an_unknown_host_has_no_limit_and_that_is_said(tmp_path: Path, answer: Ask) -> None:
    found = json.loads(answer(*SMALL, "--cluster", cluster(tmp_path, ""), "--json"))
    stated = {a["name"]: a["value"] for a in found["assumptions"]}
    assert stated["host memory"] == "without a limit (the cluster file states none)"


def test_several_devices_are_groups(new_file: Any, fails: Any) -> None:
    path = new_file("mixed.yaml", "device: [a100-80gb, v100-32gb]\n")
    assert "1:9: device: is one name; several kinds are 'groups: [" in fails(*SMALL, "--cluster", str(path))


NETWORK = """\
schema_version: 1
name: mine
device: v100-16gb
levels:
  - {{name: nvlink, size: 8, bandwidth: 150 GB/s, latency: 4 us}}
  - {{name: network, bandwidth: 100 Gb/s, shared_by: 8, latency: 10 us, efficiency: 0.95, {transport}}}
{host}
source: {{device: made up}}
"""
WITH_LINK = "host: {devices: 8, memory: 1 TB, link: 15.75 GB/s, link_shared_by: 2}"


def networked(folder: Path, transport: str, host: str = WITH_LINK) -> str:
    path = folder / "mine.yaml"
    path.write_text(NETWORK.format(transport=transport, host=host))
    return str(path)


@pytest.mark.parametrize(
    ("transport", "reached"),
    [
        ("transport: direct", 0.95),
        ("transport: host", 6.3 / 12.5),
        ("transport: tcp", 6.3 / 12.5),
        ("transport: tcp, connections: 4, connection_bandwidth: 10 Gb/s", 0.4),
    ],
)
def test_how_data_get_to_the_network(tmp_path: Path, transport: str, reached: float) -> None:
    level = load_cluster(networked(tmp_path, transport)).cluster.levels[-1]
    assert level.reached == pytest.approx(reached)


@pytest.mark.parametrize(
    ("transport", "host", "message"),
    [
        ("transport: rdma", WITH_LINK, "transport"),
        ("transport: host", "", "transport host copies over the links of the host; state them in host.link"),
        ("transport: gloo", "", "transport gloo is of the innermost level"),
        ("transport: tcp", "", "state them in host.link, or connections and connection_bandwidth"),
        ("transport: host, connections: 4", WITH_LINK, "connections is about transport tcp, not host"),
        ("transport: tcp, connections: 4", WITH_LINK, "state both connections and connection_bandwidth"),
        ("connection_bandwidth: 10 Gb/s", WITH_LINK, "connection_bandwidth is about transport tcp, not direct"),
    ],
)
def test_a_transport_that_cannot_be(tmp_path: Path, fails: Any, transport: str, host: str, message: str) -> None:
    err = fails(*SMALL, "--cluster", networked(tmp_path, transport, host))
    assert ": levels" in err
    assert message in err

"""Bundled devices and clusters: every file is valid, every number has its source, and the numbers are the published ones."""

from __future__ import annotations

import csv
import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import all_reduce_s, cheapest_s
from costmodel.hardware.device import Device
from planner.files.naming.devices import device_called
from planner.schema.cluster import ClusterFile
from planner.schema.device import DeviceFile

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DEVICES = {path.stem: path for path in sorted((CONFIGS / "devices").glob("*.yaml"))}
CLUSTERS = {path.stem: path for path in sorted((CONFIGS / "clusters").glob("*.yaml"))}


@functools.cache
def raw(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def device(name: str) -> Device:
    return DeviceFile.model_validate(raw(DEVICES[name])).to_domain()


def cluster(name: str) -> Cluster:
    file = ClusterFile.model_validate(raw(CLUSTERS[name]))
    return file.to_domain({wanted: device(wanted) for wanted in file.device_names})


def test_the_devices_and_clusters_of_the_first_release() -> None:
    assert set(DEVICES) >= {
        "k20",
        "k20x",
        "k40",
        "k80",
        "titan-x",
        "m40",
        "p100",
        "v100-16gb",
        "v100-32gb",
        "t4",
        "a100-40gb",
        "a100-80gb",
        "h100-sxm",
        "h200",
        "b200",
        "gb200",
        "mi300x",
        "cpu-xeon-8480",
        "paleo-titan-x",
        "paleo-k20",
        "paleo-k20x",
        "paleo-k40",
        "paleo-k80",
        "paleo-780-ti",
        "paleo-750-m",
        "paleo-cpu-i7",
    }
    assert set(CLUSTERS) >= {
        "k20-pcie",
        "titan",
        "k80-20gbe",
        "dgx1-v100",
        "dgx-a100",
        "dgx-h100",
        "gb200-nvl72",
        "ethernet-10g",
        "paleo-aws",
        "paleo-ethernet",
        "paleo-ethernet20",
        "paleo-infiniband",
        "paleo-pcie2",
        "paleo-pcie3",
    }


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_loads_and_every_number_has_a_source(name: str) -> None:
    content = raw(DEVICES[name])
    made = device(name)
    assert made.name == name
    assert content["description"]
    numbers = {"memory", "memory_bandwidth", "peak", "clock", "vector_rate", "launch_overhead", "efficiency"}
    assert set(content["source"]) >= numbers & set(content)
    assert all(len(text) >= 10 for text in content["source"].values())
    assert made.efficiency.source


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_loads_and_every_level_has_a_source(name: str) -> None:
    content = raw(CLUSTERS[name])
    made = cluster(name)
    assert made.name == name
    assert content["description"]
    assert set(content["source"]) >= {"device" if "device" in content else "groups"} | {
        level["name"] for level in content["levels"]
    }
    inner = [level.bandwidth_bytes_per_s for level in made.levels]
    assert inner == sorted(inner, reverse=True), "links get no faster outwards"


# Memory in 10^9 bytes or GiB, bandwidth in GB/s and dense TFLOP/s by format, from the vendors' tables: typed here a second time.
PUBLISHED: list[tuple[str, float, float, dict[str, float]]] = [
    ("k20", 5 * 2**30, 208, {"fp32": 3.52}),
    ("k20x", 6 * 2**30, 250, {"fp32": 3.95}),
    ("k40", 12 * 2**30, 288, {"fp32": 4.29}),
    ("k80", 12 * 2**30, 240, {"fp32": 2.8}),
    ("p100", 16 * 2**30, 732, {"fp32": 10.6, "fp16": 21.2}),
    ("v100-16gb", 16 * 2**30, 900, {"fp32": 15.7, "fp16": 125}),
    ("v100-32gb", 32 * 2**30, 900, {"fp32": 15.7, "fp16": 125}),
    ("t4", 16 * 2**30, 320, {"fp32": 8.1, "fp16": 65, "int8": 130}),
    ("a100-40gb", 40 * 2**30, 1555, {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}),
    ("a100-80gb", 80 * 2**30, 2039, {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}),
    (
        "h100-sxm",
        80 * 2**30,
        3350,
        {
            "fp32": 67,
            "tf32": 494.7,
            "fp16": 989.4,
            "bf16": 989.4,
            **dict.fromkeys(("fp8", "fp8_block", "int8"), 1978.9),
        },
    ),
    (
        "h200",
        141e9,
        4800,
        {
            "fp32": 67,
            "tf32": 494.7,
            "fp16": 989.4,
            "bf16": 989.4,
            **dict.fromkeys(("fp8", "fp8_block", "int8"), 1978.9),
        },
    ),
    (
        "b200",
        180e9,
        8000,
        {
            "fp32": 80,
            "tf32": 1125,
            "fp16": 2250,
            "bf16": 2250,
            **dict.fromkeys(("fp8", "mxfp8", "int8"), 4500),
            **dict.fromkeys(("nvfp4", "mxfp4"), 9000),
        },
    ),
    (
        "gb200",
        186e9,
        8000,
        {
            "fp32": 80,
            "tf32": 1250,
            "fp16": 2500,
            "bf16": 2500,
            **dict.fromkeys(("fp8", "mxfp8", "int8"), 5000),
            **dict.fromkeys(("nvfp4", "mxfp4"), 10000),
        },
    ),
    (
        "b100",
        180e9,
        8000,
        {
            "fp32": 60,
            "tf32": 875,
            **dict.fromkeys(("fp16", "bf16"), 1750),
            **dict.fromkeys(("fp8", "mxfp8", "int8"), 3500),
            **dict.fromkeys(("nvfp4", "mxfp4"), 7000),
        },
    ),
    ("mi250-oam", 128e9, 3200, {"fp32": 90.5, "fp16": 362, "bf16": 362}),
    ("mi250x-oam", 128e9, 3200, {"fp32": 95.7, "fp16": 383, "bf16": 383}),
    ("mi300a", 128e9, 5300, {"fp32": 122.6, "tf32": 490.3, "fp16": 980.6, "bf16": 980.6, "fp8": 1961.2}),
    ("max-1550", 128e9, 3276.8, {"fp32": 52.4, "tf32": 419.4, "fp16": 838.9, "bf16": 838.9}),
    (
        "rtx-pro-6000",
        96 * 2**30,
        1792,
        {"fp32": 125, "tf32": 250, "fp16": 500, "bf16": 500, "fp8": 1000, "nvfp4": 2000},
    ),
    ("tpu-v7", 192 * 2**30, 7380, {"fp32": 384.5, "bf16": 2307, "fp8": 4614}),
    (
        "mi300x",
        192e9,
        5300,
        {"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9},
    ),
]


@pytest.mark.parametrize(("name", "memory", "bandwidth", "peaks"), PUBLISHED)
def test_published_figures(name: str, memory: float, bandwidth: float, peaks: dict[str, float]) -> None:
    made = device(name)
    assert made.memory_bytes == memory
    assert made.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth * 1e9)
    assert dict(made.peak_flop_per_s) == pytest.approx({key: rate * 1e12 for key, rate in peaks.items()})


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_formats_are_not_slower(name: str) -> None:
    made = device(name)
    rates = list(made.peak_flop_per_s.values())
    assert rates == sorted(rates), "formats are ordered from wide to narrow"


def test_paleo_devices_are_paleo_s(reference_data: Path) -> None:
    published = json.loads((reference_data / "paleo" / "reference" / "devices.json").read_text())
    names = {key: "paleo-" + key.lower().replace("geforce_", "").replace("_", "-") for key in published["devices"]}
    assert set(names.values()) == {name for name in DEVICES if name.startswith("paleo-")}
    for key, name in names.items():
        theirs, ours = published["devices"][key], device(name)
        assert ours.peak_flop_per_s == {"fp32": theirs["peak_gflops"] * 1e9}
        assert ours.memory_bandwidth_bytes_per_s == theirs["mem_bandwidth_GBps"] * 1e9
        assert 1e3 / ours.clock_hz == pytest.approx(theirs["clock_floor_ms"], rel=1e-15)
    for key, theirs in published["networks"].items():
        (level,) = cluster(f"paleo-{key}").levels
        assert level.bandwidth_bytes_per_s == theirs["bandwidth_gbps"] / 8 * 1e9
        assert (level.size, level.latency_s, level.efficiency, level.shared_by) == (None, 0.0, 1.0, 1)


def bus_bandwidth(name: str, ranks: int) -> float:
    """``2 (n - 1)/n B / t`` of a large ring all-reduce, in GB/s, as nccl-tests define it."""
    where = cluster(name)
    message = 16e9
    time = float(all_reduce_s("ring", message, span(where, ranks, 1), where))
    return 2 * (ranks - 1) / ranks * message / time / 1e9


@pytest.mark.parametrize(
    ("name", "ranks", "measured"),
    [("dgx1-v100", 8, 122), ("dgx-a100", 8, 232), ("dgx-h100", 8, 370), ("dgx-a100", 16, 192), ("dgx-h100", 16, 380)],
)
def test_large_all_reduces_reach_the_published_bus_bandwidth(name: str, ranks: int, measured: float) -> None:
    """NVIDIA GTC 2024 session S62129: plateaus of NCCL's bus bandwidth."""
    assert bus_bandwidth(name, ranks) == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize(
    ("ranks", "stride", "low", "high"),
    [(2, 1, 20.8, 24.0), (4, 1, 20.8, 24.0), (8, 1, 11.0, 16.0), (4, 2, 7.0, 7.7), (2, 4, 3.6, 4.1)],
)
def test_pcie_nodes_are_as_fast_as_measured(ranks: int, stride: int, low: float, high: float) -> None:
    """GB/s of eight A100 at two processors: groups at one (SimuMax, NVIDIA), at both, and two and four of those at once (SimuMax)."""
    here = cluster("pcie4-node")
    time = float(all_reduce_s("ring", 16e9, span(here, ranks, stride), here))
    assert low <= 2 * (ranks - 1) / ranks * 16 / time <= high


def test_small_and_medium_all_reduces_on_eight_h100(reference_data: Path) -> None:
    """nccl-tests on a DGX H100; beyond 64 MiB the measured ones reduce inside the switch, which no algorithm here does."""
    path = reference_data / "measurements" / "collectives.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the reference data")
    with path.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"].startswith("NVIDIA dgxc") and row["time_us"]]
    here = cluster("dgx-h100")
    where = span(here, 8, 1)
    ratios = []
    for row in rows:
        message = float(row["bytes"])
        if message <= 64 * 2**20:
            time_s = float(cheapest_s("all_reduce", message, where, here))
            ratios.append(time_s * 1e6 / float(row["time_us"]))
    ratios.sort()
    assert len(ratios) == 24
    # One measurement of 32 bytes took 68 us, five times its neighbours.
    assert ratios[1] > 0.5
    assert ratios[-1] < 1.2


def test_a_shared_adapter_is_stated_per_node() -> None:
    network = cluster("k80-20gbe").levels[-1]
    assert network.bandwidth_bytes_per_s * 16 == 2.5e9
    assert network.shared_by == 16
    assert cluster("k80-20gbe").max_devices is None
    assert cluster("k20-pcie").max_devices == 8


# --- The file formats.

GOOD_DEVICE: dict[str, Any] = {
    "schema_version": 1,
    "name": "mine",
    "memory": "16 GiB",
    "memory_bandwidth": "900 GB/s",
    "peak": {"fp32": "15.7 TFLOP/s"},
    "source": {},
}
GOOD_CLUSTER: dict[str, Any] = {
    "schema_version": 1,
    "name": "mine",
    "device": "k20",
    "levels": [
        {"name": "node", "size": 8, "bandwidth": "100 GB/s", "latency": "2 us"},
        {"name": "network", "bandwidth": "10 Gb/s", "shared_by": 8, "latency": "50 us"},
    ],
    "source": {},
}


def messages(model: type[DeviceFile] | type[ClusterFile], content: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        model.model_validate(content)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.value.errors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bandwidth": 900}, "memory_bandwidth: '900' has no unit; write e.g. '900 GB/s'"),
        ({"memory_bandwidth": "900 GB"}, "unknown unit 'GB'"),
        ({"memory": "0 GiB"}, "memory: '0 GiB' is zero"),
        ({"memory": "nan GiB"}, "not a finite number"),
        ({"memory": "-1 GiB"}, "is negative"),
        ({"peak": {"fp16": "1 TFLOP/s"}}, "peak.fp32: Field required"),
        ({"peak": {"fp32": "1 TFLOP/s", "int4": "2 TFLOP/s"}}, "peak.int4: Extra inputs are not permitted"),
        ({"memmory": "1 GB"}, "memmory: Extra inputs are not permitted"),
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        (
            {"efficiency": {"matmul_fraction": 1.5}},
            "efficiency.matmul_fraction: Input should be less than or equal to 1",
        ),
        ({"efficiency": {"matmul_fraction": "high"}}, "expected a number"),
        ({"efficiency": {"tile_half": True}}, "expected a number"),
        ({"efficiency": {"cache_bytes": 2e6}}, "cache_bytes needs cache_speedup"),
        ({"source": {"peek": "datasheet"}}, "'peek' is not a key of this file; did you mean 'peak'?"),
    ],
)
def test_bad_devices(change: dict[str, Any], message: str) -> None:
    assert message in messages(DeviceFile, GOOD_DEVICE | change)


# Boards since 2022 of which nobody published what large products reach.
UNMEASURED = {
    "trainium1",
    "trainium1-core",
    "trainium2",
    "trainium2-core",
    "tpu-v5e",
    "tpu-v5p",
    "cpu-xeon-8480",
    "rtx-a5500",
}


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_rates_since_2022_are_measured(name: str) -> None:
    """What the product of a training step reaches is stated by format, with where it was measured, and in order."""
    found, file = device(name), raw(DEVICES[name])
    for number_format in found.formats:
        assert found.sustained(number_format) <= found.best(number_format) <= 1.15 * found.peak(number_format)
    year = re.search(r"\b(20[0-9]{2})\)", file["description"])
    if year is not None and int(year[1]) >= 2022 and name not in UNMEASURED:
        trained_in = "bf16" if "bf16" in found.formats else "fp16"
        assert trained_in in {*found.best_flop_per_s, *found.sustained_flop_per_s}
    for key in ("best", "sustained"):
        assert (key in file) == (key in file["source"])


def test_former_shares_of_the_peak_are_understood() -> None:
    """0.5 x 0.8 of 10 TFLOP/s in fp32, 0.5 x 0.9 of 200 in 8 bits; a rate that is stated counts."""
    peak = {"fp32": "10 TFLOP/s", "bf16": "100 TFLOP/s", "fp8": "200 TFLOP/s"}
    former = {"matmul_fraction": 0.5, "narrow_fraction": 0.9, "lane_fraction": 0.8, "sustained_fraction": 0.7}
    found = DeviceFile.model_validate(GOOD_DEVICE | {"peak": peak, "efficiency": former}).to_domain()
    rates = [found.best(name) for name in ("fp32", "bf16", "fp8")]
    assert rates == pytest.approx([4e12, 50e12, 90e12])
    assert found.efficiency.step_fraction == 0.7
    both = {"peak": peak, "efficiency": former, "best": {"fp8": "70 TFLOP/s"}}
    assert DeviceFile.model_validate(GOOD_DEVICE | both).to_domain().best("fp8") == 70e12


def levels(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"levels": [level | change for level, change in zip(GOOD_CLUSTER["levels"], changes, strict=True)]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": None}, "a cluster has either 'device' or 'groups'"),
        ({"groups": [{"device": "k40"}]}, "a cluster has either 'device' or 'groups'"),
        ({"levels": []}, "levels: Tuple should have at least 1 item"),
        (levels({"bandwidth": "100"}, {}), "levels.0.bandwidth: '100' has no unit"),
        (levels({"latency": 2}, {}), "levels.0.latency: '2' has no unit; write e.g. '5 us'"),
        (levels({"size": 0}, {}), "levels.0.size: Input should be greater than or equal to 1"),
        (levels({"size": 8.0}, {}), "levels.0.size: Input should be a valid integer"),
        (levels({"size": None}, {}), "level 'node' states no size; only the last level may be unlimited"),
        (levels({}, {"shared_by": 3}), "a port is shared by 3 devices, which does not divide the 8 devices"),
        (levels({}, {"name": "node"}), "two levels have the same name"),
        (levels({}, {"efficiency": 0}), "levels.1.efficiency: Input should be greater than 0"),
        ({"source": {"nodes": "x"}}, "'nodes' is not a key of this file"),
    ],
)
def test_bad_clusters(change: dict[str, Any], message: str) -> None:
    assert message in messages(ClusterFile, GOOD_CLUSTER | change)


def several(**change: Any) -> dict[str, Any]:
    content = {key: value for key, value in GOOD_CLUSTER.items() if key != "device"}
    return content | {"groups": [{"device": "k20", "count": 8}, {"device": "k40", "count": 16, **change}]}


def test_several_kinds_of_devices() -> None:
    file = ClusterFile.model_validate(several())
    made = file.to_domain({name: device(name) for name in file.device_names})
    assert [(group.device.name, group.num_devices) for group in made.groups] == [("k20", 8), ("k40", 16)]
    assert made.max_devices == 24


def test_a_group_may_have_links_of_its_own() -> None:
    own = [level | {"bandwidth": "1 GB/s"} for level in GOOD_CLUSTER["levels"][:1]]
    file = ClusterFile.model_validate(several(name="new", levels=own))
    made = file.to_domain({name: device(name) for name in file.device_names})
    assert [group.name for group in made.groups] == ["", "new"]
    assert made.groups[0].levels == ()
    assert [level.name for level in made.groups[1].levels] == [GOOD_CLUSTER["levels"][0]["name"]]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([GOOD_CLUSTER["levels"][0] | {"name": "socket"}], "group 1 has level 'socket'"),
        (
            [GOOD_CLUSTER["levels"][0] | {"size": 3}],
            "group 1 has level 'node' of size 3; expected, in this order: node of size",
        ),
        ([*GOOD_CLUSTER["levels"], GOOD_CLUSTER["levels"][0]], "group 1 has 3 levels, the cluster 2"),
        ([GOOD_CLUSTER["levels"][0], GOOD_CLUSTER["levels"][1] | {"shared_by": 3}], "a port is shared by 3 devices"),
    ],
)
def test_links_of_a_group_join_the_cluster_s_units(levels: list[dict[str, Any]], message: str) -> None:
    assert message in messages(ClusterFile, several(levels=levels))


@pytest.mark.parametrize(
    ("name", "instance", "transport", "node_bytes_per_s"),
    [
        ("aws-p3", "p3.16xlarge", "tcp", 2.5e9),  # 80 % of 25 Gb/s
        ("aws-p3dn", "p3dn.24xlarge", "tcp", 6.3e9),  # 0.8 x 15.75 / 2 GB/s of PCIe 3.0, two GPUs on a switch
        ("aws-g4dn", "g4dn.12xlarge", "tcp", 5e9),
        ("aws-g5", "g5.48xlarge", "tcp", 10e9),
        ("azure-ndv2", "ND40rs_v2", "host", 6.3e9),
        ("gcp-v100", "n1-standard-96, 8 V100", "tcp", 6.3e9),
        ("gcp-a2", "a2-highgpu-8g", "tcp", 10e9),
    ],
)
def test_what_nodes_of_clouds_without_gpudirect_reach(
    name: str, instance: str, transport: str, node_bytes_per_s: float
) -> None:
    made = cluster(name)
    assert device_called(instance) == (made.device.name, name)
    assert made.levels[-1].transport == transport
    devices = np.prod([level.size for level in made.levels[:-1]])
    assert devices * made.levels[-1].bandwidth_bytes_per_s * made.levels[-1].reached == pytest.approx(node_bytes_per_s)


def test_bundled_mixed_clusters() -> None:
    mixed = cluster("a100-v100")
    assert [(group.device.name, group.num_devices) for group in mixed.groups] == [("a100-80gb", 16), ("v100-32gb", 32)]
    # The links of the two generations are those of the clusters of one generation.
    assert mixed.levels == cluster("dgx-a100").levels
    assert mixed.groups[1].levels == cluster("dgx1-v100").levels
    newer = cluster("h100-a100")
    assert newer.levels == cluster("dgx-h100").levels
    assert newer.groups[1].levels == cluster("dgx-a100").levels
    regions = cluster("two-regions-a100")
    assert [group.name for group in regions.groups] == ["region-1", "region-2"]
    assert regions.levels[2].port_bytes_per_s == 100e9 / 8 * 0.8


def test_json_schemas_speak_of_quantities() -> None:
    text = json.dumps([DeviceFile.model_json_schema(), ClusterFile.model_json_schema()])
    assert "80 GiB" in text
    assert "989 TFLOP/s" in text

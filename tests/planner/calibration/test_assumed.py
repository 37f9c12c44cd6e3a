"""Values that files assume give way to measurements; those with another source are believed as before."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from planner.calibration.measurements import Machinery
from planner.calibration.run import assumed_constants, calibrate, prior_log_sds
from planner.detect.machine import detect
from planner.detect.report import machine_files
from planner.files.documents import parse_document
from tests.planner.detect import machines


def _written(folder: Path, *, known: bool) -> Path:
    """Two processes that talk at 0.8 GB/s and 750 us, where the file has 2 GB/s and 250 us: a ping-pong, and gloo's all-reduce, by hand."""
    for target, text in machine_files(
        detect(machines.without_gpu(), cores_per_device=16, processes=2), folder / "m-cluster.yaml", stem="m"
    ).items():
        target.write_text(text.replace("assumption - ", "timed by hand, ") if known else text)
    lines = []
    for n, (name, steps) in itertools.product(range(8), (("point_to_point", 1), ("all_reduce", 3))):
        size = 2 ** (10 + 2 * n)
        lines.append(f"{name},2,1,{size},{(750e-6 * steps + size / 0.8e9) * 1e3:.6f}")
    rows = "".join(f"collective,m-device.yaml,m-cluster.yaml,{line}\n" for line in lines)
    table = folder / "m.csv"
    table.write_text(f"kernel,device_file,cluster_file,collective,ranks,nodes,bytes,time_ms\n{rows}")
    return table


@pytest.mark.exact
@pytest.mark.parametrize("known", [False, True])
def test_assumed_links_are_those_that_were_measured(known: bool, tmp_path: Path) -> None:
    result = calibrate([str(_written(tmp_path, known=known))], Machinery(), name="test")
    found = {finding.name: finding.constant for finding in result.findings}
    bandwidth = found["intra_node_bandwidth"]
    assert bandwidth.prior_log_sd == (0.2 if known else 0.7)
    assert bandwidth.value == pytest.approx(0.4, rel=0.1)  # of 2 GB/s
    assert found["link_latency"].value == pytest.approx(3.0, rel=0.15)  # of 250 us
    assert found["memory_rate"].prior_log_sd == (0.15 if known else 0.7)
    assert found["matmul_size"].prior_log_sd == 0.5  # nothing assumes it


def test_which_values_are_assumed(tmp_path: Path) -> None:
    """Of processors nearly all, of GPUs whose links state their speed only latencies."""
    for system, constants in (
        (
            machines.without_gpu(),
            {"matmul_rate", "memory_rate", "intra_node_bandwidth", "inter_node_bandwidth", "link_latency"},
        ),
        (machines.dgx_h100(), {"link_latency"}),
    ):
        files = machine_files(detect(system), tmp_path / "c.yaml")
        for target, text in files.items():
            target.write_text(text)
        assert set().union(*(assumed_constants(parse_document(path).value) for path in files)) == constants
    usual = prior_log_sds(())
    assert usual == prior_log_sds(["dgx-h100", "gone.yaml", ""])
    changed = prior_log_sds([str(tmp_path / "c.yaml")])
    assert {name for name in usual if usual[name] != changed[name]} == {"link_latency"}


@pytest.mark.parametrize(
    "text", ["", "- 1", "source: 3", "source: {host: 4}\nlevels: 7", "levels: [1, {name: [a]}]\nsource: {a: b}", "{"]
)
def test_files_that_are_no_machine(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert prior_log_sds([str(path)]) == prior_log_sds(())

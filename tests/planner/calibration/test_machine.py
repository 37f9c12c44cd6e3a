"""Rows that contradict the cluster which the command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibration.measurements import link_remark, machinery_of
from planner.measurements.hardware import machine_of
from planner.measurements.tables import Row, read_table


@pytest.mark.parametrize(
    ("cluster", "device", "stated", "said"),
    [
        ("dgx-a100", "a100-80gb", "400", "1 rows state 400 Gb/s per node between nodes, cluster dgx-a100 has 1,600"),
        ("dgx-a100", "a100-80gb", "1600", ""),
        ("dgx-a100", "a100-80gb", "", ""),
        ("k80-10gbe", "k80", "10", ""),  # one link for the eight devices of a node
        ("k80-10gbe", "k80", "20", "cluster k80-10gbe has 10"),
        (None, "a100-80gb", "400", ""),
    ],
)
def test_other_links_than_the_clusters_are_pointed_out(
    tmp_path: Path, cluster: str | None, device: str, stated: str, said: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        f"model,device,gpus,global_batch,inter_bw_Gbps_per_node,step_time_ms\ngpt2,{device},16,64,{stated},900\n"
    )
    found = link_remark(machinery_of(device, cluster, None), read_table(path))
    assert (said in found) if said else not found


@pytest.mark.parametrize("framework", ["nanotron", "llm-foundry", "nemo", ""])
def test_a_device_that_the_command_line_names_has_the_kernels_of_the_rows_framework(framework: str) -> None:
    """What is fitted and what is validated are one device: attention on Hopper is slower without kernels made for it."""
    row = Row(line=2, cells={"device": "h100-sxm", "framework": framework, "gpus": "8"})
    named = machinery_of("h100-sxm", "dgx-h100", None)
    assert machine_of(named.on_it(row)).device == machine_of(row).device

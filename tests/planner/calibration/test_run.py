"""From tables with known constants back to the constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import CONSTANTS
from planner.calibration.measurements import Machinery, link_remark, machinery_of
from planner.calibration.report import calibration_text, result_document
from planner.calibration.run import Calibrated, calibrate
from planner.files.loading import load_calibration, load_device
from planner.files.naming.frameworks import framework_of
from planner.measurements.hardware import machine_of
from planner.measurements.outcomes import Preset
from planner.measurements.tables import Row, read_table

# A100: matrix products reach 0.8 of what is bundled, element-wise kernels 0.7; the host is 1.6 times slower.
A100 = load_device("a100-80gb").device.efficiency
TRUE_PLAN = {"matmul_rate": 0.8, "elementwise_rate": 0.7, "host_launch": 1.6}
PLAN_PRESET = Preset(
    name="roofline",
    efficiency=(("elementwise_fraction", 0.7 * A100.elementwise_fraction),),
    constants=(("matmul_rate", 0.8),),
    assumed=(("host_launch_s", 1.6 * MeshAssumptions().host_launch_s),),
)
P100 = load_device("p100").device.efficiency
GEMM_PRESET = Preset(
    name="roofline",
    efficiency=(
        ("matmul_fraction", 0.85 * P100.matmul_fraction),
        ("tile_half", 1.5 * P100.tile_half),
        ("depth_half", 1.5 * P100.depth_half),
        ("fill_outputs", 1.5 * P100.fill_outputs),
    ),
)


def _run(*files: Path, machinery: Machinery | None = None, **options: Any) -> Calibrated:
    return calibrate([str(file) for file in files], machinery or Machinery(), name="test", **options)


def _found(result: Calibrated) -> dict[str, Any]:
    return {finding.name: finding for finding in result.findings}


@pytest.fixture
def gemm(write: Any, gemm_table: Any) -> Path:
    return write("gemm.csv", "gemm", gemm_table, GEMM_PRESET, noise=0.03)


@pytest.mark.e2e
def test_constants_of_kernels_are_found(gemm: Path) -> None:
    found = _found(_run(gemm))
    for name, truth in (("matmul_rate", 0.85), ("matmul_size", 1.5)):
        constant = found[name].constant
        assert abs(np.log(constant.value / truth)) < 3 * constant.log_sd, name
        assert constant.log_sd < 0.1
        assert constant.determined
    for name in ("sustained_rate", "host_launch", "inter_node_bandwidth", "dp_exposed", "attention_rate"):
        assert found[name].constant.value == 1.0
        assert found[name].constant.log_sd == CONSTANTS[name].prior_log_sd
        assert not found[name].constant.determined
        assert found[name].reason == "no row depends on it"


_of_plans: list[Calibrated] = []


@pytest.fixture
def of_plans(write: Any, plan_table: Any) -> Calibrated:
    """Runs of three networks, fitted once."""
    if not _of_plans:
        _of_plans.append(_run(write("plans.csv", "plan", plan_table, PLAN_PRESET, noise=0.02)))
    return _of_plans[0]


@pytest.mark.exact
def test_constants_of_training_runs_are_found(of_plans: Calibrated) -> None:
    """What the runs determine is within their posterior; matmul and sustained rate act as their product."""
    result, found = of_plans, _found(of_plans)
    product = found["matmul_rate"].constant.value * found["sustained_rate"].constant.value
    assert product == pytest.approx(0.8, rel=0.06)
    for name in ("elementwise_rate", "host_launch"):
        constant = found[name].constant
        assert abs(np.log(constant.value / TRUE_PLAN[name])) < 3 * constant.log_sd + 0.05, (name, constant)
    assert found["host_launch"].constant.determined
    assert found["convolution_rate"].reason == "no row depends on it"
    assert "cannot tell it from matmul_rate" in found["sustained_rate"].reason
    assert result.grouped_by == "network"  # each has two of the table's groups
    assert result.calibration.residual_groups == 3  # networks, however many runs
    assert result.errors.before["median_ape"] is not None
    assert result.errors.left_out is not None
    assert result.errors.before["median_ape"] > 0.1
    assert result.errors.left_out["median_ape"] is not None
    assert result.errors.left_out["median_ape"] < 0.06  # two networks agree: a third may differ all the same


@pytest.mark.exact
def test_runs_of_one_network_say_nothing_of_others_and_it_is_said(
    write: Any, plan_table: Any, of_plans: Calibrated
) -> None:
    one = [row for row in plan_table if row["hidden"] == plan_table[0]["hidden"]]
    result = _run(write("one.csv", "plan", one, PLAN_PRESET, noise=0.02))
    assert not result.fell_back
    assert result.grouped_by == "rows"
    assert "all runs are of one network" in result.doubt
    factors = [_found(result)[name].constant.value for name in ("matmul_rate", "sustained_rate")]
    assert 0.82 < np.prod(factors) < 0.95  # made with 0.8: a part of it might be the network's
    assert result_document(result)["doubt"] == result.doubt
    assert "network" not in of_plans.doubt
    shapes = list(dict.fromkeys(row["hidden"] for row in plan_table))[:2]
    two = _run(
        write("two.csv", "plan", [row for row in plan_table if row["hidden"] in shapes], PLAN_PRESET, noise=0.02)
    )
    assert (two.grouped_by, two.folds, two.doubt) == ("network", 2, "")


@pytest.mark.exact
def test_tables_of_several_kinds_are_fitted_together(write: Any, plan_table: Any, gemm_table: Any) -> None:
    """Kernels of another device tell matmul and sustained rate apart only where they share the constant."""
    plans = write("plans.csv", "plan", plan_table, PLAN_PRESET, noise=0.02)
    products = write("gemm.csv", "gemm", gemm_table, GEMM_PRESET, noise=0.02)
    result = _run(plans, products)
    assert [use.kind for use in result.tables] == ["plan", "gemm"]
    assert [errors.name for errors in result.by_kind] == ["plan", "gemm"]
    assert result.calibration.residual_groups == 3  # kernels are none
    assert result.calibration.residual_log_sd == pytest.approx(result.residual_by_kind["plan"])
    assert _found(result)["matmul_rate"].constant.value == pytest.approx(0.83, abs=0.04)


@pytest.mark.e2e
def test_one_row_in_ten_may_be_wrong(write: Any, gemm_table: Any) -> None:
    clean = _found(_run(write("a.csv", "gemm", gemm_table, GEMM_PRESET, noise=0.03)))
    spoilt = _found(_run(write("b.csv", "gemm", gemm_table, GEMM_PRESET, noise=0.03, outliers=0.1)))
    for name in ("matmul_rate", "matmul_size"):
        assert spoilt[name].constant.value == pytest.approx(clean[name].constant.value, rel=0.05)


@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_rows_than_constants_keep_the_bundled_ones(write: Any, gemm_table: Any, rows: int) -> None:
    result = _run(write("few.csv", "gemm", gemm_table[-rows:], GEMM_PRESET))
    assert result.fell_back.startswith(f"{rows} distinct configuration")
    assert "bundled constants are kept" in result.fell_back
    assert set(result.calibration.values.values()) == {1.0}
    assert result.errors.left_out is None
    assert result.calibration.residual_groups == 0  # no training step: they say nothing about its error
    assert _found(result)["matmul_rate"].reason == "too few rows for a fit"


def test_repeats_of_one_row_are_no_more_rows(write: Any, gemm_table: Any) -> None:
    result = _run(write("same.csv", "gemm", gemm_table[-1:] * 40, GEMM_PRESET, noise=0.05))
    assert result.configurations == 1
    assert result.fell_back


def test_a_fit_that_does_not_help_rows_left_out_is_not_used(write: Any, gemm_table: Any) -> None:
    """Nothing but noise: the bundled constants are right already, and whatever a fit gains on rows left out is luck."""
    result = _run(write("noise.csv", "gemm", gemm_table[:12], Preset(name="roofline"), noise=0.5, seed=3))
    assert result.errors.left_out is not None
    assert "no better" in result.fell_back
    assert set(result.calibration.values.values()) == {1.0}


@pytest.mark.e2e
def test_the_file_holds_what_was_found(gemm: Path, new_file: Any) -> None:
    result = _run(gemm)
    loaded = load_calibration(str(new_file("fitted.yaml", calibration_text(result)))).calibration
    assert loaded.values == result.calibration.values
    np.testing.assert_allclose(loaded.correlation, result.calibration.correlation)


@pytest.mark.e2e
def test_a_constant_at_its_limit_is_not_determined(write: Any, gemm_table: Any) -> None:
    """Products so small that they are all launch, measured 20 times as long: no launch takes that, and the answer is not sure of it."""
    on = {"device": "a100-40gb", "precision": "bf16"}
    tiny = [{**row, **on, **{name: str(int(row[name]) // 64 + 1) for name in "mnk"}} for row in gemm_table]
    path = write("tiny.csv", "gemm", tiny, Preset(name="roofline"), noise=0.02)
    header, *lines = path.read_text().splitlines()
    cells = [line.rsplit(",", 1) for line in lines]
    path.write_text("\n".join([header, *(f"{start},{20 * float(time)}" for start, time in cells)]) + "\n")
    finding = _found(_run(path))["launch_overhead"]
    assert finding.constant.value == pytest.approx(CONSTANTS["launch_overhead"].highest, rel=1e-5)
    assert not finding.constant.determined
    assert finding.constant.log_sd == CONSTANTS["launch_overhead"].prior_log_sd
    assert finding.reason.startswith("the fit stopped at its limit 5")


@pytest.mark.e2e
def test_a_much_slower_device_is_followed(write: Any, gemm_table: Any) -> None:
    """Far outside the prior: the rows that agree with one another are no outliers."""
    slow = Preset(name="roofline", efficiency=(("matmul_fraction", 0.4 * P100.matmul_fraction),))
    constant = _found(_run(write("slow.csv", "gemm", gemm_table, slow, noise=0.03)))["matmul_rate"].constant
    assert constant.value == pytest.approx(0.4, rel=0.15)


def test_rows_of_another_device_are_counted(write: Any, gemm_table: Any) -> None:
    mixed = [{**row, "device": "m40"} if n % 2 else row for n, row in enumerate(gemm_table)]
    path = write("two.csv", "gemm", mixed, GEMM_PRESET, noise=0.02)
    result = _run(path, machinery=machinery_of("p100", None, None))
    assert result.tables[0].used == 32
    assert result.tables[0].skipped == {"measured on another device than p100, or on one that is not known": 32}
    assert sum(result.tables[0].skipped.values()) + result.tables[0].used == result.tables[0].rows


@pytest.mark.e2e
def test_rows_without_a_device_ran_on_the_one_that_is_named(
    write: Any, gemm_table: Any, tmp_path: Path, new_file: Any
) -> None:
    """A device of the user's own, in a file: the column may be missing."""
    whole = write("all.csv", "gemm", gemm_table, GEMM_PRESET, noise=0.02)
    bare = tmp_path / "bare.csv"
    lines = whole.read_text().splitlines()
    bare.write_text("\n".join(line.partition(",")[2] for line in lines) + "\n")
    text = (Path(load_device("p100").path)).read_text().replace("name: p100", "name: my-box", 1)
    result = _run(bare, machinery=machinery_of(str(new_file("my-box.yaml", text)), None, None))
    assert result.tables[0].used == 64
    assert result.calibration.values == _run(whole).calibration.values


@pytest.mark.exact
def test_the_cluster_that_is_named_takes_the_place_of_the_usual_one(write: Any, plan_table: Any) -> None:
    """Runs on a machine whose links are those of the cluster file: nothing is left for the bandwidth to explain."""
    own = {
        "cluster_file": "pcie4-node",
        "device_file": "a100-80gb",
        "framework": "other",
    }  # not the device that the file has
    rows = [{**row, **own} for row in plan_table if row["flash_attention"] == "yes"]
    path = write("pcie.csv", "plan", rows, Preset(name="roofline"), noise=0.01)
    path.write_text(path.read_text().replace("pcie4-node", ""))
    right = _run(path, machinery=machinery_of("a100-80gb", "pcie4-node", None))
    wrong = _run(path, machinery=machinery_of("a100-80gb", "dgx-a100", None))  # NVLink in place of PCIe
    assert right.errors.before["median_ape"] is not None
    assert right.errors.before["median_ape"] < 0.02
    assert _found(right)["intra_node_bandwidth"].constant.value == pytest.approx(1.0, abs=0.05)
    assert wrong.errors.before["mape"] is not None
    assert wrong.errors.before["mape"] > 0.1
    assert _found(wrong)["intra_node_bandwidth"].constant.value < 0.9


@pytest.mark.exact
def test_rows_of_another_framework_are_counted(write: Any, plan_table: Any) -> None:
    names = ("nanotron", "megatron-lm", "")
    rows = [{**row, "framework": names[n % 3]} for n, row in enumerate(plan_table[:12])]
    path = write("frameworks.csv", "plan", rows, Preset(name="roofline"))
    result = _run(path, machinery=machinery_of(None, None, "nanotron"))
    assert result.tables[0].skipped == {"measured with another framework than nanotron": 4}
    assert result.calibration.framework == "nanotron"
    every = _run(path)
    assert every.tables[0].used == 12
    assert every.calibration.framework == ""  # several
    assert "different frameworks" in every.doubt


@pytest.mark.parametrize(
    ("names", "stored", "doubt"),
    [
        (("torchtitan",), "torchtitan", ""),
        (("megatron-deepspeed",), "megatron-deepspeed", ""),
        (("jax",), "jax", ""),
        (("other",), "other", ""),  # not known, but FlashAttention-2 on Hopper
        (("nanotron",), "nanotron", ""),
        (("torchtitan", "jax"), "", "different frameworks"),
        (("",), "", ""),
    ],
)
def test_a_calibration_names_software_whose_kernels_are_not_the_newest(
    write: Any, plan_table: Any, names: tuple[str, ...], stored: str, doubt: str
) -> None:
    rows = [{**row, "framework": names[n % len(names)]} for n, row in enumerate(plan_table[:4])]
    result = _run(write("attention.csv", "plan", rows, Preset(name="roofline")))
    assert result.calibration.framework == stored
    if names[0]:
        kernels = {framework_of(name).attention for name in names}
        assert framework_of(stored).attention in kernels
        assert len(kernels) == (2 if doubt else 1)
    assert (doubt in result.doubt) if doubt else not result.doubt


def test_times_in_another_unit_are_doubted(write: Any, gemm_table: Any) -> None:
    path = write("us.csv", "gemm", gemm_table[:3], GEMM_PRESET)
    header, *lines = path.read_text().splitlines()
    cells = [line.rsplit(",", 1) for line in lines]
    path.write_text("\n".join([header, *(f"{start},{1000 * float(time)}" for start, time in cells)]) + "\n")
    assert "times shorter than what was measured: wrong unit?" in _run(path).doubt


# --- Rows that contradict the cluster which the command line names ------------------------------------------------------------------------


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
    new_file: Any, cluster: str | None, device: str, stated: str, said: str
) -> None:
    path = new_file(
        "runs.csv",
        f"model,device,gpus,global_batch,inter_bw_Gbps_per_node,step_time_ms\ngpt2,{device},16,64,{stated},900\n",
    )
    found = link_remark(machinery_of(device, cluster, None), read_table(path))
    assert (said in found) if said else not found


@pytest.mark.parametrize("framework", ["nanotron", "llm-foundry", "nemo", ""])
def test_a_device_that_the_command_line_names_has_the_kernels_of_the_rows_framework(framework: str) -> None:
    """What is fitted and what is validated are one device: attention on Hopper is slower without kernels made for it."""
    row = Row(line=2, cells={"device": "h100-sxm", "framework": framework, "gpus": "8"})
    named = machinery_of("h100-sxm", "dgx-h100", None)
    assert machine_of(named.on_it(row)).device == machine_of(row).device

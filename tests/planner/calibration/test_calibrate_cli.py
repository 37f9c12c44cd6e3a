"""The command and the option ``--calibration``: what is printed, written and applied, and bad input of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import CONSTANTS
from planner.files.loading import load_device
from planner.measurements.kinds import KINDS
from planner.measurements.outcomes import Preset
from planner.schema.calibration import CalibrationFile
from planner.schema.plan import PlanDocument
from planner.schema.results import CalibrationResult

P100 = load_device("p100").device.efficiency
SLOWER = Preset(name="roofline", efficiency=(("matmul_fraction", 0.8 * P100.matmul_fraction),))


@pytest.fixture
def table(write: Any, gemm_table: Any) -> str:
    return str(write("gemm.csv", "gemm", gemm_table, SLOWER, noise=0.02))


@pytest.mark.e2e
def test_it_writes_a_file_and_says_what_it_found(said: Any, table: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    out, err = said("calibrate", table, "--device", "p100", "-o", str(path))
    assert f"wrote {path}" in err
    assert "on rows left out of the fit (5 folds)" in out
    assert "Not determined by these rows" in out
    content = yaml.safe_load(path.read_text())
    file = CalibrationFile.model_validate(content)
    assert file.name == "mine"
    assert file.source.device == "p100"
    assert file.source.used == 64
    assert file.constants["matmul_rate"].value == pytest.approx(0.8, rel=0.05)
    assert file.constants["matmul_rate"].determined
    assert not file.constants["host_launch"].determined
    assert file.cross_validation.error_after < 0.5 * file.cross_validation.error_before


@pytest.mark.e2e
def test_a_slip_in_the_name_of_a_framework_is_pointed_out(said: Any, table: str) -> None:
    words = "is no framework that is known; no framework's costs count; did you mean 'nanotron'?"
    assert f"--framework nanotrn {words}" in said("calibrate", table, "--framework", "nanotrn")[1]
    assert "is no framework" not in said("calibrate", table, "--framework", "mine")[1]


@pytest.mark.e2e
def test_json_follows_the_schema(said: Any, table: str) -> None:
    out, err = said("calibrate", table, "--json")
    result = CalibrationResult.model_validate(json.loads(out))
    assert "-o FILE" in err
    assert result.all.left_out is not None
    assert result.files[0].rows == result.files[0].used == 64
    assert {constant.name for constant in result.constants if constant.determined} >= {"matmul_rate"}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_template_can_be_calibrated(said: Any, kind: str, tmp_path: Path) -> None:
    """One row of each kind: read, predicted and counted; too few to fit to, which the answer and the file say."""
    path, into = tmp_path / "runs.csv", tmp_path / "mine.yaml"
    path.write_text(said("validate", "--template", kind)[0])
    out, _ = said("calibrate", str(path), "-o", str(into))
    assert "1 distinct configuration cannot determine the" in out
    assert "the bundled constants are kept" in " ".join(out.split())
    file = CalibrationFile.model_validate(yaml.safe_load(into.read_text()))
    assert file.source.used == 1
    assert "bundled constants are kept" in file.source.note
    assert {entry.value for entry in file.constants.values()} == {1.0}


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_bytes(said: Any, table: str, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        path = tmp_path / "again.yaml"
        said("calibrate", table, "--seed", "3", "-q", "-o", str(path))
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.e2e
def test_validate_with_the_file_says_the_same_error(said: Any, table: str, tmp_path: Path) -> None:
    path = str(tmp_path / "mine.yaml")
    reported = json.loads(said("calibrate", table, "--json", "-o", path)[0])["all"]
    bundled = json.loads(said("validate", table, "--json")[0])["files"][0]
    fitted = json.loads(said("validate", table, "--json", "--calibration", path)[0])["files"][0]
    assert bundled["median_ape"] == pytest.approx(reported["before"]["median_ape"], rel=1e-9)
    assert fitted["median_ape"] == pytest.approx(reported["after"]["median_ape"], rel=1e-9)
    assert fitted["mape"] == pytest.approx(reported["after"]["mape"], rel=1e-9)
    assert fitted["paleo"] == bundled["paleo"]


def test_the_guide_lists_every_constant() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text(encoding="utf-8")
    for name, constant in CONSTANTS.items():
        assert f"| `{name}` | {constant.meaning} | {constant.prior_log_sd * 100:.0f} % |" in guide


def test_the_file_of_the_guide_is_valid(said: Any, new_file: Any) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text(encoding="utf-8")
    path = new_file("mine.yaml", guide.split("```yaml\n")[1].split("```")[0])
    out, _ = said("estimate", "alexnet", "--gpus", "8", "--family", "data", "--calibration", str(path))
    assert "calibration mine (matmul_rate x 0.93, inter_node_bandwidth x 0.80)" in " ".join(out.split())


# -- applied ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_compute(tmp_path: Path) -> str:
    """Everything that computes runs at half of its rate; links and host as they are."""
    names = ("matmul_rate", "memory_rate", "attention_rate")
    path = tmp_path / "half.yaml"
    entry = {"value": 0.5, "log_sd": 0.05, "prior_log_sd": 0.2, "determined": True}
    entry_of_attention = {**entry, "value": 1.0}
    constants = {name: entry_of_attention if name == "attention_rate" else entry for name in names}
    path.write_text(
        yaml.safe_dump(
            {"schema_version": 1, "name": "half", "constants": constants, "residual": {"log_sd": 0.1}}, sort_keys=False
        )
    )
    return str(path)


ONE_GPU = ("optimize", "gpt3-1.3b", "--gpus", "1", "--batch", "64", "--json", "-k", "1", "--recompute", "none")


@pytest.mark.e2e
def test_half_the_rates_take_twice_the_time(said: Any, slow_compute: str, tmp_path: Path) -> None:
    """On one device a large step is all compute; small sizes and launches change less."""
    plan = tmp_path / "plan.yaml"
    bundled = json.loads(said(*ONE_GPU)[0])
    slower = json.loads(said(*ONE_GPU, "--calibration", slow_compute, "--export", str(plan))[0])
    ratio = slower["plans"][0]["step_time_s"] / bundled["plans"][0]["step_time_s"]
    assert 1.9 < ratio <= 2.0 + 1e-9
    assert "calibration" in slower["setting"]["inputs"]
    assert "calibration" not in bundled["setting"]["inputs"]
    shown = {row["name"]: row for row in slower["assumptions"]}
    assert shown["calibration"]["value"] == "half (matmul_rate x 0.50, memory_rate x 0.50)"
    document = PlanDocument.model_validate(yaml.safe_load(plan.read_text()))
    assert document.calibration == slow_compute
    assert document.provenance.inputs["calibration"] == slower["setting"]["inputs"]["calibration"]
    again = json.loads(said("estimate", "--plan", str(plan), "--json")[0])
    assert again["plans"][0]["step_time_s"] == pytest.approx(slower["plans"][0]["step_time_s"], rel=1e-12)


def test_a_changed_calibration_is_noticed(said: Any, slow_compute: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    said(*ONE_GPU, "--calibration", slow_compute, "--export", str(plan))
    Path(slow_compute).write_text(Path(slow_compute).read_text().replace("0.5", "0.6"))
    _, err = said("estimate", "--plan", str(plan))
    assert "the calibration file is not the one that the plan was made with" in err


def test_the_default_calibration_changes_no_prediction(said: Any) -> None:
    bundled = json.loads(said(*ONE_GPU)[0])
    default = json.loads(said(*ONE_GPU, "--calibration", "default")[0])
    assert default["plans"][0]["step_time_s"] == bundled["plans"][0]["step_time_s"]


def test_a_calibration_brings_the_attention_kernels_of_its_framework(said: Any, tmp_path: Path) -> None:
    """Factors on the rate of FlashAttention-2 say nothing of kernels made for the device; an A100 has no others."""
    compute = {}
    for framework in ("nanotron", "nemo"):
        path = tmp_path / f"{framework}.yaml"
        content = {"schema_version": 1, "name": framework, "constants": {"host_launch": {"value": 1.0}}}
        path.write_text(yaml.safe_dump({**content, "source": {"framework": framework}}))
        fixed = ("--gpus", "8", "--tp", "8", "--batch", "8", "--seq", "16384", "--recompute", "none")
        for cluster in ("dgx-h100", "dgx-a100"):
            answer = said("estimate", "llama3-8b", *fixed, "--cluster", cluster, "--calibration", str(path), "--json")
            compute[framework, cluster] = json.loads(answer[0])["plans"][0]["compute_s"]
    hopper, ampere = (compute["nanotron", name] / compute["nemo", name] for name in ("dgx-h100", "dgx-a100"))
    assert 1.0 < ampere < 1.05  # what else the profiles say
    assert hopper > 1.08 * ampere


def test_assumptions_say_that_they_are_calibrated(said: Any, tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    entry = {"value": 2.0, "log_sd": 0.1, "prior_log_sd": 0.5}
    content = {"schema_version": 1, "name": "host", "constants": {"host_launch": entry}, "residual": {"log_sd": 0.1}}
    path.write_text(yaml.safe_dump(content))
    arguments = ("estimate", "gpt3-1.3b", "--gpus", "8", "--json", "--calibration", str(path))
    rows = {row["name"]: row for row in json.loads(said(*arguments)[0])["assumptions"]}
    assert rows["host_launch_s"]["source"] == "calibration"
    assert float(rows["host_launch_s"]["value"]) == pytest.approx(2 * MeshAssumptions().host_launch_s)
    assert rows["host_collective_s"]["source"] == "default"
    given = json.loads(said(*arguments, "--assume", "host_launch_s=1e-5")[0])
    rows = {row["name"]: row for row in given["assumptions"]}
    assert (rows["host_launch_s"]["source"], float(rows["host_launch_s"]["value"])) == ("given", 1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "alexnet", "--gpus", "4", "--json"),
        ("estimate", "alexnet", "--gpus", "4", "--family", "data", "--json"),
        ("explain", "alexnet", "--gpus", "4", "--json"),
        ("scale", "alexnet", "--workers", "1,4", "--json"),
    ],
)
def test_every_command_that_predicts_takes_it(said: Any, slow_compute: str, arguments: tuple[str, ...]) -> None:
    bundled, slower = (json.loads(said(*arguments, *more)[0]) for more in ((), ("--calibration", slow_compute)))

    def step(document: dict[str, Any]) -> float:
        rows = document.get("plans") or document.get("points")
        assert rows
        return float(rows[0]["step_time_s"])

    assert step(slower) > 1.2 * step(bundled)


# -- bad input --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("defualt", "did you mean 'default'?"),
        ("nowhere/mine.yaml", "nowhere/mine.yaml: no such calibration file"),
        ("default --cost-model paleo", "--calibration: only has a meaning with --cost-model roofline"),
    ],
)
def test_a_calibration_that_cannot_be_used(fails: Any, options: str, message: str) -> None:
    assert message in fails("optimize", "alexnet", "--gpus", "2", "--calibration", *options.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constants": {"matmul_rat": {"log_sd": 0.1, "prior_log_sd": 0.1}}}, "did you mean 'matmul_rate'"),
        ({"constants": {"matmul_rate": {"value": 0, "log_sd": 0.1, "prior_log_sd": 0.1}}}, "value"),
        ({"constants": {"matmul_rate": {"value": -1.0, "log_sd": 0.1, "prior_log_sd": 0.1}}}, "value"),
        ({"constants": {"matmul_rate": {"log_sd": "much", "prior_log_sd": 0.1}}}, "expected a number"),
        ({"constants": {}}, "constants"),
        ({"correlation": [[1.0, 0.0]]}, "expected 1 rows of 1 numbers"),
        ({"correlation": [[0.5]]}, "ones on its diagonal"),
        (
            {
                "constants": {
                    name: {"log_sd": 0.1, "prior_log_sd": 0.1} for name in ("matmul_rate", "memory_rate", "host_launch")
                },
                "correlation": [[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]],
            },
            "negative eigenvalue",
        ),
        ({"residual": {}}, "log_sd"),
        ({"schema_version": 2}, "schema_version"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_wrong_calibration_file_is_named_with_its_line(
    fails: Any, new_file: Any, change: dict[str, Any], message: str
) -> None:
    content: dict[str, Any] = {
        "schema_version": 1,
        "name": "wrong",
        "constants": {"matmul_rate": {"log_sd": 0.1, "prior_log_sd": 0.1}},
        "residual": {"log_sd": 0.1},
    }
    path = new_file("wrong.yaml", yaml.safe_dump({**content, **change}))
    err = fails("optimize", "alexnet", "--gpus", "2", "--calibration", path)
    assert message in err
    assert f"{path}:" in err


HEADER = "device,precision,m,n,k,time_ms\n"
PLAN = "style,hidden,layers,heads,device,gpus,global_batch,micro_batch,tp,pp,dp,step_time_ms,oom,memory_gib\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "has a header and no rows"),
        ("m,n,k,time_ms\n1,2,3,4\n", "missing columns: device"),
        ("a,b\n1,2\n", "its first line names no column of a table of measurements"),
        (HEADER + "p100,fp32,64,64,64,nan\n", "time_ms 'nan' is no number above 0 (ms)"),
        (HEADER + "abacus,fp32,64,64,64,1\n", "1 device 'abacus' is not known"),
        (HEADER + "p100,fp32,64,64,64,0\n", "time_ms '0' is no number above 0 (ms)"),
        (HEADER + "p100,fp32,64,64,64,-3\n", "time_ms '-3' is no number above 0 (ms)"),
        (
            HEADER + "p100,fp32,4096,4096,4096,0.003\n",
            "1 time far below what the peak of the device allows: wrong unit?",
        ),
        (PLAN + "gpt,2048,24,16,a100-80gb,8,64,1,1,1,8,0.003,,\n", "wrong unit?"),
        (PLAN + "gpt,2048,24,16,a100-80gb,8,64,1,1,1,8,900,,4000\n", "1 memory above that of the device: wrong unit?"),
        (PLAN + "gpt,2048,24,16,a100-80gb,8,64,1,1,1,8,,yes,\n" * 3, "3 failed runs: they have no time to fit to"),
        ("\x00\x01", "is no"),
    ],
)
def test_tables_that_cannot_be_fitted_to(fails: Any, tmp_path: Path, text: str, message: str) -> None:
    path, into = tmp_path / "bad.csv", tmp_path / "out.yaml"
    path.write_text(text)
    err = fails("calibrate", path, "-o", into)
    assert message in err
    assert str(path) in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.e2e
def test_bad_rows_are_counted_beside_good_ones(said: Any, table: str) -> None:
    text = Path(table).read_text()
    Path(table).write_text(text + "abacus,fp32,64,64,64,1\np100,fp32,64,64,64,nan\np100,fp99,64,64,64,1\n")
    out = json.loads(said("calibrate", table, "--json")[0])["files"][0]
    assert (out["rows"], out["used"]) == (67, 64)
    assert sum(out["skipped"].values()) == 3
    assert any("abacus" in reason for reason in out["skipped"])
    shown = said("calibrate", table)[0]
    assert "1 device 'abacus' is not known" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give at least one CSV file"),
        (("nowhere.csv",), "nowhere.csv"),
        (("x.csv", "-o", "mine.csv"), "a calibration is a YAML file"),
        (("x.csv", "-o", "/dev/null/mine.yaml"), "Not a directory"),
        (("x.csv", "--folds", "1"), "--folds 1: must be at least 2"),
        (("x.csv", "--seed", "one"), "--seed one: must be a whole number"),
        (("x.csv", "--name", "two words"), "--name two words"),
        (("x.csv", "--device", "h10"), "device 'h10' is not known"),
        (("x.csv", "--cluster", "h100-a100"), "several kinds of devices"),
    ],
)
def test_bad_usage(fails: Any, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails("calibrate", *arguments)


def test_a_file_that_is_there_stays_when_nothing_can_be_fitted(fails: Any, tmp_path: Path) -> None:
    path, into = tmp_path / "bad.csv", tmp_path / "out.yaml"
    path.write_text(HEADER)
    into.write_text("old")
    fails("calibrate", path, "-o", into)
    assert into.read_text() == "old"

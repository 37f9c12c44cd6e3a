"""The command: bad input, absence of PyTorch, and real runs where PyTorch is installed."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.measure.cases import COLLECTIVES, KINDS, kernel_cases
from planner.measure.kernels import COLUMNS, Workbench
from planner.measure.report import measure_report
from planner.measure.run import Measured
from planner.measurements.kernels import ELEMENTWISE
from planner.measurements.kinds import KINDS as TABLES
from planner.measurements.kinds import predict_table
from planner.measurements.tables import read_table

ROOT = Path(__file__).resolve().parents[3]
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed (extra 'torch')")


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_the_extra_is_named(fails: Any, tmp_path: Path) -> None:
    error = fails("measure", "-o", str(tmp_path / "m.csv"))
    assert error == (
        "error: planner measure needs PyTorch, which is not installed; install the extra 'torch': pip install 'paleo-planner[torch]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_broken_pytorch(fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    assert "PyTorch cannot be loaded: libcudart.so.12" in fails("measure", "-o", str(tmp_path / "m.csv"))


def test_everything_wrong_is_said_at_once(fails: Any, tmp_path: Path) -> None:
    error = fails(
        "measure",
        "--device",
        "tpu",
        "--only",
        "gemm,gemms",
        "--precision",
        "fp64",
        "--time-limit",
        "0",
        "-o",
        str(tmp_path / "m.txt"),
    )
    for words in (
        "--device tpu: must be cuda or cpu",
        "--only gemms",
        "did you mean 'gemm'",
        "--precision fp64",
        "--time-limit 0: must be above 0",
        "ends in .csv",
    ):
        assert words in error


@pytest.mark.parametrize(
    ("option", "name", "kind"),
    [("--as", "h10", "device"), ("--cluster", "dgx", "cluster"), ("--calibration", "nowhere", "calibration")],
)
def test_names_are_checked_before_anything_is_measured(
    fails: Any, tmp_path: Path, option: str, name: str, kind: str
) -> None:
    assert f"{kind} '{name}' is not known" in fails("measure", option, name, "-o", str(tmp_path / "m.csv"))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_output(fails: Any, tmp_path: Path) -> None:
    assert "Not a directory" in fails("measure", "-o", "/dev/null/m.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in fails("measure", "-o", str(tmp_path / "folder.csv"))


def test_the_default_file_is_not_replaced(fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("measured.csv").write_text("mine")
    assert "measured.csv is already there" in fails("measure")
    assert Path("measured.csv").read_text() == "mine"


# -- with PyTorch ---------------------------------------------------------------------------------------------------------------


def started(*arguments: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.e2e
@needs_torch
def test_a_run_on_the_processor(tmp_path: Path, answer: Any) -> None:
    process = started(
        "planner",
        "measure",
        "--quick",
        "--device",
        "cpu",
        "--time-limit",
        "8s",
        "-o",
        "m.csv",
        "--json",
        folder=tmp_path,
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = rows_of(tmp_path / "m.csv")
    document = json.loads(out)
    from planner.schema.results import MeasureDocument

    MeasureDocument.model_validate(document, strict=True)
    assert len(document["rows"]) == len(rows) > 0
    for row in rows:
        low, middle, high = (float(row[name]) for name in ("min_ms", "time_ms", "p90_ms"))
        assert 0 < low <= middle <= high
        assert int(row["samples"]) >= 3
    assert all(row["predicted_s"] for row in document["rows"])
    (file,) = json.loads(answer("validate", str(tmp_path / "m.csv"), "--json"))["files"]
    assert (file["kind"], file["coverage"], file["without_default"]) == (
        "measured",
        1.0,
        1.0 if file["scored"] else None,
    )


@pytest.mark.e2e
@needs_torch
def test_two_processes(tmp_path: Path) -> None:
    process = started(
        *("torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29631"),
        *("-m", "planner", "measure", "--quick", "--device", "cpu", "--time-limit", "8s", "-o", "m.csv"),
        folder=tmp_path,
    )
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    rows = rows_of(tmp_path / "m.csv")
    collectives = [row for row in rows if row["kernel"] == "collective"]
    assert {row["collective"] for row in collectives} >= {"all_reduce", "point_to_point"}
    assert {row["cluster_file"] for row in collectives} == {"m-cluster.yaml"}
    assert "size: 2" in (tmp_path / "m-cluster.yaml").read_text()
    assert err.count("wrote") == 3  # by the first process alone
    assert run(["validate", str(tmp_path / "m.csv")]) == 0


@pytest.mark.e2e
@needs_torch
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_its_rows(tmp_path: Path, number: int) -> None:
    process = started("planner", "measure", "--device", "cpu", "-o", "m.csv", folder=tmp_path)
    deadline_s = time.monotonic() + 90
    while not (tmp_path / "m.csv").exists() and time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "until it was stopped" in out
    assert rows_of(tmp_path / "m.csv")
    assert run(["validate", str(tmp_path / "m.csv")]) == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".planner")]


@pytest.mark.e2e
@needs_torch
def test_files_corrected_by_hand_are_kept(fails: Any, tmp_path: Path) -> None:
    (tmp_path / "m-device.yaml").write_text("mine")
    error = fails("measure", "--device", "cpu", "-o", str(tmp_path / "m.csv"))
    assert "--as" in error
    assert (tmp_path / "m-device.yaml").read_text() == "mine"


@needs_torch
def test_formats_that_the_device_lacks(fails: Any, tmp_path: Path) -> None:
    assert "computes in" in fails("measure", "--device", "cpu", "--precision", "tf32", "-o", str(tmp_path / "m.csv"))


@needs_torch
def test_inputs_come_from_the_seed() -> None:
    torch = importlib.import_module("torch")
    case = next(case for case in kernel_cases(large=False, quick=True, precisions=("fp32",)) if case.kernel == "gemm")
    first, again, other = (Workbench(torch, torch.device("cpu"), seed).call(case)() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.e2e
@needs_torch
def test_every_kernel_runs_and_means_what_its_row_says() -> None:
    """Shapes of the results against those that the cost model takes from the columns."""
    torch = importlib.import_module("torch")
    bench = Workbench(torch, torch.device("cpu"), 0)
    seen = set()
    for case in kernel_cases(large=False, quick=False, precisions=("fp32",)):
        key = (case.kernel, case.direction, dict(case.cells).get("op"), dict(case.cells).get("cell"))
        if key in seen or case.held_bytes > 2**27:
            continue
        seen.add(key)
        result = bench.call(case)()
        if case.kernel == "gemm":
            assert tuple(result.shape) == (case["m"], case["n"])
        if case.kernel == "convolution":
            out = (case["h"] + 2 * case["pad_h"] - case["r"]) // case["stride_h"] + 1
            shapes = {
                "forward": (case["n"], case["k"], out, out),
                "backward_input": (case["n"], case["c"], case["h"], case["w"]),
                "backward_weight": (case["k"], case["c"], case["r"], case["s"]),
            }
            assert tuple(result.shape) == shapes[case.direction]
        if case.kernel == "attention" and case.direction == "forward":
            assert tuple(result.shape) == (case["batch"], case["heads"], case["seq"], case["head_dim"])
        if case.direction == "backward":
            assert all(gradient is not None for gradient in result)
    assert {key[0] for key in seen} == {"gemm", "copy", "convolution", "elementwise", "attention", "recurrent"}


def test_a_calibration_counts_in_the_report(new_file: Any) -> None:
    path = new_file("m.csv", "kernel,device,precision,m,n,k,time_ms\ngemm,a100-80gb,bf16,8192,8192,8192,4.5\n")
    reports = [
        measure_report(path, "a100-80gb", "here", "PyTorch", Measured(), constants).data()["rows"][0]["predicted_s"]
        for constants in (None, {"matmul_rate": 0.5})
    ]
    assert reports[1] == pytest.approx(2 * reports[0], rel=0.02)


@pytest.mark.parametrize(
    "command",
    [
        "optimize",
        "estimate",
        "explain",
        "compare",
        "scale",
        "sweep",
        "size",
        "place",
        "validate",
        "calibrate",
        "measure",
    ],
)
def test_every_command_that_predicts_takes_a_calibration(command: str, answer: Any) -> None:
    """Of `calibrate`, whose answer it is, the help says what to do with it."""
    assert "--calibration" in answer(command, "--help")


# --- docs/measurements.md: the example is valid, and every column and kind of table is explained ------------------------------------------


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "measurements.md").read_text(encoding="utf-8")


def test_the_example_is_scored_and_its_times_are_plausible(new_file: Any) -> None:
    (example,) = re.findall(r"validated by the tests -->\n```csv\n(.*?)```", PAGE, flags=re.DOTALL)
    kind, outcomes = predict_table(read_table(new_file("example.csv", example)))
    assert kind.name == "measured"
    assert len(outcomes) == 6
    for outcome in outcomes:
        assert outcome.skipped == ""
        (comparison,) = outcome.comparisons
        assert 0.4 < comparison.predicted_s / comparison.measured_s < 2.5, comparison


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_explained(column: str) -> None:
    assert f"`{column}`" in PAGE


@pytest.mark.parametrize("word", [*KINDS, *COLLECTIVES, *ELEMENTWISE])
def test_every_kernel_is_named(word: str) -> None:
    assert re.search(rf"\b{word}\b", PAGE)


@pytest.mark.parametrize("kind", [kind.name for kind in TABLES])
def test_every_kind_of_table_is_explained(kind: str) -> None:
    assert re.search(rf"`{kind}`|--template {kind}", PAGE)

"""The command: keys of the JSON, parts by a column, bad input, and every shared file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import convert
from planner.cli import run
from planner.schema.results import ValidationDocument
from tests.cases import mostly

KEYS = [
    "file",
    "rows",
    "scored",
    "skipped",
    "mape",
    "median_ape",
    "p90_ape",
    "bias",
    "skill",
    "groups",
    "kendall_tau",
    "pair_accuracy",
    "regret_top1_mean",
    "regret_top1_max",
    "regret_top3_mean",
    "memory_mape",
    "memory_median_ape",
    "oom_recall",
    "oom_false_alarm",
    "parameters_fitted",
]
PLAN = (
    "style,hidden,layers,heads,device,gpus,global_batch,micro_batch,tp,pp,dp,precision,seq,"
    "step_time_ms,oom,memory_gib,dataset_group,suspect"
)


def plan_row(
    tp: int,
    pp: int,
    dp: int,
    time_ms: float | str,
    *,
    hidden: int = 2048,
    oom: str = "",
    memory: str = "",
    suspect: str = "",
) -> str:
    return f"gpt,{hidden},24,16,a100-80gb,8,64,1,{tp},{pp},{dp},bf16,2048,{time_ms},{oom},{memory},g,{suspect}"


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str, code: int = 0) -> str:
        assert run(["validate", *arguments]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return call


def written(folder: Path, *lines: str) -> str:
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_figures_of_a_small_table(ask: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        PLAN,
        plan_row(1, 1, 8, 1900, memory="30"),
        plan_row(2, 1, 4, 2000),
        plan_row(8, 1, 1, 2400),
        plan_row(1, 1, 8, "", hidden=8192, oom="yes"),
        plan_row(8, 1, 1, "", oom="yes"),
        plan_row(1, 1, 8, "nan"),
        plan_row(2, 1, 4, 2000, suspect="yes"),
    )
    (file,) = json.loads(ask(path, "--json"))["files"]
    assert set(KEYS) <= set(file)
    assert (file["file"], file["rows"], file["scored"]) == (path, 7, 5)
    assert file["rows"] == file["scored"] + sum(file["skipped"].values())
    assert file["skipped"] == {
        "refused: a cell is not what its column says": 1,
        "marked suspect": 1,
    }
    assert file["groups"] == 1
    assert file["failures"] == 2
    assert file["failures_apart"] == {"predicted under half of the memory": 1}
    assert (file["oom_recall"], file["oom_false_alarm"]) == (1.0, 0.0)
    assert file["memory_mape"] is not None
    assert len(file["worst"]) == 3
    assert file["parameters_fitted"] == len(file["fitted"])


def test_a_table_of_failures_only(ask: Any, tmp_path: Path) -> None:
    (file,) = json.loads(ask(written(tmp_path, PLAN, plan_row(1, 1, 8, "", hidden=8192, oom="yes")), "--json"))["files"]
    assert (file["scored"], file["mape"], file["oom_recall"], file["oom_false_alarm"]) == (1, None, 1.0, None)


@pytest.mark.e2e
def test_parts_by_a_column(ask: Any, tmp_path: Path) -> None:
    path = written(tmp_path, PLAN, plan_row(1, 1, 8, 1900), plan_row(8, 1, 1, 2400), plan_row(8, 1, 1, 2500))
    (file,) = json.loads(ask(path, "--json", "--by", "tp"))["files"]
    assert [(part["value"], part["rows"]) for part in file["by"]] == [("1", 1), ("8", 2)]
    ValidationDocument.model_validate(json.loads(ask(path, "--json", "--by", "tp")), strict=True)
    assert "tp" in ask(path, "--by", "tp")
    assert "did you mean 'tp'" in ask(path, "--by", "tpp", code=2)


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "yaml"])
def test_every_form(ask: Any, tmp_path: Path, form: str) -> None:
    assert ask(written(tmp_path, PLAN, plan_row(1, 1, 8, 1900)), "--format", form)


def test_templates_are_tables(ask: Any, tmp_path: Path) -> None:
    text = ask("--template", "plan")
    path = tmp_path / "mine.csv"
    path.write_text(text)
    (file,) = json.loads(ask(str(path), "--json"))["files"]
    assert (file["scored"], file["skipped"]) == (1, {})
    assert "did you mean 'plan'" in ask("--template", "plans", code=2)


def test_bad_files_are_all_named(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    message = ask(str(tmp_path / "empty.csv"), str(tmp_path / "odd.csv"), str(tmp_path / "none.csv"), code=2)
    assert "is empty" in message
    assert "names no column that is known" in message
    assert "no such file" in message
    assert "Traceback" not in message
    assert "at least one CSV file" in ask(code=2)


# Kinds of tables and, for each file, how long it may take.
SHARED = {
    "megatron_lm": 60.0,
    "llm_foundry": 60.0,
    "vtrain": 3.0,
    "hf_ultrascale_nanotron": 6.0,
    "nemo_megatron_bridge": 60.0,
    "misc_transformers": 60.0,
    "tf_cnn_benchmarks": 60.0,
    "nvidia_dle_resnet_bert": 60.0,
    "deepbench_rnn": 60.0,
    "convnet_benchmarks_nets": 60.0,
    "convnet_benchmarks_layers": 60.0,
    "deepbench_gemm": 60.0,
    "deepbench_conv": 60.0,
    "pipedream_layers": 60.0,
    "mamf_matmul_peak": 60.0,
    "collectives": 60.0,
    "deepbench_allreduce": 60.0,
}


@mostly("published", "name", SHARED, quick=3)
def test_nine_tenths_of_every_shared_file_are_scored(ask: Any, tmp_path: Path, reference_data: Path, name: str) -> None:
    path = tmp_path / f"{name}.csv"
    path.write_text(convert(reference_data / "measurements" / path.name).frame().to_csv(index=False))
    start = time.process_time()
    document = json.loads(ask(str(path), "--json"))
    assert time.process_time() - start < 2 * SHARED[name]  # twice: other tests may run beside this one
    ValidationDocument.model_validate(document, strict=True)
    (file,) = document["files"]
    assert file["coverage"] >= 0.9
    assert file["scored"] >= 0.75 * file["rows"]
    assert file["rows"] == file["scored"] + sum(file["skipped"].values())
    assert file["mape"] is not None
    assert file["mape"] < 0.8  # a unit that is wrong shows

"""The command: keys of the JSON, parts by a column, bad input, and every shared file."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import convert
from planner.cli import run
from planner.measurements.columns import COLUMNS
from planner.measurements.kinds import KINDS, predict_by, predict_table, template
from planner.measurements.outcomes import DEFAULT, PALEO
from planner.measurements.tables import read_table
from planner.schema.results import ValidationDocument
from tests.cases import mostly

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


def test_templates_are_tables(ask: Any, new_file: Any) -> None:
    text = ask("--template", "plan")
    (file,) = json.loads(ask(str(new_file("mine.csv", text)), "--json"))["files"]
    assert (file["scored"], file["skipped"]) == (1, {})
    assert "did you mean 'plan'" in ask("--template", "plans", code=2)


def test_bad_files_are_all_named(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    message = ask(str(tmp_path / "empty.csv"), str(tmp_path / "odd.csv"), str(tmp_path / "none.csv"), code=2)
    for words in ("is empty", "its first line names no column of a table of measurements", "no such file"):
        assert words in message
    assert "Traceback" not in message
    assert "at least one CSV file" in ask(code=2)


# Kinds of tables and, for each file, how long it may take.
SHARED = {
    "mamf_matmul_peak": 60.0,
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
    "megatron_lm": 60.0,
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


# --- Reading tables: what a cell means, and every way in which a file can be no table -----------------------------------------------------


def table_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_template_is_a_table_of_its_kind_and_is_scored(tmp_path: Path, kind: object) -> None:
    table = read_table(table_file(tmp_path, template(kind)))  # type: ignore[arg-type]
    found, outcomes = predict_table(table)
    assert found is kind
    assert [outcome.skipped for outcome in outcomes] == [""]
    assert outcomes[0].comparisons


def test_cells_that_say_nothing_are_not_there(tmp_path: Path) -> None:
    table = read_table(table_file(tmp_path, "m,mood,n\n1, good ,3\n6\n"))
    assert [row.cells for row in table.rows] == [{"m": "1", "mood": "good", "n": "3"}, {"m": "6"}]


def test_every_column_says_what_it_is() -> None:
    for column in COLUMNS.values():
        assert column.doc, column.name
        assert bool(column.allowed) == (column.type in ("choice", "set")), column.name
        for text in column.allowed:
            assert not column.problem(text), (column.name, text)
    used = {name for kind in KINDS for names in (*kind.columns, *kind.named) for name in names}
    assert used <= set(COLUMNS)


def test_many_rows_are_predicted_as_few_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.measurements import kinds

    rows = "".join(f"a100-80gb,fp16,{64 * n},512,512,0.{n}\n" for n in range(1, 10))
    path = table_file(tmp_path, f"device,precision,m,n,k,time_ms\n{rows}")
    whole = predict_table(read_table(path))[1]
    shares: list[float] = []
    monkeypatch.setattr(kinds, "_ROWS_AT_A_TIME", 4)
    _, (parts,) = predict_by(read_table(path), (DEFAULT,), shares.append)
    assert [outcome.comparisons for outcome in parts] == [outcome.comparisons for outcome in whole]
    assert shares == [0.0, 4 / 9, 8 / 9]


def test_what_rows_mean_is_found_out_once_and_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cost models at once say what each says alone, of repeated plans as of single ones."""
    from planner.measurements import plans

    header = "hidden,layers,heads,device,gpus,tp,global_batch,micro_batch,seq,step_time_ms"
    lines = [
        f"2048,24,16,a100-80gb,8,{tp},64,2,2048,{time}" for tp, time in ((1, 2900), (2, 3000), (3, 3100), (2, 3200))
    ]
    path = table_file(tmp_path, "\n".join([header, *lines, ""]))
    asked: list[int] = []
    question = plans._question
    monkeypatch.setattr(plans, "_question", lambda row: asked.append(row.line) or question(row))
    table = read_table(path)
    _, together = predict_by(table, (DEFAULT, PALEO))
    assert asked == [2, 3, 4, 5]
    assert all(row.meaning is None for row in table.rows)
    for preset, found in zip((DEFAULT, PALEO), together, strict=True):
        for line, outcome in zip(lines, found, strict=True):
            alone = predict_table(read_table(table_file(tmp_path, f"{header}\n{line}\n")), preset)[1][0]
            assert outcome.comparisons == alone.comparisons
            assert outcome.skipped == alone.skipped
            assert outcome.row.defaults == alone.row.defaults
    assert together[0][2].skipped == "tp x pp x cp does not divide the GPUs"


def test_rows_travel_to_other_processes(tmp_path: Path) -> None:
    row = read_table(table_file(tmp_path, "m,n\n1,2\n")).rows[0]
    row.meaning = object()
    copy = pickle.loads(pickle.dumps(row))  # noqa: S301 - its own
    assert (copy, copy.meaning, copy.text("n")) == (row, None, "2")

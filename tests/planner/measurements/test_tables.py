"""Reading tables: what a cell means, and every way in which a file can be no table."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from planner.core.errors import InputFileError
from planner.measurements.columns import COLUMNS
from planner.measurements.kinds import KINDS, predict_by, predict_table, recognise, template
from planner.measurements.outcomes import DEFAULT, PALEO
from planner.measurements.tables import read_table


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("m,m\n1,2\n", "two columns are called m"),
        ("m,n\n1,2,3\n", r"table.csv:2:1: has 3 cells"),
        (b"a\xff\n", "UTF-8"),
        ('m,n\n"1,2\n', "no CSV"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputFileError, match=message):
        read_table(written(tmp_path, text))


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputFileError, match="is a folder"):
        read_table(tmp_path)


def test_missing_columns_are_named_with_the_template(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "device,m,n\np100,1,2\n"))
    with pytest.raises(
        InputFileError, match=r"'gemm'.*missing columns: k, time_ms\. Template: device,precision,m,n,k,time_ms"
    ):
        recognise(table)


def test_a_header_without_rows(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no rows"):
        predict_table(read_table(written(tmp_path, "device,precision,m,n,k,time_ms\n")))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_template_is_a_table_of_its_kind_and_is_scored(tmp_path: Path, kind: object) -> None:
    table = read_table(written(tmp_path, template(kind)))  # type: ignore[arg-type]
    found, outcomes = predict_table(table)
    assert found is kind
    assert [outcome.skipped for outcome in outcomes] == [""]
    assert outcomes[0].comparisons


def test_cells_that_say_nothing_are_not_there(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "m,mood,n\n1, good ,3\n6\n"))
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
    path = written(tmp_path, f"device,precision,m,n,k,time_ms\n{rows}")
    whole = predict_table(read_table(path))[1]
    shares: list[float] = []
    monkeypatch.setattr(kinds, "_ROWS_AT_A_TIME", 4)
    parts = predict_table(read_table(path), progress=shares.append)[1]
    assert [outcome.comparisons for outcome in parts] == [outcome.comparisons for outcome in whole]
    assert shares == [0.0, 4 / 9, 8 / 9]


def test_what_rows_mean_is_found_out_once_and_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cost models at once say what each says alone, of repeated plans as of single ones."""
    from planner.measurements import plans

    header = "hidden,layers,heads,device,gpus,tp,global_batch,micro_batch,seq,step_time_ms"
    lines = [
        f"2048,24,16,a100-80gb,8,{tp},64,2,2048,{time}" for tp, time in ((1, 2900), (2, 3000), (3, 3100), (2, 3200))
    ]
    path = written(tmp_path, "\n".join([header, *lines, ""]))
    asked: list[int] = []
    question = plans._question
    monkeypatch.setattr(plans, "_question", lambda row: asked.append(row.line) or question(row))
    table = read_table(path)
    _, together = predict_by(table, (DEFAULT, PALEO))
    assert asked == [2, 3, 4, 5]
    assert all(row.meaning is None for row in table.rows)
    for preset, found in zip((DEFAULT, PALEO), together, strict=True):
        for line, outcome in zip(lines, found, strict=True):
            alone = predict_table(read_table(written(tmp_path, f"{header}\n{line}\n")), preset)[1][0]
            assert outcome.comparisons == alone.comparisons
            assert outcome.skipped == alone.skipped
            assert outcome.row.defaults == alone.row.defaults
    assert together[0][2].skipped == "tp x pp x cp does not divide the GPUs"


def test_rows_travel_to_other_processes(tmp_path: Path) -> None:
    row = read_table(written(tmp_path, "m,n\n1,2\n")).rows[0]
    row.meaning = object()
    copy = pickle.loads(pickle.dumps(row))  # noqa: S301 - its own
    assert (copy, copy.meaning, copy.text("n")) == (row, None, "2")

"""Cells in other words and units, and columns by other names: read, or counted and remarked on; never in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.measurements.tables import Row, RowSkipped
from tests.planner.measurements.written_tables import HEADER, RUN, figures, json_of, row, table


@pytest.mark.parametrize("mark", ["-", "n/a", "N/A", "null", "unknown", "not stated", "?"])
def test_what_says_nothing_is_an_empty_cell(mark: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """In every column: a run that succeeded is no failure because somebody wrote "-" into `oom`."""
    empty = figures(capsys, write(table(row(seq="", memory_gib="", oom="", precision="", suspect="", tp=""))))
    marked = write(table(row(seq=mark, memory_gib=mark, oom=mark, precision=mark, suspect=mark, tp=mark)))
    assert figures(capsys, marked) == empty
    assert (empty["scored"], empty["failures"]) == (1, 0)


@pytest.mark.parametrize("word", ["success", "Succeeded", "completed", "passed", "ok", "none"])
def test_a_run_that_says_it_succeeded_is_no_failure(word: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, write(table(row(oom=word))))
    assert (found["comparisons"], found["failures"]) == (1, 0)


UNITS = {
    ("step_time_ms", "1900 ms"): 1.9, ("step_time_ms", "1.9 s"): 1.9, ("step_time_ms", "1.9 seconds"): 1.9,
    ("step_time_ms", "1900000us"): 1.9,
    ("tokens_per_s_per_gpu", "8.6k"): 64 * 2048 / 8 / 8600, ("tokens_per_s", "68.8k"): 64 * 2048 / 68800,
    ("samples_per_s", "33.5 samples/s"): 64 / 33.5,
}  # fmt: skip


@pytest.mark.parametrize(("cell", "seconds"), UNITS.items())
def test_a_unit_in_a_cell_counts(
    cell: tuple[str, str], seconds: float, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.9 s is 1,900 ms, not 1.9 ms; a throughput of 8.6k is not one of 8.6."""
    header = HEADER.replace("step_time_ms", cell[0])
    line = ",".join(str({**RUN, cell[0]: cell[1]}.get(name, "")) for name in header.split(","))
    (worst,) = figures(capsys, write(table(line, header=header)))["worst"]
    assert worst["measured_s"] == pytest.approx(seconds)


OTHER_UNITS = {
    "GB of time": ({"step_time_ms": "2 GB"}, "column step_time_ms is stated in 'GB'"),
    "thousands of samples": ({"global_batch": "4k"}, "column global_batch is stated in 'k'"),
    "millions": ({"global_batch": "4 M"}, "column global_batch is stated in 'M'"),
    "a product": ({"global_batch": "8 x 8"}, "column global_batch holds several numbers"),
    "hexadecimal": ({"hidden": "0x800"}, "column hidden holds several numbers"),
    "positions": ({"seq": "100k"}, "column seq is stated in 'k'"),
}


@pytest.mark.parametrize(("cells", "reason"), OTHER_UNITS.values(), ids=OTHER_UNITS)
def test_a_number_that_is_none_of_its_column_is_counted(cells: dict[str, object], reason: str, skipped: Any) -> None:
    rows, scored, reasons = skipped(table(row(), row(**cells)))
    assert (rows, scored) == (2, 1)
    assert next(iter(reasons)).startswith(reason)


def test_memory_in_other_units_and_as_a_share(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gib = figures(capsys, write(table(row(memory_gib=40))))["memory_mape"]
    for text in ("40960 MiB", "42.949673 GB", "40 GiB"):
        assert figures(capsys, write(table(row(memory_gib=text))))["memory_mape"] == pytest.approx(gib, rel=1e-6)
    for text in ("0.62", "62%"):  # of the device: no memory that any model could mean
        found = figures(capsys, write(table(row(memory_gib=text))))
        assert (found["scored"], found["memory_mape"], found["defaults"]["memory_gib"]) == (1, None, 1)


def test_a_time_that_its_throughput_contradicts(skipped: Any) -> None:
    """Microseconds in a column of milliseconds are above no limit, but not what the tokens per second say."""
    header = HEADER.replace("oom", "tokens_per_s_per_gpu")
    lines = [
        ",".join(str({**RUN, "tokens_per_s_per_gpu": 8623, **cells}.get(name, "")) for name in header.split(","))
        for cells in (
            {},
            {"step_time_ms": 1.9},
            {"step_time_ms": 1.9e6},
            {"tokens_per_s_per_gpu": 68984},
        )  # of all eight: the time counts
    ]
    reason = "step_time_ms and tokens_per_s_per_gpu contradict each other: wrong unit?"
    assert skipped(table(*lines, header=header)) == (4, 2, {reason: 2})


def test_a_file_in_another_unit_is_remarked_on(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    header, line = "device,precision,m,n,k,time_ms", "p100,fp32,1760,{},1760,{}"
    right = write("\n".join([header, *(line.format(n, n / 80) for n in (16, 32, 64, 128))]) + "\n")
    assert figures(capsys, right)["remarks"] == []
    wrong = write("\n".join([header, *(line.format(n, n / 80 * 1000) for n in (16, 32, 64, 128))]) + "\n")
    (remark,) = figures(capsys, wrong)["remarks"]
    assert remark.endswith("times shorter than what was measured: wrong unit?")
    assert run(["validate", wrong]) == 0
    assert remark[:30] in " ".join(capsys.readouterr().out.split())


IGNORED = {"memory_gib": "memory_mib", "device_mem_gb": "gpu_memory"}


@pytest.mark.parametrize(("column", "written"), IGNORED.items())
def test_a_column_that_is_not_read_is_remarked_on(
    column: str, written: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in HEADER.split(",") if name != column]
    line = ",".join(str(RUN.get(name, "")) for name in names) + ",1"
    path = write(table(line, header=",".join([*names, written])))
    (remark,) = figures(capsys, path)["remarks"]
    assert remark.startswith(f"column '{written}' is not read: call it '{column}'")
    page = Path(path).with_suffix(".html")
    assert run(["validate", path, "--html", str(page)]) == 0
    assert remark[:30] in " ".join(capsys.readouterr().out.split())
    assert "is not read" in page.read_text()


RENAMED = {
    "seq": ("seq_len", ""),
    "tp": ("TP", ""),
    "recompute": ("activation checkpointing", ""),
    "precision": ("dtype", ""),
    "device": ("GPU", ""),
    "gpus": ("# GPUs", ""),
    "step_time_ms": ("Time per step (s)", "s"),
}


@pytest.mark.parametrize("cell", ["12", "12.", "12 (median of 5)", "~12", "12 s", "12000 ms"])
def test_the_unit_of_a_header_is_that_of_its_numbers(cell: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever stands behind them, but for a unit of their own."""
    names = list(RUN)
    usual = figures(
        capsys, write(table(",".join(str({**RUN, "step_time_ms": 12000}[n]) for n in names), header=",".join(names)))
    )
    header = ",".join("Step time (s)" if name == "step_time_ms" else name for name in names)
    other = figures(capsys, write(table(",".join(str({**RUN, "step_time_ms": cell}[n]) for n in names), header=header)))
    assert usual["scored"] == other["scored"] == 1
    assert other["mape"] == pytest.approx(usual["mape"], rel=1e-9)


@pytest.mark.parametrize("column", RENAMED)
def test_a_column_by_another_name_is_read_and_remarked_on(
    column: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are those of the table with the usual header."""
    written, unit = RENAMED[column]
    cells = {**RUN, "dp": "", "precision": "fp16", "recompute": "full", "tp": 2, "gpus": 16}
    names = list(cells)
    usual = figures(capsys, write(table(",".join(str(cells[n]) for n in names), header=",".join(names))))
    scale = 1e-3 if unit == "s" else 1
    line = ",".join(str(cells[n] * scale if n == column and scale != 1 else cells[n]) for n in names)
    header = ",".join(written if name == column else name for name in names)
    other = figures(capsys, write(table(line, header=header)))
    assert usual["scored"] == other["scored"] == 1
    assert other["mape"] == pytest.approx(usual["mape"], rel=1e-9)
    read = f"'{written}' as '{column}'{f' in {unit}' if unit else ''}"
    assert other["remarks"] == [f"columns are read by other names: {read}"]


def test_of_two_columns_that_mean_the_same_none_is_read(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(table(row() + ",4096,1024", header=HEADER.replace("seq", "mood") + ",seq_len,context_length"))
    found = figures(capsys, path)
    both = "columns 'seq_len', 'context_length' are not read, since each means 'seq': call one of them that"
    assert found["remarks"].count(both) == 1
    assert not any("read by other names" in words for words in found["remarks"])


def test_parts_are_by_a_column_as_the_file_calls_it(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(table(row(), row(gpus=16, dp=16), header=HEADER.replace("gpus", "GPUs")))
    for name in ("GPUs", "gpus"):
        assert run(["validate", path, "--by", name, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["files"]
        assert len(found["by"]) == 2


NUMBERS = {
    "2,734": 2734.0, "50 257": 50257.0, "1,234,567.5": 1234567.5, "10 (nominal)": 10.0, "10, nominal": 10.0, "1_000": 1000.0,
    "8 8-GPU nodes": 8.0, "2.5": 2.5, "-1": -1.0, "2,73": None, "0,050": None, "6.000,5": None, "12,34,567": None, "1,2345": None,
    "8 16": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_thousands_are_read_and_what_may_be_something_else_is_refused(text: str, value: float | None) -> None:
    cell = Row(line=2, cells={"seq": text})
    if value is None:
        with pytest.raises(RowSkipped, match="column seq: digits parted by commas or blanks"):
            cell.number("seq")
    else:
        assert cell.number("seq") == value


def test_rows_with_thousands_are_those_without(skipped: Any, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plain = row(step_time_ms=2900, seq=2048, global_batch=1024, gpus=8)
    parted = row(step_time_ms='"2,900"', seq='"2,048"', global_batch='"1,024"', gpus=8)
    (file,) = json.loads(json_of(capsys, write(table(plain, parted))))["files"]
    assert len({(one["predicted_s"], one["measured_s"]) for one in file["worst"]}) <= 1
    assert skipped(table(row(), row(step_time_ms='"2,9"')))[:2] == (2, 1)

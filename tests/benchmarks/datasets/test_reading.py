"""Cells in other words and units, columns by other names, files as spreadsheets write them: read, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.datasets import Converted, convert
from benchmarks.datasets.__main__ import main
from benchmarks.datasets.reading import Row, Unreadable
from planner.core.errors import InputFileError
from tests.benchmarks.datasets.published_rows import COLLECTIVES, only, plan_of, run, seconds

RUN = {
    "model": "mine", "net": "GPT", "hidden": 2048, "layers": 24, "heads": 16, "device": "A100-80GB", "gpus": 8, "global_batch": 64,
    "micro_batch": 1, "tp": 1, "pp": 1, "dp": 8, "precision": "bf16", "seq": 2048, "step_time_ms": 1900, "recompute": "",
}  # fmt: skip
Convert = Callable[[str | bytes], Converted]


@pytest.fixture
def converted(tmp_path: Path) -> Convert:
    def read(content: str | bytes) -> Converted:
        path = tmp_path / "published.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return convert(path)

    return read


def table(cells: dict[str, object], mark: str = ",") -> str:
    return f"{mark.join(cells)}\n{mark.join(map(str, cells.values()))}\n"


def only_row(found: Converted) -> dict[str, str]:
    assert not found.refused, found.refused
    ((line, cells),) = found.rows
    assert line == 2
    return {name: text for name, text in cells.items() if name != "source_sha256"}


@pytest.mark.parametrize("mark", ["-", "n/a", "N/A", "null", "unknown", "not stated", "?"])
def test_what_says_nothing_is_an_empty_cell(mark: str, converted: Convert) -> None:
    """In every column: a run that succeeded is no failure because somebody wrote "-" into `oom`."""
    said = dict.fromkeys(("seq", "memory_gib", "oom", "precision", "suspect", "tp"), mark)
    empty = only_row(converted(table({**RUN, **dict.fromkeys(said, "")})))
    assert only_row(converted(table({**RUN, **said}))) == empty
    assert "oom" not in empty


@pytest.mark.parametrize("word", ["success", "Succeeded", "completed", "passed", "ok", "none"])
def test_a_run_that_says_it_succeeded_is_no_failure(word: str, converted: Convert) -> None:
    assert "oom" not in only_row(converted(table({**RUN, "oom": word})))


UNITS = {
    ("step_time_ms", "1900 ms"): 1900.0, ("step_time_ms", "1.9 s"): 1900.0, ("step_time_ms", "1900000us"): 1900.0,
    ("tokens_per_s_per_gpu", "8.6k"): 8600.0, ("samples_per_s", "33.5 samples/s"): 33.5, ("memory_gib", "40960 MiB"): 40.0,
    ("intra_bw_GBps", "170 Gb/s"): 21.25, ("global_batch", "1,024"): 1024.0, ("seq", "8k"): 8192.0, ("step_time_ms", "~1,900"): 1900.0,
    ("vocab", "250k (padded ~250880)"): 250880.0, ("inter_bw_Gbps_per_node", "10 (nominal)"): 10.0,
}  # fmt: skip


@pytest.mark.parametrize(("cell", "value"), UNITS.items())
def test_a_number_in_another_unit_or_with_a_remark(cell: tuple[str, str], value: float, converted: Convert) -> None:
    """1.9 s is 1,900 ms, not 1.9 ms; a throughput of 8.6k is not one of 8.6."""
    column, text = cell
    (row,) = [cells for _, cells in converted(table({**RUN, column: f'"{text}"'})).rows]
    assert float(row[column]) == pytest.approx(value)


OTHER_UNITS = {
    "GB of time": ({"step_time_ms": "2 GB"}, "column step_time_ms is stated in 'GB'"),
    "thousands of samples": ({"global_batch": "4k"}, "column global_batch is stated in 'k'"),
    "a product": ({"global_batch": "8 x 8"}, "column global_batch holds several numbers"),
    "hexadecimal": ({"hidden": "0x800"}, "column hidden holds several numbers"),
    "positions": ({"seq": "100k"}, "column seq is stated in 'k'"),
    "decimal commas": ({"step_time_ms": '"2,9"'}, "column step_time_ms: digits parted by commas or blanks"),
    "another device": ({"device": "H100-96GB HBM2e"}, "device 'H100-96GB HBM2e' is not known"),
    "fewer layers": ({"model": "Llama 3 8B", "hidden": "", "layers": 16}, "column layers is 16, the bundled network 'llama3-8b' has 32"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), OTHER_UNITS.values(), ids=OTHER_UNITS)
def test_a_row_that_cannot_be_read_is_refused(cells: dict[str, object], reason: str, converted: Convert) -> None:
    found = converted(table({**RUN, **cells}))
    assert not found.rows
    (problem,) = found.refused
    assert problem.line == 2
    assert problem.message.startswith(reason)


def test_ranks_that_share_are_no_stages() -> None:
    """256 ranks of one replica, as tables of FSDP count them: no pipeline of 256 stages."""
    plan = plan_of(
        zero_stage="", fsdp="256", gpus="256", tp="1", pp="", dp="1", global_batch="2048", step_time_ms="9000"
    )
    assert (plan.pp, plan.dp_replicate * plan.dp_shard, plan.dp_shard, plan.zero_stage) == (1, 256, 256, 3)


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        ({"zero_stage": "3/2 (experts)", "tp": "1", "pp": "1", "dp": "64"}, {"zero_stage": "3", "tp": "1", "pp": "1", "dp": "64"}),
        ({"recompute": "selective (per-op SAC)"}, {"recompute": "selective"}),
        ({"recompute": "unknown (not in the paper)"}, {"recompute": ""}),
    ],
)  # fmt: skip
def test_remarks_that_were_refused_once_are_read(cells: dict[str, str], same: dict[str, str]) -> None:
    assert seconds(run(**cells)) == seconds(run(**same))


def test_a_collective_may_have_a_remark() -> None:
    cells = {"device": "h100-sxm", "nodes": 2, "ranks": 16, "bytes": 2**28, "time_us": 6000}
    assert only(COLLECTIVES, **cells, collective="p2p (send and receive)").comparisons[0].what == "point_to_point"


RENAMED = {
    "seq": ("seq_len", ""),
    "tp": ("TP", ""),
    "recompute": ("activation checkpointing", ""),
    "precision": ("dtype", ""),
    "device": ("GPU", ""),
    "gpus": ("# GPUs", ""),
    "step_time_ms": ("Time per step (s)", "s"),
}


@pytest.mark.parametrize("column", RENAMED)
def test_a_column_by_another_name_is_read(column: str, converted: Convert) -> None:
    written, unit = RENAMED[column]
    cells: dict[str, object] = {**RUN, "recompute": "full"}
    scale = 1e-3 if unit == "s" else 1
    other = {
        written if name == column else name: value * scale if name == column and scale != 1 else value  # type: ignore[operator]
        for name, value in cells.items()
    }
    found, usual = only_row(converted(table(other))), only_row(converted(table(cells)))
    assert float(found.pop("step_time_ms")) == pytest.approx(float(usual.pop("step_time_ms")))
    assert found == usual


def test_of_two_columns_that_mean_the_same_none_is_read(converted: Convert) -> None:
    cells = {name: value for name, value in RUN.items() if name != "seq"}
    assert "seq" not in only_row(converted(table({**cells, "seq_len": 4096, "context_length": 1024})))


NUMBERS = {
    "2,734": 2734.0, "50 257": 50257.0, "1,234,567.5": 1234567.5, "10, nominal": 10.0, "1_000": 1000.0, "8 8-GPU nodes": 8.0,
    "2.5": 2.5, "-1": -1.0, "2,73": None, "0,050": None, "6.000,5": None, "12,34,567": None, "1,2345": None, "8 16": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_thousands_are_read_and_what_may_be_something_else_is_refused(text: str, value: float | None) -> None:
    cell = Row(line=2, cells={"seq": text})
    if value is None:
        with pytest.raises(Unreadable, match="column seq: digits parted by commas or blanks"):
            cell.number("seq")
    else:
        assert cell.number("seq") == value


@pytest.mark.parametrize("mark", [",", "\t", ";"])
@pytest.mark.parametrize("coded", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_as_spreadsheets_write_them(mark: str, coded: str, converted: Convert) -> None:
    assert only_row(converted(table(RUN, mark).encode(coded))) == only_row(converted(table(RUN)))


def test_a_title_above_the_names_of_the_columns_is_pointed_at(converted: Convert) -> None:
    with pytest.raises(InputFileError, match="names no columns, as line 3 does; remove what stands before that line"):
        converted("Our runs\n\n" + table(RUN))


def test_the_command_writes_canonical_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, rows = tmp_path / "published.csv", tmp_path / "rows.csv"
    source.write_text(table(RUN) + ",".join(map(str, {**RUN, "device": "abacus"}.values())) + "\n")
    assert main(["convert", str(source), "-o", str(rows)]) == 0
    said = capsys.readouterr().err
    assert f"{source}:3:1: device 'abacus' is not known" in said
    assert "1 rows refused, 1 converted" in said
    assert rows.read_text().splitlines()[1].startswith("1900,bf16,")
    assert main(["convert", str(tmp_path / "none.csv")]) == 2
    assert main(["list"]) == 0
    assert "vtrain" in capsys.readouterr().out

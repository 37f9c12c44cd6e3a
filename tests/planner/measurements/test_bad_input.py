"""Tables as people really hand them over: every one ends in figures with what was left out, or in one clear line; never in a traceback."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.core.errors import InputFileError
from planner.measurements.kinds import KINDS, recognise
from planner.measurements.tables import read_table
from tests.planner.measurements.written_tables import GEMM, HEADER, RUN, json_of, row, table

# --- files that are no tables


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "is empty; a table of measurements starts with a line of column names"),
    "only a mark of order": (b"\xef\xbb\xbf", "is empty"),
    "blank lines": ("\n\n  \n,,\n", "is empty"),
    "no rows": (table(), "has a header and no rows"),
    "missing columns": (
        "hidden,layers,device,gpus,step_time_ms\n1,1,a,1,1\n",
        "missing columns: heads, global_batch or micro_batch or batch_per_gpu or batch_per_dp. Template: model,net,hidden",
    ),
    "a column without its unit": (
        "device,precision,m,n,k,times\n", "missing columns: time_ms (the file has 'times'). Template: device,precision,m,n,k,time_ms"
    ),
    "nothing known": ("a,b\n1,2\n", "missing columns: all that a kind needs. Kinds: measured, convolution, gemm"),
    "capitals and no rows": (GEMM.upper() + "\n", "has a header and no rows"),
    "semicolons": ("device;precision;m;n;k;time_ms\np100;fp32;1;2;3;0,3\n", ":1:1: separates its cells by semicolons"),
    "tabs": ("device\tm\tn\tk\ttime_ms\np100\t1\t2\t3\t0,3\n", ":1:1: separates its cells by tabs"),
    "a line for spreadsheets": ("sep=,\n" + table(row()), ":1:1: starts with a line for spreadsheets"),
    "a comment": ("# my runs\n" + table(row()), ":1:1: starts with a comment"),
    "two columns of one name": (table(row() + ",1", header=HEADER + ",tp"), ":1:1: two columns are called tp"),
    "too many cells": (table(row(), row() + ",7", row() + ",7"), ":3:1: has 18 cells, the header names 17 columns (quote cells"),
    "an open quote": (table('"GPT,2048'), "is no CSV table: unexpected end of data"),
    "a web page": ("<!DOCTYPE html><html>\n<body>404</body>\n", "missing columns"),
    "bytes": (bytes(range(256)) * 20, "is no text in UTF-8"),
    "NUL": (table("\0\0"), "is no text: it holds NUL characters"),
    "Latin-1": (table(row(net="GPT\u00e9")).encode("latin-1"), "is no text in UTF-8; save it as CSV in UTF-8"),
    "UTF-16 cut short": (table(row()).encode("utf-16")[:-1], "is no text in UTF-8"),
    "a title": ("Our runs" + "," * 16 + "\n\n" + table(row()), ":1:1: names no columns, as line 3 does; remove what stands before"),
    "a title without commas": ("Our runs\n" + table(row()), ":1:1: names no columns, as line 2 does; remove what stands before"),
    "a title with one": ("Our runs, of June\n\n" + table(row()), ":1:1: names no columns, as line 3 does"),
    "names of groups": ("shape" + "," * 8 + "plan" + "," * 8 + "\n" + table(row()), "names no columns, as line 2 does"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_no_table(
    command: str, content: str | bytes, message: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(content)
    more = ["--html", str(tmp_path / "a.html")] if command == "validate" else ["-o", str(tmp_path / "a.yaml")]
    assert run([command, path, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(path)
    assert message in err, err
    assert "Traceback" not in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.csv"]


def test_every_long_line_is_named(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", write(table(row(), row() + ",7", "", row() + ",8,9"))]) == 2
    err = capsys.readouterr().err
    assert ":3:1: has 18 cells" in err
    assert ":5:1: has 19 cells" in err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_folder_and_a_file_that_is_not_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, message in (
        (str(tmp_path), "is a folder, not a file"),
        ("nowhere.csv", "no such file"),
    ):
        assert run([command, name]) == 2
        assert message in capsys.readouterr().err


# --- tables that look odd and are good


GOOD: dict[str, str | bytes] = {
    "plain": table(row()),
    "a mark of order": b"\xef\xbb\xbf" + table(row()).encode(),
    "Windows": table(row(), end="\r\n"),
    "old Macintosh": table(row(), end="\r"),
    "blanks around names": table(row(), header=" , ".join(HEADER.split(","))),
    "empty cells at the end": table(row() + ",,,"),
    "empty columns at the end": table(row() + ",,", header=HEADER + ",,"),
    "lines in a cell": table(row(net='"GPT\nsmall"')),
    "a short line": table(row().rstrip(",")),
    "lines without a cell": table("", row(), ",,,", ""),
    "a column that nobody knows": table(row() + ",hello", header=HEADER + ",mood"),
    "oom: no": table(row(oom="no", suspect="no")),
}


@pytest.mark.parametrize("content", GOOD.values(), ids=GOOD)
def test_a_table_that_can_be_read(content: str | bytes, skipped: Any) -> None:
    assert skipped(content) == (1, 1, {})


def test_lines_are_those_of_the_file(write: Any) -> None:
    """Blank lines and cells of several lines are counted as an editor counts them."""
    content = table("", row(net='"GPT\n\nsmall"'), "", row())
    assert [line.line for line in read_table(Path(write(content))).rows] == [3, 7]
    assert content.splitlines()[2].startswith('"GPT')
    assert content.splitlines()[6].startswith("GPT")


# --- rows that cannot be right


ROWS: dict[str, tuple[dict[str, object], str]] = {
    "3 us for a step": ({"step_time_ms": 0.003}, "step time shorter than the peak of the devices allows: wrong unit?"),
    "us for ms": ({"step_time_ms": 1.9e9}, "step time 100,000 times what the devices need: wrong unit?"),
    "memory above the device": ({"memory_gib": 90}, "memory above that of the device: wrong unit?"),
    "MiB for GiB": ({"memory_gib": 40960}, "memory above that of the device: wrong unit?"),
    "device": ({"device": "zz9000"}, "device 'zz9000' is not known (planner list devices)"),
    "no device": ({"device": ""}, "no device is stated"),
    "precision": ({"precision": "bf17"}, "precision 'bf17' is not known (fp32, tf32, fp16, bf16, fp8, fp4)"),
    "NaN": ({"step_time_ms": "NaN"}, "column step_time_ms holds no number"),
    "infinite": ({"step_time_ms": "inf"}, "column step_time_ms holds no number"),
    "words": ({"step_time_ms": "fast"}, "column step_time_ms holds no number"),
    "negative": ({"step_time_ms": -5}, "column step_time_ms is negative"),
    "zero": ({"step_time_ms": 0}, "no measured time"),
    "nothing": ({"step_time_ms": ""}, "no measured time"),
    "half a sample": ({"micro_batch": 1.5}, "column micro_batch is not a whole number"),
    "no batch": ({"global_batch": 0}, "column global_batch is 0"),
    "no width": ({"hidden": 0}, "column hidden is 0"),
    "a width of 400 digits": ({"hidden": "9" * 400}, "column hidden holds no number"),
    "a width of 10^15": ({"hidden": 10**15}, "column hidden is above 1,000,000,000: wrong unit?"),
    "a width of 10^8": ({"hidden": 10**8, "heads": 1}, "column hidden is above 1,000,000: no transformer has so many"),
    "10^8 layers": ({"layers": 10**8}, "column layers is above 10,000: no transformer has so many"),
    "too many heads": ({"heads": 10**6, "head_dim": 10**6}, "heads do not divide hidden, and head_dim is not stated"),
    "10^8 replicas": ({"gpus": "", "dp": 10**8}, "tp x pp x cp x dp is above 1,000,000"),
    "degrees": ({"tp": 3}, "tp x pp x cp x dp is not the number of GPUs"),
    "suspect": ({"suspect": 1}, "marked suspect"),
    "shape": ({"heads": ""}, "the model's shape is not stated (hidden, layers, heads) and no bundled model has its name"),
    "a terminal's command": ({"device": "\x1b[31mred"}, r"device '\x1b[31mred' is not known (planner list devices)"),
    "a long name": ({"device": "x" * 5000}, f"device '{'x' * 57}...' is not known (planner list devices)"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), ROWS.values(), ids=ROWS)
def test_a_row_that_cannot_be_scored_is_counted(cells: dict[str, object], reason: str, skipped: Any) -> None:
    assert skipped(table(row(), row(**cells))) == (2, 1, {reason: 1})


@pytest.mark.parametrize("memory", ["nan", "NaN", "much", "62 %"])
def test_a_time_is_scored_where_the_memory_is_no_number(
    memory: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = json.loads(json_of(capsys, write(table(row(), row(memory_gib=memory)))))["files"]
    assert (file["rows"], file["scored"], file["memory_mape"]) == (2, 2, None)
    assert file["defaults"]["memory_gib"] == 1


COLUMNS = {
    "hidden": ("hidden", "missing columns: hidden. Template: model,net,hidden"),
    "a shape": ("hidden,layers,heads", "missing columns: hidden, layers, heads. Template: model,net,hidden"),
    "devices": ("gpus,dp", "missing columns: gpus or dp or nodes. Template: model,net,hidden"),
}


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(("absent", "message"), COLUMNS.values(), ids=COLUMNS)
def test_columns_without_which_no_row_is_scored(
    command: str, absent: str, message: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in ("model", *HEADER.split(",")) if name not in absent.split(",")]
    line = ",".join(str({**RUN, "model": "mine"}.get(name, "")) for name in names)
    assert run([command, write(table(line, header=",".join(names)))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_renamed_column_is_guessed(command: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, write(table(row(), header=HEADER.replace("step_time_ms", "step_time")))]) == 2
    assert "(the file has 'step_time'). Template: " in capsys.readouterr().err


COLLECTIVES = {
    "8,3": "the nodes do not have equal numbers of ranks", "2,8": "fewer ranks than nodes",
    "64,4,8": "more ranks than nodes x gpus_per_node",
}  # fmt: skip


@pytest.mark.parametrize(("numbers", "reason"), COLLECTIVES.items())
def test_collectives_that_cannot_be(numbers: str, reason: str, skipped: Any) -> None:
    header = "device,bytes,time_us,ranks,nodes,gpus_per_node"
    assert skipped(f"{header}\nh100-sxm,1e9,5000,{numbers}\nh100-sxm,1e9,5000,16,2,8\n") == (2, 1, {reason: 1})


KERNELS = {
    "five minutes for a small product": (GEMM, "p100,fp32,1024,512,2048,300000", "time above 100,000 times what the device needs"),
    "seconds for a product": (GEMM, "p100,fp32,1024,512,2048,0.0000003", "time far below what the peak of the device allows"),
    "a format": ("device,m,n,k,time_ms", "a100,8192,8192,8192,4.7", "time far below what the peak of the device allows: wrong unit? (or"),
    "four hours": (GEMM, "p100,fp32,1024,512,2048,1.5e7", "column time_ms is no time of a kernel: wrong unit?"),
    "no rows of the matrix": (GEMM, "p100,fp32,0,512,2048,1", "column m is 0"),
    "a matrix without a size": (GEMM, "p100,fp32,,512,2048,1", "m, n or k is not stated"),
    "no filters": ("device,n,c,h,w,k,r,s,fwd_ms", "p100,16,64,56,56,0,3,3,1.2", "column k is 0"),
    "no time steps": ("device,cell,hidden,batch,timesteps,fwd_ms", "p100,GRU,512,16,0,1", "column timesteps is 0"),
    "ns for us": ("device,ranks,bytes,time_us", "h100-sxm,16,268435456,0.1", "time far below what the links allow"),
    "an hour for a message": ("device,ranks,bytes,time_us", "h100-sxm,16,1024,4e9", "time above 100,000 times what the links need"),
    "one rank": ("device,ranks,bytes,time_us", "h100-sxm,1,1024,10", "fewer than two ranks"),
    "suspect": ("device,ranks,bytes,time_us,suspect", "h100-sxm,16,1024,10,1", "marked suspect"),
    "a filter larger than the image": ("device,n,c,h,w,k,r,s,fwd_ms", "p100,16,64,56,56,128,99,3,1.2", "the shapes do not fit together"),
    "an unknown network": ("model,device,batch,step_time_ms", "foonet,v100-16gb,32,100", "no bundled network has the name 'foonet'"),
    "a near name": ("model,device,batch,step_time_ms", "resnet153,v100-16gb,32,100", "no bundled network has the name 'resnet153'"),
    "no network": ("model,device,batch,step_time_ms", ",v100-16gb,32,100", "the model's shape is not stated"),
    "no kernel": ("kernel,device,time_ms", ",a100-80gb,1", "no kernel is stated"),
    "an unknown kernel": ("kernel,device,time_ms", "magic,a100-80gb,1", "kernel 'magic' is not known (gemm, convolution"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "line", "reason"), KERNELS.values(), ids=KERNELS)
def test_a_kernel_that_cannot_be_scored_is_counted(header: str, line: str, reason: str, skipped: Any) -> None:
    rows, scored, reasons = skipped(f"{header}\n{line}\n")
    assert (rows, scored) == (1, 0)
    assert next(iter(reasons)).startswith(reason), reasons


def test_throughput_needs_no_global_batch_of_its_own(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """64 samples in 0.1 s, whatever column says it."""
    found = []
    for header, line in (
        ("model,device,gpus,global_batch,step_time_ms", "resnet50,v100-16gb,2,64,100"),
        ("model,device,gpus,batch,samples_per_s", "resnet50,v100-16gb,2,32,640"),
        ("model,device,gpus,batch_per_gpu,samples_per_s", "resnet50,v100-16gb,2,32,640"),
    ):
        found.append(json.loads(json_of(capsys, write(f"{header}\n{line}\n")))["files"][0]["worst"][0]["measured_s"])
    assert found == pytest.approx([0.1, 0.1, 0.1])
    without = HEADER.replace("global_batch,", "").replace("step_time_ms", "tokens_per_s_per_gpu").replace("gpus,", "")
    cells = {**RUN, "tokens_per_s_per_gpu": 1024}
    line = ",".join(str(cells.get(name, "")) for name in without.split(","))
    (file,) = json.loads(json_of(capsys, write(f"{without}\n{line}\n")))["files"]
    assert file["worst"][0]["measured_s"] == pytest.approx(1 * 8 * 2048 / (1024 * 8))  # one sample per replica


def test_calibration_says_what_a_table_lacks(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.yaml"
    for content, message in (
        (table(row(oom="OOM", step_time_ms="")), "has no row to fit to, of 1: 1 failed runs"),
        (table(row(step_time_ms=0.003), row(device="zz")), "has no row to fit to, of 2: 1 "),
    ):
        assert run(["calibrate", write(content), "-o", str(target)]) == 2
        assert message in capsys.readouterr().err
        assert not target.exists()
    assert run(["calibrate", write(table(row(), row(step_time_ms="nan"))), "-o", str(target)]) == 0
    assert "cannot determine" in capsys.readouterr().out
    assert target.exists()


@pytest.mark.fuzz
def test_many_rows_and_many_reasons(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of rows are read in seconds, and thousands of reasons fill no screen."""
    lines = [f"dev{'a' * (n % 50)}{n}x,fp32,64,64,64,1" for n in range(5_000)]
    path = write("\n".join([GEMM, *lines, "p100,fp32,1024,512,2048,0.3"]) + "\n")
    start = time.process_time()
    assert run(["validate", path]) == 0
    assert time.process_time() - start < 7.5
    out = capsys.readouterr().out
    assert "other reasons" in out
    assert len(out) < 8000


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_column_that_is_missing_is_named(kind: Any, write: Any) -> None:
    """The template less one group of needed columns: that group is what is missing, unless it is a table of another kind then."""
    for group in kind.columns:
        names = [name for name, _ in kind.example if name not in group]
        table_without = read_table(Path(write(",".join(names) + "\n")))
        other = next((known for known in KINDS if not known.missing(table_without.columns)), None)
        if other is not None:
            assert other is not kind
            continue
        with pytest.raises(InputFileError, match="missing columns: ") as refused:
            recognise(table_without)
        if f"'{kind.name}'" in str(refused.value):
            assert " or ".join(group) in str(refused.value)


def test_calibration_remarks_on_columns_that_are_not_read(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(table(row(), row(micro_batch=2), header=HEADER.replace("seq", "seq_len")))
    assert run(["calibrate", path, "-o", str(tmp_path / "mine.yaml")]) == 0
    assert "columns are read by other names: 'seq_len' as 'seq'" in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["\t", ";"])
def test_tabs_and_semicolons_part_cells_where_no_number_has_a_comma(
    mark: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        table(row(), header=HEADER).replace(",", mark).replace("\n", f"{mark}notes\n", 1).rstrip()
        + f"{mark}well, as usual\n"
    )
    assert run(["validate", path, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert (found["rows"], found["scored"]) == (1, 1)


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_what_is_no_regular_file_is_refused_unread(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for a writer
    for path in ("/dev/zero", str(pipe)):
        assert run([command, path]) == 2
        assert "is not a regular file" in capsys.readouterr().err


def test_networks_are_not_read_from_pipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run(["estimate", str(pipe), "--gpus", "2"]) == 2
    assert "is not a regular file" in capsys.readouterr().err


def test_tables_longer_than_any_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" * 500_001, encoding="utf-8")
    with pytest.raises(InputFileError, match="has more than 500,000 lines"):
        read_table(path)

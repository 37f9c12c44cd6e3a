"""Tables as people really hand them over: every one ends in figures with what was left out, or in one clear line; never in a traceback."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from planner.core.errors import InputFileError
from planner.measurements.kinds import KINDS, recognise
from planner.measurements.scores import REFUSED as REFUSED_ROW
from planner.measurements.tables import read_table
from tests.planner.measurements.written_tables import GEMM, HEADER, RUN, row, table

# --- files that are no tables


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "is empty; a table of measurements starts with a line of column names"),
    "only a mark of order": (b"\xef\xbb\xbf", "is empty"),
    "blank lines": ("\n\n  \n,,\n", "is empty"),
    "no rows": (table(), "has a header and no rows"),
    "missing columns": (
        "hidden,layers,device,gpus,step_time_ms\n1,1,a,1,1\n",
        "missing columns: heads, global_batch or micro_batch or batch_per_gpu. Template: model,style,hidden",
    ),
    "a column without its unit": (
        "device,precision,m,n,k,times\n", "missing columns: time_ms (the file has 'times'). Template: device,precision,m,n,k,time_ms"
    ),
    "nothing known": ("a,b\n1,2\n", ":1:1: its first line names no column"),
    "capitals": (GEMM.upper() + "\n", ":1:1: its first line names no column"),
    "semicolons": ("device;precision;m;n;k;time_ms\np100;fp32;1;2;3;0,3\n", ":1:1: separates its cells by semicolons"),
    "tabs": ("device\tm\tn\tk\ttime_ms\np100\t1\t2\t3\t0,3\n", ":1:1: separates its cells by tabs"),
    "a line for spreadsheets": ("sep=,\n" + table(row()), ":1:1: its first line names no column"),
    "a comment": ("# my runs\n" + table(row()), ":1:1: its first line names no column"),
    "two columns of one name": (table(row() + ",1", header=HEADER + ",tp"), ":1:1: two columns are called tp"),
    "an open quote": (table('"GPT,2048'), "is no CSV table: "),
    "a web page": ("<!DOCTYPE html><html>\n<body>404</body>\n", ":1:1: its first line names no column"),
    "bytes": (bytes(range(256)) * 20, "is not UTF-8 text"),
    "NUL": (table("\0\0"), "is not text: it holds NUL characters"),
    "Latin-1": (table(row(style="gpt\u00e9")).encode("latin-1"), "is not UTF-8 text; save it as CSV in UTF-8"),
    "UTF-16 cut short": (table(row()).encode("utf-16")[:-1], "is not UTF-8 text"),
    "a title": ("Our runs" + "," * 16 + "\n\n" + table(row()), ":1:1: its first line names no column"),
    "a title without commas": ("Our runs\n" + table(row()), ":1:1: its first line names no column"),
    "a title with one": ("Our runs, of June\n\n" + table(row()), ":1:1: its first line names no column"),
    "names of groups": ("shape" + "," * 8 + "plan" + "," * 8 + "\n" + table(row()), "its first line names no column"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_no_table(
    command: str, content: str | bytes, message: str, write: Any, tmp_path: Path, fails: Any
) -> None:
    path = write(content)
    more = ["--html", str(tmp_path / "a.html")] if command == "validate" else ["-o", str(tmp_path / "a.yaml")]
    err = fails(command, path, *more)
    assert err.startswith(path)
    assert message in err, err
    assert "Traceback" not in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.csv"]


def test_a_row_that_cannot_be_read_is_refused_at_its_place_and_the_others_are_read(write: Any, said: Any) -> None:
    bad = row(tp="8-way", precision="bf15")
    path = write(table(row(), row() + ",7", "", row() + ",8,9", bad, row()))
    out, err = said("validate", path, "--json")
    (file,) = json.loads(out)["files"]
    assert (file["rows"], file["scored"], file["skipped"]) == (5, 2, {REFUSED_ROW: 3})
    columns = {name: 1 + len(",".join(bad.split(",")[:n])) + (n > 0) for n, name in enumerate(HEADER.split(","))}
    messages = (
        ":3:1: has 18 cells, the header names 17 columns (quote cells that hold commas)",
        ":5:1: has 19 cells, the header names 17 columns (quote cells that hold commas)",
        f":6:{columns['tp']}: tp '8-way' is no whole number from 1",
        (
            f":6:{columns['precision']}: precision 'bf15' is none of fp32, tf32, fp16, bf16, fp8, fp4, mxfp8, nvfp4, "
            "int8; did you mean 'bf16'?"
        ),
    )
    assert all(f"{path}{message}" in err for message in messages), err
    assert "3 rows refused, the others are read" in err
    assert sorted((one["line"], one["message"]) for one in file["refused"]) == sorted(
        (int(message.split(":")[1]), message.split(": ", maxsplit=1)[1]) for message in messages
    )


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        (f"{HEADER},model,framework", [f"{row()},GPT,megatron-lm", f"{row()},GPT,vllm"]),
        (
            "model,framework,device,gpus,batch_per_gpu,precision,step_time_ms",
            ["resnet50,pytorch,v100-16gb,8,128,fp16,160", "resnet50,vllm,v100-16gb,8,128,fp16,160"],
        ),
    ],
)
def test_a_training_run_of_what_serves_is_skipped(header: str, lines: list[str], write: Any, answer: Any) -> None:
    path = write(table(*lines, header=header))
    text = " ".join(answer("validate", path).split())
    assert "1 framework vllm serves networks and trains none (line 3)" in text
    assert "tau and regret" not in text
    assert "fitted constants" not in text
    assert "fitted constants" in answer("validate", path, "-v")
    (file,) = json.loads(answer("validate", path, "--json"))["files"]
    assert (file["scored"], file["skipped"]) == (1, {"framework vllm serves networks and trains none": 1})


def test_a_table_of_which_no_row_can_be_read_is_refused(write: Any, fails: Any) -> None:
    err = fails("validate", write(table(row(tp="8-way"), row(pp=0))))
    assert "tp '8-way' is no whole number from 1" in err
    assert "pp '0' is no whole number from 1" in err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_folder_and_a_file_that_is_not_there(command: str, tmp_path: Path, fails: Any) -> None:
    for name, message in (
        (str(tmp_path), "is a folder, not a file"),
        ("nowhere.csv", "no such file"),
    ):
        assert message in fails(command, name)


# --- tables that look odd and are good


GOOD: dict[str, str | bytes] = {
    "plain": table(row()),
    "a mark of order": b"\xef\xbb\xbf" + table(row()).encode(),
    "Windows": table(row(), end="\r\n"),
    "old Macintosh": table(row(), end="\r"),
    "blanks around names": table(row(), header=" , ".join(HEADER.split(","))),
    "empty cells at the end": table(row() + ",,,"),
    "empty columns at the end": table(row() + ",,", header=HEADER + ",,"),
    "lines in a cell": table(row() + ',"well,\nas usual"', header=HEADER + ",notes"),
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
    content = table("", row() + ',"as\n\nusual"', "", row(), header=HEADER + ",notes")
    assert [line.line for line in read_table(Path(write(content))).rows] == [3, 7]
    assert [content.splitlines()[n].startswith("gpt") for n in (2, 6)] == [True, True]


# --- rows that cannot be right


ROWS: dict[str, tuple[dict[str, object], str]] = {
    "3 us for a step": ({"step_time_ms": 0.003}, "step time shorter than the peak of the devices allows: wrong unit?"),
    "us for ms": ({"step_time_ms": 1.9e9}, "step time 100,000 times what the devices need: wrong unit?"),
    "memory above the device": ({"memory_gib": 90}, "memory above that of the device: wrong unit?"),
    "MiB for GiB": ({"memory_gib": 40960}, "memory above that of the device: wrong unit?"),
    "device": ({"device": "zz9000"}, "device 'zz9000' is not known (planner list devices)"),
    "a name of people": ({"device": "H100-96GB HBM2e"}, "device 'H100-96GB HBM2e' is not known (planner list devices)"),
    "no device": ({"device": ""}, "no device is stated"),
    "nothing": ({"step_time_ms": ""}, "no measured time"),
    "a width of 10^8": ({"hidden": 10**8, "heads": 1}, "column hidden is above 1,000,000: no transformer has so many"),
    "10^8 replicas": ({"gpus": "", "dp": 10**8}, "tp x pp x cp x dp is above 1,000,000"),
    "degrees": ({"tp": 3}, "tp x pp x cp x dp is not the number of GPUs"),
    "a degree that is left open": ({"gpus": 64, "pp": "", "dp": 1}, "tp x pp x cp x dp is not the number of GPUs"),
    "suspect": ({"suspect": "yes"}, "marked suspect"),
    "shape": ({"heads": ""}, "the model's shape is not stated (hidden, layers, heads) and no bundled model has its name"),
    "a terminal's command": ({"device": "\x1b[31mred"}, r"device '\x1b[31mred' is not known (planner list devices)"),
    "a long name": ({"device": "x" * 5000}, f"device '{'x' * 57}...' is not known (planner list devices)"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), ROWS.values(), ids=ROWS)
def test_a_row_that_cannot_be_scored_is_counted(cells: dict[str, object], reason: str, skipped: Any) -> None:
    assert skipped(table(row(), row(**cells))) == (2, 1, {reason: 1})


CELLS: dict[str, tuple[dict[str, object], str]] = {
    "NaN": ({"step_time_ms": "NaN"}, "step_time_ms 'NaN' is no number above 0 (ms)"),
    "infinite": ({"step_time_ms": "inf"}, "step_time_ms 'inf' is no number above 0 (ms)"),
    "words": ({"step_time_ms": "fast"}, "step_time_ms 'fast' is no number above 0 (ms)"),
    "another unit": ({"step_time_ms": "1.9 s"}, "step_time_ms '1.9 s' is no number above 0 (ms)"),
    "a remark": ({"step_time_ms": "~1900"}, "step_time_ms '~1900' is no number above 0 (ms)"),
    "negative": ({"step_time_ms": -5}, "step_time_ms '-5' is no number above 0 (ms)"),
    "zero": ({"step_time_ms": 0}, "step_time_ms '0' is no number above 0 (ms)"),
    "a year": ({"step_time_ms": 3e10}, "step_time_ms '30000000000.0' is above 10,000,000,000: wrong unit?"),
    "half a sample": ({"micro_batch": 1.5}, "micro_batch '1.5' is no whole number from 1"),
    "no batch": ({"global_batch": 0}, "global_batch '0' is no whole number from 1"),
    "thousands": ({"hidden": "2_048"}, "hidden '2_048' is no whole number from 1"),
    "a width of 400 digits": ({"hidden": "9" * 400}, f"hidden '{'9' * 37}...' is no number above 0"),
    "10^8 layers": ({"layers": 10**8}, "layers '100000000' is above 10,000: wrong unit?"),
    "a failure in its own words": ({"oom": "OOM"}, "oom 'OOM' is neither yes nor no"),
    "style": ({"style": "GPT"}, "style 'GPT' is none of gpt, llama, nemotron, bert, vit; did you mean 'gpt'?"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(("cells", "message"), CELLS.values(), ids=CELLS)
def test_a_cell_that_is_not_what_its_column_says_refuses_its_row(
    command: str, cells: dict[str, object], message: str, write: Any, said: Any
) -> None:
    path = write(table(row(), row(**cells)))
    _, err = said(command, path)
    for words in (message, f"{path}:3:", "1 row refused, the others are read"):
        assert words in err


def test_a_bundled_model_with_another_shape_contradicts_itself(skipped: Any) -> None:
    header = "model,layers,device,gpus,global_batch,micro_batch,step_time_ms"
    lines = f"{header}\nllama3-8b,32,h100-sxm,8,16,1,2900\nllama3-8b,16,h100-sxm,8,16,1,2900\n"
    reason = "column layers contradicts the bundled network 'llama3-8b': give the model another name"
    assert skipped(lines) == (2, 1, {reason: 1})


COLUMNS = {
    "hidden": ("hidden", "missing columns: hidden. Template: model,style,hidden"),
    "a shape": ("hidden,layers,heads", "missing columns: hidden, layers, heads. Template: model,style,hidden"),
    "devices": ("gpus,dp", "missing columns: gpus or dp or nodes. Template: model,style,hidden"),
}


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(("absent", "message"), COLUMNS.values(), ids=COLUMNS)
def test_columns_without_which_no_row_is_scored(
    command: str, absent: str, message: str, write: Any, fails: Any
) -> None:
    names = [name for name in ("model", *HEADER.split(",")) if name not in absent.split(",")]
    line = ",".join(str({**RUN, "model": "mine"}.get(name, "")) for name in names)
    assert message in fails(command, write(table(line, header=",".join(names))))


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_renamed_column_is_guessed(command: str, write: Any, fails: Any) -> None:
    assert "(the file has 'step_time'). Template: " in fails(
        command, write(table(row(), header=HEADER.replace("step_time_ms", "step_time")))
    )


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
    "a format": ("device,m,n,k,time_ms", "a100-80gb,8192,8192,8192,4.7", "time far below what the peak of the device allows"),
    "products that the device has no format for": (
        "device,precision,products,m,n,k,time_ms", "p100,fp32,fp8,1024,512,2048,0.3", "the device does not compute in fp8"
    ),
    "four hours": (GEMM, "p100,fp32,1024,512,2048,1.5e7", "column time_ms is no time of a kernel: wrong unit?"),
    "a matrix without a size": (GEMM, "p100,fp32,,512,2048,1", "m, n or k is not stated"),
    "ns for us": ("device,ranks,bytes,time_us", "h100-sxm,16,268435456,0.1", "time far below what the links allow"),
    "an hour for a message": ("device,ranks,bytes,time_us", "h100-sxm,16,1024,4e9", "time above 100,000 times what the links need"),
    "one rank": ("device,ranks,bytes,time_us", "h100-sxm,1,1024,10", "fewer than two ranks"),
    "suspect": ("device,ranks,bytes,time_us,suspect", "h100-sxm,16,1024,10,yes", "marked suspect"),
    "a filter larger than the image": ("device,n,c,h,w,k,r,s,fwd_ms", "p100,16,64,56,56,128,99,3,1.2", "the shapes do not fit together"),
    "an unknown network": ("model,device,batch_per_gpu,step_time_ms", "foonet,v100-16gb,32,100", "the model's shape is not stated"),
    "a near name": ("model,device,batch_per_gpu,step_time_ms", "resnet153,v100-16gb,32,100", "the model's shape is not stated"),
    "no network": ("model,device,batch_per_gpu,step_time_ms", ",v100-16gb,32,100", "the model's shape is not stated"),
    "no kernel": ("kernel,device,time_ms", ",a100-80gb,1", "no kernel is stated"),
    "an unknown kernel": ("kernel,device,time_ms", "magic,a100-80gb,1", "kernel 'magic' is not known (gemm, convolution"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "line", "reason"), KERNELS.values(), ids=KERNELS)
def test_a_kernel_that_cannot_be_scored_is_counted(header: str, line: str, reason: str, skipped: Any) -> None:
    rows, scored, reasons = skipped(f"{header}\n{line}\n")
    assert (rows, scored) == (1, 0)
    assert next(iter(reasons)).startswith(reason), reasons


def test_throughput_needs_no_global_batch_of_its_own(write: Any, validated: Any) -> None:
    """64 samples in 0.1 s, whatever column says it."""
    found = []
    for header, line in (
        ("model,device,gpus,global_batch,step_time_ms", "resnet50,v100-16gb,2,64,100"),
        ("model,device,gpus,batch_per_gpu,samples_per_s", "resnet50,v100-16gb,2,32,640"),
    ):
        found.append(validated(write(f"{header}\n{line}\n"))["worst"][0]["measured_s"])
    assert found == pytest.approx([0.1, 0.1])
    without = HEADER.replace("global_batch,", "").replace("step_time_ms", "tokens_per_s_per_gpu").replace("gpus,", "")
    cells = {**RUN, "tokens_per_s_per_gpu": 1024}
    line = ",".join(str(cells.get(name, "")) for name in without.split(","))
    file = validated(write(f"{without}\n{line}\n"))
    assert file["worst"][0]["measured_s"] == pytest.approx(1 * 8 * 2048 / (1024 * 8))  # one sample per replica


def test_calibration_says_what_a_table_lacks(write: Any, tmp_path: Path, answer: Any, fails: Any) -> None:
    target = tmp_path / "mine.yaml"
    for content, message in (
        (table(row(oom="yes", step_time_ms="")), "has no row to fit to, of 1: 1 failed runs"),
        (table(row(step_time_ms=0.003), row(device="zz")), "has no row to fit to, of 2: 1 "),
    ):
        assert message in fails("calibrate", write(content), "-o", str(target))
        assert not target.exists()
    assert "cannot determine" in answer("calibrate", write(table(row(), row(step_time_ms=0.003))), "-o", str(target))
    assert target.exists()


@pytest.mark.fuzz
def test_many_rows_and_many_reasons(write: Any, said: Any) -> None:
    """Thousands of rows are read in seconds, and thousands of reasons fill no screen."""
    lines = [f"dev{'a' * (n % 50)}{n}x,fp32,64,64,64,1" for n in range(5_000)]
    path = write("\n".join([GEMM, *lines, "p100,fp32,1024,512,2048,0.3"]) + "\n")
    start = time.process_time()
    out, _ = said("validate", path)
    assert time.process_time() - start < 7.5
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


@pytest.mark.e2e
def test_calibration_remarks_on_columns_that_are_not_read(write: Any, tmp_path: Path, said: Any) -> None:
    path = write(table(row(), row(micro_batch=2), header=HEADER.replace("memory_gib", "memory_gb")))
    _, err = said("calibrate", path, "-o", tmp_path / "mine.yaml")
    assert "column 'memory_gb' is not read; did you mean 'memory_gib'?" in err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_what_is_no_regular_file_is_refused_unread(command: str, tmp_path: Path, fails: Any) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for a writer
    for path in ("/dev/zero", str(pipe)):
        assert "is not a regular file" in fails(command, path)


def test_networks_are_not_read_from_pipes(tmp_path: Path, fails: Any) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is not a regular file" in fails("estimate", str(pipe), "--gpus", "2")


def test_tables_longer_than_any_are_refused_at_once(new_file: Any) -> None:
    path = new_file("long.csv", "a,b\n" * 500_001)
    with pytest.raises(InputFileError, match="has more than 500,000 lines"):
        read_table(path)


def test_a_file_in_another_unit_is_remarked_on(write: Any, validated: Any, answer: Any) -> None:
    line = "p100,fp32,1760,{},1760,{}"
    right = write("\n".join([GEMM, *(line.format(n, n / 80) for n in (16, 32, 64, 128))]) + "\n")
    assert validated(right)["remarks"] == []
    wrong = write("\n".join([GEMM, *(line.format(n, n / 80 * 1000) for n in (16, 32, 64, 128))]) + "\n")
    (remark,) = validated(wrong)["remarks"]
    assert remark.endswith("times shorter than what was measured: wrong unit?")
    assert remark[:30] in " ".join(answer("validate", wrong).split())


def test_a_time_that_its_throughput_contradicts(skipped: Any) -> None:
    """Microseconds in a column of milliseconds are above no limit, but not what the tokens per second say."""
    header = HEADER.replace("oom", "tokens_per_s_per_gpu")
    lines = [
        ",".join(str({**RUN, "tokens_per_s_per_gpu": 8623, **cells}.get(name, "")) for name in header.split(","))
        for cells in ({}, {"step_time_ms": 1.9}, {"step_time_ms": 1.9e6}, {"tokens_per_s_per_gpu": 68984})
    ]  # the last is the throughput of all eight: the time counts
    reason = "step_time_ms and tokens_per_s_per_gpu contradict each other: wrong unit?"
    assert skipped(table(*lines, header=header)) == (4, 2, {reason: 2})

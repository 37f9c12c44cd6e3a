"""`planner sweep` as people run it: killed and continued, interrupted, in processes, to every kind of file.

What needs no process of its own runs here: starting one takes longer than most answers.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import cli
from planner.sweeping.journal import Journal
from tests.planner.sweeping.workers import keys_of

ROOT = Path(__file__).resolve().parents[3]
GRID = ("llama2-7b", "--gpus", "8,16..32", "--cluster", "a100,h100", "--batch", "64,128")  # 12 cells


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "planner", "sweep", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def run(
    *arguments: str, cwd: Path, code: int = 0, environment: dict[str, str] | None = None, **more: object
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        _command(*arguments),
        cwd=cwd,
        env=_environment() | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )  # type: ignore[call-overload]
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done  # type: ignore[no-any-return]


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Run the command in this process, in a folder of its own: stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def sweep(*arguments: str, code: int = 0) -> tuple[str, str]:
        found = cli.run(["sweep", *arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        assert "internal error" not in err
        return out, err

    return sweep


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _wait_for(path: Path, rows: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while len(keys_of(path)) < rows and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    run(*GRID, "-o", "out.csv", cwd=folder)
    return (folder / "out.csv").read_bytes()


@pytest.mark.e2e
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path, whole: bytes, jobs: str) -> None:
    journal = tmp_path / "out.csv.journal"
    process = subprocess.Popen(
        _command(*GRID, "-o", "out.csv", "--jobs", jobs), cwd=tmp_path, env=_environment(), start_new_session=True
    )
    _wait_for(journal, 4, process)  # the last may not be committed yet
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with Journal(journal) as opened:  # as the next sweep does
        kept = list(opened.rows)
    assert 3 <= len(kept) < 12
    assert not (tmp_path / "out.csv").exists()  # complete or not at all
    done = run(*GRID, "-o", "out.csv", "--jobs", jobs, "--json", cwd=tmp_path, code=0)
    assert done.stdout == ""
    document = json.loads((tmp_path / "out.csv").read_text(encoding="utf-8"))
    assert len(document["rows"]) == 12
    # Nothing was computed twice: what was there is there, and every key occurs once.
    now = journal.read_bytes()
    keys = keys_of(journal)
    assert keys[: len(kept)] == kept
    assert len(keys) == 12
    run(*GRID, "-o", "out.csv", cwd=tmp_path)
    assert (tmp_path / "out.csv").read_bytes() == whole
    assert journal.read_bytes() == now


def _interruptible() -> None:
    """Some shells start their children with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.e2e
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, jobs: str) -> None:
    process = subprocess.Popen(
        _command(*GRID, "-o", "out.csv", "--jobs", jobs),
        cwd=tmp_path,
        env=_environment(),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,  # noqa: PLW1509 - no threads here
    )
    _wait_for(tmp_path / "out.csv.journal", 2, process)  # type: ignore[arg-type]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    rows = _rows(tmp_path / "out.csv")
    assert 2 <= len(rows) < 12
    assert all(row["status"] == "ok" for row in rows)


@pytest.mark.e2e
def test_processes_give_the_same_file(tmp_path: Path, whole: bytes) -> None:
    run(*GRID, "-o", "out.csv", "--jobs", "2", cwd=tmp_path)
    assert (tmp_path / "out.csv").read_bytes() == whole


@pytest.mark.e2e
def test_a_larger_grid_takes_what_is_known(tmp_path: Path, here: Callable[..., tuple[str, str]]) -> None:
    here("alexnet", "--gpus", "1,2", "-o", "out.csv")
    before = keys_of(tmp_path / "out.csv.journal")
    here("alexnet", "--gpus", "1..4", "-o", "out.csv")
    after = keys_of(tmp_path / "out.csv.journal")
    assert after[:-1] == before
    here("alexnet", "--gpus", "1,2", "-o", "out.csv", "--fresh")
    assert sorted(keys_of(tmp_path / "out.csv.journal")) == sorted(before)


@pytest.mark.e2e
def test_cells_where_nothing_fits_are_rows(tmp_path: Path, here: Callable[..., tuple[str, str]]) -> None:
    here("llama3-70b", "--gpus", "1,64", "--batch", "64", "--offload", "none", "-o", "o.csv")
    rows = _rows(tmp_path / "o.csv")
    assert [row["status"] for row in rows] == ["no_plan", "ok"]
    assert "nothing fits" in rows[0]["reason"]
    assert rows[0]["step_time_s"] == ""


def test_parquet_and_figure(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    run("alexnet", "--gpus", "1,2", "--batch", "128,256", "-o", "o.parquet", "--plot", "o.svg", cwd=tmp_path)
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table.num_rows == 4
    assert str(table.schema.field("step_time_s").type) == "double"
    assert str(table.schema.field("tp").type) == "int64"
    root = ET.fromstring((tmp_path / "o.svg").read_text(encoding="utf-8"))  # noqa: S314 - written just now
    text = "".join(root.itertext())
    assert "batch 128" in text
    assert "GPUs at most" in text


def test_the_document_follows_its_schema(tmp_path: Path, here: Callable[..., tuple[str, str]]) -> None:
    from planner.schema.results import SweepDocument

    document = json.loads(here("alexnet", "--gpus", "2", "--json")[0])
    assert SweepDocument.model_validate(document).rows[0].status == "ok"
    assert set(document["rows"][0]) == set(SweepDocument.model_json_schema()["$defs"]["SweepRow"]["properties"])
    assert not list(tmp_path.iterdir())  # without a file there is no journal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alexnet",), "--gpus: is missing"),
        (("gpt2", "--gpus", "4", "--batch", "1Mi tokens,64"), "--batch 1Mi tokens,64: a sweep counts samples"),
        (("alexnet", "--gpus", "8..4,x", "--jobs", "0", "--plot", "a.pdf"), "--gpus 8..4"),
        (("alexnet", "--gpus", "4", "--cluster", "a1"), "cluster 'a1' is not known"),
        (("alexnte", "--gpus", "4"), "did you mean 'alexnet'"),
        (("alexnet", "--gpus", "4", "--jobs", "2", "--dask", "tcp://a:1"), "choose one"),
        (("alexnet", "--gpus", "4", "-o", "/dev/null/folder.csv"), "Not a directory"),
        (("alexnet", "--gpus", "4", "-o", "/dev/null/folder.parquet"), "Not a directory"),
        (("alexnet", "--gpus", "4", "--objective", "energy", "--power", "0 W"), "--power 0 W"),
    ],
)
def test_bad_usage(
    tmp_path: Path, here: Callable[..., tuple[str, str]], arguments: tuple[str, ...], words: str
) -> None:
    assert words in here(*arguments, code=2)[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["8..", "..8", "4..6..8"])
def test_a_range_without_an_end_is_one_error(tmp_path: Path, here: Callable[..., tuple[str, str]], text: str) -> None:
    _, err = here("llama2-7b", "--gpus", text, "-o", "grid.csv", code=2)
    assert err == f"error: --gpus {text}: a range needs both ends, as in 8..64\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a small disk."""

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    # The byte code of modules would be cut short, too, and be read by whoever starts next.
    no_byte_code = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = run(*GRID, "-o", "out.csv", cwd=tmp_path, code=2, environment=no_byte_code, preexec_fn=small)
    assert done.stderr.strip().splitlines()[-1].startswith("error: out.csv.journal: cannot be written: ")
    with Journal(tmp_path / "out.csv.journal") as journal:
        kept = list(journal.rows)
    assert 0 < len(kept) < 12
    run(*GRID, "-o", "out.csv", cwd=tmp_path)
    assert keys_of(tmp_path / "out.csv.journal")[: len(kept)] == kept

"""The cells of a grid, questions as plain data, and what identifies an answer."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.api.values import Values
from planner.core.errors import OutputError, PlannerError
from planner.core.request import Request
from planner.sweeping.answer import COLUMNS, DEGREES, answer, from_plain, key_of, to_plain
from planner.sweeping.grid import Axes, Cell, cells_of, doubling_counts
from planner.sweeping.journal import Journal
from planner.sweeping.run import answers_here, run
from strategies.mesh.settings import Bounds, MeshRestriction
from tests.planner.sweeping.workers import deadly

FULL = Request(
    model="llama2-7b",
    cluster="dgx-a100",
    gpus=64,
    batch=256,
    mesh=MeshRestriction(
        degrees={"tp": Bounds(values=(1, 2)), "pp": Bounds(low=1, high=4)},
        names={"schedule": ("1f1b",)},
        flags={"sequence_parallel": True},
    ),
    assume=(("dp_overlap", 0.5),),
    fix=("conv*:batch",),
    power_w=(400.0, None),
    price_per_hour=2.5,
    paleo_algorithms=Path("/data/algorithms.json"),
)


def test_a_question_survives_as_json() -> None:
    assert from_plain(json.loads(json.dumps(to_plain(FULL)))) == FULL


@given(first=st.integers(1, 5000), last=st.integers(1, 5000))
def test_a_range_of_gpus_doubles(first: int, last: int) -> None:
    expected, count = [], first
    while count <= last:
        expected.append(count)
        count *= 2
    assert doubling_counts(first, last) == tuple(expected)


def test_lists_of_gpus() -> None:
    values = Values()
    assert values.doubled_counts("--gpus", "8,16,32..1024") == (8, 16, 32, 64, 128, 256, 512, 1024)
    assert not values.problems
    values.doubled_counts("--gpus", "32..8")
    values.doubled_counts("--gpus", ",")
    values.doubled_counts("--gpus", "x")
    assert len(values.problems) == 3


def test_cells_in_the_order_of_the_axes() -> None:
    axes = Axes(clusters=("dgx-a100", "dgx-h100"), gpus=(8, 16), batches=(64, 128), seqs=(None,))
    cells = cells_of(Request(model="llama2-7b"), axes)
    assert [(c.question["cluster"], c.question["batch"], c.question["gpus"]) for c in cells][:3] == [
        ("dgx-a100", 64, 8),
        ("dgx-a100", 64, 16),
        ("dgx-a100", 128, 8),
    ]
    assert len({cell.key for cell in cells}) == len(cells) == axes.size


def test_the_key_follows_the_question_the_files_and_the_version(tmp_path: Path) -> None:
    plain = to_plain(FULL)
    key = key_of(plain, {"model": "a"}, "1")
    for words in ({"command_line": "planner sweep again"}, {"origins": {"precision": "train.sh"}}):
        assert key_of({**plain, **words}, {"model": "a"}, "1") == key
    different = [
        key_of({**plain, "gpus": 65}, {"model": "a"}, "1"),
        key_of(plain, {"model": "b"}, "1"),
        key_of(plain, {"model": "a"}, "2"),
    ]
    assert key not in different
    source = Path("configs/clusters/pcie4-node.yaml").read_text(encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(source, encoding="utf-8")
    axes = Axes(clusters=(str(file),), gpus=(2,))
    before = cells_of(Request(model="alexnet"), axes)[0].key
    file.write_text(source.replace("efficiency: 0.", "efficiency: 0.1") + "\n", encoding="utf-8")
    assert cells_of(Request(model="alexnet"), axes)[0].key != before


def test_all_clusters_that_cannot_be_read_are_named() -> None:
    with pytest.raises(PlannerError) as caught:
        cells_of(Request(model="alexnet"), Axes(clusters=("nonsense", "dgx-a100", "rubbish")))
    assert "nonsense" in str(caught.value)
    assert "rubbish" in str(caught.value)


@pytest.mark.exact
def test_a_row_says_what_optimize_says() -> None:
    from planner.spaces.ask import optimize

    request = Request(model="alexnet", gpus=4, cluster="dgx1-v100", fastest=True)  # a sweep names the fastest
    row, best = answer(to_plain(request)), optimize(request).plans[0]
    assert list(row) == list(COLUMNS)
    assert (row["status"], row["plan"], row["step_time_s"]) == ("ok", best.summary, best.step_time_s)
    assert (row["money_per_step"], row["energy_per_step_j"]) == (best["money_per_step"], best["energy_per_step_j"])
    assert all(row[name] is None for name in DEGREES if name != "num_micro_batches")


def test_cells_without_a_plan_are_rows_with_the_reason() -> None:
    tiny = answer(to_plain(Request(model="llama3-70b", gpus=1, batch=8, memory_limit="2 GiB")))
    assert tiny["status"] == "no_plan"
    assert "needs" in tiny["reason"]
    small = answer(to_plain(Request(model="alexnet", gpus=512, cluster="k20-pcie")))
    assert small["status"] == "refused"
    assert "more than cluster" in small["reason"]


def test_a_defect_is_a_row_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.sweeping import answer as module

    def broken(request: Request) -> object:
        raise ZeroDivisionError("by nothing")

    cells = cells_of(Request(model="alexnet"), Axes(gpus=(1, 2)))
    journal = Journal(None)
    with monkeypatch.context() as patched:
        patched.setattr(module, "search", broken)
        first = run(cells, journal)
    assert [row["status"] for row in first.rows] == ["failed", "failed"]
    assert "ZeroDivisionError: by nothing" in first.rows[0]["reason"]
    again = run(cells, journal)
    assert [row["status"] for row in again.rows] == ["ok", "ok"]
    assert run([dataclasses.replace(cell) for cell in cells], journal).taken == 2


def test_clusters_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "schema_version: 1\nname: mine\ndevice: t4\nsource: {}\nlevels: [{name: link, bandwidth: 10 GB/s, latency: 5 us}]\n"
    paths = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for path in paths:
        path.write_text(text, encoding="utf-8")
    axes = Axes(clusters=tuple(map(str, paths)), gpus=(1,), batches=(8,), seqs=(None,))
    with pytest.raises(PlannerError, match="are both called 'mine'"):
        cells_of(Request(model="alexnet"), axes)
    paths[1].write_text(text.replace("mine", "other"), encoding="utf-8")
    assert len(cells_of(Request(model="alexnet"), axes)) == 2


# --- Cells in processes of this machine, some of which die --------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("jobs", [2, 3])
def test_a_cell_that_kills_its_process_costs_only_itself(tmp_path: Path, jobs: int) -> None:
    common = {"model": "m", "cluster": "c", "batch": None, "seq": None, "device": str(tmp_path)}
    cells = [Cell(key=f"k{n}", question={**common, "gpus": n}) for n in range(1, 9)]
    rows = {}
    for cell, row in answers_here(cells, jobs, deadly):
        assert cell.key not in rows
        rows[cell.key] = row
    assert {key for key, row in rows.items() if row["status"] == "ok"} == {f"k{n}" for n in (1, 2, 4, 5, 6, 7, 8)}
    assert rows["k3"]["status"] == "failed"
    assert "died each time" in rows["k3"]["reason"]
    assert rows["k3"]["gpus"] == 3
    # Only what was under way when a process died ran again.
    calls = {n: len((tmp_path / str(n)).read_text(encoding="utf-8")) for n in range(1, 9)}
    assert sum(calls.values()) <= 8 + 2 + 1 + 2 * (jobs - 1)


def test_the_order_of_one_process_is_that_of_the_cells(tmp_path: Path) -> None:
    cells = [Cell(key=f"k{n}", question={"gpus": n, "device": str(tmp_path)}) for n in (4, 2, 1)]
    assert [cell.key for cell, _ in answers_here(cells, 1, deadly)] == ["k4", "k2", "k1"]


# --- The journal of a sweep: killed programs, damage, full disks, two sweeps at once ------------------------------------------------------


def _filled(path: Path, count: int = 3) -> None:
    with Journal(path) as journal:
        for n in range(count):
            journal.add(f"k{n}", {"n": n})


def test_rows_are_there_again(tmp_path: Path) -> None:
    _filled(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert journal.rows == {"k0": {"n": 0}, "k1": {"n": 1}, "k2": {"n": 2}}
    with Journal(tmp_path / "j", fresh=True) as journal:
        assert journal.rows == {}


@pytest.mark.e2e
def test_rows_of_a_killed_program_are_there(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from planner.sweeping.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "journal.add('k0', {'n': 0})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "j")], check=False).returncode == -9
    with Journal(tmp_path / "j") as journal:
        assert journal.rows == {"k0": {"n": 0}}


def test_damage_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j"
    _filled(path, 200)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    with pytest.raises(OutputError, match="is damaged"):
        Journal(path)


@pytest.mark.parametrize("byte", [b"!", b"\xff"])
def test_a_damaged_row_is_an_error(byte: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j"
    _filled(path)
    path.write_bytes(path.read_bytes().replace(b'{"n": 1}', byte * len(b'{"n": 1}')))
    with pytest.raises(OutputError, match="is damaged"):
        Journal(path)


@pytest.mark.parametrize("content", [b"a,b,c\n1,2,3\n", b'{"planner_sweep": 1}\n', b"precious"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.csv.journal"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="no journal of a sweep"):
        Journal(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "j")
    database.execute("CREATE TABLE precious (n INTEGER)")
    database.close()
    content = (tmp_path / "j").read_bytes()
    with pytest.raises(OutputError, match="no journal of a sweep"):
        Journal(tmp_path / "j", fresh=True)
    assert (tmp_path / "j").read_bytes() == content


def test_two_sweeps_of_one_output_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add("k0", {"n": 0})
        with pytest.raises(OutputError, match="another sweep"):
            Journal(tmp_path / "j")
        journal.add("k1", {"n": 1})
    with Journal(tmp_path / "j") as journal:
        assert list(journal.rows) == ["k0", "k1"]


def test_a_journal_without_rows_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Journal(tmp_path / "j"):
        raise ZeroDivisionError
    assert not (tmp_path / "j").exists()
    _filled(tmp_path / "j")
    with pytest.raises(ZeroDivisionError), Journal(tmp_path / "j"):
        raise ZeroDivisionError
    assert (tmp_path / "j").exists()


def test_a_full_disk_is_one_error_and_tears_nothing(tmp_path: Path) -> None:
    _filled(tmp_path / "j", 1)
    journal = Journal(tmp_path / "j")
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OutputError, match="disk is full"):
        journal.add("k1", {"n": "x" * 100_000})
    journal.close()
    with Journal(tmp_path / "j") as again:
        assert list(again.rows) == ["k0"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/no")):
        with pytest.raises(OutputError, match="cannot be written"):
            Journal(folder / "j")

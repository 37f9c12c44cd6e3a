"""The journal of a sweep: killed programs, damage, full disks, two sweeps at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from planner.core.errors import OutputError
from planner.sweeping.journal import Journal


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
    with pytest.raises(OutputError, match="cannot be written"):
        Journal(tmp_path / "no" / "j")

"""The journal of a sweep: torn lines, damage, full disks, two sweeps at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from planner.core.errors import OutputError
from planner.sweeping.journal import Journal


def _filled(path: Path, count: int = 3) -> bytes:
    with Journal(path) as journal:
        for n in range(count):
            journal.add(f"k{n}", {"n": n})
    return path.read_bytes()


def test_rows_are_there_again(tmp_path: Path) -> None:
    _filled(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert journal.rows == {"k0": {"n": 0}, "k1": {"n": 1}, "k2": {"n": 2}}
    with Journal(tmp_path / "j", fresh=True) as journal:
        assert journal.rows == {}


def test_a_journal_torn_anywhere_gives_the_rows_before_the_tear(tmp_path: Path) -> None:
    whole = _filled(tmp_path / "j")
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (tmp_path / "t").write_bytes(whole[:cut])
        lines = sum(end <= cut for end in ends)
        with Journal(tmp_path / "t") as journal:
            assert len(journal.rows) == max(lines - 1, 0), cut
            journal.add("new", {"n": 9})
        with Journal(tmp_path / "t") as journal:
            assert journal.rows["new"] == {"n": 9}
            assert len(journal.rows) == max(lines - 1, 0) + 1


def test_damage_before_the_end_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = _filled(path).splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"key": "k0", "ro\n' + b"".join(lines[2:]))
    with pytest.raises(OutputError, match=r"j:2: is damaged"):
        Journal(path)


@pytest.mark.parametrize("content", [b"a,b,c\n1,2,3\n", b"precious", b'{"planner_sweep": 2}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.csv.journal"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="no journal of a sweep"):
        Journal(path)
    assert path.read_bytes() == content


def test_two_sweeps_of_one_output_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Journal(tmp_path / "j"), pytest.raises(OutputError, match="another sweep"):
        Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()


def test_a_journal_without_rows_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Journal(tmp_path / "j"):
        raise ZeroDivisionError
    assert not (tmp_path / "j").exists()
    with Journal(tmp_path / "j") as journal:
        journal.add("k0", {"n": 0})
    with pytest.raises(ZeroDivisionError), Journal(tmp_path / "j"):
        raise ZeroDivisionError
    assert (tmp_path / "j").exists()


def test_a_full_disk_is_one_error_and_tears_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    journal.add("k0", {"n": 0})
    before = (tmp_path / "j").read_bytes()
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 5:
            return real(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OutputError, match="No space left on device"):
            journal.add("k1", {"n": 1})
    assert (tmp_path / "j").read_bytes() == before
    journal.close()
    with Journal(tmp_path / "j") as again:
        assert list(again.rows) == ["k0"]

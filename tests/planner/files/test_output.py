"""Writing results: a file is either old or complete, and one that cannot be written is found at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.core.errors import OutputError
from planner.files.output import check_writable, write_atomically


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")  # what the system says; the superuser would never hear it

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match="cannot be written: Permission denied"):
        check_writable(tmp_path / "x")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        check_writable(tmp_path / name)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x\n")
    (tmp_path / "b").write_text("x\n", encoding="utf-8")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    write_atomically(Path(os.devnull), "x")  # no regular file: written to, not replaced

"""A folder is complete or absent, and what the planner did not write is never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.core.errors import OutputError
from planner.exporters import export as export_module
from planner.exporters.export import make_export, write_folder
from tests.planner.exporters.jobs import FSDP, PIPELINE

FIRST = make_export(FSDP, "megatron").files
SECOND = make_export(PIPELINE, "torchtitan").files


def _content(path: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in path.iterdir()}


def test_a_new_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "run", FIRST, force=False)
    assert _content(tmp_path / "run") == FIRST
    assert (tmp_path / "run" / "train.sh").stat().st_mode & 0o100
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_folder(tmp_path / "run", FIRST, force=False)
    assert _content(tmp_path / "run") == FIRST


def test_an_export_is_replaced_with_force_only(tmp_path: Path) -> None:
    write_folder(tmp_path / "run", FIRST, force=False)
    with pytest.raises(OutputError, match="--force replaces an earlier export"):
        write_folder(tmp_path / "run", SECOND, force=False)
    assert _content(tmp_path / "run") == FIRST
    write_folder(tmp_path / "run", SECOND, force=True)
    assert _content(tmp_path / "run") == SECOND
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_foreign_files_stay(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputError, match=r"holds no export.json"):
        write_folder(home, FIRST, force=True)
    write_folder(tmp_path / "run", FIRST, force=False)
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"no part of the export.*notes.txt"):
        write_folder(tmp_path / "run", SECOND, force=True)
    assert (home / "thesis.tex").read_text(encoding="utf-8") == "years of work"
    assert (tmp_path / "run" / "notes.txt").exists()


@pytest.mark.parametrize("manifest", ["", "[]", '{"files": 3}', "{", '{"files": [["train.sh"]]}', "\x00"])
def test_a_broken_manifest_is_no_licence(tmp_path: Path, manifest: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "export.json").write_text(manifest, encoding="utf-8")
    (run / "train.sh").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError):
        write_folder(run, FIRST, force=True)
    assert (run / "train.sh").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("when", ["write", "swap"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, exists: bool
) -> None:
    run = tmp_path / "run"
    if exists:
        write_folder(run, FIRST, force=False)
    full = OSError(28, "No space left on device")

    def fail(*_: object) -> None:
        raise full

    if when == "write":
        monkeypatch.setattr(export_module.os, "fsync", fail)
    else:
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda self, to: fail() if self.name.endswith(".tmp") else rename(self, to))
    with pytest.raises(OutputError, match="No space left on device"):
        write_folder(run, SECOND, force=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if exists else [])
    if exists:
        assert _content(run) == FIRST


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path, words in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "run", "is a file, not a folder"),
        (Path("/"), "root"),
        (tmp_path / ("x" * 300), "too long"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(OutputError, match=f"(?i){words}"):
            write_folder(path, FIRST, force=True)

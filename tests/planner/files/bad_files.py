"""Network files with faults, and the errors that loading them gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.core.errors import ExitCode, InputFileError
from planner.importers.networks import load_model

HEAD = "schema_version: 1\nname: t\nglobal_batch: 8\n"  # lines 1 to 3
DATA = "layers:\n  - {name: data, type: input, shape: [3, 32, 32]}\n"  # lines 4 and 5


def errors(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    assert caught.value.exit_code == ExitCode.USAGE
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


def error(tmp_path: Path, text: str) -> str:
    (only,) = errors(tmp_path, text)
    return only


# --- Files written for a test, and the problems that reading them gives -------------------------------------------------------------------


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path

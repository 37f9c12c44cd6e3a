"""Tables that a test writes and has validated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from tests.planner.measurements.written_tables import json_of


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], str]:
    def save(content: str | bytes) -> str:
        path = tmp_path / "runs.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return save


@pytest.fixture
def skipped(capsys: pytest.CaptureFixture[str], write: Any) -> Any:
    """Validate a table that can be read: rows, scored, and the reasons."""

    def ask(content: str | bytes) -> tuple[int, int, dict[str, int]]:
        path = write(content)
        assert run(["validate", path]) == 0
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        for word in json.loads(json_of(capsys, path))["files"][0]["skipped"]:
            assert word[:40] in " ".join(out.split())  # what is skipped is said in the table, too
        (file,) = json.loads(json_of(capsys, path))["files"]
        assert file["rows"] == file["scored"] + sum(file["skipped"].values())
        return file["rows"], file["scored"], file["skipped"]

    return ask

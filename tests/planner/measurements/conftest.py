"""Tables that a test writes and has validated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], str]:
    def save(content: str | bytes) -> str:
        path = tmp_path / "runs.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return save


@pytest.fixture
def validated(answer: Any) -> Callable[[str], dict[str, Any]]:
    """Validate a table: what is said of it, as data."""

    def ask(path: str) -> dict[str, Any]:
        (file,) = json.loads(answer("validate", path, "--json"))["files"]
        return dict(file)

    return ask


@pytest.fixture
def skipped(answer: Any, validated: Any, write: Any) -> Any:
    """Validate a table that can be read: rows, scored, and the reasons."""

    def ask(content: str | bytes) -> tuple[int, int, dict[str, int]]:
        path = write(content)
        file = validated(path)
        said = " ".join(answer("validate", path).split())
        for word in file["skipped"]:
            assert word[:40] in said  # what is skipped is said in the table, too
        assert file["rows"] == file["scored"] + sum(file["skipped"].values())
        return file["rows"], file["scored"], file["skipped"]

    return ask

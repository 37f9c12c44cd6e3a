"""Files written for a test, and the problems that reading them gives."""

from __future__ import annotations

from pathlib import Path


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path

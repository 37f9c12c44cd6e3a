"""``planner place`` as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.cli import run


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command; its exit code, stdout and stderr."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = run([str(word) for word in ("place", *words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call

"""Commands about transformers that must fail."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cli import run


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command that must fail; the lines of its message."""

    def ask(command: str, code: int = 2) -> list[str]:
        assert run(command.split()) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert "internal error" not in err
        return [line.removeprefix("error: ") for line in err.splitlines()]

    return ask

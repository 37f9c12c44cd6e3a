"""Commands about transformers that must fail, or answer in JSON."""

from __future__ import annotations

import json
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


@pytest.fixture
def document(answer: Any) -> Any:
    def ask(command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answer(*command.split(), "--json"))
        return found

    return ask


@pytest.fixture
def known_document(known_answer: Any) -> Any:
    """As ``document``, answered once however many tests ask."""

    def ask(command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(known_answer(*command.split(), "--json"))
        return found

    return ask

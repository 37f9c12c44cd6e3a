"""Commands about transformers that must fail."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def fails(fails: Any) -> Any:
    """Run a command that must fail; the lines of its message."""

    def ask(command: str, code: int = 2) -> list[str]:
        return [line.removeprefix("error: ") for line in fails(*command.split(), code=code).splitlines()]

    return ask

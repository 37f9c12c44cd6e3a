"""Examples in docstrings: every one is run, and says what happens."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [path for room in ("costmodel", "strategies", "planner") for path in sorted((ROOT / room).rglob("*.py"))]
EXAMPLE = re.compile(r"^\s*>>> (?!.*doctest: \+SKIP)", re.MULTILINE)


def _module(source: Path) -> str:
    return ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _marked(source: Path) -> Any:
    """Examples of the Python API ask whole questions."""
    asks = source.is_relative_to(ROOT / "planner" / "api") or source == ROOT / "planner" / "__init__.py"
    return pytest.param(source, marks=pytest.mark.e2e) if asks else source


@pytest.mark.parametrize(
    "source", [_marked(path) for path in SOURCES if EXAMPLE.search(path.read_text(encoding="utf-8"))], ids=_module
)
def test_examples(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures, tried = doctest.testmod(importlib.import_module(_module(source)), optionflags=doctest.ELLIPSIS)
    assert failures == 0
    assert tried >= len(
        EXAMPLE.findall(source.read_text(encoding="utf-8"))
    )  # none that a look at the module does not find

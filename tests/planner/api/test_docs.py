"""The Python interface: examples of docs/python.md are what happens, and every public name is there and has one."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest

import planner

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"


@pytest.mark.e2e
def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failures == 0
    assert tried > 20
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    functions = {name for name in planner.__all__ if name.islower() and not name.startswith("_")}
    left_out = {name for name in functions if not name.startswith("list_") and name not in text}
    assert not left_out


def test_every_public_name_has_an_example() -> None:
    bare = [
        name
        for name in planner.__all__
        if not name.startswith("_") and ">>>" not in (getattr(planner, name).__doc__ or "")
    ]
    assert not bare


def test_examples_of_the_lists_run() -> None:
    """They are made, so a look through the module does not find them."""
    for name in planner.__all__:
        if name.startswith("list_"):
            tests = doctest.DocTestParser().get_doctest(getattr(planner, name).__doc__, {}, name, None, None)
            assert len(tests.examples) == 2
            assert doctest.DocTestRunner().run(tests).failed == 0

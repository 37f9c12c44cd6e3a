"""The benchmark of the mesh space walks plans that are legal and distinct."""

from __future__ import annotations

import pytest

from benchmarks import mesh
from planner.core.request import Request


def test_the_space_is_walked_and_what_was_counted_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mesh, "QUESTION", Request(model="gpt2", gpus=2, cluster="dgx-a100"))
    assert mesh.rate(0.0) > 0
    assert "are distinct and legal" in capsys.readouterr().out

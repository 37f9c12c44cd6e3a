"""Pages that several tests look at, made once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from planner.cli import run

HAS_PLOTLY = importlib.util.find_spec("plotly") is not None


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> page: of a transformer with a pipeline, of a network with a split per layer, each with and without plots."""
    folder = tmp_path_factory.mktemp("pages")
    questions = {
        "mesh": ["optimize", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--top", "4", "--pp", "2", "--tp", "2"],
        "layers": ["optimize", "alexnet", "--gpus", "4", "--top", "3"],
        "explained": ["explain", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--tp", "2", "--pp", "4"],
    }
    made = {}
    for name, question in questions.items():
        for kind in ["static"] + (["live"] if HAS_PLOTLY else []):
            target = folder / f"{name}-{kind}.html"
            more = ["--static"] if kind == "static" else []
            assert run([*question, "--html", str(target), "-o", str(folder / "out.txt"), "--quiet", *more]) == 0
            made[target.stem] = target
    return made

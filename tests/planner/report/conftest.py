"""Pages that several tests look at, made once."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from planner.cli import run

HAS_PLOTLY = importlib.util.find_spec("plotly") is not None


MORE = ["--figure", "scaling"]
QUESTIONS = {
    "mesh": ["optimize", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--top", "4", "--pp", "2", "--tp", "2", *MORE],
    "layers": ["optimize", "alexnet", "--gpus", "4", "--top", "3", *MORE],
    "explained": ["explain", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--tp", "2", "--pp", "4"],
}


def texts(root: ET.Element, tag: str) -> list[str]:
    """Words of every element of a kind."""
    return ["".join(element.itertext()) for element in root.iter(tag)]


class Pages(dict[str, Path]):
    """Name -> page, made when it is first looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, page: str) -> Path:
        name, kind = page.split("-")
        if kind == "live":
            assert HAS_PLOTLY
        target = self[page] = self.folder / f"{page}.html"
        more = ["--static"] if kind == "static" else []
        out = str(self.folder / "out.txt")
        assert run([*QUESTIONS[name], "--html", str(target), "-o", out, "--quiet", *more]) == 0
        return target


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a transformer with a pipeline and of a network with a split per layer, each with ("-live") and without plots ("-static")."""
    return Pages(tmp_path_factory.mktemp("pages"))

"""The tables of docs/export.md are those of the exporters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.exporters import exporter_of, targets_that_take
from planner.exporters.account import LAYER_SETTINGS, MESH_SETTINGS, SERVING_SETTINGS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "export.md"


def _fields(target: str, kind: str) -> Mapping[str, str]:
    exporter: Any = exporter_of(target)
    return exporter.LAYER_FIELDS if kind == "layers" else exporter.FIELDS


@pytest.mark.parametrize(
    ("mark", "kind", "settings"),
    [
        ("trainers", "mesh", MESH_SETTINGS),
        ("servers", "serving", SERVING_SETTINGS),
        ("layers", "layers", LAYER_SETTINGS),
    ],
)
def test_tables(mark: str, kind: str, settings: Sequence[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert match is not None
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in match[1].splitlines()]
    targets = targets_that_take(kind)
    assert header == ["setting", *targets]
    wanted = [[name, *(_fields(target, kind)[name].replace("|", "\\|") for target in targets)] for name in settings]
    assert rows == wanted

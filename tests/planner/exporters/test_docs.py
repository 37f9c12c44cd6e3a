"""The tables of docs/export.md are those of the exporters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.exporters import exporter_of, targets_that_take
from planner.exporters.account import LAYER_SETTINGS, MESH_SETTINGS, SERVING_SETTINGS
from tests.cases import mostly

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
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in match[1].splitlines()]
    targets = targets_that_take(kind)
    assert header == ["setting", *targets]
    wanted = [[name, *(_fields(target, kind)[name].replace("|", "\\|") for target in targets)] for name in settings]
    assert rows == wanted


def _frameworks() -> list[tuple[str, str]]:
    """Targets and the frameworks whose plans they write."""
    part = PAGE.read_text(encoding="utf-8").split("## What a framework can run\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \| `(.*?)`", part, re.MULTILINE)


def test_every_trainer_has_a_framework() -> None:
    assert dict(_frameworks()) == {target: exporter_of(target).FRAMEWORK for target in targets_that_take("mesh")}


@pytest.mark.e2e
@pytest.mark.parametrize(("target", "framework"), _frameworks())
@mostly(
    "published", "question", ["llama3-8b --gpus 16 --batch 64 --seq 2048", "llama2-13b --gpus 64 --batch 256"], quick=1
)
def test_what_is_found_under_it_loses_nothing(
    target: str, framework: str, question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.yaml")
    assert run(["optimize", *question.split(), "--framework", framework, "--top", "1", "-q", "--export", plan]) == 0
    capsys.readouterr()
    code = run(["export", plan, "--to", target, "--strict", "-o", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err

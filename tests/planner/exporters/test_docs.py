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
    assert match is not None
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in match[1].splitlines()]
    targets = targets_that_take(kind)
    assert header == ["setting", *targets]
    wanted = [[name, *(_fields(target, kind)[name].replace("|", "\\|") for target in targets)] for name in settings]
    assert rows == wanted


def _searches() -> list[tuple[str, str]]:
    """Targets and the options that cut their plans out of the space."""
    part = PAGE.read_text(encoding="utf-8").split("## Search only what a trainer takes\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| `(--.*?)` \|$", part, re.MULTILINE)
    return [(target, options) for targets, options in rows for target in re.findall(r"`(.*?)`", targets)]


def test_every_trainer_has_options_that_cut_out_its_plans() -> None:
    assert {target for target, _ in _searches()} == set(targets_that_take("mesh"))


@pytest.mark.parametrize(("target", "options"), _searches())
@mostly(
    "published", "question", ["llama3-8b --gpus 16 --batch 64 --seq 2048", "llama2-13b --gpus 64 --batch 256"], quick=1
)
def test_what_is_found_with_them_loses_nothing(
    target: str, options: str, question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.yaml")
    assert run(["optimize", *question.split(), *options.split(), "--top", "1", "-q", "--export", plan]) == 0
    capsys.readouterr()
    code = run(["export", plan, "--to", target, "--strict", "-o", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err

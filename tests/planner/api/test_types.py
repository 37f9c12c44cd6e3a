"""The public surface is typed: mypy knows what the functions return and which keywords they take."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = """
import planner

result = planner.optimize("alexnet", gpus=16, tp="1..8", pp=range(1, 9), memory_limit="40 GiB")
reveal_type(result)
reveal_type(result.best)
reveal_type(result.bound)
reveal_type(planner.estimate("alexnet", gpus=2).plan.fits)
reveal_type(planner.explain("plan.yaml").best_step_time_s)
reveal_type(planner.compare("a.yaml", "b.yaml").why)
reveal_type(planner.export(result.best, "megatron").files)
reveal_type(planner.Plan.load("plan.yaml"))
reveal_type(planner.sweep("alexnet", gpus=[1, 2], cluster=["a100", "h100"]).rows)
reveal_type(planner.size("llama3-8b", tokens="1T", days=30, cluster="a100").plan("cheapest"))
planner.optimize("alexnet", gpu=16)  # wrong keyword
planner.optimize("alexnet", mode="train")  # wrong word
planner.size("alexnet", tokens=1e9).plan("cheap")  # wrong word
planner.estimate("alexnet", batch="a", seq=[1])  # wrong types
"""
REVEALED = [
    "planner.api.results.SearchResult",
    "planner.api.plans.Plan",
    "float | None",
    "bool",
    "float | None",
    "tuple[str, ...]",
    "dict[str, str]",
    "planner.api.plans.Plan",
    "list[dict[str, Any]]",
    "planner.api.plans.Plan",
]


@pytest.mark.e2e
def test_types_as_a_checker_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    assert (REPOSITORY / "planner" / "py.typed").is_file()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    out, err, _ = api.run([
        "--strict", "--follow-imports", "silent", "--config-file", "", "--ignore-missing-imports", "--no-error-summary",
        "--cache-dir", str(tmp_path / "cache"), str(program),
    ])  # fmt: skip
    assert not err
    lines = [line for line in out.splitlines() if "program.py" in line]
    notes = [line.partition('Revealed type is "')[2].rstrip('"') for line in lines if "Revealed type" in line]
    assert [note.replace("builtins.", "") for note in notes] == REVEALED
    errors = [line for line in lines if " error: " in line]
    wrong = {number for number, line in enumerate(program.read_text().splitlines(), start=1) if "# wrong" in line}
    assert {int(line.split(":")[1]) for line in errors} == wrong

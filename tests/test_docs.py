"""The documentation: tutorials and recipes are run, links and navigation hold, the API reference is complete."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import planner
from tests.cases import mostly

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = [ROOT / "README.md", DOCS / "index.md", *sorted((DOCS / "tutorials").glob("*.md"))]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tutorials() -> Any:
    return _module(DOCS / "tutorials.py")


@pytest.mark.exact
@mostly("e2e", "page", TUTORIALS, ids=lambda page: page.stem, quick=1)
def test_tutorials_say_what_happens(
    page: Path, tutorials: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails because answers have changed: python docs/tutorials.py."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    run = 0
    for block, body in tutorials.run_page(page, tmp_path):
        assert tutorials.stable(body) == tutorials.stable(block.body), block.commands
        run += len(block.commands)
    assert run >= (6 if page.parent.name == "tutorials" else 1)


def test_examples_of_the_runner(tutorials: Any) -> None:
    assert tuple(doctest.testmod(tutorials)) == (0, 3)


def test_a_changed_answer_is_noticed(tutorials: Any, tmp_path: Path, new_file: Any) -> None:
    page = new_file("page.md", "```console\n$ planner list calibrations\nname     description\n```\n")
    ((block, body),) = tutorials.run_page(page, tmp_path)
    assert tutorials.stable(body) != tutorials.stable(block.body)
    assert "default" in body


def test_blocks_that_are_not_run_say_why(tutorials: Any) -> None:
    left_out = [
        block for page in TUTORIALS for block in tutorials.blocks(page.read_text(encoding="utf-8")) if not block.is_run
    ]
    assert all(re.match(r"not run: \w{4,} .*", block.mark) for block in left_out)
    assert len(left_out) <= 1


# What the registries would hold if the recipes' files were in their folders.
DRIVER = """
import contextlib, io, json, sys
import carbon, chain, layer_scale  # carbon first: figures are collected when spaces are imported
import planner.cli
from planner.importers import sources

planner.cli._COMMANDS["weigh"] = ("weigh", "weigh", "Count the weights of a network.")
lines = sources.Format(name="lines", module="lines_format", files="*.net", description="lines")
sources.FORMATS += (lines,)
answers = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = planner.cli.run(words)
    answers.append([code, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""


@pytest.mark.e2e
def test_recipes_work(tmp_path: Path) -> None:
    text = (DOCS / "extending.md").read_text(encoding="utf-8")
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", text, re.DOTALL)
    for name, content in [*files, ("driver.py", DRIVER)]:
        (tmp_path / name).write_text(content, encoding="utf-8")
    commands = [
        line.removeprefix("$ planner ").split()
        for block in re.findall(r"<!-- run -->\n```console\n(.*?)```\n", text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(files) == 11
    assert len(commands) == 12
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    run = subprocess.run(
        [sys.executable, "driver.py"],
        input=json.dumps(commands),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(run.stdout)
    assert [(code, err) for code, _, err in answers if code] == []
    shown = {" ".join(words[:2]): out for words, (_, out, _) in zip(commands, answers, strict=True)}
    assert any(
        "half-gpu" in out and words[-1] == "half-gpu.yaml" for words, (_, out, _) in zip(commands, answers, strict=True)
    )
    assert "layer_scale" in shown["explain scaled.yaml"]
    carbon = json.loads(shown["optimize alexnet"])  # the last command about alexnet
    assert carbon["plans"][0]["carbon_per_step_kg"] == pytest.approx(
        carbon["plans"][0]["energy_per_step_j"] * 0.4 / 3.6e6
    )
    assert carbon["objective"] == "carbon"
    assert "slow-trainer: host_collective_s" in shown["validate slow.csv"]
    assert '"framework": "slow-trainer"' in shown["estimate gpt3-1.3b"]
    plans = [plan["plan"] for plan in json.loads(shown["optimize gpt3-1.3b"])["plans"]]
    assert all(plan["cp"] == 1 and plan["zero_stage"] <= (plan["pp"] == 1) for plan in plans)
    assert all(plan["recompute"] != "selective" for plan in plans)
    assert "office" in shown["optimize resnet50"]
    assert "pipelined-chain" in shown["estimate resnet50"]
    assert "type: linear" in (tmp_path / "tiny.yaml").read_text(encoding="utf-8")
    assert "global batch 32" in " ".join(shown["optimize tiny.net"].split())
    assert '"weights": 25503912' in shown["weigh resnet50"]


def test_every_key_of_rules_is_explained() -> None:
    from planner.schema.framework import RulesEntry

    text = (DOCS / "extending.md").read_text(encoding="utf-8")
    table = text.split("| key of `rules` | meaning |")[1].split("\n\n")[0]
    keys = [key for row in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(keys) == sorted(RulesEntry.model_fields)


def _headings(path: Path) -> set[str]:
    """Anchors as GitHub and myst_heading_anchors make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+://", target):
            name, _, heading = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), target
            assert not heading or heading in _headings(path), target


def test_every_page_is_in_the_navigation() -> None:
    named = set()
    for tree in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL):
        entries = [line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":")]
        named |= {re.sub(r".*<(.*)>", r"\1", entry) for entry in entries}
    assert named == {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES} - {"index"}


def test_the_api_reference_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"auto(?:function|class|exception):: planner\.(\w+)", text))
    assert documented == set(planner.__all__) - {"__version__"}


def test_the_readme_shows_its_two_commands() -> None:
    commands = re.findall(
        r"^    (.*(?:pip install).*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert commands == [
        "pip install . && planner optimize alexnet.yaml --gpus 16",
        "pip install '.[test]' && pytest",
    ]


def test_no_page_needs_the_network() -> None:
    """Neither scripts nor fonts from elsewhere: extensions that fetch at build or at reading time are not used."""
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "intersphinx" not in conf
    assert "mathjax" not in conf.lower()
    assert not re.search(r"https?://", (DOCS / "static" / "site.css").read_text(encoding="utf-8"))


def test_options_keep_their_two_hyphens() -> None:
    """Typographic dashes in running text and tables would make "--top" a word that cannot be copied to a shell."""
    assert re.search(r"^smartquotes = False", (DOCS / "conf.py").read_text(encoding="utf-8"), re.MULTILINE)

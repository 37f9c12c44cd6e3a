"""What a small question does without: modules that it has no use for, tables that are known, layer types that the network has not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.layerwise import tables
from costmodel.layerwise.tables import LayerCosts
from planner.core.request import Request
from planner.spaces.ask import optimize

ROOT = Path(__file__).resolve().parents[2]
# What 'planner optimize' of a convolutional network may load of the packages that answer other questions.
_OF_OTHERS = (
    "costmodel.mesh",
    "costmodel.mixed",
    "costmodel.paleo",
    "costmodel.serving",
    "planner.spaces.mixed",
    "planner.spaces.mesh",
)
_ALLOWED = {
    *("costmodel.mesh", "costmodel.mesh.assumptions"),  # the constants of a calibration
    "costmodel.mesh.framework_rules",  # a part of every framework
    "costmodel.mesh.plan",  # the settings that rules name
    *(f"planner.spaces.{name}.kind" for name in ("mesh", "mixed", "serving")),  # each says that it does not apply
}
_NEVER = (
    "planner.spaces.layers.breakdown",
    "planner.uncertainty.sensitivity",
    "planner.spaces.layers.scaling",
    "planner.schema.plan",
    "planner.report.figures",
    "planner.report.answer_page",
    "costmodel.timeline",
    "costmodel.layerwise.detail",
)
_NEVER_LIBRARIES = ("numpy.ma", "networkx", "rich", "pandas", "scipy", "torch", "plotly", "matplotlib")


def in_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )


@pytest.mark.e2e
def test_a_convolutional_network_loads_nothing_of_other_questions() -> None:
    done = in_process(
        "import json, sys\nfrom planner.cli import run\n"
        "assert run(['optimize', 'alexnet', '--gpus', '4', '--quiet']) == 0\n"
        "from planner.schema.model import layer_model\n"
        "print(json.dumps([sorted(sys.modules), layer_model.cache_info().currsize]), file=sys.stderr)"
    )
    assert done.returncode == 0, done.stderr
    modules, layer_types = json.loads(done.stderr.splitlines()[-1])
    others = {name for name in modules if name.startswith(tuple(f"{package}." for package in _OF_OTHERS))}
    assert others <= _ALLOWED
    assert not {*_NEVER, *_NEVER_LIBRARIES} & set(modules)
    # Schemas of the layer types of the network, not of all that there are.
    assert layer_types <= 8


@pytest.fixture
def costings(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often all layers of a network were costed, whole and in part."""
    counts = {"all": 0, "again": 0}
    for name in counts:
        original = getattr(tables._Costing, name)

        def counted(
            self: tables._Costing, *known: object, _name: str = name, _original: object = original, **what: bool
        ) -> tuple[LayerCosts, ...]:
            counts[_name] += 1
            return _original(self, *known, **what)  # type: ignore[operator, no-any-return]

        monkeypatch.setattr(tables._Costing, name, counted)
    return counts


@pytest.mark.e2e
@pytest.mark.parametrize(("network", "faster"), [("overfeat", 2), ("resnet50", 1)])
def test_a_search_costs_layers_three_times_and_once_per_constant(
    network: str, faster: int, costings: dict[str, int]
) -> None:
    optimize(Request(model=network, gpus=16, fastest=True))
    # Whole: data parallelism at one number of micro-batches, all splits at one, and what the stages of pipelines take at every other
    # number of them together. The fewest GPUs are looked for with these costs.
    assert costings["all"] == 3
    # In part: once with a device that computes twice as fast, and once more for plain data parallelism where it has splits that no other
    # plan has; once for each of the eight constants that the error bars vary. Plans of several numbers of micro-batches would count once
    # for each.
    assert costings["again"] == 8 + faster


def test_the_program_leaves_with_its_code_and_after_its_last_words() -> None:
    code = (
        "import atexit, sys\natexit.register(lambda: print('last words'))\n"
        "sys.argv = ['planner', *{arguments}]\nfrom planner.__main__ import start\nstart()"
    )
    done = in_process(code.format(arguments=["--version"]))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "last words"
    assert in_process(code.format(arguments=["optimize", "no-such-network"])).returncode == 2


def test_a_profiler_is_heard_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-m", "planner", "--version"],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "function calls" in done.stdout

"""How constants are found without the rows that are then predicted with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.measurements.tables import Row

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks() -> Iterator[None]:
    """Its modules find one another as scripts of one folder do."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def rows_of(column: str, texts: list[str]) -> list[Row]:
    """Rows that state one thing."""
    return [Row(line=n, cells={column: text}) for n, text in enumerate(texts)]


def part(**changes: Any) -> Any:
    """A part whose constants are found on a grid of two points."""
    from accuracy import Part

    given: dict[str, Any] = {"name": "p", "file": "f", "keep": lambda _: True, "folds": {}, "grid": {"x": (0.0, 1.0)}}
    return Part(**{**given, **changes})


def test_a_group_is_predicted_with_what_suits_the_others() -> None:
    """Point 0 suits tp 1 and point 1 tp 2: left out, each gets the other's, and a fold's rows all get the same."""
    from accuracy import Trials, left_out

    class Named(Trials):
        """Whose outcomes are names."""

        def outcomes(self, point: int) -> list[Any]:
            """One per row."""
            return [f"point {point}, row {n}" for n in range(len(self.rows))]

    errors = np.array([[0.0, 0.1, 1.0, 1.0], [1.0, 1.0, 0.1, 0.0]])
    trials = Named(rows=rows_of("tp", ["1", "1", "2", "2"]), points=[(("x", 0.0),), (("x", 1.0),)], errors=errors)
    assert left_out(part(), trials, ("tp",)) == ["point 1, row 0", "point 1, row 1", "point 0, row 2", "point 0, row 3"]


def test_kinds_that_choose_together_weigh_alike() -> None:
    """Three runs on one node prefer point 0 by 0.1 each, the only one on several point 1 by 0.2: the mean of all would take point 0."""
    from accuracy import best_of

    rows, errors = rows_of("nodes", ["1", "1", "1", "8"]), np.array([[0.1, 0.1, 0.1, 0.3], [0.2, 0.2, 0.2, 0.1]])
    assert best_of(part(together="nodes"), rows, errors) == 1
    assert best_of(part(), rows, errors) == 0


def test_steps_of_the_constants_of_hosts_are_alike() -> None:
    """A step of each moves a layer that waits for its host (27 kernels of 115 us) by 0.1 ms, rounded; the bundled constants are points."""
    from accuracy import _HOST

    from planner.files.loading import load_calibration
    from planner.files.naming.frameworks import framework_of

    started = {"host_launch_s": 27.0, "host_collective_s": 4.0, "collective_wait_s": 4.0}
    waits = load_calibration("vtrain").calibration.assumed
    assumed = replace(framework_of("Megatron-DeepSpeed").mesh_assumptions(), **waits)
    for name, values in _HOST.items():
        steps_s = started[name] * np.diff(values)
        assert np.round(1e3 * steps_s, 1).tolist() == [0.1] * len(steps_s)
        assert min(abs(value - getattr(assumed, name)) for value in values) < 1e-9

"""How searches without contiguity end: a load closes in on the least that has a cover, and small graphs go to an integer program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.clock import Clock, why_stopped
from strategies.placement.device_program import improved_by_program
from strategies.placement.free.search import FreeSearch
from strategies.placement.problem import PlacementResult

__all__ = ["CLOSE", "Decider", "close_in", "run_to_the_end"]

# A load is a bound as good as another within this.
CLOSE = 2e-4
# Share of the way from the bound to the best placement where the next load is decided.
_STEP = 0.6
# With so many pairs of block and device the integer program closes what is left in seconds, mostly.
_MOST_ASSIGNMENTS = 250

CoverT_co = TypeVar("CoverT_co", covariant=True)


class Decider(Protocol[CoverT_co]):
    """Says whether fractions of sets within a load cover all blocks."""

    bound: float  # proven so far: no placement has less

    @property
    def width(self) -> float:
        """Loads that are closer than this are not told apart."""

    def decide(self, load: float, clock: Clock) -> CoverT_co | None:
        """A cover within the load; None where there seems to be none."""


def close_in(
    search: FreeSearch, decider: Decider[CoverT_co], rounded: Callable[[CoverT_co], IntArray], *, proof: str
) -> None:
    """Find the least load that has a cover, within the width of a bin; every cover is rounded to a placement.

    Parameters
    ----------
    search : FreeSearch
    decider : Decider
    rounded : function of a cover
        Device of every block.
    proof : str
        What its bounds are called.
    """
    low, high = search.bound, search.value  # loads that seem to have no cover, and that have one
    while not search.is_done():
        high = min(high, search.value)
        if high - low <= max(decider.width, CLOSE * high):
            break
        load = low + _STEP * (high - low)
        try:
            cover = decider.decide(load, search.clock)
        finally:
            search.raise_bound(decider.bound, proof)
        if cover is None:
            low = max(load, decider.bound)
        else:
            high = load
            search.offer(rounded(cover))


def run_to_the_end(search: FreeSearch, run: Callable[[], None], method: str) -> PlacementResult:
    """Run a search until it ends or is stopped; what is open of a small graph is closed by the integer program."""
    stopped = why_stopped(run) if np.isfinite(search.bound) else ""
    result = search.result(method, stopped)
    cells = search.graph.num_blocks * search.problem.num_devices
    if stopped or search.is_done() or not np.isfinite(search.bound) or cells > _MOST_ASSIGNMENTS:
        return result
    return improved_by_program(search.problem, result, is_legal=None, relative_gap=search.gap, clock=search.clock)

"""A bound for graphs of ten thousand blocks: what a device can take within a load, by one sweep over the exact graph.

Notes
-----
Every price per block proves a bound (`strategies.placement.free.pricing`); here there is no time to find the best prices, so a few are
guessed from what the best prices of long and thin graphs look like:

1. A block is worth its time, rounded down to bins of load as the sweep counts it. A device that takes a part from the middle pays two
   cuts, so it takes less than its load, and that is the bound.
2. At both ends of the graph a device pays one cut only. The first and last blocks are worth less, by the cost of a cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.free.frontier import Frontier, build_frontier
from strategies.placement.free.pricing import Pricing, pin_lists
from strategies.placement.problem import PlacementProblem

__all__ = ["PRICED_PROOF", "priced_bounds"]

PRICED_PROOF = "what a device can take at the best of a few prices"

# States at a time of the sweep, and transitions x bins of one sweep: about five seconds.
_STATES = 64
_MOST_WORK = 4_000_000_000
_BINS = (500, 20_000)
# Widths of a bin that are tried for the least loss by rounding, relative to the narrowest.
_WIDTHS = np.linspace(1.0, 1.25, 251)
# Shares of the cost of a cut that are taken off the prices at the ends: a cut may be paid at one side of an end or at both.
_END_SHARES = (0.5, 1.0)


def priced_bounds(
    problem: PlacementProblem, graph: BlockGraph, order: IntArray, *, value: float, bound: float, clock: Clock
) -> Iterator[float]:
    """Bounds on the largest load of any placement, each from other prices.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem, of either kind; a bound for the placements that keep its blocks whole.
    order : int array
        Blocks in an order with cheap cuts.
    value : float
        Of the best placement.
    bound : float
        Known so far; where rounding alone loses more than is between it and the value, there is nothing to yield.
    clock : Clock
    """
    if not 0 < bound < value < np.inf:
        return
    # Too much rounding with even half of the transitions that are to be expected: not worth a frontier.
    likely = _MOST_WORK // (graph.num_blocks * _STATES // 2)
    if _finest(graph, value, int(np.clip(likely, *_BINS)))[1] > 1 - bound / value:
        return
    clock.check()
    frontier = _frontier(graph, order, value / _BINS[1], clock)
    bins = int(np.clip(_MOST_WORK // max(1, frontier.num_transitions), *_BINS))
    unit, _ = _finest(graph, value, bins)
    clock.check()
    pricing = Pricing(
        graph,
        num_accelerators=problem.num_accelerators,
        num_cpus=problem.num_cpus,
        memory_bytes=problem.capacity_bytes,
        frontier=frontier,
        largest=value,
        bins=int(np.ceil(value / unit)),
        is_proof=True,
    )
    worth = np.where(pricing.block_bins <= pricing.bins, pricing.block_bins, 0).astype(np.float64)
    priced = pricing.price(worth, remember=False, clock=clock)
    yield priced.bound
    cut = float(pricing.bins - priced.accelerator_best[-1])
    for share in _END_SHARES if cut > 0 else ():
        clock.check()
        yield pricing.price(_cheaper_ends(worth, order, share * cut), remember=False, clock=clock).bound


def _finest(graph: BlockGraph, value: float, bins: int) -> tuple[float, float]:
    """Width of a bin with the least loss by rounding, and that loss."""
    time = graph.accelerator_time
    units = value / bins * _WIDTHS
    losses = [float(np.sum(time - np.floor(time / unit * (1 - ROUNDING)) * unit)) for unit in units]
    best = int(np.argmin(losses))
    return float(units[best]), losses[best] / max(float(time.sum()), 1e-300)


def _frontier(graph: BlockGraph, order: IntArray, unit: float, clock: Clock) -> Frontier:
    """Divisions along an order; hyperedges that round to nothing are never watched for."""
    cost = graph.hyperedge_cost
    pins = [edge if c >= unit else [] for edge, c in zip(pin_lists(graph), cost.tolist(), strict=True)]
    return build_frontier(pins, cost, np.zeros(len(cost), dtype=np.bool_), order=order, max_states=_STATES, clock=clock)


def _cheaper_ends(prices: FloatArray, order: IntArray, cut: float) -> FloatArray:
    """Take the cost of a cut off the prices at either end of an order."""
    result = prices.copy()
    for blocks in (order, order[::-1]):
        before = np.concatenate(([0.0], np.cumsum(result[blocks])[:-1]))
        result[blocks] -= np.minimum(result[blocks], np.maximum(0.0, cut - before))
    return result

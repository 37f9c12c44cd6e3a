"""Bounds for accelerators of several kinds: work divided evenly among all.

Notes
-----
Dividing classes c at will among kinds t (CPUs are one more) of k(t) devices is a linear program,

    min T:  sum_t x(t, c) >= 1,   sum_c p(t, c) x(t, c) <= k(t) T,   sum_c m(c) x(t, c) <= k(t) M(t)

whose dual says: for any weights l(t), u(t) of at least 0 with sum_t k(t) l(t) = 1,

    T >= sum_c min_t (l(t) p(t, c) + u(t) m(c)) - sum_t u(t) k(t) M(t)

The solver's duals are only a guess at good weights; the bound is computed from them in doubles, with the sum of weights made exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray
from costmodel.tolerances import LONG_SUM_ROUNDING
from strategies.placement.bounds import Bound, simple_bound
from strategies.placement.contraction import BlockGraph, contract_classes
from strategies.placement.free.exchange import Devices
from strategies.placement.problem import PlacementProblem
from strategies.solvers import LinearProgram, solve_relaxation

__all__ = ["Kind", "kind_graph", "kinds_of", "mixed_bound", "spread_bound"]

SPREAD_PROOF = "compute and memory divided evenly among the kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Devices that are alike, and what blocks cost one of them."""

    first: int  # device
    count: int
    is_cpu: bool
    time: FloatArray  # (blocks,)
    allowed: BoolArray
    capacity_bytes: float
    link_factor: float


def kinds_of(problem: PlacementProblem, graph: BlockGraph) -> tuple[Kind, ...]:
    """Kinds of accelerators in the order of the devices, then the CPUs where there are some."""
    devices = Devices.of(problem, graph)
    counts = [kind.count for kind in problem.types] or [problem.num_accelerators]
    counts += [problem.num_cpus] if problem.num_cpus else []
    found, first = [], 0
    for count in counts:
        time = devices.time(first)
        link = problem.type_of(first)
        found.append(
            Kind(
                first=first,
                count=count,
                is_cpu=devices.is_cpu(first),
                time=np.where(np.isfinite(time), time, 0.0),
                allowed=np.isfinite(time),
                capacity_bytes=devices.capacity(first),
                link_factor=1.0 if link is None else link.link_factor,
            )
        )
        first += count
    return tuple(found)


def kind_graph(graph: BlockGraph, kind: Kind) -> BlockGraph:
    """Times and transfers of a kind of accelerator."""
    return replace(
        graph,
        accelerator_time=graph.accelerator_time if kind.is_cpu else kind.time,
        hyperedge_cost=graph.hyperedge_cost * kind.link_factor,
    )


def mixed_bound(problem: PlacementProblem) -> Bound:
    """Best of the bounds that take no search; those of `simple_bound` hold for the best kinds."""
    simple = simple_bound(problem)
    if not np.isfinite(simple.value) or not problem.types:
        return simple
    graph = contract_classes(problem)
    value, _ = spread_bound(kinds_of(problem, graph), graph)
    return max(simple, Bound(value, SPREAD_PROOF), key=lambda bound: bound.value)


def spread_bound(kinds: tuple[Kind, ...], graph: BlockGraph) -> tuple[float, FloatArray]:
    """Bound of the linear program, and the price of each block that it gives; infinite where the blocks cannot be divided at all."""
    blocks, size = graph.num_blocks, graph.size_bytes
    variables = [(t, int(b)) for t, kind in enumerate(kinds) for b in np.flatnonzero(kind.allowed)]
    column = {pair: i for i, pair in enumerate(variables)}
    scale = max(float(sum(kind.time.sum() for kind in kinds)), 1e-300)
    room = max(float(size.sum()), 1e-300)
    entries = [(b, i, 1.0) for (_, b), i in column.items()]
    entries += [(blocks + t, i, float(kinds[t].time[b]) / scale) for (t, b), i in column.items()]
    entries += [(blocks + t, len(column), -float(kind.count)) for t, kind in enumerate(kinds)]
    limited = [t for t, kind in enumerate(kinds) if kind.count * kind.capacity_bytes < room]
    for row, t in enumerate(limited):
        entries += [(blocks + len(kinds) + row, i, float(size[b]) / room) for (s, b), i in column.items() if s == t]
    upper = [np.inf] * blocks + [0.0] * len(kinds)
    upper += [kinds[t].count * kinds[t].capacity_bytes / room for t in limited]
    row_of, column_of, value_of = zip(*entries, strict=True)
    result = solve_relaxation(
        LinearProgram(
            cost=np.append(np.zeros(len(column)), 1.0),
            lower=np.zeros(len(column) + 1),
            upper=np.full(len(column) + 1, np.inf),
            integer=np.zeros(len(column) + 1, dtype=np.bool_),
            row_lower=np.array([1.0] * blocks + [-np.inf] * (len(upper) - blocks)),
            row_upper=np.array(upper),
            entry_row=np.array(row_of, dtype=np.int64),
            entry_column=np.array(column_of, dtype=np.int64),
            entry_value=np.array(value_of, dtype=np.float64),
        )
    )
    if result is None:
        return 0.0, np.zeros(blocks)
    duals = -np.minimum(result.row_duals[blocks:], 0.0)
    time_weight = duals[: len(kinds)]
    counts = np.array([kind.count for kind in kinds], dtype=np.float64)
    total = float(counts @ time_weight)
    time_weight = time_weight / total if total > 0 else np.full(len(kinds), 1.0 / counts.sum())
    size_weight = np.zeros(len(kinds))
    size_weight[limited] = duals[len(kinds) :] * scale / room
    prices = np.full(blocks, np.inf)
    spent = 0.0
    for t, kind in enumerate(kinds):
        cost = time_weight[t] * kind.time + size_weight[t] * size
        prices = np.where(kind.allowed, np.minimum(prices, cost), prices)
        spent += size_weight[t] * kind.count * kind.capacity_bytes if size_weight[t] else 0.0
    bound = float(prices.sum()) - spent
    return max(0.0, bound - LONG_SUM_ROUNDING * (abs(spent) + float(prices.sum()))), prices

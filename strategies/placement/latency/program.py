"""All placements of few operators for latency, several subgraphs per accelerator included, as a constraint program.

Every operator is in one of the calls or on a CPU; calls and outputs have times (`evaluate` says which), and the last output is to be there
as early as possible. Times are whole ticks, rounded down: what the program proves holds, and placements are evaluated anew.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.placement.latency.evaluate import CPU, placement_of
from strategies.placement.problem import Placement, PlacementProblem
from strategies.solvers import constraint_model, solve_constraints

# Of the limit, or of an accelerator's memory: sums over few operators stay below 2^62, and what rounding takes below `EQUAL`.
_TICKS = 2**50


def search_all(
    problem: PlacementProblem, *, num_subgraphs: int, limit: float, effort: float, clock: Clock
) -> tuple[Placement | None, float]:
    """Search for the best placement with a latency below a limit.

    Parameters
    ----------
    problem : PlacementProblem
    num_subgraphs : int
        Most calls of an accelerator.
    limit : float
        More than 0.
    effort : float
        Give up after so much work, which is counted in about seconds.
    clock : Clock

    Returns
    -------
    placement : Placement or None
        The best one below the limit that was found.
    bound : float
        No latency is below it; the limit where the search has ended without a placement.

    Examples
    --------
    One accelerator with room for two of three operators in a row, in one call: the last runs on a CPU.

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=3.0, size_bytes=1.0) for i in range(3)]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=1, num_cpus=1, memory_bytes=2.0)
    >>> placement, bound = search_all(problem, num_subgraphs=1, limit=9.0, effort=9.0, clock=Clock())
    >>> placement.device.tolist(), round(bound, 6)
    ([0, 0, 1], 5.5)
    """
    model = constraint_model()
    most_calls = min(num_subgraphs, problem.num_nodes)
    count = min(problem.num_accelerators, problem.num_colors) * most_calls
    nodes, calls = range(problem.num_nodes), range(count)
    fast, slow, cost = (
        _ticks(times, limit) for times in (problem.accelerator_time, problem.cpu_time, problem.transfer_time)
    )
    size = _ticks(problem.size_bytes, problem.capacity_bytes)
    fits = problem.supported & (problem.size_bytes <= problem.capacity_bytes)
    is_in = [[model.new_bool_var("") for _ in range(count + 1)] for _ in nodes]  # the last one: on a CPU
    cut = [[model.new_bool_var("") for _ in calls] for _ in nodes]  # whether a call pays for an output
    most = int(_TICKS * (1 - EQUAL))
    begin, end, available = ([model.new_int_var(0, most, "") for _ in many] for many in (calls, calls, nodes))
    latest = model.new_int_var(0, most, "")
    first = np.unique(problem.color, return_index=True, return_inverse=True)
    alike = first[1][first[2]].tolist()
    for v in nodes:
        model.add_exactly_one(is_in[v])
        model.add(available[v] >= slow[v]).only_enforce_if(is_in[v][count])
        model.add(available[v] <= latest)
        for c in calls:
            model.add(is_in[v][c] <= int(fits[v]))
            model.add(available[v] >= end[c]).only_enforce_if(is_in[v][c])
    for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
        model.add(available[v] >= available[u] + slow[v]).only_enforce_if(is_in[v][count])
        for c in calls:
            model.add(cut[u][c] >= is_in[u][c] - is_in[v][c])
            model.add(cut[u][c] >= is_in[v][c] - is_in[u][c])
            model.add(begin[c] >= available[u]).only_enforce_if(is_in[v][c], ~is_in[u][c])
    for c in calls:
        model.add(end[c] >= begin[c] + sum(fast[v] * is_in[v][c] + cost[v] * cut[v][c] for v in nodes))
        if c % most_calls:
            model.add(begin[c] >= end[c - 1])
    for a in range(0, count, most_calls):
        on = [sum(is_in[v][a : a + most_calls]) for v in nodes]
        model.add(sum(size[v] * on[v] for v in nodes) <= _TICKS)
        for v in nodes:
            model.add(on[v] == on[alike[v]])
    model.minimize(latest)
    found = solve_constraints(model, list(chain(*is_in)), time_limit_s=clock.left_s, effort=effort)
    bound = min(found.bound / _TICKS, 1.0) * limit
    if found.values is None:
        return None, bound
    call = found.values.reshape(len(nodes), -1).argmax(axis=1)
    return placement_of(problem, np.where(call == count, CPU, call // most_calls), call % most_calls), bound


def _ticks(values: FloatArray, most: float) -> list[int]:
    ticks: list[int] = (np.minimum(values, 2 * most) / (most or 1.0) * _TICKS).astype(np.int64).tolist()
    return ticks

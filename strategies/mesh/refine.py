"""Uneven pipelines: for the degrees of a plan, how many blocks each chunk holds, and how many of them it recomputes.

A chunk's time depends on where it starts and ends, and on the fewest blocks it must recompute to fit (fewer is faster, and ranks do not share memory).
So layouts are cuts of a row of blocks, and dynamic programming over (blocks so far, chunk) gives the least bottleneck L*. With m micro-batches, C chunks, pp
ranks, T the time of a micro-batch through the network without full recomputation, a layout whose slowest chunk takes t per micro-batch needs at least

    gpipe                 T + (m - 1) t                          (a flow line)
    1f1b, m > C           max(m t, 2 T + (m - 1 - C) t)          (two paths, `costmodel.mesh.schedule`; e is the slowest stage, a = b = last)
    else, vpp = 1         m t
    interleaved           m max(t, T / pp)

These grow with t, so layouts are taken with slow chunks left out first: all layouts up to some bottleneck are judged, and when the
bound of the next slower one is no better than the best, the best is proven the best of all. Where the layouts are too many, single blocks are moved from chunk to chunk
while that helps, and the bound says how much better any layout could be.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshPlan
from strategies.mesh.compositions import count_cuts, cuts, least_bottleneck
from strategies.mesh.settings import MeshCandidate, MeshOutcome, MeshSettings
from strategies.mesh.stage_tables import StageTables

__all__ = ["Refinement", "refine", "refine_top", "refinement"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Layouts judged at a time, and at most where proof is sought; about 0.1 ms each.
_PIECE = 256
_MOST_LAYOUTS = 20_000
# Rounding of sums in another order, relative.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The best layout found, and what is proven about the others.

    Attributes
    ----------
    plan : MeshPlan or None
        Best plan of the degrees, the uniform layout included; None if no layout fits, or none was found in time.
    step_time_s : float
        Infinite without a plan.
    bound_s : float
        No layout that fits takes less; equals ``step_time_s`` when proven best, and is infinite when proven that none fits.
    judged : int
        Layouts that the cost model scored.
    """

    plan: MeshPlan | None
    step_time_s: float
    bound_s: float
    judged: int

    @property
    def is_proven(self) -> bool:
        """Whether no layout is better."""
        return self.bound_s >= self.step_time_s


def refine(model: MeshModel, plan: MeshPlan, capacity_bytes: float, wall_s: float) -> MeshPlan | None:
    """Find a better layout for the degrees of a plan.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
    capacity_bytes : float
        Memory of a device.
    wall_s : float
        Time for the search.

    Returns
    -------
    MeshPlan or None
        A plan that fits and is faster than the given one (or fits where that does not); None if none was found.
    """
    found = refinement(model, plan, capacity_bytes, wall_s)
    given = model.evaluate_plans([plan])
    fits = bool(given.memory_bytes[0] <= capacity_bytes)
    before = float(given.step_time_s[0]) if fits else float("inf")
    return found.plan if found.step_time_s < before else None


def refinement(
    model: MeshModel,
    plan: MeshPlan,
    capacity_bytes: float,
    wall_s: float,
    *,
    recompute: Sequence[str] = RECOMPUTE,
    most_layouts: int = _MOST_LAYOUTS,
) -> Refinement:
    """Find the best layout for the degrees of a plan, with a bound.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
    capacity_bytes, wall_s : float
    recompute : sequence of str
        Kinds of recomputation to choose from: under "full" every chunk has its own number of blocks.
    most_layouts : int
        Layouts judged for a proof, per kind of recomputation; more are searched from block to block.

    Returns
    -------
    Refinement
    """
    deadline = time.monotonic() + wall_s
    kinds = [kind for kind in RECOMPUTE if kind in recompute and (model.workload.training or kind == "none")]
    searches = [
        _Search(model=model, tables=StageTables.of(model, plan, kind, capacity_bytes), deadline=deadline) for kind in kinds
    ]
    best = _Best()
    # The kind that promises most goes first: its plan may settle the others.
    searches.sort(key=lambda search: search.least_s)
    bounds = [search.run(best, most_layouts) for search in searches]
    bound = min(bounds, default=float("inf"))
    return Refinement(
        plan=best.plan, step_time_s=best.step_time_s, bound_s=min(bound, best.step_time_s), judged=best.judged
    )


def refine_top(
    model: MeshModel, outcome: MeshOutcome, settings: MeshSettings, wall_s: float = 0.3, most_plans: int = 5
) -> list[MeshCandidate]:
    """Refined versions of the best plans of a search.

    Parameters
    ----------
    model : MeshModel
    outcome : MeshOutcome
        Of the uniform space.
    settings : MeshSettings
    wall_s : float
        For all of them together.
    most_plans : int
        How many of the best plans are refined.

    Returns
    -------
    list of MeshCandidate
        Best first, only those that are faster than the plans they come from; they have ``stage_blocks``.
    """
    deadline = time.monotonic() + wall_s
    pipelines = [c for c in outcome.candidates[:most_plans] if c.plan.pp > 1]
    refined: list[MeshCandidate] = []
    for n, candidate in enumerate(pipelines):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        plan = candidate.plan
        found = refinement(
            model, plan, settings.capacity_bytes, left / (len(pipelines) - n), recompute=_allowed(settings, plan)
        )
        if found.plan is not None and found.step_time_s < candidate.step_time_s * (1.0 - _ROUNDING):
            # Every objective is proportional to the step at a given number of workers.
            score = candidate.score * found.step_time_s / candidate.step_time_s
            refined.append(MeshCandidate(plan=found.plan, score=score, step_time_s=found.step_time_s))
    return sorted(refined, key=lambda c: (c.score, c.plan))


def _allowed(settings: MeshSettings, plan: MeshPlan) -> Sequence[str]:
    """Kinds of recomputation that the user leaves open; a fixed number of blocks is no business of chunks."""
    if "recompute_blocks" in settings.restriction.degrees:
        return [plan.recompute] if plan.recompute != "full" else []
    return settings.restriction.names.get("recompute", RECOMPUTE)


@dataclass(slots=True, kw_only=True)
class _Best:
    """The best plan so far."""

    plan: MeshPlan | None = None
    step_time_s: float = float("inf")
    judged: int = 0

    def judge(self, model: MeshModel, plans: Sequence[MeshPlan], capacity_bytes: float) -> FloatArray:
        """Score plans and remember the best that fits; infinite where one does not fit."""
        if not plans:
            return np.zeros(0)
        costs = model.evaluate_plans(plans)
        self.judged += len(plans)
        times = np.where(costs.memory_bytes <= capacity_bytes, costs.step_time_s, np.inf)
        n = int(np.argmin(times))
        if times[n] < self.step_time_s:
            self.plan, self.step_time_s = plans[n], float(times[n])
        return times


@dataclass(slots=True, kw_only=True)
class _Search:
    """Layouts under one kind of recomputation."""

    model: MeshModel
    tables: StageTables
    deadline: float
    loads: FloatArray = field(init=False)
    bottleneck_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.loads = self.tables.loads()
        self.bottleneck_s = least_bottleneck(self.loads)

    @property
    def least_s(self) -> float:
        """No layout takes less."""
        return self.bound_s(self.bottleneck_s)

    def bound_s(self, slowest: float) -> float:
        """No layout takes less whose slowest chunk takes so long per micro-batch."""
        if not np.isfinite(slowest):
            return float("inf")
        plan, m, total = self.tables.plan, self.tables.plan.num_micro_batches, self.tables.total_s
        bound = m * slowest
        if plan.schedule == "gpipe":
            bound = total + (m - 1) * slowest
        elif plan.schedule == "1f1b" and m > plan.pp:
            bound = max(bound, 2.0 * total + (m - 1 - plan.pp) * slowest)
        else:
            bound = max(bound, m * total / plan.pp)
        return bound * (1.0 - _ROUNDING)

    def run(self, best: _Best, most_layouts: int) -> float:
        """Search; returns a bound on every layout that was not judged, and on those judged."""
        if self.least_s >= best.step_time_s or not np.isfinite(self.least_s):
            return self.least_s
        self._judge(best, self._plans(self._uniform()))
        levels = np.unique(self.loads[(self.loads >= self.bottleneck_s) & np.isfinite(self.loads)])
        proven = self.bottleneck_s  # layouts with slower chunks than all judged have at least this bottleneck
        position = 0
        while position < len(levels) and self.bound_s(float(levels[position])) < best.step_time_s:
            # As many levels at once as there are layouts to be afforded; twice as many as before, or those that matter.
            position = self._next(levels, position, most_layouts, best)
            if position < 0 or not self._enumerate(best, float(levels[position])):
                self._climb(best)
                return self.bound_s(proven)
            position += 1
            proven = float(levels[position]) if position < len(levels) else float("inf")
        return min(self.bound_s(proven), best.step_time_s)

    def _next(self, levels: FloatArray, position: int, most_layouts: int, best: _Best) -> int:
        """Slowest level whose layouts can all be judged, not beyond the first that cannot matter; -1 if there is none."""
        low, high = position, position
        for n in range(position, len(levels)):
            if self.bound_s(float(levels[n])) >= best.step_time_s:
                break
            high = n
        if count_cuts(self.loads, float(levels[low]))[0, 0] > most_layouts:
            return -1
        if self.judgeable(float(levels[high]), most_layouts):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.judgeable(float(levels[middle]), most_layouts) else (low, middle)
        return low

    def judgeable(self, limit: float, most_layouts: int) -> bool:
        """Whether all layouts without chunks slower than a limit can be judged."""
        return bool(count_cuts(self.loads, limit)[0, 0] <= most_layouts)

    def _enumerate(self, best: _Best, limit: float) -> bool:
        """Judge all layouts within a limit; False if time ran out."""
        for way in cuts(self.loads, limit, piece=_PIECE):
            for plans in _grouped(self._plans_of(way)):
                if time.monotonic() > self.deadline:
                    return False
                self._judge(best, plans)
        return True

    def _climb(self, best: _Best) -> None:
        """Move single blocks between chunks while that helps, from the layout at hand and from one with the least bottleneck."""
        starts = [self._uniform(), self._quickest()]
        if best.plan is not None and best.plan.stage_blocks:
            starts.append(np.cumsum([0, *best.plan.stage_blocks]))
        for start in starts:
            here, value = start, self._least(best, start[None])[0]
            while time.monotonic() < self.deadline:
                near = _moves(here)
                legal = np.array([self._possible(way) for way in near], dtype=np.bool_)
                near = near[legal]
                if not len(near):
                    break
                values = self._least(best, near)
                n = int(np.argmin(values))
                if not values[n] < value:
                    break
                here, value = near[n], values[n]

    def _possible(self, way: IntArray) -> bool:
        return bool(np.all(np.isfinite(self.loads[np.arange(len(way) - 1), way[:-1], way[1:]])))

    def _quickest(self) -> IntArray:
        """A layout with the least bottleneck."""
        return next(cuts(self.loads, self.bottleneck_s, piece=1))[0]

    def _least(self, best: _Best, ways: IntArray) -> FloatArray:
        """Step of layouts, each at its best recomputation; infinite for those that time did not allow."""
        values = np.full(len(ways), np.inf)
        for n, way in enumerate(ways):
            if n and time.monotonic() > self.deadline:
                break
            plans = list(itertools.islice(self._plans_of(way[None]), _PIECE))
            times = self._judge(best, plans)
            values[n] = times.min(initial=np.inf)
        return values

    def _judge(self, best: _Best, plans: Sequence[MeshPlan]) -> FloatArray:
        return best.judge(self.model, plans, self.tables.capacity_bytes)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def _uniform(self) -> IntArray:
        return np.cumsum([0, *self.model.blocks_of(self.tables.chunks)])

    def _plans(self, way: IntArray) -> list[MeshPlan]:
        return list(itertools.islice(self._plans_of(way[None]), _PIECE))

    def _plans_of(self, ways: IntArray) -> Iterator[MeshPlan]:
        """Plans of layouts (n, C + 1): every way to recompute as few blocks as fit."""
        plan, chunks = self.tables.plan, self.tables.chunks
        pp, vpp = plan.pp, plan.vpp
        n = len(ways)
        chunk = np.tile(np.arange(chunks), n)
        units = self.tables.units(chunk, ways[:, :-1].ravel(), ways[:, 1:].ravel())
        on_rank = units.reshape(n, vpp, pp, -1).sum(axis=1).reshape(n * pp, -1)
        least = self.tables.least_recomputed(np.tile(np.arange(pp), n), on_rank).reshape(n, pp)
        for way, again in zip(ways, least, strict=True):
            if np.any(again < 0):
                continue
            blocks = tuple(np.diff(way).tolist())
            if plan.recompute != "full":
                yield replace(plan, stage_blocks=blocks, recompute_blocks=0)
                continue
            if not again.any():
                continue  # without recomputation is quicker, and takes no more memory
            per_rank = [_shares(blocks[rank::pp], int(again[rank])) for rank in range(pp)]
            for picked in itertools.product(*per_rank):
                recompute = tuple(picked[c % pp][c // pp] for c in range(chunks))
                yield replace(plan, stage_blocks=blocks, stage_recompute=recompute, recompute_blocks=max(recompute))


def _shares(blocks: tuple[int, ...], total: int) -> list[tuple[int, ...]]:
    """Ways to recompute so many blocks in the chunks of a rank.

    >>> _shares((2, 1), 2)
    [(1, 1), (2, 0)]
    """
    if len(blocks) == 1:
        return [(total,)]
    return [
        (first, *rest)
        for first in range(max(total - sum(blocks[1:]), 0), min(total, blocks[0]) + 1)
        for rest in _shares(blocks[1:], total - first)
    ]


def _moves(way: IntArray) -> IntArray:
    """Layouts that differ by one block moved from a chunk to another; what lies between moves along.

    >>> (np.diff(_moves(np.array([0, 2, 3, 5])), axis=1)).tolist()
    [[1, 2, 2], [1, 1, 3], [3, 1, 1], [2, 2, 1]]
    """
    blocks = np.diff(way)
    found = []
    for source, target in itertools.permutations(range(len(blocks)), 2):
        if blocks[source] > 1:
            moved = blocks.copy()
            moved[source] -= 1
            moved[target] += 1
            found.append(np.concatenate([[0], np.cumsum(moved)]))
    return np.array(found, dtype=np.int64).reshape(-1, len(way))


def _grouped(plans: Iterator[MeshPlan]) -> Iterator[list[MeshPlan]]:
    while piece := list(itertools.islice(plans, _PIECE)):
        yield piece

"""All steps between down-sets of a graph, and bounds on the latency from flows over them.

Steps
-----
Order the subgraphs and the CPU atoms of a solution so that each follows what it waits for. What has been run after each of them is a
down-set, so a solution is a path of *steps* from nothing to everything. A step from J to I takes time (the load of I - J, or the
CPU time of one atom) and an accelerator's call, or none.

An *arc* is a precedence, or leads from the beginning to an atom without predecessors, or from one without successors to the end. Of the
arcs that cross J (begin in it and end outside), a step to I takes some in; the others *bypass* it. Steps from one J that let
the same arcs by are one *group*: their start depends on the same outputs.

Steps across chokes
-------------------
A *choke* is a down-set that every other one contains or is contained in, with one open output at most. Let c be the first choke
after J whose open output is not in J, and J without an output that nobody reads. From J to any I that contains c no arc bypasses and
no hyperedge is split by both, so

    load(I - J) = (F(J) - T(J)) + (F(I) + T(I))

with T the compute and F the cost of the hyperedges that a down-set splits; the flow that the step takes in is 1. The best I for J
is thus the least of (F(I) + T(I) + rest) among those after c of size up to size(J) + memory: a running minimum over sizes. Only the steps
that survive a limit are ever made one by one.

Flows
-----
Every path through the graph is a bound, and so is every mixture of paths. A path from the beginning to the end is on its way for at
most the latency, and it spends the whole time of every step that takes it in (a subgraph is convex, so a path enters it once). Let a
flow of 1 from the beginning to the end mix paths. Then

    latency >= sum over steps of time(step) * (flow that enters the step)

for every solution, and the least right side over all solutions is a bound: a shortest path in the graph of down-sets, with one layer
per accelerator's call. The flow that a step from J takes in is 1 less what bypasses it, because all of the flow crosses J.

The best flow is the mixed strategy of one player, the mixture of solutions that of another, in a game of value max over flows of
min over solutions; both are found with a linear program that grows by one solution at a time (Kelley's cutting planes), each
evaluated between the best flow so far and the program's, because the program's own jump about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.limits import Clock
from strategies.placement.chain import IdealFamily, holding, sums
from strategies.placement.contraction import BlockGraph
from strategies.solvers import LinearProgram, solve_relaxation

# There are tens of millions of steps.
SmallIntArray = NDArray[np.int32]
# Arcs that are packed into one number at a time.
_PACK = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Arcs:
    """Precedences of a graph, then one arc from the beginning to each first atom, then one from each last atom to the end."""

    source: IntArray  # (arcs,) atom; the number of atoms for the beginning
    target: IntArray  # the number of atoms for the end
    num_atoms: int

    @property
    def size(self) -> int:
        """Arcs."""
        return len(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps ordered by where they begin, and in groups; a group's arcs are rows of a sparse matrix."""

    inner: SmallIntArray  # (steps,) down-set where it begins
    outer: SmallIntArray
    time: FloatArray
    on_cpu: BoolArray
    group: SmallIntArray  # (steps,)
    first: IntArray  # (ideals + 1,) steps of each down-set
    bypass_start: IntArray  # (groups + 1,) into bypass_arc
    bypass_arc: IntArray
    feed_start: IntArray  # (groups + 1,) into feed_arc
    feed_arc: IntArray

    def __len__(self) -> int:
        """Steps."""
        return len(self.inner)

    def with_far(
        self, inner: IntArray, outer: IntArray, time: FloatArray, crossing: Callable[[int], IntArray]
    ) -> Steps:
        """Add accelerator steps that no arc bypasses; ``crossing`` lists the arcs that cross a down-set."""
        begins, number = np.unique(inner, return_inverse=True)
        base = len(self.feed_start) - 1
        feeds = [crossing(int(j)) for j in begins]
        inner_all = np.concatenate((self.inner, inner.astype(np.int32)))
        group = np.concatenate((self.group, (base + number).astype(np.int32)))
        order = np.lexsort((group, inner_all))
        inner_all = inner_all[order]
        count = len(self.first) - 1
        return Steps(
            inner=inner_all,
            outer=np.concatenate((self.outer, outer.astype(np.int32)))[order],
            time=np.concatenate((self.time, time))[order],
            on_cpu=np.concatenate((self.on_cpu, np.zeros(len(inner), dtype=np.bool_)))[order],
            group=group[order],
            first=np.searchsorted(inner_all, np.arange(count + 1)),
            bypass_start=np.concatenate((self.bypass_start, np.full(len(begins), self.bypass_start[-1]))),
            bypass_arc=self.bypass_arc,
            feed_start=np.concatenate(
                (self.feed_start, self.feed_start[-1] + np.cumsum([len(f) for f in feeds]))
            ).astype(np.int64),
            feed_arc=np.concatenate([self.feed_arc, *feeds]),
        )

    def moves(self, path: IntArray) -> list[Move]:
        """Steps by number, as moves."""
        return [
            Move(
                inner=int(self.inner[i]),
                outer=int(self.outer[i]),
                time=float(self.time[i]),
                on_cpu=bool(self.on_cpu[i]),
                fed_arcs=self.feed_arc[self.feed_start[self.group[i]] : self.feed_start[self.group[i] + 1]],
            )
            for i in path.tolist()
        ]

    def bypassed(self, flow: FloatArray) -> FloatArray:
        """Flow on the arcs that each group lets by."""
        total = np.concatenate(([0.0], np.cumsum(flow[self.bypass_arc])))
        return np.asarray(total[self.bypass_start[1:]] - total[self.bypass_start[:-1]])

    def keep(self, kept: BoolArray) -> Steps:
        """Leave steps out."""
        inner = self.inner[kept]
        count = len(self.first) - 1
        return Steps(
            inner=inner,
            outer=self.outer[kept],
            time=self.time[kept],
            on_cpu=self.on_cpu[kept],
            group=self.group[kept],
            first=np.searchsorted(inner, np.arange(count + 1)),
            bypass_start=self.bypass_start,
            bypass_arc=self.bypass_arc,
            feed_start=self.feed_start,
            feed_arc=self.feed_arc,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step of a solution."""

    inner: int
    outer: int
    time: float
    on_cpu: bool
    fed_arcs: IntArray


def membership(graph: BlockGraph, family: IdealFamily) -> BoolArray:
    """Whether each atom (row; one more, of zeros, for the end) is in each down-set (column)."""
    has = np.zeros((graph.num_blocks + 1, len(family)), dtype=np.bool_)
    for b in range(graph.num_blocks):
        has[b] = holding(family.bits, b)
    return has


def open_outputs(graph: BlockGraph, has: BoolArray) -> BoolArray:
    """Whether each atom's output is there after each down-set, of `membership`, and has a reader outside."""
    is_open = np.zeros_like(has)
    for b in range(graph.num_blocks):
        readers = graph.edge_target[graph.edge_source == b]
        if len(readers):
            is_open[b] = has[b] & ~has[readers].all(axis=0)
    return is_open


def crossing_arcs(arcs: Arcs, has: BoolArray, ideal: int) -> IntArray:
    """Arcs that begin in a down-set, or at the beginning, and end outside."""
    inside = has[:, ideal]
    return np.flatnonzero((inside[arcs.source] | (arcs.source == arcs.num_atoms)) & ~inside[arcs.target])


def arcs_of(graph: BlockGraph) -> Arcs:
    """List the arcs.

    Examples
    --------
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
    >>> from strategies.placement.contraction import contract
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=1.0) for i in range(2)]
    >>> problem = PlacementProblem.build(nodes, [EdgeSpec(0, 1, 0.5)], num_accelerators=1, num_cpus=0, memory_bytes=1.0)
    >>> arcs = arcs_of(contract(problem))
    >>> list(zip(arcs.source.tolist(), arcs.target.tolist()))
    [(0, 1), (2, 0), (1, 2)]
    """
    count = graph.num_blocks
    firsts = np.flatnonzero(np.bincount(graph.edge_target, minlength=count) == 0)
    lasts = np.flatnonzero(np.bincount(graph.edge_source, minlength=count) == 0)
    return Arcs(
        source=np.concatenate((graph.edge_source, np.full(len(firsts), count), lasts)).astype(np.int64),
        target=np.concatenate((graph.edge_target, firsts, np.full(len(lasts), count))).astype(np.int64),
        num_atoms=count,
    )


def build_steps(
    graph: BlockGraph,
    family: IdealFamily,
    arcs: Arcs,
    *,
    capacity_bytes: float,
    most_time: float,
    most_steps: int,
    clock: Clock,
    accelerators: bool = True,
    together: Sequence[IntArray] = (),
    until: IntArray | None = None,
) -> Steps | None:
    """Make all steps within a memory and a time; None where there are too many.

    Parameters
    ----------
    graph : BlockGraph
    family : IdealFamily
        Its down-sets.
    arcs : Arcs
    capacity_bytes : float
        Memory of an accelerator.
    most_time : float
        Longer steps are of no use.
    most_steps : int
    clock : Clock
    accelerators : bool
        Whether there are any.
    together : sequence of int arrays
        Atoms that a subgraph holds all or none of.
    until : int array (ideals,), optional
        Leave out accelerator steps from each down-set to this one and those after it (see `far`).

    Raises
    ------
    OutOfTimeError
    """
    builder = _Builder(graph, family, arcs, together)
    parts: list[tuple[IntArray, FloatArray, BoolArray, IntArray]] = []
    counts = []
    total = 0
    for inner in range(len(family)):
        if inner % 64 == 0:
            clock.check()
        end = len(family) if until is None else int(until[inner])
        outer, time, on_cpu = builder.from_ideal(inner, end if accelerators else 0, capacity_bytes, most_time)
        group = builder.groups(inner, outer)
        order = np.argsort(group, kind="stable")
        parts.append((outer[order].astype(np.int32), time[order], on_cpu[order], group[order].astype(np.int32)))
        counts.append(len(outer))
        total += len(outer)
        if total > most_steps:
            return None
    return Steps(
        inner=np.repeat(np.arange(len(family), dtype=np.int32), counts),
        outer=np.concatenate([part[0] for part in parts]),
        time=np.concatenate([part[1] for part in parts]),
        on_cpu=np.concatenate([part[2] for part in parts]),
        group=np.concatenate([part[3] for part in parts]),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        bypass_start=_starts(builder.bypass),
        bypass_arc=_flat(builder.bypass),
        feed_start=_starts(builder.feed),
        feed_arc=_flat(builder.feed),
    )


class _Builder:
    """Tables that are the same for all down-sets."""

    def __init__(self, graph: BlockGraph, family: IdealFamily, arcs: Arcs, together: Sequence[IntArray]) -> None:
        self._graph, self._family, self._arcs = graph, family, arcs
        count = graph.num_blocks
        block = np.arange(count)
        bit = np.uint64(1) << (block % 64).astype(np.uint64)
        self._has = membership(graph, family)
        self._before: list[IntArray] = [graph.edge_source[graph.edge_target == b] for b in range(count)]
        self._number = {family.bits[i].tobytes(): i for i in range(len(family))}
        self._bit = bit
        self._unsupported = sums(family.bits, ~graph.supported[None])[0]
        self._together = [(self._has[atoms].sum(axis=0), len(atoms)) for atoms in together]
        self.bypass: list[IntArray] = []
        self.feed: list[IntArray] = []

    def from_ideal(
        self, inner: int, end: int, capacity_bytes: float, most_time: float
    ) -> tuple[IntArray, FloatArray, BoolArray]:
        """Where steps from a down-set lead, their times, and whether they are on a CPU."""
        outer, load = self._stages(inner, end, capacity_bytes, most_time)
        ready, target = self._single(inner)
        time = np.concatenate((load, self._graph.cpu_time[ready]))
        on_cpu = np.arange(len(time)) >= len(load)
        short = time <= most_time
        return np.concatenate((outer, target))[short], time[short], on_cpu[short]

    def _stages(self, inner: int, end: int, capacity_bytes: float, most_time: float) -> tuple[IntArray, FloatArray]:
        family = self._family
        later = slice(inner + 1, max(end, inner + 1))
        outer = np.arange(later.start, later.stop)
        fits = family.size_bytes[later] - family.size_bytes[inner] <= capacity_bytes
        fits &= self._unsupported[later] == self._unsupported[inner]
        fits &= family.accelerator_time[later] - family.accelerator_time[inner] <= most_time
        outer = outer[fits]
        for w in range(family.bits.shape[1]):
            mask = family.bits[inner, w]
            if mask and len(outer):
                outer = outer[(family.bits[outer, w] & mask) == mask]
        for held, size in self._together:
            taken = held[outer] - held[inner]
            outer = outer[(taken == 0) | (taken == size)]
        moved = family.communication(np.full(len(outer), inner), outer)
        load = family.accelerator_time[outer] - family.accelerator_time[inner] + moved
        short = load <= most_time
        return outer[short], np.maximum(load[short], 0.0)

    def _single(self, inner: int) -> tuple[IntArray, IntArray]:
        """Atoms that can be run next, and the down-sets with them."""
        has = self._has[:, inner]
        ready = [b for b, before in enumerate(self._before) if not has[b] and has[before].all()]
        target = []
        for b in ready:
            row = self._family.bits[inner].copy()
            row[b // 64] |= self._bit[b]
            target.append(self._number[row.tobytes()])
        return np.array(ready, dtype=np.int64), np.array(target, dtype=np.int64)

    def groups(self, inner: int, outer: IntArray) -> IntArray:
        """Group of each step, numbered over all down-sets."""
        arcs = self._arcs
        crossing = crossing_arcs(arcs, self._has, inner)
        code = np.zeros(len(outer), dtype=np.int64)
        for i in range(0, len(crossing), _PACK):
            for arc in crossing[i : i + _PACK].tolist():
                code = 2 * code + ~self._has[arcs.target[arc], outer]
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        first = np.unique(code, return_index=True)[1]
        base = len(self.bypass)
        for i in first.tolist():
            by = ~self._has[arcs.target[crossing], outer[i]]
            self.bypass.append(crossing[by])
            self.feed.append(crossing[~by])
        return np.asarray(base + code)


_NONE: IntArray = np.zeros(0, dtype=np.int64)


def _starts(lists: list[IntArray]) -> IntArray:
    return np.concatenate(([0], np.cumsum([len(entry) for entry in lists]))).astype(np.int64)


def _flat(lists: list[IntArray]) -> IntArray:
    return np.concatenate([_NONE, *lists])


@dataclass(frozen=True, slots=True, kw_only=True)
class FarSteps:
    """Down-sets by the choke from which on steps are far."""

    until: IntArray  # (ideals,) number of that choke; the number of down-sets where there is none
    leaving: FloatArray  # (ideals,) F - T
    entering: FloatArray  # F + T
    size_bytes: FloatArray
    capacity_bytes: float

    def groups(self) -> dict[int, IntArray]:
        """Down-sets of each choke."""
        return {int(c): np.flatnonzero(self.until == c) for c in np.unique(self.until) if c < len(self.until)}

    def after(self, choke: int, members: IntArray, least: FloatArray) -> FloatArray:
        """Least rest of the members by a far step, given that of the choke and all after it: (members, calls + 1)."""
        behind = np.arange(choke, len(self.until))
        order = behind[np.argsort(self.size_bytes[behind], kind="stable")]
        best = np.minimum.accumulate(self.entering[order, None] + least[order], axis=0)
        last = np.searchsorted(self.size_bytes[order], self.size_bytes[members] + self.capacity_bytes, side="right") - 1
        result = np.full((len(members), least.shape[1]), np.inf)
        reached = last >= 0
        result[reached, 1:] = self.leaving[members[reached], None] + best[last[reached], :-1]
        return result

    def before(self, choke: int, members: IntArray, least: FloatArray) -> FloatArray:
        """Least time to the choke and all after it by a far step from a member: (ideals from the choke on, calls + 1)."""
        order = members[np.argsort(self.size_bytes[members], kind="stable")]
        best = np.minimum.accumulate((self.leaving[order, None] + least[order])[::-1], axis=0)[::-1]
        behind = np.arange(choke, len(self.until))
        first = np.searchsorted(self.size_bytes[order], self.size_bytes[behind] - self.capacity_bytes, side="left")
        result = np.full((len(behind), least.shape[1]), np.inf)
        reached = first < len(order)
        result[reached, 1:] = self.entering[behind[reached], None] + best[first[reached], :-1]
        return result

    def best_from(self, ideal: int, least: FloatArray) -> tuple[int, float, float]:
        """Far step from a down-set with the least rest, as (outer, value, load), given the rests after it."""
        start = int(self.until[ideal])
        fits = self.size_bytes[start:] - self.size_bytes[ideal] <= self.capacity_bytes
        value = np.where(fits, self.entering[start:] + least[start:], np.inf)
        if not len(value) or not np.isfinite(value.min()):
            return ideal, float("inf"), 0.0
        outer = start + int(np.argmin(value))
        load = float(self.leaving[ideal] + self.entering[outer])
        return outer, load + float(least[outer]), load

    def below(
        self, before: FloatArray, after: FloatArray, limit: float, most: int, clock: Clock
    ) -> tuple[IntArray, IntArray] | None:
        """Far steps with which the whole is below a limit, as (inner, outer); None where there are too many.

        Parameters
        ----------
        before, after : float arrays (ideals, calls + 1)
            Least priced times with at most so many calls, before and after each down-set.
        limit : float
        most : int
        clock : Clock
        """
        inner: list[IntArray] = []
        outer: list[IntArray] = []
        total = 0
        # With j calls before the step and the others but one after it.
        rest = after[:, ::-1][:, 1:]
        live_ends = np.flatnonzero(np.min(before + after[:, ::-1], axis=1) < limit)
        for choke, members in self.groups().items():
            ends = live_ends[live_ends >= choke]
            onward = self.entering[ends, None] + rest[ends]
            if not len(ends):
                continue
            least = onward.min(axis=0)
            for j in members.tolist():
                head = before[j, :-1] + self.leaving[j]
                if np.min(head + least) >= limit:
                    continue
                clock.check()
                good = (head + onward).min(axis=1) < limit
                good &= self.size_bytes[ends] - self.size_bytes[j] <= self.capacity_bytes
                found = ends[good]
                inner.append(np.full(len(found), j))
                outer.append(found)
                total += len(found)
                if total > most:
                    return None
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *inner]), np.concatenate([none, *outer])


def far_steps(graph: BlockGraph, family: IdealFamily, capacity_bytes: float) -> FarSteps | None:
    """Find the chokes; None where far steps cannot be distinguished: an atom is not supported, or there is no choke."""
    if not graph.supported.all():
        return None
    count = graph.num_blocks
    has = membership(graph, family)[:count]
    is_open = open_outputs(graph, has)
    chokes = [i for i in np.flatnonzero(is_open.sum(axis=0) <= 1).tolist() if _is_comparable(family, i)]
    # An output that nobody reads bypasses every step after it, on its way to the end.
    lasts = np.bincount(graph.edge_source, minlength=count) == 0
    has_last = has[lasts].any(axis=0)
    until = np.full(len(family), len(family), dtype=np.int64)
    for c in reversed(chokes):
        source = np.flatnonzero(is_open[:, c])
        clean = np.ones(c, dtype=np.bool_) if not len(source) else ~has[source[0], :c]
        until[:c][clean & ~has_last[:c]] = c
    return FarSteps(
        until=until,
        leaving=family.split_cost - family.accelerator_time,
        entering=family.split_cost + family.accelerator_time,
        size_bytes=family.size_bytes,
        capacity_bytes=capacity_bytes,
    )


def _is_comparable(family: IdealFamily, ideal: int) -> bool:
    """Whether every down-set is within this one or holds it."""
    row = family.bits[ideal]
    before = not np.any(family.bits[:ideal] & ~row)
    return before and not np.any(row & ~family.bits[ideal + 1 :])


# Of the program's flow in the next one that is tried: at first, and at least.
_SHARE = 0.3
_LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Least priced time from each down-set to the end, for every number of calls that may be used."""

    least: FloatArray  # (ideals, calls + 1)
    price: FloatArray  # (steps,) time of each step times the flow that it takes in

    def keep(self, kept: BoolArray) -> Reach:
        """Leave out what was found not to matter below some limit; bounds below it stay."""
        return Reach(least=self.least, price=self.price[kept])

    @property
    def bound(self) -> float:
        """Of the whole problem."""
        return float(self.least[0, -1])


def least_after(steps: Steps, flow: FloatArray, num_calls: int, far: FarSteps | None = None) -> Reach:
    """Price all steps with a flow and find the shortest ways to the end.

    Parameters
    ----------
    steps : Steps
    flow : float array (arcs,)
        A flow of 1.
    num_calls : int
        Of accelerators, all subgraphs together.
    far : FarSteps, optional
        More steps, of price and time alike.
    """
    price = _prices(steps, flow)
    least = np.full((len(steps.first) - 1, num_calls + 1), np.inf)
    least[-1] = 0.0
    first = steps.first.tolist()
    groups = {} if far is None else far.groups()
    for ideal in range(len(least) - 2, -1, -1):
        if far is not None and ideal + 1 in groups:
            members = groups[ideal + 1]
            least[members] = far.after(ideal + 1, members, least)
        here = slice(first[ideal], first[ideal + 1])
        if here.start == here.stop:
            continue
        after = least[steps.outer[here]]
        shifted = np.where(steps.on_cpu[here][:, None], after, _one_less(after))
        least[ideal] = np.minimum(least[ideal], (price[here][:, None] + shifted).min(axis=0))
    return Reach(least=least, price=price)


def least_before(steps: Steps, reach: Reach, far: FarSteps | None = None) -> FloatArray:
    """Least priced time from the beginning to each down-set, for every number of calls that may be used before."""
    least = np.full_like(reach.least, np.inf)
    least[0] = 0.0
    order = np.argsort(steps.outer, kind="stable")
    first = np.searchsorted(steps.outer[order], np.arange(len(least) + 1)).tolist()
    groups = {} if far is None else far.groups()
    for ideal in range(1, len(least)):
        if far is not None and ideal in groups:
            np.minimum(least[ideal:], far.before(ideal, groups[ideal], least), out=least[ideal:])
        here = order[first[ideal] : first[ideal + 1]]
        if not len(here):
            continue
        before = least[steps.inner[here]]
        shifted = np.where(steps.on_cpu[here][:, None], before, _one_less(before))
        least[ideal] = np.minimum(least[ideal], (reach.price[here][:, None] + shifted).min(axis=0))
    return least


def survivors(steps: Steps, reach: Reach, limit: float, before: FloatArray | None = None) -> BoolArray:
    """Steps that solutions below a limit may take: the bound with the step forced is below it."""
    before = least_before(steps, reach) if before is None else before
    after = reach.least
    calls = after.shape[1] - 1
    best = np.full(len(steps), np.inf)
    for used in range(calls + 1):
        head = before[steps.inner, used]
        left = calls - used
        tail = after[steps.outer, left]
        called = after[steps.outer, left - 1] if left > 0 else np.inf
        tail = np.where(steps.on_cpu, tail, called)
        np.minimum(best, head + tail, out=best)
    return best + reach.price < limit


def _one_less(least: FloatArray) -> FloatArray:
    """Shift by one call; with none left there is no way."""
    shifted = np.empty_like(least)
    shifted[:, 0] = np.inf
    shifted[:, 1:] = least[:, :-1]
    return shifted


def _prices(steps: Steps, flow: FloatArray) -> FloatArray:
    taken = np.maximum(1.0 - steps.bypassed(flow), 0.0)
    return steps.time * taken[steps.group]


class Flows:
    """Searches the flow with the best bound, one shortest path at a time.

    Parameters
    ----------
    arcs : Arcs
    atom_time : float array (atoms,)
        What an atom takes at least wherever it is; its longest path is the first flow.
    num_calls : int
    flow : float array (arcs,), optional
        Begin with this one instead.
    """

    def __init__(self, arcs: Arcs, atom_time: FloatArray, num_calls: int, flow: FloatArray | None = None) -> None:
        self._arcs, self._calls = arcs, num_calls
        self.flow = _longest_path(arcs, np.append(atom_time, 0.0)) if flow is None else flow
        self._next = self.flow
        self.bound = 0.0
        self.ceiling = np.inf  # of every flow, by the program
        self._cuts: list[FloatArray] = []
        self._share = _SHARE
        self.reach: Reach | None = None

    def improve(
        self, steps: Steps, far: FarSteps | None = None, crossing: Callable[[int], IntArray] | None = None
    ) -> list[Move]:
        """Try the next flow; return the solution that is shortest under it."""
        reach = least_after(steps, self._next, self._calls, far)
        path = shortest_path(steps, reach, far, crossing)
        better = reach.bound > self.bound or self.reach is None
        self._share = min(1.0, 2 * self._share) if better else max(_LEAST_SHARE, self._share / 2)
        if better:
            self.bound, self.flow, self.reach = reach.bound, self._next, reach
        if path:
            self.learn(path)
        return path

    def restart(self, steps: Steps) -> None:
        """Look at the best flow again, with other steps."""
        self.reach = least_after(steps, self.flow, self._calls)
        self.bound = max(self.bound, self.reach.bound)

    def learn(self, path: list[Move]) -> None:
        """Add a solution to the program and ask for the flow that is best against all so far."""
        taken = np.zeros(self._arcs.size)
        for move in path:
            taken[move.fed_arcs] += move.time
        self._cuts.append(taken)
        answer = solve_relaxation(self._program())
        if answer is None:
            return
        flow = np.maximum(answer.values[:-1], 0.0)
        self.ceiling = float(answer.values[-1])
        self._next = (1 - self._share) * self.flow + self._share * flow

    def _program(self) -> LinearProgram:
        """Maximise the least total over the solutions so far; variables are the arcs' flows and that total."""
        arcs, cuts = self._arcs, len(self._cuts)
        size, atoms = arcs.size, arcs.num_atoms
        inside = np.arange(size)
        leaves, enters = arcs.source < atoms, arcs.target < atoms
        begins = np.flatnonzero(arcs.source == atoms)
        rows = np.concatenate((arcs.source[leaves], arcs.target[enters], np.full(len(begins), atoms)))
        columns = np.concatenate((inside[leaves], inside[enters], begins))
        values = np.concatenate((-np.ones(leaves.sum()), np.ones(enters.sum()), np.ones(len(begins))))
        matrix = np.array(self._cuts)
        cut, arc = np.nonzero(matrix)
        return LinearProgram(
            cost=np.append(np.zeros(size), -1.0),
            lower=np.zeros(size + 1),
            upper=np.append(np.ones(size), np.inf),
            integer=np.zeros(size + 1, dtype=np.bool_),
            row_lower=np.concatenate((np.zeros(atoms), [1.0], np.zeros(cuts))),
            row_upper=np.concatenate((np.zeros(atoms), [1.0], np.full(cuts, np.inf))),
            entry_row=np.concatenate((rows, atoms + 1 + cut, atoms + 1 + np.arange(cuts))),
            entry_column=np.concatenate((columns, arc, np.full(cuts, size))),
            entry_value=np.concatenate((values, matrix[cut, arc], -np.ones(cuts))),
        )


def shortest_path(
    steps: Steps, reach: Reach, far: FarSteps | None = None, crossing: Callable[[int], IntArray] | None = None
) -> list[Move]:
    """Steps of the solution with the least priced time; empty where there is none.

    ``crossing`` lists the arcs that cross a down-set, for far steps.
    """
    least = reach.least
    ideal, left = 0, least.shape[1] - 1
    if not np.isfinite(least[0, left]):
        return []
    path: list[Move] = []
    while ideal < len(least) - 1:
        here = np.arange(steps.first[ideal], steps.first[ideal + 1])
        remaining = np.where(steps.on_cpu[here], left, left - 1)
        value = np.where(remaining >= 0, reach.price[here] + least[steps.outer[here], remaining], np.inf)
        near = float(value.min(initial=np.inf))
        if far is not None and crossing is not None and left > 0:
            outer, total, load = far.best_from(ideal, least[:, left - 1])
            if total < near:
                path.append(Move(inner=ideal, outer=outer, time=load, on_cpu=False, fed_arcs=crossing(ideal)))
                ideal, left = outer, left - 1
                continue
        path += steps.moves(here[[int(np.argmin(value))]])
        left -= int(not path[-1].on_cpu)
        ideal = path[-1].outer
    return path


def _longest_path(arcs: Arcs, time: FloatArray) -> FloatArray:
    """Flow along the path whose atoms take longest."""
    count = arcs.num_atoms
    order = np.argsort(arcs.source % count if count else arcs.source, kind="stable")
    begin = arcs.source == count
    best = np.full(count + 1, -np.inf)
    via = np.full(count + 1, -1)
    best[arcs.target[begin]] = 0.0
    via[arcs.target[begin]] = np.flatnonzero(begin)
    for arc in order.tolist():  # atoms are in a topological order
        u, v = int(arcs.source[arc]), int(arcs.target[arc])
        if u < count and best[u] + time[u] > best[v]:
            best[v], via[v] = best[u] + time[u], arc
    flow = np.zeros(arcs.size)
    at = count
    while True:
        arc = int(via[at])
        flow[arc] = 1.0
        at = int(arcs.source[arc])
        if at == count:
            return flow

"""Giving the subgraphs of a solution to accelerators: calls that must share one, memory, colour classes.

Bundles
-------
With several subgraphs per accelerator a torn class may be in several calls, all on one accelerator, or wholly on CPUs. Calls tied together
in this way are a *bundle*: at most as many calls as an accelerator runs, within its memory together. Without this rule a call as
large as the memory may end amid a class, where nothing is moved, and the next one go on elsewhere.

A down-set that has some members of a torn class is taken apart by what is known about one such class, the one with the narrowest span:
nothing, that it is on CPUs, or how many calls its bundle has and how large it is, rounded down. Other classes open at the same
time are forgotten, so every solution is still a path, and what is proven for all paths is a bound.

Packing
-------
Gives the subgraphs of a solution to accelerators: some number of calls each, within memory, colour classes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.placement.chain import IdealFamily
from strategies.placement.contraction import BlockGraph
from strategies.placement.latency.evaluate import CPU, evaluate, placement_of
from strategies.placement.latency.steps import Move, SmallIntArray, Steps
from strategies.placement.problem import Placement, PlacementProblem, sums_by

# Sizes of a bundle that are distinguished, evenly up to the memory.
_SIZES = 16
# States of a class: nothing known, on CPUs, and from here on its bundle.
_FREE, _ON_CPU, _BUNDLE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """Down-sets taken apart by bundles, as a family in which some repeat, and the steps between them."""

    family: IdealFamily
    steps: Steps


def bundled(
    steps: Steps,
    family: IdealFamily,
    has: BoolArray,
    torn: Sequence[IntArray],
    *,
    capacity_bytes: float,
    num_subgraphs: int,
    most_steps: int,
    clock: Clock,
) -> Bundled | None:
    """Take down-sets apart by bundles; None where that makes too many steps.

    Parameters
    ----------
    steps : Steps
        Those that solutions may take.
    family : IdealFamily
    has : bool array (atoms + 1, ideals)
        Whether each atom is in each down-set.
    torn : sequence of int arrays
        Atoms of each class that consists of several.
    capacity_bytes : float
        Memory of an accelerator.
    num_subgraphs : int
        Most calls of an accelerator.
    most_steps : int
    clock : Clock

    Raises
    ------
    OutOfTimeError
    """
    rules = _Rules(has, torn, family.size_bytes, capacity_bytes, num_subgraphs)
    ideals = len(family)
    reached = np.zeros((ideals, rules.num_states), dtype=np.bool_)
    reached[0, _FREE] = True
    parts: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []  # inner, state there, step, state after it
    total = 0
    for inner in range(ideals):
        if inner % 64 == 0:
            clock.check()
        here = np.arange(steps.first[inner], steps.first[inner + 1])
        if not len(here):
            continue
        moves = _Moves(rules, inner, steps.outer[here], steps.on_cpu[here])
        for state in np.flatnonzero(reached[inner]).tolist():
            allowed, after = moves.from_state(state)
            step = here[allowed]
            after = after[allowed]
            reached[steps.outer[step], after] = True
            parts.append((np.full(len(step), inner), np.full(len(step), state), step, after))
            total += len(step)
            if total > most_steps:
                return None
    number = np.cumsum(reached.reshape(-1)).reshape(reached.shape) - 1
    ideal = np.nonzero(reached)[0]
    if not parts:
        return None
    inner_of, state_of, step, after = (np.concatenate([part[i] for part in parts]) for i in range(4))
    return Bundled(
        family=replace(
            family,
            bits=family.bits[ideal],
            accelerator_time=family.accelerator_time[ideal],
            size_bytes=family.size_bytes[ideal],
            split_cost=family.split_cost[ideal],
            pins_inside=family.pins_inside[:, ideal],
            split_list=family.split_list[ideal],
        ),
        steps=_renumbered(steps, step, number[inner_of, state_of], number[steps.outer[step], after], len(ideal)),
    )


class _Rules:
    """Which class a down-set is taken apart by, and what steps do to what is known about it."""

    def __init__(
        self, has: BoolArray, torn: Sequence[IntArray], size: FloatArray, capacity_bytes: float, num_subgraphs: int
    ) -> None:
        self.size, self.capacity_bytes, self.most_calls = size, capacity_bytes, num_subgraphs
        # The last class stands for none: nobody touches it.
        self.held = np.zeros((len(torn) + 1, has.shape[1]), dtype=np.int32)
        self.of_ideal = np.full(has.shape[1], len(torn), dtype=np.int64)
        span = [int(atoms[-1] - atoms[0]) for atoms in torn]
        for c in sorted(range(len(torn)), key=lambda c: (-span[c], c)):  # the narrowest has the last word
            self.held[c] = has[torn[c]].sum(axis=0)
            self.of_ideal[(self.held[c] > 0) & (self.held[c] < len(torn[c]))] = c
        self.none = len(torn)
        self.num_states = _BUNDLE + num_subgraphs * (_SIZES + 1)

    def bundle(self, calls: int, size: FloatArray) -> IntArray:
        """State of a class whose bundle has so many calls and so many bytes, or a little more."""
        share = np.floor(size / self.capacity_bytes * _SIZES * (1 - EQUAL)) if self.capacity_bytes > 0 else 0.0 * size
        return _BUNDLE + (calls - 1) * (_SIZES + 1) + np.clip(share, 0, _SIZES).astype(np.int64)

    def known(self, state: int) -> tuple[int, float]:
        calls, share = divmod(state - _BUNDLE, _SIZES + 1)
        return calls + 1, share * self.capacity_bytes / _SIZES


class _Moves:
    """Steps from one down-set, before it is known what state it is in."""

    def __init__(self, rules: _Rules, inner: int, outer: SmallIntArray, on_cpu: BoolArray) -> None:
        self._rules, self._on_cpu = rules, on_cpu
        self._size = rules.size[outer] - rules.size[inner]
        here = int(rules.of_ideal[inner])
        there = rules.of_ideal[outer]
        self._touched = rules.held[here, outer] > rules.held[here, inner]
        self._touched_there = rules.held[there, outer] > rules.held[there, inner]
        self._same = (there == here) & (there != rules.none)

    def from_state(self, state: int) -> tuple[BoolArray, IntArray]:
        rules = self._rules
        calls, size = 1, self._size
        own = np.where(self._on_cpu, _ON_CPU, rules.bundle(calls, size))
        allowed = np.ones(len(own), dtype=np.bool_)
        if state == _ON_CPU:
            allowed = ~self._touched | self._on_cpu
        elif state >= _BUNDLE:
            calls, held = rules.known(state)
            fits = (calls < rules.most_calls) & (held + size <= rules.capacity_bytes * (1 + EQUAL))
            allowed = ~self._touched | (~self._on_cpu & fits)
            together = rules.bundle(min(calls + 1, rules.most_calls), held + size)
            own = np.where(self._touched & ~self._on_cpu, together, own)
        carried = np.where(self._same, state, _FREE)
        return allowed, np.where(self._touched_there, own, carried)


def _renumbered(steps: Steps, step: IntArray, inner: IntArray, outer: IntArray, count: int) -> Steps:
    """Steps by number between new down-sets, in the order of these; groups stay."""
    order = np.argsort(inner, kind="stable")
    step, inner, outer = step[order], inner[order], outer[order]
    return replace(
        steps,
        inner=inner.astype(np.int32),
        outer=outer.astype(np.int32),
        time=steps.time[step],
        on_cpu=steps.on_cpu[step],
        group=steps.group[step],
        first=np.searchsorted(inner, np.arange(count + 1)),
    )


def placement_of_path(
    problem: PlacementProblem,
    graph: BlockGraph,
    family: IdealFamily,
    path: list[Move],
    num_subgraphs: int,
) -> Placement | None:
    """Make a placement of a path of steps; None where its subgraphs do not fit the accelerators."""
    stage = np.full(graph.num_blocks, CPU, dtype=np.int64)
    calls = 0
    for move in path:
        if move.on_cpu:
            continue
        stage[family.members(move.outer, graph.num_blocks) & ~family.members(move.inner, graph.num_blocks)] = calls
        calls += 1
    return packed(problem, stage[graph.block], num_subgraphs)


def packed(problem: PlacementProblem, stage: IntArray, num_subgraphs: int) -> Placement | None:
    """Give subgraphs, numbered in an order in which they can run, to accelerators.

    Where there are enough accelerators each has one. Else the largest comes first; it goes where the latency stays least, then
    where least room is left.

    Examples
    --------
    Three subgraphs of 2, 1 and 1 bytes on two accelerators of 2:

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0, size_bytes=s) for i, s in enumerate((1.0, 2.0, 1.0))]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=0, memory_bytes=2.0)
    >>> placement = packed(problem, np.array([0, 1, 2]), 2)
    >>> placement.device.tolist(), placement.subgraph.tolist()
    ([1, 0, 1], [0, 0, 1])
    """
    used = stage != CPU
    count = int(stage.max(initial=-1)) + 1
    bundle = _bundles(problem, stage, count)
    size = sums_by(stage[used], problem.size_bytes[used], count)
    sizes = sums_by(bundle, size, count) if count else size
    calls = np.bincount(bundle, minlength=count)
    where = np.full(count, CPU, dtype=np.int64)  # of each stage
    if count <= problem.num_accelerators and bool(np.all(np.bincount(bundle, minlength=count) <= 1)):
        return _numbered(problem, stage, np.arange(count))  # one each
    room = np.full(problem.num_accelerators, problem.capacity_bytes)
    free = np.full(problem.num_accelerators, num_subgraphs)
    for b in np.lexsort((np.arange(count), -sizes)).tolist():
        if not calls[b]:
            continue
        best: tuple[float, float, int] | None = None
        options = np.flatnonzero((room >= sizes[b]) & (free >= calls[b])).tolist()
        empty = [a for a in options if free[a] == num_subgraphs]
        for a in [a for a in options if free[a] < num_subgraphs] + empty[:1]:
            where[bundle == b] = a
            key = (_latency(problem, stage, where), float(room[a]), a) if num_subgraphs > 1 else (0.0, 0.0, a)
            best = key if best is None or key < best else best
        if best is None:
            return None
        where[bundle == b] = best[2]
        room[best[2]] -= sizes[b]
        free[best[2]] -= calls[b]
    return _numbered(problem, stage, where)


def _bundles(problem: PlacementProblem, stage: IntArray, count: int) -> IntArray:
    """Stages that hold operators of one colour must share an accelerator: number of each stage's bundle."""
    bundle = np.arange(count)
    if not count:
        return bundle
    pairs = np.unique(np.stack((problem.color, stage))[:, stage != CPU], axis=1)
    for i in np.flatnonzero(pairs[0][1:] == pairs[0][:-1]).tolist():
        first, second = bundle[pairs[1][i]], bundle[pairs[1][i + 1]]
        bundle[bundle == max(first, second)] = min(first, second)
    return bundle


def _latency(problem: PlacementProblem, stage: IntArray, where: IntArray) -> float:
    """Latency with the stages so far on their accelerators and all others on ones of their own."""
    count = len(where)
    own = np.where(where == CPU, problem.num_accelerators + np.arange(count), where)
    unit = np.append(own, CPU)[stage]
    wide = replace(problem, num_accelerators=problem.num_accelerators + count)
    return evaluate(wide, placement_of(wide, unit, np.maximum(stage, 0))).latency


def _numbered(problem: PlacementProblem, stage: IntArray, where: IntArray) -> Placement:
    """Number each accelerator's subgraphs from 0, in the order of the stages."""
    position = np.zeros(len(where), dtype=np.int64)
    seen: FloatArray = np.zeros(problem.num_accelerators)
    for s, a in enumerate(where.tolist()):
        if a != CPU:
            position[s] = int(seen[a])
            seen[a] += 1
    return placement_of(problem, np.append(where, CPU)[stage], np.append(position, 0)[stage])

"""Divides the blocks of a graph between two sides, one block after the other, remembering only what is still open.

Notes
-----
What a device pays depends on which hyperedges its set cuts. Blocks are given to a side in a fixed order; of those already given only the
sides of *open* hyperedges matter, those with some pins given and some not. Networks are long and thin, so few are open at a time: the
graphs of Tarnawski et al. (NeurIPS 2020) have 4 to 200 states, for 30 to 450 blocks. Dynamic programming over (state, load of one side)
then finds the best of 2^n sets exactly (`sweep`); an integer program needs a hundred times as long.

Where more states than a limit would be open, the cheapest open hyperedge is forgotten: it is paid for only if its pins were divided
by then. That can only lower loads, so bounds stay bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.limits import Clock

__all__ = ["MAX_STATES", "Frontier", "Sweep", "build_frontier", "frontier_order", "sweep"]


MAX_STATES = 1024
# Sides of the given pins of an open hyperedge: bit 0 for side 0, bit 1 for side 1.
_BOTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """All ways to give blocks to two sides, folded: transition i leads from a state of its step to one of the next."""

    order: IntArray  # (steps,) block given at each step
    num_states: IntArray  # (steps + 1,), 1 at both ends
    first: IntArray  # (steps + 1,) into the transitions
    source: IntArray  # (transitions,) state before
    target: IntArray  # state after
    side: IntArray  # side that the block is given to
    paid: tuple[
        tuple[IntArray, IntArray], tuple[IntArray, IntArray]
    ]  # per side: (transition, hyperedge) that it begins to pay for
    is_exact: bool  # no hyperedge was forgotten

    @property
    def num_transitions(self) -> int:
        """Arrows of all steps."""
        return len(self.source)

    def charge(self, side: int, blocks: NDArray[np.generic], hyperedges: NDArray[np.generic]) -> NDArray[np.generic]:
        """What each transition adds to a side's load, given what blocks and hyperedges cost it."""
        step = np.repeat(np.arange(len(self.order)), np.diff(self.first))
        own = np.where(self.side == side, blocks[self.order[step]], 0).astype(np.result_type(blocks, hyperedges))
        transition, hyperedge = self.paid[side]
        np.add.at(own, transition, hyperedges[hyperedge])
        return own


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Best value for every load of side 1, and how to get there."""

    value: FloatArray  # (bins + 1,) -inf where no division has that load
    _frontier: Frontier
    _weight: IntArray
    _choice: tuple[IntArray, ...] | None

    def side_one(self, load: int) -> IntArray:
        """Blocks of side 1 in the best division of exactly that load, ascending."""
        assert self._choice is not None, "the sweep was told not to remember"
        assert np.isfinite(self.value[load])
        frontier = self._frontier
        state, at = 0, load
        chosen = []
        for step in range(len(frontier.order) - 1, -1, -1):
            transition = int(self._choice[step][state, at]) + int(frontier.first[step])
            if frontier.side[transition]:
                chosen.append(int(frontier.order[step]))
            at -= int(self._weight[transition])
            state = int(frontier.source[transition])
        return np.array(sorted(chosen), dtype=np.int64)


def sweep(
    frontier: Frontier,
    weight: IntArray,
    gain: FloatArray,
    bins: int,
    *,
    remember: bool = True,
    clock: Clock | None = None,
) -> Sweep:
    """Maximise the sum of gains for every sum of weights up to a capacity.

    Parameters
    ----------
    frontier : Frontier
    weight : int array (transitions,)
        Load that side 1 takes on, at least 0; above ``bins`` for what is not allowed.
    gain : float array (transitions,)
        -inf for what is not allowed.
    bins : int
        Largest load.
    remember : bool
        Keep what `Sweep.side_one` needs: two bytes per state and load.
    clock : Clock, optional
        Its deadline ends the sweep with `strategies.limits.OutOfTimeError`.

    Examples
    --------
    Two blocks joined by a hyperedge; side 1 has room for load 2. Both would be 3 without a cut, one is 1 + 1 with it:

    >>> frontier = build_frontier([[0, 1]], np.ones(1), np.zeros(1, dtype=bool), order=np.array([0, 1]))
    >>> weight = frontier.charge(1, np.array([1, 2]), np.array([1]))
    >>> result = sweep(frontier, weight, frontier.charge(1, np.array([5.0, 6.0]), np.array([0.0])), 2)
    >>> result.value.tolist(), result.side_one(2).tolist()
    ([0.0, -inf, 5.0], [0])
    """
    table = np.full((1, bins + 1), -np.inf)
    table[0, 0] = 0.0
    kept: list[IntArray] = []
    edges = frontier.first.tolist()
    sources, targets = frontier.source.tolist(), frontier.target.tolist()
    weights, gains = weight.tolist(), gain.tolist()
    for step in range(len(frontier.order)):
        if clock is not None:
            clock.check()
        after = np.full((int(frontier.num_states[step + 1]), bins + 1), -np.inf)
        choice = np.zeros(after.shape, dtype=np.int16 if edges[step + 1] - edges[step] < 2**15 else np.int64)
        for transition in range(edges[step], edges[step + 1]):
            moved = weights[transition]
            if moved > bins or gains[transition] == -np.inf:
                continue
            candidate = table[sources[transition], : bins + 1 - moved] + gains[transition]
            best = after[targets[transition], moved:]
            if remember:
                better = candidate > best
                choice[targets[transition], moved:][better] = transition - edges[step]
            np.maximum(best, candidate, out=best)
        if remember:
            kept.append(choice)
        table = after
    return Sweep(value=table[0], _frontier=frontier, _weight=weight, _choice=tuple(kept) if remember else None)


def frontier_order(
    num_blocks: int, hyperedges: Sequence[Sequence[int]], blocks: Sequence[int], *, clock: Clock | None = None
) -> IntArray:
    """Order blocks so that few hyperedges are open: next comes the block that opens fewest more than it closes.

    >>> frontier_order(4, [[0, 1], [1, 3], [3, 2]], [0, 1, 2, 3]).tolist()
    [0, 1, 3, 2]
    """
    wanted = np.zeros(num_blocks, dtype=np.bool_)
    wanted[list(blocks)] = True
    pins = [[b for b in edge if wanted[b]] for edge in hyperedges]
    touching: dict[int, list[int]] = {b: [] for b in blocks}
    for i, edge in enumerate(pins):
        for b in edge:
            touching[b].append(i)
    left = [len(edge) for edge in pins]
    waiting = dict.fromkeys(sorted(blocks))
    near: dict[int, None] = {}
    order = []
    while waiting:
        if clock is not None:
            clock.check()
        candidates = near or [next(iter(waiting))]

        def opened(b: int) -> tuple[int, int]:
            change = 0
            for i in touching[b]:
                is_open = left[i] < len(pins[i])
                change += -1 if is_open and left[i] == 1 else int(not is_open and left[i] > 1)
            return change, b

        block = min(candidates, key=opened)
        del waiting[block]
        near.pop(block, None)
        order.append(block)
        for i in touching[block]:
            if left[i] == len(pins[i]):
                near.update((b, None) for b in pins[i] if b in waiting)
            left[i] -= 1
    return np.array(order, dtype=np.int64)


def build_frontier(
    hyperedges: Sequence[Sequence[int]],
    cost: FloatArray,
    outer: BoolArray,
    *,
    order: IntArray,
    max_states: int = MAX_STATES,
    clock: Clock | None = None,
) -> Frontier:
    """Fold the divisions of the blocks in ``order``.

    Parameters
    ----------
    hyperedges : sequence of blocks
        Pins; those outside of ``order`` are on neither side.
    cost : float array (hyperedges,)
        Tells which to forget first.
    outer : bool array (hyperedges,)
        Has pins on neither side: a side pays as soon as it holds a pin, not only when the pins are divided.
    order : int array
    max_states : int
        More states are avoided by forgetting hyperedges.
    clock : Clock, optional
    """
    place = {int(b): i for i, b in enumerate(order)}
    pins = [[b for b in edge if b in place] for edge in hyperedges]
    touching: list[list[int]] = [[] for _ in order]
    for i, edge in enumerate(pins):
        for b in edge:
            touching[place[b]].append(i)
    left = [len(edge) for edge in pins]
    builder = _Builder(outer=outer.tolist(), is_open=[True] * len(pins))
    exact = True
    for position in range(len(order)):
        for i in touching[position]:
            left[i] -= 1
        here = [i for i in touching[position] if builder.is_open[i]]
        while True:
            if clock is not None:
                clock.check()
            closing = {i for i in here if left[i] == 0}
            step = builder.step(here, closing)
            if len(step.states) <= max_states:
                break
            exact = False
            builder.forget(min(step.keys, key=lambda i: (cost[i], i)))
            here = [i for i in here if builder.is_open[i]]
        builder.take(step)
    return builder.frontier(order, exact)


@dataclass(slots=True)
class _Step:
    """One block given to either side, from every state."""

    keys: list[int]  # open hyperedges after it
    states: dict[tuple[int, ...], int]
    source: list[int]
    target: list[int]
    side: list[int]
    paid: tuple[list[tuple[int, int]], list[tuple[int, int]]]  # per side: (transition of this step, hyperedge)


class _Builder:
    """States so far: for each open hyperedge, which sides hold a pin of it."""

    def __init__(self, *, outer: list[bool], is_open: list[bool]) -> None:
        self.is_open = is_open
        self._outer = outer
        self._keys: list[int] = []
        self._states: dict[tuple[int, ...], int] = {(): 0}
        self._steps: list[_Step] = []

    def forget(self, hyperedge: int) -> None:
        """Stop watching a hyperedge; states that differ in it alone stay separate until the next step joins them."""
        self.is_open[hyperedge] = False

    def step(self, here: list[int], closing: set[int]) -> _Step:
        """Give a block with the hyperedges ``here`` to both sides."""
        all_keys = self._keys + [i for i in here if i not in self._keys]
        keys = [i for i in all_keys if i not in closing and self.is_open[i]]
        kept = [all_keys.index(i) for i in keys]
        touched = [all_keys.index(i) for i in here]
        step = _Step(keys=keys, states={}, source=[], target=[], side=[], paid=([], []))
        blank = (0,) * (len(all_keys) - len(self._keys))
        for state, row in self._states.items():
            full = state + blank
            for side in (0, 1):
                after = list(full)
                for position in touched:
                    before = full[position]
                    now = before | (1 << side)
                    if now != before:
                        self._pay(step, all_keys[position], before, now, side)
                        after[position] = now
                key = tuple(after[position] for position in kept)
                step.source.append(row)
                step.target.append(step.states.setdefault(key, len(step.states)))
                step.side.append(side)
        return step

    def _pay(self, step: _Step, hyperedge: int, before: int, now: int, side: int) -> None:
        transition = len(step.source)
        if self._outer[hyperedge]:
            step.paid[side].append((transition, hyperedge))
        elif before and now == _BOTH:
            step.paid[0].append((transition, hyperedge))
            step.paid[1].append((transition, hyperedge))

    def take(self, step: _Step) -> None:
        """Accept a step."""
        self._keys, self._states = step.keys, step.states
        self._steps.append(step)

    def frontier(self, order: IntArray, exact: bool) -> Frontier:
        """Everything in arrays."""
        first = np.concatenate(([0], np.cumsum([len(step.source) for step in self._steps]))).astype(np.int64)

        def joined(name: str) -> IntArray:
            return np.array([value for step in self._steps for value in getattr(step, name)], dtype=np.int64)

        def paid(side: int) -> tuple[IntArray, IntArray]:
            pairs = [
                (t + int(start), h)
                for step, start in zip(self._steps, first[:-1], strict=True)
                for t, h in step.paid[side]
            ]
            table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            return table[:, 0].copy(), table[:, 1].copy()

        return Frontier(
            order=order,
            num_states=np.array([1, *(len(step.states) for step in self._steps)], dtype=np.int64),
            first=first,
            source=joined("source"),
            target=joined("target"),
            side=joined("side"),
            paid=(paid(0), paid(1)),
            is_exact=exact,
        )

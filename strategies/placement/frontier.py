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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.limits import UNLIMITED, Clock

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
    clock: Clock = UNLIMITED,
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
    num_blocks: int, hyperedges: Sequence[Sequence[int]], blocks: Sequence[int], *, clock: Clock = UNLIMITED
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
    clock: Clock = UNLIMITED,
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
    is_open = [True] * len(pins)
    keys: list[int] = []
    states: dict[tuple[int, ...], int] = {(): 0}
    num_states, target = [1], list[int]()
    paid: tuple[list[tuple[int, int]], ...] = ([], [])
    for position in range(len(order)):
        for i in touching[position]:
            left[i] -= 1
        while True:
            clock.check()
            here = [i for i in touching[position] if is_open[i]]
            step = _Step(keys, states, here, [i for i in (*keys, *here) if is_open[i] and left[i]], outer)
            if len(step.states) <= max_states:
                break
            # States that differ in a forgotten hyperedge alone stay separate until the next step joins them.
            is_open[min(step.keys, key=lambda i: (cost[i], i))] = False
        for pairs, found in zip(paid, step.paid, strict=True):
            pairs += [(len(target) + transition, hyperedge) for transition, hyperedge in found]
        target += step.target
        keys, states = step.keys, step.states
        num_states.append(len(states))
    # Every state gives a block to either side.
    source = [np.repeat(np.arange(count), 2) for count in num_states[:-1]]
    tables = [np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy() for pairs in paid]
    return Frontier(
        order=order,
        num_states=np.array(num_states, dtype=np.int64),
        first=2 * np.cumsum([0, *num_states[:-1]]),
        source=np.concatenate([np.zeros(0, dtype=np.int64), *source]),
        target=np.array(target, dtype=np.int64),
        side=np.arange(len(target)) % 2,
        paid=((tables[0][0], tables[0][1]), (tables[1][0], tables[1][1])),
        is_exact=all(is_open),
    )


class _Step:
    """One block given to either side, from every state: which sides hold a pin of each open hyperedge."""

    def __init__(
        self,
        before: Sequence[int],
        states: Mapping[tuple[int, ...], int],
        here: Sequence[int],
        after: Sequence[int],
        outer: BoolArray,
    ) -> None:
        """Go on from the states of the hyperedges ``before``; those of the block are ``here``, those that stay open ``after``."""
        self.keys = list(dict.fromkeys(after))
        self.states: dict[tuple[int, ...], int] = {}
        self.target: list[int] = []
        self.paid: tuple[list[tuple[int, int]], ...] = ([], [])  # per side: (transition of this step, hyperedge)
        place = {i: position for position, i in enumerate(dict.fromkeys((*before, *here)))}
        kept = [place[i] for i in self.keys]
        blank = (0,) * (len(place) - len(before))
        for state in states:
            for side in (0, 1):
                sides = [*state, *blank]
                for i in here:
                    held = sides[place[i]]
                    sides[place[i]] = held | (1 << side)
                    if outer[i] and sides[place[i]] != held:
                        self.paid[side].append((len(self.target), i))
                    elif not outer[i] and 0 < held < _BOTH == sides[place[i]]:
                        self.paid[0].append((len(self.target), i))
                        self.paid[1].append((len(self.target), i))
                key = tuple(sides[position] for position in kept)
                self.target.append(self.states.setdefault(key, len(self.states)))

"""How the modules of a network are laid out over pipeline stages, for one plan and for many as arrays.

A pipeline of ``pp`` ranks with ``vpp`` chunks each cuts the blocks into C = pp vpp contiguous chunks; chunk c lives
on rank c mod pp. The embedding belongs to the first chunk and the head to the last. The uniform layout makes the slowest
chunk as fast as possible, the embedding and the head weighed, and the others as even as that allows, the shorter ones
first (early stages keep more activations).

Shapes of `LayoutArrays`: n plans, K kinds of modules, R runs of chunks, Q kinds of ranks, D different chunks of a rank.

Some frameworks cut otherwise (`framework_blocks`).
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, rows_of
from costmodel.framework import Framework
from costmodel.mesh.modules import MeshError, ModuleKind, Modules
from costmodel.mesh.plan import FULL
from costmodel.network.graph import Graph
from costmodel.network.sizes import sizes_of
from costmodel.schedules import chunks_of_ranks, ranks_of_chunks
from costmodel.tolerances import EQUAL, ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutArrays(StructOfArrays):
    """Layouts of many plans, padded to the same number of runs and ranks; empty runs and ranks hold nothing. One plan has no axis n.

    R are runs of equal neighbouring chunks, Q kinds of ranks, D different chunks of a rank, K kinds of modules.
    """

    run_modules: FloatArray  # (n, R, K) in one chunk of a run
    run_chunks: IntArray  # (n, R) chunks of a run
    run_cut: FloatArray  # (n, R) elements per sample that enter a chunk of the run: the most of its chunks; 0 from the same rank
    rank_modules: FloatArray  # (n, Q, K) on a rank, all its chunks together
    rank_first: IntArray  # (n, Q) first pipeline rank of the kind; -1 for padding
    rank_last: IntArray  # (n, Q)
    # Blocks that full recomputation runs again, per chunk of a run and per rank; -1: as the plan says for every chunk alike.
    run_recompute: IntArray  # (n, R)
    rank_recompute: IntArray  # (n, Q, D)
    # Different chunks of a rank, their blocks, and how often they occur; 0 for padding.
    rank_chunks: FloatArray  # (n, Q, D, K)
    rank_lengths: IntArray  # (n, Q, D)
    rank_repeats: IntArray  # (n, Q, D)
    rank_stays: BoolArray  # (n, Q, D) what leaves the chunk goes to another of the same rank


_PADDING = {"rank_first": -1, "rank_last": -1, "run_recompute": -1, "rank_recompute": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(LayoutArrays):
    """Where the modules of one plan go."""

    blocks: tuple[int, ...]  # chunk -> blocks
    most_blocks: int  # of the longest chunk


def stack_layouts(layouts: Sequence[Layout]) -> LayoutArrays:
    """Pad layouts to arrays."""
    return LayoutArrays(
        **{
            item.name: _padded([getattr(layout, item.name) for layout in layouts], _PADDING.get(item.name, 0))
            for item in fields(LayoutArrays)
        }
    )


def _padded(arrays: Sequence[NDArray[Any]], fill: int) -> NDArray[Any]:
    """Stack arrays of different shapes, filled up to the largest extents."""
    padded = np.full((len(arrays), *np.max([array.shape for array in arrays], axis=0)), fill, dtype=arrays[0].dtype)
    for n, array in enumerate(arrays):
        room: tuple[int | slice, ...] = (n, *(slice(extent) for extent in array.shape))
        padded[room] = array
    return padded


def balanced_blocks(modules: Modules, weights: Sequence[float], chunks: int) -> tuple[int, ...]:
    """Blocks per chunk of the uniform layout.

    Parameters
    ----------
    modules : Modules
    weights : sequence of float
        Kind of module -> its time (any module).
    chunks : int

    Returns
    -------
    tuple of int
        Every chunk has at least one block.

    Raises
    ------
    MeshError
        More chunks than blocks.

    Examples
    --------
    Llama 3 405B's 126 layers on 16 stages, embedding and head each worth more than nothing: 7 at both ends, 8 between.

    >>> from costmodel.mesh.modules import ModuleKind
    >>> kinds = tuple(ModuleKind(name=n, layers=(), inputs=(), is_block=n == "block") for n in ("embedding", "block", "head"))
    >>> llama = Modules(kinds=kinds, kind_of=(0, *[1] * 126, 2), cut_elements=(0,) * 128)
    >>> balanced_blocks(llama, [0.1, 1.0, 0.7], 16)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    """
    count = modules.num_blocks
    if chunks > count:
        raise MeshError(f"{chunks} pipeline stages need at least as many blocks; the network has {count}")
    if sum(kind.is_block for kind in modules.kinds) == 1:
        block = next(weight for weight, kind in zip(weights, modules.kinds, strict=True) if kind.is_block)
        ends = weights[modules.kind_of[0]], weights[modules.kind_of[-1]]
        return _equal_blocks(count, chunks, *(end / block if block else 0.0 for end in ends))
    loads = [weights[kind] for kind in modules.blocks]
    return _unequal_blocks(loads, chunks, weights[modules.kind_of[0]], weights[modules.kind_of[-1]])


def _rooms(count: int, chunks: int, embedding: float, head: float) -> tuple[int, int, int, int] | None:
    """Most blocks of the first chunk, of each in between and of the last under the least limit that holds all, and what is too much.

    None where no limit up to the weight of all blocks holds them: embedding and head are heavier.
    """
    slack = 1e-9

    def room(limit: float) -> tuple[int, int, int]:
        return max(int(limit - embedding + slack), 1), max(int(limit + slack), 1), max(int(limit - head + slack), 1)

    def held(limit: float) -> int:
        first, inner, last = room(limit)
        return first + (chunks - 2) * inner + last

    numbers = range(max(count // chunks - 1, 1), count + 1)
    limits = []
    for extra in (0.0, embedding, head):
        place = bisect.bisect_left(numbers, count, key=lambda n: held(n + extra))
        if place < len(numbers):
            limits.append(numbers[place] + extra)
    if not limits:
        return None
    limit = min(limits)
    return *room(limit), held(limit) - count


def _equal_blocks(count: int, chunks: int, embedding: float, head: float) -> tuple[int, ...]:
    """The same with all blocks alike; weights in blocks."""
    if chunks == 1:
        return (count,)
    rooms = _rooms(count, chunks, embedding, head)
    if rooms is None:  # embedding and head are heavier than all blocks together
        blocks = [1] * chunks
        blocks[1 if chunks > 2 else 0] += count - chunks
        return tuple(blocks)
    first, inner, last, excess = rooms
    blocks = [first, *[inner] * (chunks - 2), last]
    # Take from the longest first; of equals from the earliest.
    while excess:
        longest = max(blocks)
        for c in range(chunks):
            if excess and blocks[c] == longest and blocks[c] > 1:
                blocks[c] -= 1
                excess -= 1
    return tuple(blocks)


def _unequal_blocks(loads: Sequence[float], chunks: int, embedding: float, head: float) -> tuple[int, ...]:
    """Least largest load, then by dynamic programming the least sum of squares."""
    count = len(loads)
    prefix = np.concatenate([[0.0], np.cumsum(loads)])
    # A chunk with blocks i..j-1 has the load ends[j] - starts[i]; few starts are near enough to an end for the limit.
    starts, ends = prefix + embedding, prefix + embedding
    starts[0] = 0.0
    ends[-1] += head
    limit = _least_largest(starts.tolist(), ends.tolist(), chunks) * (1 + ROUNDING)
    order = np.arange(count + 1)
    width = int(np.max(order - np.searchsorted(starts, ends - limit * (1 + ROUNDING)), initial=1))
    start = order[:, None] - width + np.arange(width)
    load = ends[:, None] - starts[np.maximum(start, 0)]
    square = np.where((start >= 0) & (load <= limit), load**2, np.inf)
    best = np.where(order == 0, 0.0, np.inf)
    back_pointers = []
    for _ in range(chunks):
        table = best[np.maximum(start, 0)] + square
        # The earliest cut among equals makes early chunks the shorter ones.
        place = np.argmin(table, axis=1)
        back_pointers.append(start[order, place])
        best = table[order, place]
    cuts = [count]
    for pointers in reversed(back_pointers):
        cuts.append(int(pointers[cuts[-1]]))
    return tuple(b - a for a, b in itertools.pairwise(reversed(cuts)))


def _least_largest(starts: Sequence[float], ends: Sequence[float], chunks: int) -> float:
    """The least largest load of so many chunks, by bisection between loads that too few and enough blocks fit into."""
    last = len(ends) - 1

    def largest_within(limit: float) -> float | None:
        """Largest load of chunks as long as a limit allows; None where these are too many."""
        at, largest = 0, 0.0
        for _ in range(chunks):
            end = bisect.bisect_right(ends, limit, lo=at + 1, key=lambda value: value - starts[at]) - 1
            if end == at:
                return None
            at, largest = end, max(largest, ends[end] - starts[at])
            if at == last:
                return largest
        return None

    high = ends[last]
    low = max(high / chunks, *(b - a for a, b in zip(starts, ends[1:], strict=False))) * (1 - ROUNDING)
    while low < (middle := (low + high) / 2) < high:
        found = largest_within(middle)
        if found is None:
            low = middle
        else:
            high = found
    return high


def layout_of(
    modules: Modules,
    blocks: Sequence[int],
    pp: int,
    recompute: Sequence[int] = (),
    *,
    schedule: str = "1f1b",
    every_rank: bool = False,
) -> Layout:
    """Lay chunks of given lengths over the ranks.

    Parameters
    ----------
    modules : Modules
    blocks : sequence of int
        Blocks per chunk.
    pp : int
        Ranks; divides the number of chunks.
    recompute : sequence of int, optional
        Recomputed blocks per chunk; every chunk alike where left out.
    schedule : str
        Says which rank has which chunk.
    every_rank : bool
        Each rank is a kind of its own.

    Returns
    -------
    Layout

    Raises
    ------
    MeshError
        The chunks do not hold all blocks, or do not divide over the ranks.
    """
    if sum(blocks) != modules.num_blocks or min(blocks) < 0:
        raise MeshError(f"the stages hold {sum(blocks)} blocks, the network has {modules.num_blocks}")
    if len(blocks) % pp:
        raise MeshError(f"{len(blocks)} chunks do not divide over {pp} pipeline ranks")
    if recompute and (
        len(recompute) != len(blocks) or any(not 0 <= n <= b for n, b in zip(recompute, blocks, strict=True))
    ):
        raise MeshError(f"stage_recompute {tuple(recompute)} does not fit stages of {tuple(blocks)} blocks")
    again = np.array(recompute or [-1] * len(blocks), dtype=np.int64)
    ends = 1 + np.cumsum(blocks)
    starts = ends - blocks
    each = np.eye(len(modules.kinds))[list(modules.kind_of)]
    held_by = np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])
    rows = held_by[ends] - held_by[starts]
    cuts = np.asarray(modules.cut_elements, dtype=np.float64)[starts]
    ranks = ranks_of_chunks(schedule, pp, len(blocks) // pp)
    stays = np.append(ranks[1:] == ranks[:-1], False)
    enters = np.append(False, ~stays[:-1])
    cuts[~enters] = 0.0
    rows[0, modules.kind_of[0]] += 1
    rows[-1, modules.kind_of[-1]] += 1
    described = np.column_stack([rows, again, stays])
    # What enters matters as well: the first chunk is a run of its own.
    differs = np.any(described[1:] != described[:-1], axis=1) | (enters[1:] != enters[:-1])
    new_run = np.flatnonzero(np.concatenate([[True], differs]))
    lengths = np.diff(np.append(new_run, len(blocks)))
    # A rank is described by its chunks, in any order.
    number, example_of = _numbered(described)
    own = chunks_of_ranks(schedule, pp, len(blocks) // pp)
    held = np.sort(number[own], axis=1)
    # Ranks of a kind hold the same, and have more or fewer activations in flight: the first or the last is the worst.
    kinds = [(*chunks, rank if every_rank else 0) for rank, chunks in enumerate(held.tolist())]
    first_of: dict[tuple[int, ...], int] = {}
    for rank, kind in enumerate(kinds):
        first_of.setdefault(kind, rank)
    last_of = {kind: rank for rank, kind in enumerate(kinds)}
    first = np.array(list(first_of.values()), dtype=np.int64)
    last = np.array([last_of[kind] for kind in first_of], dtype=np.int64)
    rank_chunk, rank_repeats = _different(held[first])
    padding = rank_repeats == 0
    example = example_of[rank_chunk]
    return Layout(
        blocks=tuple(blocks),
        run_modules=rows[new_run],
        run_chunks=lengths.astype(np.int64),
        run_cut=np.maximum.reduceat(cuts, new_run),
        rank_modules=rows[own[first]].sum(axis=1),
        rank_first=first,
        rank_last=last,
        run_recompute=again[new_run],
        rank_recompute=np.where(padding, -1, again[example]),
        rank_chunks=np.where(padding[:, :, None], 0.0, rows[example]),
        rank_lengths=np.where(padding, 0, np.array(blocks, dtype=np.int64)[example]),
        rank_repeats=rank_repeats,
        rank_stays=stays[example],
        most_blocks=max(blocks),
    )


def _numbered(rows: FloatArray) -> tuple[IntArray, IntArray]:
    """Number of every row among the different ones, in their order, and the first row of each number."""
    keys = [tuple(row) for row in rows.tolist()]
    first: dict[tuple[float, ...], int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    number = {key: n for n, key in enumerate(sorted(first))}
    return np.array([number[key] for key in keys]), np.array([first[key] for key in number])


def _different(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Different numbers in every row, which is sorted, and how often they occur there, (Q, D) each; 0 times for padding."""
    found = [Counter(row) for row in rows.tolist()]
    shape = len(rows), max(len(counts) for counts in found)
    different, repeats = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for q, counts in enumerate(found):
        different[q, : len(counts)], repeats[q, : len(counts)] = list(counts), list(counts.values())
    return different, repeats


def weigh(modules: FloatArray, values: FloatArray, row: IntArray | None = None) -> FloatArray:
    """Sum values (u, K) over the modules (n, X, K) of every run or rank: (n, X); ``row`` says which values a plan has, else u = n."""
    columns = values if row is None else rows_of(values, row)
    total = modules[:, :, 0] * columns[:, None, 0]
    for k in range(1, values.shape[1]):
        total += modules[:, :, k] * columns[:, None, k]
    return np.asarray(total)


def recomputed_modules(layouts: LayoutArrays, recompute: IntArray, blocks: IntArray) -> FloatArray:
    """Modules of every kind that every rank runs again, chunk by chunk, as a share of each: (n, Q, K).

    What is recomputed in full counts all kinds of blocks of a chunk alike, as `recomputed_share`; other recomputation is of all modules.

    Parameters
    ----------
    layouts : LayoutArrays
    recompute : array (n,)
    blocks : array (n,)
        Recomputed blocks per chunk under full recomputation; a shorter chunk recomputes all it has.

    Returns
    -------
    array (n, Q, K)
    """
    modules = layouts.rank_modules
    if not np.any(recompute == FULL):
        return modules
    again = np.zeros_like(modules)
    for d in range(layouts.rank_lengths.shape[2]):
        lengths, own = layouts.rank_lengths[:, :, d], layouts.rank_recompute[:, :, d]
        some = np.minimum(np.where(own >= 0, own, blocks[:, None]), lengths) * layouts.rank_repeats[:, :, d]
        again += (some / np.maximum(lengths, 1))[:, :, None] * layouts.rank_chunks[:, :, d]
    return np.asarray(np.where(recompute[:, None, None] == FULL, again, modules))


def recomputed_share(
    modules: FloatArray,
    is_block: BoolArray,
    recompute: IntArray,
    blocks: IntArray,
    own_blocks: IntArray | None = None,
) -> FloatArray:
    """Share of the blocks of the chunks of every run that is recomputed: (n, X).

    Parameters
    ----------
    modules : array (n, X, K)
    is_block : array (K,)
    recompute : array (n,)
    blocks : array (n,)
        Recomputed blocks under full recomputation.
    own_blocks : array (n, X), optional
        The same for one run, where not negative.

    Examples
    --------
    >>> recomputed_share(np.array([[[4.0]]]), np.array([True]), np.array([2]), np.array([1])).tolist()
    [[0.25]]
    """
    if not np.any(recompute == FULL):
        return np.ones(modules.shape[:2])
    count = np.sum(modules[:, :, is_block], axis=2)
    wanted = blocks[:, None] if own_blocks is None else np.where(own_blocks >= 0, own_blocks, blocks[:, None])
    some = np.minimum(wanted / np.maximum(count, 1.0), 1.0)
    return np.asarray(np.where(recompute[:, None] == FULL, some, 1.0))


def framework_blocks(framework: Framework, graph: Graph, modules: Modules, chunks: int) -> tuple[int, ...] | None:
    """Blocks per chunk as a framework cuts them; None where it balances them.

    Parameters
    ----------
    framework : Framework
    graph : Graph
    modules : Modules
        Of the graph.
    chunks : int
        At most as many as blocks.
    """
    if framework.stages == "balanced" or chunks == 1:
        return None
    if framework.stages == "equal":
        each, rest = divmod(modules.num_blocks, chunks)
        return None if rest else (each,) * chunks
    return threshold_blocks(modules.num_blocks, chunks, _head(graph, modules))


def uncut_chunks(framework: Framework, graph: Graph, modules: Modules) -> tuple[int, ...]:
    """Numbers of chunks that a framework cannot run as its own cut makes them: the loss is not on the stage that it takes for the last."""
    if framework.stages != "threshold":
        return ()
    count, head = modules.num_blocks, _head(graph, modules)
    ends = ((chunks, threshold_last(count, chunks, head)) for chunks in range(2, count + 1))
    return tuple(chunks for chunks, (loss, last) in ends if loss != last)


def _head(graph: Graph, modules: Modules) -> float:
    """Cost of the head in blocks, as nanotron counts it: by the weights of matrices."""
    sizes = sizes_of(graph)
    if sizes is not None:
        return sizes.head_in_blocks
    block = _matrix_weights(graph, modules.kinds[modules.blocks[0]])
    return _matrix_weights(graph, modules.kinds[modules.kind_of[-1]]) / block


def _matrix_weights(graph: Graph, kind: ModuleKind) -> int:
    layers = (graph.layers[index] for index in kind.layers)
    return sum(layer.weight_count + layer.tied_count for layer in layers if layer.kind == "linear")


def threshold_blocks(count: int, stages: int, head: float) -> tuple[int, ...]:
    """Blocks per stage where a stage ends after the block with which the sum of costs reaches its share of the total.

    nanotron (src/nanotron/models/base.py, build_model): blocks cost as many multiplications as they have weights, the head too, the
    embedding nothing. Stages at the end may hold no block. The code that is published ends a stage where the sum passes its share; only
    a network whose head costs a whole number of blocks tells the difference, and the one that was measured (16 blocks, a head of 4) has
    10 of them on the first of two stages and 5 on the first of four, by its step times and by the memory of its first rank.

    Parameters
    ----------
    count : int
        Blocks of the network, all alike.
    stages : int
    head : float
        Cost of the head, in blocks.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> threshold_blocks(32, 2, 2.2), threshold_blocks(16, 2, 4.0)
    ((18, 14), (10, 6))
    """
    places = _threshold_places(count, stages, head)
    return tuple(places[1 : count + 1].count(stage) for stage in range(stages))


def threshold_last(count: int, stages: int, head: float) -> tuple[int, int]:
    """Stage that computes the loss, and the one that nanotron takes for the last: it runs only where they are one.

    After the blocks come a norm, the head, a change of format and the loss, of which only the head costs anything. A stage ends after
    each of them while the sum of costs is above the stage's share (build_model, which then calls the stage at hand the last).

    Parameters
    ----------
    count, stages : int
    head : float
        As in `threshold_blocks`.

    Returns
    -------
    tuple of two int

    Examples
    --------
    >>> threshold_last(32, 2, 2.2)
    (1, 1)
    >>> threshold_last(16, 16, 4.0)  # stage 15 is left without anything
    (14, 15)
    """
    *_, loss, behind = _threshold_places(count, stages, head)
    return loss, behind


def _threshold_places(count: int, stages: int, head: float) -> list[int]:
    """Stages of the embedding, the blocks, the norm, the head, the change of format and the loss, and the stage at hand after them."""
    total, done, places = count + head, 0.0, [0]
    for position, cost in enumerate((0.0, *(1.0,) * count, 0.0, head, 0.0, 0.0)):
        done += cost
        share = total * (places[-1] + 1) / stages
        # Blocks end a stage where they reach its share, but for the rounding of the head's cost; what follows them has to pass it.
        ends = done >= share * (1.0 - EQUAL) and places[-1] < stages - 1 if position <= count else done > share
        places.append(places[-1] + ends)
    return places

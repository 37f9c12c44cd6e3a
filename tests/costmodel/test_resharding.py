"""Moves between layouts: tensors are laid out element by element, and what every worker must receive is counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from costmodel.device import Device
from costmodel.layers import Layer, Shape
from costmodel.layers.base import params_from
from costmodel.network import Cluster, DeviceGroup, Level
from costmodel.resharding import EdgeGeometry, edge_geometry, edge_times, place
from costmodel.splits import Split, factorisations, split_table

# Seconds are bytes: no latency, one byte per second, one byte per element.
UNIT = Cluster(
    name="unit",
    groups=(
        DeviceGroup(
            device=Device(name="d", peak_flop_per_s={"fp32": 1.0}, memory_bytes=1.0, memory_bandwidth_bytes_per_s=1.0)
        ),
    ),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1.0, latency_s=0.0),),
)


def tensor(shape: Shape) -> Layer:
    params = params_from("input", {"shape": shape})
    return Layer(name="t", kind="input", params=params, inputs=(), input_shapes=(), output_shape=shape)


class Moves:
    """Times of all moves of one tensor, by pair of splits."""

    def __init__(self, shape: Shape, batch: int, workers: int, cluster: Cluster = UNIT) -> None:
        self.table = split_table([workers])
        self.geometry: EdgeGeometry = edge_geometry(self.table)
        forward, backward = edge_times([tensor(shape)], place(self.geometry.pairs, cluster), batch, 1)
        self.forward, self.backward = forward[0], backward[0]

    def pair(self, producer: Split, consumer: Split, *, channelwise: bool) -> int:
        layout = self.geometry.layout_of[self.table.row_of(producer)]
        need = self.geometry.need_of[int(channelwise)][self.table.row_of(consumer)]
        return int(self.geometry.pair(0, layout, need))

    def volumes(self, producer: Split, consumer: Split, *, channelwise: bool = False) -> tuple[float, float]:
        pair = self.pair(producer, consumer, channelwise=channelwise)
        return float(self.forward[pair]), float(self.backward[pair])


# A block: sample, channel and row indices.
Block = tuple[frozenset[int], frozenset[int], frozenset[int]]


def _piece(extent: int, parts: int, k: int) -> frozenset[int]:
    return frozenset(range(k * extent // parts, (k + 1) * extent // parts))


def held(split: Split, extents: tuple[int, int, int]) -> list[Block]:
    """What every rank holds after the producer: the documented rank order ((batch, height), in_channels), out_channels.

    The partial sums of an output share are reduced into as many channel pieces as there are input shares.
    """
    batch, channels, rows = extents
    b, o, i, h = split.degrees
    return [
        (_piece(batch, b, kb), _piece(channels, o * i, ko * i + ki), _piece(rows, h, kh))
        for kb, kh, ki, ko in itertools.product(range(b), range(h), range(i), range(o))
    ]


def needed(split: Split, extents: tuple[int, int, int], *, channelwise: bool) -> list[Block]:
    """What every rank of the consumer reads."""
    batch, channels, rows = extents
    b, o, i, h = split.degrees
    parts = o if channelwise else i
    return [
        (_piece(batch, b, kb), _piece(channels, parts, ko if channelwise else ki), _piece(rows, h, kh))
        for kb, kh, ki, ko in itertools.product(range(b), range(h), range(i), range(o))
    ]


def size(block: Sequence[frozenset[int]]) -> int:
    return math.prod(len(axis) for axis in block)


def common(a: Block, b: Block) -> int:
    return size([x & y for x, y in zip(a, b, strict=True)])


def matched(have: list[Block], want: list[Block]) -> int | None:
    """Largest overlap that every rank can have with what it needs, when the parts of the consumer may go to any rank.

    Which rank computes which part is free: weights lie where they are used. Augmenting paths decide whether all can have it.
    """
    best = max(common(x, y) for x in have for y in want)
    partner: dict[int, int] = {}

    def place(x: int, seen: set[int]) -> bool:
        for y in range(len(want)):
            if y not in seen and common(have[x], want[y]) == best:
                seen.add(y)
                if y not in partner or place(partner[y], seen):
                    partner[y] = x
                    return True
        return False

    return best if all(place(x, set()) for x in range(len(have))) else None


def _nested(producer: Split, consumer: Split, *, channelwise: bool) -> bool:
    """Whether along every axis one degree divides the other, which the formula prices exactly."""
    target = (consumer.batch, consumer.out_channels if channelwise else consumer.in_channels, consumer.height)
    source = (producer.batch, producer.out_channels * producer.in_channels, producer.height)
    return all(x % y == 0 or y % x == 0 for x, y in zip(source, target, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("channelwise", [False, True])
def test_volumes_are_what_the_ranks_must_receive(workers: int, channelwise: bool) -> None:
    """Every pair of splits whose degrees are nested: exactly the elements a rank needs and does not have."""
    extents = (24, 24, 24)
    moves = Moves((24, 24, 2), 24, workers)
    splits = [Split(batch=b, out_channels=o, in_channels=i, height=h) for b, o, i, h in factorisations(workers, 4)]
    known: dict[object, float] = {}
    exact = 0
    for producer, consumer in itertools.product(splits, splits):
        if channelwise and consumer.in_channels > 1:
            continue
        forward, backward = moves.volumes(producer, consumer, channelwise=channelwise)
        assert backward == pytest.approx(
            forward, rel=1e-12, abs=1e-9
        )  # a reduce-scatter moves what an all-gather moves
        key = moves.pair(producer, consumer, channelwise=channelwise)
        if key in known:
            assert known[key] == forward
            continue
        known[key] = forward
        have, want = held(producer, extents), needed(consumer, extents, channelwise=channelwise)
        most = max(common(x, y) for x in have for y in want)
        least = 2 * (size(want[0]) - most)
        if _nested(producer, consumer, channelwise=channelwise):
            assert matched(have, want) == most, (producer, consumer)
            assert forward == pytest.approx(least, rel=1e-12, abs=1e-9), (producer, consumer)
            exact += 1
        else:  # between the best for the luckiest rank and everything that is needed
            assert least - 1e-9 <= forward <= 2 * size(want[0]) + 1e-9, (producer, consumer)
    assert exact >= len(known) * 0.6


@pytest.mark.parametrize("workers", [4, 8])
def test_moves_stay_inside_the_blocks_of_ranks_that_share_samples(workers: int) -> None:
    """With the batch outermost in both layouts, nothing leaves a block of workers / gcd(b, b') neighbouring ranks."""
    extents = (24, 24, 24)
    splits = [Split(batch=b, out_channels=o, in_channels=i, height=h) for b, o, i, h in factorisations(workers, 4)]
    pairs = edge_geometry(split_table([workers])).pairs
    for producer, consumer in itertools.product(splits, splits):
        block = workers // math.gcd(producer.batch, consumer.batch)
        have, want = held(producer, extents), needed(consumer, extents, channelwise=False)
        for x, y in itertools.product(range(workers), range(workers)):
            if x // block != y // block:
                assert common(have[x], want[y]) == 0
    source, target = pairs.source[0].astype(int), pairs.target[0].astype(int)
    blocks = workers // np.gcd(source, target)
    inside = pairs.exchange_group * pairs.exchange_stride <= blocks
    assert np.all(inside | (pairs.exchange_group == 1))


@pytest.mark.parametrize("workers", [2, 3, 8, 12])
def test_equal_layouts_cost_nothing(workers: int) -> None:
    moves = Moves((24, 24, 3), 24, workers)
    for b, o, i, h in factorisations(workers, 4):
        split = Split(batch=b, out_channels=o, in_channels=i, height=h)
        follower = Split(batch=b, out_channels=o * i, height=h)
        assert moves.volumes(split, follower, channelwise=True) == (0.0, 0.0)
        # Column then row: what the output channels of one split is what the input channels of the next need.
        row = Split(batch=b, in_channels=o * i, height=h)
        assert moves.volumes(split, row) == (0.0, 0.0)


def test_known_moves_of_eight_workers() -> None:
    """A tensor of 64 samples x 16 channels x 4 x 4 (16,384 elements) on 8 workers; a share is 2,048."""
    moves = Moves((16, 4, 4), 64, 8)
    data, columns, rows = Split(batch=8), Split(out_channels=8), Split(in_channels=8)
    assert moves.volumes(data, data) == (0.0, 0.0)
    # Batch to channels: 7/8 of a share leaves each worker, and comes back.
    assert moves.volumes(data, rows) == (1792.0, 1792.0)
    assert moves.volumes(data, columns, channelwise=True) == (1792.0, 1792.0)
    assert moves.volumes(columns, data) == (1792.0, 1792.0)
    # Output channels need everything: the other 7 shares.
    assert moves.volumes(data, columns) == (7 * 2048.0, 7 * 2048.0)
    assert moves.volumes(columns, columns) == (7 * 2048.0, 7 * 2048.0)
    # After an input-channel split the sums lie in channel shares.
    assert moves.volumes(rows, rows) == (0.0, 0.0)
    assert moves.volumes(rows, columns) == (7 * 2048.0, 7 * 2048.0)
    # 4 x 2 grid: gather over the two neighbours that split the output channels.
    grid = Split(batch=4, out_channels=2)
    assert moves.volumes(grid, grid) == (2048.0, 2048.0)
    assert moves.volumes(grid, Split(batch=4, in_channels=2)) == (0.0, 0.0)
    # From 4 x 2 to 2 x 4 shares: half of what a worker holds goes to one other.
    assert moves.volumes(grid, Split(batch=2, in_channels=4)) == (1024.0, 1024.0)
    assert moves.volumes(Split(height=4, batch=2), Split(batch=8)) == (1536.0, 1536.0)


def test_uneven_shares_round_up() -> None:
    """10 samples x 3 channels on 4 workers: the largest share has 3 samples, and all channels are gathered from 4 shares of it."""
    moves = Moves((3,), 10, 4)
    assert moves.volumes(Split(batch=4), Split(out_channels=4))[0] == pytest.approx(0.75 * 30)
    assert moves.volumes(Split(batch=4), Split(in_channels=2, batch=2))[0] == pytest.approx(9 * 0.5)
    assert moves.volumes(Split(batch=2, out_channels=2), Split(batch=2, out_channels=2))[0] == pytest.approx(
        0.5 * 5 * 3
    )


def test_gathers_run_between_neighbours_and_wide_exchanges_over_the_slow_level() -> None:
    nodes = Cluster(
        name="nodes",
        groups=UNIT.groups,
        levels=(
            Level(name="node", size=4, bandwidth_bytes_per_s=1.0, latency_s=0.0),
            Level(name="fabric", size=None, bandwidth_bytes_per_s=1e-3, latency_s=0.0),
        ),
    )
    moves = Moves((16, 4, 4), 64, 8, nodes)
    grid = Split(batch=2, out_channels=4)
    assert moves.volumes(grid, grid)[0] == pytest.approx(3 * 2048.0)  # inside a node
    assert moves.volumes(Split(batch=8), Split(batch=2, in_channels=4))[0] == pytest.approx(0.75 * 2048)
    assert moves.volumes(Split(batch=8), Split(in_channels=8))[0] > 1e5


def test_the_last_extent_is_never_split_but_always_moved() -> None:
    """Sequences (features, positions) move all positions."""
    moves = Moves((16, 10), 64, 8)
    assert moves.volumes(Split(batch=8), Split(in_channels=8))[0] == pytest.approx(7 / 8 * 8 * 16 * 10)


def test_several_worker_counts_share_a_geometry() -> None:
    together, apart = split_table([2, 6]), split_table([6])
    both = edge_times([tensor((24, 24, 2))], place(edge_geometry(together).pairs, UNIT), 24, 1)[0][0]
    alone = edge_times([tensor((24, 24, 2))], place(edge_geometry(apart).pairs, UNIT), 24, 1)[0][0]
    geometry, single = edge_geometry(together), edge_geometry(apart)
    for a in range(len(apart.workers)):
        for b in range(len(apart.workers)):
            row_a, row_b = together.row_of(apart.split(a)), together.row_of(apart.split(b))
            for kind in (0, 1):
                x = geometry.pair(1, geometry.layout_of[row_a], geometry.need_of[kind][row_b])
                y = single.pair(0, single.layout_of[a], single.need_of[kind][b])
                assert both[x] == alone[y]

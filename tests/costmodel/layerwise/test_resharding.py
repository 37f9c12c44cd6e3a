"""Moves between layouts: tensors are laid out element by element, and what every worker must receive is counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.layerwise.plan import Split, factorisations, split_table
from costmodel.layerwise.resharding import EdgeGeometry, edge_geometry, edge_times, gather_times, place
from costmodel.network.layers import Shape
from tests.costmodel.network.layers.cases import layer

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


class Moves:
    """Times of all moves of one tensor, by pair of splits."""

    def __init__(self, shape: Shape, batch: int, workers: int, cluster: Cluster = UNIT) -> None:
        self.table = split_table([workers])
        self.geometry: EdgeGeometry = edge_geometry(self.table)
        forward, backward = edge_times([layer("input", shape=shape)], place(self.geometry.pairs, cluster), batch, 1)
        self.forward, self.backward = forward[0], backward[0]

    def pair(self, producer: Split, consumer: Split, *, channelwise: bool) -> int:
        layout = self.geometry.layout_of[self.table.row_of(producer)]
        need = self.geometry.need_of[int(channelwise)][self.table.row_of(consumer)]
        return int(self.geometry.pair(0, layout, need))

    def volumes(self, producer: Split, consumer: Split, *, channelwise: bool = False) -> tuple[float, float]:
        pair = self.pair(producer, consumer, channelwise=channelwise)
        return float(self.forward[pair]), float(self.backward[pair])


def _piece(extent: int, parts: int, k: int) -> frozenset[int]:
    return frozenset(range(k * extent // parts, (k + 1) * extent // parts))


def ranks(split: Split) -> list[tuple[int, int, int, int]]:
    """Indices (batch, height, in_channels, out_channels) of every rank, in the documented order."""
    return list(
        itertools.product(*(range(d) for d in (split.batch, split.height, split.in_channels, split.out_channels)))
    )


class Owned:
    """What every rank holds before and needs after: pieces of samples and rows, and shares of the channels.

    Which channels make up a share is free. Shares that meet on a rank get as much in common as all such pairs can have.
    """

    def __init__(self, producer: Split, consumer: Split, extents: tuple[int, int, int], *, channelwise: bool) -> None:
        batch, self.channels, rows = extents
        self.held_parts = producer.out_channels * producer.in_channels
        self.needed_parts = consumer.out_channels if channelwise else consumer.in_channels
        self.held, self.needed = [], []
        for kb, kh, ki, ko in ranks(producer):
            own = ki * producer.out_channels + ko
            self.held.append((_piece(batch, producer.batch, kb), own, _piece(rows, producer.height, kh)))
        for kb, kh, ki, ko in ranks(consumer):
            wanted = ko if channelwise else ki
            self.needed.append((_piece(batch, consumer.batch, kb), wanted, _piece(rows, consumer.height, kh)))
        meeting = {(x[1], y[1]) for x, y in zip(self.held, self.needed, strict=True)}
        most_of_held = max(sum(1 for x, _ in meeting if x == k) for k in range(self.held_parts))
        most_of_needed = max(sum(1 for _, y in meeting if y == k) for k in range(self.needed_parts))
        self.common = min(
            self.channels / self.held_parts / most_of_held, self.channels / self.needed_parts / most_of_needed
        )

    def most_received(self) -> float:
        """Elements of the rank that receives most: needed less owned."""
        return max(
            len(samples) * (self.channels / self.needed_parts) * len(rows)
            - len(samples & own_samples) * self.common * len(rows & own_rows)
            for (own_samples, _, own_rows), (samples, _, rows) in zip(self.held, self.needed, strict=True)
        )


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 8, 12, 18])
@pytest.mark.parametrize("channelwise", [False, True])
def test_volumes_are_what_the_ranks_must_receive(workers: int, channelwise: bool) -> None:
    """Every pair of splits, nested or not: exactly the elements that the rank that is worst off needs and does not have."""
    extents = (72, 72, 72)
    moves = Moves((72, 72, 2), 72, workers)
    splits = [Split(batch=b, out_channels=o, in_channels=i, height=h) for b, o, i, h in factorisations(workers, 4)]
    for producer, consumer in itertools.product(splits, splits):
        if channelwise and consumer.in_channels > 1:
            continue
        forward, backward = moves.volumes(producer, consumer, channelwise=channelwise)
        # A reduce-scatter moves what an all-gather moves.
        assert backward == pytest.approx(forward, rel=1e-12, abs=1e-9)
        most = Owned(producer, consumer, extents, channelwise=channelwise).most_received()
        assert forward == pytest.approx(2 * most, rel=1e-12, abs=1e-6), (producer, consumer)


@pytest.mark.parametrize("seed", range(6))
def test_random_layouts_of_many_workers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workers = int(rng.choice([16, 24, 30, 36]))
    extent = math.lcm(workers, 72)
    moves = Moves((extent, extent, 1), extent, workers)
    splits = factorisations(workers, 4)
    for _ in range(60):
        producer, consumer = (
            Split(batch=b, out_channels=o, in_channels=i, height=h)
            for b, o, i, h in (splits[int(n)] for n in rng.integers(len(splits), size=2))
        )
        most = Owned(producer, consumer, (extent, extent, extent), channelwise=False).most_received()
        assert moves.volumes(producer, consumer)[0] == pytest.approx(most, rel=1e-12, abs=1e-3), (producer, consumer)


def test_half_of_the_ranks_may_keep_nothing() -> None:
    """Rows in quarters to halves of samples and rows: ranks 1 and 2 need rows that others hold; ranks 0 and 3 keep half of theirs."""
    moves = Moves((1, 4, 1), 4, 4)
    assert moves.volumes(Split(height=4), Split(batch=2, height=2))[0] == pytest.approx(4.0)
    # Channels are another matter: let the first half be the first and the third quarter, and every rank keeps half of what it holds.
    moves = Moves((4, 1, 1), 4, 4)
    assert moves.volumes(Split(out_channels=4), Split(batch=2, in_channels=2))[0] == pytest.approx(2.0)
    # Two ranks that need the same half of the channels hold different ones: neither can have all of its own in it.
    grid = Split(batch=2, out_channels=2)
    assert moves.volumes(grid, Split(in_channels=2, out_channels=2))[0] == pytest.approx(6.0)


@pytest.mark.parametrize("workers", [4, 8])
def test_moves_stay_inside_the_blocks_of_ranks_that_share_samples(workers: int) -> None:
    """With the batch outermost in both layouts, nothing leaves a block of workers / gcd(b, b') neighbouring ranks."""
    splits = [Split(batch=b, out_channels=o, in_channels=i, height=h) for b, o, i, h in factorisations(workers, 4)]
    pairs = edge_geometry(split_table([workers])).pairs
    for producer, consumer in itertools.product(splits, splits):
        block = workers // math.gcd(producer.batch, consumer.batch)
        owned = Owned(producer, consumer, (24, 24, 24), channelwise=False)
        for x, y in itertools.product(range(workers), range(workers)):
            if x // block != y // block:
                assert not owned.held[x][0] & owned.needed[y][0]
    source, target = pairs.source[:, 0].astype(int), pairs.target[:, 0].astype(int)
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
    both = edge_times([layer("input", shape=(24, 24, 2))], place(edge_geometry(together).pairs, UNIT), 24, 1)[0][0]
    alone = edge_times([layer("input", shape=(24, 24, 2))], place(edge_geometry(apart).pairs, UNIT), 24, 1)[0][0]
    geometry, single = edge_geometry(together), edge_geometry(apart)
    for a in range(len(apart.workers)):
        for b in range(len(apart.workers)):
            row_a, row_b = together.row_of(apart.split(a)), together.row_of(apart.split(b))
            for kind in (0, 1):
                x = geometry.pair(1, geometry.layout_of[row_a], geometry.need_of[kind][row_b])
                y = single.pair(0, single.layout_of[a], single.need_of[kind][b])
                assert both[x] == alone[y]


@pytest.mark.parametrize("shape", [(6, 5, 3), (7,)])
def test_the_gather_is_the_consumers_part_of_every_move(shape: Shape) -> None:
    """No move takes less than the gather over the consumer's output channels, and exactly that where nothing is exchanged before."""
    moves = Moves(shape, 9, 12)
    forward, backward = gather_times([layer("input", shape=shape)], moves.table, UNIT, 9, 1)
    free = moves.geometry.pairs.moved == 0.0
    tight = 0
    for producer, consumer in itertools.product(range(len(moves.table.workers)), repeat=2):
        pair = moves.pair(moves.table.split(producer), moves.table.split(consumer), channelwise=False)
        assert moves.forward[pair] >= forward[0, consumer]
        assert moves.backward[pair] >= backward[0, consumer]
        if free[pair]:
            tight += 1
            assert moves.forward[pair] == forward[0, consumer]
            assert moves.backward[pair] == backward[0, consumer]
    assert tight >= len(moves.table.workers)
    assert np.any(forward > 0)

"""Where groups of ranks lie, by enumerating ranks and ports one by one."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster, ClusterError, DeviceGroup, Level, link_rows, span
from costmodel.hardware.device import Device
from costmodel.layerwise.detail import layer_links
from costmodel.layerwise.plan import Plan, Split
from costmodel.mesh.detail import mesh_links
from costmodel.mesh.plan import MeshPlan
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import two_level_cluster

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
OTHER = Device(name="e", peak_flop_per_s={"fp32": 2e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)


def level(name: str, size: int | None, bandwidth: float = 1e9, latency: float = 1e-6, shared_by: int = 1) -> Level:
    return Level(name=name, size=size, bandwidth_bytes_per_s=bandwidth, latency_s=latency, shared_by=shared_by)


def cluster(*levels: Level, count: int | None = None) -> Cluster:
    return Cluster(name="c", groups=(DeviceGroup(device=DEVICE, num_devices=count),), levels=levels)


def members(n: int, t: int, block: int = 0) -> list[int]:
    return [block * n * t + i * t for i in range(n)]


def units(ranks: list[int], capacity: int) -> Counter[int]:
    return Counter(rank // capacity for rank in ranks)


THREE = cluster(level("board", 2), level("node", 4), level("network", None))


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_group_that_starts_at_rank_zero(n: int, t: int) -> None:
    where = span(THREE, n, t)
    ranks = members(n, t)
    per_board, per_node = units(ranks, 2), units(ranks, 8)
    assert where.units_inside.tolist() == [n, len(per_board), len(per_node)]
    assert where.most_inside.tolist() == [1, max(per_board.values()), max(per_node.values())]
    assert where.fewest_inside.tolist() == [1, min(per_board.values()), min(per_node.values())]
    boards_of_node: dict[int, set[int]] = defaultdict(set)
    for rank in ranks:
        boards_of_node[rank // 8].add(rank // 2)
    fan_out = [max(per_board.values()), max(len(boards) for boards in boards_of_node.values()), len(per_node)]
    assert where.fan_out.tolist() == fan_out


@given(st.integers(1, 40), st.integers(1, 20))
def test_any_stride_is_laid_out_without_contradiction(n: int, t: int) -> None:
    where = span(THREE, n, t)
    assert np.prod(where.fan_out) >= n
    assert np.all(where.fan_out >= 1)
    assert np.all(where.most_inside >= where.fewest_inside)
    assert np.all(np.diff(where.units_inside) <= 0)
    assert np.all(where.most_bytes_per_s >= where.fewest_bytes_per_s)
    assert np.all(where.fewest_bytes_per_s >= where.single_bytes_per_s)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_worst_group_counts_where_all_ranks_are_known(n: int, t: int, blocks: int) -> None:
    workers = n * t * blocks
    where = span(THREE, n, t, workers)
    worst = max(len({(b * n * t + r) // 8 for r in range(n * t)}) for b in range(blocks))
    assert where.units_inside[2] >= min(worst, n) or t > 1
    if t == 1 and blocks >= 8:  # all phases occur
        assert where.units_inside[2] == worst


def test_three_of_eight_straddle() -> None:
    two = cluster(level("node", 8), level("network", None))
    assert span(two, 3, 1).fan_out.tolist() == [3, 1]
    assert span(two, 3, 1, 3).fan_out.tolist() == [3, 1]
    crossing = span(two, 3, 1, 12)  # ranks 6, 7 and 8
    assert crossing.fan_out.tolist() == [2, 2]
    assert crossing.most_inside[1] == 2
    assert crossing.fewest_inside[1] == 1


def shared_bandwidth(n: int, t: int, per_node: int, shared_by: int, port: float) -> float:
    """Bandwidth of one group out of its emptiest node: every port is divided among the groups with a member on it."""
    everyone = {rank: (rank // (n * t), rank % t) for rank in range(n * t)}
    nodes: dict[int, float] = {}
    for node in range(-(-n * t // per_node)):
        ranks = range(node * per_node, min((node + 1) * per_node, n * t))
        if not any(everyone[r] == (0, 0) for r in ranks):
            continue
        total = 0.0
        for p in range(0, per_node, shared_by):
            groups = {everyone[r] for r in ranks if p <= r % per_node < p + shared_by}
            if (0, 0) in groups:
                total += port / len(groups)
        nodes[node] = total
    return min(nodes.values())


@pytest.mark.parametrize("shared_by", [1, 2, 4, 8])
@pytest.mark.parametrize("t", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", [2, 3, 4, 8, 12, 16, 32])
def test_ports_are_divided_among_the_groups_that_use_them(n: int, t: int, shared_by: int) -> None:
    port = 16e9
    two = cluster(level("node", 8, 1e15), level("network", None, port / shared_by, shared_by=shared_by))
    where = span(two, n, t)
    if where.fan_out[1] == 1 or (n * t) % 8:
        return  # inside a node, or the last node is not full
    assert where.fewest_bytes_per_s[1] == pytest.approx(shared_bandwidth(n, t, 8, shared_by, port), rel=1e-12)


def test_a_flat_ring_uses_the_whole_shared_adapter() -> None:
    two = cluster(level("node", 8, 100e9), level("network", None, 1.25e9 / 8, shared_by=8))
    assert span(two, 16, 1).fewest_bytes_per_s[1] == 1.25e9
    assert span(two, 2, 8).fewest_bytes_per_s[1] == 1.25e9 / 8  # eight groups at a time
    assert span(two, 2, 1, 2).fewest_bytes_per_s[0] == 100e9
    assert span(two, 12, 1).fewest_bytes_per_s[1] == 1.25e9  # four ranks in the second node have it to themselves


def test_nothing_leaves_faster_than_it_gets_out() -> None:
    slow_inside = cluster(level("node", 4, 1e9), level("network", None, 10e9))
    assert span(slow_inside, 8, 1).fewest_bytes_per_s.tolist() == [1e9, 4e9]
    assert span(slow_inside, 8, 1).single_bytes_per_s.tolist() == [1e9, 1e9]


def test_shapes_broadcast() -> None:
    where = span(THREE, np.arange(1, 5)[:, None], np.array([1, 8]))
    assert where.fan_out.shape == (3, 4, 2)
    for i in range(4):
        for j, t in enumerate((1, 8)):
            assert span(THREE, i + 1, t).fan_out.tolist() == where.fan_out[:, i, j].tolist()


def test_efficiency_and_ideal_links() -> None:
    lossy = Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-6, efficiency=0.5)
    assert span(cluster(lossy), 2, 1).fewest_bytes_per_s[0] == 0.5e9
    ideal = cluster(lossy).with_ideal_links(0.75).levels[0]
    assert (ideal.latency_s, ideal.port_bytes_per_s) == (0.0, 0.75e9)


def test_most_devices() -> None:
    assert THREE.max_devices is None
    assert cluster(level("node", 8)).max_devices == 8
    assert cluster(level("node", 8), level("network", 4)).max_devices == 32
    assert cluster(level("node", 8), level("network", None), count=20).max_devices == 20
    assert cluster(level("node", 8), level("network", 4), count=20).max_devices == 20


def test_several_groups() -> None:
    mixed = Cluster(
        name="mixed",
        groups=(DeviceGroup(device=DEVICE, num_devices=8), DeviceGroup(device=OTHER, num_devices=16)),
        levels=(level("node", 8), level("network", None)),
    )
    assert mixed.max_devices == 24
    with pytest.raises(ClusterError, match="several kinds of devices: d, e"):
        _ = mixed.device
    with pytest.raises(ClusterError, match="several kinds"):
        mixed.with_device(OTHER)
    assert cluster(level("node", 8)).with_device(OTHER).device is OTHER


def test_contradictions_are_refused() -> None:
    with pytest.raises(ClusterError, match="only the outermost level may be unlimited"):
        cluster(level("node", None), level("network", 4))
    with pytest.raises(ClusterError, match="shared by 3 devices"):
        cluster(level("node", 8), level("network", None, shared_by=3))
    with pytest.raises(ClusterError, match="shared by 2 devices"):
        cluster(level("node", 8, shared_by=2))  # devices reach the innermost level by ports of their own
    with pytest.raises(ClusterError, match="no levels"):
        cluster()
    with pytest.raises(ClusterError, match="no devices"):
        Cluster(name="c", groups=(), levels=(level("node", 8),))
    for changes in ({"size": 0}, {"bandwidth": 0.0}, {"bandwidth": float("nan")}, {"latency": -1.0}, {"shared_by": 0}):
        with pytest.raises(ClusterError, match="level 'x'"):
            level("x", **({"size": 8} | changes))  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="efficiency"):
        Level(name="x", size=8, bandwidth_bytes_per_s=1.0, latency_s=0.0, efficiency=1.5)


# --- What a step waits for the network, by link: the waits are the cost model's, the links those that the groups span ---------------------


CLUSTER = two_level_cluster(per_node=4, inside=300e9, outside=25e9)


@pytest.mark.parametrize(
    ("group", "stride", "is_inside"), [(2, 1, True), (4, 1, True), (2, 2, True), (8, 1, False), (2, 4, False)]
)
def test_a_group_uses_the_outermost_level_that_it_spans(group: int, stride: int, is_inside: bool) -> None:
    (row,) = link_rows(CLUSTER, [("tensor parallel", span(CLUSTER, group, stride), stride, 0.0)])
    assert row.level == CLUSTER.levels[0 if is_inside else 1].name
    assert row.bytes_per_s == pytest.approx(300e9 if is_inside else 25e9)


@pytest.mark.parametrize(("group", "stride"), [(16, 1), (4, 4), (8, 2)])
def test_ranks_share_a_port_where_all_of_them_use_it(group: int, stride: int) -> None:
    """Four devices behind one port: a quarter of it each, however many ranks of the group lie in a node."""
    port = replace(CLUSTER.levels[1], bandwidth_bytes_per_s=2e9, shared_by=4, efficiency=0.8)
    cluster = replace(CLUSTER, levels=(CLUSTER.levels[0], port))
    (row,) = link_rows(cluster, [("data parallel", span(cluster, group, stride, 16), stride, 0.0)])
    assert row.bytes_per_s == pytest.approx(1.6e9)


def test_tensor_ranks_stay_in_the_node_and_copies_do_not() -> None:
    model = make.model_of(make.gpt(blocks=4, tied=False), 8, CLUSTER)
    rows = {row.traffic: row for row in mesh_links(model, MeshPlan(tp=4, dp_replicate=4, num_micro_batches=2))}
    assert set(rows) == {"tensor parallel", "data parallel, copies"}
    assert (rows["tensor parallel"].group, rows["tensor parallel"].stride) == (4, 1)
    assert rows["tensor parallel"].level == CLUSTER.levels[0].name
    assert (rows["data parallel, copies"].group, rows["data parallel, copies"].stride) == (4, 4)
    assert rows["data parallel, copies"].level == CLUSTER.levels[1].name


@pytest.mark.exact
def test_waits_add_up_to_the_exposed_communication() -> None:
    rng = random.Random(7)
    for _ in range(40):
        model = make.model_of(make.network(rng), 12, make.cluster(rng), make.assumptions(rng))
        plan = make.random_plan(rng, make.shape_of(model))
        costs = model.evaluate_plans([plan])
        names = ("tp", "cp", "ep", "pp", "dp")
        waiting = sum(float(getattr(costs, f"{name}_exposed_s")[0]) for name in names)
        # Expert weights may have copies where the dense ones have none, and inner tensor parallelism of experts has no row.
        if plan.ep == plan.etp == 1 and not make.shape_of(model).experts:
            assert sum(row.waiting_s for row in mesh_links(model, plan)) == pytest.approx(waiting)


def test_layers_are_gathered_by_their_groups() -> None:
    splits = (Split(batch=8), Split(batch=8), Split(batch=2, out_channels=4))
    plan = Plan(workers=8, num_micro_batches=1, splits=splits, collectives=("ring",) * 3)
    rows = layer_links(CLUSTER, plan, {0: 0.1, 1: 0.2, 2: 0.4}, 0.5)
    found = {(row.traffic, row.group, row.stride): row.waiting_s for row in rows}
    assert found == pytest.approx(
        {("gradient exchange", 8, 1): 0.3, ("gradient exchange", 2, 4): 0.4, ("activations", 8, 1): 0.5}
    )
    assert {row.level for row in rows} == {
        CLUSTER.levels[1].name
    }  # pairs that are a node apart, and eight over two nodes

"""Domains used in part and groups that lie across their ends, by writing the ranks of every group down.

A domain of 12 devices, of which a job uses g; ranks fill g devices of a domain, then the next. Nothing here asks `span` how ranks lie.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from costmodel.hardware.cluster import AT_BEST, Cluster, DeviceGroup, Level, span
from costmodel.hardware.collectives import OPERATIONS, collective_s
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host
from costmodel.mesh.communication import Division, GroupTimes, mesh_strides
from costmodel.mesh.plan import ORDERS, MeshBatch, MeshPlan
from planner.files.loading import load_cluster

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
SIZE, INSIDE, OUTSIDE, NEAR_S, FAR_S = 12, 100e9, 10e9, 1e-6, 5e-6
RACKS = Cluster(
    name="racks",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(
        Level(name="nvlink", size=SIZE, bandwidth_bytes_per_s=INSIDE, latency_s=NEAR_S),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=OUTSIDE, latency_s=FAR_S),
    ),
    host=Host(devices=2, memory_bytes=1e12),
)


def groups(size: int, stride: int, workers: int) -> Iterator[list[int]]:
    for first in range(0, workers, size * stride):
        for n in range(stride):
            yield [first + n + i * stride for i in range(size)]


def ranks_by_domain(group: list[int], used: int) -> Counter[int]:
    return Counter(rank // used for rank in group)


def every_group(most: int) -> Iterator[tuple[int, int, int]]:
    """Ranks of a group, their distance, and all ranks."""
    for workers in range(2, most + 1):
        for size in (n for n in range(2, workers + 1) if workers % n == 0):
            for stride in (t for t in range(1, workers // size + 1) if (workers // size) % t == 0):
                yield size, stride, workers


# -- where groups lie -------------------------------------------------------------------------------------------------------


def test_no_group_is_worse_off_than_the_span_says_and_most_are_as_it_says() -> None:
    exact = Counter[bool]()
    for size, stride, workers in every_group(48):
        for used in range(2, SIZE + 1):
            spread = [ranks_by_domain(group, used) for group in groups(size, stride, workers)]
            most = max(map(len, spread))
            fewest = min((min(ranks.values()) for ranks in spread if len(ranks) > 1), default=size)
            where = span(RACKS, size, stride, workers, used)
            assert where.units_inside[1] >= most, (size, stride, workers, used)
            assert where.fewest_inside[1] <= fewest or where.units_inside[1] > most
            is_exact = (where.units_inside[1], where.fewest_inside[1]) == (most, fewest)
            exact[bool(is_exact)] += 1
            block = size * stride
            if used % block == 0 or (block % used == 0 and (used % stride == 0 or stride % used == 0)):
                assert is_exact, (size, stride, workers, used)
    assert exact[True] / exact.total() > 0.96


def test_whole_meshes_lie_no_worse_than_the_span_says() -> None:
    """Every order of the ranks; shards of an order that puts context parallelism outside are even on average only."""
    worse = Counter[str]()
    seen = Counter[str]()
    for tp, cp, pp, dp in itertools.product((1, 2, 4), (1, 2, 3), (1, 2, 3, 4), (1, 2, 4, 6)):
        workers = tp * cp * pp * dp
        if not 2 <= workers <= 36:
            continue
        for order, shard in itertools.product(ORDERS, (n for n in (1, 2, 3, 6) if dp % n == 0)):
            zero = int(shard * cp > 1)
            plan = MeshPlan(tp=tp, cp=cp, pp=pp, dp_replicate=dp // shard, dp_shard=shard, zero_stage=zero, order=order)
            for kind, (size, stride, lists) in _groups_of(plan).items():
                for used in (6, 8, 12):
                    spread = [ranks_by_domain(ranks, used) for ranks in lists]
                    most = max(map(len, spread))
                    fewest = min((min(ranks.values()) for ranks in spread if len(ranks) > 1), default=size)
                    where = span(RACKS, size, stride, workers, used)
                    seen[kind] += 1
                    worse[kind] += bool(where.units_inside[1] < most or (most > 1 and where.fewest_inside[1] > fewest))
    assert min(seen.values()) > 500
    assert worse.pop("shard") < 0.02 * seen["shard"]
    assert not worse.total()


def _groups_of(plan: MeshPlan) -> dict[str, tuple[int, int, list[list[int]]]]:
    """Kind of group -> ranks of one and their distance as the cost model has them, and all groups as lists of ranks."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    ranks: dict[tuple[int, ...], int] = {}
    for rank, place in enumerate(itertools.product(*(range(sizes[d]) for d in reversed(plan.order.split("-"))))):
        where = dict(zip(reversed(plan.order.split("-")), place, strict=True))
        ranks[tuple(where[d] for d in sizes)] = rank
    batch = MeshBatch.from_plans([plan])
    stride, division = {name: int(value[0]) for name, value in mesh_strides(batch).items()}, Division.of(batch)

    def lists(alike: Callable[[int, int, int, int], tuple[int, ...]]) -> list[list[int]]:
        found = defaultdict(list)
        for place, rank in ranks.items():
            found[alike(*place)].append(rank)
        return list(found.values())

    shard = plan.dp_shard
    kinds = {
        "tp": (plan.tp, 1, lists(lambda t, c, d, p: (c, d, p))),
        "cp": (plan.cp, stride["cp"], lists(lambda t, c, d, p: (t, d, p))),
        "pp": (plan.pp, stride["pp"], lists(lambda t, c, d, p: (t, c, d))),
    }
    if plan.zero_stage:
        kinds["shard"] = (
            int(division.shard[0]),
            int(division.shard_stride[0]),
            lists(lambda t, c, d, p: (t, p, d // shard)),
        )
        copies = lists(lambda t, c, d, p: (t, p, c, d % shard))
    else:
        copies = lists(lambda t, c, d, p: (t, p))
    kinds["copies"] = int(division.replicate[0]), int(division.replicate_stride[0]), copies
    assert all(len(group) == size for size, _, found in kinds.values() for group in found)
    return {kind: value for kind, value in kinds.items() if value[0] > 1}


# -- how long they take -----------------------------------------------------------------------------------------------------


def ring_s(group: list[int], used: int, size_bytes: float) -> float:
    """Domain by domain around a ring, edge by edge; as many rings as devices of the emptiest domain have adapters."""
    ranks = ranks_by_domain(group, used)
    n, domains = len(group), len(ranks)
    edges_s = n * NEAR_S if domains == 1 else (n - domains) * NEAR_S + domains * FAR_S
    rate = INSIDE if max(ranks.values()) > 1 else np.inf
    if domains > 1:
        rate = min(rate, OUTSIDE * min(ranks.values()))
    return (n - 1) / n * (size_bytes / rate + edges_s)


def exchange_s(group: list[int], used: int, size_bytes: float) -> float:
    """Every rank sends a share to every other, message by message: the busiest adapter, and the latency of all partners."""
    domain = [rank // used for rank in group]
    n = len(group)
    far = [sum(other != mine for other in domain) for mine in domain]
    sent_s = max(size_bytes / n * count / OUTSIDE for count in far)
    if any(count < n - 1 for count in far):
        sent_s = max(sent_s, size_bytes / n * (n - 1) / INSIDE)
    return sent_s + max(count * FAR_S + (n - 1 - count) * NEAR_S for count in far)


@pytest.mark.parametrize(
    ("operation", "name", "walked"), [("reduce_scatter", "ring", ring_s), ("all_to_all", "pairwise", exchange_s)]
)
def test_collectives_of_the_worst_group(
    operation: str, name: str, walked: Callable[[list[int], int, float], float]
) -> None:
    equal = total = 0
    for size, stride, workers in every_group(40):
        for used in (8, 9, 12):
            where = span(RACKS, size, stride, workers, used)
            for size_bytes in (1e3, 1e9):
                slowest = max(walked(group, used, size_bytes) for group in groups(size, stride, workers))
                time = float(collective_s(operation, name, size_bytes, where, RACKS))
                assert time >= slowest * (1 - 1e-9), (size, stride, workers, used, size_bytes)
                equal += abs(time - slowest) <= 1e-9 * slowest
                total += 1
    assert equal / total > 0.95


NVL72 = load_cluster("gb200-nvl72").cluster


@pytest.mark.parametrize(
    ("operation", "name", "stride", "size_bytes", "used", "expected_ms"),
    [
        # 64 ranks 8 apart. 8 domains of 8 ranks: 56 edges of 4 us and 8 of 10 us, and 8 adapters of 47.5 GB/s.
        ("reduce_scatter", "ring", 8, 1e9, 64, 63 / 64 * (1e3 / (8 * 47.5) + 0.304)),
        # Of 72: 9 ranks in 7 domains and one in the last, which has one adapter.
        ("reduce_scatter", "ring", 8, 1e9, 72, 63 / 64 * (1e3 / 47.5 + 0.304)),
        # Neighbours: inside a domain; or 56 of them in another one than 8.
        ("all_to_all", "pairwise", 1, 64e6, 64, 63 / 64 * 64 / 738 + 63 * 4e-3),
        ("all_to_all", "pairwise", 1, 64e6, 72, 56 / 64 * 64 / 47.5 + 7 * 4e-3 + 56 * 10e-3),
    ],
)
def test_groups_of_64_on_racks_of_72_by_hand(
    operation: str, name: str, stride: int, size_bytes: float, used: int, expected_ms: float
) -> None:
    where = span(NVL72, 64, stride, 512, used)
    assert 1e3 * float(collective_s(operation, name, size_bytes, where, NVL72)) == pytest.approx(expected_ms, rel=1e-9)


def test_adapters_that_idle_devices_would_share_serve_those_in_use() -> None:
    one_adapter = Cluster(
        name="c",
        groups=RACKS.groups,
        levels=(
            RACKS.levels[0],
            Level(name="fabric", size=None, bandwidth_bytes_per_s=1e9, latency_s=FAR_S, shared_by=6),
        ),
        host=RACKS.host,
    )
    # Two adapters of 6 GB/s for 12 devices. Eight in use reach both; four one, which is theirs alone.
    for used, expected in ((12, 12e9), (8, 12e9), (4, 6e9)):
        assert span(one_adapter, 24, 1, 24, used).fewest_bytes_per_s[1] == expected


# -- what nothing beats -----------------------------------------------------------------------------------------------------


def test_no_share_touches_fewer_domains_or_has_more_in_the_emptiest() -> None:
    for size, stride, workers in every_group(40):
        best = span(RACKS, size, stride, workers, AT_BEST)
        for used in range(1, SIZE + 1):
            spread = [ranks_by_domain(group, used) for group in groups(size, stride, workers)]
            assert max(map(len, spread)) >= best.units_inside[1]
            if best.units_inside[1] > 1:
                assert min(min(ranks.values()) for ranks in spread if len(ranks) > 1) <= best.fewest_inside[1]


def random_cluster(rng: np.random.Generator) -> Cluster:
    """Two or three levels, of links that are slower the further out they are, or hardly; with ports of their own, or shared."""
    rate, latency_s = rng.uniform(20, 900) * 1e9, rng.uniform(0.5, 5) * 1e-6
    levels = [Level(name="inner", size=int(rng.choice([6, 8, 12])), bandwidth_bytes_per_s=rate, latency_s=latency_s)]
    for name, size in (("pod", int(rng.integers(2, 5))), ("fabric", None)):
        if name == "fabric" or rng.random() < 0.5:
            rate, latency_s = rate / rng.uniform(1, 20), latency_s * rng.uniform(1, 5)
            shared_by = int(rng.choice([1, 2]))
            summed = float(rng.choice([0.0, 0.4]))
            more = {"shared_by": shared_by, "in_network": summed, "ring_step_s": float(rng.choice([0.0, 1e-5]))}
            levels.append(Level(name=name, size=size, bandwidth_bytes_per_s=rate, latency_s=latency_s, **more))
    return Cluster(name="c", groups=RACKS.groups, levels=tuple(levels), host=Host(devices=2, memory_bytes=1e12))


@pytest.mark.parametrize("seed", range(12))
def test_no_group_is_quicker_than_the_best_that_any_share_allows(seed: int) -> None:
    """On every cluster, whatever is used of its domains: so bounds of a search hold for stated shares, too."""
    rng = np.random.default_rng(seed)
    times = GroupTimes(cluster=random_cluster(rng))
    size = times.cluster.domain_size
    assert size is not None
    keys = np.array(list(every_group(48)))
    keys = keys[rng.permutation(len(keys))[:300]]
    best = times.find(keys[:, 0], keys[:, 1], np.zeros(len(keys), dtype=np.int64))
    for used in range(1, size + 1):
        plans = [MeshPlan(dp_replicate=int(n), domain_gpus=used) for n in keys[:, 2]]
        here = times.find(keys[:, 0], keys[:, 1], times.places(MeshBatch.from_plans(plans)))
        assert np.all(times.domains(here) >= times.domains(best))
        for operation in OPERATIONS:
            for size_bytes in (1e2, 1e6, 1e9):
                message = np.full(len(keys), size_bytes)
                assert np.all(times.time_s(operation, here, message) >= times.time_s(operation, best, message))


@pytest.mark.parametrize("name", ["dgx-h100", "gb200-nvl72", "frontier", "tpu-v5e-pod"])
def test_ranks_that_are_further_apart_are_no_quicker(name: str) -> None:
    """What `MeshModel.work_s` takes for granted: context- and expert-parallel ranks are best off as neighbours, whatever is used."""
    times = GroupTimes(cluster=load_cluster(name).cluster)
    size = times.cluster.domain_size
    assert size is not None
    for cp, tp, used in itertools.product((2, 3, 4, 8, 16, 32), (1, 2, 3, 4, 8), (size, size * 8 // 9)):
        apart = tp * np.array([1, 2, 3, 4, 6, 8, 16, 64])
        best = times.find(np.array([cp]), np.array([tp]), np.array([0]))
        plans = [MeshPlan(dp_replicate=2 * cp * int(t), domain_gpus=used) for t in apart]
        here = times.find(np.full_like(apart, cp), apart, times.places(MeshBatch.from_plans(plans)))
        for operation in ("point_to_point", "all_gather", "reduce_scatter", "all_to_all"):
            for size_bytes in (1e3, 1e9):
                least = times.time_s(operation, best, np.array([size_bytes]))[0]
                found = times.time_s(operation, here, np.full(len(apart), size_bytes))
                assert np.all(found >= least * (1 - 1e-9)), (cp, tp, used, operation, size_bytes)


# -- how much of a domain is used -------------------------------------------------------------------------------------------


def launcher_share(gpus: int) -> int:
    """GPUs of a segment as NVIDIA's launcher asks for them (Megatron-Bridge, scripts/performance/utils/executors.py, slurm_executor)."""
    nodes = gpus // 4
    return 4 * (nodes if nodes <= 18 else next(s for s in range(18, 0, -1) if nodes % s == 0))


@pytest.mark.parametrize("gpus", [128, 256, 512, 576, 1024, 2048, 2496, 5120, 8192])
def test_a_rack_is_shared_as_the_launcher_does(gpus: int) -> None:
    racks = load_cluster("gb200-nvl72").cluster
    assert racks.share(gpus) == launcher_share(gpus) == racks.shares(gpus)[0]


@pytest.mark.parametrize(
    ("name", "workers", "shares"),
    [
        ("gb200-nvl72", 72, ()),
        ("gb200-nvl72", 74, (72,)),  # no whole trays share it out
        ("gb200-nvl72", 576, (72, 64, 48)),
        ("dgx-h100", 8, ()),
        ("dgx-h100", 12, (8,)),  # a node is filled
        ("tpu-v4-pod", 8192, (4096,)),
        ("frontier", 16, (8,)),
        ("ethernet-10g", 64, ()),
    ],
)
def test_shares_of_a_domain(name: str, workers: int, shares: tuple[int, ...]) -> None:
    assert load_cluster(name).cluster.shares(workers) == shares


def test_shares_need_domains() -> None:
    eight = Cluster(
        name="c",
        groups=RACKS.groups,
        levels=(RACKS.levels[0], Level(name="fabric", size=3, bandwidth_bytes_per_s=1e9, latency_s=FAR_S)),
        host=RACKS.host,
    )
    assert RACKS.shares(32) == (8, 12)
    assert eight.shares(32) == (12,)  # four domains of 8 are more than there are

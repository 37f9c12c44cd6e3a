"""Small networks, random clusters, and brute force over mixed plans."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, count, islice, permutations, product

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.evaluate import cost_plans
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MIXED_ORDERS, MixedPipeline, MixedPlan, MixedStage
from costmodel.network.graph import Graph
from costmodel.workload import Workload
from strategies.mesh.settings import Bounds
from strategies.mixed.settings import MixedSettings
from tests.networks import roofline_workload
from tests.strategies.mesh.brute_force import compositions
from tests.strategies.mesh.networks import decoder


def workload_of(graph: Graph, batch: int, device: Device, precision: str = "fp16") -> Workload:
    # Without a context, memory limits can be tight for small networks.
    return roofline_workload(graph, device, batch, precision=precision, optimizer="adam", context_bytes=0)


def device_of(name: str, speed: float, memory_bytes: float, formats: Sequence[str] = ("fp32", "fp16")) -> Device:
    peaks = {key: speed * (1.0 if key == "fp32" else 4.0) * 1e11 for key in formats}
    return Device(
        name=name,
        peak_flop_per_s=peaks,
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=speed * 1e10,
        launch_overhead_s=1e-7,
    )


def random_cluster(rng: random.Random, groups: int, most_devices: int, memory_bytes: Sequence[float]) -> Cluster:
    """Groups of whole nodes of two, on a fabric; the last level is slow."""
    counts = [2] * groups
    while sum(counts) + 2 <= most_devices and rng.random() < 0.6:
        counts[rng.randrange(groups)] += 2
    node = Level(name="node", size=2, bandwidth_bytes_per_s=rng.choice([1e9, 1e10]), latency_s=1e-6)
    fabric = Level(
        name="fabric",
        size=None,
        bandwidth_bytes_per_s=rng.choice([1e7, 1e8, 1e9]),
        latency_s=rng.choice([1e-6, 1e-4]),
        shared_by=rng.choice([1, 2]),
    )
    made = tuple(
        DeviceGroup(
            device=device_of(f"d{g}", rng.choice([1.0, 1.5, 2.0, 3.7]), rng.choice(memory_bytes)), num_devices=count
        )
        for g, count in enumerate(counts)
    )
    return Cluster(name="random", groups=made, levels=(node, fabric))


# -- brute force ------------------------------------------------------------------------------------------------------------


def stage_rows(
    groups: Sequence[int], tps: Sequence[int], counts: Sequence[int], blocks: int
) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Group, tp and blocks of every stage."""
    flat = [(g, tp) for g, tp, n in zip(groups, tps, counts, strict=True) for _ in range(n)]
    for division in compositions(blocks, len(flat)):
        yield tuple((g, tp, k) for (g, tp), k in zip(flat, division, strict=True))


def recomputations(row: tuple[int, int, int], allowed: Sequence[str]) -> list[MixedStage]:
    g, tp, k = row
    stages = [MixedStage(group=g, tp=tp, blocks=k, recompute=name) for name in allowed if name != "full"]
    if "full" in allowed:
        stages += [MixedStage(group=g, tp=tp, blocks=k, recompute="full", recompute_blocks=n) for n in range(1, k + 1)]
    return stages


def tp_degrees(settings: MixedSettings) -> list[int]:
    """Of nodes of two devices."""
    return [tp for tp in (1, 2) if settings.tp.allows(tp)]


def subsets_in_parts(groups: Sequence[int]) -> set[frozenset[frozenset[int]]]:
    """Sets of disjoint sets of groups, by labelling every group with a part or none."""
    found = set()
    for labels in product(range(-1, len(groups)), repeat=len(groups)):
        parts = frozenset(
            frozenset(g for g, label in zip(groups, labels, strict=True) if label == p) for p in set(labels) if p >= 0
        )
        if parts:
            found.add(parts)
    return found


def overlapping_pairs(groups: Sequence[int]) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Two different sets with a group in common."""
    sets = [frozenset(g for g in groups if mask >> g & 1) for mask in range(1, 1 << len(groups))]
    return [(a, b) for a, b in combinations(sets, 2) if a & b]


def all_plans(model: MixedModel, settings: MixedSettings, degrees: Sequence[int]) -> Iterator[MixedPlan]:
    """Every plan of the space that `MixedSettings` describes, by plain loops."""
    batch, blocks = model.shape.global_batch, model.shape.num_blocks
    devices = [group.num_devices or 0 for group in model.cluster.groups]
    for parts in chain(subsets_in_parts(range(len(devices))), overlapping_pairs(range(len(devices)))):
        lists = []
        for part in parts:
            shapes = []
            for groups in permutations(sorted(part)):
                for tps in product(degrees, repeat=len(groups)):
                    for counts in product(range(1, blocks + 1), repeat=len(groups)):
                        if sum(counts) > blocks:
                            continue
                        for replicas in range(1, batch + 1):
                            if any(
                                n * tp * replicas > devices[g] for g, tp, n in zip(groups, tps, counts, strict=True)
                            ):
                                continue
                            shapes += [(groups, tps, counts, replicas, b) for b in settings.micro_batches]
            lists.append(shapes)
        for chosen in product(*lists):
            if _is_enough(devices, chosen):
                yield from _plans_of(chosen, batch, blocks, settings)


def _is_enough(devices: Sequence[int], chosen: Sequence[tuple]) -> bool:
    used = [0] * len(devices)
    for groups, tps, counts, replicas, _ in chosen:
        for g, tp, n in zip(groups, tps, counts, strict=True):
            used[g] += n * tp * replicas
    return all(n <= most for n, most in zip(used, devices, strict=True))


def _plans_of(chosen: Sequence[tuple], batch: int, blocks: int, settings: MixedSettings) -> Iterator[MixedPlan]:
    sized = []
    for groups, tps, counts, replicas, b in chosen:
        rows = [
            stages
            for row in stage_rows(groups, tps, counts, blocks)
            for stages in product(*(recomputations(stage, settings.recompute) for stage in row))
        ]
        sized.append((rows, replicas, b))
    ranges = [range(replicas, batch // b + 1) for _, replicas, b in sized]
    for micro_batches in product(*ranges):
        if sum(m * b for m, (_, _, b) in zip(micro_batches, sized, strict=True)) != batch:
            continue
        for stages in product(*(rows for rows, _, _ in sized)):
            pipelines = tuple(
                MixedPipeline(stages=s, replicas=r, micro_batch=b, num_micro_batches=m // r, longer=m % r)
                for s, m, (_, r, b) in zip(stages, micro_batches, sized, strict=True)
            )
            sequence = settings.sequence_parallel and any(x.tp > 1 for p in pipelines for x in p.stages)
            for zero, order in product(settings.zero_stages, settings.orders):
                yield MixedPlan(pipelines=pipelines, zero_stage=zero, sequence_parallel=sequence, order=order)


def random_case(seed: int) -> tuple[Workload, Cluster, MixedSettings]:
    """A tiny network on two or three groups, memory ample, tight or too small."""
    rng = random.Random(seed)
    groups = rng.choice([2, 2, 2, 3])
    blocks = rng.randint(groups, rng.choice([3, 3, 4, 5]))
    graph = decoder(
        blocks=blocks,
        features=rng.choice([16, 32]),
        kv_heads=4,
        ffn=rng.choice([32, 128]),
        vocabulary=rng.choice([32, 256]),
        positions=rng.choice([16, 128]),
        wide=rng.choice([0, 0, 1]),
    )
    batch = rng.randint(2, 4)
    settings = MixedSettings(
        top=rng.choice([1, 1, 4]),
        micro_batches=rng.choice([(1,), (1,), (1, 2)]),
        zero_stages=rng.choice([(0,), (1,), (0, 1)]),
        orders=(rng.choice(MIXED_ORDERS),),
        recompute=RECOMPUTE if rng.random() < 0.6 else ("none",),
        tp=Bounds(high=rng.choice([1, 1, 1, 2])),
        sequence_parallel=rng.random() < 0.7,
        assumptions=MeshAssumptions(
            bucket_bytes=rng.choice([1e3, 1e5]),
            contended_step_s=rng.choice([0.0, 0.0, 1e-5]),
            dp_overlap=rng.choice([0.0, 0.9]),
        ),
    )
    # What the whole network on one device needs tells what is tight.
    roomy = random_cluster(rng, groups, 6, (1e12,))
    work = workload_of(graph, batch, roomy.groups[0].device)
    whole = MixedPlan(pipelines=(MixedPipeline(stages=(MixedStage(group=0, blocks=blocks),), num_micro_batches=batch),))
    needed = float(cost_plans(MixedModel.build(work, roomy, settings.assumptions), [whole]).memory_bytes[0])
    kept = tuple(
        replace(
            group, device=replace(group.device, memory_bytes=needed * rng.choice([0.35, 0.5, 0.6, 0.75, 0.9, 1.0, 3.0]))
        )
        for group in roomy.groups
    )
    return work, replace(roomy, groups=kept), settings


def as_they_are(cluster: Cluster, settings: MixedSettings, _: random.Random) -> tuple[Cluster, MixedSettings]:
    return cluster, settings


def enumerated_cases(
    seed: int,
    change: Callable[[Cluster, MixedSettings, random.Random], tuple[Cluster, MixedSettings]] = as_they_are,
    most: int = 400,
) -> Iterator[tuple[MixedModel, MixedSettings, list[MixedPlan]]]:
    """Random cases, changed, and every plan of each; those with more than ``most`` plans are left out."""
    for number in count(seed):
        work, cluster, settings = random_case(number)
        cluster, settings = change(cluster, settings, random.Random(number))
        model = MixedModel.build(work, cluster, settings.assumptions)
        plans = list(islice(all_plans(model, settings, tp_degrees(settings)), most + 1))
        if len(plans) <= most:
            yield model, settings, plans

"""Uneven layouts against brute force over all of them, and what the bound promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from strategies.mesh.refine import StageTables, all_shares, refine_top, refinement
from strategies.mesh.settings import Bounds, MeshCandidate, MeshOutcome, MeshRestriction, MeshSettings
from tests.cases import mostly
from tests.networks import Layers, roofline_workload
from tests.strategies.mesh.brute_force import compositions

LONG = 1e9  # seconds: no limit


def network(rng: np.random.Generator, blocks: int) -> Graph:
    """A small decoder whose first blocks may be wider than the rest, with an embedding and a head that weigh."""
    dim = int(rng.choice([256, 512]))
    heads, vocabulary, positions = dim // 64, int(rng.choice([1_000, 8_000, 40_000])), int(rng.choice([128, 512]))
    wider = int(rng.integers(0, 3)) if rng.random() < 0.4 else 0
    fused = bool(rng.random() < 0.7)
    layers = Layers()
    add = layers.add
    last = add(
        "embedding", "embedding", add("tokens", "input", shape=(1, positions)), num_embeddings=vocabulary, dim=dim
    )
    for n in range(blocks):
        b = f"blocks.{n}"
        width = dim * (8 if n < wider else 3)
        norm = add("norm1", "rms_norm", last, block=b)
        qkv = add("qkv", "linear", norm, block=b, out_features=3 * dim, bias=False)
        mixed = add("attention", "self_attention", qkv, block=b, heads=heads, head_dim=64, fused=fused)
        proj = add("proj", "linear", mixed, block=b, out_features=dim, bias=False)
        middle = add("add1", "add", proj, last, block=b)
        norm = add("norm2", "rms_norm", middle, block=b)
        up = add("up", "linear", norm, block=b, out_features=width, bias=False)
        act = add("gelu", "activation", up, block=b, function="gelu")
        down = add("down", "linear", act, block=b, out_features=dim, bias=False)
        last = add("add2", "add", down, middle, block=b)
    logits = add("head", "linear", add("norm", "rms_norm", last), out_features=vocabulary, bias=False)
    add("loss", "softmax", logits)
    return layers.graph("small")


DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 20e12, "bf16": 100e12},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=900e9,
    clock_hz=1e9,
)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(
        Level(name="node", size=4, bandwidth_bytes_per_s=50e9, latency_s=3e-6),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6),
    ),
)


def model_of(graph: Graph, batch: int, *, training: bool = True) -> MeshModel:
    workload = roofline_workload(graph, DEVICE, batch, precision="bf16", optimizer="adam", training=training)
    return MeshModel.build(workload, CLUSTER)


def all_plans(plan: MeshPlan, blocks: int) -> Iterator[MeshPlan]:
    """Every layout of a plan's degrees, with every recomputation."""
    bare = replace(plan, recompute="none", recompute_blocks=0, stage_blocks=(), stage_recompute=())
    for lengths in compositions(blocks, plan.pp * plan.vpp):
        yield replace(bare, stage_blocks=lengths)
        yield replace(bare, stage_blocks=lengths, recompute="selective")
        for again in itertools.product(*(range(n + 1) for n in lengths)):
            if any(again):
                yield replace(
                    bare, stage_blocks=lengths, recompute="full", recompute_blocks=max(again), stage_recompute=again
                )


def random_case(seed: int) -> tuple[MeshModel, MeshPlan, list[MeshPlan]]:
    rng = np.random.default_rng(seed)
    pp, vpp = [(2, 1), (3, 1), (4, 1), (2, 2)][int(rng.integers(4))]
    schedule = "interleaved" if vpp > 1 else str(rng.choice(["gpipe", "1f1b", "1f1b", "zero_bubble"]))
    blocks = int(rng.integers(pp * vpp, 8 if pp * vpp == 4 else 9))
    zero, dp = int(rng.integers(4)), int(rng.choice([1, 2]))
    if dp == 1:
        zero = 0
    plan = MeshPlan(
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        dp_replicate=dp if zero == 0 else 1,
        dp_shard=dp if zero else 1,
        zero_stage=zero,
        tp=int(rng.choice([1, 2])),
        micro_batch=int(rng.choice([1, 4, 8])),
        num_micro_batches=pp * int(rng.choice([1, 2, 4])),
        offload_activations=bool(rng.random() < 0.1),
        order=str(rng.choice(["tp-cp-dp-pp", "tp-cp-pp-dp"])),
    )
    model = model_of(network(rng, blocks), plan.global_batch)
    return model, plan, list(all_plans(plan, blocks))


def capacity_of(memory: np.ndarray, rng: np.random.Generator) -> float:
    """A tight one, mostly: little above what the leanest plans need."""
    return float(np.quantile(memory, rng.choice([0.02, 0.1, 0.3, 0.7, 1.0])) * (1 + 1e-9))


def refine(model: MeshModel, plan: MeshPlan, capacity_bytes: float, wall_s: float) -> MeshPlan | None:
    """A plan with the same degrees that fits and is faster than the given one, or fits where that does not."""
    found, given = refinement(model, plan, capacity_bytes, wall_s), model.evaluate_plans([plan])
    before = float(given.step_time_s[0]) if given.memory_bytes[0] <= capacity_bytes else float("inf")
    return found.plan if found.step_time_s < before * (1.0 - 1e-9) else None


@mostly("exact", "seed", range(64))
def test_equals_brute_force(seed: int) -> None:
    model, plan, plans = random_case(seed)
    costs = model.evaluate_plans(plans)
    capacity = capacity_of(costs.memory_bytes, np.random.default_rng(seed + 1000))
    times = np.where(costs.memory_bytes <= capacity, costs.step_time_s, np.inf)
    found = refinement(model, plan, capacity, LONG)
    assert found.plan is not None
    # Side by side: sums of other batches differ in the last digit.
    again = model.evaluate_plans([found.plan, plans[int(np.argmin(times))]])
    assert again.memory_bytes[0] <= capacity
    assert again.step_time_s[0] == pytest.approx(again.step_time_s[1], rel=1e-13)
    assert found.bound_s >= found.step_time_s
    assert found.bound_s == found.step_time_s


@mostly("exact", "seed", range(64, 88))
def test_the_bound_holds_when_the_search_is_cut_short(seed: int) -> None:
    model, plan, plans = random_case(seed)
    costs = model.evaluate_plans(plans)
    capacity = capacity_of(costs.memory_bytes, np.random.default_rng(seed))
    best = float(np.min(costs.step_time_s[costs.memory_bytes <= capacity]))
    short = refinement(model, plan, capacity, LONG, most_layouts=0)
    assert short.bound_s <= best * (1 + 1e-12) <= short.step_time_s * (1 + 2e-12)
    if short.plan is not None:
        assert bool(model.evaluate_plans([short.plan]).memory_bytes[0] <= capacity)


@pytest.mark.parametrize(("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)])
@pytest.mark.parametrize("m", [2, 8])
def test_no_layout_is_faster_than_its_slowest_chunk_allows(schedule: str, vpp: int, m: int) -> None:
    """Long passes and little else, so that a bound that is one pass too high is above some layout."""
    plan = MeshPlan(pp=2, vpp=vpp, schedule=schedule, micro_batch=64, num_micro_batches=m)
    model = model_of(network(np.random.default_rng(2), 6), plan.global_batch)
    tables = StageTables.of(model, plan, "none", np.inf)
    layouts = list(compositions(6, plan.pp * vpp))
    times = model.evaluate_plans([replace(plan, stage_blocks=lengths) for lengths in layouts]).step_time_s
    shares = []
    for lengths, time_s in zip(layouts, times, strict=True):
        ends = np.cumsum(lengths)
        chunks = tables.modules(np.arange(len(ends)), ends - lengths, ends)
        bound_s = tables.bound_s(float(np.max(chunks @ tables.module_s)))
        assert bound_s <= time_s
        shares.append(bound_s / time_s)
    assert max(shares) > 0.75


def test_without_time_the_bound_holds_all_the_same() -> None:
    model, plan = heavy_head(24), MeshPlan(pp=6, num_micro_batches=32)
    whole, stopped = refinement(model, plan, 1e12, LONG), refinement(model, plan, 1e12, -1.0)
    assert stopped.evaluated == 0
    assert stopped.plan is None
    assert 0.0 < stopped.bound_s <= whole.bound_s


def test_nothing_fits() -> None:
    model, plan, plans = random_case(3)
    least = float(np.min(model.evaluate_plans(plans).memory_bytes))
    found = refinement(model, plan, 0.99 * least, LONG)
    assert found.plan is None
    assert found.bound_s == float("inf")
    assert refine(model, plan, 0.99 * least, LONG) is None


def heavy_head(blocks: int = 12) -> MeshModel:
    """A network whose head is worth some blocks."""
    return model_of(network(np.random.default_rng(2), blocks), 32)


def test_never_slower_than_the_given_plan_and_fits() -> None:
    model = heavy_head()
    plan = MeshPlan(pp=4, num_micro_batches=32)
    uniform = model.evaluate_plans([plan])
    for share in (1.0, 0.9, 0.8, 0.7):
        capacity = share * float(uniform.memory_bytes[0])
        better = refine(model, plan, capacity, LONG)
        if better is not None:
            costs = model.evaluate_plans([better])
            assert costs.memory_bytes[0] <= capacity
            assert share < 1.0 or costs.step_time_s[0] < uniform.step_time_s[0]


def test_the_first_stage_recomputes_most_under_1f1b() -> None:
    """It keeps most micro-batches; the last keeps one and need not recompute."""
    model = heavy_head()
    plan = MeshPlan(pp=4, micro_batch=4, num_micro_batches=8)
    whole = MeshPlan(pp=4, micro_batch=4, num_micro_batches=8, recompute="full", recompute_blocks=3)
    capacity = float(np.mean(model.evaluate_plans([plan, whole]).memory_bytes))
    found = refinement(model, plan, capacity, LONG, recompute=("none", "full"))
    assert found.plan.stage_recompute[0] == max(found.plan.stage_recompute) > found.plan.stage_recompute[-1]


def test_inference_recomputes_nothing() -> None:
    model = model_of(network(np.random.default_rng(5), 8), 8, training=False)
    found = refinement(model, MeshPlan(pp=4, num_micro_batches=8), 1e12, LONG)
    assert found.plan.recompute == "none"


def test_a_required_recomputation_stays() -> None:
    model = heavy_head()
    found = refinement(model, MeshPlan(pp=2, num_micro_batches=32), 1e12, LONG, recompute=("full",))
    assert found.plan.recompute == "full"
    assert sum(found.plan.stage_recompute) == 1


def outcome_of(model: MeshModel, plans: Sequence[MeshPlan]) -> MeshOutcome:
    times = model.evaluate_plans(plans).step_time_s
    return MeshOutcome(
        candidates=[
            MeshCandidate(plan=p, score=8 * float(t), step_time_s=float(t)) for p, t in zip(plans, times, strict=True)
        ]
    )


def test_refine_top_adds_faster_plans_marked_by_their_layout() -> None:
    model = heavy_head()
    plans = [
        MeshPlan(pp=4, num_micro_batches=32, recompute="full", recompute_blocks=3),
        MeshPlan(dp_replicate=4, num_micro_batches=8),
        MeshPlan(pp=2, num_micro_batches=32, recompute="full", recompute_blocks=6),
    ]
    outcome = outcome_of(model, plans)
    settings = MeshSettings(max_workers=4, capacity_bytes=1e12)
    refined = refine_top(model, outcome, settings, wall_s=LONG)
    assert len(refined) == 2
    assert all(len(c.plan.stage_blocks) == c.plan.pp for c in refined)
    assert refined == sorted(refined, key=lambda c: c.score)
    for candidate in refined:
        assert candidate.score == pytest.approx(8 * candidate.step_time_s)
        before = next(c for c in outcome.candidates if c.plan.pp == candidate.plan.pp)
        assert candidate.step_time_s < before.step_time_s


def test_refine_top_obeys_restrictions() -> None:
    model = heavy_head()
    outcome = outcome_of(model, [MeshPlan(pp=4, num_micro_batches=32, recompute="full", recompute_blocks=3)])
    full = MeshRestriction(names={"recompute": ("full",)})
    refined = refine_top(model, outcome, MeshSettings(max_workers=4, capacity_bytes=1e12, restriction=full), LONG)
    assert [c.plan.recompute for c in refined] == ["full"]
    fixed = MeshRestriction(degrees={"recompute_blocks": Bounds(values=(3,))})
    assert refine_top(model, outcome, MeshSettings(max_workers=4, capacity_bytes=1e12, restriction=fixed), LONG) == []


def test_a_count_ends_the_search() -> None:
    """And what was found by then is reported, with a bound that holds for all layouts."""
    model = heavy_head(24)
    plan = MeshPlan(pp=6, num_micro_batches=32)
    whole = refinement(model, plan, 1e12, LONG)
    for most in (0, 300, 2_000):
        short = refinement(model, plan, 1e12, LONG, most_evaluated=most)
        assert (
            short.evaluated <= most + 3 * 256
        )  # a piece per kind of recomputation is begun before the count is looked at
        assert short.bound_s <= whole.step_time_s * (1 + 1e-12)
        assert short.plan is not None
        assert short.step_time_s >= whole.step_time_s * (1 - 1e-12)


def test_refine_top_refines_a_pipeline_once() -> None:
    """Plans that differ in how dp is divided have the same stages."""
    model = heavy_head()
    plans = [
        MeshPlan(pp=2, dp_replicate=r, dp_shard=s, zero_stage=int(s > 1), num_micro_batches=8, recompute="full", recompute_blocks=6)
        for r, s in ((1, 4), (2, 2), (4, 1))
    ]  # fmt: skip
    settings = MeshSettings(max_workers=8, capacity_bytes=1e12)
    assert len(refine_top(model, outcome_of(model, plans), settings, LONG, most_plans=5)) == 1


def test_shares_come_one_at_a_time() -> None:
    """All of them together would be some 10^20."""
    ways = all_shares([(8,) * 8] * 4, [[32]] * 4)
    first = [next(ways) for _ in range(3)]
    assert all(sum(rank) == 32 for way in first for rank in way)
    assert len({tuple(way) for way in first}) == 3

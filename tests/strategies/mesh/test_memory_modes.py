"""Bounds of memory-saving modes of a pipeline against every plan of small questions."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from strategies.mesh.memory_modes import MemoryModes
from strategies.mesh.nodes import Families, NodeBounds, PlanCount, families_of_nodes
from strategies.mesh.plans import Incumbents, PlanEvaluator
from strategies.mesh.settings import MeshSettings
from strategies.mesh.space import Columns, MeshSpace, batch_of, joined
from strategies.mesh.time_bounds import least_step_s, worthy
from strategies.score import Score
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of

_FULL = RECOMPUTE.index("full")
_ROUNDING = 1 + 1e-8


@functools.lru_cache(maxsize=24)
def _some_plans(seed: int) -> tuple[MeshModel, MeshBatch, np.ndarray]:
    """A model, some of its plans, and their memory."""
    workload, cluster, _ = random_case(seed)
    model = MeshModel.build(workload, cluster)
    plans = all_plans(model, 4)
    some = np.random.default_rng(seed).permutation(len(plans))[:20_000]
    plans = plans.take(np.sort(some))
    return model, plans, model.evaluate(plans).memory_bytes


def _case(seed: int, share: float) -> tuple[MeshModel, MeshBatch, MemoryModes]:
    """A model, some of its plans, and the modes of them with the memory of a share of the plans."""
    model, plans, memory_bytes = _some_plans(seed)
    capacity = float(np.quantile(memory_bytes, share))
    space = MeshSpace.of(model, MeshSettings(max_workers=4, capacity_bytes=capacity))
    return model, plans, MemoryModes.of(space)


def _mode(modes: MemoryModes, plans: MeshBatch) -> tuple[np.ndarray, np.ndarray]:
    """Which mode and which stage of ZeRO every plan takes."""
    known = {mode: n for n, mode in enumerate(modes.each)}
    columns = (plans.recompute, plans.offload_optimizer, plans.offload_activations)
    return np.array([known[mode] for mode in zip(*(c.tolist() for c in columns), strict=True)]), plans.zero_stage


@mostly("exact", "seed", range(24))
def test_no_plan_needs_or_takes_less_than_the_bounds_of_its_mode(seed: int) -> None:
    model, plans, modes = _case(seed, (0.01, 0.1, 0.6)[seed % 3])
    costs = model.evaluate(plans)
    pipelines = modes.plainly(plans)
    needs = modes.needs(pipelines)
    rows = np.arange(len(plans)), *_mode(modes, plans)
    needed = needs.memory_bytes[rows]
    assert np.all(needed <= costs.memory_bytes * _ROUNDING)
    fits = costs.memory_bytes <= modes.space.settings.capacity_bytes
    times = model.pipelines(pipelines, exact=False)
    bound = least_step_s(modes, times, needs)[rows]
    assert np.all(bound[fits] <= costs.step_time_s[fits] * _ROUNDING)
    assert np.all(np.isinf(bound[needed > modes.capacity_bytes]))
    assert np.all(times.makespan_s <= costs.step_time_s * _ROUNDING)


@mostly("exact", "seed", range(12))
def test_pipelines_of_good_plans_are_worth_it(seed: int) -> None:
    """In whatever order their ranks are; where the goal is that of the best tenth, some others are not."""
    model, plans, modes = _case(seed, 0.5)
    steps = model.evaluate(plans).step_time_s
    found = {}
    for share in (0.0, 0.1, 0.6):
        goal = float(np.quantile(steps, share))
        rows = worthy(model, modes.plainly(plans), lambda step_s, _, goal=goal: step_s * (1 - 1e-9) <= goal)
        assert set(np.flatnonzero(steps <= goal)) <= set(rows)
        found[share] = len(rows)
    assert found[0.1] < len(plans)


@mostly("exact", "seed", range(12))
def test_the_least_memory_is_that_of_a_plan(seed: int) -> None:
    """dp wholly shared out: not just a bound, so what is said not to fit could not be said sooner."""
    model, plans, modes = _case(seed, 0.5)
    needs = modes.needs(modes.plainly(plans)).memory_bytes
    some = range(0, len(plans), max(len(plans) // 7, 1))
    places = list(itertools.product(some, range(len(modes.each)), range(len(modes.stages))))
    smallest = [modes.smallest_plan(plans.take(np.array([n])), v, z) for n, v, z in places]
    expected = [needs[place] for place in places]
    np.testing.assert_allclose(model.evaluate_plans(smallest).memory_bytes, expected, rtol=1e-9)


@mostly("exact", "seed", range(24))
def test_so_few_recomputed_blocks_do_not_fit(seed: int) -> None:
    model, plans, modes = _case(seed, (0.01, 0.1)[seed % 2])
    costs = model.evaluate(plans)
    fitting = (plans.recompute == _FULL) & (plans.offload_activations == 0)
    fitting &= costs.memory_bytes <= modes.space.settings.capacity_bytes
    plans = plans.take(np.flatnonzero(fitting))
    least = modes.needs(modes.plainly(plans)).blocks[np.arange(len(plans)), plans.offload_optimizer, plans.zero_stage]
    assert np.all(least <= plans.recompute_blocks)


@mostly("exact", "seed", range(24))
def test_no_plan_needs_less_than_the_bounds_of_its_families(seed: int) -> None:
    _, _, modes = _case(seed, 0.5)
    space = modes.space
    whole = Families.of(modes)
    for branches in space.branches():
        of_branch = whole.of_nodes(branches)
        nodes = space.with_experts({**branches, "_stem": np.arange(len(of_branch))})
        if not len(nodes["tp"]):
            continue
        of_node = whole.of_nodes(nodes)
        assert np.all(of_branch[nodes["_stem"]] <= of_node)
        bounds = [of_node]
        for exact in (False, True):
            families, family = families_of_nodes(modes, nodes, exact=exact)
            bounds.append(families.least_bytes[family])
            assert np.all(bounds[-2] <= bounds[-1] * _ROUNDING)
        pipelines = space.with_pipelines({**nodes, "_cell": np.arange(len(of_node))})
        needed = np.min(modes.needs(batch_of(pipelines)).memory_bytes, axis=(1, 2), initial=np.inf)
        assert np.all(bounds[-1][pipelines["_cell"]] <= needed * _ROUNDING)


@mostly("exact", "seed", range(24))
def test_families_have_all_nodes_as_members(seed: int) -> None:
    _, _, modes = _case(seed, 0.5)
    space = modes.space
    every = joined([space.with_experts(branches) for branches in space.branches()])
    names = tuple(every)
    expected = sorted(zip(*(every[name].tolist() for name in names), strict=True))
    exact = families_of_nodes(modes, every, exact=True)[0]
    for families in (Families.of(modes), families_of_nodes(modes, every, exact=False)[0], exact):
        members = families.members(space)
        assert sorted(zip(*(members[name].tolist() for name in names), strict=True)) == expected


@mostly("exact", "seed", range(12))
def test_branches_hold_their_nodes(seed: int) -> None:
    _, _, modes = _case(seed, 0.5)
    count = PlanCount(space=modes.space)
    for branches in modes.space.branches():
        assert count.nodes(branches) == len(modes.space.with_experts(branches)["tp"])


# --- Bounds of nodes against every plan of small questions: none that matters may be lost, whatever the goal ------------------------------


_NODE = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "dp", "pp")


def model_of(seed: int) -> MeshModel:
    """Every other network has experts."""
    workload, cluster, _ = random_case(seed)
    if seed % 2:
        rng = np.random.default_rng(seed)
        cluster = two_level_cluster(per_node=2, outside=float(rng.choice([2e9, 25e9])))
        features = int(rng.choice([64, 512]))
        graph = decoder(
            blocks=3,
            features=features,
            ffn=2 * features,
            positions=int(rng.choice([16, 256])),
            experts=4,
            dense_blocks=seed % 4 // 2,
        )
        workload = workload_of(graph, cluster, 4)
    return MeshModel.build(workload, cluster)


def bounds_of_nodes(space: MeshSpace, goal: float) -> dict[tuple[int, ...], float]:
    """Nodes that are kept, with their bounds."""
    modes = MemoryModes.of(space)
    evaluator = PlanEvaluator(incumbents=Incumbents(top=1), modes=modes, tally=lambda name, count: None)
    bounded = NodeBounds(modes=modes, evaluator=evaluator, goal=goal)
    found: dict[tuple[int, ...], float] = {}
    for branches in space.branches():
        nodes, bound = bounded.of(branches)
        found |= dict(zip(_keys(nodes), bound.tolist(), strict=True))
    return found


def _keys(columns: Columns) -> list[tuple[int, ...]]:
    return list(zip(*(columns[name].tolist() for name in _NODE), strict=True))


def _quickest(model: MeshModel, plans: MeshBatch, objective: str) -> dict[tuple[int, ...], float]:
    """Score of the best plan of every node, memory aside."""
    scores = model.evaluate(plans).step_time_s * (plans.workers if objective == "gpu_hours" else 1)
    columns = {name: getattr(plans, name) for name in _NODE}
    best: dict[tuple[int, ...], float] = {}
    for key, score in zip(_keys(columns), scores.tolist(), strict=True):
        best[key] = min(score, best.get(key, float("inf")))
    return best


@mostly("exact", "seed", range(24))
def test_no_plan_of_a_node_is_better_than_its_bound(seed: int) -> None:
    model = model_of(seed)
    objective = ("step_time", "gpu_hours")[seed // 2 % 2]
    score = Score(per_device=objective == "gpu_hours")
    space = MeshSpace.of(model, MeshSettings(max_workers=4, capacity_bytes=1e15, score=score))
    best = _quickest(model, all_plans(model, 4), objective)
    bounds = bounds_of_nodes(space, float("inf"))
    assert set(bounds) == set(best)
    assert all(bounds[key] <= best[key] * _ROUNDING for key in best)
    for share in (0.0, 0.1, 0.5):
        goal = float(np.quantile(list(best.values()), share))
        kept = bounds_of_nodes(space, goal)
        assert {key for key, score in best.items() if score < goal / _ROUNDING} <= set(kept)
        # What is bounded with a goal is bounded alike, and only what has no chance is left out.
        assert all(kept[key] == pytest.approx(bounds[key], rel=1e-12) for key in kept)
        assert all(bounds[key] >= goal / _ROUNDING for key in set(bounds) - set(kept))

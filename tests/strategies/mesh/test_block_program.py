"""Splits of blocks by the per-layer program: Megatron's pattern comes out of it, its costs are the cost model's, and brute force agrees."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import ModuleKind
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.tensor_parallel import split_options, standard_splits
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.space import mesh_space
from strategies.layerwise.per_layer.problem import objective_s
from strategies.mesh.block_program import ModulePrices, ModuleProblem, module_problem, split_module
from strategies.mesh.block_search import split_plan, split_top
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshCandidate, MeshOutcome, MeshSettings
from strategies.score import Score
from tests.cases import mostly
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of

LLAMAS = ["llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"]
GPTS = ["gpt2-1.5b", "gpt3-1.3b", "gpt3-13b", "gpt3-175b", "megatron-22b", "megatron-530b", "bloom-176b"]
PLENTY = 1e15


def bundled(name: str, **values: object) -> MeshModel:
    return mesh_space(resolve(Request(model=name, gpus=64, batch=64, **values))).model  # type: ignore[arg-type]


def small(cluster: Cluster | None = None, assumptions: MeshAssumptions = make.BARE, **values: int) -> MeshModel:
    where = cluster or two_level_cluster()
    graph = decoder(**{"blocks": 2, "heads": 8, "kv_heads": 4, **values})
    return MeshModel.build(workload_of(graph, where, 8), where, assumptions)


def block_of(model: MeshModel) -> ModuleKind:
    return next(kind for kind in model.modules.kinds if kind.is_block)


def problem_of(model: MeshModel, plan: MeshPlan) -> ModuleProblem:
    return module_problem(ModulePrices.of(model, plan, block_of(model)))


def device_s(built: ModuleProblem, splits: Sequence[LayerSplit]) -> float:
    """What a module adds to a step by the device's time, with the given splits and else the standard ones."""
    problem, picks = built.problem(1.0), built.picks(splits)
    choice = np.array([*picks, *(0 for _ in built.tensors)], dtype=np.int64)
    for n, sets in enumerate(built.tensors, len(picks)):  # tensors do not hear of each other
        tried = np.repeat(choice[None], len(sets), axis=0)
        tried[:, n] = np.arange(len(sets))
        choice = tried[int(np.argmin([objective_s(problem, one) for one in tried]))]
    return objective_s(problem, choice)


def with_split_weights(problem: ModuleProblem) -> ModuleProblem:
    """The same where no matrix can stay whole that the standard pattern, the first of its options, splits."""
    layers = []
    for costs in problem.layers:
        is_matrix = bool(costs.options) and costs.options[0].role in ("column", "row")
        dear = [1e6 if is_matrix and option.role == "whole" else 0.0 for option in costs.options] or 0.0
        layers.append(replace(costs, device_s=costs.device_s + dear))
    return replace(problem, layers=tuple(layers))


def all_patterns(model: MeshModel, tp: int, kind: ModuleKind) -> list[tuple[LayerSplit, ...]]:
    graph = model.workload.graph
    options = [
        split_options(graph, kind, position, tp)
        for position, index in enumerate(kind.layers)
        if graph.layers[index].kind not in ("moe", "input")
    ]
    return list(itertools.product(*options))


# -- Megatron's pattern -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LLAMAS, *GPTS])
def test_megatron_comes_out(name: str) -> None:
    """tp is given and nothing else: not which way a matrix is split, nor over how many ranks, nor whether at all."""
    model = bundled(name)
    kind, heads = block_of(model), model.workload.graph
    found = 0
    for tp in (2, 4, 5, 8):
        if any(layer.kind == "self_attention" and layer.params.heads % tp for layer in heads.layers):
            continue
        (best, *_), bound = split_module(problem_of(model, MeshPlan(tp=tp, num_micro_batches=32)))
        assert best.splits == standard_splits(model.workload.graph, kind, tp)
        assert best.time_s == pytest.approx(bound, rel=1e-9)
        found += 1
    assert found


@pytest.mark.parametrize("name", [*LLAMAS, *GPTS])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_megatron_with_sequence_parallelism_comes_out(name: str, tp: int) -> None:
    """The same where every matrix is split, by tensors and not by sequences."""
    model = bundled(name)
    if any(layer.kind == "self_attention" and layer.params.heads % tp for layer in model.workload.graph.layers):
        pytest.skip(f"{tp} does not divide the heads")
    plan = MeshPlan(tp=tp, sequence_parallel=True, num_micro_batches=32)
    (best, *_), _ = split_module(with_split_weights(problem_of(model, plan)))
    assert best.splits == standard_splits(model.workload.graph, block_of(model), tp)


# -- costs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-1.3b", "deepseek-v3", "t5-11b", "mixtral-8x7b", "bert-large"])
def test_costs_are_those_of_the_cost_model(name: str) -> None:
    """Any split of any module costs the program what the tables of the cost model say."""
    model, rng = bundled(name), random.Random(name)
    for sequence_parallel in (False, True) if not name.startswith(("deepseek", "mixtral")) else (True,):
        plan = MeshPlan(tp=4, sequence_parallel=sequence_parallel, micro_batch=1, num_micro_batches=16)
        for number, kind in enumerate(model.modules.kinds):
            built = module_problem(ModulePrices.of(model, plan, kind))
            for _ in range(4):
                splits = tuple(rng.choice(costs.options) for costs in built.layers if costs.options)
                table = model.rows(MeshBatch.from_plans([replace(plan, block_splits=splits)]))
                names = ("forward_s", "backward_s", "tp_forward_s", "tp_backward_s")
                passes = sum(float(getattr(table, column)[0, number]) for column in names)
                update_s = model.workload.compute.update_s
                trained = table.dense_trainable[:, number]
                update = float(update_s(2.0 * trained)[0] - update_s(trained)[0])
                device = model.workload.compute.device
                streamed = device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction
                update += 4 * 4 * float(trained[0]) / streamed  # norm, scaling, zeroing of fp32 gradients
                apart = table.apart_trainable[:, number] * max(model.assumptions.main_gradient_bytes, 2.0)
                four = model.groups.find(np.array([4]), np.array([1]), np.array([0]))
                large, larger = model.groups.time_s("all_reduce", four, np.array([[1e12, 2e12]]))[0].tolist()
                summed = (
                    float(apart[0]) * (larger - large) / 1e12
                )  # a bound: latency is waited for once, not layer by layer
                assert summed <= float(model.groups.time_s("all_reduce", four, apart)[0])
                time_s, found_s = 16 * passes + update + summed, device_s(built, splits)
                if (
                    name == "deepseek-v3"
                ):  # several matrices read a tensor, whose gradient travels behind that of the longest: a bound
                    assert found_s <= time_s * (1 + 1e-9)
                else:
                    assert found_s == pytest.approx(time_s, rel=1e-9)


def test_what_is_recomputed_runs_forward_again() -> None:
    """One of two blocks is recomputed in full: half a forward pass more per micro-batch, its collectives included."""
    model, plan = small(), MeshPlan(tp=2, num_micro_batches=4)
    standard = standard_splits(model.workload.graph, block_of(model), 2)
    table = model.rows(MeshBatch.from_plans([replace(plan, block_splits=standard)]))
    number = next(n for n, kind in enumerate(model.modules.kinds) if kind.is_block)
    forward = float(table.forward_s[0, number] + table.tp_forward_s[0, number])
    once, again = (
        device_s(problem_of(model, each), standard)
        for each in (plan, replace(plan, recompute="full", recompute_blocks=1))
    )
    assert again - once == pytest.approx(4 * forward / 2, rel=1e-9)


def test_one_gather_serves_all_that_read_a_tensor() -> None:
    """Compressed queries, keys and values read one normed tensor."""
    model = bundled("deepseek-v3")
    built = problem_of(model, MeshPlan(tp=8, sequence_parallel=True, num_micro_batches=8))
    assert built.tensors
    assert all(frozenset() in sets for sets in built.tensors)


# -- brute force --------------------------------------------------------------------------------------------------------


@pytest.mark.exact
@mostly("exact", "tp", [2, 4], quick=1)
@mostly("exact", "sequence_parallel", [False, True], quick=1)
@mostly(
    "exact",
    "values",
    [{"features": 64, "ffn": 128}, {"kv_heads": 1, "ffn": 64}, {"features": 512, "ffn": 2048, "positions": 128}],
    quick=1,
    every=2,
)
def test_the_program_finds_the_best_of_all_patterns(
    tp: int, values: dict[str, int], *, sequence_parallel: bool
) -> None:
    """Every role and degree of every layer of a block (of four ranks, some), under the cost model: bare times, which add up.

    So do those of collectives on links that know one protocol, whatever the size of a message.
    """
    links = two_level_cluster(per_node=2)
    links = replace(links, levels=tuple(replace(level, is_ordered=False) for level in links.levels))
    model = small(links, make.BARE, **values)
    plan = MeshPlan(tp=tp, sequence_parallel=sequence_parallel, micro_batch=2, num_micro_batches=4)
    patterns = all_patterns(model, tp, block_of(model))
    assert len(patterns) >= 300
    some = patterns if tp == 2 else random.Random(1).sample(patterns, 400)
    evaluated = model.evaluate_plans([replace(plan, block_splits=pattern) for pattern in some]).step_time_s
    (best, *_), bound = split_module(problem_of(model, plan))
    found = float(model.evaluate_plans([replace(plan, block_splits=best.splits)]).step_time_s[0])
    assert found <= float(evaluated.min()) * (1 + 1e-9)
    assert best.time_s == pytest.approx(bound, rel=1e-9)
    check = split_plan(model, plan, PLENTY)
    assert check.best_step_time_s <= found * (1 + 1e-9)


@pytest.mark.exact
def test_the_bound_holds_where_the_host_decides() -> None:
    """The host's time is longer for some patterns and the device's for others; no pattern saves more than the bound says."""
    assumptions = replace(make.BARE, host_launch_s=2e-6, host_collective_s=3e-6, collective_wait_s=1e-6)
    model = small(two_level_cluster(), assumptions, features=512, ffn=1024, positions=128)
    plan = MeshPlan(tp=4, micro_batch=1, num_micro_batches=8)
    patterns = random.Random(2).sample(all_patterns(model, 4, block_of(model)), 400)
    batch = MeshBatch.from_plans([plan, *(replace(plan, block_splits=pattern) for pattern in patterns)])
    pipelines = model.pipelines(batch)
    passes = (pipelines.passes.forward_s + pipelines.passes.backward_s)[pipelines.pass_of]
    counts = np.bincount(model.modules.kind_of).astype(float)
    times = passes @ counts
    check = split_plan(model, plan, PLENTY)
    assert check is not None
    once = 1e-3  # update and sums of gradients are in the bound and not in these times
    assert float(times.min() / times[0]) >= check.bound_ratio - once
    evaluated = model.evaluate_plans([replace(plan, block_splits=pattern) for pattern in patterns]).step_time_s
    assert check.best_step_time_s <= float(evaluated.min()) * 1.02


def test_the_bound_holds_where_passes_wait_for_device_and_host_in_turn() -> None:
    """The standard split waits for the host forward and for the device backward: longer than either in sum, so more can be saved."""
    assumptions = replace(make.BARE, host_launch_s=5e-6, host_collective_s=5e-7, collective_wait_s=3e-6)
    model = small(two_level_cluster(), assumptions, features=512, ffn=1024, positions=64)
    check = split_plan(model, MeshPlan(tp=4, micro_batch=1, num_micro_batches=8), PLENTY)
    assert check is not None
    assert check.bound_ratio <= check.best_ratio < 0.99


# -- memory -------------------------------------------------------------------------------------------------------------


def test_memory_forces_matrices_apart() -> None:
    """A block too small to be worth splitting is split where a rank cannot hold it."""
    model = small(features=128, ffn=256)
    plan = MeshPlan(tp=4, micro_batch=1, num_micro_batches=8)
    built = problem_of(model, plan)
    (free, *_), _ = split_module(built)
    used = sum(
        float(costs.memory_bytes[costs.options.index(split)])
        for costs, split in zip([c for c in built.layers if c.options], free.splits, strict=True)
    )
    (tight, *_), _ = split_module(built, capacity_bytes=0.7 * used)
    assert min(split.degree for split in free.splits if split.role in ("whole", "column", "row")) == 1
    assert tight.time_s > free.time_s
    assert split_module(built, capacity_bytes=1.0)[0] == ()


@pytest.mark.exact
def test_what_is_suggested_fits_or_is_not_shown() -> None:
    model = small(features=128, ffn=512)
    plan = MeshPlan(tp=4, micro_batch=1, num_micro_batches=8)
    standard = float(model.evaluate_plans([plan]).memory_bytes[0])
    for room in (1.0, 1.02, 1.1, 1.5, 4.0):
        check = split_plan(model, plan, room * standard)
        if check.best is not None:
            costs = model.evaluate_plans([check.best])
            assert float(costs.memory_bytes[0]) <= room * standard
            assert float(costs.step_time_s[0]) == check.best_step_time_s < check.step_time_s


# -- where it helps -----------------------------------------------------------------------------------------------------


def test_ranks_beyond_a_node_repeat_what_is_too_dear_to_split() -> None:
    """Sixteen ranks lie on two nodes with a network that is far slower than NVLink; shares of eight or fewer stay inside one."""
    model = bundled("gpt3-1.3b", cluster="aws-p5")
    plan = MeshPlan(tp=16, micro_batch=4, num_micro_batches=8)
    check = split_plan(model, plan, PLENTY)
    matrices = [split for split in check.best.block_splits if split.role in ("column", "row")]
    assert matrices
    assert max(split.degree for split in matrices) == 8
    assert check.best_step_time_s < 0.97 * check.step_time_s


def test_one_long_sequence_is_split_by_heads_in_the_attention_alone() -> None:
    """With memory to spare, all-to-all around the attention moves less than gathering and scattering around every matrix."""
    model = bundled("llama3-8b")
    check = split_plan(model, MeshPlan(tp=8, sequence_parallel=True, micro_batch=4, num_micro_batches=8), PLENTY)
    roles = {split.layer.rsplit(".", 1)[-1]: split.role for split in check.best.block_splits}
    assert roles == dict.fromkeys(("qkv", "proj", "up", "glu", "down"), "whole")
    # In the memory that there is, the weights are split.
    memory = float(model.evaluate_plans([check.plan]).memory_bytes[0])
    confirmed = split_plan(model, check.plan, memory)
    assert confirmed.is_confirmed


def test_one_rank_has_nothing_to_split() -> None:
    assert split_plan(small(), MeshPlan(num_micro_batches=8), PLENTY) is None


def test_large_matrices_confirm_the_standard() -> None:
    check = split_plan(bundled("llama3-70b"), MeshPlan(tp=8, num_micro_batches=8, micro_batch=8), PLENTY)
    assert check.is_confirmed
    assert check.bound_ratio > 0.999


@pytest.mark.exact
def test_the_best_plans_of_a_search_are_split() -> None:
    """Better than what they come from, scored alike, the same every time."""
    cluster = two_level_cluster(per_node=2)
    model = small(cluster, MeshAssumptions(), features=256, ffn=1024, positions=64)
    settings = MeshSettings(max_workers=4, capacity_bytes=16e9, score=Score(per_device=True))
    outcome = search_mesh(model.workload, cluster, settings)
    plans = [MeshPlan(tp=4, micro_batch=2, num_micro_batches=4), MeshPlan(tp=2, micro_batch=8, num_micro_batches=1)]
    costs = model.evaluate_plans(plans).step_time_s.tolist()
    rows = [MeshCandidate(plan=p, score=p.workers * t, step_time_s=t) for p, t in zip(plans, costs, strict=True)]
    given = MeshOutcome(candidates=[*outcome.candidates, *rows])
    found, checks = split_top(model, given, 16e9, most_plans=4)
    assert found
    assert found == split_top(model, given, 16e9, most_plans=4)[0]
    assert [c.score for c in found] == sorted(c.score for c in found)
    for candidate in found:
        assert candidate.plan.block_splits
        assert candidate.score == pytest.approx(candidate.plan.workers * candidate.step_time_s)
        bare = replace(candidate.plan, block_splits=())
        assert candidate.step_time_s < float(model.evaluate_plans([bare]).step_time_s[0])
    assert all(check.plan.tp > 1 for check in checks)

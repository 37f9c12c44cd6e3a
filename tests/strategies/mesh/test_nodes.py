"""Bounds of nodes against every plan of small questions: none that matters may be lost, whatever the goal."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch
from strategies.mesh.memory_modes import MemoryModes
from strategies.mesh.nodes import NodeBounds
from strategies.mesh.plans import Incumbents, PlanEvaluator
from strategies.mesh.settings import MeshSettings
from strategies.mesh.space import Columns, MeshSpace
from strategies.score import Score
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of

_NODE = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "dp", "pp")
_ROUNDING = 1 + 1e-8


def _model(seed: int) -> MeshModel:
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


def _bounds(space: MeshSpace, goal: float) -> dict[tuple[int, ...], float]:
    """Nodes that are kept, with their bounds."""
    modes = MemoryModes.of(space)
    evaluator = PlanEvaluator(space=space, incumbents=Incumbents(top=1), modes=modes, tally=lambda name, count: None)
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
    model = _model(seed)
    objective = ("step_time", "gpu_hours")[seed // 2 % 2]
    score = Score(per_device=objective == "gpu_hours")
    space = MeshSpace.of(model, MeshSettings(max_workers=4, capacity_bytes=1e15, score=score))
    best = _quickest(model, all_plans(model, 4), objective)
    bounds = _bounds(space, float("inf"))
    assert set(bounds) == set(best)
    assert all(bounds[key] <= best[key] * _ROUNDING for key in best)
    for share in (0.0, 0.1, 0.5):
        goal = float(np.quantile(list(best.values()), share))
        kept = _bounds(space, goal)
        assert {key for key, score in best.items() if score < goal / _ROUNDING} <= set(kept)
        # What is bounded with a goal is bounded alike, and only what has no chance is left out.
        assert all(kept[key] == pytest.approx(bounds[key], rel=1e-12) for key in kept)
        assert all(bounds[key] >= goal / _ROUNDING for key in set(bounds) - set(kept))

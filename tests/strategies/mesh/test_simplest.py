"""The simplest of the plans that are nearly as good as the best, against all plans of small questions."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest

from costmodel.mesh.framework_rules import Span
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MESH_COLUMNS, RECOMPUTE, SCHEDULES, MeshBatch, MeshPlan
from strategies.mesh.search import search_model
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from strategies.mesh.simplest import MOST_CHUNKS, REQUIRED, WISHES, Wish, simplest
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, capacity_of, costs_of
from tests.strategies.mesh.networks import random_case


def has(model: MeshModel, plans: MeshBatch) -> dict[str, np.ndarray]:
    """What makes plans simple, said anew."""
    longest = np.array([max(model.blocks_of(int(n))) for n in plans.pp * plans.vpp])
    common = [SCHEDULES.index(name) for name in ("1f1b", "interleaved")]
    return {
        "activations_on_device": plans.offload_activations == 0,
        "optimizer_on_device": plans.offload_optimizer == 0,
        "common_schedule": np.isin(plans.schedule, common),
        "few_chunks": plans.vpp <= MOST_CHUNKS,
        "equal_stages": model.num_blocks % (plans.pp * plans.vpp) == 0,
        "power_of_two_stages": plans.pp & (plans.pp - 1) == 0,
        "no_context_parallelism": plans.cp == 1,
        "no_pipeline": plans.pp == 1,
        "no_tensor_parallelism": plans.tp == 1,
        "no_expert_tensor_parallelism": plans.etp == 1,
        "no_expert_parallelism": plans.ep == 1,
        "one_chunk": plans.vpp == 1,
        "whole_stages_recomputed": (plans.recompute != RECOMPUTE.index("full")) | (plans.recompute_blocks == longest),
    }


def in_corner(plans: MeshBatch) -> np.ndarray:
    """Whether all degrees but dp and chunks per rank are powers of two."""
    degrees = [plans.tp, plans.cp, plans.ep, plans.etp, plans.pp, plans.micro_batch]
    return np.all([degree & (degree - 1) == 0 for degree in degrees], axis=0)


def row_names(plans: MeshBatch) -> np.ndarray:
    """Every plan as text."""
    columns = [
        np.asarray(getattr(plans, field.name)).astype(int) for field in fields(plans) if field.name in MESH_COLUMNS
    ]
    return np.array([" ".join(map(str, row)) for row in np.stack(columns, axis=1).tolist()], dtype=str)


def expected(
    model: MeshModel, plans: MeshBatch, settings: MeshSettings, within_share: float, listed: np.ndarray
) -> tuple[float, float, list[list[str]]]:
    """Score of the plan that wishes lead to, what it is measured against, and the wishes that each plan as good has."""
    costs = costs_of(model, plans)
    score = np.where(costs.memory_bytes <= settings.capacity_bytes, costs.step_time_s, np.inf)
    wishes, left = has(model, plans), np.isfinite(score)
    assert list(wishes) == [wish.name for wish in WISHES]
    chosen, limit = int(np.argmin(score)), np.inf
    for name, holds in wishes.items():
        if name != REQUIRED.name and limit == np.inf:
            limit = score[chosen] * (1 + within_share)
        if not holds[chosen]:
            corner = np.ones(len(plans), dtype=np.bool_) if name == REQUIRED.name else in_corner(plans) | listed
            found = np.flatnonzero(left & holds & corner & (score <= limit))
            if not len(found):
                continue
            chosen = int(found[np.argmin(score[found])])
        left &= holds
    alike = np.flatnonzero(np.abs(score - score[chosen]) <= 1e-9 * score[chosen])
    names = [[name for name, holds in wishes.items() if holds[n]] for n in alike]
    return float(score[chosen]), limit / (1 + within_share), names


@mostly("exact", "seed", range(120), quick=4, every=60)
def test_wishes_are_granted_as_all_plans_allow(seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    rng = random.Random(seed)
    model = MeshModel.build(workload, cluster)
    workers = min(workers, 4)
    plans = all_plans(model, workers)
    capacity = capacity_of(model, plans, rng.choice([0.02, 0.1, 0.3, 0.7]))
    settings = MeshSettings(max_workers=workers, capacity_bytes=capacity, top=3)
    share = rng.choice([0.0, 0.01, 0.05, 0.3])
    candidates = search_model(model, settings).candidates
    known = candidates if seed % 2 else []
    listed = np.isin(row_names(plans), row_names(MeshBatch.from_plans([candidate.plan for candidate in known])))
    assert listed.any() == bool(known)
    score, reference, names = expected(model, plans, settings, share, listed)
    found, measured_against = simplest(model, settings, candidates[0], share, known)
    assert found.score == pytest.approx(score, rel=1e-9)
    assert measured_against == pytest.approx(reference, rel=1e-9)
    assert [wish.name for wish in WISHES if wish.is_granted(model, found.plan)] in names
    assert model.evaluate_plans([found.plan]).memory_bytes[0] <= capacity


def test_what_the_user_wants_is_no_wish_to_deny() -> None:
    fixed = MeshRestriction(degrees={"cp": Bounds(values=(2, 4))}, flags={"offload_optimizer": True})
    wishes = {wish.name: wish for wish in WISHES}
    assert wishes["no_context_parallelism"].narrowed(fixed) is None
    assert wishes["optimizer_on_device"].narrowed(fixed) is None
    assert wishes["no_pipeline"].narrowed(fixed) == replace(
        fixed, degrees={**fixed.degrees, "pp": Bounds(low=1, high=1)}
    )
    blocks = replace(fixed, degrees={"recompute_blocks": Bounds(values=(2,))})
    assert wishes["whole_stages_recomputed"].narrowed(blocks) is None
    assert Wish(name="w", setting="cp", wanted=Span(1, 1)).narrowed(fixed) is None


def test_a_plan_within_the_share_is_found_where_there_is_one() -> None:
    """With a share of 0 nothing is given away; with a large one all that any plan has."""
    workload, cluster, workers = random_case(3)
    model = MeshModel.build(workload, cluster)
    settings = MeshSettings(max_workers=workers, capacity_bytes=1e15)
    best = search_model(model, settings).candidates[0]
    assert simplest(model, settings, best, 0.0)[0].score == pytest.approx(best.score, rel=1e-9)
    plan = simplest(model, settings, best, 1e6)[0].plan
    assert (plan.tp, plan.pp, plan.cp, plan.ep, plan.vpp) == (1, 1, 1, 1, 1)
    assert not plan.offload_optimizer
    assert isinstance(plan, MeshPlan)

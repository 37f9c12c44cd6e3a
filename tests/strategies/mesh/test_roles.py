"""Plans for other wishes than the least time, against all plans of small questions."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from costmodel.mesh.framework_rules import Span
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import SCHEDULES, MeshBatch
from strategies.limits import SPEED_KEPT, UNLIMITED
from strategies.mesh.roles import (
    HARDLY_MORE,
    HEADROOM_WITHIN,
    as_published,
    fewest_gpus,
    has_usual_stages,
    most_headroom,
    usual_stages,
)
from strategies.mesh.search import search_model
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, capacity_of, costs_of
from tests.strategies.mesh.networks import random_case
from tests.strategies.mesh.test_simplest import in_corner


@lru_cache
def question(seed: int) -> tuple[MeshModel, MeshBatch, MeshSettings, np.ndarray, np.ndarray]:
    """A small question, all of its plans, and what they take; infinite where one does not fit."""
    workload, cluster, workers = random_case(seed)
    model = MeshModel.build(workload, cluster)
    workers = min(workers, 4)
    plans = all_plans(model, workers)
    capacity = capacity_of(model, plans, random.Random(seed).choice([0.1, 0.3, 0.7]))
    costs = costs_of(model, plans)
    time_s = np.where(costs.memory_bytes <= capacity, costs.step_time_s, np.inf)
    return model, plans, MeshSettings(max_workers=workers, capacity_bytes=capacity), time_s, costs.memory_bytes


@mostly("exact", "seed", range(40), quick=3)
def test_no_plan_that_is_nearly_as_fast_needs_clearly_less_memory(seed: int) -> None:
    model, plans, settings, time_s, memory = question(seed)
    known = search_model(model, settings).candidates
    best_s, step = float(np.min(time_s)), settings.capacity_bytes * HARDLY_MORE
    listed = MeshBatch.from_plans([candidate.plan for candidate in known])
    everywhere = model.evaluate(listed)
    # What the search found counts, too, whatever its degrees.
    time_s = np.concatenate([time_s[in_corner(plans)], everywhere.step_time_s])
    memory = np.concatenate([memory[in_corner(plans)], everywhere.memory_bytes])
    for most in (settings.capacity_bytes, float(everywhere.memory_bytes[0]) - step):
        found = most_headroom(model, settings, known, best_s, most, UNLIMITED)
        near = (time_s <= best_s * (1 + HEADROOM_WITHIN) * (1 - 1e-9)) & (memory <= most)
        assert (found is not None) == near.any()
        if found is None:
            continue
        assert found is not None
        costs = model.evaluate_plans([found.plan])
        assert costs.step_time_s[0] <= best_s * (1 + HEADROOM_WITHIN) * (1 + 1e-9)
        least = float(memory[near].min())
        assert costs.memory_bytes[0] <= min(least + 1.5 * step, most) * (1 + 1e-9)
        # Whatever needs hardly more than the least is no faster.
        roomy = near & (memory <= min(least + step / 2, most))
        assert costs.step_time_s[0] <= time_s[roomy].min() * (1 + 1e-9)


@mostly("exact", "seed", range(40), quick=3)
def test_no_plan_on_fewer_gpus_is_nearly_as_fast(seed: int) -> None:
    model, plans, settings, time_s, _ = question(seed)
    best_s, node = float(np.min(time_s)), model.cluster.devices_of_node
    found = fewest_gpus(model, settings, [], best_s, UNLIMITED)
    whole = (plans.workers < node) | (plans.workers % node == 0)
    near = in_corner(plans) & whole & (time_s <= best_s / SPEED_KEPT * (1 - 1e-9))
    if not near.any():
        assert found is None or found.plan.workers == settings.max_workers
        return
    assert found is not None
    assert found.plan.workers == plans.workers[near].min()
    assert found.step_time_s <= best_s / SPEED_KEPT * (1 + 1e-9)


@mostly("exact", "seed", range(40), quick=3)
def test_a_published_plan_is_the_best_that_has_its_settings(seed: int) -> None:
    model, plans, settings, time_s, _ = question(seed)
    wanted = {"tp": Span(2, 2), "schedule": ("1f1b",)}
    has = (plans.tp == 2) & (plans.schedule == SCHEDULES.index("1f1b"))
    has &= (plans.offload_optimizer == 0) & (plans.offload_activations == 0)
    found = as_published(model, settings, wanted, UNLIMITED)
    expected = float(np.min(time_s[has], initial=np.inf))
    assert min((plan.step_time_s for plan in found.candidates), default=np.inf) == pytest.approx(expected, rel=1e-9)
    assert not found.out_of_time


@mostly("exact", "seed", range(40), quick=3)
def test_a_usual_number_of_stages_divides_the_blocks_or_is_a_power_of_two(seed: int) -> None:
    model, plans, settings, time_s, _ = question(seed)
    pp, blocks = plans.pp, model.num_blocks
    others = [plans.tp, plans.cp, plans.ep, plans.etp, plans.micro_batch]
    corner = np.all([degree & (degree - 1) == 0 for degree in others], axis=0)
    usual = (blocks % pp == 0) | (pp & (pp - 1) == 0)
    found = usual_stages(model, settings, [], UNLIMITED)
    expected = float(np.min(time_s[corner & usual], initial=np.inf))
    assert (np.inf if found is None else found.step_time_s) == pytest.approx(expected, rel=1e-9)
    assert [has_usual_stages(model, n) for n in (1, 2, blocks)] == [True, True, True]
    assert not has_usual_stages(model, 2 * blocks + 1)
    asked = MeshRestriction(degrees={"pp": Bounds(values=(2 * blocks + 1,))})
    assert usual_stages(model, replace(settings, restriction=asked), [], UNLIMITED) is None


def test_what_is_known_counts_and_memory_is_not_searched_below_what_fits() -> None:
    model, _, settings, time_s, _ = question(0)
    known = search_model(model, settings).candidates
    best_s, every = float(np.min(time_s)), settings.capacity_bytes
    assert most_headroom(model, replace(settings, max_workers=1), known, best_s, every, UNLIMITED) is not None
    assert most_headroom(model, settings, known, best_s, 0.0, UNLIMITED) is None

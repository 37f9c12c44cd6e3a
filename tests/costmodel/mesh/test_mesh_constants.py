"""A model with other constants, which keeps what it knows already, against one that is built anew."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache
from itertools import islice

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshCosts, MeshPlan
from costmodel.workload import Workload
from tests.costmodel.mesh import plans as make


@cache
def _asked() -> list[tuple[MeshModel, list[MeshPlan]]]:
    """Models that have evaluated some plans of one stage: where networks are cut is kept on purpose."""
    rng = random.Random(5)
    # Nothing at 0 or 1, where another share would change nothing.
    some = {item.name: 0.3 for item in fields(MeshAssumptions) if item.name.endswith("_overlap")}
    asked = []
    for _ in range(3):
        assumptions = replace(make.assumptions(rng), **some)
        model = make.model_of(make.network(rng, blocks=4), 24, make.cluster(rng), assumptions)
        shape = make.shape_of(model)
        drawn = (make.random_plan(rng, shape) for _ in range(1000))
        plans = list(islice((plan for plan in drawn if plan.pp == 1), 20))
        assert len(plans) == 20
        model.evaluate_plans(plans)
        asked.append((model, plans))
    return asked


def _check(
    model: MeshModel, plans: list[MeshPlan], workload: Workload, cluster: Cluster, assumptions: MeshAssumptions
) -> None:
    before = model.evaluate_plans(plans).step_time_s
    kept = model.with_constants(workload, cluster, assumptions).evaluate_plans(plans)
    anew = MeshModel.build(workload, cluster, assumptions).evaluate_plans(plans)
    for item in fields(MeshCosts):
        np.testing.assert_array_equal(getattr(kept, item.name), getattr(anew, item.name), err_msg=item.name)
    np.testing.assert_array_equal(model.evaluate_plans(plans).step_time_s, before)


@pytest.mark.parametrize("name", [item.name for item in fields(MeshAssumptions)])
def test_an_assumption_that_changes_is_seen_everywhere(name: str) -> None:
    for model, plans in _asked():
        value = 1.5 * getattr(model.assumptions, name) + 1e-3
        _check(model, plans, model.workload, model.cluster, replace(model.assumptions, **{name: value}))


def test_links_that_change_are_seen_everywhere() -> None:
    for model, plans in _asked():
        levels = tuple(replace(level, latency_s=2 * level.latency_s + 1e-6) for level in model.cluster.levels)
        _check(model, plans, model.workload, replace(model.cluster, levels=levels), model.assumptions)


def test_a_device_that_changes_is_seen_everywhere() -> None:
    for model, plans in _asked():
        device, compute = model.cluster.device, model.workload.compute
        assert isinstance(compute, RooflineCompute)
        slower = replace(device, memory_bandwidth_bytes_per_s=0.5 * device.memory_bandwidth_bytes_per_s)
        workload = replace(model.workload, compute=replace(compute, device=slower))
        _check(model, plans, workload, model.cluster.with_device(slower), model.assumptions)

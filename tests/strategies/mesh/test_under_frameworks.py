"""The search under every framework: its best plans are those of brute force, and no bound passes what is costed."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import NO_FRAMEWORK, Defaults
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from costmodel.mesh.model import MeshModel
from planner.files.loading import load_framework
from planner.files.resources import bundled
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, capacity_of, check_search, run_by_framework
from tests.strategies.mesh.networks import random_case


def _of_a_mesh() -> list[str]:
    """Frameworks that differ in plans over a mesh, the first of each kind."""
    known: dict[object, str] = {}
    for name in bundled("frameworks"):
        found = load_framework(name).framework
        known.setdefault((found.mesh_assumptions(has_fp4=True), found.stages, str(found.rules)), name)
    return list(known.values())


@pytest.mark.exact
@mostly("exact", ("name", "seed"), [(name, seed) for seed in (1, 3, 5) for name in _of_a_mesh()], quick=3)
def test_the_best_plans_are_those_of_brute_force(name: str, seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    rng = random.Random(seed)
    framework = load_framework(name).framework
    workload = replace(workload, framework=framework)
    model = MeshModel.build(workload, cluster, framework.mesh_assumptions(precision=workload.precision, has_fp4=True))
    restriction = MeshRestriction(degrees={"cp": Bounds(high=1), "tp": Bounds(high=rng.choice([1, 2]))})
    plans = all_plans(model, min(workers, 4))
    for field, bounds in restriction.degrees.items():
        plans = plans.take(np.flatnonzero([bounds.allows(int(v)) for v in getattr(plans, field)]))
    plans = run_by_framework(model, plans)
    if not len(plans):  # of a network that the framework does not know
        return
    costs = model.evaluate(plans)
    bound = model.evaluate(plans, exact=False)
    assert np.all(bound.step_time_s <= costs.step_time_s * (1 + 1e-9))
    for share in (0.05, 0.99):
        capacity = capacity_of(model, plans, share)
        settings = MeshSettings(max_workers=min(workers, 4), capacity_bytes=capacity, top=3, restriction=restriction)
        check_search(model, plans, settings)


@pytest.mark.parametrize("name", _of_a_mesh())
@mostly("exact", "seed", [2, 4, 6, 7], quick=1)
def test_no_framework_is_quicker_than_a_well_tuned_implementation(name: str, seed: int) -> None:
    """Any plan, whether the framework can run it or not, with gradients in the same format, and the same that is recomputed."""
    workload, cluster, workers = random_case(seed)
    named = load_framework(name).framework
    plain = replace(NO_FRAMEWORK, defaults=Defaults(selective_modules=named.defaults.selective_modules))
    well_tuned, own = (
        MeshModel.build(
            replace(workload, framework=framework),
            cluster,
            replace(
                framework.mesh_assumptions(precision=workload.precision, has_fp4=True),
                main_gradient_bytes=DEFAULT_ASSUMPTIONS.main_gradient_bytes,
            ),
        )
        for framework in (plain, named)
    )
    plans = all_plans(well_tuned, min(workers, 8))
    assert np.all(well_tuned.evaluate(plans).step_time_s <= own.evaluate(plans).step_time_s * (1 + 1e-9))

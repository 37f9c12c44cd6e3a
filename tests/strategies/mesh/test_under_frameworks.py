"""The search under every framework: its best plans are those of brute force, and no bound passes what is costed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import NO_FRAMEWORK, Defaults
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from costmodel.mesh.model import MeshModel
from costmodel.workload import Workload
from planner.exporters import exporter_of, targets_that_take
from planner.files.loading import load_framework
from planner.files.resources import bundled
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, capacity_of, check_search, costs_of, run_by_framework
from tests.strategies.mesh.networks import random_case


def _of_a_mesh() -> list[str]:
    """Frameworks that differ in plans over a mesh, the first of each kind."""
    known: dict[object, str] = {}
    for name in bundled("frameworks"):
        found = load_framework(name).framework
        known.setdefault((found.mesh_assumptions(has_fp4=True), found.stages, str(found.rules)), name)
    return list(known.values())


NAMES = _of_a_mesh()
# Trainers of transformers whose launch files are written: their proofs are what people act on.
EXPORTED = sorted({exporter_of(target).FRAMEWORK for target in targets_that_take("mesh")})


@pytest.mark.exact
@mostly("exact", ("name", "seed"), [(n, seed) for seed in (1, 3, 5) for n in NAMES], quick=3, every=2 * len(NAMES))
def test_the_best_plans_are_those_of_brute_force(name: str, seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    degrees = {"cp": Bounds(high=1), "tp": Bounds(high=random.Random(seed).choice([1, 2]))}
    _check(name, workload, cluster, min(workers, 4), MeshRestriction(degrees=degrees))


@mostly(
    "exact",
    ("name", "tens"),
    [(name, tens) for tens in range(10) for name in EXPORTED],
    quick=0,
    every=len(EXPORTED),
)
def test_a_hundred_problems_of_every_framework_that_is_exported(name: str, tens: int) -> None:
    """Ten at a time; networks that the framework does not train are passed over."""
    assert sum(itertools.islice(filter(None, (_problem(name, 1000 * (tens + 1) + n) for n in range(100))), 10)) == 10


def _problem(name: str, seed: int) -> bool:
    """One problem, most of them of two ranks, a few with context parallelism; as `_check`."""
    workload, cluster, workers = random_case(seed)
    largest = 2 if seed % 10 else min(workers, 4)
    tensor = random.Random(seed).choice([1, 2])
    degrees = {"cp": Bounds(high=largest if seed % 5 == 1 else 1), "tp": Bounds(high=tensor)}
    return _check(name, workload, cluster, largest, MeshRestriction(degrees=degrees))


def _check(name: str, workload: Workload, cluster: Cluster, workers: int, restriction: MeshRestriction) -> bool:
    """Whether there was anything to search; its best plans are those of enumeration, and no bound passes what is costed."""
    framework = load_framework(name).framework
    workload = replace(workload, framework=framework)
    model = MeshModel.build(workload, cluster, framework.mesh_assumptions(precision=workload.precision, has_fp4=True))
    plans = all_plans(model, workers)
    for field, bounds in restriction.degrees.items():
        plans = plans.take(np.flatnonzero([bounds.allows(int(v)) for v in getattr(plans, field)]))
    plans = run_by_framework(model, plans)
    if not len(plans):  # of a network that the framework does not know
        return False
    costs = costs_of(model, plans)
    bound = model.evaluate(plans, exact=False)
    assert np.all(bound.step_time_s <= costs.step_time_s * (1 + 1e-9))
    for share in (0.05, 0.99):
        capacity = capacity_of(model, plans, share)
        settings = MeshSettings(max_workers=workers, capacity_bytes=capacity, top=3, restriction=restriction)
        check_search(model, plans, settings)
    return True


@pytest.mark.parametrize("name", NAMES)
@mostly("exact", "seed", [2, 4, 6, 7], quick=1, every=2)
def test_no_framework_is_quicker_than_a_well_tuned_implementation(name: str, seed: int) -> None:
    """Any plan, whether the framework can run it or not, with gradients in the same format, and the same that is recomputed."""
    workload, cluster, workers = random_case(seed)
    named = load_framework(name).framework
    plain = replace(NO_FRAMEWORK, defaults=Defaults(selective=named.defaults.selective))
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

"""One row, predicted: shared by the tests of kernels, networks, collectives and readings."""

from __future__ import annotations

from costmodel.mesh.plan import MeshPlan
from planner.measurements import plans
from planner.measurements.outcomes import DEFAULT, Outcome
from planner.measurements.tables import Row

FORWARD, BACKWARD = {"pass_": "forward"}, {"pass_": "backward"}


def only(module: object, preset: object = DEFAULT, **cells: object) -> Outcome:
    (found,) = module.predict([Row(line=2, cells={name: str(value) for name, value in cells.items()})], preset)  # type: ignore[attr-defined]
    return found


RUN = {
    "style": "gpt", "hidden": "4096", "layers": "32", "heads": "32", "device": "a100-80gb", "gpus": "64", "gpus_per_node": "8",
    "global_batch": "512", "micro_batch": "2", "tp": "4", "pp": "2", "dp": "8", "precision": "bf16", "seq": "2048", "zero_stage": "1",
    "recompute": "full", "step_time_ms": "12000",
}  # fmt: skip


def run(**cells: str) -> Outcome:
    return plans.predict([Row(line=2, cells={**RUN, **cells})], DEFAULT)[0]


def seconds(outcome: Outcome) -> float:
    assert not outcome.skipped, outcome.skipped
    return outcome.comparisons[0].predicted_s


def plan_of(**cells: str) -> MeshPlan:
    (comparison,) = run(**cells).comparisons
    assert comparison.plan is not None
    return comparison.plan

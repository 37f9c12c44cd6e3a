"""Traces of plans with a split per layer: they end with the step of the cost model, and exchanges pause while activations travel."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from costmodel.layerwise.detail import layer_tracks
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import Split
from costmodel.timeline import Tracks
from planner.core.errors import PlannerError
from planner.core.request import Request
from planner.question.resolve import Resolved, resolve
from planner.spaces.layers.space import layerwise_space

FAMILIES = ["data", "model", "hybrid", "mixed"]


def question(cluster: str, gpus: int, model: str = "alexnet") -> Resolved:
    return resolve(Request(model=model, gpus=gpus, cluster=cluster, space="layers"))


def costed(asked: Resolved, plan: Plan) -> tuple[Tracks, float]:
    step = float(evaluate(asked.workload, asked.cluster, [plan]).step_time_s[0])
    return layer_tracks(asked.workload, asked.cluster, plan), step


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx1-p100", "ethernet-10g"])
@pytest.mark.parametrize(("gpus", "families"), [(1, ["one-device"]), (4, FAMILIES), (8, FAMILIES)])
def test_the_trace_ends_with_the_step(cluster: str, gpus: int, families: list[str]) -> None:
    asked = question(cluster, gpus)
    checked = 0
    for family in families:
        try:
            plan = layerwise_space(asked).best_on(gpus, family)
        except PlannerError:  # nothing of this family there
            continue
        tracks, step = costed(asked, plan)
        assert tracks.end_s == pytest.approx(step, rel=1e-9), family
        checked += 1
    assert checked >= min(len(families), 3)


@pytest.mark.parametrize("m", [1, 2, 8])
def test_micro_batches_follow_each_other(m: int) -> None:
    asked = question("dgx1-p100", 4)
    layers = asked.workload.graph.layers
    names = tuple("ring" if layer.has_weights else None for layer in layers)
    plan = Plan(workers=4, num_micro_batches=m, splits=(Split(batch=4),) * len(layers), collectives=names)
    tracks, step = costed(asked, plan)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)
    forwards = [span for span in tracks.spans if span.name.startswith("conv1 forward")]
    assert len(forwards) == m


def test_exchanges_and_moves_share_the_links() -> None:
    """No instant has both, each is in order, and the pieces of an exchange add up to it."""
    asked = question("ethernet-10g", 8)
    plan = layerwise_space(asked).best_on(8, "hybrid")
    tracks, _ = costed(asked, plan)
    moves = [span for span in tracks.spans if span.stream == "network"]
    exchanges = [span for span in tracks.spans if span.stream == "exchange"]
    assert moves
    assert exchanges
    for span in exchanges:
        for move in moves:
            assert span.end_s <= move.start_s + 1e-12 or move.end_s <= span.start_s + 1e-12
    for before, after in itertools.pairwise(exchanges):
        assert before.end_s <= after.start_s + 1e-12
    total = float(evaluate(asked.workload, asked.cluster, [plan]).exchange_s[0])
    assert sum(span.duration_s for span in exchanges) == pytest.approx(total)


def test_without_overlap_exchanges_come_after_the_backward_pass() -> None:
    asked = resolve(Request(model="alexnet", gpus=4, cost_model="paleo", space="layers"))
    plan = layerwise_space(asked).best_on(4, "data")
    tracks, step = costed(asked, plan)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)
    back = max(span.end_s for span in tracks.spans if span.kind == "backward")
    assert min(span.start_s for span in tracks.spans if span.kind == "exchange") >= back - 1e-12


@pytest.mark.parametrize(
    ("cluster", "gpus"), [("dgx-h100", 4), ("dgx-h100", 16), ("ethernet-10g", 4), ("dgx1-p100", 16)]
)
def test_pipelines_end_with_the_step(cluster: str, gpus: int) -> None:
    """The closed form of the cost model is exact, and both hold the receiver while it receives."""
    asked = question(cluster, gpus)
    plan = layerwise_space(asked).best_on(gpus, "pipeline")
    tracks, step = costed(asked, plan)
    assert len(tracks.names) == len(plan.stages)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)


def test_equal_stages_are_exact() -> None:
    """Stages that all take the same, with free links: (m + S - 1) (F + B), as in every paper on pipelines."""
    asked = question("dgx-h100", 2)
    plan = layerwise_space(asked).best_on(2, "pipeline")
    plan = replace(plan, num_micro_batches=4)
    tracks, step = costed(asked, plan)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)

"""Traces of mesh plans: they end when the cost model says, and nothing is in two places at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.mesh.tracks import mesh_tracks
from costmodel.schedules import SCHEDULES
from costmodel.timeline import Tracks, TrackSpan
from tests.costmodel.mesh import plans as make


def cases(schedule: str, count: int, *, offload: bool = False) -> list[tuple[MeshModel, MeshPlan]]:
    rng = random.Random(f"spans {schedule} {offload}")
    result: list[tuple[MeshModel, MeshPlan]] = []
    while len(result) < count:
        model = make.model_of(
            make.network(rng, blocks=rng.choice([6, 8, 12])), 12, make.cluster(rng), make.assumptions(rng)
        )
        shape = make.shape_of(model)
        for _ in range(6):
            plan = make.random_plan(rng, shape, schedule=schedule, offload=offload)
            result.append((model, make.uneven(rng, plan, model.num_blocks) if rng.random() < 0.5 else plan))
    return result[:count]


def errors(schedule: str, *, offload: bool = False) -> list[float]:
    """Relative, of where the trace ends."""
    drawn = cases(schedule, 60, offload=offload)
    return [
        mesh_tracks(model, plan, inside=False).end_s / float(costs.step_time_s[0]) - 1.0
        for (model, plan), costs in zip(drawn, make.costs_of_cases(drawn), strict=True)
    ]


@pytest.mark.exact
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_trace_ends_with_the_step(schedule: str, offload: bool) -> None:
    """Every part of the step is somewhere: passes, transfers, gathering, exchange, update, host; copies of ZeRO-3's shards too."""
    found = [abs(error) for error in errors(schedule, offload=offload)]
    assert max(found) < 0.01
    assert sorted(found)[len(found) // 2] < 1e-9


def check(tracks: Tracks) -> None:
    """Spans of a stream nest or do not overlap, and stay inside the step."""
    rows: dict[tuple[int, str], list[TrackSpan]] = defaultdict(list)
    for span in tracks.spans:
        assert span.duration_s > 0
        assert 0 <= span.start_s <= span.end_s <= tracks.end_s * (1 + 1e-12)
        rows[span.track, span.stream].append(span)
    slack = 1e-9 * tracks.end_s
    for row in rows.values():
        open_spans: list[TrackSpan] = []
        for span in row:
            while open_spans and open_spans[-1].end_s <= span.start_s + slack:
                open_spans.pop()
            assert len(open_spans) == span.depth
            if open_spans:
                assert span.end_s <= open_spans[-1].end_s + slack
            open_spans.append(span)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_spans_nest_or_stay_apart(schedule: str) -> None:
    for model, plan in cases(schedule, 12):
        check(mesh_tracks(model, plan))


def passes(tracks: Tracks, kind: str) -> Sequence[TrackSpan]:
    return [span for span in tracks.spans if span.kind == kind and span.depth == 0]


def test_every_rank_runs_every_micro_batch_forward_and_back() -> None:
    for model, plan in cases("1f1b", 12):
        tracks = mesh_tracks(model, plan)
        assert len(tracks.names) == plan.pp
        for kind in ("forward", "backward"):
            assert len(passes(tracks, kind)) == plan.pp * plan.num_micro_batches


def test_blocks_fill_their_pass_in_network_order() -> None:
    rng = random.Random(3)
    model = make.model_of(make.gpt(blocks=4, tied=False), 8, make.cluster(rng))
    plan = MeshPlan(pp=2, num_micro_batches=2, dp_replicate=4, recompute="full", recompute_blocks=1)
    tracks = mesh_tracks(model, plan)
    first = passes(tracks, "forward")[0]
    inside = [s for s in tracks.spans if s.depth == 1 and s.track == 0 and first.start_s <= s.start_s < first.end_s]
    assert [span.name for span in inside] == ["embedding", "block 1", "block 2"]
    assert sum(span.duration_s for span in inside) == pytest.approx(first.duration_s)
    back = next(span for span in passes(tracks, "backward") if span.track == 1)
    inside = [s for s in tracks.spans if s.track == 1 and back.start_s <= s.start_s < back.end_s]
    assert [span.name for span in inside if span.depth == 1] == ["head", "block 4", "block 3"]
    assert "recomputation" in {span.name for span in inside if span.depth == 2}


def test_ranks_with_less_to_do_wait() -> None:
    """Two equal stages, GPipe, two micro-batches: the second rank is busy from one forward after the first to one before its end."""
    model = make.model_of(make.gpt(blocks=4, tied=False), 2, make.ideal_cluster(bandwidth=1e15))
    plan = MeshPlan(pp=2, num_micro_batches=2, schedule="gpipe")
    tracks = mesh_tracks(model, plan, inside=False)
    forward = [span.duration_s for span in passes(tracks, "forward") if span.track == 0]
    starts = [span.start_s for span in passes(tracks, "forward") if span.track == 1]
    assert starts[0] == pytest.approx(forward[0], rel=1e-3)


def test_an_offloaded_optimizer_is_called_that() -> None:
    model = make.model_of(make.gpt(blocks=4), 4, make.cluster(random.Random(4)))
    for offload, kind in ((False, "optimizer"), (True, "host transfer")):
        plan = MeshPlan(pp=2, num_micro_batches=4, offload_optimizer=offload)
        last = [span for span in mesh_tracks(model, plan).spans if span.stream == "optimizer"]
        assert {span.kind for span in last} == {kind}
        assert all(("host" in span.name) is offload for span in last)


def test_the_gathering_of_weights_has_spans_of_its_own() -> None:
    """One stage: what gathering and scattering add to the passes, and the end, are the data-parallel part of the step."""
    model = make.model_of(make.gpt(blocks=4), 8, make.ideal_cluster(bandwidth=2e9))
    plan = MeshPlan(dp_shard=4, zero_stage=3, num_micro_batches=2)
    spans = mesh_tracks(model, plan).spans
    gathered = [span for span in spans if "(ZeRO-3)" in span.name]
    assert {span.depth for span in gathered} == {1}
    assert len(gathered) == 4  # forward and backward of two micro-batches
    end = [span for span in spans if span.stream == "exchange" and span.depth == 0]
    total = sum(span.duration_s for span in (*gathered, *end))
    assert total == pytest.approx(float(model.evaluate_plans([plan]).dp_exposed_s[0]), rel=1e-9)


def test_inference_has_no_way_back() -> None:
    rng = random.Random(4)
    model = make.model_of(make.gpt(blocks=4), 4, make.cluster(rng))
    model = replace(model, workload=replace(model.workload, training=False))
    tracks = mesh_tracks(model, MeshPlan(pp=2, num_micro_batches=4))
    assert {span.kind for span in tracks.spans if span.depth == 0} <= {"forward", "transfer"}

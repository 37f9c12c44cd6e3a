"""Which rank runs which chunk is declared by the schedule, and all that depends on it follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel import schedules
from costmodel.mesh.detail import stage_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.stages import stack_layouts
from costmodel.mesh.tracks import mesh_tracks
from costmodel.schedules import SCHEDULES, Instruction, chunks_of_ranks, instruction_orders, ranks_of_chunks
from strategies.limits import Clock
from strategies.mesh.refine import LayoutSearch, StageTables
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

# Two chunks per rank, in a V: the last rank has the middle of the network, the first one both ends of it.
PLAN = MeshPlan(pp=3, vpp=2, num_micro_batches=6, schedule="interleaved", stage_blocks=(1, 2, 3, 4, 5, 6))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_run_the_chunks_that_are_declared_theirs(schedule: str) -> None:
    declared = schedules.schedule_of(schedule).vpp
    for pp, vpp in ((2, declared or 2), (3, declared or 4), (5, declared or 2)):
        own = chunks_of_ranks(schedule, pp, vpp)
        assert own[:, 0].tolist() == list(range(pp))
        assert ranks_of_chunks(schedule, pp, vpp)[own].tolist() == [[rank] * vpp for rank in range(pp)]
        orders = instruction_orders(schedule, pp, vpp, 2 * pp)
        assert [sorted({item.chunk for item in order}) for order in orders] == own.tolist()


def _all_forward_then_all_back(rank: int, pp: int, _vpp: int, m: int, _group: int) -> list[Instruction]:
    down, up = rank, 2 * pp - 1 - rank
    passes = [("F", down), ("F", up), ("B", up), ("B", down)]
    return [Instruction(kind, chunk, i) for kind, chunk in passes for i in range(m)]


@pytest.fixture
def in_a_v(monkeypatch: pytest.MonkeyPatch) -> MeshModel:
    """The schedule of two chunks per rank goes down and up again."""
    known = tuple(
        replace(
            one,
            order=_all_forward_then_all_back,
            in_flight=lambda m, pp, vpp, rank: m * vpp,
            rank_of_chunk=lambda chunk, pp: np.minimum(chunk, 2 * pp - 1 - chunk),
        )
        if one.name == "interleaved"
        else one
        for one in schedules.PIPELINE_SCHEDULES
    )
    monkeypatch.setattr(schedules, "PIPELINE_SCHEDULES", known)
    return make.model_of(decoder(blocks=21), 24, make.ideal_cluster())


def test_ranks_of_a_v_hold_what_they_run(in_a_v: MeshModel) -> None:
    rows = stage_rows(in_a_v, PLAN)
    assert [row.blocks for row in rows] == ["1+6", "2+5", "3+4"]
    layout = in_a_v.layout_of_plan(PLAN)
    assert layout.rank_modules[0].tolist() == [1, 7, 1]  # the embedding, the first and the last blocks, the head
    assert layout.rank_modules[1:].tolist() == [[0, 7, 0]] * 2
    # Inputs and gradients: two to each end of the V, which turns on the last rank, and four to the rank between.
    between = rows[1].transfer_s
    assert between > 0
    assert [row.transfer_s / between for row in rows] == [0.5, 1.0, 0.5]


@pytest.mark.parametrize("blocks", [PLAN.stage_blocks, (3, 3, 4, 4, 4, 3)])
def test_ranks_of_a_v_are_as_busy_as_the_timeline_says(in_a_v: MeshModel, blocks: tuple[int, ...]) -> None:
    plan = replace(PLAN, stage_blocks=blocks)
    layouts = stack_layouts([in_a_v.layout_of_plan(plan, every_rank=True)])
    busy = in_a_v.pipelines(MeshBatch.from_plans([plan]), layouts).busy_s[0] * plan.num_micro_batches
    happened = np.zeros(plan.pp)
    for span in mesh_tracks(in_a_v, plan, inside=False).spans:
        if span.stream in ("compute", "receive"):
            happened[span.track] += span.duration_s
    assert busy == pytest.approx(happened, rel=1e-9)
    sent, ends = [], {}
    for span in mesh_tracks(in_a_v, plan, inside=False).spans:
        if span.stream in ("send_forward", "send_backward"):
            sent.append(span.track)
            assert span.start_s >= ends.get((span.track, span.stream), 0.0) * (
                1 - 1e-9
            )  # a link is busy with one transfer at a time
            ends[span.track, span.stream] = span.end_s
    assert np.bincount(sent).tolist() == [12, 24, 12]


def test_ranks_of_a_v_recompute_blocks_of_their_own(in_a_v: MeshModel) -> None:
    search = LayoutSearch(
        model=in_a_v,
        tables=StageTables.of(in_a_v, PLAN, "full", 1e30),
        must_recompute=False,
        clock=Clock(),
    )
    ways = list(search._recomputations((1, 2, 3, 4, 5, 6), [7, 0, 1]))
    assert ways == [(1, 0, 0, 1, 0, 6), (1, 0, 1, 0, 0, 6)]

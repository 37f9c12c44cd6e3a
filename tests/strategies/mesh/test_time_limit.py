"""The search over a device mesh looks at the clock, and says what holds for the plans that it did not reach."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from costmodel.mesh.model import MeshModel
from strategies import limits
from strategies.mesh.search import search_model
from strategies.mesh.settings import MeshSettings
from strategies.score import STEP_TIME, Score
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of

SETTINGS = MeshSettings(max_workers=4, capacity_bytes=1e12, top=1)


def model_of(blocks: int, experts: int = 0) -> MeshModel:
    cluster = two_level_cluster(per_node=2)
    return MeshModel.build(workload_of(decoder(blocks=blocks, experts=experts), cluster, 4), cluster)


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("score", [STEP_TIME, Score(per_device=True)])
def test_a_search_without_time_has_a_bound_all_the_same(score: Score, experts: int) -> None:
    model, settings = model_of(3, experts), replace(SETTINGS, score=score)
    stopped, done = search_model(model, replace(settings, wall_s=-1.0)), search_model(model, settings)
    assert stopped.out_of_time
    assert not stopped.is_counted
    assert not stopped.candidates
    assert done.is_counted
    assert 0.0 < stopped.bound_score <= done.bound_score


def test_the_clock_is_looked_at_for_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes forward by looks: a pipeline of 400 blocks can be cut in hundreds of ways, of which few are laid out in 40 looks."""
    model, start_s, ticks = model_of(400), time.monotonic(), itertools.count(step=1000)
    monkeypatch.setattr(limits.time, "monotonic", lambda: start_s + next(ticks))
    laid_out: list[tuple[int, int]] = []
    layout = MeshModel.layout

    def count(self: MeshModel, pp: int, vpp: int) -> object:
        laid_out.append((pp, vpp))
        return layout(self, pp, vpp)

    monkeypatch.setattr(MeshModel, "layout", count)
    outcome = search_model(model, replace(SETTINGS, wall_s=40_000.0))
    assert outcome.out_of_time
    assert len(set(laid_out)) <= 40
    assert outcome.bound_score > 0.0

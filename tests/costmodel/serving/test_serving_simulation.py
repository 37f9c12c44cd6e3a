"""The serving model against simulations of the queue, which share nothing with the closed form but the times of single passes."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.serving.tables import PassKeys
from tests.costmodel.serving.servers import P, costs_of, large, model


def simulated_whole(places: int, rounds: int, decode_s: float, prefill_s: float, requests: int) -> float:
    """Requests per second of a server of one stage that reads a prompt as soon as a place is free, and otherwise decodes."""
    clock, finished, left = 0.0, 0, [0] * places
    started_at = 0.0
    for done in range(requests):
        while all(left):
            clock += decode_s
            left = [n - 1 for n in left]
        free = left.index(0)
        clock += prefill_s
        # Spread the first requests, so that the places do not stay in step.
        left[free] = rounds if done >= places else max(1, rounds * (done + 1) // places)
        finished += 1
        if done == requests // 2:
            started_at, counted = clock, finished
    return (finished - counted) / (clock - started_at)


@pytest.mark.parametrize("places", [1, 2, 7, 32])
@pytest.mark.parametrize("output", [17, 64])
def test_throughput_of_one_stage_equals_a_simulation(places: int, output: int) -> None:
    found = costs_of(model(large(), output=output), P(max_batch=places))
    simulated = simulated_whole(
        places, output - 1, float(found.decode_pass_s[0]), float(found.ttft_s[0]), requests=40 * places
    )
    assert float(found.requests_per_s[0]) == pytest.approx(simulated, rel=0.03)


def simulated_stages(stage_s: list[float], groups: int, rounds: int) -> float:
    """Time per round of groups that follow each other through stages; a group starts again when it leaves the last."""
    free, ready, ends = [0.0] * len(stage_s), [0.0] * groups, []
    for _ in range(rounds):
        for g in range(groups):
            for s, duration in enumerate(stage_s):
                ready[g] = free[s] = max(ready[g], free[s]) + duration
        ends.append(max(ready))
    half = rounds // 2
    return (ends[-1] - ends[half - 1]) / (rounds - half)


@pytest.mark.parametrize(("blocks", "pp"), [(4, 2), (4, 4), (5, 3), (7, 4)])
@pytest.mark.parametrize("places", [1, 2, 12])
def test_time_per_token_of_a_pipeline_equals_a_simulation(blocks: int, pp: int, places: int) -> None:
    """A prompt of one token costs a pass like any other: with many output tokens decoding alone counts."""
    found = model(large(blocks=blocks), prompt=1, output=4000)
    plan = P(pp=pp, max_batch=places)
    one = np.ones(1, dtype=np.int64)
    module_s = found.timer.passes(
        PassKeys(tp=one, ep=one, etp=one, prompts=0 * one, chunk=0 * one, decodes=plan.group_batch * one)
    ).total_s[0]
    layout = found.layout(pp)
    # Every stage but the first receives 4096 x 2 bytes per sequence inside the node.
    send = 1e-6 + plan.group_batch * 4096 * 2 / 100e9
    stage_s = []
    for s, count in enumerate(layout.blocks):
        inside = count * module_s[1] + (module_s[0] if s == 0 else 0.0) + (module_s[-1] if s == pp - 1 else 0.0)
        stage_s.append(inside + (send if s else 0.0))
    expected = simulated_stages(stage_s, plan.groups, 200)
    assert float(costs_of(found, plan).tpot_s[0]) == pytest.approx(expected, rel=0.01)

"""Two pools whose requests come at a rate, against a simulation that shares nothing with the closed form but the times of passes."""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import pytest

from costmodel.serving.arrivals import Stream
from costmodel.serving.percentiles import SHARES
from costmodel.serving.plan import TPOT_PARTS, TTFT_PARTS, ServingBatch, ServingCosts, ServingPlan
from costmodel.serving.stations import Stations, TokenTimes, solve_at_rate
from costmodel.serving.workload import Arrivals
from tests.cases import mostly
from tests.costmodel.serving.servers import NO_OVERHEAD, P, large, model


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Groups of prefill workers that take whoever has waited longest, and replicas to which a router sends each request at random."""

    groups: int
    together: int  # workers of a group, which run in step
    most: int  # prompts of a worker and pass
    one_s: float
    added_s: float
    later_s: float  # in later stages
    transfer_s: float
    replicas: int
    places: int  # of a replica
    passes: int
    pass_s: float
    sequence_s: float  # what a sequence adds to a pass
    rate_per_s: float = 1.0
    variation: float = 1.0  # of times between requests
    prompt_variation: float = 0.0
    output_variation: float = 0.0

    @property
    def stations(self) -> Stations:
        """The same for the closed form."""
        one, sequences = np.ones(1), np.array([1.0, 2.0, max(self.places, 3)])
        return Stations(
            in_flight=self.replicas * self.places * one,
            places=self.places * one,
            groups=self.groups * one,
            together=self.together * one,
            most=self.together * self.most * one,
            one_s=self.one_s * one,
            added_s=self.added_s * one,
            through_s=(self.one_s + self.later_s) * one,
            through_added_s=self.added_s * one,
            transfer_s=self.transfer_s * one,
            links_per_s=np.inf * one,
            decoders=self.replicas * one,
            row=np.zeros(1, dtype=np.int64),
            tokens=TokenTimes(sequences=sequences, token_s=(self.pass_s + self.sequence_s * sequences)[None]),
            passes=self.passes * one,
        )

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """All requests, and those of one of the replicas among which they are split at random."""
        whole = Stream(
            rate_per_s=np.array([self.rate_per_s]),
            variation=self.variation,
            prompt_variation=self.prompt_variation,
            output_variation=self.output_variation,
        )
        square = 1.0 + (self.variation**2 - 1.0) / self.replicas
        return whole, replace(whole, rate_per_s=whole.rate_per_s / self.replicas, variation=square**0.5)

    def answer(self) -> dict[str, float]:
        """Means and percentiles in closed form."""
        flow, percentiles = solve_at_rate(self.stations, *self.streams, self.passes)
        first = flow.wait_s + self.stations.own_s(flow.read)
        means = {"ttft": first, "request": first + self.transfer_s + flow.decode_s}
        return {name: float(value[0]) for name, value in {**means, **percentiles}.items()}


# -- the simulation -----------------------------------------------------------------------------------------------------


def gamma(draw: random.Random, mean: float, variation: float) -> float:
    return mean if variation == 0 else draw.gammavariate(variation**-2, mean * variation**2)


def read(pools: Pools, come_s: list[float], draw: random.Random) -> list[float]:
    """When each prompt has been read: a group that is free takes as many as wait and it may."""
    free, waiting, done, number = [0.0] * pools.groups, deque[int](), [0.0] * len(come_s), 0
    while number < len(come_s) or waiting:
        if not waiting:
            waiting.append(number)
            number += 1
        start = max(free[0], come_s[waiting[0]])
        while number < len(come_s) and come_s[number] <= start:
            waiting.append(number)
            number += 1
        taken = [waiting.popleft() for _ in range(min(len(waiting), pools.most * pools.together))]
        workers = [0.0] * pools.together
        for at, _ in enumerate(taken):
            each = pools.one_s if at < pools.together else pools.added_s
            workers[at % pools.together] += gamma(draw, each, pools.prompt_variation)
        heapq.heapreplace(free, start + max(workers))
        for prompt in taken:
            done[prompt] = start + max(workers) + pools.later_s
    return done


def decode(pools: Pools, ready_s: list[tuple[float, int]], lengths: list[int]) -> dict[int, float]:
    """When each answer of one replica ends, pass by pass."""
    clock, passed, number, ends = 0.0, 0, 0, {}
    running: list[tuple[int, int]] = []
    while number < len(ready_s) or running:
        if not running:
            clock = max(clock, ready_s[number][0])
        while number < len(ready_s) and ready_s[number][0] <= clock and len(running) < pools.places:
            heapq.heappush(running, (passed + lengths[ready_s[number][1]], ready_s[number][1]))
            number += 1
        clock += pools.pass_s + pools.sequence_s * len(running)
        passed += 1
        while running and running[0][0] <= passed:
            ends[heapq.heappop(running)[1]] = clock
    return ends


def simulated(pools: Pools, requests: int, seed: int) -> dict[str, float]:
    """Means and percentiles, without the first tenth of the requests and the last, which few follow."""
    draw, clock, come_s = random.Random(seed), 0.0, []
    for _ in range(requests):
        clock += gamma(draw, 1.0 / pools.rate_per_s, pools.variation)
        come_s.append(clock)
    first = read(pools, come_s, draw)
    lengths = [max(round(gamma(draw, pools.passes, pools.output_variation)), 1) for _ in come_s]
    replica = [draw.randrange(pools.replicas) for _ in come_s]
    ends: dict[int, float] = {}
    for one in range(pools.replicas):
        ready = sorted((first[n] + pools.transfer_s, n) for n in range(requests) if replica[n] == one)
        ends |= decode(pools, ready, lengths)
    kept = range(requests // 10, requests - requests // 10)
    times = {
        "ttft": [first[n] - come_s[n] for n in kept],
        "tpot": [(ends[n] - first[n]) / lengths[n] for n in kept],
        "request": [ends[n] - come_s[n] for n in kept],
    }
    means = {name: statistics.fmean(times[name]) for name in ("ttft", "request")}
    return means | {
        f"{time}_{name}_s": float(np.quantile(values, share))
        for time, values in times.items()
        for name, share in SHARES.items()
    }


def drawn(number: int) -> Pools:
    """A load at 5 to 90 % of what the slower pool can serve; every third in bursts."""
    draw = random.Random(number)
    pass_s = 2 ** draw.uniform(-7, -5)
    pools = Pools(
        groups=draw.choice((1, 1, 2, 3, 4, 8)),
        together=1,
        most=draw.choice((1, 1, 2, 4, 8)),
        one_s=1.0,
        added_s=draw.choice((1.0, 0.8, 0.5, 0.2)),
        later_s=0.0,
        transfer_s=2 ** draw.uniform(-9, -4),
        replicas=draw.choice((1, 2, 3)),
        places=round(2 ** draw.uniform(1, 8)),
        passes=round(2 ** draw.uniform(5, 9)),
        pass_s=pass_s,
        sequence_s=pass_s * 2 ** draw.uniform(-9, -4),
        variation=(1.0, 1.0, draw.choice((1.5, 2.0)))[number % 3],
        prompt_variation=draw.choice((0.0, 0.5)),
        output_variation=draw.choice((0.0, 0.5, 1.0)),
    )
    # The pools serve about the same: one up to three times what the other does.
    slowdown = float(
        (pools.stations.most_per_s / replace(pools, one_s=1e-9, added_s=1e-9).stations.most_requests_per_s)[0]
    )
    slowdown *= 3 ** draw.uniform(-1, 1)
    pools = replace(pools, one_s=slowdown, added_s=pools.added_s * slowdown)
    pools = replace(pools, later_s=draw.choice((0.0, slowdown)))
    return replace(pools, rate_per_s=float(pools.stations.most_requests_per_s[0]) * draw.uniform(0.05, 0.9))


def errors(pools: Pools, seed: int, requests: int = 20000) -> dict[str, float]:
    """How far the closed form is off, in shares."""
    measured, found = simulated(pools, requests, seed), pools.answer()
    return {name: found[name] / measured[name] - 1.0 for name in measured}


@mostly("fuzz", "number", range(24), quick=3)
def test_a_load_agrees_with_a_simulation(number: int) -> None:
    """Poisson arrivals: means within 10 %."""
    found = errors(replace(drawn(number), variation=1.0), number, 8000)
    assert abs(found["ttft"]) < 0.1
    assert abs(found["request"]) < 0.1


@pytest.mark.fuzz
def test_most_loads_agree_with_a_simulation() -> None:
    """120 random loads, 40 of them in bursts: means within 10 % on nearly all; percentiles in the median."""
    loads = [drawn(number) for number in range(120)]
    found = [errors(pools, number, 12000) for number, pools in enumerate(loads)]
    for bursts, first, request in ((False, 0.95, 0.97), (True, 0.85, 0.9)):
        rows = [row for row, pools in zip(found, loads, strict=True) if (pools.variation > 1) == bursts]
        assert statistics.fmean(abs(row["ttft"]) < 0.1 for row in rows) >= first
        assert statistics.fmean(abs(row["request"]) < 0.1 for row in rows) >= request
        for name in rows[0]:
            assert statistics.median(abs(row[name]) for row in rows) < (0.2 if "p99" in name else 0.1), name


@pytest.mark.fuzz
def test_workers_in_step_agree_with_a_simulation() -> None:
    """60 loads of groups of two and four prefill workers, which share experts: half within 5 %, eight of ten within 15."""
    loads = [replace(drawn(number), together=2 + 2 * (number % 2), variation=1.0) for number in range(60)]
    loads = [replace(p, rate_per_s=p.rate_per_s * min(1.0, 0.9 / busy(p))) for p in loads]
    found = [abs(errors(pools, number, 8000)["ttft"]) for number, pools in enumerate(loads)]
    assert np.median(found) < 0.05
    assert np.quantile(found, 0.8) < 0.15


def busy(pools: Pools) -> float:
    """What comes, as a share of what the slower pool can serve."""
    return pools.rate_per_s / float(pools.stations.most_requests_per_s[0])


# -- plans --------------------------------------------------------------------------------------------------------------

WIDE = P(tp=2, dp=2, max_batch=32, prefill_dp=16, prefill_tp=2)


def at_rate(rate: float, *plans: ServingPlan, prompt: int = 512, output: int = 64, **changes: float) -> ServingCosts:
    found = model(large(), prompt=prompt, output=output, assumptions=replace(NO_OVERHEAD, pass_overhead_s=1e-3))
    work = replace(found.workload, arrivals=Arrivals(rate, **changes))
    return replace(found, workload=work).evaluate(ServingBatch.from_plans(list(plans)))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_with_short_prompts_and_many_readers_it_is_a_server_without_pools(share: float) -> None:
    """A prompt of 16 tokens beside the decoding takes no longer than a token; a server that reads such has the same requests."""
    own = replace(WIDE, prefill_dp=0, prefill_tp=1, prefill_chunk=16, prefill_batch=8)
    most = float(at_rate(1.0, own, prompt=16, output=256).most_requests_per_s[0])
    shared, apart = (at_rate(share * most, plan, prompt=16, output=256) for plan in (own, WIDE))
    for name in ("most_requests_per_s", "request_s", "request_p50_s", "request_p90_s", "request_p99_s"):
        assert float(getattr(apart, name)[0]) == pytest.approx(float(getattr(shared, name)[0]), rel=0.03), name


def test_few_requests_wait_for_nothing() -> None:
    """At one request in hours: the prompt alone, its transfer, and passes of one sequence."""
    plan = replace(WIDE, prefill_dp=1)
    few, alone = at_rate(1e-4, plan), at_rate(1e-4, replace(plan, max_batch=1, dp=1))
    np.testing.assert_allclose(few.ttft_s, alone.ttft_s, rtol=1e-3)
    np.testing.assert_allclose(few.tpot_s, few.decode_pass_s + few.transfer_s, rtol=1e-3)
    assert float(few.occupied_places[0]) < 1e-3


@pytest.mark.parametrize("variation", [1.0, 2.0])
def test_times_grow_with_the_rate_and_fall_with_workers(variation: float) -> None:
    plan = P(tp=2, dp=2, max_batch=32, prefill_dp=2, prefill_tp=2, prefill_batch=4)
    most = float(at_rate(1.0, plan).most_requests_per_s[0])
    before = at_rate(1e-3, plan, variation=variation)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        costs = at_rate(share * most, plan, variation=variation)
        for name in ("ttft_s", "ttft_p99_s", "tpot_s", "tpot_p99_s", "request_s", "occupied_places"):
            assert float(getattr(costs, name)[0]) >= float(getattr(before, name)[0]) * (1 - 1e-3), (name, share)
        for parts, total in ((TTFT_PARTS, "ttft_s"), (TPOT_PARTS, "tpot_s")):
            assert sum(float(getattr(costs, name)[0]) for name in parts) == pytest.approx(
                float(getattr(costs, total)[0])
            )
        before = costs
    readers = at_rate(0.9 * most, *(replace(plan, prefill_dp=n) for n in range(2, 9)), variation=variation)
    replicas = at_rate(0.9 * most, *(replace(plan, dp=n) for n in range(2, 9)), variation=variation)
    for name in ("ttft_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"):
        assert np.all(np.diff(getattr(readers, name)) <= 1e-9), name
    for name in ("tpot_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s"):  # caches go farther where there are more GPUs
        assert np.all(np.diff(getattr(replicas, name) - replicas.transfer_s) <= 1e-9), name
    of_replicas = readers.tpot_p90_s - readers.transfer_s
    np.testing.assert_allclose(of_replicas, of_replicas[0])
    np.testing.assert_allclose(replicas.ttft_p90_s, replicas.ttft_p90_s[0])


def test_more_than_the_slower_pool_serves() -> None:
    plans = (replace(WIDE, prefill_dp=1), replace(WIDE, dp=1))
    most = at_rate(1.0, *plans).most_requests_per_s
    for plan, limit in zip(plans, most, strict=True):
        costs = at_rate(1.01 * float(limit), plan)
        assert np.isinf(costs.ttft_s[0])
        assert np.isinf(costs.tpot_p50_s[0])
        assert float(costs.requests_per_s[0]) == pytest.approx(float(limit))
        assert not any(np.any(np.isnan(column)) for column in costs.columns().values())


def test_answers_of_one_token_need_no_replica() -> None:
    costs = at_rate(1.0, WIDE, output=1)
    assert float(costs.tpot_s[0]) == 0.0
    assert float(costs.request_s[0]) == float(costs.ttft_s[0])

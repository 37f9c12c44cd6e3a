"""Two pools against a simulation event by event, which shares nothing with the closed form but the times of passes, and by hand."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from costmodel.precision import PRECISIONS
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import TPOT_PARTS, TTFT_PARTS, ServingBatch, ServingCosts, ServingPlan, broken_serving_rules
from costmodel.serving.pools import transfers
from costmodel.serving.stations import Stations, TokenTimes, solve
from costmodel.serving.workload import Load, ServingWorkload
from planner.importers.networks import load_model
from tests.cases import mostly
from tests.costmodel.serving.servers import NO_OVERHEAD, P, cluster, costs_of, large, model

# -- the closed form ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Pools:
    """Prefill workers, idle groups of which share those who wait, longest first; of decode workers the emptiest takes the next."""

    requests: int
    groups: int
    together: int  # workers of a group, which run in step
    most: int  # prompts of a worker and pass
    one_s: float
    added_s: float
    later_s: float  # in later stages
    transfer_s: float
    decoders: int
    passes: int
    pass_s: float
    sequence_s: float  # what a sequence adds to a pass

    def stations(self, load: Load = "traffic") -> Stations:
        """The same for the closed form."""
        one, sequences = np.ones(1), np.array([1.0, 2.0, max(self.requests, 3)])
        return Stations(
            in_flight=self.requests * one,
            places=self.requests / self.decoders * one,
            groups=self.groups * one,
            together=self.together * one,
            most=self.together * self.most * one,
            one_s=self.one_s * one,
            added_s=self.added_s * one,
            through_s=(self.one_s + self.later_s) * one,
            through_added_s=self.added_s * one,
            transfer_s=self.transfer_s * one,
            links_per_s=np.inf * one,
            decoders=self.decoders * one,
            row=np.zeros(1, dtype=np.int64),
            tokens=TokenTimes(sequences=sequences, token_s=(self.pass_s + self.sequence_s * sequences)[None]),
            passes=self.passes * one,
            load=load,
        )


@dataclass
class Simulation:
    """Pools, event by event."""

    pools: Pools
    draw: random.Random
    spread: float = 0.9  # of the lengths of answers
    clock: float = 0.0
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    number: itertools.count[int] = field(default_factory=itertools.count)
    first: list[tuple[float, float]] = field(default_factory=list)
    ended: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting, self.idle = deque([0.0] * self.pools.requests), self.pools.groups
        self.reading: dict[int, list[float]] = {}
        self.held, self.passed = [0] * self.pools.decoders, [0] * self.pools.decoders
        self.joining: list[list[float]] = [[] for _ in self.held]
        self.running: list[list[tuple[int, float]]] = [[] for _ in self.held]

    def later(self, seconds: float, what: str, whom: int = 0) -> None:
        heapq.heappush(self.events, (self.clock + seconds, next(self.number), what, whom))

    def read(self) -> None:
        """Idle groups begin passes."""
        pools = self.pools
        while self.idle and self.waiting:
            each = min(pools.most * pools.together, -(-len(self.waiting) // self.idle))
            taken = [self.waiting.popleft() for _ in range(each)]
            self.idle -= 1
            busy_s = pools.one_s + (-(-each // pools.together) - 1) * pools.added_s
            self.later(busy_s, "free")
            self.reading[number := next(self.number)] = taken
            self.later(busy_s + pools.later_s, "read", number)

    def decode(self, worker: int) -> None:
        """The next pass of a worker."""
        for came in self.joining[worker]:
            length = round(self.pools.passes * self.draw.uniform(1.0 - self.spread, 1.0 + self.spread))
            heapq.heappush(self.running[worker], (self.passed[worker] + max(length, 1), came))
        self.joining[worker] = []
        if self.running[worker]:
            self.later(self.pools.pass_s + self.pools.sequence_s * len(self.running[worker]), "pass", worker)

    def arrive(self) -> None:
        """A cache has come."""
        worker = min(range(len(self.held)), key=self.held.__getitem__)
        self.held[worker] += 1
        self.joining[worker].append(self.clock)
        if not self.running[worker] and len(self.joining[worker]) == 1:
            self.decode(worker)

    def end_pass(self, worker: int) -> None:
        self.passed[worker] += 1
        running = self.running[worker]
        while running and running[0][0] <= self.passed[worker]:
            self.ended.append((self.clock, self.clock - heapq.heappop(running)[1]))
            self.held[worker] -= 1
            self.waiting.append(self.clock)
        self.decode(worker)

    def run(self, answers: int) -> tuple[float, float, float]:
        """Mean seconds to the first token and of the decoding, and requests per second, after a quarter of the time."""
        self.read()
        while len(self.ended) < answers:
            self.clock, _, what, whom = heapq.heappop(self.events)
            if what == "free":
                self.idle += 1
            elif what == "read":
                taken = self.reading.pop(whom)
                self.first += [(self.clock, self.clock - sent) for sent in taken]
                for _ in taken:
                    self.later(self.pools.transfer_s, "arrive")
            elif what == "arrive":
                self.arrive()
            else:
                self.end_pass(whom)
            self.read()
        start = self.clock / 4.0
        first, decoding = ([value for when, value in times if when > start] for times in (self.first, self.ended))
        return statistics.fmean(first), statistics.fmean(decoding), len(decoding) / (self.clock - start)


def drawn(number: int, *, together: tuple[int, ...] = (1,)) -> Pools | None:
    """Pools, or None where more than 90 % of what they can read comes."""
    draw = random.Random(number)
    decoders, one_s = draw.choice((1, 2, 3)), 2 ** draw.uniform(-6, 1)
    pass_s = 2 ** draw.uniform(-7, -5)
    pools = Pools(
        requests=decoders * round(2 ** draw.uniform(0, 7)),
        groups=draw.choice((1, 1, 2, 3, 4, 8)),
        together=draw.choice(together),
        most=draw.choice((1, 1, 2, 4, 8)),
        one_s=one_s,
        added_s=one_s * draw.choice((1.0, 0.8, 0.5, 0.2)),
        later_s=draw.choice((0.0, one_s)),
        transfer_s=2 ** draw.uniform(-9, -4),
        decoders=decoders,
        passes=round(2 ** draw.uniform(5, 9)),
        pass_s=pass_s,
        sequence_s=pass_s * 2 ** draw.uniform(-9, -4),
    )
    stations = pools.stations()
    return pools if float((solve(stations).rate_per_s / stations.most_per_s)[0]) < 0.9 else None


def compared(pools: Pools, seed: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token, of the decoding, and requests per second: in closed form and simulated."""
    stations = pools.stations()
    flow = solve(stations)
    first = float((flow.wait_s + stations.own_s(flow.read))[0])
    found = Simulation(pools, random.Random(seed)).run(40 * pools.requests + 4000)
    return [first, float(flow.decode_s[0]), float(flow.rate_per_s[0])], list(found)


LOADS = [number for number in range(300) if drawn(number)][:200]


@mostly("fuzz", "number", LOADS, quick=15)
def test_pools_agree_with_a_simulation(number: int) -> None:
    """200 random loads below 90 % of what can be read: first tokens, decoding and throughput within 10 %."""
    pools = drawn(number)
    assert pools is not None
    closed, found = compared(pools, number)
    assert closed == pytest.approx(found, rel=0.1), pools


@pytest.mark.fuzz
def test_workers_that_read_in_step_agree_with_a_simulation() -> None:
    """100 loads of groups of two and four: half within 2 %, nine of ten within 10."""
    cases = ((n, drawn(n, together=(2, 4))) for n in range(150))
    errors = [np.abs(np.divide(*compared(pools, n)) - 1.0).max() for n, pools in cases if pools is not None][:100]
    assert np.median(errors) < 0.02
    assert np.quantile(errors, 0.9) < 0.1


def pools_of(**changes: float) -> Pools:
    usual = {"requests": 40, "groups": 1, "together": 1, "most": 1, "one_s": 0.1, "added_s": 0.1, "later_s": 0.0}
    usual |= {"transfer_s": 0.0, "decoders": 1, "passes": 90, "pass_s": 0.01, "sequence_s": 0.0}
    return Pools(**(usual | changes))  # type: ignore[arg-type]


def test_equal_requests_that_come_at_once_wait_in_the_first_round() -> None:
    """8 prompts of 0.1 s: 0 to 7 before one's own, 3.5 on average, in one of ten rounds; a round has 90 passes of 10 ms left."""
    flow = solve(pools_of(requests=8).stations("benchmark"))
    assert float(flow.wait_s[0]) == pytest.approx(0.1 * 3.5 * 0.1)
    assert float(solve(pools_of(requests=8).stations("backlog")).wait_s[0]) == pytest.approx(0.0, abs=1e-9)


def test_a_saturated_pool_sets_the_rate() -> None:
    """10 prompts a second, whatever the load; what 40 requests do not need, they wait: 4 s less 0.1 s and the decoding."""
    for load in ("traffic", "backlog"):
        flow = solve(pools_of().stations(load))  # type: ignore[arg-type]
        assert float(flow.rate_per_s[0]) == pytest.approx(10.0, rel=0.01)
        assert float((flow.wait_s + flow.decode_s)[0]) == pytest.approx(3.9, rel=0.01)


@pytest.mark.parametrize("change", ["requests", "groups", "decoders", "one_s", "transfer_s"])
def test_more_workers_and_shorter_times_are_never_worse(change: str) -> None:
    values = np.arange(1.0, 65.0) if change in ("requests", "groups", "decoders") else np.linspace(0.01, 1.0, 64)
    one = pools_of(requests=64, sequence_s=1e-4).stations()
    name = {"requests": "in_flight"}.get(change, change)
    many = replace(one.take(np.zeros(64, dtype=np.int64)), **{name: values})
    if change == "one_s":
        many = replace(many, through_s=values, added_s=values, through_added_s=values)
    rates = solve(many).rate_per_s
    steps = np.diff(rates) if change in ("requests", "groups", "decoders") else -np.diff(rates)
    assert np.all(steps >= -1e-3 * rates[1:]), steps.min()


# -- plans --------------------------------------------------------------------------------------------------------------

APART = P(tp=2, max_batch=16, prefill_dp=1, prefill_tp=2)


def parts(costs: ServingCosts, names: tuple[str, ...]) -> float:
    return float(sum(getattr(costs, name)[0] for name in names))


@pytest.mark.parametrize("load", ["traffic", "benchmark", "backlog"])
@pytest.mark.parametrize(
    "plan", [APART, replace(APART, prefill_pp=2, prefill_chunk=128), replace(APART, pp=2, dp=3, prefill_batch=4)]
)
def test_parts_add_up_and_requests_go_round(plan: ServingPlan, load: Load) -> None:
    served = model(large())
    served = replace(served, workload=replace(served.workload, load=load))
    costs = costs_of(served, plan)
    assert parts(costs, TTFT_PARTS) == pytest.approx(float(costs.ttft_s[0]))
    assert parts(costs, TPOT_PARTS) == pytest.approx(float(costs.tpot_s[0]))
    assert float((costs.requests_per_s * costs.request_s)[0]) == pytest.approx(plan.concurrency, rel=0.01)


def test_with_idle_readers_only_the_decoding_counts() -> None:
    """64 prefill workers for 4 sequences: a token takes a decoding pass of 4, prompts wait for nobody."""
    served = model(large(), prompt=64, output=256)
    apart = costs_of(served, P(tp=2, max_batch=4, prefill_dp=64, prefill_tp=2))
    shared = costs_of(served, P(tp=2, max_batch=4))
    assert float(apart.queue_s[0]) < 1e-3 * float(apart.ttft_s[0])
    assert float(apart.tpot_s[0]) == pytest.approx(float(shared.decode_pass_s[0]), rel=0.02)
    assert float(apart.pause_s[0]) < float(shared.pause_s[0])


def test_a_batch_of_both_kinds_is_costed_as_each() -> None:
    served, plans = model(large()), [P(tp=2, max_batch=16), APART, P(tp=4, max_batch=8, prefill_batch=2)]
    together = served.evaluate(ServingBatch.from_plans(plans)).columns()
    for n, plan in enumerate(plans):
        alone = costs_of(served, plan).columns()
        assert {name: float(column[n]) for name, column in together.items()} == pytest.approx(
            {name: float(column[0]) for name, column in alone.items()}
        )
    few = served.times(ServingBatch.from_plans(plans), percentiles=())
    assert set(few) <= set(together)
    assert few["tpot_s"].tolist() == pytest.approx(together["tpot_s"].tolist())


# 513 positions (one for the token that comes with the prompt) of 4 layers with 8 heads of 128 keys and 128 values in 2 bytes.
CACHE_BYTES = 513 * 4 * 8 * 2 * 128 * 2


def arrival(plan: ServingPlan, served: ServingModel | None = None) -> float:
    return float(transfers(served or model(large()), ServingBatch.from_plans([plan])).seconds[0])


def test_transfers_by_hand() -> None:
    """Links of 100 GB/s and 1 us in a node of eight, of 12.5 GB/s and 2 us between nodes; four of the layers on every stage."""
    assert arrival(P(prefill_dp=1)) == pytest.approx(1e-6 + CACHE_BYTES / 100e9)
    assert arrival(P(prefill_dp=8)) == pytest.approx(2e-6 + CACHE_BYTES / 12.5e9)
    # One rank receives what two send; two ranks receive what one sends; every stage receives its layers.
    assert arrival(P(prefill_dp=1, prefill_tp=2)) == pytest.approx(1e-6 + CACHE_BYTES / 100e9)
    assert arrival(P(tp=2, prefill_dp=1)) == pytest.approx(1e-6 + CACHE_BYTES / 100e9)
    assert arrival(P(tp=2, prefill_dp=1, prefill_tp=2)) == pytest.approx(1e-6 + CACHE_BYTES / 2 / 100e9)
    assert arrival(P(pp=2, prefill_dp=1, prefill_pp=2)) == pytest.approx(1e-6 + CACHE_BYTES / 2 / 100e9)
    # Of two prompts that leave together one waits for half of the other.
    assert arrival(P(prefill_dp=1, prefill_batch=2)) == pytest.approx(1e-6 + 1.5 * CACHE_BYTES / 100e9)


def test_latent_attention_is_sent_to_every_rank() -> None:
    """576 features per position and layer, of 61 layers in 16 bits: 4 ranks take all from one each, or from the only one."""
    work = ServingWorkload(
        graph=load_model("deepseek-v3").graph, prompt_tokens=1000, output_tokens=100, precision=PRECISIONS["bf16"]
    )
    served = ServingModel.build(work, cluster(), NO_OVERHEAD)
    kept = 61 * 576 * 2 * 1001
    one = P(tp=4, ep=4, prefill_dp=1)
    assert arrival(replace(one, prefill_tp=4), served) == pytest.approx(1e-6 + kept / 100e9)
    assert arrival(one, served) == pytest.approx(1e-6 + 4 * kept / 100e9)


def test_slow_links_bound_the_rate() -> None:
    """A prompt's cache takes 8.4 s at 1 MB/s, whatever the workers do."""
    served = model(large(), where=cluster(link=1e6))
    rate = float(costs_of(served, replace(APART, tp=1, prefill_tp=1)).requests_per_s[0])
    assert rate == pytest.approx(1e6 / CACHE_BYTES, rel=0.01)


def test_the_fuller_pool_is_shown() -> None:
    """A prefill worker on one device holds the whole network, replicas over 4 a quarter of it and of every sequence."""
    served = model(large())
    reader = costs_of(served, P(tp=4, max_batch=4, prefill_dp=1, prefill_batch=2))
    assert float(reader.kv_bytes[0]) == 2 * 2 * CACHE_BYTES  # being read, and not fetched yet
    replica = costs_of(served, P(tp=4, max_batch=4))
    assert float(reader.weight_bytes[0]) > 3.9 * float(replica.weight_bytes[0])
    large_batch = costs_of(served, P(tp=1, max_batch=512, prefill_dp=1, prefill_tp=4))
    assert float(large_batch.kv_bytes[0]) == 512 * float(large_batch.sequence_bytes[0])
    few = served.largest_batch(
        ServingBatch.from_plans([P(tp=4, prefill_dp=1)]), 64, float(reader.memory_bytes[0]) - 1e9
    )
    assert few.tolist() == [0]


def test_other_devices_read_the_prompts() -> None:
    """Twice as fast devices read compute-bound prompts in half the time, and decode as before."""
    served = model(large(), prompt=2048, where=cluster(peak=1e15))
    faster = replace(served, prefill_cluster=cluster(peak=2e15, memory_bandwidth=2e12))
    alone = P(tp=1, max_batch=1, prefill_dp=1)
    now, then = costs_of(served, alone), costs_of(faster, alone)
    assert float(then.ttft_s[0]) == pytest.approx(float(now.ttft_s[0]) / 2, rel=0.01)
    assert float(then.tpot_s[0]) == float(now.tpot_s[0])


def test_rules_hold_for_each_pool() -> None:
    shape = model(large()).shape
    assert broken_serving_rules(shape, APART) == []
    assert broken_serving_rules(shape, replace(APART, prefill_batch=32)) == []  # more than a replica has places
    problems = broken_serving_rules(shape, replace(APART, prefill_tp=3))
    assert problems
    assert all(words.startswith("prefill workers: ") for words in problems)
    assert broken_serving_rules(shape, P(prefill_tp=2)) == [
        "prefill tp, pp, ep and etp need workers that read prompts: prefill dp of 1 or more"
    ]

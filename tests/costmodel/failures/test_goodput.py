"""Closed forms of time with failures, against simulations and brute force."""

from __future__ import annotations

import math
import random
from dataclasses import astuple, dataclass

import numpy as np
import pytest

from costmodel.failures.goodput import (
    best_spares,
    chance_below,
    interval_moments,
    interval_time_s,
    longest_interval_s,
    optimal_interval_s,
    quantile_s,
    shrunk_share,
    spread_factors,
    tiered_time_s,
    waiting_share,
    young_interval_s,
)
from tests.cases import mostly
from tests.costmodel.failures.simulation import simulated_tiers, simulated_times, simulated_waiting


@dataclass(frozen=True)
class Case:
    """Seconds; the rate is 1 over the mean time between interruptions."""

    rate_per_s: float
    work_s: float
    stall_s: float
    restart_s: float
    write_s: float


def _case(seed: int) -> Case:
    rng = random.Random(seed)
    stall, write = 10 ** rng.uniform(-1, 2), rng.choice((0.0, 10 ** rng.uniform(0, 2.5)))
    mean = 10 ** rng.uniform(3, 5)
    work = max(write, young_interval_s(1 / mean, stall) * rng.uniform(0.5, 2.0))
    return Case(1 / mean, work, stall, 10 ** rng.uniform(0, 3), write)


@mostly("fuzz", "seed", range(200), quick=3, every=20)
def test_expected_time_and_its_variance(seed: int) -> None:
    """Within 1 % of a simulation, whose own error is counted."""
    case = _case(seed)
    jobs, intervals = 1500, 40
    times = simulated_times(seed, *astuple(case), jobs=jobs, intervals=intervals)
    rate, work, stall, restart, write = astuple(case)
    predicted = interval_moments(rate, work, stall, restart, write).times(intervals)
    assert predicted.mean_s == pytest.approx(intervals * interval_time_s(rate, work, stall, restart, write))
    noise = 4.0 * float(times.std()) / math.sqrt(jobs)
    assert abs(float(times.mean()) - predicted.mean_s) < min(noise, 0.01 * predicted.mean_s)
    # The variance of a sample variance by its fourth moment; neighbouring intervals share the write of a checkpoint.
    deviations = (times - times.mean()) ** 2
    error = 4.5 * float(deviations.std()) / math.sqrt(jobs) + 2.0 * write * rate * predicted.variance_s2 / intervals
    assert abs(float(times.var()) - predicted.variance_s2) < error


@mostly("fuzz", "seed", range(200), quick=3, every=20)
def test_optimal_interval(seed: int) -> None:
    """Brute force over intervals finds none that is better, and the best of them within 1 %."""
    case = _case(seed)
    found = optimal_interval_s(case.rate_per_s, case.stall_s, case.write_s)
    tried = np.exp(np.linspace(math.log(found / 20), math.log(found * 20), 4001))
    # Expected time per work, by integrating over when the first failure comes, and attempt after attempt.
    l, c, r, d = case.rate_per_s, case.stall_s, case.restart_s, case.write_s  # noqa: E741
    lengths = tried + c
    passes = np.exp(-l * lengths)
    until = (1 - passes) / l  # mean of min(failure, length)
    again = np.exp(-l * (r + d + lengths))
    attempt = (1 - again) / l / again  # mean time of attempts that begin with a restart, until one passes
    cost = np.where(tried >= d, (until + (1 - passes) * attempt) / tried, np.inf)
    best = tried[int(np.argmin(cost))]
    assert found == pytest.approx(best, rel=0.01)
    assert interval_time_s(l, found, c, r, d) / found <= float(cost.min()) * (1 + 1e-9)

    # The longest that takes 1 % more.
    longest = longest_interval_s(l, c, d)
    near = tried[cost <= cost.min() * 1.01]
    assert longest == pytest.approx(float(near.max()), rel=0.01) or longest > float(tried[-1])


def test_the_optimum_solves_lamberts_equation() -> None:
    for rate, stall in ((1e-4, 2.0), (1e-3, 1e3), (1e-9, 1e-6), (1e-5, 1e6)):
        x = rate * optimal_interval_s(rate, stall)
        assert (1 - x) * math.exp(x) == pytest.approx(math.exp(-rate * stall), rel=1e-9, abs=1e-12)
    assert optimal_interval_s(1e-9, 1.0) == pytest.approx(young_interval_s(1e-9, 1.0), rel=1e-4)
    assert optimal_interval_s(0.0, 1.0) == math.inf
    assert optimal_interval_s(1e-4, 0.0, write_s=7.0) == 7.0


@mostly("fuzz", "seed", range(60), quick=2, every=10)
def test_two_tiers(seed: int) -> None:
    rng = random.Random(seed)
    mean, share, every = 10 ** rng.uniform(3, 4.5), rng.choice((0.0, 1.0, rng.random())), rng.randint(1, 12)
    stall = 10 ** rng.uniform(-1, 1.5)
    work = young_interval_s(1 / mean, stall)
    first = 10 ** rng.uniform(0, 2)
    second = first * rng.uniform(1.1, 20)
    times = simulated_tiers(seed, 1 / mean, share, work, stall, every, first, second)
    predicted = tiered_time_s(1 / mean, share, work, stall, every, first, second)
    error = 4.0 * float(times.std()) / math.sqrt(len(times))
    assert abs(float(times.mean()) - predicted) < error + 1e-6 * predicted
    if every == 1:  # one tier, but for the restart from memory
        assert tiered_time_s(1 / mean, 0.0, work, stall, 1, first, second) == pytest.approx(
            interval_time_s(1 / mean, work, stall, second)
        )


@pytest.mark.parametrize("repairs", [[3600.0], [600.0, 600.0, 600.0, 12600.0]], ids=["alike", "unlike"])
@mostly("fuzz", "spares", range(6), quick=2)
def test_waits_for_hosts(spares: int, repairs: list[float]) -> None:
    """Erlang's formula holds for any distribution of repair times."""
    rate = (spares + 0.7) / 3600.0 / 1.5
    simulated, _ = simulated_waiting(spares, rate, repairs, spares, failures=30_000)
    assert waiting_share(rate, 3600.0, spares) == pytest.approx(simulated, rel=0.05)


def test_going_on_with_fewer_replicas() -> None:
    rate, replicas, spares = 2.0 / 3600.0, 6, 1
    _, shares = simulated_waiting(1, rate, [1800.0, 5400.0], spares, failures=30_000, goes_on=True)
    speed = sum(share * max(1 - max(n - spares, 0) / replicas, 0) for n, share in enumerate(shares))
    assert shrunk_share(rate, 3600.0, spares, replicas) == pytest.approx(float(speed), rel=0.01)


@pytest.mark.parametrize(("rate", "hosts"), [(0.01, 16), (0.01, 64), (0.3, 300), (1.0, 2048), (0.0, 8)])
def test_best_spares_by_trying_all(rate: float, hosts: int) -> None:
    tried = [(hosts + n) / (1 - waiting_share(rate, 5.0, n)) for n in range(60)]
    assert best_spares(rate, 5.0, hosts) == int(np.argmin(tried))


def test_quantiles_of_a_mixture() -> None:
    """Against draws: a rate from a log-normal distribution, then a time from a normal one."""
    spread, work = 0.5, 1e6
    moments = interval_moments(1e-4 * spread_factors(spread), 200.0, 2.0, 600.0).times(work / 200.0)
    rng = np.random.default_rng(1)
    drawn = []
    for factor in np.exp(spread * rng.standard_normal(4000)):
        one = interval_moments(1e-4 * float(factor), 200.0, 2.0, 600.0).times(work / 200.0)
        drawn.append(rng.normal(one.mean_s, math.sqrt(one.variance_s2)))
    for share in (0.1, 0.5, 0.9):
        assert quantile_s(share, moments) == pytest.approx(float(np.quantile(drawn, share)), rel=0.005)
        assert chance_below(quantile_s(share, moments), moments) == pytest.approx(share, abs=1e-5)

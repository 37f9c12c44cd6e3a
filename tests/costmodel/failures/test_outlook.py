"""The outlook of a job: its parts, its spares, its quantiles, and that no plan is below its bound."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from costmodel.failures.checkpoint import MODES, SavedState, checkpoint_of
from costmodel.failures.goodput import waiting_share
from costmodel.failures.outlook import RECOVERIES, Outlook, least_overhead
from costmodel.failures.rates import FailureClass, FailureModel, Units
from tests.cases import mostly
from tests.costmodel.failures.simulation import simulated_times

CLASSES = (
    FailureClass(name="gpu", unit="device", per_s=3e-9),
    FailureClass(name="software", unit="host", per_s=5e-9, takes_down="job"),
    FailureClass(name="power", unit="rack", per_s=1e-9, takes_down="rack"),
    FailureClass(name="maintenance", unit="host", per_s=2e-9, takes_down="job", planned=True),
)
MODEL = FailureModel(
    name="m",
    classes=CLASSES,
    log_sd=0.4,
    restart_s=300.0,
    restart_high_s=600.0,
    repair_s=7200.0,
    snapshot_s=0.5,
    storage_bytes_per_s=1e11,
    storage_bytes_per_s_and_host=2e9,
)


def _job(devices: int = 4096, mode: object = "async", **more: object) -> Outlook:
    state = SavedState.shared(2e12, ranks=devices, ranks_per_host=8)
    point = checkpoint_of(state, MODEL, mode, copy_bytes_per_s=2e10, peer_bytes_per_s=2.5e10)  # type: ignore[arg-type]
    return Outlook.of(MODEL, devices, point, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("devices", [8, 1000, 100_000])
def test_parts_add_up(mode: str, devices: int) -> None:
    job = _job(devices, mode)
    assert sum(job.parts.values()) == pytest.approx(1.0)
    assert all(part >= 0.0 for part in job.parts.values())
    assert job.share == job.parts["useful"]


def test_parts_against_a_simulation() -> None:
    job = replace(_job(50_000, spares=100), model=replace(MODEL, classes=CLASSES[:2]))
    point = job.checkpoint
    times = simulated_times(1, job.rate_per_s, job.interval_s, point.stall_s, job.restart_s, point.write_s)
    assert job.share == pytest.approx(60 * job.interval_s / float(times.mean()), rel=0.01)


def test_interruptions_by_hand() -> None:
    # 4,096 devices, 512 hosts, 256 racks of two hosts.
    job = _job()
    assert job.rate_per_s == pytest.approx(4096 * 3e-9 + 512 * 5e-9 + 256 * 1e-9)
    assert MODEL.hosts_lost_per_s(4096) == pytest.approx(4096 * 3e-9 + 2 * 256 * 1e-9)
    assert job.parts["planned"] == pytest.approx(
        512 * 2e-9 * (job.checkpoint.stall_s + job.checkpoint.write_s + 300.0 + job.checkpoint.load_s)
    )


def test_the_class_that_costs_most_is_the_one_whose_absence_helps_most() -> None:
    job = _job(spares=1)
    assert next(iter(job.costs)) == "gpu"
    without = replace(job, model=replace(MODEL, classes=CLASSES[1:]))
    assert job.cost_of("gpu") == pytest.approx(1.0 - job.share / without.share)
    # A failure that takes no host costs less than as many that do.
    assert job.cost_of("gpu") / (4096 * 3e-9) > job.cost_of("software") / (512 * 5e-9)


def test_spares_and_shrinking() -> None:
    lost = MODEL.hosts_lost_per_s(4096)
    waits = [_job(spares=n).parts["waiting for hosts"] for n in range(4)]
    assert waits == sorted(waits, reverse=True)
    planned = _job(spares=0).parts["planned"]
    assert waits[0] == pytest.approx(waiting_share(lost, 7200.0, 0) * (1.0 - planned))
    assert _job(spares=0, recovery="shrink", replicas=64).share > _job(spares=0).share


def test_quantiles_widen_with_doubt_and_narrow_with_length() -> None:
    job, sure = _job(), replace(_job(), model=replace(MODEL, log_sd=0.0, restart_high_s=300.0))
    for useful in (86400.0, 86400.0 * 60):
        low, middle, high = job.quantiles_s(useful, 0.1, 0.5, 0.9)
        assert useful < low < middle < high
        assert job.chance(useful, high) == pytest.approx(0.9, abs=1e-3)
        assert middle == pytest.approx(job.time_s(useful), rel=0.01)
        narrow = sure.quantiles_s(useful, 0.1, 0.9)
        assert narrow[1] - narrow[0] < high - low
    relative = [sure.quantiles_s(days * 86400.0, 0.9)[0] / sure.time_s(days * 86400.0) for days in (1, 10, 100)]
    assert relative == sorted(relative, reverse=True)


def test_a_cluster_without_failures() -> None:
    job = replace(_job(), model=FailureModel(name="none", classes=()), interval_s=math.inf)
    assert (job.share, job.time_s(100.0), job.quantiles_s(100.0, 0.1, 0.9)) == (1.0, 100.0, (100.0, 100.0))
    assert (job.chance(100.0, 99.0), job.chance(100.0, 101.0)) == (0.0, 1.0)
    assert Outlook.of(job.model, 8, job.checkpoint).interval_s == math.inf


@mostly("fuzz", "seed", range(200), quick=5)
def test_no_plan_is_below_the_bound(seed: int) -> None:
    """Whatever is saved, however, with which spares and interval: `least_overhead` of fewer devices is a bound."""
    rng = random.Random(seed)
    devices = int(10 ** rng.uniform(0.5, 5))
    ranks = rng.choice((devices, max(devices // 8, 1)))
    state = SavedState.shared(10 ** rng.uniform(9, 13), ranks=ranks, ranks_per_host=8)
    mode = rng.choice(MODES)
    point = checkpoint_of(state, MODEL, mode, copy_bytes_per_s=2e10, peer_bytes_per_s=2e10)
    units = Units(host=rng.choice((1.0, 4.0, 8.0)), rack=72.0)
    interval = rng.choice((None, 10 ** rng.uniform(1, 5)))
    job = Outlook.of(MODEL, devices, point, units=units, interval_s=interval, spares=rng.choice((None, 0, 3)))
    least = checkpoint_of(SavedState(total_bytes=state.total_bytes, rank_bytes=0.0), MODEL, mode)
    bounds = [least_overhead(MODEL, n, least, units) for n in sorted({1, devices // 2, devices})]
    assert bounds == sorted(bounds)
    assert job.share * bounds[-1] <= 1.0 + 1e-12


@mostly("fuzz", "seed", range(60), quick=5)
def test_no_rates_and_times_are_too_extreme(seed: int) -> None:
    """Whatever a file may state, the shares are shares and the times are finite."""
    rng = random.Random(seed)

    def any_of(low: float, high: float) -> float:
        return rng.choice((0.0, 10 ** rng.uniform(low, high), 10 ** rng.uniform(low, high)))

    restart = any_of(-3, 9)
    model = FailureModel(
        name="m",
        classes=tuple(replace(each, per_s=any_of(-15, -4)) for each in CLASSES),
        restart_s=restart,
        restart_high_s=restart * rng.uniform(1.0, 100.0),
        repair_s=any_of(-3, 9),
        snapshot_s=any_of(-6, 6),
        storage_bytes_per_s=10 ** rng.uniform(0, 14),
        storage_bytes_per_s_and_host=10 ** rng.uniform(0, 12),
        log_sd=rng.choice((0.0, 10.0, 0.7)),
    )
    devices = rng.choice((1, 8, 100_000))
    state = SavedState.shared(10 ** rng.uniform(3, 14), ranks=devices, ranks_per_host=8)
    point = checkpoint_of(state, model, rng.choice(MODES), copy_bytes_per_s=1e10, peer_bytes_per_s=1e10)
    spares, recovery = rng.choice((None, 0, 300)), rng.choice(RECOVERIES)
    job = Outlook.of(model, devices, point, spares=spares, recovery=recovery, replicas=rng.choice((1, 64)))
    assert sum(job.parts.values()) == pytest.approx(1.0) if math.isfinite(job.interval_s) else job.share > 0.0
    assert 0.0 < job.share <= 1.0 + 1e-12
    low, high = job.quantiles_s(1e6, 0.1, 0.9)
    assert 0.0 < low <= high < math.inf
    assert 0.0 <= job.chance(1e6, 2e6) <= 1.0 + 1e-12
    assert all(cost <= 1.0 for cost in job.costs.values())
    assert least_overhead(model, devices, replace(point, stall_s=model.snapshot_s)) * job.share <= 1.0 + 1e-9

"""A training of weeks on a cluster whose parts fail: what share of the time is useful, when it is done, and what costs most.

    share of useful time = (w / E) (1 - B) (1 - planned interruptions per second x (saving + restart))

with the work w between checkpoints and its expected time E (`costmodel.failures.goodput`), and the share B of time without enough hosts.
Of the elapsed time without B and planned interruptions, w / E is useful, c / E goes to checkpoints, 1 - e^(-l r) to restarts, and the
rest is work that was done again.

More GPUs fail more often, so a job with more of them has less useful time, for the same state. Its time per token grows with the step
alone: neither the rates nor the checkpoints know it. So a bound of the step, times the overhead that no plan on at least so many GPUs
goes below (`least_overhead`), is a bound of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from costmodel.failures.checkpoint import Checkpoint
from costmodel.failures.goodput import (
    Moments,
    best_spares,
    chance_below,
    interval_moments,
    interval_time_s,
    optimal_interval_s,
    quantile_s,
    shrunk_share,
    spread_factors,
    waiting_share,
)
from costmodel.failures.rates import FailureModel, Units
from costmodel.uncertainty.limits import END

# What a job does when a host fails and no spare is left: wait for the repair, or go on with fewer data-parallel replicas.
Recovery = Literal["wait", "shrink"]
RECOVERIES: tuple[Recovery, ...] = ("wait", "shrink")
# Least work between checkpoints in seconds, and least share of it that maintenance and repairs leave: nothing is divided by 0.
_LEAST = 1e-6
# Exponents beyond this are of jobs that never end.
_MOST_EXPONENT = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What failures do to a job, whatever its length.

    Attributes
    ----------
    model : FailureModel
    devices : int
        That the job uses.
    units : Units
    checkpoint : Checkpoint
    interval_s : float
        Work between checkpoints; infinite where nothing fails.
    spares : int
        Hosts in reserve.
    recovery : "wait" or "shrink"
    replicas : int
        Data-parallel replicas, for "shrink".

    Examples
    --------
    A failure each 10,000 s on average, of which none takes a host; a checkpoint of 1 s each 100 s of work, 50 s of restart:

    >>> from costmodel.failures.rates import FailureClass
    >>> gpu = FailureClass(name="gpu", unit="device", per_s=1e-6, takes_down="job")
    >>> model = FailureModel(name="m", classes=(gpu,), restart_s=49.0)
    >>> point = Checkpoint(bytes=1e9, stall_s=1.0, write_s=0.0, load_s=1.0)
    >>> job = Outlook(model=model, devices=100, checkpoint=point, interval_s=100.0)
    >>> [(name, round(share, 5)) for name, share in job.parts.items() if share]
    [('useful', 0.98019), ('checkpoints', 0.0098), ('restarts', 0.00499), ('work done again', 0.00502)]
    """

    model: FailureModel
    devices: int
    checkpoint: Checkpoint
    interval_s: float
    units: Units = Units()
    spares: int = 0
    recovery: Recovery = "wait"
    replicas: int = 1

    @classmethod
    def of(
        cls,
        model: FailureModel,
        devices: int,
        checkpoint: Checkpoint,
        *,
        units: Units | None = None,
        interval_s: float | None = None,
        spares: int | None = None,
        recovery: Recovery = "wait",
        replicas: int = 1,
    ) -> Outlook:
        """Choose what is left open: the optimal interval, and the spares that make hosts x time least."""
        units = units or Units()
        rate = model.rate_per_s(devices, units)
        if interval_s is None:
            interval_s = optimal_interval_s(rate, checkpoint.stall_s, checkpoint.write_s)
        if spares is None:
            lost = model.hosts_lost_per_s(devices, units)
            spares = 0 if recovery == "shrink" else best_spares(lost, model.repair_s, units.count("host", devices))
        return cls(
            model=model,
            devices=devices,
            checkpoint=checkpoint,
            # Of checkpoints that cost nothing there is no end.
            interval_s=max(interval_s, _LEAST),
            units=units,
            spares=spares,
            recovery=recovery,
            replicas=replicas,
        )

    @property
    def rate_per_s(self) -> float:
        """Unexpected interruptions."""
        return self.model.rate_per_s(self.devices, self.units)

    @property
    def restart_s(self) -> float:
        """From a failure until training goes on, loading included."""
        return self.model.restart_s + self.checkpoint.load_s

    @property
    def _hosts_share(self) -> float:
        """Speed that is left while hosts are under repair."""
        lost, repair_s = self.model.hosts_lost_per_s(self.devices, self.units), self.model.repair_s
        if self.recovery == "shrink":
            return max(shrunk_share(lost, repair_s, self.spares, self.replicas), _LEAST)
        return max(1.0 - waiting_share(lost, repair_s, self.spares), _LEAST)

    @property
    def _planned_share(self) -> float:
        """Share of the time that is not taken by planned interruptions."""
        rate = self.model.rate_per_s(self.devices, self.units, planned=True)
        return max(1.0 - rate * (self.checkpoint.stall_s + self.checkpoint.write_s + self.restart_s), _LEAST)

    @property
    def share(self) -> float:
        """Share of the time that is useful (effective training time, goodput); 1 where nothing fails."""
        if not math.isfinite(self.interval_s):
            return self._hosts_share * self._planned_share
        return self.parts["useful"]

    @property
    def parts(self) -> Mapping[str, float]:
        """Shares of the elapsed time; they add up to 1."""
        rate, point = self.rate_per_s, self.checkpoint
        period = max(self.interval_s, point.write_s) + point.stall_s
        hosts, planned = self._hosts_share, self._planned_share
        if rate * (period + self.restart_s + point.write_s) > _MOST_EXPONENT:
            useful, stalls, restarts = math.exp(-_MOST_EXPONENT), 0.0, 1.0
        else:
            time = interval_time_s(rate, self.interval_s, point.stall_s, self.restart_s, point.write_s)
            # A restart ends with its length or with another failure; where a write takes longer than the work, training waits for it.
            useful, stalls = self.interval_s / time, (period - self.interval_s) / time
            restarts = -math.expm1(-rate * self.restart_s)
        running = hosts * planned
        return {
            "useful": useful * running,
            "checkpoints": stalls * running,
            "restarts": restarts * running,
            "work done again": max(1.0 - useful - stalls - restarts, 0.0) * running,
            "waiting for hosts": (1.0 - hosts) * planned,
            "planned": 1.0 - planned,
        }

    def cost_of(self, name: str) -> float:
        """Share of the elapsed time that would be saved if a class never failed."""
        classes = tuple(each if each.name != name else replace(each, per_s=0.0) for each in self.model.classes)
        # The other classes keep their rates: the level is that of all of them.
        level = self.model.level
        scaled = tuple(each if each.planned else replace(each, per_s=level * each.per_s) for each in classes)
        better = replace(self, model=replace(self.model, classes=scaled, fleets=()))
        return 1.0 - self.share / better.share

    @property
    def costs(self) -> Mapping[str, float]:
        """What each class costs (`cost_of`), the most first."""
        found = {each.name: self.cost_of(each.name) for each in self.model.classes}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def time_s(self, useful_s: float) -> float:
        """Expected time of a training whose steps take ``useful_s``."""
        return useful_s / self.share

    def _moments(self, useful_s: float) -> Moments:
        """Of the time, for each of the rates that it may be (`spread_factors`)."""
        point, model = self.checkpoint, self.model
        restarts = math.log(model.restart_high_s / model.restart_s) / END if model.restart_s else 0.0
        longest = max(self.interval_s, point.write_s) + point.stall_s + self.restart_s + point.write_s
        rates = self.rate_per_s * spread_factors(math.hypot(model.spread, restarts))
        one = interval_moments(
            np.minimum(rates, _MOST_EXPONENT / longest), self.interval_s, point.stall_s, self.restart_s, point.write_s
        )
        share = self._hosts_share * self._planned_share
        all_of_them = one.times(useful_s / self.interval_s)
        return Moments(mean_s=all_of_them.mean_s / share, variance_s2=all_of_them.variance_s2 / share**2)

    def quantiles_s(self, useful_s: float, *shares: float) -> tuple[float, ...]:
        """Times within which the training is done with these probabilities: chance, and how sure the rates are."""
        if not math.isfinite(self.interval_s):
            return tuple(self.time_s(useful_s) for _ in shares)
        moments = self._moments(useful_s)
        return tuple(quantile_s(share, moments) for share in shares)

    def chance(self, useful_s: float, time_s: float) -> float:
        """P(done within a time)."""
        if not math.isfinite(self.interval_s):
            return float(self.time_s(useful_s) <= time_s)
        return chance_below(time_s, self._moments(useful_s))


def least_overhead(model: FailureModel, devices: int, checkpoint: Checkpoint, units: Units | None = None) -> float:
    """Time per useful second that no plan on so many devices or more goes below.

    It grows with the devices, as every rate does, and with the times of a checkpoint: ``checkpoint`` has the least that any plan takes.
    Spares never run out.

    Examples
    --------
    >>> from costmodel.failures.rates import FailureClass
    >>> model = FailureModel(name="m", classes=(FailureClass(name="gpu", unit="device", per_s=1e-9),))
    >>> point = Checkpoint(bytes=0.0, stall_s=0.0, write_s=0.0, load_s=0.0)
    >>> [round(least_overhead(model, n, point), 4) for n in (0, 1000, 10000)]
    [1.0, 1.0006, 1.006]
    """
    best = replace(Outlook.of(model, devices, checkpoint, units=units, spares=0), model=replace(model, repair_s=0.0))
    return 1.0 / best.share

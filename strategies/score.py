"""What a search over plans minimises (the step, or what the devices in use cost while it lasts), and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.hardware.host import DeviceCost, Host
from costmodel.objectives import OBJECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What is compared, smaller is better.

        score = W (a step + b computing),   or without W where the devices in use do not count

    *computing* is the time in which a device computes, averaged over the W devices. Both terms grow with their times and are at least 0,
    so lower bounds of the times give one of the score.

    Attributes
    ----------
    per_device : bool
        Whether the devices in use count.
    step_weight, computing_weight : float
        a and b; the step counts in any case.

    Examples
    --------
    Two devices that compute for 8 of 10 seconds and draw a fifth of that when they wait, in seconds at full draw:

    >>> float(Score(per_device=True, step_weight=0.2, computing_weight=0.8).of(10.0, 8.0, 2))
    16.8
    """

    per_device: bool = False
    step_weight: float = 1.0
    computing_weight: float = 0.0

    @classmethod
    def of_cost(cls, cost: DeviceCost) -> Score:
        """Costs over what a computing device costs per second."""
        waiting = cost.waiting / cost.computing
        return cls(per_device=True, step_weight=waiting, computing_weight=1.0 - waiting)

    def factor(self, workers: ArrayLike) -> FloatArray:
        """What the devices in use multiply the times by."""
        return np.asarray(workers, dtype=np.float64) if self.per_device else np.ones(np.shape(workers))

    def of(self, step_s: ArrayLike, computing_s: ArrayLike, workers: ArrayLike) -> FloatArray:
        """Score of plans.

        Parameters
        ----------
        step_s, computing_s : array_like (n,)
            Or lower bounds of them.
        workers : array_like (n,)
        """
        times = self.step_weight * np.asarray(step_s, dtype=np.float64)
        if self.computing_weight:
            times = times + self.computing_weight * np.asarray(computing_s)
        return np.asarray(self.factor(workers) * times)

    def step_s(self, score: float, computing_s: float, workers: int) -> float:
        """Step at which a plan has a score, given how long its devices compute."""
        times = score / float(self.factor(workers)) - self.computing_weight * computing_s
        return times / self.step_weight


STEP_TIME = Score()


def score_of(objective: str, device: Device, host: Host | None = None) -> Score:
    """The score of an objective.

    Costs are divided by what a computing device costs per second. So all scores are of the size of step times, which the tolerances of
    solvers suit: energy is in seconds at full draw.

    Parameters
    ----------
    objective : str
        A name of `costmodel.objectives.OBJECTIVES`.
    device : Device
    host : Host, optional

    Raises
    ------
    ValueError
        The device does not state what the objective counts.

    Examples
    --------
    >>> device = Device(
    ...     name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11,
    ...     busy_power_w=500.0, idle_power_w=200.0,
    ... )
    >>> score_of("energy", device)
    Score(per_device=True, step_weight=0.4, computing_weight=0.6)
    """
    found = OBJECTIVES[objective]
    if not found.is_per_device:
        return STEP_TIME
    # One kind of device: every format's peak is as good, since the score is divided by it.
    cost = found.cost_of(device, host, next(iter(device.peak_flop_per_s)))
    if cost is None:
        raise ValueError(f"device '{device.name}' {found.unstated}")
    return Score.of_cost(cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """How far a search goes, and when it stops."""

    max_workers: int
    capacity_bytes: float
    worker_counts: tuple[int, ...] | None = None  # exactly these; None: every count up to max_workers
    score: Score = STEP_TIME
    wall_s: float = 60.0
    gap: float = 0.0
    cutoff: float = float("inf")  # plans that score more are of no interest


_C = TypeVar("_C")
_M = TypeVar("_M")


@dataclass(slots=True, kw_only=True)
class Outcome(Generic[_C, _M]):
    """Best plans of a space, and what is proven about the others.

    Attributes
    ----------
    candidates : list
        Best first.
    bound_score : float
        No plan of the space scores less; equals the best score when that is proven.
    space_size : int
        Distinct legal plans of the space, fitting or not.
    searched : dict of str to int
        Plans by how they were handled: "enumerated", "bounded away".
    nearest_miss : object or None
        The plan that comes closest, where nothing fits.
    interrupted : bool
        By Ctrl-C; what was found until then is there.
    """

    candidates: list[_C] = field(default_factory=list)
    bound_score: float = float("inf")
    space_size: int = 0
    searched: dict[str, int] = field(default_factory=dict)
    nearest_miss: _M | None = None
    out_of_time: bool = False
    interrupted: bool = False

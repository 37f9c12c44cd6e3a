"""What a search over plans with a split per layer minimises: the step, or the devices' seconds, money or energy of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.host import Power

__all__ = ["LAYER_OBJECTIVES", "STEP_TIME", "Score", "is_per_device", "score_of"]


_BY_STEP = ("step_time", "tokens_per_s")
_BY_DEVICE = ("tokens_per_s_per_gpu", "gpu_hours", "money", "energy")
# The objectives of plans with a split per layer. The share of the peak in use (MFU) ranks like GPU hours, but is counted for
# transformers only.
LAYER_OBJECTIVES = (*_BY_STEP, *_BY_DEVICE)


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


def is_per_device(objective: str) -> bool:
    """Whether the devices in use count.

    >>> is_per_device("money"), is_per_device("step_time")
    (True, False)
    """
    return objective in _BY_DEVICE


def score_of(objective: str, power: Power | None = None) -> Score:
    """The score of an objective.

    Energy is measured in seconds at full draw: joules over what a computing device and its share of the host draw. So all scores are of the
    size of step times, which the tolerances of solvers suit.

    Parameters
    ----------
    objective : str
        One of `LAYER_OBJECTIVES`.
    power : Power, optional
        Of a device; the energy needs it.

    Examples
    --------
    >>> score_of("energy", Power(busy_w=300.0, idle_w=60.0, host_w=100.0))
    Score(per_device=True, step_weight=0.4, computing_weight=0.6)
    """
    if objective == "energy":
        assert power is not None, "the energy of devices whose power is known"
        full_w = power.busy_w + power.host_w
        waiting = (power.idle_w + power.host_w) / full_w
        return Score(per_device=True, step_weight=waiting, computing_weight=(power.busy_w - power.idle_w) / full_w)
    assert objective in LAYER_OBJECTIVES, objective
    return Score(per_device=is_per_device(objective))

"""How sure a prediction is: an interval for each plan, the chance that each of several is really the first, and what would change that.

    log(measured / predicted) = shared + effects d + shares u + plan

``d`` are the errors of the named constants (`costmodel.constants`), which change every plan through ``effects``, the derivatives of
its log step time; ``u`` are errors of the parts of a step (a collective costs more than its formula says), which change a plan by the
share that the part has of its step; ``shared`` is common to all plans of a question (the same network, machine and software) and
``plan`` an error of its own that similar plans share. All have mean 0. Shared errors widen an interval and cancel in a ranking.

Everything here is numbers in, numbers out; `ErrorModel` is what a calibration says about the last three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "INTERVAL_SHARE",
    "PARTS",
    "Candidates",
    "ErrorModel",
    "Overtaking",
    "error_scales",
    "interval_score",
    "intervals",
    "overtaking",
    "part_shares",
    "probability_best",
    "sampled_log_errors",
    "shortest_list",
    "standard_deviations",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Share of measurements that an interval is meant to hold.
INTERVAL_SHARE = 0.8
# Parts of a step whose formulas are wrong each in its own way. The last is no time of its own: pipelines over many nodes, whose stages
# wait for one another, by the number of doublings of the nodes.
PARTS: tuple[str, ...] = (
    "compute",
    "layer_communication",
    "stage_transfer",
    "gradient_exchange",
    "bubble",
    "stages_over_nodes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """Errors of one kind of workload that no named constant explains; standard deviations of natural logarithms.

    Attributes
    ----------
    shared_log_sd : float
        Of all plans of a question alike.
    plan_log_sd : float
        Of one plan.
    by_part : mapping of str to float
        Of each of `PARTS`; 0 where it is not named.
    similarity_steps : float
        Distance between plans (doublings of a degree, settings that differ) at which their own errors agree by 1/e only.
    typical_log_sd : float
        Of the rows of the fit; see ``sharpness``.
    sharpness : float
        How far intervals follow the standard deviation of a plan: 1 in proportion, 0 not at all (all plans of the kind have the same).
        Errors are standardised by ``typical_log_sd^(1 - sharpness) sd^sharpness``.
    low, high : float
        Quantiles of the standardised error between which `INTERVAL_SHARE` of the measurements lie, found on groups left out of the fit:
        errors have heavier tails than a normal distribution, and need not be centred.

    Raises
    ------
    ValueError
        A negative or infinite standard deviation, an unknown part, or quantiles in the wrong order.

    Examples
    --------
    >>> ErrorModel(shared_log_sd=0.1, plan_log_sd=0.05, by_part={"bubble": 0.2}).part_log_sd.tolist()
    [0.0, 0.0, 0.0, 0.0, 0.2, 0.0]
    """

    shared_log_sd: float
    plan_log_sd: float
    by_part: Mapping[str, float] = field(default_factory=dict)
    similarity_steps: float = 1.0
    typical_log_sd: float = 0.1
    sharpness: float = 1.0
    low: float = -1.2816  # of a normal distribution
    high: float = 1.2816

    def __post_init__(self) -> None:
        """Check the numbers and make the mapping read-only."""
        unknown = [name for name in self.by_part if name not in PARTS]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is no part of a step (known: {', '.join(PARTS)})")
        for value in (self.shared_log_sd, self.plan_log_sd, *self.by_part.values()):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"a standard deviation is {value}, expected a number from 0")
        for name in ("similarity_steps", "typical_log_sd"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, expected a number above 0")
        if not 0 <= self.sharpness <= 1:
            raise ValueError(f"sharpness is {self.sharpness}, expected a number from 0 to 1")
        if not self.low < self.high:
            raise ValueError(f"the quantiles {self.low} and {self.high} are in the wrong order")
        object.__setattr__(self, "by_part", MappingProxyType(dict(self.by_part)))

    @property
    def part_log_sd(self) -> FloatArray:
        """``by_part`` in the order of `PARTS`."""
        return np.array([self.by_part.get(name, 0.0) for name in PARTS])

    def scaled(self, factor: float) -> ErrorModel:
        """All standard deviations times a factor: a machine that is known better or worse than usual.

        >>> ErrorModel(shared_log_sd=0.1, plan_log_sd=0.04).scaled(0.5).plan_log_sd
        0.02
        """
        return replace(
            self,
            shared_log_sd=self.shared_log_sd * factor,
            plan_log_sd=self.plan_log_sd * factor,
            by_part={name: value * factor for name, value in self.by_part.items()},
            typical_log_sd=self.typical_log_sd * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Plans of one question as the error model sees them.

    Attributes
    ----------
    step_time_s : array (n,)
        Predicted.
    shares : array (n, len(PARTS))
        See `part_shares`.
    effects : array (n, k)
        Derivative of the logarithm of the step time by the logarithm of each constant.
    covariance : array (k, k)
        Of the logarithms of the constants.
    coordinates : array (n, c)
        Where a plan lies; the distance of two plans is the sum of the absolute differences (see `ErrorModel.similarity_steps`).
    """

    step_time_s: FloatArray
    shares: FloatArray
    effects: FloatArray
    covariance: FloatArray
    coordinates: FloatArray

    def __post_init__(self) -> None:
        n, k = len(self.step_time_s), len(self.covariance)
        assert self.shares.shape == (n, len(PARTS)), "shares"
        assert self.effects.shape == (n, k), "effects"
        assert self.coordinates.shape[0] == n, "coordinates"

    def __len__(self) -> int:
        return len(self.step_time_s)


def part_shares(step_time_s: ArrayLike, parts: Mapping[str, ArrayLike], nodes: ArrayLike = 1.0) -> FloatArray:
    """Shares of the parts of a step, (n, len(PARTS)); what no part names is compute.

    Parameters
    ----------
    step_time_s : array (n,)
    parts : mapping of str to array (n,)
        Seconds of some of `PARTS`; negative ones (rounding) count as 0.
    nodes : array (n,) or float
        Nodes in use.

    Examples
    --------
    >>> part_shares([10.0], {"bubble": [2.0], "gradient_exchange": [1.0]}, nodes=4).tolist()
    [[0.7, 0.0, 0.0, 0.1, 0.2, 0.4]]
    """
    step = np.asarray(step_time_s, dtype=np.float64)
    zero = np.zeros_like(step)
    columns = {
        name: np.maximum(np.asarray(parts.get(name, zero), dtype=np.float64), 0.0) / step for name in PARTS[1:-1]
    }
    compute = np.maximum(1.0 - sum(columns.values(), start=zero), 0.0)
    doublings = np.log2(np.maximum(np.asarray(nodes, dtype=np.float64), 1.0))
    over_nodes = doublings * (columns["stage_transfer"] + columns["bubble"])
    rounded = [np.round(column, 12) for column in (compute, *columns.values(), over_nodes)]
    return np.stack(rounded, axis=-1)


def standard_deviations(candidates: Candidates, model: ErrorModel) -> FloatArray:
    """Standard deviation of log(measured / predicted) of each plan.

    Examples
    --------
    Everything is compute, whose formula is off by 10 %, and one constant of 20 % acts on half of it: sqrt(0.01 + 0.01).

    >>> one = Candidates(step_time_s=np.ones(1), shares=part_shares([1.0], {}), effects=np.array([[0.5]]),
    ...     covariance=np.array([[0.04]]), coordinates=np.zeros((1, 1)))
    >>> model = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.0, by_part={"compute": 0.1})
    >>> float(standard_deviations(one, model)[0].round(6))
    0.141421
    """
    of_constants = np.einsum("nk,kl,nl->n", candidates.effects, candidates.covariance, candidates.effects)
    of_parts = candidates.shares**2 @ model.part_log_sd**2
    return np.asarray(np.sqrt(np.maximum(of_constants, 0.0) + of_parts + model.shared_log_sd**2 + model.plan_log_sd**2))


def error_scales(candidates: Candidates, model: ErrorModel) -> FloatArray:
    """What errors are standardised by; see `ErrorModel.sharpness`."""
    sd = standard_deviations(candidates, model)
    return np.asarray(model.typical_log_sd ** (1.0 - model.sharpness) * sd**model.sharpness)


def intervals(candidates: Candidates, model: ErrorModel) -> tuple[FloatArray, FloatArray]:
    """Step times between which a measurement lies with a chance of `INTERVAL_SHARE`: lower and upper ends."""
    sd = error_scales(candidates, model)
    return candidates.step_time_s * np.exp(model.low * sd), candidates.step_time_s * np.exp(model.high * sd)


def interval_score(low: FloatArray, high: FloatArray, value: FloatArray, share: float = INTERVAL_SHARE) -> FloatArray:
    """Width of each interval, plus what a value outside it costs; smaller is better.

        high - low + 2 / (1 - share) (how far the value is outside)

    Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102(477), 2007, equation 43.

    >>> interval_score(np.zeros(2), np.ones(2), np.array([0.5, 1.2])).round(9).tolist()
    [1.0, 3.0]
    """
    outside = np.maximum(low - value, 0.0) + np.maximum(value - high, 0.0)
    return np.asarray(high - low + 2.0 / (1.0 - share) * outside)


def sampled_log_errors(candidates: Candidates, model: ErrorModel, *, draws: int = 4000, seed: int = 0) -> FloatArray:
    """Draw errors that plans do not have in common: (draws, n), the same for the same seed.

    Half of the draws are the others with the opposite sign, so that plans alike in everything come out alike.
    """
    generator = np.random.default_rng(seed)
    n, k = candidates.effects.shape
    half = (draws + 1) // 2
    distance = np.abs(candidates.coordinates[:, None, :] - candidates.coordinates[None, :, :]).sum(axis=2)
    roots = (
        candidates.effects @ _root(candidates.covariance) if k else np.zeros((n, 0)),
        candidates.shares * model.part_log_sd,
        model.plan_log_sd * _root(np.exp(-distance / model.similarity_steps)),
    )
    root = np.concatenate(roots, axis=1)
    errors = generator.standard_normal((half, root.shape[1])) @ root.T
    return np.concatenate([errors, -errors])[:draws]


def _root(covariance: FloatArray) -> FloatArray:
    """A matrix whose product with its transpose is the covariance; eigenvalues that rounding made negative count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def probability_best(log_times: FloatArray) -> FloatArray:
    """How often each plan is the first: (draws, n) -> (n,). Plans that tie share the draw.

    >>> probability_best(np.log(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0], [1.0, 1.0]]))).tolist()
    [0.625, 0.375]
    """
    least = log_times.min(axis=1, keepdims=True)
    first = log_times <= least + 1e-12
    return np.asarray((first / first.sum(axis=1, keepdims=True)).mean(axis=0))


def shortest_list(
    log_times: FloatArray, share: float = 0.9, tolerance: float = 0.0, *, holding: int | None = None
) -> IntArray:
    """Fewest plans of which one is the first (or slower than the first by at most ``tolerance``) in at least ``share`` of the draws.

    Parameters
    ----------
    log_times : array (draws, n)
    share : float
    tolerance : float
        Relative.
    holding : int, optional
        A plan that shall be on the list where that makes it no longer: people benchmark what is recommended.

    Returns
    -------
    array of int
        Plans in the order of what each adds. Without a tolerance exactly the shortest: one plan is the first of a draw (ties go to the
        earlier), so those that are first most often are the list. With one, draws may be covered by several plans; the plans are taken
        greedily, and no single plan and no pair that would do is missed.

    Examples
    --------
    >>> times = np.array([[1.0, 1.2, 9.0], [1.2, 1.0, 9.0], [1.0, 1.1, 9.0], [1.005, 1.0, 9.0]])
    >>> shortest_list(np.log(times), 0.9).tolist(), shortest_list(np.log(times), 0.75, tolerance=0.01).tolist()
    ([0, 1], [0])
    """
    draws, n = log_times.shape
    if tolerance > 0:
        covered = log_times <= log_times.min(axis=1, keepdims=True) + math.log1p(tolerance)
    else:
        covered = np.zeros((draws, n), dtype=np.bool_)
        covered[np.arange(draws), log_times.argmin(axis=1)] = True
    needed = math.ceil(share * draws - 1e-9)
    chosen = _greedy(covered, needed, [])
    if len(chosen) > 2 and tolerance > 0:
        counts = covered.astype(np.float32)
        both = counts.T @ counts
        union = np.diag(both)[:, None] + np.diag(both)[None, :] - both
        a, b = np.unravel_index(int(np.argmax(union)), union.shape)
        if union[a, b] >= needed:
            chosen = sorted((int(a), int(b)))
    if holding is not None and holding not in chosen:
        with_it = _greedy(covered, needed, [holding])
        chosen = with_it if len(with_it) <= len(chosen) else chosen
    return np.array(chosen, dtype=np.int64)


def _greedy(covered: NDArray[np.bool_], needed: int, start: list[int]) -> list[int]:
    """Add the plan that covers most draws that are open until enough are covered."""
    chosen = list(start)
    open_draws = ~covered[:, chosen].any(axis=1)
    while len(covered) - int(open_draws.sum()) < needed:
        chosen.append(int(np.argmax(covered[open_draws].sum(axis=0))))
        open_draws &= ~covered[:, chosen[-1]]
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaking:
    """The smallest change of one constant at which another plan becomes the first.

    Attributes
    ----------
    factor : float
        Of the constant.
    winner : int
        The plan that overtakes.
    """

    factor: float
    winner: int


def overtaking(
    step_times_s: Callable[[float], FloatArray], factors: ArrayLike, best: int = 0, *, within: float = 1e-3
) -> Overtaking | None:
    """Find the factor nearest to 1 at which a plan takes less time than the best.

    Parameters
    ----------
    step_times_s : function of a factor
        Step times of all plans with the constant multiplied by it.
    factors : array
        Tried from 1 outwards, on either side; between the first at which another plan wins and the one before it the place is found by
        bisection.
    best : int
        The plan that is the first at a factor of 1.
    within : float
        Relative precision of the factor.

    Returns
    -------
    Overtaking or None
        None: no factor of those tried changes the first plan.

    Examples
    --------
    Plan 0 takes 1 s of compute and 1 s on a link, plan 1 takes 1.5 s and 0.75 s. With the bandwidth times f, they
    take 1 + 1/f and 1.5 + 0.75/f, which are equal at f = 1/2.

    >>> found = overtaking(lambda f: np.array([1 + 1 / f, 1.5 + 0.75 / f]), [0.3, 0.6, 1.7, 3.0])
    >>> found.winner, round(found.factor, 2)
    (1, 0.5)
    """
    grid = np.asarray(factors, dtype=np.float64)
    sides = (np.sort(grid[grid < 1.0])[::-1], np.sort(grid[grid > 1.0]))
    found = [_first_overtaking(step_times_s, side, best, within) for side in sides]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: abs(math.log(one.factor)), default=None)


def _first_overtaking(
    step_times_s: Callable[[float], FloatArray], factors: FloatArray, best: int, within: float
) -> Overtaking | None:
    """The same on one side of 1."""
    inside = 1.0
    for factor in factors.tolist():
        winner = _winner(step_times_s(factor), best)
        if winner is None:
            inside = factor
            continue
        outside = factor
        while abs(math.log(outside / inside)) > within:
            middle = math.sqrt(inside * outside)
            other = _winner(step_times_s(middle), best)
            if other is None:
                inside = middle
            else:
                outside, winner = middle, other
        return Overtaking(factor=outside, winner=winner)
    return None


def _winner(times: FloatArray, best: int) -> int | None:
    first = int(np.argmin(times))
    return first if times[first] < times[best] * (1.0 - 1e-9) else None

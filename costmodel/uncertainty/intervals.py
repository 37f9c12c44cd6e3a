"""How sure a prediction is: an interval for each plan, the chance that each of several is really the first, and what would change that.

    log(measured / predicted) = shared + effects d + shares u + plan

``d`` are the errors of the named constants (`costmodel.uncertainty.constants`), which change every plan through ``effects``, the
derivatives of its log step time; ``u`` are errors of the parts of a step (a collective costs more than its formula says), which change a
plan by the share that the part has of its step; ``shared`` is common to all plans of a question (the same network, machine and software)
and ``plan`` an error of its own that similar plans share: plans with like degrees, and plans that run most of their step alike. All are
as likely up as down. Shared errors widen an interval and cancel in a ranking, whose errors have the tails of Student's t.

Everything here is numbers in, numbers out; `ErrorModel` is what a calibration says about the last three.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.tolerances import ROUNDING

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
# A tenth of a normal distribution lies beyond so many standard deviations.
_TENTH = 1.2816
# Degrees of freedom of Student's t in the fit and in the draws: errors of published runs have heavy tails.
FREEDOM = 3


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
    ranking_scale : float
        Factor on the errors that plans do not share, of the greatest likelihood of the plans measured best in questions left out of the
        fit.
    listed_share : float
        Share of the draws in which a list to benchmark must hold the best for lists of questions left out of the fit to hold it in 90 %.
    basis : str
        What it was found from, where that is not training steps.
    devices : tuple of str
        Devices of the rows that it was found from; empty: not stated, so that no device is another.
    rows : int
        How many; 0: not stated.

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
    low: float = -_TENTH
    high: float = _TENTH
    ranking_scale: float = 1.0
    listed_share: float = 0.9
    basis: str = ""
    devices: tuple[str, ...] = ()
    rows: int = 0

    def __post_init__(self) -> None:
        """Make the mapping read-only; `planner.schema.calibration` checks the numbers."""
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

    def on(self, devices: Collection[str], others: ErrorModel) -> ErrorModel:
        """The model for runs on some devices: on one that no row of it ran on, either end reaches as far as that of ``others``.

        What a framework's rows say is of the devices that they ran on; rates of another one are those of its data sheet, which other
        frameworks and machines that nothing was fitted to are as far from.

        Examples
        --------
        >>> own = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.0, low=-1.0, high=1.0, devices=("a100-80gb", "h100-sxm"))
        >>> any_other = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.0, typical_log_sd=0.2, low=-2.0, high=0.4)
        >>> [(model.low, model.high) for model in (own.on(["h100-sxm"], any_other), own.on(["gaudi2"], any_other))]
        [(-1.0, 1.0), (-4.0, 1.0)]
        """
        if not self.devices or set(devices) <= set(self.devices):
            return self
        scale = others.typical_log_sd / self.typical_log_sd
        return replace(self, low=min(self.low, others.low * scale), high=max(self.high, others.high * scale))

    def updated(self, residual_log_sd: float, groups: float = math.inf) -> ErrorModel:
        """The model after runs of one's own: either end of the interval moves from what others saw towards what they show.

        Scales of errors differ between machines as those of Student's t between draws (an inverse chi-squared distribution of `FREEDOM`
        degrees), so that squares of the ends are averaged, what others saw with a weight of `FREEDOM` groups.

        Parameters
        ----------
        residual_log_sd : float
            Standard deviation of log(measured / predicted) of these runs.
        groups : float
            Networks that ran: errors of one network are wrong together.

        Examples
        --------
        >>> others = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.05, low=-1.0, high=3.0)
        >>> for groups in (0, 3, 1e9):
        ...     own = others.updated(0.05, groups)
        ...     print([round(end * own.typical_log_sd, 3) for end in (own.low, own.high)])
        [-0.1, 0.3]
        [-0.084, 0.217]
        [-0.064, 0.064]
        """
        before = np.abs([self.low, self.high]) * self.typical_log_sd
        weight = 1.0 if math.isinf(groups) else groups / (groups + FREEDOM)
        ends = np.sqrt((1.0 - weight) * before**2 + weight * (_TENTH * residual_log_sd) ** 2)
        scaled = self.scaled(float(ends.sum() / before.sum()))
        low, high = (ends / scaled.typical_log_sd).tolist()
        return replace(scaled, low=-low, high=high)


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
    coordinates : array (places, c)
        Ways to run a layer, or all of them; the distance of two is the sum of the absolute differences (see
        `ErrorModel.similarity_steps`).
    mixture : array (n, places), optional
        Share of each plan's step that is run in each of these ways; without it, plan i is run as place i says.
    """

    step_time_s: FloatArray
    shares: FloatArray
    effects: FloatArray
    covariance: FloatArray
    coordinates: FloatArray
    mixture: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.step_time_s)

    def first(self, count: int) -> Candidates:
        """The first of them."""
        if count >= len(self):
            return self
        return replace(
            self,
            step_time_s=self.step_time_s[:count],
            shares=self.shares[:count],
            effects=self.effects[:count],
            coordinates=self.coordinates[:count] if self.mixture is None else self.coordinates,
            mixture=None if self.mixture is None else self.mixture[:count],
        )


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
    if model.sharpness == 0.0:
        return np.full(len(candidates), model.typical_log_sd)
    return np.asarray(_scale(standard_deviations(candidates, model), model))


def least_scale(model: ErrorModel) -> float:
    """The least of `error_scales`: that of plans to which no constant and no part adds anything.

    >>> least_scale(ErrorModel(shared_log_sd=0.03, plan_log_sd=0.04))
    0.05
    """
    return float(_scale(np.hypot(model.shared_log_sd, model.plan_log_sd), model))


def _scale(log_sd: FloatArray, model: ErrorModel) -> FloatArray:
    return np.asarray(model.typical_log_sd ** (1.0 - model.sharpness) * log_sd**model.sharpness)


def intervals(candidates: Candidates, model: ErrorModel) -> tuple[FloatArray, FloatArray]:
    """Step times between which a measurement lies with a chance of `INTERVAL_SHARE`: lower and upper ends."""
    scale = error_scales(candidates, model)
    return candidates.step_time_s * np.exp(model.low * scale), candidates.step_time_s * np.exp(model.high * scale)


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

    Half of the draws are the others with the opposite sign, so that plans alike in everything come out alike. The plans of a draw have
    one scale together: a multivariate Student's t, whose scale says how much is wrong with the question.
    """
    generator = np.random.default_rng(seed)
    n, k = candidates.effects.shape
    half = (draws + 1) // 2
    roots = (
        candidates.effects @ _root(candidates.covariance) if k else np.zeros((n, 0)),
        candidates.shares * model.part_log_sd,
        model.plan_log_sd * _root(similarity(candidates, model.similarity_steps)),
    )
    root = np.concatenate(roots, axis=1)
    scale = model.ranking_scale / np.sqrt(generator.chisquare(FREEDOM, size=(half, 1)) / FREEDOM)
    errors = generator.standard_normal((half, root.shape[1])) @ root.T * scale
    return np.concatenate([errors, -errors])[:draws]


def similarity(candidates: Candidates, similarity_steps: float = 1.0) -> FloatArray:
    """Correlation of the errors that plans have of their own, (n, n).

    Two ways to run a layer agree by ``exp(-distance / similarity_steps)``. The error of a plan that runs its layers in several ways is the
    mean of theirs, weighted by what they take of its step: with shares ``w_p`` and ``w_q`` and the agreement ``K``, that of plans p and q
    is ``w_p K w_q / sqrt(w_p K w_p  w_q K w_q)``.

    Examples
    --------
    Two ways, far apart. The plans differ in a layer that takes 2 % of the step:

    >>> both = Candidates(step_time_s=np.ones(2), shares=np.zeros((2, len(PARTS))), effects=np.zeros((2, 0)),
    ...     covariance=np.zeros((0, 0)), coordinates=np.array([[0.0], [9.0]]), mixture=np.array([[1.0, 0.0], [0.98, 0.02]]))
    >>> float(similarity(both)[0, 1].round(4))
    0.9998
    """
    at = candidates.coordinates
    agreement = np.exp(-np.abs(at[:, None, :] - at[None, :, :]).sum(axis=2) / similarity_steps)
    if candidates.mixture is None:
        return np.asarray(agreement)
    shared = candidates.mixture @ agreement @ candidates.mixture.T
    scale = np.sqrt(np.diag(shared))
    return np.asarray(shared / np.outer(scale, scale))


def _root(covariance: FloatArray) -> FloatArray:
    """The symmetric root of a covariance, which no choice of eigenvectors changes; eigenvalues that are rounding count as 0.

    So plans alike in everything have the same error on every machine, not one by the other's rounding.
    """
    values, vectors = np.linalg.eigh(covariance)
    known = np.where(values > ROUNDING * values.max(initial=0.0), values, 0.0)
    return np.asarray((vectors * np.sqrt(known)) @ vectors.T)

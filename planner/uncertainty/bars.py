"""Error bars of the plans of one question: from candidates and a calibration to intervals, chances and a list to benchmark.

The error model sees a plan as shares of the parts of its step, and as what each constant does to the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.network.layers import ATTENTION
from costmodel.uncertainty.constants import CONSTANTS, Calibration
from costmodel.uncertainty.intervals import (
    Candidates,
    ErrorModel,
    intervals,
    part_shares,
    sampled_log_errors,
)
from costmodel.workload import Workload
from planner.core.answer import ErrorBars, RankedPlan
from planner.core.request import Request
from planner.files.loading import load_calibration
from planner.files.naming.frameworks import framework_of
from planner.question.resolve import Resolved

# Part of a step (costmodel.uncertainty.intervals.PARTS) -> terms of the cost model that belong to it, of meshes, of splits per layer and
# of serving.
TIME_TERMS: Mapping[str, tuple[str, ...]] = {
    "layer_communication": (
        "tp_exposed_s",
        "cp_exposed_s",
        "ep_exposed_s",
        "reshard_s",
        "serving_tp_s",
        "serving_ep_s",
    ),
    "stage_transfer": ("pp_exposed_s", "serving_pp_s"),
    "gradient_exchange": ("dp_exposed_s", "exposed_exchange_s"),
    "bubble": ("bubble_s",),
}


def node_size(cluster: Cluster) -> int:
    """Devices that fast links join: of a domain, or of the only level where that has a size.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> node_size(Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric)))
    8
    """
    return cluster.domain_size or cluster.levels[0].size or 1


def shares_of(step_time_s: ArrayLike, terms: Mapping[str, ArrayLike], nodes: ArrayLike) -> FloatArray:
    """Shares of the parts of steps, from the terms of a cost model by name; see `costmodel.uncertainty.intervals.part_shares`."""
    step = np.asarray(step_time_s, dtype=np.float64)
    parts = {
        part: sum((np.asarray(terms[name], dtype=np.float64) for name in names if name in terms), np.zeros_like(step))
        for part, names in TIME_TERMS.items()
    }
    return part_shares(step, parts, nodes)


# -- what constants do ----------------------------------------------------------------------------------------------------------

# Step times of all plans with one constant multiplied by a factor.
Times = Callable[[str, float], FloatArray]

# Of the logarithm of a constant, for derivatives.
_STEP = 0.1
FACTOR = math.exp(_STEP)


def constants_of(
    workload: Workload, cluster: Cluster, workers: int, host_launch_s: float | None = None
) -> tuple[str, ...]:
    """Constants that can change a step time of this question.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    workers : int
        Most that a plan uses.
    host_launch_s : float, optional
        What the host takes to start a kernel, where the cost model counts it and what of the gradients is hidden.

    Notes
    -----
    Of a network without convolutions the rate of convolution algorithms cannot, without attention not that of attention, on one device
    no link; the host and the overlap of gradients are constants of some cost models only, what a kernel loses inside a training step one of
    networks of sequences (`RooflineCompute`). A rate that already is the whole peak is
    followed, too: it can fall. Where the host takes longer to start a kernel than the device, the device's time does not matter.
    """
    kinds = {layer.kind for layer in workload.graph.layers}
    has_host, floor_s = host_launch_s is not None, cluster.device.launch_overhead_s
    is_sequence = any(len(layer.output_shape) == 2 for layer in workload.graph.layers)
    missing = {
        "convolution_rate": not any("conv" in kind for kind in kinds),
        "attention_rate": not kinds & ATTENTION,
        "sustained_rate": not is_sequence,
        "elementwise_rate": not is_sequence,
        "host_launch": not has_host,
        "host_collective": not has_host or workers == 1,
        "dp_exposed": not has_host or workers == 1,
        "launch_overhead": floor_s == 0 or (host_launch_s is not None and host_launch_s >= floor_s),
        "intra_node_bandwidth": workers == 1,
        "inter_node_bandwidth": workers <= node_size(cluster),
        "link_latency": workers == 1,
    }
    return tuple(name for name in CONSTANTS if not missing.get(name, False))


def workload_on(workload: Workload, cluster: Cluster) -> Workload:
    """The same on a cluster with other constants."""
    compute = workload.compute
    assert isinstance(compute, RooflineCompute), "only the roofline has constants"
    return replace(workload, compute=replace(compute, device=cluster.device))


def effects_of(times: Times, names: Sequence[str], step_time_s: FloatArray | None = None) -> FloatArray:
    """Derivatives of log step times by the logarithms of constants, (plans, names); the step times now may be known."""
    now = times(names[0], 1.0) if step_time_s is None and names else step_time_s
    return derivatives([times(name, FACTOR) for name in names], np.zeros(0) if now is None else now)


def derivatives(changed: Sequence[FloatArray], now: FloatArray) -> FloatArray:
    """Of log times by the logarithms of constants, (plans, constants), from the times with each multiplied by `FACTOR`."""
    columns = [(np.log(each) - np.log(now)) / _STEP for each in changed]
    return np.stack(columns, axis=1) if columns else np.zeros((len(now), 0))


# Plans that are compared, however many are shown, so that chances do not depend on --top. More would be more of the same: plans within a
# few percent of the first that differ from it in one setting. To be sure of 8 takes a search no longer than of the 5 that are shown, give
# or take a tenth; of 16 on 512 GPUs 0.1 to 0.4 s longer, of 64 plans 0.2 to 1.5 s.
COMPARED_PLANS = 8
# Plans whose times differ by less are equal: either both are on a list, or none is.
_EQUAL_TIME = 1e-4
# Chance that the list to benchmark is meant to hold the best; see also `costmodel.uncertainty.intervals.ErrorModel.listed_share`.
LISTED_SHARE = 0.9
# A plan slower than the best by less than this is as good: repeated runs of one plan differ by more (by a median of 15 % in the largest
# sweep of docs/accuracy.md, nanotron on H100).
SAME_WITHIN = 0.03
# People run so many plans before they choose. Where so many are not enough to hold one as good, they are chosen for what they do hold: one
# within the least of these of the best.
NEAR_PLANS = 4
_WITHIN = (
    SAME_WITHIN,
    0.04,
    0.05,
    0.06,
    0.08,
    0.1,
    0.12,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.0,
    3.0,
    5.0,
    10.0,
)
# Draws of the errors: a probability of one half is known to 0.008.
_DRAWS = 4000
# Of the ``paleo`` preset.
WITHOUT_MODEL = ErrorBars(
    note="the paleo cost model has no error bars: its preset is the paper's program, which no measurement was fitted to"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known about errors for one question.

    Attributes
    ----------
    calibration : str
        Name of the calibration whose residuals are meant.
    kind : str
        Kind of workload: transformers, images, or a framework.
    model : ErrorModel
    log_sd : mapping of str to float
        Constant -> standard deviation of its logarithm, those that matter.
    covariance : array (k, k)
        Of the logarithms, in the order of ``log_sd``.
    """

    calibration: str
    kind: str
    model: ErrorModel
    log_sd: Mapping[str, float]
    covariance: FloatArray


def knowledge_of(
    request: Request,
    *,
    is_transformer: bool,
    names: Sequence[str] = tuple(CONSTANTS),
    devices: Collection[str] = (),
) -> Knowledge:
    """What the calibration of a question says about its errors.

    Parameters
    ----------
    request : Request
    is_transformer : bool
    names : sequence of str
        Constants that can matter for the question.
    devices : collection of str
        In use; none: devices that the calibration knows.
    """
    given = None if request.calibration is None else load_calibration(request.calibration).calibration
    framework = request.framework or ("" if given is None else given.framework)
    return knowledge_with(given, framework, is_transformer=is_transformer, names=names, devices=devices)


def knowledge_with(
    given: Calibration | None,
    framework: str,
    *,
    is_transformer: bool,
    names: Sequence[str] = tuple(CONSTANTS),
    devices: Collection[str] = (),
) -> Knowledge:
    """What a calibration, the bundled one unless given, says about errors of a framework's steps on some devices."""
    bundled = load_calibration().calibration
    calibration = bundled if given is None else given
    kind = "transformers" if is_transformer else "images"
    if is_transformer and framework:
        named = framework_of(framework)
        own_kind = named.errors_of or named.name
        kind = own_kind if own_kind in {**bundled.error_models, **calibration.error_models} else kind
    model = error_model(calibration, bundled, kind, is_transformer=is_transformer, devices=devices)
    if framework and kind == "transformers" and not model.basis:
        model = replace(model, basis=f"too few runs of {framework} are known for errors of its own")
    own = bool(calibration.error_models) or _says_more(calibration, bundled)
    return Knowledge(
        calibration=calibration.name if own else bundled.name,
        kind=kind,
        model=model,
        log_sd={name: _log_sd(calibration, bundled, name) for name in names},
        covariance=_covariance(calibration, bundled, names),
    )


def serving_knowledge(request: Request, kind: str, *, names: Sequence[str]) -> Knowledge:
    """What the calibration of a question about serving says about its errors.

    Residuals of a user's training steps say nothing about those of a serving engine: unless the calibration has an error model of the
    kind, it is the bundled one; the constants are as sure as the calibration makes them.
    """
    bundled = load_calibration().calibration
    calibration = bundled if request.calibration is None else load_calibration(request.calibration).calibration
    whose = calibration if kind in calibration.error_models else bundled
    return Knowledge(
        calibration=whose.name,
        kind=kind,
        model=whose.error_models[kind],
        log_sd={name: _log_sd(calibration, bundled, name) for name in names},
        covariance=_covariance(calibration, bundled, names),
    )


def where_needed(known: Knowledge, plans: int) -> Knowledge:
    """The same, of no constants where they neither compare plans nor shape an interval, since varying them takes time."""
    if plans > 1 or known.model.sharpness > 0:
        return known
    return replace(known, log_sd={}, covariance=np.zeros((0, 0)))


def one_width(given: Calibration | None) -> ErrorModel:
    """The error model that knows no more than how large residuals are: one width for every plan of every kind."""
    bundled = load_calibration().calibration
    known = bundled if given is None or not _says_more(given, bundled) else given
    return ErrorModel(shared_log_sd=known.residual_log_sd, plan_log_sd=0.0)


def error_model(
    calibration: Calibration,
    bundled: Calibration,
    kind: str,
    *,
    is_transformer: bool,
    devices: Collection[str] = (),
) -> ErrorModel:
    """Error model of a kind of workload: the calibration's own, else the bundled one, moved towards the calibration's residuals.

    Without a framework of its own a question has the errors of an unknown one: those of ``transformers`` or ``images``. So has, at its
    ends, a framework on a device on which none of its rows ran (`ErrorModel.on`).
    """
    usual = "transformers" if is_transformer else "images"
    whose = calibration if kind in calibration.error_models else bundled
    found = whose.error_models.get(kind) or whose.error_models.get(usual)
    if found is not None:
        found = found.on(devices, whose.error_models.get(usual, found))
    if kind in calibration.error_models and found is not None:
        return found
    if found is None:  # a calibration that says only how large residuals are: half shared, half the plan's own
        half = calibration.residual_log_sd * 0.5**0.5
        return ErrorModel(shared_log_sd=half, plan_log_sd=half, typical_log_sd=max(half, 1e-6))
    if not _says_more(calibration, bundled):
        return found
    groups = calibration.residual_groups
    return found.updated(calibration.residual_log_sd, math.inf if groups is None else groups)


def _says_more(calibration: Calibration, bundled: Calibration) -> bool:
    """Whether a calibration says anything about the errors of training steps that the bundled one does not."""
    return calibration is not bundled and calibration.residual_log_sd > 0 and calibration.residual_groups != 0


def _log_sd(calibration: Calibration, bundled: Calibration, name: str) -> float:
    """How far a constant is usually off: as published runs have it where the calibration's own rows say no more than the prior."""
    known = calibration.constants.get(name)
    published = bundled.constants[name].log_sd if name in bundled.constants else CONSTANTS[name].prior_log_sd
    if known is None:
        return published
    if known.determined or known.log_sd > known.prior_log_sd:  # by rows, or stated to be less sure than usual
        return known.log_sd
    return min(known.log_sd, published)


def _covariance(calibration: Calibration, bundled: Calibration, names: Sequence[str]) -> FloatArray:
    log_sd = np.array([_log_sd(calibration, bundled, name) for name in names])
    known = {name: n for n, name in enumerate(calibration.constants)}
    correlation = np.eye(len(names))
    places = [n for n, name in enumerate(names) if name in known]
    own = [known[names[n]] for n in places]
    correlation[np.ix_(places, places)] = calibration.correlation[np.ix_(own, own)]
    return np.asarray(correlation * np.outer(log_sd, log_sd))


def bars_of(
    candidates: Candidates, knowledge: Knowledge, *, seed: int = 0, weight: ArrayLike = 1.0, compares: bool = True
) -> ErrorBars:
    """Error bars of the ranked plans of one question, in their order; of more than `COMPARED_PLANS` the first are compared.

    Parameters
    ----------
    candidates : Candidates
    knowledge : Knowledge
    seed : int
        Of the draws.
    weight : array
        What the step times are multiplied by where plans are ranked by another objective: devices in use.
    compares : bool
        Otherwise there are intervals only.
    """
    low, high = intervals(candidates, knowledge.model)
    bars = ErrorBars(
        low_s=tuple(low.tolist()),
        high_s=tuple(high.tolist()),
        calibration=knowledge.calibration,
        kind=knowledge.kind,
        basis=knowledge.model.basis,
        rows=knowledge.model.rows,
        devices=knowledge.model.devices,
    )
    if len(candidates) < 2 or not compares:
        return bars
    from costmodel.uncertainty.rankings import probability_best, shortest_list  # one plan is predicted without

    compared = candidates.first(COMPARED_PLANS)
    errors = sampled_log_errors(compared, knowledge.model, draws=_DRAWS, seed=seed)
    predicted = np.log((candidates.step_time_s * np.asarray(weight))[: len(compared)])
    log_times = predicted + errors
    chance = probability_best(log_times)
    # What is recommended is benchmarked in any case.
    share = max(LISTED_SHARE, knowledge.model.listed_share)
    short = shortest_list(log_times, share, holding=0)
    listed = with_equals(np.array(sorted({0, *short.tolist()})), predicted)
    near, within = near_list(log_times, share)
    held = log_times[:, near].min(axis=1) <= log_times.min(axis=1) + np.log1p(within)
    return replace(
        bars,
        scores=tuple(np.exp(predicted).tolist()),
        probability_best=tuple(chance.tolist()),
        benchmark_list=tuple((listed + 1).tolist()),
        benchmark_probability=float(chance[listed].sum()),
        near_list=tuple((near + 1).tolist()),
        near_probability=float(held.mean()),
        near_within=within,
    )


def score_weights(plans: Sequence[RankedPlan]) -> FloatArray:
    """What the steps of plans are multiplied by to be compared: (plans,)."""
    return np.array([plan.score / plan.step_time_s for plan in plans])


def plan_bars(
    resolved: Resolved,
    plans: Sequence[RankedPlan],
    times: Times | None = None,
    *,
    coordinates: FloatArray,
    host_launch_s: float | None = None,
    of_transformers: bool = True,
    mixture: FloatArray | None = None,
    is_exact: bool = False,
) -> ErrorBars:
    """Error bars of plans; without ``times`` they are not compared. ``is_exact``: ``times`` are step times, not bounds."""
    workers = max(plan.workers for plan in plans)
    names = () if times is None else constants_of(resolved.workload, resolved.cluster, workers, host_launch_s)
    devices = tuple(group.device.name for group in resolved.cluster.groups)
    knowledge = knowledge_of(resolved.request, is_transformer=of_transformers, names=names, devices=devices)
    knowledge = where_needed(knowledge, len(plans))
    names = tuple(knowledge.log_sd)
    steps = np.array([plan.step_time_s for plan in plans])
    terms = {name: np.array([plan.time_parts[name] for plan in plans]) for name in plans[0].time_parts}
    candidates = Candidates(
        step_time_s=steps,
        shares=shares_of(steps, terms, np.array([plan.workers for plan in plans]) / node_size(resolved.cluster)),
        effects=effects_of(times, names, steps if is_exact else None)
        if times is not None and names
        else np.zeros((len(plans), len(names))),
        covariance=knowledge.covariance,
        coordinates=coordinates,
        mixture=mixture,
    )
    return bars_of(
        candidates, knowledge, seed=resolved.request.seed, weight=score_weights(plans), compares=times is not None
    )


def near_list(log_times: FloatArray, share: float, recommended: int = 0) -> tuple[IntArray, float]:
    """Few plans of which one is within a tolerance of the best, and the tolerance: the least for which `NEAR_PLANS` are enough.

    Parameters
    ----------
    log_times : array (draws, n)
    share : float
        Of the draws, in which one is.
    recommended : int
        A plan that is among them in any case.

    Examples
    --------
    Each of seven plans is the best in one draw and 9 % slower than the best in the others:

    >>> times = np.ones((7, 7)) * 1.09 - 0.09 * np.eye(7)
    >>> plans, within = near_list(np.log(times), 1.0)
    >>> len(plans), within
    (1, 0.1)
    """
    from costmodel.uncertainty.rankings import shortest_list

    for within in _WITHIN:
        found = shortest_list(log_times, share, within, holding=recommended)
        near = np.array(sorted({recommended, *found.tolist()}))
        if len(near) <= NEAR_PLANS:
            break
    return near, within


def with_equals(chosen: IntArray, log_times: FloatArray) -> IntArray:
    """A list in the order of the ranks, with the plans that take as long as one of it.

    >>> with_equals(np.array([2, 0]), np.log([1.0, 1.1, 1.2, 1.2, 1.3])).tolist()
    [0, 2, 3]
    """
    apart = np.abs(log_times[:, None] - log_times[chosen][None, :])
    return np.flatnonzero((apart <= _EQUAL_TIME).any(axis=1))


def with_chances(plans: Sequence[RankedPlan], bars: ErrorBars) -> list[RankedPlan]:
    """Ranked plans with their chance to be the best, where they were compared."""
    chances = bars.probability_best
    compared = (replace(plan, probability_best=chance) for plan, chance in zip(plans, chances, strict=False))
    return [*compared, *plans[len(chances) :]]


def with_bars(plans: Sequence[RankedPlan], bars: ErrorBars) -> list[RankedPlan]:
    """Ranked plans with their interval and their chance."""
    if not bars.low_s:
        return list(plans)
    timed = [
        replace(plan, step_time_low_s=low, step_time_high_s=high)
        for plan, low, high in zip(plans, bars.low_s, bars.high_s, strict=True)
    ]
    return with_chances(timed, bars)

"""Error bars of training runs: whether intervals held what was measured, and lists to benchmark the best plan.

The intervals and lists are those of `planner optimize`, by the calibration that the rows are scored with and the framework that each
states.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.model import MeshModel
from costmodel.uncertainty.constants import CONSTANTS, Calibration
from costmodel.uncertainty.intervals import INTERVAL_SHARE, PARTS, Candidates, interval_score, intervals
from planner.files.naming.frameworks import framework_of
from planner.measurements import convnets, plans
from planner.measurements.metrics import LEAST_ROWS, Figures
from planner.measurements.outcomes import Outcome, Preset
from planner.spaces.mesh.bars import mesh_coordinates, mesh_times
from planner.uncertainty.bars import Knowledge, bars_of, constants_of, effects_of, knowledge_with, one_width

# Profile of the framework of a row, whether it runs a network for images, and the device.
Software = tuple[str, bool, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModels:
    """What the intervals and lists of the rows of a file follow from.

    Attributes
    ----------
    knowledge : mapping
        Software of a row -> what the calibration says about its errors.
    one_width : tuple of array (1,)
        Logarithms of the ends, over the prediction, of an interval as wide for everything.
    effects : mapping of int to array
        Line -> derivatives by `CONSTANTS`, of the rows for which these were varied.
    lines : frozenset of int or None
        Rows that stand for all; None: every row for itself.
    """

    knowledge: Mapping[Software, Knowledge]
    one_width: tuple[FloatArray, FloatArray]
    effects: Mapping[int, FloatArray]
    lines: frozenset[int] | None

    def knowledge_of(self, outcome: Outcome) -> Knowledge:
        """What is known about the errors of a row."""
        return self.knowledge[software_of(outcome)]


def with_bars(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Rows with error bars: steps whose parts are known."""
    return [
        outcome
        for outcome in outcomes
        if outcome.comparisons and outcome.comparisons[0].shares and 0 < outcome.comparisons[0].predicted_s < math.inf
    ]


def software_of(outcome: Outcome) -> Software:
    """What decides whose errors a row has."""
    row = outcome.row
    return _framework_of(row.text("framework")).name, outcome.comparisons[0].plan is None, row.text("device")


_framework_of = lru_cache(maxsize=4096)(framework_of)  # asked for every row


def alternatives(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Alternatives to one another; rows without any are alone."""
    groups: dict[Hashable, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.row.line if outcome.ranking is None else outcome.ranking].append(outcome)
    return list(groups.values())


# -- figures ------------------------------------------------------------------------------------------------------------------


def bar_score(outcomes: Sequence[Outcome], models: ErrorModels | None) -> Figures:
    """Figures of the error bars of some rows of a file: intervals of step times, and lists to benchmark the best plan.

    Intervals are scored in log(step time): those of the cost model, one width for all (that of the calibration's residuals), and the one
    width that suits these very rows best. Questions are sets of alternatives with at least three different plans.
    """
    if models is None:
        return _NO_BARS
    found = [outcome for outcome in with_bars(outcomes) if models.lines is None or outcome.row.line in models.lines]
    if not found:
        return _NO_BARS
    predicted, measured = (
        np.array([getattr(outcome.comparisons[0], name) for outcome in found]) for name in ("predicted_s", "measured_s")
    )
    residual = np.log(measured / predicted)
    low, high = _ends(found, models)
    tail = 0.5 * (1.0 - INTERVAL_SHARE)
    own = np.quantile(residual, (tail, 1.0 - tail))
    lists = [one for question in alternatives(found) if (one := _list_of(question, models)) is not None]
    holds, length, plans = np.array(lists, dtype=np.float64).T if lists else np.zeros((3, 0))
    return {
        "interval_rows": len(found),
        "interval_coverage": float(np.mean((low <= residual) & (residual <= high))),
        "interval_width": float(np.median(high - low)),
        "interval_score": float(np.mean(interval_score(low, high, residual))),
        "interval_score_one_width": float(np.mean(interval_score(*models.one_width, residual))),
        "interval_score_hindsight": float(np.mean(interval_score(own[:1], own[1:], residual))),
        "list_questions": len(lists),
        "list_holds_best": float(np.mean(holds)) if lists else None,
        "list_length": float(np.median(length)) if lists else None,
        "list_plans": float(np.median(plans)) if lists else None,
    }


# Figures of rows without error bars.
_NO_BARS: Figures = {
    "interval_rows": 0,
    "interval_coverage": None,
    "interval_width": None,
    "interval_score": None,
    "interval_score_one_width": None,
    "interval_score_hindsight": None,
    "list_questions": 0,
    "list_holds_best": None,
    "list_length": None,
    "list_plans": None,
}


def _ends(outcomes: Sequence[Outcome], models: ErrorModels) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the ends of the intervals, over the prediction."""
    low, high = np.zeros(len(outcomes)), np.zeros(len(outcomes))
    kinds: dict[Software, list[int]] = defaultdict(list)
    for n, outcome in enumerate(outcomes):
        kinds[software_of(outcome)].append(n)
    for members in kinds.values():
        some = [outcomes[n] for n in members]
        known = models.knowledge_of(some[0])
        ends = intervals(_candidates(some, models, np.ones(len(some)), np.zeros((len(some), 1))), known.model)
        low[members] = np.log(ends[0])
        high[members] = np.log(ends[1]) + np.log([outcome.comparisons[0].slowest for outcome in some])
    return low, high


def _list_of(question: Sequence[Outcome], models: ErrorModels) -> tuple[bool, int, int] | None:
    """Whether the list to benchmark holds the plan measured best, plans on it, and plans; None with too few to compare.

    Runs of one plan are one.
    """
    runs: dict[Hashable, list[Outcome]] = defaultdict(list)
    for outcome in question:
        if outcome.row.line in models.effects:
            runs[outcome.comparisons[0].plan, outcome.comparisons[0].predicted_s].append(outcome)
    if len(runs) < LEAST_ROWS:
        return None
    ranked = sorted(runs.values(), key=lambda several: several[0].comparisons[0].predicted_s)
    measured = [min(outcome.comparisons[0].measured_s for outcome in several) for several in ranked]
    some = [several[0] for several in ranked]
    known = [plan for outcome in some if (plan := outcome.comparisons[0].plan) is not None]
    coordinates = mesh_coordinates(known) if known else np.zeros((len(some), 1))
    predicted = np.array([outcome.comparisons[0].predicted_s for outcome in some])
    listed = bars_of(_candidates(some, models, predicted, coordinates), models.knowledge_of(some[0])).benchmark_list
    return int(np.argmin(measured)) + 1 in listed, len(listed), len(some)


def _candidates(
    outcomes: Sequence[Outcome], models: ErrorModels, step_time_s: FloatArray, coordinates: FloatArray
) -> Candidates:
    """Rows of one kind as its error model sees them."""
    none = np.zeros(len(CONSTANTS))
    return Candidates(
        step_time_s=step_time_s,
        shares=np.array([outcome.comparisons[0].shares for outcome in outcomes]),
        effects=np.array([models.effects.get(outcome.row.line, none) for outcome in outcomes]),
        covariance=models.knowledge_of(outcomes[0]).covariance,
        coordinates=coordinates,
    )


# -- what a file needs ---------------------------------------------------------------------------------------------------------

# Constants are varied for so much of a file: rows, networks on their machines (0.1 s each), questions with alternatives (10 ms each), and
# alternatives of one (whose errors are drawn together). Of larger files evenly spaced questions stand for all.
_MOST_ROWS = 2000
_MOST_MODELS = 32
_MOST_QUESTIONS = 200
_MOST_ALTERNATIVES = 200
# Multiples of it leave gaps of three lengths at most, however many there are (the three-gap theorem): the first of them are spread evenly.
_GOLDEN = 0.5 * (5.0**0.5 - 1.0)


def error_models_of(outcomes: Sequence[Outcome], preset: Preset, calibration: Calibration | None = None) -> ErrorModels:
    """Find what is known, and vary the constants for rows whose intervals or lists need it.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of a whole file, by ``preset``.
    preset : Preset
        The default cost model, with the factors of the calibration.
    calibration : Calibration, optional
        The bundled one unless given.
    """
    found = with_bars(outcomes)
    knowledge = {
        (framework, is_images, device): knowledge_with(
            calibration, framework, is_transformer=not is_images, devices=(device,)
        )
        for framework, is_images, device in dict.fromkeys(map(software_of, found))
    }
    varied, lines = _sample(
        alternatives(found), {software for software, known in knowledge.items() if known.model.sharpness > 0}
    )
    known = effects(varied, preset)
    anything = Candidates(
        step_time_s=np.ones(1),
        shares=np.zeros((1, len(PARTS))),
        effects=np.zeros((1, 0)),
        covariance=np.zeros((0, 0)),
        coordinates=np.zeros((1, 1)),
    )
    low, high = intervals(anything, one_width(calibration))
    for outcome in varied:
        outcome.row.meaning = None  # as before: it takes memory
    return ErrorModels(
        knowledge=knowledge,
        one_width=(np.log(low), np.log(high)),
        effects={outcome.row.line: own for outcome, own in zip(varied, known, strict=True)},
        lines=lines,
    )


# -- which rows ---------------------------------------------------------------------------------------------------------------


def _sample(
    questions: Sequence[list[Outcome]], sharp: Collection[Software]
) -> tuple[list[Outcome], frozenset[int] | None]:
    """Rows for which constants are varied, and those that stand for all where some that need it are not among them.

    Parameters
    ----------
    questions : sequence of lists of Outcome
    sharp : collection
        Software whose intervals follow what constants do; lists of all follow it.
    """
    varied: list[Outcome] = []
    models: set[Hashable] = set()
    ranked = 0
    lines: list[int] = []
    is_full = False
    missed = 0  # questions that needed it
    for place in np.argsort(np.arange(1, len(questions) + 1) * _GOLDEN % 1.0, kind="stable").tolist():
        some = question = questions[place]
        is_sharp = any(software_of(outcome) in sharp for outcome in question)
        if len(question) >= LEAST_ROWS or is_sharp:
            some = question[:: math.ceil(len(question) / _MOST_ALTERNATIVES)]
            both = models | {_meaning(outcome).key for outcome in some}
            counts = np.array([len(both), ranked + (len(some) >= LEAST_ROWS), len(varied) + len(some)])
            if varied and np.any(counts > (_MOST_MODELS, _MOST_QUESTIONS, _MOST_ROWS)):
                is_full = True
            else:
                models, ranked = both, int(counts[1])
                varied += some
            missed += is_sharp and (is_full or len(some) < len(question))
        if not is_full:
            lines += [outcome.row.line for outcome in some]
    return varied, frozenset(lines) if missed else None


# -- what constants do --------------------------------------------------------------------------------------------------------


def effects(outcomes: Sequence[Outcome], preset: Preset) -> FloatArray:
    """Derivatives of the logarithms of the steps of scored rows by those of `CONSTANTS`, (rows, constants).

    Of transformers as `planner optimize` varies them: the plan that a row means, with bounds in place of some schedules.
    """
    result = np.zeros((len(outcomes), len(CONSTANTS)))
    groups: dict[Hashable, list[int]] = {}
    for n, outcome in enumerate(outcomes):
        groups.setdefault(None if outcome.comparisons[0].plan is None else _meaning(outcome).key, []).append(n)
    for key, members in groups.items():
        some = [outcomes[n] for n in members]
        result[members] = _of_images(some, preset) if key is None else _of_transformers(some, preset)
    return result


def _meaning(outcome: Outcome) -> convnets.Run | plans.Question:
    """What a scored row asks; rows with equal keys are varied together at little more cost: a network on its machine."""
    asked = convnets.asked if outcome.comparisons[0].plan is None else plans.asked
    meant = outcome.row.meaning = outcome.row.meaning or asked(outcome.row)
    assert isinstance(meant, (convnets.Run, plans.Question)), "rows that are scored ask something"
    return meant


def _of_transformers(outcomes: Sequence[Outcome], preset: Preset) -> FloatArray:
    """Of rows that share a model."""
    meant = [plan for outcome in outcomes if (plan := outcome.comparisons[0].plan) is not None]
    different = list(dict.fromkeys(meant))
    question = _meaning(outcomes[0])
    assert isinstance(question, plans.Question)
    model = _with_own_device(plans.model_of(question, preset))
    names = constants_of(
        model.workload, model.cluster, max(plan.workers for plan in different), model.assumptions.host_launch_s
    )
    found = np.zeros((len(different), len(CONSTANTS)))
    columns = [list(CONSTANTS).index(name) for name in names]
    found[:, columns] = effects_of(mesh_times(model, different, exact=False), names)
    place = {plan: n for n, plan in enumerate(different)}
    return found[[place[plan] for plan in meant]]


def _with_own_device(model: MeshModel) -> MeshModel:
    """The model on a cluster of the device that its kernels are costed on: constants are varied from there."""
    compute = model.workload.compute
    assert isinstance(compute, RooflineCompute), "only the roofline has constants"
    groups = tuple(replace(group, device=compute.device) for group in model.cluster.groups)
    return model.with_constants(model.workload, replace(model.cluster, groups=groups), model.assumptions)


def _of_images(outcomes: Sequence[Outcome], preset: Preset) -> FloatArray:
    def times(name: str, factor: float) -> FloatArray:
        known = dict(preset.constants)
        changed = replace(preset, constants=tuple({**known, name: known.get(name, 1.0) * factor}.items()))
        found = convnets.predict([outcome.row for outcome in outcomes], changed)
        return np.array([outcome.comparisons[0].predicted_s for outcome in found])

    now = np.array([outcome.comparisons[0].predicted_s for outcome in outcomes])
    return effects_of(times, tuple(CONSTANTS), now)

"""What the error bars of rows are made of: what a calibration knows of their software, and what the constants do to their steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.model import MeshModel
from costmodel.uncertainty.calibration import Calibration
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS, Candidates, intervals
from planner.measurements import convnets, questions
from planner.measurements.error_bars import Judge, Software, alternatives, judged, software_of
from planner.measurements.outcomes import Outcome
from planner.measurements.preset import Preset
from planner.measurements.ranking import LEAST_ROWS
from planner.uncertainty.bars import knowledge_with, one_width
from planner.uncertainty.effects import constants_of, effects_of, mesh_times

__all__ = ["effects", "judge_of"]


# Constants are varied for so much of a file: rows, networks on their machines (0.1 s each), questions with alternatives (10 ms each), and
# alternatives of one (whose errors are drawn together). Of larger files evenly spaced questions stand for all.
_MOST_ROWS = 2000
_MOST_MODELS = 32
_MOST_QUESTIONS = 200
_MOST_ALTERNATIVES = 200
# Multiples of it leave gaps of three lengths at most, however many there are (the three-gap theorem): the first of them are spread evenly.
_GOLDEN = 0.5 * (5.0**0.5 - 1.0)


def judge_of(outcomes: Sequence[Outcome], preset: Preset, calibration: Calibration | None = None) -> Judge:
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
    found = judged(outcomes)
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
    for outcome in varied:
        outcome.row.meaning = None  # as before: it takes memory
    return Judge(
        knowledge=knowledge,
        one_width=_one_width(calibration),
        effects={outcome.row.line: own for outcome, own in zip(varied, known, strict=True)},
        lines=lines,
    )


def _one_width(calibration: Calibration | None) -> tuple[FloatArray, FloatArray]:
    anything = Candidates(
        step_time_s=np.ones(1),
        shares=np.zeros((1, len(PARTS))),
        effects=np.zeros((1, 0)),
        covariance=np.zeros((0, 0)),
        coordinates=np.zeros((1, 1)),
    )
    low, high = intervals(anything, one_width(calibration))
    return np.log(low), np.log(high)


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
    budget = _Budget()
    lines: list[int] = []
    is_full = False
    missed = 0  # questions that needed it
    for place in np.argsort(np.arange(1, len(questions) + 1) * _GOLDEN % 1.0, kind="stable").tolist():
        some = question = questions[place]
        is_sharp = any(software_of(outcome) in sharp for outcome in question)
        if len(question) >= LEAST_ROWS or is_sharp:
            some = question[:: math.ceil(len(question) / _MOST_ALTERNATIVES)]
            is_full = is_full or not budget.takes(some)
            missed += is_sharp and (is_full or len(some) < len(question))
        if not is_full:
            lines += [outcome.row.line for outcome in some]
    return budget.varied, frozenset(lines) if missed else None


@dataclass(slots=True)
class _Budget:
    """Grows while questions are taken."""

    varied: list[Outcome] = field(default_factory=list)
    models: set[Hashable] = field(default_factory=set)
    ranked: int = 0

    def takes(self, question: Sequence[Outcome]) -> bool:
        """Take a question, unless that would be too much."""
        models = self.models | {_model_key(outcome) for outcome in question}
        ranked = self.ranked + (len(question) >= LEAST_ROWS)
        rows = len(self.varied) + len(question)
        if self.varied and (len(models) > _MOST_MODELS or ranked > _MOST_QUESTIONS or rows > _MOST_ROWS):
            return False
        self.varied += question
        self.models, self.ranked = models, ranked
        return True


# -- what constants do --------------------------------------------------------------------------------------------------------


def effects(outcomes: Sequence[Outcome], preset: Preset) -> FloatArray:
    """Derivatives of the logarithms of the steps of scored rows by those of `CONSTANTS`, (rows, constants).

    Of transformers as `planner optimize` varies them: the plan that a row means, with bounds in place of some schedules.
    """
    result = np.zeros((len(outcomes), len(CONSTANTS)))
    groups: dict[Hashable, list[int]] = {}
    for n, outcome in enumerate(outcomes):
        groups.setdefault(None if outcome.comparisons[0].plan is None else _model_key(outcome), []).append(n)
    for key, members in groups.items():
        some = [outcomes[n] for n in members]
        result[members] = _of_images(some, preset) if key is None else _of_transformers(some, preset)
    return result


def _model_key(outcome: Outcome) -> Hashable:
    """What a scored row shares with those that are varied with it at little more cost: its network on its machine."""
    return _run(outcome).key if outcome.comparisons[0].plan is None else _question(outcome).key


def _question(outcome: Outcome) -> questions.Question:
    meant = outcome.row.meaning = outcome.row.meaning or questions.asked(outcome.row)
    assert isinstance(meant, questions.Question), "rows that are scored ask something"
    return meant


def _run(outcome: Outcome) -> convnets.Run:
    meant = outcome.row.meaning = outcome.row.meaning or convnets.asked(outcome.row)
    assert isinstance(meant, convnets.Run), "a network for images"
    return meant


def _of_transformers(outcomes: Sequence[Outcome], preset: Preset) -> FloatArray:
    """Of rows that share a model."""
    meant = [plan for outcome in outcomes if (plan := outcome.comparisons[0].plan) is not None]
    plans = list(dict.fromkeys(meant))
    model = _with_own_device(questions.model_of(_question(outcomes[0]), preset))
    names = constants_of(model.workload, model.cluster, max(plan.workers for plan in plans), model.assumptions)
    found = np.zeros((len(plans), len(CONSTANTS)))
    columns = [list(CONSTANTS).index(name) for name in names]
    found[:, columns] = effects_of(mesh_times(model, plans, exact=False), names)
    place = {plan: n for n, plan in enumerate(plans)}
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

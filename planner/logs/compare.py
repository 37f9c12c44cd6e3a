"""A run's log against its prediction: which steps count, how long they took, which part is off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.plan import MEASURED_MEMORY
from planner.core.answer import STATED, Estimate
from planner.core.errors import UsageError
from planner.core.notes import Note
from planner.files.text import failure
from planner.logs.formats import READING
from planner.logs.read import Log, LogStep, Timing

# Rules of what counts, not of how machines behave.
_SETTLED = 0.10  # a warm-up ends with the first step within so much of the median of the last half
_SLOW = 1.2
_DRIFT, _LEAST_FOR_DRIFT = 0.03, 20
_FEW = 5
_NOTED = 0.05  # share of the step from which a part is worth a sentence
_MOST_LINES = 5
_SEEN = 0.001


# Timer -> median seconds of the fastest rank, if the log has them, and of the slowest.
Timers: TypeAlias = Mapping[str, tuple[float | None, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """Times of the steps of a log.

    Attributes
    ----------
    median_s, low_s, high_s : float
        And the 5th and 95th percentile.
    lines : int
        Lines that count.
    warm_up : int
        Lines before them.
    steps_per_line : int
        A line is the mean of so many steps.
    first : int
        The first step that counts.
    """

    median_s: float
    low_s: float
    high_s: float
    lines: int
    warm_up: int
    steps_per_line: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """A part of the step: predicted, and the median of what timers say of it."""

    label: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMemory:
    """Memory of the fullest device, counted as the log counts it (a name of `MEASURED_MEMORY`)."""

    counts: str
    predicted_bytes: float
    measured_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A log beside its prediction.

    Attributes
    ----------
    path : Path
    log : Log
    steps : MeasuredSteps
    estimate : Estimate
    parts : tuple of CheckedPart
        Empty where the log has no timers.
    memory : tuple of CheckedMemory
    notes : tuple of str
    """

    path: Path
    log: Log
    steps: MeasuredSteps
    estimate: Estimate
    parts: tuple[CheckedPart, ...]
    memory: tuple[CheckedMemory, ...]
    notes: tuple[str, ...]

    @property
    def inside(self) -> bool | None:
        """Whether the median step is in the 80 % interval of the prediction; None where it has none."""
        low, high = self.estimate.ranked.step_time_low_s, self.estimate.ranked.step_time_high_s
        return None if low is None or high is None else low <= self.steps.median_s <= high


def warm_up_of(seconds: FloatArray) -> int:
    """How many of the first times are warm-up.

    These are the times before the first that is within 10 % of the median of the last half; the first time always, at most half of all.

    Parameters
    ----------
    seconds : array (n,)

    Examples
    --------
    >>> warm_up_of(np.array([9.0, 3.0, 2.1, 2.0, 2.0, 2.0, 2.0])), warm_up_of(np.array([2.0, 2.0, 2.0])), warm_up_of(np.array([2.0]))
    (2, 1, 0)
    """
    half = len(seconds) // 2
    if not half:
        return 0
    settled = np.flatnonzero(seconds <= (1 + _SETTLED) * np.median(seconds[half:]))
    return min(max(int(settled[0]), 1), half) if len(settled) else half


def measured_steps(
    path: Path, log: Log, *, batch: int, seq: int | None, gpus: int
) -> tuple[MeasuredSteps, FloatArray, int]:
    """Times of a log's steps.

    Parameters
    ----------
    path : Path
        For messages.
    log : Log
    batch, gpus : int
        Samples of a step, and the devices of the run: they turn throughput into time.
    seq : int or None
        Positions of a sample.

    Returns
    -------
    steps : MeasuredSteps
    seconds : array (lines,)
        Of the lines that count.
    begin : int
        Position of the first of them in the log.

    Raises
    ------
    InputFileError
        No time can be made of the lines.
    """
    first = _since_batch(log.steps)
    steps = log.steps[first:]
    times = [_seconds(step, before, batch, seq, gpus) for step, before in zip(steps, [None, *steps], strict=False)]
    known = [(n, value) for n, value in enumerate(times) if value is not None and value > 0]
    if not known:
        raise failure(path, "its lines say tokens per second, which are no time for a network that reads no tokens")
    seconds = np.array([value for _, value in known])
    warm_up = warm_up_of(seconds)
    kept = seconds[warm_up:]
    begin = known[warm_up][0] + first
    gaps = np.diff([step.number for step in log.steps])
    low, median, high = np.percentile(kept, (5, 50, 95)).tolist()
    found = MeasuredSteps(
        median_s=median,
        low_s=low,
        high_s=high,
        lines=len(kept),
        warm_up=begin,
        steps_per_line=int(np.median(gaps)) if len(gaps) else 1,
        first=log.steps[begin].number,
    )
    return found, kept, begin


def _since_batch(steps: Sequence[LogStep]) -> int:
    """First step of the batch that the log ends with: batches may grow at the beginning."""
    last = steps[-1].batch
    others = [n for n, step in enumerate(steps) if step.batch != last]
    return others[-1] + 1 if others else 0


def _seconds(step: LogStep, before: LogStep | None, batch: int, seq: int | None, gpus: int) -> float | None:
    if step.seconds is not None:
        return step.seconds
    if step.tokens_per_s_per_gpu is not None:
        return None if seq is None else batch * seq / (step.tokens_per_s_per_gpu * gpus)
    if step.at is not None and before is not None and before.at is not None:
        return (step.at - before.at) / (step.number - before.number)
    return None if step.samples_per_s is None else batch / step.samples_per_s


def check_log(path: Path, log: Log, estimate: Estimate, remarks: Sequence[str] = ()) -> Check:
    """Compare a log with its prediction.

    Parameters
    ----------
    path : Path
    log : Log
    estimate : Estimate
        Of the plan that ran.
    remarks : sequence of str
        What else there is to say.

    Raises
    ------
    UsageError
        The log is of another batch than the prediction.
    InputFileError
        No time can be made of its lines.
    """
    setting, ranked = estimate.setting, estimate.ranked
    stated = log.steps[-1].batch
    if stated is not None and stated != setting.global_batch:
        raise UsageError(
            f"--batch {setting.global_batch}: the log has steps of {stated} samples (line {log.steps[-1].line}); leave it out"
        )
    steps, seconds, begin = measured_steps(path, log, batch=setting.global_batch, seq=setting.seq, gpus=ranked.workers)
    timers = _medians(log, steps.first)
    parts = _parts(log, steps, estimate, timers)
    memory = tuple(
        CheckedMemory(
            counts=counts,
            predicted_bytes=sum(ranked.memory_parts[name] for name in names),
            measured_bytes=log.memory[counts],
        )
        for counts, names in MEASURED_MEMORY.items()
        if counts in log.memory and set(names) <= set(ranked.memory_parts)
    )
    notes = [
        *_of_parts(log, steps, parts, timers),
        *_of_steps(log, steps, seconds, begin, setting.global_batch),
        *_of_question(estimate, memory),
        *remarks,
    ]
    return Check(path=path, log=log, steps=steps, estimate=estimate, parts=parts, memory=memory, notes=tuple(notes))


# -- parts of the step ------------------------------------------------------------------------------------------------------


def _medians(log: Log, first: int) -> Timers:
    """Timer -> seconds of its fastest and slowest rank, medians over the steps that count."""
    found: dict[str, list[Timing]] = {}
    for timing in log.timings:
        if timing.step >= first:
            found.setdefault(timing.name, []).append(timing)
    return {
        name: (
            float(np.median([t.fastest_s for t in timings if t.fastest_s is not None]))
            if any(t.fastest_s is not None for t in timings)
            else None,
            float(np.median([t.slowest_s for t in timings])),
        )
        for name, timings in found.items()
    }


def _parts(log: Log, steps: MeasuredSteps, estimate: Estimate, timers: Timers) -> tuple[CheckedPart, ...]:
    predicted = estimate.ranked.time_parts
    declared = {name for part in log.known.parts for name in part.figures}
    if not log.known.parts or log.known.parts[0].add[0] not in timers or not declared <= set(predicted):
        return ()
    # The slowest rank waits least for the others.
    waits = {name for part in log.known.parts if part.fastest for name in part.add}
    seconds_of = {
        name: fastest if name in waits and fastest is not None else slowest
        for name, (fastest, slowest) in timers.items()
    }
    parts = []
    for part in log.known.parts:
        have = [seconds_of[name] for name in part.add if name in timers]
        if not have:
            continue
        seconds = sum(have) - sum(seconds_of[name] for name in part.less if name in timers)
        parts.append(
            CheckedPart(
                label=part.label,
                predicted_s=sum(predicted[name] for name in part.figures),
                measured_s=max(seconds, 0.0),
            )
        )
    rest = steps.median_s - sum(part.measured_s for part in parts)
    if rest < _SEEN * steps.median_s:  # ranks differ, so timers of the slowest may add up to more than the step
        return tuple(parts)
    return (*parts, CheckedPart(label="rest", predicted_s=0.0, measured_s=rest))


def _of_parts(log: Log, steps: MeasuredSteps, parts: Sequence[CheckedPart], timers: Timers) -> Iterator[str]:
    known = log.known
    if not parts:
        if not log.whole_run:
            yield Note("check_no_parts", title=known.title, hint=known.timers_hint or None)
        return
    worst = max(parts, key=lambda part: abs(part.measured_s - part.predicted_s))
    if abs(worst.measured_s - worst.predicted_s) > _NOTED * steps.median_s:
        yield Note("check_largest_part", part=worst.label, measured_s=worst.measured_s, predicted_s=worst.predicted_s)
    waits = [
        (slowest - fastest, name)
        for part in known.parts
        if part.fastest
        for name in part.add
        if name in timers and (fastest := timers[name][0]) is not None
        for slowest in [timers[name][1]]
    ]
    longest, timer = max(waits, default=(0.0, ""))
    if longest > _NOTED * steps.median_s:
        yield Note("check_stragglers", timer=timer, waits_s=longest, share=longest / steps.median_s)
    fastest, slowest = timers.get("forward-compute", (None, 0.0))
    if fastest is not None and slowest > (1 + 2 * _NOTED) * fastest:
        yield Note("check_uneven", timer="forward-compute", fastest_s=fastest, slowest_s=slowest)
    reading = sum(part.measured_s for part in parts if part.label == READING)
    if reading > _NOTED * steps.median_s:
        yield Note("check_reading", seconds=reading, share=reading / steps.median_s)


# -- steps, memory, question ------------------------------------------------------------------------------------------------


def _of_steps(log: Log, steps: MeasuredSteps, seconds: FloatArray, begin: int, batch: int) -> Iterator[str]:
    if log.whole_run:
        yield Note("check_whole_run")
        return
    slow = np.flatnonzero(seconds > _SLOW * steps.median_s)
    lost = float(np.sum(seconds[slow] - steps.median_s) / np.sum(seconds))
    if len(slow) and lost > 0.01:
        lines = [str(log.steps[begin + n].line) for n in slow[:_MOST_LINES].tolist()]
        more = ", ..." if len(slow) > _MOST_LINES else ""
        yield Note("check_slow_steps", slow=len(slow), steps=len(seconds), lines=", ".join(lines) + more, saved=lost)
    if len(seconds) >= _LEAST_FOR_DRIFT:
        fifth = len(seconds) // 5
        drift = float(np.median(seconds[-fifth:]) / np.median(seconds[:fifth]) - 1.0)
        if abs(drift) > _DRIFT:
            yield Note("check_drift", share=abs(drift), than="longer than" if drift > 0 else "less than")
    own = [batch / step.samples_per_s for step in log.steps[begin:] if step.samples_per_s is not None]
    if own and float(np.median(own)) < (1 - _NOTED) * steps.median_s:  # DeepSpeed's stands still between steps
        yield Note("check_own_timer", timer_s=float(np.median(own)), step_s=steps.median_s)
    if log.starts > 1:
        yield Note("check_starts", starts=log.starts)
    if len(seconds) < _FEW:
        yield Note("check_few_steps", steps=len(seconds))


def _of_question(estimate: Estimate, memory: Sequence[CheckedMemory]) -> Iterator[str]:
    cluster = next((a for a in estimate.assumptions if a.name == "cluster"), None)
    if cluster is not None and not cluster.source.startswith(STATED):
        yield Note("check_other_cluster", cluster=cluster.value)
    most = max((entry.measured_bytes for entry in memory), default=0.0)
    capacity = estimate.ranked.memory_there_bytes
    if math.isfinite(most) and most > capacity:
        yield Note("check_memory_over", measured_bytes=most, capacity_bytes=capacity)
    asked = estimate.setting.command_line
    if asked.startswith("planner check") and "--row" not in asked:
        yield Note("check_calibrate", command=f"{asked} --row runs.csv --calibrate mine.yaml")

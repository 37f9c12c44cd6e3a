"""Reads the log of a training run: times of steps, memory, timers of the parts of a step; nothing in it is executed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from planner.core.errors import UnknownName
from planner.files.text import failure, read_bytes
from planner.logs.formats import FORMATS, Format

# More than a training of weeks writes.
_MOST_BYTES = 512 * 2**20
_LONGEST_LINE = 20_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3,6})")
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}  # nanotron's human_format, thousands by thousands
# Megatron's timers, of the fastest and slowest rank, of the slowest, or of each; DeepSpeed's.
_TIMER = re.compile(r"([a-z][\w-]*) \.{2,}:\s*(?:\(([^\s,()]+), ([^\s,()]+)\)|([^\s()]+))\s*$")
_TIMER_NAME, _TIMER_RANK = re.compile(r"^\s*([a-z][\w-]*):\s*$"), re.compile(r"^\s*rank\s+\d+:\s+(\S+)\s*$")
_BREAKDOWN = re.compile(r"time \(ms\) \| (fwd: .*)")
# A progress bar counts whole seconds: over so many they are off by 5 % at most.
_WINDOW_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStep:
    """What a line says of a step, or of the steps since the line before; None: it does not say.

    Attributes
    ----------
    number, line : int
    seconds : float or None
        Of a step.
    tokens_per_s_per_gpu, samples_per_s : float or None
        In place of a time.
    batch : int or None
        Samples of the step.
    at : float or None
        When the line was written, in seconds.
    """

    number: int
    line: int
    seconds: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    batch: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A timer: what it times, the step that it belongs to, and its seconds on the fastest and the slowest rank (None: one is known)."""

    name: str
    step: int
    fastest_s: float | None
    slowest_s: float


@dataclass(slots=True, kw_only=True)
class Log:
    """What a log says.

    Attributes
    ----------
    format : str
        A name of `planner.logs.formats.FORMATS`.
    steps : list of LogStep
        Of the last start, in the order of the log.
    starts : int
        How often the program was started: the numbers of steps began again.
    memory : dict
        What is counted -> bytes of the fullest device that the log names.
    timings : list of Timing
    whole_run : bool
        The one time is the mean of a whole run, its start included.
    text : str
        Without colours.
    """

    format: str
    steps: list[LogStep] = field(default_factory=list)
    starts: int = 1
    memory: dict[str, float] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    whole_run: bool = False
    text: str = ""

    @property
    def known(self) -> Format:
        """How its lines read."""
        return FORMATS[self.format]


def read_log(path: Path, name: str | None = None) -> Log:
    """Read the log of a run.

    Parameters
    ----------
    path : Path
    name : str, optional
        A name of `planner.logs.formats.FORMATS`; without it the lines tell.

    Raises
    ------
    UnknownName
        No such format.
    InputFileError
        The file cannot be read, has no line about a step, steps of several programs, or a line whose numbers cannot be read.
    """
    if name is not None and name not in FORMATS:
        raise UnknownName(kind="log format", name=name, known=FORMATS)
    data = read_bytes(path, _MOST_BYTES, "a log")
    if not data.strip():
        raise failure(path, "is empty")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise failure(path, "is not a text: it holds NUL characters", line, 1)
    text = _COLOUR.sub("", data.decode("utf-8-sig", errors="replace"))
    if text.lstrip().startswith("{") and '"log_history"' in text:
        return _trainer_state(path, text)
    chosen = name or _recognised(path, text)
    log = Log(format=chosen, text=text)
    _Reader(path, log).read()
    if not log.steps:
        raise failure(path, f"has no line about a step of {FORMATS[chosen].title} with a time that can be read")
    return log


def _recognised(path: Path, text: str) -> str:
    found = {
        name: place
        for name, known in FORMATS.items()
        if known.mark in text and (place := _first_step(text, known)) is not None
    }
    names = [name for name in found if not any(name in FORMATS[other].beside for other in found)]
    if not names:
        titles = ", ".join(f"{known.title} ({name})" for name, known in FORMATS.items())
        raise failure(path, f"has no line about a training step that is known; known logs: {titles}")
    if len(names) > 1:
        places = [f"{FORMATS[name].title} (line {text.count(chr(10), 0, found[name]) + 1})" for name in names]
        hint = " or ".join(f"--log-format {name}" for name in names)
        raise failure(path, f"has steps of several programs: {', '.join(places)}; say which are meant by {hint}")
    return names[0]


def _first_step(text: str, known: Format) -> int | None:
    """Where the first line about a step of a format begins; None where there is none."""
    places = []
    for needed in known.needs:
        at = text.find(needed)
        while at >= 0:
            begin = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            line = text[begin : end if end >= 0 else len(text)]
            if known.step_in(line[:_LONGEST_LINE]):
                places.append(begin)
                break
            at = text.find(needed, begin + len(line))
    return min(places, default=None)


class _Reader:
    """Takes a log line by line."""

    def __init__(self, path: Path, log: Log) -> None:
        self.path, self.log = path, log
        self.timer = ""
        self.bars: dict[
            str, list[tuple[int, int, float]]
        ] = {}  # total of a progress bar -> step, line, elapsed seconds
        self.run_s: dict[str, float] = {}

    def read(self) -> None:
        log = self.log
        lines = log.text.split("\n")
        last = lines.pop()  # cut off in the middle of a number, perhaps; empty where the file ends in a line
        if last and not any(log.known.step_in(line[:_LONGEST_LINE]) for line in lines[-1000:]):
            lines.append(last)
        for number, line in enumerate(lines, 1):
            for piece in line[:_LONGEST_LINE].split("\r"):
                self._line(piece, number)
        if self.bars or self.run_s:
            self._of_progress()

    def _line(self, text: str, line: int) -> None:
        known = self.log.known
        for counts, (pattern, unit) in known.memory.items() if "em" in text else ():  # memory, MaxMem, mem-max
            if match := pattern.search(text):
                self.log.memory[counts] = max(self.log.memory.get(counts, 0.0), self._number(match, line) * unit)
        if match := known.step_in(text):
            self._step(match, text, line)
        elif known.parts:
            self._timers(text, line)

    def _step(self, match: re.Match[str], text: str, line: int) -> None:
        known = self.log.known
        values = {
            name: self._number(found, line)
            for name, pattern in known.fields.items()
            if name != "bar" and (found := pattern.search(text))
        }
        if "bar" in known.fields:
            self.run_s |= values
            if bar := known.fields["bar"].search(text):
                self.bars.setdefault(bar[2], []).append((int(bar[1]), line, _clock(bar[3])))
            return
        number = int(next(group for group in match.groups() if group is not None).replace(",", ""))
        seconds = values.get("step_s", values["step_ms"] / 1e3 if "step_ms" in values else None)
        rates = {name: values[name] for name in ("tokens_per_s_per_gpu", "samples_per_s") if name in values}
        if seconds is None and not rates:
            return
        batch = int(values["batch"]) if "batch" in values else None
        step = LogStep(number=number, line=line, seconds=seconds, batch=batch, at=_written_at(text), **rates)
        self._add(step)

    def _add(self, step: LogStep) -> None:
        log = self.log
        before = log.steps[-1] if log.steps else None
        if before is not None and step.number == before.number:  # another rank's line: the slowest decides
            log.steps[-1] = step if _slower(step, before) else before
            return
        if before is not None and step.number < before.number:
            log.starts += 1
            log.steps, log.timings = [], []
        log.steps.append(step)

    def _timers(self, text: str, line: int) -> None:
        step = self.log.steps[-1].number if self.log.steps else 0
        if ".: " in text and (match := _TIMER.search(text)):
            ends = [self._seconds(match, line, group) for group in (2, 3, 4) if match[group] is not None]
            fastest = ends[0] if len(ends) > 1 else None
            self._timed(Timing(name=match[1], step=step, fastest_s=fastest, slowest_s=ends[-1]))
        elif text.rstrip().endswith(":") and (match := _TIMER_NAME.search(text)):
            self.timer = match[1]
        elif self.timer and (match := _TIMER_RANK.search(text)):
            seconds = self._seconds(match, line, 1)
            self._timed(Timing(name=self.timer, step=step, fastest_s=seconds, slowest_s=seconds))
        elif " | fwd: " in text and (match := _BREAKDOWN.search(text)):
            for name, value in re.findall(r"(\w+): ([\d.]+)", match[1]):
                self._timed(Timing(name=name, step=step, fastest_s=None, slowest_s=float(value) / 1e3))

    def _timed(self, timing: Timing) -> None:
        """Take a timer; of several ranks, one by one, the fastest and the slowest."""
        timings = self.log.timings
        last = timings[-1] if timings else None
        if last is not None and self.timer and (last.name, last.step) == (timing.name, timing.step):
            least = min(value for value in (last.fastest_s, timing.fastest_s) if value is not None)
            timings[-1] = replace(last, fastest_s=least, slowest_s=max(last.slowest_s, timing.slowest_s))
            return
        timings.append(timing)

    def _seconds(self, match: re.Match[str], line: int, group: int) -> float:
        return self._number(match, line, group, least=0.0) / 1e3

    def _number(self, match: re.Match[str], line: int, group: int = 1, least: float = 1e-12) -> float:
        word = match[group]
        size = _SUFFIXES.get(word[-1:], 1.0)
        try:
            value = float((word[:-1] if size > 1 else word).replace(",", "")) * size
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            label = match[0][: match.start(group) - match.start()].strip(" |:=('\"") or "the line"
            message = f"{label}: is '{word[:60]}'; a number above 0 is expected"
            raise failure(self.path, message, line, match.start(group) + 1)
        return value

    def _of_progress(self) -> None:
        """Steps from progress bars, of the bar that took longest; else from what the program says of the whole run."""
        bar = max(self.bars.values(), key=lambda entries: entries[-1][2], default=[])
        for first, last in _windows(bar):
            seconds = (last[2] - first[2]) / (last[0] - first[0])
            self.log.steps.append(LogStep(number=last[0], line=last[1], seconds=seconds))
        steps_per_s = self.run_s.get("steps_per_s")
        if self.log.steps or steps_per_s is None:
            return
        seconds = 1.0 / steps_per_s
        if "run_s" in self.run_s:  # the rate is rounded, their product is a whole number
            seconds = self.run_s["run_s"] / max(round(self.run_s["run_s"] * steps_per_s), 1)
        self.log.steps.append(LogStep(number=0, line=0, seconds=seconds))
        self.log.whole_run = True


def _windows(bar: Sequence[tuple[int, int, float]]) -> Iterator[tuple[tuple[int, int, float], tuple[int, int, float]]]:
    """First and last entries of stretches that are long enough for whole seconds."""
    first = next(iter(bar), None)
    for entry in bar:
        assert first is not None, "the first entry is one"
        if entry[2] - first[2] >= _WINDOW_S and entry[0] > first[0]:
            yield first, entry
            first = entry


def _clock(text: str) -> float:
    """Seconds of ``1:02:03`` or ``02:03``.

    >>> _clock("1:02:03"), _clock("02:03")
    (3723.0, 123.0)
    """
    seconds = 0.0
    for word in text.split(":"):
        seconds = 60 * seconds + int(word or 0)
    return seconds


def _written_at(text: str) -> float | None:
    match = _STAMP.search(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}").timestamp() + float(f"0.{match[3]}")
    except ValueError:
        return None


def _slower(step: LogStep, other: LogStep) -> bool:
    if step.seconds is not None and other.seconds is not None:
        return step.seconds > other.seconds
    return (step.tokens_per_s_per_gpu or math.inf) < (other.tokens_per_s_per_gpu or math.inf)


def _trainer_state(path: Path, text: str) -> Log:
    """Read trainer_state.json, whose last entry is about the whole run."""
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise failure(path, f"is not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise failure(path, "is not JSON: it is nested too deeply") from None
    history = content.get("log_history")
    entries = [entry for entry in history if isinstance(entry, Mapping)] if isinstance(history, list) else []
    last = next((entry for entry in reversed(entries) if "train_runtime" in entry), None)
    steps: Any = None if last is None else last.get("step", content.get("global_step"))
    if last is None or not _is_positive(last["train_runtime"]) or not _is_positive(steps):
        raise failure(
            path, "has no entry with 'train_runtime' and its number of steps in log_history: the training did not end"
        )
    log = Log(format="huggingface", whole_run=True, text="")
    log.steps.append(LogStep(number=int(steps), line=0, seconds=float(last["train_runtime"]) / int(steps)))
    return log


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 1e-12

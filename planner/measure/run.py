"""Goes through the cases within a time limit and keeps what has been measured, whatever happens."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.measure.cases import Case, collective_cases, kernel_cases
from planner.measure.kernels import Workbench, collective_call
from planner.measure.place import Place
from planner.measure.processes import Group
from planner.measure.timing import Timing, row_of, time_call

__all__ = ["Measured", "Settings", "measure_collectives", "measure_kernels", "stoppable"]

Row = Mapping[str, str]
Report = Callable[[str, float], None]

# Bounds of the time that one case may take, in seconds: below, a median means little; above, it gains little.
_LEAST_BUDGET_S, _MOST_BUDGET_S = 0.03, 1.5
# Of the time limit, for collectives where there are several processes.
_COLLECTIVE_SHARE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure."""

    quick: bool = False
    time_limit_s: float
    precisions: tuple[str, ...]
    kinds: tuple[str, ...]
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Measured:
    """What has been measured so far.

    Attributes
    ----------
    rows : list
        Of the table.
    skipped : Counter
        Reason -> cases that were not measured.
    stopped : bool
        Ctrl-C.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    stopped: bool = False
    save: Callable[[Sequence[Row]], None] | None = None

    def add(self, row: Row) -> None:
        """Keep a row, and let it be written."""
        self.rows.append(row)
        if self.save is not None:
            self.save(self.rows)


@contextlib.contextmanager
def stoppable(measured: Measured) -> Iterator[None]:
    """End a run at Ctrl-C, and at the signal with which torchrun ends processes, without losing what has been measured."""

    def stop(number: int, frame: object) -> None:  # noqa: ARG001 - the signature of a handler
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        measured.stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)


def measure_kernels(
    torch: Any, place: Place, settings: Settings, where: Mapping[str, str], measured: Measured, report: Report
) -> None:
    """Time kernels on one device.

    Parameters
    ----------
    torch : module
    place : Place
    settings : Settings
    where : mapping
        Columns about the machine.
    measured : Measured
        Takes the rows.
    report : function
        What is being measured, and the share of the time limit that has passed.
    """
    cases = kernel_cases(
        large=place.kind == "cuda", quick=settings.quick, precisions=settings.precisions, kinds=settings.kinds
    )
    workbench = Workbench(torch, place.device, settings.seed)
    timer = place.timer(torch)
    deadline = _Deadline(settings.time_limit_s, len(cases))
    for case in cases:
        report(case.label, deadline.share)
        reason = deadline.reason_to_skip(case) or _too_large(case, place)
        if reason:
            measured.skipped[reason] += 1
            continue
        timing = _kernel_timing(torch, workbench, case, timer, deadline.budget_s, measured)
        if timing is not None:
            deadline.note(case, timing.median_s)
            measured.add(row_of(case, timing, where))


def _kernel_timing(
    torch: Any, workbench: Workbench, case: Case, timer: Any, budget_s: float, measured: Measured
) -> Timing | None:
    """Time a case; None where the library or the device cannot do it."""
    is_backward = case.direction.startswith("backward") and case.kernel != "convolution"
    try:
        with contextlib.nullcontext() if is_backward else torch.no_grad():
            return time_call(workbench.call(case), timer, budget_s=budget_s)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:  # out of memory is one
        measured.skipped[f"{case.kernel} in {case.precision} does not run here: {_first_line(error)}"] += 1
    return None


def measure_collectives(
    torch: Any,
    place: Place,
    group: Group,
    settings: Settings,
    where: Mapping[str, str],
    measured: Measured,
    report: Report,
) -> None:
    """Time collectives; every process calls this, and decides the same.

    The sample of a collective is the time of the slowest process.
    """
    processes = group.processes
    cases = collective_cases(
        ranks=processes.ranks, nodes=processes.nodes, large=place.kind == "cuda", quick=settings.quick
    )
    timer = place.timer(torch)
    deadline = _Deadline(settings.time_limit_s * _COLLECTIVE_SHARE, len(cases))
    for case in cases:
        share = group.agree(deadline.share)  # a barrier, too
        report(case.label, share)
        if group.agree(float(bool(_too_large(case, place)))):
            measured.skipped["larger than the memory"] += 1
            continue
        if share >= 1.0:
            measured.skipped["time limit"] += 1
            continue
        call, problem = None, ""
        try:
            call = collective_call(torch, place.device, processes, case)
            call()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            problem = _first_line(error)
        if group.agree(float(bool(problem))) or call is None:
            measured.skipped[f"{case.text('collective')} does not run with {group.backend}: {problem}"] += 1
            continue

        budget_s = group.agree(deadline.budget_s)
        halves = 2.0 if case.text("collective") == "point_to_point" else 1.0
        timing = time_call(
            call,
            lambda call, count, halves=halves: timer(call, count) / halves,  # type: ignore[misc]
            budget_s=budget_s / halves,
            agree=group.agree,
            worst=group.worst,
        )
        if processes.is_first:
            measured.add(row_of(case, timing, where))


class _Deadline:
    """Divides a time limit among cases, and leaves out those that would take too much of it."""

    def __init__(self, limit_s: float, cases: int) -> None:
        self._start_s = time.monotonic()
        self._limit_s = limit_s
        self._left = cases
        self._rates: dict[tuple[str, str, str], float] = {}

    @property
    def share(self) -> float:
        """Of the limit that has passed."""
        return (time.monotonic() - self._start_s) / self._limit_s

    @property
    def budget_s(self) -> float:
        """For the next case: its part of what is left, as all before it have had theirs."""
        left_s = self._limit_s * (1.0 - self.share)
        budget_s = left_s / max(self._left, 1)
        self._left -= 1
        return min(max(budget_s, _LEAST_BUDGET_S), _MOST_BUDGET_S)

    def note(self, case: Case, time_s: float) -> None:
        """Learn how fast a kernel is."""
        self._rates[self._key(case)] = self._size(case) / time_s

    def reason_to_skip(self, case: Case) -> str:
        """Why a case is left out; empty where it is not."""
        if self.share >= 1.0:
            return "time limit"
        rate = self._rates.get(self._key(case))
        # Warm-up and the fewest samples are six calls.
        expected_s = 0.0 if rate is None else 6 * self._size(case) / rate
        return "would take too long" if expected_s > self._limit_s * (1.0 - self.share) / 2 else ""

    @staticmethod
    def _key(case: Case) -> tuple[str, str, str]:
        return case.kernel, case.precision, case.direction

    @staticmethod
    def _size(case: Case) -> float:
        return case.flop or case.moved_bytes


def _too_large(case: Case, place: Place) -> str:
    return "larger than the memory" if case.held_bytes > place.memory_bytes else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]

"""One run of ``planner measure``: finds the device, meets the other processes, measures, writes.

It goes through the cases within a time limit and keeps what has been measured, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.core.errors import UsageError, did_you_mean
from planner.detect.devices import FoundDevice
from planner.detect.machine import detect
from planner.detect.report import device_file_name, device_text, machine_files
from planner.detect.system import System
from planner.files.output import check_writable, write_atomically
from planner.measure.cases import Case, collective_cases, kernel_cases
from planner.measure.kernels import Workbench, collective_call, row_of, table_text, time_call
from planner.measure.processes import (
    Group,
    Place,
    Processes,
    load_torch,
    message_timer,
    place_of,
    processes_of,
    threads_of,
)

Row = Mapping[str, str]
Report = Callable[[str, float], None]

# Bounds of the time that one case may take, in seconds: below, a median means little; above, it gains little.
_LEAST_BUDGET_S, _MOST_BUDGET_S = 0.03, 1.5
_TOO_LARGE = "larger than the memory"
# What a library raises that cannot run a case on a device; out of memory is one.
_CANNOT = (RuntimeError, NotImplementedError, AttributeError, ValueError)
# Of the time limit, for collectives where there are several processes.
_COLLECTIVE_SHARE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options of the command; None: decided by the machine.

    Attributes
    ----------
    path : Path
        Of the table.
    quick : bool
    kind : str or None
        "cuda" or "cpu".
    device, cluster : str or None
        Name or file that rows are predicted for.
    kinds, precisions : tuple of str
        Empty: all.
    time_limit_s : float
    seed : int
    """

    path: Path
    quick: bool
    kind: str | None
    device: str | None
    cluster: str | None
    kinds: tuple[str, ...]
    precisions: tuple[str, ...]
    time_limit_s: float
    seed: int


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
    path : Path or None
        Of the table, which is written after every row, so that whatever ends the run leaves a valid file; None: it is not.
    files : mapping of Path to str
        Files that rows name; written with the first row: a run that measures nothing leaves nothing.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    stopped: bool = False
    path: Path | None = None
    files: Mapping[Path, str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Keep a row, and write it."""
        self.rows.append(row)
        if self.path is None:
            return
        for target, text in self.files.items() if len(self.rows) == 1 else ():
            write_atomically(target, text)
        write_atomically(self.path, table_text(self.rows))


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
    torch: Any, place: Place, wanted: Wanted, where: Mapping[str, str], measured: Measured, report: Report
) -> None:
    """Time kernels on one device.

    Parameters
    ----------
    torch : module
    place : Place
    wanted : Wanted
    where : mapping
        Columns about the machine.
    measured : Measured
        Takes the rows.
    report : function
        What is being measured, and the share of the time limit that has passed.
    """
    cases = kernel_cases(
        large=place.kind == "cuda", quick=wanted.quick, precisions=wanted.precisions, kinds=wanted.kinds
    )
    workbench = Workbench(torch, place.device, wanted.seed)
    timer = place.timer(torch)
    deadline = _Deadline(wanted.time_limit_s, len(cases))
    for case in cases:
        report(case.label, deadline.share)
        reason = deadline.reason_to_skip(case)
        if reason or case.held_bytes > place.memory_bytes:
            measured.skipped[reason or _TOO_LARGE] += 1
            continue
        is_backward = case.direction.startswith("backward") and case.kernel != "convolution"
        try:
            with contextlib.nullcontext() if is_backward else torch.no_grad():
                timing = time_call(workbench.call(case), timer, budget_s=deadline.budget_s)
        except _CANNOT as error:
            measured.skipped[f"{case.kernel} in {case.precision} does not run here: {_first_line(error)}"] += 1
            continue
        deadline.note(case, timing.median_s)
        measured.add(row_of(case, timing, where))


def measure_collectives(
    torch: Any,
    place: Place,
    group: Group,
    wanted: Wanted,
    where: Mapping[str, str],
    measured: Measured,
    report: Report,
) -> None:
    """Time collectives; every process calls this, and decides the same.

    The sample of a collective is the time of the slowest process.
    """
    processes = group.processes
    cases = collective_cases(
        ranks=processes.ranks, nodes=processes.nodes, large=place.kind == "cuda", quick=wanted.quick
    )
    timer = message_timer(torch, place)
    deadline = _Deadline(wanted.time_limit_s * _COLLECTIVE_SHARE, len(cases))
    for case in cases:
        share = group.agree(deadline.share)  # a barrier, too
        report(case.label, share)
        if group.agree(float(case.held_bytes > place.memory_bytes)):
            measured.skipped[_TOO_LARGE] += 1
            continue
        if share >= 1.0:
            measured.skipped["time limit"] += 1
            continue
        call, problem = None, ""
        try:
            call = collective_call(torch, place.device, processes, case)
            call()
        except _CANNOT as error:
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
            # On processors some of many calls wait for the system, which a step pays: the mean counts, not the usual call.
            shortest_s=0.02 if place.kind == "cpu" else 1e-3,
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
        self._rates[case.kernel, case.precision, case.direction] = case.work / time_s

    def reason_to_skip(self, case: Case) -> str:
        """Why a case is left out; empty where it is not."""
        if self.share >= 1.0:
            return "time limit"
        rate = self._rates.get((case.kernel, case.precision, case.direction))
        # Warm-up and the fewest samples are six calls.
        expected_s = 0.0 if rate is None else 6 * case.work / rate
        return "would take too long" if expected_s > self._limit_s * (1.0 - self.share) / 2 else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def measure_here(wanted: Wanted, system: System, report: Report) -> tuple[Measured, Place, bool]:
    """Measure on this machine; what was measured, where, and whether this is the process that writes.

    Raises
    ------
    UsageError
        No PyTorch, no such device, processes that do not fit.
    OutputError
        The table cannot be written.
    """
    start_s = time.monotonic()
    processes = processes_of(os.environ)
    if processes.is_first:
        check_writable(wanted.path)
    torch = load_torch()
    torch.manual_seed(wanted.seed)
    place = place_of(torch, system, processes, wanted.kind, threads_of(os.environ))
    wanted = replace(wanted, precisions=_precisions(wanted.precisions, place))
    where, files = _where(wanted, place, processes, system)
    measured = Measured(path=wanted.path, files=files) if processes.is_first else Measured()
    with stoppable(measured), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer names of collectives, which older versions do not have
        if processes.ranks > 1:
            group = Group(torch, processes, place.device)
            if "collective" in wanted.kinds:
                measure_collectives(torch, place, group, wanted, where["collective"], measured, report)
            group.leave()
        if processes.is_first:
            left_s = max(wanted.time_limit_s - (time.monotonic() - start_s), 1.0)
            measure_kernels(torch, place, replace(wanted, time_limit_s=left_s), where["kernel"], measured, report)
    return measured, place, processes.is_first


def _precisions(wanted: Sequence[str], place: Place) -> tuple[str, ...]:
    if not wanted:
        return place.precisions
    unknown = [name for name in wanted if name not in place.precisions]
    if unknown:
        raise UsageError(
            f"--precision {unknown[0]}: {place.found.label} computes in {', '.join(place.precisions)}"
            f"{did_you_mean(unknown[0], place.precisions)}"
        )
    return tuple(wanted)


def _where(
    wanted: Wanted, place: Place, processes: Processes, system: System
) -> tuple[dict[str, dict[str, str]], dict[Path, str]]:
    """Columns about the machine, for kernels and for collectives, and the files that they name."""
    common = {"machine": place.found.label, "software": place.software}
    files: dict[Path, str] = {}
    device = _device_cells(wanted, place.found, files)
    cluster: dict[str, str] = {}
    if processes.ranks > 1 and processes.is_first:
        if wanted.cluster is not None:
            cluster = {"cluster_file": _from(wanted.path, wanted.cluster)}
        else:
            target = wanted.path.with_name(f"{wanted.path.stem}-cluster.yaml")
            machine = detect(
                system, nodes=processes.nodes, processes=processes.local_ranks, cores_per_device=place.cores or None
            )
            files.update(machine_files(machine, target, stem=wanted.path.stem))
            cluster = {"cluster_file": target.name}
    if processes.is_first:
        _check_files(files)
    return {"kernel": common | device, "collective": common | device | cluster}, files


def _check_files(files: Mapping[Path, str]) -> None:
    """Files beside the table may have been corrected by hand: they are not replaced by others.

    Raises
    ------
    UsageError
        One exists and says something else.
    OutputError
        One cannot be written.
    """
    for path, text in files.items():
        check_writable(path)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.exists() and path.read_text(encoding="utf-8") != text:
                option = "--cluster" if path.stem.endswith("-cluster") else "--as"
                raise UsageError(
                    f"{path} is already there and says something else than what is detected now: "
                    f"{option} {path} predicts for it; or remove it, or choose another --output"
                )


def _device_cells(wanted: Wanted, found: FoundDevice, files: dict[Path, str]) -> dict[str, str]:
    if wanted.device is not None:
        from planner.files.loading import load_device

        loaded = load_device(wanted.device)
        is_file = Path(wanted.device).exists()
        return {"device": loaded.device.name} | ({"device_file": _from(wanted.path, wanted.device)} if is_file else {})
    if found.is_bundled:
        return {"device": found.name}
    target = wanted.path.with_name(device_file_name(wanted.path))
    files[target] = device_text(found)
    return {"device": found.name, "device_file": target.name}


def _from(table: Path, text: str) -> str:
    """A file as a path from the folder of the table; a bundled name stays."""
    path = Path(text)
    return os.path.relpath(path, table.parent) if path.is_file() else text

"""One run of ``planner measure``: finds the device, meets the other processes, measures, writes."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.core.errors import UsageError, did_you_mean
from planner.detect.devices import FoundDevice
from planner.detect.machine import detect
from planner.detect.report import device_file_name, device_text, machine_files
from planner.detect.system import System
from planner.files.output import check_writable, write_atomically
from planner.measure.place import Place, place_of
from planner.measure.processes import Group, Processes, load_torch, processes_of
from planner.measure.run import Measured, Row, Settings, measure_collectives, measure_kernels, stoppable
from planner.measure.timing import table_text

__all__ = ["Session", "Wanted", "measure_here"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What came of a run; ``written`` are the files beside the table, ``remark`` what makes the times doubtful."""

    measured: Measured
    device: str
    machine: str
    software: str
    remark: str
    is_first: bool
    written: tuple[Path, ...]


def measure_here(wanted: Wanted, system: System, report: Callable[[str, float], None]) -> Session:
    """Measure on this machine.

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
    place = place_of(torch, system, processes, wanted.kind)
    settings = Settings(
        quick=wanted.quick,
        time_limit_s=wanted.time_limit_s,
        precisions=_precisions(wanted.precisions, place),
        kinds=wanted.kinds,
        seed=wanted.seed,
    )
    where, files = _where(wanted, place, processes, system)
    measured = Measured(save=_saver(wanted.path, files) if processes.is_first else None)
    with stoppable(measured), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer names of collectives, which older versions do not have
        if processes.ranks > 1:
            group = Group(torch, processes, place.device)
            if "collective" in wanted.kinds:
                measure_collectives(torch, place, group, settings, where["collective"], measured, report)
            group.leave()
        if processes.is_first:
            left = replace(settings, time_limit_s=max(settings.time_limit_s - (time.monotonic() - start_s), 1.0))
            measure_kernels(torch, place, left, where["kernel"], measured, report)
    return Session(
        measured=measured,
        device=wanted.device or place.found.name,
        machine=place.found.label,
        software=place.software,
        remark=place.remark,
        is_first=processes.is_first,
        written=tuple(files) if measured.rows else (),
    )


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


def _saver(path: Path, files: Mapping[Path, str]) -> Callable[[Sequence[Row]], None]:
    """Writes the table after every row, so that whatever ends the run leaves a valid file."""
    others = dict(files)

    def save(rows: Sequence[Row]) -> None:
        while others:  # with the first row: a run that measures nothing leaves nothing
            target, text = others.popitem()
            write_atomically(target, text)
        write_atomically(path, table_text(rows))

    return save


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
                system, nodes=processes.nodes, processes=processes.local_ranks, only_processor=place.kind == "cpu"
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

"""Tables of measurements as a fit takes them: which rows count, and what the cost model predicts for all of them at once.

What the rows ran on (device, cluster, framework) is what a command line names, or each row for itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from planner.calibration.fit import Data
from planner.core.errors import FileProblem, InputFileError, PlannerError, UsageError
from planner.files.loading import load_cluster, load_device
from planner.files.naming.frameworks import framework_called, framework_of
from planner.files.resources import bundled
from planner.measurements.hardware import Links, links_of, machine_of
from planner.measurements.kinds import KINDS, Kind, check_columns, recognise
from planner.measurements.outcomes import Comparison, Outcome, Preset
from planner.measurements.scores import REFUSED
from planner.measurements.tables import Row, RowSkipped, Table, read_table

_OTHER_LINKS = 1.5  # times as fast or as slow: no matter of how a datasheet is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """Options of the command; empty where they were not given, so that every row says for itself.

    Attributes
    ----------
    device, cluster : str
        Bundled name or path.
    device_name : str
        Name inside the device's file (or of the cluster's only device).
    framework : str
    """

    device: str = ""
    cluster: str = ""
    device_name: str = ""
    framework: str = ""

    def columns(self, table: Table) -> Table:
        """The table with a column for the device, where the command line says what it is and the table does not."""
        if not self.device_name or "device" in table.columns:
            return table
        rows = tuple(Row(line=row.line, cells={**row.cells, "device": self.device_name}) for row in table.rows)
        return dataclasses.replace(table, columns=(*table.columns, "device"), rows=rows)

    def refusal(self, row: Row) -> str:
        """Why a row is about another machine or framework; empty where it is about this one."""
        if not self._is_device(row.text("device") or _name_in(row.text("device_file"))):
            return f"measured on another device than {self.device_name}, or on one that is not known"
        stated = row.text("framework")
        if self.framework and stated and not self._is_framework(stated):
            return f"measured with another framework than {self.framework}"
        return ""

    def _is_device(self, text: str) -> bool:
        if not self.device_name or not text or text.lower() in (self.device_name.lower(), self.device.lower()):
            return True
        # What people call a device that is described by a file of their own is theirs to choose.
        return text not in bundled("devices") and self.device_name not in bundled("devices")

    def _is_framework(self, text: str) -> bool:
        mine, other = framework_called(self.framework), framework_called(text)
        return self.framework.lower() in text.lower() or (mine is not None and mine == other)

    def on_it(self, row: Row) -> Row:
        """The row with the machine and the framework in its cells."""
        cells = {}
        if self.device_name:
            cells["device_file"] = self.device or self.device_name
        if self.cluster:
            cells["cluster_file"] = self.cluster
        if self.framework and not row.text("framework"):
            cells["framework"] = self.framework
        return Row(line=row.line, cells={**row.cells, **cells}, defaults=row.defaults) if cells else row


def cluster_of(machinery: Machinery) -> Cluster | None:
    """The cluster that a command line names, or the usual one of its device; None where it names neither."""
    if not machinery.device_name:
        return None
    row = machinery.on_it(Row(line=1, cells={"device": machinery.device_name}))
    try:
        return machine_of(row, Links()).cluster
    except RowSkipped:
        return None


def link_remark(machinery: Machinery, table: Table) -> str:
    """What to say of a table whose rows state other links between nodes than the cluster that they are said to have run on; else empty.

    Parameters
    ----------
    machinery : Machinery
    table : Table
        Of training runs, with the column ``inter_bw_Gbps_per_node``.
    """
    cluster = cluster_of(machinery) if machinery.cluster else None
    if cluster is None or "inter_bw_Gbps_per_node" not in table.columns or len(cluster.levels) < 2:
        return ""
    outer = cluster.levels[-1]
    devices = math.prod(level.size or 1 for level in cluster.levels[:-1])
    known = outer.bandwidth_bytes_per_s * devices  # that of a level is each device's share
    stated = Counter(links_of(row).inter_bytes_per_s for row in table.rows if not machinery.refusal(row))
    others = {
        rate: rows for rate, rows in stated.items() if rate and not 1 / _OTHER_LINKS <= rate / known <= _OTHER_LINKS
    }
    if not others:
        return ""
    rates = ", ".join(f"{rate * 8e-9:,.4g}" for rate in sorted(others))
    return (
        f"{table.path.name}: {sum(others.values()):,} rows state {rates} Gb/s per node between nodes, cluster {machinery.cluster} has "
        f"{known * 8e-9:,.4g}. The cluster counts; without --cluster every row has its own links"
    )


@cache
def _name_in(device_file: str) -> str:
    """Name of the device that a row's file describes; empty where it names none, or cannot be read."""
    try:
        return load_device(device_file).device.name if device_file else ""
    except PlannerError:
        return ""


def machinery_of(device: str | None, cluster: str | None, framework: str | None) -> Machinery:
    """Check what a command line names.

    Raises
    ------
    PlannerError
        No such device or cluster, or a cluster of several kinds of devices.
    """
    name = load_device(device).device.name if device else ""
    if cluster:
        groups = load_cluster(cluster).cluster.groups
        if len(groups) > 1:
            raise UsageError(
                f"--cluster {cluster}: has several kinds of devices; calibrate one after the other, with its own cluster file"
            )
        name = name or groups[0].device.name
    return Machinery(device=device or "", cluster=cluster or "", device_name=name, framework=(framework or "").strip())


# Of longer tables, evenly spaced rows are fitted to: every row is predicted some fifty times.
_MOST_ROWS = 3000
_FEWEST_GROUPS, _FEWEST_NETWORKS = 3, 2  # that folds can keep together
# Kinds whose rows are of a network though they state no name: the ``hidden`` of a kernel is its own.
_OF_NETWORKS = ("plan", "network")
# Runs of one network repeat its errors, of which a level is but the most common: so many of them say all that it can about a machine.
# Picked, with the spread of the levels, on fits to one, two and all but one of the networks of nine published tables, of those to the
# others (benchmarks/notes/accuracy-tried.md).
_MOST_OF_NETWORK = 8.0
# Columns that say what network ran.
_NETWORK = ("model", "net", "hidden", "layers")
# Generation of attention kernels -> what `planner.files.naming.frameworks` knows it by.
_KERNELS = {"newest": "FlashAttention-3", "first": "FlashAttention-1", "portable": "FlashAttention-2"}
_FAILED = "failed runs: they have no time to fit to"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """What became of the rows of a file: ``rows = used + sum(skipped)``."""

    file: str
    sha256: str
    kind: str
    rows: int
    used: int
    skipped: Mapping[str, int]


class _Batch(NamedTuple):
    """Rows of one kind in one file, and how many times each has."""

    kind: Kind
    rows: tuple[Row, ...]
    shape: tuple[int, ...]


class _Time(NamedTuple):
    """A measured time: number of its file, number of its row over all files, name of the kind or kernel."""

    comparison: Comparison
    row: Row
    table: int
    number: int
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measured times and how to predict them; arrays have one entry per time (a row of kernels may have several).

    Attributes
    ----------
    tables : tuple of TableUse
    log_measured, log_bundled : array (n,)
        Logarithms of the measured times, and of those that the bundled constants predict.
    table : int array (n,)
        Index of the file.
    row : int array (n,)
        Number of the row, over all files.
    part : int array (n,)
        Index into ``parts``.
    parts : tuple of str
        Kinds of tables, or of kernels.
    group : tuple of hashable, one per time
        What folds keep together: the network or the dataset group of the row; empty where there are too few of either.
    grouped_by : str
        ``network``, ``dataset_group`` or ``rows``.
    network : tuple of tuples of str, one per time
        What ran: its name and shape; all empty for kernels.
    framework : str
        Name that stands for the profile and the attention kernels of all rows; empty where they differ, or are those of no framework.
    doubt : str
        What to say where they differ.
    hardware_files : frozenset of str
        Device and cluster files, or bundled names, that rows name.
    """

    tables: tuple[TableUse, ...]
    batches: tuple[_Batch, ...]
    log_measured: FloatArray
    log_bundled: FloatArray
    table: IntArray
    row: IntArray
    part: IntArray
    parts: tuple[str, ...]
    group: tuple[Hashable, ...]
    grouped_by: str
    network: tuple[tuple[str, ...], ...]
    framework: str
    doubt: str = ""
    hardware_files: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.log_measured)

    def predict(self, values: Mapping[str, float]) -> FloatArray:
        """Logarithms of the times that the cost model predicts with these factors."""
        preset = Preset(name="roofline", constants=tuple(values.items()))
        times: list[float] = []
        for kind, rows, shape in self.batches:
            for outcome, count in zip(kind.predictor()(rows, preset), shape, strict=True):
                found = [comparison.predicted_s for comparison in outcome.comparisons]
                # A row that other constants make unpredictable says nothing about them.
                times += found if len(found) == count else [0.0] * count
        seconds = np.array(times)
        return np.asarray(np.log(seconds, out=self.log_bundled.copy(), where=seconds > 0))

    def data(self, same: Sequence[Hashable]) -> Data:
        """The measurements as a fit takes them; times with equal keys are repeats of one configuration.

        Repeats count once together, and a network no more than `_MOST_OF_NETWORK` runs.
        """
        counts = Counter(same)
        weight = np.array([1.0 / counts[key] for key in same])
        numbers = {name: n for n, name in enumerate(self.networks)}
        network = np.array([numbers.get(name, -1) for name in self.network], dtype=np.int64)
        totals = np.bincount(network + 1, weights=weight)[network + 1]
        weight = np.where(network < 0, weight, weight * np.minimum(1.0, _MOST_OF_NETWORK / totals))
        return Data(log_measured=self.log_measured, part=self.part, weight=weight, network=network)

    @property
    def networks(self) -> tuple[tuple[str, ...], ...]:
        """Different ones."""
        return tuple(dict.fromkeys(name for name in self.network if any(name)))


def read_measurements(files: Sequence[str], machinery: Machinery) -> Measurements:
    """Read and predict files.

    Parameters
    ----------
    files : sequence of str
        Paths of CSV files of any kinds that `planner validate` takes.
    machinery : Machinery
        What the rows ran on.

    Raises
    ------
    InputFileError
        A file cannot be read, is of no known kind, or no file has a row with a time.
    """
    tables: list[TableUse] = []
    batches: list[_Batch] = []
    times: list[_Time] = []
    problems: list[FileProblem] = []
    for name in files:
        try:
            tables.append(_add_file(name, machinery, len(tables), batches, times))
        except InputFileError as error:
            problems += error.problems
    if problems or not times:
        raise InputFileError(problems or [_nothing(use) for use in tables])
    parts = tuple(dict.fromkeys(time.part for time in times))
    network = tuple(_network(time.row, time.part) for time in times)
    group, grouped_by = _groups(times, network)
    framework, doubt = _framework_of([time.row for time in times])
    return Measurements(
        tables=tuple(tables),
        batches=tuple(batches),
        log_measured=np.log([time.comparison.measured_s for time in times]),
        log_bundled=np.log([time.comparison.predicted_s for time in times]),
        table=np.array([time.table for time in times]),
        row=np.array([time.number for time in times]),
        part=np.array([parts.index(time.part) for time in times]),
        parts=parts,
        group=group,
        grouped_by=grouped_by,
        network=network,
        framework=framework,
        doubt=doubt,
        hardware_files=frozenset(time.row.text(key) for time in times for key in ("device_file", "cluster_file")),
    )


def _add_file(name: str, machinery: Machinery, number: int, batches: list[_Batch], times: list[_Time]) -> TableUse:
    """Predict the rows of a file with the bundled constants and keep those that have times."""
    table = read_table(Path(name))
    skipped: Counter[str] = Counter({REFUSED: len(table.refused_lines)} if table.refused else {})
    used = 0
    kinds = _by_kind(machinery.columns(table))
    if not kinds:
        raise InputFileError([FileProblem(path=Path(name), message="has a header and no rows")])
    for kind, rows in kinds.items():
        refusals = [machinery.refusal(row) for row in rows]
        ours = [machinery.on_it(row) for row, reason in zip(rows, refusals, strict=True) if not reason]
        outcomes = kind.predictor()(ours, Preset(name="roofline"))
        reasons = [_refusal(outcome) for outcome in outcomes]
        skipped.update(reason for reason in (*refusals, *reasons) if reason)
        if ours:
            check_columns(table, kind, outcomes)
        usable = [(row, one) for row, one, reason in zip(ours, outcomes, reasons, strict=True) if not reason]
        if len(usable) > _MOST_ROWS:
            why = f"left out to save time: {_MOST_ROWS:,} evenly spaced rows of a kind are fitted to"
            skipped[why] += len(usable) - _MOST_ROWS
            usable = [usable[n] for n in np.linspace(0, len(usable) - 1, _MOST_ROWS).round().astype(int)]
        used += len(usable)
        shape = tuple(len(outcome.comparisons) for _, outcome in usable)
        batches.append(_Batch(kind, tuple(row for row, _ in usable), shape))
        for row, outcome in usable:
            place = times[-1].number + 1 if times else 0
            # A table of `planner measure` holds kernels of all kinds.
            part = row.text("kernel") or kind.name
            times += [_Time(comparison, row, number, place, part) for comparison in outcome.comparisons]
    main = max(kinds, key=lambda kind: len(kinds[kind]))
    return TableUse(
        file=name,
        sha256=table.sha256,
        kind=main.name if len(kinds) == 1 else " and ".join(sorted(kind.name for kind in kinds)),
        rows=len(table.rows) + len(table.refused_lines),
        used=used,
        skipped=dict(skipped.most_common()),
    )


def _by_kind(table: Table) -> dict[Kind, list[Row]]:
    """Rows by kind: the first whose cells are all there, else the kind of the table."""
    common = recognise(table)
    possible = [kind for kind in KINDS if not kind.missing(table.columns)]
    result: dict[Kind, list[Row]] = {}
    for row in table.rows:
        stated = [name for name, text in row.cells.items() if text]
        own = next((kind for kind in possible if not kind.missing(stated)), common)
        # A failure states no time, and a bundled model no shape: training runs are one kind to the predictor.
        kind = common if own.predicts == common.predicts else own
        result.setdefault(kind, []).append(row)
    return result


def _refusal(outcome: Outcome) -> str:
    if outcome.skipped:
        return outcome.skipped
    if outcome.failed:
        return _FAILED
    if not outcome.comparisons:
        return "no measured time"
    if any(comparison.predicted_s <= 0 for comparison in outcome.comparisons):
        return "the cost model predicts no time at all"
    return ""


def _nothing(use: TableUse) -> FileProblem:
    reasons = "; ".join(f"{count:,} {reason}" for reason, count in use.skipped.items())
    return FileProblem(path=Path(use.file), message=f"has no row to fit to, of {use.rows:,}: {reasons}")


def _network(row: Row, kind: str) -> tuple[str, ...]:
    """What ran; kernels are of no network, but for layers of a named one."""
    names = tuple(row.text(column) for column in _NETWORK)
    return names if kind in _OF_NETWORKS or any(names[:2]) else ("",) * len(names)


def _groups(times: Sequence[_Time], network: Sequence[tuple[str, ...]]) -> tuple[tuple[Hashable, ...], str]:
    """What folds keep together, and its name: groups of the table, or networks where a group holds but some runs of one.

    Rows of one network are wrong together, so that a fit to some of them flatters itself on the others: two networks are left out in turn.
    Groups of a table need not differ so much: fewer than three would leave a fit without the half of its rows.
    """
    named = [time.row.text("dataset_group") for time in times]
    groups = tuple((time.table, name) for time, name in zip(times, named, strict=True))
    # Kernels are of no network: each is by itself.
    apart = tuple(own if any(own) else (n,) for own, n in zip(network, [time.number for time in times], strict=True))
    networks = len({own for own in network if any(own)})
    is_split = len(set(zip(groups, apart, strict=True))) > len(set(apart))
    has_groups = len(set(groups)) >= _FEWEST_GROUPS and all(named)
    if networks >= _FEWEST_NETWORKS and (is_split or not has_groups):
        return apart, "network"
    return (groups, "dataset_group") if has_groups else ((), "rows")


def _framework_of(rows: Sequence[Row]) -> tuple[str, str]:
    """What a calibration must name for its factors to multiply what they were fitted to, and what to say where no name does.

    That is the framework and the attention kernels of the rows. Software that is not known is named as its rows name it, where its kernels
    are not those of software that nobody names.
    """
    stated = Counter((row.text("framework"), row.text("attention_kernels")) for row in rows if row.text("framework"))
    if not stated:
        return "", ""
    known = {framework_called(name) or "" for name, _ in stated}
    kernels = {kernel or framework_of(name).attention for name, kernel in stated}
    if len(known) > 1 or len(kernels) > 1:
        usual = "" if len(known) > 1 else min(known)
        what = "different frameworks" if len(known) > 1 else "attention kernels of different generations"
        doubt = (
            f"the rows ran on {what}; an answer with the calibration has those of {usual or 'no framework in particular'}: fit to runs "
            "of one at a time (--framework NAME)"
        )
        return usual, doubt
    (usual,), (attention,) = known, kernels
    if framework_of(usual).attention == attention:
        return usual, ""
    (name, _), _ = stated.most_common(1)[0]
    return (name if framework_of(name).attention == attention else f"{name}, {_KERNELS[attention]}"), ""

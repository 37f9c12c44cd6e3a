"""What the rows of a user's tables ran on: the device, the cluster and the framework that a command line names."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

from costmodel.hardware.cluster import Cluster
from planner.core.errors import PlannerError, UsageError
from planner.files.loading import load_cluster, load_device
from planner.files.naming.frameworks import framework_called
from planner.files.resources import bundled
from planner.measurements.hardware import Links, links_of, machine_of
from planner.measurements.tables import Row, RowSkipped, Table

__all__ = ["Machinery", "cluster_of", "link_remark", "machinery_of"]

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
    stated = Counter(_inter_node(row) for row in table.rows if not machinery.refusal(row))
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


def _inter_node(row: Row) -> float | None:
    try:
        return links_of(row).inter_bytes_per_s
    except RowSkipped:  # counted when the row is predicted
        return None


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

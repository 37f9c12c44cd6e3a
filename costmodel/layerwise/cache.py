"""Costs of one question that are known already: what was costed once is taken, not costed again.

A search, the judge of its plans and their error bars ask for the same layers under overlapping sets of splits. A row of a table costs
the same whatever stands beside it, so tables are cut out of larger ones that were costed before, and the tables of a changed device or of
changed links take over what the change does not touch.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.layer_costs import cost_layers
from costmodel.layerwise.splits import SplitTable
from costmodel.layerwise.tables import CostTables
from costmodel.workload import Workload

__all__ = ["KnownCosts"]

# Rows (splits times micro-batches) that are costed in one go: up to here the calls of numpy take longer than what they compute.
_ROWS_AT_ONCE = 4096
# Tables are kept up to so many bytes together.
_KEPT_BYTES = 64e6


class KnownCosts:
    """Cost tables of a workload on a cluster, built when they are asked for.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    like : KnownCosts, optional
        Of the same work on a device or over links of another speed.
    """

    def __init__(self, workload: Workload, cluster: Cluster, like: KnownCosts | None = None) -> None:
        self.workload, self.cluster, self._like = workload, cluster, like
        self._kept: dict[int, list[CostTables]] = {}
        self._room_bytes = _KEPT_BYTES

    def changed(self, workload: Workload, cluster: Cluster) -> KnownCosts:
        """The same work on a device or over links of another speed."""
        return KnownCosts(workload, cluster, like=self)

    def tables(self, table: SplitTable, num_micro_batches: int) -> CostTables:
        """Tables of some splits at a number of micro-batches."""
        kept = self._kept.setdefault(num_micro_batches, [])
        found = next((tables for tables in kept if tables.table is table), None)
        if found is not None:
            return found
        larger = next((tables for tables in kept if table.rows_in(tables.table) is not None), None)
        if self._like is not None:
            like = self._like.tables(table, num_micro_batches)
            tables = CostTables(self.workload, self.cluster, table, num_micro_batches, like)
        elif larger is not None:
            tables = larger.part(table, self._alike(table))
        else:
            tables = CostTables(self.workload, self.cluster, table, num_micro_batches, self._alike(table))
        self._keep(tables)
        return tables

    def prepare(self, table: SplitTable, numbers_of_micro_batches: Sequence[int]) -> None:
        """Cost some splits at several numbers of micro-batches together, which takes hardly longer than one of them."""
        most = max(1, _ROWS_AT_ONCE // len(table.workers))
        waiting = list(numbers_of_micro_batches)
        if most == 1 or self._like is not None:
            return  # one at a time, when they are asked for
        for start in range(0, len(waiting), most):
            numbers = waiting[start : start + most]
            sizes = [self.workload.micro_batch(m) for m in numbers]
            costs = cost_layers(self.workload, self.cluster, table, sizes)
            for m, layers in zip(numbers, costs, strict=True):
                self._keep(CostTables(self.workload, self.cluster, table, m, self._alike(table), layers))

    def _alike(self, table: SplitTable) -> CostTables | None:
        """Tables of the same splits at any number of micro-batches."""
        return next((tables for kept in self._kept.values() for tables in kept if tables.table is table), None)

    def _keep(self, tables: CostTables) -> None:
        kinds = len({layer.signature for layer in self.workload.graph.layers})
        needed = 8.0 * (10 + len(self.workload.collectives)) * kinds * len(tables.table.workers)
        if needed <= self._room_bytes:
            self._room_bytes -= needed
            self._kept.setdefault(tables.num_micro_batches, []).append(tables)

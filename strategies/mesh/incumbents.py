"""The best plans found so far, one per key: plans that differ only in how memory is saved or ranks are numbered are the same plan.

Of a list of really different plans (`Incumbents.distinct`), the best of every group: plans of a group share some fields. The groups are
the best ones, exactly: what is worse than the best of each of ``top`` groups is of no use to any of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.tolerances import EQUAL
from strategies.mesh.settings import MeshCandidate

__all__ = ["DISTINCT", "KEY", "Incumbents", "key_of"]


# Fields that make two plans different to a user.
KEY: tuple[str, ...] = (
    "tp",
    "sequence_parallel",
    "cp",
    "cp_kind",
    "ep",
    "etp",
    "pp",
    "vpp",
    "schedule",
    "dp_replicate",
    "dp_shard",
    "zero_stage",
    "micro_batch",
    "num_micro_batches",
)
# Fields in which plans of a list differ that is to be benchmarked: the shape of the mesh, what is shared, the size of the pieces. The rest
# (over how many ranks a copy is shared, chunks per rank, how contexts are exchanged) are settings of the same plan.
DISTINCT: tuple[str, ...] = ("tp", "cp", "ep", "pp", "zero_stage", "micro_batch", "schedule")
# Ties between ways to run the same plan go to the simplest.
_TUNED = ("offload_optimizer", "offload_activations", "recompute", "recompute_blocks", "order")


def key_of(plan: MeshPlan) -> tuple[object, ...]:
    """What makes a plan different.

    >>> key_of(MeshPlan(recompute="full", recompute_blocks=3)) == key_of(MeshPlan())
    True
    """
    return tuple(getattr(plan, name) for name in KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A plan with what it is ranked by."""

    score: float
    memory_bytes: float
    tuned: tuple[int, ...]
    step_time_s: float
    plan: MeshPlan
    group: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Incumbents:
    """At most ``top`` plans with different keys, or with different ``distinct`` fields where these are given."""

    top: int
    distinct: tuple[str, ...] | None = None
    _rows: dict[tuple[int, ...], _Row] = field(default_factory=dict)
    _leading_score: dict[tuple[int, ...], float] = field(default_factory=dict)  # of every group at hand, its best
    worst: float = float("inf")  # score of the last of them once there are enough
    best: float = float("inf")

    def add(self, batch: MeshBatch, score: FloatArray, step_time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Take plans that fit; of equal scores the one with less memory goes first."""
        # Any order will do, as long as it does not depend on the machine: ties are broken by the plan itself.
        for n in self._leading(batch, score)[: 64 * self.top].tolist():
            if score[n] > self.worst:
                break
            key = tuple(int(getattr(batch, name)[n]) for name in KEY)
            tuned = tuple(int(getattr(batch, name)[n]) for name in _TUNED)
            known = self._rows.get(key)
            if known is None or (float(score[n]), tuned) < (known.score, known.tuned):
                self._rows[key] = _Row(
                    score=float(score[n]),
                    memory_bytes=float(memory_bytes[n]),
                    tuned=tuned,
                    step_time_s=float(step_time_s[n]),
                    plan=batch.plan(n),
                    group=() if self.distinct is None else tuple(int(getattr(batch, f)[n]) for f in self.distinct),
                )
                if len(self._rows) > 4 * self.top:
                    self._trim()
        self._trim()

    def open(self, batch: MeshBatch, score: FloatArray) -> BoolArray:
        """Whether plans with these scores, or larger ones, may matter to their group: what is worse than its best does not."""
        open_rows = np.asarray(score <= self.worst)
        if not self._leading_score:
            return open_rows
        rows = np.flatnonzero(open_rows)
        if not len(rows):
            return open_rows
        columns = [getattr(batch, name)[rows] for name in self.distinct or ()]
        first, group = combined(*columns)
        keys = zip(*(column[first].tolist() for column in columns), strict=True)
        best = np.array([self._leading_score.get(key, np.inf) for key in keys])
        open_rows[rows] = score[rows] <= best[group] * (1.0 + EQUAL)
        return open_rows

    def _leading(self, batch: MeshBatch, score: FloatArray) -> IntArray:
        """Rows by score; of every group only the best and its equals."""
        if self.distinct is None:
            return np.argsort(score, kind="stable")
        rows = np.flatnonzero(score <= self.worst)
        if not len(rows):
            return rows
        _, group = combined(*(getattr(batch, name)[rows] for name in self.distinct))
        best = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(best, group, score[rows])
        rows = rows[score[rows] <= best[group] * (1.0 + EQUAL)]
        return rows[np.argsort(score[rows], kind="stable")]

    def _trim(self) -> None:
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))
        if self.distinct is not None:
            self._trim_groups(ordered)
            return
        self._rows = dict(ordered[: self.top])
        self.best = ordered[0][1].score if ordered else float("inf")
        self.worst = ordered[self.top - 1][1].score if len(ordered) >= self.top else float("inf")

    def _trim_groups(self, ordered: list[tuple[tuple[int, ...], _Row]]) -> None:
        """Keep the best of the best groups, and what equals it: which of them is listed is decided at the end."""
        leading: dict[tuple[int, ...], float] = {}
        kept = {}
        for key, row in ordered:
            if row.group not in leading and len(leading) == self.top:
                continue
            if row.score <= leading.setdefault(row.group, row.score) * (1.0 + EQUAL):
                kept[key] = row
        self._rows, self._leading_score = kept, leading
        scores = list(leading.values())
        self.best = scores[0] if scores else float("inf")
        self.worst = scores[-1] if len(scores) >= self.top else float("inf")

    def batch(self) -> MeshBatch:
        """The plans as a batch, the best first."""
        return MeshBatch.from_plans([candidate.plan for candidate in self.candidates()])

    def candidates(self) -> list[MeshCandidate]:
        """The plans, best first; scores that differ by rounding only count as equal."""
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))
        rows = [row for _, row in ordered]
        result: list[_Row] = []
        while rows:
            tied = [row for row in rows if row.score <= rows[0].score * (1.0 + EQUAL)]
            result += sorted(tied, key=lambda row: row.memory_bytes)
            rows = rows[len(tied) :]
        if self.distinct is not None:
            firsts: dict[tuple[int, ...], _Row] = {}
            for row in result:
                firsts.setdefault(row.group, row)
            result = list(firsts.values())
        return [MeshCandidate(plan=row.plan, score=row.score, step_time_s=row.step_time_s) for row in result]

"""The best plans found so far, one per key: plans that differ only in how memory is saved or ranks are numbered are the same plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.plan import MeshBatch, MeshPlan
from strategies.mesh.settings import MeshCandidate

__all__ = ["KEY", "Incumbents", "key_of"]

FloatArray = NDArray[np.float64]

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
# Ties between ways to run the same plan go to the simplest.
_TUNED = ("offload_optimizer", "offload_activations", "recompute", "recompute_blocks", "order")


def key_of(plan: MeshPlan) -> tuple[object, ...]:
    """What makes a plan different.

    >>> key_of(MeshPlan(recompute="full", recompute_blocks=3)) == key_of(MeshPlan())
    True
    """
    return tuple(getattr(plan, name) for name in KEY)


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A plan with what it is ranked by."""

    score: float
    memory_bytes: float
    tuned: tuple[int, ...]
    step_time_s: float
    plan: MeshPlan


@dataclass(slots=True, kw_only=True)
class Incumbents:
    """At most ``top`` plans with different keys."""

    top: int
    _rows: dict[tuple[int, ...], _Row] = field(default_factory=dict)
    worst: float = float("inf")  # score of the last of them once there are enough
    best: float = float("inf")

    def add(self, batch: MeshBatch, score: FloatArray, step_time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Take plans that fit; of equal scores the one with less memory goes first."""
        # Any order will do, as long as it does not depend on the machine: ties are broken by the plan itself.
        for n in np.argsort(score, kind="stable")[: 64 * self.top].tolist():
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
                )
                if len(self._rows) > 4 * self.top:
                    self._trim()
        self._trim()

    def _trim(self) -> None:
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))
        self._rows = dict(ordered[: self.top])
        self.best = ordered[0][1].score if ordered else float("inf")
        self.worst = ordered[self.top - 1][1].score if len(ordered) >= self.top else float("inf")

    def candidates(self) -> list[MeshCandidate]:
        """The plans, best first; scores that differ by rounding only count as equal."""
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))
        rows = [row for _, row in ordered]
        result: list[_Row] = []
        while rows:
            tied = [row for row in rows if row.score <= rows[0].score * (1.0 + _ROUNDING)]
            result += sorted(tied, key=lambda row: row.memory_bytes)
            rows = rows[len(tied) :]
        return [MeshCandidate(plan=row.plan, score=row.score, step_time_s=row.step_time_s) for row in result]

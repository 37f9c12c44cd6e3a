"""Partial plans of the pipeline search as struct of arrays, and the tree of stages behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.layerwise.pipeline.problem import PartitionProblem, PipelinePlan

__all__ = ["Labels", "Trail", "join"]


@dataclass(frozen=True, slots=True)
class Labels:
    """Struct of arrays."""

    value: FloatArray  # (n, 7 + TURNS): D, V, E, H, c, f, b, D_k as `strategies.layerwise.pipeline.sweep` defines them
    bound: FloatArray  # (n,): no completion costs less
    state: IntArray  # (n, 3): row of the stage that ends at the cut, workers left, depth
    parent: IntArray  # (n,): index into the trail

    def __getitem__(self, rows: IntArray | BoolArray | slice) -> Labels:
        return Labels(self.value[rows], self.bound[rows], self.state[rows], self.parent[rows])

    def __len__(self) -> int:
        return len(self.bound)


def join(parts: list[Labels]) -> Labels:
    """Labels of several lists in one."""
    return Labels(
        np.concatenate([p.value for p in parts]),
        np.concatenate([p.bound for p in parts]),
        np.concatenate([p.state for p in parts]),
        np.concatenate([p.parent for p in parts]),
    )


@dataclass
class Trail:
    """The closed stages of every kept label, as a tree."""

    parent: list[IntArray] = field(default_factory=list)
    cut: list[IntArray] = field(default_factory=list)
    row: list[IntArray] = field(default_factory=list)
    size: int = 0

    def add(self, labels: Labels, cut: int) -> IntArray:
        """Store labels at a cut and return their indices."""
        self.parent.append(labels.parent)
        self.cut.append(np.full(len(labels), cut))
        self.row.append(labels.state[:, 0])
        self.size += len(labels)
        return np.arange(self.size - len(labels), self.size)

    def plan(self, problem: PartitionProblem, counts: IntArray, label: int) -> PipelinePlan:
        """Stages from the label of the first cut back to the end of the chain."""
        ends = np.cumsum([len(part) for part in self.parent])
        cuts, replicas = [], []
        while label >= 0:
            part = int(np.searchsorted(ends, label, side="right"))
            place = label - int(ends[part - 1]) if part else label
            cuts.append(int(self.cut[part][place]))
            replicas.append(int(counts[self.row[part][place]]))
            label = int(self.parent[part][place])
        assert cuts[-1] == problem.num_layers
        return PipelinePlan(cuts=tuple(cuts[:-1]), replicas=tuple(replicas))

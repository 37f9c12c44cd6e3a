"""Many plans with a split per layer, and their costs, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["CHEAPEST", "CostBatch", "PlanBatch", "concatenate"]


# Collective index that stands for "the cheapest for this message".
CHEAPEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch:
    """Many plans without stages, struct of arrays, all with the same number of micro-batches.

    ``row[n, c]`` is the split (row of the tables' SplitTable) that plan n gives to the layers of column c; ``collective[n, c]`` is
    the index of the collective for their gradients, or CHEAPEST.
    """

    row: IntArray  # (plans, columns)
    collective: IntArray  # (plans, columns)
    column_of_layer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBatch:
    """Costs of many plans; every array has shape (plans,).

    ``step_time_s`` is the sum of compute, update, resharding, exposed exchange and bubble. Illegal plans cost infinity. The
    parts are those of the slowest worker; ``computing_s`` is what a worker computes, averaged over the workers.
    """

    step_time_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    reshard_s: FloatArray
    exchange_s: FloatArray
    exposed_exchange_s: FloatArray
    bubble_s: FloatArray
    memory_bytes: FloatArray
    computing_s: FloatArray  # kernels of forward, backward and optimizer

    @property
    def compute_s(self) -> FloatArray:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def exposed_communication_s(self) -> FloatArray:
        """Time spent waiting for the network."""
        return self.reshard_s + self.exposed_exchange_s


def concatenate(parts: Sequence[CostBatch]) -> CostBatch:
    """Join batches one after the other."""
    names = CostBatch.__dataclass_fields__
    return CostBatch(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

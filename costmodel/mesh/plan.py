"""A plan over a device mesh: one degree per parallel dimension for the whole network, and the same as a struct of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["CP_KINDS", "ORDERS", "RECOMPUTE", "SCHEDULES", "MeshBatch", "MeshPlan"]

IntArray = NDArray[np.int64]

# Names of the categories; a batch holds their positions in these tuples.
SCHEDULES: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zero_bubble")
RECOMPUTE: tuple[str, ...] = ("none", "selective", "full")
CP_KINDS: tuple[str, ...] = ("ring", "all_gather", "all_to_all")
# Which dimension is numbered first (neighbouring ranks) after tp, which is always innermost: outer ones cross slower links.
ORDERS: tuple[str, ...] = (
    "tp-cp-dp-pp",
    "tp-cp-pp-dp",
    "tp-dp-cp-pp",
    "tp-dp-pp-cp",
    "tp-pp-cp-dp",
    "tp-pp-dp-cp",
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MeshPlan:
    """One choice for the whole network; the defaults are one worker that does everything.

    ``workers = tp cp pp dp_replicate dp_shard``. Experts live on the tp x cp x dp ranks of a stage, regrouped as
    etp x ep x (the rest, which replicates or shards them).
    """

    tp: int = 1  # tensor parallel degree: columns, then rows, of the matrices of a block
    sequence_parallel: bool = (
        False  # between the split matrices, tensors are cut along the positions instead of repeated
    )
    cp: int = 1  # context parallel degree: positions of every layer
    cp_kind: str = "ring"  # how attention sees the other positions, a name of CP_KINDS
    ep: int = 1  # expert parallel degree
    etp: int = 1  # tensor parallel degree inside an expert
    pp: int = 1  # pipeline stages
    vpp: int = 1  # virtual stages (chunks) per pipeline rank
    schedule: str = "1f1b"  # a name of SCHEDULES
    dp_replicate: int = 1  # replicas that keep their own copy (outer data parallelism)
    dp_shard: int = 1  # ranks that share one copy under ZeRO
    zero_stage: int = 0  # what dp_shard shares: 1 optimizer state, 2 and gradients, 3 and weights (FSDP)
    micro_batch: int = 1  # samples per micro-batch and data-parallel rank
    num_micro_batches: int = 1  # per step and data-parallel rank
    recompute: str = "none"  # a name of RECOMPUTE
    recompute_blocks: int = 0  # blocks per stage that are recomputed under "full" (all of the largest stage, or fewer)
    offload_optimizer: bool = False  # optimizer state and update on the host
    offload_activations: bool = False  # saved activations of the blocks wait on the host
    order: str = "tp-cp-dp-pp"  # a name of ORDERS
    stage_blocks: tuple[int, ...] = ()  # blocks per chunk, in network order; empty: the layout of costmodel.mesh.stages
    stage_recompute: tuple[int, ...] = ()  # blocks recomputed per chunk under "full"; empty: recompute_blocks in each

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.dp_replicate * self.dp_shard

    @property
    def workers(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def global_batch(self) -> int:
        """Samples per step."""
        return self.dp * self.micro_batch * self.num_micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBatch:
    """Many plans; every array has shape (n,) and the meaning of the `MeshPlan` field of its name.

    Categories are positions in SCHEDULES, RECOMPUTE, CP_KINDS, ORDERS; flags are 0 or 1.
    """

    tp: IntArray
    sequence_parallel: IntArray
    cp: IntArray
    cp_kind: IntArray
    ep: IntArray
    etp: IntArray
    pp: IntArray
    vpp: IntArray
    schedule: IntArray
    dp_replicate: IntArray
    dp_shard: IntArray
    zero_stage: IntArray
    micro_batch: IntArray
    num_micro_batches: IntArray
    recompute: IntArray
    recompute_blocks: IntArray
    offload_optimizer: IntArray
    offload_activations: IntArray
    order: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def from_plans(cls, plans: Sequence[MeshPlan]) -> MeshBatch:
        """Struct of arrays of plans.

        >>> MeshBatch.from_plans([MeshPlan(tp=8, schedule="gpipe")]).schedule.tolist()
        [0]
        """
        columns: dict[str, IntArray] = {}
        for item in fields(cls):
            values = [getattr(plan, item.name) for plan in plans]
            if item.name in _CATEGORIES:
                values = [_CATEGORIES[item.name].index(value) for value in values]
            columns[item.name] = np.array(values, dtype=np.int64)
        return cls(**columns)

    def plan(self, n: int) -> MeshPlan:
        """One of the plans.

        >>> MeshBatch.from_plans([MeshPlan(tp=8, cp=2)]).plan(0) == MeshPlan(tp=8, cp=2)
        True
        """
        values: dict[str, object] = {}
        for item in fields(self):
            value = int(getattr(self, item.name)[n])
            if item.name in _CATEGORIES:
                values[item.name] = _CATEGORIES[item.name][value]
            else:
                values[item.name] = bool(value) if item.name in _FLAGS else value
        return MeshPlan(**values)  # type: ignore[arg-type]

    def take(self, index: IntArray | slice) -> MeshBatch:
        """A selection of the plans."""
        return MeshBatch(**{item.name: getattr(self, item.name)[index] for item in fields(self)})

    @property
    def dp(self) -> IntArray:
        """Data-parallel ranks."""
        return self.dp_replicate * self.dp_shard

    @property
    def workers(self) -> IntArray:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp


_CATEGORIES: dict[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTE,
    "cp_kind": CP_KINDS,
    "order": ORDERS,
}
_FLAGS = frozenset({"sequence_parallel", "offload_optimizer", "offload_activations"})

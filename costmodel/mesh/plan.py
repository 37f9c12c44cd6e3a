"""A plan over a device mesh and its costs, one and as a struct of arrays.

A plan has one degree per parallel dimension for the whole network. Parts of the costs add up to the step time and to the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import DeclaredColumns, IntArray, PlanBatch, with_columns
from costmodel.fields import Figure, declared, part, setting
from costmodel.rates import COMMON_FIGURES, COST_FIGURES, TOKEN_FIGURES
from costmodel.schedules import SCHEDULES

__all__ = [
    "CP_KINDS",
    "MEASURED_MEMORY",
    "MEMORY_FIGURES",
    "MEMORY_PARTS",
    "MESH_COLUMNS",
    "MESH_FIGURES",
    "ORDERS",
    "RECOMPUTE",
    "SCHEDULES",
    "STEP_FIGURES",
    "TIME_PARTS",
    "LayerSplit",
    "MeshBatch",
    "MeshCosts",
    "MeshPlan",
]


# Names that settings of a mesh plan have; a batch of plans holds their positions in these tuples.
RECOMPUTE: tuple[str, ...] = ("none", "selective", "full")
NO_RECOMPUTE, SELECTIVE, FULL = range(3)  # their positions
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


STEP_FIGURES: tuple[Figure, ...] = (
    part("step_time_s", "compute_s", "compute", "Forward and backward pass."),
    part("step_time_s", "recompute_s", "recomputation", "Forward passes run again, their communication included."),
    part(
        "step_time_s",
        "tp_exposed_s",
        "tensor-parallel communication",
        "Tensor-parallel communication that compute does not hide.",
    ),
    part("step_time_s", "cp_exposed_s", "context-parallel communication", "The same of context parallelism."),
    part("step_time_s", "ep_exposed_s", "expert-parallel communication", "The same of expert parallelism."),
    part("step_time_s", "pp_exposed_s", "transfers between stages", "Transfers between stages."),
    part(
        "step_time_s",
        "dp_exposed_s",
        "data-parallel communication",
        "Gradient reduction and weight gathering that compute does not hide.",
    ),
    part(
        "step_time_s", "bubble_s", "pipeline bubble", "Filling, draining and imbalance of the pipeline.", kind="number"
    ),
    part("step_time_s", "optimizer_s", "optimizer", "The update."),
    part("step_time_s", "offload_s", "offload", "Transfers to and from the host that compute does not hide."),
)
MEMORY_FIGURES: tuple[Figure, ...] = (
    part("memory_bytes_per_gpu", "weight_bytes", "weights", "Weights."),
    part("memory_bytes_per_gpu", "gradient_bytes", "gradients", "Gradients."),
    part(
        "memory_bytes_per_gpu",
        "optimizer_bytes",
        "optimizer state and master weights",
        "Optimizer state and master weights.",
    ),
    part(
        "memory_bytes_per_gpu",
        "activation_bytes",
        "activations",
        "Saved for the backward pass, of all micro-batches in flight.",
    ),
    part("memory_bytes_per_gpu", "working_bytes", "working memory", "A block being recomputed, gathered weights."),
    part("memory_bytes_per_gpu", "logits_bytes", "logits", "Logits and their gradient."),
    part("memory_bytes_per_gpu", "buffer_bytes", "communication buffers", "Communication buffers."),
    part("memory_bytes_per_gpu", "slack_bytes", "allocator slack", "Lost to the allocator."),
    part("memory_bytes_per_gpu", "context_bytes", "context of the driver and libraries", "Driver and libraries."),
)
MESH_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    *TOKEN_FIGURES,
    *COST_FIGURES,
    Figure(name="host_bytes_per_gpu", doc="Offloaded to the host, of the GPU that offloads most; not in its memory."),
    Figure(
        name="host_capacity_bytes_per_gpu",
        doc="Room on the host of a node for each GPU; null where the cluster file states no host.",
        optional=True,
    ),
    Figure(
        name="host_s",
        doc="The part of `compute_s` in which GPUs wait for their hosts to start kernels and collectives.",
    ),
    Figure(
        name="domains",
        doc="Domains of fast links (nodes, NVLink racks, TPU slices) in use; null where the cluster has none.",
        kind="count",
        least=1,
        optional=True,
    ),
    Figure(
        name="gpus_per_domain",
        doc="GPUs used of each of them; the last may have fewer.",
        kind="count",
        least=1,
        optional=True,
    ),
    *STEP_FIGURES,
    *MEMORY_FIGURES,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LayerSplit:
    """How one layer of a kind of module is split over the tensor-parallel ranks, where a plan names it.

    Attributes
    ----------
    layer : str
        Full name, in the first module of its kind: equal blocks are split alike.
    role : str
        A name of `costmodel.mesh.tensor_parallel.Role`.
    degree : int
        Shares of its weights or channels, a divisor of tp; the ranks beyond hold the same once more. 1: every rank holds all.
    """

    layer: str
    role: str
    degree: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MeshPlan:
    """One choice for the whole network; the defaults are one worker that does everything.

    ``workers = tp cp pp dp_replicate dp_shard``. Experts live on the tp x cp x dp ranks of a stage, regrouped as
    etp x ep x (the rest, which replicates or shards them).
    """

    tp: int = setting(1, "Tensor parallel degree.")
    sequence_parallel: bool = setting(False, "Between the split matrices, tensors are cut along the positions.")
    cp: int = setting(1, "Context parallel degree.")
    cp_kind: str = setting("ring", "How attention sees the other positions.", of=CP_KINDS)
    ep: int = setting(1, "Expert parallel degree.")
    etp: int = setting(1, "Tensor parallel degree inside an expert.")
    pp: int = setting(1, "Pipeline stages.")
    vpp: int = setting(1, "Virtual stages (chunks) per pipeline rank.")
    schedule: str = setting("1f1b", "Order of the passes of a pipeline.", of=SCHEDULES)
    dp_replicate: int = setting(1, "Data parallel ranks that keep their own copy.")
    dp_shard: int = setting(1, "Data parallel ranks that share one copy under ZeRO.")
    zero_stage: int = setting(0, "What they share: 1 optimizer state, 2 and gradients, 3 and weights.", least=0, most=3)
    micro_batch: int = setting(1, "Samples per micro-batch and data parallel rank.", most=10**9)
    num_micro_batches: int = setting(1, "Micro-batches per step and data parallel rank.", most=10**9)
    recompute: str = setting("none", "What the backward pass computes again.", of=RECOMPUTE)
    recompute_blocks: int = setting(0, "Blocks per stage that are recomputed under `full`.", least=0)
    offload_optimizer: bool = setting(False, "Optimizer state and update on the host.")
    offload_activations: bool = setting(False, "Saved activations of the blocks wait on the host.")
    order: str = setting("tp-cp-dp-pp", "Rank order, neighbours first.", of=ORDERS)
    domain_gpus: int = setting(
        0,
        "GPUs used of every domain of fast links (NVLink rack, TPU slice); 0: the most that share them out evenly, or all.",
        least=0,
    )
    stage_blocks: tuple[int, ...] = setting((), "Blocks per chunk, in network order; empty: balanced by time.", least=0)
    stage_recompute: tuple[int, ...] = setting(
        (), "Blocks recomputed per chunk under `full`; empty: `recompute_blocks` in each.", least=0
    )
    block_splits: tuple[
        LayerSplit, ...
    ] = ()  # layers not named here are split as `costmodel.mesh.tensor_parallel` says

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


# The settings that are columns of a batch: numbers, flags and words. What differs from stage to stage or from layer to layer is none.
MESH_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(MeshPlan) if not isinstance(item.default, tuple))


@with_columns(MESH_COLUMNS)
class MeshBatch(PlanBatch[MeshPlan]):
    """Many plans; every array has shape (n,) and the meaning of the `MeshPlan` field of its name.

    Words are positions in SCHEDULES, RECOMPUTE, CP_KINDS, ORDERS; flags are 0 or 1. ``split`` holds positions in ``patterns``, the
    different ``block_splits`` of the plans; None where all plans are split as `costmodel.mesh.tensor_parallel` says.

    >>> batch = MeshBatch.from_plans([MeshPlan(tp=8, schedule="gpipe")])
    >>> batch.schedule.tolist(), batch.plan(0) == MeshPlan(tp=8, schedule="gpipe")
    ([0], True)
    """

    plan_type = MeshPlan

    split: IntArray | None = None
    patterns: tuple[tuple[LayerSplit, ...], ...] = ((),)

    @classmethod
    def from_plans(cls, plans: Sequence[MeshPlan]) -> MeshBatch:
        """Struct of arrays of plans."""
        batch = super().from_plans(plans)
        patterns = tuple(dict.fromkeys(((), *(plan.block_splits for plan in plans))))
        if len(patterns) == 1:
            return batch
        split = np.array([patterns.index(plan.block_splits) for plan in plans], dtype=np.int64)
        return replace(batch, split=split, patterns=patterns)

    def plan(self, n: int) -> MeshPlan:
        """One of the plans."""
        plan = super().plan(n)
        return plan if self.split is None else replace(plan, block_splits=self.patterns[int(self.split[n])])

    @property
    def split_columns(self) -> list[IntArray]:
        """What distinguishes plans besides `MESH_COLUMNS`: nothing, or which of the patterns they have."""
        return [] if self.split is None else [self.split]

    @property
    def dp(self) -> IntArray:
        """Data-parallel ranks."""
        return self.dp_replicate * self.dp_shard

    @property
    def workers(self) -> IntArray:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp


# DeclaredColumns of MeshCosts that add up to step_time_s, in the order of reports, and to memory_bytes.
TIME_PARTS: tuple[str, ...] = tuple(figure.name for figure in STEP_FIGURES)
MEMORY_PARTS: tuple[str, ...] = tuple(figure.name for figure in MEMORY_FIGURES)
# What a figure of measured memory counts: tensors (PyTorch's max_memory_allocated), what its allocator holds besides (max_memory_reserved),
# or all that is gone from the device (nvidia-smi). Whether a plan fits is decided by the last.
MEASURED_MEMORY: Mapping[str, tuple[str, ...]] = {
    "allocated": tuple(name for name in MEMORY_PARTS if name not in ("slack_bytes", "context_bytes")),
    "reserved": tuple(name for name in MEMORY_PARTS if name != "context_bytes"),
    "used": MEMORY_PARTS,
}


@with_columns(("step_time_s", *TIME_PARTS, "host_s", "memory_bytes", *MEMORY_PARTS, "host_bytes"))
class MeshCosts(DeclaredColumns[np.float64]):
    """Costs of many mesh plans; every array has shape (n,) and the meaning of the figure of its name in `MESH_FIGURES`.

    Times are of one step on the stage that decides it; memory, as that on the host, is of a device of the stage that needs most.
    """

    stage: IntArray  # chunk of the network whose rank needs most memory

"""What a mesh plan costs: parts that add up to the step, and what fills the memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from costmodel.arrays import FloatArray, IntArray

__all__ = ["MEMORY_PARTS", "TIME_PARTS", "MeshCosts"]


# Fields of MeshCosts that add up to step_time_s, in the order of reports.
TIME_PARTS: tuple[str, ...] = (
    "compute_s",
    "recompute_s",
    "tp_exposed_s",
    "cp_exposed_s",
    "ep_exposed_s",
    "pp_exposed_s",
    "dp_exposed_s",
    "bubble_s",
    "optimizer_s",
    "offload_s",
)
# Fields that add up to memory_bytes.
MEMORY_PARTS: tuple[str, ...] = (
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "working_bytes",
    "logits_bytes",
    "buffer_bytes",
    "slack_bytes",
    "context_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCosts:
    """Costs of many mesh plans; every array has shape (n,). Times are of one step on the stage that decides it."""

    step_time_s: FloatArray
    compute_s: FloatArray  # forward and backward of the layers
    host_s: FloatArray  # the part of compute_s in which the device waits for its host to start kernels and collectives
    recompute_s: FloatArray  # forward passes run again, their communication included
    tp_exposed_s: FloatArray  # tensor-parallel communication not hidden
    cp_exposed_s: FloatArray
    ep_exposed_s: FloatArray
    pp_exposed_s: FloatArray  # transfers between stages
    dp_exposed_s: FloatArray  # gradient reduction and weight gathering not hidden
    bubble_s: FloatArray  # pipeline fill, drain and imbalance
    optimizer_s: FloatArray
    offload_s: FloatArray  # host transfers not hidden
    memory_bytes: FloatArray  # of the stage that needs most, per device
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray  # state and master weights
    activation_bytes: FloatArray  # saved for the backward pass, all micro-batches in flight
    working_bytes: FloatArray  # a block being recomputed, gathered weights
    logits_bytes: FloatArray
    buffer_bytes: FloatArray  # communication
    slack_bytes: FloatArray  # allocator
    context_bytes: FloatArray
    host_bytes: FloatArray  # offloaded, per device; not in memory_bytes
    stage: IntArray  # chunk of the network whose rank needs most memory

    def take(self, index: IntArray | slice) -> MeshCosts:
        """A selection of the plans."""
        return MeshCosts(**{item.name: getattr(self, item.name)[index] for item in fields(self)})

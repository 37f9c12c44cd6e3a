"""The figures of a plan over a device mesh, declared once: parts of the step, parts of the memory, rates."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.fields import Figure, declared
from costmodel.rates import COMMON_FIGURES, COST_FIGURES, TOKEN_FIGURES

__all__ = ["MEMORY_FIGURES", "MESH_FIGURES", "STEP_FIGURES"]


def _time(name: str, label: str, doc: str, kind: str = "amount") -> Figure:
    return Figure(
        name=name, label=label, doc=doc, part_of="step_time_s", kind="number" if kind == "number" else "amount"
    )


def _memory(name: str, label: str, doc: str) -> Figure:
    return Figure(name=name, label=label, doc=doc, part_of="memory_bytes_per_gpu")


STEP_FIGURES: tuple[Figure, ...] = (
    _time("compute_s", "compute", "Forward and backward pass."),
    _time("recompute_s", "recomputation", "Forward passes run again, their communication included."),
    _time("tp_exposed_s", "tensor-parallel communication", "Tensor-parallel communication that compute does not hide."),
    _time("cp_exposed_s", "context-parallel communication", "The same of context parallelism."),
    _time("ep_exposed_s", "expert-parallel communication", "The same of expert parallelism."),
    _time("pp_exposed_s", "transfers between stages", "Transfers between stages."),
    _time(
        "dp_exposed_s",
        "data-parallel communication",
        "Gradient reduction and weight gathering that compute does not hide.",
    ),
    _time("bubble_s", "pipeline bubble", "Filling, draining and imbalance of the pipeline.", kind="number"),
    _time("optimizer_s", "optimizer", "The update."),
    _time("offload_s", "offload", "Transfers to and from the host that compute does not hide."),
)
MEMORY_FIGURES: tuple[Figure, ...] = (
    _memory("weight_bytes", "weights", "Weights."),
    _memory("gradient_bytes", "gradients", "Gradients."),
    _memory("optimizer_bytes", "optimizer state and master weights", "Optimizer state and master weights."),
    _memory("activation_bytes", "activations", "Saved for the backward pass, of all micro-batches in flight."),
    _memory("working_bytes", "working memory", "A block being recomputed, gathered weights."),
    _memory("logits_bytes", "logits", "Logits and their gradient."),
    _memory("buffer_bytes", "communication buffers", "Communication buffers."),
    _memory("slack_bytes", "allocator slack", "Lost to the allocator."),
    _memory("context_bytes", "context of the driver and libraries", "Driver and libraries."),
)
MESH_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    *TOKEN_FIGURES,
    *COST_FIGURES,
    Figure(name="host_bytes_per_gpu", doc="Offloaded to the host; not in the memory of the GPU."),
    Figure(
        name="host_capacity_bytes_per_gpu",
        doc="Room on the host of a node for each GPU; null where the cluster file states no host.",
        optional=True,
    ),
    Figure(
        name="host_s",
        doc="The part of `compute_s` in which GPUs wait for their hosts to start kernels and collectives.",
    ),
    *STEP_FIGURES,
    *MEMORY_FIGURES,
)

"""What is computed, and how it is costed: network, batch, number formats, preset."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.framework import NO_FRAMEWORK, WELL_TUNED, Framework, LayerAssumptions
from costmodel.kernels.roofline import ComputeModel
from costmodel.network.graph import Graph
from costmodel.precision import Optimizer, Precision

# Assumption: memory taken by the driver context, library handles and the communication library before any tensor is placed.
# About 300-500 MB on NVIDIA GPUs (PyTorch documentation, CUDA semantics: "the CUDA context takes several hundred MB").
CONTEXT_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network at a global batch, with everything that changes its cost except the cluster's links."""

    graph: Graph
    global_batch: int
    precision: Precision
    optimizer: Optimizer
    compute: ComputeModel
    training: bool = True
    # All-reduce algorithms that an exchange may use, in order of preference among equals.
    collectives: tuple[str, ...] = ("ring",)
    context_bytes: int = field(default=CONTEXT_BYTES)
    framework: Framework = NO_FRAMEWORK
    assumptions: LayerAssumptions = WELL_TUNED  # of plans with a split per layer

    @property
    def gradient_bytes(self) -> float:
        """Per weight, of the gradients that plans with a split per layer keep and exchange: those of the framework, else of the format."""
        return max(float(self.precision.gradient_bytes), self.framework.defaults.gradient_bytes or 0.0)

    def micro_batch(self, num_micro_batches: int) -> int:
        """Samples of one micro-batch over all workers: the largest share when it does not divide."""
        return -(-self.global_batch // num_micro_batches)

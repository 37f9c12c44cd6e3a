"""Questions about plans with a split per layer: any that no other space takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from costmodel.framework import LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import divisors
from planner.core.errors import UsageError
from planner.core.objectives import check_layer_objective
from planner.core.request import Request
from planner.question.choose import Asked, Kind

if TYPE_CHECKING:
    from planner.schema.plan import PlanDocument


class LayersKind(Kind):
    """Everything else: any network can have a split for every layer."""

    assumed: ClassVar[type] = LayerAssumptions
    assumed_words: ClassVar[str] = f"theirs are {', '.join(LayerAssumptions.__dataclass_fields__)}"

    def applies(self, asked: Asked) -> bool:
        return True

    def why(self, asked: Asked) -> str | None:
        if self.is_named(asked.request) or not asked.is_mesh_by_itself:
            return None
        from costmodel.mesh.modules import mesh_fault  # networks without blocks do without

        return f"a split per layer, not a device mesh: {mesh_fault(asked.graph)}"

    def asked_by(self, document: PlanDocument) -> dict[str, Any]:
        return {**Kind.asked_by(self, document), "micro_batches": document.num_micro_batches}

    def check_objective(self, request: Request, cluster: Cluster, *, reads_tokens: bool) -> None:
        check_layer_objective(request.objective, cluster.device, reads_tokens=reads_tokens)

    def check_batch(self, request: Request, global_batch: int) -> None:
        wanted = request.micro_batches
        if wanted is None:
            return
        if not 1 <= wanted <= global_batch:
            raise UsageError(f"--micro-batches must be between 1 and the global batch ({global_batch})")
        if global_batch % wanted:
            near = sorted(divisors(global_batch), key=lambda m: (abs(m - wanted), m))[:3]
            raise UsageError(
                f"--micro-batches {wanted} does not divide the global batch {global_batch}; "
                f"near it are {', '.join(map(str, sorted(near)))}"
            )

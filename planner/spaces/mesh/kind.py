"""Questions about plans over a device mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from planner.core.errors import UsageError
from planner.question.choose import Asked, Kind
from planner.question.fixed import near_multiples

if TYPE_CHECKING:
    from planner.schema.plan import PlanDocument


class MeshKind(Kind):
    """A transformer with repeated blocks that is trained, unless an option is given that only a split per layer knows."""

    has_objectives: ClassVar[bool] = True
    scaled_family: ClassVar[str] = "mesh"

    def applies(self, asked: Asked) -> bool:
        request, of_layers, of_mesh = asked.request, asked.of_layers, asked.of_mesh
        if of_layers and of_mesh:
            raise UsageError(
                f"{of_mesh[0]} is for plans over a device mesh and {of_layers[0]} for plans with a split per layer; leave one of them out"
            )
        if request.space == "layers":
            if of_mesh:
                raise UsageError(f"--space layers: {of_mesh[0]} is for plans over a device mesh (--space mesh)")
            return False
        if not of_mesh and not self.is_named(request):
            if not asked.is_mesh_by_itself:
                return False
            from costmodel.mesh.modules import mesh_fault  # networks without blocks do without

            return mesh_fault(asked.graph) is None
        option = "--space mesh" if self.is_named(request) else of_mesh[0]
        if of_layers:
            raise UsageError(f"{option}: {of_layers[0]} is for plans with a split per layer (--space layers)")
        if not asked.has_blocks:
            raise UsageError(
                f"{option}: network '{asked.graph.name}' has no repeated blocks with attention or experts to lay over a mesh"
            )
        if request.mode != "training":
            raise UsageError(
                f"{option}: plans over a device mesh are for training; --mode {request.mode} has --space layers"
            )
        return True

    def with_batch(self, document: PlanDocument, batch: int) -> PlanDocument:
        """The same degrees with more or fewer micro-batches."""
        mesh: Any = document.mesh
        unit = mesh.dp_replicate * mesh.dp_shard * mesh.micro_batch
        if batch % unit:
            near = near_multiples(batch, unit)
            raise UsageError(f"--batch {batch}: the plan takes multiples of dp x micro-batch = {unit}; use {near}")
        again = mesh.model_copy(update={"num_micro_batches": batch // unit})
        return document.model_copy(update={"global_batch": batch, "mesh": again})

"""Mesh plans to documents and back: what a plan file says must agree with itself, with its network and with the rules of the space."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import LayerSplit, MeshPlan
from planner.core.errors import FileProblem, InputFileError
from planner.files.plan_file import plan_problem

if TYPE_CHECKING:
    from planner.files.documents import Document
    from planner.schema.plan import MeshEntry, PlanDocument
    from planner.spaces.mesh.space import MeshPlanSpace

__all__ = ["mesh_plan_from_document", "plan_of_entry"]

# Fields that are empty unless the stages differ from the uniform layout, or layers are split in another way than the standard one.
_PER_STAGE = ("stage_blocks", "stage_recompute", "block_splits")
_FIELDS = tuple(field.name for field in fields(MeshPlan))


def plan_of_entry(entry: MeshEntry) -> MeshPlan:
    """Read the section ``mesh`` of a plan file."""
    values = {name: getattr(entry, name) for name in _FIELDS}
    splits = [LayerSplit(layer=name, role=s.role, degree=s.degree) for name, s in entry.block_splits.items()]
    return MeshPlan(**{**values, "block_splits": tuple(splits)})


def mesh_plan_from_document(document: PlanDocument, space: MeshPlanSpace, source: Document | None = None) -> MeshPlan:
    """Check a plan document against itself, its network and the rules of the space.

    Parameters
    ----------
    document : PlanDocument
        With a section ``mesh``.
    space : MeshPlanSpace
        Of the question that the document asks.
    source : Document, optional
        The file, for line and column.

    Raises
    ------
    InputFileError
        Everything that contradicts.
    """
    entry = document.mesh
    assert entry is not None
    plan = plan_of_entry(entry)
    problems: list[FileProblem] = []

    def note(location: tuple[str, ...], message: str) -> None:
        problems.append(plan_problem(source, location, message))

    degrees = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "dp_replicate", "dp_shard")}
    words = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "no degree above 1"
    if plan.workers != document.workers:
        note(("workers",), f"is {document.workers}, but the mesh has {words} = {plan.workers}")
    if document.workers > document.gpus:
        note(("workers",), f"is {document.workers}, more than the {document.gpus} gpus")
    batch = space.resolved.workload.global_batch
    if plan.global_batch != batch:
        samples = f"dp {plan.dp} x micro_batch {plan.micro_batch} x num_micro_batches {plan.num_micro_batches}"
        note(("mesh", "num_micro_batches"), f"{samples} = {plan.global_batch} samples, but the global batch is {batch}")
    if not problems:
        for message in space.broken(plan):
            word = message.split(" ", 1)[0].replace("-", "_")
            note(("mesh", word) if word in _FIELDS else ("mesh",), message)
    if not problems:
        try:
            space.costs([plan])
        except MeshError as error:
            for message in str(error).split("\n"):
                known = [name for name in _PER_STAGE if message.startswith(name)]
                note(
                    ("mesh", known[0] if known else "stage_blocks" if plan.stage_blocks else "stage_recompute"), message
                )
    if problems:
        raise InputFileError(problems)
    return plan

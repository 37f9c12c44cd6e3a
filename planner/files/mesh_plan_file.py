"""Mesh plans to documents and back: what a plan file says must agree with itself, with its network and with the rules of the space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import LayerSplit, MeshPlan
from planner.core.errors import FileProblem, InputFileError
from planner.core.request import Request
from planner.core.results import Setting
from planner.files.plan_file import finished, plan_problem, prediction, provenance, question_head
from planner.spaces.mesh.results import MeshResult, RankedMeshPlan

if TYPE_CHECKING:
    from planner.files.documents import Document
    from planner.schema.mesh import MeshEntry
    from planner.schema.plan import PlanDocument
    from planner.spaces.mesh.judge import MeshJudge

__all__ = ["document_from_mesh_plan", "mesh_entry", "mesh_plan_from_document", "plan_of_entry"]

# Fields that are empty unless the stages differ from the uniform layout, or layers are split in another way than the standard one.
_PER_STAGE = ("stage_blocks", "stage_recompute", "block_splits")
_FIELDS = tuple(field.name for field in fields(MeshPlan))


def mesh_entry(plan: MeshPlan) -> dict[str, Any]:
    """Write a plan as the section ``mesh`` of a plan file; every field is there, so that defaults may change.

    >>> mesh_entry(MeshPlan(tp=8))["tp"], MeshPlan(**mesh_entry(MeshPlan(tp=8))) == MeshPlan(tp=8)
    (8, True)
    """
    entry = {name: getattr(plan, name) for name in _FIELDS if name not in _PER_STAGE or getattr(plan, name)}
    if plan.block_splits:
        entry["block_splits"] = {s.layer: {"role": s.role, "degree": s.degree} for s in plan.block_splits}
    return entry


def plan_of_entry(entry: MeshEntry) -> MeshPlan:
    """Read the section ``mesh`` of a plan file."""
    values = {name: getattr(entry, name) for name in _FIELDS}
    splits = [LayerSplit(layer=name, role=s.role, degree=s.degree) for name, s in entry.block_splits.items()]
    return MeshPlan(**{**values, "block_splits": tuple(splits)})


def document_from_mesh_plan(
    ranked: RankedMeshPlan,
    *,
    request: Request,
    setting: Setting,
    result: MeshResult | None = None,
    assumptions: Sequence[str] = (),
    folder: Path | None = None,
) -> dict[str, Any]:
    """Write a plan as plain values, in the order of a plan file.

    Parameters
    ----------
    ranked : RankedMeshPlan
    request : Request
        The question; names and paths are taken from it.
    setting : Setting
        What the question was resolved to.
    result : MeshResult, optional
        The search that the plan came from; adds the proof.
    assumptions : sequence of str
    folder : Path, optional
        Where the file will be: relative paths in it start there.

    Returns
    -------
    dict
        A valid ``planner.schema.plan.PlanDocument``; entries that say nothing are left out.
    """
    document: dict[str, Any] = {
        **question_head(request, setting, folder),
        "workers": ranked.workers,
        "mesh": mesh_entry(ranked.plan),
        "assume": dict(request.assume),
        "prediction": prediction(ranked),
        "provenance": provenance(setting, assumptions),
    }
    # The proof is about the uniform space: it says nothing about a plan with stages or splits of its own.
    is_uniform = not (ranked.plan.stage_blocks or ranked.plan.block_splits)
    return finished(document, ranked.rank, result if is_uniform else None)


def mesh_plan_from_document(document: PlanDocument, judge: MeshJudge, source: Document | None = None) -> MeshPlan:
    """Check a plan document against itself, its network and the rules of the space.

    Parameters
    ----------
    document : PlanDocument
        With a section ``mesh``.
    judge : MeshJudge
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
    batch = judge.resolved.workload.global_batch
    if plan.global_batch != batch:
        samples = f"dp {plan.dp} x micro_batch {plan.micro_batch} x num_micro_batches {plan.num_micro_batches}"
        note(("mesh", "num_micro_batches"), f"{samples} = {plan.global_batch} samples, but the global batch is {batch}")
    if not problems:
        for message in judge.broken(plan):
            word = message.split(" ", 1)[0].replace("-", "_")
            note(("mesh", word) if word in _FIELDS else ("mesh",), message)
    if not problems:
        try:
            judge.costs([plan])
        except MeshError as error:
            for message in str(error).split("\n"):
                known = [name for name in _PER_STAGE if message.startswith(name)]
                note(
                    ("mesh", known[0] if known else "stage_blocks" if plan.stage_blocks else "stage_recompute"), message
                )
    if problems:
        raise InputFileError(problems)
    return plan

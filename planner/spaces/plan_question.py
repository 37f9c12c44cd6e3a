"""A plan file as a question: what it asks with what is changed of it, its plan checked against its network, and what no longer holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.tolerances import EQUAL
from planner.core.errors import UsageError
from planner.core.request import SPACES, Request
from planner.importers.networks import load_model
from planner.question.choose import kind_of
from planner.question.resolve import resolve
from planner.spaces.base import space_of

if TYPE_CHECKING:
    from planner.core.answer import Estimate
    from planner.files.loading import Loaded
    from planner.schema.plan import MeshEntry, PlanDocument

__all__ = ["plan_question", "plan_warnings"]

# Times that a plan file states of its prediction.
_STATED = {"step_time_s": "step", "ttft_s": "time to first token", "tpot_s": "time per token"}


def plan_question(
    loaded: Loaded[PlanDocument], path: Path, changes: Mapping[str, Any], command_line: str = ""
) -> tuple[PlanDocument, Request, Any]:
    """Ask what a plan of any space answered.

    Parameters
    ----------
    loaded : Loaded
        A plan file.
    path : Path
        Of it: its relative paths start there.
    changes : mapping
        Fields of Request that are asked otherwise.
    command_line : str
        For the provenance of what is exported.

    Returns
    -------
    (PlanDocument, Request, plan)
        Where something is changed, the document has no prediction: it answered another question. Nor does it say what files it was made
        with that others stand in for.

    Raises
    ------
    PlannerError
        Everything in the file that contradicts itself, its network or what is changed.
    """
    from planner.files.plan_file import request_from_document
    from planner.schema.plan import Prediction

    document = loaded.content
    asked = request_from_document(document, path.resolve().parent)
    kind = kind_of(next(name for name in SPACES if getattr(document, name)))
    request = dataclasses.replace(
        asked, command_line=command_line, space=kind.choice, changed=tuple(changes), **changes
    )
    if changes:
        others = {name for name, value in changes.items() if value != getattr(asked, name)}
        others |= {"device"} if "cluster" in others and request.device is None else set()
        inputs = {role: sha256 for role, sha256 in document.provenance.inputs.items() if role not in others}
        provenance = document.provenance.model_copy(update={"inputs": inputs})
        document = document.model_copy(update={"prediction": Prediction(), "provenance": provenance})
    if "model" in changes and "seq" not in changes:
        try:
            load_model(request.model, seq=asked.seq, assume_free=request.assume_free)
        except UsageError:
            raise UsageError(
                f"{request.model}: the plan is of another network, {document.model}, which reads {asked.seq:,} positions"
            ) from None
    if "batch" in changes and document.mixed is not None and request.batch != document.global_batch:
        raise UsageError("--batch: the plan divides its own batch among its pipelines; search again at another one")
    if "batch" in changes and document.serving is None:
        document = document.model_copy(update={"global_batch": request.batch, "mesh": _with_batch(document, request)})
    if document.serving is not None and request.mode != "inference":
        raise UsageError(f"--mode {request.mode}: the plan is for inference")
    resolved = resolve(request)
    kind.check_plan_of(resolved.space, resolved.cluster)
    return document, request, space_of(resolved).plan_of(document, loaded.document)


def _with_batch(document: PlanDocument, request: Request) -> MeshEntry | None:
    """The same degrees at another batch: more or fewer micro-batches."""
    mesh = document.mesh
    if mesh is None or request.batch is None:
        return mesh
    unit = mesh.dp_replicate * mesh.dp_shard * mesh.micro_batch
    if request.batch % unit:
        from planner.question.fixed import near_multiples

        near = near_multiples(request.batch, unit)
        raise UsageError(f"--batch {request.batch}: the plan takes multiples of dp x micro-batch = {unit}; use {near}")
    return mesh.model_copy(update={"num_micro_batches": request.batch // unit})


def plan_warnings(document: PlanDocument, estimate: Estimate) -> list[str]:
    """What a plan file states that no longer holds: its inputs, its prediction."""
    from planner.files.plan_file import changed_inputs

    times = [
        (word, getattr(document.prediction, name, None), estimate.ranked.get(name)) for name, word in _STATED.items()
    ]
    return changed_inputs(document, estimate.setting) or [
        f"the plan file states a {word} of {stated:.6g} s; it takes {now:.6g} s"
        for word, stated, now in times
        if stated is not None and now is not None and abs(stated - now) > EQUAL * now
    ]

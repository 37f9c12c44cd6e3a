"""A plan file as a question: what it asks with what is changed of it, its plan checked against its network, and what no longer holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.tolerances import EQUAL
from planner.core.errors import UsageError
from planner.core.request import Request, SpaceChoice

if TYPE_CHECKING:
    from costmodel.layerwise.plan import Plan
    from costmodel.mesh.plan import MeshPlan
    from costmodel.mixed.plan import MixedPlan
    from planner.core.results import Breakdown, Setting
    from planner.files.loading import Loaded
    from planner.schema.mesh import MeshEntry
    from planner.schema.plan import PlanDocument
    from planner.spaces.mesh.results import MeshBreakdown
    from planner.spaces.mixed.results import MixedBreakdown
    from planner.spaces.serving.request import ServingRequest
    from planner.spaces.serving.results import ServingEstimate

__all__ = ["DECIDED_BY_PLAN", "OVERRIDES", "plan_question", "plan_warnings", "serving_prediction"]

# What a plan file decides itself; giving it twice would leave open which one counts.
DECIDED_BY_PLAN = ("gpus", "space", "family", "fix", "collective", "micro_batches", "lora_rank")
# What may be given beside a plan file, to ask "and on that cluster?".
OVERRIDES = (
    "cluster",
    "device",
    "batch",
    "seq",
    "assume_free",
    "precision",
    "optimizer",
    "mode",
    "memory_limit",
    "memory_reserve",
    "cost_model",
    "ppp_comp",
    "ppp_comm",
    "paleo_pipeline",
    "paleo_algorithms",
    "paleo_extensions",
    "assume",
    "calibration",
    "framework",
    "objective",
    "price_per_hour",
    "power_w",
)


def plan_question(
    loaded: Loaded[PlanDocument], path: Path, changes: Mapping[str, Any], command_line: str = ""
) -> tuple[PlanDocument, Request, Plan | MeshPlan | MixedPlan]:
    """Ask what a plan of training, or with a split per layer, answered.

    Parameters
    ----------
    loaded : Loaded
        A plan file without a section ``serving``.
    path : Path
        Of it: its relative paths start there.
    changes : mapping
        Fields of Request that are asked otherwise.
    command_line : str
        For the provenance of what is exported.

    Returns
    -------
    (PlanDocument, Request, plan)
        Where something is changed, the document has no prediction: it answered another question.

    Raises
    ------
    PlannerError
        Everything in the file that contradicts itself, its network or what is changed.
    """
    from planner.files.plan_file import request_from_document
    from planner.schema.plan import Prediction

    document = loaded.content
    asked = request_from_document(document, path.resolve().parent)
    spaces: dict[str, SpaceChoice] = {"mesh": "mesh", "mixed": "auto", "layers": "layers"}
    space = next(space for section, space in spaces.items() if getattr(document, section))
    request = dataclasses.replace(asked, command_line=command_line, space=space, **changes)
    if changes:
        document = document.model_copy(update={"prediction": Prediction()})
    if "batch" in changes and document.mixed is not None and request.batch != document.global_batch:
        raise UsageError("--batch: the plan divides its own batch among its pipelines; search again at another one")
    if "batch" in changes:
        document = document.model_copy(update={"global_batch": request.batch, "mesh": _with_batch(document, request)})
    return document, request, _plan(document, request, loaded)


def _with_batch(document: PlanDocument, request: Request) -> MeshEntry | None:
    """The same degrees at another batch: more or fewer micro-batches."""
    mesh = document.mesh
    if mesh is None or request.batch is None:
        return mesh
    unit = mesh.dp_replicate * mesh.dp_shard * mesh.micro_batch
    if request.batch % unit:
        from planner.spaces.mesh.near import near_multiples

        near = near_multiples(request.batch, unit)
        raise UsageError(f"--batch {request.batch}: the plan takes multiples of dp x micro-batch = {unit}; use {near}")
    return mesh.model_copy(update={"num_micro_batches": request.batch // unit})


def _plan(document: PlanDocument, request: Request, loaded: Loaded[PlanDocument]) -> Plan | MeshPlan | MixedPlan:
    """Check the plan against its network."""
    if document.mixed is not None:
        from planner.spaces.mixed.commands import plan_of_document

        return plan_of_document(document, request, loaded.document)
    if document.mesh is None:
        from planner.files.loading import load_model
        from planner.files.plan_check import plan_from_document

        return plan_from_document(
            document, load_model(request.model, seq=request.seq, assume_free=request.assume_free).graph, loaded.document
        )
    from planner.files.mesh_plan_file import mesh_plan_from_document
    from planner.resolve import resolve
    from planner.spaces.mesh.judge import make_judge

    return mesh_plan_from_document(document, make_judge(resolve(request)), loaded.document)


def plan_warnings(document: PlanDocument | None, breakdown: Breakdown | MeshBreakdown | MixedBreakdown) -> list[str]:
    """What a plan file states that no longer holds: its inputs, its prediction."""
    if document is None:
        return []
    warnings = _changed_files(document, breakdown.setting)
    stated, now = document.prediction.step_time_s, breakdown.ranked.step_time_s
    if not warnings and stated is not None and abs(stated - now) > EQUAL * now:
        warnings.append(f"the plan file states a step of {stated:.6g} s; it takes {now:.6g} s")
    return warnings


def _changed_files(document: PlanDocument, setting: Setting) -> list[str]:
    from planner.files.plan_file import changed_inputs

    return [
        f"the {role} file is not the one that the plan was made with (its sha256 differs)"
        for role in changed_inputs(document, setting)
    ]


def serving_prediction(
    loaded: Loaded[PlanDocument],
    base: Request,
    changes: Mapping[str, Any],
    ask: Any,
    *,
    is_changed: bool,
) -> tuple[ServingRequest, ServingEstimate, list[str]]:
    """Predict or explain the way to serve of a plan file.

    Parameters
    ----------
    loaded : Loaded
        A plan file with a section ``serving``.
    base : Request
        Its question, with what is changed of it.
    changes : mapping
        Fields of ServingRequest that are asked otherwise.
    ask : callable
        `planner.spaces.serving.search.estimate_serving`, or one that explains; takes the question and the plan.
    is_changed : bool
        Whether ``base`` is another question than the file's, so that the file's prediction is not compared.

    Returns
    -------
    (ServingRequest, ServingEstimate, list of str)
        The question, the answer, and warnings.
    """
    from planner.files.serving_plan_file import (
        serving_plan_from_document,
        serving_request_from_document,
        stated_differently,
    )
    from planner.spaces.serving.judge import make_serving_judge

    request = dataclasses.replace(serving_request_from_document(loaded.content, base), **changes)
    plan = serving_plan_from_document(loaded.content, make_serving_judge(request), loaded.document)
    estimate: ServingEstimate = ask(request, plan)
    warnings = _changed_files(loaded.content, estimate.setting)
    if not (warnings or is_changed or changes):
        warnings = stated_differently(loaded.content, estimate.ranked, EQUAL)
    return request, estimate, warnings

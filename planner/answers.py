"""An answer of any space as a report and as a plan file: what the commands and Python programs share.

A *search* answers ``optimize``, a *prediction* ``estimate`` and ``explain``; the four spaces (splits per layer, a mesh, several groups of
devices, serving) have types of their own for both. Modules of a space are imported when an answer is of that space.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from planner.core.request import Request

if TYPE_CHECKING:
    from planner.core.results import Breakdown, RankedPlan, SearchResult
    from planner.report.blocks import Report
    from planner.spaces.mesh.results import MeshBreakdown, MeshResult, RankedMeshPlan
    from planner.spaces.mixed.results import MixedBreakdown, MixedResult, RankedMixedPlan
    from planner.spaces.serving.request import ServingRequest
    from planner.spaces.serving.results import RankedServingPlan, ServingEstimate, ServingResult

    Search: TypeAlias = SearchResult | MeshResult | MixedResult
    Prediction: TypeAlias = Breakdown | MeshBreakdown | MixedBreakdown
    Served: TypeAlias = ServingResult | ServingEstimate
    Ranked: TypeAlias = RankedPlan | RankedMeshPlan | RankedMixedPlan

__all__ = [
    "best_of",
    "plan_document_of",
    "prediction_plan_document",
    "prediction_report",
    "search_report_of",
    "serving_document_of",
]


def best_of(result: Search) -> Ranked:
    """What to run: the first plan, or the refined one where there is one."""
    from planner.spaces.mesh.results import MeshResult

    return result.best if isinstance(result, MeshResult) else result.plans[0]


def plan_document_of(
    request: Request, result: Search, ranked: Ranked | None = None, *, folder: Path | None = None
) -> dict[str, Any]:
    """Plan file of one plan of a search; of the best one where none is named.

    Parameters
    ----------
    request : Request
    result : SearchResult, MeshResult or MixedResult
    ranked : ranked plan, optional
        One of the result's.
    folder : Path, optional
        Where the file will be: relative paths in it start there.
    """
    chosen: Any = best_of(result) if ranked is None else ranked
    from planner.core.results import SearchResult
    from planner.spaces.mesh.results import MeshResult

    if isinstance(result, SearchResult):
        from planner.report.documents import plan_document

        return plan_document(request, result, chosen, folder=folder)
    if isinstance(result, MeshResult):
        from planner.report.mesh_documents import mesh_plan_document

        return mesh_plan_document(request, result, chosen, folder=folder)
    from planner.spaces.mixed.documents import mixed_plan_document

    return mixed_plan_document(request, result, chosen, folder=folder)


def prediction_plan_document(request: Request, breakdown: Prediction, folder: Path | None = None) -> dict[str, Any]:
    """Plan file of a predicted plan."""
    from planner.core.results import Breakdown
    from planner.report.documents import assumption_text
    from planner.spaces.mixed.results import MixedBreakdown

    if isinstance(breakdown, MixedBreakdown):
        from planner.spaces.mixed.documents import mixed_plan_document

        return mixed_plan_document(request, breakdown, folder=folder)
    assumptions = [assumption_text(assumption) for assumption in breakdown.assumptions]
    if isinstance(breakdown, Breakdown):
        from planner.files.plan_file import document_from_plan

        return document_from_plan(
            breakdown.ranked,
            layer_names=[layer.name for layer in breakdown.layers],
            request=request,
            setting=breakdown.setting,
            assumptions=assumptions,
            folder=folder,
        )
    from planner.files.mesh_plan_file import document_from_mesh_plan

    return document_from_mesh_plan(
        breakdown.ranked, request=request, setting=breakdown.setting, assumptions=assumptions, folder=folder
    )


def serving_document_of(
    request: ServingRequest, answer: Served, ranked: RankedServingPlan, *, folder: Path | None = None
) -> dict[str, Any]:
    """Plan file of a way to serve."""
    from planner.files.serving_plan_file import document_from_serving_plan
    from planner.report.documents import assumption_text

    assumptions = [assumption_text(assumption) for assumption in answer.assumptions]
    return document_from_serving_plan(answer, ranked, request=request, assumptions=assumptions, folder=folder)


def search_report_of(request: Request, result: Search) -> Report:
    """Ranked plans in every form."""
    from planner.core.results import SearchResult

    if isinstance(result, SearchResult):
        from planner.report.optimize import search_report

        return search_report(request, result)
    from planner.spaces.mesh.results import MeshResult

    if isinstance(result, MeshResult):
        from planner.report.mesh import mesh_search_report

        return mesh_search_report(result)
    from planner.spaces.mixed.report import mixed_search_report

    return mixed_search_report(result)


def prediction_report(
    request: Request, breakdown: Prediction, warnings: Sequence[str], command: Literal["estimate", "explain"]
) -> Report:
    """One plan in every form."""
    from planner.core.results import Breakdown
    from planner.spaces.mixed.results import MixedBreakdown

    if isinstance(breakdown, MixedBreakdown):
        if command == "explain":
            from planner.spaces.mixed.explain_report import mixed_explain_report

            return mixed_explain_report(breakdown, warnings)
        from planner.spaces.mixed.report import mixed_estimate_report

        return mixed_estimate_report(breakdown, warnings)
    if isinstance(breakdown, Breakdown):
        from planner.report.explain import estimate_report, explain_report

        report = estimate_report if command == "estimate" else explain_report
        return report(breakdown, functools.partial(prediction_plan_document, request, breakdown), warnings)
    from planner.report.mesh import mesh_estimate_report, mesh_explain_report

    return (mesh_estimate_report if command == "estimate" else mesh_explain_report)(breakdown, warnings)

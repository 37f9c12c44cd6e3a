"""What the commands ask about plan files with a section ``mixed``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.core.errors import UsageError
from planner.core.request import Request
from planner.resolve import resolve
from planner.spaces.mixed.judge import make_mixed_judge
from planner.spaces.mixed.plan_file import mixed_plan_from_document

if TYPE_CHECKING:
    from costmodel.mixed.plan import MixedPlan
    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument

__all__ = ["plan_of_document"]


def plan_of_document(document: PlanDocument, request: Request, source: Document) -> MixedPlan:
    """Check the plan of a file against the network and the cluster that a question names.

    Raises
    ------
    PlannerError
        A cluster of one kind of device, options that such plans do not know, everything in the file that contradicts.
    """
    resolved = resolve(request)
    if resolved.space != "mixed":
        raise UsageError(
            f"the plan is for several groups of devices, and cluster '{resolved.cluster.name}' has one; name one with groups by --cluster"
        )
    return mixed_plan_from_document(document, make_mixed_judge(resolved), source)

"""What a search raises when the user stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from planner.errors import ExitCode, PlannerError

if TYPE_CHECKING:
    from planner.mesh.results import MeshResult
    from planner.mixed.results import MixedResult
    from planner.results import SearchResult

__all__ = ["SearchInterrupted"]


class SearchInterrupted(PlannerError):  # noqa: N818 - named after the situation
    """Ctrl-C during a search; ``result`` holds the best plans so far, None where there is none yet."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPTED

    def __init__(self, result: SearchResult | MeshResult | MixedResult | None) -> None:
        self.result = result
        super().__init__(
            "interrupted: these are the best plans so far" if result else "interrupted before a plan was found"
        )

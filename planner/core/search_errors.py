"""What is said of a search that the user or a limit stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from planner.core.errors import ExitCode, LimitReached, PlannerError

if TYPE_CHECKING:
    from planner.core.answer import Answer

__all__ = ["SearchInterrupted", "no_plan_in_time"]


class SearchInterrupted(PlannerError):  # noqa: N818 - named after the situation
    """Ctrl-C during a search; ``result`` holds the best plans so far, None where there is none yet."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPTED

    def __init__(self, result: Answer | None) -> None:
        self.result = result
        super().__init__(
            "interrupted: these are the best plans so far" if result else "interrupted before a plan was found"
        )


def no_plan_in_time() -> LimitReached:
    """Nothing was found in time; what was not looked at may fit."""
    return LimitReached("the time limit ended the search before it found a plan; --time-limit gives it longer")

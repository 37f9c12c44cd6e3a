"""Trials of a sizing in words: how late, how dear, what is wrong with them."""

from __future__ import annotations

from planner.core.numbers import NOT_AVAILABLE, percent, significant
from planner.sizing.goal import SECONDS_PER_DAY, Goal
from planner.sizing.trials import Trial

__all__ = ["count_text", "days", "dear", "late", "money_text", "usd", "verdict", "wrong"]

_PERCENT_TO = 3.0  # nobody reads 98,500 %


def wrong(trial: Trial, goal: Goal, *, surely: bool = False) -> str:
    """What keeps a trial from meeting the goal, as predicted or ``surely`` with a chance of 90 %."""
    count = trial.gpus or trial.allowed
    what = f"{count:,} GPU" if count == 1 else f"{count:,} GPUs"
    if not trial.has_plan:
        return f"memory: nothing fits on {trial.allowed:,} GPU{'s' if trial.allowed != 1 else ''}"
    if not trial.in_time(goal):
        return f"the deadline: {what} would take {days(trial.time_s)}"
    if not trial.in_time(goal, surely=surely):
        return f"the deadline: {what} may take {days(trial.time_high_s)}"
    would = "may" if trial.excess(goal) <= 1.0 else "would"
    return f"the budget: {what} {would} cost {usd((trial.money or 0.0) * trial.slower(surely=would == 'may'))}"


def verdict(trial: Trial, goal: Goal) -> str:
    """Whether a trial meets the goal, and what it lacks."""
    if not trial.has_plan:
        return "nothing fits" if trial.row["status"] == "no_plan" else str(trial.row["reason"]).partition("\n")[0]
    parts = []
    if trial.lateness(goal) > 1:
        parts.append(late(trial.lateness(goal)))
    if trial.excess(goal) > 1:
        parts.append(dear(trial.excess(goal)))
    if not parts and trial.time_high_s is not None and not trial.meets(goal, surely=True):
        parts.append("meets the goal as predicted, not with 90 % probability")
    return ", ".join(parts) or "meets the goal"


def late(share: float) -> str:
    """How much more time something takes than there is.

    >>> late(1.2), late(986.0)
    ('20.0 % late', 'late: 986 times the deadline')
    """
    return f"{percent(share - 1)} late" if share < _PERCENT_TO else f"late: {significant(share)} times the deadline"


def dear(share: float) -> str:
    """How much more something costs than there is.

    >>> dear(1.05), dear(12.0)
    ('5.0 % over the budget', 'over the budget: 12.0 times it')
    """
    return (
        f"{percent(share - 1)} over the budget"
        if share < _PERCENT_TO
        else f"over the budget: {significant(share)} times it"
    )


def count_text(number: float) -> str:
    """A length of training in the words that the command line takes.

    >>> count_text(1e12), count_text(1.152e8), count_text(1.5e13), count_text(900.0)
    ('1 T', '115.2 M', '15 T', '900')
    """
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= size:
            return f"{number / size:,.6g}{suffix}"
    return f"{number:,.6g}"


def days(time_s: float | None) -> str:
    """A time in days."""
    return NOT_AVAILABLE if time_s is None else f"{significant(time_s / SECONDS_PER_DAY)} days"


def usd(money: float | None) -> str:
    """Money with its currency."""
    return "no price stated" if money is None else f"{money_text(money)} USD"


def money_text(money: float | None) -> str:
    """Money to a few digits, without its currency."""
    if money is None:
        return NOT_AVAILABLE
    return f"{money:,.0f}" if money >= 1000 else significant(money)

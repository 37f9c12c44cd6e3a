"""What the per-layer program says about the splits inside the blocks of a plan, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.report.numbers import duration_text, percent
from planner.spaces.mesh.labels import splits_in_words

if TYPE_CHECKING:
    from strategies.mesh.block_search import SplitCheck

__all__ = ["split_document", "split_text"]

# Below this a bound and what it bounds are the same to people.
_NOT_SHOWN = 5e-4


def split_text(check: SplitCheck) -> str:
    """One sentence about a check, without its full stop."""
    left = 1.0 - check.bound_ratio
    bound = (
        "no other that fits makes the layers faster"
        if left < _NOT_SHOWN
        else f"none that fits saves more than {percent(left)} of the time in the layers"
    )
    where = f"tp {check.plan.tp}" + (" (sequence parallel)" if check.plan.sequence_parallel else "")
    if check.best is None:
        return f"at {where} the per-layer program confirms the standard split, columns then rows: {bound}"
    gain = percent(1.0 - check.best_step_time_s / check.step_time_s)
    return (
        f"at {where} the per-layer program finds a split that is {gain} faster than columns then rows "
        f"({duration_text(check.best_step_time_s)} per step): {splits_in_words(check.best.block_splits)}; {bound}"
    )


def split_document(check: SplitCheck) -> dict[str, Any]:
    """A check as plain data."""
    splits = () if check.best is None else check.best.block_splits
    return {
        "tp": check.plan.tp,
        "sequence_parallel": check.plan.sequence_parallel,
        "is_confirmed": check.is_confirmed,
        "standard_step_time_s": check.step_time_s,
        "best_step_time_s": check.best_step_time_s,
        "bound_ratio": check.bound_ratio,
        "splits": {split.layer: {"role": split.role, "degree": split.degree} for split in splits},
    }

"""Error bars in reports: columns of the ranked table, sentences, the table of sensitivities, and the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from planner.report.blocks import Block, Column, Heading, Sentence, Table
from planner.report.numbers import NOT_AVAILABLE, Unit, percent, significant
from planner.uncertainty.bars import SAME_WITHIN

if TYPE_CHECKING:
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = [
    "bars_columns",
    "bars_document",
    "bars_facts",
    "benchmark_sentence",
    "sensitivity_blocks",
    "sensitivity_document",
]

# Where a narrow terminal drops these columns, among those of the ranked table.
_INTERVAL_PRIORITY, _CHANCE_PRIORITY = 4, 6


class _Barred(Protocol):
    """A ranked plan with error bars."""

    @property
    def step_time_low_s(self) -> float | None: ...
    @property
    def step_time_high_s(self) -> float | None: ...
    @property
    def probability_best(self) -> float | None: ...


def bars_columns(plans: Sequence[_Barred], unit: Unit) -> list[Column]:
    """Interval and chance of ranked plans; none where there are no error bars.

    Parameters
    ----------
    plans : sequence of ranked plans
    unit : Unit
        That the step times are written in.
    """
    columns = []
    if all(plan.step_time_low_s is not None for plan in plans):
        cells = tuple(interval_text(plan, unit) for plan in plans)
        columns.append(Column(title="80 % interval", unit=unit.name, cells=cells, priority=_INTERVAL_PRIORITY))
    if len(plans) > 1 and all(plan.probability_best is not None for plan in plans):
        cells = tuple(percent(plan.probability_best) for plan in plans)
        columns.append(Column(title="P(best)", cells=cells, priority=_CHANCE_PRIORITY))
    return columns


def interval_text(plan: _Barred, unit: Unit) -> str:
    """``15.1-21.2``, in a unit."""
    if plan.step_time_low_s is None or plan.step_time_high_s is None:
        return NOT_AVAILABLE
    return f"{significant(plan.step_time_low_s / unit.size)}-{significant(plan.step_time_high_s / unit.size)}"


def benchmark_sentence(bars: ErrorBars | None, plans: int) -> list[Sentence]:
    """What to benchmark, in one sentence; nothing where plans were not compared.

    Examples
    --------
    >>> from planner.uncertainty.bars import ErrorBars
    >>> print(benchmark_sentence(ErrorBars(benchmark_list=(1, 2), benchmark_probability=0.93), 5)[0].text[:65])
    The top 2 are within the model's error: benchmark these 2 (one is
    >>> benchmark_sentence(ErrorBars(benchmark_list=(1,), benchmark_probability=0.97), 2)[0].text
    'The first plan is the best of the 2 listed, or within 3 % of it, with 97 % probability.'
    """
    if bars is None or not bars.benchmark_list or bars.benchmark_probability is None:
        return []
    ranks, chance = bars.benchmark_list, f"with {100 * bars.benchmark_probability:.0f} % probability"
    within = f"or within {100 * SAME_WITHIN:.0f} % of it"
    if len(ranks) == 1:
        name = "The first plan" if ranks == (1,) else f"Plan {ranks[0]}"
        return [Sentence(f"{name} is the best of the {plans} listed, {within}, {chance}.")]
    if ranks == tuple(range(1, len(ranks) + 1)):
        subject = f"All {plans} listed" if len(ranks) == plans else f"The top {len(ranks)}"
    else:
        subject = f"Plans {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return [
        Sentence(
            f"{subject} are within the model's error: benchmark these {len(ranks)} (one is the best of the {plans} listed, {within}, "
            f"{chance})."
        )
    ]


def bars_facts(bars: ErrorBars | None) -> list[tuple[str, str]]:
    """Where the error bars come from, or why there are none."""
    if bars is None:
        return []
    if bars.note:
        return [("Error bars", bars.note)]
    return [
        (
            "Error bars",
            f"80 % of measurements; residuals of calibration '{bars.calibration}' ({bars.kind}), docs/accuracy.md",
        )
    ]


def bars_document(bars: ErrorBars | None, *, compared: bool = True) -> dict[str, Any]:
    """Keys of an answer; ``compared``: of one with several plans."""
    where = None if bars is None else {"calibration": bars.calibration, "kind": bars.kind, "note": bars.note}
    if not compared:
        return {"error_bars": where}
    return {
        "error_bars": where,
        "benchmark_list": [] if bars is None else list(bars.benchmark_list),
        "benchmark_probability": None if bars is None else bars.benchmark_probability,
    }


def sensitivity_blocks(rows: Sequence[Sensitivity] | None) -> list[Block]:
    """Table of the constants, those that need the smallest change first."""
    if rows is None:
        return []
    changing = [row for row in rows if row.factor is not None]
    heading = Heading("What would have to change for another of the best plans to win")
    idle = [row.constant for row in rows if row.factor is None]
    none = f"Up to 8 times more or less changes nothing: {', '.join(idle)}." if idle else ""
    if not changing:
        return [heading, Sentence(none)]

    def column(title: str, cells: Sequence[str], priority: int, *, unit: str = "", text: bool = False) -> Column:
        return Column(title=title, unit=unit, cells=tuple(cells), priority=priority, is_text=text)

    table = Table(
        columns=(
            column("constant", [row.constant for row in changing], 0, text=True),
            column("now", [_now(row) for row in changing], 2, text=True),
            column("factor", [f"x{significant(row.factor)}" for row in changing], 0),
            column("standard", [significant(row.standard_deviations, 2) for row in changing], 1, unit="deviations"),
            Column(
                title="then the best is",
                cells=tuple(f"#{row.winner}: {row.winner_summary}" for row in changing),
                is_text=True,
                flexible=True,
            ),
        )
    )
    return [heading, table, *([Sentence(none)] if none else [])]


def _now(row: Sensitivity) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row.now)


def sensitivity_document(rows: Sequence[Sensitivity] | None) -> dict[str, Any]:
    """The table as plain data; nothing where it was not asked for."""
    if rows is None:
        return {}
    entries = [
        {
            "constant": row.constant,
            "meaning": row.meaning,
            "now": dict(row.now),
            "factor": row.factor,
            "winner": row.winner,
            "winner_summary": row.winner_summary,
            "log_sd": row.log_sd,
            "standard_deviations": row.standard_deviations,
        }
        for row in rows
    ]
    return {"sensitivity": entries}

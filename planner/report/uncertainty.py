"""Error bars in reports: columns of the ranked table, sentences, the table of sensitivities, and the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from planner.core.answer import SHORT_LIST, ErrorBars, RankedPlan, Sensitivity
from planner.core.blocks import Block, Column, Heading, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, Unit, counted, joined_words, percent, significant

# Where a narrow terminal drops these columns, among those of the ranked table.
_INTERVAL_PRIORITY, _CHANCE_PRIORITY = 5, 6


def bars_columns(
    plans: Sequence[RankedPlan], unit: Unit, ends: Sequence[tuple[float | None, float | None]] | None = None
) -> list[Column]:
    """Interval and chance of ranked plans; none where there are no error bars.

    Parameters
    ----------
    plans : sequence of ranked plans
    unit : Unit
        That the step times are written in.
    ends : sequence of (low, high), optional
        Of the intervals where they are not of the step times.
    """
    columns = []
    shown = [(plan.step_time_low_s, plan.step_time_high_s) for plan in plans] if ends is None else ends
    if all(low is not None for low, _ in shown):
        cells = tuple(span_text(span, unit) for span in shown)
        columns.append(Column("80 % interval", cells, _INTERVAL_PRIORITY, unit=unit.name))
    if len(plans) > 1 and any(plan.probability_best is not None for plan in plans):
        chances = (plan.probability_best for plan in plans)
        cells = tuple(NOT_AVAILABLE if chance is None else percent(chance) for chance in chances)
        columns.append(Column("P(best)", cells, _CHANCE_PRIORITY))
    return columns


def span_text(ends: tuple[float | None, float | None], unit: Unit) -> str:
    """``15.1-21.2``, in a unit.

    >>> span_text((0.01512, 0.0212), Unit(name="ms", size=1e-3)), span_text((None, None), Unit(name="ms", size=1e-3))
    ('15.1-21.2', 'n/a')
    """
    low, high = ends
    if low is None or high is None:
        return NOT_AVAILABLE
    return f"{significant(low / unit.size)}-{significant(high / unit.size)}"


def interval_text(ends: tuple[float | None, float | None], unit: Unit) -> str:
    """The same with the unit; empty where nothing is known."""
    return "" if None in ends else f"{span_text(ends, unit)} {unit.name}"


def runs_words(bars: ErrorBars | None, framework: str) -> str:
    """Whose runs an interval is from; empty where that is not known.

    >>> runs_words(ErrorBars(kind="transformers", rows=2135), "torchtitan"), runs_words(ErrorBars(kind="nanotron", rows=1017), "nanotron")
    ('2,135 runs of other frameworks', '1,017 runs of nanotron')
    """
    if bars is None or not bars.rows:
        return ""
    several = "other frameworks" if framework and bars.kind == "transformers" else "several frameworks"
    return f"{counted(bars.rows, 'run')} of {several if bars.kind in _KIND else bars.kind}"


def benchmark_sentence(bars: ErrorBars | None, numbers: Mapping[int, int], first: int = 1) -> list[Sentence]:
    """What to benchmark, in a sentence or two; nothing where plans were not compared.

    Parameters
    ----------
    bars : ErrorBars, optional
        Of the plans that were compared: those that are shown and others.
    numbers : mapping of int to int
        Ranks of those that are, to the numbers of their rows.
    first : int
        Rank of the first of them.

    Examples
    --------
    >>> from planner.core.answer import ErrorBars
    >>> chances = (0.5, 0.43, 0.07)
    >>> sure = ErrorBars(probability_best=chances, benchmark_list=(1, 2), benchmark_probability=0.93)
    >>> benchmark_sentence(sure, {1: 1, 2: 2, 3: 3})[0].text.partition(" --")[0]
    "The top 2 are within the model's error: benchmark these 2 (one is the best of the 3 compared with 93 % probability)."
    >>> one = ErrorBars(probability_best=(0.97, 0.03), benchmark_list=(1,), benchmark_probability=0.97)
    >>> benchmark_sentence(one, {1: 1, 2: 2})[0].text
    'The first plan is the best of the 2 compared with 97 % probability.'
    >>> unsure = ErrorBars(probability_best=(0.1,) * 10, benchmark_list=tuple(range(1, 10)), benchmark_probability=0.9,
    ...     near_list=(1, 2, 4), near_probability=0.92, near_within=0.06)
    >>> said = benchmark_sentence(unsure, {1: 1, 2: 2, 4: 3})[0].text.partition(": ")[2].split(". ")
    >>> said[0]
    'benchmark plans 1-3 (one is within 6 % of the best with 92 % probability)'
    >>> said[1]
    '--export FILE --pick N writes plan N.'
    >>> benchmark_sentence(unsure, {1: 1, 2: 2, 3: 3})[0].text.partition("). ")[2]
    '--top 4 shows them all; --export FILE --pick N writes plan N.'
    """
    if bars is None or not bars.benchmark_list or bars.benchmark_probability is None:
        return []
    ranks, count, near = bars.benchmark_list, len(bars.probability_best), bars.near_list

    def named(some: Sequence[int]) -> str:
        return _ranks([numbers.get(rank, rank) for rank in some])

    holds = f"the best of the {count} compared with {_rounded(bars.benchmark_probability)} probability"
    within = ""
    if bars.near_within is not None and bars.near_probability is not None:
        chance = f"{_rounded(bars.near_probability)} probability"
        within = f"within {100 * bars.near_within:.0f} % of the best with {chance}"
    if len(ranks) == 1:
        text = f"{'The first plan' if ranks == (first,) else f'Plan {named(ranks)}'} is {holds}."
    elif len(ranks) <= SHORT_LIST:
        is_top = list(ranks) == list(range(first, first + len(ranks)))
        which = f"The top {len(ranks)}" if is_top else f"Plans {named(ranks)}"
        text = f"{which} are within the model's error: benchmark these {len(ranks)} (one is {holds})."
    else:
        which = "the best plans" if len(ranks) == count else f"{len(ranks)} of the best plans"
        text = f"The model cannot tell {which} apart"
        if not near:
            text += f": one of {named(ranks)} is {holds}."
        else:
            benchmark = f": benchmark plans {named(near)} (one is {within})."
            text += f", but plan {named(near)} is {within}." if len(near) == 1 else benchmark
    if len(ranks) <= SHORT_LIST and near and len(near) < len(ranks):
        text += f" {'Plan' if len(near) == 1 else 'One of'} {named(near)} is {within}."
    is_shown = set(bars.named) <= numbers.keys()
    options = [] if is_shown else [f"--top {max(bars.named) - first + 1} shows them all"]
    if len(bars.named) > 1:
        options.append("--export FILE --pick N writes plan N")
    more = f" {'; '.join(options)}." if options else ""
    return [Sentence(f"{text}{more}")]


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, runs of them joined.

    >>> _ranks((1, 2, 3, 7)), _ranks((4,)), _ranks((1, 2))
    ('1-3 and 7', '4', '1 and 2')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        word for run in runs for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run])
    ]
    return joined_words(words)


def inversions(bars: ErrorBars | None, numbers: Mapping[int, int], first: int) -> str:
    """Why plans that are predicted to be slower than others may be likelier the best than those; empty where none is.

    A plan's chance grows with its own error, and shrinks with how much of it is that of a faster plan, too.

    >>> alike = ErrorBars(probability_best=(0.2, 0.3, 0.5), scores=(1.0, 1.1, 1.2), low_s=(0.8, 0.88, 0.96), high_s=(1.5, 1.65, 1.8))
    >>> inversions(alike, {1: 1, 2: 2}, 1)
    'P(best) of plan 2 is above that of a faster one: plans that are alike share their errors; it is less like the others.'
    """
    if bars is None:
        return ""
    chances, places = bars.probability_best, [rank - first for rank in sorted(numbers)]
    places = [n for n in places if 0 <= n < len(chances)]
    scores = bars.scores or tuple(range(len(chances)))
    pairs = [(n, k) for n in places for k in places if scores[k] < scores[n] and chances[n] > chances[k] + _NOISE]
    if not pairs:
        return ""
    named = sorted({n for n, _ in pairs})
    plans = f"{'plans' if len(named) > 1 else 'plan'} {_ranks([numbers[n + first] for n in named])}"
    widths = [math.log(high / low) for low, high in zip(bars.low_s, bars.high_s, strict=True)]
    less_sure = bool(widths) and all(widths[n] > _AS_WIDE * widths[k] for n, k in pairs)
    why = f"plans that are alike share their errors; {'these are less alike' if len(named) > 1 else 'it is less like the others'}"
    if less_sure:
        why = f"{'their predictions are' if len(named) > 1 else 'its prediction is'} less sure"
    return f"P(best) of {plans} is above that of {'faster ones' if len(named) > 1 else 'a faster one'}: {why}."


# Of a probability from some thousand draws; intervals of plans whose widths differ by less are as wide.
_NOISE, _AS_WIDE = 0.02, 1.03


def _rounded(chance: float) -> str:
    """A chance of a model in whole percent, never as certain."""
    return f"{100 * chance:.0f} %" if chance < 0.995 else ">99 %"


# Kinds of workloads of no framework whose runs are known.
_KIND = {
    "transformers": "transformers, any framework",
    "images": "images, any framework",
    "serving": "serving of dense networks",
    "serving-experts": "serving of mixtures of experts",
    "serving-shared-experts": "serving of mixtures of experts that replicas share",
}


def bars_facts(bars: ErrorBars | None) -> list[tuple[str, str]]:
    """Where the error bars come from, or why there are none."""
    if bars is None:
        return []
    if bars.note:
        return [("Error bars", bars.note)]
    kind = _KIND.get(bars.kind, bars.kind)
    page = "docs/inference.md" if bars.kind.startswith("serving") else "docs/accuracy.md"
    where = f"{bars.basis}; {page}" if bars.basis else page
    return [("Error bars", f"80 % of measurements; residuals of calibration '{bars.calibration}' ({kind}), {where}")]


def bars_document(bars: ErrorBars | None, plans: int | None) -> dict[str, Any]:
    """Keys of an answer; ``plans``: how many it ranks, None where it is about one."""
    known = ErrorBars() if bars is None else bars
    names = ("calibration", "kind", "note", "basis")
    where = {"error_bars": None if bars is None else {name: getattr(bars, name) for name in names}}
    if plans is None:
        return where
    return {
        **where,
        "benchmark_list": list(known.benchmark_list),
        "benchmark_probability": known.benchmark_probability,
        "benchmark_compared": len(known.probability_best),
        "probability_others": sum(known.probability_best[plans:]) if known.probability_best else None,
        "near_list": list(known.near_list),
        "near_probability": known.near_probability,
        "near_within": known.near_within,
    }


def sensitivity_blocks(rows: Sequence[Sensitivity] | None) -> list[Block]:
    """Table of the constants, those that need the smallest change first."""
    if rows is None:
        return []
    changing = [row for row in rows if row.factor is not None]
    idle = ", ".join(row.constant.replace("_", " ") for row in rows if row.factor is None)
    table = Table(
        columns=(
            Column("constant", tuple(row.constant.replace("_", " ") for row in changing), is_text=True, flexible=True),
            Column("factor", tuple(f"x{significant(row.factor)}" for row in changing)),
            Column(
                "standard", tuple(significant(row.standard_deviations, 2) for row in changing), 1, unit="deviations"
            ),
            Column(
                "then the best is",
                tuple(f"#{row.winner}: {row.winner_summary}" for row in changing),
                is_text=True,
                flexible=True,
                plans=True,
            ),
        )
    )
    return [
        Heading("What would have to change for another of the best plans to win"),
        *([table] if changing else []),
        *([Sentence(f"Up to 8 times more or less, none of the other best plans wins: {idle}.")] if idle else []),
    ]


def sensitivity_facts(rows: Sequence[Sensitivity] | None) -> list[tuple[str, str]]:
    """What the table of the constants changes, by their names in files."""
    now = [f"{row.constant}: {', '.join(f'{name} {value:.4g}' for name, value in row.now)}" for row in rows or ()]
    return [("Constants now", "; ".join(now))] if now else []


def sensitivity_document(rows: Sequence[Sensitivity] | None) -> dict[str, Any]:
    """The table as plain data; nothing where it was not asked for."""
    return {} if rows is None else {"sensitivity": [{**asdict(row), "now": dict(row.now)} for row in rows]}

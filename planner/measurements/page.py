"""The answer of ``planner validate`` as one HTML file: charts, sortable tables, everything that was left out or taken for granted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.core.numbers import NOT_AVAILABLE, duration_text, percent, signed, significant
from planner.measurements.report import bar_facts
from planner.measurements.run import FileScore
from planner.measurements.scores import ComparedRow, Score
from planner.report.charts import Point, ratio_histogram, scatter
from planner.report.page import Cell, escaped, facts, page, table

__all__ = ["validation_page"]

# More circles make a page slow and say no more.
_MOST_POINTS = 4000

# Title, meaning, figure, how it is written.
_Figure = tuple[str, str, Callable[[Score], float | None], Callable[[float | None], str]]


def validation_page(scores: Sequence[FileScore], by: str | None = None) -> str:
    """Make the page.

    Parameters
    ----------
    scores : sequence of FileScore
    by : str, optional
        The column that parts the files.
    """
    paleo = [file.paleo for file in scores]
    parts = [
        "<h1>Predicted against measured</h1>",
        '<p class="soft">Errors are shares of the measured time. Hover over a title for its meaning, click on it to sort by it.</p>',
        _figures("file", [(Path(file.file).name, file.score) for file in scores], paleo),
    ]
    for file in scores:
        parts += _section(file, by)
    return page("Predicted against measured", parts)


def _section(file: FileScore, by: str | None) -> list[str]:
    score = file.score
    parts = [f"<h2>{escaped(file.file)}</h2>", facts(_facts(file))]
    parts.append(_charts(file))
    if by is not None and file.parts:
        rows = [(text or "(not stated)", part) for text, part in file.parts.items()]
        parts += [f"<h3>By {escaped(by)}</h3>", _figures(by, rows, list(file.paleo_parts.values()))]
    if score.worst:
        parts += ["<h3>The largest ratios</h3>", _worst(score)]
    for title, counts, word in (
        ("Skipped", score.skipped, "reason"),
        ("Failures that memory does not explain", score.memory.apart, "reason"),
        ("Taken by default", score.defaults, "fact that a row does not state"),
    ):
        if counts:
            parts += [f"<h3>{title}</h3>", _counts(word, counts, score.rows)]
    fitted = ", ".join(sorted(score.fitted)) or "none"
    parts += ["<h3>Constants that were fitted to measurements</h3>", f"<p>{len(score.fitted)}: {escaped(fitted)}</p>"]
    return parts


# -- tables ---------------------------------------------------------------------------------------------------------------------


def _count(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:,.0f}"


_FIGURES: tuple[_Figure, ...] = (
    ("rows", "in the file", lambda s: s.rows, _count),
    ("scored", "predicted and compared, or scored for feasibility", lambda s: s.scored, _count),
    ("coverage", "scored / rows with a usable measurement or a failure", lambda s: s.coverage, percent),
    ("MAPE", "mean absolute error", lambda s: s.times.mape, percent),
    ("median", "median absolute error", lambda s: s.times.median_ape, percent),
    ("90 %", "90th percentile of the absolute error", lambda s: s.times.p90_ape, percent),
    ("bias", "mean of log(predicted / measured): below 0 where too short", lambda s: s.times.bias, signed),
    ("skill", "1 - error / error of FLOPs over peak at one fitted efficiency", lambda s: s.times.skill, signed),
)
_RANKING: tuple[_Figure, ...] = (
    ("groups", "sets of at least three rows that differ in the plan only", lambda s: s.ranking.groups, _count),
    ("tau", "Kendall's tau-b, mean over groups", lambda s: s.ranking.kendall_tau, signed),
    ("pairs right", "share of pairs in the right order", lambda s: s.ranking.pair_accuracy, percent),
    ("regret", "measured time of the pick, which is predicted to fit / best measured", lambda s: s.ranking.regret_top1_mean, significant),
    ("worst regret", "of the worst group", lambda s: s.ranking.regret_top1_max, significant),
    ("regret of 3", "best measured of the first three picks / best measured", lambda s: s.ranking.regret_top3_mean, significant),
)  # fmt: skip
_MEMORY: tuple[_Figure, ...] = (
    ("memory", "mean absolute error of the memory", lambda s: s.memory.mape, percent),
    ("memory median", "median absolute error of the memory", lambda s: s.memory.median_ape, percent),
    ("OOM recall", "of the failures that memory explains: predicted not to fit", lambda s: s.memory.recall, percent),
    ("false alarms", "of the runs that succeeded: predicted not to fit", lambda s: s.memory.false_alarm, percent),
)  # fmt: skip
_BARS: tuple[_Figure, ...] = (
    ("intervals", "times whose interval is known", lambda s: s.bars.rows, _count),
    ("inside", "share of them within the 80 % interval that planner optimize prints", lambda s: s.bars.coverage, percent),
    ("width", "median of log(upper end / lower end)", lambda s: s.bars.width, significant),
    ("interval score", "width + 10 times how far outside, of log(time): smaller is better", lambda s: s.bars.score, significant),
    ("one width", "interval score of one width for all, that of the calibration", lambda s: s.bars.score_one_width, significant),
    ("hindsight", "interval score of the one width that suits these rows best", lambda s: s.bars.score_hindsight, significant),
)  # fmt: skip
_LISTS: tuple[_Figure, ...] = (
    ("lists", "groups with at least three different plans", lambda s: s.bars.questions, _count),
    ("hold the best", "share of the lists to benchmark with the plan measured best", lambda s: s.bars.holds_best, percent),
    ("length", "median number of plans on a list", lambda s: s.bars.length, significant),
    ("of plans", "median number of plans of a group", lambda s: s.bars.plans, significant),
)  # fmt: skip
_PALEO: tuple[_Figure, ...] = (
    ("paleo MAPE", "the same by the preset paleo", lambda s: s.times.mape, percent),
    ("paleo median", "the same by the preset paleo", lambda s: s.times.median_ape, percent),
    ("paleo bias", "the same by the preset paleo", lambda s: s.times.bias, signed),
)
_PALEO_TAU: _Figure = ("paleo tau", "the same by the preset paleo", lambda s: s.ranking.kendall_tau, signed)


def _figures(title: str, rows: Sequence[tuple[str, Score]], paleo: Sequence[Score]) -> str:
    scores = [score for _, score in rows]
    is_ranked = any(score.ranking.groups for score in scores)
    has_memory = any(score.memory.mape is not None or score.memory.failures for score in scores)
    # What is compared stands side by side, and no table is wider than a page: its right end would be out of sight.
    at = 1 + next(n for n, figure in enumerate(_FIGURES) if figure[0] == "MAPE")
    errors = [*_own(_FIGURES[:at]), *((figure, True) for figure in _PALEO), *_own(_FIGURES[at:])]
    more = [
        *(_own(_RANKING) if is_ranked else ()),
        *([(_PALEO_TAU, True)] if is_ranked else ()),
        *(_own(_MEMORY) if has_memory else ()),
    ]
    bars = [
        *(_own(_BARS) if any(score.bars.rows for score in scores) else ()),
        *(_own(_LISTS) if any(score.bars.questions for score in scores) else ()),
    ]
    return "".join(_figure_table(title, rows, paleo, figures) for figures in (errors, more, bars) if figures)


def _own(figures: Sequence[_Figure]) -> list[tuple[_Figure, bool]]:
    """Figures of the default cost model, not of the preset paleo."""
    return [(figure, False) for figure in figures]


def _figure_table(
    title: str, rows: Sequence[tuple[str, Score]], paleo: Sequence[Score], figures: Sequence[tuple[_Figure, bool]]
) -> str:
    lines = [
        [Cell(name, name), *(_figure(figure, beside if is_paleo else score) for figure, is_paleo in figures)]
        for (name, score), beside in zip(rows, paleo, strict=True)
    ]
    return table([(title, ""), *((head, meaning) for (head, meaning, _, _), _ in figures)], lines)


def _figure(figure: _Figure, score: Score) -> Cell:
    value = figure[2](score)
    return Cell(figure[3](value), value if value is not None and math.isfinite(value) else None)


def _worst(score: Score) -> str:
    rows = [
        [
            Cell(str(row.line), row.line),
            Cell(row.what, row.what),
            Cell(duration_text(row.predicted_s), row.predicted_s),
            Cell(duration_text(row.measured_s), row.measured_s),
            Cell(significant(row.predicted_s / row.measured_s), row.predicted_s / row.measured_s),
            Cell(row.label, row.label),
        ]
        for row in score.worst
    ]
    columns = [("line", "of the file"), ("what", ""), ("predicted", ""), ("measured", ""), ("ratio", ""), ("row", "")]
    return table(columns, rows, text=(1, 5))


def _counts(word: str, counts: Mapping[str, int], rows: int) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ordered[:_MOST_REASONS]
    lines = [[Cell(text, text), Cell(f"{n:,}", n), Cell(percent(n / rows), n / rows)] for text, n in shown]
    others = sum(n for _, n in ordered[_MOST_REASONS:])
    if others:
        lines.append(
            [Cell(f"{len(ordered) - len(shown):,} others"), Cell(f"{others:,}", others), Cell(percent(others / rows))]
        )
    return table([(word, ""), ("rows", ""), ("share", "of all rows of the file")], lines)


_MOST_REASONS = 100


def _facts(file: FileScore) -> list[tuple[str, str]]:
    score = file.score
    found = [
        ("kind", file.kind),
        *(("remark", remark) for remark in file.remarks),
        (
            "scored",
            f"{score.scored:,} of {score.usable:,} usable rows ({percent(score.coverage)}), {score.rows:,} in all",
        ),
        ("times compared", f"{score.comparisons:,}"),
        ("without any default", percent(score.without_default)),
        *bar_facts(file),
    ]
    if score.memory.failures:
        found.append(("failed runs", f"{score.memory.failures:,}, of which {sum(score.memory.apart.values()):,} apart"))
    return found


# -- charts ---------------------------------------------------------------------------------------------------------------------


def _charts(file: FileScore) -> str:
    known = [row for row in file.compared if row.predicted_s > 0]
    if not known:
        return '<p class="soft">There is no time to compare.</p>'
    paleo = [ratio for ratio in file.paleo_ratios if ratio > 0]
    shown = _thinned(known)
    worst = {(row.line, row.what) for row in file.score.worst}
    points = [
        Point(
            measured_s=row.measured_s,
            predicted_s=row.predicted_s,
            title=f"line {row.line}, {row.what}: predicted {duration_text(row.predicted_s)}, measured "
            f"{duration_text(row.measured_s)}\n{row.label}",
            is_bad=(row.line, row.what) in worst,
        )
        for row in shown
    ]
    notes = (
        [f"{len(file.compared) - len(known):,} predicted to take no time are not shown"]
        if len(known) < len(file.compared)
        else []
    )
    if len(shown) < len(known):
        notes.append(f"{len(shown):,} of {len(known):,} times, evenly spaced in the file, and the largest ratios")
    note = f" ({'; '.join(notes)})" if notes else ""
    return (
        f'<div class="charts"><figure>{scatter(points)}<figcaption>Every point is a time; the line is a right prediction, the dashed '
        f"ones are 20 % off, the largest ratios stand out{note}.</figcaption></figure>"
        f"<figure>{ratio_histogram([row.predicted_s / row.measured_s for row in known], paleo)}<figcaption>How many predictions are "
        "off by how much, on a logarithmic scale; the bars at the ends hold everything beyond. The outline is the preset paleo, at the "
        "same area.</figcaption></figure></div>"
    )


def _thinned(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """At most so many rows as a page shows well: evenly spaced ones, and the ten with the largest ratios."""
    if len(rows) <= _MOST_POINTS:
        return list(rows)
    even = {n * len(rows) // _MOST_POINTS for n in range(_MOST_POINTS)}
    extreme = sorted(range(len(rows)), key=lambda n: -abs(math.log(rows[n].predicted_s / rows[n].measured_s)))[:10]
    return [rows[n] for n in sorted(even | set(extreme))]

"""The answer of ``planner validate`` as one HTML file: charts, sortable tables, everything that was left out or taken for granted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

from planner.core.numbers import NOT_AVAILABLE, duration_text, percent, signed, significant, time_unit
from planner.measurements.report import bar_facts
from planner.measurements.run import FileScore
from planner.measurements.scores import ComparedRow, Score
from planner.report.figures.kinds import Dot, Line, Plot
from planner.report.figures.svg import COLOUR_RULES, draw
from planner.report.page import Cell, escaped, facts, page, table

__all__ = ["ratio_bins", "ratio_histogram", "scatter", "validation_page"]

# More circles make a page slow and say no more.
_MOST_POINTS = 4000
_WIDTH = 480  # px of a figure
_NEAR = 0.2  # of the dashed lines
_BINS = 31  # odd: the middle one holds ratios around 1

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
    return page("Predicted against measured", parts, style=COLOUR_RULES)


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
    notes = (
        [f"{len(file.compared) - len(known):,} predicted to take no time are not shown"]
        if len(known) < len(file.compared)
        else []
    )
    if len(shown) < len(known):
        notes.append(f"{len(shown):,} of {len(known):,} times, evenly spaced in the file, and the largest ratios")
    note = f" ({'; '.join(notes)})" if notes else ""
    figures = (scatter(shown, worst, note), ratio_histogram([row.predicted_s / row.measured_s for row in known], paleo))
    drawn = (
        f"<figure>{draw(figure, _WIDTH)}<figcaption>{escaped(figure.caption)}</figcaption></figure>"
        for figure in figures
    )
    return f'<div class="charts">{"".join(drawn)}</div>'


def scatter(rows: Sequence[ComparedRow], worst: Set[tuple[int, str]] = frozenset(), note: str = "") -> Plot:
    """Predicted over measured times, both logarithmic and on one scale, with the diagonal and lines 20 % to either side.

    Parameters
    ----------
    rows : sequence of ComparedRow
        Positive times, at least one.
    worst : set of (int, str)
        Lines and figures that stand out.
    note : str
        For the caption.
    """
    times = [time for row in rows for time in (row.measured_s, row.predicted_s)]
    unit = time_unit(max(times))
    low, high = min(times) / unit.size, max(times) / unit.size
    dots = [
        Dot(
            x=row.measured_s / unit.size,
            y=row.predicted_s / unit.size,
            title=f"line {row.line}, {row.what}: predicted {duration_text(row.predicted_s)}, measured "
            f"{duration_text(row.measured_s)}\n{row.label}",
            group="largest ratios" if (row.line, row.what) in worst else "times",
        )
        for row in rows
    ]
    return Plot(
        name="scatter",
        caption="Every point is a time; the line is a right prediction, the dashed ones are 20 % off, the largest ratios stand out"
        f"{note}.",
        x_axis=f"measured ({unit.name})",
        y_axis=f"predicted ({unit.name})",
        dots=tuple(sorted(dots, key=lambda dot: dot.group, reverse=True)),  # what stands out is drawn last
        lines=tuple(
            Line(
                name=f"{factor:g}",
                xs=(max(low, low / factor), min(high, high / factor)),
                ys=(max(low, low * factor), min(high, high * factor)),
                reference=factor != 1.0,
            )
            for factor in (1.0, 1.0 + _NEAR, 1.0 - _NEAR)
            if max(low, low / factor) <= min(high, high / factor)
        ),
        log_x=True,
        log_y=True,
    )


def ratio_bins(ratios: Sequence[float], *others: Sequence[float]) -> tuple[float, list[list[int]]]:
    """Count the logarithms of ratios in equal bins around 0.

    Parameters
    ----------
    ratios : sequence of float
        They decide how far the bins reach: to the largest but 1 %, at least to 25 %. The first and the last bin hold what is beyond.
    others : sequences of float
        Counted in the same bins, which reach to the largest but a tenth of these, at most to a factor of 10.

    Returns
    -------
    (float, list of lists of int)
        The width of a bin, and the counts of each sequence.

    Examples
    --------
    >>> width, ((*counts,),) = ratio_bins([0.5, 1.0, 1.0, 2.0])
    >>> counts[0], counts[15], counts[30], sum(counts), round(width * 15.5, 3)
    (1, 2, 1, 4, 0.693)
    """
    theirs = [min(_largest_but(values, 0.1), math.log(10.0)) for values in others]
    reach = max(_largest_but(ratios, 0.01), *theirs, math.log(1.25))
    width = 2.0 * reach / _BINS
    counted = []
    for values in (ratios, *others):
        counts = [0] * _BINS
        for value in values:
            n = math.floor((math.log(value) + reach) / width)
            counts[min(max(n, 0), _BINS - 1)] += 1
        counted.append(counts)
    return width, counted


def _largest_but(ratios: Sequence[float], share: float) -> float:
    """Largest logarithm, either way, when a share of them is left out."""
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    return sizes[min(len(sizes) - 1, math.floor((1.0 - share) * len(sizes)))] if sizes else 0.0


def ratio_histogram(ratios: Sequence[float], other: Sequence[float] = ()) -> Plot:
    """How many ratios predicted / measured lie where, on a logarithmic axis; ``other`` beside it.

    Parameters
    ----------
    ratios : sequence of float
        Positive, at least one.
    other : sequence of float
        Positive, of the preset paleo; scaled to the same area.
    """
    width, counted = ratio_bins(ratios, other)
    middles = tuple(math.exp((n - _BINS // 2) * width) for n in range(_BINS))
    scales = (1.0, len(ratios) / len(other) if other else 0.0)
    lines = [
        Line(
            name=name,
            xs=middles,
            ys=tuple(count * scale for count in counts),
            titles=tuple(f"{count:,} of {sum(counts):,} between {_ends(n, width)}" for n, count in enumerate(counts)),
        )
        for name, counts, scale in zip(("predictions", "preset paleo"), counted, scales, strict=True)
        if scale
    ]
    most = max(count for line in lines for count in line.ys)
    return Plot(
        name="ratios",
        caption="How many predictions are off by how much, on a logarithmic scale; the points at the ends hold everything beyond. "
        "The preset paleo is drawn at the same area.",
        x_axis="predicted / measured",
        y_axis="predictions",
        lines=(*lines, Line(name="as measured", xs=(1.0, 1.0), ys=(0.0, most), reference=True)),
        log_x=True,
        round_ticks=True,
    )


def _ends(n: int, width: float) -> str:
    start = (n - _BINS / 2) * width
    low = "0" if n == 0 else significant(math.exp(start))
    high = "any" if n == _BINS - 1 else significant(math.exp(start + width))
    return f"{low} and {high} times the measured time"


def _thinned(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """At most so many rows as a page shows well: evenly spaced ones, and the ten with the largest ratios."""
    if len(rows) <= _MOST_POINTS:
        return list(rows)
    even = {n * len(rows) // _MOST_POINTS for n in range(_MOST_POINTS)}
    extreme = sorted(range(len(rows)), key=lambda n: -abs(math.log(rows[n].predicted_s / rows[n].measured_s)))[:10]
    return [rows[n] for n in sorted(even | set(extreme))]

"""The answer of ``planner validate`` as one HTML file: charts, sortable tables, everything that was left out or taken for granted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from planner.core.numbers import duration_text, percent, significant, time_unit
from planner.measurements.report import facts_of, figures_of, parts_of
from planner.measurements.scores import ComparedRow, FileScore, Score
from planner.report.figures.kinds import Dot, Line, Plot
from planner.report.figures.svg import COLOUR_RULES, draw
from planner.report.page import Cell, escaped, facts, page, table

# More circles make a page slow and say no more.
_MOST_POINTS = 4000
_WIDTH = 480  # px of a figure
_NEAR = 0.2  # of the dashed lines
_BINS = 31  # odd: the middle one holds ratios around 1

_MOST_REASONS = 100
# Figures of one table: what is compared stands side by side, and no table is wider than a page, whose right end would be out of sight.
_TABLES = ((("rows",),), (("groups",), ("memory_mape", "failures")), (("interval_rows",), ("list_questions",)))


def validation_page(scores: Sequence[FileScore], by: str | None = None) -> str:
    """Make the page.

    Parameters
    ----------
    scores : sequence of FileScore
    by : str, optional
        The column that parts the files.
    """
    parts = [
        "<h1>Predicted against measured</h1>",
        '<p class="soft">Errors are shares of the measured time. Hover over a title for its meaning, click on it to sort by it.</p>',
        _figures("file", [(Path(file.file).name, file.score, file.paleo) for file in scores]),
        *(part for file in scores for part in _section(file, by)),
    ]
    return page("Predicted against measured", parts, style=COLOUR_RULES)


def _section(file: FileScore, by: str | None) -> list[str]:
    score = file.score
    known = [("kind", file.kind), ("times compared", f"{score['comparisons']:,}"), *facts_of(file)]
    parts = [
        f"<h2>{escaped(file.file)}</h2>",
        facts([pair for pair in known if pair[0] != "skipped"]),
        _charts(file),
    ]
    if by is not None and file.parts:
        parts += [f"<h3>By {escaped(by)}</h3>", _figures(by, parts_of(file))]
    if score.worst:
        parts += ["<h3>The largest ratios</h3>", _worst(score)]
    for title, name, word in (
        ("Skipped", "skipped", "reason"),
        ("Failures that memory does not explain", "failures_apart", "reason"),
        ("Taken by default", "defaults", "fact that a row does not state"),
    ):
        if score[name]:
            parts += [f"<h3>{title}</h3>", _counts(word, score[name], score["rows"])]
    fitted = ", ".join(sorted(score.fitted)) or "none"
    return [
        *parts,
        "<h3>Constants that were fitted to measurements</h3>",
        f"<p>{len(score.fitted)}: {escaped(fitted)}</p>",
    ]


# -- tables ---------------------------------------------------------------------------------------------------------------------


def _figures(title: str, parts: Sequence[tuple[str, Score, Score]]) -> str:
    tables = []
    for sections in _TABLES:
        figures = figures_of(parts, *sections)
        columns = [
            [Cell(one.written(value), value if math.isfinite(value or 0.0) else None) for value in one.values(parts)]
            for one in figures
        ]
        rows = list(zip([Cell(name, name) for name, _, _ in parts], *columns, strict=True))
        if figures:
            tables.append(table([(title, ""), *((figure.title, figure.meaning) for figure in figures)], rows))
    return "".join(tables)


def _worst(score: Score) -> str:
    rows = [
        [
            Cell(str(row.line), row.line),
            Cell(row.what, row.what),
            Cell(duration_text(row.predicted_s), row.predicted_s),
            Cell(duration_text(row.measured_s), row.measured_s),
            Cell(significant(row.ratio), row.ratio),
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


# -- charts ---------------------------------------------------------------------------------------------------------------------


def _charts(file: FileScore) -> str:
    known = [row for row in file.compared if row.predicted_s > 0]
    if not known:
        return '<p class="soft">There is no time to compare.</p>'
    shown = _thinned(known)
    worst = {(row.line, row.what) for row in file.score.worst}
    notes = []
    if len(known) < len(file.compared):
        notes.append(f"{len(file.compared) - len(known):,} predicted to take no time are not shown")
    if len(shown) < len(known):
        notes.append(f"{len(shown):,} of {len(known):,} times, evenly spaced in the file, and the largest ratios")
    note = f" ({'; '.join(notes)})" if notes else ""
    paleo = [row.ratio for row in file.paleo_compared if row.ratio > 0]
    figures = (scatter(shown, worst, note), ratio_histogram([row.ratio for row in known], paleo))
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
    places = [np.floor((np.log(values) + reach) / width).clip(0, _BINS - 1).astype(int) for values in (ratios, *others)]
    return width, [np.bincount(place, minlength=_BINS).tolist() for place in places]


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
    extreme = sorted(range(len(rows)), key=lambda n: -abs(math.log(rows[n].ratio)))[:10]
    return [rows[n] for n in sorted(even | set(extreme))]

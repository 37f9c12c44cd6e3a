"""Figures as PNG, by matplotlib (extra ``plots``)."""

from __future__ import annotations

import importlib
import io
from typing import Any

from planner.core.errors import MissingExtra
from planner.report.figures.kinds import COLOURS, Bars, Figure, Lines, Points, Swim, colour_of

__all__ = ["png_bytes"]

_INCHES, _DPI = 8.0, 160
_GRID, _INK = "#d1d9e0", "#1b1f24"


def png_bytes(figure: Figure) -> bytes:
    """A figure as a PNG file.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError:
        raise MissingExtra("--plot FILE.png", "plots", "matplotlib") from None
    height = _height(figure)
    sheet = module.Figure(figsize=(_INCHES, height), dpi=_DPI, layout="constrained")
    axes = sheet.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=_GRID, linewidth=0.7)
    _draw(axes, figure)
    sheet.suptitle(figure.caption, fontsize=9, wrap=True)
    _legend(sheet, axes)
    stream = io.BytesIO()
    # Without a date and a version, the same answer gives the same bytes.
    sheet.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _height(figure: Figure) -> float:
    if isinstance(figure, Bars):
        return 1.8 + 0.42 * len(figure.rows)
    if isinstance(figure, Swim):
        return 1.8 + 0.3 * len(figure.lanes)
    return 5.0


def _colour(word: str, position: int) -> str:
    return COLOURS[colour_of(word, position)][0]


def _draw(axes: Any, figure: Figure) -> None:
    if isinstance(figure, Bars):
        _bars(axes, figure)
    elif isinstance(figure, Points):
        _points(axes, figure)
    elif isinstance(figure, Lines):
        _lines(axes, figure)
    else:
        _swim(axes, figure)


def _legend(sheet: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        sheet.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _bars(axes: Any, figure: Bars) -> None:
    rows = range(len(figure.rows))
    start = [0.0 for _ in rows]
    for n, series in enumerate(figure.series):
        axes.barh(rows, series.values, left=start, height=0.6, color=_colour(series.name, n), label=series.name)
        start = [a + b for a, b in zip(start, series.values, strict=True)]
    for n, interval in enumerate(figure.intervals):
        if interval is not None:
            axes.plot([interval.low, interval.high], [n, n], color=_INK, linewidth=1.2, marker="|", markersize=8)
    if figure.limit is not None:
        axes.axvline(figure.limit, color=COLOURS["vermilion"][0], linestyle="--", label=figure.limit_name)
    axes.set_yticks(list(rows), figure.rows, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(figure.axis)


def _points(axes: Any, figure: Points) -> None:
    _scales(axes, figure.log_x, figure.log_y)
    front = sorted((dot.x, dot.y) for dot in figure.dots if dot.on_front)
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=_INK, linewidth=1.0)
    for n, group in enumerate(dict.fromkeys(dot.group for dot in figure.dots)):
        dots = [dot for dot in figure.dots if dot.group == group]
        sizes = [48 if dot.on_front else 22 for dot in dots]
        xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
        axes.scatter(xs, ys, s=sizes, color=_colour(group, n), alpha=0.8, label=group, zorder=3)
    axes.set_xlabel(figure.x_axis)
    axes.set_ylabel(figure.y_axis)


def _lines(axes: Any, figure: Lines) -> None:
    _scales(axes, True, figure.log_y)
    for n, line in enumerate(figure.lines):
        if line.reference:
            axes.plot(line.xs, line.ys, linestyle=":", color="#59636e", label=line.name)
        else:
            axes.plot(line.xs, line.ys, marker="o", color=_colour(line.name, n), label=line.name)
    counts = sorted({x for line in figure.lines for x in line.xs})
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(figure.x_axis)
    axes.set_ylabel(figure.y_axis)


def _scales(axes: Any, log_x: bool, log_y: bool) -> None:
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")


def _swim(axes: Any, figure: Swim) -> None:
    for n, kind in enumerate(dict.fromkeys(span.kind for span in figure.spans)):
        spans = [span for span in figure.spans if span.kind == kind]
        axes.barh(
            [span.lane for span in spans],
            [span.end - span.start for span in spans],
            left=[span.start for span in spans],
            height=0.8,
            color=_colour(kind, n),
            edgecolor="white",
            linewidth=0.2,
            label=kind,
        )
    axes.set_yticks(range(len(figure.lanes)), figure.lanes, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.0, figure.end)
    axes.set_xlabel(figure.axis)

"""Figures for plotly.js: the traces and the layout that it draws, as plain data.

Colours are names behind an ``@``; the page's script puts in those of a light or a dark page (`PALETTES`). plotly reads some HTML in the
texts of hovers, legends and axes, so whatever stands there is escaped.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Sequence
from typing import Any

from planner.core.errors import MissingExtra
from planner.report.figures.kinds import COLOURS, Bars, Figure, Line, Lines, Points, Swim, colour_of
from planner.report.figures.svg import log_ticks, number_text

__all__ = ["PALETTES", "plotly_figure", "plotly_script"]

_INK = {
    "text": ("#59636e", "#9198a1"),
    "strong": ("#1b1f24", "#e6edf3"),
    "grid": ("#d1d9e0", "#3d444d"),
    "back": ("#ffffff", "#0d1117"),
}
_SHORT_NAME = 16
# Page -> name of a colour -> colour.
PALETTES: dict[str, dict[str, str]] = {
    page: {name: pair[n] for name, pair in (COLOURS | _INK).items()} for n, page in enumerate(("light", "dark"))
}


def plotly_script() -> str:
    """The whole of plotly.js, safe inside a script element.

    Raises
    ------
    MissingExtra
        plotly is not installed.
    """
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise MissingExtra("an interactive report", "plots", "plotly") from None
    text: str = offline.get_plotlyjs()
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("]]>", "]]\\x3e")


def plotly_figure(figure: Figure) -> dict[str, Any]:
    """Traces and layout of a figure.

    Parameters
    ----------
    figure : Figure

    Returns
    -------
    dict
        ``data`` and ``layout``, ready for JSON.
    """
    if isinstance(figure, Bars):
        return _bars(figure)
    if isinstance(figure, Points):
        return _points(figure)
    if isinstance(figure, Lines):
        return _lines(figure)
    return _swim(figure)


def _words(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


def _row(name: str) -> str:
    """Name of a row; what a long one has in brackets goes on a line of its own, which leaves the bars more room.

    >>> _row("#1 (8 GPUs)"), _row("data parallelism (8 GPUs)")
    ('#1 (8 GPUs)', 'data parallelism<br>(8 GPUs)')
    """
    return _words(name.replace(" (", "\n(") if len(name) > _SHORT_NAME else name)


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": _words(title), "font": {"size": 12}},
        "gridcolor": "@grid",
        "zeroline": False,
        "linecolor": "@grid",
        "automargin": True,
        **more,
    }


def _layout(height: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 30, "b": 8},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@text", "activecolor": "@strong"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "@text"},
        "hoverlabel": {
            "align": "left",
            "bgcolor": "@back",
            "bordercolor": "@grid",
            "font": {"color": "@strong", "size": 12},
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",
        },
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def _bars(figure: Bars) -> dict[str, Any]:
    rows = [_row(row) for row in figure.rows]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _words(series.name),
            "y": rows,
            "x": list(series.values),
            "hovertext": [_words(title) for title in series.titles],
            "hoverinfo": "text",
            "marker": {"color": f"@{colour_of(series.name, n)}"},
        }
        for n, series in enumerate(figure.series)
    ]
    if figure.intervals:
        data.append(_interval_marks(figure, rows))
    more: dict[str, Any] = {"barmode": "stack", "bargap": 0.35}
    if figure.limit is not None:
        more["shapes"] = [_limit_line(figure.limit)]
    lines = -(-len(figure.series) // 3)
    height = 110 + 34 * len(rows) + 20 * lines
    return {"data": data, "layout": _layout(height, _axis(figure.axis), _axis("", autorange="reversed"), **more)}


def _interval_marks(figure: Bars, rows: Sequence[str]) -> dict[str, Any]:
    """Ends of the bars with what is known of their errors."""
    totals = [sum(series.values[n] for series in figure.series) for n in range(len(rows))]
    known = [(n, interval) for n, interval in enumerate(figure.intervals) if interval is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "80 % of measurements",
        "y": [rows[n] for n, _ in known],
        "x": [totals[n] for n, _ in known],
        "hovertext": [f"80 % of measurements: {i.low:.3g} to {i.high:.3g}" for _, i in known],
        "hoverinfo": "text",
        "marker": {"color": "@strong", "size": 6},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [interval.high - totals[n] for n, interval in known],
            "arrayminus": [totals[n] - interval.low for n, interval in known],
            "color": "@strong",
            "thickness": 1.5,
        },
    }


def _limit_line(limit: float) -> dict[str, Any]:
    """Across all bars."""
    line = {"color": "@vermilion", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "line": line}


def _points(figure: Points) -> dict[str, Any]:
    data = [_guide(line) for line in figure.guides]
    front = sorted((dot.x, dot.y) for dot in figure.dots if dot.on_front)
    if len(front) > 1:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "front",
                "x": [x for x, _ in front],
                "y": [y for _, y in front],
                "line": {"shape": "hv", "color": "@strong", "width": 1.3},
                "hoverinfo": "skip",
            }
        )
    for n, group in enumerate(dict.fromkeys(dot.group for dot in figure.dots)):
        dots = [dot for dot in figure.dots if dot.group == group]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _words(group),
                "x": [dot.x for dot in dots],
                "y": [dot.y for dot in dots],
                "hovertext": [_words(dot.title) for dot in dots],
                "hoverinfo": "text",
                "marker": {
                    "color": f"@{colour_of(group, n)}",
                    "size": [11 if dot.on_front else 8 for dot in dots],
                    "opacity": [1.0 if dot.on_front else 0.45 for dot in dots],
                },
            }
        )
    x = _scaled(figure.x_axis, [dot.x for dot in figure.dots], log=figure.log_x)
    y = _scaled(figure.y_axis, [dot.y for dot in figure.dots], log=figure.log_y)
    return {"data": data, "layout": _layout(400, x, y)}


def _scaled(title: str, values: Sequence[float], *, log: bool) -> dict[str, Any]:
    """An axis; a logarithmic one with the ticks that the other forms of the figure have."""
    if not log:
        return _axis(title)
    ticks = log_ticks(min(values) / 1.08, max(values) * 1.08)
    return _axis(title, type="log", tickvals=ticks, ticktext=[number_text(tick) for tick in ticks])


def _lines(figure: Lines) -> dict[str, Any]:
    data = []
    for n, line in enumerate(figure.lines):
        shown = {
            "mode": "lines+markers",
            "line": {"color": f"@{colour_of(line.name, n)}"},
            "hovertext": [_words(title) for title in line.titles],
            "hoverinfo": "text",
        }
        data.append(_guide(line) | ({} if line.reference else shown))
    counts = sorted({x for line in figure.lines for x in line.xs})
    x = _axis(figure.x_axis, type="log", tickvals=counts, ticktext=[f"{count:,.0f}" for count in counts])
    if figure.round_ticks:
        x = _scaled(figure.x_axis, counts, log=True)
    y = _scaled(figure.y_axis, [y for line in figure.lines for y in line.ys], log=figure.log_y)
    return {"data": data, "layout": _layout(380, x, y)}


def _guide(line: Line) -> dict[str, Any]:
    """A line without points."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": _words(line.name),
        "x": list(line.xs),
        "y": list(line.ys),
        "line": {"dash": "dot" if line.reference else "solid", "color": "@text"},
        "hoverinfo": "skip",
    }


def _swim(figure: Swim) -> dict[str, Any]:
    lanes = [_words(lane) for lane in figure.lanes]
    data = []
    for n, kind in enumerate(dict.fromkeys(span.kind for span in figure.spans)):
        spans = [span for span in figure.spans if span.kind == kind]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _words(kind),
                "y": [lanes[span.lane] for span in spans],
                "base": [span.start for span in spans],
                "x": [span.end - span.start for span in spans],
                "hovertext": [_words(span.title) for span in spans],
                "hoverinfo": "text",
                "marker": {"color": f"@{colour_of(kind, n)}", "line": {"color": "@back", "width": 0.4}},
            }
        )
    y = _axis("", autorange="reversed", categoryorder="array", categoryarray=lanes)
    height = 130 + (26 if len(lanes) <= 16 else 14) * len(lanes)
    return {
        "data": data,
        "layout": _layout(height, _axis(figure.axis, range=[0, figure.end]), y, barmode="overlay", bargap=0.15),
    }

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
from planner.report.figures.kinds import COLOURS, Figure, Line, Plot, Rows, colour_of
from planner.report.figures.svg import log_ticks, number_text

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
    return _rows(figure) if isinstance(figure, Rows) else _plot(figure)


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


def _layout(height: int, legend: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout whose height has so many px for the legend; the page's script adds what a narrow screen needs beyond them."""
    return {
        "height": height,
        "meta": {"legend": legend},
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


def _rows(figure: Rows) -> dict[str, Any]:
    names = [_row(row) for row in figure.rows]
    data = []
    for n, kind in enumerate(figure.kinds):
        boxes = [box for box in figure.boxes if box.kind == kind]
        trace = {
            "type": "bar",
            "orientation": "h",
            "name": _words(kind),
            "y": [names[box.row] for box in boxes],
            "x": [box.end - box.start for box in boxes],
            "hovertext": [_words(box.title) for box in boxes],
            "hoverinfo": "text",
            "marker": {"color": f"@{colour_of(kind, n)}"},
        }
        if figure.is_timeline:
            trace["base"] = [box.start for box in boxes]
            trace["marker"] = {"color": f"@{colour_of(kind, n)}", "line": {"color": "@back", "width": 0.4}}
        data.append(trace)
    if figure.whiskers:
        data.append(_whiskers(figure, names))
    more: dict[str, Any] = {"barmode": "stack", "bargap": 0.35}
    legend = 20 * -(-len(figure.kinds) // 3)
    height, ends = 110 + 34 * len(names) + legend, {}
    if figure.is_timeline:
        more = {"barmode": "overlay", "bargap": 0.15}
        height, legend = 130 + (26 if len(names) <= 16 else 14) * len(names), 50
        ends = {"range": [0, max(box.end for box in figure.boxes)]}
    if figure.limit is not None:  # across all bars
        line = {"color": "@vermilion", "width": 1.5, "dash": "dash"}
        across = {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": figure.limit,
            "x1": figure.limit,
            "y0": 0,
            "y1": 1,
        }
        more["shapes"] = [{**across, "line": line}]
    y = _axis("", autorange="reversed", categoryorder="array", categoryarray=names)
    return {"data": data, "layout": _layout(height, legend, _axis(figure.axis, **ends), y, **more)}


def _whiskers(figure: Rows, names: Sequence[str]) -> dict[str, Any]:
    """Ends of the bars with what is known of their errors."""
    ends = [max(box.end for box in figure.boxes if box.row == row) for row, _, _ in figure.whiskers]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "80 % of measurements",
        "y": [names[row] for row, _, _ in figure.whiskers],
        "x": ends,
        "hovertext": [f"80 % of measurements: {low:.3g} to {high:.3g}" for _, low, high in figure.whiskers],
        "hoverinfo": "text",
        "marker": {"color": "@strong", "size": 6},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - end for (_, _, high), end in zip(figure.whiskers, ends, strict=True)],
            "arrayminus": [end - low for (_, low, _), end in zip(figure.whiskers, ends, strict=True)],
            "color": "@strong",
            "thickness": 1.5,
        },
    }


def _plot(figure: Plot) -> dict[str, Any]:
    data = [_curve(line, n) for n, line in enumerate(figure.lines)]
    if figure.front:
        steps = {"shape": "vh" if figure.larger else "hv", "color": "@strong", "width": 1.3}
        xs, ys = zip(*figure.front, strict=True)
        data.append(_line("front", xs, ys) | {"line": steps, "hoverinfo": "skip"})
    for n, group in enumerate(figure.groups):
        dots = [dot for dot in figure.dots if dot.group == group]
        titles = [_words(dot.title) for dot in dots]
        marker = {
            "color": f"@{colour_of(group, n)}",
            "size": [11 if dot.on_front else 8 for dot in dots],
            "opacity": [1.0 if dot.on_front else 0.45 for dot in dots],
        }
        more = {"mode": "markers", "hovertext": titles, "hoverinfo": "text", "marker": marker}
        data.append(_line(group, [dot.x for dot in dots], [dot.y for dot in dots]) | more)
    x = _scaled(figure.x_axis, figure.xs, log=figure.log_x)
    if figure.has_curves and not figure.round_ticks:
        counts = sorted(set(figure.xs))
        x = _axis(figure.x_axis, type="log", tickvals=counts, ticktext=[f"{count:,.0f}" for count in counts])
    y = _scaled(figure.y_axis, figure.ys, log=figure.log_y)
    return {"data": data, "layout": _layout(400, 50, x, y)}


def _line(name: str, xs: Sequence[float], ys: Sequence[float]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": _words(name), "x": list(xs), "y": list(ys)}


def _curve(line: Line, n: int) -> dict[str, Any]:
    """A curve with its points, or a guide."""
    trace = _line(line.name, line.xs, line.ys)
    if not line.titles:
        return trace | {"line": {"dash": "dot" if line.reference else "solid", "color": "@text"}, "hoverinfo": "skip"}
    titles = [_words(title) for title in line.titles]
    colour = {"color": f"@{colour_of(line.name, n)}"}
    return trace | {"mode": "lines+markers", "line": colour, "hovertext": titles, "hoverinfo": "text"}


def _scaled(title: str, values: Sequence[float], *, log: bool) -> dict[str, Any]:
    """An axis; a logarithmic one with the ticks that the other forms of the figure have."""
    if not log:
        return _axis(title)
    ticks = log_ticks(min(values) / 1.08, max(values) * 1.08)
    return _axis(title, type="log", tickvals=ticks, ticktext=[number_text(tick) for tick in ticks])

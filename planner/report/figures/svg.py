"""Figures as SVG: for pages, where style sheets colour them, and as files of their own; as PNG, painted by matplotlib (extra ``plots``)."""

from __future__ import annotations

import importlib
import io
import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import Any

from planner.core.errors import MissingExtra
from planner.report.figures.kinds import COLOURS, Figure, Line, Plot, Rows, colour_of
from planner.report.page import escaped

_MOST = 7


def linear_ticks(low: float, high: float) -> list[float]:
    """Two to seven multiples of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(0.0, 10.3), linear_ticks(0.0, 0.7)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    """
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / _MOST))
    step *= next(factor for factor in (1.0, 2.0, 5.0, 10.0) if (high - low) / (step * factor) <= _MOST + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(n * step, digits) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or some between where few fit; on less than a factor of two, as on a linear axis.

    >>> log_ticks(0.9, 110.0), log_ticks(3.0, 4.0)
    ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0], [3.0, 3.2, 3.4, 3.6, 3.8, 4.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for between in ((1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**n for n in range(first, last + 1) for m in between]
        shown = [tick for tick in ticks if low <= tick <= high]
        if 2 <= len(shown) <= _MOST:
            return [float(f"{tick:.3g}") for tick in shown]
    tens = [10.0**n for n in range(first, last + 1) if low <= 10.0**n <= high]
    return tens[:: -(-len(tens) // _MOST)] if len(tens) >= 2 else linear_ticks(low, high)


def number_text(value: float) -> str:
    """A tick in few characters.

    >>> [number_text(x) for x in (0.0, 0.25, 12.0, 12000.0, 2.5e6, 1e-5)]
    ['0', '0.25', '12', '12k', '2.5M', '1e-05']
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


WIDE, NARROW = 640, 360  # px: of a column of a page, and of a telephone
_CHARACTER = 7.0  # px of a letter at 12 px, in a wide font
_Scale = Callable[[float], float]


def _rules(shade: int) -> str:
    return "".join(
        f"svg .{name}{{fill:{pair[shade]}}}svg .s-{name}{{stroke:{pair[shade]}}}" for name, pair in COLOURS.items()
    )


# Light colours, then dark ones where the reader's system asks for them.
COLOUR_RULES = f"{_rules(0)}\n@media screen and (prefers-color-scheme:dark){{{_rules(1)}}}\n"
_FILE_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#59636e}.grid{stroke:#d1d9e0}.axis{stroke:#1b1f24}.back{fill:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#9198a1}.grid{stroke:#3d444d}.axis{stroke:#e6edf3}.back{fill:#0d1117}}"
)


def draw(figure: Figure, width: int = WIDE) -> str:
    """A figure as an SVG element, well-formed XML.

    Parameters
    ----------
    figure : Figure
    width : int
        Of its own coordinates; letters have 12 of these.

    Returns
    -------
    str
    """
    return _rows(figure, width) if isinstance(figure, Rows) else _plot(figure, width)


def svg_file(figure: Figure) -> str:
    """The same as a file of its own, light or dark as the reader's system has it, with its caption as the title."""
    text = draw(figure)
    head, _, body = text.partition("\n")
    style = f"<title>{escaped(figure.caption)}</title>\n<style>\n{_FILE_STYLE}\n{COLOUR_RULES}</style>\n"
    opened = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f'{opened}\n{style}<rect class="back" width="100%" height="100%" fill="#fff"/>\n{body}\n'


# -- frames ---------------------------------------------------------------------------------------------------------------------


def _svg(figure: Figure, width: int, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escaped(figure.caption)}">\n{body}\n</svg>'


def _fill(word: str, position: int) -> str:
    name = colour_of(word, position)
    return f'class="{name}" fill="{COLOURS[name][0]}"'


def _text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12"{more}>{escaped(words)}</text>'


def _grid(path: str) -> str:
    return f'<path class="grid" fill="none" stroke="#ccc" d="{path}"/>'


def _legend(entries: Sequence[tuple[str, int]], y: float, most: int) -> tuple[list[str], float]:
    """Coloured squares with words, as many lines as they need; returns the parts and where they end."""
    parts, x = [], 4.0
    for word, position in entries:
        width = 20 + _CHARACTER * len(word) + 12
        if x + width > most and x > 4:
            x, y = 4.0, y + 18
        parts.append(f'<rect {_fill(word, position)} x="{x:.1f}" y="{y - 9:.1f}" width="11" height="11" rx="2"/>')
        parts.append(_text(x + 16, y, word))
        x += width
    return parts, y + 12


def _cut(words: str, width: float) -> str:
    """Words that fit into so many px."""
    most = max(int(width / _CHARACTER), 4)
    return words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _scale(low: float, high: float, start: float, end: float, *, log: bool) -> _Scale:
    if log:
        low, high = math.log10(low), math.log10(high)
    wide = (high - low) or 1.0
    if log:
        return lambda value: start + (math.log10(value) - low) / wide * (end - start)
    return lambda value: start + (value - low) / wide * (end - start)


def _span_of(values: Sequence[float], *, log: bool, zero: bool = False) -> tuple[float, float]:
    """Ends of an axis with some room."""
    low, high = min(values), max(values)
    if log:
        ends = math.log10(low), math.log10(high)
        room = max(0.06 * (ends[1] - ends[0]), math.log10(1.08))
        return 10.0 ** max(ends[0] - room, -320.0), 10.0 ** min(ends[1] + room, 308.0)
    low = 0.0 if zero else low
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return (0.0 if zero else low - room), high + room


def _apart(ticks: Sequence[float], x: _Scale) -> list[float]:
    """Ticks whose labels do not touch."""
    kept: list[float] = []
    end = -math.inf
    for tick in ticks:
        half = _CHARACTER * len(number_text(tick)) / 2
        if x(tick) - half >= end:
            kept.append(tick)
            end = x(tick) + half + 6
    return kept


def _axes(
    figure: Plot, x: _Scale, y: _Scale, ticks: tuple[Sequence[float], Sequence[float]], box: tuple[float, ...]
) -> list[str]:
    left, top, right, bottom = box
    parts = []
    for tick in _apart(ticks[0], x):
        parts += [_grid(f"M{x(tick):.1f} {top}V{bottom}"), _text(x(tick), bottom + 17, number_text(tick), "middle")]
    for tick in ticks[1]:
        parts += [_grid(f"M{left} {y(tick):.1f}H{right}"), _text(left - 6, y(tick) + 4, number_text(tick), "end")]
    parts.append(_text((left + right) / 2, bottom + 36, figure.x_axis, "middle"))
    middle = (top + bottom) / 2
    parts.append(
        f'<text transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle" font-size="12">{escaped(figure.y_axis)}</text>'
    )
    return parts


# -- kinds of figures -----------------------------------------------------------------------------------------------------------


def _rows(figure: Rows, width: int) -> str:
    """Rows from the top; whiskers where intervals are known."""
    count = len(figure.rows)
    row, bar, gap, least, share = 30.0, 18.0, 0.0, 0.4, 0.34
    if figure.is_timeline:
        row = 22.0 if count <= 16 else max(320.0 / count, 7.0)
        bar, gap, least, share = row - 2.0, 0.3, 0.25, 0.3
    wanted = max(len(name) for name in figure.rows) * _CHARACTER + 12
    left, right, top = min(wanted, share * width), width - 14.0, 6.0
    high = max([box.end for box in figure.boxes] + [end for _, _, end in figure.whiskers] + [figure.limit or 0.0])
    high = (high or 1.0) * (1.0 if figure.is_timeline else 1.03)
    x = _scale(0.0, high, left, right, log=False)
    bottom = top + row * count
    parts = []
    for tick in _apart(linear_ticks(0.0, high), x):
        parts += [_grid(f"M{x(tick):.1f} {top}V{bottom}"), _text(x(tick), bottom + 16, number_text(tick), "middle")]
    every = max(1, math.ceil(14.0 / row))
    for n in range(0, count, every):
        parts.append(_text(left - 6, top + (n + 0.5) * row + 4, _cut(figure.rows[n], left - 8), "end"))
    kinds = figure.kinds
    for box in figure.boxes:
        y, long = top + box.row * row + (row - bar) / 2, max(x(box.end) - x(box.start) - gap, least)
        parts.append(
            f'<rect {_fill(box.kind, kinds.index(box.kind))} x="{x(box.start):.2f}" y="{y:.1f}" width="{long:.2f}" '
            f'height="{bar:.1f}"><title>{escaped(box.title)}</title></rect>'
        )
    for n, low, end in figure.whiskers:
        middle = top + (n + 0.5) * row
        ends = f"M{x(low):.1f} {middle - 5:.1f}v10M{x(end):.1f} {middle - 5:.1f}v10"
        parts.append(
            f'<path class="axis" stroke="#222" stroke-width="1.5" fill="none" d="M{x(low):.1f} {middle:.1f}H{x(end):.1f}{ends}"/>'
        )
    if figure.limit is not None:
        parts.append(
            f'<path class="s-vermilion" stroke="#d55e00" stroke-width="1.5" stroke-dasharray="5 3" fill="none" '
            f'd="M{x(figure.limit):.1f} {top}V{bottom}"><title>{escaped(figure.limit_name)}</title></path>'
        )
    parts.append(_text((left + right) / 2, bottom + 34, figure.axis, "middle"))
    legend, end = _legend([(kind, n) for n, kind in enumerate(kinds)], bottom + 56, width)
    return _svg(figure, width, end, parts + legend)


def _plot(figure: Plot, width: int) -> str:
    box = (62.0, 8.0, width - 12.0, 300.0 if figure.has_curves else 320.0)
    x, x_ticks = _placed(figure.xs, box[0], box[2], log=figure.log_x)
    y, y_ticks = _placed(figure.ys, box[3], box[1], log=figure.log_y, zero=figure.has_curves and not figure.log_y)
    if figure.has_curves and not figure.round_ticks:
        x_ticks = sorted(set(figure.xs))
    parts = _axes(figure, x, y, (x_ticks, y_ticks), box)
    for n, line in enumerate(figure.lines):
        parts.append(_curve(line, n, x, y))
        for a, b, title in zip(line.xs, line.ys, line.titles, strict=False):  # guides have none
            parts.append(_circle(_fill(line.name, n), x(a), y(b), 4.5, title))
    step = "V{1:.1f}H{0:.1f}" if figure.larger else "H{0:.1f}V{1:.1f}"
    steps = "".join(step.format(x(a), y(b)) for a, b in figure.front[1:])
    for a, b in figure.front[:1]:
        start = f"M{x(a):.1f} {y(b):.1f}"
        parts.append(f'<path class="axis" stroke="#222" stroke-width="1.3" fill="none" d="{start}{steps}"/>')
    groups = figure.groups
    for dot in figure.dots:
        fill = _fill(dot.group, groups.index(dot.group)) + ("" if dot.on_front else ' fill-opacity="0.45"')
        parts.append(_circle(fill, x(dot.x), y(dot.y), 5.5 if dot.on_front else 4.0, dot.title))
    named = [(line.name, n) for n, line in enumerate(figure.lines) if line.titles]
    named += [(group, n) for n, group in enumerate(groups)]
    legend, end = _legend(named, box[3] + 60, width)
    dashed = next((line.name for line in figure.lines if line.reference and figure.has_curves), None)
    if dashed:
        end += 18
        legend.append(_text(4, end - 12, f"dashed: {dashed}"))
    return _svg(figure, width, end, parts + legend)


def _placed(
    values: Sequence[float], start: float, end: float, *, log: bool, zero: bool = False
) -> tuple[_Scale, list[float]]:
    low, high = _span_of(values, log=log, zero=zero)
    return _scale(low, high, start, end, log=log), (log_ticks if log else linear_ticks)(low, high)


def _circle(fill: str, x: float, y: float, radius: float, title: str) -> str:
    return f'<circle {fill} cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escaped(title)}</title></circle>'


def _curve(line: Line, n: int, x: _Scale, y: _Scale) -> str:
    path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in zip(line.xs, line.ys, strict=True))
    style = 'class="axis" stroke="#222" stroke-width="1.5" fill="none"'
    if line.titles:
        name = colour_of(line.name, n)
        style = f'class="s-{name}" stroke="{COLOURS[name][0]}" fill="none" stroke-width="2"'
    elif line.reference:
        style = 'class="axis" stroke="#777" stroke-dasharray="4 4" fill="none"'
    return f'<path {style} d="{path}"/>'


_INCHES, _DPI = 8.0, 160
_POINTS = 72.0 * _INCHES  # across the picture
_INK, _SOFT = "#1b1f24", "#59636e"
_LINE = 18.0  # px of a line of the caption
_STEP = re.compile(r"([MLHVv])([^MLHVv]*)")


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
    root = ET.fromstring(draw(figure))  # noqa: S314 - of our own making
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    caption = textwrap.wrap(figure.caption, 96)
    top = _LINE * len(caption) + 8.0
    sheet = module.Figure(figsize=(_INCHES, _INCHES * (height + top) / width), dpi=_DPI)
    axes = sheet.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0.0, width), ylim=(height, -top))
    axes.set_axis_off()
    size = _POINTS / width  # points of a px; all have one zorder, and so are painted in their order
    for n, line in enumerate(caption):
        axes.text(width / 2, _LINE * (n + 0.8) - top, _plain(line), color=_INK, fontsize=12 * size, ha="center")
    for element in root:
        _paint(axes, element, size)
    stream = io.BytesIO()
    # Without a date and a version, the same answer gives the same bytes.
    sheet.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _plain(words: str) -> str:
    """Words in which a dollar is a dollar, not the beginning of a formula."""
    return words.replace("$", r"\$")


def _paint(axes: Any, element: ET.Element, size: float) -> None:
    """Add one element of the picture; ``size``: points of a px."""
    patches = importlib.import_module("matplotlib.patches")
    given = element.attrib
    if element.tag == "text":
        turned = re.findall(r"-?[\d.]+", given.get("transform", ""))  # translate(x y) rotate(angle)
        x, y, angle = map(float, turned or (given["x"], given["y"], 0.0))
        style = {
            "ha": {"middle": "center", "end": "right"}.get(given["text-anchor"], "left"),
            "va": "baseline",
            "rotation": -angle,
            "rotation_mode": "anchor",
        }
        axes.text(x, y, _plain(element.text or ""), color=_SOFT, fontsize=12 * size, **style)
    elif element.tag == "rect":
        x, y, wide, high = (float(given[name]) for name in ("x", "y", "width", "height"))
        axes.add_patch(patches.Rectangle((x, y), wide, high, color=given["fill"], linewidth=0, zorder=2))
    elif element.tag == "circle":
        x, y, radius = (float(given[name]) for name in ("cx", "cy", "r"))
        opacity = float(given.get("fill-opacity", 1.0))
        axes.add_patch(patches.Circle((x, y), radius, color=given["fill"], alpha=opacity, linewidth=0, zorder=2))
    else:
        wide = float(given.get("stroke-width", 1.0)) * size
        dashes = [float(part) for part in given.get("stroke-dasharray", "").split()]
        for xs, ys in _polylines(given["d"]):
            axes.plot(
                xs,
                ys,
                color=given["stroke"],
                linewidth=wide,
                dashes=dashes or (None, None),
                solid_capstyle="butt",
                zorder=2,
            )


def _polylines(path: str) -> list[tuple[list[float], list[float]]]:
    """Lines of a path of an SVG.

    >>> _polylines("M1 2H5v3M0 0L1 1")
    [([1.0, 5.0, 5.0], [2.0, 2.0, 5.0]), ([0.0, 1.0], [0.0, 1.0])]
    """
    lines: list[tuple[list[float], list[float]]] = []
    for step, words in _STEP.findall(path):
        numbers = [float(word) for word in words.split()]
        if step == "M":
            lines.append(([], []))
        xs, ys = lines[-1]
        xs.append(xs[-1] if step in "Vv" else numbers[0])
        ys.append(ys[-1] if step == "H" else ys[-1] + numbers[0] if step == "v" else numbers[-1])
    return lines

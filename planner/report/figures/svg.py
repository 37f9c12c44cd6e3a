"""Figures as SVG: for pages, where style sheets colour them, and as files of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from planner.report.figures.kinds import COLOURS, Bars, Figure, Line, Lines, Points, Swim, colour_of
from planner.report.page import escaped

__all__ = ["COLOUR_RULES", "NARROW", "WIDE", "draw", "linear_ticks", "log_ticks", "number_text", "svg_file"]

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
_ROW, _BAR = 30, 18
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
    if isinstance(figure, Bars):
        return _bars(figure, width)
    if isinstance(figure, Points):
        return _points(figure, width)
    if isinstance(figure, Lines):
        return _lines(figure, width)
    return _swim(figure, width)


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


def _stroke(word: str, position: int) -> str:
    name = colour_of(word, position)
    return f'class="s-{name}" stroke="{COLOURS[name][0]}" fill="none"'


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
    figure: Points | Lines, x: _Scale, y: _Scale, ticks: tuple[Sequence[float], Sequence[float]], box: tuple[float, ...]
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


def _bars(figure: Bars, width: int) -> str:
    """Rows from the top; a whisker where an interval is known."""
    wanted = max(len(row) for row in figure.rows) * _CHARACTER + 12
    left, right, top = min(wanted, 0.34 * width), width - 14.0, 6.0
    totals = [sum(series.values[n] for series in figure.series) for n in range(len(figure.rows))]
    ends = [*totals, *(i.high for i in figure.intervals if i is not None), figure.limit or 0.0]
    high = (max(ends) or 1.0) * 1.03
    x = _scale(0.0, high, left, right, log=False)
    bottom = top + _ROW * len(figure.rows)
    parts = []
    for tick in _apart(linear_ticks(0.0, high), x):
        parts += [_grid(f"M{x(tick):.1f} {top}V{bottom}"), _text(x(tick), bottom + 16, number_text(tick), "middle")]
    for n, row in enumerate(figure.rows):
        y = top + n * _ROW + (_ROW - _BAR) / 2
        parts.append(_text(left - 6, y + _BAR / 2 + 4, _cut(row, left - 8), "end"))
        start = 0.0
        for k, series in enumerate(figure.series):
            value = series.values[n]
            if value > 0:
                long = max(x(start + value) - x(start), 0.4)
                parts.append(
                    f'<rect {_fill(series.name, k)} x="{x(start):.1f}" y="{y:.1f}" width="{long:.1f}" height="{_BAR}">'
                    f"<title>{escaped(series.titles[n])}</title></rect>"
                )
            start += value
        interval = figure.intervals[n] if figure.intervals else None
        if interval is not None:
            middle = y + _BAR / 2
            a, b = x(interval.low), x(interval.high)
            parts.append(
                f'<path class="axis" stroke="#222" stroke-width="1.5" fill="none" '
                f'd="M{a:.1f} {middle:.1f}H{b:.1f}M{a:.1f} {middle - 5:.1f}v10M{b:.1f} {middle - 5:.1f}v10"/>'
            )
    if figure.limit is not None:
        at = x(figure.limit)
        parts.append(
            f'<path class="s-vermilion" stroke="#d55e00" stroke-width="1.5" stroke-dasharray="5 3" fill="none" '
            f'd="M{at:.1f} {top}V{bottom}"><title>{escaped(figure.limit_name)}</title></path>'
        )
    parts.append(_text((left + right) / 2, bottom + 34, figure.axis, "middle"))
    used = [(s.name, k) for k, s in enumerate(figure.series) if any(s.values)]
    legend, end = _legend(used, bottom + 56, width)
    return _svg(figure, width, end, parts + legend)


def _points(figure: Points, width: int) -> str:
    box = (62.0, 8.0, width - 12.0, 320.0)
    xs = [dot.x for dot in figure.dots] + [x for line in figure.guides for x in line.xs]
    ys = [dot.y for dot in figure.dots] + [y for line in figure.guides for y in line.ys]
    (x, x_ticks), (y, y_ticks) = (
        _placed(values, log, start, end)
        for values, log, start, end in ((xs, figure.log_x, box[0], box[2]), (ys, figure.log_y, box[3], box[1]))
    )
    parts = _axes(figure, x, y, (x_ticks, y_ticks), box)
    parts += [_guide(line, x, y) for line in figure.guides]
    front = sorted((dot.x, dot.y) for dot in figure.dots if dot.on_front)
    if len(front) > 1:
        steps = "".join(f"H{x(a):.1f}V{y(b):.1f}" for a, b in front[1:])
        parts.append(
            f'<path class="axis" stroke="#222" stroke-width="1.3" fill="none" d="M{x(front[0][0]):.1f} {y(front[0][1]):.1f}{steps}"/>'
        )
    groups = list(dict.fromkeys(dot.group for dot in figure.dots))
    for dot in figure.dots:
        size, faint = (5.5, "") if dot.on_front else (4.0, ' fill-opacity="0.45"')
        parts.append(
            f'<circle {_fill(dot.group, groups.index(dot.group))}{faint} cx="{x(dot.x):.1f}" cy="{y(dot.y):.1f}" r="{size}">'
            f"<title>{escaped(dot.title)}</title></circle>"
        )
    legend, end = _legend([(group, n) for n, group in enumerate(groups)], box[3] + 60, width)
    return _svg(figure, width, end, parts + legend)


def _placed(values: Sequence[float], log: bool, start: float, end: float) -> tuple[_Scale, list[float]]:
    low, high = _span_of(values, log=log)
    return _scale(low, high, start, end, log=log), (log_ticks if log else linear_ticks)(low, high)


def _lines(figure: Lines, width: int) -> str:
    box = (62.0, 8.0, width - 12.0, 300.0)
    xs = sorted({x for line in figure.lines for x in line.xs})
    ys = [y for line in figure.lines for y in line.ys]
    low, high = _span_of(xs, log=True)
    x = _scale(low, high, box[0], box[2], log=True)
    ends = _span_of(ys, log=figure.log_y, zero=not figure.log_y)
    y = _scale(*ends, box[3], box[1], log=figure.log_y)
    x_ticks = log_ticks(low, high) if figure.round_ticks else xs
    parts = _axes(figure, x, y, (x_ticks, (log_ticks if figure.log_y else linear_ticks)(*ends)), box)
    for n, line in enumerate(figure.lines):
        if line.reference:
            parts.append(_guide(line, x, y))
            continue
        parts.append(f'<path {_stroke(line.name, n)} stroke-width="2" d="{_steps(line, x, y)}"/>')
        for a, b, title in zip(line.xs, line.ys, line.titles, strict=True):
            parts.append(
                f'<circle {_fill(line.name, n)} cx="{x(a):.1f}" cy="{y(b):.1f}" r="4.5"><title>{escaped(title)}</title></circle>'
            )
    shown = [(line.name, n) for n, line in enumerate(figure.lines) if not line.reference]
    dashed = next((line.name for line in figure.lines if line.reference), None)
    legend, end = _legend(shown, box[3] + 60, width)
    if dashed:
        end += 18
        legend.append(_text(4, end - 12, f"dashed: {dashed}"))
    return _svg(figure, width, end, parts + legend)


def _steps(line: Line, x: _Scale, y: _Scale) -> str:
    return "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in zip(line.xs, line.ys, strict=True))


def _guide(line: Line, x: _Scale, y: _Scale) -> str:
    """A line without points."""
    style = 'stroke="#777" stroke-dasharray="4 4"' if line.reference else 'stroke="#222" stroke-width="1.5"'
    return f'<path class="axis" {style} fill="none" d="{_steps(line, x, y)}"/>'


def _swim(figure: Swim, width: int) -> str:
    wanted = max(len(lane) for lane in figure.lanes) * _CHARACTER + 12
    left, right, top = min(wanted, 0.3 * width), width - 12.0, 6.0
    lane = 22.0 if len(figure.lanes) <= 16 else max(320.0 / len(figure.lanes), 7.0)
    x = _scale(0.0, figure.end or 1.0, left, right, log=False)
    bottom = top + lane * len(figure.lanes)
    parts = []
    for tick in _apart(linear_ticks(0.0, figure.end or 1.0), x):
        parts += [_grid(f"M{x(tick):.1f} {top}V{bottom}"), _text(x(tick), bottom + 16, number_text(tick), "middle")]
    every = max(1, math.ceil(14.0 / lane))
    for n, name in enumerate(figure.lanes):
        if n % every == 0:
            parts.append(_text(left - 6, top + n * lane + lane / 2 + 4, _cut(name, left - 8), "end"))
    kinds = list(dict.fromkeys(span.kind for span in figure.spans))
    for span in figure.spans:
        long = max(x(span.end) - x(span.start) - 0.3, 0.25)
        parts.append(
            f'<rect {_fill(span.kind, kinds.index(span.kind))} x="{x(span.start):.2f}" y="{top + span.lane * lane + 1:.1f}" '
            f'width="{long:.2f}" height="{lane - 2:.1f}"><title>{escaped(span.title)}</title></rect>'
        )
    parts.append(_text((left + right) / 2, bottom + 34, figure.axis, "middle"))
    legend, end = _legend([(kind, n) for n, kind in enumerate(kinds)], bottom + 56, width)
    return _svg(figure, width, end, parts + legend)

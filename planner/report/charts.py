"""Charts as SVG, for pages: points on two logarithmic axes, and a histogram of ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.core.numbers import duration_text, significant
from planner.report.page import escaped

__all__ = ["Point", "ratio_bins", "ratio_histogram", "scatter"]

_WIDTH, _HEIGHT = 480, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 12, 46
_MOST_TICKS = 6
_NEAR = 0.2  # of the dashed lines
_BINS = 31  # odd: the middle one holds ratios around 1


# The style sheet of a page gives the classes its colours; the attributes are for programs that read none.
_GRID = 'class="grid" fill="none" stroke="#ccc"'
_SAME = 'class="same" stroke="#222" stroke-width="1.5"'
_DASHED = 'class="near" stroke="#777" stroke-dasharray="5 4"'
_POINTS = 'class="points" fill="#0b62c4" fill-opacity="0.5"'
_BAD = 'class="bad" fill="#c2410c"'
_BARS = 'class="bars" fill="#0b62c4" fill-opacity="0.75"'
_OTHER = 'class="other" fill="none" stroke="#c2410c" stroke-width="1.5"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A pair of times; ``title`` is shown on hovering."""

    measured_s: float
    predicted_s: float
    title: str
    is_bad: bool = False


def scatter(points: Sequence[Point]) -> str:
    """Predicted over measured times, both logarithmic and on one scale, with the diagonal and lines 20 % to either side.

    Parameters
    ----------
    points : sequence of Point
        Positive times, at least one.
    """
    times = [time for point in points for time in (point.measured_s, point.predicted_s)]
    low, high = _frame(math.log10(min(times)), math.log10(max(times)))

    def x(exponent: float) -> float:
        return _LEFT + (exponent - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(exponent: float) -> float:
        return _HEIGHT - _BOTTOM - (exponent - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in _ticks(low, high):
        label, a, b = escaped(_plain(duration_text(10**tick))), x(tick), y(tick)
        parts.append(f'<path {_GRID} d="M{a:.1f} {_TOP}V{_HEIGHT - _BOTTOM}M{_LEFT} {b:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{a:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{b + 4:.1f}" text-anchor="end">{label}</text>')
    for factor, style in ((1.0, _SAME), (1.0 + _NEAR, _DASHED), (1.0 - _NEAR, _DASHED)):
        shift = math.log10(factor)
        first, last = max(low, low - shift), min(high, high - shift)
        parts.append(
            f'<line {style} x1="{x(first):.1f}" y1="{y(first + shift):.1f}" x2="{x(last):.1f}" y2="{y(last + shift):.1f}"/>'
        )
    for style, is_bad in ((_POINTS, False), (_BAD, True)):  # what stands out is drawn last
        parts.append(f"<g {style}>")
        for point in points:
            if point.is_bad is is_bad:
                a, b = x(math.log10(point.measured_s)), y(math.log10(point.predicted_s))
                parts.append(
                    f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2"><title>{escaped(point.title)}</title></circle>'
                )
        parts.append("</g>")
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">measured</text>')
    parts.append(f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">predicted</text>')
    return _svg("Predicted times over measured times", parts)


def _plain(text: str) -> str:
    """A duration without zeros that say nothing.

    >>> _plain("100 ms"), _plain("1.00 s"), _plain("30.0 us"), _plain("2.50 h")
    ('100 ms', '1 s', '30 us', '2.5 h')
    """
    number, unit = text.split(" ", 1)
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _frame(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis, with some room, and never without an extent."""
    room = max(0.04 * (high - low), 0.05)
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Exponents of two to seven labels: powers of ten, or some between where few fit.

    >>> [round(10**tick, 3) for tick in _ticks(-0.1, 1.2)], [round(10**tick, 3) for tick in _ticks(0.01, 0.2)]
    ([1.0, 2.0, 5.0, 10.0], [1.142, 1.274, 1.421])
    """
    first, last = math.floor(low), math.ceil(high)
    for between in ((1, 2, 5), (1, 3), (1,)):
        ticks = [n + math.log10(m) for n in range(first, last + 1) for m in between]
        shown = [tick for tick in ticks if low <= tick <= high]
        if 2 <= len(shown) <= _MOST_TICKS:
            return shown
    tens = [float(n) for n in range(first, last + 1) if low <= n <= high]
    if len(tens) >= 2:
        return tens[:: -(-len(tens) // _MOST_TICKS)]
    return [low + (high - low) / 4 * n for n in (1, 2, 3)]


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


def ratio_histogram(ratios: Sequence[float], other: Sequence[float] = ()) -> str:
    """Bars of how many ratios predicted / measured lie where, on a logarithmic axis; ``other`` as an outline.

    Parameters
    ----------
    ratios : sequence of float
        Positive, at least one.
    other : sequence of float
        Positive; scaled to the same area.
    """
    width, (counts, outline) = ratio_bins(ratios, other)
    reach = width * _BINS / 2
    scale = len(ratios) / len(other) if other else 0.0
    most = max(*counts, *(count * scale for count in outline))

    def x(value: float) -> float:
        return _LEFT + (value + reach) / (2 * reach) * (_WIDTH - _LEFT - _RIGHT)

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / most * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for share in (0.5, 1.0):
        b = y(most * share)
        parts.append(f'<path {_GRID} d="M{_LEFT} {b:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{b + 4:.1f}" text-anchor="end">{most * share:,.0f}</text>')
    parts.append(f"<g {_BARS}>")
    for n, count in enumerate(counts):
        start = -reach + n * width
        left, right = x(start), x(start + width)
        text = f"{count:,} of {len(ratios):,} between {_ends(n, start, width)}"
        parts.append(
            f'<rect x="{left + 0.5:.1f}" y="{y(count):.1f}" width="{right - left - 1:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - y(count):.1f}"><title>{escaped(text)}</title></rect>'
        )
    parts.append("</g>")
    if other:
        steps = "".join(
            f"L{x(-reach + n * width):.1f} {y(count * scale):.1f}H{x(-reach + (n + 1) * width):.1f}"
            for n, count in enumerate(outline)
        )
        parts.append(f'<path {_OTHER} d="M{_LEFT} {_HEIGHT - _BOTTOM}{steps}V{_HEIGHT - _BOTTOM}"/>')
    parts.append(f'<line {_SAME} x1="{x(0):.1f}" y1="{_TOP}" x2="{x(0):.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
    parts.append(f'<path {_GRID} d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>')
    for value in (-0.9 * reach, -0.45 * reach, 0.0, 0.45 * reach, 0.9 * reach):
        label = significant(math.exp(value), 2)
        parts.append(f'<text x="{x(value):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">&#215;{label}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">predicted / measured</text>'
    )
    return _svg("How many predictions are too short or too long by how much", parts)


def _ends(n: int, start: float, width: float) -> str:
    low = "0" if n == 0 else significant(math.exp(start))
    high = "any" if n == _BINS - 1 else significant(math.exp(start + width))
    return f"{low} and {high} times the measured time"


def _svg(name: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(name)}">\n{body}\n</svg>'

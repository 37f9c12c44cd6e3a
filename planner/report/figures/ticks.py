"""Round numbers for axes."""

from __future__ import annotations

import math

__all__ = ["linear_ticks", "log_ticks", "number_text"]

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

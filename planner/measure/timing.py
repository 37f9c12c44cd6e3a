"""How long a call takes, and the table that is written: one row per case, in the columns that ``planner validate`` reads.

Warm-up, then samples of several calls each, so that no sample is shorter than the clock can tell.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.measure.cases import Case

Call = Callable[[], object]
# Times so many calls, one after the other, in seconds.
Timer = Callable[[Call, int], float]

# Far above the microsecond that clocks, events and their calls take.
_SHORTEST_SAMPLE_S = 1e-3
_MOST_CALLS = 2000
_FEWEST_SAMPLES = 5
_FEWEST_OF_LONG = 3  # of calls that take longer than the budget
_MOST_SAMPLES = 50
_PATIENCE = 3.0  # budgets after which sampling ends early


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Samples of one call, each the mean of ``calls`` of them, ascending."""

    samples_s: tuple[float, ...]
    calls: int = 1

    @property
    def median_s(self) -> float:
        """Half of the samples are shorter."""
        return statistics.median(self.samples_s)

    @property
    def p90_s(self) -> float:
        """Nine tenths of the samples are no longer.

        >>> Timing(samples_s=tuple(range(1, 11))).p90_s
        9
        """
        return self.samples_s[max(math.ceil(0.9 * len(self.samples_s)) - 1, 0)]

    @property
    def spread(self) -> float:
        """Range of the middle half over the median.

        >>> Timing(samples_s=(1.0, 2.0, 2.0, 2.0, 3.0)).spread
        0.0
        """
        if len(self.samples_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (high - low) / self.median_s if self.median_s else 0.0


def time_call(
    call: Call,
    timer: Timer,
    *,
    budget_s: float,
    shortest_s: float = _SHORTEST_SAMPLE_S,
    agree: Callable[[float], float] | None = None,
    worst: Callable[[Sequence[float]], Sequence[float]] = lambda samples: samples,
) -> Timing:
    """Time a call.

    Parameters
    ----------
    call : function
    timer : function
        ``timer(call, count)``: seconds that so many calls take.
    budget_s : float
        About how long all of it may take.
    shortest_s : float
        Of a sample, which is the mean of as many calls as that takes.
    agree : function, optional
        The same number on all ranks from that of each: collectives must be called equally often everywhere. Without it, a call
        that turns out to be slower than it looked gets fewer samples.
    worst : function, optional
        Samples of the slowest rank from those of each.
    """
    together = agree or (lambda value: value)
    first_s = together(timer(call, 1))  # compiles, allocates, picks an algorithm
    is_long = first_s > budget_s
    once_s = together(timer(call, 1)) if is_long else together(min(timer(call, 1), timer(call, 1)))
    calls = _calls_per_sample(once_s, shortest_s)
    if calls > 1:  # a call alone takes longer than one of many
        once_s = together(timer(call, calls) / calls)
        calls = _calls_per_sample(once_s, shortest_s)
    start_s = time.monotonic()
    taken = [timer(call, calls) / calls]
    # A timer may take longer than what it finds (`planner.measure.processes.message_timer`).
    sample_s = together(max(taken[0] * calls, time.monotonic() - start_s, 1e-9))
    fewest = _FEWEST_SAMPLES if sample_s * _FEWEST_SAMPLES <= budget_s else _FEWEST_OF_LONG
    count = min(max(int(budget_s / sample_s), fewest), _MOST_SAMPLES)
    while len(taken) < count:
        taken.append(timer(call, calls) / calls)
        is_late = calls * sum(taken) > _PATIENCE * budget_s
        if agree is None and is_late and len(taken) >= _FEWEST_OF_LONG:
            break
    samples = worst(taken)
    return Timing(samples_s=tuple(sorted(samples)), calls=calls)


def _calls_per_sample(once_s: float, shortest_s: float) -> int:
    return min(max(math.ceil(shortest_s / max(once_s, 1e-9)), 1), _MOST_CALLS)


COLUMNS: tuple[str, ...] = (
    *("kernel", "device", "device_file", "cluster_file", "precision", "pass_", "op", "collective"),
    *("m", "n", "k", "c", "h", "w", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w"),
    *("batch", "hidden", "heads", "head_dim", "seq", "causal", "flash_attention", "cell", "timesteps", "input"),
    *("ranks", "nodes", "bytes"),
    *("time_ms", "min_ms", "p90_ms", "spread", "samples", "calls", "machine", "software"),
)


def row_of(case: Case, timing: Timing, where: Mapping[str, str]) -> dict[str, str]:
    """Cells of a row.

    Parameters
    ----------
    case : Case
    timing : Timing
    where : mapping
        Columns about the machine.
    """
    cells: dict[str, str] = {name: str(value) for name, value in case.cells}
    return {
        "kernel": case.kernel,
        **where,
        "precision": case.precision,
        "pass_": case.direction,
        **cells,
        "time_ms": _milliseconds(timing.median_s),
        "min_ms": _milliseconds(timing.samples_s[0]),
        "p90_ms": _milliseconds(timing.p90_s),
        "spread": f"{timing.spread:.4f}",
        "samples": str(len(timing.samples_s)),
        "calls": str(timing.calls),
    }


def table_text(rows: Sequence[Mapping[str, str]]) -> str:
    """CSV of rows."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.6g}"

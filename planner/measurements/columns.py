"""Remarks about columns that are not read, or under another name, and about units that a whole file has wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from planner.measurements.headers import meant_by, plain
from planner.measurements.outcomes import Outcome
from planner.measurements.tables import Table

__all__ = ["far_off", "remarks", "renamed", "unread"]

# Only tables of kernels have them: a "size" or a "time" of a training run is anything.
_OF_KERNELS = frozenset(("bytes", "time_ms", "ranks", "busbw_GBps", "algbw_GBps", "pass_", "fwd_ms", "bwd_ms"))
# And only training runs have these.
_OF_RUNS = frozenset(
    ("framework", "oom", "memory_gib", "recompute", "zero_stage", "sp", "step_time_ms", "params_b", "device_mem_gb")
)


# What a kind of table calls by a name that means something else in others.
_READ = {"collective": ("time_us",)}
# Predictions that are off by more than this in the median of a file are no matter of a cost model.
_WRONG_UNIT = 30.0
_FEWEST = 3  # rows of which that can be said


def remarks(table: Table, kind: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """What a reader of the figures should know about a file.

    Parameters
    ----------
    table : Table
    kind : str
        Of table.
    outcomes : sequence of Outcome
    """
    found = [*renamed(table), *unread(table.columns, kind)]
    ratios = [c.predicted_s / c.measured_s for outcome in outcomes if outcome.is_scored for c in outcome.comparisons]
    return (*found, *far_off(ratios))


def far_off(ratios: Sequence[float]) -> tuple[str, ...]:
    """What to say where predictions over measured times are so far from 1 that no cost model explains it; else nothing.

    >>> far_off([0.001, 0.001, 0.9]), far_off([0.5, 0.6, 0.9])
    (('half of the predictions are over 1,000 times shorter than what was measured: wrong unit?',), ())
    """
    positive = [ratio for ratio in ratios if ratio > 0]
    middle = float(np.median(positive)) if len(positive) >= _FEWEST else 1.0
    if abs(math.log(middle)) <= math.log(_WRONG_UNIT):
        return ()
    far = "shorter" if middle < 1 else "longer"
    times = 1 / middle if middle < 1 else middle
    return (f"half of the predictions are over {times:,.0f} times {far} than what was measured: wrong unit?",)


def renamed(table: Table) -> tuple[str, ...]:
    """Columns that are read though they are called otherwise, in a sentence; nothing where there are none."""
    read = ", ".join(
        f"'{written}' as '{name}'{f' in {unit}' if unit else ''}" for written, (name, unit) in table.renamed.items()
    )
    return (f"columns are read by other names: {read}",) if read else ()


def unread(columns: Sequence[str], kind: str) -> tuple[str, ...]:
    """Columns of a table of this kind that are not read though their names say that they might be, each with what to call it.

    >>> unread(["hidden", "tp", "tp_size", "memory_mib", "mood"], "plan")
    ("column 'memory_mib' is not read: call it 'memory_gib', in its unit",)
    >>> unread(["hidden", "seq_len", "seqlen"], "plan")
    ("columns 'seq_len', 'seqlen' are not read, since each means 'seq': call one of them that",)
    """
    of_runs = kind in ("plan", "network")
    found = []
    for column in columns:
        meant = meant_by(column)
        if meant is None or meant in columns or column in _READ.get(kind, ()):
            continue
        if meant in (_OF_KERNELS if of_runs else _OF_RUNS):
            continue
        alike = [other for other in columns if meant_by(other) == meant]
        if len(alike) > 1:
            found.append(
                f"columns {', '.join(map(repr, alike))} are not read, since each means '{meant}': call one of them that"
            )
            continue
        unit = "" if re.search(r"_(?:s|us|mib|mb|gb)$", plain(column)) is None else ", in its unit"
        found.append(f"column '{column}' is not read: call it '{meant}'{unit}")
    return tuple(dict.fromkeys(found))

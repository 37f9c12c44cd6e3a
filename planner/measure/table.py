"""The table that is written: one row per case, in the columns that ``planner validate`` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from planner.measure.cases import Case
from planner.measure.timing import Timing

__all__ = ["COLUMNS", "row_of", "table_text"]

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
        "min_ms": _milliseconds(timing.min_s),
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

"""A grid of answers in every form: table, JSON, CSV, Parquet, a figure."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.core.blocks import Block, Column, Facts, Report, Table
from planner.core.errors import UsageError
from planner.core.numbers import duration_text, duration_unit, percent, significant
from planner.core.objectives import StepCost, shown_costs
from planner.report.documents import RESULT_VERSION
from planner.report.machine import finite
from planner.report.uncertainty import interval_text
from planner.sweeping.answer import COLUMNS
from planner.sweeping.run import Swept

if TYPE_CHECKING:
    from planner.report.figures.kinds import Plot

NO_PARQUET = (
    "--output FILE.parquet: needs the package 'pyarrow', which is not installed: pip install 'paleo-planner[parquet]'; "
    ".csv needs nothing"
)


def sweep_report(swept: Swept, command_line: str) -> Report:
    """Answer of ``planner sweep``."""
    return Report(
        blocks=lambda: _blocks(swept),
        data=lambda: {
            "schema_version": RESULT_VERSION,
            "cells": swept.total,
            "interrupted": swept.interrupted,
            "command_line": command_line,
            "rows": [dict(row) for row in swept.rows],
        },
        # Without rows there is still a header.
        records=lambda: swept.rows or [],
    )


def _blocks(swept: Swept) -> list[Block]:
    rows = swept.rows
    if not rows:
        return [Facts((("Questions", _counted(swept)),))]

    def texts(name: str, text: Callable[[Any], str]) -> tuple[str, ...]:
        return tuple("" if row[name] is None else text(row[name]) for row in rows)

    reasons = tuple(str(row["plan"] or (row["reason"] or "").partition("\n")[0]) for row in rows)
    spans = tuple(
        interval_text((row["step_time_low_s"], row["step_time_high_s"]), duration_unit(row["step_time_s"] or 0.0))
        for row in rows
    )
    columns = [
        Column("cluster", texts("cluster", str), 1, is_text=True, flexible=True),
        Column("GPUs", texts("gpus", "{:,}".format), 0, unit="at most"),
        Column("batch", texts("batch", "{:,}".format), 2),
        Column("seq", texts("seq", "{:,}".format), 2),
        Column("step time", texts("step_time_s", duration_text), 0),
        Column("80 % interval", spans, 3),
        Column("throughput", texts("throughput_samples_per_s", significant), 2, unit="samples/s"),
        Column("GPUs", texts("workers", "{:,}".format), 3, unit="used"),
        *(_paid(cost, rows, 4) for cost in shown_costs()),
        Column("plan, or why there is none", reasons, 3, is_text=True, flexible=True, plans=True),
    ]
    shown = [c for c in columns if c.priority == 0 or any(c.cells)]
    unproven = [row["gap"] for row in rows if row["status"] == "ok" and not row["proven_optimal"]]
    worst = max((gap for gap in unproven if gap is not None), default=0.0)
    proof = f"{len(unproven)} of the plans are not proven best; none could be improved by more than {percent(worst)}"
    uniform = "uniform over stages; planner optimize also tries stages that differ, which may be faster"
    is_mesh = any(row["tp"] is not None for row in rows)
    facts = (
        ("Questions", _counted(swept)),
        *([("Proof", proof)] if unproven else []),
        *([("Plans", uniform)] if is_mesh else []),
    )
    return [Table(columns=tuple(shown)), Facts(facts)]


def _paid(cost: StepCost, rows: Sequence[Mapping[str, Any]], priority: int) -> Column:
    """What a million tokens or samples, or a step, cost by the plan of each row."""
    many, words = cost.per(any(row["seq"] is not None for row in rows))
    costs = [
        None
        if row[cost.figure] is None
        else row[cost.figure] * many / (1 if many == 1 else row["batch"] * (row["seq"] or 1))
        for row in rows
    ]
    return Column(
        cost.title, tuple("" if paid is None else cost.text(paid) for paid in costs), priority, unit=f"per {words}"
    )


def _counted(swept: Swept) -> str:
    counts = Counter(row["status"] for row in swept.rows)
    words = {
        "ok": "with a plan",
        "no_plan": "where nothing fits",
        "limit": "stopped by the time limit",
        "refused": "that contradict themselves",
        "failed": "that failed",
    }
    left = swept.total - len(swept.rows)
    parts = (
        f"{swept.total} in all",
        *(f"{count} {words[status]}" for status, count in counts.items()),
        *([f"{swept.taken} of these known from before"] if swept.taken else []),
        *([f"{left} not searched yet"] if left else []),
    )
    return ", ".join(parts)


def parquet_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """The rows as a Parquet file.

    Raises
    ------
    UsageError
        The extra is missing.
    """
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(NO_PARQUET) from None
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    table = pyarrow.Table.from_pylist([finite(row) for row in rows], schema=schema)
    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue()


def scaling_figure(rows: Sequence[dict[str, Any]]) -> Plot | None:
    """Throughput over GPUs, one line for every cluster, batch and length; None where no cell has a plan."""
    from planner.report.figures.kinds import Line, Plot

    curves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] == "ok":
            curves.setdefault((row["cluster"], row["batch"], row["seq"]), []).append(row)
    if not curves:
        return None
    varies = [len({key[n] for key in curves}) > 1 for n in range(3)]
    lines = []
    for key, points in curves.items():
        points.sort(key=lambda row: row["gpus"])
        words = [w for w, many in zip((f"{key[0]}", f"batch {key[1]}", f"seq {key[2]}"), varies, strict=True) if many]
        lines.append(
            Line(
                name=", ".join(words) or str(key[0]),
                xs=tuple(float(row["gpus"]) for row in points),
                ys=tuple(float(row["throughput_samples_per_s"]) for row in points),
                titles=tuple(
                    f"{row['cluster']}, {row['gpus']} GPUs at most: {duration_text(row['step_time_s'])} per step\n{row['plan']}"
                    for row in points
                ),
            )
        )
    model = next(iter(curves.values()))[0]["model"]
    return Plot(
        name="sweep",
        caption=f"Best plans of {model}: throughput over the number of GPUs.",
        x_axis="GPUs at most",
        y_axis="samples per second",
        lines=tuple(lines),
        log_x=True,
        log_y=True,
    )

"""The answer of ``planner measure``: the table that was written, and predicted against measured time of every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.core.blocks import Block, Column, Facts, Report, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, duration_text, percent, signed, significant
from planner.measure.run import Measured
from planner.measurements.kinds import predict_table
from planner.measurements.outcomes import DEFAULT, Outcome
from planner.measurements.scores import Score, baseline_factor, score, split_by
from planner.measurements.tables import read_table
from planner.report.documents import RESULT_VERSION

# Spread above which a median says little; an idle machine stays below 5 %.
_MUCH = 0.25
_FIGURES = ("rows", "scored", "mape", "median_ape", "bias")
# Columns that are no part of a shape.
_NOT_SHAPE = {
    *("kernel", "device", "device_file", "cluster_file", "precision", "pass_", "machine", "software"),
    *("time_ms", "min_ms", "p90_ms", "spread", "samples", "calls"),
}


def measure_report(
    path: Path,
    device: str,
    machine: str,
    software: str,
    measured: Measured,
    constants: Mapping[str, float] | None = None,
) -> Report:
    """Predict the rows of the table that was written, with ``planner validate``'s code.

    Parameters
    ----------
    path : Path
        Of the table.
    device : str
        What the rows are predicted for.
    machine, software : str
    measured : Measured
    constants : mapping of str to float, optional
        Factors of a calibration.
    """
    preset = replace(DEFAULT, constants=tuple((constants or {}).items()))
    _, outcomes = predict_table(read_table(path), preset)
    parts = {name: score(members, baseline_factor(members)) for name, members in split_by(outcomes, "kernel").items()}
    records = [_record(outcome) for outcome in outcomes]
    facts = {"file": str(path), "device": device, "machine": machine, "software": software}
    return Report(
        blocks=lambda: _blocks(facts, records, parts, measured),
        data=lambda: {
            "schema_version": RESULT_VERSION,
            **facts,
            "stopped": measured.stopped,
            "skipped": dict(measured.skipped),
            "kernels": [{"kernel": name, **{key: part[key] for key in _FIGURES}} for name, part in parts.items()],
            "rows": records,
        },
        records=lambda: records,
    )


def _record(outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    found = outcome.comparisons[0] if outcome.comparisons else None
    return {
        "line": row.line,
        "kernel": row.text("kernel"),
        "pass": row.text("pass_") or None,
        "precision": row.text("precision"),
        "shape": " ".join(f"{name}={text}" for name, text in row.cells.items() if text and name not in _NOT_SHAPE),
        "measured_s": float(row.text("time_ms")) * 1e-3,
        "spread": float(row.text("spread") or 0.0),
        "predicted_s": None if found is None else found.predicted_s,
        "ratio": None if found is None else found.predicted_s / found.measured_s,
        "not_predicted": outcome.skipped or None,
    }


def _blocks(
    facts: Mapping[str, str], records: Sequence[Mapping[str, Any]], parts: Mapping[str, Score], measured: Measured
) -> list[Block]:
    scattered = sum(record["spread"] > _MUCH for record in records)
    doubtful = f"{scattered} rows with a spread above {percent(_MUCH)}: the machine was busy or changed its clock"
    pairs = {
        **facts,
        "rows": f"{len(records)}{' until it was stopped' if measured.stopped else ''}",
        "not measured": "; ".join(f"{count} {reason}" for reason, count in measured.skipped.items()),
        "doubtful": doubtful if scattered else "",
    }
    return [
        Facts(pairs=tuple((name, text) for name, text in pairs.items() if text or name in facts)),
        _rows_table(records),
        Sentence(
            "Times are medians; spread is the range of the middle half of the samples over the median; ratio is predicted over measured."
        ),
        _parts_table(parts),
        Sentence(
            "planner validate FILE.csv scores the table, planner calibrate fits the cost model's constants to it."
        ),
    ]


def _rows_table(records: Sequence[Mapping[str, Any]]) -> Table:
    def words(key: str) -> tuple[str, ...]:
        return tuple(str(record[key] or "") for record in records)

    return Table(
        columns=(
            Column(title="kernel", cells=words("kernel"), is_text=True),
            Column(title="pass", cells=words("pass"), is_text=True, priority=1),
            Column(title="precision", cells=words("precision"), is_text=True, priority=2),
            Column(title="shape", cells=words("shape"), is_text=True, flexible=True),
            Column(title="measured", cells=tuple(duration_text(record["measured_s"]) for record in records)),
            Column(title="spread", cells=tuple(percent(record["spread"]) for record in records), priority=3),
            Column(title="predicted", cells=tuple(duration_text(record["predicted_s"]) for record in records)),
            Column(
                title="ratio",
                cells=tuple(NOT_AVAILABLE if r["ratio"] is None else significant(r["ratio"]) for r in records),
            ),
        )
    )


def _parts_table(parts: Mapping[str, Score]) -> Table:
    scores = list(parts.values())
    return Table(
        columns=(
            Column(title="kernel", cells=tuple(parts), is_text=True),
            Column(title="rows", cells=tuple(str(part["rows"]) for part in scores)),
            Column(title="predicted", cells=tuple(str(part["scored"]) for part in scores)),
            Column(title="MAPE", cells=tuple(percent(part["mape"]) for part in scores)),
            Column(title="median\nerror", cells=tuple(percent(part["median_ape"]) for part in scores)),
            Column(title="bias", cells=tuple(signed(part["bias"]) for part in scores)),
        )
    )

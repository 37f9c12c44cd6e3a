"""The answer of ``planner calibrate`` in every form, and the calibration as a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from costmodel.framework import cluster_run_by
from costmodel.hardware.cluster import Cluster
from costmodel.uncertainty.constants import CONSTANTS, assumptions_with, cluster_with, stated_values
from planner.calibration.run import Calibrated, Errors, Finding
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import percent, significant
from planner.files.naming.frameworks import framework_of
from planner.files.yaml_text import yaml_text
from planner.report.documents import RESULT_VERSION

SCHEMA_VERSION = 1


def calibration_document(found: Calibrated, command_line: str = "") -> dict[str, Any]:
    """The file, as plain values: a valid ``planner.schema.calibration.CalibrationFile``."""
    from planner import __version__

    calibration, machinery = found.calibration, found.machinery
    source = {
        "device": machinery.device_name,
        "cluster": machinery.cluster,
        "framework": calibration.framework,
        "rows": sum(table.rows for table in found.tables),
        "used": sum(table.used for table in found.tables),
        "tables": [
            {"file": table.file, "sha256": table.sha256, "kind": table.kind, "rows": table.rows, "used": table.used}
            for table in found.tables
        ],
        "version": __version__,
        "command": command_line,
        "note": found.fell_back,
    }
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": calibration.name,
        "source": {key: value for key, value in source.items() if value not in ("", [])},
        "constants": {name: dataclasses.asdict(constant) for name, constant in calibration.constants.items()},
        "correlation": calibration.correlation.tolist(),
        "residual": {
            "log_sd": calibration.residual_log_sd,
            "groups": calibration.residual_groups,
            "by_kind": dict(found.residual_by_kind),
        },
    }
    before, left_out = found.errors.before["median_ape"], found.errors.left_out
    if left_out is not None and left_out["median_ape"] is not None and before is not None:
        document["cross_validation"] = {
            "folds": found.folds,
            "by": found.grouped_by,
            "error_before": float(f"{before:.4g}"),
            "error_after": float(f"{left_out['median_ape']:.4g}"),
        }
    return document


def calibration_text(found: Calibrated, command_line: str = "") -> str:
    """The file."""
    words = (
        "Factors on the constants of the cost model; 1 is the bundled model, log_sd the standard deviation of the logarithm.\n"
        "Use it with: planner optimize ... --calibration FILE"
    )
    return yaml_text(calibration_document(found, command_line), words)


def result_document(found: Calibrated, command_line: str = "") -> dict[str, Any]:
    """The answer for programs: a ``planner.schema.results.CalibrationResult``."""
    return {
        "schema_version": RESULT_VERSION,
        "calibration": calibration_document(found, command_line),
        "fell_back": found.fell_back or None,
        "doubt": found.doubt or None,
        "configurations": found.configurations,
        "folds": found.folds,
        "grouped_by": found.grouped_by,
        "constants": _constant_rows(found),
        "files": [
            {
                "kind": table.kind,
                "rows": table.rows,
                "used": table.used,
                "skipped": dict(table.skipped),
                **_errors_document("file", errors),
            }
            for table, errors in zip(found.tables, found.by_file, strict=True)
        ],
        "kinds": [_errors_document("kind", errors) for errors in found.by_kind],
        "all": _errors_document("name", found.errors),
    }


def _constant_rows(found: Calibrated) -> list[dict[str, Any]]:
    return [
        {
            "name": finding.name,
            "value": finding.constant.value,
            "log_sd": finding.constant.log_sd,
            "prior_log_sd": finding.constant.prior_log_sd,
            "determined": finding.constant.determined,
            "reason": finding.reason or None,
        }
        for finding in found.findings
    ]


def _errors_document(key: str, errors: Errors) -> dict[str, Any]:
    return {
        key: errors.name,
        "times": errors.times,
        "before": errors.before,
        "after": errors.after,
        "left_out": errors.left_out,
    }


# Where a field is a time, a rate or a share: what people read it in.
_UNITS = {"_bytes_per_s": (1e9, " GB/s"), "_flop_per_s": (1e12, " TFLOP/s"), "_s": (1e-6, " us")}


def calibration_report(found: Calibrated, cluster: Cluster | None, command_line: str = "") -> Report:
    """Make the report.

    Parameters
    ----------
    found : Calibrated
    cluster : Cluster, optional
        What the rows ran on, where the command line says so: the constants are shown with its numbers.
    command_line : str
        For the provenance.
    """
    return Report(
        blocks=lambda: _blocks(found, cluster),
        data=lambda: result_document(found, command_line),
        records=lambda: [{**one, "reason": one["reason"] or ""} for one in _constant_rows(found)],
    )


def _blocks(found: Calibrated, cluster: Cluster | None) -> list[Block]:
    kinds = _errors("kind of table", found.by_kind, [kind.name for kind in found.by_kind])
    open_ones = _undetermined(found)
    spread = ", ".join(f"{kind} {percent(sd)}" for kind, sd in found.residual_by_kind.items())
    unseen = "rows left out" if found.errors.left_out is not None and not found.fell_back else "these rows"
    return [
        Sentence(_summary(found), strong=True),
        *([Sentence(f"{found.fell_back}.")] if found.fell_back else []),
        Heading("Rows"),
        _rows(found),
        _skipped(found),
        *([kinds] if len(found.by_kind) > 1 else []),
        Heading("Constants: factors on the bundled values"),
        _constants(found, cluster),
        *([Sentence(open_ones)] if open_ones else []),
        Sentence(
            f"What the constants do not explain, as a standard deviation of log(measured / predicted) over {unseen}: {spread}."
        ),
    ]


def _summary(found: Calibrated) -> str:
    errors = found.errors
    text = f"median error {percent(errors.before['median_ape'])} with the bundled constants"
    if not found.fell_back:
        text += f", {percent(errors.after['median_ape'])} with those fitted to the same {errors.times:,} times"
    if errors.left_out is not None:
        by = "" if found.grouped_by == "rows" else f" by {found.grouped_by}"
        text += f", {percent(errors.left_out['median_ape'])} on rows left out of the fit ({found.folds} folds{by})"
    return text


def _rows(found: Calibrated) -> Table:
    names = [table.file.rsplit("/", maxsplit=1)[-1] for table in found.tables]
    return _errors(
        "file",
        found.by_file,
        names,
        Column(title="kind", cells=tuple(table.kind for table in found.tables), is_text=True, priority=3),
        Column(title="rows", cells=tuple(f"{table.rows:,}" for table in found.tables), priority=2),
        Column(title="used", cells=tuple(f"{table.used:,}" for table in found.tables)),
    )


def _errors(title: str, rows: Sequence[Errors], names: Sequence[str], *more: Column) -> Table:
    columns = [
        Column(title=title, cells=tuple(names), is_text=True, flexible=True),
        *more,
        Column(title="times", cells=tuple(f"{row.times:,}" for row in rows), priority=4),
        Column(title="median\nbundled", cells=tuple(percent(row.before["median_ape"]) for row in rows)),
        Column(title="median\nfitted", cells=tuple(percent(row.after["median_ape"]) for row in rows)),
        Column(title="MAPE\nbundled", cells=tuple(percent(row.before["mape"]) for row in rows), priority=1),
        Column(title="MAPE\nfitted", cells=tuple(percent(row.after["mape"]) for row in rows), priority=1),
    ]
    left_out = [row.left_out for row in rows if row.left_out is not None]
    if len(left_out) == len(rows):
        columns += [
            Column(title="median\nleft out", cells=tuple(percent(one["median_ape"]) for one in left_out)),
            Column(title="MAPE\nleft out", cells=tuple(percent(one["mape"]) for one in left_out), priority=1),
        ]
    return Table(columns=tuple(columns))


def _skipped(found: Calibrated) -> Block:
    pairs = [
        (
            table.file.rsplit("/", maxsplit=1)[-1],
            f"skipped: {'; '.join(f'{n:,} {why}' for why, n in table.skipped.items())}",
        )
        for table in found.tables
        if table.skipped
    ]
    return Facts(pairs=tuple(pairs)) if pairs else Sentence("No row was skipped.")


def _constants(found: Calibrated, cluster: Cluster | None) -> Table:
    findings = found.findings
    meanings = tuple(CONSTANTS[finding.name].meaning for finding in findings)
    numbers = [] if cluster is None else [tuple(_numbers(found, finding, cluster) for finding in findings)]
    columns = (
        Column(title="constant", cells=tuple(finding.name for finding in findings), is_text=True),
        Column(title="factor", cells=tuple(f"{finding.constant.value:.3f}" for finding in findings)),
        Column(title="sure to", cells=tuple(percent(finding.constant.log_sd) for finding in findings)),
        Column(title="before", cells=tuple(percent(finding.constant.prior_log_sd) for finding in findings), priority=1),
        Column(
            title="determined",
            cells=tuple("yes" if finding.constant.determined else "no" for finding in findings),
            is_text=True,
        ),
        *(Column(title="that is", cells=cells, is_text=True, flexible=True, priority=2) for cells in numbers),
        Column(title="what it multiplies", cells=meanings, is_text=True, flexible=True, priority=3),
    )
    return Table(columns=columns)


def _numbers(found: Calibrated, finding: Finding, cluster: Cluster) -> str:
    """``matmul_fraction 0.800 -> 0.731`` of the first field, where it changes."""
    if finding.constant.value == 1.0:
        return ""
    factor = {finding.name: finding.constant.value}
    framework = framework_of(found.calibration.framework)
    base = framework.mesh_assumptions()
    cluster = cluster_run_by(cluster, framework.attention)
    before = stated_values(finding.name, cluster, base)
    after = stated_values(finding.name, cluster_with(cluster, factor), assumptions_with(base, factor))
    for name, value in before.items():
        size, unit = next((found for ending, found in _UNITS.items() if name.endswith(ending)), (1.0, ""))
        return f"{name} {significant(value / size)} -> {significant(after[name] / size)}{unit}"
    return ""


def _undetermined(found: Calibrated) -> str:
    """Which constants the data could not determine, by reason."""
    by_reason: dict[str, list[str]] = {}
    for finding in found.findings:
        if not finding.constant.determined:
            by_reason.setdefault(finding.reason, []).append(finding.name)
    if not by_reason:
        return ""
    return (
        "Not determined by these rows: "
        + "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        + "."
    )

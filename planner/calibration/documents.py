"""A calibration as plain values: its file, and the answer of ``planner calibrate`` for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from planner.calibration.run import Calibrated, Errors
from planner.files.yaml_text import yaml_text
from planner.measurements.metrics import ErrorSummary
from planner.report.documents import RESULT_VERSION

__all__ = ["SCHEMA_VERSION", "calibration_document", "calibration_text", "result_document"]

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
    before, left_out = found.errors.before.median_ape, found.errors.left_out
    if left_out is not None and left_out.median_ape is not None and before is not None:
        document["cross_validation"] = {
            "folds": found.folds,
            "by": found.grouped_by,
            "error_before": float(f"{before:.4g}"),
            "error_after": float(f"{left_out.median_ape:.4g}"),
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
        "constants": [
            {
                "name": finding.name,
                "value": finding.constant.value,
                "log_sd": finding.constant.log_sd,
                "prior_log_sd": finding.constant.prior_log_sd,
                "determined": finding.constant.determined,
                "reason": finding.reason or None,
            }
            for finding in found.findings
        ],
        "files": [
            {
                "kind": table.kind,
                "rows": table.rows,
                "used": table.used,
                "skipped": dict(table.skipped),
                **_errors("file", errors),
            }
            for table, errors in zip(found.tables, found.by_file, strict=True)
        ],
        "kinds": [_errors("kind", errors) for errors in found.by_kind],
        "all": _errors("name", found.errors),
    }


def _errors(key: str, errors: Errors) -> dict[str, Any]:
    return {
        key: errors.name,
        "times": errors.times,
        "before": _figures(errors.before),
        "after": _figures(errors.after),
        "left_out": None if errors.left_out is None else _figures(errors.left_out),
    }


def _figures(summary: ErrorSummary) -> dict[str, Any]:
    return {
        "mape": summary.mape,
        "median_ape": summary.median_ape,
        "p90_ape": summary.p90_ape,
        "bias": summary.bias,
    }

"""Calibration files: by path or bundled name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from costmodel.uncertainty.calibration import Calibration
from planner.files.loading import load_document
from planner.files.resources import resolve

__all__ = ["DEFAULT_CALIBRATION", "LoadedCalibration", "calibration_in_words", "load_calibration"]

# What error bars are made of where no other calibration is named; its factors are all 1.
DEFAULT_CALIBRATION = "default"
_SHOWN_CHANGE = 0.005  # smaller changes of a constant would be written as x 1.00


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCalibration:
    """A calibration and the file it comes from; ``tables``: SHA-256 of the tables that it was fitted to."""

    calibration: Calibration
    path: Path
    sha256: str
    description: str = ""
    tables: frozenset[str] = frozenset()


def load_calibration(text: str = DEFAULT_CALIBRATION) -> LoadedCalibration:
    """Load a calibration by path or bundled name.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> set(load_calibration("default").calibration.values.values())
    {1.0}
    """
    from planner.schema.calibration import CalibrationFile

    path = resolve("calibrations", text)
    loaded = load_document(path, CalibrationFile)
    return LoadedCalibration(
        calibration=loaded.content.to_domain(),
        path=path,
        sha256=loaded.document.sha256,
        description=loaded.content.description,
        tables=frozenset(table.sha256 for table in loaded.content.source.tables),
    )


def calibration_in_words(calibration: Calibration) -> str:
    """Name of a calibration and what it changes.

    >>> calibration_in_words(load_calibration("default").calibration)
    'default (changes nothing)'
    """
    changed = {name: value for name, value in calibration.values.items() if abs(value - 1.0) > _SHOWN_CHANGE}
    words = [f"{name} x {value:.2f}" for name, value in changed.items()]
    words += [f"{name} {value:g}" for name, value in calibration.assumed.items()]
    words += [f"framework {calibration.framework}"] if calibration.framework else []
    return f"{calibration.name} ({', '.join(words) or 'changes nothing'})"

"""`planner.validate`: predictions beside published or own measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.api.calls import in_python_words
from planner.api.shown import Answer
from planner.core.errors import UsageError

if TYPE_CHECKING:
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation(Answer):
    r"""How wrong the predictions of tables of measurements are.

    Examples
    --------
    A run that took 1.5 s a step:

    >>> import planner
    >>> from pathlib import Path
    >>> header, row = "model,device,gpus,global_batch,seq,tp,precision,step_time_ms", "llama3-8b,h100-sxm,8,8,8192,8,bf16,1500"
    >>> runs = Path("runs.csv")
    >>> size = runs.write_text(f"{header}\n{row}\n")
    >>> found = planner.validate(runs)
    >>> found.to_dict()["files"][0]["scored"], found.to_dict()["files"][0]["mape"] < 0.2
    (1, True)
    >>> runs.unlink()
    """

    by: str | None
    raw: Any

    def __repr__(self) -> str:
        return f"<planner.Validation of {', '.join(score.file for score in self.raw)}>"

    def _report(self) -> Report:
        from planner.measurements.report import validation_report

        return validation_report(self.raw, self.by)


def validate(
    *files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    by: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
) -> Validation:
    """Predict the rows of tables of measurements and say how wrong the predictions are.

    Parameters
    ----------
    *files : path, or a sequence of paths
        CSV tables; docs/measurements.md has their columns.
    by : str, optional
        Also score the rows apart by the text of this column.
    calibration : name or path, optional
        Constants and error bars of ``planner calibrate``.

    Raises
    ------
    PlannerError
        A file cannot be read or is of no known kind; every bad file is named.

    Examples
    --------
    >>> import planner
    >>> planner.validate("no-such-table.csv")
    Traceback (most recent call last):
    ...
    planner.core.errors.InputFileError: no-such-table.csv: no such file
    """
    from planner.files.loading import load_calibration
    from planner.files.resources import reference_to
    from planner.measurements.scores import validate_files

    with in_python_words():
        names: list[str] = []
        for given in files:
            several = [given] if isinstance(given, (str, os.PathLike)) else given
            names += [os.fspath(name) for name in several]
        if not names:
            raise UsageError("files: give at least one CSV file")
        known = None if calibration is None else load_calibration(reference_to("calibrations", calibration))
        return Validation(by=by, raw=validate_files(names, by, known))

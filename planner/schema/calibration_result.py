"""What `planner calibrate --json` prints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.calibration import CalibrationFile
from planner.schema.result import Number, Result

__all__ = ["CalibrationResult"]

Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Entry(BaseModel):
    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = Result.model_config


class CalibrationFigures(_Entry):
    """Errors of some times, as shares of what was measured; null where there is none."""

    mape: Error | None = Field(description="Mean absolute error.")
    median_ape: Error | None = Field(description="Median.")
    p90_ape: Error | None = Field(description="90th percentile.")
    bias: Number | None = Field(description="Mean of log(predicted / measured).")


class _BeforeAfter(_Entry):
    times: Count = Field(description="Measured times; a row of kernels may have several.")
    before: CalibrationFigures = Field(description="With the bundled constants.")
    after: CalibrationFigures = Field(description="With the constants of the calibration.")
    left_out: CalibrationFigures | None = Field(
        description="Of a fit to the other folds; null without cross-validation."
    )


class FileErrors(_BeforeAfter):
    """One file."""

    file: str
    kind: str
    rows: Count = Field(description="Rows in all: `used` plus the sum of `skipped`.")
    used: Count
    skipped: dict[str, Count] = Field(description="Reason -> rows that were left out for it.")


class KindErrors(_BeforeAfter):
    """One kind of table."""

    kind: str


class AllErrors(_BeforeAfter):
    """All times."""

    name: str


class ConstantResult(_Entry):
    """One constant."""

    name: str
    value: Number = Field(description="Factor on the bundled value.")
    log_sd: Error = Field(description="Standard deviation of its logarithm after the fit.")
    prior_log_sd: Error
    determined: bool = Field(description="Whether the measurements said more than the prior.")
    reason: str | None = Field(description="Why it is not determined.")


class CalibrationResult(_Entry):
    """Answer of `planner calibrate`."""

    schema_version: Literal[1]
    calibration: CalibrationFile = Field(description="What -o writes.")
    fell_back: str | None = Field(description="Why the bundled constants were kept; null where a fit was made.")
    doubt: str | None = Field(
        description="What the rows have not in common, or too few of to say how others are predicted; null: nothing."
    )
    configurations: Count = Field(description="Distinct ones; repeats count once.")
    folds: Count = Field(description="Of the cross-validation; 0: there was none.")
    grouped_by: Literal["network", "dataset_group", "rows"]
    constants: tuple[ConstantResult, ...]
    files: tuple[FileErrors, ...]
    kinds: tuple[KindErrors, ...]
    all: AllErrors

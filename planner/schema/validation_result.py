"""What `planner validate --json` prints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.result import Number, Result, Seconds

__all__ = ["ValidationDocument"]

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Entry(BaseModel):
    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = Result.model_config


class Figures(_Entry):
    """Figures of some rows; errors are shares of what was measured, and null where there is nothing to compare."""

    rows: Count = Field(description="Rows in all: `scored` plus the sum of `skipped`.")
    scored: Count
    skipped: dict[str, Count] = Field(description="Reason -> rows that were left out for it.")
    usable: Count = Field(description="Rows with a usable measurement and a known shape, or a failure.")
    coverage: Share | None = Field(description="scored / usable.")
    comparisons: Count = Field(description="Measured times; a row may have several.")
    mape: Error | None = Field(description="Mean absolute error of the times.")
    median_ape: Error | None = Field(description="Median.")
    p90_ape: Error | None = Field(description="90th percentile.")
    bias: Number | None = Field(
        description="Mean of log(predicted / measured); null also where something is predicted to take no time."
    )
    skill: Number | None = Field(description="1 - mape / that of FLOPs over peak at one fitted efficiency.")
    groups: Count = Field(description="Sets of at least three rows that differ in the plan only.")
    kendall_tau: Number | None = Field(description="Mean over groups of tau-b.")
    pair_accuracy: Share | None = Field(description="Mean over groups of the share of pairs in the right order.")
    regret_top1_mean: Error | None = Field(
        description="Measured time of the pick (the predicted best that is predicted to fit) / best measured, mean."
    )
    regret_top1_max: Error | None = Field(description="The same, of the worst group.")
    regret_top3_mean: Error | None = Field(description="The same for the best measured of the first three picks, mean.")
    interval_rows: Count = Field(
        description="Times of training steps whose 80 % interval is known; of large files evenly spaced ones may stand for all."
    )
    interval_coverage: Share | None = Field(description="Share of them that was measured inside.")
    interval_width: Error | None = Field(description="Median of log(upper end / lower end).")
    interval_score: Error | None = Field(
        description="Mean of the width plus ten times how far outside the measurement is, of log(time); smaller is better."
    )
    interval_score_one_width: Error | None = Field(
        description="The same of one width for all, that of the residuals of the calibration."
    )
    interval_score_hindsight: Error | None = Field(description="The same of the one width that suits these rows best.")
    list_questions: Count = Field(description="Groups with at least three different plans.")
    list_holds_best: Share | None = Field(
        description="Share of them whose list to benchmark holds the plan measured best."
    )
    list_length: Error | None = Field(description="Median number of plans on the list.")
    list_plans: Error | None = Field(description="Median number of plans of a group.")
    memory_mape: Error | None = Field(description="Mean absolute error of the memory.")
    memory_median_ape: Error | None = Field(description="Median.")
    memory_bias: Number | None = Field(description="Mean of log(predicted / measured) of the memory.")
    oom_recall: Share | None = Field(description="Of the failures that memory explains: predicted not to fit.")
    oom_false_alarm: Share | None = Field(description="Of the runs that succeeded: predicted not to fit.")
    failures: Count = Field(description="Failed runs.")
    failures_apart: dict[str, Count] = Field(description="Failures that memory does not explain, by reason.")
    parameters_fitted: Count = Field(description="Fitted constants that the predictions use.")
    without_default: Share | None = Field(description="Share of the scored rows that state everything.")
    defaults: dict[str, Count] = Field(description="Fact -> scored rows that do not state it.")


class PaleoFigures(_Entry):
    """The same rows by the preset `paleo`."""

    scored: Count
    mape: Error | None
    median_ape: Error | None
    p90_ape: Error | None
    bias: Number | None
    skill: Number | None
    kendall_tau: Number | None
    pair_accuracy: Share | None
    regret_top1_mean: Error | None
    regret_top1_max: Error | None
    regret_top3_mean: Error | None


class WorstEntry(_Entry):
    """A row that is predicted badly."""

    line: int = Field(ge=2, description="In the file.")
    what: str = Field(description="What was timed.")
    predicted_s: Seconds
    measured_s: Seconds
    ratio: Number = Field(description="predicted / measured.")
    label: str = Field(description="What tells the row from others.")


class RefusedCell(_Entry):
    """A cell that is not what its column says, or a line with more cells than the header."""

    line: int = Field(ge=1, description="In the file.")
    column: int = Field(ge=1, description="Where the cell begins.")
    message: str


class PartFigures(Figures):
    """Figures of the rows with one text in a column."""

    column: str
    value: str = Field(description="Empty for rows that do not state it.")
    paleo: PaleoFigures


class FileFigures(Figures):
    """Figures of one file."""

    file: str = Field(description="As it was named.")
    kind: str = Field(description="What its rows are.")
    paleo: PaleoFigures
    error_bars_in_sample: bool = Field(description="Whether the error bars were fitted to this very file.")
    refused: list[RefusedCell] = Field(
        description="Cells that are not what their columns say; their rows are counted in `skipped`."
    )
    remarks: list[str] = Field(
        description="Columns that are not read though their names are near; units that all rows seem to have wrong."
    )
    fitted: list[str] = Field(description="The fitted constants, a device's own with its name before them.")
    worst: list[WorstEntry] = Field(description="The largest ratios.")
    by: list[PartFigures] | None = Field(default=None, description="Parts, where a column was asked for.")


class ValidationDocument(_Entry):
    """Answer of `planner validate --json`."""

    schema_version: Literal[1]
    by: str | None = Field(description="The column that parts the files.")
    files: list[FileFigures]

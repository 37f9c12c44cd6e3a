"""What `planner measure --json` and `planner detect --json` print."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.result import Number, Result, Seconds

__all__ = ["DetectDocument", "MeasureDocument"]

Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Entry(BaseModel):
    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = Result.model_config


class MeasuredRow(_Entry):
    """One row of the table of measurements."""

    line: Count = Field(description="In the table, from 1.")
    kernel: str
    pass_: str | None = Field(alias="pass", description="null for kernels without passes.")
    precision: str
    shape: str = Field(description="Columns and values.")
    measured_s: Seconds = Field(description="Median.")
    spread: Error = Field(description="Range of the middle half of the samples over the median.")
    predicted_s: Seconds | None = Field(description="null where it cannot be predicted.")
    ratio: Error | None = Field(description="predicted / measured.")
    not_predicted: str | None = Field(description="Why not.")


class MeasuredKernel(_Entry):
    """All rows of one kind of kernel; errors are shares of what was measured."""

    kernel: str
    rows: Count
    scored: Count
    mape: Error | None = Field(description="Mean absolute error.")
    median_ape: Error | None = Field(description="Median.")
    bias: Number | None = Field(description="Mean of log(predicted / measured).")


class MeasureDocument(_Entry):
    """Measured times of kernels and collectives, and the predictions."""

    schema_version: Literal[1]
    file: str = Field(description="The table that was written.")
    device: str = Field(description="What the rows are predicted for.")
    machine: str = Field(description="What was measured, as it calls itself.")
    software: str
    stopped: bool = Field(description="By Ctrl-C: the rows until then.")
    skipped: dict[str, Count] = Field(description="Reason -> cases that were not measured.")
    kernels: list[MeasuredKernel]
    rows: list[MeasuredRow]


class DetectedValue(_Entry):
    """One value of the files."""

    part: str = Field(description="A device, or a level of links.")
    key: str
    value: str = Field(description="With its unit, as the file has it.")
    known: bool = Field(description="False: an assumption.")
    source: str = Field(description="Where it comes from, or why it is assumed.")


class DetectDocument(_Entry):
    """What was found out about a machine."""

    schema_version: Literal[1]
    name: str = Field(description="Of the cluster.")
    description: str
    values: list[DetectedValue]
    remarks: list[str] = Field(description="Programs that failed or hang, what was left out.")
    files: list[str] = Field(description="Files that were written.")

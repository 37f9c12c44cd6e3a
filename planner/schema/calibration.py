"""File format of a calibration: factors on the constants of the cost model, how sure they are, and what they leave unexplained."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from costmodel.framework import LayerAssumptions
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import CONSTANTS, CalibratedConstant, Calibration
from costmodel.uncertainty.intervals import ErrorModel
from planner.core.errors import did_you_mean
from planner.schema.common import FileModel, Name, Text, fail, plain_number

__all__ = [
    "CalibrationFile",
    "ConstantEntry",
    "CostEntry",
    "Costs",
    "CrossValidation",
    "ErrorModelEntry",
    "ResidualEntry",
    "Source",
    "SourceEntry",
]

# Eigenvalues of a correlation matrix are at least 0; written with few digits, a little less.
_FEW_DIGITS = 1e-3


_COSTS = tuple(field.name for model in (MeshAssumptions, LayerAssumptions) for field in fields(model))


def _cost(name: str) -> str:
    if name not in _COSTS:
        fail(
            f"'{name[:60]}' is no assumption of the cost model{did_you_mean(name, _COSTS)} (known: {', '.join(_COSTS)})"
        )
    return name


Source = Annotated[Text, Field(min_length=3, description="where it comes from")]


class CostEntry(FileModel):
    """One assumption of the cost model that differs for this framework."""

    value: Annotated[float, Field(ge=0.0, le=1e12), BeforeValidator(plain_number)]
    source: Source
    fitted: bool = Field(default=False, strict=True, description="whether it was fitted to runs")


Costs = dict[Annotated[str, AfterValidator(_cost)], CostEntry]


def _known(name: str) -> str:
    if name not in CONSTANTS:
        hint, known = did_you_mean(name, CONSTANTS), ", ".join(CONSTANTS)
        fail(f"'{name[:60]}' is no constant of the cost model{hint} (known: {known})")
    return name


ConstantName = Annotated[str, AfterValidator(_known)]
Factor = Annotated[float, Field(gt=0.0, le=1e3), BeforeValidator(plain_number)]
LogSd = Annotated[float, Field(ge=0.0, le=10.0), BeforeValidator(plain_number)]
Correlation = Annotated[float, Field(ge=-1.0, le=1.0), BeforeValidator(plain_number)]
Error = Annotated[float, Field(ge=0.0), BeforeValidator(plain_number)]
Count = Annotated[int, Field(strict=True, ge=0)]
# The names of costmodel.uncertainty.intervals.PARTS.
Part = Literal["compute", "layer_communication", "stage_transfer", "gradient_exchange", "bubble", "stages_over_nodes"]


class ConstantEntry(FileModel):
    """One constant of `costmodel.uncertainty.constants.CONSTANTS`: a factor on what device, cluster and framework state."""

    value: Factor = Field(default=1.0, description="the factor; 1 is the bundled model")
    log_sd: LogSd | None = Field(
        default=None,
        description="standard deviation of its natural logarithm; as before the measurements unless stated",
    )
    prior: Factor = Field(default=1.0, description="the factor before the measurements")
    prior_log_sd: LogSd | None = Field(
        default=None,
        description="standard deviation of the logarithm before the measurements; that of the cost model unless stated",
    )
    determined: bool = Field(
        default=False, strict=True, description="whether the measurements said more than the prior"
    )

    def to_domain(self, name: str) -> CalibratedConstant:
        """Make the cost model's object."""
        prior_log_sd = CONSTANTS[name].prior_log_sd if self.prior_log_sd is None else self.prior_log_sd
        return CalibratedConstant(
            value=self.value,
            log_sd=prior_log_sd if self.log_sd is None else self.log_sd,
            prior=self.prior,
            prior_log_sd=prior_log_sd,
            determined=self.determined,
        )


class ErrorModelEntry(FileModel):
    """Errors of one kind of workload (`costmodel.uncertainty.intervals.ErrorModel`); written by ``benchmarks/intervals.py``."""

    rows: Count = Field(default=0, description="rows that it was fitted to")
    shared_log_sd: LogSd = Field(description="of all plans of a question alike")
    plan_log_sd: LogSd = Field(description="of one plan")
    by_part: dict[Part, LogSd] = Field(default_factory=dict, description="of each part of a step")
    similarity_steps: Factor = Field(
        default=1.0, description="doublings of a degree at which the errors of two plans agree by 1/e only"
    )
    typical_log_sd: Factor = Field(default=0.1, description="median standard deviation of the rows")
    sharpness: Annotated[float, Field(ge=0.0, le=1.0), BeforeValidator(plain_number)] = Field(
        default=1.0,
        description="how far intervals follow the standard deviation of a plan: 1 in proportion, 0 not at all",
    )
    low: Annotated[float, Field(ge=-100.0, le=100.0), BeforeValidator(plain_number)] = Field(
        default=-1.2816, description="10 % quantile of the standardised error"
    )
    high: Annotated[float, Field(ge=-100.0, le=100.0), BeforeValidator(plain_number)] = Field(
        default=1.2816, description="90 % quantile"
    )
    ranking_scale: Factor = Field(
        default=1.0, description="factor on the errors that plans do not share, where plans are compared"
    )
    listed_share: Annotated[float, Field(gt=0.0, lt=1.0), BeforeValidator(plain_number)] = Field(
        default=0.9, description="share of the draws in which a list to benchmark must hold the best"
    )
    basis: Text = Field(default="", description="what it was found from, where that is not training steps")
    devices: tuple[Name, ...] = Field(
        default=(),
        description="devices of the rows; on any other the interval is as wide as that of an unknown framework",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.low >= self.high:
            fail("must be above 'low'", at="high")
        return self

    def to_domain(self) -> ErrorModel:
        """Make the cost model's object."""
        return ErrorModel(**self.model_dump(exclude={"rows"}))


class ResidualEntry(FileModel):
    """What the constants leave unexplained, as standard deviations of log(measured / predicted)."""

    log_sd: LogSd = Field(description="of the training runs, or of all rows where there are none")
    groups: Count | None = Field(
        default=None,
        description="networks whose training steps that was found from: the fewer, the less it moves the bundled error bars; as stated "
        "where absent",
    )
    by_part: dict[Name, LogSd] = Field(
        default_factory=dict, description="of the parts of a step (costmodel.uncertainty.intervals)"
    )
    by_kind: dict[Name, LogSd] = Field(default_factory=dict, description="of the rows of each kind of table")
    kinds: dict[Name, ErrorModelEntry] = Field(
        default_factory=dict,
        description="error models by kind of workload: transformers, images, the name of a framework, serving, serving-experts, "
        "serving-shared-experts",
    )


class TableEntry(FileModel):
    """A table that was fitted to."""

    file: Text
    sha256: Text
    kind: Text = ""
    rows: Count
    used: Count


class SourceEntry(FileModel):
    """Where a calibration comes from."""

    tables: tuple[TableEntry, ...] = ()
    rows: Count = 0
    used: Count = 0
    device: Text = ""
    cluster: Text = ""
    framework: Text = ""
    version: Text = ""
    command: Text = ""
    note: Text = ""


class CrossValidation(FileModel):
    """Median of |predicted - measured| / measured: with the bundled constants, and on rows left out with those fitted to the others."""

    folds: Count
    by: Text = Field(default="rows", description="what the folds keep together: a column, or rows")
    error_before: Error
    error_after: Error


class CalibrationFile(FileModel):
    """A calibration."""

    schema_version: Literal[1] = Field(description="version of this file format")
    name: Name
    description: Text = ""
    source: SourceEntry = Field(default_factory=SourceEntry)
    constants: Annotated[dict[ConstantName, ConstantEntry], Field(max_length=100)] = Field(default_factory=dict)
    correlation: list[list[Correlation]] = Field(
        default_factory=list, description="of the logarithms, in the order of 'constants'; none where absent"
    )
    residual: ResidualEntry | None = Field(
        default=None,
        description="what the constants leave unexplained; as the bundled calibration has it unless stated",
    )
    cross_validation: CrossValidation | None = None
    assumptions: Costs = Field(
        default_factory=dict,
        description="assumptions of the cost model that these runs had in place of their framework's: waits of one cluster, say",
    )

    @model_validator(mode="after")
    def _matrix(self) -> Self:
        size = len(self.constants)
        if not size and not self.assumptions:
            fail("says nothing: it has neither 'constants' nor 'assumptions'")
        if self.correlation:
            if len(self.correlation) != size or any(len(row) != size for row in self.correlation):
                fail(f"expected {size} rows of {size} numbers, one for each constant", at="correlation")
            matrix = np.array(self.correlation)
            if not np.allclose(matrix, matrix.T, atol=1e-6) or not np.allclose(np.diag(matrix), 1.0, atol=1e-6):
                fail("expected a symmetric matrix with ones on its diagonal", at="correlation")
            if float(np.linalg.eigvalsh(matrix)[0]) < -_FEW_DIGITS * size:
                fail("is no correlation matrix: it has a negative eigenvalue", at="correlation")
        return self

    def to_domain(self) -> Calibration:
        """Make the cost model's calibration.

        Examples
        --------
        >>> file = CalibrationFile(schema_version=1, name="mine", residual={"log_sd": 0.1},
        ...     constants={"matmul_rate": {"value": 0.9, "log_sd": 0.02, "prior_log_sd": 0.17, "determined": True}})
        >>> file.to_domain().values
        {'matmul_rate': 0.9}
        """
        constants = {name: entry.to_domain(name) for name, entry in self.constants.items()}
        residual = self.residual
        matrix = np.array(self.correlation, dtype=np.float64) if self.correlation else np.eye(len(constants))
        return Calibration(
            name=self.name,
            constants=constants,
            correlation=matrix,
            residual_log_sd=0.0 if residual is None else residual.log_sd,
            residual_by_part={} if residual is None else dict(residual.by_part),
            residual_groups=None if residual is None else residual.groups,
            framework=self.source.framework,
            assumed={name: entry.value for name, entry in self.assumptions.items()},
            error_models={}
            if residual is None
            else {kind: entry.to_domain() for kind, entry in residual.kinds.items()},
        )

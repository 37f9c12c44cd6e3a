"""File format of a calibration: factors on the constants of the cost model, how sure they are, and what they leave unexplained."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from costmodel.framework import SERVING_COSTS, LayerAssumptions
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import CONSTANTS, CalibratedConstant, Calibration
from costmodel.uncertainty.intervals import ErrorModel
from costmodel.uncertainty.limits import MemoryErrors
from planner.schema.common import FileModel, Name, NamedFile, Text, fail, known, plain_number
from planner.schema.records import key, record

# Eigenvalues of a correlation matrix are at least 0; written with few digits, a little less.
_FEW_DIGITS = 1e-3


_COSTS = (*(field.name for model in (MeshAssumptions, LayerAssumptions) for field in fields(model)), *SERVING_COSTS)


Source = Annotated[Text, Field(min_length=3, description="where it comes from")]


class CostEntry(FileModel):
    """One assumption of the cost model that differs for this framework."""

    value: Annotated[float, Field(ge=0.0, le=1e12), BeforeValidator(plain_number)]
    source: Source
    fitted: bool = Field(default=False, strict=True, description="whether it was fitted to runs")


Costs = dict[Annotated[str, known(_COSTS, "no assumption of the cost model")], CostEntry]


ConstantName = Annotated[str, known(CONSTANTS, "no constant of the cost model")]
Factor = Annotated[float, Field(gt=0.0, le=1e3), BeforeValidator(plain_number)]
LogSd = Annotated[float, Field(ge=0.0, le=10.0), BeforeValidator(plain_number)]
Correlation = Annotated[float, Field(ge=-1.0, le=1.0), BeforeValidator(plain_number)]
Error = Annotated[float, Field(ge=0.0), BeforeValidator(plain_number)]
Count = Annotated[int, Field(strict=True, ge=0)]
# The names of costmodel.uncertainty.intervals.PARTS.
Part = Literal["compute", "layer_communication", "stage_transfer", "gradient_exchange", "bubble", "stages_over_nodes"]


def _in_order(entry: Any) -> Any:
    if entry.low >= entry.high:
        fail("must be above 'low'", at="high")
    return entry


if TYPE_CHECKING:
    ConstantEntry: TypeAlias = Any
    MemoryEntry: TypeAlias = Any
    CrossValidation: TypeAlias = Any
    ResidualEntry: TypeAlias = Any
    SourceEntry: TypeAlias = Any
else:
    ConstantEntry = record(
        "ConstantEntry",
        "One constant of `costmodel.uncertainty.constants.CONSTANTS`: a factor on what device, cluster and framework state.",
        FileModel,
        value=key(Factor, "the factor; 1 is the bundled model", default=1.0),
        log_sd=key(
            LogSd | None,
            "standard deviation of its natural logarithm; as before the measurements unless stated",
            default=None,
        ),
        prior=key(Factor, "the factor before the measurements", default=1.0),
        prior_log_sd=key(
            LogSd | None,
            "standard deviation of the logarithm before the measurements; that of the cost model unless stated",
            default=None,
        ),
        determined=key(bool, "whether the measurements said more than the prior", default=False, strict=True),
    )
    ErrorModelEntry = record(
        "ErrorModelEntry",
        "Errors of one kind of workload (`costmodel.uncertainty.intervals.ErrorModel`); written by ``benchmarks/intervals.py``.",
        FileModel,
        rows=key(Count, "rows that it was fitted to", default=0),
        shared_log_sd=key(LogSd, "of all plans of a question alike"),
        plan_log_sd=key(LogSd, "of one plan"),
        by_part=key(dict[Part, LogSd], "of each part of a step", default_factory=dict),
        similarity_steps=key(
            Factor, "doublings of a degree at which the errors of two plans agree by 1/e only", default=1.0
        ),
        typical_log_sd=key(Factor, "median standard deviation of the rows", default=0.1),
        sharpness=key(
            Annotated[float, Field(ge=0.0, le=1.0), BeforeValidator(plain_number)],
            "how far intervals follow the standard deviation of a plan: 1 in proportion, 0 not at all",
            default=1.0,
        ),
        low=key(
            Annotated[float, Field(ge=-100.0, le=100.0), BeforeValidator(plain_number)],
            "10 % quantile of the standardised error",
            default=-1.2816,
        ),
        high=key(
            Annotated[float, Field(ge=-100.0, le=100.0), BeforeValidator(plain_number)], "90 % quantile", default=1.2816
        ),
        ranking_scale=key(
            Factor, "factor on the errors that plans do not share, where plans are compared", default=1.0
        ),
        listed_share=key(
            Annotated[float, Field(gt=0.0, lt=1.0), BeforeValidator(plain_number)],
            "share of the draws in which a list to benchmark must hold the best",
            default=0.9,
        ),
        basis=key(Text, "what it was found from, where that is not training steps", default=""),
        devices=key(
            tuple[Name, ...],
            "devices of the rows; on any other the interval is as wide as that of an unknown framework",
            default=(),
        ),
    )
    ResidualEntry = record(
        "ResidualEntry",
        "What the constants leave unexplained, as standard deviations of log(measured / predicted).",
        FileModel,
        log_sd=key(LogSd, "of the training runs, or of all rows where there are none"),
        groups=key(
            Count | None,
            "networks whose training steps that was found from: the fewer, the less it moves the bundled error bars; as stated "
            "where absent",
            default=None,
        ),
        by_part=key(
            dict[Name, LogSd], "of the parts of a step (costmodel.uncertainty.intervals)", default_factory=dict
        ),
        by_kind=key(dict[Name, LogSd], "of the rows of each kind of table", default_factory=dict),
        kinds=key(
            dict[Name, Annotated[ErrorModelEntry, AfterValidator(_in_order)]],
            "error models by kind of workload: transformers, images, the name of a framework, serving, serving-experts, "
            "serving-shared-experts, serving-first-token",
            default_factory=dict,
        ),
    )
    MemoryEntry = record(
        "MemoryEntry",
        "Errors of the predicted memory of one framework's runs (`costmodel.uncertainty.limits.MemoryErrors`); written by "
        "``benchmarks/memory_errors.py``.",
        FileModel,
        mean=key(
            Annotated[float, Field(ge=-2.0, le=2.0), BeforeValidator(plain_number)],
            "of log(memory that a run needs / predicted)",
        ),
        log_sd=key(
            Annotated[float, Field(gt=0.0, le=2.0), BeforeValidator(plain_number)],
            "its standard deviation, for a network that has not run",
        ),
        rows=key(Count, "runs that it was found from", default=0),
        ran=key(
            Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(plain_number)],
            "of 'others': share of the runs with P(fits) of at least 95 % that ran, each framework left out in turn",
            default=1.0,
        ),
        networks=key(Count, "networks of these runs", default=0),
        evidence=key(
            Literal["failures", "peaks", "full", ""],
            "what the runs show: which failed, how much memory was measured, or how full the devices of runs that succeeded are",
            default="",
        ),
    )
    TableEntry = record(
        "TableEntry",
        "A table that was fitted to.",
        FileModel,
        file=Text,
        sha256=Text,
        kind=key(Text, default=""),
        rows=Count,
        used=Count,
    )
    SourceEntry = record(
        "SourceEntry",
        "Where a calibration comes from.",
        FileModel,
        tables=key(tuple[TableEntry, ...], default=()),
        rows=key(Count, default=0),
        used=key(Count, default=0),
        device=key(Text, default=""),
        cluster=key(Text, default=""),
        framework=key(Text, default=""),
        version=key(Text, default=""),
        command=key(Text, default=""),
        note=key(Text, default=""),
    )
    CrossValidation = record(
        "CrossValidation",
        "Median of |predicted - measured| / measured: with the bundled constants, and on rows left out with those fitted to the others.",
        FileModel,
        folds=Count,
        by=key(Text, "what the folds keep together: a column, or rows", default="rows"),
        error_before=Error,
        error_after=Error,
    )


class CalibrationFile(NamedFile):
    """A calibration."""

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
    memory: dict[Name, MemoryEntry] = Field(
        default_factory=dict,
        description="how far predicted memory is off, by framework; 'others': those without runs; as the bundled calibration has it "
        "where absent",
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
        constants = {}
        for name, entry in self.constants.items():
            given = entry.model_dump(exclude_none=True)
            prior_log_sd = given.setdefault("prior_log_sd", CONSTANTS[name].prior_log_sd)
            constants[name] = CalibratedConstant(**{"log_sd": prior_log_sd, **given})
        residual = ResidualEntry(log_sd=0.0) if self.residual is None else self.residual
        return Calibration(
            name=self.name,
            constants=constants,
            correlation=np.array(self.correlation, dtype=np.float64) if self.correlation else np.eye(len(constants)),
            residual_log_sd=residual.log_sd,
            residual_groups=residual.groups,
            framework=self.source.framework,
            assumed={name: entry.value for name, entry in self.assumptions.items()},
            error_models={name: ErrorModel(**kind.model_dump()) for name, kind in residual.kinds.items()},
            memory_errors={
                name: MemoryErrors(mean=entry.mean, log_sd=entry.log_sd, rows=entry.rows, framework=name, ran=entry.ran)
                for name, entry in self.memory.items()
            },
        )

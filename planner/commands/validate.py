"""``planner validate``: predictions beside published or own measurements."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import emit
from planner.commands.question import output_of
from planner.commands.values import Values

__all__ = ["validate"]

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...",
        help="CSV tables of measurements; docs/measurements.md has their columns.",
        show_default=False,
    ),
]
By = Annotated[
    str | None,
    o.option(
        "--by",
        metavar="COLUMN",
        help="Also score the rows of each file apart by the text of this column.",
        group=o.OUTPUT,
    ),
]
Template = Annotated[
    str | None,
    o.option(
        "--template",
        metavar="KIND",
        help="Print the header and an example row of a kind of table: plan, network, gemm, convolution, ...",
        group=o.OUTPUT,
    ),
]


def validate(
    files: Files = None,
    by: By = None,
    template: Template = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Predict the rows of tables of measurements and say how wrong the predictions are.

    A table holds training runs (transformers with their degrees, networks for images), kernels (matrix products, convolutions,
    recurrent layers), matrix peaks or collectives; its columns tell which. Every row that can be predicted is scored; the others
    are counted by reason.
    """
    options: dict[str, Any] = locals()
    values = Values()
    where = output_of(options, values)
    from planner.validation.kinds import KINDS
    from planner.validation.kinds import template as template_of

    if template is not None:
        name = values.choice("--template", template, tuple(kind.name for kind in KINDS))
        values.check()
        sys.stdout.write(next(template_of(kind) for kind in KINDS if kind.name == name))
        return
    if not files:
        values.add("FILE: give at least one CSV file (--template KIND prints an example)")
    values.check()

    from planner.validation.report import validation_report
    from planner.validation.run import validate_files

    emit(validation_report(validate_files(files or [], by), by), where)

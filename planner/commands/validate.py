"""``planner validate``: predictions beside published or own measurements."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import Output, emit, refused_rows, remark
from planner.commands.progress import Progress
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
Html = Annotated[
    str | None,
    o.option(
        "--html",
        metavar="FILE.html",
        help="Also write a page with charts and sortable tables: one file that needs no network.",
        group=o.OUTPUT,
    ),
]


def validate(
    files: Files = None,
    by: By = None,
    calibration: o.Calibration = None,
    template: Template = None,
    html: Html = None,
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
    from planner.measurements.kinds import KINDS
    from planner.measurements.kinds import template as template_of

    if template is not None:
        name = values.choice("--template", template, tuple(kind.name for kind in KINDS))
        values.check()
        sys.stdout.write(next(template_of(kind) for kind in KINDS if kind.name == name))
        return
    if not files:
        values.add("FILE: give at least one CSV file (--template KIND prints an example)")
    page = _page(html, files or [], where, values)
    values.check()

    from planner.files.calibrations import load_calibration
    from planner.measurements.report import validation_report
    from planner.measurements.run import validate_files

    known = None if calibration is None else load_calibration(calibration)
    with Progress(where) as progress:
        scores = validate_files(files or [], by, known, with_rows=page is not None, progress=progress)
    if page is not None:
        from planner.files.output import write_atomically
        from planner.measurements.page import validation_page

        write_atomically(page, validation_page(scores, by))
        remark(where, f"wrote {page}")
    for score in scores:
        refused_rows(where, score.file, score.refused)
    emit(validation_report(scores, by), where)


def _page(text: str | None, files: Sequence[str], where: Output, values: Values) -> Path | None:
    """Where the page goes; one that cannot be written, or would replace something else, is a problem of the command line."""
    from planner.core.errors import OutputError
    from planner.files.output import check_writable

    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in (".html", ".htm"):
        values.add(f"--html {text}: a page ends in .html")
        return None
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"--html {error}")
        return None
    if where.path is not None and where.path.resolve() == path.resolve():
        values.add(f"--html and --output: both name {path}")
    _spare_inputs(path, files, values)
    return path


def _spare_inputs(path: Path, files: Sequence[str], values: Values) -> None:
    """Refuse to write the page over a table that is read; the answer goes over no input of any command."""
    for name in files:
        try:
            same = path.resolve() == Path(name).resolve()
        except (OSError, ValueError, RuntimeError):  # no name of a file; reading it says so
            continue
        if same:
            values.add(f"--html {path}: is one of the tables")
            return

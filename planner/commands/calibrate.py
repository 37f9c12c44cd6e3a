"""``planner calibrate``: the constants of the cost model, fitted to the user's own runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import Output, emit, output_from, refused_rows, remark
from planner.commands.progress import Progress
from planner.commands.question import command_line_of
from planner.commands.values import Values
from planner.core.errors import OutputError
from planner.files.output import check_writable, write_atomically

__all__ = ["calibrate"]

_MOST_FOLDS = 100

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...",
        help="CSV tables of measurements of any kinds; docs/measurements.md has their columns.",
        show_default=False,
    ),
]
Device = Annotated[
    str | None,
    o.option(
        "--device",
        "-d",
        metavar="NAME|FILE",
        help="What the rows ran on; rows of other devices are skipped. Default: what each row says.",
        group=o.QUESTION,
    ),
]
Cluster = Annotated[
    str | None,
    o.option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        help="Its links, in place of those that the rows state. Default: what each row says.",
        group=o.QUESTION,
    ),
]
Framework = Annotated[
    str | None,
    o.option(
        "--framework",
        metavar="NAME",
        help="Software of rows that do not name theirs; rows of others are skipped. Default: what each row says.",
        group=o.QUESTION,
    ),
]
Name = Annotated[
    str | None, o.option("--name", metavar="NAME", help="Of the calibration. Default: from -o.", group=o.OUTPUT)
]
Into = Annotated[
    str | None, o.option("--output", "-o", metavar="FILE", help="Write the calibration to FILE (YAML).", group=o.OUTPUT)
]
Folds = Annotated[
    str, o.option("--folds", metavar="K", help="Folds of the cross-validation. Default: 5.", group=o.SEARCH)
]
Seed = Annotated[str, o.option("--seed", metavar="N", help="Seed of the folds. Default: 0.", group=o.SEARCH)]


def calibrate(
    context: typer.Context,
    files: Files = None,
    device: Device = None,
    cluster: Cluster = None,
    framework: Framework = None,
    folds: Folds = "5",
    seed: Seed = "0",
    name: Name = None,
    output: Into = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fit the constants of the cost model to your own runs, and say how sure each is.

    Tables are those of 'planner validate', several kinds at once if you like: training runs, kernels, collectives ('planner measure'
    writes such tables). The fit starts from the bundled constants and leaves them only as far as the rows ask for; constants that
    the rows cannot determine are named, and rows left out show what the fit is worth.

    \b
    planner calibrate runs.csv --device a100-80gb --cluster dgx-a100 -o mine.yaml
    planner optimize llama3-8b --gpus 64 --cluster dgx-a100 --calibration mine.yaml
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    values = Values()
    where = output_from(values, json=json, format=format, output=None, width=width, quiet=quiet, verbose=verbose)
    count = values.count("--folds", folds, least=2, most=_MOST_FOLDS)
    drawn = values.count("--seed", seed, least=0, most=2**31 - 1)
    path = _path(values, output)
    called = _name(values, name, path)
    if not files:
        values.add("FILE: give at least one CSV file (planner validate --template KIND prints an example)")
    values.check()
    options: dict[str, Any] = {"device": device, "cluster": cluster, "framework": framework}
    _run(files or [], options, where, path, called, (count, drawn), command_line_of(context))


def _run(
    files: list[str],
    options: dict[str, Any],
    where: Output,
    path: Path | None,
    called: str,
    folds_and_seed: tuple[int, int],
    command_line: str,
) -> None:
    from planner.calibration.machine import cluster_of, link_remark, machinery_of
    from planner.calibration.report import calibration_report, calibration_text
    from planner.calibration.run import calibrate as fit
    from planner.measurements.tables import read_table

    machinery = machinery_of(options["device"], options["cluster"], options["framework"])
    if options["framework"] is not None:
        _remark_on_framework(where, options["framework"])
    with Progress(where) as progress:
        found = fit(files, machinery, name=called, folds=folds_and_seed[0], seed=folds_and_seed[1], progress=progress)
    if found.doubt:
        remark(where, found.doubt)
    for name in files:
        table = read_table(Path(name))
        doubt = link_remark(machinery, table)
        refused_rows(where, name, table.refused)
        for words in (*table.unknown(), *([doubt] if doubt else [])):
            remark(where, words)
    if path is not None:
        write_atomically(path, calibration_text(found, command_line))
        remark(where, f"wrote {path}; use it with --calibration {path}")
    else:
        remark(where, "the calibration is not written; -o FILE does that")
    emit(calibration_report(found, cluster_of(machinery), command_line), where)


def _remark_on_framework(where: Output, name: str) -> None:
    """Any software may be named; say so where the name looks like a slip."""
    from planner.core.errors import did_you_mean
    from planner.files.frameworks import framework_names
    from planner.files.naming.frameworks import framework_called

    near = did_you_mean(name, framework_names())
    if near and framework_called(name) is None:
        remark(where, f"--framework {name} is no framework that is known; no framework's costs count{near}")


def _path(values: Values, text: str | None) -> Path | None:
    if text is None or text == "-":
        return None
    if not text:
        values.add("--output: needs a file name")
        return None
    path = Path(text)
    if path.suffix.lower() not in (".yaml", ".yml"):
        values.add(f"--output {text}: a calibration is a YAML file; end its name in .yaml")
        return None
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"--output {error}")
    return path


def _name(values: Values, given: str | None, path: Path | None) -> str:
    """A name that the file's schema takes."""
    from planner.schema.common import is_name

    if given is not None and not is_name(given):
        values.add(
            f"--name {given[:70]}: letters, digits and any of _ - / @ +, at most 64, the first a letter, digit or _"
        )
    if given is not None:
        return given
    word = re.sub(r"[^A-Za-z0-9_@+-]+", "-", path.stem if path is not None else "")[:64].lstrip("-@+")
    return word or "calibration"

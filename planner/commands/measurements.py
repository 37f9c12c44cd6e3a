"""``planner validate`` and ``planner calibrate``: what tables of measurements say of the cost model."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

from planner.api.keywords import EstimateOptions, options_of
from planner.api.readers import OUTPUT, SEARCH, Option
from planner.api.values import Values
from planner.commands.command import Typed, argument, command
from planner.commands.output import OUTPUT_OPTIONS, REPORT_ONLY, Progress, emit, output_of, refused_rows, remark
from planner.core.errors import UsageError, did_you_mean
from planner.files.output import write_atomically

_VALIDATE = {
    "by": Option(
        "--by",
        "COLUMN",
        "Also score the rows of each file apart by the text of this column, or by figure: what was measured.",
        panel=OUTPUT,
    ),
    "calibration": options_of(EstimateOptions)["calibration"],
    "template": Option(
        "--template",
        "KIND",
        "Print the header and an example row of a kind of table: plan, network, gemm, convolution, ...",
        panel=OUTPUT,
    ),
    "html": Option(
        "--html",
        "FILE.html",
        "Also write a page with charts and sortable tables: one file that needs no network.",
        panel=OUTPUT,
    ),
}


@command(
    _VALIDATE,
    OUTPUT_OPTIONS,
    files=argument(list[str] | None, "FILE...", "CSV tables of measurements; docs/measurements.md has their columns."),
)
def validate(typed: Typed) -> None:
    """Predict the rows of tables of measurements and say how wrong the predictions are.

    A table holds training runs (transformers with their degrees, networks for images), kernels (matrix products, convolutions,
    recurrent layers), matrix peaks or collectives; its columns tell which. Every row that can be predicted is scored; the others
    are counted by reason.
    """
    given, values = typed.given, typed.values
    where = output_of(typed)
    from planner.measurements.kinds import KINDS
    from planner.measurements.kinds import template as template_of

    if "template" in given:
        name = values.choice("--template", given["template"], tuple(kind.name for kind in KINDS))
        values.check()
        sys.stdout.write(next(template_of(kind) for kind in KINDS if kind.name == name))
        return
    files, by = given.get("files", []), given.get("by")
    if not files:
        values.add("FILE: give at least one CSV file (--template KIND prints an example)")
    page = typed.file("html", (".html", ".htm"), "a page ends in .html")
    values.check()

    from planner.files.loading import load_calibration
    from planner.logs.benchmarks import read_benchmark
    from planner.measurements.report import validation_report
    from planner.measurements.scores import validate_files

    for file in files:
        if read_benchmark(Path(file)) is not None:
            raise UsageError(
                f"{file}: is the result of a server's benchmark: planner check {file} --plan FILE compares it"
            )
    known = load_calibration(given["calibration"]) if "calibration" in given else None
    with Progress(where) as progress:
        scores = validate_files(files, by, known, progress=progress)
    if page is not None:
        from planner.measurements.page import validation_page

        write_atomically(page, validation_page(scores, by))
        remark(where, f"wrote {page}")
    for score in scores:
        refused_rows(where, score.file, score.refused)
    emit(validation_report(scores, by), where)


_CALIBRATE = {
    "device": Option(
        "--device -d",
        "NAME|FILE",
        "What the rows ran on; rows of other devices are skipped. Default: what each row says.",
        words="kind:devices",
    ),
    "cluster": Option(
        "--cluster -c",
        "NAME|FILE",
        "Its links, in place of those that the rows state. Default: what each row says.",
        words="kind:clusters",
    ),
    "framework": Option(
        "--framework",
        "NAME",
        "Software of rows that do not name theirs; rows of others are skipped. Default: what each row says.",
        words="kind:frameworks",
    ),
    "folds": Option(
        "--folds",
        "K",
        "Folds of the cross-validation. Default: 5.",
        panel=SEARCH,
        read=partial(Values.count, least=2, most=100),
    ),
    "seed": Option(
        "--seed",
        "N",
        "Seed of the folds. Default: 0.",
        panel=SEARCH,
        read=partial(Values.count, least=0, most=2**31 - 1),
    ),
    "name": Option("--name", "NAME", "Of the calibration. Default: from -o.", panel=OUTPUT),
    "output": Option("--output -o", "FILE", "Write the calibration to FILE (YAML).", panel=OUTPUT),
}


@command(
    _CALIBRATE,
    REPORT_ONLY,
    files=argument(
        list[str] | None,
        "FILE...",
        "CSV tables of measurements of any kinds; docs/measurements.md has their columns.",
    ),
)
def calibrate(typed: Typed) -> None:
    """Fit the constants of the cost model to your own runs, and say how sure each is.

    Tables are those of 'planner validate', several kinds at once if you like: training runs, kernels, collectives ('planner measure'
    writes such tables). The fit starts from the bundled constants and leaves them only as far as the rows ask for; constants that
    the rows cannot determine are named, and rows left out show what the fit is worth.

    \b
    planner calibrate runs.csv --device a100-80gb --cluster dgx-a100 -o mine.yaml
    planner optimize llama3-8b --gpus 64 --cluster dgx-a100 --calibration mine.yaml
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    given, values = typed.given, typed.values
    where = output_of(typed, writes=False)
    asked = typed.read(_CALIBRATE)
    path = None
    if given.get("output") != "-":
        path = typed.file("output", (".yaml", ".yml"), "a calibration is a YAML file; end its name in .yaml")
    name = _name(values, given.get("name"), path)
    files = given.get("files", [])
    if not files:
        values.add("FILE: give at least one CSV file (planner validate --template KIND prints an example)")
    values.check()

    from planner.calibration.measurements import cluster_of, link_remark, machinery_of
    from planner.calibration.report import calibration_report, calibration_text
    from planner.calibration.run import calibrate as fit
    from planner.files.loading import framework_aliases
    from planner.files.naming.frameworks import framework_called
    from planner.files.resources import bundled
    from planner.measurements.tables import read_table

    machinery = machinery_of(given.get("device"), given.get("cluster"), given.get("framework"))
    names = [*bundled("frameworks"), *framework_aliases()]
    near = did_you_mean(machinery.framework, names) if machinery.framework else ""
    if near and framework_called(machinery.framework) is None:  # any software may be named, but this looks like a slip
        remark(
            where, f"--framework {machinery.framework} is no framework that is known; no framework's costs count{near}"
        )
    with Progress(where) as progress:
        found = fit(
            files, machinery, name=name, folds=asked.get("folds", 5), seed=asked.get("seed", 0), progress=progress
        )
    if found.doubt:
        remark(where, found.doubt)
    for file in files:
        table = read_table(Path(file))
        doubt = link_remark(machinery, table)
        refused_rows(where, file, table.refused)
        for words in (*table.unknown(), *([doubt] if doubt else [])):
            remark(where, words)
    if path is not None:
        write_atomically(path, calibration_text(found, typed.command_line))
        remark(where, f"wrote {path}; use it with --calibration {path}")
    else:
        remark(where, "the calibration is not written; -o FILE does that")
    emit(calibration_report(found, cluster_of(machinery), typed.command_line), where)


def _name(values: Values, given: str | None, path: Path | None) -> str:
    """A name that the file's schema takes."""
    from planner.schema.common import is_name

    if given is not None and not is_name(given):
        values.add(
            f"--name {given[:70]}: letters, digits and any of _ - / @ +, at most 64, the first a letter, digit or _"
        )
    return calibration_name(path) if given is None else given


def calibration_name(path: Path | None) -> str:
    """Name of a calibration after its file.

    >>> calibration_name(Path("my cluster.yaml")), calibration_name(None)
    ('my-cluster', 'calibration')
    """
    word = re.sub(r"[^A-Za-z0-9_@+-]+", "-", path.stem if path is not None else "")[:64].lstrip("-@+")
    return word or "calibration"

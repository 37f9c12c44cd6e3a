"""Where a result goes and in which form, and what goes to stderr meanwhile; the same for every command."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner.api.readers import OUTPUT, Option
from planner.files.output import write_atomically

if TYPE_CHECKING:
    from planner.commands.command import Typed
    from planner.core.answer import Answer, Estimate, RankedPlan
    from planner.core.blocks import Report
    from planner.core.errors import FileProblem

Format = Literal["table", "json", "csv", "markdown", "yaml"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "markdown", "yaml")

_SUFFIXES: dict[str, Format] = {
    ".txt": "table",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".yaml": "yaml",
    ".yml": "yaml",
}
OUTPUT_OPTIONS = {
    "json": Option("--json", None, "The same as --format json.", panel=OUTPUT),
    "format": Option(
        "--format -f",
        "NAME",
        "table, json, csv, markdown or yaml. Default: by the suffix of -o, else table.",
        panel=OUTPUT,
        words="planner.commands.output:FORMATS",
    ),
    "output": Option("--output -o", "FILE", "Write the result to FILE in place of stdout.", panel=OUTPUT),
    "width": Option("--width", "N", "Characters per line of the table. Default: the terminal's.", panel=OUTPUT),
    "quiet": Option("--quiet -q", None, "No progress and no remarks on stderr.", panel=OUTPUT),
    "verbose": Option("--verbose -v", None, "Log each step on stderr; tracebacks of internal errors.", panel=OUTPUT),
}
# Of a command that writes something else to the file of --output.
REPORT_ONLY = {name: option for name, option in OUTPUT_OPTIONS.items() if name != "output"}
EXPORT_OPTION = {"export": Option("--export", "FILE", "Also write the best plan as a plan file (YAML).")}
_MOST_REFUSED = 20
_QUIET_S = 1.0  # shorter searches show nothing
_EVERY_S = 0.1
_LEAST_WIDTH = 40
_MOST_WIDTH = 10_000
# A pipe or a file has no width of its own: wide enough for every column, and still readable in an editor.
_PIPE_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output options of one command, checked."""

    format: Format = "table"
    path: Path | None = None  # None: stdout
    export: Path | None = None
    width: int | None = None
    quiet: bool = False
    verbose: bool = False


def output_of(typed: Typed, *, writes: bool = True) -> Output:
    """Check the output options; files that cannot be written are found here, before any work is done.

    Parameters
    ----------
    typed : Typed
    writes : bool
        Whether --output names the file of the answer; another command writes something else there.
    """
    given, values = typed.given, typed.values
    json, output = "json" in given, given.get("output") if writes else None
    chosen: Format = "json" if json else "table"
    if "format" in given:
        word = {"md": "markdown", "yml": "yaml", "text": "table"}.get(given["format"].strip().lower(), given["format"])
        stated = values.choice("--format", word, FORMATS)
        if json and stated != "json":
            values.add(f"--json and --format {stated}: choose one")
        chosen = next(name for name in FORMATS if name == stated)
    elif output is not None and not json:
        chosen = _SUFFIXES.get(Path(output).suffix.lower(), "table")
    quiet, verbose = "quiet" in given, "verbose" in given
    if quiet and verbose:
        values.add("--quiet and --verbose: choose one")
    width = values.count("--width", given["width"], least=_LEAST_WIDTH, most=_MOST_WIDTH) if "width" in given else None
    path = typed.file("output") if output not in (None, "-") else None
    export = typed.file("export") if given.get("export") != "-" else None
    where = Output(format=chosen, path=path, export=export, width=width, quiet=quiet, verbose=verbose)
    if "assume_free" in given:  # rows of numbers (csv) have no place for it
        remark(where, f"ASSUMED FREE by --assume-free: {', '.join(dict.fromkeys(given['assume_free']))}")
    return where


def emit(report: Report, output: Output) -> None:
    """Print a result, or write it to its file."""
    if output.path is not None:
        write_atomically(output.path, _rendered(report, output, terminal=False))
        remark(output, f"wrote {output.path}")
        return
    # Colour and lines are for a terminal that is not dumb, and a user who did not refuse.
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    sys.stdout.write(_rendered(report, output, terminal=is_terminal))
    sys.stdout.flush()


def export_plan(
    output: Output, answer: Callable[[], Answer | Estimate], what: str, ranked: RankedPlan | None = None
) -> None:
    """Write a plan to the file of --export, where one is asked for.

    Parameters
    ----------
    output : Output
    answer : callable
        Finds the answer whose plan it is.
    what : str
        What is written, in a word or two.
    ranked : RankedPlan, optional
        Another of the answer's plans than the one to run.
    """
    if output.export is None:
        return
    from planner.files.plan_file import plan_document, plan_text

    write_atomically(output.export, plan_text(plan_document(answer(), ranked, folder=output.export.parent)))
    remark(output, f"wrote {what} to {output.export}")


def remark(output: Output, text: str) -> None:
    """Say something about the run on stderr, unless it shall be quiet."""
    if not output.quiet:
        sys.stderr.write(f"planner: {text}\n")


def refused_rows(output: Output, file: str, refused: Sequence[FileProblem]) -> None:
    """Say on stderr which rows of a table are left out since they cannot be read, each with its place, and how many."""
    for problem in refused[:_MOST_REFUSED]:
        remark(output, str(problem))
    if refused:
        rows = len({problem.line for problem in refused})
        remark(output, f"{file}: {rows:,} row{'s' if rows > 1 else ''} refused, the others are read")


def _rendered(report: Report, output: Output, *, terminal: bool) -> str:
    # Each form is imported when it is asked for: rich alone takes longer than the search of a small network.
    if output.format == "json":
        from planner.report.machine import json_text

        return json_text(report.data())
    if output.format == "yaml":
        from planner.files.yaml_text import yaml_text
        from planner.report.machine import finite

        return yaml_text(finite(report.data()))
    if output.format == "csv":
        from planner.report.machine import csv_text

        return csv_text(report.records())
    blocks = [*report.blocks(), *(report.details() if output.verbose else ())]
    if output.format == "markdown":
        from planner.report.text import markdown_text

        return markdown_text(blocks)
    width = output.width or shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns  # COLUMNS first, then the terminal
    width = max(width, _LEAST_WIDTH)
    if terminal:
        from planner.report.text import rich_text

        return rich_text(blocks, width, unicode="utf" in (sys.stdout.encoding or "").lower())
    from planner.report.text import plain_text

    return plain_text(blocks, width)


class Progress:
    """Shows the stage and the share done: on a terminal only, after a second, on one line that is wiped at the end.

    With ``--verbose`` each new stage is also logged on a line of its own, terminal or not.
    """

    def __init__(self, output: Output) -> None:
        self._shown = sys.stderr.isatty() and not output.quiet
        self._verbose = output.verbose
        self._start_s = time.monotonic()
        self._last_s = 0.0
        self._width = 0
        self._stage = ""

    def __call__(self, stage: str, share: float) -> None:
        """Take a report: what is being done, and how much of it is done (0 to 1)."""
        now_s = time.monotonic() - self._start_s
        if self._verbose and stage != self._stage:
            self._wipe()
            sys.stderr.write(f"planner: {now_s:7.3f} s  {stage}\n")
        self._stage = stage
        if not self._shown or now_s < _QUIET_S or now_s - self._last_s < _EVERY_S:
            return
        self._last_s = now_s
        line = f"{stage} {min(max(share, 0.0), 1.0):4.0%}  {now_s:.0f} s"[:79]
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Wipe the line."""
        self._wipe()
        if self._verbose:
            sys.stderr.write(f"planner: {time.monotonic() - self._start_s:7.3f} s  done\n")

    def _wipe(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

"""The options that write an answer as a page, a figure or a trace, each written once, and how they are read."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from planner.commands.options import OUTPUT, option, takes_table
from planner.commands.output import Output
from planner.commands.values import Values
from planner.core.errors import OutputError, UsageError
from planner.files.output import check_writable

__all__ = [
    "FIGURE_NAMES",
    "REPORT_OPTIONS",
    "ReportFiles",
    "check_png",
    "is_installed",
    "refuse_files",
    "report_files",
    "takes_report_options",
]

# Names of planner.report.figures.standard.FIGURES, which is not imported where nobody asks for a figure; a test holds them together.
FIGURE_NAMES = ("breakdown", "memory", "pareto", "scaling", "timeline")
# Option -> suffixes of its file, and what such a file is.
_SUFFIXES = {
    "html": ((".html", ".htm"), "a page ends in .html"),
    "plot": ((".svg", ".png"), "a figure ends in .svg or .png"),
    "trace": ((".json", ".json.gz"), "a trace ends in .json or .json.gz"),
}


def _file(name: str, text: str) -> Any:
    return Annotated[str | None, option(f"--{name}", metavar="FILE", help=text, group=OUTPUT)]


REPORT_OPTIONS: dict[str, Any] = {
    "html": _file("html", "Also write a page with figures and sortable tables: one file that needs no network."),
    "static": Annotated[
        bool,
        option(
            "--static",
            metavar=None,
            help="Figures of --html without a script, also where plotly is installed: a smaller file.",
            group=OUTPUT,
        ),
    ],
    "plot": _file("plot", "Also write a figure: .svg, or .png with the extra 'plots'."),
    "figure": Annotated[
        str | None,
        option(
            "--figure",
            metavar="NAME",
            help=f"Which figure --plot writes: {', '.join(FIGURE_NAMES)}. Default: breakdown.",
            group=OUTPUT,
        ),
    ],
    "trace": _file("trace", "Also write the step as a trace for Perfetto (ui.perfetto.dev): .json or .json.gz."),
}
# Options that name files.
_READ = ("model", "plan", "cluster", "device", "calibration", "framework")
_DEFAULTS: dict[str, Any] = {"static": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """What is written beside the answer, checked."""

    html: Path | None = None
    live: bool = False  # interactive plots in the page
    plot: Path | None = None
    figure: str = "breakdown"
    trace: Path | None = None

    @property
    def flags(self) -> list[str]:
        """The options that were given."""
        return [f"--{name}" for name in ("html", "plot", "trace") if getattr(self, name) is not None]


# Gives a command every option of `REPORT_OPTIONS`; it gets their words as the mapping ``report``.
takes_report_options = takes_table("report", REPORT_OPTIONS, _DEFAULTS)


def report_files(words: Mapping[str, Any], where: Output, values: Values, options: Mapping[str, Any]) -> ReportFiles:
    """Read the options; files that cannot be written, and packages that are missing, are found here, before any work is done.

    Parameters
    ----------
    words : mapping
        Of `REPORT_OPTIONS`.
    where : Output
        The other output options: no two may name one file.
    values : Values
        Takes the problems.
    options : mapping
        All options by name: none of the files that they read may be written over.
    """
    paths = {name: _path(name, words.get(name), values) for name in _SUFFIXES}
    named = {"output": where.path, "export": where.export, **paths}
    seen: dict[Path, str] = {}
    for name, path in named.items():
        if path is None:
            continue
        resolved = path.resolve()
        if resolved in seen and name in paths:
            values.add(f"--{seen[resolved]} and --{name}: both name {path}")
        seen.setdefault(resolved, name)
        _spare_inputs(name, path, options, values)
    plot, figure = paths["plot"], words.get("figure")
    if figure is not None:
        figure = values.choice("--figure", figure.strip().lower(), FIGURE_NAMES)
        if plot is None:
            values.add("--figure: says what --plot FILE shows; name a file")
    if plot is not None:
        check_png(plot, values)
    if words.get("static") and paths["html"] is None:
        values.add("--static: is about the page of --html; name a file")
    live = not words.get("static") and is_installed("plotly")
    return ReportFiles(html=paths["html"], live=live, plot=plot, figure=figure or "breakdown", trace=paths["trace"])


def _spare_inputs(name: str, path: Path, options: Mapping[str, Any], values: Values) -> None:
    """Refuse to write over a file that is read."""
    for read in _READ:
        given = options.get(read)
        for text in (given,) if isinstance(given, str) else ():
            if Path(text).exists() and Path(text).resolve() == path.resolve():
                values.add(f"--{name} {path}: is read, too, as {'MODEL' if read == 'model' else '--' + read}")


def refuse_files(files: ReportFiles, what: str, but: tuple[str, ...] = ()) -> None:
    """Say that a page, a figure or a trace of something cannot be written; nothing where none was asked for.

    Raises
    ------
    UsageError
    """
    flags = [flag for flag in files.flags if flag not in but]
    if flags:
        raise UsageError(f"{', '.join(flags)}: {what} has none yet; --format json or markdown holds the answer")


def check_png(plot: Path, values: Values) -> None:
    """Note that a figure is to be a PNG, and that what draws one is not installed."""
    if plot.suffix.lower() == ".png" and not is_installed("matplotlib"):
        values.add(
            f"--plot {plot}: PNG needs the package 'matplotlib', which is not installed: "
            "pip install 'paleo-planner[plots]'; .svg needs nothing"
        )


def is_installed(package: str) -> bool:
    """Whether a package of an extra is there."""
    return importlib.util.find_spec(package) is not None


def _path(name: str, text: str | None, values: Values) -> Path | None:
    if text is None:
        return None
    suffixes, meaning = _SUFFIXES[name]
    path = Path(text)
    if not path.name.lower().endswith(suffixes):
        values.add(f"--{name} {text}: {meaning}")
        return None
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"--{name} {error}")
        return None
    return path

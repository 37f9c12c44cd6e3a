"""The options that write an answer as a page, a figure or a trace: ``--html``, ``--plot`` and ``--trace``."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.api.readers import OUTPUT, Option
from planner.api.values import Values
from planner.core.errors import OutputError
from planner.files.output import check_writable

# Names of planner.report.figures.standard.FIGURES, which is not imported where nobody asks for a figure; a test holds them together.
FIGURE_NAMES = ("breakdown", "memory", "pareto", "scaling", "timeline")
# Of these, figures that need further searches.
SEARCHED_FIGURES = ("pareto", "scaling")
# Option -> suffixes of its file, and what such a file is.
_SUFFIXES = {
    "html": ((".html", ".htm"), "a page ends in .html"),
    "plot": ((".svg", ".png"), "a figure ends in .svg or .png"),
    "trace": ((".json", ".json.gz"), "a trace ends in .json or .json.gz"),
}
REPORT_OPTIONS = {
    "html": Option(
        "--html",
        "FILE",
        "Also write a page with figures and sortable tables: one file that needs no network.",
        panel=OUTPUT,
    ),
    "static": Option(
        "--static",
        None,
        "Figures of --html without a script, also where plotly is installed: a smaller file.",
        panel=OUTPUT,
        rare=True,
    ),
    "plot": Option("--plot", "FILE", "Also write a figure: .svg, or .png with the extra 'plots'.", panel=OUTPUT),
    "figure": Option(
        "--figure",
        "NAME",
        f"Which figure --plot writes: {', '.join(FIGURE_NAMES)}. Default: breakdown. With --html, {' or '.join(SEARCHED_FIGURES)} "
        "searches more plans for the page.",
        panel=OUTPUT,
        words="planner.api.pages:FIGURE_NAMES",
        rare=True,
    ),
    "trace": Option(
        "--trace",
        "FILE",
        "Also write the step as a trace for Perfetto (ui.perfetto.dev): .json or .json.gz.",
        panel=OUTPUT,
        rare=True,
    ),
}

# Of a command with one figure.
PLOT_OPTION = {
    "plot": Option(
        "--plot", "FILE", "Also write throughput over GPUs: .svg, or .png with the extra 'plots'.", panel=OUTPUT
    )
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


# -- checks, before any work is done ----------------------------------------------------------------------------------------


def writable(values: Values, label: str, text: str, endings: tuple[str, ...] = (), meaning: str = "") -> Path | None:
    """A file that can be written and has one of the endings; None, with the problem noted, where it has not or cannot."""
    if not text:
        values.add(f"{label}: needs a file name")
        return None
    path = Path(text)
    if endings and not path.name.lower().endswith(endings):
        values.add(f"{label} {text}: {meaning}")
        return None
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"{label} {error}")
        return None
    return path


def check_figure(values: Values, label: str, path: Path | None) -> None:
    """Note that a figure is to be a PNG, and that what draws one is not installed."""
    if path is not None and path.suffix.lower() == ".png" and not is_installed("matplotlib"):
        values.add(
            f"{label} {path}: PNG needs the package 'matplotlib', which is not installed: "
            "pip install 'paleo-planner[plots]'; .svg needs nothing"
        )


def figure_file(values: Values, label: str, file: Callable[[str, tuple[str, ...], str], Path | None]) -> Path | None:
    """The file of `PLOT_OPTION`; None where it is left out or cannot be written."""
    path = file("plot", *_SUFFIXES["plot"])
    check_figure(values, label, path)
    return path


def is_installed(package: str) -> bool:
    """Whether a package of an extra is there."""
    return importlib.util.find_spec(package) is not None


def report_files(
    given: Mapping[str, Any], values: Values, file: Callable[[str, tuple[str, ...], str], Path | None]
) -> ReportFiles:
    """Read `REPORT_OPTIONS`; files that cannot be written, and packages that are missing, are found here.

    Parameters
    ----------
    given : mapping
    values : Values
        Takes the problems.
    file : callable
        Checks the file of an option; takes its name, the endings and what such a file is.
    """
    paths = {name: file(name, *_SUFFIXES[name]) for name in _SUFFIXES if name in given}
    called = values.called
    figure = "breakdown"
    if "figure" in given:
        figure = values.choice(called("figure"), given["figure"], FIGURE_NAMES)
        if "plot" not in given and not ("html" in given and figure in SEARCHED_FIGURES):
            values.add(f"{called('figure')}: says what {called('plot')} FILE shows; name a file")
    check_figure(values, called("plot"), paths.get("plot"))
    if "static" in given and "html" not in given:
        values.add(f"{called('static')}: is about the page of {called('html')}; name a file")
    return ReportFiles(live="static" not in given and is_installed("plotly"), figure=figure, **paths)

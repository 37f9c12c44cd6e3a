"""Writes an answer as a page, a figure or a trace, where that was asked for. Imported only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from planner import __version__
from planner.api.calls import in_python_words
from planner.api.pages import SEARCHED_FIGURES, ReportFiles, figure_file, writable
from planner.core.answer import Answer, Estimate
from planner.core.errors import UsageError
from planner.exporters.launch import launch_of
from planner.files.output import write_atomically, write_bytes_atomically
from planner.report.answer_page import Section, answer_page, serving_page
from planner.report.figures.kinds import Figure
from planner.report.figures.standard import (
    Study,
    breakdown,
    memory,
    pareto,
    scaling,
    serving_pareto,
    serving_times,
    shown_plans,
    study_of,
    timeline,
)
from planner.report.figures.svg import png_bytes, svg_file
from planner.report.roles import roles_of
from planner.report.what_if import WHAT_IF_SCRIPT, plan_curves, what_if_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.api.requests import Progress
    from planner.core.answer import RankedPlan
    from planner.core.blocks import Block, Report
    from planner.core.what_if import WhatIf

# Of a page without further searches, and with them.
_PARETO_NOTE = (
    "Plans of this answer. --figure pareto also searches for the best on fewer GPUs and in less memory.",
    "Plans of this answer, and the best ones on fewer GPUs and in less memory.",
)
_SPEEDS_NOTE = (
    "Plans of this answer. --figure pareto also searches for the best at other speeds.",
    "Plans of this answer, and the best ones at other speeds.",
)
_SCALING_NOTE = "The plan itself, as What if has it. planner optimize --figure scaling searches for the best plan on each number of GPUs."
# Figures of a plan to serve.
_OF_SERVED = ("breakdown", "memory", "pareto")
Say: TypeAlias = Callable[[str], None]


def write_report_files(
    answer: Answer | Estimate, report: Report, files: ReportFiles, say: Say, progress: Progress | None = None
) -> None:
    """Write what was asked for of an answer; after Ctrl-C nothing more is searched.

    Parameters
    ----------
    answer, report, files
    say : callable
        Takes a sentence about what was written.
    progress : callable, optional
        Takes what is being done and its share, as more is searched for figures of a search.

    Raises
    ------
    PlannerError
        A figure that the answer does not have; files that can no longer be written.
    """
    blocks = [*report.blocks(), *report.details()]
    if not answer.space.has_figures:
        _check_served(answer, files)
    more = files.figure in SEARCHED_FIGURES
    if isinstance(answer, Estimate):
        best, study = answer.ranked, Study(candidates=())
        if more:
            named = f"--figure {files.figure}"
            raise UsageError(f"{named}: one plan has none; 'planner optimize {named}' does")
    else:
        others = (plan for _, plan in roles_of(answer) if plan is not None)
        shown = tuple({plan.plan: plan for plan in (*shown_plans(answer).values(), *others)}.values())
        best, study = answer.best, Study(candidates=shown)
        if more and not answer.interrupted:
            study = study_of(answer, shown, progress)
    _write(answer, best, study, blocks, files, say)


def write_plot(figure: Figure | None, path: str | os.PathLike[str]) -> Path:
    """Write the figure of a study where a program names a file; None: no question has a plan."""
    with in_python_words() as values:
        target = figure_file(values, "path", lambda _, *kind: writable(values, "path", os.fspath(path), *kind))
        values.check()
        if figure is None or target is None:
            raise UsageError("no question has a plan, so there is nothing to draw")
        write_figure(figure, target)
    return target


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as the ending of its file says: a drawing (.svg), or points (.png).

    Raises
    ------
    MissingExtra
        What draws points is not installed.
    OutputError
        The file cannot be written.
    """
    if path.suffix.lower() == ".png":
        write_bytes_atomically(path, png_bytes(figure))
    else:
        write_atomically(path, svg_file(figure))


def _say_page(files: ReportFiles, say: Say) -> None:
    say(f"wrote {files.html}")
    if not files.live:
        say("the page has figures without a script; with the extra 'plots' (and without --static) they are interactive")


def _write(
    answer: Answer | Estimate,
    best: RankedPlan,
    study: Study,
    blocks: Sequence[Block],
    files: ReportFiles,
    say: Say,
) -> None:
    if files.html is not None and isinstance(answer, Answer) and not answer.space.has_figures:
        fronts, note = serving_pareto(study.candidates), _SPEEDS_NOTE[files.figure in SEARCHED_FIGURES]
        more = [Section(title="Pareto fronts", figures=tuple(fronts), note=note)] if fronts else []
        page = serving_page(answer, blocks, launch_of(answer), more, live=files.live, version=__version__)
        write_atomically(files.html, page)
        _say_page(files, say)
    elif files.html is not None:
        found = answer.space.what_if(best)
        sections = _sections(answer, best, study, found)
        launch = launch_of(answer)
        text = answer_page(answer, blocks, sections, launch, live=files.live, version=__version__)
        write_atomically(files.html, text)
        _say_page(files, say)
    if files.plot is not None:
        figures = _figures(files.figure, answer, best, study)
        if not figures:
            raise UsageError(
                f"--figure {files.figure}: this answer has none: its plans do not differ on any axis that is known"
            )
        for n, figure in enumerate(figures):  # the second and later ones have a number in their names
            plot = files.plot
            target = plot if n == 0 else plot.with_name(f"{plot.stem}-{n + 1}{plot.suffix}")
            write_figure(figure, target)
            say(f"wrote {target}")
    if files.trace is not None:
        from planner.report.trace import trace_bytes, trace_document

        tracks = answer.space.tracks(best.plan)
        about = {
            "plan": best.summary,
            "model": answer.setting.model,
            "cluster": answer.setting.cluster,
            "gpus": best.workers,
            "global_batch": answer.setting.global_batch,
            "predicted_step_time_s": best.step_time_s,
            "simulated_step_time_s": tracks.end_s,
            "planner": __version__,
        }
        document = trace_document(tracks, about)
        write_bytes_atomically(files.trace, trace_bytes(document, compressed=files.trace.suffix.lower() == ".gz"))
        say(f"wrote {files.trace}")


def _check_served(answer: Answer | Estimate, files: ReportFiles) -> None:
    """Refuse what is about the step of a plan."""
    refused = ["--trace"] if files.trace is not None else []
    if files.plot is not None and files.figure not in _OF_SERVED:
        refused.append(f"--figure {files.figure}")
    if files.html is not None and isinstance(answer, Estimate):
        refused.append("--html")
    if refused:
        raise UsageError(
            f"{', '.join(refused)}: a plan to serve has none; there are --figure {', '.join(_OF_SERVED)}, and --html of 'planner optimize'"
        )


def _figures(name: str, answer: Answer | Estimate, best: RankedPlan, study: Study) -> list[Figure]:
    if not answer.space.has_figures and name != "memory":
        return [*serving_pareto(study.candidates)] if name == "pareto" else [*serving_times(shown_plans(answer))]
    if name == "breakdown":
        return [breakdown(shown_plans(answer))]
    if name == "memory":
        return [memory(shown_plans(answer), answer.space)]
    if name == "pareto":
        return list(pareto(study.candidates))
    if name == "scaling":
        return list(scaling(study.curves))
    return [timeline(answer.space.tracks(best.plan), best.summary)]


def _sections(answer: Answer | Estimate, best: RankedPlan, study: Study, found: WhatIf | None) -> list[Section]:
    sections, pareto = [], _PARETO_NOTE[bool(study.curves)]
    if found is not None:
        sections.append(Section(title="What if", parts=tuple(what_if_html(found)), scripts=(WHAT_IF_SCRIPT,)))
        if not study.curves:
            study = replace(study, curves=tuple(plan_curves(found, best.summary)), note=_SCALING_NOTE)
    for title, name, note in (
        ("Where the step goes", "breakdown", ""),
        ("What fills the memory", "memory", ""),
        ("Pareto fronts", "pareto", pareto),
        ("Timeline", "timeline", "--trace FILE writes it with all that is known of it for Perfetto."),
        ("Scaling", "scaling", study.note),
    ):
        figures = _figures(name, answer, best, study)
        if figures or (name == "scaling" and note):
            sections.append(Section(title=title, figures=tuple(figures), note=note))
    return sections

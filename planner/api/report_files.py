"""Writes an answer as a page, a figure or a trace, where that was asked for. Imported only then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from planner import __version__
from planner.api.pages import ReportFiles
from planner.core.answer import Answer, AnswerSpace, Estimate
from planner.core.errors import UsageError
from planner.files.output import write_atomically, write_bytes_atomically
from planner.report.figures.kinds import Figure
from planner.report.figures.standard import breakdown, memory, pareto, scaling, timeline
from planner.report.figures.study import Study, study_of
from planner.report.figures.views import AnswerView, PlanView, view_of_prediction, view_of_search
from planner.uncertainty.sensitivity import SENSITIVITY_PLANS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.core.blocks import Block, Report

__all__ = ["write_figure", "write_report_files"]

Say: TypeAlias = Callable[[str], None]
Progress: TypeAlias = Callable[[str, float], None]


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
    if answer.setting.load is not None:
        is_search = isinstance(answer, Answer)
        refused = [flag for flag in files.flags if flag != "--html" or not is_search]
        if refused:
            raise UsageError(
                f"{', '.join(refused)}: a way to serve has none yet; --format json or markdown holds the answer"
            )
        if isinstance(answer, Answer) and files.html is not None:
            from planner.report.answer_page import serving_page

            write_atomically(files.html, serving_page(answer, blocks, live=files.live, version=__version__))
            _say_page(files, say)
        return
    if isinstance(answer, Estimate):
        view, study = view_of_prediction(answer), Study(candidates=(), curves=())
        if files.plot is not None and files.figure in ("pareto", "scaling"):
            named = f"--figure {files.figure}"
            raise UsageError(f"{named}: one plan has none; 'planner optimize {named}' does")
    else:
        view = view_of_search(answer)
        study = Study(candidates=view.shown, curves=())
        wanted = files.html is not None or (files.plot is not None and files.figure in ("pareto", "scaling"))
        if wanted and not answer.interrupted:
            study = study_of(answer, view, progress)
            if files.html is not None and len(answer.plans) > 1:
                if progress is not None:
                    progress("sensitivity", 1.0)
                sensitivity = answer.space.sensitivity(answer.plans[:SENSITIVITY_PLANS])
                view = dataclasses.replace(view, sensitivity=sensitivity)
    _write(view, answer.space, study, blocks, files, say)


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
        from planner.report.figures.raster import png_bytes

        write_bytes_atomically(path, png_bytes(figure))
    else:
        from planner.report.figures.svg import svg_file

        write_atomically(path, svg_file(figure))


def _say_page(files: ReportFiles, say: Say) -> None:
    say(f"wrote {files.html}")
    if not files.live:
        say("the page has figures without a script; with the extra 'plots' (and without --static) they are interactive")


def _write(
    view: AnswerView, space: AnswerSpace, study: Study, blocks: Sequence[Block], files: ReportFiles, say: Say
) -> None:
    if files.html is not None:
        write_atomically(files.html, _page(view, space, study, blocks, live=files.live))
        _say_page(files, say)
    if files.plot is not None:
        figures = _figures(files.figure, view, space, study)
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

        tracks = space.tracks(view.best.plan)
        document = trace_document(tracks, _about(view, view.best, tracks.end_s))
        write_bytes_atomically(files.trace, trace_bytes(document, compressed=files.trace.suffix.lower() == ".gz"))
        say(f"wrote {files.trace}")


def _about(view: AnswerView, plan: PlanView, end_s: float) -> dict[str, object]:
    setting = view.setting
    return {
        "plan": plan.summary,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": plan.workers,
        "global_batch": setting.global_batch,
        "predicted_step_time_s": plan.step_time_s,
        "simulated_step_time_s": end_s,
        "planner": __version__,
    }


def _figures(name: str, view: AnswerView, space: AnswerSpace, study: Study) -> list[Figure]:
    if name == "breakdown":
        return [breakdown(view)]
    if name == "memory":
        return [memory(_with_memory_parts(view, space))]
    if name == "pareto":
        return list(pareto(study.candidates))
    if name == "scaling":
        return list(scaling(study.curves))
    return [timeline(space.tracks(view.best.plan), view.best.summary)]


def _with_memory_parts(view: AnswerView, space: AnswerSpace) -> AnswerView:
    """The same answer with the parts of the memory of every plan, of those too whose figures do not have them."""

    def filled(plan: PlanView) -> PlanView:
        if plan.memory_parts:
            return plan
        return dataclasses.replace(plan, memory_parts=tuple(space.memory_parts(plan.plan, plan.memory_bytes)))

    return dataclasses.replace(
        view,
        plans=tuple(filled(plan) for plan in view.plans),
        others=tuple(filled(plan) for plan in view.others),
        best=filled(view.best),
    )


def _page(view: AnswerView, space: AnswerSpace, study: Study, blocks: Sequence[Block], *, live: bool) -> str:
    from planner.report.answer_page import Section, answer_page

    view = _with_memory_parts(view, space)
    sections = [
        Section(title="Where the step goes", figures=(breakdown(view),)),
        Section(title="What fills the memory", figures=(memory(view),)),
    ]
    fronts = pareto(study.candidates)
    if fronts:
        note = "Plans of this answer, and the best ones on fewer GPUs and in less memory."
        sections.append(Section(title="Pareto fronts", figures=tuple(fronts), note=note))
    steps = timeline(space.tracks(view.best.plan), view.best.summary)
    note = "--trace FILE writes it with all that is known of it for Perfetto."
    sections.append(Section(title="Timeline", figures=(steps,), note=note))
    curves = scaling(study.curves)
    if curves or study.note:
        sections.append(Section(title="Scaling", figures=tuple(curves), note=study.note))
    return answer_page(view, blocks, sections, live=live, version=__version__)

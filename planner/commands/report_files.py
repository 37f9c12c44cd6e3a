"""Writes an answer as a page, a figure or a trace, where that was asked for. Imported only then."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from planner import __version__
from planner.commands.output import Output, remark
from planner.commands.progress import Progress
from planner.commands.report_options import ReportFiles, refuse_files
from planner.core.errors import UsageError
from planner.files.output import write_atomically, write_bytes_atomically
from planner.report.figures.kinds import Figure
from planner.report.figures.standard import breakdown, memory, pareto, scaling, timeline
from planner.report.figures.study import Study, study_of
from planner.report.figures.views import AnswerView, PlanView, view_of_prediction, view_of_search
from planner.uncertainty.sensitivity import SENSITIVITY_PLANS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.core.answer import Answer, AnswerSpace, Estimate
    from planner.core.blocks import Block, Report

__all__ = ["write_prediction_files", "write_search_files"]


def write_search_files(answer: Answer, report: Report, files: ReportFiles, where: Output) -> None:
    """Write what was asked for of an answer of ``planner optimize``; after Ctrl-C nothing more is searched.

    Raises
    ------
    PlannerError
        A figure that the answer does not have; files that can no longer be written.
    """
    if answer.setting.load is not None:
        refuse_files(files, "a way to serve", but=("--html",))
        _write_serving_page(answer, report, files, where)
        return
    view = view_of_search(answer)
    study = Study(candidates=view.shown, curves=())
    wanted = files.html is not None or (files.plot is not None and files.figure in ("pareto", "scaling"))
    if wanted and not answer.interrupted:
        with Progress(where) as progress:
            study = study_of(answer, view, progress)
            if files.html is not None and len(answer.plans) > 1:
                progress("sensitivity", 1.0)
                sensitivity = answer.space.sensitivity(answer.plans[:SENSITIVITY_PLANS])
                view = dataclasses.replace(view, sensitivity=sensitivity)
    _write(view, answer.space, study, [*report.blocks(), *report.details()], files, where)


def write_prediction_files(estimate: Estimate, report: Report, files: ReportFiles, where: Output) -> None:
    """Write what was asked for of an answer of ``planner estimate`` or ``planner explain``, as `write_search_files`."""
    if estimate.setting.load is not None:
        refuse_files(files, "a way to serve")
    view = view_of_prediction(estimate)
    if files.plot is not None and files.figure in ("pareto", "scaling"):
        raise UsageError(f"--figure {files.figure}: one plan has none; 'planner optimize --figure {files.figure}' does")
    study = Study(candidates=(), curves=())
    _write(view, estimate.space, study, [*report.blocks(), *report.details()], files, where)


def _write_serving_page(answer: Answer, report: Report, files: ReportFiles, where: Output) -> None:
    """Write the page of an answer about serving."""
    from planner.report.answer_page import serving_page

    assert files.html is not None
    write_atomically(
        files.html, serving_page(answer, [*report.blocks(), *report.details()], live=files.live, version=__version__)
    )
    _said_page(where, files)


def _said_page(where: Output, files: ReportFiles) -> None:
    assert files.html is not None
    _said(where, files.html)
    if not files.live:
        note = (
            "the page has figures without a script; with the extra 'plots' (and without --static) they are interactive"
        )
        remark(where, note)


def _write(
    view: AnswerView, space: AnswerSpace, study: Study, blocks: Sequence[Block], files: ReportFiles, where: Output
) -> None:
    if files.html is not None:
        write_atomically(files.html, _page(view, space, study, blocks, live=files.live))
        _said_page(where, files)
    if files.plot is not None:
        figures = _figures(files.figure, view, space, study)
        if not figures:
            raise UsageError(
                f"--figure {files.figure}: this answer has none: its plans do not differ on any axis that is known"
            )
        _plot(files.plot, figures, where)
    if files.trace is not None:
        from planner.report.trace import trace_bytes, trace_document

        tracks = space.tracks(view.best.plan)
        document = trace_document(tracks, _about(view, view.best, tracks.end_s))
        write_bytes_atomically(files.trace, trace_bytes(document, compressed=files.trace.suffix.lower() == ".gz"))
        _said(where, files.trace)


def _said(where: Output, path: Path) -> None:
    remark(where, f"wrote {path}")


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


def _plot(path: Path, figures: Sequence[Figure], where: Output) -> None:
    """One file per figure: the second and later ones have a number in their names."""
    for n, figure in enumerate(figures):
        target = path if n == 0 else path.with_name(f"{path.stem}-{n + 1}{path.suffix}")
        if path.suffix.lower() == ".png":
            from planner.report.figures.raster import png_bytes

            write_bytes_atomically(target, png_bytes(figure))
        else:
            from planner.report.figures.svg import svg_file

            write_atomically(target, svg_file(figure))
        _said(where, target)


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

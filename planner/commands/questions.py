"""``planner optimize``, ``estimate``, ``explain``, ``why-not`` and ``scale``: questions about the plans of a network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from planner.api.keywords import (
    EstimateOptions,
    ExplainOptions,
    OptimizeOptions,
    ScaleOptions,
    WhyNotOptions,
    options_of,
)
from planner.api.pages import PLOT_OPTION, REPORT_OPTIONS, ReportFiles, figure_file, report_files
from planner.api.readers import OUTPUT, Option
from planner.api.requests import Command, Predicts, curve_of, is_of_plan, question_about_plan, search_request
from planner.commands.command import MODEL, RUN_FROM, Typed, argument, command
from planner.commands.output import (
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    Output,
    Progress,
    emit,
    export_plan,
    output_of,
    remark,
)
from planner.core.errors import ExitCode, SearchInterrupted, UsageError

if TYPE_CHECKING:
    from planner.core.answer import Answer, Estimate
    from planner.core.blocks import Report

_OPTIONAL_MODEL = argument(
    str | None,
    "[MODEL]",  # brackets: may be left out
    "A bundled network ('planner list models') or a file; with --plan, the plan's own by default.",
    "kind:models",
)
# What says which plan 'why-not' is about.
_OF_PLAN = {
    name: option
    for name, option in options_of(WhyNotOptions).items()
    if is_of_plan(option.field or name) or name in ("family", "fix")
}
_PLAN = {
    "plan": Option("--plan -p", "FILE", "A plan file, from 'planner optimize --export'."),
}


@command(
    {
        "plan": Option(
            "--plan -p", "FILE", "Show a plan beside the best: a plan file, which asks the question, too.", rare=True
        ),
        "run_from": replace(RUN_FROM["run_from"], rare=True),
    },
    options_of(OptimizeOptions, "gpus", "space", "family", "top", "diverse"),
    EXPORT_OPTION,
    {
        "pick": Option(
            "--pick", "N", "Write plan N of the table with --export, in place of the first.", panel=OUTPUT, rare=True
        )
    },
    OUTPUT_OPTIONS,
    REPORT_OPTIONS,
    model=_OPTIONAL_MODEL,
)
def optimize(typed: Typed) -> None:
    """Find the fastest plans for a network on a cluster, ranked and proven.

    Searches every number of workers up to --gpus and says how much better any other plan could be. For a transformer: every
    tensor, context, expert, pipeline and data parallel degree, micro-batch, ZeRO stage, schedule, recomputation and offload. For any
    other network: every split of every layer, every collective and every pipeline.

    \b
    planner optimize alexnet --gpus 16
    planner optimize llama3-70b --nodes 32 --cluster h100 --batch 1024 --seq 8192 --framework torchtitan
    planner optimize llama3-70b --gpus 256 --tp 8 --pp 1..8 --zero 1
    planner optimize llama3-70b --gpus 8 --mode inference --prompt 1024 --output-tokens 256 --max-tpot 30ms
    planner optimize llama3-8b --from megatron train.sh --gpus 64
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    given, values = typed.given, typed.values
    plan, run_from = given.get("plan"), given.get("run_from")
    if plan is None and "model" not in given:
        values.add("MODEL: is missing; name a network ('planner list models') or a plan: planner optimize --plan FILE")
        values.check()
    notes: tuple[str, ...] = ()
    is_search = plan is None and run_from is None
    if is_search:
        request = search_request(given, values, typed.command_line)
    else:
        beside, notes = question_about_plan("optimize", given, plan, run_from, values, typed.command_line)
    where = output_of(typed)
    files = report_files(given, values, typed.file)
    pick = _picked(typed, where, files)
    for note in notes:
        remark(where, note)
    values.check()
    from planner.comparison.frameworks import optimize as search

    try:
        with Progress(where) as progress:
            answer = search(request, progress) if is_search else beside(progress)[0]
    except SearchInterrupted as interruption:
        if interruption.result is not None:
            try:
                _show_search(interruption.result, where, files, pick)
            except UsageError as error:  # no such plan among those found so far
                remark(where, str(error))
        raise
    _show_search(answer, where, files, pick)


def _picked(typed: Typed, where: Output, files: ReportFiles) -> int | None:
    """Number of the plan that --export writes, as the answer has it; None: that of the plan to run."""
    if "pick" not in typed.given:
        return None
    if files.html is not None:
        typed.values.add("--pick and --html: the page says how to run the first plan; give one of them")
    if where.export is None:
        typed.values.add("--pick: says which plan --export FILE writes; name a file")
    return typed.values.count("--pick", typed.given["pick"])


def _show_search(answer: Answer, where: Output, files: ReportFiles, pick: int | None) -> None:
    from planner.exporters.launch import following
    from planner.report.answer import search_report
    from planner.report.roles import numbered

    is_table = where.format in ("table", "markdown")
    rows = numbered(answer) if is_table else {plan.rank: plan for plan in answer.tabled}
    chosen = None if pick is None else rows.get(pick)
    is_there = pick is None or chosen is not None
    if answer.plans and is_there:
        export_plan(where, lambda: answer, "the best plan" if pick is None else f"plan {pick}", chosen)
    report = search_report(answer, following(answer, chosen) if is_table else "")
    if answer.plans:
        _write_files(answer, report, files, where)
    emit(report, where)
    if not is_there:
        last = max(rows, default=0)
        raise UsageError(
            f"--pick {pick}: the table ends with plan {last}, and nothing was exported; --top N lists more"
        )


def _write_files(answer: Answer | Estimate, report: Report, files: ReportFiles, where: Output) -> None:
    if not files.flags:
        return
    from planner.api.report_files import write_report_files

    with Progress(where) as progress:
        write_report_files(answer, report, files, lambda text: remark(where, text), progress)


@command(
    _PLAN,
    RUN_FROM,
    options_of(EstimateOptions, "gpus", "space", "family"),
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    REPORT_OPTIONS,
    model=_OPTIONAL_MODEL,
)
def estimate(typed: Typed) -> None:
    """Predict one plan: from a file, by its degrees, or the best of a family or of what is fixed, on exactly --gpus workers.

    For a transformer, degrees that are left out are 1; data parallelism takes the GPUs and the micro-batches the samples that are left.

    \b
    planner estimate --plan plan.yaml
    planner estimate llama3-8b --from megatron train.sh --gpus 64
    planner estimate llama3-70b --gpus 64 --tp 8 --pp 4 --micro-batch 2
    planner estimate llama3-70b --mode inference --gpus 8 --tp 8 --max-batch 64
    planner estimate alexnet --gpus 8 --family data
    planner estimate alexnet --gpus 8 --fix 'conv*:batch' --fix 'fc*:out_channels'
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    _predict(typed, "estimate")


@command(
    _PLAN,
    options_of(ExplainOptions, "gpus", "space", "family", "sensitivity"),
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    REPORT_OPTIONS,
    model=_OPTIONAL_MODEL,
)
def explain(typed: Typed) -> None:
    """Show where the time of a plan goes, layer by layer, and why it is not the best.

    Without --plan, --family, --fix and degrees the best plan itself is explained. Without --gpus,
    the degrees say how many workers there are.
    """
    _predict(typed, "explain")


@command(
    _PLAN,
    RUN_FROM,
    options_of(WhyNotOptions, "gpus", "space", "family"),
    OUTPUT_OPTIONS,
    model=_OPTIONAL_MODEL,
)
def why_not(typed: Typed) -> None:
    """Say why a plan is not the first: is it legal, does it fit, how many are better, and what does each difference cost.

    The plan is a file, what you run today, or settings: what they leave open is chosen by a search. The last table turns the plan into
    the first one, a setting at a time.

    Exit code 1: the plan is not legal or does not fit.

    \b
    planner why-not llama3-70b --gpus 256 --framework megatron-lm --tp 8 --pp 16
    planner why-not --plan plan.yaml
    planner why-not llama3-8b --from megatron train.sh --gpus 64
    planner why-not alexnet --gpus 8 --family data
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    answer, warnings, where = _asked(typed, "why-not")
    from planner.commands.next_commands import after_why_not
    from planner.comparison.why_not_report import why_not_report

    emit(why_not_report(answer, warnings, after_why_not(answer, typed.command_line, _OF_PLAN)), where)
    if not answer.is_good:
        raise typer.Exit(ExitCode.NO_PLAN)


def _predict(typed: Typed, name: Predicts) -> None:
    from planner.report.answer import estimate_report

    files = report_files(typed.given, typed.values, typed.file)
    answer, warnings, where = _asked(typed, name)
    export_plan(where, lambda: answer, "the plan")
    report = estimate_report(answer, warnings, name)
    _write_files(answer, report, files, where)
    emit(report, where)


def _asked(typed: Typed, name: Command) -> tuple[Any, tuple[str, ...], Output]:
    """The answer to a question about one plan, and what no longer holds of its file."""
    from planner.files.resources import is_plan_file

    given, values = typed.given, typed.values
    plan = given.get("plan")
    if plan is None and is_plan_file(given.get("model", "")):
        plan = given.pop("model")  # "planner explain plan.yaml" means the plan
        given["plan"] = plan
    predicted, notes = question_about_plan(name, given, plan, given.get("run_from"), values, typed.command_line)
    where = output_of(typed)
    for note in notes:
        remark(where, note)
    if plan is None and "model" not in given:
        values.add(f"MODEL: is missing; name a network ('planner list models') or a plan: planner {name} --plan FILE")
    values.check()
    try:
        with Progress(where) as progress:
            answer, warnings = predicted(progress)
    except SearchInterrupted:
        raise KeyboardInterrupt from None  # without the best plan there is nothing to compare with
    for warning in warnings:
        remark(where, f"warning: {warning}")
    return answer, warnings, where


@command(
    options_of(ScaleOptions, "workers", "nodes", "weak", "strong", "family", "epochs", "samples"),
    OUTPUT_OPTIONS,
    PLOT_OPTION,
    model=MODEL,
)
def scale(typed: Typed) -> None:
    """Show how a network scales over 1, 2, 4, ... workers, and how many hours a training takes.

    Strong scaling (the default) divides one global batch over the workers; weak scaling gives each worker a batch of its own.
    Of a transformer every row is the best plan on that many GPUs, searched as 'planner optimize' does; of other networks the plan of
    one family, data parallelism unless --family says otherwise.
    """
    where = output_of(typed)
    figure = figure_file(typed.values, "--plot", typed.file)
    curve = curve_of(typed.given, typed.values, typed.command_line)
    from planner.report.answer import scale_report

    if figure is not None:
        from planner.api.report_files import write_figure
        from planner.report.figures.standard import curve_figure

        write_figure(curve_figure(curve), figure)
        remark(where, f"wrote {figure}")
    emit(scale_report(curve), where)

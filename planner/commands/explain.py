"""``planner estimate`` and ``planner explain``: what one plan costs, and where its time goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import Output, emit, export_plan, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.report_options import ReportFiles, report_files, takes_report_options
from planner.commands.serving_options import QUESTION_OPTIONS, serving_from, takes_serving_options
from planner.commands.values import Values
from planner.core.errors import InputFileError, UsageError
from planner.core.request import Request
from planner.question.fixed import FIELD_OF_OPTION, flag_of
from planner.spaces.plan_question import DECIDED_BY_PLAN, OVERRIDES, plan_question, plan_warnings

if TYPE_CHECKING:
    from planner.core.answer import Estimate
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument

__all__ = ["estimate", "explain"]

RunFrom = Annotated[
    tuple[str, str] | None,
    o.option(
        "--from",
        metavar="TRAINER FILE",
        help="Predict what you run today: megatron ARGS.sh, deepspeed ds.json or accelerate fsdp.yaml. Nothing in it is executed.",
        group=o.QUESTION,
    ),
]


@takes_report_options
@takes_serving_options
@takes_mesh_options
def estimate(
    context: typer.Context,
    model: o.OptionalModel = None,
    plan: o.PlanFile = None,
    run_from: RunFrom = None,
    gpus: o.ExactGpus = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    mode: o.Mode = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    assume_free: o.AssumeFree = None,
    lora_rank: o.LoraRank = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    assume: o.Assume = None,
    price_per_hour: o.Price = None,
    power_w: o.Power = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    export: o.Export = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    *,
    mesh: Mapping[str, Any],
    serving: Mapping[str, Any],
    report: Mapping[str, Any],
) -> None:
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
    _run(locals(), "estimate")


@takes_report_options
@takes_serving_options
@takes_mesh_options
def explain(
    context: typer.Context,
    model: o.OptionalModel = None,
    plan: o.PlanFile = None,
    gpus: o.ExactGpus = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    mode: o.Mode = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    assume_free: o.AssumeFree = None,
    lora_rank: o.LoraRank = None,
    objective: o.Objective = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    assume: o.Assume = None,
    price_per_hour: o.Price = None,
    power_w: o.Power = None,
    sensitivity: o.Sensitivity = False,
    time_limit: o.TimeLimit = None,
    solver: o.Solver = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    export: o.Export = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    *,
    mesh: Mapping[str, Any],
    serving: Mapping[str, Any],
    report: Mapping[str, Any],
) -> None:
    """Show where the time of a plan goes, layer by layer, and why it is not the best.

    Without --plan, --family, --fix and degrees the best plan itself is explained; without --gpus, one worker.
    """
    _run(locals(), "explain")


def _run(options: Mapping[str, Any], command: Literal["estimate", "explain"]) -> None:
    from planner.files.plan_file import is_plan_file

    values = Values()
    options, notes = _with_run(options)
    if options["plan"] is None and options["model"] is not None and is_plan_file(options["model"]):
        options = {**options, "plan": options["model"], "model": None}  # "planner explain plan.yaml" means the plan
    loaded = None if options["plan"] is None else _read(options, values)
    # The words of some options depend on the mode.
    mode = options["mode"] or (None if loaded is None else loaded.content.mode)
    request = serving_from(options["serving"], request_from({**options, "mode": mode}, values), values)
    where = output_of(options, values)
    files = report_files(options["report"], where, values, options)
    for note in notes:
        remark(where, note)
    if loaded is not None:
        _answer_file(loaded, options, request, values, where, command, files)
        return
    if options["model"] is None:
        values.add(
            f"MODEL: is missing; name a network ('planner list models') or a plan: planner {command} --plan FILE"
        )
        values.check()
    values.check()
    _answer(request, None, None, where, command, files)


def _read(options: Mapping[str, Any], values: Values) -> Loaded[PlanDocument]:
    """The plan of --plan, and what other options may not say beside it."""
    from planner.files.plan_file import read_plan

    for name in DECIDED_BY_PLAN:
        if options.get(name):
            values.add(f"--{name.replace('_', '-')}: is decided by --plan; leave one of them out")
    try:
        return read_plan(Path(options["plan"]))
    except InputFileError:
        values.check()  # what is wrong with the command line, whatever the file says
        raise


def _answer_file(
    loaded: Loaded[PlanDocument],
    options: Mapping[str, Any],
    request: Request,
    values: Values,
    where: Output,
    command: Literal["estimate", "explain"],
    files: ReportFiles,
) -> None:
    """Answer about the plan of a file, with what the command line asks beside it."""
    asks = QUESTION_OPTIONS if loaded.content.serving is not None else {}
    for name, word in (*options["mesh"].items(), *options["serving"].items()):
        if word is not None and name not in asks:
            values.add(f"{flag_of(FIELD_OF_OPTION.get(name, name))}: is decided by --plan; leave one of them out")
    values.check()
    changes = _changes(options, request)
    document, merged, plan = plan_question(loaded, Path(options["plan"]), changes, request.command_line)
    # How the best plan is searched for is no part of the file's question.
    merged = dataclasses.replace(
        merged, sensitivity=request.sensitivity, time_limit_s=request.time_limit_s, solver=request.solver
    )
    _answer(merged, plan, document, where, command, files)


def _with_run(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Fill in what the file of a run says (--from), beside the options of the command line."""
    if options.get("run_from") is None:
        return options, []
    from planner.exporters.runs import with_run

    if options["plan"] is not None:
        raise UsageError("--from and --plan: each names a plan; leave one of them out")
    trainer, file = options["run_from"]
    return with_run(options, trainer, Path(file))


def _changes(options: Mapping[str, Any], given: Request) -> dict[str, Any]:
    """What the command line says of the question beside a plan file."""
    changes = {name: getattr(given, name) for name in OVERRIDES if options.get(name)}
    changes |= {
        field: getattr(given, field) for name, field in QUESTION_OPTIONS.items() if options["serving"].get(name)
    }
    return changes if options["model"] is None else {**changes, "model": given.model}


def _answer(
    request: Request,
    plan: Any,
    document: PlanDocument | None,
    where: Output,
    command: Literal["estimate", "explain"],
    files: ReportFiles,
) -> None:
    from planner.files.plan_file import plan_document
    from planner.report.answer import estimate_report

    answer = _asked(request, plan, where, command)
    warnings = plan_warnings(document, answer)
    for warning in warnings:
        remark(where, f"warning: {warning}")
    export_plan(where, lambda folder: plan_document(answer, folder=folder), "the plan")
    report = estimate_report(answer, warnings, command)
    if files.flags:
        from planner.commands.report_files import write_prediction_files

        write_prediction_files(answer, report, files, where)
    emit(report, where)


def _asked(request: Request, plan: Any, where: Output, command: Literal["estimate", "explain"]) -> Estimate:
    from planner.spaces import ask

    if command == "estimate":
        return ask.estimate(request, plan)
    from planner.core.search_errors import SearchInterrupted

    try:
        with Progress(where) as progress:
            return ask.explain(request, plan, progress)
    except SearchInterrupted:
        raise KeyboardInterrupt from None  # without the best plan there is nothing to compare with

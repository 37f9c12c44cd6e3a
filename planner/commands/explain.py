"""``planner estimate`` and ``planner explain``: what one plan costs, and where its time goes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import Output, emit, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.values import Values
from planner.errors import InputFileError, UsageError
from planner.mesh.flags import FIELD_OF_OPTION, flag_of
from planner.request import Request, SpaceChoice
from planner.serving.commands import answer_plan, answer_plan_file, serving_request
from planner.serving.options import QUESTION_OPTIONS, takes_serving_options

if TYPE_CHECKING:
    from costmodel.mesh.plan import MeshPlan
    from costmodel.mixed.plan import MixedPlan
    from costmodel.plan import Plan
    from planner.loading import Loaded
    from planner.mesh.results import MeshBreakdown
    from planner.mixed.results import MixedBreakdown
    from planner.report.blocks import Report
    from planner.results import Breakdown
    from planner.schema.mesh import MeshEntry
    from planner.schema.plan import PlanDocument

__all__ = ["estimate", "explain"]

# What a plan file decides itself; giving it twice would leave open which one counts.
_DECIDED_BY_PLAN = ("gpus", "space", "family", "fix", "collective", "micro_batches", "lora_rank")
# What may be given beside a plan file, to ask "and on that cluster?".
_OVERRIDES = (
    "cluster",
    "device",
    "batch",
    "seq",
    "precision",
    "optimizer",
    "mode",
    "memory_limit",
    "cost_model",
    "ppp_comp",
    "ppp_comm",
    "paleo_pipeline",
    "paleo_algorithms",
    "paleo_extensions",
    "assume",
    "calibration",
    "objective",
)
RunFrom = Annotated[
    tuple[str, str] | None,
    o.option(
        "--from",
        metavar="TRAINER FILE",
        help="Predict what you run today: megatron ARGS.sh, deepspeed ds.json or accelerate fsdp.yaml. Nothing in it is executed.",
        group=o.QUESTION,
    ),
]
# Relative difference up to which a plan file's stated step time is what the cost model says.
_SAME_PREDICTION = 1e-9


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
    lora_rank: o.LoraRank = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    assume: o.Assume = None,
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
    lora_rank: o.LoraRank = None,
    objective: o.Objective = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    assume: o.Assume = None,
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
) -> None:
    """Show where the time of a plan goes, layer by layer, and why it is not the best.

    Without --plan, --family, --fix and degrees the best plan itself is explained; without --gpus, one worker.
    """
    _run(locals(), "explain")


def _run(options: Mapping[str, Any], command: Literal["estimate", "explain"]) -> None:
    from planner.files.plan_file import is_plan_file, read_plan, request_from_document

    values = Values()
    options, notes = _with_run(options)
    if options["plan"] is None and options["model"] is not None and is_plan_file(options["model"]):
        options = {**options, "plan": options["model"], "model": None}  # "planner explain plan.yaml" means the plan
    loaded, mode = None, options["mode"]
    if options["plan"] is not None:
        for name in _DECIDED_BY_PLAN:
            if options.get(name):
                values.add(f"--{name.replace('_', '-')}: is decided by --plan; leave one of them out")
        try:
            loaded = read_plan(Path(options["plan"]))
        except InputFileError:
            values.check()  # what is wrong with the command line, whatever the file says
            raise
        mode = mode or loaded.content.mode  # the words of some options depend on it
    request = request_from({**options, "mode": mode}, values)
    where = output_of(options, values)
    _say(where, notes)
    if loaded is None:
        if options["model"] is None:
            values.add(
                f"MODEL: is missing; name a network ('planner list models') or a plan: planner {command} --plan FILE"
            )
            values.check()
        served = serving_request(options["serving"], request, values)
        if served is not None:
            answer_plan(served, where, command)
            return
        _answer(request, None, None, where, command)
        return
    asks = QUESTION_OPTIONS if loaded.content.serving is not None else {}
    for name, word in (*options["mesh"].items(), *options["serving"].items()):
        if word is not None and name not in asks:
            values.add(f"{flag_of(FIELD_OF_OPTION.get(name, name))}: is decided by --plan; leave one of them out")
    values.check()
    path = Path(options["plan"])
    if loaded.content.serving is not None:
        changes = _changes(options, request)
        asked = request_from_document(loaded.content, path.resolve().parent)
        base = dataclasses.replace(asked, command_line=request.command_line, **changes)
        answer_plan_file(loaded, base, options["serving"], where, command, is_changed=bool(changes))
        return
    document, merged, plan = _from_file(loaded, path, options, request)
    _answer(merged, plan, document, where, command)


def _say(where: Output, notes: list[str]) -> None:
    for note in notes:
        remark(where, note)


def _with_run(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Fill in what the file of a run says (--from), beside the options of the command line."""
    if options.get("run_from") is None:
        return options, []
    from planner.importers.runs.merge import with_run

    if options["plan"] is not None:
        raise UsageError("--from and --plan: each names a plan; leave one of them out")
    trainer, file = options["run_from"]
    return with_run(options, trainer, Path(file))


def _changes(options: Mapping[str, Any], given: Request) -> dict[str, Any]:
    """What the command line says of the question beside a plan file."""
    changes = {name: getattr(given, name) for name in _OVERRIDES if options.get(name)}
    return changes if options["model"] is None else {**changes, "model": given.model}


def _from_file(
    loaded: Loaded[PlanDocument], path: Path, options: Mapping[str, Any], given: Request
) -> tuple[PlanDocument, Request, Plan | MeshPlan | MixedPlan]:
    from planner.files.plan_file import request_from_document
    from planner.schema.plan import Prediction

    asked = request_from_document(loaded.content, path.resolve().parent)
    overrides = _changes(options, given)
    document = loaded.content
    spaces: dict[str, SpaceChoice] = {"mesh": "mesh", "mixed": "auto", "layers": "layers"}
    space = next(space for section, space in spaces.items() if getattr(document, section))
    request = dataclasses.replace(asked, command_line=given.command_line, space=space, **overrides)
    if overrides:
        document = document.model_copy(update={"prediction": Prediction()})  # it answered another question
    if options.get("batch") and document.mixed is not None and request.batch != document.global_batch:
        raise UsageError("--batch: the plan divides its own batch among its pipelines; search again at another one")
    if options.get("batch"):
        document = document.model_copy(update={"global_batch": request.batch, "mesh": _with_batch(document, request)})
    return document, request, _plan(document, request, loaded)


def _with_batch(document: PlanDocument, request: Request) -> MeshEntry | None:
    """The same degrees at another batch: more or fewer micro-batches."""
    mesh = document.mesh
    if mesh is None or request.batch is None:
        return mesh
    unit = mesh.dp_replicate * mesh.dp_shard * mesh.micro_batch
    if request.batch % unit:
        from planner.mesh.near import near_multiples

        near = near_multiples(request.batch, unit)
        raise UsageError(f"--batch {request.batch}: the plan takes multiples of dp x micro-batch = {unit}; use {near}")
    return mesh.model_copy(update={"num_micro_batches": request.batch // unit})


def _plan(document: PlanDocument, request: Request, loaded: Loaded[PlanDocument]) -> Plan | MeshPlan | MixedPlan:
    """Check the plan against its network."""
    if document.mixed is not None:
        from planner.mixed.commands import plan_of_document

        return plan_of_document(document, request, loaded.document)
    if document.mesh is None:
        from planner.files.plan_check import plan_from_document
        from planner.loading import load_model

        return plan_from_document(document, load_model(request.model, seq=request.seq).graph, loaded.document)
    from planner.files.mesh_plan_file import mesh_plan_from_document
    from planner.mesh.judge import make_judge
    from planner.resolve import resolve

    return mesh_plan_from_document(document, make_judge(resolve(request)), loaded.document)


def _answer(
    request: Request,
    plan: Plan | MeshPlan | MixedPlan | None,
    document: PlanDocument | None,
    where: Output,
    command: Literal["estimate", "explain"],
) -> None:
    breakdown = _breakdown(request, plan, where, command)
    warnings = _warnings(document, breakdown)
    for warning in warnings:
        remark(where, f"warning: {warning}")

    if where.export is not None:
        from planner.commands.files import write_atomically
        from planner.files.plan_file import plan_text

        write_atomically(where.export, plan_text(_plan_document(request, breakdown, where.export.parent)))
        remark(where, f"wrote the plan to {where.export}")
    emit(_report(request, breakdown, warnings, command), where)


def _plan_document(
    request: Request, breakdown: Breakdown | MeshBreakdown | MixedBreakdown, folder: Path | None = None
) -> dict[str, Any]:
    from planner.mixed.results import MixedBreakdown
    from planner.report.documents import assumption_text
    from planner.results import Breakdown

    if isinstance(breakdown, MixedBreakdown):
        from planner.mixed.documents import mixed_plan_document

        return mixed_plan_document(request, breakdown, folder=folder)
    assumptions = [assumption_text(assumption) for assumption in breakdown.assumptions]
    if isinstance(breakdown, Breakdown):
        from planner.files.plan_file import document_from_plan

        return document_from_plan(
            breakdown.ranked,
            layer_names=[layer.name for layer in breakdown.layers],
            request=request,
            setting=breakdown.setting,
            assumptions=assumptions,
            folder=folder,
        )
    from planner.files.mesh_plan_file import document_from_mesh_plan

    return document_from_mesh_plan(
        breakdown.ranked, request=request, setting=breakdown.setting, assumptions=assumptions, folder=folder
    )


def _report(
    request: Request,
    breakdown: Breakdown | MeshBreakdown | MixedBreakdown,
    warnings: list[str],
    command: Literal["estimate", "explain"],
) -> Report:
    from planner.mixed.results import MixedBreakdown
    from planner.results import Breakdown

    if isinstance(breakdown, MixedBreakdown):
        from planner.mixed.report import mixed_estimate_report

        return mixed_estimate_report(breakdown, warnings)

    if isinstance(breakdown, Breakdown):
        from planner.report.explain import estimate_report, explain_report

        report = estimate_report if command == "estimate" else explain_report
        return report(breakdown, functools.partial(_plan_document, request, breakdown), warnings)
    from planner.report.mesh import mesh_estimate_report, mesh_explain_report

    return (mesh_estimate_report if command == "estimate" else mesh_explain_report)(breakdown, warnings)


def _breakdown(
    request: Request, plan: Plan | MeshPlan | MixedPlan | None, where: Output, command: Literal["estimate", "explain"]
) -> Breakdown | MeshBreakdown | MixedBreakdown:
    from planner import search

    if command == "estimate":
        return search.estimate(request, plan)
    from planner.search_errors import SearchInterrupted

    progress = Progress(where)
    try:
        return search.explain(request, plan, progress)
    except SearchInterrupted:
        raise KeyboardInterrupt from None  # without the best plan there is nothing to compare with
    finally:
        progress.close()


def _warnings(document: PlanDocument | None, breakdown: Breakdown | MeshBreakdown | MixedBreakdown) -> list[str]:
    if document is None:
        return []
    from planner.files.plan_file import changed_inputs

    warnings = [
        f"the {role} file is not the one that the plan was made with (its sha256 differs)"
        for role in changed_inputs(document, breakdown.setting)
    ]
    stated, now = document.prediction.step_time_s, breakdown.ranked.step_time_s
    if not warnings and stated is not None and abs(stated - now) > _SAME_PREDICTION * now:
        warnings.append(f"the plan file states a step of {stated:.6g} s; it takes {now:.6g} s")
    return warnings

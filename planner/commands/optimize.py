"""``planner optimize``: the ranked plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import Output, emit, export_plan
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from, whole_cluster
from planner.commands.report_options import ReportFiles, report_files, takes_report_options
from planner.commands.serving_options import serving_from, takes_serving_options
from planner.commands.values import Values

if TYPE_CHECKING:
    from planner.core.answer import Answer
    from planner.core.request import Request

__all__ = ["optimize"]


@takes_report_options
@takes_serving_options
@takes_mesh_options
def optimize(
    context: typer.Context,
    model: o.Model,
    gpus: o.Gpus = None,
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
    top: o.Top = "5",
    diverse: o.Diverse = None,
    time_limit: o.TimeLimit = None,
    gap: o.Gap = "0",
    solver: o.Solver = None,
    seed: o.Seed = "0",
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
    """Find the fastest plans for a network on a cluster, ranked and proven.

    Searches every number of workers up to --gpus and says how much better any other plan could be. For a transformer: every
    tensor, context, expert, pipeline and data parallel degree, micro-batch, ZeRO stage, schedule, recomputation and offload. For any
    other network: every split of every layer, every collective and every pipeline.

    \b
    planner optimize alexnet --gpus 16
    planner optimize llama3-70b --gpus 256 --batch 1024 --seq 8192
    planner optimize llama3-70b --gpus 256 --tp 8 --pp 1..8 --zero 1
    planner optimize llama3-70b --gpus 8 --mode inference --prompt 1024 --output-tokens 256 --max-tpot 30ms
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    options: dict[str, Any] = locals()
    values = Values()
    if gpus is None:
        options["gpus"] = whole_cluster(cluster, values)
        options["whole_cluster"] = options["gpus"] is not None
    request = serving_from(serving, request_from(options, values), values)
    where = output_of(options, values)
    files = report_files(report, where, values, options)
    values.check()
    _answer(request, where, files)


def _answer(request: Request, where: Output, files: ReportFiles) -> None:
    from planner.core.search_errors import SearchInterrupted
    from planner.spaces.ask import optimize as search

    try:
        with Progress(where) as progress:
            answer = search(request, progress)
    except SearchInterrupted as interruption:
        if interruption.result is not None:
            _show(interruption.result, where, files)
        raise
    _show(answer, where, files)


def _show(answer: Answer, where: Output, files: ReportFiles) -> None:
    from planner.files.plan_file import plan_document
    from planner.report.answer import search_report

    if answer.plans:
        export_plan(where, lambda folder: plan_document(answer, folder=folder), "the best plan")
    report = search_report(answer)
    if files.flags and answer.plans:
        from planner.commands.report_files import write_search_files

        write_search_files(answer, report, files, where)
    emit(report, where)

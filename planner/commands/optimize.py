"""``planner optimize``: the ranked plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from planner.commands import options as o
from planner.commands.output import Output, emit, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.values import Values

if TYPE_CHECKING:
    from planner.request import Request
    from planner.results import SearchResult

__all__ = ["optimize"]


def optimize(
    context: typer.Context,
    model: o.Model,
    gpus: o.Gpus = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.Batch = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    mode: o.Mode = None,
    memory_limit: o.MemoryLimit = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    top: o.Top = "5",
    diverse: o.Diverse = False,
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
) -> None:
    """Find the fastest plans for a network on a cluster, ranked and proven.

    Searches every number of workers up to --gpus, every split of every layer, every collective and every pipeline, and says how much
    better any other plan could be.
    """
    options: dict[str, Any] = locals()
    values = Values()
    if gpus is None:
        values.add("--gpus: is missing; say how many workers there are at most, as in --gpus 16")
    request = request_from(options, values)
    where = output_of(options, values)
    values.check()
    _answer(request, where)


def _answer(request: Request, where: Output) -> None:
    from planner.search import optimize as search
    from planner.search_errors import SearchInterrupted

    progress = Progress(where)
    try:
        result = search(request, progress)
    except SearchInterrupted as interruption:
        progress.close()
        if interruption.result is not None:
            _show(request, interruption.result, where)
        raise
    finally:
        progress.close()
    _show(request, result, where)


def _show(request: Request, result: SearchResult, where: Output) -> None:
    from planner.report.optimize import search_report

    if where.export is not None and result.plans:
        from planner.commands.files import write_atomically
        from planner.files.plan_file import plan_text
        from planner.report.documents import plan_document

        document = plan_document(request, result, result.plans[0], folder=where.export.parent)
        write_atomically(where.export, plan_text(document))
        remark(where, f"wrote the best plan to {where.export}")
    emit(search_report(request, result), where)

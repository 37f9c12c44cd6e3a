"""``planner compare``: plans side by side, what differs, by how much and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.explain import RunFrom
from planner.commands.output import Output, emit, export_plan, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.values import Values
from planner.spaces.plan_question import OVERRIDES

if TYPE_CHECKING:
    from planner.comparison.read import Predicted
    from planner.core.request import Request

__all__ = ["compare"]

Plans = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PLAN]...", help="Plan files, as --export writes them, of any kind.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    o.option(
        "--model",
        "-m",
        metavar="NAME|FILE",
        help="With --from: the network that is trained.",
        group=o.QUESTION,
    ),
]
Best = Annotated[
    bool,
    o.option(
        "--best",
        metavar=None,
        help="Also search for the best plan for the question of the first. --from does so unless plans are named.",
        group=o.SEARCH,
    ),
]


def compare(
    context: typer.Context,
    plans: Plans = None,
    run_from: RunFrom = None,
    model: ModelOption = None,
    best: Best = False,
    gpus: o.ExactGpus = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    assume_free: o.AssumeFree = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    assume: o.Assume = None,
    time_limit: o.TimeLimit = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    export: o.Export = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Compare plans: what differs between them, by how much each term of time and memory differs, and why one is faster.

    Every plan is predicted again. What is asked on the command line is asked of all of them; the first is what the others are compared
    with. Plans for different work are compared per sample or per token.

    \b
    planner compare a.yaml b.yaml
    planner compare a.yaml b.yaml --cluster dgx-a100
    planner compare plan.yaml --best
    planner compare --from megatron train.sh --model llama3-8b --gpus 64
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    options: dict[str, Any] = {**locals(), "mesh": {}}
    values = Values()
    where = output_of(options, values)
    files = plans or []
    is_searched = best or (run_from is not None and not files)
    if len(files) + (run_from is not None) + is_searched < 2:
        values.add("compare: needs two plans; or one with --best, or a run by --from")
    for name, needed in (("model", run_from), ("gpus", run_from)):
        if options[name] and needed is None:
            values.add(f"--{name}: belongs to --from; a plan file says it itself")
    if run_from is not None and model is None:
        values.add("--model: is missing; name the network that is trained")
    if export is not None and not is_searched:
        values.add("--export: writes the best plan of a search; give --best or --from")
    values.check()
    predicted = _predicted(options, files, where, values, is_searched=is_searched)
    _answer(predicted, where)


def _predicted(
    options: Mapping[str, Any], files: list[str], where: Output, values: Values, *, is_searched: bool
) -> dict[str, Predicted]:
    """Every plan by its label, in the order in which they are shown."""
    from planner.comparison.read import best_of_question, labels_of, predicted_file

    found: dict[str, Predicted] = {}
    request, run_label = _question(options, where, values)
    if run_label:
        from planner.comparison.read import predicted_question

        found[run_label] = predicted_question(request)
    changes = {name: getattr(request, name) for name in OVERRIDES if options.get(name)}
    paths = [Path(file) for file in files]
    for label, path in zip(labels_of(paths), paths, strict=True):
        found[label] = predicted_file(path, changes, request.command_line)
    if is_searched:
        with Progress(where) as progress:
            first = next(iter(found.values()))
            found["best found"] = best_of_question(first, time_limit_s=request.time_limit_s, progress=progress)
    return found


def _question(options: Mapping[str, Any], where: Output, values: Values) -> tuple[Request, str]:
    """What the command line asks, with the run of --from in it, and what to call the run."""
    if options["run_from"] is None:
        request = request_from(options, values)
        values.check()
        return request, ""
    from planner.exporters.runs import with_run

    trainer, file = options["run_from"]
    merged, notes = with_run({**options, "micro_batches": None}, trainer, Path(file))
    request = request_from(merged, values)
    values.check()
    for note in notes:
        remark(where, note)
    return request, Path(file).name


def _answer(predicted: Mapping[str, Predicted], where: Output) -> None:
    from planner.comparison.differences import compare_items
    from planner.comparison.report import comparison_report

    warnings = [f"{label}: {warning}" for label, entry in predicted.items() for warning in entry.warnings]
    for warning in warnings:
        remark(where, f"warning: {warning}")
    comparison = compare_items([entry.item(label) for label, entry in predicted.items()])
    export_plan(where, lambda folder: _document(list(predicted.values())[-1], folder), "the best plan")
    emit(comparison_report(comparison, warnings), where)


def _document(best: Predicted, folder: Path) -> dict[str, Any]:
    from planner.files.plan_file import plan_document

    return plan_document(best.prediction, folder=folder)

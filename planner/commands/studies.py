"""``planner sweep`` and ``planner size``: many searches, as one table or as one recommendation."""

from __future__ import annotations

from pathlib import Path

import typer

from planner.api.keywords import OptimizeOptions, SizeOptions, SweepOptions, options_of
from planner.api.pages import PLOT_OPTION, figure_file, is_installed
from planner.commands.command import MODEL, Typed, command
from planner.commands.output import (
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    Progress,
    emit,
    export_plan,
    output_of,
    remark,
)
from planner.core.errors import ExitCode, NoFeasiblePlan
from planner.core.numbers import counted
from planner.files.output import write_bytes_atomically


@command(
    options_of(
        SweepOptions, "gpus", "nodes", "cluster", "device", "batch", "seq", "space", "family", "jobs", "dask", "fresh"
    ),
    OUTPUT_OPTIONS,
    PLOT_OPTION,
    model=MODEL,
)
def sweep(typed: Typed) -> None:
    """Search a grid of clusters, numbers of GPUs, batches and lengths: one row each, to a CSV or Parquet file.

    With -o, rows that are done are kept in a journal beside the file (FILE.journal): the same command goes on where a killed one
    stopped. A question without a plan is a row that says why.

    \b
    planner sweep llama3-70b --gpus 8,16,32..1024 --cluster a100,h100 --batch 1024 --jobs 4 -o sweep.csv
    planner sweep alexnet --gpus 1..16 --batch 128,256 -o sweep.parquet --plot sweep.svg
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    from planner.api.studies import sweep_question

    given, values = typed.given, typed.values
    is_parquet = Path(given.get("output", "")).suffix.lower() == ".parquet"
    figure = figure_file(values, "--plot", typed.file)
    question = sweep_question(given, values, typed.command_line)
    where = output_of(typed, writes=not is_parquet)
    target = typed.file("output") if is_parquet else where.path
    if is_parquet:
        if "json" in given or "format" in given:
            values.add(f"--output {given['output']}: is a Parquet file; leave --format and --json out")
        if not is_installed("pyarrow"):
            from planner.sweeping.report import NO_PARQUET

            values.add(NO_PARQUET)
    values.check()
    from planner.sweeping.report import parquet_bytes, scaling_figure, sweep_report
    from planner.sweeping.run import journal_of

    with Progress(where) as progress:
        swept = question(None if target is None else journal_of(target), progress)
    report = sweep_report(swept, typed.command_line)
    if is_parquet and target is not None:
        write_bytes_atomically(target, parquet_bytes(swept.rows))
        remark(where, f"wrote {target}")
    else:
        emit(report, where)
    drawn = None if figure is None else scaling_figure(swept.rows)
    if figure is not None and drawn is None:
        remark(where, f"no figure: no question has a plan, so {figure} was not written")
    if figure is not None and drawn is not None:
        from planner.api.report_files import write_figure

        write_figure(drawn, figure)
    if swept.interrupted:
        left = swept.total - len(swept.rows)
        how = "the same command goes on" if target is not None else "with --output FILE the next run would go on"
        remark(where, f"{counted(left, 'question')} left; {how}")
        raise KeyboardInterrupt


@command(
    options_of(
        SizeOptions,
        *(
            "tokens",
            "samples",
            "epochs",
            "days",
            "budget",
            "rate",
            "demand",
            "spares",
            "cluster",
            "max_gpus",
            "space",
            "family",
        ),
    ),
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    model=MODEL,
)
def size(typed: Typed) -> None:
    """Find how many of which GPUs finish a training in time and within a budget, or serve requests that come at a rate.

    A training: shows the fewest GPUs, the least cost and the least energy on every cluster, with the plan and what keeps it from being
    better.
    Where nothing meets the goal, it shows the nearest miss. It tries whole nodes, and single GPUs inside one node: the most
    GPUs first, then half as many until that is too late, then counts in between.

    Serving (--rate, --requests or --demand): shows the fewest GPUs of every cluster that keep the limits, with replicas in reserve, what
    they cost, and which limit is next.

    \b
    planner size llama3-70b --tokens 1T --days 30 --budget 2M --cluster a100,h100 --batch 1024 --seq 8192
    planner size resnet50 --samples 1.28M --epochs 90 --days 1 --cluster dgx1-v100 --batch 1024
    planner size llama3-70b --rate 50 --prompt 2000 --output-tokens 500 --max-tpot p90:40ms --cluster h100,h200,b200
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    from planner.api.studies import is_about_serving, size_question

    if is_about_serving(typed.given):
        _size_fleet(typed)
        return
    question = size_question(typed.given, typed.values, typed.command_line)
    where = output_of(typed)
    typed.values.check()
    with Progress(where) as progress:
        sized = question(progress)
    from planner.commands.next_commands import after_size
    from planner.sizing.report import miss_in_words, size_report
    from planner.sizing.run import answer_of

    best = sized.best("least_gpus")
    if best is not None:
        export_plan(where, lambda: answer_of(sized, best[1]), "the plan of the fewest GPUs, refined,")
    emit(size_report(sized, after_size(sized, typed.command_line, where.export, _OF_SIZE)), where)
    if sized.interrupted:
        raise KeyboardInterrupt
    if best is None:
        if where.format == "table" and where.path is None:  # which says so already
            raise typer.Exit(ExitCode.NO_PLAN)
        raise NoFeasiblePlan(miss_in_words(sized))


# What 'planner optimize' does not ask.
_OF_SIZE = {name: option for name, option in options_of(SizeOptions).items() if name not in options_of(OptimizeOptions)}


def _size_fleet(typed: Typed) -> None:
    from planner.api.studies import fleet_question

    question = fleet_question(typed.given, typed.values, typed.command_line)
    where = output_of(typed)
    typed.values.check()
    with Progress(where) as progress:
        fleets = question(progress)
    from planner.commands.next_commands import after_fleet
    from planner.sizing.fleet_report import fleet_report

    ranked = fleets.ranked
    if ranked:
        what = "the plan, with the replicas that the demand needs,"
        export_plan(where, lambda: ranked[0].found, what, ranked[0].best)
    emit(fleet_report(fleets, after_fleet(fleets, typed.command_line, where.export)), where)
    if not ranked:
        if where.format == "table" and where.path is None:  # which says so already
            raise typer.Exit(ExitCode.NO_PLAN)
        raise NoFeasiblePlan("; ".join(f"{fleet.facts.name}: {fleet.reason}" for fleet in fleets.fleets))

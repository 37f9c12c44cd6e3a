"""``planner place``: operator graphs on devices, optimal or with a certificate."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from planner.api.keywords import options_of
from planner.api.place_options import PlaceOptions
from planner.api.readers import OUTPUT, Option
from planner.api.values import as_flag
from planner.commands.command import Typed, argument, command
from planner.commands.output import OUTPUT_OPTIONS, Output, Progress, emit, output_of, remark
from planner.core.errors import ExitCode
from planner.files.output import write_atomically

_WORKLOAD = argument(
    list[str],
    "WORKLOAD",
    "An operator graph (JSON), or a network with --cluster. Or: check WORKLOAD PLACEMENT, which checks a file of --export.",
)
_EXPORTS = {
    "export": Option("--export", "FILE", "Also write the placement to a YAML file.", panel=OUTPUT),
    "export_workload": Option(
        "--export-workload", "FILE", "Also write the operator graph to a file of the public JSON format.", panel=OUTPUT
    ),
}
# Of a network: what goes with a check, where the placement file says everything else.
_OF_A_NETWORK = ("cluster", "batch", "mode", "assume_free", "calibration")


@command(options_of(PlaceOptions), _EXPORTS, OUTPUT_OPTIONS, words=_WORKLOAD)
def place(typed: Typed) -> None:
    """Place the operators of a graph on accelerators and CPUs, optimally or with a bound.

    planner place bert24.json --contiguous --devices 6

    planner place bert-large --cluster dgx1-v100 --batch 4

    planner place check bert24.json placement.yaml

    planner place check bert-large placement.yaml --cluster dgx1-v100
    """
    words, given, values = typed.given["words"], typed.given, typed.values
    where = output_of(typed)
    if words[0] == "check" and len(words) > 1:
        _check(words[1:], typed, where)
        return
    workload_file = typed.file("export_workload")
    if len(words) > 1:
        values.add(f"WORKLOAD: one file at a time, not {len(words)}")
    from planner.api.placement import place_request, progress_words

    request = place_request(words[0], given, values)
    values.check()

    from planner.commands.next_commands import after_place
    from planner.placement.placement_file import placement_text
    from planner.placement.report import place_report
    from planner.placement.run import place as answer_of

    with Progress(where) as progress:
        answer = answer_of(request, lambda stage, best, bound: progress(*progress_words(stage, best, bound)))
    if workload_file is not None:
        write_atomically(workload_file, json.dumps(answer.content))
        remark(where, f"wrote {workload_file}")
    if where.export is not None:
        write_atomically(where.export, placement_text(answer))
        remark(where, f"wrote {where.export}")
    emit(place_report(answer, after_place(answer, typed.command_line, where.export)), where)
    if answer.result.stopped == "interrupted":
        raise KeyboardInterrupt  # the best so far is shown; the exit code says that it was stopped


def _check(files: list[str], typed: Typed, where: Output) -> None:
    from planner.api.placement import place_request
    from planner.placement.run import check_files

    given, values = typed.given, typed.values
    if len(files) != 2:
        values.add("check: needs two files, WORKLOAD and PLACEMENT")
    searching = [name for name in (*options_of(PlaceOptions), *_EXPORTS) if name not in _OF_A_NETWORK]
    ignored = [as_flag(name) for name in searching if name in given]
    if ignored:
        values.add(
            f"check: {', '.join(ignored)}: the placement file says this; only --cluster, --batch, --mode and --calibration go with it"
        )
    request = place_request(files[0], {name: given[name] for name in _OF_A_NETWORK if name in given}, values)
    values.check()
    report, ok = check_files(request, Path(files[1]))
    emit(report, where)
    if not ok:
        raise typer.Exit(ExitCode.NO_PLAN)

"""``planner compare``: plans side by side, what differs, by how much and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.api.keywords import EstimateOptions, ExplainOptions, options_of
from planner.api.readers import SEARCH, Option
from planner.commands.command import RUN_FROM, Typed, argument, command
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

if TYPE_CHECKING:
    from planner.comparison.read import Predicted
    from planner.core.request import Request

_ASKED = (
    "gpus",
    "nodes",
    "cluster",
    "device",
    "batch",
    "seq",
    "assume_free",
    "precision",
    "optimizer",
    "memory_limit",
    "memory_reserve",
    "memory_confidence",
    "calibration",
    "framework",
    "assume",
)
_OPTIONS = {
    **{name: options_of(EstimateOptions)[name] for name in _ASKED},
    "time_limit": options_of(ExplainOptions)["time_limit"],
}
_OWN = {
    "model": Option("--model -m", "NAME|FILE", "With --from: the network that is trained.", words="kind:models"),
    "best": Option(
        "--best",
        None,
        "Also search for the best plan for the question of the first. --from does so unless plans are named.",
        panel=SEARCH,
    ),
}


@command(
    RUN_FROM,
    _OWN,
    _OPTIONS,
    EXPORT_OPTION,
    OUTPUT_OPTIONS,
    plans=argument(list[str] | None, "[PLAN]...", "Plan files, as --export writes them, of any kind."),
)
def compare(typed: Typed) -> None:
    """Compare plans: what differs between them, by how much each term of time and memory differs, and why one is faster.

    Every plan is predicted again. What is asked on the command line is asked of all of them; the first is what the others are compared
    with. Plans for different work are compared per sample or per token.

    \b
    planner compare a.yaml b.yaml
    planner compare a.yaml b.yaml --cluster dgx-a100
    planner compare plan.yaml --best
    planner compare --from megatron train.sh --model llama3-8b --gpus 64
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    given, values = typed.given, typed.values
    where = output_of(typed)
    files, run_from = given.get("plans", []), given.get("run_from")
    is_searched = "best" in given or (run_from is not None and not files)
    if len(files) + (run_from is not None) + is_searched < 2:
        values.add("compare: needs two plans; or one with --best, or a run by --from")
    for name in ("model", "gpus", "nodes"):
        if name in given and run_from is None:
            values.add(f"--{name}: belongs to --from; a plan file says it itself")
    if run_from is not None and "model" not in given:
        values.add("--model: is missing; name the network that is trained")
    if "export" in given and not is_searched:
        values.add("--export: writes the best plan of a search; give --best or --from")
    values.check()
    from planner.api.comparison import compared
    from planner.comparison.report import comparison_report

    predicted = _predicted(typed, files, where, is_searched=is_searched)
    found = compared(predicted)
    for warning in found.warnings:
        remark(where, f"warning: {warning}")
    best = predicted[-1][1].prediction
    export_plan(where, lambda: best, "the best plan")
    emit(comparison_report(found.raw, found.warnings), where)


def _predicted(typed: Typed, files: list[str], where: Output, *, is_searched: bool) -> list[tuple[str, Predicted]]:
    from planner.api.requests import changes_of, request_of, with_gpus
    from planner.comparison.read import best_of_question, labels_of, predicted_file, predicted_question

    found: list[tuple[str, Predicted]] = []
    given, options = typed.given, _OPTIONS
    notes: list[str] = []
    of_run: dict[str, Any] = {}
    if "run_from" in given:
        from planner.exporters.runs import with_run

        given = dict(with_gpus(options, given, typed.values, "gpus"))

        trainer, file = given["run_from"]
        given, stages, notes, origins = with_run(given, trainer, Path(file))
        of_run = {"stages": stages, "origins": origins}
        options = options_of(EstimateOptions) | _OPTIONS
    request: Request = request_of(options, given, typed.values, typed.command_line, **of_run)
    typed.values.check()
    for note in notes:
        remark(where, note)
    if "run_from" in given:
        found.append((Path(given["run_from"][1]).name, predicted_question(request)))
    changes = changes_of(_OPTIONS, typed.given, request)
    paths = [Path(file) for file in files]
    for label, path in zip(labels_of(paths), paths, strict=True):
        found.append((label, predicted_file(path, changes, request.command_line)))
    if is_searched:
        with Progress(where) as progress:
            best = best_of_question(found[0][1], time_limit_s=request.time_limit_s, progress=progress)
        found.append(("best found", best))
    return found

"""``planner check``: the log of a training run, or the benchmark of a server, beside its prediction."""

from __future__ import annotations

from pathlib import Path

import typer

from planner.api.keywords import EstimateOptions, options_of
from planner.api.readers import OUTPUT, Option
from planner.commands.command import RUN_FROM, Typed, argument, command
from planner.commands.output import OUTPUT_OPTIONS, Output, Progress, emit, output_of, remark
from planner.files.output import write_atomically

_OWN = {
    "log_format": Option(
        "--log-format",
        "NAME",
        "Who wrote the log: {planner.logs.formats:FORMATS}. Default: its lines tell.",
        words="planner.logs.formats:FORMATS",
    ),
    "plan": Option("--plan -p", "FILE", "The plan file of what ran."),
    "row": Option(
        "--row", "FILE.csv", "Also add the run to a table of measurements, for validate and calibrate.", panel=OUTPUT
    ),
    "calibrate": Option(
        "--calibrate",
        "FILE.yaml",
        "Also fit the cost model to the runs of the table of --row, and write the calibration.",
        panel=OUTPUT,
    ),
}


@command(
    _OWN,
    RUN_FROM,
    options_of(EstimateOptions, "gpus"),
    OUTPUT_OPTIONS,
    log=argument(
        str,
        "LOG",
        "What the training program wrote (trainer_state.json of the Hugging Face Trainer, too), or the result of a server's benchmark.",
    ),
    model=argument(
        str | None, "[MODEL]", "The network that was trained, where the log does not say it.", "kind:models"
    ),
)
def check(typed: Typed) -> None:
    """Compare the log of a training run, or a server's benchmark, with its prediction: what is off.

    The log, --from, --plan or the options of 'planner estimate' say what ran; options count before the log. Steps of the warm-up are
    left out. Of a server it reads the result file of vllm bench serve, sglang.benchmark.serving, AIPerf or GenAI-Perf.
    Exit code 1: what was measured is outside the 80 % interval of the prediction.

    \b
    planner check run.log --cluster dgx-h100
    planner check run.log llama3-8b --gpus 64 --tp 2 --batch 128 --seq 8192
    planner check run.log llama3-8b --from megatron train.sh --gpus 64
    planner check run.log --plan plan.yaml --row runs.csv --calibrate mine.yaml
    planner check bench.json --plan plan.yaml
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    given, values = dict(typed.given), typed.values
    where = output_of(typed)
    table = typed.file("row", (".csv",), "a table of measurements is a CSV file; end its name in .csv")
    fitted = typed.file("calibrate", (".yaml", ".yml"), "a calibration is a YAML file; end its name in .yaml")
    if fitted is not None and "row" not in given:
        values.add("--calibrate: needs --row FILE.csv, the table of your runs that the constants are fitted to")
    values.check()
    from planner.api.checking import checked
    from planner.core.errors import ExitCode, UsageError
    from planner.logs.benchmark_report import server_check_report
    from planner.logs.benchmarks import ServerCheck
    from planner.logs.report import check_report
    from planner.logs.rows import row_of, table_with

    own = {name: given.pop(name, None) for name in ("log", *_OWN, "run_from")}
    found = checked(
        given, Path(own["log"]), own["log_format"], own["plan"], own["run_from"], values, typed.command_line
    )
    if isinstance(found, ServerCheck):
        if table is not None:
            raise UsageError("--row: is for training runs; a table of served requests is written by hand")
        emit(server_check_report(found), where)
        if found.inside is False:
            raise typer.Exit(ExitCode.NO_PLAN)
        return
    if table is not None:
        write_atomically(table, table_with(table, row_of(found)))
        remark(where, f"added the run to {table}")
    if fitted is not None:
        _calibrate(typed, where, str(table), fitted)
    emit(check_report(found), where)
    if found.inside is False:
        raise typer.Exit(ExitCode.NO_PLAN)


def _calibrate(typed: Typed, where: Output, table: str, path: Path) -> None:
    from planner.calibration.measurements import machinery_of
    from planner.calibration.report import calibration_text
    from planner.calibration.run import calibrate
    from planner.commands.measurements import calibration_name

    with Progress(where) as progress:
        fit = calibrate([table], machinery_of(None, None, None), name=calibration_name(path), progress=progress)
    write_atomically(path, calibration_text(fit, typed.command_line))
    remark(where, f"wrote {path}; use it with --calibration {path}")
    for words in filter(None, (fit.fell_back, fit.doubt)):
        remark(where, words)

"""`planner.check`: the log of a training run beside its prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.calls import call_text, given_in_python, in_python_words, takes_options
from planner.api.keywords import EstimateOptions
from planner.api.plans import Plan
from planner.api.requests import question_about_plan
from planner.api.shown import Answer, Reads
from planner.core.errors import UsageError
from planner.files.resources import InMemory, bundled_name
from planner.logs.benchmarks import ServerCheck as FoundServer
from planner.logs.benchmarks import check_benchmark, read_benchmark
from planner.logs.compare import Check as Found
from planner.logs.compare import check_log

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.api.values import Values
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Check(Answer):
    """The log of a run beside its prediction.

    Attributes
    ----------
    raw : planner.logs.compare.Check
        The planner's own record of the answer.

    Examples
    --------
    >>> import planner
    >>> from pathlib import Path
    >>> log = Path("run.log")
    >>> line = " iteration {:8d}/ 100 | elapsed time per iteration (ms): {:.1f} | global batch size:    32 |"
    >>> size = log.write_text("".join(line.format(n, 9000 if n == 1 else 1700) + chr(10) for n in range(1, 11)))
    >>> found = planner.check(log, "llama3-8b", gpus=16, tp=2, zero=1, seq=8192, cluster="dgx-h100")
    >>> found.measured_step_time_s, found.raw.steps.warm_up, found.inside
    (1.7, 1, True)
    >>> found.row()["step_time_ms"]
    '1700'
    >>> log.unlink()
    """

    raw: Found

    measured_step_time_s = Reads[float]("raw.steps.median_s", "Median of the steps after the warm-up.")

    step_time_s = Reads[float]("raw.estimate.ranked.step_time_s", "The prediction.")

    inside = Reads[bool | None](
        "raw.inside", "Whether the median is in the 80 % interval of the prediction; None: it has none."
    )

    notes = Reads[tuple[str, ...]]("raw.notes", "Sentences for people: which part is off, what to look at.")

    def row(self) -> dict[str, str]:
        """Cells of a row of a table of measurements, by column: the run with its measured time and memory.

        Raises
        ------
        UsageError
            The columns of a table cannot say what ran.
        """
        from planner.logs.rows import row_of

        with in_python_words():
            return row_of(self.raw)

    def __repr__(self) -> str:
        return f"<planner.Check of {self.raw.path}: {self.measured_step_time_s:.4g} s measured, {self.step_time_s:.4g} s predicted>"

    def _report(self) -> Report:
        from planner.logs.report import check_report

        return check_report(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerCheck(Answer):
    """The benchmark of a server beside its prediction.

    Attributes
    ----------
    raw : planner.logs.benchmarks.ServerCheck
        The planner's own record of the answer.

    Examples
    --------
    What ``vllm bench serve --save-result`` wrote, against a plan:

    >>> import json, pathlib, tempfile
    >>> import planner
    >>> file = pathlib.Path(tempfile.mkdtemp(), "bench.json")
    >>> result = {"backend": "vllm", "num_prompts": 160, "max_concurrency": 16, "completed": 160, "mean_ttft_ms": 60.0,
    ...     "mean_tpot_ms": 9.0, "total_input_tokens": 163840, "total_output_tokens": 40960, "output_throughput": 1600.0}
    >>> _ = file.write_text(json.dumps(result))
    >>> planner.check(file, "llama3-8b", gpus=1, max_batch=16, framework="vllm").inside
    True
    """

    raw: FoundServer

    inside = Reads[bool | None](
        "raw.inside", "Whether every figure was measured in its 80 % interval; None: none has an interval."
    )

    notes = Reads[tuple[str, ...]]("raw.notes", "Sentences for people: what to look at.")

    def __repr__(self) -> str:
        figures = ", ".join(f"{f.name} {f.measured:.4g} ({f.predicted:.4g} predicted)" for f in self.raw.figures)
        return f"<planner.ServerCheck of {self.raw.path}: {figures}>"

    def _report(self) -> Report:
        from planner.logs.benchmark_report import server_check_report

        return server_check_report(self.raw)


@takes_options(EstimateOptions)
def check(
    log: str | os.PathLike[str],
    model: ModelLike | None = None,
    /,
    *,
    log_format: str | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    run_from: tuple[str, str | os.PathLike[str]] | None = None,
    **options: Unpack[EstimateOptions],
) -> Check | ServerCheck:
    """Compare the log of a training run, or the benchmark of a server, with its prediction: which figure is off.

    Parameters
    ----------
    log : path
        What Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron or the Trainer of Transformers wrote; or the result
        file of `vllm bench serve`, `sglang.benchmark.serving`, AIPerf or GenAI-Perf.
    model : name, path, loaded network or mapping, optional
        The network that was trained; left out where the log says it.
    log_format : str, optional
        A name of `planner.logs.formats.FORMATS`; left out, the lines tell.
    plan : Plan or path, optional
        The plan that ran.
    run_from : (trainer, path), optional
        What was run, as for `planner.estimate`. Without both, the log and the options say what ran.
    **options
        The options of ``planner estimate``, by the same names; they count before what the log says.

    Returns
    -------
    Check or ServerCheck

    Raises
    ------
    PlannerError
        The log cannot be read, does not say enough, or is of another run.
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> planner.check("no-such.log", "llama3-8b")
    Traceback (most recent call last):
    ...
    planner.core.errors.InputFileError: no-such.log: no such file
    """
    with in_python_words() as values:
        given = given_in_python(EstimateOptions, model, options)
        call = call_text("check", [log], options)
        document = plan.to_dict() if isinstance(plan, Plan) else plan
        found = checked(given, Path(log), log_format, document, run_from, values, call)
    return ServerCheck(raw=found) if isinstance(found, FoundServer) else Check(raw=found)


def checked(
    given: Mapping[str, Any],
    path: Path,
    log_format: str | None,
    plan: Any,
    run_from: Any,
    values: Values,
    command_line: str,
) -> Found | FoundServer:
    """Read a log, predict what ran, and compare; `values` takes the problems, and raises them all.

    Parameters
    ----------
    given : mapping
        Options of ``planner estimate`` by keyword, and perhaps ``model``.
    path : Path
        The log.
    log_format : str or None
    plan : path, document of a plan (mapping) or None
    run_from : (trainer, path) or None
    values : Values
    command_line : str
    """
    from planner.logs.read import read_log
    from planner.logs.settings import logged_run_of

    given = dict(given)
    benchmark = None if log_format else read_benchmark(path)
    if benchmark is not None:
        if plan is None:
            if given.get("model") is None and run_from is None:
                raise UsageError(
                    f"MODEL: is missing: name what served {path.name}, or its plan ({values.called('plan')})"
                )
            given = {"mode": "inference", **given}
        predicted, notes = question_about_plan("estimate", given, plan, run_from, values, command_line)
        values.check()
        estimate, warnings = predicted(None)
        return check_benchmark(path, benchmark, estimate, (*notes, *warnings))
    log = read_log(path, log_format)
    if plan is None:
        found = logged_run_of(path, log)
        if run_from is None:
            run_from = (log.known.trainer, found.run)
        if given.get("model") is None and found.model is not None:
            given["model"] = found.model if isinstance(found.model, str) else _in_memory(found.model)
        device = bundled_name("devices", found.device) if found.device else None
        if device is not None and not {"cluster", "device"} & given.keys():
            given["device"] = device
        if given.get("model") is None:
            raise UsageError(f"MODEL: is missing: {path.name} does not say which network was trained")
    predicted, notes = question_about_plan("estimate", given, plan, run_from, values, command_line)
    values.check()
    estimate, warnings = predicted(None)
    if plan is None:
        _check_stated(given, estimate, path, run_from[1])
    return check_log(path, log, estimate, (*notes, *warnings))


def _in_memory(content: Mapping[str, Any]) -> Any:
    return InMemory("the network of the log", content)


def _check_stated(given: Mapping[str, Any], estimate: Any, path: Path, run: Any) -> None:
    """Raises where the work of a step was neither given nor read: a default would be compared with something else."""
    sources = {assumption.name: assumption.source for assumption in estimate.assumptions}
    if not sources.get("global batch", "given").startswith("given"):
        raise UsageError(f"--batch: is missing: {path.name} does not say how many samples a step has")
    is_file = isinstance(run, (str, os.PathLike))
    if not is_file and "nodes" not in given and "gpus" not in {*given, *run.options}:
        raise UsageError(f"--gpus: is missing: {path.name} does not say how many GPUs ran")

"""Reads what a benchmark of a server measured, and sets it beside the prediction.

Two forms are read. `vllm bench serve --save-result` (vllm/benchmarks/serve.py), TensorRT-LLM's program, which was made from it, and
`sglang.benchmark.serving --output-file` write means in milliseconds (``mean_ttft_ms``); of several lines the last
run counts. AIPerf and GenAI-Perf (aiperf/common/models/export_models.py) write every metric with its unit
(``time_to_first_token: {unit: ms, avg: ...}``); their ``inter_token_latency`` is the mean time per token after the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.answer import Estimate, ServingLoad
from planner.core.errors import UsageError
from planner.core.numbers import counted, duration_text, significant
from planner.files.text import failure, read_text

_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# A benchmark whose mean lengths are further off than this share is of another question.
_SAME_LENGTH = 0.05
# Of the rate at which requests come.
_SAME_RATE = 0.02
# Details of every request may be in the file.
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a benchmark measured.

    Attributes
    ----------
    program : str
    ttft_s, tpot_s, output_tokens_per_s : float or None
        Means over the requests; the rate is of all together. None: the file does not say.
    requests : int
        That were answered.
    failed : int
    prompt_tokens, output_tokens : float or None
        Means.
    concurrency : int or None
        Requests in flight at most; None: all.
    rate_per_s : float or None
        At which requests were sent; None: as soon as there was a place.
    """

    program: str
    ttft_s: float | None
    tpot_s: float | None
    output_tokens_per_s: float | None
    requests: int
    failed: int = 0
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: int | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFigure:
    """A figure in SI units: predicted, with the ends of its 80 % interval where it has one, and measured."""

    name: str
    label: str
    predicted: float
    low: float | None
    high: float | None
    measured: float

    @property
    def inside(self) -> bool | None:
        """Whether it was measured in the interval; None where there is none."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCheck:
    """A benchmark beside the prediction of the plan that served.

    Attributes
    ----------
    path : Path
    benchmark : Benchmark
    estimate : Estimate
    figures : tuple of CheckedFigure
    notes : tuple of str
    """

    path: Path
    benchmark: Benchmark
    estimate: Estimate
    figures: tuple[CheckedFigure, ...]
    notes: tuple[str, ...]

    @property
    def inside(self) -> bool | None:
        """Whether every figure with an interval was measured inside; None where none has one."""
        known = [figure.inside for figure in self.figures if figure.inside is not None]
        return all(known) if known else None


def read_benchmark(path: Path) -> Benchmark | None:
    """Read the result file of a benchmark; None: it is another file.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputFileError
        It cannot be read, or lacks what every result has.

    Examples
    --------
    >>> path = Path("bench.json")
    >>> size = path.write_text('{"mean_ttft_ms": 250.0, "mean_tpot_ms": 30.0, "output_throughput": 2500.0, "completed": 80}')
    >>> found = read_benchmark(path)
    >>> found.ttft_s, found.tpot_s, found.requests, found.concurrency
    (0.25, 0.03, 80, None)
    >>> path.unlink()
    """
    if path.suffix not in (".json", ".jsonl"):
        return None
    text, _ = read_text(path, _MOST_BYTES, "the result of a benchmark")
    found = _last_object(text)
    if found is None:
        return None
    if "mean_ttft_ms" in found:
        return _of_bench_serve(path, found)
    if isinstance(found.get("time_to_first_token"), dict):
        return _of_aiperf(path, found)
    return None


def _last_object(text: str) -> dict[str, Any] | None:
    """The object that a file holds, or of one per line the last."""
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            found = json.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _number(path: Path, found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise failure(path, f"{name}: expected a number of 0 or more, not {json.dumps(value)[:40]}")
    return float(value)


def _of_bench_serve(path: Path, found: Mapping[str, Any]) -> Benchmark:
    def of(name: str) -> float | None:
        return _number(path, found, name)

    def seconds(name: str) -> float | None:
        value = of(name)
        return None if not value else value / 1e3  # 0: no request had one

    requests = int(of("completed") or 0)
    if not requests:
        raise failure(path, "no request was answered (completed)")
    tokens = {kind: of(f"total_{kind}_tokens") for kind in ("input", "output")}
    rate, flight = found.get("request_rate"), of("max_concurrency")
    return Benchmark(
        program=f"bench serve, {found['backend']}" if isinstance(found.get("backend"), str) else "bench serve",
        ttft_s=seconds("mean_ttft_ms"),
        tpot_s=seconds("mean_tpot_ms"),
        output_tokens_per_s=of("output_throughput"),
        requests=requests,
        failed=int(of("failed") or 0),
        prompt_tokens=None if tokens["input"] is None else tokens["input"] / requests,
        output_tokens=None if tokens["output"] is None else tokens["output"] / requests,
        concurrency=None if flight is None else int(flight),
        rate_per_s=float(rate) if isinstance(rate, (int, float)) and math.isfinite(rate) else None,
    )


def _of_aiperf(path: Path, found: Mapping[str, Any]) -> Benchmark:
    def mean(name: str) -> float | None:
        entry = found.get(name)
        return _number(path, entry, "avg") if isinstance(entry, dict) else None

    def seconds(name: str) -> float | None:
        value = mean(name)
        if value is None:
            return None
        unit = found[name].get("unit")
        if unit not in _UNITS:
            raise failure(path, f"{name}: unit {json.dumps(unit)[:40]} is none of {', '.join(_UNITS)}")
        return value * _UNITS[unit]

    requests = int(mean("request_count") or 0)
    if not requests:
        raise failure(path, "no request was answered (request_count)")
    return Benchmark(
        program="AIPerf or GenAI-Perf",
        ttft_s=seconds("time_to_first_token"),
        tpot_s=seconds("inter_token_latency"),
        output_tokens_per_s=mean("output_token_throughput"),
        requests=requests,
        failed=int(mean("error_request_count") or 0),
        prompt_tokens=mean("input_sequence_length"),
        output_tokens=mean("output_sequence_length"),
    )


def check_benchmark(path: Path, benchmark: Benchmark, estimate: Estimate, remarks: tuple[str, ...] = ()) -> ServerCheck:
    """Compare a benchmark with the prediction of what served.

    Parameters
    ----------
    path : Path
    benchmark : Benchmark
    estimate : Estimate
        Of a plan that serves.
    remarks : tuple of str
        What else there is to say.

    Raises
    ------
    UsageError
        The plan trains, or the benchmark is of other lengths.
    """
    ranked, load = estimate.ranked, estimate.setting.load
    if load is None:
        raise UsageError(
            f"{path.name} is of a server, and the plan is for training: name the plan that served (--plan)"
        )
    for kind, planned, was in (
        ("prompt", load.prompt_tokens, benchmark.prompt_tokens),
        ("output", load.output_tokens, benchmark.output_tokens),
    ):
        if was is not None and abs(was / planned - 1.0) > _SAME_LENGTH:
            raise UsageError(f"{path.name}: its {kind}s have {was:.0f} tokens in the mean, those of the plan {planned}")
    known = (
        (
            "ttft_s", "first token", ranked["ttft_s"], ranked["ttft_low_s"], ranked["ttft_high_s"],
            None if load.load == "backlog" else benchmark.ttft_s,  # whose wait for a place does not count
        ),
        ("tpot_s", "per token", ranked["tpot_s"], ranked.step_time_low_s, ranked.step_time_high_s, benchmark.tpot_s),
        (
            "output_tokens_per_s", "output tokens/s", ranked["output_tokens_per_s"], ranked["output_tokens_per_s_low"],
            ranked["output_tokens_per_s_high"], benchmark.output_tokens_per_s,
        ),
    )  # fmt: skip
    figures = tuple(
        CheckedFigure(name=name, label=label, predicted=predicted, low=low, high=high, measured=measured)
        for name, label, predicted, low, high, measured in known
        if measured and low is not None  # at a rate as many tokens come out as are asked for
    )
    if not figures:
        raise failure(path, "has neither times nor a rate of output tokens")
    notes = (*_notes(benchmark, load.concurrency or ranked.plan.concurrency, load), *remarks)
    return ServerCheck(path=path, benchmark=benchmark, estimate=estimate, figures=figures, notes=notes)


def _notes(benchmark: Benchmark, places: int, load: ServingLoad) -> Iterator[str]:
    if benchmark.failed:
        yield f"{counted(benchmark.failed, 'request')} failed: find out why first"
    is_open, rate = load.rate_per_s is not None, benchmark.rate_per_s
    if rate is not None and load.rate_per_s is not None and abs(rate / load.rate_per_s - 1.0) > _SAME_RATE:
        yield f"requests came at {significant(rate)} per second, the plan is for {significant(load.rate_per_s)}"
    if rate is None and is_open:
        yield f"requests did not come at a rate, the plan is for {significant(load.rate_per_s)} per second"
    if rate is not None and not is_open:
        yield (f"requests came at {significant(rate)} per second; the prediction has {places:,} in flight all the time")
    elif (
        benchmark.concurrency is not None and benchmark.concurrency != places and load.load != "backlog" and not is_open
    ):
        yield f"{benchmark.concurrency:,} requests were in flight, {places:,} are predicted: --max-concurrency {places}"
    if benchmark.requests < 3 * places and not is_open:
        yield (
            f"{counted(benchmark.requests, 'request')} for {places:,} places: start and end weigh much; send {10 * places:,}"
        )


def figure_text(figure: CheckedFigure, value: float) -> str:
    """A value of a figure for people."""
    return duration_text(value) if figure.name.endswith("_s") and "per_s" not in figure.name else significant(value)

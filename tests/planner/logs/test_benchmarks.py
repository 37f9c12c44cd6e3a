"""`planner check` of a server: result files as their programs write them, against a plan whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.core.errors import InputFileError, UsageError
from planner.logs.benchmarks import read_benchmark
from planner.schema.results import ServerCheckDocument

QUESTION: dict[str, Any] = {"mode": "inference", "gpus": 1, "max_batch": 16, "framework": "vllm"}


@pytest.fixture(scope="module")
def served() -> Any:
    return planner.estimate("llama3-8b", **QUESTION)


@pytest.fixture
def new_result(tmp_path: Path) -> Callable[..., Path]:
    def make(content: Any, name: str = "bench.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return make


def bench_serve(served: Any, **changes: Any) -> dict[str, Any]:
    """As `vllm bench serve --save-result` writes it: milliseconds, totals of tokens."""
    ranked = served.raw.ranked
    return {
        "date": "20261130-120000", "backend": "vllm", "num_prompts": 160, "request_rate": "inf", "max_concurrency": 16,
        "completed": 160, "failed": 0, "total_input_tokens": 160 * 1024, "total_output_tokens": 160 * 256,
        "output_throughput": ranked["output_tokens_per_s"], "mean_ttft_ms": 1e3 * ranked["ttft_s"],
        "mean_tpot_ms": 1e3 * ranked["tpot_s"], **changes,
    }  # fmt: skip


def test_what_was_predicted_is_inside(served: Any, new_result: Any, tmp_path: Path) -> None:
    path = new_result(bench_serve(served))
    served.save(tmp_path / "plan.yaml")
    by_plan = planner.check(path, plan=tmp_path / "plan.yaml")
    by_words = planner.check(path, "llama3-8b", gpus=1, max_batch=16, framework="vllm")
    assert by_plan.to_dict()["figures"] == by_words.to_dict()["figures"]
    assert by_plan.inside is True
    assert by_plan.notes == ()
    ServerCheckDocument.model_validate(by_plan.to_dict())
    assert "inside the 80 % intervals of the prediction: first token, per token and output tokens/s" in " ".join(
        str(by_plan).split()
    )


@pytest.mark.parametrize(
    ("figure", "factor", "words"),
    [
        ("mean_ttft_ms", 100.0, "first token."),
        ("mean_tpot_ms", 3.0, "per token."),
        ("output_throughput", 0.2, "output tokens/s."),
    ],
)
def test_each_figure_can_be_outside(
    served: Any, new_result: Any, said: Any, tmp_path: Path, figure: str, factor: float, words: str
) -> None:
    found = bench_serve(served)
    path = new_result({**found, figure: factor * found[figure]})
    served.save(tmp_path / "plan.yaml")
    out, _ = said("check", path, "--plan", tmp_path / "plan.yaml", code=1)
    assert f"Measured OUTSIDE the 80 % interval of the prediction: {words}" in out
    assert out.count("OUTSIDE") == 2


def test_sglang_writes_lines_and_aiperf_units(served: Any, new_result: Any) -> None:
    first, last = bench_serve(served), bench_serve(served, mean_ttft_ms=1.0, backend="sglang")
    lines = new_result(f"{json.dumps(first)}\n{json.dumps(last)}\n", "bench.jsonl")
    found = read_benchmark(lines)
    assert found is not None
    assert (found.ttft_s, found.program) == (1e-3, "bench serve, sglang")
    ranked = served.raw.ranked
    aiperf = {
        "schema_version": "1.4",
        "time_to_first_token": {"unit": "ms", "avg": 1e3 * ranked["ttft_s"], "p50": 1.0},
        "inter_token_latency": {"unit": "us", "avg": 1e6 * ranked["tpot_s"]},
        "output_token_throughput": {"unit": "tokens/sec", "avg": ranked["output_tokens_per_s"]},
        "request_count": {"unit": "requests", "avg": 160.0},
        "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
        "output_sequence_length": {"unit": "tokens", "avg": 255.0},
    }
    checked = planner.check(new_result(aiperf), "llama3-8b", gpus=1, max_batch=16, framework="vllm")
    assert checked.inside is True
    for entry in checked.to_dict()["figures"]:
        assert entry["measured"] == pytest.approx(entry["predicted"])


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"failed": 3}, "3 requests failed"),
        ({"max_concurrency": 8}, "8 requests were in flight, 16 are predicted: --max-concurrency 16"),
        ({"request_rate": 4.0}, "requests came at 4.00 per second; the prediction has 16 in flight all the time"),
        (
            {"completed": 20, "total_input_tokens": 20 * 1024, "total_output_tokens": 20 * 256},
            "20 requests for 16 places: start and end weigh much; send 160",
        ),
    ],
)
def test_what_makes_it_another_load_is_said(served: Any, new_result: Any, changes: dict[str, Any], note: str) -> None:
    path = new_result(bench_serve(served, **changes))
    assert any(note in text for text in planner.check(path, "llama3-8b", gpus=1, max_batch=16).notes)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"completed": 0}, InputFileError, "no request was answered"),
        ({"mean_tpot_ms": "fast"}, InputFileError, 'mean_tpot_ms: expected a number of 0 or more, not "fast"'),
        ({"mean_tpot_ms": -1.0}, InputFileError, "mean_tpot_ms: expected a number of 0 or more"),
        (
            {"mean_ttft_ms": 0, "mean_tpot_ms": 0, "output_throughput": 0},
            InputFileError,
            "neither times nor a rate of output tokens",
        ),
        (
            {"total_output_tokens": 160 * 128},
            UsageError,
            "its outputs have 128 tokens in the mean, those of the plan 256",
        ),
    ],
)
def test_bad_results(
    served: Any, new_result: Any, changes: dict[str, Any], error: type[Exception], problem: str
) -> None:
    path = new_result(bench_serve(served, **changes))
    with pytest.raises(error, match=problem):
        planner.check(path, "llama3-8b", gpus=1, max_batch=16)


def test_a_plan_that_trains_has_no_benchmark(served: Any, new_result: Any, tmp_path: Path) -> None:
    planner.estimate("llama3-8b", gpus=8, tp=8, batch=8, seq=512).save(tmp_path / "plan.yaml")
    with pytest.raises(UsageError, match="the plan is for training"):
        planner.check(new_result(bench_serve(served)), plan=tmp_path / "plan.yaml")


def test_other_files_are_logs(new_result: Any) -> None:
    assert read_benchmark(new_result({"log_history": []})) is None
    assert read_benchmark(new_result("no json", "run.json")) is None
    assert read_benchmark(new_result({"mean_ttft_ms": 1.0}, "run.log")) is None


def test_other_commands_say_who_reads_it(served: Any, new_result: Any, fails: Any) -> None:
    path = new_result(bench_serve(served))
    assert f"planner check {path} --plan FILE" in fails("validate", path)
    assert "MODEL: is missing: name what served bench.json, or its plan (--plan)" in fails("check", path)


def test_a_plan_at_a_rate_is_measured_at_it(new_result: Any, tmp_path: Path) -> None:
    """The export of the plan sends what it was made for, and its result is checked without a word about the load."""
    plan, folder = tmp_path / "plan.yaml", tmp_path / "run"
    at_rate = planner.estimate("llama3-8b", rate=5.0, **QUESTION)
    at_rate.save(plan)
    planner.export(plan, "vllm", to=folder)
    assert "--request-rate 5\n" in (folder / "bench.sh").read_text(encoding="utf-8")
    checked = planner.check(new_result(bench_serve(at_rate, request_rate=5.0, max_concurrency=None)), plan=plan)
    assert checked.notes == ()
    assert checked.inside is True

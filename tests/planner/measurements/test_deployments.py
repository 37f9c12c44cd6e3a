"""Rows of served networks: predicted as the estimate of the same plan, with prompts read as the engine reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.files.loading import load_device
from planner.measurements import deployments
from planner.measurements.kinds import KINDS, template
from planner.measurements.outcomes import Outcome
from planner.measurements.scores import validate_files
from tests.planner.measurements.single_rows import only

ROW = {
    "model": "llama3-8b", "precision": "bf16", "device": "h100-sxm", "gpus": 2, "tp": 2, "framework": "vllm", "prompt": 1000, "output": 128,
    "concurrency": 16, "ttft_ms": 60, "tpot_ms": 9,
}  # fmt: skip


def served(**cells: object) -> Outcome:
    return only(deployments, **{**ROW, **cells})


def predicted_ms(outcome: Outcome) -> dict[str, float]:
    assert not outcome.skipped, outcome.skipped
    return {comparison.what: comparison.predicted_s * 1e3 for comparison in outcome.comparisons}


@pytest.mark.parametrize(
    ("framework", "dp", "chunk", "together"),
    [("vllm", 1, 1000, 4), ("sglang", 1, 0, 4), ("tensorrt-llm", 2, 1000, 2), ("", 4, 0, 1)],
)
def test_a_row_is_the_estimate_of_its_plan(framework: str, dp: int, chunk: int, together: int) -> None:
    """Prompts that come during a pass share the next one, alone by SGLang, and replicas share the requests; the first come at once."""
    found = predicted_ms(served(framework=framework, gpus=2 * dp, dp=dp, output=4))
    estimate = planner.estimate(
        "llama3-8b", mode="inference", cluster="dgx-h100", device="h100-sxm", gpus=2 * dp, tp=2, dp=dp, max_batch=16 // dp,
        prompt=1000, output_tokens=4, precision="bf16", framework=framework or None, load="benchmark",
    ).to_dict()["plans"][0]  # fmt: skip
    assert (estimate["plan"]["prefill_chunk"], estimate["plan"]["prefill_batch"]) == (chunk, together)
    assert found == pytest.approx({"ttft": estimate["ttft_s"] * 1e3, "tpot": estimate["tpot_s"] * 1e3}, rel=1e-9)


def test_drawn_lengths_are_those_of_their_mean() -> None:
    """From 80 to 100 % of 1,000 and 120 tokens: 900 and 108 on average."""
    drawn, mean = served(shortest=0.8, output=120), served(prompt=900, output=108)
    assert predicted_ms(drawn) == predicted_ms(mean)


def test_a_cache_of_one_byte_saves_half_of_its_reading_at_most() -> None:
    """16 sequences of some 1,256 positions, 32 blocks, keys and values of 8 heads of 128, over two GPUs; attention's arithmetic stays."""
    wide, narrow = (
        predicted_ms(served(kv_precision=precision, concurrency=16, output=513, prompt=1000, framework="sglang"))[
            "tpot"
        ]
        for precision in ("bf16", "fp8")
    )
    saved = 16 * 1256.5 * 32 * 2 * 8 * 128 / 2
    # NVIDIA H100 Tensor Core GPU datasheet, SXM.
    bandwidth = 3.35e12
    # Of which a stream reaches `memory_fraction`, and beside other kernels `elementwise_fraction` of that.
    device = load_device("h100-sxm").device.efficiency
    reached = device.memory_fraction * device.elementwise_fraction
    assert 0.3 < (wide - narrow) * 1e-3 / (saved / (bandwidth * reached)) <= 1.0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"framework": "megatron-lm"}, "framework megatron-lm trains networks and serves none"),
        ({"ttft_ms": "", "tpot_ms": ""}, "no measured time"),
        ({"prompt": ""}, "no prompt is stated"),
        ({"concurrency": ""}, "no concurrency is stated"),
        ({"tp": 3, "gpus": 3}, "tp 3"),
        ({"gpus": 3}, "does not divide"),
        ({"cp": 2, "gpus": 4}, "context parallelism"),
        ({"tpot_ms": 9e-6}, "tpot far from what the peak"),
        ({"ttft_ms": 1e9}, "ttft far from what the peak"),
        ({"model": "bert-large", "prompt": 100}, "does not generate text"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why(cells: dict[str, object], reason: str) -> None:
    assert reason in served(**cells).skipped


def test_its_figures_are_scored_apart(tmp_path: Path) -> None:
    path = tmp_path / "served.csv"
    names = list(ROW)
    lines = [[*ROW.values()], [*(ROW | {"ttft_ms": "", "concurrency": 64}).values()]]
    path.write_text("\n".join(",".join(str(cell) for cell in line) for line in (names, *lines)) + "\n")
    (score,) = validate_files([str(path)], "figure")
    assert score.kind == "deployment"
    assert {name: part[0]["comparisons"] for name, part in score.parts.items()} == {"tpot": 2, "ttft": 1}
    (kind,) = (kind for kind in KINDS if kind.name == "deployment")
    path.write_text(template(kind))
    (score,) = validate_files([str(path)])
    assert score.score["scored"] == 1

"""Questions about transformers that no plan answers: contradictions, rules that exclude everything, and what does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

SMALL = "gpt3-1.3b --gpus 4 --batch 16 --seq 512"


@pytest.mark.parametrize(
    ("command", "messages"),
    [
        ("llama3-70b --gpus 64 --tp 3", ["use --gpus 63 or 66", "64 attention heads", "8 key/value heads", "widths"]),
        ("llama3-70b --gpus 66 --tp 3 --batch 66", ["64 attention heads", "8 key/value heads", "widths"]),
        ("llama3-70b --gpus 256 --pp 128", ["pp 128 is more than the 80 blocks"]),
        ("llama3-70b --gpus 64 --tp 8 --batch 1000 --micro-batch 3", ["dp 8 x micro-batch 3 = 24; use --batch 984 or 1008"]),
        ("llama3-70b --gpus 64 --tp 8 --dp 4", ["use --gpus 32, or a dp of 8"]),
        ("llama3-70b --gpus 64 --tp 8 --dp-shard 3", ["dp-shard 3 does not divide the dp of 8"]),
        ("llama3-70b --gpus 64 --tp 8 --pp 1..4", ["--pp: leaves open which plan is meant"]),
        ("llama3-70b --gpus 64 --tp 8 --recompute full,none", ["--recompute: leaves open which plan is meant"]),
        ("llama3-70b --gpus 64 --ep 4", ["ep 4 needs experts; the network has none"]),
        ("mixtral-8x7b --gpus 64 --ep 3 --tp 4 --etp 3", ["8 experts; allowed: 1, 2, 4, 8", "etp 3 must divide tp 4", "ranks", "ranks"]),
        ("gpt3-1.3b --gpus 4 --vpp 2", ["a pp of at least 2"]),
        ("gpt3-1.3b --gpus 4 --schedule gpipe", ["needs a pipeline"]),
        ("gpt3-1.3b --gpus 4 --zero 0 --dp-shard 2", ["contradict each other"]),
        ("llama3-8b --gpus 64 --tp 8 --pp 8 --zero 1", ["tp 8 x pp 8 take all 64 GPUs and leave no data-parallel ranks to"]),
        ("gpt3-1.3b --gpus 1 --zero 3", ["--zero 3: one GPU leaves no data-parallel ranks to share over; use --zero 0, or more --gpus"]),
        ("gpt3-1.3b --gpus 4 --zero 1 --dp-replicate 2 --tp 2", ["tp 2 x dp-replicate 2 take all 4 GPUs"]),
        ("gpt3-1.3b --gpus 4 --zero 1 --dp-shard 1", ["contradict each other"]),
        ("gpt2-1.5b --gpus 8 --tp 8", ["tp 8 does not divide the 25 attention heads; allowed: 1, 5, 25"]),
        ("gpt3-1.3b --gpus 4 --cp 4 --seq 100", ["cp 4 needs a sequence length that 8 divides"]),
        ("gpt3-1.3b --gpus 4 --recompute-blocks 100", ["expected 1 to 24 with full"]),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_says_everything_that_is_wrong(fails: Any, command: str, messages: list[str]) -> None:
    lines = fails(f"estimate {command}")
    assert len(lines) == len(messages), lines
    for line, message in zip(lines, messages, strict=True):
        assert message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tp 3", "tp 3 does not divide the 16 attention heads; allowed: 1, 2, 4, 8, 16"),
        ("--pp 30", "pp 30 is more than --gpus 4"),
        ("--tp 2 --pp 4", "tp 2 x pp 4 = 8 is more than --gpus 4"),
        ("--num-micro-batches 3", "num-micro-batches 3 does not divide --batch 16 (nearby: 15 or 18)"),
        ("--dp 2 --micro-batch 16", "dp 2 x micro-batch 16 = 32 does not divide --batch 16 (nearby: 32)"),
        ("--ep 2", "the network has none"),
        ("--tp 3,5", "tp 5 does not divide the 16 attention heads"),
        ("--tp 3..2000 --pp 4", "tp 3 x pp 4 = 12 is more than --gpus 4"),
    ],
)
def test_a_restriction_that_excludes_everything_names_the_rule(fails: Any, options: str, message: str) -> None:
    (line,) = fails(f"optimize {SMALL} {options}")
    assert message in line
    assert "no legal plan" in line
    assert options.split(maxsplit=1)[0] in line


def test_more_stages_than_blocks(fails: Any) -> None:
    (line,) = fails("optimize gpt3-1.3b --gpus 64 --batch 64 --seq 512 --pp 32")
    assert "pp 32 is more than the 24 blocks" in line


@pytest.mark.e2e
def test_nothing_fits_names_the_nearest_miss_and_a_way_out(fails: Any) -> None:
    (line,) = fails("optimize llama3-70b --gpus 2 --batch 16", code=1)
    assert "nothing fits: the nearest miss (" in line
    assert "per GPU and there are 75.7 GiB; the largest part is" in line
    assert "with --gpus " in line
    (line,) = fails("optimize llama3-70b --gpus 2 --batch 16 --cluster k20-pcie", code=1)
    assert "more memory" in line


def test_without_time_nothing_is_said_of_what_fits(fails: Any) -> None:
    (line,) = fails("optimize llama3-70b --gpus 256 --time-limit 1us", code=3)  # fits: 64 H100 hold it
    assert line == "the time limit ended the search before it found a plan; --time-limit gives it longer"


def test_the_option_that_is_in_the_way_is_named(fails: Any, document: Any) -> None:
    (line,) = fails("optimize llama3-8b --gpus 8 --batch 16 --tp 1 --pp 1 --zero 0 --offload none", code=1)
    assert re.search(r"without --(tp|pp|zero|offload) it fits: .* per step", line)


def test_a_plan_that_does_not_fit_is_predicted_with_a_way_out(document: Any) -> None:
    found = document("estimate llama3-8b --gpus 8 --batch 16")
    assert any("does not fit: needs" in note for note in found["notes"])
    way_out = next(note for note in found["notes"] if note.startswith("it fits with"))
    options = way_out.removeprefix("it fits with ").partition(":")[0]
    fits = document(f"estimate llama3-8b --gpus 8 --batch 16 {options}")
    assert fits["plans"][0]["memory_bytes_per_gpu"] <= fits["plans"][0]["memory_capacity_bytes"]
    assert not fits["notes"]


def test_nothing_is_written_when_nothing_fits(fails: Any, tmp_path: Path) -> None:
    fails(
        f"optimize llama3-70b --gpus 1 --batch 4 --export {tmp_path / 'plan.yaml'} -o {tmp_path / 'out.json'}", code=1
    )
    assert list(tmp_path.iterdir()) == []

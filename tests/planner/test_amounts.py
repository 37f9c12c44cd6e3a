"""Large numbers with suffixes, the same in every command."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api.keywords import OptimizeOptions, options_of
from planner.api.requests import request_of
from planner.api.values import Values
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.files.loading import load_cluster, load_device
from planner.files.resources import bundled
from planner.question.resolve import resolve


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        (" 7 ", 7),
        ("0.002M", 2000),
        ("1.28M", 1_280_000),
        ("500k", 500_000),
        ("1B", 10**9),
        ("1g", 10**9),
    ],
)
def test_counts(text: str, number: int) -> None:
    values = Values()
    assert values.count("--batch", text) == number
    values.check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.5", "must be a whole number"),
        ("0.5k5", "must be a whole number"),
        ("1.2345k", "must be a whole number"),
        ("1e3", "must be a whole number"),
        ("8k", "may be 8000 or 8192"),
        ("1K", "may be 1000 or 1024"),
        ("2T", "must be at most"),
        ("12 000", "write 12000"),
    ],
)
def test_what_is_no_count(text: str, words: str) -> None:
    values = Values()
    values.count("--batch", text)
    assert len(values.problems) == 1
    assert words in values.problems[0]


def test_scale_and_size_read_samples_alike(document: Any, fails: Any) -> None:
    found = [
        document(f"scale alexnet --workers 1 --epochs 90 --samples {text}") for text in ("1.28M", "1280000", "1.28e6")
    ]
    hours = [curve["points"][0]["hours"] for curve in found]
    assert hours[0] == hours[1] == hours[2] > 0
    assert "such as 1T" in fails("scale", "alexnet", "--workers", "1", "--epochs", "90", "--samples", "many")


def asked(given: dict[str, Any], values: Values) -> Request:
    return request_of(options_of(OptimizeOptions), given, values, "")


def test_a_batch_in_tokens_is_one_in_samples() -> None:
    values = Values()
    request = asked({"model": "gpt2", "batch": "64Ki tokens"}, values)
    values.check()
    assert request.batch == 64  # of 1,024 positions each, as the network's file says
    values = Values()
    assert asked({"model": "gpt2", "seq": "512", "batch": "32768 tokens"}, values).batch == 64
    values.check()


@pytest.mark.parametrize("batch", ["512 sequences", "512samples", "512 Sequence"])
def test_a_batch_may_say_that_it_is_in_samples(batch: str) -> None:
    values = Values()
    assert asked({"model": "gpt2", "batch": batch}, values).batch == 512
    values.check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "gpt2", "batch": "many sequences"}, "--batch many sequences: must be a whole number"),
        ({"model": "gpt2", "batch": "4M tokens"}, "is 3,906.25 samples of 1,024 positions, not a whole number; --batch 4096 is"),
        ({"model": "gpt2", "batch": "3000 tokens"}, "--batch 2 is 2,048 tokens"),
        ({"model": "gpt2", "batch": "500 tokens"}, "--batch 1 is 1,024 tokens"),
        ({"model": "alexnet", "batch": "1M tokens"}, "samples of 'alexnet' have no tokens; give samples"),
        ({"model": "gpt2", "batch": "4Mi tokns"}, "--batch 4Mi tokns: unknown unit 'tokns'; did you mean 'tokens'?"),
        ({"batch": "1M tokens"}, "tokens need --seq, or a network"),
        ({"model": "gpt2", "batch": "1G tokens"}, "is 976,562.50 samples of 1,024 positions, not a whole number; --batch 1048576 is"),
        ({"model": "gpt2", "batch": "0 tokens"}, "must be a whole number"),
    ],
)  # fmt: skip
def test_tokens_that_are_no_batch(options: dict[str, Any], words: str) -> None:
    values = Values()
    asked(options, values)
    with pytest.raises(UsageError, match=re.escape(words)):
        values.check()


# --- How much memory a plan may fill: what the driver shows, less a reserve; limits that the user gives are taken as they are -------------


MIB = 2**20
# nvidia-smi, memory.total: modal-labs/modal-client, pull request 2797 (H100, L40S, A10, T4, L4); the others from published logs.
SHOWN = {
    "h100-sxm": 81559,
    "l40s": 46068,
    "a10": 23028,
    "t4": 15360,
    "l4": 23034,
    "h200": 143771,
    "b200": 183359,
    "v100-16gb": 16160,
}
QUESTION = "bert-large --gpus 1 --cluster dgx-h100 --batch 8"


def capacity(model: str = "bert-large", **changes: str | None) -> float:
    return resolve(Request(model=model, batch=8, cluster="dgx-h100", **changes)).setting.memory_capacity_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SHOWN)
def test_drivers_show_what_nvidia_smi_printed(name: str) -> None:
    assert load_device(name).device.capacity_bytes == SHOWN[name] * MIB


@pytest.mark.parametrize("name", bundled("devices"))
def test_drivers_show_about_the_nominal_size(name: str) -> None:
    device = load_device(name).device
    assert 0.88 * device.memory_bytes <= device.capacity_bytes <= 1.08 * device.memory_bytes


@pytest.mark.parametrize(
    ("options", "expected_mib"),
    [
        ({}, 81559 * math.exp(-(0.030 + 1.6448536 * 0.090))),  # P(fits) of 95 %, by the errors of several frameworks
        ({"framework": "megatron-lm"}, 81559 * math.exp(-(0.001 + 1.6448536 * 0.031))),
        ({"mode": "inference", "model": "llama3-8b"}, 0.95 * 81559),
        ({"memory_reserve": "0"}, 81559),
        ({"memory_reserve": "10%"}, 0.9 * 81559),
        ({"memory_reserve": "0.1"}, 0.9 * 81559),
        ({"memory_reserve": "1559 MiB"}, 80000),
        ({"memory_limit": "81000 MiB"}, 81000),
        ({"memory_limit": "40000 MiB", "memory_reserve": "5%"}, 38000),
        ({"memory_limit": "90 GiB"}, 81559),
    ],
)
def test_capacity_is_what_the_driver_shows_less_the_reserve(options: dict[str, str], expected_mib: float) -> None:
    assert capacity(**options) == pytest.approx(expected_mib * MIB, rel=1e-7)


@pytest.mark.parametrize("model", ["alexnet", "bert-large"])
def test_no_plan_of_the_default_question_is_larger_than_the_card(model: str, answer: Any) -> None:
    plans = json.loads(answer("optimize", model, "--gpus", "2", "--cluster", "dgx-h100", "--json"))["plans"]
    assert plans
    assert all(plan["memory_bytes_per_gpu"] <= plan["memory_capacity_bytes"] < 0.84 * 81559 * MIB for plan in plans)


def test_a_limit_draws_no_advice(document: Any, answer: Any) -> None:
    need = float(document(f"estimate {QUESTION}")["plans"][0]["memory_bytes_per_gpu"])
    assert "--memory-limit" not in answer("estimate", *QUESTION.split(), "--memory-limit", f"{need * 1.001:.0f} B")


@pytest.mark.parametrize(
    ("options", "words", "source"),
    [
        (
            "",
            "66.7 GiB (79.6 GiB by the driver, less a margin to fit with 95.0 %)",
            "errors of the memory of 1,673 runs of several frameworks",
        ),
        ("--memory-limit 40GiB", "40.0 GiB", "given"),
        ("--memory-limit 200GiB", "79.6 GiB by the driver", ""),
        ("--memory-limit 40GiB --memory-reserve 10%", "36.0 GiB (40.0 GiB, less 10 %)", "given"),
    ],
)
def test_the_answer_says_where_its_memory_comes_from(options: str, words: str, source: str, document: Any) -> None:
    rows = {row["name"]: row for row in document(f"estimate {QUESTION} {options}")["assumptions"]}
    memory = rows["memory per GPU"]
    assert (memory["value"], memory["source"]) == (f"{words}, of which 512 MiB for the driver's context", source)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("5", "'5' has no unit"),
        ("100%", "leaves nothing"),
        ("-1%", "--memory-reserve -1%: is below 0"),
        ("79.5 GiB", "512 MiB are taken before any tensor is placed"),
        ("much", "or a share such as '5%'"),
    ],
)
def test_reserves_that_cannot_be(option: str, words: str, fails: Any) -> None:
    error = fails("estimate", *QUESTION.split(), f"--memory-reserve={option}")
    assert "--memory-reserve" in error
    assert words in error


@pytest.mark.e2e
def test_plan_files_keep_the_reserve(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    document(f"optimize {QUESTION} --memory-reserve 1% --export {path}")
    assert 'memory_reserve: "1%"' in path.read_text(encoding="utf-8")
    found = document(f"estimate --plan {path}")
    assert found["setting"]["memory_capacity_bytes"] == 0.99 * 81559 * MIB


@pytest.mark.e2e
def test_plan_files_keep_the_confidence(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    asked = document(f"optimize {QUESTION} --memory-confidence 0.8 --export {path}")
    assert "memory_confidence: 0.8\n" in path.read_text(encoding="utf-8")
    found = document(f"estimate --plan {path}")
    capacity = "memory_capacity_bytes"
    surer = document(f"estimate {QUESTION} --tp 1 --memory-confidence 0.95")
    assert found["setting"][capacity] == asked["setting"][capacity] > surer["setting"][capacity]


def test_python_takes_shares_and_bytes() -> None:
    def of(reserve: float | str) -> float:
        options = {"gpus": 1, "cluster": "dgx-h100", "batch": 8, "memory_reserve": reserve}
        return float(planner.estimate("bert-large", **options).plan.memory_capacity_bytes)  # type: ignore[arg-type]

    assert of(0.05) == of("5%") == pytest.approx(0.95 * 81559 * MIB)
    assert of(0) == 81559 * MIB
    assert of(1559 * MIB) == 80000 * MIB


def test_a_cluster_file_states_what_its_driver_shows(tmp_path: Path) -> None:
    head = "schema_version: 1\nname: mine\nsource: {}\nlevels: [{name: link, size: 8, bandwidth: 300 GB/s, latency: 5 us}]\n"
    one, several = tmp_path / "one.yaml", tmp_path / "several.yaml"
    one.write_text(head + "device: a100-80gb\ndriver_memory: 81251 MiB\n", encoding="utf-8")
    groups = "groups: [{device: a100-80gb, count: 4, driver_memory: 81251 MiB}, {device: h100-sxm, count: 4}]\n"
    several.write_text(head + groups, encoding="utf-8")
    assert load_cluster(str(one)).cluster.device.capacity_bytes == 81251 * MIB
    assert [group.device.capacity_bytes for group in load_cluster(str(several)).cluster.groups] == [
        81251 * MIB,
        81559 * MIB,
    ]

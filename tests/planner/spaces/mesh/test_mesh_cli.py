"""Transformers on a mesh, end to end through the command line: optimize, estimate, explain and plan files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MEMORY_PARTS, TIME_PARTS, MeshPlan
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.schema import schema_of
from planner.schema.answer import estimate_model, search_model

ROOT = Path(__file__).resolve().parents[4]
SMALL = "gpt3-1.3b --gpus 4 --batch 16 --seq 512"


def plan_of(document: dict[str, Any], n: int = 0) -> MeshPlan:
    entry = document["plans"][n]["plan"]
    return MeshPlan(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})


# --- optimize


def test_the_table_and_what_it_rests_on(answer: Any) -> None:
    text = answer("optimize", *SMALL.split(), "-v")
    for word in (
        "#",
        "plan",
        "GPUs",
        "step time",
        "tokens/s",
        "MFU",
        "memory",
        "exposed",
        "bubble",
        "Limited by:",
        "vs first",
    ):
        assert word in text
    flat = " ".join(text.split())
    for fact in (
        "Proof:", "distinct plans", "Roles", "data parallelism (ZeRO, FSDP) only", "cluster dgx-h100 (default)", "global batch 16 (given)",
        "sequence length 512 (given)", "optimizer adam (default of transformers)", "precision bf16", "dense bf16 peak",
        "dp_overlap 0.9",
    ):  # fmt: skip
        assert fact in flat
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.e2e
def test_json_is_valid_ranked_and_adds_up(document: Any) -> None:
    found = document(f"optimize {SMALL} --top 7")
    checked = search_model("mesh").model_validate(found)
    assert type(schema_of("result").model_validate(found).root) is search_model("mesh")  # type: ignore[attr-defined]
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == found
    assert found["proven_optimal"]
    assert found["gap"] == 0
    assert found["bound_s"] == found["plans"][0]["step_time_s"]
    assert [plan["rank"] for plan in found["plans"]] == list(range(1, 8))
    times = [plan["step_time_s"] for plan in found["plans"]]
    assert times == sorted(times)
    for n, plan in enumerate(found["plans"]):
        assert math.fsum(plan[name] for name in TIME_PARTS) == pytest.approx(plan["step_time_s"], rel=1e-9)
        assert math.fsum(plan[name] for name in MEMORY_PARTS) == pytest.approx(plan["memory_bytes_per_gpu"], rel=1e-9)
        assert plan["memory_bytes_per_gpu"] <= plan["memory_capacity_bytes"]
        assert plan["tokens_per_s"] == pytest.approx(16 * 512 / plan["step_time_s"])
        assert plan["tokens_per_s_per_gpu"] * plan["workers"] == pytest.approx(plan["tokens_per_s"])
        assert plan["gap"] == pytest.approx(plan["step_time_s"] / times[0] - 1)
        assert 0 < plan["mfu"] < 1
        assert plan_of(found, n).workers == plan["workers"] <= 4
        assert plan_of(found, n).global_batch == 16


def test_every_figure_is_the_cost_models(document: Any) -> None:
    found = document(f"optimize {SMALL} --top 3")
    resolved = resolve(Request(model="gpt3-1.3b", gpus=4, batch=16, seq=512))
    costs = MeshModel.build(resolved.workload, resolved.cluster).evaluate_plans([plan_of(found, n) for n in range(3)])
    assert [plan["step_time_s"] for plan in found["plans"]] == pytest.approx(costs.step_time_s.tolist(), rel=1e-12)
    assert [plan["memory_bytes_per_gpu"] for plan in found["plans"]] == pytest.approx(
        costs.memory_bytes.tolist(), rel=1e-12
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("options", "check"),
    [
        ("--tp 2", lambda p: p.tp == 2),
        ("--tp 2,4 --pp 1", lambda p: p.tp in (2, 4) and p.pp == 1),
        ("--pp 2..4", lambda p: 2 <= p.pp <= 4),
        ("--dp 2", lambda p: p.dp == 2),
        ("--zero 3", lambda p: p.zero_stage == 3),
        ("--micro-batch 1 --recompute full", lambda p: p.micro_batch == 1 and p.recompute == "full"),
        ("--num-micro-batches 4", lambda p: p.num_micro_batches == 4),
        ("--num-micro-batches 2..4", lambda p: 2 <= p.num_micro_batches <= 4),
        ("--pp 2 --schedule gpipe", lambda p: p.schedule == "gpipe"),
        ("--tp 4 --no-sequence-parallel", lambda p: p.tp == 4 and not p.sequence_parallel),
        ("--offload none", lambda p: not p.offload_optimizer and not p.offload_activations),
    ],
)
def test_what_is_fixed_stays_fixed(document: Any, known_document: Any, options: str, check: Any) -> None:
    free = known_document(f"optimize {SMALL} --top 1")
    found = document(f"optimize {SMALL} {options}")
    assert found["plans"]
    assert all(check(plan_of(found, n)) for n in range(len(found["plans"])))
    assert found["plans"][0]["step_time_s"] >= free["plans"][0]["step_time_s"] * (1 - 1e-12)


@pytest.mark.e2e
@pytest.mark.parametrize("objective", ["tokens_per_s", "tokens_per_s_per_gpu", "mfu", "gpu-hours"])
def test_objectives(document: Any, known_document: Any, objective: str) -> None:
    fastest = known_document(f"optimize {SMALL} --top 1")["plans"][0]
    found = document(f"optimize {SMALL} --objective {objective}")
    best = found["plans"][0]
    assert found["proven_optimal"]
    assert found["bound_s"] <= fastest["step_time_s"] * (1 + 1e-9)
    if objective == "tokens_per_s":
        assert best["tokens_per_s"] == pytest.approx(fastest["tokens_per_s"])
        return
    key = {"gpu-hours": "gpu_hours_per_million_tokens"}.get(objective, objective)
    values = [plan[key] for plan in found["plans"]]
    assert values == sorted(values, reverse=objective != "gpu-hours")
    better = (
        best[key] <= fastest[key] * (1 + 1e-9) if objective == "gpu-hours" else best[key] >= fastest[key] * (1 - 1e-9)
    )
    assert better


def test_money_needs_a_price(fails: Any, document: Any, tmp_path: Path) -> None:
    (line,) = fails(f"optimize {SMALL} --objective money --device h100-pcie")
    assert "h100-pcie" in line
    assert "price_per_hour" in line
    path = tmp_path / "priced.yaml"
    text = (ROOT / "configs" / "devices" / "h100-pcie.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("memory: 80 GiB\n", "memory: 80 GiB\nprice_per_hour: 2.5\n", 1), encoding="utf-8")
    found = document(f"optimize {SMALL} --objective money --device {path}")["plans"][0]
    assert found["money_per_million_tokens"] == pytest.approx(2.5 * found["gpu_hours_per_million_tokens"])
    path.write_text(text.replace("memory: 80 GiB\n", "memory: 80 GiB\nprice_per_hour: -1\n", 1), encoding="utf-8")
    (line,) = fails(f"optimize {SMALL} --device {path}")
    assert "price_per_hour: must be greater than 0" in line


@pytest.mark.e2e
def test_a_memory_limit_is_kept(document: Any) -> None:
    free = document(f"optimize {SMALL} --top 1")["plans"][0]
    tight = document(f"optimize {SMALL} --top 3 --memory-limit 12GiB")["plans"]
    assert all(plan["memory_bytes_per_gpu"] <= 12 * 2**30 for plan in tight)
    assert tight[0]["step_time_s"] >= free["step_time_s"]


@pytest.mark.e2e
def test_an_assumption_changes_the_answer_and_is_named(document: Any, answer: Any) -> None:
    free = document(f"estimate {SMALL} --tp 2")
    hidden = document(f"estimate {SMALL} --tp 2 --assume tp_overlap=1 --assume dp_overlap=1")
    assert hidden["plans"][0]["tp_exposed_s"] == 0 < free["plans"][0]["tp_exposed_s"]
    assert {"name": "tp_overlap", "value": "1", "source": "given"} in hidden["assumptions"]
    assert "tp_overlap 1 (given)" in answer("optimize", *SMALL.split(), "--assume", "tp_overlap=1")
    faster = document(f"optimize {SMALL} --tp 4 --assume tp_overlap=1 --top 1")["plans"][0]["step_time_s"]
    assert faster < document(f"optimize {SMALL} --tp 4 --top 1")["plans"][0]["step_time_s"]


# --- estimate and explain


def test_the_users_own_plan(document: Any) -> None:
    found = document("estimate llama3-70b --gpus 64 --tp 8 --pp 4 --micro-batch 2 --batch 128")
    checked = estimate_model("mesh").model_validate(found)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == found
    plan = plan_of(found)
    assert plan == MeshPlan(
        tp=8, sequence_parallel=True, pp=4, dp_replicate=2, micro_batch=2, num_micro_batches=32
    )  # fmt: skip
    resolved = resolve(Request(model="llama3-70b", gpus=64, batch=128))
    costs = MeshModel.build(resolved.workload, resolved.cluster).evaluate_plans([plan])
    assert found["step_time_s"] == pytest.approx(float(costs.step_time_s[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ("", {"dp_replicate": 4, "num_micro_batches": 4}),
        ("--zero 1", {"dp_shard": 4, "zero_stage": 1, "num_micro_batches": 4}),
        ("--dp-shard 2", {"dp_replicate": 2, "dp_shard": 2, "zero_stage": 1, "num_micro_batches": 4}),
        ("--dp-replicate 2 --zero 3", {"dp_replicate": 2, "dp_shard": 2, "zero_stage": 3, "num_micro_batches": 4}),
        ("--num-micro-batches 2", {"dp_replicate": 4, "micro_batch": 2, "num_micro_batches": 2}),
        ("--tp 4", {"tp": 4, "sequence_parallel": True, "num_micro_batches": 16}),
        ("--tp 4 --no-sequence-parallel", {"tp": 4, "num_micro_batches": 16}),
        ("--pp 2 --vpp 2 --tp 2 --no-sequence-parallel", {"tp": 2, "pp": 2, "vpp": 2, "schedule": "interleaved", "num_micro_batches": 16}),
        ("--recompute full", {"dp_replicate": 4, "num_micro_batches": 4, "recompute": "full", "recompute_blocks": 24}),
        ("--recompute-blocks 3", {"dp_replicate": 4, "num_micro_batches": 4, "recompute": "full", "recompute_blocks": 3}),
        ("--cp 2 --offload optimizer", {"cp": 2, "dp_replicate": 2, "num_micro_batches": 8, "offload_optimizer": True}),
    ],
)  # fmt: skip
def test_what_is_left_open_has_a_default(document: Any, options: str, plan: dict[str, Any]) -> None:
    assert plan_of(document(f"estimate {SMALL} {options}")) == MeshPlan(**plan)


def test_defaults_are_printed(answer: Any) -> None:
    text = " ".join(answer("estimate", *SMALL.split(), "--tp", "2", "-v").split())
    for words in ("plan with dp 2, zero 0, micro-batch 1, num-micro-batches 8", "sequence-parallel on", "(left open)"):
        assert words in text


def test_estimate_shows_where_time_and_memory_go(answer: Any) -> None:
    text = answer("estimate", *SMALL.split(), "--pp", "2", "--tp", "2")
    for word in (
        "Where the step goes",
        "compute",
        "pipeline bubble",
        "What fills the memory",
        "weights",
        "activations",
        "Stage by stage",
    ):
        assert word in text


@pytest.mark.e2e
def test_explain_the_best_and_another(document: Any, answer: Any) -> None:
    best = document(f"optimize {SMALL} --top 1")["plans"][0]
    itself = document(f"explain {SMALL}")
    assert itself["plans"][0]["step_time_s"] == best["step_time_s"] == itself["best"]["step_time_s"]
    other = document(f"explain {SMALL} --tp 4")
    assert plan_of(other).tp == 4
    assert other["best"]["step_time_s"] == best["step_time_s"]
    assert other["plans"][0]["gap"] == pytest.approx(other["step_time_s"] / best["step_time_s"] - 1)
    difference = math.fsum(row["plan_s"] - row["best_s"] for row in other["comparison"])
    assert difference == pytest.approx(other["step_time_s"] - best["step_time_s"], rel=1e-9)
    assert "Against the best plan" in answer("explain", *SMALL.split(), "--tp", "4")
    assert "No plan that 'planner optimize' searches is faster." in answer("explain", *SMALL.split())


def test_stages_hold_what_the_plan_holds(document: Any) -> None:
    found = document(f"explain {SMALL} --pp 4")
    assert len(found["stages"]) == 4
    assert found["layers"]


def test_packed_documents_take_less_and_are_part_of_the_plan_file(document: Any, tmp_path: Path) -> None:
    """Attention over what is there: a list of lengths, or their mean and spread, in the plan file and in what is assumed."""
    asked = f"{SMALL} --assume host_launch_s=0 --assume host_collective_s=0"
    whole = document(f"estimate {asked}")["plans"][0]["step_time_s"]
    for options in ("--doc-lengths 64,32", "--doc-lengths 64 --doc-cv 1.5"):
        path = tmp_path / "plan.yaml"
        answer = document(f"estimate {asked} {options} --export {path}")
        assert answer["plans"][0]["step_time_s"] < whole
        assert any(a["name"] == "documents" and a["source"] == "given" for a in answer["assumptions"])
        again = document(f"estimate --plan {path}")
        assert again["plans"][0]["step_time_s"] == answer["plans"][0]["step_time_s"]
        assert any(a["name"] == "documents" and a["source"] == "plan file" for a in again["assumptions"])


def test_lora_trains_less(document: Any) -> None:
    full = document(f"estimate {SMALL}")["plans"][0]
    adapters = document(f"estimate {SMALL} --lora-rank 8")["plans"][0]
    # Without the time to start kernels, of which adapters have more: a small network waits for the host.
    instant = "--assume host_launch_s=0 --assume host_collective_s=0"
    full_s = document(f"estimate {SMALL} {instant}")["plans"][0]["step_time_s"]
    adapters_s = document(f"estimate {SMALL} --lora-rank 8 {instant}")["plans"][0]["step_time_s"]
    assert adapters["optimizer_bytes"] < full["optimizer_bytes"] / 20
    assert adapters_s < full_s


def test_fp8_is_faster_where_there_is_fp8(document: Any) -> None:
    question = "estimate llama3-8b --gpus 8 --tp 8 --batch 16"
    assert document(f"{question} --precision fp8")["step_time_s"] < document(question)["step_time_s"]


# --- plan files


@pytest.mark.e2e
@pytest.mark.parametrize(
    "options", ["", "--pp 2 --tp 2", "--zero 3 --recompute full --offload optimizer", "--lora-rank 4"]
)
def test_a_plan_gives_back_its_step_time(answer: Any, tmp_path: Path, options: str) -> None:
    path = tmp_path / "plan.yaml"
    extra = ["--assume", "dp_overlap=0.7", "--memory-limit", "70GiB", "--export", str(path)]
    answered = json.loads(answer("optimize", *SMALL.split(), *options.split(), *extra, "--json"))
    best = answered["refined"] or answered["plans"][0]
    for command in ("estimate", "explain"):
        found = json.loads(answer(command, "--plan", str(path), "--json"))
        assert found["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
        assert found["plans"][0]["memory_bytes_per_gpu"] == best["memory_bytes_per_gpu"]
        assert found["plans"][0]["plan"] == best["plan"]
        assert found["seq"] == 512
        assert set(found["notes"]) <= set(answered["notes"])  # how much hosts take


def test_a_plan_elsewhere(document: Any, fails: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    exported = document(f"estimate {SMALL} --tp 2 --export {path}")
    here = document(f"estimate --plan {path}")
    assert here["step_time_s"] == pytest.approx(exported["step_time_s"], rel=1e-9)
    assert document(f"estimate --plan {path} --cluster dgx-a100")["step_time_s"] > here["step_time_s"]
    assert document(f"estimate --plan {path} --seq 256")["step_time_s"] < here["step_time_s"]
    twice = document(f"estimate --plan {path} --batch 32")
    assert plan_of(twice).num_micro_batches == 2 * plan_of(here).num_micro_batches
    (line,) = fails(f"estimate --plan {path} --batch 33")
    assert "use 32 or 34" in line
    assert len(fails(f"estimate --plan {path} --tp 2 --gpus 4 --offload none --num-micro-batches 4")) == 4
    assert "--space layers" not in fails(f"estimate --plan {path} --family data")[0]


@pytest.mark.e2e
def test_small_networks_wait_for_their_hosts_and_say_so(document: Any, answer: Any) -> None:
    """Kernels that the host starts more slowly than the device runs them: bottleneck, JSON, explanation and a note."""
    command = "bert-large --gpus 64 --dp-shard 64 --zero 3 --micro-batch 4"
    found = document(f"estimate {command}")
    (plan,) = found["plans"]
    assert plan["bottleneck"] == "host launches"
    assert plan["compute_s"] / 2 < plan["host_s"] < plan["compute_s"]
    assert any("devices wait for their hosts" in note for note in found["notes"])
    assert "are waiting for the host to start kernels and collectives" in " ".join(
        answer("explain", *command.split()).split()
    )
    quick = document(f"estimate {command} --assume host_launch_s=0 --assume host_collective_s=0")
    assert quick["plans"][0]["host_s"] == 0
    assert quick["plans"][0]["bottleneck"] != "host launches"
    assert not any("hosts" in note for note in quick["notes"])
    # Gathering weights takes the host time, too: 26 units, two gathers and a scatter each.
    slow = document(f"estimate {command} --assume host_collective_s=0.005")
    assert slow["step_time_s"] - found["step_time_s"] == pytest.approx(26 * 3 * (5e-3 - 5e-5), rel=0.02)


# --- Questions about transformers that no plan answers: contradictions, rules that exclude everything, and what does not fit --------------


@pytest.mark.parametrize(
    ("command", "messages"),
    [
        ("llama3-70b --gpus 64 --tp 3", ["use --gpus 63 or 66", "64 attention heads", "8 key/value heads", "widths"]),
        ("llama3-70b --gpus 66 --tp 3 --batch 66", ["64 attention heads", "8 key/value heads", "widths"]),
        ("llama3-70b --gpus 256 --pp 128", ["pp 128 is more than the 80 blocks"]),
        ("llama3-70b --gpus 64 --tp 8 --batch 1000 --micro-batch 3", ["= 24 does not divide --batch 1000; use --batch 984 or 1008"]),
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
        (
            "--num-micro-batches 3",
            "num-micro-batches 3 does not divide --batch 16; use --batch 15 or 18, or --num-micro-batches 2",
        ),
        (
            "--dp 2 --micro-batch 16",
            "dp 2 x micro-batch 16 = 32 does not divide --batch 16; use --batch 32, or other degrees",
        ),
        ("--ep 2", "the network has none"),
        ("--pp 32 --gpus 64 --batch 64", "pp 32 is more than the 24 blocks"),
        ("--tp 3,5", "tp 5 does not divide the 16 attention heads"),
        ("--tp 3..2000 --pp 4", "tp 3 x pp 4 = 12 is more than --gpus 4"),
    ],
)
def test_a_restriction_that_excludes_everything_names_the_rule(fails: Any, options: str, message: str) -> None:
    (line,) = fails(f"optimize {SMALL} {options}")
    for words in (message, "no legal plan", options.split(maxsplit=1)[0]):
        assert words in line


@pytest.mark.e2e
def test_nothing_fits_names_the_nearest_miss_and_a_way_out(fails: Any) -> None:
    (line,) = fails("optimize llama3-70b --gpus 2 --batch 16", code=1)
    for words in (
        "nothing fits: the nearest miss (",
        "per GPU and there are 66.7 GiB of 79.6 GiB to plan with; the largest part is",
        "with --gpus ",
    ):
        assert words in line
    (line,) = fails("optimize llama3-70b --gpus 2 --batch 16 --cluster k20-pcie", code=1)
    assert "more memory" in line


def test_without_time_nothing_is_said_of_what_fits(fails: Any) -> None:
    (line,) = fails("optimize llama3-70b --gpus 256 --time-limit 1us", code=3)  # fits: 64 H100 hold it
    assert line == "the time limit ended the search before it found a plan; --time-limit gives it longer"


def test_the_option_that_is_in_the_way_is_named(fails: Any) -> None:
    (line,) = fails("optimize llama3-8b --gpus 8 --batch 16 --tp 1 --pp 1 --zero 0 --offload none", code=1)
    assert re.search(r"without --(tp|pp|zero|offload) it fits: .* per step", line)


def test_a_plan_that_does_not_fit_is_predicted_with_a_way_out(document: Any) -> None:
    found = document("estimate llama3-8b --gpus 8 --batch 16")
    assert any("does not fit: needs" in note for note in found["notes"])
    suggestion = next(note for note in found["notes"] if note.startswith("it fits with"))
    options = suggestion.removeprefix("it fits with ").partition(":")[0]
    fits = document(f"estimate llama3-8b --gpus 8 --batch 16 {options}")
    assert fits["plans"][0]["memory_bytes_per_gpu"] <= fits["plans"][0]["memory_capacity_bytes"]
    assert not fits["notes"]


def test_nothing_is_written_when_nothing_fits(fails: Any, tmp_path: Path) -> None:
    fails(
        f"optimize llama3-70b --gpus 1 --batch 4 --export {tmp_path / 'plan.yaml'} -o {tmp_path / 'out.json'}", code=1
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("degrees", "gpus"),
    [
        ("--tp 4", 4),
        ("--tp 2 --pp 2 --dp 2", 8),
        ("--cp 2 --dp-replicate 2 --dp-shard 2 --zero 1", 8),
        ("--gpus 8 --tp 2", 8),
        ("--recompute full", 1),
    ],
)
def test_degrees_say_how_many_gpus_there_are(answer: Any, degrees: str, gpus: int) -> None:
    found = json.loads(answer("estimate", "llama3-8b", *degrees.split(), "--json", "--quiet"))
    assert found["plans"][0]["workers"] == found["gpus"] == gpus


def test_answers_say_how_uneven_experts_are_taken_to_be(document: Any) -> None:
    """Whatever the plan; what is assumed in vain is said, too."""
    question = "estimate mixtral-8x7b --gpus 64 --pp 4 --vpp 2"
    alone = document(question)
    (loads,) = (a for a in alone["assumptions"] if a["name"] == "loads of experts")
    assert loads["value"] == (
        "spread 1 of the mean, between 2.2 of new routers and 0.3 of trained ones (--assume expert_spread=0: forced balance)"
    )
    shared = document(f"{question} --ep 8 --schedule combined_1f1b --assume ep_overlap=0.5 --assume expert_spread=0.3")
    (loads,) = (a for a in shared["assumptions"] if a["name"] == "loads of experts")
    assert "the fullest rank of ep 8 has 1.43 x the mean" in loads["value"]
    vain = [note for note in shared["note_codes"] if note["code"] == "assumption_without_effect"]
    assert [note["values"]["assumption"] for note in vain] == ["ep_overlap"]

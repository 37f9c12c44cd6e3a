"""`planner optimize` and `estimate` on clusters of several groups of devices, through the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.schema import schema_of
from planner.spaces.mixed.space import MixedPlanSpace
from tests.planner.spaces.mixed.small_cluster import CLUSTER

MODEL = "gpt3-1.3b"
BATCH, SEQ = 48, 2048


@pytest.fixture
def question(cluster: str) -> list[str]:
    return [MODEL, "--cluster", cluster, "--gpus", "8", "--batch", str(BATCH), "--seq", str(SEQ)]


@pytest.mark.e2e
def test_json_is_as_published_and_adds_up(answer: Any, question: list[str]) -> None:
    document = json.loads(answer("optimize", *question, "--json", "--top", "3"))
    schema_of("result").model_validate(document)
    assert document["space"] == "mixed"
    assert document["proven_optimal"]
    assert document["gap"] == 0
    assert len(document["plans"]) == 3
    devices = {"a100-80gb": 312e12, "old": 125e12}  # dense fp16 of the data sheets
    graph_flop = _flop_of_a_step(document)
    for plan in document["plans"]:
        parts = (
            "compute_s", "recompute_s", "tp_exposed_s", "pp_exposed_s", "dp_exposed_s", "bubble_s", "optimizer_s"
        )  # fmt: skip
        assert sum(plan[name] for name in parts) == pytest.approx(plan["step_time_s"], rel=1e-9)
        memory = sum(
            value
            for name, value in plan.items()
            if name.endswith("_bytes") and name not in ("memory_capacity_bytes", "gpu_memory_bytes")
        )
        assert memory == pytest.approx(plan["memory_bytes_per_gpu"], rel=1e-9)
        assert plan["tokens_per_s"] == pytest.approx(BATCH * SEQ / plan["step_time_s"])
        used = {group["name"]: group["devices"] for group in plan["groups"]}
        assert sum(used.values()) == plan["workers"] <= 8
        peak = sum(count * devices[name] for name, count in used.items())
        assert plan["mfu"] == pytest.approx(graph_flop / plan["step_time_s"] / peak, rel=1e-9)
        assert all(group["memory_bytes"] <= group["memory_capacity_bytes"] for group in plan["groups"])
        assert plan["precision"] == ("fp16" if used["old"] else "bf16")
    times = [plan["step_time_s"] for plan in document["plans"]]
    assert times == sorted(times)
    assert document["bound_s"] == times[0]
    baselines = {entry["group"]: entry["plan"] for entry in document["baselines"]}
    assert set(baselines) == set(devices)
    for name, plan in baselines.items():
        assert plan["step_time_s"] >= times[0]
        assert {group["name"] for group in plan["groups"] if group["devices"]} == {name}
    # On one group the space of a mesh has all these plans, and more.
    for entry in document["baselines"]:
        assert entry["mesh"]["step_time_s"] <= entry["plan"]["step_time_s"] * (1 + 1e-9)


def _flop_of_a_step(document: dict[str, Any]) -> float:
    """6 per weight and token for the matrices of 24 blocks of 2048 features and the head, and the masked half of attention."""
    tokens, d, blocks, seq, vocab = BATCH * SEQ, 2048, 24, SEQ, 50257
    assert document["seq"] == seq
    matrices = blocks * 12 * d * d + d * vocab
    attention = blocks * 2 * 2 * d * seq / 2  # scores and values, a multiply-add as 2, per token
    return tokens * (6.0 * matrices + 3.0 * attention)


@pytest.mark.e2e
def test_the_table_says_what_it_is_faster_than(answer: Any, question: list[str]) -> None:
    text = " ".join(answer("optimize", *question, "--top", "2").split())
    assert "precision fp16 in place of bf16" in text
    assert "4 of old with 26.6 GiB each (less a margin to fit with 95.0 %)" in text
    assert re.search(r"GiB per (a100-80gb|old), P\(fits\) \S+ %.* by 1,673 runs", text)
    text = " ".join(answer("optimize", *question, "--top", "2", "-v").split())
    for words in (
        "by the model, no plan that fits is faster than the first",
        " faster than the 4 a100-80gb alone",
        " faster than the 4 old alone",
        "4 of 4 a100-80gb, 4 of 4 old are used",
        "old has no bf16, so the whole job runs in fp16",
        "families",
        "micro-batches of",
    ):
        assert words in text


@pytest.mark.e2e
def test_an_exported_plan_is_predicted_alike(answer: Any, question: list[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    found = json.loads(answer("optimize", *question, "--json", "--export", str(file)))["plans"][0]
    again = json.loads(answer("estimate", "--plan", str(file), "--json"))
    schema_of("breakdown").model_validate(again)
    assert again["step_time_s"] == pytest.approx(found["step_time_s"], rel=1e-9)
    assert again["plans"][0]["plan"] == found["plan"]
    # The file says what was run.
    assert (again["setting"]["precision"], again["notes"]) == ("fp16", [])
    blocks = [sum(stage["blocks"] for stage in p["stages"]) for p in found["plan"]["pipelines"]]
    assert set(blocks) == {24}
    text = answer("estimate", "--plan", str(file))
    for heading in ("Where the step goes", "What fills the memory", "Stage by stage"):
        assert heading in text
    second = tmp_path / "again.yaml"
    answer("estimate", "--plan", str(file), "--export", str(second))
    third = json.loads(answer("estimate", "--plan", str(second), "--json"))
    assert third["step_time_s"] == again["step_time_s"]
    tight = json.loads(answer("estimate", "--plan", str(file), "--memory-limit", "2 GiB", "--json"))
    assert tight["step_time_s"] == again["step_time_s"]
    assert any("does not fit: a100-80gb needs" in note for note in tight["notes"])


@pytest.mark.exact
def test_limits_are_kept(answer: Any, question: list[str]) -> None:
    free = json.loads(answer("optimize", *question, "--json", "--top", "1"))["plans"][0]
    limited = json.loads(answer("optimize", *question, "--json", "--top", "1", "--memory-limit", "12 GiB"))["plans"][0]
    assert all(group["memory_bytes"] <= 12 * 2**30 for group in limited["groups"])
    assert limited["step_time_s"] >= free["step_time_s"]
    fewer = json.loads(answer("optimize", *question[:3], "--gpus", "6", *question[5:], "--json", "--top", "1"))
    assert [group["available"] for group in fewer["plans"][0]["groups"]] == [4, 2]
    assert any("--gpus 6 are counted through the groups" in note for note in fewer["notes"])
    slower = json.loads(answer("optimize", *question, "--json", "--top", "1", "--assume", "dp_overlap=0"))["plans"][0]
    assert slower["step_time_s"] > free["step_time_s"]


@pytest.mark.e2e
def test_a_format_that_was_asked_for(answer: Any, question: list[str]) -> None:
    document = json.loads(answer("optimize", *question, "--json", "--precision", "fp32", "--top", "1"))
    assert document["plans"][0]["precision"] == "fp32"
    assert not any("has no" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--space", "layers"], "plans with a split per layer need devices of one kind"),
        (["--space", "mesh"], "a mesh has one kind of device"),
        (["--mode", "inference"], "--mode inference: "),
        (["--family", "data"], "--family data: cluster"),
        (["--fix", "*:batch"], "--fix: cluster"),
        (["--collective", "ring"], "--collective ring: cluster"),
        (["--diverse"], "--diverse: cluster"),
        (["--solver", "program"], "--solver program: cluster"),
        (["--cost-model", "paleo"], "--cost-model paleo: cluster"),
        (["--seed", "3"], "--seed 3: nothing is random"),
        (["--device", "a100-80gb"], "--device replaces the device of a cluster with one kind"),
        (["--precision", "fp8"], "no device of cluster 'small-mix' has a rate for precision 'fp8'"),
        (["--memory-limit", "lots"], "--memory-limit: 'lots'"),
    ],
)
def test_what_does_not_apply_is_an_error(fails: Any, question: list[str], extra: list[str], message: str) -> None:
    if extra[0] == "--mode":
        question = question[:5]
    assert message in fails("optimize", *question, *extra)


def test_other_questions_are_refused(fails: Any, question: list[str], cluster: str) -> None:
    for arguments, message in (
        (["estimate", *question], "options cannot spell out which stage goes where"),
        (["scale", MODEL, "--cluster", cluster], "plans with a split per layer need devices of one kind"),
        (["optimize", "alexnet", "--cluster", cluster, "--gpus", "8"], "network 'alexnet' has no repeated blocks"),
        (["optimize", MODEL, "--cluster", cluster, "--gpus", "9"], "--gpus 9 is more than cluster 'small-mix' has: 8"),
    ):
        assert message in fails(*arguments)


def test_what_does_not_fit_names_the_nearest_miss(fails: Any, question: list[str]) -> None:
    err = fails("optimize", *question, "--memory-limit", "2 GiB", code=1)
    for words in (
        "nothing fits: the nearest miss (1 replica x 48 micro-batches of 1: ",
        "and there are 2.00 GiB of ",
        " to plan with; the largest part is",
        "without --memory-limit 2 GiB it works: ",
    ):
        assert words in err
    err = fails("optimize", "llama2-13b", *question[1:3], "--gpus", "2", "--batch", "8", code=1)
    assert "with --gpus 8 it works: 1 replica x 1 micro-batch of 8" in err


def test_no_time_at_all(fails: Any, question: list[str], tmp_path: Path) -> None:
    written = tmp_path / "result.json"
    err = fails("optimize", *question, "--time-limit", "0.000001", "-o", str(written), code=3)
    assert "--time-limit gives it longer" in err
    assert not written.exists()


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("count: 4}", "count: 0}", "4:32", "groups[0].count: must be at least 1, got 0"),
        ("  - {device: a100-80gb, count: 4}\n", "  - {}\n", "4:5", "groups[0]: missing key 'device'"),
        ("  - {device: a100-80gb, count: 4}\n", "  -\n", "4:4", "groups[0]: expected a mapping"),
        (
            "groups:\n  - {device: a100-80gb, count: 4}\n  - {device: v100-32gb, count: 4, name: old}\n",
            "groups: []\n",
            "3:9",
            "groups: is empty",
        ),
    ],
)
def test_a_cluster_with_an_empty_group(
    fails: Any, tmp_path: Path, old: str, new: str, place: str, message: str
) -> None:
    path = tmp_path / "empty.yaml"
    assert CLUSTER.count(old) == 1
    path.write_text(CLUSTER.replace(old, new), encoding="utf-8")
    assert f"{path}:{place}: {message}" in fails("optimize", MODEL, "--cluster", str(path), "--gpus", "8")


def test_groups_that_straddle_a_node(fails: Any, new_file: Any) -> None:
    path = new_file("straddling.yaml", CLUSTER.replace("count: 4}", "count: 3}"))
    assert "group 'old' of cluster 'small-mix' starts 3 devices into a unit of level 'nvlink'" in fails(
        "optimize", MODEL, "--cluster", str(path), "--gpus", "7"
    )


def test_a_cluster_of_one_group_is_no_mixed_one(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    text = CLUSTER.replace("  - {device: v100-32gb, count: 4, name: old}\n", "")
    path.write_text(text, encoding="utf-8")
    document = json.loads(
        answer("optimize", MODEL, "--cluster", str(path), "--gpus", "4", "--json", "--top", "1", "--batch", "8")
    )
    assert document["space"] == "mesh"


def test_a_single_group_with_links_of_its_own(answer: Any, tmp_path: Path) -> None:
    """They replace the cluster's: slower links cost time."""
    times = []
    for own in ("", ", levels: [{name: nvlink, size: 4, bandwidth: 3 GB/s, latency: 4 us}]"):
        path = tmp_path / "one.yaml"
        text = CLUSTER.replace("  - {device: v100-32gb, count: 4, name: old}\n", "").replace(
            "count: 4}", f"count: 4{own}}}"
        )
        path.write_text(text, encoding="utf-8")
        instant = "--assume host_launch_s=0 --assume host_collective_s=0"  # what hosts need hides a part of it
        command = f"estimate {MODEL} --cluster {path} --gpus 4 --tp 4 --batch 8 --seq 512 {instant} --json"
        times.append(json.loads(answer(*command.split()))["step_time_s"])
    assert times[1] > 1.5 * times[0]


# --- Error bars of plans over several kinds of devices: those of meshes, and a word that nothing published mixes them ---------------------


Ask = Callable[..., str]
QUESTION = ("gpt2-774m", "--gpus", "24", "--cluster", "a100-v100", "--batch", "32")


@pytest.mark.e2e
def test_intervals_are_those_of_one_kind_of_device(answer: Ask, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.yaml")
    found = json.loads(answer("optimize", *QUESTION, "--time-limit", "10", "--export", file, "--json"))
    schema_of("result").model_validate(found)
    assert found["error_bars"]["kind"] == "transformers"
    assert "none of the runs that it is made from mixes several" in found["error_bars"]["basis"]
    assert found["benchmark_list"] == []
    plain = json.loads(
        answer("optimize", "gpt2-774m", "--gpus", "8", "--cluster", "dgx-a100", "--batch", "32", "--json")
    )
    of_mesh, of_mixed = (
        [
            document["plans"][0][name] / document["plans"][0]["step_time_s"]
            for name in ("step_time_low_s", "step_time_high_s")
        ]
        for document in (plain, found)
    )
    assert of_mixed == pytest.approx(of_mesh)
    assert plain["error_bars"]["basis"] == ""

    one = json.loads(answer("estimate", "--plan", file, "--json"))
    assert one["error_bars"] == found["error_bars"]
    assert one["plans"][0]["step_time_high_s"] == pytest.approx(found["plans"][0]["step_time_high_s"])
    assert "none of the runs that it is made from mixes several" in " ".join(
        answer("estimate", "--plan", file, "-v").split()
    )


# `planner explain` on clusters of several groups of devices: what bounds the step, what would change it, what the best does better


WIDER = """, levels: [{name: nvlink, size: 4, bandwidth: 330 GB/s, latency: 4 us, efficiency: 0.8}, \
{name: fabric, bandwidth: 110 Gb/s, latency: 10 us}]"""


def cluster_file(folder: Path, a100: str = "", v100: str = "") -> str:
    path = folder / "cluster.yaml"
    text = CLUSTER.replace("a100-80gb, count: 4", "a100-80gb, count: 4" + a100).replace("name: old", "name: old" + v100)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.exact
def test_json_of_an_explanation_adds_up(answer: Any, question: list[str]) -> None:
    document = json.loads(answer("explain", *question, "--json"))
    schema_of("breakdown").model_validate(document)
    best = json.loads(answer("optimize", *question, "--json", "--top", "1"))["plans"][0]
    assert document["step_time_s"] == best["step_time_s"]
    assert document["plans"][0]["plan"] == best["plan"]
    assert document["best"]["plan"] == best["plan"]
    bound, stages = document["bound"], document["stages"]
    assert bound["working_s"] + bound["waiting_s"] + bound["end_s"] == pytest.approx(document["step_time_s"])
    busiest = next(s for s in stages if (s["pipeline"], s["stage"]) == (bound["pipeline"], bound["stage"]))
    assert bound["group"] == busiest["group"]
    each = busiest["forward_s"] + busiest["backward_s"]
    assert bound["working_s"] == pytest.approx(bound["num_micro_batches"] * each)
    assert min(bound["spare_s"]) == 0
    for stage in stages:
        assert stage["busy_s"] <= document["step_time_s"] * (1 + 1e-9)
    for row in document["what_if"]:
        assert row["gain"] == pytest.approx(document["step_time_s"] / row["step_time_s"] - 1)
        # The plan is proven best: no plan that fits is faster. Better hardware is never slower.
        assert row["gain"] <= 1e-9 if row["kind"] == "plan" and row["fits"] else True
        assert row["gain"] >= -1e-9 if row["kind"] == "hardware" else True
    assert document["what_if"] == sorted(document["what_if"], key=lambda row: (row["kind"], -row["gain"]))


@pytest.mark.exact
def test_what_if_is_what_the_other_hardware_takes(answer: Any, question: list[str], tmp_path: Path) -> None:
    """Links 10 % faster, as a cluster file that says so has it."""
    plan = tmp_path / "plan.yaml"
    rows = json.loads(answer("explain", *question, "--tp", "2", "--pp", "2", "--json", "--export", str(plan)))[
        "what_if"
    ]
    found = {row["change"]: row["step_time_s"] for row in rows}
    for name, changes in (
        ("links of a100-80gb 10 % faster", {"a100": WIDER}),
        ("links of old 10 % faster", {"v100": WIDER}),
        ("links of all groups 10 % faster", {"a100": WIDER, "v100": WIDER}),
    ):
        wider = cluster_file(tmp_path, **changes)
        document = json.loads(answer("estimate", "--plan", str(plan), "--cluster", wider, "--json"))
        assert found[name] == pytest.approx(document["step_time_s"], rel=1e-9)


@pytest.mark.exact
def test_a_plan_file_and_degrees_are_compared_with_the_best(answer: Any, question: list[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    fixed = json.loads(answer("explain", *question, "--tp", "4", "--json", "--export", str(plan)))
    assert {s["devices"] for s in fixed["stages"]} == {4}
    assert fixed["best"]["step_time_s"] < fixed["step_time_s"]
    assert fixed["plans"][0]["gap"] == pytest.approx(fixed["step_time_s"] / fixed["best"]["step_time_s"] - 1)
    plan_s = sum(row["plan_s"] for row in fixed["comparison"])
    best_s = sum(row["best_s"] for row in fixed["comparison"])
    assert (plan_s, best_s) == pytest.approx((fixed["step_time_s"], fixed["best"]["step_time_s"]))
    again = json.loads(answer("explain", str(plan), "--json"))
    for key in ("step_time_s", "bound", "what_if", "comparison", "stages"):
        assert again[key] == fixed[key]
    text = " ".join(answer("explain", str(plan)).split())
    for words in (
        "What bounds the step",
        "is the busiest: ",
        "With other hardware, the plan as it is",
        "With another plan, the hardware as it is",
        " slower than ",
        "Stage by stage",
    ):
        assert words in text


@pytest.mark.exact
def test_what_does_not_fit_is_explained(answer: Any, question: list[str], tmp_path: Path) -> None:
    """The plan does not fit, nor does any other."""
    plan = tmp_path / "plan.yaml"
    answer("optimize", *question, "--top", "1", "--export", str(plan))
    document = json.loads(answer("explain", "--plan", str(plan), "--memory-limit", "2 GiB", "--json"))
    assert document["best"] is None
    assert document["bound"]["working_s"] > 0
    assert not any(row["fits"] for row in document["what_if"])
    assert any(note.startswith("does not fit: ") for note in document["notes"])


@pytest.mark.exact
def test_sensitivity(answer: Any, question: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every constant is there; those that make another plan win do so. The text tells what the document has."""
    found: list[Any] = []
    work_out = MixedPlanSpace.sensitivity
    monkeypatch.setattr(
        MixedPlanSpace, "sensitivity", lambda *of: found[0] if found else found.append(work_out(*of)) or found[0]
    )
    document = json.loads(answer("explain", *question, "--sensitivity", "--json"))
    schema_of("breakdown").model_validate(document)
    rows = {row["constant"]: row for row in document["sensitivity"]}
    assert {"sustained_rate", "intra_node_bandwidth", "inter_node_bandwidth", "host_launch"} <= set(rows)
    for row in rows.values():
        assert (row["factor"] is None) == (row["winner"] is None)
        assert row["winner"] is None or row["winner"] > 1
    assert "What would have to change" in answer("explain", *question, "--sensitivity")


def test_no_time_and_bad_degrees(fails: Any, question: list[str]) -> None:
    assert "--time-limit gives it longer" in fails("explain", *question, "--time-limit", "0.000001", code=3)
    assert "--tp 3: tp 3 does not divide" in fails("explain", *question, "--tp", "3")

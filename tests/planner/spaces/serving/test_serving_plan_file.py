"""Serving plans as files: written by optimize and estimate, read by estimate and explain, checked against themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodel.serving.plan import ServingPlan
from planner.files.resources import is_plan_file
from planner.schema.answer import estimate_model
from planner.schema.plan import PlanDocument, ServingEntry
from tests.cases import mostly

Ask = Callable[..., str]

QUESTION = ("llama3-8b", "--mode", "inference", "--gpus", "4", "--prompt", "500", "--output-tokens", "100")


@pytest.fixture
def plan(tmp_path: Path, answer: Ask) -> Path:
    path = tmp_path / "plan.yaml"
    answer("optimize", *QUESTION, "--objective", "latency", "--assume", "memory_utilisation=0.8", "--export", str(path))
    return path


def content(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def changed(path: Path, **changes: Any) -> Path:
    """The same file with other values; ``serving`` is merged."""
    document = content(path)
    document["serving"] |= changes.pop("serving", {})
    new = path.with_name("changed.yaml")
    new.write_text(yaml.safe_dump({**document, **changes}))
    return new


def test_the_load_is_part_of_the_file(tmp_path: Path, answer: Ask) -> None:
    """What a benchmark waits for is predicted again; another load beside the file takes its place."""
    path = tmp_path / "p.yaml"
    answer("estimate", *QUESTION, "--tp", "4", "--max-batch", "32", "--load", "benchmark", "--export", str(path))
    assert content(path)["serving"]["load"] == "benchmark"
    found = [json.loads(answer("estimate", str(path), *more, "--json")) for more in ((), ("--load", "backlog"))]
    assert [each["load"] for each in found] == ["benchmark", "backlog"]
    assert found[0]["plans"][0]["queue_s"] > 0.0 == found[1]["plans"][0]["queue_s"]


def test_the_rate_is_part_of_the_file(tmp_path: Path, answer: Ask) -> None:
    """The same times are predicted again; another rate, or so many requests in flight, take the place of the file's."""
    path = tmp_path / "p.yaml"
    asked = (*QUESTION, "--rate", "20", "--arrival-cv", "2", "--output-cv", "0.5", "--max-ttft", "2s")
    first = json.loads(answer("optimize", *asked, "--export", str(path), "--json"))["plans"][0]
    serving = content(path)["serving"]
    assert {name: serving[name] for name in ("rate_per_s", "arrival_cv", "output_cv", "max_ttft_s")} == {
        "rate_per_s": 20.0, "arrival_cv": 2.0, "output_cv": 0.5, "max_ttft_s": 2.0,
    }  # fmt: skip
    held = content(path)["global_batch"]
    again, faster, closed = (
        json.loads(answer("estimate", str(path), *more, "--json"))
        for more in ((), ("--rate", "30"), ("--concurrency", str(held)))
    )
    assert again["plans"][0]["ttft_s"] == pytest.approx(first["ttft_s"], rel=1e-12)
    assert again["plans"][0]["rate_per_s"] == 20.0
    assert faster["plans"][0]["tpot_s"] > first["tpot_s"]
    assert closed["plans"][0]["rate_per_s"] is None


def test_a_plan_of_a_full_server_is_asked_about_a_rate(tmp_path: Path, answer: Ask) -> None:
    """A rate fixes the throughput, so the file's objective does not count then."""
    path = tmp_path / "p.yaml"
    answer("optimize", *QUESTION, "--disaggregate", "no", "--export", str(path))
    assert content(path)["serving"]["objective"] == "throughput"
    found = json.loads(answer("estimate", str(path), "--rate", "2", "--json"))
    assert (found["objective"], found["plans"][0]["rate_per_s"]) == ("tokens_per_s_per_gpu", 2.0)


def test_the_file_is_versioned_and_carries_prediction_and_provenance(plan: Path) -> None:
    document = content(plan)
    PlanDocument.model_validate(document)
    assert document["schema_version"] == 1
    assert document["mode"] == "inference"
    entry, predicted = document["serving"], document["prediction"]
    assert document["workers"] == entry["tp"] * entry["pp"] * entry["dp"]
    assert document["global_batch"] == entry["dp"] * entry["max_batch"]
    assert (entry["prompt_tokens"], entry["output_tokens"], entry["objective"]) == (500, 100, "latency")
    assert predicted["proven_optimal"] is True
    assert predicted["tpot_s"] > 0
    assert document["assume"] == {"memory_utilisation": 0.8}
    assert set(document["provenance"]["inputs"]) == {"model", "cluster", "device"}
    assert "planner optimize llama3-8b" in document["provenance"]["command_line"]
    assert any("prompt 500 tokens" in text for text in document["provenance"]["assumptions"])


def test_the_file_predicts_what_the_search_said(plan: Path, answer: Ask) -> None:
    """Every figure, by both commands, and whether the file is named by --plan or alone."""
    document = content(plan)
    found = json.loads(answer("estimate", "--plan", str(plan), "--json"))
    assert found["plans"][0]["plan"] == {k: document["serving"][k] for k in asdict(ServingPlan())}
    for name, value in document["prediction"].items():
        if name != "proven_optimal":
            assert found["plans"][0][name] == value
    assert found["objective"] == "latency"
    assert json.loads(answer("estimate", str(plan), "--json"))["plans"] == found["plans"]
    assert found["notes"] == []


def test_a_file_written_from_a_file_is_the_same_plan(plan: Path, answer: Ask, tmp_path: Path) -> None:
    again = tmp_path / "again.yaml"
    answer("estimate", "--plan", str(plan), "--export", str(again))
    first, second = content(plan), content(again)
    for key in first.keys() - {"prediction", "provenance"}:
        assert first[key] == second[key], key
    del first["prediction"]["proven_optimal"]  # nothing was searched
    assert first["prediction"] == second["prediction"]


def test_the_calibration_stays_with_the_plan(answer: Ask, tmp_path: Path) -> None:
    mine, path = tmp_path / "mine.yaml", tmp_path / "calibrated.yaml"
    mine.write_text(
        "schema_version: 1\nname: mine\nsource: {}\nconstants:\n"
        "  memory_rate: {value: 0.5, log_sd: 0.1, prior: 1.0, prior_log_sd: 0.15}\nresidual: {log_sd: 0.1}\n"
    )
    answer("optimize", *QUESTION, "--calibration", str(mine), "--export", str(path))
    document = content(path)
    assert document["calibration"] == str(mine)
    assert "calibration" in document["provenance"]["inputs"]
    assert any("mine" in text for text in document["provenance"]["assumptions"])
    found = json.loads(answer("estimate", "--plan", str(path), "--json"))
    assert found["plans"][0]["tpot_s"] == document["prediction"]["tpot_s"]
    bundled = json.loads(answer("estimate", "--plan", str(path), "--calibration", "default", "--json"))
    assert bundled["plans"][0]["tpot_s"] < 0.85 * document["prediction"]["tpot_s"]  # twice the bandwidth


@pytest.mark.e2e
def test_explain_names_the_layers_and_the_best_plan(plan: Path, answer: Ask, tmp_path: Path) -> None:
    text = answer("explain", str(plan))
    assert "Layer by layer" in text
    assert "No plan that 'planner optimize' searches is quicker." in text
    limited = answer("explain", *QUESTION, "--objective", "latency", "--max-ttft", "10s")
    assert "No plan that 'planner optimize' searches that keeps the limits is quicker." in limited
    worse = tmp_path / "worse.yaml"
    answer("estimate", *QUESTION, "--max-batch", "8", "--export", str(worse))
    found = json.loads(answer("explain", str(worse), "--objective", "latency", "--json"))
    estimate_model("serving").model_validate(found)
    assert found["best"]["plan"] == {k: content(plan)["serving"][k] for k in asdict(ServingPlan())}
    assert found["plans"][0]["gap"] > 0
    assert found["comparison"][0]["plan_s"] > found["comparison"][0]["best_s"]
    assert "Against the best plan" in answer("explain", str(worse), "--objective", "latency")


@pytest.mark.e2e
def test_explain_without_a_file_explains_the_best_plan_or_that_of_the_options(answer: Ask) -> None:
    best = json.loads(answer("explain", *QUESTION, "--json"))
    # The first plan of the search, the simplest within 1 % of the best, beside the best.
    searched = json.loads(answer("optimize", *QUESTION, "--json"))
    assert best["plans"][0]["plan"] == searched["plans"][0]["plan"]
    assert 0 < best["plans"][0]["gap"] <= 0.01
    assert best["best"]["plan"] == searched["fastest"]["plan"]
    given_plan = json.loads(answer("explain", *QUESTION, "--tp", "4", "--max-batch", "8", "--json"))
    assert given_plan["plans"][0]["plan"]["tp"] == 4
    assert given_plan["best"]["plan"] == best["best"]["plan"]


def test_the_layers_add_up_to_the_pass(answer: Ask) -> None:
    found = json.loads(answer("explain", *QUESTION, "--tp", "2", "--max-batch", "8", "--json"))
    plan, rows = found["plans"][0], found["layers"]
    for field, part in (("decode_s", "decode_compute_s"), ("decode_exchange_s", "decode_tp_s"),
                        ("prefill_s", "prefill_compute_s"), ("prefill_exchange_s", "prefill_tp_s")):  # fmt: skip
        assert sum(row["count"] * row[field] for row in rows) == pytest.approx(plan[part], rel=1e-9)
    assert sum(row["count"] * row["weight_bytes"] for row in rows) == pytest.approx(plan["weight_bytes"])
    assert 8 * sum(row["count"] * row["cache_bytes"] for row in rows) == pytest.approx(plan["kv_bytes"])


@pytest.mark.e2e
def test_another_question_beside_the_file(plan: Path, answer: Ask) -> None:
    """Longer prompts, other limits and another cluster may be asked for; the file's prediction is then of something else."""
    found = json.loads(answer("estimate", str(plan), "--prompt", "4000", "--max-tpot", "1us", "--json"))
    assert found["prompt_tokens"] == 4000
    assert found["plans"][0]["ttft_s"] > content(plan)["prediction"]["ttft_s"]
    (note,) = found["notes"]
    assert "misses the limit" in note
    slower = json.loads(answer("estimate", str(plan), "--cluster", "dgx-a100", "--assume", "tp_overlap=0.5", "--json"))
    assert slower["plans"][0]["tpot_s"] > content(plan)["prediction"]["tpot_s"]


@pytest.mark.e2e
def test_a_stated_time_that_is_not_the_models_is_a_warning(plan: Path, answer: Ask) -> None:
    document = content(plan)
    other = changed(plan, prediction={**document["prediction"], "tpot_s": 0.5})
    assert "states a time per token of 0.5 s" in answer("estimate", str(other))
    inputs = {**document["provenance"]["inputs"], "cluster": "0" * 64}
    other = changed(plan, provenance={**document["provenance"], "inputs": inputs})
    assert "the cluster file is not the one" in answer("estimate", str(other))


@mostly("exact", ("changes", "place", "message"),
    [
        ({"workers": 3}, "workers", "is 3, but the plan has tp 4 x pp 1 x dp 1 = 4"),
        ({"gpus": 2}, "workers", "more than the 2 gpus"),
        ({"global_batch": 7}, "global_batch", "is 7, but the plan holds dp 1 x max_batch 1 = 1 sequences"),
        ({"serving": {"tp": 3}, "workers": 3}, "serving.tp", "does not divide the 32 attention heads"),
        ({"serving": {"prefill_batch": 2}}, "serving", "prefill batch 2 is more than the 1 sequences"),
        ({"mode": "training"}, "mode", "must be inference"),
        ({"cost_model": "paleo"}, "cost_model", "must be roofline"),
        ({"optimizer": "adam"}, "optimizer", "belongs to a plan for training"),
        ({"seq": 600}, "seq", "belongs to a plan for training"),
        ({"mesh": {"tp": 4}}, "serving", "either 'mesh' or 'serving'"),
        ({"layers": {"a": {}}}, "layers", "either 'layers' or 'serving'"),
        ({"serving": {"tokens": 3}}, "serving.tokens", "unknown key 'tokens'"),
        ({"serving": {"prompt_tokens": 0}}, "serving.prompt_tokens", ""),
        ({"serving": {"kv_precision": "fp4"}}, "serving.kv_precision", ""),
    ], quick=5)  # fmt: skip
def test_contradictions_have_a_place(fails: Any, plan: Path, changes: dict[str, Any], place: str, message: str) -> None:
    path = changed(plan, **changes)
    err = fails("estimate", "--plan", str(path))
    line = next(line for line in err.splitlines() if f": {place}" in line and message in line)
    assert line.startswith(f"{path}:")
    assert line.split(":")[1].isdigit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-batch", "3"), "--max-batch: is decided by --plan"),
        (("--tp", "2"), "--tp: is decided by --plan"),
        (("--gpus", "2"), "--gpus: is decided by --plan"),
        (("--mode", "training"), "--mode training: the plan is for inference"),
        (("--batch", "8"), "--batch: is for training"),
        (("--assume", "dp_overlap=0.5"), "--assume dp_overlap: is for training; serving has "),
    ],
)
def test_what_the_file_decides_is_not_decided_twice(
    fails: Any, plan: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in fails("estimate", "--plan", str(plan), *options)


@pytest.mark.e2e
def test_a_plan_for_training_knows_no_prompts(fails: Any, tmp_path: Path, answer: Ask) -> None:
    path = tmp_path / "training.yaml"
    answer("estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8", "--export", str(path))
    err = fails("estimate", "--plan", str(path), "--prompt", "9")
    assert "--prompt: " in err
    assert json.loads(answer("explain", str(path), "--json"))["plans"][0]["plan"]["tp"] == 8


def test_only_plans_look_like_plans(new_file: Any, plan: Path) -> None:
    assert is_plan_file(str(plan))
    assert not is_plan_file(str(new_file("network.yaml", "schema_version: 1\nname: workers\nlayers: []\n")))
    assert not is_plan_file("llama3-8b")


@given(
    st.builds(
        ServingPlan,
        **{name: st.integers(1, 10**6) for name in ("tp", "pp", "ep", "etp", "dp", "max_batch", "prefill_batch")},
        prefill_chunk=st.integers(0, 10**8),
    )
)
def test_every_plan_survives_its_entry(plan: ServingPlan) -> None:
    entry = ServingEntry.model_validate({**asdict(plan), "prompt_tokens": 1, "output_tokens": 1})
    assert ServingPlan(**{name: getattr(entry, name) for name in asdict(plan)}) == plan


def test_a_plan_file_keeps_the_devices_that_read_prompts(answer: Ask, fails: Ask, tmp_path: Path) -> None:
    """Its estimate is the same, and what it says wrong is said where it says it."""
    path = tmp_path / "plan.yaml"
    pools = ("--disaggregate", "yes", "--prefill-device", "b200", "--rate", "10", "--max-tpot", "p90:40ms")
    asked = ("llama3-8b", "--mode", "inference", "--gpus", "2", *pools)
    best = json.loads(answer("optimize", *asked, "--export", str(path), "--json"))["plans"][0]
    again = json.loads(answer("estimate", str(path), "--json"))["plans"][0]
    assert (again["plan"], again["ttft_p90_s"]) == (best["plan"], best["ttft_p90_s"])
    assert "prefill_device: b200" in path.read_text(encoding="utf-8")
    other = json.loads(answer("estimate", str(path), "--prefill-device", "h100-sxm", "--json"))["plans"][0]
    assert other["ttft_p90_s"] > best["ttft_p90_s"]
    text = path.read_text(encoding="utf-8").replace("output_tokens: 256", "output_tokens: 1")
    path.write_text(text, encoding="utf-8")
    line = next(n for n, words in enumerate(text.splitlines(), start=1) if "max_tpot_s" in words)
    assert f"plan.yaml:{line}:" in fails("estimate", str(path))

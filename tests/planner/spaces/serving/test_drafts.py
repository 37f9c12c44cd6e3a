"""Drafted tokens on the command line: what they gain, files that keep them, engines that run them, and one clear error per mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.serving.plan import ServingPlan
from planner.exporters.export import make_export
from tests.planner.exporters.jobs import serving_job

Ask = Callable[..., str]

QUESTION = ("llama3-8b", "--mode", "inference", "--gpus", "2", "--disaggregate", "no", "--max-batch", "1..8")


def test_an_answer_says_what_drafts_gain(answer: Ask) -> None:
    found = json.loads(answer("optimize", *QUESTION, "--objective", "latency", "--acceptance", "0.8", "--json"))
    best, other = found["plans"][0], found["undrafted"]
    assert found["acceptance"] == 0.8
    assert found["draft"] == "ngram"
    assert best["plan"]["draft_tokens"] > 0 == other["plan"]["draft_tokens"]
    assert best["request_s"] < other["request_s"]
    assert "drafted" not in found
    text = answer("optimize", *QUESTION, "--objective", "latency", "--acceptance", "0.8")
    assert f"{best['plan']['draft_tokens']} tokens drafted per pass (ngram)" in text
    assert "quicker than the best without" in text


def test_an_answer_says_that_drafts_do_not_pay(answer: Ask) -> None:
    asked = ("--acceptance", "5%", "--draft", "llama3-8b", "--objective", "tpot")
    found = json.loads(answer("optimize", *QUESTION, *asked, "--json"))
    assert found["plans"][0]["plan"]["draft_tokens"] == 0 < found["drafted"]["plan"]["draft_tokens"]
    assert "Drafting:       nothing is gained: " in answer("optimize", *QUESTION, *asked)


@pytest.mark.parametrize("rate", [(), ("--rate", "2")])
def test_without_an_acceptance_nothing_is_drafted(rate: tuple[str, ...], answer: Ask) -> None:
    """The best plan without drafts is that of the question without them."""
    plain = json.loads(answer("optimize", *QUESTION, *rate, "--json"))
    other = json.loads(answer("optimize", *QUESTION, *rate, "--acceptance", "0.9", "--draft-tokens", "0", "--json"))
    assert plain["acceptance"] is None
    assert [p["tpot_s"] for p in plain["plans"]] == [p["tpot_s"] for p in other["plans"]]
    assert plain["plans"][0]["plan"] == other["plans"][0]["plan"]


def test_the_file_of_a_drafter_is_found_from_the_file_of_a_plan(
    tmp_path: Path, answer: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan lies in another folder than the network that drafts, and is read from a third one; `compare` names what is asked."""
    for name in ("nets", "plans", "elsewhere"):
        (tmp_path / name).mkdir()
    text = (Path(__file__).parents[4] / "configs/models/llama3-8b.yaml").read_text()
    (tmp_path / "nets/small.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    asked = (
        "--tp",
        "2",
        "--max-batch",
        "4",
        "--acceptance",
        "0.7",
        "--draft",
        "nets/small.yaml",
        "--draft-tokens",
        "2",
    )
    found = json.loads(answer("estimate", *QUESTION[:5], *asked, "--export", "plans/plan.yaml", "--json"))
    assert yaml.safe_load(Path("plans/plan.yaml").read_text())["serving"]["draft"] == "../nets/small.yaml"
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = json.loads(answer("estimate", "../plans/plan.yaml", "--json"))
    assert again["plans"][0]["tpot_s"] == found["plans"][0]["tpot_s"]
    other = tmp_path / "plans/other.yaml"
    other.write_text((tmp_path / "plans/plan.yaml").read_text().replace("acceptance: 0.7", "acceptance: 0.8"))
    words = " ".join(answer("compare", "../plans/plan.yaml", str(other)).split())
    assert "70.0 % of the tokens accepted" in words
    assert "80.0 % of the tokens accepted" in words
    assert "The plans answer different questions" in words


def test_the_file_of_a_plan_keeps_its_drafts(tmp_path: Path, answer: Ask, fails: Any) -> None:
    path = tmp_path / "plan.yaml"
    asked = ("--tp", "2", "--max-batch", "4", "--acceptance", "0.7", "--draft", "llama3-8b", "--draft-tokens", "2")
    answer("estimate", *QUESTION[:5], *asked, "--export", str(path))
    document = yaml.safe_load(path.read_text())
    assert {name: document["serving"][name] for name in ("acceptance", "draft", "draft_tokens")} == {
        "acceptance": 0.7,
        "draft": "llama3-8b",
        "draft_tokens": 2,
    }
    again = answer("estimate", str(path))
    assert "2 tokens drafted per pass (llama3-8b), 2.19 made on average" in again
    found = json.loads(answer("estimate", str(path), "--json"))["plans"][0]
    assert found["tpot_s"] == pytest.approx(document["prediction"]["tpot_s"])
    del document["serving"]["acceptance"]
    path.write_text(yaml.safe_dump(document))
    assert "--acceptance" in fails("estimate", str(path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--acceptance", "1.2"), "--acceptance 1.2: must be from 0 to 1"),
        (("--draft-tokens", "2"), "--draft-tokens: needs --acceptance"),
        (("--draft", "ngram"), "--draft: needs --acceptance"),
        (("--acceptance", "0.8", "--draft", "mtp"), "names no layer for multi-token prediction"),
        (
            ("--acceptance", "0.8", "--draft", "mixtral-8x7b"),
            "has a vocabulary of 32,000 tokens, and 'llama3-8b' one of 128,256",
        ),
        (("--acceptance", "0.8", "--draft", "alexnet"), "--draft alexnet: network 'alexnet' does not generate text"),
        (("--acceptance", "0.8", "--draft", "llama3-9b"), "did you mean 'llama3-8b'?"),
        (("--acceptance", "0.8", "--draft-tokens", "17"), "--draft-tokens 17: must be at most 16"),
        (
            ("--acceptance", "0.8", "--draft-tokens", "2", "--pp", "2"),
            "tokens are drafted and verified in one stage (pp 1)",
        ),
        (
            ("--acceptance", "0.8", "--draft-tokens", "2", "--prefill-chunk", "256", "--framework", "sglang"),
            "sglang drafts no tokens where prompts are read beside the decoding",
        ),
    ],
)
def test_mistakes_are_told(options: tuple[str, ...], words: str, fails: Any) -> None:
    assert words in fails("optimize", *QUESTION, *options)


PLAN = ServingPlan(tp=4, dp=2, max_batch=8, draft_tokens=3)


@pytest.mark.parametrize(
    ("engine", "drafter", "words"),
    [
        ("vllm", "mtp", '\'{"method": "mtp", "num_speculative_tokens": 3}\''),
        ("vllm", "ngram", '\'{"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 3}\''),
        ("vllm", "llama3-8b", '\'{"method": "draft_model", "model": "llama3-8b", "num_speculative_tokens": 3}\''),
        (
            "sglang",
            "mtp",
            "EAGLE\n  --speculative-num-steps 3\n  --speculative-eagle-topk 1\n  --speculative-num-draft-tokens 4",
        ),
        ("sglang", "ngram", "--speculative-algorithm NGRAM\n  --speculative-num-draft-tokens 4"),
        ("sglang", "llama3-8b", "STANDALONE\n  --speculative-draft-model-path llama3-8b\n  --speculative-num-steps 3"),
        ("tensorrt-llm", "mtp", "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3"),
        ("tensorrt-llm", "ngram", "  decoding_type: NGram\n  max_draft_len: 3\n  max_matching_ngram_size: 4"),
        (
            "tensorrt-llm",
            "llama3-8b",
            '  decoding_type: DraftTarget\n  max_draft_len: 3\n  speculative_model_dir: "llama3-8b"',
        ),
    ],
)
def test_engines_are_told_what_drafts(engine: str, drafter: str, words: str) -> None:
    export = make_export(serving_job(PLAN, drafter=drafter), engine)
    text = "".join(export.files[name] for name in ("serve.sh", "llm_args.yaml") if name in export.files)
    assert words in text
    if engine == "tensorrt-llm":
        yaml.safe_load(export.files["llm_args.yaml"])
    assert ("draft_tokens" in export.account.by_hand) == (drafter == "llama3-8b")
    assert "draft_tokens" not in make_export(serving_job(ServingPlan(tp=4, dp=2)), engine).account.written


def test_an_engine_reads_all_tokens_of_a_pass() -> None:
    """8 sequences of 4 tokens beside a part of 512 of a prompt."""
    plan = ServingPlan(tp=8, max_batch=8, prefill_chunk=512, draft_tokens=3)
    text = make_export(serving_job(plan, drafter="ngram"), "vllm").files["serve.sh"]
    assert "--max-num-batched-tokens 544\n" in text


def test_replicas_that_share_experts_draft_by_their_own_layer_alone() -> None:
    plan = ServingPlan(ep=8, dp=8, max_batch=8, draft_tokens=1)
    make_export(serving_job(plan, has_experts=True, drafter="mtp"), "sglang")
    with pytest.raises(Exception, match="draft by mtp only"):
        make_export(serving_job(plan, has_experts=True, drafter="ngram"), "sglang")

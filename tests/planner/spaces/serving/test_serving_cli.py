"""Serving on the command line: answers in every form, and one clear error per mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.schema import schema_of
from planner.schema.answer import estimate_model, search_model
from strategies.serving.pools import BothOutcome, search_both
from strategies.serving.search import ServingSettings

Ask = Callable[..., str]

LLAMA = ("optimize", "llama3-8b", "--mode", "inference", "--gpus", "2")
ESTIMATE = ("estimate", "llama3-8b", "--mode", "inference", "--gpus", "2", "--tp", "2")


def test_the_table_names_the_best_plan_its_times_and_the_proof(answer: Ask) -> None:
    text = answer(*LLAMA, "--prompt", "500", "--output-tokens", "100", "--max-tpot", "20ms", "--fastest", "-v")
    for words in (
        "Best: ",
        "first token after",
        "plans that fits and keeps the limits is faster than the first",
        " enumerated; ",
        "time per token (mean) at most 20.0 ms",
        "prompt 500 tokens (given)",
        "memory_utilisation 0.9",
    ):
        assert words in text


@pytest.mark.e2e
def test_json_follows_the_schema_and_has_the_keys_of_training(answer: Ask) -> None:
    served = json.loads(answer(*LLAMA, "--json", "--objective", "latency"))
    trained = json.loads(answer("optimize", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8", "--json"))
    # Serving has no plans of uneven stages or of other splits inside blocks, nor for other wishes.
    assert set(trained) - {"refined", "fastest", "forgone", "roles", "splits"} <= set(served)
    search_model("serving").model_validate(served)
    schema_of("result").model_validate(served)
    best = served["plans"][0]
    assert best["request_s"] == pytest.approx(best["ttft_s"] + 255 * best["tpot_s"])
    assert served["objective"] == "latency"
    assert served["proven_optimal"]
    assert best["plan"]["tp"] == 2
    parts = ("weight_bytes", "kv_bytes", "working_bytes", "logits_bytes", "buffer_bytes", "context_bytes")
    assert sum(best[name] for name in parts) == pytest.approx(best["memory_bytes_per_gpu"])


@pytest.mark.parametrize(("prompt", "is_said"), [("130816", False), ("130817", True)])
def test_a_note_says_where_requests_are_longer_than_the_weights_were_trained_for(
    prompt: str, is_said: bool, answer: Ask
) -> None:
    """Llama 3.1: 131,072 tokens, 256 of which are the answer."""
    found = json.loads(answer(*ESTIMATE, "--prompt", prompt, "--json"))
    assert [note["code"] for note in found["note_codes"]].count("beyond_context") == is_said


def test_blocks_of_a_trace_say_what_is_cached(answer: Ask, tmp_path: Path) -> None:
    """Every prompt but the first finds 1,024 of its 2,000 tokens; --prefix-cached says otherwise, and then nothing is left to say."""
    trace = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 1000 * n * n,
            "input_length": 2000,
            "output_length": 100,
            "hash_ids": [1, 2, 2 * n + 3, 2 * n + 4],
        }
        for n in range(5)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    asked = (*ESTIMATE, "--requests", str(trace), "--json")
    found = json.loads(answer(*asked))
    assert found["prefix_cached"] == pytest.approx(4 * 1024 / 10000)
    (note,) = [note for note in found["note_codes"] if note["code"] == "prefix_found"]
    assert note["values"]["kept"] == note["values"]["assumed"] == found["prefix_cached"]
    assert note["values"]["room"] > 100_000
    stated = json.loads(answer(*asked, "--prefix-cached", "10%"))
    assert stated["prefix_cached"] == 0.1
    assert stated["plans"][0]["ttft_s"] > found["plans"][0]["ttft_s"]
    assert "prefix_found" not in [note["code"] for note in stated["note_codes"]]


@pytest.mark.parametrize("name", ["prompts_in_step", "node_gathers", "ep_latency_share"])
def test_shares_are_at_most_one(name: str, fails: Any) -> None:
    """Above 1 replicas would wait a negative time, and serve more than where nobody waits."""
    assert f"--assume {name}=2: is a share, at most 1" in fails(*LLAMA, "--assume", f"{name}=2")


def test_estimate_json_follows_the_schema(answer: Ask) -> None:
    found = json.loads(answer(*ESTIMATE, "--max-batch", "16", "--json"))
    estimate_model("serving").model_validate(found)
    schema_of("breakdown").model_validate(found)
    assert found["plans"][0]["plan"] == {
        "tp": 2, "pp": 1, "ep": 1, "etp": 1, "dp": 1, "max_batch": 16, "prefill_chunk": 0, "prefill_batch": 1,
        "draft_tokens": 0, "prefill_dp": 0, "prefill_tp": 1, "prefill_pp": 1, "prefill_ep": 1, "prefill_etp": 1,
    }  # fmt: skip
    assert found["global_batch"] == 16


def test_estimate_of_the_best_plan_says_the_same(answer: Ask) -> None:
    best = json.loads(answer(*LLAMA, "--json"))["plans"][0]
    plan = best["plan"]
    options = [
        f"--{name.replace('_', '-')}={plan[name]}"
        for name in ("tp", "pp", "max_batch", "prefill_chunk", "prefill_batch")
    ]
    alone = json.loads(
        answer("estimate", "llama3-8b", "--mode", "inference", "--gpus", str(best["workers"]), *options, "--json")
    )
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "memory_bytes_per_gpu", "summary"):
        assert alone["plans"][0][name] == best[name], name


def test_estimate_shows_where_time_and_memory_go(answer: Ask) -> None:
    text = answer(*ESTIMATE, "--max-batch", "16")
    for words in (
        "Where the time per token goes",
        "Where the time to the first token goes",
        "What fills the memory",
        "keys and values",
    ):
        assert words in text


def test_estimate_holds_as_many_sequences_as_fit_unless_told(answer: Ask) -> None:
    found = json.loads(answer(*ESTIMATE, "--prompt", "30000", "--json"))
    best = found["plans"][0]
    assert best["plan"]["max_batch"] == best["largest_batch"] > 1
    assert any("left open" in a["source"] for a in found["assumptions"])


def test_a_plan_that_does_not_fit_is_shown_with_the_way_out(answer: Ask) -> None:
    text = answer(*ESTIMATE, "--prompt", "100000", "--max-batch", "500")
    assert "does not fit" in text
    assert "it fits with --max-batch" in text


def test_fixed_degrees_are_kept(answer: Ask) -> None:
    found = json.loads(
        answer(
            "optimize", "llama3-8b", "--mode", "inference", "--gpus", "4", "--pp", "2", "--max-batch", "8,16", "--json"
        )
    )
    assert {entry["plan"]["pp"] for entry in found["plans"]} == {2}
    assert {entry["plan"]["max_batch"] for entry in found["plans"]} <= {8, 16}


def test_a_scheduler_that_has_prompts_read_together_serves_more(answer: Ask) -> None:
    """Replicas that share experts wait for one another's prompts unless they are said not to."""
    question = (
        "optimize",
        "mixtral-8x7b",
        "--mode",
        "inference",
        "--gpus",
        "4",
        "--tp",
        "1",
        "--ep",
        "4",
        "--max-batch",
        "64",
        "--json",
    )
    apart, together = (json.loads(answer(*question, *more)) for more in ((), ("--assume", "prompts_in_step=1")))
    notes = [" ".join(found["notes"]) for found in (apart, together)]
    assert ["--assume prompts_in_step=1" in text for text in notes] == [True, False]
    rates = [found["plans"][0]["output_tokens_per_s"] for found in (apart, together)]
    assert rates[0] < rates[1]


def test_formats_of_weights_and_cache_halve_the_memory(answer: Ask) -> None:
    wide = json.loads(answer(*ESTIMATE, "--max-batch", "16", "--json"))["plans"][0]
    narrow = json.loads(
        answer(*ESTIMATE, "--max-batch", "16", "--precision", "fp8", "--kv-precision", "fp8", "--json")
    )["plans"][0]
    assert narrow["kv_bytes"] == wide["kv_bytes"] / 2
    assert 0.5 * wide["weight_bytes"] < narrow["weight_bytes"] < 0.6 * wide["weight_bytes"]
    assert narrow["tpot_s"] < wide["tpot_s"]


def test_memory_limit_and_utilisation(answer: Ask) -> None:
    limited = json.loads(answer(*ESTIMATE, "--memory-limit", "20 GiB", "--json"))["setting"]["memory_capacity_bytes"]
    shared = json.loads(answer(*ESTIMATE, "--assume", "memory_utilisation=0.5", "--json"))["setting"][
        "memory_capacity_bytes"
    ]
    assert (limited, shared) == (20 * 2**30, 81_559 * 2**20 / 2)  # the driver of an H100 shows 81,559 MiB
    said = " ".join(answer(*ESTIMATE).split())
    assert (
        "memory per GPU 71.7 GiB (memory_utilisation 0.9 of 79.6 GiB), of which 512 MiB for the driver's context"
        in said
    )
    assert "memory_utilisation" not in answer(*ESTIMATE, "--memory-limit", "20 GiB")


def test_convolutional_networks_keep_their_search(answer: Ask) -> None:
    found = json.loads(answer("optimize", "alexnet", "--mode", "inference", "--gpus", "2", "--top", "1", "--json"))
    assert found["space"] == "layers"
    assert found["setting"]["mode"] == "inference"


@pytest.mark.exact
def test_a_split_per_layer_of_a_transformer_can_still_be_asked_for(answer: Ask) -> None:
    found = json.loads(
        answer("estimate", "gpt2-1.5b", "--mode", "inference", "--gpus", "2", "--family", "data", "--json")
    )
    assert found.get("space") != "serving"


def test_nothing_fits_names_the_nearest_miss_and_the_way_out(fails: Any) -> None:
    err = fails("optimize", "llama3-70b", "--mode", "inference", "--gpus", "1", code=1)
    for words in ("nothing fits: the nearest miss (one GPU", "the largest part is weights", "with --gpus 2 it works"):
        assert words in err


@pytest.mark.exact
def test_of_two_that_do_not_fit_the_nearer_is_named(fails: Any) -> None:
    """Two GPUs that hold half of the weights each are nearer than one that reads prompts beside one that decodes."""
    err = fails("optimize", "llama3-405b", "--mode", "inference", "--gpus", "2", code=1)
    assert "nothing fits: the nearest miss (tp 2, " in err


@pytest.mark.exact
def test_a_limit_that_excludes_everything_says_by_how_much(fails: Any) -> None:
    err = fails(*LLAMA, "--max-tpot", "0.001ms", code=1)
    assert "no plan that fits keeps the limits" in err
    assert "at most 1.00 us asked for" in err
    assert fails(*LLAMA, "--max-tpot", "1us", code=1) == err


SERVE_70B = ("optimize", "llama3-70b", "--mode", "inference", "--gpus", "8")


@pytest.mark.exact
def test_advice_that_was_given_already_is_not_given_again(fails: Any) -> None:
    """With fp8 asked for, fp8 is no advice; the best that can be reached is named."""
    err = fails(*SERVE_70B, "--max-tpot", "1us", "--precision", "fp8", code=1)
    assert "use --precision" not in err
    assert "with --precision" not in err
    assert "nothing that was tried (up to --gpus" in err
    assert "the nearest that was reached is time per token" in err


@pytest.mark.exact
def test_the_most_gpus_say_whether_a_limit_can_be_kept_at_a_rate(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal takes a search on the GPUs that were asked for and one on the most, without a change and with each."""
    seen: list[int] = []

    def counted(model: Any, settings: ServingSettings) -> BothOutcome:
        seen.append(settings.max_workers)
        return search_both(model, settings)

    monkeypatch.setattr("planner.spaces.serving.diagnose.search_both", counted)
    err = fails(*LLAMA, "--rate", "1", "--max-tpot", "1ms", "--tp", "1", "--disaggregate", "no", code=1)
    assert "nothing that was tried (up to --gpus 512, without --tp, " in err
    assert sorted(seen) == [2, 2, 2, 512, 512, 512, 512]


@pytest.mark.exact
def test_weights_in_fp8_are_advice_where_products_are_not_in_fp8(fails: Any, answer: Ask) -> None:
    """An A100 keeps weights in fp8 and multiplies in 16 bits: fewer bytes to read for every token, and slower prompts."""
    on_a100 = (*SERVE_70B, "--cluster", "dgx-a100")
    err = fails(*on_a100, "--max-tpot", "13ms", code=1)
    assert "with --precision fp8 it works: tp 8, " in err
    found = json.loads(answer(*on_a100, "--max-tpot", "13ms", "--precision", "fp8", "--json"))
    assert found["plans"][0]["tpot_s"] <= 13e-3
    assert found["setting"]["formats"]["products"] == "bf16"


@pytest.mark.exact
def test_advice_works(fails: Any, answer: Ask) -> None:
    """Whoever follows it gets a plan that keeps the limit."""
    err = fails(*SERVE_70B, "--max-tpot", "9ms", code=1)
    assert "with --precision fp8 it works: tp 8, " in err
    found = json.loads(answer(*SERVE_70B, "--max-tpot", "9ms", "--precision", "fp8", "--json"))
    assert found["plans"][0]["tpot_s"] <= 9e-3
    err = fails(*SERVE_70B, "--max-tpot", "12ms", "--tp", "4", code=1)
    assert "without --tp it works: tp 8" in err
    assert json.loads(answer(*SERVE_70B, "--max-tpot", "12ms", "--json"))["plans"][0]["tpot_s"] <= 12e-3


@pytest.mark.exact
def test_what_is_reached_is_reached(fails: Any, answer: Ask) -> None:
    err = fails(*SERVE_70B, "--max-tpot", "5ms", code=1)
    reached = re.search(r"reached is time per token \(mean\) ([0-9.]+) ms, with --precision fp8 ", err)
    limit = float(reached[1]) * 1.001
    found = json.loads(answer(*SERVE_70B, "--max-tpot", f"{limit}ms", "--precision", "fp8", "--json"))
    assert found["plans"][0]["tpot_s"] <= limit * 1e-3
    fails(*SERVE_70B, "--max-tpot", f"{limit * 0.99}ms", "--precision", "fp8", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("optimize", "llama3-8b", "--gpus", "2", "--prompt", "5"), "--prompt: only has a meaning with --mode inference"),
        ((*LLAMA, "--prompt", "0"), "--prompt 0: must be at least 1"),
        ((*LLAMA, "--output-tokens", "many"), "--output-tokens many: must be a whole number"),
        ((*LLAMA, "--max-ttft", "soon"), "--max-ttft soon: must be a time"),
        ((*LLAMA, "--max-tpot", "30"), "--max-tpot 30: has no unit; did you mean 30ms?"),
        ((*LLAMA, "--max-ttft", "0.5"), "--max-ttft 0.5: has no unit; did you mean 0.5ms?"),
        ((*LLAMA, "--kv-precision", "fp4"), "--kv-precision fp4: must be"),
        ((*LLAMA, "--load", "bench"), "--load bench: must be"),
        (("optimize", "llama3-8b", "--gpus", "2", "--load", "traffic"), "--load: only has a meaning with --mode inference"),
        ((*LLAMA, "--objective", "mfu"), "--objective mfu: serving has throughput"),
        ((*LLAMA, "--objective", "latencies"), "did you mean 'latency'"),
        ((*LLAMA, "--batch", "8"), "--batch: is for training"),
        ((*LLAMA, "--seq", "8"), "--prompt and --output-tokens say how long"),
        ((*LLAMA, "--cp", "2"), "--cp: is for training"),
        ((*LLAMA, "--zero", "1"), "--zero: is for training"),
        ((*LLAMA, "--assume", "dp_overlap=0.5"), "--assume dp_overlap: is for training; serving has "),
        ((*LLAMA, "--assume", "memory_utilisation=1.5"), "is a share"),
        ((*LLAMA, "--prompt", "9", "--family", "data"), "leave one of them out"),
        ((*LLAMA, "--cluster", "dgx-a100", "--precision", "fp7"), "--precision fp7: is not known"),
        (("optimize", "alexnet", "--mode", "inference", "--gpus", "2", "--prompt", "9"), "does not generate text"),
        (("optimize", "t5-11b", "--mode", "inference", "--gpus", "2", "--pp", "2"), "(rule encoder)"),
        (("optimize", "t5-11b", "--mode", "inference", "--gpus", "2", "--prefill-chunk", "256"), "(rule encoder)"),
        (("estimate", "t5-11b", "--mode", "inference", "--gpus", "2", "--pp", "2"), "served with pp 1"),
        ((*LLAMA[:-1], "4", "--tp", "3"), "32 attention heads; allowed: 1, 2, 4, 8, 16, 32 (rule heads)"),
        ((*LLAMA, "--tp", "2", "--dp", "2"), "--tp 2 --dp 2 exclude each other: tp 2 x dp 2 = 4 is more than --gpus 2"),
        (
            (*LLAMA, "--disaggregate", "no", "--max-batch", "2", "--prefill-batch", "8"),
            "--max-batch 2 --prefill-batch 8 exclude each other",
        ),
        ((*LLAMA, "--ep", "2", "--tp", "2"), "--ep 2: ep 2 needs experts; the network has none (rule experts)"),
        (("optimize", "bert-large", "--mode", "inference", "--gpus", "2", "--prompt", "9"), "does not generate text"),
        (
            ("optimize", "gpt2-1.5b", "--mode", "inference", "--gpus", "2", "--prompt", "1000", "--output-tokens", "25"),
            "1025 positions; 'positions' of network 'gpt2-1.5b' has 1024",
        ),
        (("estimate", "llama3-8b", "--mode", "inference", "--gpus", "8", "--tp", "3"), "use --gpus 6 or 9"),
        (("estimate", "llama3-8b", "--mode", "inference", "--gpus", "6", "--tp", "6"), "does not divide the 32 attention heads"),
        (("estimate", "llama3-8b", "--mode", "inference", "--gpus", "64", "--pp", "64"), "more than the 32 blocks"),
        (("estimate", "llama3-8b", "--mode", "inference", "--gpus", "2", "--ep", "2"), "the network has none"),
        (("estimate", "mixtral-8x7b", "--mode", "inference", "--gpus", "4", "--tp", "4", "--ep", "3"), "experts"),
        ((*ESTIMATE, "--max-batch", "1..8"), "leaves open which plan is meant"),
        ((*ESTIMATE, "--max-batch", "2", "--prefill-batch", "4"), "prefill batch 4 is more than the 2 sequences"),
        ((*ESTIMATE, "--dp", "2"), "use --gpus 4"),
        ((*LLAMA, "--output-tokens", "1", "--objective", "tpot"), "--objective tpot: an answer of 1 token"),
        ((*LLAMA, "--output-tokens", "1", "--max-tpot", "9ms"), "--max-tpot: an answer of 1 token"),
    ],
)  # fmt: skip
def test_mistakes_are_one_clear_error(
    fails: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    err = fails(*arguments)
    assert words in err
    assert not list(tmp_path.iterdir())


def test_all_mistakes_are_reported_at_once(fails: Any) -> None:
    err = fails(*LLAMA, "--prompt", "0", "--max-tpot", "soon", "--kv-precision", "x")
    assert len(err.strip().splitlines()) == 3


@pytest.mark.parametrize("degrees", [("--ep", "8"), ("--tp", "8")])
def test_predictions_are_the_centres_of_their_intervals(answer: Ask, degrees: tuple[str, str]) -> None:
    document = json.loads(answer("estimate", "mixtral-8x7b", "--mode", "inference", "--gpus", "8", *degrees, "--json"))
    (plan,) = document["plans"]
    for name, low, high in (
        ("ttft_s", "ttft_low_s", "ttft_high_s"),
        ("tpot_s", "step_time_low_s", "step_time_high_s"),
        ("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high"),
    ):
        assert plan[low] * plan[high] == pytest.approx(plan[name] ** 2), name


def test_rows_that_nobody_would_choose_are_left_out_and_counted(answer: Ask) -> None:
    """Plans more than twice as bad as the first have a row only where --top asks for it."""
    question = (
        "optimize",
        "llama3-70b",
        "--mode",
        "inference",
        "--gpus",
        "8",
        "--max-tpot",
        "18ms",
        "--disaggregate",
        "no",
    )
    gaps = [plan["gap"] for plan in json.loads(answer(*question, "--json"))["plans"]]
    worse = sum(gap > 1.0 for gap in gaps)
    assert worse == 2
    assert "2 more plans are left out: --top 3 shows them." in answer(*question)
    shown = answer(*question, "--top", "3")
    assert "more plans" not in shown
    assert f"{len(gaps)}  tp 4, pp 2" in shown


def test_an_answer_says_what_it_is_for_and_what_its_figures_mean(answer: Ask) -> None:
    question = ("optimize", "llama3-8b", "--mode", "inference", "--gpus", "1", "--max-tpot", "20ms")
    text = " ".join(answer(*question, "--prefill-chunk", "1024").split())
    for words in (
        "mean first token after ",
        "requests in flight all the time, of different lengths (closed loop",
        "engines size the cache by what is left: up to ",
        "Limited by: kernels that read weights and caches (",
        "waiting for prompts of others ",
        "prompts whole beside decoding",
        "Assumed: prompt 1024 tokens (assumed: --prompt changes it), output 256 tokens (assumed: --output-tokens changes it)",
    ):
        assert words in text, words
    assert "slowest stage" not in text
    options = "requests at once: --max-num-seqs, prompts per pass: --max-num-batched-tokens"
    assert f"planner export plan.yaml --to vllm -o run # {options}" in " ".join(
        answer(*question, "--framework", "vllm").split()
    )
    given = answer("optimize", "llama3-8b", "--mode", "inference", "--gpus", "2", "--pp", "2", "--prompt", "512")
    assert "prompt 512 tokens (given)" in given
    assert "slowest stage" in " ".join(given.split())


@pytest.mark.parametrize(("batch", "words"), [("1", "read weights and caches"), ("1024", "compute")])
def test_kernels_of_a_large_batch_compute(document: Any, batch: str, words: str) -> None:
    """Below the ridge of an H100, about 300 FLOP per byte, products of matrices read; with short sequences above it they compute."""
    question = (
        f"estimate llama3-70b --mode inference --gpus 4 --tp 4 --max-batch {batch} --prompt 16 --output-tokens 64 --prefill-batch "
        f"{min(64, int(batch))}"
    )
    assert document(question)["plans"][0]["bottleneck"] == f"kernels that {words}"


def test_the_longest_pause_is_no_shorter_than_the_mean_one(document: Any) -> None:
    """In a full server several prompts are read between two passes of a sequence: beside a mean of 71 ms a pause of 33 was stated."""
    plan = document("estimate llama3-8b --mode inference --gpus 8 --tp 8 --max-batch 1024")["plans"][0]
    assert plan["pause_s"] >= plan["tpot_s"] > 2.0 * plan["decode_pass_s"]


def test_both_kinds_of_plans_are_compared(answer: Ask) -> None:
    """The best plan of the other kind is a baseline, and a line says what GPUs that only read prompts gain."""
    question = ("optimize", "llama3-8b", "--mode", "inference", "--gpus", "4", "--max-batch", "1..64", "--fastest")
    found = {kind: json.loads(answer(*question, "--disaggregate", kind, "--json")) for kind in ("no", "yes", "auto")}
    best = {kind: document["plans"][0]["output_tokens_per_s"] for kind, document in found.items()}
    assert best["auto"] == max(best["no"], best["yes"])
    search_model("serving").model_validate(found["auto"])
    name, other = ("disaggregated", "yes") if best["no"] > best["yes"] else ("aggregated", "no")
    assert found["auto"][name]["output_tokens_per_s"] == best[other]
    assert found["yes"]["plans"][0]["plan"]["prefill_dp"] >= 1
    assert found["no"]["plans"][0]["plan"]["prefill_dp"] == 0
    assert "Disaggregated:" in answer(*question)


def test_a_plan_with_two_pools_is_spelled_out(answer: Ask, tmp_path: Path) -> None:
    pools = ("--prefill-dp", "2", "--prefill-tp", "1", "--tp", "2", "--max-batch", "8")
    question = ("estimate", "llama3-8b", "--mode", "inference", "--gpus", "4")
    text = answer(*question, *pools, "--export", str(tmp_path / "plan.yaml"))
    assert "2 x 1 GPU prefill, 1 x tp 2 decode, up to 8 requests at once" in text
    assert "waiting for the prompt's cache" in text
    asked = json.loads(answer(*question, *pools, "--json"))["plans"][0]
    again = json.loads(answer("estimate", str(tmp_path / "plan.yaml"), "--json"))["plans"][0]
    assert (again["plan"], again["ttft_s"]) == (asked["plan"], asked["ttft_s"])
    other = json.loads(answer(*question, *pools, "--prefill-device", "b200", "--json"))["plans"][0]
    assert other["ttft_s"] < asked["ttft_s"]
    assert other["tpot_s"] == pytest.approx(asked["tpot_s"], rel=1e-3)
    assert other["money_per_million_output_tokens"] != asked["money_per_million_output_tokens"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--prefill-dp", "1", "--prefill-tp", "3"),
            "workers that read prompts: tp 3 does not divide the 32 attention heads",
        ),
        (("--disaggregate", "maybe"), "maybe"),
        (("--prefill-device", "h1000"), "h1000"),
    ],
)
def test_pools_that_cannot_be(options: tuple[str, ...], words: str, fails: Callable[..., str]) -> None:
    assert words in fails("optimize", "llama3-8b", "--mode", "inference", "--gpus", "4", *options)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--gpus", "1", "--disaggregate", "yes"), 2, "--disaggregate yes: needs at least 2 GPUs"),
        (("--gpus", "1", "--prefill-device", "h200"), 2, "--prefill-device: needs at least 2 GPUs"),
        (("--gpus", "2", "--prefill-device", "h200", "--disaggregate", "no"), 2, "--prefill-device: no GPUs read"),
        (("--gpus", "2", "--prefill-dp", "1", "--disaggregate", "no"), 2, "--prefill-dp: no GPUs read"),
        (("--gpus", "2", "--prefill-dp", "0", "--prefill-device", "h200"), 2, "--prefill-device: no GPUs read"),
        (
            ("--gpus", "2", "--disaggregate", "yes", "--max-ttft", "1us"),
            1,
            "misses: time to first token (mean) 27.3 ms",
        ),
        (("--gpus", "2", "--disaggregate", "yes", "--max-tpot", "1us"), 1, "misses: time per token"),
        (
            ("--gpus", "2", "--disaggregate", "yes", "--memory-limit", "8GiB"),
            1,
            "nothing fits: the nearest miss (1 x 1 GPU",
        ),
    ],
)
def test_pools_that_cannot_be_are_refused(fails: Any, options: tuple[str, ...], code: int, message: str) -> None:
    """One prompt alone takes an H100 27.3 ms (`planner estimate` of one GPU that reads it says so, too)."""
    assert message in fails("optimize", "llama3-8b", "--mode", "inference", *options, code=code)


def test_answers_of_one_token_have_no_time_per_token(answer: Ask) -> None:
    text = answer(*LLAMA, "--output-tokens", "1", "--disaggregate", "no")
    assert "then one every" not in text
    assert "Limited by:     kernels (" in text
    assert "output 1 token (given)" in text


def test_the_proof_of_throughput_is_not_compared_with_the_time_of_a_token(answer: Ask) -> None:
    """Three percentiles are three numbers, too, unless all are equal."""
    text = " ".join(answer(*LLAMA, "--prefix-cached", "100%", "--disaggregate", "no").split())
    assert "Plan 1 is: the simplest within 1 %" in text
    assert "is faster than the best of them" in text
    assert "less than the first" not in text
    assert re.search(r"per token [\d.]+ ms, [\d.]+ ms, [\d.]+ ms; whole", text)


def test_money_is_ranked_by_the_prices_of_unlike_devices(answer: Ask) -> None:
    """A B200 for 14.24 USD an hour reads the prompts, an H100 for 6.88 decodes; `compare` and `estimate` say the same."""
    asked = ("--rate", "20", "--prefill-device", "b200", "--objective", "cost")
    found = json.loads(answer("optimize", "llama3-8b", "--mode", "inference", "--gpus", "4", *asked, "--json"))
    assert found["objective"] == "money"
    for each in found["plans"]:
        plan = each["plan"]
        read = plan["prefill_tp"] * plan["prefill_pp"] * plan["prefill_dp"]
        hour = 14.2416 * read + 6.88 * (each["workers"] - read)
        assert each["money_per_million_output_tokens"] == pytest.approx(hour / 3600 / (20 * 256) * 1e6)
    costs = [each["money_per_million_output_tokens"] for each in found["plans"]]
    assert min(costs) >= costs[0] / 1.01
    assert found["plans"][-1]["gap"] == pytest.approx(costs[-1] / costs[0] - 1.0)


def test_energy_is_that_of_kernels_of_waiting_and_of_hosts(answer: Ask) -> None:
    """By hand: a board of 700 W, a fifth of that while it waits (an assumption), and an eighth of 4,600 W of its node."""
    found = json.loads(answer(*LLAMA, "--objective", "energy", "--json"))
    for each in found["plans"]:
        waiting = each["workers"] * (0.2 * 700 + 4600 / 8) / each["output_tokens_per_s"]
        kernels = 0.8 * 700 * (each["kernel_gpu_s"] + each["prefill_kernel_gpu_s"])
        assert each["energy_per_output_token_j"] == pytest.approx(waiting + kernels)
    text = answer(*LLAMA, "--objective", "energy")
    assert "more energy-efficient than" in text
    assert "J per" in text


def test_what_nobody_states_is_no_objective(fails: Any) -> None:
    message = fails(*LLAMA, "--objective", "cost", "--prefill-device", "a40")
    assert "--objective money: device 'a40' states no price" in message

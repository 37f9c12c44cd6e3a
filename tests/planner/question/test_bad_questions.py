"""Questions about transformers that cannot be answered: one clear sentence, the documented exit code, and nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.core.request import Request
from planner.files.loading import load_cluster
from planner.files.resources import bundled
from planner.importers.networks import load_model
from planner.question.lookup import default_cluster
from planner.question.resolve import resolve
from planner.schema import DOCUMENTS

LLAMA = "optimize llama3-8b --gpus 8"
LLAMA_CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
CLUSTER = """\
schema_version: 1
name: mine
groups: {groups}
levels:
  - {{name: network, bandwidth: 10 GB/s, latency: 5 us}}
source: {{}}
"""


def refused(fails: Any, folder: Path, command: str, code: int = 2) -> str:
    """Run a command that must fail and leave nothing behind; its sentence."""
    before = sorted(folder.iterdir())
    err: str = fails(*command.split(), "--export", folder / "plan.yaml", "-o", folder / "answer.json", code=code)
    assert sorted(folder.iterdir()) == before
    return err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{LLAMA} --seq 0", "--seq 0: must be at least 1"),
        (f"{LLAMA} --batch 0", "--batch 0: must be at least 1"),
        (f"{LLAMA} --gpus 0", "--gpus 0: must be at least 1"),
        (f"{LLAMA} --tp 0", "--tp 0: must be at least 1"),
        (f"{LLAMA} --zero 4", "--zero 4: must be at most 3"),
        ("optimize mixtral-8x7b --gpus 8 --ep -2", "--ep -2: must be at least 1"),
        ("optimize mixtral-8x7b --gpus 8 --ep 3", "ep 3 does not divide the 8 experts; allowed: 1, 2, 4, 8"),
        ("optimize mixtral-8x7b --gpus 8 --ep 8 --pp 2", "ep 8 x pp 2 = 16 is more than --gpus 8"),
        (f"{LLAMA} --optimizer adam8", "; did you mean 'adam-8bit'?"),
        (f"{LLAMA} --framework megatron --pp 1 --schedule zb_h2", "--schedule zb_h2 exclude each other: pipelines of Megatron-LM"),
        (f"{LLAMA} --schedule ,", "--schedule ,: must be gpipe, 1f1b"),
        (f"{LLAMA} --doc-lengths ,", "--doc-lengths ,: names no number"),
        (f"{LLAMA} --offload both", "optimizer, activations or none; did you mean 'optimizer,activations'?"),
        (f"{LLAMA} --schedule DualPipe", "; did you mean 'dualpipe_v'? (DualPipe over pp ranks is two replicas of it over pp / 2 ranks"),
        (f"{LLAMA} --schedule 1f1b,zb-h1", "; did you mean 'zero_bubble'? (it is ZB-H1)"),
        ("optimize bert-large --gpus 8 --seq 4096", "--seq 4096: network 'bert-large' cannot be that long (its file says 512): "),
        ("optimize bert-large --gpus 8 --seq 513", "max_positions 512 is less than the 513 positions"),
        (f"{LLAMA} --seq 7 --cp 2", "cp 2 needs a sequence length that 4 divides; it is 7 (nearby: 4 or 8)"),
        ("optimize vit-l --gpus 8 --cp 2", "cp 2 needs positions that 2 divides, and the 197 of 'vit-l' come from its input (the patches"),
        ("estimate vit-l --gpus 8 --cp 4", "of an image), not from --seq; allowed: 1, 197"),
        ("optimize llama3-70b --gpus 64 --lora-rank 8193", "--lora-rank 8193 is more than any matrix of 'llama3-70b' that it adapts can"),
        (f"{LLAMA} --batch 7 --dp 2", "dp 2 does not divide --batch 7; use --batch 6 or 8, or --dp 1"),
        (f"{LLAMA} --batch 100 --micro-batch 3", "micro-batch 3 does not divide --batch 100; use --batch 99 or 102, or --micro-batch 2"),
        ("estimate llama3-8b --gpus 8 --batch 100 --micro-batch 3", "use --batch 96 or 120"),
        (f"{LLAMA} --dp 7", "dp 7 does not divide the default batch of 128; use --batch 126 or 133, or --dp 4; no legal plan"),
        ("estimate llama3-8b --gpus 22 --tp 2", "the default batch of 128; use --batch 121 or 132, or --gpus 16 --dp 8"),
        ("estimate llama3-8b --gpus 2 --micro-batch 3 --num-micro-batches 5", "num-micro-batches 5 = 30 is not the default batch of 128"),
        (f"{LLAMA} --gpus 24 --tp 3", "tp 3 does not divide the 32 attention heads; allowed: 1, 2, 4, 8, 16, 32"),
        ("estimate llama3-8b --gpus 3 --batch 3 --tp 3", "tp 3 neither divides the 8 key/value heads nor is a multiple of them"),
        ("optimize llama3-70b --gpus 64 --framework megatron --schedule combined_1f1b", "allowed: schedule 1f1b or interleaved (Megatron"),
        ("optimize llama3-70b --gpus 64 --framework deepspeed --schedule zb_v", "pipelines of DeepSpeed run 1f1b; allowed: schedule 1f1b"),
        (f"{LLAMA} --framework torchtitan --schedule 1f1b --vpp 2", "is for schedule interleaved or zb_v or dualpipe_v or interleaved_zb;"),
        (f"{LLAMA} --gpus 64 --pp 33", "pp 33 is more than the 32 blocks of the network"),
        (f"{LLAMA} --cluster dgx-a100 --precision fp8", "--precision fp8: device 'a100-80gb' has no rate for precision 'fp8'; it has bf16"),
        (f"{LLAMA} --mode inference --max-tpot 1fortnight", "must be a time such as 30s, 500ms, 50us, 2min or 1h"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be(fails: Any, tmp_path: Path, command: str, message: str) -> None:
    assert message in refused(fails, tmp_path, command)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("estimate llama3-8b --gpus 64 --schedule 1f1b --pp 32 --vpp 2", "vpp 2 is for schedule interleaved or zb_v or "),
        ("estimate llama3-8b --gpus 64 --pp 64 --vpp 2", "pp 64 x vpp 2 is more than the 32 blocks of the network"),
        ("estimate llama3-8b --gpus 64 --batch 64 --pp 2 --schedule zb_h2 --framework megatron", "schedule zb_h2: pipelines of Megatron"),
    ],
)  # fmt: skip
def test_one_mistake_has_one_error(fails: Any, tmp_path: Path, command: str, message: str) -> None:
    err = refused(fails, tmp_path, command)
    assert len(err.strip().splitlines()) == 1
    assert message in err


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{LLAMA} --batch 8 --memory-limit 2GiB", ["nothing fits: the nearest miss (", "there are 2.00 GiB", "the largest part is"]),
        (f"{LLAMA} --mode inference --max-ttft 1us", ["no plan that fits keeps the limits", "at most 1.00 us asked for"]),
        (f"{LLAMA} --mode inference --max-tpot 900ns", ["no plan that fits keeps the limits", "at most 900 ns asked for"]),
    ],
)  # fmt: skip
def test_a_limit_that_excludes_everything(fails: Any, tmp_path: Path, command: str, words: list[str]) -> None:
    err = refused(fails, tmp_path, command, code=1)
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[]", "groups: is empty; list the kinds of devices, or name the one with 'device'"),
        ("[{}]", "groups[0]: missing key 'device'"),
        ("[{device: h100-sxm, count: 0}]", "groups[0].count: must be at least 1, got 0"),
        ("[{device: h100, count: 8}]", "'h100' is the name of several: say 'h100-sxm' or 'h100-nvl' or 'h100-pcie'"),
    ],
)
def test_a_cluster_with_an_empty_group(fails: Any, tmp_path: Path, new_file: Any, groups: str, message: str) -> None:
    path = new_file("mine.yaml", CLUSTER.format(groups=groups))
    err = refused(fails, tmp_path, f"{LLAMA} --cluster {path}")
    assert message in err
    assert err.startswith(f"{path}:3:")


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        ({"num_attention_heads": 33, "num_key_value_heads": 5}, ["33 heads (num", "5 key/value heads evenly; allowed: 1, 3"]),
        ({"intermediate_size": -3, "max_position_embeddings": 0}, ["intermediate_size: must be at least 1", "max_position_embeddings: "]),
        ({"num_hidden_layers": "many"}, ["num_hidden_layers"]),
        ({"model_type": "lama"}, ["'lama' is not known; did you mean 'llama'?"]),
        ({"model_type": "mixtral", "num_local_experts": -8}, ["num_local_experts: must be at least 1, got -8"]),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 16}, ["num_experts_per_tok"]),
    ],
)  # fmt: skip
def test_a_config_json_that_contradicts_itself(
    fails: Any, tmp_path: Path, new_file: Any, config: dict[str, Any], messages: list[str]
) -> None:
    path = new_file("config.json", json.dumps({**LLAMA_CONFIG, **config}))
    err = refused(fails, tmp_path, f"optimize {path} --gpus 8")
    for message in messages:
        assert message in err
    assert all(line.startswith(f"{path}:1:") for line in err.strip().splitlines())


def test_what_a_config_json_leaves_out_is_said(new_file: Any, answer: Any) -> None:
    path = new_file("config.json", json.dumps({**LLAMA_CONFIG, "num_hidden_layers": 32}))
    assert "not written in the file, so as in LlamaConfig: vocab_size 32000, max_position_embeddings 2048" in " ".join(
        answer("estimate", str(path), "--gpus", "8", "--batch", "8").split()
    )


def test_a_length_is_not_blamed_for_a_file_that_is_wrong_by_itself(tmp_path: Path, new_file: Any, fails: Any) -> None:
    path = new_file(
        "wrong.yaml", load_model("bert-large").path.read_text().replace("max_positions: 512", "max_positions: 100")
    )
    err = refused(fails, tmp_path, f"optimize {path} --gpus 8 --seq 300")
    assert err.startswith(f"{path}:")
    assert "max_positions 100" in err


def test_the_help_of_schema_names_every_document(answer: Any) -> None:
    text = answer("schema", "--help")
    for name in DOCUMENTS:
        assert name in re.split(r"[\s,.]+", text), name


# --- Where a device stands when a question names no cluster: its links decide what is worth splitting -------------------------------------


@pytest.mark.parametrize(
    ("device", "cluster"),
    [
        (None, "dgx-h100"), ("h100-sxm", "dgx-h100"), ("a100-80gb", "dgx-a100"), ("v100-32gb", "dgx1-v100"), ("p100", "dgx1-p100"),
        ("rtx-4090", "pcie4-node"), ("NVIDIA L40S", "pcie4-node"), ("tpu-v5e", "tpu-v5e-pod"), ("trainium2-core", "aws-trn2-cores"),
    ],
)  # fmt: skip
def test_a_device_stands_where_it_is_sold(device: str | None, cluster: str) -> None:
    assert default_cluster(device) == cluster


def test_every_bundled_device_has_a_bundled_cluster_of_one_kind() -> None:
    for device in bundled("devices"):
        assert len(load_cluster(default_cluster(device)).cluster.groups) == 1, device


def test_a_board_without_nvlink_gets_none() -> None:
    asked = Request(model="gpt2", device="rtx-4090", gpus=8, space="layers")
    resolved = resolve(asked)
    bandwidth = resolved.cluster.levels[0].bandwidth_bytes_per_s
    assert bandwidth == load_cluster("pcie4-node").cluster.levels[0].bandwidth_bytes_per_s < 32e9
    stated = {one.name: (one.value, one.source) for one in resolved.assumptions}
    assert stated["cluster"] == ("pcie4-node", "default of the device")


def test_a_device_of_ones_own_stays_on_the_default(new_file: Any) -> None:
    text = bundled("devices")["h100-sxm"].read_text(encoding="utf-8")
    mine = new_file("mine.yaml", text.replace("name: h100-sxm", "name: half-gpu"))
    assert default_cluster(str(mine)) == "dgx-h100"


@pytest.mark.e2e
def test_sweep_and_size_take_it_too(document: Any) -> None:
    swept = document("sweep alexnet --gpus 2 --device v100-16gb")
    assert [row["cluster"] for row in swept["rows"]] == ["dgx1-v100"]
    sized = document("size alexnet --samples 1M --days 9 --max-gpus 2 --device v100-16gb")
    assert [one["cluster"] for one in sized["clusters"]] == ["dgx1-v100"]


# --- Which number format a network is trained in where nobody says, and that the answer says so -------------------------------------------


OF_TRANSFORMERS = "default of transformers on the device"


@pytest.mark.parametrize(
    ("device", "transformer", "other"),
    [
        ("a10g", "bf16", "fp32"),  # graphics chips of Ampere and later: bf16 at twice the fp32 rate
        ("rtx-3090", "bf16", "fp32"),
        ("rtx-4090", "bf16", "fp32"),
        ("a100-80gb", "bf16", "bf16"),
        ("gaudi2", "bf16", "bf16"),
        ("mi250x-gcd", "bf16", "bf16"),
        ("cpu-xeon-8480", "bf16", "bf16"),
        ("v100-32gb", "fp16", "fp16"),
        ("t4", "fp16", "fp16"),
        ("p100", "fp32", "fp32"),  # fp16 without matrix units
        ("titan-xp", "fp32", "fp32"),
    ],
)
def test_the_default_by_device(device: str, transformer: str, other: str) -> None:
    for model, expected, source in (
        ("bert-large", transformer, OF_TRANSFORMERS),
        ("resnet50", other, "default of the device"),
    ):
        resolved = resolve(Request(model=model, device=device))
        assert resolved.setting.precision == expected
        stated = next(row for row in resolved.assumptions if row.name == "precision")
        assert (stated.value, stated.source) == (expected, source)


def test_what_is_given_is_taken() -> None:
    resolved = resolve(Request(model="bert-large", device="a10g", precision="fp32"))
    assert resolved.setting.precision == "fp32"
    assert next(row for row in resolved.assumptions if row.name == "precision").source == "given"


# --- A transformer that nothing follows (an imported encoder) is planned with a split per layer, and the answer says why ------------------


_BLOCK = """
schema_version: 1
name: encoder
source: test
global_batch: 8
blocks:
  block:
    layers:
      - {name: qkv, type: linear, out_features: 96}
      - {name: attention, type: self_attention, heads: 4, head_dim: 8}
      - {name: proj, type: linear, out_features: 32}
      - {name: add, type: add, inputs: [proj, input]}
      - {name: norm, type: layer_norm}
layers:
  - {name: tokens, type: input, shape: [32, 16]}
  - {name: blocks, block: block, repeat: 2}
"""


@pytest.mark.e2e
@pytest.mark.parametrize("is_open", [True, False])
def test_auto_falls_back_to_a_split_per_layer(is_open: bool, new_file: Any, answer: Any) -> None:
    path = new_file("net.yaml", _BLOCK + ("" if is_open else "  - {name: head, type: linear, out_features: 10}\n"))
    result = json.loads(answer("optimize", str(path), "--gpus", "2", "--json"))
    said = [entry for entry in result["assumptions"] if entry["name"] == "plans"]
    assert bool(said) == is_open
    if is_open:
        assert "the network ends inside its last block" in said[0]["value"]
    # Asked for by name, it is an error.
    assert run(["optimize", str(path), "--gpus", "2", "--space", "mesh", "--json"]) == (2 if is_open else 0)


@pytest.mark.e2e
def test_collectives_that_run_only_when_named(tmp_path: Path, answer: Any) -> None:
    """A plan that names one is predicted again as it was found."""
    plan = tmp_path / "plan.yaml"
    for name in ("double-tree", "in-network", "butterfly-mixing"):
        words = ["optimize", "alexnet", "--gpus", "2", "--family", "data", "--collective", name, "--top", "1", "--json"]
        first = json.loads(answer(*words, "--export", str(plan)))["plans"][0]["step_time_s"]
        again = json.loads(answer("estimate", "--plan", str(plan), "--json"))
        assert again["step_time_s"] == pytest.approx(first, rel=1e-12)

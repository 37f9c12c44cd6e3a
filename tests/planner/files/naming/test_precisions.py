"""Words for number formats and recipes."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.precision import PRECISIONS
from planner.files.loading import load_framework
from planner.files.naming.precisions import BARE, WORDS, meanings, precision_called


def test_every_word_means_one_thing() -> None:
    words = [word.lower().replace("-", "") for name, others in WORDS.items() for word in (name, *others)]
    assert len(words) == len(set(words))
    assert set(WORDS) == set(PRECISIONS) | set(BARE)
    assert all(precision_called(word) == name for name, others in WORDS.items() for word in (name, *others))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        # Transformer Engine, Megatron-LM, Megatron-Bridge
        ("DelayedScaling", "fp8-delayed"), ("Float8CurrentScaling", "fp8-tensorwise"), ("MXFP8BlockScaling", "mxfp8"),
        ("Float8BlockScaling", "fp8-blockwise"), ("NVFP4BlockScaling", "nvfp4"), ("tensorwise", "fp8-tensorwise"),
        ("bf16_with_fp8_current_scaling_mixed", "fp8-tensorwise"), ("bf16_with_fp8_delayed_scaling_mixed", "fp8-delayed"),
        ("bf16-with-fp8-subchannel-scaling-mixed", "fp8-blockwise"), ("bf16_with_mxfp8_mixed", "mxfp8"),
        ("bf16_with_nvfp4_mixed", "nvfp4"), ("fp8_cs", "fp8-tensorwise"), ("fp8_mx", "mxfp8"), ("fp8_sc", "fp8-blockwise"),
        ("bf16_mixed", "bf16"), ("fp16_mixed", "fp16"), ("bf16_with_fp8_mixed", "fp8-delayed"), ("--fp8-hybrid", "fp8"),
        ("fp8_subchannel", "fp8-blockwise"), ("fp8_delayed", "fp8-delayed"), ("fp8_current_scaling_recipe", "fp8-tensorwise"),
        # torchao, vLLM, SGLang, TensorRT-LLM
        ("rowwise_with_gw_hp", "fp8-rowwise-gw-hp"), ("awq_marlin", "w4a16"), ("gptq", "w4a16"), ("fp8_per_block", "fp8-blockwise"),
        ("experts_int8", "w8a16"), ("modelopt_fp4", "nvfp4"), ("w8a8_int8", "int8"), ("W4A16_AWQ", "w4a16"), ("W4A8_AWQ", "w4a8"),
        ("FP8_BLOCK_SCALES", "fp8-blockwise"), ("bitsandbytes", "nf4"), ("QLoRA", "nf4"), ("load_in_8bit", "w8a16"),
        ("NVFP4A16", "nvfp4a16"), ("MXFP4A16", "mxfp4a16"), ("w4a16_nvfp4", "nvfp4a16"), ("w4a16-mxfp4", "w4a16-mxfp4"),
        ("W8A8", "int8"), ("FP8_DYNAMIC", "fp8-rowwise"), ("int4_awq", "w4a16"), ("fp8_e4m3", "fp8"), ("torch.float8_e4m3fn", "fp8"),
        ("fp8_e5m2", "fp8"), ("fp8-per-tensor", "fp8-tensorwise"), ("fp8_perchannel", "fp8-rowwise"),
        ("float8_tensorwise", "fp8-tensorwise"), ("float8_rowwise", "fp8-rowwise"),
        ("int4_weight_only", "w4a16"), ("int8-weight-only", "w8a16"),
        # plain formats
        ("torch.bfloat16", "bf16"), ("bfloat16", "bf16"), ("BF16", "bf16"), ("16-mixed", "fp16"), ("float32", "fp32"), ("", None),
    ],
)  # fmt: skip
def test_words_of_the_field(text: str, meant: str | None) -> None:
    assert precision_called(text) == meant


def test_fp8_is_what_the_framework_means() -> None:
    said = {
        name: meanings("fp8", load_framework(name).framework.defaults.fp8)[-1].name
        for name in ("megatron-lm", "megatron-bridge", "torchtitan", "pytorch-fsdp")
    }
    assert said == {
        "megatron-lm": "fp8-delayed",
        "megatron-bridge": "fp8-tensorwise",
        "torchtitan": "fp8-rowwise",
        "pytorch-fsdp": "fp8-delayed",
    }


def test_servers_scale_tensors_or_rows_in_fp8() -> None:
    for word in ("fp8", "fp8-per-tensor", "FP8_DYNAMIC"):
        assert [known.name for known in meanings(precision_called(word) or "", serves=True)] == ["fp8"]


def test_answers_name_the_recipe(document: Any) -> None:
    asked = "estimate llama3-8b --gpus 8 --batch 8 --precision"
    for words, meant in (
        ("fp8 --framework megatron-bridge", "fp8-tensorwise"),
        ("FP8 --framework megatron-bridge --cluster dgx-b200", "mxfp8"),
        ("fp4 --cluster dgx-b200", "nvfp4"),
        ("bf16_with_fp8_mixed --framework nemo --cluster dgx-b200", "fp8-delayed"),
        ("fp8-per-tensor --cluster dgx-b200", "fp8-tensorwise"),
        ("bfloat16", "bf16"),
    ):
        assert document(f"{asked} {words}")["setting"]["precision"] == meant


def test_mistakes_say_what_to_do(fails: Any) -> None:
    asked = "estimate llama3-8b --gpus 8 --batch 8 --precision"
    for words, message in (
        ("fp7", "--precision fp7: is not known; did you mean 'fp8'"),
        ("fp8_tensorwize", "did you mean 'fp8-tensorwise'"),
        ("mxfp8", "device 'h100-sxm' has no rate"),
        ("mxfp8", "; fp8-blockwise has scales for blocks there"),
        ("nvfp4", "it has bf16, fp16, fp32, fp8, fp8_block, int8, tf32\n"),
        (
            "nf4",
            "--precision nf4 is for weights that are not trained; train adapters (--lora-rank), or use --mode inference",
        ),
        ("w4a16-mxfp4 --lora-rank 8", "keeps experts in mxfp4; network 'llama3-8b' has none"),
    ):
        assert message in fails(*f"{asked} {words}".split())
    fails("estimate", "llama3-8b", "--precision", "fp8", "--gpus", "2", "--framework", "deepspeed")


def test_precisions_are_listed(document: Any) -> None:
    rows = {row["name"]: row for row in document("list precisions")["items"]}
    assert set(rows) == set(PRECISIONS) | set(BARE)
    assert "int4_weight_only" in rows["w4a16"]["other_names"]
    assert rows["fp4"]["description"].startswith("nvfp4 or mxfp4")
    assert rows["nvfp4"]["weight_bytes"] == 3.125
    assert rows["mxfp8"]["devices"] < rows["fp8-delayed"]["devices"]


def _fits(plan: dict[str, Any]) -> bool:
    return bool(plan["memory_bytes_per_gpu"] <= plan["memory_capacity_bytes"])


def test_servers_keep_the_format_of_published_weights(document: Any) -> None:
    """gpt-oss-120b fits one GPU of 80 GB (its model card), and does not in bf16."""
    asked = "estimate gpt-oss-120b --mode inference --gpus 1 --max-batch 1"
    own, wide = (document(f"{asked} {words}") for words in ("", "--precision bf16"))
    assert own["setting"]["precision"] == "w4a16-mxfp4"
    assert (_fits(own["plans"][0]), _fits(wide["plans"][0])) == (True, False)
    assert document("estimate gpt-oss-120b --gpus 64 --batch 64")["setting"]["precision"] == "bf16"


def test_mxfp4_narrows_networks_without_experts_too(document: Any) -> None:
    """17 / 32 bytes for each weight of the blocks of a Llama 3 8B, 2 for its embedding and its head."""
    asked = "estimate llama3-8b --mode inference --gpus 1 --max-batch 1 --precision mxfp4 --cluster"
    for cluster in ("dgx-b200", "dgx-h100"):
        memory = document(f"{asked} {cluster}")["plans"][0]["weight_bytes"]
        assert memory == pytest.approx(6.98e9 * 17 / 32 + 1.05e9 * 2, rel=0.01)


def test_frozen_weights_in_four_bits_fit_where_16_bits_do_not(document: Any) -> None:
    """LLaMA-65B with adapters of rank 64 on one GPU of 48 GB, its moments on the host (QLoRA, arXiv:2305.14314, abstract)."""
    asked = "estimate llama-65b --lora-rank 64 --gpus 1 --batch 1 --seq 512 --device a40 --offload optimizer --recompute full"
    narrow, wide = (document(f"{asked} --precision {name}")["plans"][0] for name in ("nf4", "bf16"))
    assert (_fits(narrow), _fits(wide)) == (True, False)
    assert narrow["step_time_s"] > wide["step_time_s"]


def test_answers_say_what_is_in_which_format(document: Any) -> None:
    """fp8 on Blackwell has scales of a byte for 32 numbers: two copies in training, one in serving."""
    asked = "estimate llama3-8b --gpus 8 --cluster dgx-b200"
    found = document(f"{asked} --batch 8 --precision fp8")["setting"]["formats"]
    assert (found["kept"], found["parameter_gather"], found["weight_bytes"]) == ("mxfp8", "bf16", 2 * 33 / 32)
    served = document(f"{asked} --mode inference --precision mxfp8")["setting"]["formats"]
    assert served["weight_bytes"] == round(33 / 32, 4)


def test_int8_keeps_frozen_weights_in_8_bits(document: Any) -> None:
    """As `load_in_8bit` does: about a byte less for each weight of the blocks of a Llama 3 8B; where they are trained, int8 is AQT."""
    asked = "estimate llama3-8b --gpus 1 --batch 1 --seq 512"
    narrow, wide = (document(f"{asked} --lora-rank 16 --precision {name}") for name in ("int8", "bf16"))
    assert narrow["setting"]["precision"] == "w8a16"
    spared = wide["plans"][0]["weight_bytes"] - narrow["plans"][0]["weight_bytes"]
    assert spared == pytest.approx(6.98e9, rel=0.01)
    assert document(f"{asked} --precision int8")["setting"]["precision"] == "int8"

"""Keys that would change the network and are not read are named in the notes; those that change nothing are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.importers.hugging_face.fields import notes_of_quantization
from tests.planner.published_configs import PUBLISHED, loaded, published, written
from tests.planner.published_families import PARTS
from tests.planner.whole_configs import whole

FORMAT = "is not used: weights are in the run's number format (--precision)"


def unused(folder: Path, model_type: str, **keys: Any) -> list[str]:
    """Notes on keys that are not used."""
    notes = loaded(folder, **whole({"model_type": model_type}), **keys).notes
    return [note for note in notes if "is not used" in note]


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, " (gptq, 4 bits)"),
        ({"quant_method": "awq", "w_bit": 4}, " (awq, 4 bits)"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, " (fp8)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, " (bitsandbytes, 4 bits)"),
        ({"load_in_8bit": True}, " (8 bits)"),
        ({"quant_method": "a\nb: {}", "bits": "many"}, " (a-b)"),  # stays one line
        ({"quant_method": [], "bits": True}, ""),
        ("gptq", ""),
    ],
)
def test_quantization(tmp_path: Path, stated: Any, shown: str) -> None:
    assert unused(tmp_path, "llama", quantization_config=stated) == [f"quantization_config{shown} {FORMAT}"]


def test_no_quantization(tmp_path: Path) -> None:
    assert unused(tmp_path, "llama", quantization_config=None) == []
    assert unused(tmp_path, "llama", quantization_config={}) == []


def test_quantization_of_a_network_with_parts(tmp_path: Path) -> None:
    """It stands at the top or in the part."""
    gptq = {"quant_method": "gptq", "bits": 8}
    expected = [f"quantization_config (gptq, 8 bits) {FORMAT}"]
    assert notes_of_quantization({"quantization_config": gptq, "text_config": {}}, "text_config") == expected
    assert notes_of_quantization({"text_config": {"quantization_config": gptq}}, "text_config") == expected
    assert notes_of_quantization({"text_config": {"quantization_config": gptq}}, None) == []
    text = json.loads(PARTS["google/gemma-3-4b-pt"][1])
    text["quantization_config"] = gptq
    assert set(expected) < set(loaded(tmp_path, **text).notes)


@pytest.mark.parametrize(
    ("model_type", "keys", "notes"),
    [
        ("llama", {"num_experts": 8}, ["num_experts (8) is not used: llama has no such key"]),
        ("llama", {"num_local_experts": 8}, ["num_local_experts (8) is not used: llama has no such key"]),
        ("llama", {"num_local_experts": 0, "num_experts": None}, []),
        ("mixtral", {"num_experts": 16}, []),  # another name of num_local_experts
        ("mixtral", {"n_shared_experts": 1}, ["n_shared_experts (1) is not used: mixtral has no such key"]),
        ("mixtral", {"decoder_sparse_step": 2}, ["decoder_sparse_step (2) is not used: mixtral has no such key"]),
        ("mixtral", {"decoder_sparse_step": 1, "mlp_only_layers": []}, []),
        ("mixtral", {"mlp_only_layers": [0]}, ["mlp_only_layers (a list) is not used: mixtral has no such key"]),
        ("llama", {"sliding_window": 4096}, ["sliding_window (4096) is not used: llama has no such key"]),
        ("llama", {"sliding_window": None, "use_sliding_window": True}, []),
        ("llama", {"sliding_window": 4096, "use_sliding_window": False}, []),
        (
            "llama",
            {"sliding_window": 4096, "use_sliding_window": True},
            ["sliding_window (4096) is not used: llama has no such key"],
        ),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, []),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, []),
        (
            "qwen2",
            {"sliding_window": 4096},
            ["sliding_window (4096) is not used: use_sliding_window is absent, and so false"],
        ),
        (
            "mistral",
            {"sliding_window": 4096, "use_sliding_window": False},
            [
                "use_sliding_window (false) is not used: mistral has no such key; sliding_window null switches windows off"
            ],
        ),
        ("mistral", {"sliding_window": None, "use_sliding_window": False}, []),
        ("llama", {"layer_types": ["full_attention"] * 32}, []),
        (
            "llama",
            {"layer_types": ["full_attention", "sliding_attention"] * 16},
            ["layer_types (full_attention, sliding_attention) is not used: llama has no such key"],
        ),
        ("llama", {"layer_types": 3}, ["layer_types (3) is not used: llama has no such key"]),
        ("qwen2", {"attention_bias": True}, ["attention_bias (true) is not used: qwen2 has no such key"]),
        ("llama", {"attention_bias": True, "mlp_bias": True}, []),  # read
        ("gpt2", {"rope_theta": 1e4, "torch_dtype": "bfloat16", "use_cache": True}, []),
    ],
)
def test_keys_of_other_types(tmp_path: Path, model_type: str, keys: dict[str, Any], notes: list[str]) -> None:
    assert unused(tmp_path, model_type, **keys) == notes


@pytest.mark.e2e
def test_published_networks_have_no_such_keys(tmp_path: Path) -> None:
    """But layers for multi-token prediction, which are not built."""
    for name, (_, text) in {**PUBLISHED, **PARTS}.items():
        config = json.loads(text)
        expected = 1 if config.get("num_nextn_predict_layers") else 0
        notes = [note for note in loaded(tmp_path, **config).notes if "is not used" in note]
        assert len(notes) == expected, name
        assert all("multi-token prediction are not built" in note for note in notes)


@pytest.mark.e2e
def test_the_commands_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(PUBLISHED["Qwen/Qwen2.5-0.5B"][1])
    path = written(tmp_path, json.dumps({**config, "quantization_config": {"quant_method": "awq", "bits": 4}}))
    assert run(["import", str(path)]) == 0
    out, err = capsys.readouterr()
    note = f"quantization_config (awq, 4 bits) {FORMAT}"
    assert f"# {note}" in out
    assert run(["optimize", str(path), "--gpus", "8", "--device", "H100-SXM"]) == 0
    out, err = capsys.readouterr()
    assert note in " ".join((out + err).split())


def test_the_network_is_that_without_the_key(tmp_path: Path) -> None:
    plain = published("meta-llama/Meta-Llama-3-8B", tmp_path).graph
    assert published("meta-llama/Meta-Llama-3-8B", tmp_path, num_experts=8, sliding_window=9).graph == plain

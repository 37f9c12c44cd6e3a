"""Faults of a config.json: all of them at once, each with its place, what is allowed and what was probably meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.core.errors import FileProblem, InputFileError
from planner.importers.hugging_face.fields import ARCHITECTURES, REFUSED, WITH_TEXT_PART
from planner.importers.networks import load_model
from tests.cases import mostly
from tests.planner.published_configs import ESSENTIAL, PUBLISHED, whole
from tests.planner.published_families import PARTS


def faults(folder: Path, text: str) -> list[str]:
    """Messages after the path, ``line:column: ...``."""
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    return [str(problem).removeprefix(f"{path}:").removeprefix(f"{path}") for problem in caught.value.problems]


def fault(folder: Path, **config: Any) -> str:
    """The only message, without its place; width, depth and heads are filled in."""
    (found,) = faults(folder, json.dumps(whole(config)))
    return found.split(": ", 1)[1]


EVERYTHING_WRONG = """{
  "architectures": ["LlamaForCausalLMs"],
  "model_type": "llama",
  "hiden_size": 4096,
  "num_hidden_layers": -3,
  "num_attention_heads": "32",
  "intermediate_size": NaN,
  "vocab_size": 0,
  "hidden_act": "sillu",
  "max_position_embeddings": 4096.0,
  "attention_dropout": 1.5,
  "tie_word_embeddings": "yes",
  "rope_theta": NaN,
  "rope_theta": 1e999,
  "mlp_bias": 1,
  "head_dim": 99999999999
}
"""


def test_all_faults_come_at_once_with_their_places(tmp_path: Path) -> None:
    functions = "gelu, gelu_new, gelu_fast, gelu_python, gelu_pytorch_tanh, gelu_accurate, quick_gelu, silu, swish, relu, sigmoid"
    unknown_class = "cannot be read here; did you mean 'LlamaForCausalLM'? (known: LlamaForCausalLM, LlamaModel)"
    assert faults(tmp_path, EVERYTHING_WRONG) == [
        f"2:21: architectures[0]: 'LlamaForCausalLMs' {unknown_class}",
        "4:3: hiden_size: unknown key 'hiden_size'; did you mean 'hidden_size'?",
        "5:24: num_hidden_layers: must be at least 1, got -3",
        "6:26: num_attention_heads: expected a whole number, got '32'; write 32",
        "7:24: intermediate_size: expected a whole number, got 'NaN'",
        "8:17: vocab_size: must be at least 1, got 0",
        f"9:17: hidden_act: expected one of {functions}; got 'sillu'; did you mean 'silu'?",
        "10:30: max_position_embeddings: expected a whole number, got 4096.0; write 4096",
        "11:24: attention_dropout: expected a number from 0 to less than 1, got 1.5",
        "12:26: tie_word_embeddings: expected true or false, got 'yes'; write true",
        # A number that is not finite matters only where it is read.
        "14:3: duplicate key 'rope_theta' (first on line 13)",
        "15:15: mlp_bias: expected true or false, got 1; write true",
        "16:15: head_dim: must be at most 1000000000, got 99999999999 (or null)",
    ]


def test_the_command_prints_them_and_ends_with_2(tmp_path: Path, new_file: Any, fails: Any) -> None:
    path = new_file("config.json", EVERYTHING_WRONG)
    for command in (["import", str(path)], ["import", str(tmp_path)], ["optimize", str(path), "--gpus", "8"]):
        err = fails(*command)
        assert f"{path}:5:24: num_hidden_layers: must be at least 1, got -3" in err
        assert "Traceback" not in err


def test_model_types(tmp_path: Path) -> None:
    known = ", ".join(sorted({*ARCHITECTURES, *WITH_TEXT_PART}))
    assert (
        fault(tmp_path, model_type="lama") == f"model_type: 'lama' is not known; did you mean 'llama'? (known: {known})"
    )
    assert fault(tmp_path, model_type="jukebox9") == f"model_type: 'jukebox9' is not known (known: {known})"
    assert fault(tmp_path, model_type=3) == f"model_type: expected a word (known: {known})"
    assert fault(tmp_path, architectures=["LlamaModel"]) == f"missing key 'model_type' (known: {known})"


@pytest.mark.parametrize(
    ("config", "like"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "class Qwen3ForCausalLM is that of 'qwen3'"),
        ({"architectures": ["MyForCausalLM"], "rms_norm_eps": 1e-5}, "keys are those of 'llama'"),
        ({"rms_norm_eps": 1e-5, "num_local_experts": 8}, "keys are those of 'mixtral'"),
    ],
)
def test_networks_under_names_of_their_own(tmp_path: Path, config: dict[str, Any], like: str) -> None:
    """The message names the type whose keys or class the file has, and what to write."""
    llama = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **config}
    message = fault(tmp_path, model_type="my_llm", **llama)
    kind = like.split("'")[1]
    assert message.startswith(f"model_type: 'my_llm' is not known; its {like}: set model_type to '{kind}' if it is one")


def test_types_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    assert not {*REFUSED} & {*ARCHITECTURES, *WITH_TEXT_PART}
    assert "mixes Mamba-2 with other parts" in fault(tmp_path, model_type="bamba")
    assert fault(tmp_path, model_type="mamba") == (
        "model_type: 'mamba' has layers of recurrent state (state-space, linear attention or gated recurrences), which no layer here "
        "stands for; import it with ONNX or torch.export, or write a network file"
    )


def test_text_parts(tmp_path: Path) -> None:
    """Places are those inside the part; the classes named at the top are not the part's."""
    text = '{"model_type": "gemma3",\n "text_config": {"hidden_size": 0,\n "num_hidden_layer": 3}}'
    assert faults(tmp_path, text) == [
        "2:33: text_config.hidden_size: must be at least 1, got 0",
        "3:2: text_config.num_hidden_layer: unknown key 'num_hidden_layer'; did you mean 'num_hidden_layers'?",
    ]
    hybrid = fault(tmp_path, model_type="llava", text_config={"model_type": "mamba"})
    assert hybrid.startswith("text_config.model_type: 'mamba' has layers of recurrent state")


def test_architectures(tmp_path: Path) -> None:
    message = fault(tmp_path, model_type="llama", architectures=["MistralForCausalLM"])
    assert message.startswith("architectures[0]: 'MistralForCausalLM' cannot be read here")
    assert message.endswith("(known: LlamaForCausalLM, LlamaModel)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model_type": "llama", "hidden_size": 100},
            "hidden_size: 100 cannot be divided by 32 heads (num_attention_heads) and 'head_dim' is absent; the nearest that can: 96, 128",
        ),
        (
            {"model_type": "gpt2", "n_embd": 770},
            "n_embd: 770 cannot be divided by 12 heads (n_head); the nearest that can: 768, 780",
        ),
        (
            {"model_type": "llama", "num_key_value_heads": 5},
            "num_key_value_heads: 32 heads cannot share 5 key/value heads evenly; allowed: 1, 2, 4, 8, 16, 32",
        ),
        (
            {"model_type": "mixtral", "num_experts_per_tok": 9},
            "num_experts_per_tok: 9 experts per token, but there are 8 (num_local_experts); allowed: 1 to 8",
        ),
        (
            {"model_type": "dbrx", "ffn_config": {"moe_top_k": 5}},
            "ffn_config.moe_top_k: 5 experts per token, but there are 4 (moe_num_experts); allowed: 1 to 4",
        ),
        ({"model_type": "deepseek_v2"}, "missing key 'num_experts_per_tok', which DeepseekV2Config gives no default"),
        (
            {"model_type": "qwen3_moe", "mlp_only_layers": [0, 24]},
            "mlp_only_layers[1]: must be at most 23, got 24",
        ),
    ],
)
def test_heads_and_experts(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert fault(tmp_path, **content) == message


def test_heads_of_a_stated_width_need_not_divide_the_networks(tmp_path: Path) -> None:
    content = whole({"model_type": "llama", "hidden_size": 100, "head_dim": 8})
    assert load_model(str(config(tmp_path, **content))).graph.layers


def config(folder: Path, **content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_width_depth_and_heads_cannot_be_left_out(tmp_path: Path, model_type: str) -> None:
    """The default of the class is that of one network; it is named, not taken. Everything missing is said at once."""
    kinds = {"hybrid_override_pattern": "M-"}  # in the place of the depth
    more = {"deepseek_v2": {"num_experts_per_tok": 6}, "nemotron_h": kinds}.get(model_type, {})
    found = faults(tmp_path, json.dumps({"model_type": model_type, **more}))
    config_class = ARCHITECTURES[model_type].config_class
    assert sorted(text.split(": ", 1)[1] for text in found) == sorted(
        f"missing key '{key}'; {config_class} has {value}, but width, depth and heads are what a network is: write it"
        for key, value in ESSENTIAL[model_type].items()
    )
    for key in ESSENTIAL[model_type]:
        rest = {name: value for name, value in whole({"model_type": model_type, **more}).items() if name != key}
        (message,) = faults(tmp_path, json.dumps(rest))
        assert f"missing key '{key}'" in message


def test_a_typing_error_is_said_once(tmp_path: Path) -> None:
    """Not as a missing key, too."""
    content = {
        ("hiden_size" if key == "hidden_size" else key): value for key, value in whole({"model_type": "bert"}).items()
    }
    (message,) = faults(tmp_path, json.dumps(content))
    assert message.endswith("unknown key 'hiden_size'; did you mean 'hidden_size'?")


def test_a_wrong_value_is_not_held_against_others(tmp_path: Path) -> None:
    """The width cannot be compared with a number of heads that is none."""
    assert fault(tmp_path, model_type="llama", hidden_size=100, num_attention_heads=0).startswith("num_attention_heads")


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"])
def test_no_more_layers_before_the_experts_than_there_are(tmp_path: Path, model_type: str) -> None:
    """All layers dense is what the file may say with as many; with more, one of the numbers is another network's."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "num_experts_per_tok": 2}
    content = {"model_type": model_type, **sizes, "num_key_value_heads": 4, "head_dim": 16}
    text = json.dumps(content)[:-1] + ',\n "first_k_dense_replace": 4}'
    assert faults(tmp_path, text) == [
        "2:27: first_k_dense_replace: 4 layers without experts, but there are 3 (num_hidden_layers); allowed: 0 to 3"
    ]
    dense = load_model(str(config(tmp_path, **content, first_k_dense_replace=3)))
    assert not [layer for layer in dense.graph.layers if layer.kind == "moe"]
    some = load_model(str(config(tmp_path, **content, first_k_dense_replace=2)))
    assert len([layer for layer in some.graph.layers if layer.kind == "moe"]) == 1


def test_a_wrong_depth_is_not_held_against_the_dense_layers(tmp_path: Path) -> None:
    assert fault(tmp_path, model_type="deepseek_v3", num_hidden_layers=0, first_k_dense_replace=9).startswith(
        "num_hidden_layers: must be at least 1"
    )


def test_a_default_of_dense_layers_is_no_contradiction(tmp_path: Path) -> None:
    """The class has 3; two layers are then dense, as transformers builds them, and the note names the 3."""
    model = load_model(str(config(tmp_path, **whole({"model_type": "deepseek_v3"}) | {"num_hidden_layers": 2})))
    assert not [layer for layer in model.graph.layers if layer.kind == "moe"]
    assert "first_k_dense_replace 3" in model.notes[0]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"n_group": 7}, "n_group: 256 experts (n_routed_experts) cannot be divided into 7 groups"),
        (
            {"n_group": 8, "topk_group": 9},
            "topk_group: 9 groups of experts per token, but there are 8 (n_group); allowed: 1 to 8",
        ),
        # 8 groups in DeepseekV3Config
        ({"topk_group": 9}, "topk_group: 9 groups of experts per token, but there are 8 (n_group); allowed: 1 to 8"),
        (
            {"n_group": 64, "topk_group": 1},
            "topk_group: 1 of 64 groups (n_group) have 4 experts, but a token goes to 8 (num_experts_per_tok)",
        ),
        ({"n_group": "8"}, "n_group: expected a whole number, got '8'; write 8 (or null)"),
    ],
)
def test_groups_of_experts(tmp_path: Path, groups: dict[str, Any], message: str) -> None:
    content = whole({"model_type": "deepseek_v3"})
    assert fault(tmp_path, **content, **groups) == message
    found = faults(tmp_path, json.dumps({**content, **groups}, indent=1))
    assert [line.split(": ", 1)[1] for line in found] == [message]
    key = message.partition(":")[0]
    line = 2 + [*content, *groups].index(key)
    assert found[0].startswith(f"{line}:")


def test_groups_of_experts_that_go_together(tmp_path: Path) -> None:
    for groups in ({"n_group": 8, "topk_group": 4}, {"n_group": 1, "topk_group": 1}, {"n_group": None}):
        assert load_model(str(config(tmp_path, **whole({"model_type": "deepseek_v3"}), **groups))).graph.layers


def test_layer_types(tmp_path: Path) -> None:
    types = '["full_attention", "slidng_attention"]'
    given = '"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8, "num_hidden_layers": 3'
    text = f'{{{given},\n "layer_types": {types}}}'
    wrong = (
        "expected one of full_attention, sliding_attention; got 'slidng_attention'; did you mean 'sliding_attention'?"
    )
    assert faults(tmp_path, text) == [
        "2:17: layer_types: has 2 entries; the network has 3 layers",
        f"2:36: layer_types[1]: {wrong}",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "llama", "hidden_size": None}, "hidden_size: expected a whole number, got nothing"),
        ({"model_type": "llama", "hidden_size": True}, "hidden_size: expected a whole number, got true"),
        ({"model_type": "llama", "hidden_size": [4096]}, "hidden_size: expected a whole number, got a list"),
        ({"model_type": "llama", "num_hidden_layers": 10**6}, "num_hidden_layers: must be at most 5000, got 1000000"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window: must be at least 1, got -1 (or null)"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window: must be at least 1, got 0 (or null)"),
        ({"model_type": "gemma3_text", "sliding_window": 0}, "sliding_window: must be at least 1, got 0 (or null)"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step: must be at least 1, got 0"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 0}, "moe_layer_freq: must be at least 1, got 0"),
        ({"model_type": "deepseek_v3", "n_group": 0}, "n_group: must be at least 1, got 0 (or null)"),
        ({"model_type": "deepseek_v3", "topk_group": 0}, "topk_group: must be at least 1, got 0 (or null)"),
        ({"model_type": "deepseek_v3", "moe_intermediate_size": 0}, "moe_intermediate_size: must be at least 1, got 0"),
        ({"model_type": "llama", "intermediate_size": 0}, "intermediate_size: must be at least 1, got 0"),
        ({"model_type": "deepseek_v3", "tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, got 1"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "cross-attention in a decoder without an encoder"),
        ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "layer norms without weights cannot be read"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "expected one of absolute"),
        ({"model_type": "bert", "is_decoder": True}, "as a decoder"),
        ({"model_type": "t5", "feed_forward_proj": "gated_gelu"}, "did you mean 'gated-gelu'?"),
        ({"model_type": "vit", "image_size": 225}, "image_size: 225 x 225 cannot be divided into patches of 16 x 16"),
        ({"model_type": "vit", "patch_size": [16, 0]}, "patch_size: must be at least 1, got 0, or [height, width]"),
        ({"model_type": "vit", "num_labels": 3, "id2label": {"0": "a", "1": "b"}}, "'id2label' names 2 classes"),
        ({"model_type": "vit", "id2label": 3}, "id2label: expected a mapping"),
        ({"model_type": "mpt", "attn_config": {"attn_pdrop": 1}}, "attn_config.attn_pdrop: expected a number from 0"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln: norms of queries and keys"),
        ({"model_type": "mpt", "attn_config": 3}, "attn_config: expected a mapping; got 3"),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 3}}, "attn_config.kv_n_heads: 16 heads cannot share 3"),
        ({"model_type": "dbrx", "tie_word_embeddings": True}, "no head that is tied"),
        ({"model_type": "smollm3", "use_sliding_window": True}, "Write 'layer_types'"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "must be at least 1, got 0 (or null)"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings: must be at least 3, got 2"),
        ({"model_type": "distilbert", "dim": 770}, "dim: 770 cannot be divided by 12 heads (n_heads)"),
        ({"model_type": "dinov2", "image_size": 225}, "225 x 225 cannot be divided into patches of 14 x 14"),
        ({"model_type": "deepseek_v3", "q_lora_rank": 0}, "q_lora_rank: must be at least 1, got 0 (or null)"),
        ({"model_type": "whisper", "d_model": 384}, "'whisper' reads sound"),
        ({"model_type": "qwen3_next"}, "'qwen3_next' has layers of recurrent state"),
        ({"model_type": "gemma3"}, "missing key 'text_config': gemma3 keeps its text part there"),
        ({"model_type": "mistral3", "text_config": 3}, "text_config: expected a mapping"),
        (
            {"model_type": "llava", "text_config": {"model_type": "lama"}},
            "text_config.model_type: 'lama' is not known; did you mean 'llama'?",
        ),
        ({"model_type": "llava", "text_config": {"model_type": []}}, "text_config.model_type: expected a word"),
        ({"model_type": "llava", "text_config": {"model_type": "mistral3"}}, "'mistral3' is not known"),
        ({"model_type": "llama", "architectures": "LlamaModel"}, "expected a list of names"),
        ({"model_type": "llama", "architectures": [{}]}, "expected a list of names"),
        ({"model_type": "t5", "architectures": ["T5Encoder"]}, "T5EncoderModel"),
        ({"model_type": "falcon", "num_kv_heads": 8}, "allowed: 1, 71"),
        ({"model_type": "gpt_oss", "num_local_experts": 3}, "there are 3 (num_local_experts)"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, "there are 4 (num_experts)"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 6}, "there are 6 (n_routed_experts)"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "expected a list"),
        ({"model_type": "glm4_moe", "head_dim": 128, "topk_group": 2}, "there are 1 (n_group)"),
        (
            {"model_type": "gpt_neo", "attention_types": [["global", 12]]},
            "[0]: expected [[word, ...], times]; got a list",
        ),
        ({"model_type": "gpt_neo", "attention_types": [[["globl"], 24]]}, "did you mean 'global'?"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 5]]}, "is of 5 layers; the network has 24"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "must be at most 5000"),
        ({"model_type": "llama4_text", "moe_layers": [48]}, "moe_layers[0]: must be at most 47, got 48"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "has 2 entries; the network has 48 layers"),
        (
            {"model_type": "llama4_text", "layer_types": ["chunked", *["full_attention"] * 47]},
            "did you mean 'chunked_attention'?",
        ),
        ({"model_type": "llama4_text", "num_local_experts": 0}, "num_local_experts: must be at least 1, got 0"),
        ({"model_type": "nemotron_h"}, "missing key 'hybrid_override_pattern' (or 'layers_block_type')"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "a letter per layer, of M * - E; got 'M-X'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": ""}, "hybrid_override_pattern: names no layers"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 5001}, "names 5001 layers; at most 5000"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "num_hidden_layers": 3},
            "hybrid_override_pattern: has 2 entries; the network has 3 layers",
        ),
        ({"model_type": "nemotron_h", "layers_block_type": ["mambo"]}, "did you mean 'mamba'?"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "ME", "moe_latent_size": 64},
            "moe_latent_size: experts that work in a narrower vector",
        ),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "ME", "num_experts_per_tok": 9},
            "9 experts per token, but there are 8 (n_routed_experts)",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M", "n_groups": 3}, "cannot share 3 groups evenly"),
        ({"model_type": "mamba2", "head_dim": 32}, "128 heads of 32 (head_dim) are not the 8192 features"),
        ({"model_type": "mt5", "feed_forward_proj": "gated_gelu"}, "did you mean 'gated-gelu'?"),
        ({"model_type": "mt5", "num_decoder_layers": 5000}, "num_decoder_layers: must be at most 2500, got 5000"),
        ({"model_type": "qwen2", "layer_types": "full_attention"}, "expected a list of words"),
        ({"model_type": "qwen2", "layer_types": []}, "has 0 entries"),
    ],
)
def test_single_values(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in fault(tmp_path, **content)


def test_values_of_other_keys_are_not_read(tmp_path: Path) -> None:
    """Hundreds of keys have no part in the network; odd values there are nobody's fault here."""
    odd = {
        "rope_scaling": {"a": [None]},
        "torch_dtype": 3,
        "eos_token_id": [1, 2],
        "summary_type": "x",
        "n_ctx": "many",
    }
    assert load_model(str(config(tmp_path, **whole({"model_type": "gpt2", **odd})))).graph.weight_count == 124_439_808


def test_no_json(tmp_path: Path) -> None:
    text = '{"model_type": "gpt2",\n "n_head": [}'
    assert faults(tmp_path, text) == ["2:13: is not JSON: Expecting value"]
    assert "is JSON, but not a network" in faults(tmp_path, '{"n_head": 12}')[0]


JUNK = (None, True, -1, 0, 1, 7, 1.5, 10**12, "", "12", "$seq", "gelu", [], [1], ["full_attention"], {}, {"a": [None]})
JUNK += ("M*", "-" * 9000, [[["global"], 2]], [[["local"], 10**9]], [0, 1], ["mlp", "moe"], ["chunked_attention"] * 2)


# Every type, those that are parts of several networks included.
CONFIGS = {name: json.loads(text) for name, (_, text) in PUBLISHED.items()}
CONFIGS |= {name: json.loads(text)["text_config"] for name, (_, text) in PARTS.items() if "Llama-4" in name}
# For speed, and what has to go with it.
SHALLOW = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    "hybrid_override_pattern": "ME",
    "attention_types": [[["global", "local"], 1]],
}


@mostly("fuzz", "name", CONFIGS, quick=4)
@settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values_load_or_are_refused(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Whatever stands behind up to three keys: a network or a list of problems, nothing else."""
    whole = {key: SHALLOW.get(key, value) for key, value in CONFIGS[name].items() if key != "id2label"}
    keys = st.sampled_from(sorted(whole))
    path = config(tmp_path, **whole | data.draw(st.dictionaries(keys, st.sampled_from(JUNK), min_size=1, max_size=3)))
    problems: tuple[FileProblem, ...] = ()
    try:
        load_model(str(path))
    except InputFileError as error:
        problems = error.problems
    # Faults of the config itself have a line; those of the network file that is made of it would not.
    assert all(problem.line for problem in problems)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"is a folder without a config\.json"):
        load_model(str(tmp_path))

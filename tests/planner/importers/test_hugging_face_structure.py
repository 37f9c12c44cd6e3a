"""What an architecture's code does with a config: windows, experts, residuals, heads, dropout; blocks as device meshes see them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.mesh.modules import fold
from costmodel.mesh.tensor_parallel import roles_of
from costmodel.network.graph import Graph
from planner.files.loading import LoadedModel
from planner.importers.networks import load_model
from tests.planner.published_configs import PUBLISHED, layers_of, loaded, published, written
from tests.planner.published_families import PARTS

QWEN = {"num_hidden_layers": 4, "sliding_window": 100}
SMOL = {"num_hidden_layers": 2, "sliding_window": 9}
FULL, WINDOW = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("mistralai/Mistral-7B-v0.1", {}, [4096] * 32),
        ("mistralai/Mistral-7B-v0.1", {"sliding_window": None}, [0] * 32),
        ("google/gemma-2-2b", {}, [4096, 0] * 13),  # the first layer has one
        ("google/gemma-2-2b", {"num_hidden_layers": 3, "layer_types": [FULL, WINDOW, WINDOW]}, [0, 4096, 4096]),
        ("Qwen/Qwen2.5-0.5B", QWEN, [0] * 4),  # switched off
        ("Qwen/Qwen2.5-0.5B", {**QWEN, "use_sliding_window": True, "max_window_layers": 3}, [0, 0, 0, 100]),
        ("Qwen/Qwen1.5-MoE-A2.7B", {**QWEN, "use_sliding_window": True, "max_window_layers": 3}, [100, 0, 100, 0]),
        ("Qwen/Qwen3-30B-A3B", {**QWEN, "use_sliding_window": True}, [100] * 4),
        # By period: five with a window, then one without; the first, third, ...; three, then one.
        ("google/gemma-3-1b-pt", {}, ([512] * 5 + [0]) * 4 + [512] * 2),
        ("google/gemma-3-1b-pt", {"num_hidden_layers": 4, "sliding_window_pattern": 2}, [512, 0] * 2),
        ("openai/gpt-oss-20b", {}, [128, 0] * 12),
        ("CohereForAI/c4ai-command-r7b-12-2024", {}, [4096, 4096, 4096, 0] * 8),
        ("allenai/Olmo-3-1025-7B", {}, [4096, 4096, 4096, 0] * 8),
        ("HuggingFaceTB/SmolLM3-3B", SMOL, [0, 0]),
        ("HuggingFaceTB/SmolLM3-3B", {**SMOL, "use_sliding_window": True, "layer_types": [FULL, WINDOW]}, [0, 9]),
    ],
)
def test_windows(name: str, changes: dict[str, Any], windows: list[int], tmp_path: Path) -> None:
    attention = layers_of(published(name, tmp_path, **changes), "self_attention")
    assert [layer.params.window for layer in attention] == windows


def kinds_of_a_block(name: str, folder: Path, **changes: Any) -> list[str]:
    model = published(name, folder, **changes)
    first = next(layer.block for layer in model.graph.layers if layer.block)
    return [layer.kind for layer in model.graph.layers if layer.block == first]


def test_places_of_norms(tmp_path: Path) -> None:
    attention = ["linear", "self_attention", "linear"]
    gated = ["linear", "glu", "linear"]
    norm = ["rms_norm"]
    before = [*norm, *attention, "add", *norm, *gated, "add"]
    after = [*attention, *norm, "add", *gated, *norm, "add"]
    both = [*norm, *attention, *norm, "add", *norm, *gated, *norm, "add"]
    assert kinds_of_a_block("THUDM/glm-4-9b-chat-hf", tmp_path) == before
    assert kinds_of_a_block("allenai/OLMo-2-1124-7B", tmp_path) == after
    for name in ("THUDM/GLM-4-9B-0414", "google/gemma-3-1b-pt"):
        assert kinds_of_a_block(name, tmp_path) == both
    side_by_side = ["layer_norm", *attention, *gated, "add"]
    for name in ("CohereForAI/c4ai-command-r-v01", "stabilityai/stablelm-2-12b"):
        assert kinds_of_a_block(name, tmp_path) == side_by_side
    plain = ["layer_norm", *attention, "add", "layer_norm", "linear", "activation", "linear", "add"]
    assert kinds_of_a_block("nvidia/Minitron-4B-Base", tmp_path) == plain
    dropped = kinds_of_a_block("stabilityai/stablelm-3b-4e1t", tmp_path, hidden_dropout=0.1)
    assert dropped[-3:] == ["linear", "dropout", "add"]
    assert dropped.count("dropout") == 1


@pytest.mark.parametrize(
    ("name", "changes", "norm"),
    [
        ("google/gemma-3-1b-pt", {}, "rms"),
        ("allenai/OLMo-2-1124-7B", {}, "rms_wide"),
        ("allenai/OLMoE-1B-7B-0924", {}, "rms_wide"),
        ("CohereForAI/c4ai-command-r-plus", {}, "layer_own"),
        ("stabilityai/stablelm-2-12b", {}, "layer_own"),
        ("CohereForAI/c4ai-command-r-v01", {}, None),
        ("zai-org/GLM-4.5-Air", {}, None),
        ("zai-org/GLM-4.5-Air", {"use_qk_norm": True}, "rms"),
    ],
)
def test_norms_of_queries_and_keys(name: str, changes: dict[str, Any], norm: str | None, tmp_path: Path) -> None:
    attention = layers_of(published(name, tmp_path, **changes), "self_attention")
    assert {layer.params.qk_norm for layer in attention} == {norm}


def test_attention_with_sinks(tmp_path: Path) -> None:
    sinks = {layer.params.sinks for layer in layers_of(published("openai/gpt-oss-20b", tmp_path), "self_attention")}
    assert sinks == {True}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai/gpt-oss-20b", (32, 4, 2880, 0, True, True, True)),
        ("zai-org/GLM-4.5-Air", (128, 8, 1408, 1, False, True, False)),
        ("databricks/dbrx-base", (16, 4, 10752, 0, False, False, False)),
        ("moonshotai/Kimi-K2-Base", (384, 8, 2048, 1, False, True, False)),
    ],
)
def test_kinds_of_experts(name: str, expected: tuple[int, int, int, int, bool, bool, bool], tmp_path: Path) -> None:
    layers = layers_of(published(name, tmp_path), "moe")
    p = layers[0].params
    assert (p.experts, p.top_k, p.ffn, p.shared_experts, p.bias, p.router_bias, p.limited) == expected
    if name == "zai-org/GLM-4.5-Air":
        assert len(layers) == 45  # all but the first


@pytest.mark.parametrize(
    ("name", "changes", "groups"),
    [
        ("deepseek-ai/DeepSeek-V3", {}, (8, 4)),
        ("deepseek-ai/DeepSeek-V3", {"n_group": 16, "topk_group": 2}, (16, 2)),
        ("deepseek-ai/DeepSeek-V3", {"n_group": 1}, (1, 0)),
        ("moonshotai/Kimi-K2-Base", {}, (1, 0)),
    ],
)
def test_groups_of_experts(name: str, changes: dict[str, int], groups: tuple[int, int], tmp_path: Path) -> None:
    """DeepSeek-V3 draws 4 of 8 groups, where its file does not say so, too (DeepseekV3Config); Kimi K2 has one."""
    p = layers_of(published(name, tmp_path, **changes), "moe")[0].params
    assert (p.groups, p.top_groups) == groups


def test_heads_of_other_encoders(tmp_path: Path) -> None:
    """Counted with the classes of transformers 5.23."""
    counts = {
        ("FacebookAI/roberta-base", "RobertaModel"): 124_645_632,
        ("FacebookAI/roberta-base", "RobertaForSequenceClassification"): 124_647_170,
        ("distilbert/distilbert-base-uncased", "DistilBertModel"): 66_362_880,
        ("distilbert/distilbert-base-uncased", "DistilBertForSequenceClassification"): 66_955_010,
        ("facebook/deit-base-distilled-patch16-224", "DeiTModel"): 86_390_784,
        ("facebook/deit-base-distilled-patch16-224", "DeiTForImageClassification"): 86_569_192,
        ("answerdotai/ModernBERT-base", "ModernBertModel"): 149_014_272,
        ("answerdotai/ModernBERT-base", "ModernBertForSequenceClassification"): 149_606_402,
        ("facebook/dinov2-base", "Dinov2ForImageClassification"): 86_583_554,
    }
    for (name, kind), count in counts.items():
        assert published(name, tmp_path, architectures=[kind]).graph.weight_count == count
    roberta = published("FacebookAI/roberta-base", tmp_path)
    assert (roberta.seq, layers_of(roberta, "position_embedding")[0].params.max_positions) == (512, 514)
    biases = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
    modern = published("answerdotai/ModernBERT-base", tmp_path, **biases, decoder_bias=False)
    assert modern.graph.weight_count == 149_776_128
    windows = [layer.params.window for layer in layers_of(modern, "self_attention")]
    assert windows == [0, *[129, 129, 0] * 7]
    first = next(layer for layer in modern.graph.layers if layer.kind == "self_attention").name.rpartition(".")[0]
    assert not any(layer.name == f"{first}.norm1" for layer in modern.graph.layers)
    giant = {"hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24, "use_swiglu_ffn": True}
    assert published("facebook/dinov2-base", tmp_path, **giant).graph.weight_count == 1_136_480_768


@pytest.mark.parametrize(
    ("name", "changes", "sparse"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", {}, [True] * 6),
        ("Qwen/Qwen3-30B-A3B", {"decoder_sparse_step": 2}, [False, True] * 3),
        ("Qwen/Qwen1.5-MoE-A2.7B", {"mlp_only_layers": [0, 4]}, [False, True, True, True, False, True]),
        ("deepseek-ai/DeepSeek-V2-Lite", {}, [False, True, True, True, True, True]),
        ("deepseek-ai/DeepSeek-V2-Lite", {"moe_layer_freq": 2}, [False, False, True, False, True, False]),
        ("deepseek-ai/DeepSeek-V2-Lite", {"n_routed_experts": None}, [False] * 6),
    ],
)
def test_layers_with_experts(name: str, changes: dict[str, Any], sparse: list[bool], tmp_path: Path) -> None:
    kinds: dict[str, set[str]] = {}
    for layer in published(name, tmp_path, num_hidden_layers=6, **changes).graph.layers:
        kinds.setdefault(layer.block, set()).add(layer.kind)
    assert ["moe" in found for block, found in kinds.items() if block] == sparse


def test_parallel_and_sequential_residuals(tmp_path: Path) -> None:
    """Pythia and Phi add attention, feed-forward part and input at once; Llama one after the other."""
    for name, arity in (("EleutherAI/pythia-1b", 3), ("microsoft/phi-2", 3), ("meta-llama/Meta-Llama-3-8B", 2)):
        adds = layers_of(published(name, tmp_path), "add")
        assert {len(layer.inputs) for layer in adds} == {arity}
    sequential = published("EleutherAI/pythia-1b", tmp_path, use_parallel_residual=False)
    assert {len(layer.inputs) for layer in layers_of(sequential, "add")} == {2}
    assert sequential.graph.weight_count == PUBLISHED["EleutherAI/pythia-1b"][0]
    by_name = {layer.name: layer for layer in published("microsoft/phi-2", tmp_path).graph.layers}
    assert by_name["blocks.2.qkv"].inputs == by_name["blocks.2.up"].inputs == ("blocks.2.norm1",)
    assert by_name["blocks.2.add"].inputs == ("blocks.2.dropout1", "blocks.2.dropout2", "blocks.1.add")
    assert by_name["lm_head"].params.bias


@pytest.mark.parametrize("size", [16, 64, 100, 128, 300])
def test_norms_of_heads_have_the_weights_of_one_head_each(size: int, tmp_path: Path) -> None:
    """Qwen 3, for heads narrower and wider than the network (128 features)."""
    sizes = {"hidden_size": 128, "head_dim": size, "num_hidden_layers": 2, "num_attention_heads": 32}
    plain = loaded(
        tmp_path, model_type="mistral", **sizes, num_key_value_heads=32, intermediate_size=22016, vocab_size=151936
    )
    normed = loaded(tmp_path, model_type="qwen3", **sizes)
    assert normed.graph.weight_count - plain.graph.weight_count == 2 * 2 * size


def test_t5(tmp_path: Path) -> None:
    model = published("google-t5/t5-small", tmp_path)
    attentions = layers_of(model, "self_attention")
    assert [layer.params.causal for layer in attentions] == [False] * 6 + [True] * 6
    assert [layer.params.relative_buckets for layer in attentions] == ([32] + [0] * 5) * 2
    by_name = {layer.name: layer for layer in model.graph.layers}
    assert by_name["decoder.6.memory_kv"].inputs == ("encoder_dropout",)
    # One table for the source, the targets and the head.
    assert [(layer.weight_count, layer.tied_count) for layer in layers_of(model, "embedding")] == [
        (32128 * 512, 0),
        (0, 32128 * 512),
    ]
    assert (by_name["lm_head"].weight_count, by_name["lm_head"].tied_count) == (0, 32128 * 512)
    encoder = published("google-t5/t5-small", tmp_path, architectures=["T5EncoderModel"])
    assert encoder.graph.weight_count == 35_330_816  # T5EncoderModel of t5-small


def roles_in_blocks(graph: Graph) -> list[dict[str, str]]:
    kinds = [kind for kind in fold(graph).kinds if kind.is_block]
    return [
        {
            graph.layers[i].name.rpartition(".")[2]: one.role
            for i, one in zip(kind.layers, roles_of(graph, kind), strict=True)
        }
        for kind in kinds
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensor_parallel_ranks_split_every_block_as_megatron_does(name: str, tmp_path: Path) -> None:
    """Columns of the first matrix of a part, rows of the last; heads in between: nothing imported stands in the way."""
    expected = {
        **dict.fromkeys(("qkv", "query", "kv", "memory_kv", "up"), "column"),
        **dict.fromkeys(("attention", "cross_attention", "glu"), "channel"),
        **dict.fromkeys(("proj", "cross_proj", "down"), "row"),
        "moe": "experts",
    }
    for roles in roles_in_blocks(published(name, tmp_path).graph):
        assert {layer: roles[layer] for layer in roles if layer in expected} == {
            layer: role for layer, role in expected.items() if layer in roles
        }


def test_heads_of_bert(tmp_path: Path) -> None:
    """Numbers of weights of the classes for bert-base-uncased."""
    counts = {
        "BertModel": 109_482_240,
        "BertForMaskedLM": 109_514_298,
        "BertForPreTraining": 110_106_428,
        "BertForSequenceClassification": 109_483_778,
    }
    for name, count in counts.items():
        assert published("bert-base-uncased", tmp_path, architectures=[name]).graph.weight_count == count


def test_networks_without_a_head(tmp_path: Path) -> None:
    whole = published("openai-community/gpt2", tmp_path)
    bare = published("openai-community/gpt2", tmp_path, architectures=["GPT2Model"])
    assert bare.graph.weight_count == whole.graph.weight_count  # tied
    assert [layer.name for layer in whole.graph.layers[len(bare.graph.layers) :]] == ["lm_head", "loss"]
    pooled = published("google/vit-base-patch16-224", tmp_path, architectures=["ViTModel"])
    assert pooled.graph.weight_count == 86_389_248  # ViTModel with its pooler


def test_dropout_is_there_where_the_config_has_it(tmp_path: Path) -> None:
    model = published("openai-community/gpt2", tmp_path)
    assert {layer.params.keep for layer in layers_of(model, "dropout")} == {0.9}
    assert len(layers_of(model, "dropout")) == 1 + 2 * 12
    assert all(layer.params.dropout for layer in layers_of(model, "self_attention"))
    still = published("openai-community/gpt2", tmp_path, attn_pdrop=0.0, embd_pdrop=0, resid_pdrop=0.0)
    assert not layers_of(still, "dropout")
    assert not any(layer.params.dropout for layer in layers_of(still, "self_attention"))


def test_work_of_the_matrices(tmp_path: Path) -> None:
    """Independent of the layers: every weight of a linear layer is used once per token, tied ones included."""
    model = published("Qwen/Qwen2.5-0.5B", tmp_path)
    linear = layers_of(model, "linear")
    used = sum(layer.input_shapes[0][0] * layer.output_shape[0] for layer in linear)
    # 494,032,768 less norms (49 of 896) and biases (24 of 1,152); the embedding is used by the head.
    assert used == 494_032_768 - 49 * 896 - 24 * 1152
    assert math.prod(linear[-1].output_shape) == 151_936 * 32_768


def kinds_with_sizes(graph: Graph) -> list[tuple[str, Any]]:
    """Attention and experts of every block in order, and what runs between them."""
    shown = ("self_attention", "moe", "glu", "rms_norm")
    return [(layer.kind, layer.params) for layer in graph.layers if layer.kind in shown]


@pytest.mark.parametrize(
    ("name", "bundled"),
    [
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"),
        ("meta-llama/Llama-4-Maverick-17B-128E", "llama4-maverick"),
        ("EleutherAI/gpt-neo-1.3B", "gpt-neo-1.3b"),
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
    ],
)
def test_layers_are_those_of_the_bundled_network(name: str, bundled: str, tmp_path: Path) -> None:
    """Which layers see a window, which have experts and which scans, as the files written from the papers have it."""
    text = PARTS[name][1] if name in PARTS else PUBLISHED[name][1]
    read, written_by_hand = load_model(str(written(tmp_path, text))), load_model(bundled)
    if name in PARTS:  # written without the shared expert's width, which is that of the others
        shared = {layer.params.shared_width for layer in layers_of(read, "moe")}
        assert shared == {layer.params.shared_width for layer in layers_of(written_by_hand, "moe")} == {8192}
    found, wanted = kinds_with_sizes(read.graph), kinds_with_sizes(written_by_hand.graph)
    plain = [(kind, replace(p, shared_ffn=0, shared_experts=1) if kind == "moe" else p) for kind, p in found]
    assert plain == wanted


def test_chunks_of_attention(tmp_path: Path) -> None:
    """Layers without rotary positions see all, the others chunks; said in three ways."""
    sizes = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}

    def windows(**more: Any) -> list[int]:
        model = loaded(tmp_path, model_type="llama4_text", **sizes, attention_chunk_size=16, **more)
        return [layer.params.window for layer in layers_of(model, "self_attention")]

    assert windows() == [16, 16, 16, 0]
    assert windows(no_rope_layer_interval=2) == [16, 0, 16, 0]
    assert windows(no_rope_layers=[0, 1, 1, 0]) == [0, 16, 16, 0]
    assert windows(layer_types=["full_attention", *["chunked_attention"] * 3]) == [0, 16, 16, 16]
    dense = loaded(tmp_path, model_type="llama4_text", **sizes, moe_layers=[2])
    assert [layer.name for layer in layers_of(dense, "moe")] == ["blocks_2.1.moe"]


def test_words_and_letters_say_the_same_layers(tmp_path: Path) -> None:
    """Files of NVIDIA have letters, those that transformers writes have words; older ones say mamba and attention."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"mamba_num_heads": 8, "mamba_head_dim": 16}

    def read(**said: Any) -> LoadedModel:
        return loaded(tmp_path, model_type="nemotron_h", **sizes, **said)

    letters = read(hybrid_override_pattern="ME*-").graph
    for words in (["linear_attention", "moe", "full_attention", "mlp"], ["mamba", "moe", "attention", "mlp"]):
        assert read(layers_block_type=words).graph.layers == letters.layers
    inner, conv = 8 * 16, 8 * 16 + 2 * 8 * 128
    scan = 64 * (inner + conv + 8) + conv * 5 + 3 * 8 + inner + inner * 64
    experts = 8 * 65 + 8 * 2 * 64 * 7688 + 2 * 64 * 7688
    heads = 64 * (2 + 2 * 2) * 128 + 2 * 128 * 64
    assert read(hybrid_override_pattern="M").graph.weight_count == 2 * 131072 * 64 + 64 + 64 + scan
    assert read(hybrid_override_pattern="E").graph.weight_count == 2 * 131072 * 64 + 64 + 64 + experts
    assert read(hybrid_override_pattern="*").graph.weight_count == 2 * 131072 * 64 + 64 + 64 + heads


def test_every_block_of_umt5_has_biases_by_distance(tmp_path: Path) -> None:
    """MT5's first block of either side has them for all; UMT5 has 32 of each of 6 heads in all 16."""
    buckets = {
        name: [layer.params.relative_buckets for layer in layers_of(published(name, tmp_path), "self_attention")]
        for name in ("google/mt5-small", "google/umt5-small")
    }
    assert buckets == {"google/mt5-small": ([32] + [0] * 7) * 2, "google/umt5-small": [32] * 16}
    assert layers_of(published("google/mt5-small", tmp_path), "glu")


def test_heads_of_glm_round_down(tmp_path: Path) -> None:
    """The defaults of Glm4MoeConfig, 96 heads of 4096 features: 103,481,200,640 weights and a bias per expert of 45 layers."""
    model = loaded(tmp_path, model_type="glm4_moe", hidden_size=4096, num_hidden_layers=46, num_attention_heads=96)
    assert model.graph.weight_count == 103_481_200_640 + 45 * 128
    assert "'head_dim' is absent: 42, 4096 / 96 heads rounded down" in model.notes

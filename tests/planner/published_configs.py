"""Published config.json files of Hugging Face with their published numbers of weights, and how tests load them.

The configs are those of the named repositories, less keys about generation. Numbers of weights: what transformers' ``num_parameters()``
gives for them, tied weights once, which the repositories state as their size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from costmodel.network.layers import Layer
from planner.files.loading import LoadedModel
from planner.importers.networks import load_model
from tests.planner.published_families import FAMILIES

PUBLISHED: dict[str, tuple[int, str]] = {
    "meta-llama/Meta-Llama-3-8B": (
        8_030_261_248,
        """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256}""",
    ),
    "meta-llama/Llama-2-7b-hf": (
        6_738_415_616,
        """{"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 32000}""",
    ),
    "mistralai/Mistral-7B-v0.1": (
        7_241_732_096,
        """{"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "vocab_size": 32000}""",
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        46_702_792_704,
        """{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": false, "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
        "vocab_size": 32000}""",
    ),
    "Qwen/Qwen2.5-0.5B": (
        494_032_768,
        """{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 896,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
        "use_sliding_window": false, "vocab_size": 151936}""",
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        """{"architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
        "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936}""",
    ),
    "Qwen/Qwen3-0.6B": (
        596_049_920,
        """{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rope_scaling": null, "sliding_window": null, "tie_word_embeddings": true,
        "use_sliding_window": false, "vocab_size": 151936}""",
    ),
    "Qwen/Qwen3-30B-A3B": (
        30_532_122_624,
        """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
        "vocab_size": 151936}""",
    ),
    "google/gemma-2b": (
        2_506_172_416,
        """{"architectures": ["GemmaForCausalLM"], "attention_bias": false, "head_dim": 256, "hidden_act": "gelu",
        "hidden_activation": null, "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192,
        "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 256000}""",
    ),
    "google/gemma-2-2b": (
        2_614_341_888,
        """{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0, "cache_implementation":
        "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation":
        "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "vocab_size": 256000}""",
    ),
    "microsoft/phi-2": (
        2_779_683_840,
        """{"architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "gelu_new",
        "hidden_size": 2560, "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
        "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1, "tie_word_embeddings": false,
        "vocab_size": 51200}""",
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        3_821_079_552,
        """{"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "resid_pdrop": 0.0, "sliding_window": 2047, "tie_word_embeddings": false, "vocab_size": 32064}""",
    ),
    "openai-community/gpt2": (
        124_439_808,
        """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}""",
    ),
    "EleutherAI/pythia-1b": (
        1_011_781_632,
        """{"architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 16,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false, "use_parallel_residual": true,
        "vocab_size": 50304}""",
    ),
    "facebook/opt-125m": (
        125_239_296,
        """{"_remove_final_layer_norm": false, "activation_dropout": 0.0, "activation_function": "relu", "architectures":
        ["OPTForCausalLM"], "attention_dropout": 0.0, "do_layer_norm_before": true, "dropout": 0.1, "ffn_dim": 3072,
        "hidden_size": 768, "layerdrop": 0.0, "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12,
        "num_hidden_layers": 12, "prefix": "</s>", "vocab_size": 50272, "word_embed_proj_dim": 768}""",
    ),
    "facebook/opt-350m": (
        331_196_416,
        """{"activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0,
        "do_layer_norm_before": false, "dropout": 0.1, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048,
        "model_type": "opt", "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512}""",
    ),
    "bert-base-uncased": (  # without a head, as the number is usually given; see test_heads_of_bert
        109_482_240,
        """{"architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "vocab_size": 30522}""",
    ),
    "google-t5/t5-small": (
        60_506_624,
        """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "dropout_rate": 0.1,
        "feed_forward_proj": "relu", "is_encoder_decoder": true, "model_type": "t5", "n_positions": 512, "num_heads": 8,
        "num_layers": 6, "output_past": true, "relative_attention_num_buckets": 32, "vocab_size": 32128}""",
    ),
    "google/flan-t5-small": (
        76_961_152,
        """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64, "d_model": 512, "dropout_rate": 0.1,
        "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true, "model_type": "t5", "n_positions": 512,
        "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "vocab_size": 32128}""",
    ),
    "google/vit-base-patch16-224": (
        86_567_656,
        """{"architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "encoder_stride": 16,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
        "model_type": "vit", "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16,
        "qkv_bias": true, "id2label": LABELS}""".replace(
            "LABELS", json.dumps({str(i): f"class {i}" for i in range(1000)})
        ),
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        15_706_484_224,
        """{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rope_scaling": {"beta_fast": 32, "factor": 40, "type": "yarn"}, "tie_word_embeddings": false, "topk_method": "greedy",
        "v_head_dim": 128, "vocab_size": 102400}""",
    ),
    "deepseek-ai/DeepSeek-V3": (  # less the layer for multi-token prediction
        671_026_419_200,
        """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": false, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129280}""",
    ),
    "deepseek-ai/DeepSeek-V3.2": (  # that of DeepSeek-V3 and the indexers': 61 (1536 x 8192 + 7168 x 128 + 256 + 7168 x 64)
        671_877_944_064,
        """{"architectures": ["DeepseekV32ForCausalLM"], "attention_bias": false, "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
        "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v32", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": false, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129280}""",
    ),
    "bigscience/bloom-560m": (
        559_214_592,
        """{"apply_residual_connection_post_layernorm": false, "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
        "attention_softmax_in_fp32": true, "bias_dropout_fusion": true, "hidden_dropout": 0.0, "hidden_size": 1024,
        "model_type": "bloom", "n_head": 16, "n_inner": null, "n_layer": 24, "offset_alibi": 100, "seq_length": 2048,
        "skip_bias_add": true, "vocab_size": 250880}""",
    ),
    "tiiuae/falcon-7b": (  # the file of weights holds the tied matrix twice
        6_921_720_704,
        """{"alibi": false, "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": false, "hidden_dropout": 0.0,
        "hidden_size": 4544, "model_type": "falcon", "multi_query": true, "new_decoder_architecture": false,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "vocab_size": 65024}""",
    ),
    "mosaicml/mpt-7b": (
        6_649_286_656,
        """{"architectures": ["MPTForCausalLM"], "attn_config": {"alibi": true, "alibi_bias_max": 8, "attn_impl": "torch",
        "attn_pdrop": 0, "attn_type": "multihead_attention", "clip_qkv": null, "prefix_lm": false, "qk_ln": false}, "d_model": 4096,
        "emb_pdrop": 0, "expansion_ratio": 4, "learned_pos_emb": true, "max_seq_len": 2048, "model_type": "mpt", "n_heads": 32,
        "n_layers": 32, "no_bias": true, "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "vocab_size": 50432}""",
    ),
    **FAMILIES,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, **config: Any) -> LoadedModel:
    return load_model(str(written(folder, json.dumps(config))))


def published(name: str, folder: Path, **changes: Any) -> LoadedModel:
    return loaded(folder, **{**json.loads(PUBLISHED[name][1]), **changes})


def layers_of(model: LoadedModel, kind: str) -> list[Layer]:
    return [layer for layer in model.graph.layers if layer.kind == kind]


# Width, depth and heads of every model type that can be read, as the config class has them: what a config.json cannot leave out


__all__ = ["ESSENTIAL", "whole"]

_ENCODERS = ("bert", "roberta", "xlm-roberta", "vit", "deit", "dinov2")
ESSENTIAL: dict[str, dict[str, int]] = {
    **{
        name: {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        for name in (
            *(
                "llama",
                "mistral",
                "mixtral",
                "qwen2",
                "qwen3",
                "deepseek_v2",
                "olmo",
                "olmo2",
                "olmo3",
                "granite",
                "granitemoe",
            ),
            *("internlm2", "baichuan"),
        )
    },
    **{name: {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32} for name in ("glm", "glm4")},
    **{
        name: {"hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64}
        for name in ("cohere", "cohere2")
    },
    **{name: {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12} for name in _ENCODERS},
    **{
        name: {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8}
        for name in ("gemma2", "gemma3_text")
    },
    **{
        name: {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128}
        for name in ("deepseek_v3", "deepseek_v32", "kimi_k2")
    },
    "ministral3": {"hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32},
    "gpt_oss": {"hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64},
    "glm4_moe": {"hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96},
    "olmoe": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16},
    "smollm3": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16},
    "starcoder2": {"hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24},
    "nemotron": {"hidden_size": 6144, "num_hidden_layers": 32, "num_attention_heads": 48},
    "stablelm": {"hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32},
    "seed_oss": {"hidden_size": 4096, "num_hidden_layers": 64, "num_attention_heads": 80},
    "ernie4_5": {"hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16},
    "exaone4": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
    "modernbert": {"hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12},
    "minimax_m2": {"hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48},
    "gpt_bigcode": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gptj": {"n_embd": 4096, "n_layer": 28, "n_head": 16},
    "dbrx": {"d_model": 2048, "n_layers": 24, "n_heads": 16},
    "distilbert": {"dim": 768, "n_layers": 6, "n_heads": 12},
    "qwen2_moe": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
    "qwen3_moe": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32},
    "gemma": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "phi3": {"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_neox": {"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64},
    "opt": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "phi": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 8},
    "falcon": {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    "mpt": {"d_model": 2048, "n_layers": 24, "n_heads": 16},
    "t5": {"d_model": 512, "num_layers": 6, "num_heads": 8},
    **{name: {"d_model": 512, "num_layers": 8, "num_heads": 6} for name in ("mt5", "umt5")},
    "gpt_neo": {"hidden_size": 2048, "num_layers": 24, "num_heads": 16},
    "nemotron_h": {"hidden_size": 4096, "num_attention_heads": 32},
    "mamba2": {"hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128},
    "llama4_text": {"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40},
}


def whole(content: dict[str, Any]) -> dict[str, Any]:
    """A config with what it left out of width, depth and heads."""
    model_type = content.get("model_type")
    return {**(ESSENTIAL.get(model_type, {}) if isinstance(model_type, str) else {}), **content}

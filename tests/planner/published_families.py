"""More published config.json files of Hugging Face, one or two of a family; see `published_configs`.

Numbers of weights were counted with transformers 5.23 on torch's meta device (``num_parameters()``, tied weights once) for the same files.
Those of experts whose router is balanced by a bias (GLM 4.5, MiniMax M2, Kimi K2) include that bias, which is a buffer there. InternLM 2,
Baichuan 2 and Kimi K2 are not classes of transformers; Llama's and DeepSeek-V3's of the same sizes were counted.
"""

from __future__ import annotations

import json

__all__ = ["FAMILIES", "PARTS"]

FAMILIES: dict[str, tuple[int, str]] = {
    "google/gemma-3-1b-pt": (
        999_885_952,
        """{"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144}""",
    ),
    "openai/gpt-oss-20b": (
        20_914_757_184,
        """{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "vocab_size": 201088}""",
    ),
    "THUDM/glm-4-9b-chat-hf": (
        9_399_951_360,
        """{"architectures": ["GlmForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 131072, "model_type": "glm",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "tie_word_embeddings": false,
        "vocab_size": 151552}""",
    ),
    "THUDM/GLM-4-9B-0414": (
        9_400_279_040,
        """{"architectures": ["Glm4ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "tie_word_embeddings": false, "vocab_size": 151552}""",
    ),
    "zai-org/GLM-4.5-Air": (  # less the layer for multi-token prediction
        106_852_251_264,
        """{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "first_k_dense_replace": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072,
        "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
        "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
        "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "use_qk_norm": false,
        "vocab_size": 151552}""",
    ),
    "allenai/OLMo-7B-hf": (
        6_888_095_744,
        """{"architectures": ["OlmoForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048, "model_type": "olmo",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": false,
        "vocab_size": 50304}""",
    ),
    "allenai/OLMo-2-1124-7B": (
        7_298_617_344,
        """{"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": false,
        "vocab_size": 100352}""",
    ),
    "allenai/Olmo-3-1025-7B": (
        7_298_011_136,
        """{"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 4096,
        "tie_word_embeddings": false, "vocab_size": 100278}""",
    ),
    "allenai/OLMoE-1B-7B-0924": (
        6_919_161_856,
        """{"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe",
        "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "tie_word_embeddings": false, "vocab_size": 50304}""",
    ),
    "HuggingFaceTB/SmolLM3-3B": (
        3_075_098_624,
        """{"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
        "model_type": "smollm3", "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 4, "sliding_window": null, "use_sliding_window": false, "vocab_size": 128256}""",
    ),
    "ibm-granite/granite-3.0-2b-base": (
        2_533_525_504,
        """{"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22, "tie_word_embeddings": true,
        "vocab_size": 49152}""",
    ),
    "ibm-granite/granite-3.0-1b-a400m-base": (
        1_334_625_280,
        """{"architectures": ["GraniteMoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.1, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 512, "max_position_embeddings": 4096, "model_type": "granitemoe",
        "num_attention_heads": 16, "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "tie_word_embeddings": true, "vocab_size": 49152}""",
    ),
    "bigcode/starcoder2-3b": (
        3_030_371_328,
        """{"architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288, "max_position_embeddings": 16384,
        "mlp_type": "default", "model_type": "starcoder2", "norm_type": "layer_norm", "num_attention_heads": 24,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1, "sliding_window": 4096, "use_bias": true,
        "vocab_size": 49152}""",
    ),
    "nvidia/Minitron-4B-Base": (
        4_190_509_056,
        """{"architectures": ["NemotronForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": false,
        "model_type": "nemotron", "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "tie_word_embeddings": false, "vocab_size": 256000}""",
    ),
    "stabilityai/stablelm-3b-4e1t": (
        2_795_443_200,
        """{"architectures": ["StableLmForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_dropout": 0.0,
        "hidden_size": 2560, "intermediate_size": 6912, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": false,
        "use_qkv_bias": false, "vocab_size": 50304}""",
    ),
    "stabilityai/stablelm-2-12b": (
        12_143_185_920,
        """{"architectures": ["StableLmForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_dropout": 0.0,
        "hidden_size": 5120, "intermediate_size": 13824, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "qk_layernorm": true,
        "tie_word_embeddings": false, "use_parallel_residual": true, "use_qkv_bias": false, "vocab_size": 100352}""",
    ),
    "CohereForAI/c4ai-command-r-v01": (
        34_980_831_232,
        """{"architectures": ["CohereForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 8192, "intermediate_size": 22528, "logit_scale": 0.0625, "max_position_embeddings": 8192,
        "model_max_length": 131072, "model_type": "cohere", "num_attention_heads": 64, "num_hidden_layers": 40,
        "num_key_value_heads": 64, "vocab_size": 256000}""",
    ),
    "CohereForAI/c4ai-command-r-plus": (
        103_810_674_688,
        """{"architectures": ["CohereForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 12288, "intermediate_size": 33792, "max_position_embeddings": 8192, "model_type": "cohere",
        "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8, "use_qk_norm": true, "vocab_size": 256000}""",
    ),
    "CohereForAI/c4ai-command-r7b-12-2024": (
        8_028_033_024,
        """{"architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "sliding_window": 4096,
        "sliding_window_pattern": 4, "use_gated_activation": true, "use_parallel_block": true, "vocab_size": 256000}""",
    ),
    "internlm/internlm2-7b": (
        7_737_708_544,
        """{"architectures": ["InternLM2ForCausalLM"], "bias": false, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "internlm2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": false, "vocab_size": 92544}""",
    ),
    "baichuan-inc/Baichuan2-7B-Base": (
        7_505_973_248,
        """{"architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_max_length": 4096, "model_type": "baichuan", "num_attention_heads": 32,
        "num_hidden_layers": 32, "tie_word_embeddings": false, "vocab_size": 125696}""",
    ),
    "ByteDance-Seed/Seed-OSS-36B-Base": (
        36_151_104_512,
        """{"architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1, "attention_out_bias": false,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524288,
        "mlp_bias": false, "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "residual_dropout": 0.1, "tie_word_embeddings": false, "vocab_size": 155136}""",
    ),
    "baidu/ERNIE-4.5-0.3B-PT": (
        360_748_032,
        """{"architectures": ["Ernie4_5ForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 131072, "model_type": "ernie4_5", "num_attention_heads": 16, "num_hidden_layers": 18,
        "num_key_value_heads": 2, "tie_word_embeddings": true, "use_bias": false, "vocab_size": 103424}""",
    ),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": (
        1_279_391_488,
        """{"architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 4096, "layer_types": TYPES, "max_position_embeddings": 65536, "model_type": "exaone4",
        "num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 8, "sliding_window": null,
        "sliding_window_pattern": null,
        "tie_word_embeddings": true, "vocab_size": 102400}""".replace("TYPES", json.dumps(["full_attention"] * 30)),
    ),
    "answerdotai/ModernBERT-base": (
        149_655_232,
        """{"architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "attention_dropout": 0.0, "classifier_activation": "gelu",
        "classifier_bias": false, "classifier_dropout": 0.0, "classifier_pooling": "mean", "decoder_bias": true,
        "embedding_dropout": 0.0, "global_attn_every_n_layers": 3, "hidden_activation": "gelu", "hidden_size": 768,
        "intermediate_size": 1152, "local_attention": 128, "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.0,
        "model_type": "modernbert", "norm_bias": false, "num_attention_heads": 12, "num_hidden_layers": 22, "vocab_size": 50368}""",
    ),
    "MiniMaxAI/MiniMax-M2": (
        228_689_764_864,
        """{"architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608, "model_type": "minimax_m2",
        "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
        "num_local_experts": 256, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "tie_word_embeddings": false,
        "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}""",
    ),
    "moonshotai/Kimi-K2-Base": (
        1_026_408_232_448,
        """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
        "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "tie_word_embeddings": false, "v_head_dim": 128, "vocab_size": 163840}""",
    ),
    "bigcode/gpt_bigcode-santacoder": (
        1_124_886_528,
        """{"activation_function": "gelu_pytorch_tanh", "architectures": ["GPTBigCodeForCausalLM"], "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "model_type": "gpt_bigcode", "multi_query": true, "n_embd": 2048, "n_head": 16, "n_inner": 8192,
        "n_layer": 24, "n_positions": 2048, "resid_pdrop": 0.1, "vocab_size": 49280}""",
    ),
    "EleutherAI/gpt-j-6b": (
        6_050_882_784,
        """{"activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048,
        "resid_pdrop": 0.0, "rotary": true, "rotary_dim": 64, "tie_word_embeddings": false, "vocab_size": 50400}""",
    ),
    "databricks/dbrx-base": (
        131_596_523_520,
        """{"architectures": ["DbrxForCausalLM"], "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
        "d_model": 6144, "emb_pdrop": 0.0, "ffn_config": {"ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05, "moe_num_experts": 16, "moe_top_k": 4}, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48,
        "n_layers": 40, "resid_pdrop": 0.0, "tie_word_embeddings": false, "vocab_size": 100352}""",
    ),
    "FacebookAI/roberta-base": (
        124_697_433,
        """{"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514,
        "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
        "vocab_size": 50265}""",
    ),
    "FacebookAI/xlm-roberta-base": (
        278_295_186,
        """{"architectures": ["XLMRobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514,
        "model_type": "xlm-roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": true, "pad_token_id": 1,
        "position_embedding_type": "absolute", "type_vocab_size": 1, "vocab_size": 250002}""",
    ),
    "distilbert/distilbert-base-uncased": (
        66_985_530,
        """{"activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768, "dropout": 0.1,
        "hidden_dim": 3072, "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12, "n_layers": 6,
        "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true,
        "vocab_size": 30522}""",
    ),
    "facebook/deit-base-distilled-patch16-224": (
        87_338_192,
        """{"architectures": ["DeiTForImageClassificationWithTeacher"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 224, "intermediate_size": 3072, "model_type": "deit",
        "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "num_labels": 1000, "patch_size": 16,
        "qkv_bias": true}""",
    ),
    "facebook/dinov2-base": (
        86_580_480,
        """{"architectures": ["Dinov2Model"], "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 518, "layerscale_value": 1.0, "mlp_ratio": 4,
        "model_type": "dinov2", "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 14,
        "qkv_bias": true, "use_swiglu_ffn": false}""",
    ),
}

# Networks of several parts, of which the text part is read and counted.
PARTS: dict[str, tuple[int, str]] = {
    "google/gemma-3-4b-pt": (
        3_880_263_168,
        """{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type":
        "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}}""",
    ),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": (
        23_572_403_200,
        """{"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": {"attention_dropout":
        0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
        "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "sliding_window": null, "vocab_size": 131072}, "vision_config": {"hidden_size": 1024,
        "image_size": 1540, "model_type": "pixtral", "num_hidden_layers": 24}}""",
    ),
    "mistralai/Ministral-3-8B-Base-2512": (
        8_489_553_920,
        """{"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": {"attention_dropout":
        0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34,
        "num_key_value_heads": 8, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072},
        "vision_config": {"model_type": "pixtral"}}""",
    ),
    "llava-hf/llava-1.5-7b-hf": (
        6_738_939_904,
        """{"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": {"_name_or_path":
        "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
        "vocab_size": 32064}, "vision_config": {"hidden_size": 1024, "model_type": "clip_vision_model", "num_hidden_layers":
        24}}""",
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        7_615_616_512,
        """{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 128000, "max_window_layers": 28,
        "model_type": "qwen2_5_vl", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 32768, "tie_word_embeddings": false, "use_sliding_window": false, "vision_config": {"depth": 32,
        "hidden_size": 1280}, "vocab_size": 152064}""",
    ),
}

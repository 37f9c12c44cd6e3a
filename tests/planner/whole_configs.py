"""Width, depth and heads of every model type that can be read, as the config class has them: what a config.json cannot leave out."""

from __future__ import annotations

from typing import Any

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
        for name in ("deepseek_v3", "kimi_k2")
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
}


def whole(content: dict[str, Any]) -> dict[str, Any]:
    """A config with what it left out of width, depth and heads."""
    model_type = content.get("model_type")
    return {**(ESSENTIAL.get(model_type, {}) if isinstance(model_type, str) else {}), **content}

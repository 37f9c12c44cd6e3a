"""Width, depth and heads of every model type that can be read, as the config class has them: what a config.json cannot leave out."""

from __future__ import annotations

from typing import Any

__all__ = ["ESSENTIAL", "whole"]

ESSENTIAL: dict[str, dict[str, int]] = {
    **{
        name: {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        for name in ("llama", "mistral", "mixtral", "qwen2", "qwen3", "deepseek_v2")
    },
    "qwen2_moe": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
    "qwen3_moe": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32},
    "gemma": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "gemma2": {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8},
    "phi3": {"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32},
    "deepseek_v3": {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_neox": {"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64},
    "opt": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "phi": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 8},
    "falcon": {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    "mpt": {"d_model": 2048, "n_layers": 24, "n_heads": 16},
    "bert": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "vit": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "t5": {"d_model": 512, "num_layers": 6, "num_heads": 8},
}


def whole(content: dict[str, Any]) -> dict[str, Any]:
    """A config with what it left out of width, depth and heads."""
    model_type = content.get("model_type")
    return {**(ESSENTIAL.get(model_type, {}) if isinstance(model_type, str) else {}), **content}

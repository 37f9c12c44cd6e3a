"""Which model types are read, by which reader; which ones hold one of them inside; which ones cannot be read, and why."""

from __future__ import annotations

from typing import NamedTuple

from planner.importers.hugging_face.families import DECODERS

__all__ = ["ARCHITECTURES", "REFUSED", "TEXT_PARTS", "WITH_TEXT_PART", "Architecture"]


class Architecture(NamedTuple):
    """Where a model type is read."""

    config_class: str
    module: str  # imported on first use
    reader: str


# model_type -> config class, and the module and function that read it.
ARCHITECTURES: dict[str, Architecture] = {
    **{
        name: Architecture(known.config_class or f"{known.title}Config", "decoders", "read_decoder")
        for name, known in DECODERS.items()
    },
    "deepseek_v2": Architecture("DeepseekV2Config", "decoders", "read_deepseek"),
    "deepseek_v3": Architecture("DeepseekV3Config", "decoders", "read_deepseek"),
    "kimi_k2": Architecture("DeepseekV3Config", "decoders", "read_deepseek"),  # runs the code of DeepSeek-V3
    "opt": Architecture("OPTConfig", "gpt", "read_opt"),
    "falcon": Architecture("FalconConfig", "gpt", "read_falcon"),
    "mpt": Architecture("MptConfig", "gpt", "read_mpt"),
    "dbrx": Architecture("DbrxConfig", "gpt", "read_dbrx"),
    "bert": Architecture("BertConfig", "encoders", "read_bert"),
    "roberta": Architecture("RobertaConfig", "encoders", "read_bert"),
    "xlm-roberta": Architecture("XLMRobertaConfig", "encoders", "read_bert"),
    "distilbert": Architecture("DistilBertConfig", "encoders", "read_bert"),
    "modernbert": Architecture("ModernBertConfig", "encoders", "read_modernbert"),
    "vit": Architecture("ViTConfig", "encoders", "read_vit"),
    "deit": Architecture("DeiTConfig", "encoders", "read_vit"),
    "dinov2": Architecture("Dinov2Config", "encoders", "read_dinov2"),
    "t5": Architecture("T5Config", "encoders", "read_t5"),
}

# Configs of several networks whose text part is in ``text_config`` -> the type of that part where it names none.
WITH_TEXT_PART = {
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
    "idefics3": "llama",
    "smolvlm": "llama",
    "paligemma": "gemma",
    "aya_vision": "cohere2",
    "kimi_k25": "kimi_k2",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
# What such files call the type of their text part -> the type that it is.
TEXT_PARTS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}

_RECURRENT = (
    "has layers of recurrent state (state-space, linear attention or gated recurrences), which no layer here stands for"
)
_SPEECH = "reads sound: its convolutions and encoder are not what the config of a decoder says"
_TWO_TOWERS = "is two networks trained on pairs"
_ENCODER_DECODER = "is an encoder-decoder of a kind that is not read here (T5 is)"
_NOT_A_TRANSFORMER = "is no plain stack of transformer blocks: convolutions or windows of an image"
_SPARSE = "picks the keys of each query by a learned index"
_PER_LAYER = "feeds each layer an embedding of its own, or shares keys and values between layers"
_RELATIVE = "mixes positions into its scores in a way that no attention here has"
_CHUNKED = "attends in chunks and mixes layers of several kinds"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            *(
                "mamba",
                "mamba2",
                "falcon_mamba",
                "rwkv",
                "xlstm",
                "jamba",
                "bamba",
                "zamba",
                "zamba2",
                "zaya",
                "nemotron_h",
            ),
            *(
                "granitemoehybrid",
                "falcon_h1",
                "recurrent_gemma",
                "qwen3_next",
                "qwen3_5",
                "qwen3_5_moe",
                "kimi_linear",
            ),
            *("minimax", "lfm2", "lfm2_moe", "olmo_hybrid", "bailing_hybrid"),
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(
        (
            "whisper",
            "wav2vec2",
            "hubert",
            "wavlm",
            "speecht5",
            "seamless_m4t",
            "speech_to_text",
            "moonshine",
            "voxtral",
        ),
        _SPEECH,
    ),
    **dict.fromkeys(("clip", "siglip", "siglip2", "blip", "blip-2", "align", "chinese_clip"), _TWO_TOWERS),
    **dict.fromkeys(
        ("bart", "mbart", "pegasus", "m2m_100", "marian", "led", "blenderbot", "mt5", "umt5", "switch_transformers"),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("swin", "swinv2", "convnext", "convnextv2", "resnet", "segformer", "detr", "sam", "mobilevit", "mobilenet_v2"),
        _NOT_A_TRANSFORMER,
    ),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), _SPARSE),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"), _PER_LAYER),
    **dict.fromkeys(("deberta", "deberta-v2", "xlnet", "longformer", "big_bird", "reformer"), _RELATIVE),
    **dict.fromkeys(("llama4", "llama4_text"), _CHUNKED),
}

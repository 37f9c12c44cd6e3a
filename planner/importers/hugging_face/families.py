"""Decoders as a table of facts (Llama and what came of it, the GPTs, Phi, BLOOM), and by whom each model type is read, or why it is not.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``); what
a comment says is in ``modeling_*.py`` beside it. InternLM 2 and Baichuan are not in transformers: their classes are in the repositories
of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = [
    "ARCHITECTURES",
    "DECODERS",
    "REFUSED",
    "TEXT_PARTS",
    "WITH_TEXT_PART",
    "Decoder",
    "MixtureOfExperts",
    "Switch",
]

# What most config classes call their sizes.
KEYS: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size",),
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "positions": ("max_position_embeddings",),
    "width": ("intermediate_size",),
}
# Fixed, or the key that decides and what the config class has where it is absent.
Switch = bool | tuple[str, bool]
HeadNorm = Literal["rms", "layer", "rms_wide", "layer_own"]
Windows = Literal["none", "all", "switched", "late", "early", "typed"]


class Sizes(NamedTuple):
    """Defaults of a config class; ``width`` 0: four times the width, unless the file says otherwise."""

    vocab: int
    hidden: int
    width: int
    layers: int
    heads: int
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The experts of a family.

    Attributes
    ----------
    experts : tuple
        Key of their number, its default, other names of the key.
    optional : bool
        That key may be null: then there are none.
    top_k : int, optional
        Default of ``num_experts_per_tok``; None: it has to be there.
    width : tuple
        Key of the hidden features of one, and its default.
    shared : tuple, optional
        Key of the number of experts that every token passes, and its default.
    shared_width : tuple, optional
        Key of their hidden features together (then there is one), and its default.
    shared_gate, bias, limited, router_bias : bool
        As in the layer ``moe``.
    groups, top_groups : int, optional
        ``n_group`` where it is absent (0: null): the router picks groups of experts first; ``topk_group`` where it is absent. None: the
        router picks no groups.
    layers : str
        Which layers have experts: "all", "step" (``decoder_sparse_step`` and ``mlp_only_layers``), "late" (from
        ``first_k_dense_replace`` on, ``first`` where it is absent) or "late_step" (those of these whose number ``moe_layer_freq`` divides).
    """

    experts: tuple[str, int, *tuple[str, ...]]
    optional: bool = False
    top_k: int | None
    width: tuple[str, int]
    shared: tuple[str, int] | None = None
    shared_width: tuple[str, int] | None = None
    shared_gate: bool = False
    bias: bool = False
    limited: bool = False
    router_bias: bool = False
    groups: int | None = None
    top_groups: int | None = None
    layers: Literal["all", "step", "late", "late_step"] = "all"
    first: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a config class has for absent keys, and what the architecture's code fixes.

    Attributes
    ----------
    title : str
        Beginning of the names of its classes.
    config_class, bare_class, head_class : str
        Where they are not the title with Config, Model and ForCausalLM behind it.
    sizes : Sizes
    keys : mapping
        What the config class calls the ``hidden`` width, ``layers``, ``heads``, ``positions`` and the ``width`` of the feed-forward part,
        and other names of each, where that is not as in `KEYS`.
    kv_heads, head_dim : int, optional
        None: as many as heads; hidden / heads.
    reads_kv, reads_head_dim : bool
        Whether the architecture has these keys.
    multi_query : Switch
        One head of keys and values.
    is_latent : bool
        Queries, keys and values go through narrow vectors.
    learned_positions, embedding_norm : bool
        A table of positions, and a norm behind the embedding.
    tied : bool
        ``tie_word_embeddings`` where it is absent.
    head_bias : bool
        Of the projection to the vocabulary.
    qkv_bias, proj_bias, mlp_bias : Switch
    activation : tuple
        Key and default; without a key it is fixed.
    gated : bool
        Three matrices in the feed-forward part; else two.
    norm : str
        "rms"; "layer", with scales and shifts; "layer_scale": without shifts; "layer_plain": without both.
    norms : str
        Where parts are normalised: "before"; "after" (before they are added); "both".
    parallel : Switch
        Attention and feed-forward part side by side, behind one norm or two (``parallel_norms``).
    residual_is_normed : Switch
        What a part is added to is normalised, too.
    head_norm : HeadNorm, optional
        Normalisation of queries and keys, as in the layer ``self_attention``.
    head_norm_if : Switch
        Whether it is there.
    sinks : bool
        A learned score per head in the softmax.
    window : int, optional
        ``sliding_window`` where it is absent.
    windows : Windows
        Which layers see a window: "none", "all", "typed" (by ``layer_types`` or ``period``), or, if ``use_sliding_window``, "switched"
        (all), "late" (from ``max_window_layers`` on) or "early" (the first, third, ... before it); "typed" heeds that switch, too,
        where there is no period.
    period : int
        Without ``layer_types``, every so manieth layer sees all positions, the others a window; ``sliding_window_pattern`` replaces it.
    residual_dropout, mlp_dropout, embedding_dropout : str
        Keys of dropout behind both parts, the feed-forward part and the embedding; empty: there are none.
    score_dropout : str
        Key of dropout of the attention weights.
    dropout : float
        What the config class has for all of them.
    refused : tuple
        Keys with the only value that can be read, and why.
    experts : MixtureOfExperts, optional
    """

    title: str
    sizes: Sizes
    config_class: str = ""
    bare_class: str = ""
    head_class: str = ""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kv_heads: int | None = None
    head_dim: int | None = None
    reads_kv: bool = True
    reads_head_dim: bool = True
    multi_query: Switch = False
    is_latent: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False
    tied: bool = False
    head_bias: bool = False
    qkv_bias: Switch = False
    proj_bias: Switch = False
    mlp_bias: Switch = False
    activation: tuple[str, str] = ("hidden_act", "silu")
    gated: bool = True
    norm: Literal["rms", "layer", "layer_scale", "layer_plain"] = "rms"
    norms: Literal["before", "after", "both"] = "before"
    parallel: Switch = False
    parallel_norms: int = 1
    residual_is_normed: Switch = False
    head_norm: HeadNorm | None = None
    head_norm_if: Switch = True
    sinks: bool = False
    window: int | None = None
    windows: Windows = "none"
    period: int = 0
    residual_dropout: str = ""
    mlp_dropout: str = ""
    embedding_dropout: str = ""
    score_dropout: str = "attention_dropout"
    dropout: float = 0.0
    refused: tuple[tuple[str, bool, str], ...] = ()
    experts: MixtureOfExperts | None = None

    @property
    def all_keys(self) -> dict[str, tuple[str, ...]]:
        """Keys of all sizes."""
        return {**KEYS, **self.keys}


_BIAS = ("attention_bias", False)
_BIASES: dict[str, Any] = {"qkv_bias": _BIAS, "proj_bias": _BIAS}
_LLAMA: dict[str, Any] = {**_BIASES, "mlp_bias": ("mlp_bias", False)}
_GELU = ("hidden_activation", "gelu_pytorch_tanh")
_GEMMA_2: dict[str, Any] = {
    **_BIASES,
    "tied": True,
    "kv_heads": 4,
    "head_dim": 256,
    "activation": _GELU,
    "norms": "both",
    "window": 4096,
    "windows": "typed",
}
_QWEN_3: dict[str, Any] = {**_BIASES, "head_norm": "rms", "window": 4096}
# Queries, keys and values of GLM have biases, the projection has none.
_GLM: dict[str, Any] = {"kv_heads": 2, "head_dim": 128, "qkv_bias": ("attention_bias", True)}
# OLMo 2 normalises what parts return, and all heads of queries (of keys) together.
_OLMO_2: dict[str, Any] = {**_BIASES, "norms": "after", "head_norm": "rms_wide"}
_COHERE: dict[str, Any] = {**_BIASES, "tied": True, "norm": "layer_scale", "parallel": True}

_GPT: dict[str, Any] = {
    "keys": {
        "hidden": ("n_embd", "hidden_size"),
        "layers": ("n_layer", "num_hidden_layers"),
        "heads": ("n_head", "num_attention_heads"),
        "positions": ("n_positions", "max_position_embeddings"),
        "width": ("n_inner",),
    },
    "reads_kv": False,
    "reads_head_dim": False,
    "mlp_bias": True,
    "gated": False,
    "norm": "layer",
    "residual_dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "score_dropout": "attn_pdrop",
}
_GPT_2: dict[str, Any] = {
    **_GPT,
    "sizes": Sizes(50257, 768, 0, 12, 12, 1024),
    "learned_positions": True,
    "tied": True,
    "qkv_bias": True,
    "proj_bias": True,
    "dropout": 0.1,
    "refused": (("add_cross_attention", False, "cross-attention in a decoder without an encoder cannot be read"),),
}
_DEEPSEEK: dict[str, Any] = {"is_latent": True, "reads_kv": False, "reads_head_dim": False, "head_dim": 128}
_ROUTED = ("n_routed_experts", 256, "num_experts", "num_local_experts")
_DEEPSEEK_3: dict[str, Any] = {
    **_DEEPSEEK,
    "title": "DeepseekV3",
    "sizes": Sizes(129280, 7168, 18432, 61, 128, 4096),
    "experts": MixtureOfExperts(
        experts=_ROUTED,
        optional=True,
        top_k=8,
        width=("moe_intermediate_size", 2048),
        shared=("n_shared_experts", 1),
        router_bias=True,  # balances the load
        groups=8,
        top_groups=4,
        layers="late_step",
        first=3,
    ),
}
_PLAIN: dict[str, Any] = {"reads_head_dim": False, "mlp_bias": True, "gated": False, "norm": "layer"}

DECODERS: dict[str, Decoder] = {
    "llama": Decoder(title="Llama", sizes=Sizes(32000, 4096, 11008, 32, 32, 2048), **_LLAMA),
    "mistral": Decoder(
        title="Mistral", sizes=Sizes(32000, 4096, 14336, 32, 32, 131072), kv_heads=8, window=4096, windows="all"
    ),
    "ministral3": Decoder(
        title="Ministral3", sizes=Sizes(131072, 4096, 14336, 34, 32, 262144), kv_heads=8, head_dim=128, windows="all"
    ),
    "mixtral": Decoder(
        title="Mixtral",
        sizes=Sizes(32000, 4096, 14336, 32, 32, 131072),
        kv_heads=8,
        windows="all",
        experts=MixtureOfExperts(
            experts=("num_local_experts", 8, "num_experts"), top_k=2, width=("intermediate_size", 14336)
        ),
    ),
    "qwen2": Decoder(  # biases of queries, keys and values, none of the projection
        title="Qwen2",
        sizes=Sizes(151936, 4096, 22016, 32, 32, 32768),
        kv_heads=32,
        qkv_bias=True,
        reads_head_dim=False,
        window=4096,
        windows="late",
    ),
    "qwen2_moe": Decoder(
        title="Qwen2Moe",
        sizes=Sizes(151936, 2048, 5632, 24, 16, 32768),
        kv_heads=16,
        qkv_bias=("qkv_bias", True),
        reads_head_dim=False,
        window=4096,
        windows="early",
        experts=MixtureOfExperts(
            experts=("num_experts", 60, "num_local_experts"),
            top_k=4,
            width=("moe_intermediate_size", 1408),
            shared_width=("shared_expert_intermediate_size", 5632),
            shared_gate=True,
            layers="step",
        ),
    ),
    "qwen3": Decoder(
        title="Qwen3",
        sizes=Sizes(151936, 4096, 22016, 32, 32, 32768),
        kv_heads=32,
        head_dim=128,
        windows="late",
        **_QWEN_3,
    ),
    "qwen3_moe": Decoder(
        title="Qwen3Moe",
        sizes=Sizes(151936, 2048, 6144, 24, 32, 32768),
        kv_heads=4,
        windows="switched",
        **_QWEN_3,
        experts=MixtureOfExperts(
            experts=("num_experts", 128, "num_local_experts"),
            top_k=8,
            width=("moe_intermediate_size", 768),
            layers="step",
        ),
    ),
    "gemma": Decoder(
        title="Gemma",
        sizes=Sizes(256000, 3072, 24576, 28, 16, 8192),
        kv_heads=16,
        head_dim=256,
        tied=True,
        # Published files say "gelu" in hidden_act; the code runs the tanh form either way.
        activation=("hidden_act", "gelu_pytorch_tanh"),
        **_BIASES,
    ),
    "gemma2": Decoder(title="Gemma2", sizes=Sizes(256000, 2304, 9216, 26, 8, 8192), period=2, **_GEMMA_2),
    "gemma3_text": Decoder(
        title="Gemma3",
        config_class="Gemma3TextConfig",
        bare_class="Gemma3TextModel",
        sizes=Sizes(262208, 2304, 9216, 26, 8, 131072),
        period=6,
        head_norm="rms",
        **_GEMMA_2,
    ),
    "phi3": Decoder(
        title="Phi3",
        sizes=Sizes(32064, 3072, 8192, 32, 32, 4096),
        reads_head_dim=False,
        windows="all",
        residual_dropout="resid_pdrop",
        embedding_dropout="embd_pdrop",
    ),
    "gpt_oss": Decoder(
        title="GptOss",
        sizes=Sizes(201088, 2880, 2880, 36, 64, 131072),
        kv_heads=8,
        head_dim=64,
        qkv_bias=("attention_bias", True),
        proj_bias=("attention_bias", True),
        sinks=True,
        window=128,
        windows="typed",
        period=2,
        experts=MixtureOfExperts(
            experts=("num_local_experts", 128, "num_experts"),
            top_k=4,
            width=("intermediate_size", 2880),
            bias=True,
            limited=True,
            router_bias=True,
        ),
    ),
    "glm": Decoder(title="Glm", sizes=Sizes(151552, 4096, 13696, 40, 32, 131072), **_GLM),
    "glm4": Decoder(title="Glm4", sizes=Sizes(151552, 4096, 13696, 40, 32, 131072), norms="both", **_GLM),
    "glm4_moe": Decoder(
        title="Glm4Moe",
        sizes=Sizes(151552, 4096, 10944, 46, 96, 131072),
        kv_heads=8,
        qkv_bias=_BIAS,
        head_norm="rms",
        head_norm_if=("use_qk_norm", False),
        experts=MixtureOfExperts(
            experts=("n_routed_experts", 128, "num_local_experts"),
            top_k=8,
            width=("moe_intermediate_size", 1408),
            shared=("n_shared_experts", 1),
            router_bias=True,  # balances the load, as DeepSeek-V3's
            groups=1,
            layers="late",
        ),
    ),
    "olmo": Decoder(title="Olmo", sizes=Sizes(50304, 4096, 11008, 32, 32, 2048), norm="layer_plain", **_BIASES),
    "olmo2": Decoder(title="Olmo2", sizes=Sizes(50304, 4096, 11008, 32, 32, 2048), **_OLMO_2),
    "olmo3": Decoder(
        title="Olmo3", sizes=Sizes(50304, 4096, 11008, 32, 32, 2048), window=4096, windows="typed", period=4, **_OLMO_2
    ),
    "olmoe": Decoder(
        title="Olmoe",
        sizes=Sizes(50304, 2048, 2048, 16, 16, 4096),
        reads_head_dim=False,
        head_norm="rms_wide",
        experts=MixtureOfExperts(
            experts=("num_experts", 64, "num_local_experts"), top_k=8, width=("intermediate_size", 2048)
        ),
        **_BIASES,
    ),
    "smollm3": Decoder(
        title="SmolLM3",
        sizes=Sizes(128256, 2048, 11008, 36, 16, 32768),
        kv_heads=4,
        tied=True,
        windows="typed",
        **_LLAMA,
    ),
    "granite": Decoder(title="Granite", sizes=Sizes(32000, 4096, 11008, 32, 32, 2048), **_LLAMA),
    "granitemoe": Decoder(
        title="GraniteMoe",
        sizes=Sizes(32000, 4096, 11008, 32, 32, 2048),
        experts=MixtureOfExperts(
            experts=("num_local_experts", 8, "num_experts"), top_k=2, width=("intermediate_size", 11008)
        ),
        **_BIASES,
    ),
    "starcoder2": Decoder(
        title="Starcoder2",
        sizes=Sizes(49152, 3072, 12288, 30, 24, 4096),
        kv_heads=2,
        tied=True,
        qkv_bias=("use_bias", True),
        proj_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        activation=("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        norm="layer",
        windows="all",
        residual_dropout="residual_dropout",
        embedding_dropout="embedding_dropout",
    ),
    "nemotron": Decoder(
        title="Nemotron",
        sizes=Sizes(256000, 6144, 24576, 32, 48, 4096),
        activation=("hidden_act", "relu2"),
        gated=False,
        norm="layer",
        **_LLAMA,
    ),
    "stablelm": Decoder(
        title="StableLm",
        sizes=Sizes(50304, 2560, 6912, 32, 32, 4096),
        kv_heads=32,
        reads_head_dim=False,
        qkv_bias=("use_qkv_bias", False),
        norm="layer",
        parallel=("use_parallel_residual", False),
        head_norm="layer_own",
        head_norm_if=("qk_layernorm", False),
        mlp_dropout="hidden_dropout",
    ),
    "cohere": Decoder(
        title="Cohere",
        sizes=Sizes(256000, 8192, 22528, 40, 64, 8192),
        head_norm="layer_own",
        head_norm_if=("use_qk_norm", False),
        **_COHERE,
    ),
    "cohere2": Decoder(
        title="Cohere2",
        sizes=Sizes(256000, 8192, 22528, 40, 64, 8192),
        reads_head_dim=False,
        window=4096,
        windows="typed",
        period=4,
        **_COHERE,
    ),
    "internlm2": Decoder(
        title="InternLM2",
        sizes=Sizes(103168, 4096, 11008, 32, 32, 2048),
        reads_head_dim=False,
        qkv_bias=("bias", True),
        proj_bias=("bias", True),
    ),
    "baichuan": Decoder(
        title="Baichuan",
        sizes=Sizes(125696, 4096, 11008, 32, 32, 4096),
        keys={"positions": ("max_position_embeddings", "model_max_length")},  # the 13B networks have the latter alone
        reads_kv=False,
        reads_head_dim=False,
    ),
    "seed_oss": Decoder(
        title="SeedOss",
        sizes=Sizes(155136, 4096, 27648, 64, 80, 524288),
        kv_heads=8,
        head_dim=128,
        qkv_bias=("attention_bias", True),
        proj_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
        residual_dropout="residual_dropout",
        dropout=0.1,
    ),
    "ernie4_5": Decoder(
        title="Ernie4_5",
        sizes=Sizes(103424, 1024, 3072, 18, 16, 131072),
        kv_heads=2,
        head_dim=128,
        tied=True,
        qkv_bias=("use_bias", False),
        proj_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
    ),
    "exaone4": Decoder(
        title="Exaone4",
        sizes=Sizes(102400, 4096, 16384, 32, 32, 2048),
        kv_heads=32,
        norms="after",
        head_norm="rms",
        window=4096,
        windows="typed",
        period=4,
    ),
    "minimax_m2": Decoder(
        title="MiniMaxM2",
        sizes=Sizes(200064, 3072, 1536, 62, 48, 196608),
        kv_heads=8,
        head_dim=128,
        head_norm="rms_wide",
        experts=MixtureOfExperts(
            experts=("num_local_experts", 256, "num_experts"),
            top_k=8,
            width=("intermediate_size", 1536),
            router_bias=True,
        ),
    ),
    "deepseek_v2": Decoder(
        title="DeepseekV2",
        sizes=Sizes(32000, 4096, 11008, 32, 32, 2048),
        mlp_bias=("mlp_bias", False),
        experts=MixtureOfExperts(
            experts=("n_routed_experts", 64, *_ROUTED[2:]),
            optional=True,
            top_k=None,
            width=("moe_intermediate_size", 1407),
            shared=("n_shared_experts", 2),
            groups=0,
            layers="late_step",
            first=0,
        ),
        **_DEEPSEEK,
    ),
    "deepseek_v3": Decoder(**_DEEPSEEK_3),
    "kimi_k2": Decoder(**_DEEPSEEK_3),  # runs the code of DeepSeek-V3
    "gpt2": Decoder(
        title="GPT2", head_class="GPT2LMHeadModel", activation=("activation_function", "gelu_new"), **_GPT_2
    ),
    "gpt_bigcode": Decoder(  # the same with one head of keys and values
        title="GPTBigCode",
        multi_query=("multi_query", True),
        activation=("activation_function", "gelu_pytorch_tanh"),
        **_GPT_2,
    ),
    "gptj": Decoder(  # rotary positions, one norm for both parts, a bias in the head and none in attention
        title="GPTJ",
        sizes=Sizes(50400, 4096, 0, 28, 16, 2048),
        head_bias=True,
        activation=("activation_function", "gelu_new"),
        parallel=True,
        **_GPT,
    ),
    "gpt_neox": Decoder(  # two norms that read the same input
        title="GPTNeoX",
        sizes=Sizes(50432, 6144, 24576, 44, 64, 2048),
        reads_kv=False,
        qkv_bias=("attention_bias", True),
        proj_bias=("attention_bias", True),
        activation=("hidden_act", "gelu"),
        parallel=("use_parallel_residual", True),
        parallel_norms=2,
        residual_dropout="hidden_dropout",
        embedding_dropout="hidden_dropout",
        **_PLAIN,
    ),
    "phi": Decoder(  # one norm for both parts, biases everywhere, the head's included
        title="Phi",
        sizes=Sizes(51200, 2048, 8192, 24, 32, 2048),
        qkv_bias=True,
        proj_bias=True,
        head_bias=True,
        activation=("hidden_act", "gelu_new"),
        parallel=True,
        head_norm="layer",
        head_norm_if=("qk_layernorm", False),
        residual_dropout="resid_pdrop",
        embedding_dropout="embd_pdrop",
        **_PLAIN,
    ),
    "bloom": Decoder(  # ALiBi, a norm behind the embedding
        title="Bloom",
        # seq_length is no field of BloomConfig, but of the files of the published networks; 2048 is what all of them were trained with
        # (arXiv:2211.05100, table 3).
        sizes=Sizes(250880, 64, 0, 2, 8, 2048),
        keys={
            "hidden": ("hidden_size", "n_embed"),
            "layers": ("n_layer", "num_hidden_layers"),
            "heads": ("n_head", "num_attention_heads"),
            "positions": ("seq_length",),
            "width": ("n_inner",),
        },
        reads_kv=False,
        embedding_norm=True,
        tied=True,
        qkv_bias=True,
        proj_bias=True,
        activation=("", "gelu"),
        residual_is_normed=("apply_residual_connection_post_layernorm", False),
        residual_dropout="hidden_dropout",
        **_PLAIN,
    ),
}


# -- all model types ----------------------------------------------------------------------------------------------------------


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
    "opt": Architecture("OPTConfig", "decoders", "read_opt"),
    "falcon": Architecture("FalconConfig", "decoders", "read_falcon"),
    "mpt": Architecture("MptConfig", "decoders", "read_mpt"),
    "dbrx": Architecture("DbrxConfig", "decoders", "read_dbrx"),
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

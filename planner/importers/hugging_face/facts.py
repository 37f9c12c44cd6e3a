"""What is fixed about a family of decoders: what its config class has for absent keys, and what its code does with the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Decoder", "HeadNorm", "MixtureOfExperts", "Sizes", "Switch", "Windows"]

# Fixed, or the key that decides and what the config class has where it is absent.
Switch = bool | tuple[str, bool]
HeadNorm = Literal["rms", "layer", "rms_wide", "layer_own"]
Windows = Literal["none", "all", "switched", "late", "early", "typed"]


class Sizes(NamedTuple):
    """Defaults of a config class."""

    vocab: int
    hidden: int
    intermediate: int
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
    top_k : int
        Default of ``num_experts_per_tok``.
    width : tuple
        Key of the hidden features of one, and its default.
    shared : tuple, optional
        Key of the number of experts that every token passes, and its default.
    shared_width : tuple, optional
        Key of their hidden features together (then there is one), and its default.
    shared_gate, bias, limited, router_bias : bool
        As in the layer ``moe``.
    groups : int, optional
        ``n_group`` where it is absent: the router picks groups of experts first (``topk_group`` of them); None: it does not.
    layers : str
        Which layers have experts: "all", "step" (``decoder_sparse_step`` and ``mlp_only_layers``) or "late" (from
        ``first_k_dense_replace`` on, 1 where it is absent).
    """

    experts: tuple[str, int, *tuple[str, ...]]
    top_k: int
    width: tuple[str, int]
    shared: tuple[str, int] | None = None
    shared_width: tuple[str, int] | None = None
    shared_gate: bool = False
    bias: bool = False
    limited: bool = False
    router_bias: bool = False
    groups: int | None = None
    layers: Literal["all", "step", "late"] = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a config class has for absent keys, and what the architecture's code fixes.

    Attributes
    ----------
    title : str
        Beginning of the names of its classes.
    config_class, bare_class : str
        Where they are not the title with Config and Model behind it.
    sizes : Sizes
    kv_heads, head_dim : int, optional
        None: as many as heads; hidden / heads.
    reads_kv, reads_head_dim : bool
        Whether the architecture has these keys.
    position_keys : tuple
        Other names of ``max_position_embeddings``.
    tied : bool
        ``tie_word_embeddings`` where it is absent.
    qkv_bias, proj_bias, mlp_bias : Switch
    activation : tuple
        Key and default.
    gated : bool
        Three matrices in the feed-forward part; else two.
    norm : str
        "rms"; "layer", with scales and shifts; "layer_scale": without shifts; "layer_plain": without both.
    norms : str
        Where parts are normalised: "before"; "after" (before they are added); "both".
    parallel : Switch
        Attention and feed-forward part side by side, behind one norm.
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
    dropout : float
        What the config class has for them and for ``attention_dropout``.
    experts : MixtureOfExperts, optional
    """

    title: str
    sizes: Sizes
    config_class: str = ""
    bare_class: str = ""
    kv_heads: int | None = None
    head_dim: int | None = None
    reads_kv: bool = True
    reads_head_dim: bool = True
    position_keys: tuple[str, ...] = ()
    tied: bool = False
    qkv_bias: Switch = False
    proj_bias: Switch = False
    mlp_bias: Switch = False
    activation: tuple[str, str] = ("hidden_act", "silu")
    gated: bool = True
    norm: Literal["rms", "layer", "layer_scale", "layer_plain"] = "rms"
    norms: Literal["before", "after", "both"] = "before"
    parallel: Switch = False
    head_norm: HeadNorm | None = None
    head_norm_if: Switch = True
    sinks: bool = False
    window: int | None = None
    windows: Windows = "none"
    period: int = 0
    residual_dropout: str = ""
    mlp_dropout: str = ""
    embedding_dropout: str = ""
    dropout: float = 0.0
    experts: MixtureOfExperts | None = None

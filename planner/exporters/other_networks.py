"""Transformers that are no plain decoder (encoders, encoder-decoders, latent attention), as Megatron-LM's arguments say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.network.sizes import NetworkKind, encoder_sizes_of, network_kind, vocabulary_of

Arguments = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNetwork:
    """A network that `costmodel.network.sizes.NetworkSizes` does not describe.

    Attributes
    ----------
    kind : str
    script : str
        Megatron-LM's program that trains it, in its copy (moved by commit 547fb1713); empty where there is none.
    arguments : tuple
        For that program; empty where they do not describe the network.
    """

    kind: NetworkKind
    script: str = ""
    arguments: Arguments = ()


def other_network_of(graph: Graph) -> OtherNetwork:
    """Say what a network is that is no plain decoder.

    Examples
    --------
    >>> from planner.importers.networks import load_model
    >>> other_network_of(load_model("bert-large").graph).script
    'examples/bert/pretrain_bert.py'
    >>> other_network_of(load_model("t5-11b").graph).arguments[:2]
    (('--encoder-num-layers', '24'), ('--decoder-num-layers', '24'))
    """
    groups, kind = tuple(graph.blocks.values()), network_kind(graph)
    attentions = [layer for block in groups for layer in _of(block, "self_attention")]
    if kind == "encoder-decoder":
        return OtherNetwork(kind=kind, script="examples/t5/pretrain_t5.py", arguments=_t5(graph, groups, attentions))
    if any(_of(block, "latent_attention") for block in groups):
        return OtherNetwork(kind=kind, script="pretrain_gpt.py", arguments=_latent(graph, groups))
    if kind in ("encoder", "other encoder"):
        return OtherNetwork(kind=kind, script="examples/bert/pretrain_bert.py", arguments=_bert(graph, groups))
    return OtherNetwork(kind=kind, script="" if kind == "no transformer" else "pretrain_gpt.py")


def _encoder_arguments(graph: Graph) -> Arguments | None:
    """What every block of a BERT or T5 agrees on."""
    sizes = encoder_sizes_of(graph)
    if sizes is None:
        return None
    return (
        ("--hidden-size", str(sizes.hidden)),
        ("--num-attention-heads", str(sizes.heads)),
        ("--kv-channels", str(sizes.head_dim)),
        ("--ffn-hidden-size", str(sizes.ffn)),
        ("--vocab-size", str(sizes.vocabulary)),
    )


def _bert(graph: Graph, groups: Sequence[Sequence[Layer]]) -> Arguments:
    """pretrain_bert.py: learned positions and both heads are its defaults."""
    sizes = _encoder_arguments(graph)
    if sizes is None or any(len(_of(block, "self_attention")) != 1 for block in groups):
        return ()
    norm = "RMSNorm" if any(_of(block, "rms_norm") for block in groups) else "LayerNorm"
    return (("--num-layers", str(len(groups))), *sizes, ("--normalization", norm))


def _t5(graph: Graph, groups: Sequence[Sequence[Layer]], attentions: Sequence[Layer]) -> Arguments:
    """pretrain_t5.py: --seq-length is the encoder's."""
    sizes = _encoder_arguments(graph)
    decoders = [block for block in groups if _of(block, "cross_attention")]
    if sizes is None or len(decoders) == len(groups):
        return ()
    buckets = max(layer.params.relative_buckets for layer in attentions)
    positions = ("relative", "--relative-attention-num-buckets", str(buckets)) if buckets else ("learned_absolute",)
    norm = "RMSNorm" if any(_of(block, "rms_norm") for block in groups) else "LayerNorm"
    has_bias = any(layer.params.bias for block in groups for layer in _of(block, "linear"))
    return (
        ("--encoder-num-layers", str(len(groups) - len(decoders))),
        ("--decoder-num-layers", str(len(decoders))),
        *sizes,
        ("--decoder-seq-length", str(_of(decoders[0], "cross_attention")[0].output_shape[1])),
        ("--normalization", norm),
        ("--position-embedding-type", *positions),
        *(() if has_bias else (("--disable-bias-linear",),)),
    )


def _of(block: Sequence[Layer], kind: str) -> list[Layer]:
    return [layer for layer in block if layer.kind == kind]


def _latent(graph: Graph, groups: Sequence[Sequence[Layer]]) -> Arguments:
    """Latent attention with dense blocks and then blocks of experts, as DeepSeek-V2 and -V3 have them."""
    dense = [block for block in groups if not _of(block, "moe")]
    mixtures = [block for block in groups if _of(block, "moe")]
    by_name = {layer.name.rsplit("/", 1)[-1]: layer for layer in groups[0] if layer.kind == "linear"}
    attention = _of(groups[0], "latent_attention")[0]
    kv_b = next(
        (layer for layer in by_name.values() if layer.params.out_features == attention.input_shapes[1][0]), None
    )
    q_b = next((layer for layer in by_name.values() if layer.params.out_features == attention.input_shapes[0][0]), None)
    if not mixtures or kv_b is None or q_b is None or groups[: len(dense)] != tuple(dense):
        return ()
    p, experts = attention.params, _of(mixtures[0], "moe")[0].params
    hidden, query_rank = groups[0][0].input_shapes[0][0], q_b.input_shapes[0][0]
    ffn = _of(dense[0], "linear")[-1].input_shapes[0][0] if dense else experts.ffn
    shared = (experts.shared_ffn or experts.shared_experts * experts.ffn) if experts.shared_experts else 0
    head = next((layer for layer in graph.layers if layer.kind == "linear" and not layer.block), None)
    optional = {
        ("--q-lora-rank", str(query_rank)): query_rank != hidden,
        ("--moe-shared-expert-intermediate-size", str(shared)): shared > 0,
        (
            *("--experimental-attention-variant", "dsa", "--dsa-indexer-topk", str(p.selected)),
            *("--dsa-indexer-n-heads", str(p.index_heads), "--dsa-indexer-head-dim", str(p.index_dim)),
        ): p.selected > 0,
        ("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"): experts.router_bias,
        ("--untie-embeddings-and-output-weights",): head is not None and not head.params.tied,
    }
    return (
        ("--num-layers", str(len(groups))),
        ("--hidden-size", str(hidden)),
        ("--num-attention-heads", str(p.heads)),
        ("--ffn-hidden-size", str(ffn)),
        ("--vocab-size", str(vocabulary_of(graph))),
        ("--normalization", "RMSNorm"),
        ("--position-embedding-type", "rope"),
        ("--swiglu",),
        ("--disable-bias-linear",),
        ("--multi-latent-attention",),
        ("--qk-layernorm",),
        ("--kv-lora-rank", str(kv_b.input_shapes[0][0])),
        ("--qk-head-dim", str(p.nope_dim)),
        ("--qk-pos-emb-head-dim", str(p.rope_dim)),
        ("--v-head-dim", str(p.value_dim)),
        ("--num-experts", str(experts.experts)),
        ("--moe-router-topk", str(experts.top_k)),
        ("--moe-ffn-hidden-size", str(experts.ffn)),
        ("--moe-layer-freq", f"[0]*{len(dense)}+[1]*{len(mixtures)}"),
        ("--moe-grouped-gemm",),
        *(words for words, is_given in optional.items() if is_given),
    )

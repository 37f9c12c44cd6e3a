"""Rows about networks that are no plain stack of blocks: mixtures of experts, encoders with decoders, patches of images."""

from __future__ import annotations

import re
from dataclasses import dataclass

from costmodel.network.graph import Graph
from planner.measurements.tables import Row, RowSkipped

__all__ = ["ExpertShape", "agrees", "check_count", "experts_of", "is_particular", "stack_of", "widths_of"]

# "Mixtral 8x7B", "Qwen3-30B-A3B", "GPT MoE": names of mixtures.
_MIXTURE = re.compile(r"\bmoe\b|mixture|\bexperts?\b|\b\d+ ?x ?\d+(?:\.\d+)?b\b|\ba\d+(?:\.\d+)?b\b|mixtral")
_TOP_K = 2  # Lepikhin et al., GShard (arXiv:2006.16668), section 2.2; Mixtral's, too (arXiv:2401.04088)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Experts of a block, as the columns ``experts``, ``top_k`` and ``expert_ffn`` state them."""

    count: int
    top_k: int
    ffn: int  # inner width of one; 0: that of the column ffn


def experts_of(row: Row) -> ExpertShape | None:
    """The experts in every block; None where the network has none.

    Raises
    ------
    RowSkipped
        The row is about a mixture and does not say of how many experts: a dense network of its widths would be another.

    Examples
    --------
    >>> experts_of(Row(line=2, cells={"experts": "8"}))
    ExpertShape(count=8, top_k=2, ffn=0)
    """
    count = row.count("experts")
    if count is None:
        if _says_mixture(row) or (row.count("ep") or 1) > 1:
            raise RowSkipped(
                "a network with experts that no column counts (experts, top_k, expert_ffn), and no bundled one of its name and shape",
                usable=True,
            )
        return None
    top_k = row.count("top_k") or row.default("top_k", min(_TOP_K, count))
    if top_k > count:
        raise RowSkipped("top_k is above the number of experts")
    return ExpertShape(count=count, top_k=top_k, ffn=row.count("expert_ffn") or 0)


# Published numbers differ by what is counted (embeddings, padding, rounding); dense networks with other parts by up to twice.
_FAR = 3.0
_LABELS_BELOW = 1e5  # what is above is no number of billions


def check_count(row: Row, graph: Graph) -> None:
    """Refuse widths that have far fewer weights than the row states: of a mixture those of one expert, most often.

    Raises
    ------
    RowSkipped
        Column ``params_b`` is over three times what the widths have.
    """
    billions = None if row.has("experts") else row.positive("params_b")
    if billions is not None and billions < _LABELS_BELOW and 1e9 * billions > _FAR * graph.weight_count:
        raise RowSkipped(
            "params_b is over three times what hidden, layers and ffn have: experts that no column counts (experts, top_k, expert_ffn)?",
            usable=True,
        )


def _says_mixture(row: Row) -> bool:
    """Whether the name says so, or the kind of the network does ("MoE/other" leaves it open)."""
    model, net = (re.sub(r"[_\-]", " ", row.text(name).lower()) for name in ("model", "net"))
    return bool(_MIXTURE.search(model) or ("other" not in net and _MIXTURE.search(net)))


def is_particular(graph: Graph) -> bool:
    """Whether hidden size, layers and heads do not say what a network is: experts, two stacks, or images."""
    return bool({"moe", "cross_attention"} & set(graph.kinds)) or graph.layers[0].output_shape[0] != 1


def agrees(row: Row, graph: Graph) -> bool:
    """Whether a row's hidden size, layers and heads are those of a network; of an encoder and a decoder either the one or both count.

    >>> from planner.files.loading import load_model
    >>> cells = {"hidden": "1024", "layers": "24", "heads": "16"}
    >>> agrees(Row(line=2, cells=cells), load_model("t5-large").graph), agrees(Row(line=2, cells=cells), load_model("t5-base").graph)
    (True, False)
    """
    stack = stack_of(graph)
    if not stack:
        return False
    layers = int(stack["layers"])
    crossed = sum(layer.kind == "cross_attention" for layer in graph.layers)
    return row.count("layers") in (layers, layers - crossed) and all(
        row.count(name) == int(stack[name]) for name in ("hidden", "heads")
    )


def stack_of(graph: Graph) -> dict[str, str]:
    """What the columns hidden, layers and heads would say of a network; nothing where it has no attention.

    >>> from planner.files.loading import load_model
    >>> stack_of(load_model("llama3-8b").graph)
    {'hidden': '4096', 'layers': '32', 'heads': '32'}
    """
    attention = [layer for layer in graph.layers if layer.kind in ("self_attention", "latent_attention")]
    if not attention:
        return {}
    hidden = max(layer.output_shape[0] for layer in graph.layers if layer.kind in ("layer_norm", "rms_norm"))
    return {"hidden": str(hidden), "layers": str(len(attention)), "heads": str(attention[0].params.heads)}


def widths_of(graph: Graph) -> dict[str, str]:
    """What the columns kv_heads, head_dim, ffn and vocab would say of a network that is a plain stack of blocks.

    >>> from planner.files.loading import load_model
    >>> widths_of(load_model("llama3-8b").graph)
    {'kv_heads': '8', 'head_dim': '128', 'ffn': '14336', 'vocab': '128256'}
    """
    found: dict[str, str] = {}
    rows = 0  # of the largest embedding: BERT has one for segments, too
    for layer in graph.layers:
        if layer.kind == "self_attention":
            heads = layer.params.heads
            found.setdefault("kv_heads", str(layer.params.kv_heads or heads))
            found.setdefault("head_dim", str(layer.params.head_dim or layer.output_shape[0] // heads))
        elif layer.kind in ("glu", "activation") and layer.block:
            found.setdefault("ffn", str(layer.output_shape[0]))
        elif layer.kind == "embedding":
            rows = max(rows, layer.params.num_embeddings)
            found["vocab"] = str(rows)
    return {name: found[name] for name in ("kv_heads", "head_dim", "ffn", "vocab") if name in found}

"""The network that a launch script describes, compared with the one that is named beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from planner.core.errors import UsageError

if TYPE_CHECKING:
    from costmodel.network.graph import Graph

__all__ = ["check_network", "sizes_of_network"]


def sizes_of_network(graph: Graph) -> dict[str, int]:
    """Sizes of a transformer by the names that launch scripts have; those that its blocks do not agree on are left out.

    Examples
    --------
    >>> from planner.files.loading import load_model
    >>> sizes = sizes_of_network(load_model("llama3-8b").graph)
    >>> sizes["layers"], sizes["hidden"], sizes["kv_heads"], sizes["ffn"]
    (32, 4096, 8, 14336)
    """
    from planner.exporters.network import sizes_of

    plain = sizes_of(graph)
    if plain is not None:
        names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "top_k")
        sizes = {name: getattr(plain, name) for name in names}
        return sizes | ({"expert_ffn": plain.ffn} if plain.experts else {"ffn": plain.ffn})
    inside = [layer for layer in graph.layers if layer.block]
    if any(layer.kind == "cross_attention" for layer in inside):
        return {}  # an encoder and a decoder: one number of layers does not describe both
    attentions = [layer for layer in inside if layer.kind == "self_attention"]
    heads = {layer.params.heads for layer in attentions}
    widths = {layer.output_shape[0] for layer in inside if layer.kind == "add"}
    found = {"layers": {len({layer.block for layer in inside})}, "heads": heads, "hidden": widths}
    return {name: values.pop() for name, values in found.items() if len(values) == 1 and inside}


def check_network(stated: Mapping[str, tuple[str, int]], graph: Graph, model: str) -> None:
    """Compare what a file states of its network with the network that is predicted.

    Parameters
    ----------
    stated : mapping
        Flag -> (a name of `sizes_of_network`, its number).
    graph : Graph
    model : str
        Its name, for the message.

    Raises
    ------
    UsageError
        Names the flags that differ.
    """
    sizes = sizes_of_network(graph)
    if "expert_ffn" in sizes and not any(name == "expert_ffn" for name, _ in stated.values()):
        sizes["ffn"] = sizes["expert_ffn"]  # Megatron's experts have --ffn-hidden-size unless they have their own
    differ = [
        f"{flag} {number} (it has {sizes[name]})"
        for flag, (name, number) in stated.items()
        if name in sizes and sizes[name] != number
    ]
    if differ:
        raise UsageError(f"MODEL {model}: is another network than that of the script: {', '.join(differ)}")

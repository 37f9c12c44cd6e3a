"""Positions of a sample: what the column ``seq`` means, and bundled networks at another length than they were published for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from costmodel.network.graph import Graph, GraphError, LayerSpec
from planner.measurements.tables import Row, RowSkipped

__all__ = ["bundled_transformer", "positions_of", "positions_stated"]

_MOST = 10**8  # ten times what any published transformer has
_PATCH = 16  # of most networks for patches (Dosovitskiy et al., arXiv:2010.11929)


def positions_stated(row: Row, style: str) -> int | None:
    """The column ``seq``; of networks for patches it may be the side of the images: 16 x 16 pixels are a patch, and there is a class token.

    >>> [positions_stated(Row(line=2, cells={"seq": text}), "vit") for text in ("224", "384", "197", "196", "577")]
    [197, 577, 197, 196, 577]
    """
    seq = row.count("seq")
    if seq is None or style != "vit" or not _is_side(seq, _PATCH):
        return seq
    return row.default("seq", (seq // _PATCH) ** 2 + 1)


def _is_side(seq: int, patch: int) -> bool:
    """Whether a number is the side of an image rather than its patches, which are a square.

    >>> _is_side(384, 16), _is_side(256, 16)
    (True, False)
    """
    return seq % patch == 0 and math.isqrt(seq) ** 2 != seq


def positions_of(row: Row, graph: Graph) -> int | None:
    """Positions of a sample as throughputs count them: as stated, of images those that attention sees; None where there are none."""
    shape = graph.layers[0].output_shape
    if shape[0] == 1 and "seq" not in row.defaults and row.count("seq"):
        return row.count("seq")
    if len(shape) == 2:
        return shape[-1]
    return next((layer.output_shape[1] for layer in graph.layers if layer.kind == "self_attention"), None)


@cache
def bundled_transformer(name: str, seq: int | None) -> Graph:
    """Graph of a bundled network, at the sequence length given (or side of the images); tables of positions grow with it.

    Raises
    ------
    RowSkipped
        The network cannot be that long.
    """
    from planner.core.errors import PlannerError
    from planner.files.loading import load_model

    if seq is not None and seq > _MOST:
        raise RowSkipped(f"column seq is above {_MOST:,}: no transformer has so many")
    known = load_model(name)
    if seq is None or seq == known.seq:
        return known.graph
    if known.seq is None:
        return _on_images(known.graph, seq)
    try:
        return load_model(name, seq=seq).graph
    except PlannerError:
        return _lengthened(known.graph, known.seq, seq)


def _lengthened(graph: Graph, known: int, seq: int) -> Graph:
    """The network on longer samples than it was published for: what is learned for each position gets as many rows.

    >>> bundled_transformer("bert-large", 1024).weight_count - bundled_transformer("bert-large", 512).weight_count  # 512 x 1024
    524288
    """
    return _with_input(graph, lambda shape: (*shape[:-1], seq) if shape[-1] == known else shape, seq)


def _on_images(graph: Graph, seq: int) -> Graph:
    """A network for patches on images of another size, which its positions (with or without the class token) or their side state.

    >>> [_on_images(bundled_transformer("vit-b16", None), seq).layers[3].output_shape for seq in (224, 384, 577, 576)]
    [(768, 197), (768, 577), (768, 577), (768, 577)]

    Raises
    ------
    RowSkipped
        No image has as many patches.
    """
    side = graph.layers[0].output_shape[-1]
    own = next((layer.output_shape[1] for layer in graph.layers if layer.kind == "self_attention"), 0)
    along = math.isqrt(own)
    patch = side // along if along else 0
    wanted = next((n for n in (seq, seq - 1) if n > 0 and math.isqrt(n) ** 2 == n), None)
    if not patch or (wanted is None and seq % patch):
        raise RowSkipped(f"network '{graph.name}' has {own} positions, whatever column seq says", usable=True)
    size = seq if wanted is None else math.isqrt(wanted) * patch
    if size == side:
        return graph
    return _with_input(graph, lambda shape: (shape[0], size, size), (size // patch) ** 2 + own - along**2)


def _with_input(graph: Graph, resized: Callable[[tuple[int, ...]], tuple[int, ...]], positions: int) -> Graph:
    """The network with an input of another shape and as many rows in tables of positions as that needs."""
    specs = []
    for layer in graph.layers:
        params = layer.params
        if layer.kind == "input":
            params = replace(params, shape=resized(tuple(params.shape)))
        elif layer.kind == "position_embedding":
            params = replace(params, max_positions=max(params.max_positions, positions))
        specs.append(LayerSpec(name=layer.name, kind=layer.kind, params=params, inputs=layer.inputs, block=layer.block))
    try:
        return Graph.build(graph.name, specs)
    except GraphError as error:
        raise RowSkipped(f"network '{graph.name}' cannot have {positions:,} positions: {error}", usable=True) from None

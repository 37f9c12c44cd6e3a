"""Attention found in views of queries, keys and values, however they were reshaped and transposed on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.importers.traced.network import Fixed, Network, Product
from planner.importers.traced.views import BATCH, REPEATED, Atom, View, merged, renumbered

__all__ = ["add_attention", "explicit_scores", "is_causal"]


@dataclass(frozen=True, slots=True)
class _Heads:
    heads: int  # beside repetitions
    dim: int
    positions: int


def _heads(network: Network, view: View) -> _Heads | None:
    """Heads of a view (..., positions, features of a head) of a layer (features, positions); None where it is none."""
    shape = network.shape(view)
    if len(shape) != 2 or len(view.dims) < 3 or view.start[1]:
        return None
    last, positions = merged(view.dims[-1]), merged(view.dims[-2])
    if len(last) != 1 or last[0].axis != 0 or last[0].stride != 1:
        return None
    if positions != merged([Atom(1, shape[1], 1)]):
        return None
    leading = [atom for dim in view.dims[:-2] for atom in dim if atom.axis != BATCH]
    if any(atom.axis not in (0, REPEATED) for atom in leading):
        return None
    heads = math.prod(atom.size for atom in leading if atom.axis == 0)
    return _Heads(heads, last[0].size, shape[1])


def add_attention(network: Network, product: Product, values: View, *, causal: bool, fused: bool) -> View | None:
    """Add a layer of attention; None where the views do not fit one.

    Queries, keys and values that are all of one layer are read as they are; others are put together first (`concat`), which
    `planner.importers.traced.reading` turns into one matrix product where it can.
    """
    queries, keys = product.queries, product.keys
    found = [_heads(network, view) for view in (queries, keys, values)]
    if any(one is None for one in found):
        return None
    q, k, v = (one for one in found if one is not None)
    if k != v or q.dim != k.dim or q.heads % k.heads:
        return None
    kv_heads = 0 if k.heads == q.heads else k.heads
    sizes: dict[str, Any] = {"heads": q.heads, "head_dim": q.dim, "kv_heads": kv_heads, "fused": fused}
    name = network.name
    own = {queries.layer, keys.layer, values.layer}
    features = (q.heads + 2 * k.heads) * q.dim
    if len(own) == 1 and network.shape(queries) == (features, q.positions):
        sources = [queries.layer]
    else:
        parts = [_part(network, view, one) for view, one in ((queries, q), (keys, k), (values, v))]
        if q.positions == k.positions and _origin(network, queries) == _origin(network, keys):
            sources = [network.add("concat", {}, parts, name=f"{name}/qkv")]
        elif product.mask is None or not causal:
            whole = len({keys.layer, values.layer}) == 1 and network.shape(keys)[0] == 2 * k.heads * k.dim
            sources = [parts[0], keys.layer if whole else network.add("concat", {}, parts[1:], name=f"{name}/kv")]
        else:
            return None
    if len(sources) == 1:
        sizes |= {"causal": causal, "dropout": product.dropout > 0, "relative_buckets": product.buckets}
        layer = network.add("self_attention", sizes, sources)
    else:
        if product.buckets or product.dropout:
            return None
        layer = network.add("cross_attention", sizes, sources)
    return _output(queries, layer, q)


def _origin(network: Network, view: View) -> object:
    """What a linear layer reads: queries and keys of self-attention come from the same tensor."""
    draft = network.drafts.layers[view.layer]
    seen = 0
    while draft.kind in ("slice_features", "rms_norm", "layer_norm", "pointwise") and seen < 4:
        draft, seen = network.drafts.layers[draft.inputs[0]], seen + 1
    return draft.inputs if draft.kind == "linear" else draft.name


def _part(network: Network, view: View, heads: _Heads) -> str:
    """The layer that holds exactly these heads."""
    features = heads.heads * heads.dim
    return view.layer if network.shape(view)[0] == features else network.cut(view, features).layer


def _output(queries: View, layer: str, heads: _Heads) -> View:
    """(heads x head_dim, positions), in the dimensions of the queries."""
    dims = renumbered(queries.dims[:-2], 0, heads.dim, repeats=False)
    return View(
        layer=layer,
        dims=(*dims, merged([Atom(1, heads.positions, 1)]), merged([Atom(0, heads.dim, 1)])),
        start=(0, 0),
    )


def is_causal(mask: Fixed | None, queries: int, keys: int) -> bool | None:
    """Whether a mask hides later positions; None where its numbers are not known.

    Examples
    --------
    >>> import numpy as np
    >>> is_causal(Fixed(shape=(3, 3), value=np.triu(np.full((3, 3), -np.inf), 1)), 3, 3), is_causal(None, 3, 3)
    (True, False)
    """
    if mask is None or queries != keys or queries == 1:
        return False
    if mask.value is None:
        return None
    value = np.asarray(mask.value)
    if value.shape[-2:] != (queries, keys):
        return False
    plane = value.reshape(-1, queries, keys)[0]
    seen = plane if plane.dtype == bool else plane > -1e4
    return bool(np.array_equal(seen, np.tril(np.ones((queries, keys), dtype=bool))))


def explicit_scores(network: Network, product: Product) -> View:
    """The scores as layers of their own: a batched product, what follows it, a softmax."""
    name = network.name
    rows, columns = product.shape[-2:]
    inner = product.queries.shape[-1]
    left = network.matrices(product.queries, rows, inner)
    right = network.matrices(product.keys, columns, inner)
    layer = network.add("matmul", {"transposed": True}, [left.layer, right.layer], name=f"{name}/scores")
    if product.flop:
        scale = {"flop": product.flop, "weights": product.buckets * product.heads}
        layer = network.add("pointwise", scale, [layer], name=f"{name}/scale")
    if product.is_probability:
        layer = network.add("softmax", {}, [layer], name=f"{name}/softmax")
        if product.dropout:
            layer = network.add("dropout", {"keep": round(1.0 - product.dropout, 6)}, [layer], name=f"{name}/dropout")
    return product_view(network, layer, product.queries, product.shape)


def product_view(network: Network, layer: str, like: View, shape: tuple[int, ...]) -> View:
    """A product of layers (g, m, n) in the dimensions of its first factor."""
    _, rows, columns = network.drafts.shape(layer)
    dims = renumbered(like.dims[:-2], 0)
    rest = tuple(atom for atom in like.dims[-2] if atom.axis == BATCH)
    assert len(shape) == len(dims) + 2, "a product has the dimensions of its first factor"
    return View(
        layer=layer,
        dims=(*dims, merged((*rest, Atom(1, rows, 1))), merged([Atom(2, columns, 1)])),
        start=(0, 0, 0),
    )

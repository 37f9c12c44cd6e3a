"""Products of matrices, as operators or as sums over labelled indices, and attention as it is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from planner.importers.traced.arithmetic import on_scores
from planner.importers.traced.conversion import Conversion, kinds
from planner.importers.traced.program import Operation
from planner.importers.traced.views import (
    BATCH,
    REPEATED,
    Atom,
    Fixed,
    Network,
    Product,
    Value,
    View,
    Weight,
    has_samples,
    merged,
    product_view,
    renumbered,
)


@kinds("linear")
def _linear(self: Conversion, operation: Operation) -> Value:
    weight, bias = self.weight(operation, 1), self.weight(operation, 2)
    assert weight is not None
    return add_linear(self, self.view(operation), weight, bias, transposed=operation.attributes.get("transposed", True))


def add_linear(self: Conversion, view: View, weight: Weight, bias: Weight | None, *, transposed: bool) -> View:
    """Features by a matrix, ``transposed`` where it is (outputs, inputs)."""
    outputs = weight.shape[0 if transposed else 1]
    self.mixes_samples |= has_samples(view.dims[-1:])
    source = self.network.flat_input(view)
    self.matrices.add(self.own_piece(weight))
    tied = weight.key in self.lookups and not weight.piece
    if bias is not None:
        self.own_piece(bias)
    values = {"out_features": outputs, "bias": bias is not None, "tied": tied}
    frozen = not weight.is_trained and not (bias and bias.is_trained)
    layer = self.network.add("linear", values, [source.layer], name=self.weight_name(weight.key), frozen=frozen)
    dims = (*source.dims[:-1], tuple(a for a in source.dims[-1] if a.axis == BATCH) + merged([Atom(0, outputs, 1)]))
    return View(layer=layer, dims=dims, start=(0,) * len(self.drafts.shape(layer)))


@kinds("matmul")
def _matmul(self: Conversion, operation: Operation) -> Value:
    left, right, added = (self.value(operation, index) for index in range(3))
    if left is not None and isinstance(right, Weight) and len(right.shape) == 2:
        return add_linear(self, self.plain(left), right, None, transposed=False)
    if isinstance(left, Product) and left.is_probability and isinstance(right, View):
        return attended(self, left, right, operation.shapes[0])
    if (
        left is not None
        and isinstance(right, Fixed)
        and len(right.shape) == 2
        and not isinstance(left, (Fixed, Weight))
    ):
        # A product with a constant matrix: a layer with frozen weights.
        return add_linear(self, self.plain(left), _frozen(operation, right, right.shape), None, transposed=False)
    if isinstance(left, Weight):
        raise operation.fault(
            f"the parameter '{left.key}' is on the left, such as queries that are learned: no layer reads that"
        )
    if left is None or right is None or isinstance(left, Fixed) or isinstance(right, (Fixed, Weight)):
        raise operation.fault("a product with a constant or parameter is known where that is a matrix on the right")
    first, second = self.plain(left), self.plain(right)
    if len(first.dims) != len(second.dims) or len(first.dims) < 3:
        raise operation.fault(f"{first.shape} by {second.shape} is not known")
    self.mixes_samples |= has_samples((*first.dims[-2:], *second.dims[-2:]))
    order = [*range(len(second.dims) - 2), len(second.dims) - 1, len(second.dims) - 2]
    product = Product(queries=first, keys=second.permuted(order), shape=operation.shapes[0])
    # torch.baddbmm adds a third.
    return on_scores(self, "add", product, added) if isinstance(added, (Fixed, Weight)) else product


def _frozen(operation: Operation, constant: Fixed, shape: tuple[int, ...]) -> Weight:
    return Weight(shape=shape, key=f"constant:{operation.outputs[0]}", table=constant.shape, is_trained=False)


def attended(self: Conversion, product: Product, values: View, shape: tuple[int, ...]) -> View:
    """Probabilities times values."""
    causal = _is_causal(self, product)
    if product.key not in self.scores:
        found = add_attention(self.network, product, values, causal=causal, fused=self.program.is_fused)
        if found is not None:
            self.attended[product.key] = found.layer
            return found
    scores = self.plain(product)
    rows, columns, inner = shape[-2], shape[-1], product.shape[-1]
    left = self.network.matrices(scores, rows, inner)
    right = self.network.matrices(values, inner, columns)
    layer = self.network.add("matmul", {}, [left.layer, right.layer])
    return product_view(self.network, layer, scores, shape)


def _is_causal(self: Conversion, product: Product) -> bool:
    """Whether a mask hides later positions; one whose numbers are not known is taken to hide nothing."""
    mask, (queries, keys) = product.mask, product.shape[-2:]
    if mask is None or queries != keys or queries == 1:
        return False
    if mask.value is None:
        self.notes.append("a mask of attention whose numbers are not in the program is taken to hide nothing")
        return False
    value = np.asarray(mask.value)
    if value.shape[-2:] != (queries, keys):
        return False
    plane = value.reshape(-1, queries, keys)[0]
    seen = plane if plane.dtype == bool else plane > -1e4
    return bool(np.array_equal(seen, np.tril(np.ones((queries, keys), dtype=bool))))


@kinds("attention")
def _attention(self: Conversion, operation: Operation) -> Value:
    queries, keys, values = (self.view(operation, i) for i in range(3))
    mask, attributes = self.value(operation, 3), operation.attributes
    self.mixes_samples |= has_samples((*queries.dims[-2:], *keys.dims[-2:]))
    product = Product(
        queries=queries,
        keys=keys,
        shape=(*queries.shape[:-1], keys.shape[-2]),
        mask=mask if isinstance(mask, Fixed) else None,
        is_probability=True,
        dropout=float(attributes.get("dropout", 0.0)),
    )
    causal = bool(attributes.get("causal")) or _is_causal(self, product)
    found = add_attention(self.network, product, values, causal=causal, fused=True)
    return found or attended(self, replace(product, flop=2.0), values, operation.shapes[0])


@kinds("softmax")
def _softmax(self: Conversion, operation: Operation) -> Value:
    value = self.value(operation, 0)
    dim = operation.attributes.get("dim", -1) % max(len(operation.shapes[0]), 1)
    if isinstance(value, Product) and dim == len(value.shape) - 1 and not value.is_probability:
        return replace(value, is_probability=True)
    return self.network.elementwise("softmax", {}, self.view(operation))


@kinds("dropout")
def _dropout(self: Conversion, operation: Operation) -> Value:
    value, rate = self.value(operation, 0), float(operation.attributes.get("p", 0.0))
    if value is None or not 0.0 < rate < 1.0:
        return value if value is not None else Fixed(shape=operation.shapes[0])
    if isinstance(value, Product) and value.is_probability:
        return replace(value, dropout=rate)
    return self.network.elementwise("dropout", {"keep": round(1.0 - rate, 6)}, self.view(operation))


# -- sums over labelled indices ---------------------------------------------------------------------------------------------


class Labels(NamedTuple):
    """Labels of an equation with two operands, each in the order in which it is written."""

    left: str
    right: str
    out: str

    @property
    def batch(self) -> str:
        """In all three."""
        return "".join(label for label in self.out if label in self.left and label in self.right)

    @property
    def summed(self) -> str:
        """In both operands and not in the result."""
        return "".join(label for label in self.left if label in self.right and label not in self.out)

    def own(self, operand: str) -> str:
        """In one operand only, and in the result."""
        other = self.right if operand == self.left else self.left
        return "".join(label for label in self.out if label in operand and label not in other)


def labels_of(equation: str, ranks: tuple[int, ...]) -> Labels | None:
    """Read an equation of two operands; None for any other, for diagonals, and for sums over one operand alone.

    Examples
    --------
    >>> labels = labels_of("bqhd,bkhd->bhqk", (4, 4))
    >>> labels.batch, labels.summed, labels.own(labels.left), labels.own(labels.right)
    ('bh', 'd', 'q', 'k')
    >>> labels_of("...i,ij->...j", (3, 2))
    Labels(left='ABi', right='ij', out='ABj')
    >>> labels_of("ii,ij->j", (2, 2)) is None
    True
    """
    inside, arrow, out = equation.replace(" ", "").partition("->")
    operands = inside.split(",")
    if len(operands) != 2 or len(ranks) != 2:
        return None
    if not arrow:
        letters = sorted(set(inside) - set(",."))
        dots = "..." if "..." in inside else ""
        out = dots + "".join(label for label in letters if inside.count(label) == 1)
    free = [label for label in "ABCDEFGH" if label not in equation]
    spread = max(
        (rank - len(o.replace("...", "")) for o, rank in zip(operands, ranks, strict=True) if "..." in o), default=0
    )
    dots = "".join(free[: max(spread, 0)])
    written = []
    for operand, rank in zip(operands, ranks, strict=True):
        missing = rank - len(operand.replace("...", ""))
        written.append(operand.replace("...", dots[len(dots) - missing :] if missing else ""))
    labels = Labels(written[0], written[1], out.replace("...", dots))
    every = set(labels.left) | set(labels.right)
    is_plain = (
        all(len(set(text)) == len(text) and text.isalpha() for text in (labels.left, labels.right) if text)
        and [len(labels.left), len(labels.right)] == list(ranks)
        and set(labels.out) <= every
        and every - set(labels.out) == set(labels.summed)
        and len(set(labels.out)) == len(labels.out)
    )
    return labels if is_plain else None


@kinds("einsum")
def _einsum(self: Conversion, operation: Operation) -> Value:
    values = [self.values[name] for name in operation.inputs if name is not None]
    labels = labels_of(operation.attributes["equation"], tuple(len(value.shape) for value in values))
    if labels is None:
        raise operation.fault(f"'{operation.attributes['equation']}' is not known")
    left, right = values
    sizes = dict(zip(labels.left + labels.right, (*left.shape, *right.shape), strict=True))
    if isinstance(left, (Weight, Fixed)) or (isinstance(right, Product) and right.is_probability):
        left, right, labels = right, left, Labels(labels.right, labels.left, labels.out)
    if isinstance(right, (Weight, Fixed)):
        return _by_parameter(self, operation, self.plain(left), right, labels, sizes)
    if isinstance(left, Product) and left.is_probability and labels.left[-1:] == labels.summed:
        batch, rows = labels.left[:-2], labels.left[-2]
        if labels.batch and sorted(batch) == sorted(labels.batch):
            features = labels.own(labels.right)
            inside = _arranged(self, self.plain(right), labels.right, (*batch, labels.summed, features), sizes)
            shape = (*(sizes[label] for label in batch + rows), _size(features, sizes))
            made = attended(self, left, inside, shape)
            return _written(self, made, batch + rows, features, labels.out, sizes)
    return _of_two(self, self.plain(left), self.plain(right), labels, sizes)


def _size(labels: str, sizes: dict[str, int]) -> int:
    return math.prod(sizes[label] for label in labels)


def _arranged(self: Conversion, view: View, written: str, groups: tuple[str, ...], sizes: dict[str, int]) -> View:
    """Dimensions in the order of groups of labels, each group one dimension."""
    moved = view.permuted([written.index(label) for group in groups for label in group])
    shape = [_size(group, sizes) for group in groups]
    found = moved.reshaped(shape)
    if found is None:
        found = self.network.rearranged(moved).reshaped(shape)
    return found if found is not None else self.copied(moved, tuple(shape))


def _written(self: Conversion, view: View, before: str, last: str, out: str, sizes: dict[str, int]) -> View:
    """A result (labels one by one, then some in the last dimension) in the order that is asked for."""
    shape = tuple(sizes[label] for label in before + last)
    split = view if view.shape == shape else view.reshaped(shape) or self.copied(view, shape)
    return split.permuted([(before + last).index(label) for label in out])


def _by_parameter(
    self: Conversion, operation: Operation, view: View, weight: Weight | Fixed, labels: Labels, sizes: dict[str, int]
) -> View:
    """A linear layer, however many dimensions its features have."""
    if labels.batch or not labels.summed:
        raise operation.fault(f"'{operation.attributes['equation']}' is not known")
    rows, features = labels.own(labels.left), labels.own(labels.right)
    source = _arranged(self, view, labels.left, (*rows, labels.summed), sizes)
    shape = (_size(labels.summed, sizes), _size(features, sizes))
    matrix = _frozen(operation, weight, shape) if isinstance(weight, Fixed) else replace(weight, shape=shape)
    return _written(self, add_linear(self, source, matrix, None, transposed=False), rows, features, labels.out, sizes)


def _of_two(self: Conversion, left: View, right: View, labels: Labels, sizes: dict[str, int]) -> Value:
    """A batched product, which scores of attention are."""
    rows, columns = labels.own(labels.left), labels.own(labels.right)
    if labels.out.endswith(rows) and rows and not labels.out.endswith(columns):
        left, right, rows, columns = right, left, columns, rows
        labels = Labels(labels.right, labels.left, labels.out)
    batch = labels.batch
    queries = _arranged(self, left, labels.left, (*batch, rows, labels.summed), sizes)
    keys = _arranged(self, right, labels.right, (*batch, columns, labels.summed), sizes)
    self.mixes_samples |= has_samples((*queries.dims[-2:], *keys.dims[-2:]))
    shape = (*(sizes[label] for label in batch), _size(rows, sizes), _size(columns, sizes))
    product = Product(queries=queries, keys=keys, shape=shape)
    if labels.out == batch + rows + columns and len(rows) == len(columns) == 1 and len(batch) > 0:
        return product
    return _written(self, self.plain(product), batch + rows, columns, labels.out, sizes)


# -- attention found in views of queries, keys and values, however they were reshaped and transposed on the way ------------------


class _Heads(NamedTuple):
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
    # Without what is still to be done to them: scaling and rotary positions are part of the kernel.
    queries, keys, values = (replace(view, flop=0.0) for view in (product.queries, product.keys, values))
    found = [_heads(network, view) for view in (queries, keys, values)]
    if any(one is None for one in found):
        return None
    q, k, v = (one for one in found if one is not None)
    if k != v or q.dim != k.dim or q.heads % k.heads:
        return None
    kv_heads = 0 if k.heads == q.heads else k.heads
    sizes: dict[str, Any] = {"heads": q.heads, "head_dim": q.dim, "kv_heads": kv_heads, "fused": fused}
    name, kind = network.name, "self_attention"
    own_sizes = {"causal": causal, "dropout": product.dropout > 0, "relative_buckets": product.buckets}
    is_one_layer = queries.layer == keys.layer == values.layer
    if is_one_layer and network.shape(queries) == ((q.heads + 2 * k.heads) * q.dim, q.positions):
        sources = [queries.layer]
    else:
        parts = [  # the layers that hold exactly these heads
            view.layer
            if network.shape(view)[0] == one.heads * one.dim
            else network.cut(view, one.heads * one.dim).layer
            for view, one in ((queries, q), (keys, k), (values, v))
        ]
        if q.positions == k.positions and _origin(network, queries) == _origin(network, keys):
            sources = [network.add("concat", {}, parts, name=f"{name}/qkv")]
        elif (product.mask is None or not causal) and not product.buckets and not product.dropout:
            kind, own_sizes = "cross_attention", {}
            whole = keys.layer == values.layer and network.shape(keys)[0] == 2 * k.heads * k.dim
            sources = [parts[0], keys.layer if whole else network.add("concat", {}, parts[1:], name=f"{name}/kv")]
        else:
            return None
    layer = network.add(kind, sizes | own_sizes, sources)
    # (heads x head_dim, positions), in the dimensions of the queries.
    leading = renumbered(queries.dims[:-2], 0, q.dim, repeats=False)
    dims = (*leading, merged([Atom(1, q.positions, 1)]), merged([Atom(0, q.dim, 1)]))
    return View(layer=layer, dims=dims, start=(0, 0))


def _origin(network: Network, view: View) -> object:
    """What a linear layer reads: queries and keys of self-attention come from the same tensor."""
    draft = network.drafts.layers[view.layer]
    seen = 0
    while draft.kind in ("slice_features", "rms_norm", "layer_norm", "pointwise") and seen < 4:
        draft, seen = network.drafts.layers[draft.inputs[0]], seen + 1
    return draft.inputs if draft.kind == "linear" else draft.name

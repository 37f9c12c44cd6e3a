"""Normalisations, tables, and what front ends could not place, one function each; registered as `conversion` says."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.importers.traced.conversion import KINDS, Conversion, kinds
from planner.importers.traced.network import Fixed, Value, Weight
from planner.importers.traced.program import Operation, ProgramFault
from planner.importers.traced.views import Atom, View, canonical_dims, merged

__all__ = ["KINDS"]


# -- normalisations -----------------------------------------------------------------------------------------------------


@kinds("layer_norm", "rms_norm")
def _norm(self: Conversion, operation: Operation) -> Value:
    view = self.view(operation)
    scale, shift = self.weight(operation, 1), self.weight(operation, 2)
    if operation.attributes.get("dims", 1) != 1:
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': only norms over the last dimension are known")
    source = self.network.rows(view)
    if scale is None:
        flop = 6.0 if operation.kind == "layer_norm" else 3.0
        return replace(source, layer=self.network.add("pointwise", {"flop": flop}, [source.layer]))
    for one in (scale, shift):
        if one is not None:
            self.own_vector(one)
    values = {"bias": shift is not None} if operation.kind == "layer_norm" else {}
    name = self.weight_name(scale.key)
    frozen = not scale.is_trained
    return replace(source, layer=self.network.add(operation.kind, values, [source.layer], name=name, frozen=frozen))


@kinds("batch_norm")
def _batch_norm(self: Conversion, operation: Operation) -> Value:
    source = self.network.covering(self.view(operation))
    scale, shift = self.weight(operation, 1), self.weight(operation, 2)
    affine = scale is not None and shift is not None
    for one in (scale, shift):
        if one is not None:
            self.own_vector(one)
    name = self.weight_name(scale.key) if scale else self.network.name
    frozen = scale is not None and not scale.is_trained
    layer = self.network.add("batch_norm", {"affine": affine}, [source.layer], name=name, frozen=frozen)
    return replace(source, layer=layer)


@kinds("group_norm")
def _group_norm(self: Conversion, operation: Operation) -> Value:
    """As many passes over memory as a batch normalisation has, with statistics per sample."""
    source = self.network.covering(self.view(operation))
    weights = 0
    for index in (1, 2):
        one = self.value(operation, index)
        if isinstance(one, Weight):  # exporters write groups out, with a scale of ones for each
            self.own(one)
            weights += math.prod(one.shape)
    layer = self.network.add("pointwise", {"flop": 8.0, "weights": weights}, [source.layer])
    return replace(source, layer=layer)


@kinds("local_response_norm")
def _local_response_norm(self: Conversion, operation: Operation) -> Value:
    source = self.network.image(self.view(operation))
    layer = self.network.add("local_response_norm", {"size": operation.attributes["size"]}, [source.layer])
    return replace(source, layer=layer)


# -- tables -------------------------------------------------------------------------------------------------------------


@kinds("embedding")
def _embedding(self: Conversion, operation: Operation) -> Value:
    table, indices = self.value(operation, 0), self.value(operation, 1)
    if isinstance(table, Fixed):
        return Fixed(shape=operation.shapes[0])
    if not isinstance(table, Weight) or len(table.shape) != 2:
        return _gathered(self, operation)
    if isinstance(indices, Fixed):  # positions: part of the table, the same for all samples
        return replace(table, shape=operation.shapes[0])
    if not isinstance(indices, View):
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': its indices come from a layer")
    self.own(table)
    tied = table.key in self.matrices
    self.matrices.add(table.key)
    self.lookups.add(table.key)
    count, dim = table.shape
    source = indices
    wanted = canonical_dims(self.network.shape(indices), self.program.batch)
    if {indices.dims[-1:], indices.dims[:1]}.isdisjoint({wanted[1:2]}):
        positions = math.prod(operation.shapes[0][1:-1])
        source = self.network.rearranged(indices, (1, positions))
        source = replace(source, dims=source.dims[:2])
    layer = self.network.add(
        "embedding",
        {"num_embeddings": count, "dim": dim, "tied": tied},
        [source.layer],
        name=self.weight_name(table.key),
        frozen=not table.is_trained,
    )
    return View(layer=layer, dims=(*source.dims, merged([Atom(0, dim, 1)])), start=(0, 0))


@kinds("embedding_bag")
def _embedding_bag(self: Conversion, operation: Operation) -> Value:
    """Rows of a table summed over a bag: a look-up and a sum. Bags of one length only; indices may be in one row."""
    indices, batch = self.value(operation, 1), self.program.batch
    total = math.prod(indices.shape) if indices is not None else 0
    bags = indices.reshaped((batch, total // batch)) if isinstance(indices, View) and total % batch == 0 else None
    if bags is None:
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': only bags of one length are known")
    features = operation.shapes[0][-1]
    name = f"{operation.outputs[0]}:bags"
    self.values[name] = bags
    looked_up = replace(
        operation, inputs=(operation.inputs[0], name), outputs=(name,), shapes=((batch, total // batch, features),)
    )
    rows = _embedding(self, looked_up)
    assert isinstance(rows, View), "indices that are inputs make a layer"
    return self.reduced(rows, [1], keep=False, shape=(batch, features))


@kinds("gather")
def _gathered(self: Conversion, operation: Operation) -> Value:
    """Elements picked from a layer's output: a copy."""
    values = [self.values[name] for name in operation.inputs if name is not None]
    made = [value for value in values if not isinstance(value, (Fixed, Weight)) and not self.is_index(value)]
    if not made:
        weights = [value for value in values if isinstance(value, Weight)]
        return replace(weights[0], shape=operation.shapes[0]) if weights else Fixed(shape=operation.shapes[0])
    return self.copied(self.plain(made[0]), operation.shapes[0])


# -- anything that front ends could not place ---------------------------------------------------------------------------


@kinds("fixed")
def _fixed(self: Conversion, operation: Operation) -> Value:  # noqa: ARG001 - every handler has it
    return Fixed(shape=operation.shapes[0])


@kinds("alias")
def _alias(self: Conversion, operation: Operation) -> Value:
    value = self.value(operation, 0)
    return value if value is not None else Fixed(shape=operation.shapes[0])

"""Operations that are a layer each: windows over images and rows, sums over dimensions, losses, recurrences, norms and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.importers.traced.conversion import Conversion, kinds
from planner.importers.traced.program import Operation
from planner.importers.traced.views import (
    BATCH,
    Atom,
    Dims,
    Fixed,
    Product,
    States,
    Statistic,
    Value,
    View,
    Weight,
    canonical_dims,
    has_samples,
    merged,
)


def _of_image(extents: Sequence[int], fill: int) -> Any:
    """Extents of a window over an image, or over a row, which is an image of one row; one number for two equal ones."""
    height, width = (*(fill,) * (2 - len(extents)), *extents)
    return height if height == width else (height, width)


@kinds("convolution")
def _convolution(self: Conversion, operation: Operation) -> Value:
    attributes, view = operation.attributes, self.view(operation)
    weight, bias = self.weight(operation, 1), self.weight(operation, 2)
    assert weight is not None
    self.own(weight)
    if bias is not None:
        self.own(bias)
    rank, outputs = len(weight.shape) - 2, operation.shapes[0][1]
    if rank not in (1, 2):
        raise operation.fault("only convolutions of images and rows are known")
    kernel = _of_image(weight.shape[2:], 1)
    name, frozen = self.weight_name(weight.key), not weight.is_trained
    if len(self.network.shape(view)) == 1 and kernel == 1 and attributes["groups"] == 1:
        values = {"out_features": outputs, "bias": bias is not None}
        layer = self.network.add("linear", values, [self.network.covering(view).layer], name=name, frozen=frozen)
        return View(layer=layer, dims=(view.dims[0], (Atom(0, outputs, 1),), *view.dims[2:]), start=(0,))
    source, dilation = _image(self, view, rank), _of_image(attributes["dilation"], 1)
    values = {
        "out_channels": outputs,
        "kernel": kernel,
        "stride": _of_image(attributes["stride"], 1),
        "padding": _of_image(attributes["padding"], 0),
        "groups": attributes["groups"],
        "bias": bias is not None,
    }
    kind = "deconvolution" if attributes.get("transposed") else "convolution"
    if kind == "convolution":
        values["dilation"] = dilation
    elif dilation != 1:
        raise operation.fault("transposed convolutions with dilation are not known")
    else:
        more = tuple(attributes.get("output_padding") or (0,))
        values["output_padding"] = _of_image(more * 2 if rank == 2 and len(more) == 1 else more, 0)
    return _as_rank(self, self.network.add(kind, values, [source.layer], name=name, frozen=frozen), rank)


def _as_rank(self: Conversion, layer: str, rank: int) -> View:
    """All of a layer's output, which is an image of one row where the ``rank`` is 1."""
    whole = self.network.whole(layer)
    return replace(whole, dims=(*whole.dims[:2], whole.dims[3])) if rank == 1 else whole


def _image(self: Conversion, view: View, rank: int) -> View:
    """An image; of a row of positions with channels (``rank`` 1) one of one row."""
    if rank > 1:
        return self.network.image(view)
    shape = self.network.shape(view)
    if (
        len(shape) == 3
        and shape[1] == 1
        and view.dims[1:] == (merged([Atom(0, shape[0], 1)]), merged([Atom(2, shape[2], 1)]))
    ):
        return self.network.forced(view)
    _, channels, positions = view.shape
    return self.network.rearranged(view, (channels, 1, positions))


@kinds("pool")
def _pool(self: Conversion, operation: Operation) -> Value:
    attributes, view, out = operation.attributes, self.view(operation), operation.shapes[0][2:]
    rank = len(attributes["kernel"])
    if rank not in (1, 2):
        raise operation.fault("only pooling of images and rows is known")
    source = _image(self, view, rank)
    if (
        tuple(attributes["kernel"]) == self.network.shape(source)[3 - rank :]
        and set(out) == {1}
        and not any(attributes["padding"])
    ):
        whole = _global(self, source, attributes["mode"])
        return replace(whole, dims=whole.dims[: rank + 2])
    values = {key: _of_image(attributes[key], fill) for key, fill in (("kernel", 1), ("stride", 1), ("padding", 0))}
    values |= {"mode": attributes["mode"], "ceil_mode": attributes.get("ceil", False)}
    layer = self.network.add("pool", values, [source.layer])
    if self.drafts.shape(layer)[3 - rank :] != out:
        raise operation.fault(f"windows of {tuple(attributes['kernel'])} give another output here")
    return _as_rank(self, layer, rank)


def _global(self: Conversion, source: View, mode: str) -> View:
    layer = self.network.add("global_pool", {"mode": mode}, [source.layer])
    dims = canonical_dims(self.drafts.shape(layer), self.program.batch)
    return View(layer=layer, dims=(*dims, (), ()), start=(0,))


@kinds("adaptive_pool")
def _adaptive_pool(self: Conversion, operation: Operation) -> Value:
    mode, out, view = operation.attributes["mode"], operation.shapes[0][2:], self.view(operation)
    rank = len(out)
    source = _image(self, view, rank)
    shape = self.network.shape(source)
    if set(out) == {1} and not (rank > 1 and shape[1:] == out):
        whole = _global(self, source, mode)
        return replace(whole, dims=whole.dims[: rank + 2])
    if rank == 1:
        return _as_rank(self, self.network.add("reduce", {"shape": (shape[0], 1, *out)}, [source.layer]), rank)
    if shape[1:] == out:
        return source
    if any(extent % size for extent, size in zip(shape[1:], out, strict=True)):
        layer = self.network.add("reduce", {"shape": (shape[0], *out)}, [source.layer])
        return self.network.whole(layer)
    kernel = _of_image((shape[1] // out[0], shape[2] // out[1]), 1)
    layer = self.network.add("pool", {"kernel": kernel, "stride": kernel, "mode": mode}, [source.layer])
    return self.network.whole(layer)


@kinds("reduce")
def _reduce(self: Conversion, operation: Operation) -> Value | list[Value]:
    value, attributes, shape = self.value(operation, 0), operation.attributes, operation.shapes[0]
    keep, op = attributes.get("keep", False), attributes.get("op")
    is_over_heads = not keep and len(operation.shapes[0]) == 3 and [dim % 4 for dim in attributes["dims"]] == [1]
    if is_over_heads and isinstance(value, Product) and (attention := self.probabilities_of(value)) is not None:
        # Probabilities averaged over the heads, as torch's module hands them out: the kernel then writes them.
        (rows, columns), name = value.shape[-2:], f"{self.network.name}/weights"
        layer = self.network.add("reduce", {"shape": (columns, rows)}, [attention], name=name)
        dims_of_mean = (value.queries.dims[0], (Atom(1, rows, 1),), (Atom(0, columns, 1),))
        return View(layer=layer, dims=dims_of_mean, start=(0, 0))
    view = self.view(operation)
    dims = sorted(dim % len(view.dims) for dim in attributes["dims"])
    reduced = tuple(atom for dim in dims for atom in view.dims[dim])
    if not shape or has_samples([reduced]):
        self.mixes_samples |= bool(shape)
        return _loss(self, operation)
    if op == "mean" and dims == [len(view.dims) - 1] and keep:
        return Statistic(view=view, is_square=view.flop > 0, shape=shape)
    own = self.network.shape(view)
    spatial = merged([Atom(1, own[1], 1)]) + merged([Atom(2, own[2], 1)]) if len(own) == 3 else ()
    if len(own) == 3 and reduced == spatial and not any(view.start) and op in ("mean", "max"):
        source = self.network.forced(view)
        layer = self.network.add("global_pool", {"mode": "average" if op == "mean" else "max"}, [source.layer])
        left = [dim if i not in dims else () for i, dim in enumerate(source.dims) if keep or i not in dims]
        return View(layer=layer, dims=tuple(left), start=(0,))
    return self.reduced(view, dims, keep=keep, shape=shape)


@kinds("loss")
def _loss(self: Conversion, operation: Operation) -> Value:
    """A number per step: the end of the network."""
    view = self.view(operation)
    draft = self.drafts.layers[view.layer]
    if operation.attributes.get("softmax") and draft.kind != "softmax":
        source = self.network.covering(view)
        self.network.add("softmax", {}, [source.layer])
    elif not operation.attributes.get("softmax"):
        self.network.forced(replace(view, flop=view.flop + 1.0))
    return Fixed(shape=operation.shapes[0])


@kinds("upsample")
def _upsample(self: Conversion, operation: Operation) -> Value:
    source = self.network.image(self.view(operation))
    shape, out = self.network.shape(source), operation.shapes[0][2:]
    factor = out[0] // shape[1]
    if operation.attributes.get("mode") == "nearest" and out == (shape[1] * factor, shape[2] * factor):
        return self.network.whole(self.network.add("upsample", {"factor": factor}, [source.layer]))
    layer = self.network.add("rearrange", {"shape": (shape[0], *out)}, [source.layer])
    return self.network.forced(replace(self.network.whole(layer), flop=8.0))  # 4 neighbours, a product and a sum each


# -- recurrences ------------------------------------------------------------------------------------------------------------


@kinds("recurrent")
def _recurrent(self: Conversion, operation: Operation) -> list[Value]:
    """A stack of layers.

    Inputs are the sequence, the initial states (``states`` of them) and the weights, layer by layer. Attributes: ``cell``, ``hidden``,
    ``layers``, ``directions``, ``time`` (the dimension of the positions), ``biases`` per gate, ``dropout`` between layers, and
    ``is_split``: the first output has a dimension for the directions (ONNX).
    """
    attributes, view, network = operation.attributes, self.view(operation), self.network
    time, layers, directions = attributes["time"], attributes["layers"], attributes["directions"]
    if len(view.dims) != 3:
        raise operation.fault(f"a sequence of {len(view.dims)} dimensions is not known")
    if has_samples([view.dims[time]]):
        self.mixes_samples = True
        raise operation.fault("it runs over what is taken for the samples, the first dimension of the inputs")
    begin = 1 + attributes["states"]
    for value in (self.value(operation, index) for index in range(1, begin)):
        if isinstance(value, Weight):
            self.notes.append("a learned initial state of a recurrent layer is not counted")
        elif value is not None and not isinstance(value, Fixed):
            self.notes.append(
                "recurrent layers that begin with the state of another layer are taken to begin by themselves"
            )
    weights = [self.weight(operation, index) for index in range(begin, len(operation.inputs))]
    per_layer = len(weights) // layers
    across = merged(atom for atom in view.dims[1 - time] if atom.axis == BATCH)
    units = merged([Atom(0, attributes["hidden"], 1)])
    values = {key: attributes[key] for key in ("cell", "hidden", "biases")} | {"bidirectional": directions == 2}
    layer, states = network.rows(view).layer, []
    for number in range(layers):
        own = [weight for weight in weights[number * per_layer : (number + 1) * per_layer] if weight is not None]
        for weight in own:
            self.own_piece(weight)
        name = network.name if layers == 1 else f"{network.name}/{number}"
        frozen = not any(weight.is_trained for weight in own)
        layer = network.add("lstm", values, [layer], name=name, frozen=frozen)
        width, positions = self.drafts.shape(layer)
        for direction in range(directions):
            start = (direction * attributes["hidden"], positions - 1 if direction == 0 else 0)
            states.append(View(layer=layer, dims=((), across, units), start=start))
        if attributes.get("dropout", 0.0) and number < layers - 1:
            keep = {"keep": round(1.0 - attributes["dropout"], 6)}
            layer = network.add("dropout", keep, [layer], name=f"{network.name}/dropout")
    # (positions, samples, units), as the input; with a dimension for the directions behind the positions where it is split.
    along = merged([Atom(1, positions, 1)])
    outer = (along, across) if time == 0 else (across, along)
    dims: Dims = (*outer, merged([Atom(0, width, 1)]))
    if attributes.get("is_split"):
        dims = (along, merged([Atom(0, directions, attributes["hidden"])]), across, units)
    output = View(layer=layer, dims=dims, start=(0, 0))
    return [output, *[States(views=tuple(states))] * (len(operation.outputs) - 1)]


# -- normalisations -----------------------------------------------------------------------------------------------------


@kinds("layer_norm", "rms_norm")
def _norm(self: Conversion, operation: Operation) -> Value:
    scale, shift = self.weight(operation, 1), self.weight(operation, 2)
    if operation.attributes.get("dims", 1) != 1:
        raise operation.fault("only norms over the last dimension are known")
    source, is_layer = self.network.rows(self.view(operation)), operation.kind == "layer_norm"
    if scale is None:
        flop = 6.0 if is_layer else 3.0
        return replace(source, layer=self.network.add("pointwise", {"flop": flop}, [source.layer]))
    self.own_vectors(scale, shift)
    values, frozen = {"bias": shift is not None} if is_layer else {}, not scale.is_trained
    name = self.weight_name(scale.key)
    return replace(source, layer=self.network.add(operation.kind, values, [source.layer], name=name, frozen=frozen))


@kinds("batch_norm")
def _batch_norm(self: Conversion, operation: Operation) -> Value:
    view = self.network.covering(self.view(operation))
    scale, shift = self.weight(operation, 1), self.weight(operation, 2)
    self.own_vectors(scale, shift)
    if scale is None:
        return self.network.elementwise("batch_norm", {"affine": False}, view)
    name, frozen = self.weight_name(scale.key), not scale.is_trained
    return self.network.elementwise("batch_norm", {"affine": shift is not None}, view, name=name, frozen=frozen)


@kinds("group_norm")
def _group_norm(self: Conversion, operation: Operation) -> Value:
    """As many passes over memory as a batch normalisation has, with statistics per sample."""
    source = self.network.covering(self.view(operation))
    stated = [value for index in (1, 2) if isinstance(value := self.value(operation, index), Weight)]
    for one in stated:
        self.own(one)
    # Exporters write groups out, with a scale of ones for each: constants, which do not count.
    weights = sum(math.prod(one.shape) for one in stated)
    return self.network.elementwise("pointwise", {"flop": 8.0, "weights": weights}, source)


@kinds("local_response_norm")
def _local_response_norm(self: Conversion, operation: Operation) -> Value:
    source = self.network.image(self.view(operation))
    layer = self.network.add("local_response_norm", {"size": operation.attributes["size"]}, [source.layer])
    return replace(source, layer=layer)


# -- tables -------------------------------------------------------------------------------------------------------------


@kinds("embedding")
def _embedding(self: Conversion, operation: Operation) -> Value | list[Value]:
    table, indices = self.value(operation, 0), self.value(operation, 1)
    if isinstance(table, Fixed):
        return Fixed(shape=operation.shapes[0])
    if not isinstance(table, Weight) or len(table.shape) != 2:
        return _gathered(self, operation)
    if isinstance(indices, Fixed):  # positions: part of the table, the same for all samples
        return replace(table, shape=operation.shapes[0])
    if not isinstance(indices, View):
        raise operation.fault("its indices come from a layer")
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
        raise operation.fault("only bags of one length are known")
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
def _fixed(self: Conversion, operation: Operation) -> list[Value]:  # noqa: ARG001 - every handler has it
    return [Fixed(shape=shape) for shape in operation.shapes]


@kinds("alias")
def _alias(self: Conversion, operation: Operation) -> Value:
    value = self.value(operation, 0)
    return value if value is not None else Fixed(shape=operation.shapes[0])

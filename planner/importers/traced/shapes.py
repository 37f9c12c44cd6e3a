"""Operations on shapes, windows and sums: views where they can be, layers where not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from planner.importers.traced.conversion import KINDS, Conversion, _kinds
from planner.importers.traced.network import Fixed, Product, Statistic, Value, Weight
from planner.importers.traced.program import Operation, ProgramFault
from planner.importers.traced.views import BATCH, Atom, View, canonical_dims, merged

__all__ = ["KINDS"]


def _square(pair: tuple[int, int]) -> Any:
    return pair[0] if pair[0] == pair[1] else tuple(pair)


@_kinds("reshape")
def _reshape(self: Conversion, operation: Operation) -> Value:
    value, shape = self.value(operation, 0), operation.shapes[0]
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    if isinstance(value, Product):
        found = _reshaped_product(value, shape)
        if found is not None:
            return found
    view = self.view(operation)
    result = view.reshaped(shape)
    if result is None:
        copy = self.network.rearranged(view)
        result = copy.reshaped(shape)
    return result if result is not None else self.copied([view], shape)


def _reshaped_product(product: Product, shape: tuple[int, ...]) -> Product | None:
    """Scores whose leading dimensions are split or merged."""
    if shape[-2:] != product.shape[-2:]:
        return None
    queries = product.queries.reshaped((*shape[:-2], *product.queries.shape[-2:]))
    keys = product.keys.reshaped((*shape[:-2], *product.keys.shape[-2:]))
    return None if queries is None or keys is None else replace(product, queries=queries, keys=keys, shape=shape)


@_kinds("permute")
def _permute(self: Conversion, operation: Operation) -> Value:
    value, order = self.value(operation, 0), operation.attributes["order"]
    if isinstance(value, Weight):
        return replace(value, shape=tuple(value.shape[i] for i in order))
    return self.view(operation).permuted(order)


@_kinds("expand")
def _expand(self: Conversion, operation: Operation) -> Value:
    value, shape = self.value(operation, 0), operation.shapes[0]
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    view = self.view(operation)
    return view if view.shape == shape else view.expanded(shape)


@_kinds("slice")
def _slice(self: Conversion, operation: Operation) -> Value:
    value, shape, attributes = self.value(operation, 0), operation.shapes[0], operation.attributes
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    view = self.view(operation)
    if view.shape == shape:
        return view
    dim = attributes["dim"]
    result = view.sliced(dim, attributes["start"], shape[dim], attributes.get("step", 1))
    return result if result is not None else self.copied([view], shape)


@_kinds("select")
def _select(self: Conversion, operation: Operation) -> Value:
    value, shape, attributes = self.value(operation, 0), operation.shapes[0], operation.attributes
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    view = self.view(operation)
    result = view.selected(attributes["dim"], attributes["index"] % view.shape[attributes["dim"]])
    return result if result is not None else self.copied([view], shape)


@_kinds("split")
def _split(self: Conversion, operation: Operation) -> list[Value]:
    value, dim = self.value(operation, 0), operation.attributes["dim"]
    if isinstance(value, Weight):
        return [replace(value, shape=shape) for shape in operation.shapes]
    view, start = self.view(operation), 0
    results: list[Value] = []
    for shape in operation.shapes:
        piece = view.sliced(dim, start, shape[dim])
        results.append(piece if piece is not None else self.copied([view], shape))
        start += shape[dim]
    return results


@_kinds("cat")
def _cat(self: Conversion, operation: Operation) -> Value:
    values = [self.values[name] for name in operation.inputs if name is not None]
    dim, shape = operation.attributes["dim"], operation.shapes[0]
    if all(isinstance(value, (Weight, Fixed)) for value in values):
        weights = [value for value in values if isinstance(value, Weight)]
        return replace(weights[0], shape=shape) if weights else Fixed(shape=shape)
    token = _class_token(self, values, dim)
    if token is not None:
        return token
    views = [self.plain(value) for value in values if not isinstance(value, (Weight, Fixed))]
    if len(views) == len(values):
        whole = _together(views, dim)
        if whole is not None:
            return whole
        joined = _channels(self, views, dim)
        if joined is not None:
            return joined
    for value in values:
        if isinstance(value, Weight):
            self.notes.append(
                f"{operation.path or operation.source}: a parameter beside a layer's output is not counted"
            )
    return self.copied(views, shape)


def _together(views: list[View], dim: int) -> View | None:
    """Pieces of one tensor put together again, in any order where something is still to be done to them (rotary positions)."""
    first = views[0]
    done = sum(view.flop for view in views)
    atoms = [merged(view.dims[dim]) for view in views]
    same = all(
        view.layer == first.layer
        and view.dims[:dim] == first.dims[:dim]
        and view.dims[dim + 1 :] == first.dims[dim + 1 :]
        and len(atom) == 1
        and atom[0].axis == atoms[0][0].axis
        and atom[0].stride == atoms[0][0].stride
        for view, atom in zip(views, atoms, strict=True)
    )
    if not same or atoms[0][0].axis < 0:
        return None
    axis, _, stride = atoms[0][0]
    others = [tuple(s for i, s in enumerate(view.start) if i != axis) for view in views]
    pieces = sorted((view.start[axis], atom[0].size) for view, atom in zip(views, atoms, strict=True))
    runs_on = all(start + size * stride == after for (start, size), (after, _) in itertools.pairwise(pieces))
    in_order = [view.start[axis] for view in views] == [start for start, _ in pieces]
    if len(set(others)) > 1 or not runs_on or not (in_order or done):
        return None
    start = list(first.start)
    start[axis] = pieces[0][0]
    dims = list(first.dims)
    dims[dim] = (Atom(axis, sum(size for _, size in pieces), stride),)
    return View(layer=first.layer, dims=tuple(dims), start=tuple(start), flop=done)


def _channels(self: Conversion, views: list[View], dim: int) -> View | None:
    """A concatenation along features or channels."""
    network = self.network
    whole = [network.covering(view) for view in views]
    shapes = [network.shape(view) for view in whole]
    axis_dims = {i for view in whole for i, atoms in enumerate(view.dims) for atom in atoms if atom.axis == 0}
    rest = {(shape[1:], view.dims[:dim] + view.dims[dim + 1 :]) for shape, view in zip(shapes, whole, strict=True)}
    if axis_dims != {dim} or len(rest) > 1 or any(len(view.dims[dim]) != 1 for view in whole):
        return None
    layer = network.add("concat", {}, [view.layer for view in whole])
    dims = list(whole[0].dims)
    dims[dim] = (Atom(0, sum(shape[0] for shape in shapes), 1),)
    return View(layer=layer, dims=tuple(dims), start=(0,) * len(shapes[0]))


def _class_token(self: Conversion, values: list[Value], dim: int) -> View | None:
    """A learned position before those of an image (vision transformers)."""
    if len(values) != 2 or dim != 1 or not isinstance(values[0], Weight) or not isinstance(values[1], View):
        return None
    token, view = values[0], values[1]
    shape = self.network.shape(view)
    if len(shape) != 3 or len(view.dims) != 3 or token.shape[1] != 1 or merged(view.dims[2]) != (Atom(0, shape[0], 1),):
        return None
    self.owned[token.key] = token.shape[-1]  # however often an exporter wrote it out
    layer = self.network.add("to_sequence", {"class_token": True}, [self.network.covering(view).layer])
    return self.network.whole(layer)


# -- windows and sums --------------------------------------------------------------------------------------------------------


@_kinds("convolution")
def _convolution(self: Conversion, operation: Operation) -> Value:
    attributes, view = operation.attributes, self.view(operation)
    weight, bias = self.weight(operation, 1), self.weight(operation, 2)
    assert weight is not None
    for one in (weight, bias):
        if one is not None:
            self.own(one)
    rank = len(weight.shape) - 2
    if rank not in (1, 2):
        raise ProgramFault(
            f"{operation.source} '{operation.outputs[0]}': only convolutions of images and rows are known"
        )
    kernel, stride, padding, dilation = (
        (*((fill,) * (2 - rank)), *tuple(values))
        for fill, values in (
            (1, weight.shape[2:]),
            (1, attributes["stride"]),
            (0, attributes["padding"]),
            (1, attributes["dilation"]),
        )
    )
    outputs = operation.shapes[0][1]
    frozen = not weight.is_trained
    name = self.weight_name(weight.key)
    if len(self.network.shape(view)) == 1 and kernel == (1, 1) and attributes["groups"] == 1:
        values = {"out_features": outputs, "bias": bias is not None}
        layer = self.network.add("linear", values, [self.network.covering(view).layer], name=name, frozen=frozen)
        return View(layer=layer, dims=(view.dims[0], (Atom(0, outputs, 1),), *view.dims[2:]), start=(0,))
    source = _row_image(self, view) if rank == 1 else self.network.image(view)
    if attributes.get("transposed"):
        if dilation != (1, 1) or any(attributes.get("output_padding", ())):
            raise ProgramFault(
                f"{operation.source} '{operation.outputs[0]}': transposed convolutions with dilation or output padding are not known"
            )
        values = {"out_channels": outputs, "kernel": _square(kernel), "stride": _square(stride)}
        values |= {"padding": _square(padding), "bias": bias is not None, "groups": attributes["groups"]}
        layer = self.network.add("deconvolution", values, [source.layer], name=name, frozen=frozen)
    else:
        values = {
            "out_channels": outputs,
            "kernel": _square(kernel),
            "stride": _square(stride),
            "bias": bias is not None,
        }
        values |= {"padding": _square(padding), "groups": attributes["groups"]}
        if max(dilation) > 1:
            values["dilation"] = _square(dilation)
        layer = self.network.add("convolution", values, [source.layer], name=name, frozen=frozen)
    whole = self.network.whole(layer)
    return replace(whole, dims=(*whole.dims[:2], whole.dims[3])) if rank == 1 else whole


def _row_image(self: Conversion, view: View) -> View:
    """A row of positions with channels, as an image of one row."""
    shape = self.network.shape(view)
    if (
        len(shape) == 3
        and shape[1] == 1
        and view.dims[1:] == (merged([Atom(0, shape[0], 1)]), merged([Atom(2, shape[2], 1)]))
    ):
        return self.network.forced(view)
    _, channels, positions = view.shape
    return self.network.rearranged(view, (channels, 1, positions))


@_kinds("pool")
def _pool(self: Conversion, operation: Operation) -> Value:
    source, attributes = self.network.image(self.view(operation)), operation.attributes
    shape = self.network.shape(source)
    kernel, stride = tuple(attributes["kernel"]), tuple(attributes["stride"])
    if len(kernel) != 2:
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': only pooling of images is known")
    if kernel == shape[1:] and operation.shapes[0][2:] == (1, 1) and not any(attributes["padding"]):
        return _global(self, source, attributes["mode"], keep=True)
    values = {"kernel": _square(kernel), "stride": _square(stride), "padding": _square(tuple(attributes["padding"]))}
    values |= {"mode": attributes["mode"], "ceil_mode": attributes.get("ceil", False)}
    layer = self.network.add("pool", values, [source.layer])
    if self.drafts.shape(layer)[1:] != operation.shapes[0][2:]:
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': windows of {kernel} give another output here")
    return self.network.whole(layer)


def _global(self: Conversion, source: View, mode: str, *, keep: bool) -> View:
    layer = self.network.add("global_pool", {"mode": mode}, [source.layer])
    dims = canonical_dims(self.drafts.shape(layer), self.program.batch)
    return View(layer=layer, dims=(*dims, (), ()) if keep else dims, start=(0,))


@_kinds("adaptive_pool")
def _adaptive_pool(self: Conversion, operation: Operation) -> Value:
    source, mode = self.network.image(self.view(operation)), operation.attributes["mode"]
    shape, out = self.network.shape(source), operation.shapes[0][2:]
    if shape[1:] == out:
        return source
    if out == (1, 1):
        return _global(self, source, mode, keep=True)
    if any(extent % size for extent, size in zip(shape[1:], out, strict=True)):
        layer = self.network.add("reduce", {"shape": (shape[0], *out)}, [source.layer])
        return self.network.whole(layer)
    kernel = _square((shape[1] // out[0], shape[2] // out[1]))
    layer = self.network.add("pool", {"kernel": kernel, "stride": kernel, "mode": mode}, [source.layer])
    return self.network.whole(layer)


@_kinds("reduce")
def _reduce(self: Conversion, operation: Operation) -> Value:
    value, attributes, shape = self.value(operation, 0), operation.attributes, operation.shapes[0]
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    view, keep = self.view(operation), attributes.get("keep", False)
    dims = sorted(dim % len(view.dims) for dim in attributes["dims"])
    if any(atom.axis == BATCH for dim in dims for atom in view.dims[dim] if atom.size > 1) or not shape:
        return _loss(self, operation)
    if attributes.get("op") == "mean" and dims == [len(view.dims) - 1] and keep:
        return Statistic(view=view, is_square=view.flop > 0, shape=shape)
    own = self.network.shape(view)
    spatial = merged([Atom(1, own[1], 1)]) + merged([Atom(2, own[2], 1)]) if len(own) == 3 else ()
    reduced = tuple(atom for dim in dims for atom in view.dims[dim])
    if len(own) == 3 and reduced == spatial and not any(view.start) and attributes.get("op") in ("mean", "max"):
        source = self.network.forced(view)
        layer = self.network.add(
            "global_pool", {"mode": "average" if attributes["op"] == "mean" else "max"}, [source.layer]
        )
        left = [dim if i not in dims else () for i, dim in enumerate(source.dims) if keep or i not in dims]
        return View(layer=layer, dims=tuple(left), start=(0,))
    return self.reduced(view, dims, keep=keep, shape=shape)


@_kinds("loss")
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


@_kinds("upsample")
def _upsample(self: Conversion, operation: Operation) -> Value:
    source = self.network.image(self.view(operation))
    shape, out = self.network.shape(source), operation.shapes[0][2:]
    factor = out[0] // shape[1]
    if operation.attributes.get("mode") == "nearest" and out == (shape[1] * factor, shape[2] * factor):
        return self.network.whole(self.network.add("upsample", {"factor": factor}, [source.layer]))
    layer = self.network.add("rearrange", {"shape": (shape[0], *out)}, [source.layer])
    return self.network.forced(replace(self.network.whole(layer), flop=8.0))  # 4 neighbours, a product and a sum each


@_kinds("copy")
def _copy(self: Conversion, operation: Operation) -> Value:
    """Paddings, shifts, repetitions: a copy in another shape."""
    value = self.value(operation, 0)
    if isinstance(value, Weight):
        return replace(value, shape=operation.shapes[0])
    view = self.view(operation)
    return view if math.prod(view.shape) == 0 else self.copied([view], operation.shapes[0])

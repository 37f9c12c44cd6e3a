"""Windows over images and rows, sums over dimensions, and losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.importers.traced.conversion import KINDS, Conversion, kinds
from planner.importers.traced.network import Fixed, Product, Statistic, Value, Weight
from planner.importers.traced.program import Operation, ProgramFault
from planner.importers.traced.views import BATCH, Atom, View, canonical_dims, merged

__all__ = ["KINDS"]


def _square(pair: tuple[int, int]) -> Any:
    return pair[0] if pair[0] == pair[1] else tuple(pair)


@kinds("convolution")
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
        if dilation != (1, 1):
            raise ProgramFault(
                f"{operation.source} '{operation.outputs[0]}': transposed convolutions with dilation are not known"
            )
        more = tuple(attributes.get("output_padding") or (0,))
        more = (0, *more) if rank == 1 else more * 2 if len(more) == 1 else more
        values = {"out_channels": outputs, "kernel": _square(kernel), "stride": _square(stride)}
        values |= {"padding": _square(padding), "bias": bias is not None, "groups": attributes["groups"]}
        if any(more):
            values["output_padding"] = _square(more)
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


@kinds("pool")
def _pool(self: Conversion, operation: Operation) -> Value:
    attributes, view = operation.attributes, self.view(operation)
    rank = len(attributes["kernel"])
    if rank not in (1, 2):
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': only pooling of images and rows is known")
    source = _row_image(self, view) if rank == 1 else self.network.image(view)
    shape = self.network.shape(source)
    kernel, stride, padding = (
        (*((fill,) * (2 - rank)), *tuple(attributes[name]))
        for fill, name in ((1, "kernel"), (1, "stride"), (0, "padding"))
    )
    if kernel == shape[1:] and set(operation.shapes[0][2:]) == {1} and not any(padding):
        whole = _global(self, source, attributes["mode"], keep=True)
        return replace(whole, dims=whole.dims[: rank + 2])
    values = {"kernel": _square(kernel), "stride": _square(stride), "padding": _square(padding)}
    values |= {"mode": attributes["mode"], "ceil_mode": attributes.get("ceil", False)}
    layer = self.network.add("pool", values, [source.layer])
    if self.drafts.shape(layer)[3 - rank :] != operation.shapes[0][2:]:
        raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': windows of {kernel} give another output here")
    whole = self.network.whole(layer)
    return replace(whole, dims=(*whole.dims[:2], whole.dims[3])) if rank == 1 else whole


def _global(self: Conversion, source: View, mode: str, *, keep: bool) -> View:
    layer = self.network.add("global_pool", {"mode": mode}, [source.layer])
    dims = canonical_dims(self.drafts.shape(layer), self.program.batch)
    return View(layer=layer, dims=(*dims, (), ()) if keep else dims, start=(0,))


@kinds("adaptive_pool")
def _adaptive_pool(self: Conversion, operation: Operation) -> Value:
    mode, out, view = operation.attributes["mode"], operation.shapes[0][2:], self.view(operation)
    if len(out) == 1:  # rows
        source = _row_image(self, view)
        if out == (1,):
            whole = _global(self, source, mode, keep=True)
            return replace(whole, dims=whole.dims[:3])
        layer = self.network.add("reduce", {"shape": (self.network.shape(source)[0], 1, *out)}, [source.layer])
        whole = self.network.whole(layer)
        return replace(whole, dims=(*whole.dims[:2], whole.dims[3]))
    source = self.network.image(view)
    shape = self.network.shape(source)
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


@kinds("reduce")
def _reduce(self: Conversion, operation: Operation) -> Value:
    value, attributes, shape = self.value(operation, 0), operation.attributes, operation.shapes[0]
    if isinstance(value, Weight):
        return replace(value, shape=shape)
    keep = attributes.get("keep", False)
    if isinstance(value, Product) and value.is_probability and value.key in self.attended:
        attention = self.attended[value.key]
        found = _mean_over_heads(self, value, attention, [dim % len(value.shape) for dim in attributes["dims"]])
        if found is not None and not keep:
            return found
    view = self.view(operation)
    dims = sorted(dim % len(view.dims) for dim in attributes["dims"])
    self.mixes_samples |= bool(shape) and any(
        atom.axis == BATCH and atom.size > 1 for dim in dims for atom in view.dims[dim]
    )
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


def _mean_over_heads(self: Conversion, product: Product, attention: str, dims: list[int]) -> View | None:
    """Probabilities of attention averaged over its heads, as torch's module hands them out: the kernel then writes them."""
    rows, columns = product.shape[-2:]
    if len(product.shape) != 4 or dims != [1]:
        return None
    self.probabilities_of(product)
    layer = self.network.add("reduce", {"shape": (columns, rows)}, [attention], name=f"{self.network.name}/weights")
    return View(layer=layer, dims=(product.queries.dims[0], (Atom(1, rows, 1),), (Atom(0, columns, 1),)), start=(0, 0))


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

"""Caffe's layer types, one function each. To add one, decorate a function (context, fields, inputs) -> blobs.

Defaults and formulas are those of BVLC/caffe, src/caffe/proto/caffe.proto and src/caffe/layers/*_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodel.network.layers import Shape, shape_text
from costmodel.network.layers.window import window
from planner.importers.caffe import weights  # noqa: F401 - registers its types
from planner.importers.caffe.context import IGNORED, READERS, V1_TYPES, Blob, Context, square, types
from planner.importers.caffe.fields import Fields

__all__ = ["IGNORED", "READERS", "V1_TYPES", "Blob", "Context"]

# -- windows -----------------------------------------------------------------------------------------------------------------


@types("Pooling")
def _pooling(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    """Output extents are rounded up unless the file says otherwise (PoolingLayer::Reshape)."""
    own, source = fields.inner("pooling_param"), context.source(fields, inputs)
    method = own.text("pool", "MAX")
    modes = {"MAX": "max", "AVE": "average", "STOCHASTIC": "max", "0": "max", "1": "average", "2": "max"}
    if method not in modes:
        raise own.fault(f"pool is '{method[:40]}' (known: MAX, AVE, STOCHASTIC)")
    if own.flag("global_pooling", False):
        if own.has("kernel_size") or own.has("kernel_h"):
            raise own.fault("'global_pooling' excludes a kernel size")
        return context.add(fields, "global_pool", {"mode": modes[method]}, [source])
    kernel = own.size("kernel_size", "kernel", 0, least=1)
    if not kernel[0]:
        raise own.fault("'kernel_size' is missing")
    stride, pad = own.size("stride", "stride", 1, least=1), own.size("pad", "pad", 0, least=0)
    rounding = own.text("round_mode", "CEIL")
    if rounding not in ("CEIL", "FLOOR"):
        raise own.fault(f"round_mode is '{rounding[:40]}' (known: CEIL, FLOOR)")
    if any(p >= k for p, k in zip(pad, kernel, strict=True)):
        raise own.fault(f"padding {pad[0]} must be less than the kernel {kernel[0]}")
    values = {"kernel": square(kernel), "stride": square(stride), "padding": square(pad), "mode": modes[method]}
    _check_extent(own, context.drafts.shape(source), kernel, stride, pad, ceil=rounding == "CEIL")
    return context.add(fields, "pool", {**values, "ceil_mode": rounding == "CEIL"}, [source])


def _check_extent(
    own: Fields, shape: Shape, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], *, ceil: bool
) -> None:
    """Caffe drops a window outside the image only where there is padding; without it, the window is empty."""
    if not ceil or len(shape) != 3 or any(e + 2 * p < k for e, p, k in zip(shape[1:], pad, kernel, strict=True)):
        return
    ours = window("pooling", shape, kernel, stride, pad, ceil_mode=True).output
    if not any(pad):
        extents = zip(shape[1:], kernel, stride, strict=True)
        caffe = tuple(-(-(e - k) // s) + 1 for e, k, s in extents)
        if caffe != ours:
            outside = f"its last windows lie outside the image {shape_text(shape)}"
            raise own.fault(f"{outside}: Caffe's output is {shape_text(caffe)}")


@types("LRN")
def _lrn(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own = fields.inner("lrn_param")
    size = own.integer("local_size", 5, least=1)
    if own.text("norm_region", "ACROSS_CHANNELS") in ("WITHIN_CHANNEL", "1"):
        return context.add(fields, "pointwise", {"flop": 2.0 * size * size + 3.0}, [context.source(fields, inputs)])
    return context.add(fields, "local_response_norm", {"size": size}, [context.source(fields, inputs)])


# -- element by element ------------------------------------------------------------------------------------------------------


@types("ReLU", "ELU", "Sigmoid", "TanH")
def _activation(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    kind = fields.text("type", "")
    function = {"RELU": "relu", "TANH": "tanh", "SIGMOID": "sigmoid", "ELU": "elu"}[kind.upper()]
    if function == "relu" and fields.inner("relu_param").number("negative_slope", 0.0):
        function = "leaky_relu"
    return context.add(fields, "activation", {"function": function}, [context.source(fields, inputs)])


# Operations per element.
_POINTWISE = {"Power": 3.0, "Exp": 1.0, "Log": 1.0, "AbsVal": 1.0, "BNLL": 3.0, "Threshold": 1.0, "MVN": 5.0}


@types(*_POINTWISE)
def _pointwise(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    kind = fields.text("type", "")
    flop = _POINTWISE.get(V1_TYPES.get(kind, kind), 1.0)
    return context.add(fields, "pointwise", {"flop": flop}, [context.source(fields, inputs)])


@types("Dropout")
def _dropout(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own = fields.inner("dropout_param")
    ratio = own.number("dropout_ratio", 0.5)
    if not 0.0 <= ratio < 1.0:
        raise own.fault(f"dropout_ratio is {ratio:g}; it must be from 0 to below 1")
    # 1 - 0.7 is 0.30000000000000004 in binary; the file's number has few digits.
    return context.add(fields, "dropout", {"keep": round(1.0 - ratio, 12)}, [context.source(fields, inputs)])


@types("Eltwise")
def _eltwise(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    operation = fields.inner("eltwise_param").text("operation", "SUM")
    sources = [context.source(fields, inputs, i) for i in range(max(2, len(inputs)))]
    if operation in ("SUM", "1"):
        return context.add(fields, "add", {}, sources)
    if operation not in ("PROD", "MAX", "0", "2"):
        raise fields.fault(f"operation is '{operation[:40]}' (known: SUM, PROD, MAX)")
    return context.add(fields, "pointwise", {"flop": len(sources) - 1.0}, sources)


# -- shapes ------------------------------------------------------------------------------------------------------------------


@types("Split")
def _split(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    context.source(fields, inputs)
    return [inputs[0]] * len(fields.texts("top"))


@types("Concat")
def _concat(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own = fields.inner("concat_param")
    axis = own.integer("axis", own.integer("concat_dim", 1), least=-4)
    sources = [context.source(fields, inputs, i) for i in range(max(1, len(inputs)))]
    rank = len(context.drafts.shape(sources[0]))
    if axis not in (1, -rank):
        raise own.fault(f"concatenates along axis {axis}; only channels (axis 1) are known")
    if len(sources) == 1:
        return [inputs[0]]
    return context.add(fields, "concat", {}, sources)


@types("Slice")
def _slice(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own, source = fields.inner("slice_param"), context.source(fields, inputs)
    if own.integer("axis", own.integer("slice_dim", 1), least=-4) != 1:
        raise own.fault("only slices of channels (axis 1) are known")
    tops, channels = fields.texts("top"), context.drafts.shape(source)[0]
    points = own.integers("slice_point", least=1)
    if not points and tops and channels % len(tops) == 0:
        points = [channels // len(tops) * i for i in range(1, len(tops))]
    bounds = [0, *points, channels]
    if len(bounds) != len(tops) + 1 or sorted(set(bounds)) != bounds:
        raise own.fault(f"{channels} channels cannot be cut at {points} into {len(tops)} tops")
    blobs = []
    for top, start, stop in zip(tops, bounds, bounds[1:], strict=False):
        values = {"start": start, "features": stop - start}
        blobs.append(Blob(context.drafts.add(f"{fields.label}/{top}", "slice_features", values, [source])))
    return blobs


@types("Flatten")
def _flatten(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    source = context.source(fields, inputs)
    if len(context.drafts.shape(source)) == 1:
        return [inputs[0]]
    own = fields.inner("flatten_param")
    if own.integer("axis", 1, least=-4) != 1 or own.integer("end_axis", -1, least=-4) not in (-1, 3):
        raise own.fault("only flattening whole samples (axis 1 to -1) is known")
    return context.add(fields, "flatten", {}, [source])


@types("Reshape")
def _reshape(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own, source = fields.inner("reshape_param"), context.source(fields, inputs)
    if own.integer("axis", 0, least=-4) != 0 or own.integer("num_axes", -1, least=-1) != -1:
        raise own.fault("only reshaping of all axes is known")
    shape = context.drafts.shape(source)
    written = own.inner("shape").integers("dim", least=-1)
    extents = [(1, *shape)[i] if d == 0 and i <= len(shape) else d for i, d in enumerate(written)][1:]
    known = math.prod(d for d in extents if d > 0)
    extents = [math.prod(shape) // max(known, 1) if d == -1 else d for d in extents]
    if len(written) < 2 or math.prod(extents) != math.prod(shape) or min(extents, default=0) < 1:
        raise own.fault(f"shape {written} does not hold the {shape_text(shape)} of its input")
    target = tuple(extents)
    while len(target) > 1 and target[-1] == 1:
        target = target[:-1]
    if target == shape:
        return [inputs[0]]
    kind, values = ("flatten", {}) if len(target) == 1 else ("rearrange", {"shape": target})
    return context.add(fields, kind, values, [source])


@types("Crop")
def _crop(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    """The first input, cut to the size of the second from ``axis`` (2: height and width) on."""
    source, other = context.source(fields, inputs), context.source(fields, inputs, 1)
    axis = fields.inner("crop_param").integer("axis", 2)
    shape, like = context.drafts.shape(source), context.drafts.shape(other)
    if axis < 1 or len(shape) != len(like):
        raise fields.fault(f"cannot crop {shape_text(shape)} to {shape_text(like)} from axis {axis} on")
    return context.add(fields, "rearrange", {"shape": (*shape[: axis - 1], *like[axis - 1 :])}, [source])


# -- losses ------------------------------------------------------------------------------------------------------------------


@types("Softmax", "SoftmaxWithLoss")
def _softmax(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    if fields.inner("softmax_param").integer("axis", 1, least=-4) != 1:
        raise fields.fault("only a softmax over channels (axis 1) is known")
    return context.add(fields, "softmax", {}, [context.source(fields, inputs)])


# Operations per element of the prediction, an estimate of its order; a loss is read once.
_LOSSES = {
    "EuclideanLoss": 3.0,
    "SigmoidCrossEntropyLoss": 5.0,
    "HingeLoss": 3.0,
    "MultinomialLogisticLoss": 2.0,
    "InfogainLoss": 5.0,
    "ContrastiveLoss": 4.0,
}


@types(*_LOSSES)
def _loss(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    kind = fields.text("type", "")
    flop = _LOSSES.get(V1_TYPES.get(kind, kind), 3.0)
    return context.add(fields, "pointwise", {"flop": flop}, [context.source(fields, inputs)])

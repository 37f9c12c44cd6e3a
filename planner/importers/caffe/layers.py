"""Caffe's layer types, one function each. To add one, decorate a function (context, fields, inputs) -> blobs.

Defaults and formulas are those of BVLC/caffe, src/caffe/proto/caffe.proto and src/caffe/layers/*_layer.cpp.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.network.layers import Shape, shape_text
from costmodel.network.layers.pooling import window
from planner.core.errors import did_you_mean
from planner.importers.caffe.text_format import Fields
from planner.importers.drafts import Drafts
from planner.importers.sources import registering

__all__ = ["COLOURS", "IGNORED", "READERS", "Blob", "Context", "Reader", "square", "type_of", "types"]

# Measures and sinks: they have no part in the gradient.
IGNORED = frozenset({"Accuracy", "Silence", "ArgMax", "HDF5Output"})

# Channels of images that a database holds; the file says nothing about them unless force_gray.
COLOURS = 3


@dataclass(frozen=True, slots=True)
class Blob:
    """What a top is: a layer's output; None for labels and what is left out.

    ``norm`` is a BatchNorm that waits for its Scale.
    """

    layer: str | None
    is_broken: bool = False
    norm: str | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """The network so far."""

    drafts: Drafts
    blobs: dict[str, Blob] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    assumed_free: Counter[str] = field(default_factory=Counter)
    global_batch: int = 0

    def blob(self, fields: Fields, name: str) -> Blob:
        """A bottom.

        Raises
        ------
        Fault
            It does not exist, or could not be read.
        """
        if name not in self.blobs:
            raise fields.fault(f"bottom '{name}' is no top of a layer before it{did_you_mean(name, self.blobs)}")
        if self.blobs[name].is_broken:
            raise fields.fault("", is_follow_up=True)
        return self.blobs[name]

    def add_input(self, fields: Fields, name: str, top: str, shape: Sequence[int]) -> None:
        """An input of (batch, ...)."""
        if len(shape) < 2:
            self.blobs[top] = Blob(None)  # one number per sample: a label
            return
        if len(shape) not in (2, 4):
            raise fields.fault(
                f"input '{top}' has {len(shape)} dimensions, expected batch x channels (x height x width)"
            )
        self.see_batch(shape[0])
        rest = tuple(shape[1:])
        rest = rest[:1] if rest[1:] == (1, 1) else rest
        self.blobs[top] = Blob(self.drafts.add(name, "input", {"shape": rest}))

    def see_batch(self, batch: int) -> None:
        """Remember the largest batch of an input."""
        self.global_batch = max(self.global_batch, batch)

    def source(self, fields: Fields, inputs: Sequence[Blob], index: int = 0) -> str:
        """The layer behind a bottom."""
        if index >= len(inputs):
            raise fields.fault(f"needs {index + 1} bottoms, has {len(inputs)}")
        layer = inputs[index].layer
        if layer is None:
            raise fields.fault("reads labels or what an accuracy layer returns, which are no layers here")
        return layer

    def add(self, fields: Fields, kind: str, values: dict[str, Any], sources: Sequence[str]) -> list[Blob]:
        """Add a layer with one top."""
        rates = [Fields(m).number("lr_mult", 1.0) for m in fields.message.messages("param")]
        frozen = bool(rates) and all(rate == 0 for rate in rates)
        name = fields.label or kind
        has_weights = kind in ("convolution", "deconvolution", "linear", "embedding", "batch_norm", "pointwise")
        return [Blob(self.drafts.add(name, kind, values, sources, frozen=frozen and has_weights))]


Reader = Callable[[Context, Fields, Sequence[Blob]], list[Blob]]
READERS: dict[str, Reader] = {}
types = registering(READERS, "Caffe type")


def square(pair: tuple[int, int]) -> int | tuple[int, int]:
    """One number for two equal extents."""
    return pair[0] if pair[0] == pair[1] else pair


def type_of(fields: Fields) -> str:
    """Type of a layer; files from before 2014 write SOFTMAX_LOSS for SoftmaxWithLoss, INNER_PRODUCT for InnerProduct, and so on."""
    kind = fields.text("type", "")
    if kind == "SOFTMAX_LOSS":
        return "SoftmaxWithLoss"
    plain = kind.replace("_", "").lower()
    return next((name for name in (*READERS, *IGNORED) if name.lower() == plain), kind) if kind.isupper() else kind


# -- windows -----------------------------------------------------------------------------------------------------------------


_Pair = tuple[int, int]


def _window(own: Fields) -> tuple[_Pair, _Pair, _Pair]:
    """Kernel, stride and padding."""
    kernel = own.size("kernel_size", "kernel", 0, least=1)
    if not kernel[0]:
        raise own.fault("'kernel_size' is missing")
    return kernel, own.size("stride", "stride", 1, least=1), own.size("pad", "pad", 0, least=0)


def _squares(kernel: _Pair, stride: _Pair, padding: _Pair) -> dict[str, Any]:
    return {"kernel": square(kernel), "stride": square(stride), "padding": square(padding)}


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
    kernel, stride, pad = _window(own)
    rounding = own.text("round_mode", "CEIL")
    if rounding not in ("CEIL", "FLOOR"):
        raise own.fault(f"round_mode is '{rounding[:40]}' (known: CEIL, FLOOR)")
    if any(p >= k for p, k in zip(pad, kernel, strict=True)):
        raise own.fault(f"padding {pad[0]} must be less than the kernel {kernel[0]}")
    _check_extent(own, context.drafts.shape(source), kernel, stride, pad, ceil=rounding == "CEIL")
    values = {**_squares(kernel, stride, pad), "mode": modes[method], "ceil_mode": rounding == "CEIL"}
    return context.add(fields, "pool", values, [source])


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
    function = type_of(fields).lower()
    if function == "relu" and fields.inner("relu_param").number("negative_slope", 0.0):
        function = "leaky_relu"
    return context.add(fields, "activation", {"function": function}, [context.source(fields, inputs)])


# Operations per element; those of losses, of the prediction, are estimates of their order: a loss is read once.
_POINTWISE = {
    "Power": 3.0,
    "Exp": 1.0,
    "Log": 1.0,
    "AbsVal": 1.0,
    "BNLL": 3.0,
    "Threshold": 1.0,
    "MVN": 5.0,
    "EuclideanLoss": 3.0,
    "SigmoidCrossEntropyLoss": 5.0,
    "HingeLoss": 3.0,
    "MultinomialLogisticLoss": 2.0,
    "InfogainLoss": 5.0,
    "ContrastiveLoss": 4.0,
}


@types(*_POINTWISE)
def _pointwise(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    flop = _POINTWISE[type_of(fields)]
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


# -- data --------------------------------------------------------------------------------------------------------------------


@types("Input", "DummyData")
def _input(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:  # noqa: ARG001 - it has none
    own = fields.inner("input_param" if fields.text("type", "") == "Input" else "dummy_data_param")
    shapes = [tuple(Fields(m).integers("dim", least=1)) for m in own.message.messages("shape")]
    if not shapes and own.has("num"):
        shapes = [tuple(own.integer(key, least=1) for key in ("num", "channels", "height", "width"))]
    tops = fields.texts("top")
    if not shapes or len(shapes) not in (1, len(tops)):
        raise fields.fault(f"{len(tops)} tops and {len(shapes)} shapes")
    for top, shape in zip(tops, shapes * (len(tops) if len(shapes) == 1 else 1), strict=True):
        context.add_input(fields, top if len(tops) > 1 else fields.label or top, top, shape)
    return [context.blobs[top] for top in tops]


@types("Data", "ImageData", "WindowData", "HDF5Data", "MemoryData")
def _data(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:  # noqa: ARG001 - it has none
    """Databases hold the size of their images; the file says it only where it crops them."""
    kind = type_of(fields)
    key = {"ImageData": "image_data_param", "WindowData": "window_data_param"}.get(kind, "data_param")
    own = fields.inner({"HDF5Data": "hdf5_data_param", "MemoryData": "memory_data_param"}.get(kind, key))
    transform = fields.inner("transform_param")
    batch = own.integer("batch_size", 1, least=1)
    if kind == "MemoryData":
        shape: tuple[int, ...] = tuple(own.integer(name, least=1) for name in ("channels", "height", "width"))
    else:
        crop = transform.integer("crop_size", 0) or own.integer("crop_size", 0)
        size = (own.integer("new_height", 0), own.integer("new_width", 0)) if kind == "ImageData" else (0, 0)
        height, width = (crop, crop) if crop else size
        if not (height and width):
            raise fields.fault(
                f"the size of its samples is in the database, not in this file; replace the layer by one of type Input "
                f"with 'input_param {{ shape {{ dim: {batch} dim: ... }} }}'"
            )
        gray = transform.flag("force_gray", False) or not own.flag("is_color", True)
        shape = (1 if gray else COLOURS, height, width)
        if not gray:
            context.notes.append(f"{fields.label}: {COLOURS} channels assumed, the file does not state them")
    tops = fields.texts("top")
    if not tops:
        raise fields.fault("has no top")
    context.add_input(fields, fields.label or tops[0], tops[0], (batch, *shape))
    return [context.blobs[tops[0]]]


# -- layers with weights -----------------------------------------------------------------------------------------------------


@types("Convolution", "Deconvolution")
def _convolution(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    kind = type_of(fields).lower()
    own, source = fields.inner("convolution_param"), context.source(fields, inputs)
    if kind == "convolution" and own.integer("axis", 1) != 1:
        raise own.fault("only convolutions over channels (axis 1) are known")
    values: dict[str, Any] = {"out_channels": own.integer("num_output", least=1), "bias": own.flag("bias_term", True)}
    extents = _window(own)
    values |= {**_squares(*extents), "groups": own.integer("group", 1, least=1)}
    features = context.drafts.shape(source)
    if kind == "convolution" and len(features) == 1:
        # After global pooling Caffe's blob is an image of one position, and a 1x1 convolution of it a fully connected layer.
        if values["groups"] > 1 or extents[0] != (1, 1):
            raise own.fault(f"a vector of {features[0]} features cannot be convolved")
        values = {"out_features": values["out_channels"], "bias": values["bias"]}
        return context.add(fields, "linear", values, [source])
    dilation = own.integers("dilation", least=1) or [1]
    if max(dilation) > 1:
        if kind == "deconvolution":
            raise own.fault("deconvolutions with dilation are not known")
        values["dilation"] = square((dilation[0], dilation[-1]))
    return context.add(fields, kind, values, [source])


@types("InnerProduct")
def _inner_product(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own = fields.inner("inner_product_param")
    if own.integer("axis", 1, least=-4) != 1:
        raise own.fault("only inner products over whole samples (axis 1) are known")
    values = {"out_features": own.integer("num_output", least=1), "bias": own.flag("bias_term", True)}
    return context.add(fields, "linear", values, [context.source(fields, inputs)])


@types("BatchNorm")
def _batch_norm(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    """Statistics only; a Scale behind it has the learned part."""
    source = context.source(fields, inputs)
    added = context.drafts.add(fields.label or "norm", "batch_norm", {}, [source])
    return [Blob(added, norm=added)]


@types("Scale")
def _scale(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    """Scale (and shift) per channel; behind a BatchNorm that nothing else reads, the two are one normalisation."""
    own, source = fields.inner("scale_param"), context.source(fields, inputs)
    bias = own.flag("bias_term", False)
    if len(inputs) == 2:
        return context.add(fields, "pointwise", {"flop": 1.0}, [source, context.source(fields, inputs, 1)])
    if own.integer("axis", 1, least=-4) != 1 or own.integer("num_axes", 1, least=-1) != 1:
        raise own.fault("only scales per channel (axis 1, num_axes 1) are known")
    norm, drafts = inputs[0].norm, context.drafts
    if bias and norm is not None and not drafts.readers()[norm]:
        drafts.layers[norm] = dataclasses.replace(drafts.layers[norm], values={"affine": True})
        return [Blob(norm)]
    channels = drafts.shape(source)[0]
    values = {"flop": 2.0 if bias else 1.0, "weights": channels * (2 if bias else 1)}
    return context.add(fields, "pointwise", values, [source])


@types("Bias")
def _bias(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    source = context.source(fields, inputs)
    return context.add(fields, "pointwise", {"flop": 1.0, "weights": context.drafts.shape(source)[0]}, [source])


@types("PReLU")
def _prelu(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    source = context.source(fields, inputs)
    shared = fields.inner("prelu_param").flag("channel_shared", False)
    weights = 1 if shared else context.drafts.shape(source)[0]
    return context.add(fields, "pointwise", {"flop": 2.0, "weights": weights}, [source])


@types("Embed")
def _embed(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own, source = fields.inner("embed_param"), context.source(fields, inputs)
    positions = math.prod(context.drafts.shape(source))
    indices = context.drafts.add(f"{fields.label}/indices", "rearrange", {"shape": (1, positions)}, [source])
    values = {"num_embeddings": own.integer("input_dim", least=1), "dim": own.integer("num_output", least=1)}
    looked_up = context.add(fields, "embedding", values, [indices])
    if not own.flag("bias_term", True):
        return looked_up
    name = looked_up[0].layer
    assert name is not None
    return [Blob(context.drafts.add(f"{name}/bias", "pointwise", {"flop": 1.0, "weights": values["dim"]}, [name]))]

"""Caffe's layer types: a row of a table, or a function (layer) -> kind, parameters and sources of a layer here, or the blobs that it makes.

Defaults and formulas are those of BVLC/caffe, src/caffe/proto/caffe.proto and src/caffe/layers/*_layer.cpp.
"""

from __future__ import annotations

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

# Measures and sinks: they have no part in the gradient.
IGNORED = frozenset({"Accuracy", "Silence", "ArgMax", "HDF5Output"})

# Channels of images that a database holds; the file says nothing about them unless force_gray.
COLOURS = 3

# What a top is: the layer whose output it is; None for labels and what is left out; this for what could not be read.
Blob = str | None
BROKEN = ""


@dataclass(slots=True)
class Network:
    """The network so far."""

    drafts: Drafts = field(default_factory=Drafts)
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
        if self.blobs[name] == BROKEN:
            raise fields.fault("", is_follow_up=True)
        return self.blobs[name]

    def add_input(self, fields: Fields, name: str, top: str, shape: Sequence[int]) -> None:
        """An input of (batch, ...)."""
        if len(shape) < 2:
            self.blobs[top] = None  # one number per sample: a label
            return
        if len(shape) not in (2, 4):
            expected = "expected batch x channels (x height x width)"
            raise fields.fault(f"input '{top}' has {len(shape)} dimensions, {expected}")
        self.global_batch = max(self.global_batch, shape[0])
        rest = tuple(shape[1:])
        rest = rest[:1] if rest[1:] == (1, 1) else rest
        self.blobs[top] = self.drafts.add(name, "input", {"shape": rest})


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the file, what it reads, and the network before it."""

    net: Network
    fields: Fields
    kind: str
    tops: list[str]
    inputs: list[Blob]

    def source(self, index: int = 0) -> str:
        """The layer behind a bottom."""
        if index >= len(self.inputs):
            raise self.fields.fault(f"needs {index + 1} bottoms, has {len(self.inputs)}")
        layer = self.inputs[index]
        if layer is None:
            raise self.fields.fault("reads labels or what an accuracy layer returns, which are no layers here")
        return layer

    def sources(self, least: int) -> list[str]:
        """The layers behind all bottoms."""
        return [self.source(index) for index in range(max(least, len(self.inputs)))]

    def shape(self, index: int = 0) -> Shape:
        """What a bottom holds."""
        return self.net.drafts.shape(self.source(index))

    @property
    def is_frozen(self) -> bool:
        """Whether the file states learning rates, all of them 0."""
        rates = [inner.number("lr_mult", 1.0) for inner in self.fields.messages("param")]
        return bool(rates) and not any(rates)


# Kind, parameters and sources of the layer that it is here.
Made = tuple[str, dict[str, Any], list[str]]
READERS: dict[str, Callable[[Layer], Made | list[Blob]]] = {}
_types = registering(READERS, "Caffe type")


# Types that are one kind of layer each, whatever their fields say. The operations of losses, per element of the prediction, are estimates
# of their order: a loss is read once. A BatchNorm has statistics only; a Scale behind it has the learned part.
_PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("activation", {"function": name.lower()}) for name in ("ELU", "Sigmoid", "TanH")},
    **{
        name: ("pointwise", {"flop": flop})
        for name, flop in {
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
        }.items()
    },
    "BatchNorm": ("batch_norm", {}),
}


@_types(*_PLAIN)
def _plain(layer: Layer) -> Made:
    return *_PLAIN[layer.kind], [layer.source()]


# -- windows -----------------------------------------------------------------------------------------------------------------


_Pair = tuple[int, int]


def _square(pair: _Pair) -> int | _Pair:
    return pair[0] if pair[0] == pair[1] else pair


def _window(own: Fields) -> dict[str, _Pair]:
    kernel = own.size("kernel_size", "kernel", 0, least=1)
    if not kernel[0]:
        raise own.fault("'kernel_size' is missing")
    return {
        "kernel": kernel,
        "stride": own.size("stride", "stride", 1, least=1),
        "padding": own.size("pad", "pad", 0, least=0),
    }


@_types("Pooling")
def _pooling(layer: Layer) -> Made:
    """Output extents are rounded up unless the file says otherwise (PoolingLayer::Reshape)."""
    own, source = layer.fields.inner("pooling_param"), layer.source()
    method = own.text("pool", "MAX")
    modes = {"MAX": "max", "AVE": "average", "STOCHASTIC": "max", "0": "max", "1": "average", "2": "max"}
    if method not in modes:
        raise own.fault(f"pool is '{method[:40]}' (known: MAX, AVE, STOCHASTIC)")
    if own.flag("global_pooling", False):
        if own.values("kernel_size") or own.values("kernel_h"):
            raise own.fault("'global_pooling' excludes a kernel size")
        return "global_pool", {"mode": modes[method]}, [source]
    sizes = _window(own)
    kernel, pad = sizes["kernel"], sizes["padding"]
    rounding = own.text("round_mode", "CEIL")
    if rounding not in ("CEIL", "FLOOR"):
        raise own.fault(f"round_mode is '{rounding[:40]}' (known: CEIL, FLOOR)")
    if any(p >= k for p, k in zip(pad, kernel, strict=True)):
        raise own.fault(f"padding {pad[0]} must be less than the kernel {kernel[0]}")
    shape, is_ceil = layer.shape(), rounding == "CEIL"
    # Caffe drops a window outside the image only where there is padding; without it, the window is empty.
    if is_ceil and not any(pad) and len(shape) == 3 and kernel[0] <= shape[1] and kernel[1] <= shape[2]:
        caffe = tuple(-(-(e - k) // s) + 1 for e, k, s in zip(shape[1:], kernel, sizes["stride"], strict=True))
        if caffe != window("pooling", shape, kernel, sizes["stride"], pad, ceil_mode=True).output:
            outside = f"its last windows lie outside the image {shape_text(shape)}"
            raise own.fault(f"{outside}: Caffe's output is {shape_text(caffe)}")
    squares = {name: _square(pair) for name, pair in sizes.items()}
    return "pool", {**squares, "mode": modes[method], "ceil_mode": is_ceil}, [source]


@_types("LRN")
def _lrn(layer: Layer) -> Made:
    own = layer.fields.inner("lrn_param")
    size = own.integer("local_size", 5, least=1)
    if own.text("norm_region", "ACROSS_CHANNELS") in ("WITHIN_CHANNEL", "1"):
        return "pointwise", {"flop": 2.0 * size * size + 3.0}, [layer.source()]
    return "local_response_norm", {"size": size}, [layer.source()]


# -- element by element ------------------------------------------------------------------------------------------------------


@_types("ReLU")
def _relu(layer: Layer) -> Made:
    is_leaky = layer.fields.inner("relu_param").number("negative_slope", 0.0)
    return "activation", {"function": "leaky_relu" if is_leaky else "relu"}, [layer.source()]


@_types("Dropout")
def _dropout(layer: Layer) -> Made:
    own = layer.fields.inner("dropout_param")
    ratio = own.number("dropout_ratio", 0.5)
    if not 0.0 <= ratio < 1.0:
        raise own.fault(f"dropout_ratio is {ratio:g}; it must be from 0 to below 1")
    # 1 - 0.7 is 0.30000000000000004 in binary; the file's number has few digits.
    return "dropout", {"keep": round(1.0 - ratio, 12)}, [layer.source()]


@_types("Eltwise")
def _eltwise(layer: Layer) -> Made:
    operation = layer.fields.inner("eltwise_param").text("operation", "SUM")
    sources = layer.sources(2)
    if operation in ("SUM", "1"):
        return "add", {}, sources
    if operation not in ("PROD", "MAX", "0", "2"):
        raise layer.fields.fault(f"operation is '{operation[:40]}' (known: SUM, PROD, MAX)")
    return "pointwise", {"flop": len(sources) - 1.0}, sources


@_types("Softmax", "SoftmaxWithLoss")
def _softmax(layer: Layer) -> Made:
    if layer.fields.inner("softmax_param").integer("axis", 1, least=-4) != 1:
        raise layer.fields.fault("only a softmax over channels (axis 1) is known")
    return "softmax", {}, [layer.source()]


# -- shapes ------------------------------------------------------------------------------------------------------------------


@_types("Split")
def _split(layer: Layer) -> list[Blob]:
    return [layer.source()] * len(layer.tops)


@_types("Concat")
def _concat(layer: Layer) -> Made | list[Blob]:
    own = layer.fields.inner("concat_param")
    axis = own.integer("axis", own.integer("concat_dim", 1), least=-4)
    sources = layer.sources(1)
    if axis not in (1, -len(layer.shape())):
        raise own.fault(f"concatenates along axis {axis}; only channels (axis 1) are known")
    return ("concat", {}, sources) if len(sources) > 1 else [sources[0]]


@_types("Slice")
def _slice(layer: Layer) -> list[Blob]:
    own, source, tops = layer.fields.inner("slice_param"), layer.source(), layer.tops
    if own.integer("axis", own.integer("slice_dim", 1), least=-4) != 1:
        raise own.fault("only slices of channels (axis 1) are known")
    channels = layer.shape()[0]
    points = own.integers("slice_point", least=1)
    if not points and tops and channels % len(tops) == 0:
        points = [channels // len(tops) * i for i in range(1, len(tops))]
    bounds = [0, *points, channels]
    if len(bounds) != len(tops) + 1 or sorted(set(bounds)) != bounds:
        raise own.fault(f"{channels} channels cannot be cut at {points} into {len(tops)} tops")
    blobs: list[Blob] = []
    for top, start, stop in zip(tops, bounds, bounds[1:], strict=False):
        values = {"start": start, "features": stop - start}
        blobs.append(layer.net.drafts.add(f"{layer.fields.label}/{top}", "slice_features", values, [source]))
    return blobs


@_types("Flatten")
def _flatten(layer: Layer) -> Made | list[Blob]:
    source = layer.source()
    if len(layer.shape()) == 1:
        return [source]
    own = layer.fields.inner("flatten_param")
    if own.integer("axis", 1, least=-4) != 1 or own.integer("end_axis", -1, least=-4) not in (-1, 3):
        raise own.fault("only flattening whole samples (axis 1 to -1) is known")
    return "flatten", {}, [source]


@_types("Reshape")
def _reshape(layer: Layer) -> Made | list[Blob]:
    own, source = layer.fields.inner("reshape_param"), layer.source()
    if own.integer("axis", 0, least=-4) != 0 or own.integer("num_axes", -1, least=-1) != -1:
        raise own.fault("only reshaping of all axes is known")
    shape = layer.shape()
    written = own.inner("shape").integers("dim", least=-1)
    extents = [(1, *shape)[i] if d == 0 and i <= len(shape) else d for i, d in enumerate(written)][1:]
    known = math.prod(d for d in extents if d > 0)
    extents = [math.prod(shape) // max(known, 1) if d == -1 else d for d in extents]
    if len(written) < 2 or math.prod(extents) != math.prod(shape) or min(extents, default=0) < 1:
        raise own.fault(f"shape {written} does not hold the {shape_text(shape)} of its input")
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    target = tuple(extents)
    if target == shape:
        return [source]
    return ("flatten", {}, [source]) if len(target) == 1 else ("rearrange", {"shape": target}, [source])


@_types("Crop")
def _crop(layer: Layer) -> Made:
    """The first input, cut to the size of the second from ``axis`` (2: height and width) on."""
    source, shape, like = layer.source(), layer.shape(), layer.shape(1)
    axis = layer.fields.inner("crop_param").integer("axis", 2)
    if axis < 1 or len(shape) != len(like):
        raise layer.fields.fault(f"cannot crop {shape_text(shape)} to {shape_text(like)} from axis {axis} on")
    return "rearrange", {"shape": (*shape[: axis - 1], *like[axis - 1 :])}, [source]


# -- data --------------------------------------------------------------------------------------------------------------------


@_types("Input", "DummyData")
def _input(layer: Layer) -> list[Blob]:
    fields, tops = layer.fields, layer.tops
    own = fields.inner("input_param" if layer.kind == "Input" else "dummy_data_param")
    shapes = [tuple(inner.integers("dim", least=1)) for inner in own.messages("shape")]
    if not shapes and own.values("num"):
        shapes = [tuple(own.integer(key, least=1) for key in ("num", "channels", "height", "width"))]
    if not shapes or len(shapes) not in (1, len(tops)):
        raise fields.fault(f"{len(tops)} tops and {len(shapes)} shapes")
    for top, shape in zip(tops, shapes * (len(tops) if len(shapes) == 1 else 1), strict=True):
        layer.net.add_input(fields, top if len(tops) > 1 else fields.label or top, top, shape)
    return [layer.net.blobs[top] for top in tops]


_DATA = {
    "Data": "data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
    "HDF5Data": "hdf5_data_param",
    "MemoryData": "memory_data_param",
}


@_types(*_DATA)
def _data(layer: Layer) -> list[Blob]:
    """Databases hold the size of their images; the file says it only where it crops them."""
    fields, net = layer.fields, layer.net
    own, transform = fields.inner(_DATA[layer.kind]), fields.inner("transform_param")
    batch = own.integer("batch_size", 1, least=1)
    if layer.kind == "MemoryData":
        shape = tuple(own.integer(name, least=1) for name in ("channels", "height", "width"))
    else:
        crop = transform.integer("crop_size", 0) or own.integer("crop_size", 0)
        height, width = crop, crop
        if layer.kind == "ImageData" and not crop:
            height, width = own.integer("new_height", 0), own.integer("new_width", 0)
        if not (height and width):
            raise fields.fault(
                f"the size of its samples is in the database, not in this file; replace the layer by one of type Input "
                f"with 'input_param {{ shape {{ dim: {batch} dim: ... }} }}'"
            )
        is_gray = transform.flag("force_gray", False) or not own.flag("is_color", True)
        shape = (1 if is_gray else COLOURS, height, width)
        if not is_gray:
            net.notes.append(f"{fields.label}: {COLOURS} channels assumed, the file does not state them")
    if not layer.tops:
        raise fields.fault("has no top")
    top = layer.tops[0]
    net.add_input(fields, fields.label or top, top, (batch, *shape))
    return [net.blobs[top]]


# -- layers with weights -----------------------------------------------------------------------------------------------------


@_types("Convolution", "Deconvolution")
def _convolution(layer: Layer) -> Made:
    kind = layer.kind.lower()
    own, source = layer.fields.inner("convolution_param"), layer.source()
    if kind == "convolution" and own.integer("axis", 1) != 1:
        raise own.fault("only convolutions over channels (axis 1) are known")
    outputs, has_bias = own.integer("num_output", least=1), own.flag("bias_term", True)
    sizes, groups, features = _window(own), own.integer("group", 1, least=1), layer.shape()
    if kind == "convolution" and len(features) == 1:
        # After global pooling Caffe's blob is an image of one position, and a 1x1 convolution of it a fully connected layer.
        if groups > 1 or sizes["kernel"] != (1, 1):
            raise own.fault(f"a vector of {features[0]} features cannot be convolved")
        return "linear", {"out_features": outputs, "bias": has_bias}, [source]
    dilation = own.integers("dilation", least=1) or [1]
    if max(dilation) > 1:
        if kind == "deconvolution":
            raise own.fault("deconvolutions with dilation are not known")
        sizes["dilation"] = (dilation[0], dilation[-1])
    squares = {name: _square(pair) for name, pair in sizes.items()}
    return kind, {"out_channels": outputs, "bias": has_bias, **squares, "groups": groups}, [source]


@_types("InnerProduct")
def _inner_product(layer: Layer) -> Made:
    own = layer.fields.inner("inner_product_param")
    if own.integer("axis", 1, least=-4) != 1:
        raise own.fault("only inner products over whole samples (axis 1) are known")
    values = {"out_features": own.integer("num_output", least=1), "bias": own.flag("bias_term", True)}
    return "linear", values, [layer.source()]


@_types("Scale")
def _scale(layer: Layer) -> Made | list[Blob]:
    """Scale (and shift) per channel; behind a BatchNorm that nothing else reads, the two are one normalisation."""
    own, source, drafts = layer.fields.inner("scale_param"), layer.source(), layer.net.drafts
    has_bias = own.flag("bias_term", False)
    if len(layer.inputs) == 2:
        return "pointwise", {"flop": 1.0}, layer.sources(2)
    if own.integer("axis", 1, least=-4) != 1 or own.integer("num_axes", 1, least=-1) != 1:
        raise own.fault("only scales per channel (axis 1, num_axes 1) are known")
    norm = drafts.layers[source]
    if has_bias and norm.kind == "batch_norm" and not norm.params.affine and not drafts.readers()[source]:
        drafts.change(source, affine=True)
        return [source]
    each = 2 if has_bias else 1
    return "pointwise", {"flop": float(each), "weights": layer.shape()[0] * each}, [source]


@_types("Bias")
def _bias(layer: Layer) -> Made:
    return "pointwise", {"flop": 1.0, "weights": layer.shape()[0]}, [layer.source()]


@_types("PReLU")
def _prelu(layer: Layer) -> Made:
    shape = layer.shape()
    is_shared = layer.fields.inner("prelu_param").flag("channel_shared", False)
    return "pointwise", {"flop": 2.0, "weights": 1 if is_shared else shape[0]}, [layer.source()]


@_types("Embed")
def _embed(layer: Layer) -> list[Blob]:
    own, drafts, name = layer.fields.inner("embed_param"), layer.net.drafts, layer.fields.label or "embedding"
    positions = math.prod(layer.shape())
    rows = drafts.add(f"{layer.fields.label}/indices", "rearrange", {"shape": (1, positions)}, [layer.source()])
    count, dim = own.integer("input_dim", least=1), own.integer("num_output", least=1)
    rows = drafts.add(name, "embedding", {"num_embeddings": count, "dim": dim}, [rows], frozen=layer.is_frozen)
    if own.flag("bias_term", True):
        rows = drafts.add(f"{rows}/bias", "pointwise", {"flop": 1.0, "weights": dim}, [rows])
    return [rows]

"""Caffe's layers with weights, and where its data enters; `layers` has the others, and says how to add one.

Defaults and formulas are those of BVLC/caffe, src/caffe/proto/caffe.proto and src/caffe/layers/*_layer.cpp.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from planner.importers.caffe.context import COLOURS, V1_TYPES, Blob, Context, square, types
from planner.importers.caffe.fields import Fields

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
    kind = V1_TYPES.get(fields.text("type", ""), fields.text("type", ""))
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


@types("Convolution")
def _convolution(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own, source = fields.inner("convolution_param"), context.source(fields, inputs)
    if own.integer("axis", 1) != 1:
        raise own.fault("only convolutions over channels (axis 1) are known")
    outputs, bias = own.integer("num_output", least=1), own.flag("bias_term", True)
    kernel = own.size("kernel_size", "kernel", 0, least=1)
    stride, pad = own.size("stride", "stride", 1, least=1), own.size("pad", "pad", 0, least=0)
    if not kernel[0]:
        raise own.fault("'kernel_size' is missing")
    groups = own.integer("group", 1, least=1)
    if len(context.drafts.shape(source)) == 1:
        # After global pooling Caffe's blob is an image of one position, and a 1x1 convolution of it a fully connected layer.
        if groups > 1 or kernel != (1, 1):
            raise own.fault(f"a vector of {context.drafts.shape(source)[0]} features cannot be convolved")
        return context.add(fields, "linear", {"out_features": outputs, "bias": bias}, [source])
    values = {"out_channels": outputs, "kernel": square(kernel), "stride": square(stride), "padding": square(pad)}
    dilation = own.integers("dilation", least=1)
    if dilation and max(dilation) > 1:
        values["dilation"] = square((dilation[0], dilation[-1]))
    return context.add(fields, "convolution", {**values, "groups": groups, "bias": bias}, [source])


@types("Deconvolution")
def _deconvolution(context: Context, fields: Fields, inputs: Sequence[Blob]) -> list[Blob]:
    own, source = fields.inner("convolution_param"), context.source(fields, inputs)
    if max(own.integers("dilation", least=1) or [1]) > 1:
        raise own.fault("deconvolutions with dilation are not known")
    kernel = own.size("kernel_size", "kernel", 0, least=1)
    if not kernel[0]:
        raise own.fault("'kernel_size' is missing")
    values = {
        "out_channels": own.integer("num_output", least=1),
        "kernel": square(kernel),
        "stride": square(own.size("stride", "stride", 1, least=1)),
        "padding": square(own.size("pad", "pad", 0, least=0)),
        "groups": own.integer("group", 1, least=1),
        "bias": own.flag("bias_term", True),
    }
    return context.add(fields, "deconvolution", values, [source])


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

"""Layer families: shapes, weights, splits and work. To add one, add a file here and import it below."""

from costmodel.layers import convolution, elementwise, linear, pooling, recurrent, shape_only
from costmodel.layers.base import (
    FAMILIES,
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    family_of,
    params_from,
    shape_text,
)

__all__ = [
    "FAMILIES",
    "InnerExchange",
    "Kernel",
    "Layer",
    "LayerFamily",
    "LayerWork",
    "Shape",
    "ShapeError",
    "Shard",
    "SplitLimits",
    "convolution",
    "elementwise",
    "family_of",
    "linear",
    "params_from",
    "pooling",
    "recurrent",
    "shape_only",
    "shape_text",
]

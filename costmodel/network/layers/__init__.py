"""Layer families: shapes, weights, splits and work. To add one, add a file here and import it below."""

from costmodel.network.layers import (
    attention,
    convolution,
    elementwise,
    general,
    linear,
    mixture,
    pooling,
    recurrent,
    sequence,
    shape_only,
)
from costmodel.network.layers.base import (
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
    positions_of,
    shape_text,
)

__all__ = [
    "ATTENTION",
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
    "attention",
    "convolution",
    "elementwise",
    "family_of",
    "general",
    "linear",
    "mixture",
    "params_from",
    "pooling",
    "positions_of",
    "recurrent",
    "sequence",
    "shape_only",
    "shape_text",
]

# Kinds of layers with queries, keys and values whose heads and positions a mesh may divide.
ATTENTION = frozenset(
    kind for kind, family in FAMILIES.items() if isinstance(family, attention.DotProductAttention) and family.in_mesh
)

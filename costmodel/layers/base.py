"""What a layer family must say: its parameters, shapes, weights, legal splits and work. One family, one file, one registration."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

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
    "family_of",
    "param",
    "register",
    "shape_text",
]

FloatArray = NDArray[np.float64]

# Per sample, channels first: (channels, height, width) for images, (features, positions) for sequences, (features,) else.
Shape = tuple[int, ...]


class ShapeError(ValueError):
    """A layer cannot take the shapes it is given; the message names them."""


def shape_text(shape: Shape) -> str:
    """Write a shape for people: ``96x55x55``.

    >>> shape_text((96, 55, 55))
    '96x55x55'
    """
    return "x".join(str(extent) for extent in shape)


def param(
    *,
    doc: str,
    default: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare one parameter of a layer family: its meaning, neutral value and range (used by the file schema and the docs)."""
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a network with its shapes known.

    ``params`` is an instance of its family's ``Params`` dataclass.
    """

    name: str
    kind: str
    params: Any
    inputs: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    output_shape: Shape

    @property
    def family(self) -> LayerFamily:
        """The family that knows this kind of layer."""
        return FAMILIES[self.kind]

    @property
    def output_elements(self) -> int:
        """Elements of the output, per sample."""
        return int(np.prod(self.output_shape))

    @property
    def weight_count(self) -> int:
        """Trainable parameters, biases included and normalisation excluded."""
        return self.family.weight_count(self)

    @property
    def norm_count(self) -> int:
        """Trainable parameters of the attached normalisation (scale and shift per channel)."""
        return 2 * self.output_shape[0] if getattr(self.params, "norm", None) else 0

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to train."""
        return self.weight_count + self.norm_count > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLimits:
    """Largest legal degree of each way to split a layer (1 = cannot be split that way).

    ``channelwise`` layers (pooling, element-wise, ...) treat channels independently: splitting the output channels splits the
    input channels alike. Otherwise each worker of an output-channel split needs the whole input along channels.
    """

    out_channels: int
    in_channels: int = 1
    height: int = 1
    channelwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The largest share that one worker holds, for many splits at once; every field has shape (n,).

    For channelwise layers ``in_channels`` is the worker's share of the first input's channels.
    """

    batch: FloatArray
    out_channels: FloatArray
    in_channels: FloatArray
    height: FloatArray  # rows of the output; the whole extent (or 1) where a layer has no rows
    # Degrees of the split the share came from.
    split_out: FloatArray
    split_in: FloatArray
    split_height: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One device kernel: floating-point operations, elements moved through memory, and the matrix it multiplies.

    ``gemm`` = (m, n, k) for kernels that run on the matrix units; None for element-wise ones.
    """

    flop: FloatArray
    elements: FloatArray
    gemm: tuple[FloatArray, FloatArray, FloatArray] | None = None
    algorithm: str = "gemm"
    launches: int = 1  # kernels started one after the other; flop and elements are their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerExchange:
    """Communication inside a split layer (partial sums, halos, recurrent state), in elements per worker.

    ``phase`` "backward" is needed in every training step, "input_gradient" only if a layer before this one has weights.

    ``elements`` is the size of the full message of the group: the gathered tensor for all_gather, the tensor before reduction for
    reduce_scatter and all_reduce, the rows sent for point_to_point.
    """

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "point_to_point"]
    over: Literal["out_channels", "in_channels", "height"]
    elements: FloatArray
    phase: Literal["forward", "backward", "input_gradient"]
    repeats: int = 1


# A pass is a tuple of alternatives (algorithms); each alternative is a sequence of kernels; the cheapest is taken.
PassWork = tuple[tuple[Kernel, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What one worker computes for its share of a layer, forward and backward apart.

    ``backward_input`` is what only the gradient of the input needs: a first layer leaves it out. What every gradient needs, like
    that of an attached activation, belongs to ``backward_weight``.
    """

    forward: PassWork
    backward_input: PassWork = ()
    backward_weight: PassWork = ()
    exchanges: tuple[InnerExchange, ...] = ()


class LayerFamily(ABC):
    """Physics of one kind of layer; stateless."""

    kind: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type]
    # A view moves no data and computes nothing: it costs nothing, and every output lists it as such.
    is_view: ClassVar[bool] = False
    # Has weights that a fully-connected layer would have: the "fc" class of the hybrid family.
    min_inputs: ClassVar[int] = 1
    max_inputs: ClassVar[int] = 1

    @abstractmethod
    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:
        """Infer the output shape; raise ShapeError naming the shapes that do not fit."""

    def weight_count(self, layer: Layer) -> int:  # noqa: ARG002 - most layers have none
        """Trainable parameters, biases included."""
        return 0

    def is_fully_connected(self, layer: Layer) -> bool:  # noqa: ARG002 - most layers are not
        """Whether every output sees every input (the layers that one weird trick splits by channels)."""
        return False

    @abstractmethod
    def limits(self, layer: Layer) -> SplitLimits:
        """Largest legal split degrees."""

    @abstractmethod
    def work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Work of one worker's share, for many splits at once."""


FAMILIES: dict[str, LayerFamily] = {}


def register(cls: type[LayerFamily]) -> type[LayerFamily]:
    """Add a layer family to the registry (class decorator)."""
    assert cls.kind not in FAMILIES, f"layer kind {cls.kind!r} registered twice"
    FAMILIES[cls.kind] = cls()
    return cls


def family_of(kind: str) -> LayerFamily:
    """Look a family up by kind.

    Raises
    ------
    ValueError
        Unknown kind; the message suggests the nearest.
    """
    try:
        return FAMILIES[kind]
    except KeyError:
        close = difflib.get_close_matches(kind, FAMILIES, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"layer type '{kind}' is not known{hint} known: {', '.join(sorted(FAMILIES))}") from None


def params_from(kind: str, values: Mapping[str, Any]) -> Any:
    """Build the parameters of a kind from plain values (used by importers and tests; files go through the schema)."""
    return family_of(kind).Params(**values)

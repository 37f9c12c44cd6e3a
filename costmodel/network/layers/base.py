"""What a layer family must say: its parameters, shapes, weights, legal splits and work. One family, one registration.

Normalisation and activation attached to a layer are memory-bound passes over its output (`epilogue_kernels`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from costmodel.arrays import FloatArray

if TYPE_CHECKING:
    from costmodel.network.layers.attention import Documents


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
class LayerSpec:
    """A layer as written: no shapes yet. ``params`` is an instance of its family's ``Params`` dataclass."""

    name: str
    kind: str
    params: Any
    inputs: tuple[str, ...] = ()
    block: str = ""  # full name of the repetition of a block that the layer belongs to; empty outside
    frozen: bool = False  # weights without gradient and optimizer state
    lora_rank: int = 0  # rank of a trainable adapter alongside the weights, which are frozen then; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(LayerSpec):
    """One layer of a network with its shapes known."""

    input_shapes: tuple[Shape, ...]
    output_shape: Shape
    documents: Documents | None = None  # packed into the sequence, where attention reads each for itself

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
        """Parameters, biases included; attached normalisation and adapters excluded."""
        return self.family.weight_count(self)

    @property
    def norm_count(self) -> int:
        """Parameters of the attached normalisation (scale and shift per channel)."""
        return 2 * self.output_shape[0] if getattr(self.params, "norm", None) else 0

    @property
    def adapter_count(self) -> int:
        """Trainable parameters of a low-rank adapter, not part of ``weight_count``: ``r (I + O)`` (Hu et al., arXiv:2106.09685)."""
        return self.lora_rank * sum(self.matrix_shape)

    @property
    def tied_count(self) -> int:
        """Parameters that another layer owns; this one needs its own copy of them where the two lie on different devices."""
        return math.prod(self.matrix_shape) if getattr(self.params, "tied", False) else 0

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and features of a weight matrix that layers may share, an embedding's or a linear layer's (outputs x inputs); else zeros."""
        return self.family.matrix_shape(self)

    @property
    def expert_count(self) -> int:
        """The part of ``weight_count`` in routed experts, all of them together."""
        return self.family.expert_count(self)

    @property
    def shared_count(self) -> int:
        """The part of ``weight_count`` in experts that every token passes, their gate included."""
        return self.family.shared_count(self)

    @property
    def is_frozen(self) -> bool:
        """Whether the weights get no gradient (an adapter alongside them does)."""
        return self.frozen or self.lora_rank > 0

    @property
    def trainable_count(self) -> int:
        """Parameters that get a gradient; attached normalisation excluded, as in ``weight_count``."""
        return self.adapter_count if self.is_frozen else self.weight_count

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to train."""
        return self.trainable_count + (0 if self.is_frozen else self.norm_count) > 0

    @property
    def keeps_input(self) -> bool:
        """Whether the backward pass reads the input of the layer."""
        needed_by_weights_only = self.frozen and not self.lora_rank and self.family.input_for_weights_only
        return self.family.keeps_input and not needed_by_weights_only

    @property
    def is_recomputable(self) -> bool:
        """Whether selective recomputation runs the layer again instead of keeping what it makes."""
        return self.family.is_recomputable(self)

    @property
    def signature(self) -> tuple[object, ...]:
        """What decides the cost of the layer: equal layers are costed once."""
        return (self.kind, self.params, self.input_shapes, self.frozen, self.lora_rank, self.documents)


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

    For channelwise layers ``in_channels`` is the worker's share of the first input's channels. ``sequence``, ``experts`` and ``load``
    may be left out (nothing is cut) or be scalars.

    Examples
    --------
    >>> whole = np.ones(3)
    >>> shard = Shard(batch=4 * whole, out_channels=8 * whole, in_channels=8 * whole, height=whole,
    ...               split_out=whole, split_in=whole, split_height=whole, sequence=np.array([1.0, 2.0, 3.0]))
    >>> positions_of((8, 100), shard).tolist(), shard.experts.tolist()
    ([100.0, 50.0, 34.0], [1.0, 1.0, 1.0])
    """

    batch: FloatArray
    out_channels: FloatArray
    in_channels: FloatArray
    height: FloatArray  # rows of the output; the whole extent (or 1) where a layer has no rows
    # Degrees of the split the share came from.
    split_out: FloatArray
    split_in: FloatArray
    split_height: FloatArray
    # Pieces that the positions of a sequence are cut into (context or sequence parallel), and workers that share the experts.
    sequence: FloatArray = field(default_factory=lambda: np.ones(()))
    experts: FloatArray = field(default_factory=lambda: np.ones(()))
    # Tokens of the worker whose experts get most, over the mean.
    load: FloatArray = field(default_factory=lambda: np.ones(()))

    def __post_init__(self) -> None:
        """Give every field the same shape."""
        for name in ("sequence", "experts", "load"):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            if value.shape != np.shape(self.batch):
                object.__setattr__(self, name, np.broadcast_to(value, np.shape(self.batch)))


def positions_of(shape: Shape, shard: Shard) -> FloatArray:
    """Positions of a sequence (features x positions) in the largest piece of a share; 1 for a vector of features."""
    return np.ceil(math.prod(shape[1:]) / shard.sequence)


def share_of_output(layer: Layer, shard: Shard) -> Any:
    """Output elements of one worker's share."""
    if len(layer.output_shape) == 3:
        return shard.batch * shard.out_channels * shard.height * layer.output_shape[2]
    return shard.batch * shard.out_channels * positions_of(layer.output_shape, shard)


# Kernels that some software leaves out, since the kernel alongside them does their work: an activation forward, a bias (its addition and
# its gradient), the gradient of an activation after a normalisation, a concatenation.
Fusable = Literal["", "activation", "bias", "normalised gradient", "concatenation", "gradient sum"]
# What kind of kernel it is (`costmodel.kernels.roofline.kernel_time_s`).
Tiling = Literal[
    "library",
    "sums",
    "unaligned",
    "grouped",
    "recurrent",
    "thin",
    "weights",
    "scattered",
    "depthwise",
    "masked",
    "window",
    "decode",
    "maximum",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One device kernel: floating-point operations, elements moved through memory, and the matrix it multiplies.

    ``gemm`` = (m, n, k) for kernels that run on the matrix units; None for element-wise ones. ``tiling`` says what kind of kernel
    multiplies (`costmodel.kernels.roofline.kernel_time_s`).
    """

    flop: FloatArray
    elements: FloatArray
    gemm: tuple[FloatArray, FloatArray, FloatArray] | None = None
    algorithm: str = "gemm"
    tiling: Tiling = "library"
    images: bool = False  # multiplies images, whose layout in memory matters
    launches: int = 1  # kernels started one after the other; flop and elements are their sum
    fusable: Fusable = ""  # what it does, where some software has the kernel alongside it do that
    aligned: FloatArray | None = None  # rows of its matrices begin at multiples of so many numbers; None: of 16 bytes
    window: tuple[FloatArray, float] | None = (
        None  # outputs of a convolution of narrow groups, and positions that each sees
    )


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
    """What one worker computes for its share of a layer, forward and backward separately.

    ``backward_input`` is what only the gradient of the input needs: a first layer leaves it out. What every gradient needs, like
    that of an attached activation, belongs to ``backward_weight``.
    """

    forward: PassWork
    backward_input: PassWork = ()
    backward_weight: PassWork = ()
    exchanges: tuple[InnerExchange, ...] = ()
    # The part of every ``backward_weight`` alternative without which there is no gradient of the input: it stays in frozen layers.
    through: tuple[Kernel, ...] = ()

    def frozen(self) -> LayerWork:
        """Work of the same layer when its weights get no gradient."""
        alternatives = self.backward_input or (((),) if self.through else ())
        return replace(
            self,
            backward_input=tuple((*kernels, *self.through) for kernels in alternatives),
            backward_weight=(),
            through=(),
            exchanges=tuple(replace(e, phase="input_gradient") if e.phase == "backward" else e for e in self.exchanges),
        )


class LayerFamily(ABC):
    """Physics of one kind of layer; stateless."""

    # Set by `register`.
    kind: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type]
    # A view moves no data and computes nothing: it costs nothing, and every output lists it as such.
    is_view: ClassVar[bool] = False
    # The backward pass reads the layer's input, which therefore stays in memory (once, however many layers keep it)...
    keeps_input: ClassVar[bool] = True
    # ... but only for the gradient of the weights: a frozen layer lets it go.
    input_for_weights_only: ClassVar[bool] = False
    # Has no weights to speak of and little arithmetic: selective recomputation runs it again.
    recomputable: ClassVar[bool] = False
    # Several products in one layer: cost tables of single layers count ``saved_elements``, not only the output.
    keeps_inside: ClassVar[bool] = False
    # Can have a low-rank adapter.
    takes_adapter: ClassVar[bool] = False
    # What can be cut besides the batch (`limits`): channels apart, and rows of images.
    splits_channels: ClassVar[bool] = True
    splits_rows: ClassVar[bool] = False
    min_inputs: ClassVar[int] = 1
    max_inputs: ClassVar[int] = 1

    @abstractmethod
    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:
        """Infer the output shape; raise ShapeError naming the shapes that do not fit."""

    def weight_count(self, layer: Layer) -> int:  # noqa: ARG002 - most layers have none
        """Parameters, biases included."""
        return 0

    def matrix_shape(self, layer: Layer) -> tuple[int, int]:  # noqa: ARG002 - most have none that can be shared
        """See `Layer.matrix_shape`."""
        return (0, 0)

    def expert_count(self, layer: Layer) -> int:  # noqa: ARG002 - mixtures of experts only
        """See `Layer.expert_count`."""
        return 0

    def shared_count(self, layer: Layer) -> int:  # noqa: ARG002 - mixtures of experts only
        """See `Layer.shared_count`."""
        return 0

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """Elements that the layer keeps for its backward pass beyond its input and output, in a share; shape (n,).

        Unless a family says otherwise, the inputs of an attached normalisation and activation.

        The unit is an activation element, taken to have two bytes: a mask of one byte counts 0.5, a number in fp32 counts 2. Which
        inputs are kept is said by ``keeps_input``.
        """
        attached = getattr(layer.params, "norm", None), getattr(layer.params, "activation", None)
        return epilogue_saved(*attached, np.asarray(share_of_output(layer, shard)))

    def cast_elements(self, layer: Layer, shard: Shard) -> FloatArray:  # noqa: ARG002 - mixtures of experts only
        """Those of `saved_elements` that enter products inside the layer, which may keep them in 8 bits."""
        return np.zeros(np.shape(shard.batch))

    def repeated_elements(self, layer: Layer, shard: Shard) -> FloatArray:  # noqa: ARG002 - mixtures of experts only
        """Those of `saved_elements` that selective recomputation makes again: what leaves activations inside the layer."""
        return np.zeros(np.shape(shard.batch))

    def is_recomputable(self, layer: Layer) -> bool:  # noqa: ARG002 - the kind decides but for attention
        """See `Layer.is_recomputable`."""
        return self.recomputable

    def is_fully_connected(self, layer: Layer) -> bool:  # noqa: ARG002 - most layers are not
        """Whether every output sees every input (the layers that one weird trick splits by channels)."""
        return False

    def limits(self, layer: Layer) -> SplitLimits:
        """Largest legal split degrees; unless a family says otherwise, channels (or features) are independent."""
        shape = layer.output_shape
        rows = shape[1] if self.splits_rows and len(shape) == 3 else 1
        return SplitLimits(out_channels=shape[0] if self.splits_channels else 1, height=rows, channelwise=True)

    def work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Work of one worker's share, for many splits at once: what is frozen has no ``backward_weight``."""
        work = self.trained_work(layer, shard)
        return work.frozen() if layer.frozen and not layer.lora_rank else work

    @abstractmethod
    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Work of one worker's share when the layer is trained (its adapter, where it has one)."""


class ViewFamily(LayerFamily):
    """A kind of layer that is a view."""

    is_view = True
    keeps_input = False

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:  # noqa: ARG002 - a view
        """Nothing."""
        return LayerWork(forward=())


FAMILIES: dict[str, LayerFamily] = {}


_Family = TypeVar("_Family", bound=LayerFamily)


def register(kind: str, params: type, summary: str) -> Callable[[type[_Family]], type[_Family]]:
    """Add a layer family to the registry (class decorator): its kind, the class of its parameters, what people are told about it."""
    assert kind not in FAMILIES, f"layer kind {kind!r} registered twice"

    def add(cls: type[_Family]) -> type[_Family]:
        cls.kind, cls.Params, cls.summary = kind, params, summary
        FAMILIES[kind] = cls()
        return cls

    return add


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


Norm = Literal["batch"] | None
Activation = Literal["relu", "leaky_relu", "elu", "gelu", "sigmoid", "tanh", "swish"] | None

# Elements moved per output element (forward, backward).
# Batch normalisation: forward reads for the statistics, reads again and writes; backward reads the input and the gradient for the
# two sums, reads both again and writes (Ioffe and Szegedy, arXiv:1502.03167, equations of the backward pass).
_NORM_PASSES = (3.0, 5.0)
# An activation is applied while the result is still in registers (but see `image_epilogue`); its gradient reads gradient and output
# and writes.
_ACTIVATION_PASSES = (0.0, 3.0)
# Operations per element: about 4 forward (subtract, multiply, scale, shift), 8 backward; 1 for the activation.
_NORM_FLOP = (8.0, 16.0)


def epilogue_kernels(
    norm: Norm, activation: Activation, outputs: FloatArray
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels that follow the layer forward and precede it backward.

    Parameters
    ----------
    norm, activation : names or None
    outputs : array (n,)
        Output elements of the share.

    Returns
    -------
    forward, backward : tuples of Kernel
    """
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    if norm is not None:
        forward.append(Kernel(flop=_NORM_FLOP[0] * outputs, elements=_NORM_PASSES[0] * outputs, launches=2))
        backward.append(Kernel(flop=_NORM_FLOP[1] * outputs, elements=_NORM_PASSES[1] * outputs, launches=2))
    if activation is not None:
        moved = _ACTIVATION_PASSES[1] * outputs
        backward.append(Kernel(flop=outputs, elements=moved, fusable="" if norm is None else "normalised gradient"))
    return tuple(forward), tuple(backward)


def image_epilogue(
    norm: Norm, activation: Activation, outputs: FloatArray, *, bias: bool
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels around a convolution: frameworks call a library for it, and start kernels of their own for its bias and activation.

    Bias: forward a kernel reads and writes the output, backward one reads its gradient (``BiasAdd`` and ``BiasAddGrad`` of TensorFlow,
    ``cudnnAddTensor`` and ``cudnnConvolutionBackwardBias`` of Torch, Caffe and PyTorch). An activation reads and writes the output
    once more (``cudnnActivationForward``, ``relu_`` of PyTorch). Software that does so in the convolution or normalisation leaves
    these kernels out (`Fusable`).

    Parameters
    ----------
    norm, activation : names or None
    outputs : array (n,)
        Output elements of the share.
    bias : bool

    Returns
    -------
    forward, backward, own : tuples of Kernel
        After the layer, before its backward pass, and for its own weights.

    Examples
    --------
    >>> forward, backward, own = image_epilogue(None, "relu", np.array([10.0]), bias=True)
    >>> [kernel.elements.tolist() for kernel in (*forward, *backward, *own)]
    [[20.0], [20.0], [30.0], [10.0]]
    """
    behind, before = epilogue_kernels(norm, activation, outputs)
    added = (Kernel(flop=outputs, elements=2.0 * outputs, fusable="bias"),) if bias else ()
    summed = (Kernel(flop=outputs, elements=outputs, fusable="bias"),) if bias else ()
    applied = (Kernel(flop=outputs, elements=2.0 * outputs, fusable="activation"),) if activation is not None else ()
    return (*added, *behind, *applied), before, summed


def epilogue_saved(norm: Norm, activation: Activation, outputs: FloatArray) -> FloatArray:
    """Elements that an attached normalisation and activation keep: their inputs, which no other layer sees.

    The gradient of an activation other than gelu and swish is found from its output, which the next layer keeps (in place
    where it is relu).

    >>> epilogue_saved("batch", "gelu", np.array([10.0])).tolist(), epilogue_saved(None, "relu", np.array([10.0])).tolist()
    ([20.0], [0.0])
    """
    return outputs * (float(norm is not None) + float(activation in ("gelu", "swish")))


def reduced_fraction(shard: Shard) -> FloatArray:
    """Part of a worker's outputs that it keeps once the partial sums of an input-channel split are reduced into channel shares.

    1 without such a split; with 10 output channels over 4 workers, 3 of 10.
    """
    return np.asarray(np.ceil(shard.out_channels / shard.split_in) / shard.out_channels)

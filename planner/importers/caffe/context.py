"""What readers of Caffe's layers share: the network so far, and the register of layer types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.core.errors import did_you_mean
from planner.importers.caffe.fields import Fields
from planner.importers.drafts import Drafts
from planner.importers.registry import registering

__all__ = ["COLOURS", "IGNORED", "READERS", "V1_TYPES", "Blob", "Context", "Reader", "square", "types"]

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


# Names of the format before 2014 (enum V1LayerParameter.LayerType).
V1_TYPES = {
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
}

"""PALEO's network files (JSON): tensors in NHWC, filters in HWIO, blocks, and layers split over devices.

::

    {"name": ..., "layers": {
        "data":  {"parents": [], "type": "Input", "tensor": [128, 224, 224, 3]},
        "conv1": {"parents": ["data"], "type": "Convolution", "filter": [11, 11, 3, 64], "strides": [1, 4, 4, 1], "padding": "VALID"},
        "mixed": {"parents": ["conv1"], "type": "Block", "endpoint": "concat", "layers": {...}}}}

A block's layers are called ``block/layer`` and read, where they name no parents, what the block reads; the block's own name stands
for its endpoint. `ModelParallel` blocks repeat their layers on several devices, each with a share of the output channels (parents are
``layer@self`` or ``layer@all``); here they become the plain layer again, because how to split it is the planner's question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from costmodel.network.graph import Graph, GraphError, GraphProblem
from costmodel.network.layers import Layer, params_from, shape_text
from costmodel.network.layers.base import LayerSpec
from planner.core.errors import did_you_mean
from planner.importers.sources import registering

# -- layer types ------------------------------------------------------------------------------------------------------------


_MAX_EXTENT = 10**9  # as in network files


class ImportedNetwork(NamedTuple):
    """A network, the batch that its file states, and what was read differently from how it is written."""

    graph: Graph
    global_batch: int
    notes: tuple[str, ...]


# PALEO's names of activations -> ours; a layer that names none has "relu", as in PALEO.
_ACTIVATIONS: dict[str | None, str | None] = {
    None: None,
    "relu": "relu",
    "elu": "elu",
    "leaky_relu": "leaky_relu",
    "lrelu": "leaky_relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softmax": None,
    "linear": None,
}
_NORMALIZERS = (None, "batch_norm")


class Problem(ValueError):  # noqa: N818 - caught and attached to its layer
    """What is wrong with one layer."""


# Kind and parameters of a layer here.
Meaning = tuple[str, dict[str, Any]]
_TYPES: dict[str, Callable[[Mapping[str, Any]], Meaning]] = {}
_types = registering(_TYPES, "PALEO type")
# Where a filter has its channels: of the input, of the output.
_CHANNELS = {"convolution": (2, 3), "deconvolution": (3, 2)}


def _check(layer: Layer, entry: Mapping[str, Any]) -> None:
    """Compare what a file states twice: input channels of filters, and output shapes, with the shapes inferred."""
    if layer.kind in _CHANNELS:
        takes = entry["filter"][_CHANNELS[layer.kind][0]]
        if takes not in (-1, layer.input_shapes[0][0] if layer.input_shapes else 0):
            raise Problem(f"its filters take {takes} channels, its input has {shape_text(layer.input_shapes[0])}")
    stated = entry.get("output_shape")
    if isinstance(stated, list) and layer.kind in ("deconvolution", "flatten"):
        shape = _channels_first(stated[1:])
        if shape != layer.output_shape and _drop_ones(shape) != layer.output_shape:
            raise Problem(f"'output_shape' gives {shape_text(shape)}, the layer gives {shape_text(layer.output_shape)}")
    if math.prod(layer.output_shape) > _MAX_ELEMENTS or layer.weight_count > _MAX_ELEMENTS:
        raise Problem("has more than 2**53 outputs per sample or weights")


@_types("Input")
def _input(entry: Mapping[str, Any]) -> Meaning:
    return "input", {"shape": _channels_first(_whole_numbers(entry, "tensor", lengths=(2, 4))[1:])}


@_types("Convolution", "Deconvolution")
def _convolution(entry: Mapping[str, Any]) -> Meaning:
    kind = entry["type"].lower()
    inputs, outputs = _CHANNELS[kind]
    filters = _whole_numbers(entry, "filter", lengths=(4,), unknown_at=inputs)
    return kind, {
        "out_channels": filters[outputs],
        "kernel": _square(filters[0], filters[1]),
        "stride": _window(entry, "strides"),
        "padding": _padding(entry),
        **_attached(entry),
    }


@_types("Pooling", "AvgPool")
def _pool(entry: Mapping[str, Any]) -> Meaning:
    return "pool", {
        "kernel": _window(entry, "ksize"),
        "stride": _window(entry, "strides"),
        "padding": _padding(entry),
        "mode": "max" if entry["type"] == "Pooling" else "average",
    }


@_types("InnerProduct")
def _inner_product(entry: Mapping[str, Any]) -> Meaning:
    count = entry.get("num_outputs")
    if not _is_whole(count, 1):
        raise Problem(f"'num_outputs' is {count!r}, expected a whole number of at least 1")
    return "linear", {"out_features": count, **_attached(entry, default=None)}


@_types("Dropout")
def _dropout(entry: Mapping[str, Any]) -> Meaning:
    keep = entry.get("dropout_keep_prob", 0.5)
    if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
        raise Problem(f"'dropout_keep_prob' is {keep!r}, expected a number from 0 to 1")
    return "dropout", {"keep": float(keep)}


@_types("Concatenate")
def _concatenate(entry: Mapping[str, Any]) -> Meaning:
    if entry.get("dim", 3) not in (1, 3, -1):
        raise Problem(f"'dim' is {entry['dim']!r}; only channels (3, the last of NHWC) can be concatenated")
    return "concat", {}


@_types("UpSampling2D")
def _upsampling(entry: Mapping[str, Any]) -> Meaning:
    factor = _window(entry, "ksize")
    if isinstance(factor, tuple):
        raise Problem(f"'ksize' enlarges by {factor[0]} x {factor[1]}; only equal factors are known")
    return "upsample", {"factor": factor}


@_types("Reshape")
def _reshape(entry: Mapping[str, Any]) -> Meaning:
    shape = _whole_numbers(entry, "output_shape", lengths=(2, 4))
    if len(_drop_ones(tuple(shape[1:]))) > 1:
        raise Problem(f"'output_shape' is {shape}; only reshaping to one vector per sample is known")
    return "flatten", {}


_PLAIN: dict[str, Meaning] = {
    "Sigmoid": ("activation", {"function": "sigmoid"}),
    "ReLU": ("activation", {"function": "relu"}),
    "Elementwise": ("add", {}),
    "Softmax": ("softmax", {}),
    "BatchNorm": ("batch_norm", {}),
    "LRN": ("local_response_norm", {}),
}


@_types(*_PLAIN)
def _without_parameters(entry: Mapping[str, Any]) -> Meaning:
    return _PLAIN[entry["type"]]


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_EXTENT


def _whole_numbers(
    entry: Mapping[str, Any], key: str, *, lengths: tuple[int, ...], unknown_at: int | None = None
) -> list[int]:
    """A list of positive whole numbers; at one place -1 may stand for "whatever the input has"."""
    value = entry.get(key)
    if not isinstance(value, list) or len(value) not in lengths:
        wanted = " or ".join(map(str, lengths))
        raise Problem(f"'{key}' is {_shown(value)}, expected a list of {wanted} whole numbers")
    for i, number in enumerate(value):
        if not _is_whole(number, 1) and not (i == unknown_at and number == -1 and number is not True):
            raise Problem(f"'{key}' is {_shown(value)}; {_shown(number)} is not a whole number of at least 1")
    return value


def _square(height: int, width: int) -> int | tuple[int, int]:
    return height if height == width else (height, width)


def _window(entry: Mapping[str, Any], key: str) -> int | tuple[int, int]:
    """(height, width) of NHWC."""
    numbers = _whole_numbers(entry, key, lengths=(4,))
    if numbers[0] != 1 or numbers[3] != 1:
        raise Problem(f"'{key}' is {numbers}; samples and channels take 1")
    return _square(numbers[1], numbers[2])


def _padding(entry: Mapping[str, Any]) -> str | int | tuple[int, int]:
    value = entry.get("padding")
    if value in ("SAME", "VALID"):
        return str(value).lower()
    if isinstance(value, list) and len(value) == 2 and all(_is_whole(pad, 0) for pad in value):
        return _square(value[0], value[1])
    raise Problem(f"'padding' is {_shown(value)}, expected 'SAME', 'VALID' or [height, width]")


def _attached(entry: Mapping[str, Any], *, default: str | None = "relu") -> dict[str, Any]:
    function, normalizer = entry.get("activation_fn", default), entry.get("normalizer_fn")
    if not (function is None or isinstance(function, str)) or function not in _ACTIVATIONS:
        known = ", ".join(name for name in _ACTIVATIONS if name)
        raise Problem(f"'activation_fn' is {_shown(function)}, known: {known}, null")
    if not (normalizer is None or isinstance(normalizer, str)) or normalizer not in _NORMALIZERS:
        raise Problem(f"'normalizer_fn' is {_shown(normalizer)}, known: batch_norm, null")
    return {"activation": _ACTIVATIONS[function], "norm": "batch" if normalizer else None}


def _channels_first(extents: list[int]) -> tuple[int, ...]:
    return (extents[-1], *extents[:-1])


def _drop_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1) or (1,)


def _shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."


# -- files ------------------------------------------------------------------------------------------------------------------


FORMAT = "PALEO network (JSON)"

_MAX_LAYERS = 100_000
# Elements of one output, or weights of one layer: beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53


def detect(content: object) -> bool:
    """Whether parsed JSON looks like PALEO's format: ``layers`` maps names to layers with types.

    Examples
    --------
    >>> detect({"layers": {"data": {"type": "Input"}}}), detect({"layers": [1, 2]}), detect(3)
    (True, False, False)
    """
    layers = content.get("layers") if isinstance(content, dict) else None
    return isinstance(layers, dict) and any(isinstance(layer, dict) and "type" in layer for layer in layers.values())


def convert(content: Any) -> ImportedNetwork:
    """Build the network that a PALEO file describes.

    Parameters
    ----------
    content : dict
        Parsed JSON.

    Returns
    -------
    ImportedNetwork

    Raises
    ------
    GraphError
        Every fault of the network, by layer.

    Examples
    --------
    >>> layers = {
    ...     "data": {"type": "Input", "parents": [], "tensor": [32, 8, 8, 3]},
    ...     "conv": {"type": "Convolution", "parents": ["data"], "filter": [3, 3, 3, 4], "strides": [1, 1, 1, 1], "padding": "SAME"},
    ... }
    >>> network = convert({"name": "tiny", "layers": layers})
    >>> network.global_batch, network.graph.weight_count, network.graph.layers[1].output_shape  # 3*3*3*4 + 4
    (32, 112, (4, 8, 8))
    """
    if not detect(content):
        problem = GraphProblem("layers", "is not a PALEO network: 'layers' must map names to layers with a 'type'")
        raise GraphError([problem])
    return _Conversion(content).run()


class _Conversion:
    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.problems: list[GraphProblem] = []
        self.notes: list[str] = []
        self.global_batch = 0  # 0: no input is read yet
        self.layers: dict[str, dict[str, Any]] = {}  # full name -> as written
        self.parents: dict[str, tuple[str, ...]] = {}
        self.endpoints: dict[str, str] = {}

    def run(self) -> ImportedNetwork:
        for name, entry in self.content["layers"].items():
            if not self._is_layer(name, entry):
                continue
            if entry["type"] in ("Block", "ModelParallel"):
                self._block(name, entry)
            else:
                self._add(name, entry, self._names(name, entry))
        self._rename(self.endpoints)
        self._stop_at_problems()
        self._drop_gatherings()
        specs = [spec for name in self.layers if (spec := self._spec(name)) is not None]
        self._stop_at_problems()
        name = self.content.get("name")
        graph = Graph.build(name if isinstance(name, str) and name else "network", specs)
        for layer in graph.layers:
            try:
                _check(layer, self.layers[layer.name])
            except Problem as problem:
                self._note_problem(layer.name, str(problem))
        self._stop_at_problems()
        return ImportedNetwork(graph, self.global_batch or 1, tuple(self.notes))

    def _stop_at_problems(self) -> None:
        if self.problems:
            raise GraphError(list(dict.fromkeys(self.problems)))

    def _note_problem(self, layer: str, message: str) -> None:
        self.problems.append(GraphProblem(layer, message))

    def _rename(self, others: Mapping[str, str]) -> None:
        for name, parents in self.parents.items():
            self.parents[name] = tuple(others.get(parent, parent) for parent in parents)

    # -- blocks ------------------------------------------------------------------------------------------------------------

    def _is_layer(self, name: str, entry: object) -> bool:
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            self._note_problem(name, "expected a layer: an object with 'type' and 'parents'")
            return False
        return True

    def _block(self, name: str, entry: Mapping[str, Any]) -> None:
        inner = entry.get("layers")
        if not isinstance(inner, dict) or not inner:
            self._note_problem(name, "a block needs 'layers', an object of layers")
            return
        outer = self._names(name, entry)
        splits = entry.get("splits", 1)
        split = entry["type"] == "ModelParallel"
        if split and (isinstance(splits, bool) or not isinstance(splits, int) or splits < 1):
            self._note_problem(name, f"'splits' is {splits!r}, expected a whole number of at least 1")
        for short, layer in inner.items():
            full = f"{name}/{short}"
            if not self._is_layer(full, layer):
                continue
            if layer["type"] in ("Block", "ModelParallel"):
                self._note_problem(full, "PALEO has no blocks inside blocks")
                continue
            own = self._names(full, layer)
            self._add(full, layer, tuple(f"{name}/{parent}" for parent in own) if own else outer)
        if split:
            self.notes.append(f"{name}: {splits} splits merged into whole layers; the planner chooses the split")
        endpoint = entry.get("endpoint")
        if endpoint is not None:
            if not isinstance(endpoint, str) or endpoint not in inner:
                self._note_problem(name, f"'endpoint' names {_shown(endpoint)}, which is not a layer of the block")
            self.endpoints[name] = f"{name}/{endpoint}"

    def _add(self, name: str, entry: dict[str, Any], parents: tuple[str, ...]) -> None:
        if name in self.layers:
            self._note_problem(name, "two layers have this name")
        if len(self.layers) >= _MAX_LAYERS:
            raise GraphError([GraphProblem("layers", f"more than {_MAX_LAYERS:,} layers")])
        self.layers[name] = entry
        self.parents[name] = parents

    def _names(self, name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
        """Parents as written, without what says which copy of a split layer is meant."""
        parents = entry.get("parents")
        if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
            self._note_problem(name, "'parents' must be a list of names of layers")
            return ()
        return tuple(re.sub("@(all|self)$", "", parent) for parent in parents)

    def _drop_gatherings(self) -> None:
        """Remove concatenations of one input: they joined the parts of a layer that is whole now."""
        for name, entry in list(self.layers.items()):
            parents = self.parents[name]
            if (
                entry["type"] == "Concatenate"
                and len(parents) == 1
                and parents[0] in self.layers
                and parents != (name,)
            ):
                self.notes.append(f"{name}: joins the parts of one layer; left out")
                del self.layers[name], self.parents[name]
                self._rename({name: parents[0]})

    # -- layers ------------------------------------------------------------------------------------------------------------

    def _spec(self, name: str) -> LayerSpec | None:
        entry = self.layers[name]
        try:
            if entry["type"] not in _TYPES:
                hint = f"{did_you_mean(entry['type'], _TYPES)} (known: {', '.join(sorted(_TYPES))})"
                raise Problem(f"layer type '{entry['type'][:60]}' is not known{hint}")
            kind, values = _TYPES[entry["type"]](entry)
            if kind == "input":
                batch = entry["tensor"][0]
                if self.global_batch not in (0, batch):
                    raise Problem(f"its batch is {batch}, another input has {self.global_batch}")
                self.global_batch = batch
        except Problem as problem:
            self._note_problem(name, str(problem))
            return None
        return LayerSpec(name=name, kind=kind, params=params_from(kind, values), inputs=self.parents[name])

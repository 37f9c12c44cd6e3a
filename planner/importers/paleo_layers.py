"""The layer types of PALEO's network files, one function each. To add one, decorate a method of `LayerReader`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.network.layers import Layer, family_of, params_from, shape_text
from planner.core.errors import did_you_mean
from planner.importers.registry import registering

__all__ = ["LayerReader", "Problem"]

_MAX_EXTENT = 10**9  # as in network files

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


_Read = Callable[["LayerReader", Mapping[str, Any]], tuple[str, dict[str, Any]]]
_TYPES: dict[str, _Read] = {}
_types = registering(_TYPES, "PALEO type")


class LayerReader:
    """Turns layers as written into kinds and parameters, and remembers the batch of the inputs."""

    def __init__(self) -> None:
        self.global_batch = 1
        self._batch_known = False

    def read(self, entry: Mapping[str, Any]) -> tuple[str, Any]:
        """Kind and parameters of a layer.

        Raises
        ------
        Problem
            An unknown type, or values that make no sense.
        """
        name = entry["type"]
        if name not in _TYPES:
            known = ", ".join(sorted(_TYPES))
            raise Problem(f"layer type '{name[:60]}' is not known{did_you_mean(name, _TYPES)} known: {known}")
        kind, values = _TYPES[name](self, entry)
        return kind, params_from(kind, values)

    def check(self, layer: Layer, entry: Mapping[str, Any]) -> None:
        """Compare what a file states twice: input channels of filters, and output shapes, with the shapes inferred.

        Raises
        ------
        Problem
            They differ.
        """
        filters = entry.get("filter")
        channels = layer.input_shapes[0][0] if layer.input_shapes else 0
        if layer.kind == "convolution" and filters[2] not in (-1, channels):  # type: ignore[index]
            raise Problem(f"its filters take {filters[2]} channels, its input has {shape_text(layer.input_shapes[0])}")  # type: ignore[index]
        if layer.kind == "deconvolution" and filters[3] not in (-1, channels):  # type: ignore[index]
            raise Problem(f"its filters take {filters[3]} channels, its input has {shape_text(layer.input_shapes[0])}")  # type: ignore[index]
        stated = entry.get("output_shape")
        if isinstance(stated, list) and layer.kind in ("deconvolution", "flatten"):
            shape = _channels_first(stated[1:])
            if shape != layer.output_shape and _drop_ones(shape) != layer.output_shape:
                raise Problem(
                    f"'output_shape' gives {shape_text(shape)}, the layer gives {shape_text(layer.output_shape)}"
                )

    @_types("Input")
    def _input(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        tensor = _whole_numbers(entry, "tensor", lengths=(2, 4))
        if self._batch_known and tensor[0] != self.global_batch:
            raise Problem(f"its batch is {tensor[0]}, another input has {self.global_batch}")
        self.global_batch, self._batch_known = tensor[0], True
        return "input", {"shape": _channels_first(tensor[1:])}

    @_types("Convolution")
    def _convolution(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        filters = _whole_numbers(entry, "filter", lengths=(4,), unknown_at=2)
        return "convolution", {
            "out_channels": filters[3],
            "kernel": _square(filters[0], filters[1]),
            "stride": _window(entry, "strides"),
            "padding": _padding(entry),
            **_attached(entry),
        }

    @_types("Deconvolution")
    def _deconvolution(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        filters = _whole_numbers(entry, "filter", lengths=(4,), unknown_at=3)
        return "deconvolution", {
            "out_channels": filters[2],
            "kernel": _square(filters[0], filters[1]),
            "stride": _window(entry, "strides"),
            "padding": _padding(entry),
            **_attached(entry),
        }

    @_types("Pooling", "AvgPool")
    def _pool(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "pool", {
            "kernel": _window(entry, "ksize"),
            "stride": _window(entry, "strides"),
            "padding": _padding(entry),
            "mode": "max" if entry["type"] == "Pooling" else "average",
        }

    @_types("InnerProduct")
    def _inner_product(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        count = entry.get("num_outputs")
        if not _is_whole(count, 1):
            raise Problem(f"'num_outputs' is {count!r}, expected a whole number of at least 1")
        return "linear", {"out_features": count, **_attached(entry, default=None)}

    @_types("Dropout")
    def _dropout(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        keep = entry.get("dropout_keep_prob", 0.5)
        if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
            raise Problem(f"'dropout_keep_prob' is {keep!r}, expected a number from 0 to 1")
        return "dropout", {"keep": float(keep)}

    @_types("Concatenate")
    def _concatenate(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if entry.get("dim", 3) not in (1, 3, -1):
            raise Problem(f"'dim' is {entry['dim']!r}; only channels (3, the last of NHWC) can be concatenated")
        return "concat", {}

    @_types("UpSampling2D")
    def _upsampling(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        factor = _window(entry, "ksize")
        if isinstance(factor, tuple):
            raise Problem(f"'ksize' enlarges by {factor[0]} x {factor[1]}; only equal factors are known")
        return "upsample", {"factor": factor}

    @_types("Reshape")
    def _reshape(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        shape = _whole_numbers(entry, "output_shape", lengths=(2, 4))
        if len(_drop_ones(tuple(shape[1:]))) > 1:
            raise Problem(f"'output_shape' is {shape}; only reshaping to one vector per sample is known")
        return "flatten", {}

    @_types("Elementwise", "Softmax", "Sigmoid", "ReLU", "BatchNorm", "LRN")
    def _without_parameters(self, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        name = entry["type"]
        if name in ("Sigmoid", "ReLU"):
            return "activation", {"function": name.lower()}
        kinds = {"Elementwise": "add", "Softmax": "softmax", "BatchNorm": "batch_norm", "LRN": "local_response_norm"}
        assert family_of(kinds[name]) is not None
        return kinds[name], {}


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
    """One number where both are equal, as people write it."""
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
    """Activation and normalisation of a layer with weights."""
    function, normalizer = entry.get("activation_fn", default), entry.get("normalizer_fn")
    if not (function is None or isinstance(function, str)) or function not in _ACTIVATIONS:
        known = ", ".join(name for name in _ACTIVATIONS if name)
        raise Problem(f"'activation_fn' is {_shown(function)}, known: {known}, null")
    if not (normalizer is None or isinstance(normalizer, str)) or normalizer not in _NORMALIZERS:
        raise Problem(f"'normalizer_fn' is {_shown(normalizer)}, known: batch_norm, null")
    return {"activation": _ACTIVATIONS[function], "norm": "batch" if normalizer else None}


def _channels_first(extents: list[int]) -> tuple[int, ...]:
    """HWC to CHW."""
    return (extents[-1], *extents[:-1])


def _drop_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1) or (1,)


def _shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."

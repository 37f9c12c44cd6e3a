"""A network under construction: layers with plain parameters, shapes inferred as they come, then written as a network file.

Readers of other programs' graphs (Caffe, ONNX, torch) add one layer after the other; `content` attaches normalisations and
activations to the layers before them and folds what repeats into blocks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.network.layers import Layer, Shape, ShapeError, family_of, params_from

__all__ = ["Draft", "DraftError", "Drafts", "clean_name"]

# What a network file takes for a name (planner.schema.common); slashes stand for the dots of modules.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_/@+-]")
_LONGEST_NAME = 64
# Beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53
_MAX_EXTENT = 10**9


class DraftError(ValueError):
    """A layer cannot be added; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A layer with its shapes.

    Attributes
    ----------
    values : mapping
        Parameters as a network file writes them.
    """

    name: str
    kind: str
    values: Mapping[str, Any]
    inputs: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    output_shape: Shape
    frozen: bool = False

    @property
    def weight_count(self) -> int:
        """Parameters, those of an attached normalisation included."""
        layer = Layer(
            name=self.name,
            kind=self.kind,
            params=params_from(self.kind, self.values),
            inputs=self.inputs,
            input_shapes=self.input_shapes,
            output_shape=self.output_shape,
        )
        return layer.weight_count + layer.norm_count


def clean_name(name: str) -> str:
    """Make a name that a network file allows.

    >>> clean_name("layer1.0.conv1"), clean_name("::x y"), clean_name("")
    ('layer1/0/conv1', 'x_y', 'layer')
    """
    text = _NOT_IN_NAMES.sub("_", name.strip(".:/ ").replace(".", "/"))
    return text.lstrip("/@+-_")[:_LONGEST_NAME] or "layer"


class Drafts:
    """Layers in the order in which they are added.

    Examples
    --------
    >>> drafts = Drafts()
    >>> data = drafts.add("data", "input", {"shape": (3, 8, 8)})
    >>> drafts.shape(drafts.add("conv", "convolution", {"out_channels": 4, "kernel": 3}, [data]))
    (4, 6, 6)
    """

    def __init__(self) -> None:
        self.layers: dict[str, Draft] = {}
        self._numbers: dict[str, int] = {}

    def add(
        self, name: str, kind: str, values: Mapping[str, Any], inputs: Sequence[str] = (), *, frozen: bool = False
    ) -> str:
        """Add a layer.

        Parameters
        ----------
        name : str
            As the other program calls it.
        kind : str
        values : mapping
            Parameters; those that have their default may be given.
        inputs : sequence of str
            Names that this method returned.

        Returns
        -------
        str
            Its name here.

        Raises
        ------
        DraftError
            Shapes that do not fit, or sizes that are typing errors.
        """
        family = family_of(kind)
        for key, value in values.items():
            _check_value(kind, key, value)
        shapes = tuple(self.layers[parent].output_shape for parent in inputs)
        try:
            shape = family.output_shape(params_from(kind, values), shapes)
        except ShapeError as error:
            raise DraftError(str(error)) from None
        own = self._unique(clean_name(name))
        elements = 1
        for extent in shape:
            elements *= extent
        draft = Draft(
            name=own,
            kind=kind,
            values=dict(values),
            inputs=tuple(inputs),
            input_shapes=shapes,
            output_shape=shape,
            frozen=frozen,
        )
        if elements > _MAX_ELEMENTS or draft.weight_count > _MAX_ELEMENTS:
            raise DraftError("has more than 2**53 outputs per sample or weights")
        self.layers[own] = draft
        return own

    def shape(self, name: str) -> Shape:
        """Output of a layer, one sample."""
        return self.layers[name].output_shape

    def readers(self) -> dict[str, list[str]]:
        """Layer -> layers that read it."""
        result: dict[str, list[str]] = {name: [] for name in self.layers}
        for draft in self.layers.values():
            for parent in dict.fromkeys(draft.inputs):
                result[parent].append(draft.name)
        return result

    def _unique(self, name: str) -> str:
        if name not in self.layers:
            return name
        while True:
            number = self._numbers[name] = self._numbers.get(name, 1) + 1
            other = f"{name[: _LONGEST_NAME - 1 - len(str(number))]}_{number}"
            if other not in self.layers:
                return other


def _check_value(kind: str, key: str, value: Any) -> None:
    """A parameter within the range that network files allow."""
    field = next(field for field in dataclasses.fields(family_of(kind).Params) if field.name == key)
    least, most = field.metadata["minimum"], field.metadata["maximum"]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if least is not None and number < least:
            raise DraftError(f"'{key}' is {number}, it must be at least {least:g}")
        if number > (_MAX_EXTENT if most is None else most):
            raise DraftError(f"'{key}' is {number}, it must be at most {_MAX_EXTENT if most is None else most:g}")

"""The vocabulary that front ends write a graph of tensors in, and what is done to such a program before it is read.

What no output needs goes, and shifts that are written as slices become one copy.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class ProgramFault(ValueError):  # noqa: N818 - named after the situation
    """An operation cannot be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that is not the result of an operation.

    Attributes
    ----------
    key : str
        Identity of a parameter's storage: tied parameters have the same.
    value : array, optional
        Of small constants.
    is_trained : bool
        A parameter that gets a gradient.
    """

    shape: tuple[int, ...]
    role: Literal["input", "parameter", "constant"]
    name: str
    key: str = ""
    is_integer: bool = False
    is_trained: bool = True
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes
    ----------
    kind : str
        Of the vocabulary in `planner.importers.traced.conversion`.
    source : str
        What the foreign program calls the operator.
    inputs : tuple
        Names of tensors; None for those left out.
    shapes : tuple
        Of the outputs.
    path : str
        Module or scope that it belongs to.
    """

    kind: str
    source: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    def fault(self, message: object) -> ProgramFault:
        """Why it cannot be read."""
        return ProgramFault(f"{self.source} '{self.outputs[0]}': {message}")


@dataclass(slots=True, kw_only=True)
class Program:
    """A graph of tensors in topological order.

    Attributes
    ----------
    batch : int
        Samples of the example: the extent of the dimension ``batch_axis`` of the inputs.
    is_fused : bool
        Attention that is written out is run by a fused kernel.
    has_scopes : bool
        Paths of operations name layers better than parameters do.
    unknown : Counter
        Operators that are not known, with their counts.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    outputs: tuple[str, ...] = ()
    batch: int = 1
    batch_axis: int = 0
    is_fused: bool = False
    has_scopes: bool = False
    notes: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        kind: str,
        source: str,
        inputs: Sequence[str | None],
        outputs: Sequence[str],
        shapes: tuple[tuple[int, ...], ...],
        attributes: Mapping[str, Any],
        module: tuple[str, str],
    ) -> None:
        """Add an operation of a module: its path, and the name of its class where that is known."""
        what = attributes.get("function") or (attributes.get("op") if kind == "binary" else "")
        word = what or (source if kind == "unknown" else kind)
        self.operations.append(
            Operation(
                kind=kind,
                source=source,
                inputs=tuple(None if name is None else str(name) for name in inputs),
                outputs=tuple(outputs),
                shapes=shapes,
                attributes=attributes,
                path=scoped(*module, word),
            )
        )


# Modules that hold others, or do several things.
_COMPOSITE = ("Sequential", "ModuleList", "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
              "TransformerEncoderLayer", "TransformerDecoderLayer")  # fmt: skip


def scoped(path: str, class_name: str, word: str) -> str:
    """Name of an operation in a module: what it does stands behind the module, unless the module is that alone.

    >>> scoped("layers.0.fc", "torch.nn.modules.linear.Linear", "linear"), scoped("layers.0", "__main__.Block", "add")
    ('layers.0.fc', 'layers.0.add')
    """
    is_leaf = class_name.startswith("torch.nn.modules.") and class_name.rpartition(".")[2] not in _COMPOSITE
    if not path:
        return word
    return path if is_leaf else f"{path}.{word}"


def needed_operations(operations: Sequence[Operation], outputs: Sequence[str]) -> list[Operation]:
    """The operations that an output or a loss depends on, in their order.

    Modules compute what their caller then drops, such as the mean of attention over its heads.
    """
    made: dict[str, Operation] = {}
    shifted = []
    for operation in operations:
        own = _shift(operation, made)
        made.update(dict.fromkeys(own.outputs, own))
        shifted.append(own)
    wanted, kept = set(outputs), []
    for operation in reversed(shifted):
        if operation.kind == "loss" or wanted.intersection(operation.outputs):
            wanted.update(name for name in operation.inputs if name is not None)
            kept.append(operation)
    return kept[::-1]


def _shift(operation: Operation, made: dict[str, Operation]) -> Operation:
    """A concatenation of the end of a tensor and its beginning: a shift around, as ``roll`` is written out."""
    if operation.kind != "cat" or len(operation.inputs) != 2:
        return operation
    end, begin = (made.get(str(name)) for name in operation.inputs)
    if end is None or begin is None or end.kind != "slice" or begin.kind != "slice" or end.inputs[0] != begin.inputs[0]:
        return operation
    dim = operation.attributes["dim"]
    if {end.attributes["dim"], begin.attributes["dim"]} != {dim} or begin.attributes["start"] != 0:
        return operation
    if end.attributes["start"] != begin.shapes[0][dim] or {
        end.attributes.get("step", 1),
        begin.attributes.get("step", 1),
    } != {1}:
        return operation
    source = made.get(str(end.inputs[0]))
    is_again = (
        source is not None and source.kind == "copy" and source.attributes.get("is_shift")
    )  # along several dimensions at once
    inputs = source.inputs if source is not None and is_again else end.inputs[:1]
    return dataclasses.replace(operation, kind="copy", inputs=inputs, attributes={"is_shift": True})

"""What operators of torch are read with: one operator as it stands in a program, and the table of those that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.importers.registry import registering

__all__ = ["OPERATORS", "Read", "Reading", "as_list", "as_pair", "is_tensor", "operators", "tensor_of"]


class Reading:
    """One operator as it is read: its arguments by name, shapes of its tensors, and what it becomes.

    ``arguments`` holds tensors as names (str wrapped in `Ref`) and everything else as it is.
    """

    __slots__ = ("arguments", "attributes", "inputs", "kind", "operator", "shape", "shapes")

    def __init__(
        self,
        operator: str,
        arguments: Mapping[str, Any],
        shape: Callable[[Any], tuple[int, ...]],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        self.operator = operator
        self.arguments = arguments
        self.shape = shape
        self.shapes = shapes
        self.kind = ""
        self.inputs: list[Any] = []
        self.attributes: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """An argument."""
        value = self.arguments.get(name)
        return default if value is None else value

    def become(self, kind: str, inputs: list[Any], **attributes: Any) -> None:
        """Say what the operator is."""
        self.kind, self.inputs, self.attributes = kind, inputs, attributes


Read = Callable[[Reading], None]
OPERATORS: dict[str, Read] = {}
operators = registering(OPERATORS, "operator")


def tensor_of(r: Reading) -> Any:
    """The tensor that an operator works on."""
    return r.arguments.get("self", r.arguments.get("input"))


def as_pair(value: Any) -> tuple[int, ...]:
    """Extents of a window: one number is for both directions."""
    items = value if isinstance(value, (list, tuple)) else [value]
    result = tuple(int(item) for item in items)
    return result * 2 if len(result) == 1 else result


def as_list(value: Any) -> tuple[int, ...]:
    """One number or several, as several."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor of the program."""
    return type(value).__name__ == "Ref"

"""Numbers of small constants in a program of torch: masks, positions and indices, worked out by torch's own operators.

Only operators of a fixed list run, on tensors that the program holds or makes itself, on the CPU.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["Constants"]

_MAX_ELEMENTS = 1 << 22  # of one constant: a mask of 2048 positions
_MAX_WORK = 1 << 26  # elements of all of them together
_FOLDED = frozenset({
    "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "eye",
    "linspace", "tril", "triu", "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "t",
    "permute", "expand", "expand_as", "slice", "select", "cat", "stack", "clone", "alias", "detach", "to", "_to_copy", "type_as",
    "contiguous", "lift_fresh_copy", "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "floor", "minimum", "maximum", "min", "max", "clamp", "remainder", "floor_divide",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_not",
    "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "__and__", "__or__", "where", "masked_fill", "outer", "repeat",
    "_assert_tensor_metadata", "index", "index_select", "roll", "flip", "any", "all", "masked_fill_", "add_", "mul_", "sub_",
})  # fmt: skip


class Constants:
    """Tensors of a program whose numbers are known, by the name of the node that makes them."""

    def __init__(self) -> None:
        self._tensors: dict[str, Any] = {}
        self._work = 0

    def keep(self, name: str, stored: Any) -> Any:
        """Remember a tensor that the program holds; its numbers as an array, None where there are none."""
        is_known = (
            stored is not None
            and hasattr(stored, "numel")
            and stored.device.type == "cpu"
            and stored.numel() <= _MAX_ELEMENTS
            and not stored.dtype.is_complex
            and not _is_fake(stored)
        )
        if is_known:
            self._tensors[name] = stored.detach()
        return self.numbers(name)

    def numbers(self, name: str) -> Any:
        """Numbers as an array; None where they are not known."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        try:
            return (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()
        except (RuntimeError, TypeError):  # tensors without numbers, of whatever kind
            return None

    def works_out(self, node: Any, operator: str, shape: tuple[int, ...]) -> bool:
        """Work a node out where everything that it reads is known; whether that was possible."""
        elements = math.prod(shape)
        if operator not in _FOLDED or elements > _MAX_ELEMENTS or self._work + elements > _MAX_WORK:
            return False
        try:
            arguments = [self._argument(item) for item in node.args]
            named = {
                key: self._argument(item) for key, item in node.kwargs.items() if key not in ("device", "pin_memory")
            }
        except LookupError:
            return False
        if operator.endswith("_"):  # what it writes into may be a buffer of the program
            arguments[0] = arguments[0].clone()
        makes = any(argument.name == "device" for argument in node.target._schema.arguments)
        try:
            result = node.target(*arguments, **named, **({"device": "cpu"} if makes else {}))
        except Exception:
            return False  # what cannot be worked out stays a tensor whose numbers are not known
        if not hasattr(result, "numel") or tuple(result.shape) != shape or result.dtype.is_complex:
            return False
        self._work += elements
        self._tensors[node.name] = result
        return True

    def _argument(self, item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._argument(one) for one in item]
        if not hasattr(item, "op"):
            return item
        value = item.meta.get("val")
        if isinstance(value, (bool, int, float)):
            return value
        return self._tensors[item.name]


def _is_fake(tensor: Any) -> bool:
    return type(tensor).__name__ == "FakeTensor"

"""Small constants that are worked out of others: targets of reshapes, masks, indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.importers.traced.program import Operation

__all__ = ["folded"]


def folded(operation: Operation, inputs: list[Any], shape: tuple[int, ...]) -> Any:  # noqa: PLR0911 - one per operation
    """Numbers of a small constant; None for operations that are not worked out here."""
    attributes = operation.attributes
    match operation.kind:
        case "reshape":
            return inputs[0].reshape(shape)
        case "alias" if "triangle" in attributes:
            lower = attributes["triangle"] == "tril"
            return (np.tril if lower else np.triu)(inputs[0], attributes.get("diagonal", 0))
        case "alias":
            return inputs[0]
        case "expand":
            return np.broadcast_to(inputs[0], shape)
        case "permute":
            return inputs[0].transpose(attributes["order"])
        case "slice":
            index = [slice(None)] * inputs[0].ndim
            index[attributes["dim"]] = slice(attributes["start"], attributes["stop"], attributes.get("step", 1))
            return inputs[0][tuple(index)]
        case "binary" if attributes.get("op") == "eq":
            return inputs[0] == (inputs[1] if len(inputs) > 1 else attributes.get("scalar"))
        case "binary" if attributes.get("op") == "not":
            return ~inputs[0].astype(bool)
        case _:
            return None

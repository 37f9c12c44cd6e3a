"""Operations before they are read: what nothing needs goes, and shifts that are written as slices become one copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from planner.importers.traced.program import Operation

__all__ = ["needed_operations"]


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

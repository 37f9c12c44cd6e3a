"""Layers that are one in all but name: projections of the same tensor that are concatenated, gates and values that are multiplied."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from planner.importers.drafts import Draft, Drafts

__all__ = ["join"]

_GATES = {"swish": "silu", "gelu": "gelu", "relu": "relu", "sigmoid": "sigmoid"}


def join(drafts: Drafts, outputs: Iterable[str]) -> None:
    """Join sibling projections and gated units, in place.

    *Queries, keys and values*: a concatenation that alone reads linear layers of one input is one linear layer with all their outputs.
    *Gated units*: function(gate) x value, of two such layers or of the halves of one, is a `glu`.
    """
    kept = set(outputs)
    _remove_unused(drafts, kept)
    _gates(drafts, kept)
    _concats(drafts, kept)


def _remove_unused(drafts: Drafts, kept: set[str]) -> None:
    """Layers without weights that nothing reads: masks' inputs, halves that were tried."""
    while True:
        readers = drafts.readers()
        unused = [
            name
            for name, draft in drafts.layers.items()
            if not readers[name]
            and name not in kept
            and draft.kind in ("input", "rearrange", "slice_features", "reduce")
            and len(drafts.layers) > 1
        ]
        if not unused:
            return
        for name in unused:
            del drafts.layers[name]


def _alone(drafts: Drafts, names: Iterable[str], reader: str, kept: set[str]) -> bool:
    readers = drafts.readers()
    return all(readers[name] == [reader] and name not in kept for name in names)


def _siblings(drafts: Drafts, names: Iterable[str]) -> list[Draft] | None:
    """Linear layers of one input that differ in their outputs only."""
    found = [drafts.layers[name] for name in names]
    first = found[0]
    if any(draft.kind != "linear" for draft in found) or len({draft.name for draft in found}) < len(found):
        return None
    same = all(
        draft.inputs == first.inputs
        and draft.frozen == first.frozen
        and {**draft.values, "out_features": 0} == {**first.values, "out_features": 0}
        for draft in found
    )
    return found if same and not first.values.get("tied") else None


def _merge(drafts: Drafts, parts: list[Draft], target: str, suffix: str) -> str:
    """Replace linear layers by one, in the place of the first."""
    outputs = sum(part.values["out_features"] for part in parts)
    folder = parts[0].name.rpartition("/")[0]
    first = parts[0]
    name = f"{folder}/{suffix}" if folder else suffix
    if name in drafts.layers and name != target:
        name = f"{first.name}_{suffix}"
    merged = dataclasses.replace(
        first,
        name=name,
        values={**first.values, "out_features": outputs},
        output_shape=(outputs, *first.output_shape[1:]),
    )
    gone = {part.name for part in parts[1:]}
    layers: dict[str, Draft] = {}
    for old, draft in drafts.layers.items():
        if old == first.name:
            layers[name] = merged
        elif old not in gone:
            layers[old] = draft
    drafts.layers = layers
    return name


def _rename(drafts: Drafts, old: str, new: str) -> None:
    for name, draft in drafts.layers.items():
        if old in draft.inputs:
            inputs = tuple(new if parent == old else parent for parent in draft.inputs)
            drafts.layers[name] = dataclasses.replace(draft, inputs=inputs)


def _concats(drafts: Drafts, kept: set[str]) -> None:
    for name in [name for name, draft in drafts.layers.items() if draft.kind == "concat"]:
        draft = drafts.layers[name]
        parts = _siblings(drafts, draft.inputs)
        if parts is None or name in kept or not _alone(drafts, draft.inputs, name, kept):
            continue
        suffix = "kv" if len(parts) == 2 else "qkv"
        del drafts.layers[name]
        merged = _merge(drafts, parts, name, suffix)
        _rename(drafts, name, merged)


def _gates(drafts: Drafts, kept: set[str]) -> None:
    for name in list(drafts.layers):
        draft = drafts.layers.get(name)
        if draft is None or draft.kind != "pointwise" or draft.values != {"flop": 1.0} or len(draft.inputs) != 2:
            continue
        for gate, value in (draft.inputs, draft.inputs[::-1]):
            if gate in drafts.layers and _glu(drafts, draft, gate, value, kept):
                break


def _glu(drafts: Drafts, product: Draft, gate: str, value: str, kept: set[str]) -> bool:
    activation = drafts.layers[gate]
    function = _GATES.get(str(activation.values.get("function")))
    if activation.kind != "activation" or function is None or len(product.output_shape) > 2 or gate == value:
        return False
    source = activation.inputs[0]
    if not (_alone(drafts, [gate, value], product.name, kept) and _alone(drafts, [source], gate, kept)):
        return False
    layers = drafts.layers
    if layers[source].kind == "slice_features" and layers[value].kind == "slice_features":
        whole = layers[source].inputs[0]
        half = product.output_shape[0]
        if layers[value].inputs != (whole,) or layers[whole].output_shape[0] != 2 * half:
            return False
        if {layers[one].values.get("start", 0) for one in (source, value)} != {0, half}:
            return False
        for one in (source, value, gate):
            del layers[one]
    else:
        parts = _siblings(drafts, [source, value])
        if parts is None or parts[0].output_shape != parts[1].output_shape:
            return False
        del layers[gate]
        # In the place of the later one, so that both inputs exist.
        whole = _merge(drafts, parts, product.name, "gate_up")
    shape = drafts.layers[whole].output_shape
    drafts.layers[product.name] = dataclasses.replace(
        product, kind="glu", values={"function": function}, inputs=(whole,), input_shapes=(shape,)
    )
    return True

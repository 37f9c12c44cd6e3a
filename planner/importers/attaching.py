"""Normalisations and activations become part of the layer before them, as network files write them (`norm`, `activation`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from planner.importers.drafts import Draft, Drafts

__all__ = ["attach"]

_WITH_NORM = ("convolution", "deconvolution", "linear")


def attach(drafts: Drafts, kept: Collection[str] = ()) -> dict[str, Draft]:
    """Attach batch normalisations with scale and shift, and then activations, to convolutions and linear layers.

    Only where the layer has no other reader and its rank is that of an image or a vector: in a sequence, normalisations and
    activations are layers of their own, as in the bundled transformers.

    Parameters
    ----------
    drafts : Drafts
    kept : collection of str
        Outputs of the network, whose layers keep their own name and output.

    Returns
    -------
    dict
        The layers that are left, with their inputs renamed.
    """
    readers = drafts.readers()
    renamed: dict[str, str] = {}
    result: dict[str, Draft] = {}
    for draft in drafts.layers.values():
        inputs = tuple(renamed.get(parent, parent) for parent in draft.inputs)
        source = result.get(inputs[0]) if len(inputs) == 1 else None
        merged = None
        if source is not None and readers[draft.inputs[0]] == [draft.name] and draft.inputs[0] not in kept:
            merged = _merged(source, draft)
        if merged is None:
            result[draft.name] = dataclasses.replace(draft, inputs=inputs)
        else:
            result[merged.name] = merged
            renamed[draft.name] = merged.name
    return result


def _merged(source: Draft, draft: Draft) -> Draft | None:
    if source.kind not in _WITH_NORM or source.values.get("activation") or len(source.output_shape) == 2:
        return None
    if draft.kind == "batch_norm" and draft.values.get("affine") and not source.values.get("norm"):
        if draft.frozen != source.frozen:
            return None
        return dataclasses.replace(source, values={**source.values, "norm": "batch"})
    if draft.kind == "activation":
        return dataclasses.replace(source, values={**source.values, "activation": draft.values["function"]})
    return None

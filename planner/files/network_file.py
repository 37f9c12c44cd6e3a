"""Writes a network as a model file: what ``planner import`` prints."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from planner.files.loading import LoadedModel
from planner.files.yaml_text import yaml_text
from planner.schema.model import TRAINING_KEYS

# What a model file allows in names (planner.schema.common.Name).
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_/@+-]")
_LONGEST_NAME = 64


def network_document(graph: Graph, *, name: str, global_batch: int, description: str, source: str) -> dict[str, Any]:
    """Write a network as plain values, in the order of a model file.

    Parameters
    ----------
    graph : Graph
    name : str
    global_batch : int
        Usual samples per training step.
    description, source : str
        Left out where empty.

    Returns
    -------
    dict
        A valid ``planner.schema.model.NetworkFile``; parameters that have their default are left out.
    """
    names = _file_names(graph)
    head = {"schema_version": 1, "name": _clean(name) or "network", "description": description, "source": source}
    layers = []
    for i, layer in enumerate(graph.layers):
        entry: dict[str, Any] = {"name": names[layer.name], "type": layer.kind, **parameters_of(layer)}
        before = (graph.layers[i - 1].name,) if i else ()
        if layer.inputs not in {before, ()}:
            inputs = [names[parent] for parent in layer.inputs]
            entry["inputs"] = inputs[0] if len(inputs) == 1 else inputs
        layers.append(entry)
    return {key: value for key, value in head.items() if value != ""} | {"global_batch": global_batch, "layers": layers}


def network_text(model: LoadedModel) -> str:
    """Write a network as a model file, with what was read differently as comments."""
    document = network_document(
        model.graph,
        name=model.name,
        global_batch=model.global_batch,
        description=model.description,
        source=model.source,
    )
    return yaml_text(document, "\n".join(model.notes))


def parameters_of(layer: Layer) -> dict[str, Any]:
    """Write parameters of a layer as plain values, without those that have their default."""
    result: dict[str, Any] = {}
    for field in dataclasses.fields(layer.params):
        value = getattr(layer.params, field.name)
        if field.default is not dataclasses.MISSING and value == field.default:
            continue
        if isinstance(value, tuple):
            # A pair of equal numbers is one number, except where the tuple is a shape.
            is_pair = len(value) == 2 and value[0] == value[1] and field.name != "shape"
            value = value[0] if is_pair else list(value)
            if is_pair and value == field.default:
                continue
        result[field.name] = value
    return result | {key: getattr(layer, key) for key in TRAINING_KEYS if getattr(layer, key)}


def _file_names(graph: Graph) -> dict[str, str]:
    names: dict[str, str] = {}
    taken: set[str] = set()
    for layer in graph.layers:
        base = _clean(layer.name) or "layer"
        name, number = base[:_LONGEST_NAME], 1
        while name in taken:
            number += 1
            name = f"{base[: _LONGEST_NAME - len(str(number)) - 1]}_{number}"
        taken.add(name)
        names[layer.name] = name
    return names


def _clean(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).lstrip("/@+-")

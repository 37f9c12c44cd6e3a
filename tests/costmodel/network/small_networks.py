"""Networks of a few layers."""

from __future__ import annotations

from typing import Any

from costmodel.network.graph import Graph, LayerSpec
from costmodel.network.layers.base import params_from

# Name, kind, names of the inputs, parameters.
LayerRow = tuple[str, str, tuple[str, ...], dict[str, Any]]


def network(shape: tuple[int, ...], *layers: LayerRow) -> Graph:
    """The layers behind an input "data" of a shape."""
    specs = [LayerSpec(name="data", kind="input", params=params_from("input", {"shape": shape}))]
    specs += [LayerSpec(name=n, kind=k, params=params_from(k, v), inputs=i) for n, k, i, v in layers]
    return Graph.build("net", specs)

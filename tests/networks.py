"""What tests of all folders make their small cases of: layers one after the other, and workloads on a device."""

from __future__ import annotations

from typing import Any

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import RooflineCompute
from costmodel.network.graph import Graph
from costmodel.network.layers.base import LayerSpec, params_from
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.workload import Workload

# Name, kind, names of the inputs, parameters.
LayerRow = tuple[str, str, tuple[str, ...], dict[str, Any]]


def spec(name: str, kind: str, *inputs: str, block: str = "", **params: Any) -> LayerSpec:
    """One layer."""
    return LayerSpec(name=name, kind=kind, params=params_from(kind, params), inputs=inputs, block=block)


class Layers:
    """Layers in the order in which they are added."""

    def __init__(self) -> None:
        self.specs: list[LayerSpec] = []

    def add(self, name: str, kind: str, *inputs: str, block: str = "", **params: Any) -> str:
        """Add a layer and return its name: that of its block stands in front."""
        full = f"{block}.{name}" if block else name
        self.specs.append(spec(full, kind, *inputs, block=block, **params))
        return full

    def graph(self, name: str) -> Graph:
        """The network of these layers."""
        return Graph.build(name, self.specs)


def roofline_workload(
    graph: Graph, device: Device, batch: int, *, precision: str = "fp32", optimizer: str = "momentum", **changes: Any
) -> Workload:
    """A network at a global batch, with the roofline's times of one device."""
    number_format, updates = PRECISIONS[precision], OPTIMIZERS[optimizer]
    values = {
        "graph": graph,
        "global_batch": batch,
        "precision": number_format,
        "optimizer": updates,
        "compute": RooflineCompute(device=device, precision=number_format, optimizer=updates),
    }
    return Workload(**{**values, **changes})


def network(shape: tuple[int, ...], *layers: LayerRow) -> Graph:
    """The layers behind an input "data" of a shape."""
    first = spec("data", "input", shape=shape)
    return Graph.build("net", [first, *(spec(name, kind, *inputs, **params) for name, kind, inputs, params in layers)])

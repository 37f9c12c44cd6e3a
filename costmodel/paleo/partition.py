"""A network split as PALEO's hybrid networks are: some layers in K copies, each with 1/K of the output channels.

A copy of a layer runs on device k; every other layer runs "on device 0". Channel-wise layers that follow a split layer are split
with it. Where a split layer reads a split one, every device first gathers all parts (``gather@k``); where any other layer reads
one, device 0 does (``join``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.kernels.compute import CostModelError
from costmodel.layerwise.splits import SplitTable
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.paleo.elementary import FLOAT_BYTES, Rates

__all__ = ["Node", "batch_table", "channel_table", "critical_path", "fetch_s", "hybrid_layers", "partition"]

# Devices of one node of PALEO's: a fetch between such groups halves the bandwidth.
_DEVICES_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A layer, a copy of a split layer, or the gathering of the parts of one (``layer`` is None)."""

    name: str
    layer: Layer | None
    device: int | None  # None: not split. PALEO tells device 0 from "0", so this is nobody's copy.
    parents: tuple[int, ...]
    inputs_elements: tuple[float, ...]  # per sample, from each parent


def hybrid_layers(graph: Graph) -> tuple[str, ...]:
    """Layers that the hybrid splits unless told otherwise.

    The fully connected layers with weights but the last one: PALEO's networks of "one weird trick" (fc6 and fc7 of AlexNet
    split, the classifier fc8 whole). A network with one such layer splits that.
    """
    names = tuple(
        layer.name for layer in graph.layers if layer.weight_count > 0 and layer.family.is_fully_connected(layer)
    )
    return names[:-1] if len(names) > 1 else names


def partition(graph: Graph, split: Collection[str], workers: int, *, uneven: bool = False) -> tuple[Node, ...]:
    """Split layers over workers.

    Parameters
    ----------
    graph : Graph
    split : collection of str
        Names of the layers to split.
    workers : int
        K; with 1 nothing is split.
    uneven : bool
        Allow shares that are not equal, the largest counting. PALEO's networks cannot express them.

    Returns
    -------
    tuple of Node
        In topological order.

    Raises
    ------
    CostModelError
        A layer does not exist, has no weights, or its output channels do not divide.
    """
    weighted = {layer.name for layer in graph.layers if layer.weight_count > 0 and len(layer.inputs) == 1}
    for name in split:
        if name not in weighted:
            raise CostModelError(f"{name}: the network has no layer with weights of this name to split")
    return _Partition(graph, frozenset(split) if workers > 1 else frozenset(), workers, uneven).build()


class _Partition:
    def __init__(self, graph: Graph, split: frozenset[str], workers: int, uneven: bool) -> None:
        self.graph, self.split, self.workers, self.uneven = graph, split, workers, uneven
        self.nodes: list[Node] = []
        self.whole: dict[str, int] = {}  # layer -> node
        self.copies: dict[str, tuple[int, ...]] = {}  # split layer -> node of each copy
        self.gathered: dict[tuple[str, int | None], int] = {}
        self.elements = {layer.name: float(layer.output_elements) for layer in graph.layers}

    def build(self) -> tuple[Node, ...]:
        for layer in self.graph.layers:
            if layer.name in self.split or self._follows(layer):
                self._check(layer)
                self.copies[layer.name] = tuple(self._copy(layer, k) for k in range(self.workers))
            else:
                parents = tuple(self._source(name, None) for name in layer.inputs)
                elements = tuple(self.elements[name] for name in layer.inputs)
                self.whole[layer.name] = self._add(layer.name, layer, None, parents, elements)
        return tuple(self.nodes)

    def _add(
        self, name: str, layer: Layer | None, device: int | None, parents: tuple[int, ...], elements: tuple[float, ...]
    ) -> int:
        node = Node(name=name, layer=layer, device=device, parents=parents, inputs_elements=elements)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _follows(self, layer: Layer) -> bool:
        """Whether a layer is split because what it reads is: it treats channels independently."""
        if len(layer.inputs) != 1 or layer.inputs[0] not in self.copies or layer.kind == "softmax":
            return False
        limits = layer.family.limits(layer)
        return limits.channelwise and limits.out_channels >= self.workers

    def _check(self, layer: Layer) -> None:
        channels = layer.output_shape[0]
        if channels < self.workers or (channels % self.workers and not self.uneven):
            raise CostModelError(
                f"{layer.name}: PALEO splits output channels evenly, and {channels} do not divide by {self.workers} workers"
            )

    def _copy(self, layer: Layer, k: int) -> int:
        source = layer.inputs[0]
        if layer.name in self.split:
            parent, elements = self._source(source, k), self.elements[source]
        else:
            parent, elements = self.copies[source][k], self._part(source)
        return self._add(f"{layer.name}@{k}", layer, k, (parent,), (elements,))

    def _part(self, name: str) -> float:
        """Elements of one copy's output."""
        shape = next(layer.output_shape for layer in self.graph.layers if layer.name == name)
        return float(np.ceil(shape[0] / self.workers) * np.prod(shape[1:]))

    def _source(self, name: str, device: int | None) -> int:
        """Node that delivers the whole output of a layer to a device."""
        if name in self.whole:
            return self.whole[name]
        if (name, device) not in self.gathered:
            label = f"{name}: join" if device is None else f"{name}: gather@{device}"
            parts = (self._part(name),) * self.workers
            self.gathered[name, device] = self._add(label, None, device, self.copies[name], parts)
        return self.gathered[name, device]


def fetch_s(nodes: tuple[Node, ...], node: Node, batch: int, link: Rates) -> float:
    """Time to fetch the inputs of a node from other devices, charged in the forward and in the backward pass.

    A single input: ``bytes / 2^30 / link``. Several: one after the other, and whenever one comes from another group of 4
    devices, the bandwidth is halved for it and for all that follow (a defect of PALEO's, kept).
    """
    time_s, slowdown = 0.0, 1.0
    for parent, elements in zip(node.parents, node.inputs_elements, strict=True):
        device = nodes[parent].device
        if device == node.device:
            continue
        if len(node.parents) > 1 and (device or 0) // _DEVICES_PER_NODE != (node.device or 0) // _DEVICES_PER_NODE:
            slowdown *= 2.0
        time_s += float(link.memory_s(FLOAT_BYTES * elements * batch * slowdown))
    return time_s


def critical_path(nodes: tuple[Node, ...], weights: FloatArray) -> float:
    """Longest path: PALEO's lower bound of model parallelism (chains add up, of parallel branches the longest counts).

    Examples
    --------
    >>> fork = [(), (0,), (0,), (1, 2)]
    >>> nodes = tuple(
    ...     Node(name=str(i), layer=None, device=None, parents=p, inputs_elements=(0.0,) * len(p)) for i, p in enumerate(fork)
    ... )
    >>> critical_path(nodes, np.array([1.0, 2.0, 5.0, 1.0]))
    7.0
    """
    finish: list[float] = []
    for node, weight in zip(nodes, weights.tolist(), strict=True):
        finish.append(weight + max((finish[parent] for parent in node.parents), default=0.0))
    return max(finish, default=0.0)


def batch_table(degrees: Collection[int]) -> SplitTable:
    """Splits of the batch alone, one row per degree."""
    return _table(batch=list(degrees), out_channels=[1] * len(degrees))


def channel_table(workers: int) -> SplitTable:
    """The split of the output channels alone."""
    return _table(batch=[1], out_channels=[workers])


def _table(*, batch: list[int], out_channels: list[int]) -> SplitTable:
    ones = np.ones(len(batch), dtype=np.int64)
    b, c = np.array(batch, dtype=np.int64), np.array(out_channels, dtype=np.int64)
    return SplitTable(
        worker_counts=(1,), offsets=(0, len(b)), workers=b * c, batch=b, out_channels=c, in_channels=ones, height=ones
    )

"""PALEO's bounds of model parallelism, and its hybrid of "one weird trick".

Both add up the times of `costmodel.paleo.model.PaleoCompute`; PALEO's network is one bandwidth, without latency, topology or
overlap.

Hybrid networks
---------------
Some layers are in K copies, each with 1/K of the output channels. A copy of a layer runs on device k; every other layer runs "on device 0".
Channel-wise layers that follow a split layer are split with it. Where a split layer reads a split one, every device first gathers all parts
(``gather@k``); where any other layer reads one, device 0 does (``join``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level, span
from costmodel.hardware.collectives import all_reduce_s
from costmodel.kernels.roofline import CostModelError
from costmodel.layerwise.plan import SplitTable, shard_of
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.paleo.convolution import FLOAT_BYTES, Rates
from costmodel.paleo.model import PaleoCompute

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """PALEO's network: one bandwidth, and the share of it that is reached (ppp_comm)."""

    bandwidth_bytes_per_s: float
    ppp_comm: float = 1.0

    @classmethod
    def of(cls, cluster: Cluster) -> Link:
        """The slowest level of a cluster, its efficiency taken for ppp_comm."""
        level = min(cluster.levels, key=lambda level: level.bandwidth_bytes_per_s)
        return cls(bandwidth_bytes_per_s=level.bandwidth_bytes_per_s, ppp_comm=level.reached)

    def exchange_s(
        self, compute: PaleoCompute, scheme: str, message_bytes: float, workers: Sequence[int]
    ) -> FloatArray:
        """Time to exchange the gradients between each number of workers."""
        level = Level(name="network", size=None, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=0.0)
        cluster = Cluster(name="network", groups=(DeviceGroup(device=compute.device),), levels=(level,))
        groups = span(cluster, np.asarray(workers, dtype=np.float64), 1.0)
        return all_reduce_s(scheme, message_bytes, groups, cluster, self.ppp_comm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Least and most time of a pass: branches at the same time, or one after the other."""

    lower_s: float
    upper_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPart:
    """The layers that are whole on every worker, or those split over the workers."""

    forward_s: float
    backward_s: float
    update_s: float
    exchange_s: float
    weight_bytes: int

    @property
    def total_s(self) -> float:
        """Sum of all."""
        return self.forward_s + self.backward_s + self.update_s + self.exchange_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStep:
    """A step of the paper's hybrid: ``data`` parallel layers, then the layers split over the workers."""

    workers: int
    effective_batch: int
    data: HybridPart
    model: HybridPart
    forward: Bounds  # of the split layers, for one worker's batch
    backward: Bounds
    fetch_s: float
    split: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Time of a training step."""
        return self.data.total_s + self.model.total_s

    @property
    def sync_s(self) -> float:
        """Time of the gradient exchange in it."""
        return self.data.exchange_s + self.model.exchange_s


def model_parallel_bounds(
    graph: Graph,
    compute: PaleoCompute,
    *,
    batch: int,
    workers: int = 1,
    split: Collection[str] | None = None,
    link: Link | None = None,
) -> tuple[Bounds, Bounds]:
    """Bounds of the forward and the backward pass when branches may run on different devices.

    Parameters
    ----------
    graph : Graph
    compute : PaleoCompute
    batch : int
    workers : int
        Over how many to split the layers named by ``split``; 1 leaves the network as it is.
    split : collection of str, optional
        `hybrid_layers` unless given.
    link : Link, optional
        PALEO fetches at the memory bandwidth of the device (its network is ignored), which is what None does.

    Returns
    -------
    forward, backward : Bounds
    """
    graph_nodes = _nodes(graph, compute, split, workers)
    rates = Rates.of(compute.device, 1.0) if link is None else _link_rates(compute, link)
    forward_s, backward_s = _node_times(graph_nodes, _serial(graph, compute), batch, workers, rates)
    return _bounds(graph_nodes, forward_s), _bounds(graph_nodes, backward_s)


def hybrid_step(
    graph: Graph,
    workers: int,
    batch_per_worker: int,
    compute: PaleoCompute,
    network: Link | Cluster,
    *,
    split: Collection[str] | None = None,
) -> HybridStep:
    """The paper's hybrid: whole layers data-parallel, the layers named by ``split`` over all workers, batch after batch.

    With D the whole layers, X the split ones, L the lower bound of a pass over X for one worker's batch::

        D: sums of forward and backward (fetches included), update, tree all-reduce of its weights
        X: (L - f) K + f for either pass, update of the weights of all splits
        f = |outputs before the first X layer| / 2^30 / bandwidth (K - 1)

    f counts elements where it should count bytes, D's update is not pipelined, all of X is updated on one device: kept as they are.

    Parameters
    ----------
    graph : Graph
        The network without splits.
    workers : int
        K.
    batch_per_worker : int
    compute : PaleoCompute
    network : Link or Cluster
    split : collection of str, optional
        `hybrid_layers` unless given.

    Returns
    -------
    HybridStep

    Raises
    ------
    CostModelError
        PALEO cannot evaluate a layer, or split it over that many workers.
    """
    link = Link.of(network) if isinstance(network, Cluster) else network
    nodes = _nodes(graph, compute, split, workers)
    rates = _link_rates(compute, link)
    whole = np.array([node.device is None for node in nodes])
    serial = _serial(graph, compute)
    forward_s, backward_s = _node_times(nodes, serial, batch_per_worker, workers, rates)
    data_forward_s, data_backward_s = forward_s, backward_s
    if compute.use_pipeline:
        overlapped = replace(serial, use_pipeline=True)
        data_forward_s, data_backward_s = _node_times(nodes, overlapped, batch_per_worker, workers, rates)
    copies = {node.layer.name for node in nodes if node.device is not None and node.layer is not None}
    weights = {layer.name: layer.weight_count for layer in graph.layers}
    model_weights = sum(count for name, count in weights.items() if name in copies)
    data_weights = sum(weights.values()) - model_weights
    exchange_s = link.exchange_s(serial, "tree", float(FLOAT_BYTES * data_weights), [workers])
    bounds = [_bounds(nodes, np.where(whole, 0.0, times_s)) for times_s in (forward_s, backward_s)]
    pipeline_s = _pipelined_fetch_s(nodes, link, batch_per_worker, workers)
    stages = [(b.lower_s - pipeline_s) * workers + pipeline_s if copies else 0.0 for b in bounds]
    return HybridStep(
        workers=workers,
        effective_batch=batch_per_worker * workers,
        data=HybridPart(
            forward_s=float(data_forward_s[whole].sum()),
            backward_s=float(data_backward_s[whole].sum()),
            update_s=float(serial.update_parts(np.asarray(float(data_weights))).total_s),
            exchange_s=float(exchange_s[0]),
            weight_bytes=FLOAT_BYTES * data_weights,
        ),
        model=HybridPart(
            forward_s=stages[0],
            backward_s=stages[1],
            update_s=float(serial.update_parts(np.asarray(float(model_weights))).total_s),
            exchange_s=0.0,
            weight_bytes=FLOAT_BYTES * model_weights,
        ),
        forward=bounds[0],
        backward=bounds[1],
        fetch_s=pipeline_s,
        split=tuple(layer.name for layer in graph.layers if layer.name in copies),
    )


def _serial(graph: Graph, compute: PaleoCompute) -> PaleoCompute:
    """Nothing overlaps. PALEO skips the gradient of the network's input whatever lies between: it is told the names of the inputs."""
    inputs = frozenset(layer.name for layer in graph.layers if layer.kind == "input")
    names = inputs if compute.input_names is None else compute.input_names
    return replace(compute, use_pipeline=False, input_names=names)


def _nodes(graph: Graph, compute: PaleoCompute, split: Collection[str] | None, workers: int) -> tuple[Node, ...]:
    names = hybrid_layers(graph) if split is None else tuple(split)
    return partition(graph, names, workers, uneven=compute.extensions is not None)


def _link_rates(compute: PaleoCompute, link: Link) -> Rates:
    return Rates.of(compute.device, link.ppp_comm, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s)


def _node_times(
    nodes: tuple[Node, ...], compute: PaleoCompute, batch: int, workers: int, link: Rates
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward time of every node, fetches included; copies of a layer are costed once."""
    tables = {False: batch_table([1]), True: channel_table(workers)}
    known: dict[tuple[str, bool], tuple[float, float]] = {}
    forward_s, backward_s = np.zeros(len(nodes)), np.zeros(len(nodes))
    for i, node in enumerate(nodes):
        # A layer's fetch is memory time. The nodes that fetch in a pipelined part compute nothing, so that it simply adds.
        fetched_s = fetch_s(nodes, node, batch, link)
        times = (0.0, 0.0)
        if node.layer is not None:
            key = (node.layer.name, node.device is not None)
            if key not in known:
                shard = shard_of(node.layer, tables[key[1]], batch)
                passes = compute.pass_times(node.layer, shard, needs_input_gradient=True)
                known[key] = (float(passes.forward_s[0]), float(passes.backward_s[0]))
            times = known[key]
        forward_s[i], backward_s[i] = times[0] + fetched_s, times[1] + fetched_s
    return forward_s, backward_s


def _bounds(nodes: tuple[Node, ...], times_s: FloatArray) -> Bounds:
    return Bounds(lower_s=critical_path(nodes, times_s), upper_s=float(times_s.sum()))


def _pipelined_fetch_s(nodes: tuple[Node, ...], link: Link, batch: int, workers: int) -> float:
    """PALEO's ``time_fetch``: elements taken for bytes, no ppp, no floor."""
    first = next((node for node in nodes if node.device is not None), None)
    if first is None:
        return 0.0
    elements = first.inputs_elements[0] * batch
    return elements / 2.0**30 / (link.bandwidth_bytes_per_s / 1e9) * (workers - 1)

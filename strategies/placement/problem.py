"""The placement problem as plain arrays, and what a solver returns.

A solver sees these types only; `planner.placement.workload_file` makes a problem of a file, and the checker in
`planner.placement.check` evaluates every placement with code of its own.

Notes
-----
Nodes are numbered in the order of their ids, edges in the order of (source, target), so that nothing depends on the order in
which a file or a set lists them. All times share one unit, that of the workload: the public files do not name theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import PRINTED_COST, ROUNDING
from strategies.limits import Clock

NodeId = int | str


class NodeSpec(NamedTuple):
    """One operator as a file describes it."""

    id: NodeId
    accelerator_time: float
    cpu_time: float
    size_bytes: float = 0.0
    supported: bool = True  # can run on an accelerator
    backward: bool = False
    color: NodeId | None = None  # operators of one colour share a device; None: alone
    name: str = ""


class EdgeSpec(NamedTuple):
    """One dependency; ``transfer_time`` moves the source's output between an accelerator and host memory."""

    source: NodeId
    target: NodeId
    transfer_time: float


class TypeSpec(NamedTuple):
    """Accelerators of one kind in a workload of several kinds."""

    name: str
    num_devices: int
    memory_bytes: float
    times: Sequence[float]  # of the nodes as they are listed, on this kind; not used where a node is not supported
    link_factor: float = 1.0  # transfers take so many times as long


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorType:
    """Accelerators of one kind: consecutive devices with times, memory and links of their own."""

    name: str
    count: int
    memory_bytes: float
    time: FloatArray = field(repr=False)  # (nodes,)
    link_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFault:
    """Something wrong in a list of nodes (``part`` "nodes"), edges ("edges") or kinds ("deviceTypes"), or with a limit ("")."""

    part: str
    index: int
    key: str
    message: str


class PlacementFaultsError(ValueError):
    """Nodes and edges make no problem; ``faults`` holds everything found."""

    def __init__(self, faults: Sequence[PlacementFault]) -> None:
        assert faults
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults[:10]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperedges:
    """One hyperedge {u} + successors(u) for every source: a device pays ``cost`` once when it holds some of the pins but not all."""

    source: IntArray  # (edges,) node whose output moves; the first of its pins
    cost: FloatArray  # (edges,)
    start: IntArray  # (edges + 1,) into pin
    pin: IntArray  # nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Operators, their dependencies and the devices that they may run on; `build` checks, the constructor does not."""

    node_ids: tuple[NodeId, ...]  # ascending
    names: tuple[str, ...]
    accelerator_time: FloatArray  # (nodes,) of an operator on an accelerator; not used where it is not supported
    cpu_time: FloatArray
    size_bytes: FloatArray
    supported: BoolArray
    backward: BoolArray
    color: IntArray  # (nodes,) class of operators that share a device, numbered by first node
    transfer_time: FloatArray  # (nodes,) of the output to or from host memory; 0 without a successor
    edge_source: IntArray  # (edges,) no edge twice, ordered by (source, target)
    edge_target: IntArray
    num_accelerators: int
    num_cpus: int
    memory_bytes: float  # capacity of one accelerator
    hyperedges: Hyperedges = field(repr=False)
    # Empty: all accelerators are alike. Otherwise `accelerator_time`, `transfer_time` and `memory_bytes` are those of the best kind for
    # each, so that what holds for that many such accelerators bounds this problem from below.
    types: tuple[AcceleratorType, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Operators."""
        return len(self.node_ids)

    @property
    def num_devices(self) -> int:
        """Accelerators and CPUs."""
        return self.num_accelerators + self.num_cpus

    @property
    def num_colors(self) -> int:
        """Classes of operators that share a device."""
        return int(self.color.max()) + 1

    @property
    def capacity_bytes(self) -> float:
        """Capacity of an accelerator with the room for rounding that every solver grants."""
        return self.memory_bytes * (1.0 + ROUNDING)

    def type_of(self, device: int) -> AcceleratorType | None:
        """Kind of an accelerator; None where all are alike, and for CPUs."""
        for kind in self.types:
            if device < kind.count:
                return kind
            device -= kind.count
        return None

    def memory_of(self, device: int) -> float:
        """Capacity of an accelerator, without room for rounding."""
        kind = self.type_of(device)
        return self.memory_bytes if kind is None else kind.memory_bytes

    def device_name(self, device: int) -> str:
        """Name of one device: acc1, acc2, ..., cpu1, ..."""
        cpu = device - self.num_accelerators
        return f"acc{device + 1}" if cpu < 0 else f"cpu{cpu + 1}"

    @classmethod
    def build(
        cls,
        nodes: Sequence[NodeSpec],
        edges: Sequence[EdgeSpec],
        *,
        num_accelerators: int,
        num_cpus: int,
        memory_bytes: float,
        types: Sequence[TypeSpec] = (),
    ) -> PlacementProblem:
        """Number and check a graph.

        Parameters
        ----------
        nodes, edges : sequence
            In any order.
        num_accelerators, num_cpus : int
        memory_bytes : float
            Capacity of one accelerator.
        types : sequence of TypeSpec, optional
            Kinds of accelerators, in the order of the devices; they take the place of the nodes' accelerator times, of ``num_accelerators``
            and ``memory_bytes``.

        Raises
        ------
        PlacementFaultsError
            Duplicate or unknown ids, cycles, edges from backward to forward operators, different costs of one source, numbers that
            are negative or not finite, or operators that fit no device.

        Examples
        --------
        >>> chain = [NodeSpec(id=2, accelerator_time=1.0, cpu_time=9.0), NodeSpec(id=1, accelerator_time=2.0, cpu_time=9.0)]
        >>> problem = PlacementProblem.build(chain, [EdgeSpec(1, 2, 0.5)], num_accelerators=2, num_cpus=0, memory_bytes=1.0)
        >>> problem.node_ids, problem.transfer_time.tolist(), problem.hyperedges.pin.tolist()
        ((1, 2), [0.5, 0.0], [0, 1])
        """
        if types:
            num_accelerators = sum(kind.num_devices for kind in types)
            memory_bytes = max(kind.memory_bytes for kind in types)
            best = [min(times) for times in zip(*(kind.times for kind in types), strict=True)]
            nodes = [node._replace(accelerator_time=time) for node, time in zip(nodes, best, strict=True)]
        check_nodes(nodes)
        order = sorted(range(len(nodes)), key=lambda i: (isinstance(nodes[i].id, str), nodes[i].id))
        number = {nodes[i].id: rank for rank, i in enumerate(order)}
        check_edges(nodes, edges, number, PRINTED_COST)
        check_types(types, edges)
        ranked = [nodes[i] for i in order]
        ends = np.array([(number[edge.source], number[edge.target]) for edge in edges], dtype=np.int64).reshape(-1, 2)
        pairs = np.unique(ends[:, 0] * len(nodes) + ends[:, 1])
        source, target = pairs // len(nodes), pairs % len(nodes)
        check_order(order, nodes, source, target, edges, number)
        check_devices(nodes, num_accelerators=num_accelerators, num_cpus=num_cpus, memory_bytes=memory_bytes)
        transfer = np.zeros(len(nodes))
        # The same within the tolerance; the largest does not depend on their order.
        np.maximum.at(transfer, ends[:, 0], np.array([edge.transfer_time for edge in edges], dtype=np.float64))
        unit = min((kind.link_factor for kind in types), default=1.0)  # the shortest transfers are 1
        transfer *= unit
        kinds = tuple(
            AcceleratorType(
                name=kind.name,
                count=kind.num_devices,
                memory_bytes=kind.memory_bytes,
                time=np.array([kind.times[i] for i in order], dtype=np.float64),
                link_factor=kind.link_factor / unit,
            )
            for kind in types
        )
        return cls(
            node_ids=tuple(node.id for node in ranked),
            names=tuple(node.name for node in ranked),
            accelerator_time=np.array([node.accelerator_time for node in ranked], dtype=np.float64),
            cpu_time=np.array([node.cpu_time for node in ranked], dtype=np.float64),
            size_bytes=np.array([node.size_bytes for node in ranked], dtype=np.float64),
            supported=np.array([node.supported for node in ranked], dtype=np.bool_),
            backward=np.array([node.backward for node in ranked], dtype=np.bool_),
            color=_numbered(node.color for node in ranked),
            transfer_time=transfer,
            edge_source=source,
            edge_target=target,
            num_accelerators=num_accelerators,
            num_cpus=num_cpus,
            memory_bytes=memory_bytes,
            hyperedges=hyperedges_of(source, target, transfer),
            types=kinds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where every operator runs.

    ``device`` counts accelerators first, then CPUs. For latency ``subgraph`` tells which of an accelerator's calls an operator
    belongs to, from 0; it means nothing on CPUs, which are unlimited there: all their operators carry the first CPU's number.
    """

    device: IntArray  # (nodes,)
    subgraph: IntArray | None = None  # (nodes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best objective of a method and how good it can be at most; objective and bound travel together.

    ``proof`` says which argument proved the bound; the bound holds for the mode that was asked (objective, contiguity).
    """

    objective: float  # infinite where nothing was found
    bound: float  # nothing is below it; infinite where there is provably nothing
    method: str
    proof: str
    wall_s: float = 0.0
    stopped: str = ""  # why the search ended early: "time limit", "interrupted", ...; empty where it did not

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 when proven, infinite when nothing was found."""
        if not np.isfinite(self.objective):
            return 0.0 if not np.isfinite(self.bound) else float("inf")
        if self.objective <= 0:
            return 0.0
        return max(0.0, (self.objective - self.bound) / self.objective)

    @property
    def is_interrupted(self) -> bool:
        """Whether the user stopped the search."""
        return self.stopped == "interrupted"

    @property
    def proven_optimal(self) -> bool:
        """Whether nothing is better, but for rounding: costs of one output may differ by 1e-6 in the public format."""
        return self.gap <= PRINTED_COST


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult(SearchResult):
    """The best placement of a method."""

    placement: Placement | None  # None: none found
    # The best contiguous placement that was found on the way, where another kind was asked for; never better than this one.
    chain: PlacementResult | None = field(default=None, repr=False)


class BestSoFar:
    """The best value and bound of a search for a placement, which hold whatever stops it.

    Parameters
    ----------
    clock : Clock
    gap : float
        Relative distance of value and bound that is asked for.
    bound, proof : float, str
        Known from the start.
    method : str
    """

    def __init__(self, clock: Clock, gap: float, bound: float, proof: str, method: str = "") -> None:
        self.clock, self.gap, self.method = clock, gap, method
        self.bound, self.proof = bound, proof
        self.value = np.inf

    def is_done(self) -> bool:
        """Whether bound and value are close enough."""
        return self.value < np.inf and self.bound >= self.value * (1 - self.gap)

    def report(self, stage: str) -> None:
        """Tell whoever listens."""
        self.clock.report(stage, self.value, min(self.bound, self.value))

    def raise_bound(self, bound: float, proof: str, stage: str) -> None:
        """Take over a better bound."""
        if bound > self.bound:
            self.bound, self.proof = min(bound, self.value), proof
            self.report(stage)

    def result_with(
        self, placement: Placement | None, stopped: str, *, chain: PlacementResult | None = None
    ) -> PlacementResult:
        """What was found."""
        return PlacementResult(
            placement=placement,
            objective=float(self.value),
            bound=float(min(self.bound, self.value)),
            method=self.method,
            proof=self.proof,
            wall_s=self.clock.elapsed_s,
            stopped=stopped,
            chain=chain,
        )


def sums_by(index: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Sum up values that share an index.

    >>> sums_by(np.array([1, 1, 0]), np.array([1.0, 2.0, 4.0]), 3).tolist()
    [4.0, 3.0, 0.0]
    """
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def hyperedges_of(edge_source: IntArray, edge_target: IntArray, transfer_time: FloatArray) -> Hyperedges:
    """Group edges, ordered by (source, target), into one hyperedge per source.

    Examples
    --------
    >>> h = hyperedges_of(np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([5.0, 7.0, 0.0]))
    >>> h.pin.tolist(), h.start.tolist(), h.cost.tolist()
    ([0, 1, 2, 1, 2], [0, 3, 5], [5.0, 7.0])
    """
    sources, first, count = np.unique(edge_source, return_index=True, return_counts=True)
    start = np.concatenate(([0], np.cumsum(count + 1))).astype(np.int64)
    pin = np.empty(start[-1], dtype=np.int64)
    pin[start[:-1]] = sources
    inner = np.ones(len(pin), dtype=np.bool_)
    inner[start[:-1]] = False
    order = np.lexsort((edge_target, edge_source))
    pin[inner] = edge_target[order]
    assert len(first) == len(sources)
    return Hyperedges(source=sources.astype(np.int64), cost=transfer_time[sources], start=start, pin=pin)


def _numbered(colors: Iterable[NodeId | None]) -> IntArray:
    """Number the classes by first use; a node without a colour is a class of its own."""
    numbers: dict[NodeId, int] = {}
    result: list[int] = []
    alone = 0
    for color in colors:
        if color is None:
            result.append(len(numbers) + alone)
            alone += 1
        else:
            if color not in numbers:
                numbers[color] = len(numbers) + alone
            result.append(numbers[color])
    return np.array(result, dtype=np.int64)


def without_spare_devices(problem: PlacementProblem) -> tuple[PlacementProblem, IntArray]:
    """Keep as many accelerators of each kind, and CPUs, as there are colour classes.

    Returns
    -------
    problem : PlacementProblem
        With the same optimum.
    device : int array (devices kept,)
        Number of each among the devices of the problem that was given.

    Examples
    --------
    >>> from strategies.placement.problem import NodeSpec
    >>> node = NodeSpec(id=1, accelerator_time=1.0, cpu_time=9.0)
    >>> many = PlacementProblem.build([node], [], num_accelerators=10**6, num_cpus=3, memory_bytes=1.0)
    >>> few, device = without_spare_devices(many)
    >>> few.num_accelerators, few.num_cpus, device.tolist()
    (1, 1, [0, 1000000])
    """
    most = problem.num_colors
    kept, first = [], 0
    for count in [kind.count for kind in problem.types] or [problem.num_accelerators]:
        kept.append(np.arange(first, first + min(count, most)))
        first += count
    kept.append(np.arange(problem.num_accelerators, problem.num_accelerators + min(problem.num_cpus, most)))
    smaller = replace(
        problem,
        num_accelerators=sum(len(part) for part in kept[:-1]),
        num_cpus=len(kept[-1]),
        types=tuple(replace(kind, count=min(kind.count, most)) for kind in problem.types),
    )
    return smaller, np.concatenate(kept).astype(np.int64)


# Times and sizes are added up, multiplied with numbers of devices and operators and compared; all of that stays a double.
LARGEST_SUM = 1e280

# Field of a node or an edge -> its key in the public format, for messages.
_NODE_KEYS = {"accelerator_time": "fpgaLatency", "cpu_time": "cpuLatency", "size_bytes": "size"}


def check_nodes(nodes: Sequence[NodeSpec]) -> None:
    """Refuse an empty graph, an id that comes twice and numbers that are negative or not finite."""
    faults: list[PlacementFault] = []
    if not nodes:
        faults.append(PlacementFault(part="nodes", index=-1, key="", message="the graph is empty: it has no nodes"))
    first: dict[NodeId, int] = {}
    for i, node in enumerate(nodes):
        if node.id in first:
            message = f"node id {node.id!r} is used twice (first by nodes[{first[node.id]}])"
            faults.append(PlacementFault(part="nodes", index=i, key="id", message=message))
        first.setdefault(node.id, i)
        for name, key in _NODE_KEYS.items():
            value = getattr(node, name)
            if not math.isfinite(value) or value < 0:
                message = f"{key} of node {node.id!r} is {value:g}; it must be a finite number of at least 0"
                faults.append(PlacementFault(part="nodes", index=i, key=key, message=message))
    _raise(faults)
    for name, key in _NODE_KEYS.items():
        values = [getattr(node, name) for node in nodes]
        if sum(values) > LARGEST_SUM:
            i = values.index(max(values))
            message = f"{key} adds up to more than {LARGEST_SUM:g} over all nodes, too much to calculate with; here is the largest"
            faults.append(PlacementFault(part="nodes", index=i, key=key, message=message))
    _raise(faults)


def check_types(types: Sequence[TypeSpec], edges: Sequence[EdgeSpec]) -> None:
    """Refuse kinds of accelerators with times too long to calculate with."""
    slowest = max([1.0, *(1 / kind.link_factor for kind in types)]) + sum(edge.transfer_time for edge in edges)
    faults = []
    for i, kind in enumerate(types):
        for what, total in (("operators", sum(kind.times)), ("transfers", slowest * kind.link_factor)):
            if total > LARGEST_SUM:
                message = f"the times of the {what} on {kind.name} add up to more than {LARGEST_SUM:g}, too much to calculate with"
                faults.append(PlacementFault(part="deviceTypes", index=i, key="", message=message))
    _raise(faults)


def check_edges(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], number: Mapping[NodeId, int], same_cost: float
) -> None:
    """Refuse unknown ends, edges from backward to forward operators and costs of one source that differ."""
    backward = {node.id: node.backward for node in nodes}
    faults: list[PlacementFault] = []
    cost_of: dict[NodeId, tuple[float, int]] = {}
    for i, edge in enumerate(edges):
        unknown = [(key, end) for key, end in (("sourceId", edge.source), ("destId", edge.target)) if end not in number]
        for key, end in unknown:
            message = f"the edge names node {end!r}, which is not in the list of nodes"
            faults.append(PlacementFault(part="edges", index=i, key=key, message=message))
        if unknown:
            continue
        cost = edge.transfer_time
        if not math.isfinite(cost) or cost < 0:
            message = f"cost is {cost:g}; it must be a finite number of at least 0"
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
            continue
        known, where = cost_of.setdefault(edge.source, (cost, i))
        if cost > LARGEST_SUM / (1 + len(edges)):
            message = f"cost is {cost:g}; costs may add up to {LARGEST_SUM:g}"
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
            continue
        if abs(known - cost) > same_cost:
            message = (
                f"costs of the edges that leave node {edge.source!r} differ: {cost!r} here, {known!r} in edges[{where}]; "
                "the cost is that of the source's one output"
            )
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
        if backward[edge.source] and not backward[edge.target]:
            message = f"the edge leads from backward node {edge.source!r} to forward node {edge.target!r}"
            faults.append(PlacementFault(part="edges", index=i, key="", message=message))
    _raise(faults)


def check_order(
    order: Sequence[int],
    nodes: Sequence[NodeSpec],
    source: IntArray,
    target: IntArray,
    edges: Sequence[EdgeSpec],
    number: Mapping[NodeId, int],
) -> None:
    """Refuse cycles; the message spells one out."""
    if bool(np.all(source < target)):
        return
    cycle = find_cycle(len(nodes), source.tolist(), target.tolist())
    if not cycle:
        return
    ids = [nodes[order[v]].id for v in cycle]
    shown = [repr(i) for i in (ids if len(ids) <= 8 else [*ids[:4], "...", *ids[-3:]])]
    message = f"the graph has a cycle of {len(ids)} nodes: {' -> '.join([*shown, shown[0]])}"
    ends = (cycle[0], cycle[1 % len(cycle)])
    index = next(i for i, edge in enumerate(edges) if (number[edge.source], number[edge.target]) == ends)
    _raise([PlacementFault(part="edges", index=index, key="", message=message)])


def adjacent(count: int, source: Sequence[int] | IntArray, target: Sequence[int] | IntArray) -> list[list[int]]:
    """Targets of every vertex, in the order of the edges; with the ends exchanged its sources.

    >>> adjacent(3, [0, 0, 1], [2, 1, 2])
    [[2, 1], [2], []]
    """
    result: list[list[int]] = [[] for _ in range(count)]
    for u, v in zip(np.asarray(source).tolist(), np.asarray(target).tolist(), strict=True):
        result[u].append(v)
    return result


def behind_cycles(successors: Sequence[Sequence[int]]) -> list[int]:
    """Vertices of cycles and those reached from them; ascending.

    >>> behind_cycles([[1], [2], [1, 3], [], [3]])
    [1, 2, 3]
    """
    waiting = [0] * len(successors)
    for after in successors:
        for w in after:
            waiting[w] += 1
    ready = [v for v, count in enumerate(waiting) if count == 0]
    while ready:
        for w in successors[ready.pop()]:
            waiting[w] -= 1
            if waiting[w] == 0:
                ready.append(w)
    return [v for v, count in enumerate(waiting) if count > 0]


def find_cycle(count: int, source: Sequence[int], target: Sequence[int]) -> list[int]:
    """Nodes of one cycle in the direction of the edges, the least first; empty where there is none."""
    left = set(behind_cycles(adjacent(count, source, target)))
    if not left:
        return []
    import networkx as nx  # a tenth of a second, for the few graphs that are refused

    edges = sorted((u, v) for u, v in zip(source, target, strict=True) if u in left and v in left)
    cycle = [u for u, _ in nx.find_cycle(nx.DiGraph(edges))]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def check_devices(nodes: Sequence[NodeSpec], *, num_accelerators: int, num_cpus: int, memory_bytes: float) -> None:
    """Refuse impossible limits, and operators or colour classes that fit no device at all."""
    faults: list[PlacementFault] = []
    for key, value, least in (("maxFPGAs", num_accelerators, 1), ("maxCPUs", num_cpus, 0)):
        if value < least:
            faults.append(
                PlacementFault(part="", index=-1, key=key, message=f"{key} is {value}; at least {least} is needed")
            )
    if not memory_bytes >= 0:
        message = f"maxSizePerFPGA is {memory_bytes:g}; it must be at least 0"
        faults.append(PlacementFault(part="", index=-1, key="maxSizePerFPGA", message=message))
    _raise(faults)
    if num_cpus:
        return
    members: dict[tuple[bool, NodeId], list[int]] = {}
    for i, node in enumerate(nodes):
        members.setdefault((node.color is None, node.id if node.color is None else node.color), []).append(i)
    for (alone, _), indices in members.items():
        first = nodes[indices[0]]
        what = f"node {first.id!r}" if alone or len(indices) == 1 else f"colour class {first.color!r}"
        what = f"layer '{first.name}'" if first.name else what
        size = math.fsum(nodes[i].size_bytes for i in indices)
        bad = next((i for i in indices if not nodes[i].supported), None)
        if bad is not None:
            message = f"node {nodes[bad].id!r} fits no device: it is not supported on accelerators and there is no CPU"
            faults.append(PlacementFault(part="nodes", index=bad, key="supportedOnFpga", message=message))
        elif size > memory_bytes:
            message = f"{what} needs {size:,.0f} bytes, more than the {memory_bytes:,.0f} of an accelerator, and there is no CPU"
            faults.append(PlacementFault(part="nodes", index=indices[0], key="size", message=message))
    _raise(faults)


def _raise(faults: Sequence[PlacementFault]) -> None:
    if faults:
        raise PlacementFaultsError(faults)

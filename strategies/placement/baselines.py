"""Simple placements to compare with: one device, greedy, local search, one order cut optimally."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.limits import Clock, why_stopped
from strategies.placement.bounds import largest_load, simple_bound
from strategies.placement.contiguous import ChainSearch
from strategies.placement.contraction import BlockGraph, contract, contract_classes
from strategies.placement.loads import Devices, kinds_of
from strategies.placement.orders import greedy_stages
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

# Restarts and least gain of the published baseline (Tarnawski et al., NeurIPS 2020).
_RESTARTS = 10
_LEAST_GAIN = 1e-5


def one_device_time(problem: PlacementProblem) -> float:
    """Time of everything on the better single device, memory aside: what speed-ups are measured against; infinite without a device."""
    times = [kind.time for kind in problem.types] or [problem.accelerator_time]
    accelerator = min(float(time.sum()) for time in times) if np.all(problem.supported) else np.inf
    cpu = float(problem.cpu_time.sum()) if problem.num_cpus else np.inf
    return min(accelerator, cpu)


def one_device(problem: PlacementProblem) -> PlacementResult:
    """Everything on one device that it fits on."""
    choices = []
    if np.all(problem.supported) and problem.size_bytes.sum() <= problem.capacity_bytes:
        choices.append((float(problem.accelerator_time.sum()), 0))
    if problem.num_cpus:
        choices.append((float(problem.cpu_time.sum()), problem.num_accelerators))
    if not choices:
        return _result(problem, None, np.inf, "one device", "everything together fits on no single device")
    value, device = min(choices)
    placement = Placement(device=np.full(problem.num_nodes, device, dtype=np.int64))
    return _result(problem, placement, value, "one device")


def solve_greedy(problem: PlacementProblem, *, clock: Clock | None = None) -> PlacementResult:
    """Fill devices one after the other along a topological order, with the least limit that works."""
    clock = clock or Clock()
    graph = contract(problem)
    order = np.arange(graph.num_blocks)
    low = simple_bound(problem).value
    if not np.isfinite(low):
        return _result(problem, None, np.inf, "greedy", clock=clock)
    found = greedy_stages(kinds_of(problem, graph), graph, order, low=low, high=largest_load(problem), clock=clock)
    device, value = found if found is not None else (None, np.inf)
    placement = None if device is None else Placement(device=device[graph.block])
    return _result(problem, placement, value, "greedy", clock=clock, stopped="" if clock.left_s else "time limit")


def solve_chain(problem: PlacementProblem, *, clock: Clock | None = None) -> PlacementResult:
    """Cut one topological order optimally, as PipeDream does with its chain of layers."""
    search = ChainSearch(problem, clock or Clock())
    result = search.result(why_stopped(lambda: search.sample(1)) if np.isfinite(search.bound) else "")
    method = "one topological order cut optimally (as PipeDream)"
    return _result(problem, result.placement, result.objective, method, clock=clock, stopped=result.stopped)


def local_search(problem: PlacementProblem, *, seed: int = 0, clock: Clock | None = None) -> PlacementResult:
    """Move single colour classes as long as the largest load falls, from random placements on accelerators; not contiguous.

    Memory and support are kept, unlike in the published baseline.
    """
    clock = clock or Clock()
    search = _Moves(problem, contract_classes(problem))
    random = np.random.default_rng(seed)

    def run() -> None:
        for _ in range(_RESTARTS):
            clock.check()
            device = search.random_start(random)
            if device is not None:
                search.descend(device, clock)

    stopped = why_stopped(run)
    placement = Placement(device=search.best[search.graph.block]) if search.best is not None else None
    return _result(problem, placement, search.value, "local search", clock=clock, stopped=stopped)


def _result(
    problem: PlacementProblem,
    placement: Placement | None,
    value: float,
    method: str,
    proof: str = "",
    *,
    clock: Clock | None = None,
    stopped: str = "",
) -> PlacementResult:
    bound = simple_bound(problem)
    return PlacementResult(
        placement=placement,
        objective=value,
        bound=min(value, bound.value),
        method=method,
        proof=proof or bound.proof,
        wall_s=clock.elapsed_s if clock is not None else 0.0,
        stopped=stopped,
    )


class _Moves:
    """Loads of all single moves at once, and the best placement so far."""

    def __init__(self, problem: PlacementProblem, graph: BlockGraph) -> None:
        self.graph = graph
        self.best: IntArray | None = None
        self.value = np.inf
        self._devices = Devices(problem, graph)
        self._num_accelerators = problem.num_accelerators
        self._edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
        self._pins = np.diff(graph.pin_start)[:, None]
        self._price = graph.hyperedge_cost[:, None] * self._devices.link_factor  # (hyperedges, devices)

    def random_start(self, random: np.random.Generator) -> IntArray | None:
        """Put blocks on random accelerators with room, the largest first; on CPUs where there is none."""
        graph, count = self.graph, self._num_accelerators
        device = np.zeros(graph.num_blocks, dtype=np.int64)
        room = self._devices.capacity_bytes.copy()
        wish = random.permuted(np.tile(np.arange(count), (graph.num_blocks, 1)), axis=1)
        cpus = range(count, self._devices.count)[:1]
        for b in np.argsort(-graph.size_bytes, kind="stable").tolist():
            fitting = [d for d in wish[b].tolist() if graph.supported[b] and graph.size_bytes[b] <= room[d]] or cpus
            if not fitting:
                return None
            device[b] = fitting[0]
            room[fitting[0]] -= graph.size_bytes[b]
        return device

    def descend(self, device: IntArray, clock: Clock) -> None:
        """Take the move that lowers the largest load most, until none does."""
        device = device.copy()
        value = float(self._devices.loads(device).max())
        while True:
            if value < self.value:
                self.best, self.value = device.copy(), value
                clock.report("local search", value, 0.0)
            clock.check()
            after = self._after_moves(device)
            b, d = np.unravel_index(int(np.argmin(after)), after.shape)
            if not after[b, d] < value - _LEAST_GAIN * value:
                return
            device[b], value = d, float(after[b, d])

    def _after_moves(self, device: IntArray) -> FloatArray:
        """Largest load after moving each block to each device; infinite where that is not allowed."""
        graph, count = self.graph, self._devices.count
        flat = np.bincount(self._edge * count + device[graph.pin], minlength=len(self._pins) * count)
        inside = flat.reshape(-1, count)
        loads = self._devices.loads(device)
        cut = ((inside > 0) & (inside < self._pins)).astype(np.float64)
        more = ((inside + 1 < self._pins).astype(np.float64) - cut) * self._price
        less = ((inside > 1).astype(np.float64) - cut) * self._price
        arrive = self._devices.time.T.copy()
        leave = -self._devices.time[device, np.arange(graph.num_blocks)]
        np.add.at(arrive, graph.pin, more[self._edge])
        np.add.at(leave, graph.pin, less[self._edge, device[graph.pin]])
        source = loads[device] + leave
        # Largest load of the devices that a move does not touch: one of the three largest.
        top = np.argsort(-loads, kind="stable")[:3]
        blocks, devices = np.arange(graph.num_blocks)[:, None], np.arange(count)[None, :]
        rest = np.zeros((graph.num_blocks, count))
        for d in top[::-1].tolist():
            untouched = (device[blocks] != d) & (devices != d)
            rest = np.where(untouched, np.maximum(rest, loads[d]), rest)
        after = np.maximum(np.maximum(source[:, None], loads[None, :] + arrive), rest)
        used = np.bincount(device, weights=graph.size_bytes, minlength=count)
        overfull = used + graph.size_bytes[:, None] > self._devices.capacity_bytes
        return np.where(overfull | (devices == device[:, None]), np.inf, after)

"""Random latency problems small enough to try everything, and trying everything, by definitions of its own."""

from __future__ import annotations

import itertools
import random

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem

__all__ = ["Everything", "random_latency_problem"]


def random_latency_problem(seed: int, *, num_subgraphs: int = 1) -> PlacementProblem:
    """Draw a problem with everything that can be special: colours, zero times, weights, unsupported operators, scarce memory."""
    rng = random.Random(seed)
    while True:
        accelerators = rng.choice([1, 2, 2, 3]) if num_subgraphs == 1 else rng.choice([1, 1, 2])
        options = 1 + accelerators * num_subgraphs
        most = next(n for n in range(9, 0, -1) if options**n <= 20_000)
        count = rng.randint(1, most)
        ids = rng.sample(range(100), count)
        ratio, can_fail, colored = rng.choice([1.5, 4, 10]), rng.random() < 0.25, rng.random() < 0.6
        nodes = []
        for i in range(count):
            time = 0.0 if rng.random() < 0.35 else round(rng.uniform(0.5, 5), 2)
            nodes.append(
                NodeSpec(
                    id=ids[i],
                    accelerator_time=time,
                    cpu_time=round(time * ratio * rng.uniform(0.5, 1.5), 2) if rng.random() < 0.95 else 1.0,
                    size_bytes=float(rng.choice([0, 0, 1, 2, 3, 5])),
                    supported=not (can_fail and rng.random() < 0.2),
                    color=rng.randint(0, max(1, count // 2)) if colored and rng.random() < 0.6 else None,
                )
            )
        density = rng.choice([0.15, 0.3, 0.5])
        cost = [rng.choice([0.0, 0.1, 0.7, 2.0, 4.0]) for _ in range(count)]
        pairs = [(i, j) for i, j in itertools.combinations(range(count), 2) if rng.random() < density]
        edges = [EdgeSpec(ids[i], ids[j], cost[i]) for i, j in pairs]
        rng.shuffle(nodes)
        rng.shuffle(edges)
        total = sum(node.size_bytes for node in nodes)
        memory = rng.choice([total, total * 0.7, total * 0.5, total / accelerators])
        try:
            return PlacementProblem.build(nodes, edges, num_accelerators=accelerators, num_cpus=1, memory_bytes=memory)
        except ValueError:  # drawn with a class that fits no device
            continue


class Everything:
    """Every operator in every place, with the latency; infinite where that is not allowed."""

    def __init__(self, problem: PlacementProblem, num_subgraphs: int = 1) -> None:
        self._problem, self._q = problem, num_subgraphs
        count, calls = problem.num_nodes, problem.num_accelerators * num_subgraphs
        # Place 0 is a CPU, place 1 + a q + s subgraph s of accelerator a.
        self.place: IntArray = np.array(list(itertools.product(range(1 + calls), repeat=count)), dtype=np.int64)
        self._unit = np.where(self.place == 0, np.arange(count), count + self.place - 1)
        self._units = count + calls
        self.latency = np.where(self._legal(), self._latency(), np.inf)

    @property
    def best(self) -> float:
        """Least latency."""
        return float(self.latency.min())

    def of(self, device: IntArray, subgraph: IntArray) -> float:
        """Latency of one placement."""
        problem = self._problem
        place = np.where(device < problem.num_accelerators, 1 + device * self._q + subgraph, 0)
        base = 1 + problem.num_accelerators * self._q
        row = 0
        for p in place.tolist():
            row = row * base + p
        assert np.array_equal(self.place[row], place)
        return float(self.latency[row])

    def _legal(self) -> BoolArray:
        problem, place = self._problem, self.place
        legal = ~np.any((place > 0) & ~problem.supported, axis=1)
        device = np.where(place == 0, -1, (place - 1) // self._q)
        for a in range(problem.num_accelerators):
            legal &= (device == a) @ problem.size_bytes <= problem.memory_bytes * (1 + 1e-12)
        for u, v in itertools.combinations(range(problem.num_nodes), 2):
            if problem.color[u] == problem.color[v]:
                legal &= device[:, u] == device[:, v]
        return legal

    def _latency(self) -> FloatArray:
        problem, rows = self._problem, np.arange(len(self.place))
        count, units = problem.num_nodes, self._units
        busy = np.zeros((len(rows), units))
        waits = np.zeros((len(rows), units, units), dtype=bool)  # the first for the second
        for v in range(count):
            on_cpu = self.place[:, v] == 0
            busy[rows, self._unit[:, v]] += np.where(on_cpu, problem.cpu_time[v], problem.accelerator_time[v])
        for u in range(count):
            readers = problem.edge_target[problem.edge_source == u]
            for unit in range(count, units):
                inside = self._unit[:, u] == unit
                reading = self._unit[:, readers] == unit
                pays = np.where(inside, ~reading.all(axis=1), reading.any(axis=1))
                busy[:, unit] += problem.transfer_time[u] * pays
            for v in readers.tolist():
                apart = self._unit[:, u] != self._unit[:, v]
                waits[rows[apart], self._unit[apart, v], self._unit[apart, u]] = True
        for a in range(problem.num_accelerators):
            for s in range(1, self._q):
                for earlier in range(s):
                    waits[:, count + a * self._q + s, count + a * self._q + earlier] = True
        finish = busy.copy()
        for _ in range(units):
            finish = busy + np.where(waits, finish[:, None, :], 0.0).max(axis=2)
        circular = waits.copy()
        for m in range(units):
            circular |= circular[:, :, m, None] & circular[:, m, None, :]
        wrong = np.any(circular[:, range(units), range(units)], axis=1)
        latest = np.take_along_axis(finish, self._unit, axis=1).max(axis=1)
        return np.where(wrong, np.inf, latest)

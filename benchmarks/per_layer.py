"""Speed of the exact per-layer search on synthetic tables of real networks' shapes.

Run ``python benchmarks/per_layer.py`` from the repository root; ``--network resnet152 --workers 64`` narrows it down,
``--program`` adds the integer program. The tables follow a roofline with alpha-beta links: 40e12 FLOP/s, 20 us launch,
10e9 bytes/s and 10 us per message, batch 512, float32.
They have the structure that matters for the search (layouts, rounding up, repeated blocks), not anybody's hardware.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge, Limits
from strategies.layerwise.per_layer.search import Method, solve

PEAK_FLOPS = 40e12
LAUNCH_S = 20e-6
LATENCY_S = 10e-6
BATCH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation: a convolution (fully connected: kernel 1, extent 1) or an element-wise node (taps 0)."""

    parents: tuple[int, ...]
    channels_in: int
    channels_out: int
    taps: int  # kernel height x width; 0 = no weights
    extent: int  # output height = width


@dataclass(slots=True)
class Net:
    """A list of nodes in topological order."""

    nodes: list[Node] = field(default_factory=list)

    def conv(self, parent: int | None, channels: int, kernel: int | tuple[int, int], extent: int) -> int:
        """Append a convolution and return its number."""
        taps = kernel * kernel if isinstance(kernel, int) else kernel[0] * kernel[1]
        channels_in = 3 if parent is None else self.nodes[parent].channels_out
        parents = () if parent is None else (parent,)
        self.nodes.append(
            Node(parents=parents, channels_in=channels_in, channels_out=channels, taps=taps, extent=extent)
        )
        return len(self.nodes) - 1

    def chain(self, parent: int | None, steps: list[tuple[int, int | tuple[int, int]]], extent: int) -> int:
        """Append convolutions (channels, kernel) one after the other."""
        last = parent
        for channels, kernel in steps:
            last = self.conv(last, channels, kernel, extent)
        assert last is not None
        return last

    def free(self, parents: list[int], extent: int, *, concat: bool = False) -> int:
        """Append a pooling, an addition or a concatenation."""
        widths = [self.nodes[p].channels_out for p in parents]
        channels = sum(widths) if concat else widths[0]
        node = Node(parents=tuple(parents), channels_in=channels, channels_out=channels, taps=0, extent=extent)
        self.nodes.append(node)
        return len(self.nodes) - 1


def alexnet() -> Net:
    """Five convolutions, three poolings, three fully connected layers, a loss."""
    net = Net()
    last = net.free([net.conv(None, 96, 11, 55)], 27)
    last = net.free([net.conv(last, 256, 5, 27)], 13)
    last = net.free([net.chain(last, [(384, 3), (384, 3), (256, 3)], 13)], 6)
    last = net.conv(last, 4096, 6, 1)
    last = net.chain(last, [(4096, 1), (1000, 1)], 1)
    net.free([last], 1)
    return net


def vgg16() -> Net:
    """Thirteen convolutions, five poolings, three fully connected layers, a loss."""
    net = Net()
    last: int | None = None
    for channels, count, extent in ((64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)):
        last = net.free([net.chain(last, [(channels, 3)] * count, extent)], extent // 2)
    last = net.chain(net.conv(last, 4096, 7, 1), [(4096, 1), (1000, 1)], 1)
    net.free([last], 1)
    return net


def resnet152() -> Net:
    """Fifty bottleneck blocks."""
    net = Net()
    last = net.free([net.conv(None, 64, 7, 112)], 56)
    for width, count, extent in ((64, 3, 56), (128, 8, 28), (256, 36, 14), (512, 3, 7)):
        for block in range(count):
            branch = net.chain(last, [(width, 1), (width, 3), (4 * width, 1)], extent)
            skip = net.conv(last, 4 * width, 1, extent) if block == 0 else last
            last = net.free([branch, skip], extent)
    last = net.free([last], 1)
    net.free([net.conv(last, 1000, 1, 1)], 1)
    return net


def inception_v3() -> Net:
    """Eleven modules of three or four branches, two kinds with a fork inside a branch."""
    net = Net()
    last = net.free([net.chain(None, [(32, 3), (32, 3), (64, 3)], 149)], 73)
    last = net.free([net.chain(last, [(80, 1), (192, 3)], 71)], 35)
    for pool in (32, 64, 64):
        ends = [net.conv(last, 64, 1, 35), net.chain(last, [(48, 1), (64, 5)], 35)]
        ends += [net.chain(last, [(64, 1), (96, 3), (96, 3)], 35), net.conv(net.free([last], 35), pool, 1, 35)]
        last = net.free(ends, 35, concat=True)
    ends = [net.conv(last, 384, 3, 17), net.chain(last, [(64, 1), (96, 3), (96, 3)], 17), net.free([last], 17)]
    last = net.free(ends, 17, concat=True)
    for width in (128, 160, 160, 192):
        ends = [net.conv(last, 192, 1, 17), net.chain(last, [(width, 1), (width, (1, 7)), (192, (7, 1))], 17)]
        long = [(width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))]
        ends += [net.chain(last, list(long), 17), net.conv(net.free([last], 17), 192, 1, 17)]
        last = net.free(ends, 17, concat=True)
    ends = [net.chain(last, [(192, 1), (320, 3)], 8)]
    ends += [net.chain(last, [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)], 8), net.free([last], 8)]
    last = net.free(ends, 8, concat=True)
    for _ in range(2):
        ends = [net.conv(last, 320, 1, 8)]
        for start in (net.conv(last, 384, 1, 8), net.chain(last, [(448, 1), (384, 3)], 8)):
            ends.append(net.free([net.conv(start, 384, (1, 3), 8), net.conv(start, 384, (3, 1), 8)], 8, concat=True))
        ends.append(net.conv(net.free([last], 8), 192, 1, 8))
        last = net.free(ends, 8, concat=True)
    last = net.free([last], 1)
    net.free([net.conv(last, 1000, 1, 1)], 1)
    return net


NETWORKS = {"alexnet": alexnet, "vgg16": vgg16, "inception_v3": inception_v3, "resnet152": resnet152}


def factorisations(workers: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``workers`` as an ordered product of ``parts`` factors."""
    if parts == 1:
        yield (workers,)
        return
    for first in range(1, workers + 1):
        if workers % first == 0:
            for rest in factorisations(workers // first, parts - 1):
                yield (first, *rest)


def options_of(node: Node, workers: int) -> IntArray:
    """Splits (batch, out channels, in channels, height) that the node allows."""
    parts = np.array(list(factorisations(workers, 4)), dtype=np.int64)
    limit = (BATCH, node.channels_out, node.channels_in if node.taps else 1, node.extent)
    legal = parts[(parts <= limit).all(axis=1)]
    return legal if len(legal) else np.array([[1, 1, 1, 1]], dtype=np.int64)


def ceil_div(total: int, parts: IntArray) -> FloatArray:
    """Size of the largest part."""
    return np.ceil(total / parts)


def node_tables(node: Node, split: IntArray, bandwidth: float) -> tuple[FloatArray, ...]:
    """Return base, hide, exchange (seconds) and memory (bytes) of each option."""
    b, co, ci, h = split.T
    rows = ceil_div(BATCH, b) * ceil_div(node.extent, h) * node.extent
    width_out, width_in = ceil_div(node.channels_out, co), ceil_div(node.channels_in, ci)
    flops = 2.0 * rows * width_out * (width_in if node.taps else 1.0) * max(node.taps, 1)
    traffic = 4.0 * rows * (width_out + width_in)
    forward = np.maximum(flops / PEAK_FLOPS, traffic / 1e12) + LAUNCH_S
    backward = 2.0 * forward if node.taps else forward
    out_bytes = 4.0 * rows * width_out
    partial = np.where(ci > 1, 2 * (ci - 1) / ci * out_bytes / bandwidth + LATENCY_S * np.log2(ci), 0.0)
    in_bytes = 4.0 * rows * width_in
    gradient = np.where((co > 1) & (node.taps > 0), 2 * (co - 1) / co * in_bytes / bandwidth + LATENCY_S, 0.0)
    weights = 4.0 * width_out * width_in * node.taps
    replicas = b * h
    exchange = np.where(
        replicas > 1, 2 * (replicas - 1) / replicas * weights / bandwidth + 2 * LATENCY_S * np.log2(replicas), 0.0
    )
    exchange = exchange * (node.taps > 0)
    base = forward + backward + partial + gradient + 3 * weights / 1e12
    return base, backward, exchange, 4 * weights + out_bytes


def edge_between(u: int, v: int, producer: Node, splits: list[IntArray], bandwidth: float, taps: int) -> Edge:
    """Resharding by the volume each worker needs and does not have, forward and backward."""
    out = splits[u][:, [0, 1, 3]]
    into = splits[v][:, [0, 2, 3]] if taps else splits[v][:, [0, 1, 3]]
    rows, producer_class = np.unique(out, axis=0, return_inverse=True)
    columns, consumer_class = np.unique(into, axis=0, return_inverse=True)
    volume = 4.0 * BATCH * producer.channels_out * producer.extent**2
    needed = volume / columns.prod(axis=1)[None, :]
    common = volume / np.maximum(rows[:, None, :], columns[None, :, :]).prod(axis=2)
    missing = np.maximum(needed - common, 0.0)
    cost = np.where(missing > 1e-9 * volume, 2 * (missing / bandwidth + LATENCY_S), 0.0)
    return Edge(
        producer=u,
        consumer=v,
        producer_class=producer_class.reshape(-1).astype(np.int64),
        consumer_class=consumer_class.reshape(-1).astype(np.int64),
        cost_s=cost,
    )


def make_problem(
    net: Net,
    workers: int,
    *,
    bandwidth: float = 10e9,
    overlap: bool = True,
    capacity_bytes: float = math.inf,
) -> ChoiceProblem:
    """Tables of one network for one number of workers."""
    splits = [options_of(node, workers) for node in net.nodes]
    tables = [node_tables(node, split, bandwidth) for node, split in zip(net.nodes, splits, strict=True)]
    edges = [
        edge_between(p, v, net.nodes[p], splits, bandwidth, net.nodes[v].taps)
        for v, node in enumerate(net.nodes)
        for p in node.parents
    ]
    keys = [
        np.arange(len(s)) if node.taps else np.zeros(len(s), np.int64)
        for node, s in zip(net.nodes, splits, strict=True)
    ]
    return ChoiceProblem(
        base_s=tuple(t[0] for t in tables),
        hide_s=tuple(t[1] if overlap else np.zeros_like(t[1]) for t in tables),
        exchange_s=tuple(t[2] for t in tables),
        memory_bytes=tuple(t[3] for t in tables),
        edges=tuple(edges),
        memory_capacity_bytes=capacity_bytes,
        key_class=tuple(k.astype(np.int64) for k in keys),
    )


def capacity_between(net: Net, workers: int, share: float) -> float:
    """Capacity that forbids the fastest choice: ``share`` of the way from the least memory to what that one takes."""
    free = make_problem(net, workers)
    fastest = solve(free, Limits(), method="elimination").choices[0]
    least = sum(float(m.min()) for m in free.memory_bytes)
    taken = sum(float(m[o]) for m, o in zip(free.memory_bytes, fastest, strict=True))
    return least + share * (taken - least)


def row(problem: ChoiceProblem, method: Method, num_solutions: int, wall_s: float) -> str:
    """Time and outcome of one solve."""
    started = time.perf_counter()
    answer = solve(problem, Limits(num_solutions=num_solutions, wall_s=wall_s), method=method)
    taken = time.perf_counter() - started
    best = answer.objective_s
    gap = (best - answer.bound_s) / best if math.isfinite(best) else math.nan
    return f"{taken:8.3f} s  {answer.status.value:10s} gap {gap:.1e}"


def single(names: Sequence[str], counts: Sequence[int], *, program: bool) -> None:
    """One worker count at a time, without a cutoff."""
    print(f"{'network':14s} {'workers':>7s} {'nodes':>5s} {'options':>7s}  case")
    for name in names:
        net = NETWORKS[name]()
        for workers in counts:
            for share in (None, 0.7):
                capacity = math.inf if share is None else capacity_between(net, workers, share)
                problem = make_problem(net, workers, capacity_bytes=capacity)
                size = f"{name:14s} {workers:7d} {problem.num_nodes:5d} {sum(len(b) for b in problem.base_s):7d}"
                memory = "no cap" if share is None else "capped"
                for count in (1, 10):
                    print(f"{size}  {memory}, best {count:2d}      {row(problem, 'elimination', count, 60.0)}")
                if program:
                    print(f"{size}  {memory}, program      {row(problem, 'program', 1, 60.0)}", flush=True)


def quickest_s(problem: ChoiceProblem) -> float:
    """Time of every node at its quickest, which no choice beats."""
    return sum(float(base.min()) for base in problem.base_s)


def sweep(names: Sequence[str], most: int) -> None:
    """Every worker count, most promising first, each cut off by the best so far: what a command does."""
    for name in names:
        net = NETWORKS[name]()
        capacity = capacity_between(net, most, 0.7)
        for label, overlap, limit in (
            ("overlap", True, math.inf),
            ("overlap, capped", True, capacity),
            ("sum", False, math.inf),
        ):
            problems = [make_problem(net, w, overlap=overlap, capacity_bytes=limit) for w in range(1, most + 1)]
            started = time.perf_counter()
            best, solved = math.inf, 0
            for problem in sorted(problems, key=quickest_s):
                answer = solve(problem, Limits(cutoff_s=best), method="elimination")
                solved += bool(answer.objectives_s)
                best = min([best, *answer.objectives_s])
            taken = time.perf_counter() - started
            print(f"{name:14s} 1..{most} workers, {label:16s} {taken:7.3f} s, {solved} improved", flush=True)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", choices=sorted(NETWORKS), action="append")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--program", action="store_true", help="also time the integer program (minutes on large ones)")
    options = parser.parse_args()
    names = options.network or list(NETWORKS)
    single(names, options.workers or [16, 60, 64], program=options.program)
    sweep(names, max(options.workers or [64]))


if __name__ == "__main__":
    main()

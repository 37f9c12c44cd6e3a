"""Large operator graphs, generated: unrolled BERT, Inception and NASNet-like cells, written in the public JSON format of workloads.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/generated_graphs.py write FAMILY COUNT SEED FILE [--training]
       PLANNER_REFERENCE_DATA=FOLDER python benchmarks/generated_graphs.py [--write] [10000] [100000] [--seeds N] [--family NAME]

Times on either device, size and transfer time of an operator are those of one operator of the shared operator workloads, drawn together, so
that their ratios are as measured: those of BERT for BERT, of ResNet-50 for the convolutional families. An operator of a cell is drawn
once per graph, because cells repeat; so a cut that is dear in one cell is dear in all, which a draw per operator would hide.
Nothing of the workloads is kept here: they are read at run time.

The second form places five graphs of each family on 16 accelerators and one CPU, contiguous and not, until the gap is 1 % or the time
of the goal is up, and reports the worst bound / best; --write puts the table, one row for each family and size, into docs/placement.md.
The seeds 3 and 4 are training graphs: every operator that takes time has a backward operator of its colour class, twice as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from placement import write_table

FOLDER = (
    Path(os.environ.get("PLANNER_REFERENCE_DATA", Path(__file__).parents[2] / "shared")) / "placement" / "workloads"
)
SOURCES = {
    "bert": ("bert_l-12_inference", "bert_l-6_inference", "bert_l-3_training"),
    "inception": ("resnet50_inference",),
    "nasnet": ("resnet50_inference",),
}
ACCELERATORS = 16
# A backward pass computes the gradients of the inputs and of the weights, each about as much work as the forward pass.
BACKWARD_WORK = 2.0
# Memory of an accelerator, in even shares of all sizes: the public workloads have three and more.
MEMORY_SHARES = 2.0
TRAINING_SEEDS = (3, 4)
# Seconds for each size, of the goal that the benchmark checks.
LIMITS = {10_000: 60, 100_000: 300}
GOAL = 0.90
# Nothing is gained for the goal by closing the rest.
GAP = "1%"


@dataclass(frozen=True, slots=True)
class Cell:
    """Operators of a cell by name, each with its inputs: names of this cell, or those that the cell is given."""

    inputs: dict[str, tuple[str, ...]]
    result: str


@dataclass(slots=True)
class Graph:
    """What has been generated so far."""

    pool: list[dict[str, Any]]  # operators with time, of the shared workload
    weights: list[dict[str, Any]]  # those without
    random: np.random.Generator
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    drawn: dict[str, dict[str, Any]] = field(default_factory=dict)  # position in a kind of cell -> operator

    def operator(self, position: str, inputs: tuple[int, ...]) -> int:
        """Add an operator that looks like the one drawn for its position."""
        is_weight = position.endswith(".weight")
        pool = self.weights if is_weight and self.weights else self.pool
        if position not in self.drawn:
            self.drawn[position] = pool[int(self.random.integers(len(pool)))]
        like = self.drawn[position]
        number = len(self.nodes)
        keys = ("supportedOnFpga", "cpuLatency", "fpgaLatency", "size")
        self.nodes.append({"id": number, "name": position, "isBackwardNode": 0} | {key: like[key] for key in keys})
        self.cost.append(like["cost"])
        self.edges += [(u, number) for u in inputs]
        return number

    def cell(self, kind: str, cell: Cell, given: dict[str, int]) -> int:
        """Add a cell; return the operator of its result."""
        known = dict(given)
        for name, inputs in cell.inputs.items():
            known[name] = self.operator(f"{kind}.{name}", tuple(dict.fromkeys(known[i] for i in inputs)))
        return known[cell.result]


def chain(name: str, source: str, *steps: str) -> dict[str, tuple[str, ...]]:
    """Operators that follow each other; the last one is called ``name``."""
    names = [f"{name}.{step}" for step in steps[:-1]] + [name]
    return {n: (source if i == 0 else names[i - 1],) for i, n in enumerate(names)}


def linear(name: str, source: str, *after: str) -> dict[str, tuple[str, ...]]:
    """A matrix product with weight and bias, each an operator without time, and what follows it."""
    cell: dict[str, tuple[str, ...]] = {
        f"{name}.matmul.weight": (),
        f"{name}.bias.weight": (),
        f"{name}.matmul": (source, f"{name}.matmul.weight"),
    }
    if not after:
        return cell | {name: (f"{name}.matmul", f"{name}.bias.weight")}
    return cell | {f"{name}.add": (f"{name}.matmul", f"{name}.bias.weight")} | chain(name, f"{name}.add", *after)


def bert_layer() -> Cell:
    """Attention and feed-forward, with residual connections, as exported graphs have them."""
    cell: dict[str, tuple[str, ...]] = {}
    for part in ("query", "key", "value"):
        cell |= linear(part, "x", "reshape", "transpose")
    cell |= {
        "scores": ("query", "key"),
        "scaled": ("scores",),
        "masked": ("scaled", "mask"),
        "softmax": ("masked",),
        "dropout": ("softmax",),
        "context": ("dropout", "value"),
    }
    cell |= chain("merged", "context", "transpose", "reshape")
    cell |= linear("output", "merged", "dropout")
    cell |= {"residual": ("output", "x"), "norm.weight": (), "norm": ("residual", "norm.weight")}
    cell |= linear("up", "norm")
    cell |= {"pow": ("up",), "scale": ("pow",), "sum": ("scale", "up"), "tanh": ("sum",), "gelu": ("tanh", "up")}
    cell |= linear("down", "gelu", "dropout")
    cell |= {"residual2": ("down", "norm"), "norm2.weight": (), "norm2": ("residual2", "norm2.weight")}
    return Cell(cell, "norm2")


def convolution(name: str, source: str) -> dict[str, tuple[str, ...]]:
    """Convolution with its weight, batch normalisation and activation."""
    weight = {f"{name}.conv.weight": (), f"{name}.conv": (source, f"{name}.conv.weight")}
    return weight | {f"{name}.norm": (f"{name}.conv",), name: (f"{name}.norm",)}


def inception_cell(variant: int) -> Cell:
    """Four branches of different lengths from one input, concatenated (Szegedy et al., CVPR 2016, figures 5 to 7)."""
    cell: dict[str, tuple[str, ...]] = {"pool": ("x",)}
    cell |= convolution("pooled", "pool")
    ends = ["pooled"]
    for branch, length in enumerate(((1, 2, 3), (1, 3, 5), (1, 2, 3))[variant]):
        source = "x"
        for step in range(length):
            cell |= convolution(f"branch{branch}.{step}", source)
            source = f"branch{branch}.{step}"
        if variant == 2 and length > 1:  # the last step forks
            cell |= convolution(f"branch{branch}.fork", f"branch{branch}.{length - 2}")
            ends.append(f"branch{branch}.fork")
        ends.append(source)
    return Cell(cell | {"concat": tuple(ends)}, "concat")


def nasnet_cell() -> Cell:
    """Five pairs of operations on the two cells before (Zoph et al., CVPR 2018, figure 4, NASNet-A normal cell)."""
    cell = convolution("h", "x") | convolution("before", "y")
    ends = []
    pairs = (
        ("h", "", "h", "conv"),
        ("before", "conv", "h", "conv"),
        ("h", "pool", "before", ""),
        ("before", "pool", "before", "pool"),
        ("before", "conv", "before", "conv"),
    )
    for i, (first, left, second, right) in enumerate(pairs):
        sides = []
        for side, source, operation in (("a", first, left), ("b", second, right)):
            name = f"pair{i}.{side}"
            if operation == "conv":  # separable convolutions come twice
                cell |= convolution(f"{name}.1", source) | convolution(name, f"{name}.1")
            elif operation == "pool":
                cell[name] = (source,)
            sides.append(name if operation else source)
        cell[f"pair{i}"] = tuple(sides)
        ends.append(f"pair{i}")
    return Cell(cell | {"concat": (*ends, "before")}, "concat")


def unroll(family: str, graph: Graph, count: int) -> None:
    """Add cells until there are at least so many operators."""
    x = graph.operator("stem", (graph.operator("image", ()),))
    if family == "bert":
        mask = graph.operator("mask", (graph.operator("segment", ()),))
        layer = bert_layer()
        while len(graph.nodes) < count:
            x = graph.cell("layer", layer, {"x": x, "mask": mask})
    elif family == "inception":
        cells = [inception_cell(variant) for variant in range(3)]
        size = sum(len(cell.inputs) for cell in cells)
        each = max(1, round(count / size))
        for i in range(3):  # one stack of each kind, as in the network
            for _ in range(each):
                x = graph.cell(f"inception{i}", cells[i], {"x": x})
        while len(graph.nodes) < count:
            x = graph.cell("inception2", cells[2], {"x": x})
    else:
        cell, y = nasnet_cell(), x
        while len(graph.nodes) < count:
            x, y = graph.cell("cell", cell, {"x": x, "y": y}), x
    graph.operator("head", (x,))


def shared_operators(name: str) -> list[dict[str, Any]]:
    """Forward operators of a shared workload with what their outputs cost."""
    content = json.loads((FOLDER / "throughput" / "OperatorGraphs" / f"{name}.json").read_text())
    cost = {edge["sourceId"]: edge["cost"] for edge in content["edges"]}
    return [node | {"cost": cost.get(node["id"], 0.0)} for node in content["nodes"] if not node["isBackwardNode"]]


def generate(family: str, count: int, seed: int, *, training: bool = False) -> dict[str, Any]:
    """Make a workload of at least ``count`` operators, the same for the same arguments on any machine."""
    operators = shared_operators(SOURCES[family][seed % len(SOURCES[family])])
    timed = [node for node in operators if node["fpgaLatency"] > 0]
    graph = Graph(timed, [n for n in operators if n["fpgaLatency"] == 0], np.random.default_rng([seed, count]))
    forward = count
    if training:  # operators without time have no backward operator: one cell's worth tells their share
        trial = Graph(timed, graph.weights, np.random.default_rng(0))
        unroll(family, trial, 200)
        forward = round(count / (1 + sum("weight" not in n["name"] for n in trial.nodes) / len(trial.nodes)))
    unroll(family, graph, forward)
    if training:
        add_backward(graph)
    size = sum(node["size"] for node in graph.nodes)
    return {
        "maxFPGAs": ACCELERATORS,
        "maxCPUs": 1,
        "maxSizePerFPGA": MEMORY_SHARES * size / ACCELERATORS,
        "nodes": graph.nodes,
        "edges": [{"sourceId": u, "destId": v, "cost": graph.cost[u]} for u, v in graph.edges],
    }


def add_backward(graph: Graph) -> None:
    """Give every operator with time a backward operator that reads its inputs and the gradients of its readers."""
    forward = len(graph.nodes)
    edges = list(graph.edges)
    partner: dict[int, int] = {}
    for v in range(forward):
        node = graph.nodes[v]
        node["colorClass"] = v
        if node["fpgaLatency"] > 0:
            partner[v] = len(graph.nodes)
            times = {key: BACKWARD_WORK * node[key] for key in ("fpgaLatency", "cpuLatency")}
            graph.nodes.append(node | times | {"id": partner[v], "name": f"{node['name']}.grad", "isBackwardNode": 1})
            graph.cost.append(graph.cost[v])
    for u, v in edges:
        if v in partner:
            graph.edges.append((u, partner[v]))
            if u in partner:
                graph.edges.append((partner[v], partner[u]))


MODES = ("--contiguous", "--non-contiguous")
HEAD = (
    "| operators | family | worst bound / best, contiguous | not contiguous | CPU s, contiguous | not contiguous | MB |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


@dataclass(frozen=True, slots=True)
class Placed:
    """One run of the command."""

    ratio: float
    cpu_s: float
    memory_mb: float


def row(count: int, family: str, runs: dict[str, list[Placed]]) -> str:
    """Worst of one family and size, for the page."""
    ratios = " | ".join(f"{min(run.ratio for run in runs[mode]):.4f} of {len(runs[mode])}" for mode in MODES)
    times = " | ".join(
        f"{min(run.cpu_s for run in runs[mode]):.0f} to {max(run.cpu_s for run in runs[mode]):.0f}" for mode in MODES
    )
    memory_mb = max(run.memory_mb for mode in MODES for run in runs[mode])
    return f"| {count:,} | {family} | {ratios} | {times} | {memory_mb:.0f} |"


def measure(count: int, families: list[str], seeds: int) -> list[str]:
    """Place graphs of one size; the worst bound / best is what counts. Returns rows for the page."""
    worst: dict[str, float] = {}
    rows = []
    for family in families:
        runs: dict[str, list[Placed]] = {mode: [] for mode in MODES}
        for seed in range(seeds):
            training = seed in TRAINING_SEEDS
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "graph.json"
                path.write_text(json.dumps(generate(family, count, seed, training=training)))
                for mode in MODES:
                    found = place(f"{family} {seed}{' training' if training else ''}", path, mode, LIMITS[count])
                    runs[mode].append(found)
                    worst[mode] = min(worst.get(mode, 1.0), found.ratio)
        rows.append(row(count, family, runs))
    for mode, ratio in worst.items():
        print(
            f"{count:,} operators {mode}: worst bound / best {ratio:.4f} {'ok' if ratio >= GOAL else 'below the goal'}"
        )
    return rows


def place(name: str, path: Path, mode: str, limit_s: int) -> Placed:
    """Run the command on one thread, as a user would."""
    command = [sys.executable, "-m", "planner", "place", str(path), mode, "--gap", GAP]
    command += ["--time-limit", f"{limit_s}s", "--json"]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread})
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{name} {mode}: exit code {process.returncode}"
    answer = json.loads(output)
    ratio = float(answer["bound"] / answer["objective"])
    cpu_s, memory_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3
    print(
        f"{name:22} {mode:17} best {answer['objective']:<12.8g} bound / best {ratio:.4f}"
        f" {cpu_s:6.1f} s CPU {answer['wall_s']:6.1f} s {memory_mb:5.0f} MB",
        flush=True,
    )
    return Placed(ratio, cpu_s, memory_mb)


def main() -> None:
    if not FOLDER.is_dir():
        print(f"skipped: no workloads at {FOLDER} (set PLANNER_REFERENCE_DATA)")
        return
    words = sys.argv[1:]
    if words and words[0] == "write":
        family, count, seed, file = words[1:5]
        Path(file).write_text(json.dumps(generate(family, int(count), int(seed), training="--training" in words)))
        return
    seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else 5
    families = [words[words.index("--family") + 1]] if "--family" in words else list(SOURCES)
    rows: list[str] = []
    for size in [size for size in LIMITS if str(size) in words] or list(LIMITS):
        rows += measure(size, families, seeds)
    if "--write" in words:
        write_table("generated_graphs.py --write", [*HEAD, *rows])


if __name__ == "__main__":
    main()

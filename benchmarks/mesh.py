"""Speed of plans over a device mesh: distinct legal plans per second and core through the full model, and whole commands.

Usage: python -m benchmarks.mesh [rate|commands] [SECONDS or RUNS]     (from the root of the repository)

`rate` walks the whole space of gpt3-175b on up to 512 A100 without pruning, in runs of neighbouring nodes drawn at random so that every
region of the space is met: every schedule, order, ZeRO stage, division of dp, recomputation and offload of a node is built and scored
(step time, memory, does it fit); what plans have in common is computed once, as in a search. Folding the network, building the space and
costing the module tables are inside the measured time, CPU time of the process. Afterwards the count is checked, outside of the measured
time: no plan of the first pieces occurs twice, and a random sample of 2,000 of all plans is distinct and obeys every rule.
`commands` times fresh processes, as a user waits for them; their CPU time is beside it, for machines that are not idle.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.commands import run
from costmodel.arrays import combined
from costmodel.mesh.plan import MESH_COLUMNS, RECOMPUTE, MeshBatch
from costmodel.mesh.rules import holds
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.space import mesh_space
from strategies.mesh.space import Columns, MeshSpace, batch_of, joined, selected

QUESTION = Request(model="gpt3-175b", gpus=512, cluster="dgx-a100")
_NODES = 4  # neighbouring nodes per draw
_DRAWS = 16  # drawn together, so that pipelines of the same kind can be scored together
_PIPELINES = 64  # pipelines scored at a time, with all their plans
_DRAWN = 256  # plans to check, per piece
_WHOLE = 2  # pieces that are checked whole
_FULL = RECOMPUTE.index("full")

COMMANDS: tuple[tuple[str, float, str], ...] = (
    ("llama3-70b, 256 H100", 2.0, "llama3-70b --gpus 256 --cluster dgx-h100 --batch 1024 --seq 8192"),
    ("gpt3-175b, 512 A100", 2.0, "gpt3-175b --gpus 512 --cluster dgx-a100"),
    ("llama3-405b, 16,384 H100, top 10", 5.0, "llama3-405b --gpus 16384 --cluster dgx-h100 --batch 2048 --top 10"),
    ("deepseek-v3, 2,048 H100", 10.0, "deepseek-v3 --gpus 2048 --cluster dgx-h100"),
)


def blocks_of_nodes(space: MeshSpace, seed: int = 0) -> Iterator[Columns]:
    """All nodes of the space: runs of neighbours in random order, some at a time."""
    nodes = joined([space.with_experts(branches) for branches in space.branches()])
    size = len(nodes["tp"])
    order = np.random.default_rng(seed).permutation(-(-size // _NODES))
    for first in range(0, len(order), _DRAWS):
        rows = (order[first : first + _DRAWS, None] * _NODES + np.arange(_NODES)).ravel()
        yield {name: column[rows[rows < size]] for name, column in nodes.items()}


def by_kind(pipelines: Columns) -> Columns:
    """Pipelines sorted by what decides how they are scored."""
    order = np.lexsort(
        (
            np.minimum(pipelines["num_micro_batches"] // pipelines["pp"], 5),
            pipelines["pp"],
            pipelines["vpp"],
            pipelines["schedule"],
        )
    )
    return selected(pipelines, order)


def with_recomputation(space: MeshSpace, pipelines: Columns) -> Columns:
    """Pipelines with every kind of recomputation and every number of blocks."""
    most = space.most_blocks(pipelines["pp"], pipelines["vpp"])
    kinds = space.categories("recompute", RECOMPUTE).tolist()
    counts = {int(n): space.recompute_counts(int(n)) for n in np.unique(most)}
    options = {
        n: np.array([(k, b) for k in kinds for b in (blocks if k == _FULL else (0,))]) for n, blocks in counts.items()
    }
    lengths = np.array([len(options[int(n)]) for n in most])
    index = np.repeat(np.arange(len(most)), lengths)
    chosen = np.concatenate([options[int(n)] for n in most])
    return {**selected(pipelines, index), "recompute": chosen[:, 0], "recompute_blocks": chosen[:, 1]}


def plans_of(space: MeshSpace, pipelines: Columns) -> MeshBatch:
    """All plans of some pipelines: every way to divide dp, and every choice of what waits on the host."""
    divided = space.with_shardings(pipelines)
    offloads = [(a, b) for a in space.flags("offload_optimizer") for b in space.flags("offload_activations")]
    rows = {name: np.repeat(column, len(offloads)) for name, column in divided.items()}
    chosen = np.tile(np.array(offloads, dtype=np.int64), (len(divided["tp"]), 1))
    return batch_of({**rows, "offload_optimizer": chosen[:, 0], "offload_activations": chosen[:, 1]})


@dataclass(slots=True, kw_only=True)
class Sample:
    """Some of the plans that were counted."""

    rng: np.random.Generator
    plans: list[MeshBatch] = field(default_factory=list)
    pieces: list[MeshBatch] = field(default_factory=list)  # the first whole ones

    def take(self, plans: MeshBatch) -> None:
        """Draw from a piece."""
        self.plans.append(plans.take(np.unique(self.rng.integers(0, len(plans), _DRAWN))))
        if len(self.pieces) < _WHOLE:
            self.pieces.append(plans)

    def check(self, space: MeshSpace, size: int = 2_000) -> None:
        """Compare with the rules.

        Raises
        ------
        AssertionError
            A plan was counted twice or is not legal.
        """
        whole = together(self.pieces)
        assert distinct_plans(whole) == len(whole), "a plan was counted twice"
        drawn = together(self.plans)
        plans = drawn.take(self.rng.permutation(len(drawn))[:size])
        assert distinct_plans(plans) == len(plans), "a plan was counted twice"
        columns = {name: getattr(plans, name) for name in MESH_COLUMNS}
        legal = holds(space.shape, {**columns, "dp": plans.dp})
        assert np.all(legal), f"{int(np.count_nonzero(~legal))} plans break a rule"
        assert np.all(plans.workers <= space.settings.max_workers)
        print(
            f"checked: {len(whole):,} plans in a row are distinct; {len(plans):,} of {len(drawn):,} drawn are distinct and legal"
        )


def together(batches: list[MeshBatch]) -> MeshBatch:
    """One batch of several."""
    return MeshBatch(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in MESH_COLUMNS})


def distinct_plans(plans: MeshBatch) -> int:
    """Number of plans that differ in any field."""
    return len(combined(*(getattr(plans, name) for name in MESH_COLUMNS))[0])


def rate(seconds: float = 10.0) -> float:
    """Walk the space for some time; prints and returns plans per second and core."""
    resolved = resolve(QUESTION)
    settings = mesh_space(resolved).settings()
    sample = Sample(rng=np.random.default_rng(0))
    started = time.process_time()
    model = mesh_space(resolved).model
    space = MeshSpace.of(model, settings)
    plans = fitting = 0
    drawing = 0.0
    for nodes in blocks_of_nodes(space):
        pipelines = by_kind(with_recomputation(space, space.with_orders(space.with_pipelines(nodes))))
        for first in range(0, len(pipelines["tp"]), _PIPELINES):
            batch = plans_of(space, selected(pipelines, slice(first, first + _PIPELINES)))
            plans += len(batch)
            fitting += int(np.count_nonzero(model.evaluate(batch).memory_bytes <= settings.capacity_bytes))
            before = time.process_time()
            sample.take(batch)
            drawing += time.process_time() - before
        if time.process_time() - started - drawing > seconds:
            break
    spent = time.process_time() - started - drawing
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{QUESTION.model}, up to {QUESTION.gpus} GPUs, {plans:,} distinct legal plans "
        f"({fitting / plans:.0%} fit) in {spent:.2f} s of CPU: {plans / spent / 1e6:.2f} M plans/s/core; peak memory {memory:.0f} MB",
        flush=True,
    )
    sample.check(space)
    return plans / spent


def commands(runs: int = 3) -> None:
    """Wall times, CPU time and peak memory of whole commands, byte-compiled as an installed program is."""
    with tempfile.TemporaryDirectory() as compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        _commands(runs)


def _commands(runs: int) -> None:
    print(f"{'command':34} {'target':>7} {'median':>8} {'min':>8} {'max':>8} {'CPU':>8}  {'memory':>7}  proof")
    for name, target, arguments in COMMANDS:
        words = ("optimize", *arguments.split())
        answer = json.loads(run((*words, "--json"))[2])
        before = _cpu_s()
        measured = [run(words) for _ in range(runs)]
        cpu_s = (_cpu_s() - before) / runs
        times = [seconds for seconds, _, _ in measured]
        proof = "proven" if answer["proven_optimal"] else f"gap {answer['gap']:.1%}"
        print(
            f"{name:34} {target:6.1f}s {statistics.median(times):7.2f}s {min(times):7.2f}s {max(times):7.2f}s {cpu_s:7.2f}s"
            f"  {max(megabytes for _, megabytes, _ in measured):4.0f} MB  {proof}, {answer['space_size']:,} plans",
            flush=True,
        )


def _cpu_s() -> float:
    """CPU time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(what: str = "all", amount: str = "0") -> None:
    if what in ("all", "rate"):
        rate(float(amount) or 10.0)
    if what in ("all", "commands"):
        commands(int(amount) or 3)


if __name__ == "__main__":
    main(*sys.argv[1:3])

"""Speed of plans over a device mesh: distinct legal plans per second and core through the full model, and whole commands.

Usage: python -m benchmarks.mesh [rate|commands] [SECONDS or RUNS]     (from the root of the repository)

`rate` walks the whole space of gpt3-175b on up to 512 A100 without pruning, in runs of neighbouring cells drawn at random so that every
region of the space is met: every schedule, order, ZeRO stage, division of dp, recomputation and offload of a cell is built and scored
(step time, memory, does it fit). Building the space and costing the unit tables are inside the measured time, CPU time of the process.
`commands` times fresh processes, as a user waits for them; their CPU time is beside it, for machines that are not idle.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.commands import run
from costmodel.mesh.cores import mesh_strides
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from costmodel.mesh.sharding import Division
from planner.mesh.judge import make_judge
from planner.mesh.search import settings_of
from planner.request import Request
from planner.resolve import resolve
from strategies.mesh.space import Columns, MeshSpace, batch_of

QUESTION = Request(model="gpt3-175b", gpus=512, cluster="dgx-a100")
_CELLS = 4  # neighbouring cells per draw
_DRAWS = 128  # drawn together, so that pipelines of the same kind can be scored together
_CORES = 4096  # pipelines timed at a time
_DIVIDED = 384  # and how many of them are divided at a time: their plans' arrays stay in the caches
_FULL = RECOMPUTE.index("full")

COMMANDS: tuple[tuple[str, float, str], ...] = (
    ("llama3-70b, 256 H100", 2.0, "llama3-70b --gpus 256 --cluster dgx-h100 --batch 1024 --seq 8192"),
    ("gpt3-175b, 512 A100", 2.0, "gpt3-175b --gpus 512 --cluster dgx-a100"),
    ("llama3-405b, 16,384 H100, top 10", 5.0, "llama3-405b --gpus 16384 --cluster dgx-h100 --batch 2048 --top 10"),
    ("deepseek-v3, 2,048 H100", 10.0, "deepseek-v3 --gpus 2048 --cluster dgx-h100"),
)


def blocks_of_cells(space: MeshSpace, seed: int = 0) -> Iterator[Columns]:
    """All cells of the space: runs of neighbours in random order, some at a time."""
    pieces = list(space.cells())
    cells = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    size = len(cells["tp"])
    order = np.random.default_rng(seed).permutation(-(-size // _CELLS))
    for first in range(0, len(order), _DRAWS):
        rows = (order[first : first + _DRAWS, None] * _CELLS + np.arange(_CELLS)).ravel()
        yield {name: column[rows[rows < size]] for name, column in cells.items()}


def by_kind(cores: Columns) -> Columns:
    """Pipelines sorted by what decides how they are scored."""
    order = np.lexsort(
        (np.minimum(cores["num_micro_batches"] // cores["pp"], 5), cores["pp"], cores["vpp"], cores["schedule"])
    )
    return {name: column[order] for name, column in cores.items()}


def with_recomputation(space: MeshSpace, cores: Columns) -> Columns:
    """Pipelines with every kind of recomputation and every number of blocks."""
    most = space.most_blocks(cores["pp"], cores["vpp"])
    kinds = space.categories("recompute", RECOMPUTE).tolist()
    counts = {int(n): space.recompute_counts(int(n)) for n in np.unique(most)}
    options = {
        n: np.array([(k, b) for k in kinds for b in (blocks if k == _FULL else (0,))]) for n, blocks in counts.items()
    }
    lengths = np.array([len(options[int(n)]) for n in most])
    index = np.repeat(np.arange(len(most)), lengths)
    chosen = np.concatenate([options[int(n)] for n in most])
    joined = {name: column[index] for name, column in cores.items()}
    return {**joined, "recompute": chosen[:, 0], "recompute_blocks": chosen[:, 1]}


def divided(space: MeshSpace, cores: Columns) -> tuple[MeshBatch, np.ndarray]:
    """Every plan of some pipelines: every division of dp, with and without offloading; and the pipeline of each."""
    size = len(cores["tp"])
    rows = space.with_shardings({**cores, "_core": np.arange(size)})
    for name in ("offload_optimizer", "offload_activations"):
        flags = space.flags(name)
        count = len(rows["tp"])
        rows = {key: np.repeat(column, len(flags)) for key, column in rows.items()}
        rows[name] = np.tile(flags, count)
    index = rows.pop("_core")
    return batch_of(rows), index


def score(model: MeshModel, space: MeshSpace, cores: Columns, capacity_bytes: float) -> tuple[int, int]:
    """Number of plans of some pipelines, and of those that fit."""
    batch = batch_of(cores)
    pipelines, memory = model.cores(batch), model.core_memory(batch)
    plans = fitting = 0
    for first in range(0, len(batch), _DIVIDED):
        plan, index = divided(space, {name: column[first : first + _DIVIDED] for name, column in cores.items()})
        division = Division.of(plan, mesh_strides(plan))
        step_s, needed = model.totals(pipelines, memory, first + index, division)
        assert np.all(np.isfinite(step_s))
        plans, fitting = plans + len(step_s), fitting + int(np.count_nonzero(needed <= capacity_bytes))
    return plans, fitting


def rate(seconds: float = 10.0) -> float:
    """Walk the space for some time; prints and returns plans per second and core."""
    resolved = resolve(QUESTION)
    judge, settings = make_judge(resolved), settings_of(resolved)
    started = time.process_time()
    space = MeshSpace.of(judge.model, settings)
    judge.model.rows(batch_of(space.shares()))
    plans = fitting = 0
    for cells in blocks_of_cells(space):
        cores = by_kind(with_recomputation(space, space.with_orders(space.with_pipelines(cells))))
        for first in range(0, len(cores["tp"]), _CORES):
            piece = {name: column[first : first + _CORES] for name, column in cores.items()}
            found, fits = score(judge.model, space, piece, settings.capacity_bytes)
            plans, fitting = plans + found, fitting + fits
        if time.process_time() - started > seconds:
            break
    spent = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{QUESTION.model}, up to {QUESTION.gpus} GPUs, {plans:,} distinct legal plans "
        f"({fitting / plans:.0%} fit) in {spent:.2f} s of CPU: {plans / spent / 1e6:.2f} M plans/s/core; peak memory {memory:.0f} MB",
        flush=True,
    )
    return plans / spent


def commands(runs: int = 3) -> None:
    """Wall times, CPU time and peak memory of whole commands."""
    print(f"{'command':34} {'target':>7} {'median':>8} {'min':>8} {'max':>8} {'CPU':>8}  {'memory':>7}  proof")
    for name, target, arguments in COMMANDS:
        words = ("optimize", *arguments.split())
        before = _cpu_s()
        measured = [run(words) for _ in range(runs)]
        cpu_s = (_cpu_s() - before) / runs
        times = [seconds for seconds, _, _ in measured]
        answer = json.loads(run((*words, "--json"))[2])
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

"""Search nodes: parts of the space that may matter, with bounds of their time and memory, and how many plans they hold.

    bound(node) = max(m work / pp + (pp - 1) forward, max_k [ m c_k block_k + min(last_k forward, m block_k) ])
    c_k = ceil(N_k / pp),  last_k = max(pp - 1 - (pp c_k - N_k), 0)

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards of the quickest block. Blocks are not
divided: of N_k blocks of a kind some stage has c_k or more. If none has more, at most pp c_k - N_k have fewer, so that the last of those
with c_k waits for last_k forwards. Every plan of the node takes longer.

Least memory
------------
With tp, cp, pp and the layout of the experts given, memory falls with dp (more ranks share the state) and grows with the micro-batch and
with the number of micro-batches in flight, each by itself. So the plan with the largest dp, the smallest micro-batch and the fewest
micro-batches of a *family* of nodes needs no more than any of them, whether or not it makes the batch. What would make that loose keeps
families apart: a single copy has no buffers for gradients (`several`), and micro-batches that fill the pipeline (`deep`) are small ones.
Of the schedules, those are tried that keep least in flight (`costmodel.mesh.schedule.least_in_flight`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.mesh.model import least_computing_s
from costmodel.mesh.plan import FULL, RECOMPUTE, SCHEDULES
from costmodel.mesh.rules import holds
from costmodel.network.graph import once
from costmodel.schedules import FEWEST, IN_GROUPS, ONE_F_ONE_B, OVERLAPS
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_modes import MemoryModes
from strategies.mesh.plans import PlanEvaluator
from strategies.mesh.space import Columns, MeshSpace, batch_of, distinct, joined, selected

# What decides the work of a micro-batch, but for the layout of the experts.
_WORK = ("tp", "sequence_parallel", "cp", "cp_kind", "micro_batch")
_PAIR = ("ep", "etp")
_WORK_ROW = "_work"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """Bounds nodes of a space.

    Attributes
    ----------
    modes : MemoryModes
    evaluator : PlanEvaluator
        What is compared; smaller is better.
    goal : float
        Nodes that score no less are of no interest.
    families : Families, optional
        Least memory of the nodes; given where nothing is known to fit.
    """

    modes: MemoryModes
    evaluator: PlanEvaluator
    goal: float
    families: Families | None = None

    def of(self, branches: Columns) -> tuple[Columns, FloatArray]:
        """Nodes of some branches that may fit and beat the goal, with their bounds.

        First the branches with their quickest experts, then the layouts of experts of those left.
        """
        branches = self._fitting(branches)
        if not np.isfinite(self.goal):  # every time is good enough
            nodes = self._fitting(self.modes.space.with_experts(branches))
            return nodes, self.bounds(nodes)
        if not len(branches["tp"]):
            return self.modes.space.with_experts(branches), np.zeros(0)
        first, row = combined(*(branches[name] for name in _WORK))
        work = self.modes.space.with_expert_pairs(
            {**{name: branches[name][first] for name in _WORK}, _WORK_ROW: np.arange(len(first))}
        )
        works = self._works(work)
        least = np.full((len(works), len(first)), np.inf)
        for smallest, each in zip(least, works, strict=True):
            np.minimum.at(smallest, work[_WORK_ROW], each)
        quick = np.flatnonzero(self._bound(branches, least[:, row]) < self.goal)
        nodes = self._fitting(self.modes.space.with_experts(selected({**branches, _WORK_ROW: row}, quick)))
        place = _find(work, nodes, (_WORK_ROW, *_PAIR))
        del nodes[_WORK_ROW]
        bound = self._bound(nodes, works[:, place])
        kept = np.flatnonzero(bound < self.goal)
        return selected(nodes, kept), bound[kept]

    def _fitting(self, nodes: Columns) -> Columns:
        if self.families is None or not len(nodes["tp"]):
            return nodes
        return selected(nodes, self.families.of_nodes(nodes) <= self.modes.capacity_bytes)

    def least(self) -> float:
        """Score that no plan of the space goes below: its work on all devices that it may use, divided without loss."""
        space = self.modes.space
        work = space.with_expert_pairs(space.works())
        if not len(work["tp"]):
            return float("inf")
        total_s = self._works(work)[0]
        device_s = float(np.min(space.shape.global_batch / work["micro_batch"] * work["tp"] * work["cp"] * total_s))
        most = np.array([space.most_workers])
        return float(self.evaluator.score(device_s / most, most)[0]) * (1 - EQUAL)

    def bounds(self, nodes: Columns) -> FloatArray:
        """Bounds of some nodes, whatever the goal."""
        first, row = combined(*(nodes[name] for name in (*_WORK, *_PAIR)))
        works = self._works({name: nodes[name][first] for name in (*_WORK, *_PAIR)})
        return self._bound(nodes, works[:, row])

    def _works(self, work: Columns) -> FloatArray:
        """Of one micro-batch: all work, the forward pass of the quickest block, what of the work is computing, one block of every kind.

        Rows of an array; of computing only where energy is compared.
        """
        model = self.modes.space.model
        if not len(work["tp"]):
            return np.zeros((3 + len(self._blocks), 0))
        batch = batch_of(work)
        # Tokens may travel behind other micro-batches if any schedule lets them.
        known = self.modes.space.categories("schedule", SCHEDULES)
        schedule = max(known.tolist(), key=lambda n: OVERLAPS[n], default=ONE_F_ONE_B)
        same = np.ones(len(batch), dtype=np.int64)
        batch = replace(batch, recompute=self.modes.plain[0] * same, schedule=schedule * same)
        total, forward, blocks = model.work_s(batch)
        computing = np.zeros_like(total)
        if self.evaluator.counts_computing:
            one = np.ones(len(batch), dtype=np.int64)
            computing = least_computing_s(model, replace(batch, pp=one, num_micro_batches=one))
        return np.stack([total, forward, computing, *blocks.T])

    @property
    def _blocks(self) -> list[int]:
        """Blocks of every kind."""
        modules = self.modes.space.model.modules
        counts = np.bincount(modules.kind_of, minlength=len(modules.kinds))
        return [int(n) for n, kind in zip(counts, modules.kinds, strict=True) if kind.is_block]

    def _bound(self, nodes: Columns, works: FloatArray) -> FloatArray:
        pp, m = nodes["pp"], nodes["num_micro_batches"]
        total_s, forward_s, computing_s, *blocks_s = works
        bound = m * total_s / pp + (pp - 1) * forward_s
        for count, block_s in zip(self._blocks, blocks_s, strict=True):
            most = -(-count // pp)
            last = np.maximum(pp - 1 - (pp * most - count), 0)
            each = m * block_s
            np.maximum(bound, most * each + np.minimum(last * forward_s, each), out=bound)
        return self.evaluator.score(bound, workers_of(nodes), m * computing_s / pp) * (1 - EQUAL)


def workers_of(nodes: Columns) -> IntArray:
    """Devices of every row."""
    return np.asarray(nodes["tp"] * nodes["cp"] * nodes["pp"] * nodes["dp"])


def pieces_of(branches: Iterator[Columns], rows: int) -> Iterator[Columns]:
    """The same branches, so many together or a few more.

    >>> [len(piece["tp"]) for piece in pieces_of(iter([{"tp": np.ones(3)}, {"tp": np.ones(4)}, {"tp": np.ones(2)}]), 5)]
    [7, 2]
    """
    waiting: list[Columns] = []
    size = 0
    for branch in branches:
        waiting.append(branch)
        size += len(branch["tp"])
        if size >= rows:
            yield joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield joined(waiting)


def _find(rows: Columns, wanted: Columns, names: tuple[str, ...]) -> IntArray:
    """Where the wanted rows are among others that ascend by the first name, then the second, and so on."""
    key, want = np.zeros(len(rows[names[0]]), dtype=np.int64), np.zeros(len(wanted[names[0]]), dtype=np.int64)
    for name in names:
        radix = int(rows[name].max(initial=0)) + 1
        key, want = key * radix + rows[name], want * radix + wanted[name]
    return np.searchsorted(key, want)


_SHAPE = ("tp", "sequence_parallel", "cp", "pp")
_CLASSES = ("several", "deep")
_LARGE = 1 << 40
_CHUNK = 16_384
# What a family has in common beyond its columns: 0 where it has every value.
_ONLY = ("only_dp", "only_micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Families of nodes with the memory that none of their plans goes below.

    Attributes
    ----------
    rows : Columns
        The plan that bounds each family: tp, sequence_parallel, cp, pp, ep, etp, dp, micro_batch, num_micro_batches; its class: several,
        deep; and only_dp and only_micro_batch, 0 where the family has every value.
    least_bytes : array (f,)
        Of the fullest rank.
    """

    rows: Columns
    least_bytes: FloatArray

    @classmethod
    def of(cls, modes: MemoryModes) -> Families:
        """Those of a whole space, whatever dp and the micro-batch are."""
        rows = modes.space.with_expert_pairs(_shapes(modes.space))
        rows |= {name: np.zeros(len(rows["tp"]), dtype=np.int64) for name in _ONLY}
        return cls(rows=rows, least_bytes=_least_bytes(modes, rows))

    def take(self, mask: BoolArray | IntArray) -> Families:
        """A selection."""
        return Families(rows=selected(self.rows, mask), least_bytes=self.least_bytes[mask])

    def of_nodes(self, nodes: Columns) -> FloatArray:
        """Memory that no plan of some nodes (or branches, with any layout of the experts) goes below."""
        names = (*_SHAPE, *_CLASSES, *(_PAIR if "ep" in nodes else ()))
        both = {
            name: np.concatenate([self.rows[name], column])
            for name, column in _classified(nodes).items()
            if name in names
        }
        first, group = combined(*(both[name] for name in names))
        least = np.full(len(first), np.inf)
        size = len(self.least_bytes)
        np.minimum.at(least, group[:size], self.least_bytes)
        return np.asarray(least[group[size:]])

    def members(self, space: MeshSpace) -> Columns:
        """Nodes of the families: every legal dp, micro-batch and kind of context parallelism."""
        replicas = space.replicas()
        count, size = len(replicas["dp"]), len(self.least_bytes)
        kept = [name for name in self.rows if name not in replicas]
        rows = {name: np.repeat(self.rows[name], count) for name in kept}
        rows |= {name: np.tile(column, size) for name, column in replicas.items()}
        classes = _classified(rows)
        mask = space.counts(rows["tp"] * rows["cp"] * rows["pp"] * rows["dp"])
        for name in _CLASSES:
            mask &= classes[name] == rows[name]
        for only, name in zip(_ONLY, ("dp", "micro_batch"), strict=True):
            mask &= (rows[only] == 0) | (rows[only] == rows[name])
        rows = {name: column for name, column in selected(rows, mask).items() if name not in (*_CLASSES, *_ONLY)}
        return space.with_context_kinds(space.legal(rows))


def families_of_nodes(modes: MemoryModes, nodes: Columns, *, exact: bool) -> tuple[Families, IntArray]:
    """Families of the same dp and, to be exact, of the same micro-batch.

    Parameters
    ----------
    modes : MemoryModes
    nodes : Columns
    exact : bool

    Returns
    -------
    families : Families
    family : array (n,)
        Of every node.
    """
    nodes = _classified(nodes)
    names = (*_SHAPE, *_PAIR, *_CLASSES, "dp", *(("micro_batch",) if exact else ()))
    first, family = combined(*(nodes[name] for name in names))
    rows = {name: nodes[name][first] for name in names}
    for name in ("micro_batch", "num_micro_batches"):
        rows[name] = np.full(len(first), _LARGE)
        np.minimum.at(rows[name], family, nodes[name])
    rows["only_dp"] = rows["dp"]
    rows["only_micro_batch"] = rows["micro_batch"] if exact else np.zeros(len(first), dtype=np.int64)
    return Families(rows=rows, least_bytes=_least_bytes(modes, rows)), family


def _classified(nodes: Columns) -> Columns:
    several = (nodes["dp"] * nodes["cp"] > 1).astype(np.int64)
    return {**nodes, "several": several, "deep": (nodes["num_micro_batches"] >= nodes["pp"]).astype(np.int64)}


def _shapes(space: MeshSpace) -> Columns:
    """What bounds the nodes of one tp, sequence parallelism, cp, pp and class."""
    inner, replicas, pps = space.inner(), space.replicas(), space.stages()
    deep = replicas["num_micro_batches"][None, :] >= pps[:, None]
    known: dict[tuple[int, bool], Columns] = {}
    pieces: list[Columns] = []

    def found(tp: int, cp: int) -> Columns:
        legal = space.counts(tp * cp * pps[:, None] * replicas["dp"][None, :])
        several = np.broadcast_to(replicas["dp"] * cp > 1, legal.shape)
        classes = [(s, d) for s in (0, 1) for d in (0, 1)]
        return joined([_extremes(replicas, pps, legal & (several == s) & (deep == d), s, d) for s, d in classes])

    for tp, flag, cp in zip(*(inner[name].tolist() for name in _SHAPE[:3]), strict=True):
        extremes = once(known, (tp * cp, cp > 1), partial(found, tp, cp))
        same = np.ones(len(extremes["pp"]), dtype=np.int64)
        pieces.append({"tp": tp * same, "sequence_parallel": flag * same, "cp": cp * same, **extremes})
    names = (*_SHAPE, "dp", "micro_batch", "num_micro_batches", *_CLASSES)
    return joined(pieces) if pieces else {name: np.zeros(0, dtype=np.int64) for name in names}


def _extremes(replicas: Columns, pps: IntArray, mask: BoolArray, several: int, deep: int) -> Columns:
    """The largest dp, the smallest and the fewest micro-batches of every pp that has any in the mask (pp, replicas)."""
    rows = np.flatnonzero(mask.any(axis=1))
    mask = mask[rows]
    least = {
        name: np.min(np.where(mask, replicas[name], _LARGE), axis=1, initial=_LARGE)
        for name in ("micro_batch", "num_micro_batches")
    }
    same = np.ones(len(rows), dtype=np.int64)
    return {
        "pp": pps[rows],
        "dp": np.max(np.where(mask, replicas["dp"], 0), axis=1, initial=0),
        **least,
        "several": several * same,
        "deep": deep * same,
    }


def _least_bytes(modes: MemoryModes, rows: Columns) -> FloatArray:
    """Least memory of every row, over all pipelines and modes of them."""
    size = len(rows["tp"])
    pipelines = modes.space.with_smallest_pipelines(modes.space.with_context_kinds({**rows, "_row": np.arange(size)}))
    # Groups of micro-batches fill the pipeline, and keep no less in flight than as many whole groups of pp.
    grouped = IN_GROUPS[pipelines["schedule"]]
    m = pipelines["num_micro_batches"]
    pipelines["num_micro_batches"] = np.where(grouped, m - m % pipelines["pp"], m)
    pipelines = selected(pipelines, ~grouped | (pipelines["deep"] > 0))
    least = np.full(size, np.inf)
    for start in range(0, len(pipelines["tp"]), _CHUNK):
        piece = selected(pipelines, slice(start, start + _CHUNK))
        np.minimum.at(least, piece["_row"], modes.least_bytes(batch_of(piece)))
    return least


# The first schedule that takes the same numbers of micro-batches.
_KINDS = [
    (fewest, grouped, n == ONE_F_ONE_B) for n, (fewest, grouped) in enumerate(zip(FEWEST, IN_GROUPS, strict=True))
]
_TAKES: IntArray = np.array([_KINDS.index(kind) for kind in _KINDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCount:
    """Counts the plans of branches, with every way to lay out experts.

    Attributes
    ----------
    space : MeshSpace
    check_time : callable
        May stop the counting by an exception.
    """

    space: MeshSpace
    check_time: Callable[[], None] = lambda: None  # called often
    _pipelines: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    _fulls: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    _branches: dict[tuple[int, int, int], int] = field(default_factory=dict, repr=False, compare=False)

    def plans(self, nodes: Columns) -> int:
        """Distinct legal plans in branches."""
        if not len(nodes["tp"]):
            return 0
        space = self.space
        orders = np.array([len(space.orders(mask)) for mask in range(8)], dtype=np.int64)
        spread = (nodes["cp"] > 1) * 4 + (nodes["dp"] > 1) * 2 + (nodes["pp"] > 1)
        offloads = len(space.flags("offload_optimizer")) * len(space.flags("offload_activations"))
        per_node = orders[spread] * self._pipeline_counts(nodes) * self._sharding_counts(nodes) * offloads
        if space.has_shares:
            counts, row = distinct(workers_of(nodes))
            per_node = per_node * np.array([len(space.domain_shares(int(n))) for n in counts], dtype=np.int64)[row]
        # 63 bits hold a node's plans; the sum of all may need more.
        high, low = np.divmod(per_node, 1 << 32)
        return (int(high.sum()) << 32) + int(low.sum())

    def nodes(self, branches: Columns) -> int:
        """Nodes of branches."""
        first, row = combined(branches["tp"], branches["cp"], branches["dp"])
        kinds = zip(*(branches[name][first].tolist() for name in ("tp", "cp", "dp")), strict=True)
        return int(np.array([len(self.space.experts(*kind)) for kind in kinds], dtype=np.int64)[row].sum())

    def _pipeline_counts(self, nodes: Columns) -> IntArray:
        """Schedules, chunks and recomputations of every node."""
        degrees, inverse = distinct(nodes["pp"])
        found = [once(self._pipelines, pp, partial(self._counted, pp)) for pp in degrees.tolist()]
        counts = np.array(found, dtype=np.int64).reshape(len(found), -1)[inverse]
        columns = {name: nodes[name] for name in ("pp", "num_micro_batches")}
        total = np.zeros(len(inverse), dtype=np.int64)
        for n, schedule in enumerate(self._kinds):
            kind = {**columns, "schedule": np.full(len(inverse), schedule)}
            total += np.where(holds(self.space.shape, kind, frozenset({"num_micro_batches"})), counts[:, n], 0)
        return total

    @property
    def _kinds(self) -> list[int]:
        """A schedule of every kind that takes the same numbers of micro-batches."""
        return sorted(set(_TAKES[self.space.categories("schedule", SCHEDULES)].tolist()))

    def _counted(self, pp: int) -> tuple[int, ...]:
        """Schedules, chunks and recomputations of a pipeline degree, by kind of schedule."""
        counts = dict.fromkeys(self._kinds, 0)
        for schedule, vpp in self.space.chunkings(pp):
            counts[int(_TAKES[schedule])] += self._recomputations(pp * vpp)
        return tuple(counts.values())

    def _recomputations(self, chunks: int) -> int:
        self.check_time()
        kinds = self.space.categories("recompute", RECOMPUTE).tolist()
        longest = self.space.longest(chunks)
        full = once(self._fulls, longest, lambda: len(self.space.recompute_counts(longest)))
        return sum(full if kind == FULL else 1 for kind in kinds)

    def _sharding_counts(self, branches: Columns) -> IntArray:
        """Divisions of dp of every branch, over all ways to lay out experts."""
        columns = [branches[name] for name in ("tp", "cp", "dp")]
        first, row = combined(*columns)
        kinds = zip(*(column[first].tolist() for column in columns), strict=True)
        found = [once(self._branches, kind, partial(self._divisions, *kind)) for kind in kinds]
        return np.array(found, dtype=np.int64)[row]

    def _divisions(self, tp: int, cp: int, dp: int) -> int:
        plain, stages, shards = self.space.shares_of(dp)
        needs = np.array([ep * etp for ep, etp in self.space.experts(tp, cp, dp)], dtype=np.int64)
        ranks = tp * cp * np.array([shard for shard in shards if shard * cp > 1], dtype=np.int64)
        shared = ranks[:, None] % needs[None, :] == 0
        return plain * len(needs) + stages * int(np.count_nonzero(shared))

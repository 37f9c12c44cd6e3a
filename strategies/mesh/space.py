"""The space of mesh plans, built dimension by dimension: a combination that breaks a rule is never made.

It holds every worker count up to the limit; tp, cp, pp, dp, ep, etp, micro-batch, vpp and shares of dp of
any size that the rules allow (`costmodel.mesh.rules`); with and without sequence parallelism; every kind of context
parallelism, schedule, ZeRO stage, rank order (orders that number the ranks alike are one); no, selective and full
recomputation of any number of blocks per chunk; optimizer state and activations on the device or the host; where a domain of fast
links holds several nodes, the shares of it that `costmodel.hardware.cluster.Cluster.shares` has.

It is enumerated in three levels. A *node* fixes what decides the work of a rank: tp, sequence parallelism, cp and its
kind, ep, etp, micro-batch, dp and pp. A *pipeline* adds schedule, vpp and order: the pipeline's time without data
parallelism. A *plan* adds ZeRO, recomputation and offloading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import BoolArray, IntArray, combined, ranges
from costmodel.hardware.cluster import AT_BEST
from costmodel.layerwise.plan import divisors
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, MESH_COLUMNS, ORDERS, SCHEDULES, MeshBatch
from costmodel.mesh.rules import NetworkShape, holds
from costmodel.mesh.schedule import least_in_flight
from costmodel.network.graph import once
from costmodel.schedules import IS_CHUNKED, ONE_F_ONE_B, VPP
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings

Columns = dict[str, IntArray]

_ANY = Bounds()
_LARGEST_LISTED = 1 << 20
_KIND, _WORKERS = "_kind", "_workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSpace:
    """The plans that rules and restrictions allow.

    Attributes
    ----------
    model : MeshModel
    shape : NetworkShape
    settings : MeshSettings
    """

    model: MeshModel
    shape: NetworkShape
    settings: MeshSettings
    _experts: dict[tuple[int, int, int], list[tuple[int, int]]] = field(default_factory=dict, repr=False, compare=False)
    _expert_pairs: dict[int, list[tuple[int, int]]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, model: MeshModel, settings: MeshSettings) -> MeshSpace:
        """The space of a model."""
        workload = model.workload
        shape = NetworkShape.of(workload.graph, model.modules, workload.global_batch, workload.framework, model.cluster)
        return cls(model=model, shape=shape, settings=settings)

    @property
    def restriction(self) -> MeshRestriction:
        """What the user fixed."""
        return self.settings.restriction

    # -- values of one dimension ------------------------------------------------------------------------------------------

    def values(self, name: str, candidates: IntArray | list[int]) -> IntArray:
        """Candidates for a degree that the user allows."""
        bounds = self.restriction.degrees.get(name, _ANY)
        return np.array([v for v in candidates if bounds.allows(int(v))], dtype=np.int64)

    def categories(self, name: str, known: tuple[str, ...]) -> IntArray:
        """Positions of the names that the user allows."""
        usual = self.model.workload.framework.rules.schedules if name == "schedule" else known
        allowed = self.restriction.names.get(name, usual)
        return np.array([n for n, text in enumerate(known) if text in allowed], dtype=np.int64)

    def flags(self, name: str) -> IntArray:
        """0 and 1, or the one that the user requires."""
        wanted = self.restriction.flags.get(name)
        return np.array([0, 1] if wanted is None else [int(wanted)], dtype=np.int64)

    # -- nodes ------------------------------------------------------------------------------------------------------------

    @property
    def most_workers(self) -> int:
        """Most workers that a plan may use."""
        counts = self.settings.worker_counts
        return self.settings.max_workers if counts is None else max(counts)

    def inner(self) -> Columns:
        """Every tp, sequence parallelism and cp."""
        limit = min(self.most_workers, max(self.shape.heads, default=1))
        tps = {"tp": self.values("tp", list(range(1, limit + 1)))}
        tensor = self._join(selected(tps, holds(self.shape, tps)), "sequence_parallel", self.flags("sequence_parallel"))
        lengths = self.shape.positions or (1,)
        cps = self.values("cp", [d for d in divisors(int(np.gcd.reduce(lengths))) if d <= self.most_workers])
        inner = self._join(tensor, "cp", cps)
        return selected(inner, inner["tp"] * inner["cp"] <= self.most_workers)

    def works(self) -> Columns:
        """What decides the work of a micro-batch, but for the layout of the experts: tp, sequence_parallel, cp, cp_kind, micro_batch."""
        rows = self.with_context_kinds(self.inner())
        return self._join(rows, "micro_batch", np.unique(self.replicas()["micro_batch"]))

    def branches(self) -> Iterator[Columns]:
        """All nodes before experts are laid out (`with_experts`), in pieces with one tp, sequence parallelism, cp and kind each.

        Columns tp, sequence_parallel, cp, cp_kind, micro_batch, dp, pp, num_micro_batches.
        """
        most = self.most_workers
        context, replicas, pps = self.with_context_kinds(self.inner()), self.replicas(), self.stages()
        for n in range(len(context["tp"])):
            tp, cp = int(context["tp"][n]), int(context["cp"][n])
            stages = pps[tp * cp * pps <= most]
            size, count = len(stages), len(replicas["dp"])
            workers = (tp * cp * stages)[:, None] * replicas["dp"][None, :]
            kept = np.flatnonzero(self.counts(workers).ravel())
            if not size * count * len(kept):
                continue
            branch = {name: np.full(len(kept), column[n]) for name, column in context.items()}
            branch |= {name: column[kept % count] for name, column in replicas.items()}
            branch["pp"] = stages[kept // count]
            yield branch

    def with_experts(self, branches: Columns) -> Columns:
        """Every way to lay experts over the ranks of a stage."""
        if not len(branches["tp"]):
            return {**branches, "ep": branches["tp"], "etp": branches["tp"]}
        first, kind = combined(branches["tp"], branches["cp"], branches["dp"])
        kinds = [tuple(int(branches[name][n]) for name in ("tp", "cp", "dp")) for n in first]
        nodes = self._by_value(
            {**branches, _KIND: kind}, _KIND, ("ep", "etp"), lambda n: self.experts(*kinds[n]), are_legal=True
        )
        del nodes[_KIND]
        return nodes

    def with_expert_pairs(self, columns: Columns) -> Columns:
        """Every ep and etp that tp allows, whether or not dp can be divided so; rows stay in order, pairs ascend."""
        return self._by_value(columns, "tp", ("ep", "etp"), self._pairs, are_legal=True)

    def experts(self, tp: int, cp: int, dp: int) -> list[tuple[int, int]]:
        """Pairs (ep, etp) that some division of dp can run."""

        def found() -> list[tuple[int, int]]:
            table = np.array(self._pairs(tp), dtype=np.int64).reshape(-1, 2)
            pairs, same = {"ep": table[:, 0], "etp": table[:, 1]}, np.ones(len(table), dtype=np.int64)
            columns = {**pairs, "tp": tp * same, "cp": cp * same, "dp": dp * same}
            return _pairs_in(selected(pairs, holds(self.shape, columns, frozenset(pairs))))

        return once(self._experts, (tp, cp, dp), found)

    def _pairs(self, tp: int) -> list[tuple[int, int]]:
        """Every ep with every etp that tp allows, both ascending, ep outermost."""

        def found() -> list[tuple[int, int]]:
            eps, etps = self._expert_values("ep"), self._expert_values("etp")
            pairs = {"ep": np.repeat(eps, len(etps)), "etp": np.tile(etps, len(eps))}
            return _pairs_in(selected(pairs, holds(self.shape, {**pairs, "tp": np.full(len(pairs["ep"]), tp)})))

        return once(self._expert_pairs, tp, found)

    def with_context_kinds(self, columns: Columns) -> Columns:
        """Every kind of context parallelism."""
        return self._join(columns, "cp_kind", self.categories("cp_kind", CP_KINDS))

    def stages(self) -> IntArray:
        """Every pipeline degree."""
        pps = self.values("pp", list(range(1, min(self.shape.num_blocks, self.most_workers) + 1)))
        return pps[self.shape.num_blocks % pps == 0] if self.restriction.equal_chunks else pps

    def counts(self, workers: IntArray) -> BoolArray:
        """Whether so many workers may be used."""
        if self.settings.worker_counts is None:
            return workers <= self.settings.max_workers
        return np.isin(workers, np.array(self.settings.worker_counts))

    def _expert_values(self, name: str) -> IntArray:
        extents = self.shape.experts if name == "ep" else self.shape.expert_widths
        candidates = divisors(int(np.gcd.reduce(extents))) if extents else [1]
        return self.values(name, list(candidates))

    def legal(self, columns: Columns) -> Columns:
        """Rows that obey all rules about their columns."""
        return selected(columns, holds(self.shape, columns))

    def replicas(self) -> Columns:
        """Every (dp, micro_batch, num_micro_batches) whose product is the global batch."""
        batch, most = self.shape.global_batch, self.most_workers
        rows = []
        for dp in divisors(batch):
            if dp > most or not self.restriction.degrees.get("dp", _ANY).allows(dp) or not self.shares_of(dp)[2]:
                continue
            rows += [(dp, size, batch // dp // size) for size in divisors(batch // dp)]
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        pairs = {"dp": table[:, 0], "micro_batch": table[:, 1], "num_micro_batches": table[:, 2]}
        allowed = np.ones(len(table), dtype=np.bool_)
        for name in ("micro_batch", "num_micro_batches"):
            bounds = self.restriction.degrees.get(name, _ANY)
            allowed &= np.array([bounds.allows(int(v)) for v in pairs[name]], dtype=np.bool_)
        return selected(pairs, allowed)

    # -- joins ------------------------------------------------------------------------------------------------------------

    def _join(self, columns: Columns, name: str, values: IntArray) -> Columns:
        """Every row with every value of another column, those that break a rule left out."""
        size = len(next(iter(columns.values())))
        crossed = {other: np.repeat(column, len(values)) for other, column in columns.items()}
        crossed[name] = np.tile(values, size)
        return selected(crossed, holds(self.shape, crossed, frozenset({name})))

    # -- pipelines and plans --------------------------------------------------------------------------------------------------

    def chunkings(self, pp: int) -> list[tuple[int, int]]:
        """Schedules and chunks per rank for a pipeline degree: pairs (schedule, vpp)."""
        schedules = set(self.categories("schedule", SCHEDULES).tolist())
        allowed = self.restriction.degrees.get("vpp", _ANY)
        if pp == 1:
            # Without a pipeline all schedules are the same.
            return [(ONE_F_ONE_B, 1)] if allowed.allows(1) and ONE_F_ONE_B in schedules else []
        uncut = self.shape.uncut_chunks
        most = self.shape.num_blocks // pp
        pairs = [(s, v) for s in sorted(schedules) for v in (range(2, most + 1) if VPP[s] == 0 else (int(VPP[s]),))]
        # Those of one chunk come first.
        pairs.sort(key=lambda pair: bool(IS_CHUNKED[pair[0]]))
        if self.restriction.equal_chunks:
            pairs = [(s, v) for s, v in pairs if self.shape.num_blocks % (pp * v) == 0]
        return [(s, v) for s, v in pairs if v <= max(most, 1) and allowed.allows(v) and pp * v not in uncut]

    def with_pipelines(self, nodes: Columns) -> Columns:
        """Nodes with every schedule and number of chunks."""
        return self._by_value(nodes, "pp", ("schedule", "vpp"), self.chunkings)

    def with_smallest_pipelines(self, nodes: Columns) -> Columns:
        """Nodes with every number of chunks, run by the schedules that keep least in flight, whether or not these are legal."""

        def smallest(pp: int) -> list[tuple[int, int]]:
            return sorted({(least_in_flight()[s], vpp) for s, vpp in self.chunkings(pp)})

        return self._by_value(nodes, "pp", ("schedule", "vpp"), smallest, are_legal=True)

    def with_orders(self, pipelines: Columns) -> Columns:
        """Rows with every order of the ranks that numbers them differently, and with every share of a domain."""
        shape_of = (pipelines["cp"] > 1) * 4 + (pipelines["dp"] > 1) * 2 + (pipelines["pp"] > 1)
        pipelines = {**pipelines, "_spread": shape_of.astype(np.int64)}
        ordered = self._by_value(pipelines, "_spread", ("order",), lambda mask: [(o,) for o in self.orders(mask)])
        spread = ordered.pop("_spread")
        if not self.has_shares:
            return {**ordered, "domain_gpus": np.zeros_like(spread)}
        ordered[_WORKERS] = ordered["tp"] * ordered["cp"] * ordered["pp"] * ordered["dp"]
        shared = self._by_value(ordered, _WORKERS, ("domain_gpus",), lambda n: [(g,) for g in self.domain_shares(n)])
        del shared[_WORKERS]
        return shared

    @property
    def has_shares(self) -> bool:
        """Whether plans may use different shares of a domain."""
        return self.model.cluster.has_shares or "domain_gpus" in self.restriction.degrees

    def domain_shares(self, workers: int) -> tuple[int, ...]:
        """Devices that so many workers may use of every domain: those of `Cluster.shares`, or all that the user allows."""
        cluster, wanted = self.model.cluster, self.restriction.degrees.get("domain_gpus")
        if wanted is None:
            return cluster.shares(workers) or (0,)
        unit = cluster.domain_unit
        each = np.arange(unit, (cluster.domain_size or 0) + 1, unit)
        known = {"domain_gpus": self.values("domain_gpus", each)}
        one = np.ones(len(known["domain_gpus"]), dtype=np.int64)
        columns = {**known, "tp": workers * one, "cp": one, "pp": one, "dp": one}
        return tuple(selected(known, holds(self.shape, columns, frozenset(known)))["domain_gpus"][::-1].tolist())

    def orders(self, mask: int) -> list[int]:
        """Orders that differ, by which of cp (4), dp (2) and pp (1) are larger than 1."""
        present = {name for name, bit in (("cp", 4), ("dp", 2), ("pp", 1)) if mask & bit}
        seen: dict[tuple[str, ...], int] = {}
        for n in self.categories("order", ORDERS).tolist():
            seen.setdefault(tuple(name for name in ORDERS[n].split("-") if name in present), n)
        return sorted(seen.values())

    def shares_of(self, dp: int) -> tuple[bool, int, list[int]]:
        """Whether dp may be left whole, in how many stages of ZeRO it may be shared, and over how many ranks."""
        stages = self.values("zero_stage", [0, 1, 2, 3]).tolist()
        bounds = self.restriction.degrees
        shares, copies = bounds.get("dp_shard", _ANY), bounds.get("dp_replicate", _ANY)
        shards = [s for s in divisors(dp) if shares.allows(s) and copies.allows(dp // s)]
        return 0 in stages and 1 in shards, len([z for z in stages if z > 0]), shards

    def shardings(self, dp: int) -> list[tuple[int, int, int]]:
        """ZeRO stages and how dp is divided: (zero_stage, dp_replicate, dp_shard); those that need cp > 1 included."""
        stages = self.values("zero_stage", [0, 1, 2, 3]).tolist()
        shards = self.shares_of(dp)[2]
        return [(z, dp // s, s) for z in stages for s in shards if z > 0 or s == 1]

    def with_shardings(self, pipelines: Columns) -> Columns:
        """Rows with every division of dp."""
        plans = self._by_value(pipelines, "dp", ("zero_stage", "dp_replicate", "dp_shard"), self.shardings)
        return selected(plans, holds(self.shape, plans, frozenset({"zero_stage", "dp_shard"})))

    def _by_value(
        self,
        columns: Columns,
        name: str,
        new: tuple[str, ...],
        options: Callable[[int], Sequence[tuple[int, ...]]],
        *,
        are_legal: bool = False,
    ) -> Columns:
        """Join each row with the options of its value of a column; rules are applied unless the options already obey them."""
        values, inverse = distinct(columns[name])
        lists = [options(int(v)) for v in values]
        counts = np.array([len(x) for x in lists], dtype=np.int64)[inverse]
        flat = np.array([row for x in lists for row in x], dtype=np.int64).reshape(-1, len(new))
        starts = np.concatenate([[0], np.cumsum([len(x) for x in lists])])[inverse]
        index, place = ranges(starts, counts)
        chosen = flat[place] if len(flat) else flat
        rows = {key: column[index] for key, column in columns.items()}
        rows |= {key: chosen[:, n] for n, key in enumerate(new)}
        if not len(index) or are_legal:
            return rows
        return selected(rows, holds(self.shape, rows, frozenset(new)))

    # -- memory options ---------------------------------------------------------------------------------------------------

    def most_blocks(self, pp: IntArray, vpp: IntArray) -> IntArray:
        """Blocks of the longest chunk of the uniform layout."""
        chunks, inverse = np.unique(pp * vpp, return_inverse=True)
        return np.array([self.longest(int(c)) for c in chunks], dtype=np.int64)[inverse]

    def longest(self, chunks: int) -> int:
        """Blocks of the longest of so many chunks."""
        return max(self.model.blocks_of(chunks))

    @property
    def recomputes_all(self) -> bool:
        """Whether full recomputation is asked for without a number of blocks, or possible in no other way: all of them."""
        return self.restriction.recomputes_whole_stages

    def recompute_counts(self, most: int) -> tuple[int, ...]:
        """Numbers of recomputed blocks per chunk that full recomputation may have, for the longest chunk's length."""
        if self.recomputes_all:
            return (most,)
        return tuple(self.values("recompute_blocks", list(range(1, most + 1))).tolist())


def distinct(column: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct values of a column, ascending, and which of them every row has; for values of moderate size without sorting."""
    largest = int(column.max(initial=0))
    if largest > _LARGEST_LISTED:
        values, inverse = np.unique(column, return_inverse=True)
        return values, inverse.reshape(-1)
    seen = np.zeros(largest + 1, dtype=np.bool_)
    seen[column] = True
    place = np.cumsum(seen) - 1
    return np.flatnonzero(seen), place[column]


def selected(columns: Mapping[str, IntArray], mask: BoolArray | IntArray | slice) -> Columns:
    """The same rows of all columns."""
    return {name: column[mask] for name, column in columns.items()}


def joined(pieces: Sequence[Mapping[str, IntArray]]) -> Columns:
    """The rows of all pieces, one after the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _pairs_in(pairs: Mapping[str, IntArray]) -> list[tuple[int, int]]:
    return list(zip(pairs["ep"].tolist(), pairs["etp"].tolist(), strict=True))


def batch_of(columns: Columns) -> MeshBatch:
    """Complete rows as a batch; what is missing takes the neutral value, the place of the ranks that which nothing beats.

    >>> one = np.array([1])
    >>> batch_of({"tp": 2 * one, "dp": one}).tp.tolist()
    [2]
    """
    size = len(next(iter(columns.values())))
    zero, one = np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64)
    neutral = dict.fromkeys(
        ("tp", "cp", "ep", "etp", "pp", "vpp", "dp_replicate", "dp_shard", "micro_batch", "num_micro_batches"), one
    )
    filled = {name: neutral.get(name, zero) for name in MESH_COLUMNS}
    filled["schedule"], filled["domain_gpus"] = np.full(size, ONE_F_ONE_B), np.full(size, AT_BEST)
    filled |= {name: column for name, column in columns.items() if name in MESH_COLUMNS}
    if "dp" in columns and "dp_shard" not in columns:
        filled["dp_replicate"] = columns["dp"]
    return MeshBatch(**filled)

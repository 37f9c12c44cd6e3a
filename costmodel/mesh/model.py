"""The cost model of mesh plans: one network on one cluster, any number of plans at a time.

    step = pipeline (`costmodel.mesh.schedule`, modules with their exposed communication)
         + what gradient reduction and the optimizer leave after the last backward pass
         + what weight gathering leaves before the first forward pass

A `MeshModel` remembers the rows of its tables (`costmodel.mesh.tables`) and its stage layouts; it is otherwise a pure
function of its fields.

The energy of a step follows from what devices compute and what recomputation adds (`costmodel.hardware.host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.hardware.cluster import AT_BEST, Cluster
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.communication import Division, GroupTimes, mesh_strides
from costmodel.mesh.framework_rules import Facts, PlanFacts, facts_of
from costmodel.mesh.memory import PipelineMemory
from costmodel.mesh.modules import MODULE_COLUMNS, MeshError, ModuleRows, Modules, ModuleTable, RowKeys, fold
from costmodel.mesh.passes import Pipelines, build_pipelines, module_passes, pipeline_columns
from costmodel.mesh.plan import FULL, RECOMPUTE, LayerSplit, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.stages import (
    Layout,
    LayoutArrays,
    balanced_blocks,
    framework_blocks,
    layout_of,
    recomputed_modules,
    stack_layouts,
    weigh,
)
from costmodel.mesh.step import step_costs
from costmodel.mesh.tables import module_column, module_table, module_weights
from costmodel.mesh.tensor_parallel import check_splits
from costmodel.network.graph import once
from costmodel.schedules import PLACED_AS, SCHEDULES, schedule_of
from costmodel.workload import Workload

# Assumptions about what is made of the rows of the tables: the rows themselves know nothing of them.
_BEYOND_ROWS = (
    "tp_overlap",
    "cp_overlap",
    "ep_overlap",
    "pp_overlap",
    "dp_overlap",
    "offload_overlap",
)


@dataclass(slots=True, kw_only=True)
class _Cache:
    """Rows and layouts seen so far."""

    rows: ModuleRows = field(default_factory=ModuleRows)
    columns: dict[tuple[object, ...], dict[str, FloatArray]] = field(default_factory=dict)  # of modules with own splits
    blocks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)
    # All uniform layouts asked for, as arrays, and where they are.
    places: dict[tuple[int, int, int], int] = field(default_factory=dict)
    stacked: LayoutArrays | None = None
    weights: tuple[float, ...] = ()
    facts: Facts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshModel:
    """A network on a cluster, ready to cost mesh plans.

    Attributes
    ----------
    workload : Workload
    groups : GroupTimes
        Collectives on the cluster, and the assumptions.
    modules : Modules
    """

    workload: Workload
    groups: GroupTimes
    modules: Modules
    _cache: _Cache = field(default_factory=_Cache, repr=False, compare=False)

    @classmethod
    def build(
        cls, workload: Workload, cluster: Cluster, assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS
    ) -> MeshModel:
        """Fold the network.

        Raises
        ------
        MeshError
            The network has no repeated blocks.
        """
        groups = GroupTimes(cluster=cluster, assumptions=assumptions)
        return cls(workload=workload, groups=groups, modules=fold(workload.graph))

    def with_constants(self, workload: Workload, cluster: Cluster, assumptions: MeshAssumptions) -> MeshModel:
        """The same network where other constants hold, every stage with the blocks that it has here.

        What a plan is must not change with the constants that it is evaluated by.
        """
        known = self._cache
        kept = _Cache(
            blocks=known.blocks,
            layouts=known.layouts,
            places=dict(known.places),
            stacked=known.stacked,
            weights=self._module_weights(),
        )
        beyond = {name: getattr(self.assumptions, name) for name in _BEYOND_ROWS}
        if (workload, cluster, replace(assumptions, **beyond)) == (self.workload, self.cluster, self.assumptions):
            kept = replace(kept, rows=known.rows, columns=known.columns)
        groups = self.groups.changed(cluster, assumptions)
        return MeshModel(workload=workload, groups=groups, modules=self.modules, _cache=kept)

    @property
    def cluster(self) -> Cluster:
        """Where the plans run."""
        return self.groups.cluster

    @property
    def facts(self) -> Facts:
        """What the rules of a framework ask of the question."""
        if self._cache.facts is None:
            workload = self.workload
            self._cache.facts = facts_of(workload.graph, workload.precision.name, workload.optimizer.name)
        return self._cache.facts

    def plan_facts(self, plan: MeshPlan) -> PlanFacts:
        """What they ask of a plan; of more chunks than blocks, whose stages no rule can be about, as if there were one."""
        chunks = plan.pp * plan.vpp
        blocks = plan.stage_blocks or self.blocks_of(chunks if chunks <= self.num_blocks else 1)
        return PlanFacts(
            plan=plan,
            facts=self.facts,
            blocks=blocks,
            has_own_stages=bool(plan.stage_blocks) and plan.stage_blocks != self.blocks_of(chunks),
            devices_of_node=self.cluster.devices_of_node,
        )

    @property
    def assumptions(self) -> MeshAssumptions:
        """What is taken for granted."""
        return self.groups.assumptions

    @property
    def num_blocks(self) -> int:
        """Repeated blocks."""
        return self.modules.num_blocks

    @property
    def is_block(self) -> BoolArray:
        """Kind of module -> whether it is a repeated block."""
        return np.array([kind.is_block for kind in self.modules.kinds])

    # -- parts that plans share ---------------------------------------------------------------------------------------------

    def blocks_of(self, chunks: int) -> tuple[int, ...]:
        """Blocks per chunk of the uniform layout: balanced (`costmodel.mesh.stages`), unless the framework cuts otherwise."""
        if chunks == 1:
            return (self.num_blocks,)
        return once(
            self._cache.blocks,
            chunks,
            lambda: self._own_blocks(chunks) or balanced_blocks(self.modules, self._module_weights(), chunks),
        )

    def _own_blocks(self, chunks: int) -> tuple[int, ...] | None:
        """Blocks per chunk as the framework cuts them; None where it leaves that open."""
        if chunks > self.num_blocks:
            return None
        return framework_blocks(self.workload.framework, self.workload.graph, self.modules, chunks)

    def layout(self, pp: int, vpp: int, schedule: str = "1f1b") -> Layout:
        """The uniform layout of so many ranks and chunks per rank."""
        key = (pp, vpp, schedule_of(schedule).rank_of_chunk)
        make = partial(layout_of, self.modules, schedule=schedule)
        return once(self._cache.layouts, key, lambda: make(self.blocks_of(pp * vpp), pp))

    def _module_weights(self) -> tuple[float, ...]:
        """Kind of module -> what it weighs when stages are cut, whatever the cluster."""
        if not self._cache.weights:
            self._cache.weights = module_weights(self.workload, self.cluster, self.modules, self.assumptions)
        return self._cache.weights

    def row_keys(self, batch: MeshBatch) -> RowKeys:
        """Rows of the table of modules that plans need."""
        return RowKeys.of(batch, self.groups.settled(self.groups.places(batch), batch.tp))

    def rows(self, batch: MeshBatch) -> ModuleTable:
        """Module costs of every plan, one row each; new rows are computed together."""
        columns = self.row_keys(batch).columns().values()
        first, inverse = combined(*columns, *batch.split_columns)
        keys = zip(*(column[first].tolist() for column in columns), strict=True)
        patterns: list[tuple[LayerSplit, ...]] = [()] * len(first)
        if batch.split is not None:
            patterns = [batch.patterns[s] for s in batch.split[first]]
        wanted = [(*key, pattern) if pattern else key for key, pattern in zip(keys, patterns, strict=True)]
        known = self._cache.rows
        missing = known.missing(wanted)
        plain = [n for n in missing if not patterns[n]]
        if plain:
            some = self.row_keys(batch.take(first[plain]))
            table = module_table(self.workload, self.cluster, self.modules, some, self.assumptions, groups=self.groups)
            known.add([wanted[n] for n in plain], table)
        # Rows with a pattern of their own are few; what it does not name is taken from the others.
        for n in missing:
            if patterns[n]:
                one = replace(batch.take(first[[n]]), split=None, patterns=((),))
                known.add([wanted[n]], self._pattern_row(self.row_keys(one), patterns[n], self.rows(one)))
        return known.table(wanted, inverse)

    def _pattern_row(self, keys: RowKeys, splits: Sequence[LayerSplit], standard: ModuleTable) -> ModuleTable:
        """Module costs of one row with splits of its own, kind by kind."""
        cache = self._cache
        row = tuple(int(column[0]) for column in keys.columns().values())
        columns = []
        for number, kind in enumerate(self.modules.kinds):
            layers = {self.workload.graph.layers[i].name for i in kind.layers}
            own = tuple(split for split in splits if split.layer in layers)
            if not own:
                columns.append({name: getattr(standard, name)[:, number] for name in MODULE_COLUMNS})
                continue
            make = partial(module_column, self.workload, self.groups, kind, keys, own)
            columns.append(once(cache.columns, (row, number, own), make))
        return ModuleTable(**{name: np.stack([c[name] for c in columns], axis=1) for name in MODULE_COLUMNS})

    def layouts(self, batch: MeshBatch) -> LayoutArrays:
        """Uniform layouts of every plan."""
        stacked, place = self._placed(batch)
        return stacked.take(place)

    def rank_modules(self, batch: MeshBatch) -> FloatArray:
        """Modules on every kind of rank under the uniform layout, (n, Q, K): as `layouts` has them, without the rest."""
        stacked, place = self._placed(batch)
        return rows_of(stacked.rank_modules, place)

    def _placed(self, batch: MeshBatch) -> tuple[LayoutArrays, IntArray]:
        """Layouts that are known, those of the plans among them, and which of them every plan has."""
        placed = PLACED_AS[batch.schedule]
        first, inverse = combined(batch.pp, batch.vpp, placed)
        cache = self._cache
        keys = list(zip(*(column[first].tolist() for column in (batch.pp, batch.vpp, placed)), strict=True))
        missing = [key for key in keys if key not in cache.places]
        if missing or cache.stacked is None:
            cache.places |= {key: len(cache.places) + n for n, key in enumerate(missing)}
            cache.stacked = stack_layouts([self.layout(pp, vpp, SCHEDULES[as_]) for pp, vpp, as_ in cache.places])
        return cache.stacked, np.array([cache.places[key] for key in keys], dtype=np.int64)[inverse]

    def pipelines(self, batch: MeshBatch, layouts: LayoutArrays | None = None, *, exact: bool = True) -> Pipelines:
        """Pipelines of plans, one each, without data parallelism: their time bounds that of every way to divide dp.

        Without ``exact``, interleaved pipelines have a lower bound of their time instead.
        """
        return build_pipelines(
            batch,
            self.layouts(batch) if layouts is None else layouts,
            self.groups,
            self.rows,
            is_block=self.is_block,
            precision=self.workload.precision,
            varies=self.workload.graph.is_packed,
            exact=exact,
        )

    def pipeline_memory(self, batch: MeshBatch, layouts: LayoutArrays | None = None) -> PipelineMemory:
        """Memory of the ranks of pipelines, before dp is divided."""
        return self.pipeline_memories([batch], layouts)[0]

    def pipeline_memories(
        self, batches: Sequence[MeshBatch], layouts: LayoutArrays | None = None
    ) -> list[PipelineMemory]:
        """The same of pipelines that differ in nothing but what they recompute."""
        batch = batches[0]
        first, row = combined(*self.row_keys(batch).columns().values(), *batch.split_columns)
        return PipelineMemory.build(
            self.workload,
            self.assumptions,
            self.rows(batch.take(first)),
            row,
            self.layouts(batch) if layouts is None else layouts,
            batches,
            self.is_block,
            self.cluster.host,
        )

    def work_s(self, batch: MeshBatch) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What one micro-batch takes: through the network (n,), forward through its quickest block (n,), through one block (n, blocks).

        Forward, backward, and what the plan recomputes (full: all blocks); the last of every kind of block.
        Ranks are numbered and lie as well as they can (context-parallel and expert ranks next to the tensor-parallel
        ones), and stages cost no transfers.
        """
        zero = np.zeros(len(batch), dtype=np.int64)
        bare = replace(batch, order=zero, pp=zero + 1, domain_gpus=zero + AT_BEST)
        table = self.rows(bare)
        share = self.workload.precision.dispatch_share
        passes = module_passes(
            table, bare, mesh_strides(bare), self.groups, is_block=self.is_block, dispatch_share=share
        )
        counts = np.bincount(self.modules.kind_of, minlength=len(self.modules.kinds)).astype(np.float64)
        both = passes.forward_s + passes.backward_s + passes.recompute_s
        forward = np.min(np.where(self.is_block, passes.forward_s, np.inf), axis=1)
        return both @ counts, forward, both[:, self.is_block]

    # -- plans --------------------------------------------------------------------------------------------------------------

    def evaluate(self, batch: MeshBatch, *, exact: bool = True) -> MeshCosts:
        """Score legal plans (`costmodel.mesh.rules` says which are) with the uniform layout.

        Parameters
        ----------
        batch : MeshBatch
        exact : bool
            False: step times are lower bounds, which is much quicker for some schedules.

        Returns
        -------
        MeshCosts
        """
        first, index = combined(*pipeline_columns(batch))
        distinct = batch.take(first)
        layouts = self.layouts(distinct)
        pipelines, memory = self.pipelines(distinct, layouts, exact=exact), self.pipeline_memory(distinct, layouts)
        return step_costs(self.workload, self.groups, pipelines, memory, index, Division.of(batch), exact=exact)

    def evaluate_plans(self, plans: Sequence[MeshPlan]) -> MeshCosts:
        """Score plans, those with a layout of their own included.

        Raises
        ------
        MeshError
            ``stage_blocks``, ``stage_recompute`` or ``block_splits`` of a plan does not fit the network.
        """
        for splits, tp in {(plan.block_splits, plan.tp) for plan in plans if plan.block_splits}:
            check_splits(self.workload.graph, self.modules, MeshPlan(tp=tp, block_splits=splits))
        layouts = stack_layouts(self.layouts_of_plans(plans))
        batch = MeshBatch.from_plans(plans)
        pipelines, memory = self.pipelines(batch, layouts), self.pipeline_memory(batch, layouts)
        return step_costs(self.workload, self.groups, pipelines, memory, np.arange(len(plans)), Division.of(batch))

    def saved_bytes(self, plans: Sequence[MeshPlan], *, shared: bool = True) -> tuple[float, FloatArray]:
        """Bytes of a checkpoint, every weight once, and most that one rank writes of it with each plan, (n,).

        Parameters
        ----------
        plans : sequence of MeshPlan
        shared : bool
            Ranks with the same shard share the writing (Megatron Core's fully parallel save, torch.distributed.checkpoint); else the first
            of them writes.
        """
        every = [MeshPlan(), *plans]  # one rank has it all
        batch = MeshBatch.from_plans(every)
        memory = self.pipeline_memory(batch, stack_layouts(self.layouts_of_plans(every)))
        most = np.max(memory.saved_bytes(np.arange(len(every)), Division.of(batch), shared=shared), axis=1)
        return float(most[0]), most[1:]

    def layouts_of_plans(self, plans: Sequence[MeshPlan], *, every_rank: bool = False) -> list[Layout]:
        """Layout of each plan; plans with the same stages share one."""
        known: dict[tuple[object, ...], Layout] = {}
        layouts = []
        for plan in plans:
            placed = schedule_of(plan.schedule).rank_of_chunk
            stages = (plan.pp, plan.vpp, placed, plan.stage_blocks, plan.stage_recompute, plan.recompute)
            layouts.append(once(known, stages, partial(self.layout_of_plan, plan, every_rank=every_rank)))
        return layouts

    def layout_of_plan(self, plan: MeshPlan, *, every_rank: bool = False) -> Layout:
        """Where a plan puts the modules, its own layout or the uniform one.

        Raises
        ------
        MeshError
            As `evaluate_plans`.
        """
        chunks = plan.pp * plan.vpp
        for name in ("stage_blocks", "stage_recompute"):
            given = getattr(plan, name)
            if given and len(given) != chunks:
                raise MeshError(f"{name} names {len(given)} chunks, pp x vpp is {chunks}")
        if plan.stage_recompute and plan.recompute != "full":
            raise MeshError(f"stage_recompute needs recompute full, not {plan.recompute}")
        blocks = plan.stage_blocks or self.blocks_of(chunks)
        return layout_of(
            self.modules, blocks, plan.pp, plan.stage_recompute, schedule=plan.schedule, every_rank=every_rank
        )


def least_computing_s(model: MeshModel, batch: MeshBatch) -> FloatArray:
    """Time that a device computes in a step of mesh plans, averaged over the devices, if nothing is recomputed: (n,).

        computing = m / pp  sum over the modules of (forward + backward)

    with the kernels of a module on one rank. Neither the order of the ranks, nor schedule, stages or ZeRO matter, so this bounds all plans
    with these degrees.
    """
    table = model.rows(batch)
    counts = np.bincount(model.modules.kind_of, minlength=len(model.modules.kinds)).astype(np.float64)
    return np.asarray(batch.num_micro_batches * ((table.forward_s + table.backward_s) @ counts) / batch.pp)


def recomputing_s(model: MeshModel, batch: MeshBatch, layouts: LayoutArrays) -> FloatArray:
    """What recomputation adds to that: the forward kernels of the blocks, or of their parts, that run again: (n,).

    Layouts list kinds of ranks; each kind stands for all ranks from its first to its last.
    """
    table = model.rows(batch)
    kind = batch.recompute[:, None]
    again = np.where((kind == FULL) & (table.backward_s > 0), table.forward_s, 0.0)
    again = np.where(kind == RECOMPUTE.index("selective"), table.selective_s, again) * model.is_block
    modules = recomputed_modules(layouts, batch.recompute, batch.recompute_blocks)
    ranks = np.where(layouts.rank_first >= 0, layouts.rank_last - layouts.rank_first + 1, 0)
    total = np.sum(ranks * weigh(modules, again), axis=1)
    return np.asarray(batch.num_micro_batches * total / batch.pp)


def computing_s(model: MeshModel, batch: MeshBatch, layouts: LayoutArrays, costs: MeshCosts) -> FloatArray:
    """Time that a device computes in a step of mesh plans, averaged over the devices: (n,).

    Parameters
    ----------
    model : MeshModel
    batch : MeshBatch
    layouts : LayoutArrays
        Where the plans put the modules.
    costs : MeshCosts
        Of the same plans.

    Notes
    -----
    The optimizer's time is that of the rank that decides the step.
    """
    total = least_computing_s(model, batch) + recomputing_s(model, batch, layouts) + costs.optimizer_s
    return np.minimum(total, costs.step_time_s)


def plans_computing_s(model: MeshModel, plans: Sequence[MeshPlan], costs: MeshCosts) -> FloatArray:
    """The same for plans with layouts of their own, too."""
    layouts = stack_layouts([model.layout_of_plan(plan) for plan in plans])
    return computing_s(model, MeshBatch.from_plans(plans), layouts, costs)

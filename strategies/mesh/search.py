"""Best-first search of the mesh plans: nodes in the order of their bound, until no node can be better than the plans at hand.

Nodes are bounded first (`strategies.mesh.nodes`). Below them, each level keeps what may still fit and beat the plans at hand:

1. pipelines with ranks as near each other as in any order (`strategies.mesh.time_bounds`), and of those the modes of them, by the
   least memory (`strategies.mesh.memory_modes`) and the least time (`strategies.mesh.time_bounds`) that any division of dp leaves;
2. the same with every order of the ranks;
3. every division of dp, run in its best mode (`strategies.mesh.plans`).

A corner of the space goes first (`MeshRestriction.powers_of_two`): good plans close most of the whole.

Nodes that cannot fit are left out in families (`strategies.mesh.nodes`) of equal dp before they are opened; as long as nothing is
known to fit, in large ones before their time is bounded, too, and in those of equal dp and micro-batch where that was not enough.

Recomputation, offloading and the order of the ranks do not make a plan different: each plan is run in its best mode, the fastest that fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, rows_of
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch
from costmodel.schedules import PLACED_AS, SCHEDULES
from costmodel.tolerances import EQUAL
from costmodel.workload import Workload
from strategies.limits import Clock, OutOfTimeError, Progress
from strategies.mesh.framework_rules import allowed_parts
from strategies.mesh.memory_modes import MemoryModes, ModeNeeds
from strategies.mesh.nodes import Families, NodeBounds, PlanCount, families_of_nodes, pieces_of
from strategies.mesh.plans import Incumbents, PlanEvaluator
from strategies.mesh.settings import MeshOutcome, MeshSettings, NearestMiss
from strategies.mesh.space import Columns, MeshSpace, batch_of, distinct, joined, selected
from strategies.mesh.time_bounds import least_step_s, worthy

# Rows handled at a time: large enough for numpy, small enough for the caches.
_CHUNK = 16_384
_BRANCHES = 65_536
_NODES = 16_384
_FIRST, _NEXT = 64, 4_096
_PIPELINES = 2_048
# How good the plans of the corner that is searched first must be, among their own.
_SEED_GAP = 0.005
_ROW = "_row"


def search_mesh(
    workload: Workload,
    cluster: Cluster,
    settings: MeshSettings,
    progress: Progress | None = None,
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
) -> MeshOutcome:
    """Find the best mesh plans.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    settings : MeshSettings
    progress : function of (message, share done), optional
    assumptions : MeshAssumptions

    Returns
    -------
    MeshOutcome
        The best plans, and a bound on all others.

    Raises
    ------
    MeshError
        The network has no repeated blocks.
    """
    return search_model(MeshModel.build(workload, cluster, assumptions), settings, progress)


def search_model(model: MeshModel, settings: MeshSettings, progress: Progress | None = None) -> MeshOutcome:
    """The same for a network that is folded already: what the model remembers of other searches is used again."""
    return _search_parts(model, settings, progress, counted=True)


def search_part(model: MeshModel, settings: MeshSettings) -> MeshOutcome:
    """The best plans of a part of a space, whose plans are not counted."""
    return _search_parts(model, settings, None, counted=False)


def search_corner(model: MeshModel, settings: MeshSettings) -> MeshOutcome:
    """Find the best plans among those with degrees that are powers of two: soon done, whatever the size of the space."""
    settings = replace(settings, restriction=settings.restriction.powers_of_two())
    return search_part(model, settings)


def _search_parts(model: MeshModel, settings: MeshSettings, progress: Progress | None, *, counted: bool) -> MeshOutcome:
    """Search the parts of a space that the framework runs, for one list; without rules there is one part.

    The plans found in one part close most of the next, and nothing in a list can be worse than the bounds of all parts.
    """
    incumbents = Incumbents(top=settings.top, distinct=settings.distinct, cutoff=settings.cutoff)
    clock = Clock(limit_s=settings.wall_s)
    # Where there is a cutoff, to find nothing does not mean that nothing fits.
    names_miss = not np.isfinite(settings.cutoff)
    runs = []
    for part in allowed_parts(model, settings):
        space = MeshSpace.of(model, part)
        run = _Run(space=space, incumbents=incumbents, clock=clock, progress=progress, counted=counted)
        run.outcome.bound_score = 0.0  # until its nodes are known
        runs.append(run)
    interrupted = False
    try:
        if settings.known and runs:
            runs[0].evaluator.keep(MeshBatch.from_plans(settings.known))
        if counted:
            for run in runs:
                run.seed(names_miss=names_miss and len(runs) == 1)
        for run in runs:
            run.settle(names_miss=names_miss and len(runs) == 1)
        if names_miss and len(runs) > 1 and not np.isfinite(incumbents.best):
            for run in runs:
                run.name_miss()
    except KeyboardInterrupt:
        interrupted = True
    return _outcome_of([run.outcome for run in runs], incumbents, interrupted=interrupted)


def _outcome_of(outcomes: Sequence[MeshOutcome], incumbents: Incumbents, *, interrupted: bool) -> MeshOutcome:
    """What is known of all parts of a space."""
    searched: Counter[str] = Counter()
    for outcome in outcomes:
        searched.update(outcome.searched)
    misses = [outcome.nearest_miss for outcome in outcomes if outcome.nearest_miss is not None]
    return MeshOutcome(
        candidates=incumbents.candidates(),
        bound_score=min([outcome.bound_score for outcome in outcomes] + [incumbents.best]),
        space_size=sum(outcome.space_size for outcome in outcomes),
        is_counted=all(outcome.is_counted for outcome in outcomes),
        searched=dict(searched),
        nearest_miss=min(misses, key=lambda miss: miss.memory_bytes, default=None),
        out_of_time=any(outcome.out_of_time for outcome in outcomes),
        interrupted=interrupted,
    )


@dataclass(slots=True, kw_only=True)
class _Run:
    """State of one search."""

    space: MeshSpace
    incumbents: Incumbents
    clock: Clock
    progress: Progress | None = None
    counted: bool = False
    outcome: MeshOutcome = field(default_factory=MeshOutcome)
    pieces: int = 0
    misses: list[Families] = field(default_factory=list)  # what does not fit
    modes: MemoryModes = field(init=False)
    evaluator: PlanEvaluator = field(init=False)

    def __post_init__(self) -> None:
        self.modes = MemoryModes.of(self.space)
        self.evaluator = PlanEvaluator(
            incumbents=self.incumbents, modes=self.modes, tally=self._tally, check_time=self._check_time
        )

    def _check_time(self) -> None:
        """Stop what is under way at the limit of time or of work."""
        self.pieces += 1
        if self.pieces > self.space.settings.effort or self.clock.is_over:
            raise OutOfTimeError

    # -- levels -----------------------------------------------------------------------------------------------------------

    def settle(self, *, names_miss: bool = True) -> None:
        """Bound all nodes, then open them best first; where nothing fits, find what comes closest, if it is to be named."""
        self.outcome.bound_score = 0.0  # until the nodes are known
        try:
            nodes, bounds = self._bounded_nodes()
        except OutOfTimeError:
            self.outcome.out_of_time, self.outcome.is_counted = True, False
            if self.counted:
                least = NodeBounds(modes=self.modes, evaluator=self.evaluator, goal=self.evaluator.goal()).least()
                self.outcome.bound_score = min(self.incumbents.best, least)
            return
        position, opened = 0, 0
        # Small at first: the first plans found close most nodes.
        size = _FIRST if not np.isfinite(self.incumbents.worst) else _NEXT
        try:
            while position < len(bounds):
                self.outcome.bound_score = min(self.incumbents.best, float(bounds[position]))
                if bounds[position] >= self.evaluator.goal():
                    break
                piece = slice(position, position + size)
                chosen = bounds[piece] < self.evaluator.goal()
                some = {name: column[piece][chosen].astype(np.int64) for name, column in nodes.items()}
                self._check_time()
                self._open(some if size == _FIRST else self._fitting(some, exact=not np.isfinite(self.incumbents.best)))
                opened += int(np.count_nonzero(chosen))
                position += size
                self._report(position, len(bounds))
                if size == _FIRST and not np.isfinite(self.incumbents.best):
                    # What looked quickest does not fit: what cannot either is put aside first.
                    rest = {name: column[position:].astype(np.int64) for name, column in nodes.items()}
                    rest = self._fitting({**rest, _ROW: np.arange(position, len(bounds))}, exact=False)
                    bounds = bounds[rest.pop(_ROW)]
                    nodes, position = {name: column.astype(np.int32) for name, column in rest.items()}, 0
                size = min(2 * size, _NODES)
        except OutOfTimeError:
            self.outcome.out_of_time = True
        self.outcome.searched["cells opened"] = opened
        self.outcome.searched["cells bounded away"] = self.outcome.searched.pop("cells", 0) - opened
        rest_score = float(bounds[position]) if position < len(bounds) else float("inf")
        if names_miss and not np.isfinite(self.incumbents.best):
            self.name_miss()
        self.outcome.bound_score = min(self.incumbents.best, rest_score)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("opening groups of plans", done / max(total, 1))

    def _bounded_nodes(self) -> tuple[Columns, FloatArray]:
        """Nodes that may hold a better plan than those at hand, with their bounds, the best first."""
        families = None
        if not np.isfinite(self.incumbents.best):
            families = Families.of(self.modes)
            self._put_aside(families)
        bounded = NodeBounds(modes=self.modes, evaluator=self.evaluator, goal=self.evaluator.goal(), families=families)
        pieces: list[Columns] = []
        bounds: list[FloatArray] = []
        total = 0
        count = PlanCount(space=self.space, check_time=self._check_time)
        for branches in pieces_of(self._timed(self.space.branches()), _BRANCHES):
            if self.counted:
                self.outcome.space_size += count.plans(branches)
                total += count.nodes(branches)
            nodes, bound = bounded.of(branches)
            pieces.append({name: column.astype(np.int32) for name, column in nodes.items()})
            bounds.append(bound)
        self.outcome.searched["cells"] = total
        if not pieces:
            return {"tp": np.zeros(0, dtype=np.int64)}, np.zeros(0)
        every = np.concatenate(bounds)
        order = np.argsort(every, kind="stable")
        return {name: np.concatenate([p.pop(name) for p in pieces])[order] for name in list(pieces[0])}, every[order]

    def _timed(self, pieces: Iterable[Columns]) -> Iterator[Columns]:
        """The same pieces, with a look at the clock before each."""
        for piece in pieces:
            self._check_time()
            yield piece

    def _fitting(self, nodes: Columns, *, exact: bool) -> Columns:
        """Nodes that may fit; as long as nothing is known to fit, the others are put aside."""
        if not len(nodes["tp"]):
            return nodes
        self._lay_out(nodes)
        families, family = families_of_nodes(self.modes, nodes, exact=exact)
        if not np.isfinite(self.incumbents.best):
            self._put_aside(families)
        return selected(nodes, families.least_bytes[family] <= self.modes.capacity_bytes)

    def _put_aside(self, families: Families) -> None:
        """Remember what does not fit."""
        least = families.least_bytes
        self.misses.append(families.take((least > self.modes.capacity_bytes) & np.isfinite(least)))

    def name_miss(self) -> None:
        """Find the plan of least memory, where all nodes were looked at: families in the order of their bound, until none can need less."""
        if self.outcome.out_of_time or not self.misses:
            return
        least = np.concatenate([families.least_bytes for families in self.misses])
        rows = joined([families.rows for families in self.misses])
        families = Families(rows=rows, least_bytes=least).take(np.argsort(least, kind="stable"))
        position, size = 0, 16
        while position < len(least):
            known = self.outcome.nearest_miss
            if known is not None and families.least_bytes[position] >= known.memory_bytes:
                return
            chosen = families.take(np.arange(position, min(position + size, len(least))))
            nodes = chosen.members(self.space)
            if len(nodes["tp"]):
                for piece in _pieces(self.space.with_pipelines(nodes)):
                    batch = batch_of(piece)
                    self._remember_miss(batch, self.modes.needs(batch))
            position, size = position + size, min(2 * size, _NODES)

    def seed(self, *, names_miss: bool) -> None:
        """Find some good plans in a corner of the space, degrees that are powers of two, so that few nodes of the whole are kept.

        A smaller corner of it comes first: its plans are found quickly, and rule out most of the larger one.
        """
        settings = self.space.settings
        corner = settings.restriction.powers_of_two()
        for restriction in (corner.narrowed(), corner):
            part = replace(settings, restriction=restriction, gap=max(settings.gap, _SEED_GAP))
            run = _Run(space=MeshSpace.of(self.space.model, part), incumbents=self.incumbents, clock=self.clock)
            run.settle(names_miss=names_miss and restriction is corner)
            self.outcome.out_of_time = run.outcome.out_of_time
            self.outcome.nearest_miss = run.outcome.nearest_miss

    def _open(self, nodes: Columns) -> None:
        """Evaluate the pipelines of some nodes."""
        self._lay_out(nodes)
        found = [self._hopeful(piece) for piece in self._timed(_pieces(self.space.with_pipelines(nodes)))]
        if not found:
            return
        pipelines = joined([one.pipelines for one in found])
        makespan_s, floors_s = (
            np.concatenate([getattr(one, name) for one in found]) for name in ("makespan_s", "floors_s")
        )
        least = self._least(floors_s, batch_of(pipelines))
        # The most promising first, so that they close the others.
        order = np.argsort(least, kind="stable")
        for start in range(0, len(order), _PIPELINES):
            self._check_time()
            chosen = order[start : start + _PIPELINES]
            chosen = chosen[least[chosen] < self.evaluator.goal()]
            if len(chosen):
                piece = {name: column[chosen] for name, column in pipelines.items()}
                self.evaluator.divide(piece, makespan_s[chosen], rows_of(floors_s, chosen))

    def _lay_out(self, nodes: Columns) -> None:
        """Lay out the pipelines of some nodes, which takes time where they have thousands of chunks."""
        for pp in distinct(nodes["pp"])[0].tolist():
            for placed, vpp in sorted({(int(PLACED_AS[s]), vpp) for s, vpp in self.space.chunkings(pp)}):
                self._check_time()
                self.space.model.layout(pp, vpp, SCHEDULES[placed])

    def _hopeful(self, unordered: Columns) -> _Hopeful:
        """Pipelines that may fit and beat the goal: first with ranks as near as in any order, then every order of those left."""
        batch = self.modes.plainly(batch_of(unordered))
        rows = worthy(self.space.model, batch, self._is_worthy)
        batch = batch.take(rows)
        needs = self.modes.needs(batch)
        if not np.isfinite(self.incumbents.best):
            self._remember_miss(batch, needs)
        fitting = np.flatnonzero(np.any(needs.memory_bytes <= self.modes.capacity_bytes, axis=(1, 2)))
        some = {name: column[rows[fitting]] for name, column in unordered.items()}
        pipelines = self.space.with_orders({**some, _ROW: fitting})
        row = pipelines.pop(_ROW)
        built = self.space.model.pipelines(self.modes.plainly(batch_of(pipelines)), exact=False)
        self._tally("pipelines", len(row))
        floors = least_step_s(self.modes, built, needs.take(row))
        kept = np.flatnonzero(self._least(floors, batch_of(pipelines)) < self.evaluator.goal())
        return _Hopeful(
            pipelines={name: column[kept] for name, column in pipelines.items()},
            makespan_s=built.makespan_s[kept],
            floors_s=rows_of(floors, kept),
        )

    def _is_worthy(self, step_s: FloatArray, batch: MeshBatch) -> BoolArray:
        """Whether plans that take no less can beat the goal."""
        return np.asarray(self.evaluator.least_score(step_s * (1 - EQUAL), batch) < self.evaluator.goal())

    def _least(self, floors_s: FloatArray, batch: MeshBatch) -> FloatArray:
        """Least score of any mode."""
        return self.evaluator.least_score(np.min(floors_s, axis=(1, 2), initial=np.inf), batch)

    def _tally(self, name: str, count: int) -> None:
        self.outcome.searched[name] = self.outcome.searched.get(name, 0) + count

    def _remember_miss(self, batch: MeshBatch, needs: ModeNeeds) -> None:
        """The plan that comes closest to fitting, of those that do not."""
        missing = np.flatnonzero(np.all(needs.memory_bytes > self.space.settings.capacity_bytes, axis=(1, 2)))
        if not len(missing):
            return
        memory = needs.memory_bytes[missing]
        row, mode, stage = np.unravel_index(int(np.argmin(memory)), memory.shape)
        least, known = float(memory[row, mode, stage]), self.outcome.nearest_miss
        if known is None or least < known.memory_bytes:
            pipeline = batch.take(missing[[row]])
            plan = self.modes.smallest_plan(pipeline, int(mode), int(stage))
            self.outcome.nearest_miss = NearestMiss(plan=plan, memory_bytes=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hopeful:
    """Pipelines with the time of their pipelines and the least times of their modes."""

    pipelines: Columns
    makespan_s: FloatArray
    floors_s: FloatArray  # (c, V, Z)


def _pieces(columns: Columns) -> list[Columns]:
    size = len(next(iter(columns.values())))
    return [
        {name: column[start : start + _CHUNK] for name, column in columns.items()} for start in range(0, size, _CHUNK)
    ]

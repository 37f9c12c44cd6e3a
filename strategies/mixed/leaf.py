"""The finest part of the space: shapes are given; blocks, shares, ZeRO and rank order are chosen; nearest misses.

Its tables hold times and memory of every possible stage of a shape, with the cheapest recomputation that fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mesh.rules import NetworkShape
from costmodel.mixed.evaluate import StageCosts, StageRows, cost_stages, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from costmodel.precision import Precision
from costmodel.tolerances import EQUAL
from strategies.limits import Clock, OutOfTimeError
from strategies.mesh.settings import Bounds
from strategies.mixed.division import (
    Division,
    DivisionProblem,
    Front,
    Shape,
    assign,
    divide,
    greedy_division,
    least_bottleneck,
    least_slowest,
    makespan_bound_s,
    num_vectors,
    turns_of,
    vectors,
)
from strategies.mixed.families import Family, RateBook, Rates
from strategies.mixed.settings import MixedMiss, MixedSettings

_LIKE_ALL = 3  # stages of a pipeline in which a stage costs what it does in any other
_OPTIONS = ("none", "selective", "full")  # in this order in the tables
_NONE, _SELECTIVE, _FULL = (RECOMPUTE.index(name) for name in _OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """Distinct contents of stages in blocks: kinds (U, K) of ranges of blocks, and which range [i, j] has which."""

    modules: FloatArray
    blocks: IntArray
    of_range: IntArray  # (L + 1, L + 1); 0, an empty stage, where i >= j


def _contents(kind_of: tuple[int, ...], kinds: int) -> _Contents:
    blocks = kind_of[1:-1]
    steps = np.zeros((len(blocks) + 1, kinds))
    steps[np.arange(1, len(blocks) + 1), list(blocks)] = 1.0
    prefix = np.cumsum(steps, axis=0)
    held = np.maximum(prefix[None, :, :] - prefix[:, None, :], 0.0)
    extent = len(blocks) + 1
    rows, of_range = np.unique(held.reshape(-1, kinds), axis=0, return_inverse=True)
    found = _Contents(
        modules=rows,
        blocks=rows.sum(axis=1).astype(np.int64),
        of_range=of_range.reshape(extent, extent).astype(np.int64),
    )
    assert found.blocks[0] == 0
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupTable:
    """One group's stages by option (none, selective, full with one block, full with all) and content: arrays (4, U)."""

    forward_s: FloatArray
    backward_s: FloatArray
    plain_s: FloatArray
    end_s: FloatArray
    compute_s: FloatArray
    update_s: FloatArray
    memory_bytes: FloatArray  # with one micro-batch in flight
    more_bytes: FloatArray  # per further micro-batch in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChoices:
    """One stage of a shape by content: arrays (U,); times are infinite where nothing fits."""

    forward_s: FloatArray
    backward_s: FloatArray
    end_s: FloatArray
    computing_s: FloatArray  # of the passes of a micro-batch, recomputation included
    update_s: FloatArray
    recompute: IntArray
    recompute_blocks: IntArray
    least_bytes: FloatArray  # with the recomputation that needs least memory
    least_option: IntArray  # which that is
    least_blocks: IntArray  # and of how many blocks
    times_s: FloatArray  # forward and backward
    backward_share: float  # of the times, at least


@dataclass(kw_only=True)
class StageTables:
    """Makes the arrays that the division of blocks works on; remembers what shapes have in common.

    Attributes
    ----------
    model : MixedModel
    capacity_bytes : tuple of float
        Memory of each group's devices.
    recompute : tuple of str
        Names of costmodel.mesh.plan.RECOMPUTE that are allowed.
    recompute_blocks : Bounds
        Of a stage under "full"; a stage that has fewer blocks recomputes all.
    """

    model: MixedModel
    capacity_bytes: tuple[float, ...]
    recompute: tuple[str, ...] = RECOMPUTE
    recompute_blocks: Bounds = Bounds()
    _tables: dict[tuple[object, ...], _GroupTable] = field(default_factory=dict, repr=False)
    _choices: dict[tuple[object, ...], StageChoices] = field(default_factory=dict, repr=False)
    _last: dict[int, tuple[tuple[object, ...], tuple[object, ...], dict[str, float]]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def contents(self) -> _Contents:
        """Distinct contents of stages."""
        return _contents(self.model.modules.kind_of, len(self.model.modules.kinds))

    def choices(
        self, plan: MixedPlan, pipeline: MixedPipeline, s: int, precision: Precision | None = None
    ) -> StageChoices:
        """What stage s of a pipeline can be; the blocks of its stages mean nothing.

        Pipelines have one tensor-parallel degree per group. The precision is that of the plan's groups unless given.
        """
        stages, m = len(pipeline.stages), pipeline.most_micro_batches
        group = pipeline.stages[s].group
        alive, ends = min(m, stages - s), (s == 0, s == stages - 1)
        base = (plan, pipeline.stages, pipeline.replicas, pipeline.micro_batch, precision)
        last = self._last.get(group)
        # The same objects as for the stage before: comparing what is in them would take longer than all else.
        if last is None or any(old is not new for old, new in zip(last[0], base, strict=True)):
            last = self._last[group] = (base, *self._values(plan, pipeline, s, precision))
        _, common, values = last
        key = (*common, ends)
        chosen = self._choices.get((*key, alive))
        if chosen is None:
            table = self._tables.get(key)
            if table is None:
                number_format = self.model.precision_of(plan.groups) if precision is None else precision
                table = self._group_table(number_format, group, values, ends)
                self._tables[key] = table
            chosen = self._choices[*key, alive] = self._cheapest(table, alive, self.capacity_bytes[group])
        return chosen

    def _values(
        self, plan: MixedPlan, pipeline: MixedPipeline, s: int, precision: Precision | None
    ) -> tuple[tuple[object, ...], dict[str, float]]:
        """What the stages of a group have in common."""
        values = self.model.stage_values(plan, pipeline, s)
        for name in ("position", "num_micro_batches", "recompute", "recompute_blocks"):
            values.pop(name)
        if not self.model.assumptions.contended_step_s:
            values["stages"] = _LIKE_ALL if len(pipeline.stages) > 1 else 1
        # What makes no difference must not keep equal stages apart.
        if values["order"] == 0 or values["replicas"] == 1:
            values["group_stages"], values["order"] = 1, 0
        if values["shapes"] == 1:
            values["fewest_ranks"] = 1
        name = (self.model.precision_of(plan.groups) if precision is None else precision).name
        return (pipeline.stages[s].group, name, *values.values()), values

    def inner(
        self, plan: MixedPlan, pipeline: MixedPipeline, s: int, precision: Precision, most: int
    ) -> list[StageChoices]:
        """What stage s can be without the front and the back of the network, with up to so many micro-batches in flight."""
        common, values = self._values(plan, pipeline, s, precision)
        key, group = (*common, (False, False)), pipeline.stages[s].group
        if key not in self._tables:
            self._tables[key] = self._group_table(precision, group, values, (False, False))
        found = []
        for alive in range(1, most + 1):
            if (*key, alive) not in self._choices:
                self._choices[*key, alive] = self._cheapest(self._tables[key], alive, self.capacity_bytes[group])
            found.append(self._choices[*key, alive])
        return found

    def least(self, plan: MixedPlan, pipeline: MixedPipeline, precision: Precision) -> tuple[float, float, float]:
        """Least slowest stage, least sum of stages, and least backward share of one, without transfers."""
        of_range = self.contents.of_range
        found = [self.choices(plan, pipeline, s, precision) for s in range(len(pipeline.stages))]
        longest, total = least_bottleneck(np.stack([choice.times_s[of_range] for choice in found]))
        return float(longest[0, 0]), float(total[0, 0]), min(choice.backward_share for choice in found)

    def least_extra_cost(
        self, plan: MixedPlan, pipeline: MixedPipeline, count: int, extra_of_group: Sequence[float]
    ) -> float:
        """What computing devices cost besides waiting ones for so many micro-batches and an update, however the blocks are divided."""
        costs = []
        for s, stage in enumerate(pipeline.stages):
            choice = self.choices(plan, pipeline, s)
            computing_s = count * choice.computing_s + pipeline.replicas * choice.update_s
            costs.append(stage.tp * extra_of_group[stage.group] * computing_s[self.contents.of_range])
        _, total = least_bottleneck(np.stack(costs))
        return float(total[0, 0])

    def problem(self, plan: MixedPlan, pipeline: MixedPipeline) -> DivisionProblem:
        """Arrays for `strategies.mixed.division.divide`."""
        of_range = self.contents.of_range
        found = [self.choices(plan, pipeline, s) for s in range(len(pipeline.stages))]
        forward, backward, end = (
            np.stack([getattr(choice, name)[of_range] for choice in found])
            for name in ("forward_s", "backward_s", "end_s")
        )
        for s in range(1, len(pipeline.stages)):
            moved = self.model.transfers_s(plan, pipeline, s)
            forward[s] += moved[:, None]
            backward[s - 1] += np.where(backward[s - 1] > 0, moved[None, :], 0.0)
        m = pipeline.most_micro_batches
        return DivisionProblem(num_micro_batches=m, forward_s=forward, backward_s=backward, end_s=end)

    def _group_table(
        self, precision: Precision, group: int, values: dict[str, float], ends: tuple[bool, bool]
    ) -> _GroupTable:
        contents = self.contents
        modules = contents.modules.copy()
        modules[:, self.model.modules.kind_of[0]] += ends[0]
        modules[:, self.model.modules.kind_of[-1]] += ends[1]
        none = np.zeros_like(contents.blocks)
        options = ((_NONE, none), (_SELECTIVE, none), (_FULL, none + 1), (_FULL, contents.blocks))
        count = len(modules)
        kinds = np.repeat([kind for kind, _ in options], count)
        blocks = np.concatenate([blocks for _, blocks in options])
        # The last stage keeps one micro-batch, the one before it two.
        last = int(values["stages"]) - 1
        position = np.repeat([last, max(last - 1, 0)], 4 * count)
        changing = {"recompute": np.tile(kinds, 2), "recompute_blocks": np.tile(blocks, 2), "position": position}
        rows = StageRows.of(np.tile(modules, (8, 1)), {**values, "num_micro_batches": 2, **changing})
        model = self.model.group_model(group, precision)
        costs: StageCosts = cost_stages(model, rows)
        once, twice = costs.memory_bytes.reshape(2, 4, count)
        return _GroupTable(
            forward_s=costs.forward_s.reshape(2, 4, count)[0],
            backward_s=costs.backward_s.reshape(2, 4, count)[0],
            plain_s=costs.plain_backward_s.reshape(2, 4, count)[0],
            end_s=costs.end_s.reshape(2, 4, count)[0],
            compute_s=costs.compute_s.reshape(2, 4, count)[0],
            update_s=costs.update_s.reshape(2, 4, count)[0],
            memory_bytes=once,
            more_bytes=twice - once,
        )

    def _cheapest(self, table: _GroupTable, alive: int, capacity_bytes: float) -> StageChoices:
        """Least backward time that fits; memory and time are linear in the number of blocks that are recomputed in full."""
        blocks = self.contents.blocks
        memory = table.memory_bytes + (alive - 1) * table.more_bytes
        single, whole = memory[2], memory[3]
        # Fewest blocks n with single + (whole - single) (n - 1) / (blocks - 1) <= capacity.
        per_block = (single - whole) / np.maximum(blocks - 1, 1)
        over = np.maximum(single - capacity_bytes, 0.0)
        needed = 1 + np.where(over > 0, np.ceil(over / np.maximum(per_block, 1e-30)), 0.0)
        needed, most = self._allowed_counts(needed)
        count = np.clip(needed, 1, np.maximum(blocks, 1))
        share = count / np.maximum(blocks, 1)
        again = share * (table.backward_s[3] - table.plain_s[3])
        times = np.stack([table.backward_s[0], table.backward_s[1], table.plain_s[3] + again])
        fits = np.stack(
            [memory[0] <= capacity_bytes, memory[1] <= capacity_bytes, (needed <= blocks) & (whole <= capacity_bytes)]
        )
        fits &= np.array([name in self.recompute for name in _OPTIONS])[:, None]
        fits &= blocks > 0
        times = np.where(fits, times, np.inf)
        option = np.argmin(times, axis=0)
        backward = times[option, np.arange(len(blocks))]
        possible = np.isfinite(backward)
        plain = np.where(option == 2, table.plain_s[3], table.plain_s[option, np.arange(len(blocks))])
        smallest = np.stack([memory[0], memory[1], single - per_block * (most - 1)])
        smallest[2] = np.where(most > 0, smallest[2], np.inf)
        smallest[[name not in self.recompute for name in _OPTIONS]] = np.inf
        return StageChoices(
            forward_s=np.where(possible, table.forward_s[0], np.inf),
            backward_s=backward,
            end_s=np.where(possible, table.end_s[0], np.inf),
            computing_s=np.where(possible, table.compute_s[0] + backward - plain, np.inf),
            update_s=table.update_s[0],
            recompute=np.array([_NONE, _SELECTIVE, _FULL])[option],
            recompute_blocks=np.where(option == 2, count, 0).astype(np.int64),
            least_bytes=np.where(blocks > 0, smallest.min(axis=0), np.inf),
            least_option=np.argmin(smallest, axis=0),
            least_blocks=np.where(np.argmin(smallest, axis=0) == 2, most, 0).astype(np.int64),
            times_s=table.forward_s[0] + backward,
            backward_share=float(np.min(backward[possible] / (table.forward_s[0] + backward)[possible], initial=1.0)),
        )

    def _allowed_counts(self, needed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Fewest blocks that may be recomputed if so many have to be (infinite: there are none), and most; by content."""
        blocks, allowed = self.contents.blocks, self.recompute_blocks
        if allowed.is_free:
            return needed, blocks.astype(np.float64)
        counts = np.arange(blocks.max() + 2, dtype=np.float64)
        is_allowed = np.array([n >= 1 and allowed.allows(n) for n in range(len(counts))])
        following = np.minimum.accumulate(np.where(is_allowed, counts, np.inf)[::-1])[::-1]
        before = np.maximum.accumulate(np.where(is_allowed, counts, 0.0))
        every = blocks < max(allowed.least, 1)
        fewest = following[np.minimum(needed, counts[-1]).astype(np.int64)]
        fewest = np.where(every, np.where(needed <= blocks, blocks, np.inf), fewest)
        return fewest, np.where(every, blocks, before[blocks])


_TINY = 1e-100
_MOST_VECTORS = 200_000  # shares of the batch that are looked at


def _least_by_blocks(blocks: IntArray, times_s: FloatArray) -> FloatArray:
    """Least time of a stage with at least so many blocks, by their number.

    >>> _least_by_blocks(np.array([0, 1, 1, 2]), np.array([np.inf, 3.0, 2.0, 5.0])).tolist()
    [0.0, 2.0, 5.0]
    """
    found = np.full(int(blocks.max()) + 1, np.inf)
    np.minimum.at(found, blocks, times_s)
    found[0] = 0.0
    return np.minimum.accumulate(found[::-1])[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One shape per part."""

    families: tuple[Family, ...]
    stages: tuple[tuple[int, ...], ...]  # per part and group


@dataclass(slots=True)
class LeafSolver:
    """Solves leaves; remembers stage tables between them."""

    model: MixedModel
    settings: MixedSettings
    capacity_bytes: tuple[float, ...]
    divisions: int = 0
    tables: StageTables = field(init=False)
    _least: dict[tuple[object, ...], tuple[float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with empty tables."""
        self.tables = StageTables(
            model=self.model,
            capacity_bytes=self.capacity_bytes,
            recompute=self.settings.recompute,
            recompute_blocks=self.settings.recompute_blocks,
        )

    def bound_s(self, leaf: Leaf) -> float:
        """No plan of the leaf takes less; memory and recomputation are looked at, ends of steps and transfers not."""
        times, shapes = self._times(leaf)
        found = least_slowest(times, shapes, self.model.shape.global_batch)
        return np.inf if found is None else found[0]

    def quick(self, leaf: Leaf, limit_s: float) -> MixedPlan | None:
        """A plan that is probably good, if below a limit: shares by speed, slowest stages as fast as can be."""
        times, shapes = self._times(leaf)
        found = least_slowest(times, shapes, self.model.shape.global_batch)
        if found is None or not np.isfinite(found[0]):
            return None
        draft = self._draft(leaf, max(self.settings.zero_stages), self.settings.orders[0])
        counts, chosen = found[1], []
        for pipeline, count in zip(draft.pipelines, counts, strict=True):
            sized = replace(pipeline, num_micro_batches=-(-count // pipeline.replicas))
            division = greedy_division(self.tables.problem(draft, sized))
            if division is None:
                return None
            chosen.append(division)
            if division.total_s >= limit_s:
                return None
        return self.plan(draft, counts, chosen)

    def solve(
        self,
        leaf: Leaf,
        limit: float,
        clock: Clock,
        *,
        weight: float = 1.0,
        extra_cost: float = 0.0,
        extra_of_group: Sequence[float] | None = None,
    ) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans below a limit, better and better, among them the best of the leaf; (None, bound) for what stays unresolved.

        Parameters
        ----------
        leaf : Leaf
        limit : float
            Plans of no lower score are of no interest.
        clock : Clock
        weight : float
            What the step is multiplied by in the score.
        extra_cost : float
            What is added to it at least.
        extra_of_group : sequence of float, optional
            What a computing device of each group costs besides a waiting one. The fastest plans are found then, and no other one scores
            less than the fastest step with the least computing.
        """
        for zero, order in self._variants(leaf):
            draft = self._draft(leaf, zero, order)
            tied = max(self.model.tied_s(draft, pipeline) for pipeline in draft.pipelines)
            added = (
                extra_cost if extra_of_group is None else max(extra_cost, self._least_extra_cost(draft, extra_of_group))
            )
            fastest = np.inf
            shares = _Shares(self, draft, self._times(leaf)[0], clock)
            for plan, total in shares.best((limit - added) / weight - tied):
                score = weight * (total + tied) + added
                if plan is not None:
                    fastest = min(fastest, score)
                    limit = limit if extra_of_group is not None else min(limit, score)
                yield plan, score
            if extra_of_group is not None and np.isfinite(fastest):
                yield None, fastest

    def _least_extra_cost(self, draft: MixedPlan, extra_of_group: Sequence[float]) -> float:
        """Of a pipeline that takes the whole batch; nothing is known of several, whose shares are open."""
        if len(draft.pipelines) > 1:
            return 0.0
        count = self.model.shape.global_batch // draft.pipelines[0].micro_batch
        pipeline = _sharing(draft.pipelines[0], count)
        return self.tables.least_extra_cost(draft, pipeline, count, extra_of_group)

    def plan(self, draft: MixedPlan, counts: Sequence[int], chosen: Sequence[Division]) -> MixedPlan:
        """A draft with its blocks, recomputation and shares filled in."""
        pipelines = []
        for pipeline, count, division in zip(draft.pipelines, counts, chosen, strict=True):
            sized = _sharing(pipeline, count)
            pipelines.append(self._with_blocks(draft, sized, division.blocks))
        return replace(draft, pipelines=tuple(pipelines))

    def _with_blocks(self, draft: MixedPlan, pipeline: MixedPipeline, blocks: Sequence[int]) -> MixedPipeline:
        stages, start = [], 0
        for s, (stage, count) in enumerate(zip(pipeline.stages, blocks, strict=True)):
            choices = self.tables.choices(draft, pipeline, s)
            row = int(self.tables.contents.of_range[start, start + count])
            recompute, again = RECOMPUTE[int(choices.recompute[row])], int(choices.recompute_blocks[row])
            stages.append(
                MixedStage(group=stage.group, tp=stage.tp, blocks=count, recompute=recompute, recompute_blocks=again)
            )
            start += count
        return replace(pipeline, stages=tuple(stages))

    def _times(self, leaf: Leaf) -> tuple[list[FloatArray], list[Shape]]:
        """Least time of every pipeline by micro-batches, and the shapes that share the batch."""
        allowed = self.settings.num_micro_batches
        shapes = [Shape(replicas=f.replicas, micro_batch=f.micro_batch, allowed=allowed) for f in leaf.families]
        precision = self.model.precision_of(tuple(sorted({g for f in leaf.families for g in f.groups})))
        pairs = zip(leaf.families, leaf.stages, strict=True)
        return [self._least_times_s(f, n, precision, lone=len(shapes) == 1) for f, n in pairs], shapes

    def may_pass(
        self,
        family: Family,
        stages: IntArray,
        precision: Precision,
        rates: Sequence[Rates],
        samples_per_s: FloatArray,
    ) -> BoolArray:
        """Whether so many samples per second may go through shapes (n, groups): False only where `samples_per_s` is less.

        For r samples per second, replicas R and micro-batches of b, no stage takes longer than T = R b / r. A stage with a micro-batches in
        flight holds at most as many blocks as take T, memory and recomputation looked at; all stages have to hold all blocks. As many
        are in flight as stages follow; with fewer micro-batches than stages the pipeline fills and drains, too.
        """
        after = np.concatenate([np.cumsum(stages[:, ::-1], axis=1)[:, ::-1], np.zeros((len(stages), 1), int)], axis=1)
        count, several = after[:, 0], after[:, 0] > 1
        if self.model.assumptions.contended_step_s or not np.any(several):
            return np.ones(len(stages), dtype=np.bool_)
        wanted, blocks = len(family.kinds) - 2, self.tables.contents.blocks
        most_s = family.replicas * family.micro_batch * (1.0 + EQUAL) / np.maximum(samples_per_s, _TINY)
        held = Leaf(families=(family,), stages=((3,) * len(family.groups),))
        draft = self._draft(held, max(self.settings.zero_stages), self.settings.orders[0])
        holds, alone, least = np.zeros(len(stages)), np.zeros(len(stages)), np.inf
        for i in range(len(family.groups)):
            choices = self.tables.inner(draft, draft.pipelines[0], 3 * i, precision, int(count.max()))
            times = np.stack([_least_by_blocks(blocks, choice.times_s) for choice in choices])
            room = np.stack([np.searchsorted(each, most_s, side="right") - 1 for each in times])
            up_to = np.concatenate([np.zeros((1, len(stages)), dtype=np.int64), np.cumsum(room, axis=0)])
            rows = np.arange(len(stages))
            holds += up_to[after[:, i], rows] - up_to[after[:, i + 1], rows]
            for is_end, own_s, alive in (
                (i == 0, rates[0].front_s, count),
                (i == len(family.groups) - 1, rates[-1].back_s, np.ones_like(count)),
            ):
                if is_end:  # it holds an end of the network, too
                    short = np.stack([np.searchsorted(each, most_s - own_s, side="right") - 1 for each in times])
                    holds -= room[alive - 1, rows] - short[alive - 1, rows]
            alone += stages[:, i] * room[0]
            least = min(least, float(np.min(times[0, 1:] / np.arange(1, times.shape[1]))))
        least = least if np.isfinite(least) else 0.0  # nothing fits then
        most = -(-self.model.shape.global_batch // (family.micro_batch * family.replicas))
        m, share = np.minimum(count - 1, most), min(r.backward_share for r in rates)
        # All stages together, and the slowest one, at least.
        passed_s, slowest_s = wanted * least + rates[0].front_s + rates[-1].back_s, wanted * least / count
        few = (alone >= wanted) & (passed_s + turns_of(m, count, share) * slowest_s <= m * most_s)
        return np.asarray(~several | (most >= count) & (holds >= wanted) | few)

    def samples_per_s(self, family: Family, stages: tuple[int, ...], precision: Precision) -> float:
        """No share of the batch goes through a shape faster than this; memory and recomputation are looked at."""
        times = self._least_times_s(family, stages, precision, lone=False)[1:]
        samples = family.replicas * family.micro_batch * np.arange(1, len(times) + 1)
        return float(np.max(samples / times))

    def _least_times_s(
        self, family: Family, stages: tuple[int, ...], precision: Precision, *, lone: bool
    ) -> FloatArray:
        """Least time of a shape by micro-batches. Alone it has just as many as the batch gives, else any number."""
        batch = self.model.shape.global_batch
        most = -(-batch // (family.micro_batch * family.replicas))
        numbers = (most, most) if lone else (1, sum(stages))
        found = []
        for m in numbers:
            key = (family.groups, family.tps, family.replicas, family.micro_batch, stages, precision.name, m)
            if key not in self._least:
                draft = self._draft(
                    Leaf(families=(family,), stages=(stages,)), max(self.settings.zero_stages), self.settings.orders[0]
                )
                self._least[key] = self.tables.least(draft, replace(draft.pipelines[0], num_micro_batches=m), precision)
            found.append(self._least[key])
        (longest_1, total_1, share_1), (longest_s, total_s, share_s) = found
        counts = np.arange(1, most + 1, dtype=np.float64)
        few = makespan_bound_s(counts, sum(stages), longest_1, total_1, share_1)
        many = makespan_bound_s(counts, sum(stages), longest_s, total_s, share_s)
        return np.maximum.accumulate(np.concatenate([[0.0], np.where(counts >= sum(stages), many, few)]))

    def _variants(self, leaf: Leaf) -> list[tuple[int, str]]:
        several = any(family.replicas > 1 for family in leaf.families)
        shared = any(family.replicas > 1 and sum(n) > 1 for family, n in zip(leaf.families, leaf.stages, strict=True))
        # What probably is best comes first: shared state, and replicas next to each other.
        zeros = sorted(self.settings.zero_stages, reverse=True) if several else [min(self.settings.zero_stages)]
        orders = self.settings.orders if shared else self.settings.orders[:1]
        return list(product(zeros, orders))

    def _draft(self, leaf: Leaf, zero: int, order: str) -> MixedPlan:
        """The plan without blocks and shares."""
        pipelines = tuple(
            MixedPipeline(
                stages=tuple(
                    MixedStage(group=g, tp=tp, blocks=0)
                    for g, tp, n in zip(family.groups, family.tps, stages, strict=True)
                    for _ in range(n)
                ),
                replicas=family.replicas,
                micro_batch=family.micro_batch,
            )
            for family, stages in zip(leaf.families, leaf.stages, strict=True)
        )
        sequence = self.settings.sequence_parallel and any(s.tp > 1 for p in pipelines for s in p.stages)
        return MixedPlan(pipelines=pipelines, zero_stage=zero, sequence_parallel=sequence, order=order)


def _sharing(pipeline: MixedPipeline, count: int) -> MixedPipeline:
    each, longer = divmod(count, pipeline.replicas)
    return replace(pipeline, num_micro_batches=each, longer=longer)


class _Shares:
    """Shares of the batch for one draft, each pipeline's divisions solved as they are needed."""

    def __init__(self, solver: LeafSolver, draft: MixedPlan, least_s: Sequence[FloatArray], clock: Clock) -> None:
        self.solver, self.draft, self.clock = solver, draft, clock
        self.batch = solver.model.shape.global_batch
        allowed = solver.settings.num_micro_batches
        self.shapes = [Shape(replicas=p.replicas, micro_batch=p.micro_batch, allowed=allowed) for p in draft.pipelines]
        self.fronts: dict[tuple[int, int], Front] = {}
        self.least = [
            times.copy() for times in least_s
        ]  # by micro-batches, the least of a pipeline's time that is known

    def best(self, limit_s: float) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans with makespan + tail below the limit, and bounds of what could not be resolved."""
        queue: list[tuple[float, tuple[int, ...]]] = []
        if num_vectors(self.shapes, self.batch) > _MOST_VECTORS:
            found = least_slowest(self.least, self.shapes, self.batch)
            if found is None:
                return
            yield None, found[0]
            queue = [
                (
                    found[0],
                    tuple(-(-count // shape.replicas) for count, shape in zip(found[1], self.shapes, strict=True)),
                )
            ]
        else:
            wanted = vectors(self.shapes, self.batch)
            wanted = wanted[np.all(wanted < np.array([len(t) for t in self.least]), axis=1)]
            bounds = np.max(np.stack([t[wanted[:, p]] for p, t in enumerate(self.least)]), axis=0, initial=0.0)
            queue = [(float(b), tuple(int(x) for x in v)) for b, v in zip(bounds, wanted, strict=True) if b < limit_s]
        heapq.heapify(queue)
        while queue:
            bound, vector = heapq.heappop(queue)
            if bound >= limit_s:
                return
            if self.clock.is_over:
                yield None, bound
                return
            known = max(float(self.least[p][m]) for p, m in enumerate(vector))
            if known > bound:
                heapq.heappush(queue, (known, vector))
                continue
            counts = assign(self.shapes, vector, self.batch)
            if counts is None:
                longer = vector[-1] + 1
                if longer < len(self.least[-1]):
                    heapq.heappush(queue, (max(bound, float(self.least[-1][longer])), (*vector[:-1], longer)))
                continue
            try:
                fronts = self._fronts(vector, limit_s)
            except OutOfTimeError:
                yield None, bound
                return
            loose = [front.bound_s for front in fronts if not front.is_complete]
            if loose:
                yield None, max([bound, *loose])
            chosen = _best_of(fronts, len(self.shapes), limit_s)
            if chosen is not None:
                limit_s = max(d.makespan_s for d in chosen) + max(d.tail_s for d in chosen)
                yield self.solver.plan(self.draft, counts, chosen), limit_s

    def _fronts(self, vector: Sequence[int], limit_s: float) -> list[Front]:
        """Divisions of every pipeline below the limit; none after the first that has none."""
        found = []
        for p, m in enumerate(vector):
            front = self.fronts.get((p, m))
            if front is None:
                problem = self.solver.tables.problem(self.draft, replace(self.draft.pipelines[p], num_micro_batches=m))
                front = divide(problem, limit_s, self.solver.settings.most_states, self.clock)
                self.fronts[p, m] = front
                self.solver.divisions += 1
                if front.is_complete and len(vector) > 1:
                    low = min((d.makespan_s for d in front.divisions), default=limit_s)
                    # With more micro-batches it takes no less.
                    self.least[p][m:] = np.maximum(self.least[p][m:], low)
            found.append(front)
            if not front.divisions:
                break
        return found


def _best_of(fronts: Sequence[Front], pipelines: int, limit_s: float) -> tuple[Division, ...] | None:
    """The choice of one division per pipeline with the least slowest makespan plus longest tail, if below the limit."""
    best: tuple[Division, ...] | None = None
    # Allowing tails up to each that occurs, every pipeline takes its quickest division: fronts are sorted by makespan, tails falling.
    for tail in sorted({d.tail_s for front in fronts for d in front.divisions}):
        chosen = [next((d for d in front.divisions if d.tail_s <= tail), None) for front in fronts]
        known = tuple(d for d in chosen if d is not None)
        if len(known) < pipelines:
            continue
        total = max(d.makespan_s for d in known) + max(d.tail_s for d in known)
        if total < limit_s:
            best, limit_s = known, total
    return best


_MOST_TRIED = 200


def nearest_miss(
    book: RateBook, tables: StageTables, devices: Sequence[int], settings: MixedSettings
) -> MixedMiss | None:
    """The plan whose fullest device is least over-full, among single pipelines over as many groups and with as many stages as there can be.

    The fewest replicas, the smallest micro-batch and everything recomputed need least memory; which degrees and order do is tried.
    None where what is fixed leaves no such pipeline.
    """
    model = book.model
    used = tuple(g for g, count in enumerate(devices) if count)
    best: tuple[float, MixedPlan] | None = None
    for size in range(len(used), 0, -1):
        tried = 0
        for groups in permutations(used, size):
            for tps in product(reversed(book.degrees), repeat=size):
                plan = None if tried >= _MOST_TRIED else _widest(model.shape, groups, tps, devices, settings)
                if plan is None:
                    continue
                tried += 1
                found = _fullest(tables, plan)
                if best is None or found[0] < best[0]:
                    best = found
        if best is not None:
            break
    if best is None:
        return None
    fullest = max(stage_reports(model, best[1]), key=lambda r: r.memory_bytes / tables.capacity_bytes[r.group])
    return MixedMiss(
        plan=best[1],
        memory_bytes=fullest.memory_bytes,
        capacity_bytes=tables.capacity_bytes[fullest.group],
        group=fullest.group,
    )


def _sizes(shape: NetworkShape, settings: MixedSettings) -> tuple[int, int, int] | None:
    """The fewest replicas and the smallest micro-batch of a pipeline that takes the whole batch, and its micro-batches."""
    least = max(settings.replicas.least, 2 if settings.must_share else 1)
    for replicas in range(least, int(min(settings.replicas.most, shape.global_batch)) + 1):
        for size in sorted(settings.micro_batches) if settings.replicas.allows(replicas) else ():
            count = shape.global_batch // size
            each = Shape(replicas=replicas, micro_batch=size, allowed=settings.num_micro_batches)
            if shape.global_batch % size == 0 and count >= replicas and each.allows(count):
                return replicas, size, count
    return None


def _widest(
    shape: NetworkShape, groups: Sequence[int], tps: Sequence[int], devices: Sequence[int], settings: MixedSettings
) -> MixedPlan | None:
    sizes, blocks = _sizes(shape, settings), shape.num_blocks
    if sizes is None or (settings.must_cut and max(tps) == 1):
        return None
    replicas, micro_batch, count = sizes
    counts = [devices[g] // (tp * replicas) for g, tp in zip(groups, tps, strict=True)]
    if min(counts) < 1 or blocks < len(groups):
        return None
    while sum(counts) > blocks or not settings.stages.allows(sum(counts)):
        counts[int(np.argmax(counts))] -= 1
        if min(counts) < 1:
            return None
    stages = tuple(
        MixedStage(group=g, tp=tp, blocks=0) for g, tp, n in zip(groups, tps, counts, strict=True) for _ in range(n)
    )
    sequence = settings.sequence_parallel and max(tps) > 1
    pipeline = _sharing(MixedPipeline(stages=stages, replicas=replicas, micro_batch=micro_batch), count)
    zero = max(settings.zero_stages) if replicas > 1 else min(settings.zero_stages)
    return MixedPlan(pipelines=(pipeline,), zero_stage=zero, sequence_parallel=sequence, order=settings.orders[0])


def _fullest(tables: StageTables, plan: MixedPlan) -> tuple[float, MixedPlan]:
    """The division with the least over-full stage, everything recomputed, and how full that is."""
    pipeline = plan.pipelines[0]
    of_range = tables.contents.of_range
    stages = range(len(pipeline.stages))
    filled = np.stack(
        [
            tables.choices(plan, pipeline, s).least_bytes[of_range] / tables.capacity_bytes[pipeline.stages[s].group]
            for s in stages
        ]
    )
    longest, _ = least_bottleneck(filled)
    at, done = 0, []
    for s in stages:
        end = int(np.argmin(np.maximum(filled[s, at], longest[s + 1])))
        done.append(_least_memory(tables, plan, pipeline, s, at, end))
        at = end
    return float(longest[0, 0]), replace(plan, pipelines=(replace(pipeline, stages=tuple(done)),))


def _least_memory(
    tables: StageTables, plan: MixedPlan, pipeline: MixedPipeline, s: int, start: int, end: int
) -> MixedStage:
    stage, count = pipeline.stages[s], end - start
    choices, row = tables.choices(plan, pipeline, s), tables.contents.of_range[start, end]
    return MixedStage(
        group=stage.group,
        tp=stage.tp,
        blocks=count,
        recompute=RECOMPUTE[int(choices.least_option[row])],
        recompute_blocks=int(choices.least_blocks[row]),
    )

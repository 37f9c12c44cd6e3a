"""Times and memory of every possible stage of a pipeline shape, with the cheapest recomputation that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan
from costmodel.mixed.stage_costs import StageCosts, StageRows, cost_stages
from costmodel.precision import Precision
from strategies.mesh.settings import Bounds
from strategies.mixed.division import DivisionProblem

__all__ = ["StageChoices", "StageTables"]


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


@dataclass(slots=True, kw_only=True)
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
    _shared: list[_Contents] = field(default_factory=list, repr=False)

    @property
    def contents(self) -> _Contents:
        """Distinct contents of stages."""
        if not self._shared:
            self._shared.append(_contents(self.model.modules.kind_of, len(self.model.modules.kinds)))
        return self._shared[0]

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

    def least(self, plan: MixedPlan, pipeline: MixedPipeline, precision: Precision) -> tuple[float, float, float]:
        """Least slowest stage, least sum of stages, and least backward share of one, without transfers."""
        of_range = self.contents.of_range
        longest, total = np.full(len(of_range), np.inf), np.full(len(of_range), np.inf)
        longest[-1] = total[-1] = 0.0
        share = 1.0
        for s in reversed(range(len(pipeline.stages))):
            choice = self.choices(plan, pipeline, s, precision)
            times = choice.times_s[of_range]
            longest = np.min(np.maximum(times, longest[None, :]), axis=1)
            total = np.min(times + total[None, :], axis=1)
            share = min(share, choice.backward_share)
        return float(longest[0]), float(total[0]), share

    def least_joules(self, plan: MixedPlan, pipeline: MixedPipeline, count: int, more_w: Sequence[float]) -> float:
        """What computing devices draw besides waiting ones for so many micro-batches and an update, however the blocks are divided."""
        of_range = self.contents.of_range
        total = np.full(len(of_range), np.inf)
        total[-1] = 0.0
        for s in reversed(range(len(pipeline.stages))):
            choice, stage = self.choices(plan, pipeline, s), pipeline.stages[s]
            joules = count * choice.computing_s + pipeline.replicas * choice.update_s
            joules = stage.tp * more_w[stage.group] * joules
            total = np.min(joules[of_range] + total[None, :], axis=1)
        return float(total[0])

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

"""One pass of the pipeline search: labels from the last stage to the first, Pareto dominance, completion bounds.

A state is (cut i, replicas of the stage that ends there, workers left, depth), where the depth d is the number of stages
after the cut, of which no more than m - 1 make a difference. A label is a choice of the stages after the cut, with

    D    sum of t_j
    D_k  the same without the last k stages, for k < d (k = 1..`TURNS`)
    f, b the longest way from the cut down to a stage and the forward (backward) passes until it has something to do, at the slowest
         stage on the way: the sums in the brackets of X and Y of `costmodel.layerwise.evaluate`
    V    longest path through the schedule of the stages after the cut
    E    the same to the end of the last exchange and update
    H    from the last micro-batch's arrival at the cut to the end of the last exchange and update
    c    backward transfer over the cut, paid by the stage before it

A stage before the cut with F, B (c included), t = F + B and X turns these into

    x  = max( f, d F, max_k D_k + k F ),   y = max( b, d B, max_k D_k + k B )
    V' = max( V + t, (m - d) t + x + y )
    E' = max( E + F, (m - 1 - d) t + F + x + H, V' + X )
    D' = D + t,   D_k' = D_k + t,   f' = x + t,   b' = y + t,   H' = max( H + F, D' + X )

Each is the length of some path, so E of a whole plan is a lower bound on its step, and mostly equal to it: left out are paths that turn
more than `TURNS` stages before the last, and those that stay at one stage but spend passes at a slower one before it. Plans are
entered with the cost model's figure. If a pass keeps the K best labels of a state by E, it finds the K plans of least E, so once the K-th E
reaches the worst plan wanted the search is over; otherwise it asks for more of them (`strategies.layerwise.pipeline.search`).

All of it increases with all of the values, so a label could be dropped when another one of its state is no worse in any. It even may be
when that one is no worse in V + c, D + c, D_k + c, f + c, b + c, E, H and c: with D + c fixed, V' and E' do not fall as c grows,
if d < m - 1. (At d = m - 1, only the first stage is missing, and c is not added to D, D_k, f and b.) And E and H make no difference up to
V + c and D + c plus ``X_0 + sum of B before it`` at their least, D_k none up to D - k C / m with C the cost to beat, since F and B are at
most C / m. The forward transfer into a stage is known when the stage before it is chosen, which is why the state carries its
replicas.

A label is also dropped when no completion can beat the best known plan or the cutoff:

    T >= V + c + sum of t before it + X_0,   T >= E + sum of F before it,
    T >= q + max(0, D - u q / 2 m, 2 D - u q / m)   for the stage before it with the largest q = m t + X

(``q >= worker-seconds of q / workers left``; u = most stages that can be after it; the last term only if u <= m - 2; it is
``m t + X + g`` of `strategies.layerwise.pipeline.problem` with ``t <= q / m``, and increases with q as u < m). The stages before it must
also exist: N[i] workers, as defined there, must be left. Where this is not enough, the sum of t before it, and the most that D + c may
be, come from `strategies.layerwise.pipeline.completion`. That table is far stronger where transfers or the memory matter.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, ranges
from strategies.layerwise.dominance import undominated
from strategies.layerwise.per_layer.problem import Limits
from strategies.layerwise.pipeline.completion import UpstreamTable
from strategies.layerwise.pipeline.problem import (
    SAFETY,
    PartitionProblem,
    PipelinePlan,
    build_tables,
    objective_s,
    proves_none_below,
    stage_starts,
    workers_needed,
)
from strategies.limits import Clock


@dataclass(frozen=True, slots=True)
class Labels(StructOfArrays):
    """Choices of the stages after a cut."""

    value: FloatArray  # (n, 7 + TURNS): D, V, E, H, c, f, b, D_k as `strategies.layerwise.pipeline.sweep` defines them
    bound: FloatArray  # (n,): no completion costs less
    state: IntArray  # (n, 3): row of the stage that ends at the cut, workers left, depth
    parent: IntArray  # (n,): index into the trail

    def __len__(self) -> int:
        return len(self.bound)


@dataclass
class Trail:
    """The closed stages of every kept label, as a tree."""

    parent: list[IntArray] = field(default_factory=list)
    cut: list[IntArray] = field(default_factory=list)
    row: list[IntArray] = field(default_factory=list)
    size: int = 0

    def add(self, labels: Labels, cut: int) -> IntArray:
        """Store labels at a cut and return their indices."""
        self.parent.append(labels.parent)
        self.cut.append(np.full(len(labels), cut))
        self.row.append(labels.state[:, 0])
        self.size += len(labels)
        return np.arange(self.size - len(labels), self.size)

    def plan(self, problem: PartitionProblem, counts: IntArray, label: int) -> PipelinePlan:
        """Stages from the label of the first cut back to the end of the chain."""
        ends = np.cumsum([len(part) for part in self.parent])
        cuts, replicas = [], []
        while label >= 0:
            part = int(np.searchsorted(ends, label, side="right"))
            place = label - int(ends[part - 1]) if part else label
            cuts.append(int(self.cut[part][place]))
            replicas.append(int(counts[self.row[part][place]]))
            label = int(self.parent[part][place])
        assert cuts[-1] == problem.num_layers
        return PipelinePlan(cuts=tuple(cuts[:-1]), replicas=tuple(replicas))


TURNS = 2  # more make E closer to the step, and labels harder to compare
_COLUMNS = 7 + TURNS
_CHUNK = 1 << 15  # pairs of label and stage looked at together: bounds memory and the time between looks at the clock
_MOST_PENDING = 4_000_000  # labels in memory, 110 bytes each


class Sweep:
    """State of one call: the problem's tables, the best plans so far and the threshold that they set."""

    def __init__(self, problem: PartitionProblem, limits: Limits) -> None:
        self.problem = problem
        self.limits = limits
        self.tables = build_tables(problem)
        self.plans: list[tuple[float, PipelinePlan]] = []
        self.evaluated: dict[PipelinePlan, float] = {}
        self.least_s: list[float] = []  # least bounds of the plans of this pass, at most as many as there are copies
        self.clock = Clock(limit_s=limits.wall_s)
        self.most_depth = max(problem.num_micro_batches - 1, 1)
        self.copies = limits.num_solutions
        self.pending, self.crowd, self.pairs = 0, 0, 0
        self.floor_s = 0.0  # no plan that is not found yet costs less
        self.guess_s = float("inf")
        self.upstream: UpstreamTable | None = None
        self.prepare()

    @property
    def threshold_s(self) -> float:
        """Plans at or above this are left alone for now."""
        return min(self.wanted_s, self.guess_s)

    @property
    def wanted_s(self) -> float:
        """Plans at or above this are of no interest."""
        if len(self.plans) < self.limits.num_solutions:
            return self.limits.cutoff_s
        return min(self.limits.cutoff_s, self.plans[-1][0] * (1.0 - self.limits.gap))

    def prepare(self) -> None:
        """Tables that depend on the threshold."""
        self.starts = stage_starts(self.problem, self.tables, self.threshold_s)
        needed = workers_needed(self.tables, self.starts)
        self.possible = bool(needed[-1] <= self.problem.num_workers)
        self.possible &= not proves_none_below(self.problem, self.tables, self.threshold_s)
        # Only the last cut may need fewer than one before it (fewer micro-batches in flight); it starts no stage.
        self.needed = np.maximum.accumulate(needed[:-1])
        first = np.minimum(self.starts[:, :-1], self.problem.num_layers - 1)
        none = first >= np.arange(self.problem.num_layers)
        self.needed_with = np.where(none, np.int64(1) << 62, self.needed[first] + self.tables.counts[:, None])

    @cached_property
    def cut_s(self) -> FloatArray:
        """Both transfers by cut, row after and row before it."""
        used = np.searchsorted(self.problem.replica_counts, self.tables.counts)
        both = (self.problem.cut_forward_s + self.problem.cut_backward_s)[np.ix_(used, used)]
        return np.ascontiguousarray(both.transpose(2, 1, 0))

    def sweep(self, beam: int | None, most_pairs: int | None) -> float | None:
        """One pass with the current number of copies."""
        problem, rows = self.problem, len(self.tables.counts)
        self.trail, self.pending, self.crowd, self.pairs, self.least_s = Trail(), 0, 0, 0, []
        self.buckets: list[list[Labels]] = [[] for _ in range(problem.num_layers + 1)]
        state = np.stack([np.arange(rows), np.full(rows, problem.num_workers), np.zeros(rows, dtype=np.int64)], axis=1)
        self.buckets[-1].append(Labels(np.zeros((rows, _COLUMNS)), np.zeros(rows), state, np.full(rows, -1)))
        for cut in range(problem.num_layers, 0, -1):
            if not self.buckets[cut]:
                continue
            self.pending -= sum(len(part) for part in self.buckets[cut])
            labels = self.select(Labels.joined(self.buckets[cut]), cut, beam if cut < problem.num_layers else None)
            self.buckets[cut] = [labels]
            if most_pairs is not None and self.pairs > most_pairs:
                return None
            if not self.expand(labels, cut):
                return self.least_bound(cut)
            self.buckets[cut] = []
            if cut == problem.num_layers:
                self.floor_s = max(self.floor_s, min(self.least_bound(cut), self.threshold_s))
        return float("inf")

    def least_bound(self, cut: int) -> float:
        """What the labels at a cut and before it cost at least."""
        return min((float(p.bound.min()) for b in self.buckets[: cut + 1] for p in b if len(p)), default=float("inf"))

    def rank(self, labels: Labels, cut: int) -> FloatArray:
        """What dominance compares, as the module's notes say."""
        depth, m = labels.state[:, 2], self.problem.num_micro_batches
        below_s, path_s, end_s, drain_s, cut_s = labels.value[:, :5].T
        hidden_s = self.tables.prefix_backward_s[cut, labels.state[:, 1]] + self.tables.first_after_s + cut_s
        ends = np.maximum(end_s, path_s + hidden_s), np.maximum(drain_s, below_s + hidden_s)
        ways_s = labels.value[:, 5:].copy()
        if np.isfinite(self.threshold_s):
            for k, way_s in enumerate(ways_s.T[2:], 1):
                np.maximum(way_s, below_s - np.minimum(k, depth) * (self.threshold_s / m), out=way_s)
        moved_s = np.where(depth < m - 1, cut_s, 0.0)
        return np.column_stack([path_s + cut_s, below_s + moved_s, *ends, cut_s, ways_s + moved_s[:, None]])

    def select(self, labels: Labels, cut: int, beam: int | None) -> Labels:
        """Labels that may still lead to a plan of interest."""
        labels = labels.take(labels.bound < self.threshold_s)
        key = labels.state[:, 0] * (self.problem.num_workers + 1) + labels.state[:, 1]
        key = key * (self.most_depth + 1) + labels.state[:, 2]
        labels = labels.take(undominated(key, self.rank(labels, cut), self.copies, self.clock))
        if beam is not None and len(labels) > beam:
            labels = labels.take(np.sort(np.argsort(labels.bound, kind="stable")[:beam]))
        return labels

    def expand(self, labels: Labels, cut: int) -> bool:
        """Put every possible stage before the labels of a cut; False when time is up."""
        parents = self.trail.add(labels, cut)
        counts = self.tables.counts
        left = labels.state[:, 1] - counts[labels.state[:, 0]]
        # The layers before it need at least `needed` workers and can use at most counts[-1] each.
        low = self.starts[labels.state[:, 0], cut]
        if self.problem.uses_all_workers:
            low = np.maximum(low, -(-left // counts[-1]))
        elif cut == self.problem.num_layers:
            low = np.maximum(low, 1)  # one stage of all layers is no pipeline
        high = np.minimum(cut, np.searchsorted(self.needed, left, side="right"))
        # The m-th stage from the end is the first: fewer micro-batches than stages never fill a pipeline.
        high = np.where(labels.state[:, 2] + 1 >= self.problem.num_micro_batches, np.minimum(high, 1), high)
        pairs = np.maximum(high - low, 0)
        ends = np.cumsum(pairs)
        done = 0
        while done < len(labels):
            if self.clock.is_over or not self.room(cut):
                return False
            start = int(ends[done - 1]) if done else 0
            upto = max(done + 1, int(np.searchsorted(ends, start + _CHUNK, side="right")))
            width = pairs[done:upto]
            rows, first = ranges(low[done:upto], width)
            self.add_stages(labels, parents, done + rows, first, cut)
            done = upto
        return True

    def room(self, cut: int) -> bool:
        """Whether more labels can be filed; past half of the limit those before a cut are looked through first."""
        if self.pending + self.trail.size > _MOST_PENDING // 2 and self.pending > self.crowd:
            for i, bucket in enumerate(self.buckets[:cut]):
                if bucket:
                    bucket[:] = [self.select(Labels.joined(bucket), i, None)]
            self.pending = sum(len(part) for bucket in self.buckets[1:cut] for part in bucket)
            self.crowd = 2 * self.pending
        return self.pending + self.trail.size <= _MOST_PENDING

    def add_stages(self, labels: Labels, parents: IntArray, rows: IntArray, first: IntArray, cut: int) -> None:
        """Put the stages that start at layers `first` before the labels `rows`."""
        tables, m = self.tables, self.problem.num_micro_batches
        k, depth = labels.state[rows, 0], labels.state[rows, 2]
        left = labels.state[rows, 1] - tables.counts[k]
        forward_s = tables.forward_s[k, cut] - tables.forward_s[k, first]
        backward_s = tables.backward_s[k, cut] - tables.backward_s[k, first] + labels.value[rows, 4]
        after_s = tables.after_s[k, cut] - tables.after_s[k, first]
        used = tables.static_bytes[k, cut] - tables.static_bytes[k, first]
        moving = tables.activation_bytes[k, cut] - tables.activation_bytes[k, first]
        used += np.minimum(m, depth + 1) * moving
        stage_s, upstream_s = forward_s + backward_s, tables.prefix_s[first, left]
        bound = np.maximum(labels.value[rows, 1] + stage_s, m * stage_s) + upstream_s + tables.first_after_s
        bound = np.maximum(bound, m * stage_s + after_s + tables.prefix_forward_s[first, left])
        keep = (bound * SAFETY < self.threshold_s) & (used <= self.problem.memory_capacity_bytes)
        complete = keep & (first == 0)
        if complete.any():
            value = self.closed(
                labels.value[rows[complete]],
                depth[complete],
                forward_s[complete],
                backward_s[complete],
                after_s[complete],
            )
            self.finish(value[:, 2], parents[rows[complete]])
        keep &= first > 0
        stages = np.stack([forward_s, backward_s, after_s], axis=1)[keep]
        rows, first = rows[keep], first[keep]
        stage, before = self.rows_before(labels.take(rows), first, stages)
        self.pairs += len(rows) + len(stage)
        rows = rows[stage]
        self.push(labels.take(rows), parents[rows], first[stage], before, stages[stage])

    def rows_before(self, labels: Labels, first: IntArray, stages: FloatArray) -> tuple[IntArray, IntArray]:
        """Pairs of a new stage and the row of the stage before it that may lead to a plan of interest."""
        tables = self.tables
        k, depth = labels.state[:, 0], np.minimum(labels.state[:, 2] + 1, self.most_depth)
        left = labels.state[:, 1] - tables.counts[k]
        if self.upstream is None:
            stage, before = np.nonzero(self.needed_with.T[first] <= left[:, None])
            return stage, before
        # Without the transfer into the stage, which adds at least itself to V + H.
        below_s, path_s = self.closed(labels.value, labels.state[:, 2], *stages.T).T[:2]
        before_s, downstream_s = self.upstream.before(first, tables.counts[k], labels.state[:, 2], left)
        bound = np.maximum(path_s + before_s, self.upstream.least_s(below_s, downstream_s))
        kept = np.flatnonzero(bound * SAFETY < self.threshold_s)
        first, k, depth, left, path_s = first[kept], k[kept], depth[kept], left[kept], path_s[kept]
        before_s, downstream_s = self.upstream.at(first[:, None], tables.counts, depth[:, None], left[:, None])
        cut_s = self.cut_s[first, k]
        bound = path_s[:, None] + cut_s + before_s
        bound = np.maximum(bound, self.upstream.least_s(below_s[kept, None] + cut_s, downstream_s))
        stage, before = np.nonzero((bound * SAFETY < self.threshold_s) & (self.needed_with.T[first] <= left[:, None]))
        return kept[stage], before

    def closed(
        self, value: FloatArray, depth: IntArray, forward_s: FloatArray, backward_s: FloatArray, after_s: FloatArray
    ) -> FloatArray:
        """All values but c after one more stage; `backward_s` includes c."""
        below_s, path_s, end_s, drain_s, _, fill_s, empty_s = value.T[:7]
        stage_s, left = forward_s + backward_s, self.problem.num_micro_batches - 1 - depth
        fill_s, empty_s = np.maximum(fill_s, depth * forward_s), np.maximum(empty_s, depth * backward_s)
        for k, turn_s in enumerate(value.T[7:], 1):
            later = np.minimum(k, depth)
            fill_s = np.maximum(fill_s, turn_s + later * forward_s)
            empty_s = np.maximum(empty_s, turn_s + later * backward_s)
        path_s = np.maximum(path_s + stage_s, (left + 1) * stage_s + fill_s + empty_s)
        leaving_s = left * stage_s + forward_s + fill_s + drain_s
        end_s = np.maximum(np.maximum(end_s + forward_s, leaving_s), path_s + after_s)
        below_s = below_s + stage_s
        new = [below_s, path_s, end_s, np.maximum(drain_s + forward_s, below_s + after_s), np.zeros_like(below_s)]
        turns = [np.where(k <= depth, turn_s + stage_s, 0.0) for k, turn_s in enumerate(value.T[7:], 1)]
        return np.stack([*new, fill_s + stage_s, empty_s + stage_s, *turns], axis=1)

    def push(
        self,
        labels: Labels,
        parents: IntArray,
        first: IntArray,
        before: IntArray,
        stages: FloatArray,
    ) -> None:
        """File the labels of the cut before the new stages, if they may lead to a plan of interest."""
        problem, tables, m = self.problem, self.tables, self.problem.num_micro_batches
        k = labels.state[:, 0]
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        cut_forward_s = problem.cut_forward_s[rows[before], rows[k], first]
        cut_backward_s = problem.cut_backward_s[rows[before], rows[k], first]
        finite = np.isfinite(cut_forward_s + cut_backward_s)
        closed = self.closed(
            labels.value,
            labels.state[:, 2],
            stages[:, 0] + np.where(finite, cut_forward_s, 0.0),
            stages[:, 1],
            stages[:, 2],
        )
        below_s, path_s, end_s = closed.T[:3]
        left = labels.state[:, 1] - tables.counts[k]
        depth = np.minimum(labels.state[:, 2] + 1, self.most_depth)
        bound = np.maximum(
            path_s + cut_backward_s + tables.prefix_s[first, left] + tables.first_after_s,
            end_s + tables.prefix_forward_s[first, left],
        )
        most = np.minimum(m - 1, depth + np.minimum(first, left // tables.counts[0]) - 1)
        slowest_s = tables.prefix_work_s[first] / left
        detour_s = np.maximum(below_s - most * slowest_s / (2 * m), 0.0)
        detour_s = np.where(most <= m - 2, np.maximum(detour_s, 2 * below_s - most * slowest_s / m), detour_s)
        bound = np.maximum(bound, slowest_s + detour_s)
        if self.upstream is not None:
            before_s, downstream_s = self.upstream.at(first, tables.counts[before], depth, left)
            bound = np.maximum(bound, path_s + cut_backward_s + before_s)
            bound = np.maximum(bound, self.upstream.least_s(below_s + cut_backward_s, downstream_s))
        bound *= SAFETY
        keep = np.nonzero(finite & (bound < self.threshold_s))[0]
        keep = keep[np.argsort(first[keep], kind="stable")]
        closed[:, 4] = cut_backward_s
        new = Labels(closed[keep], bound[keep], np.stack([before, left, depth], axis=1)[keep], parents[keep])
        cuts, begins = np.unique(first[keep], return_index=True)
        ends = np.append(begins[1:], len(keep))[: len(begins)]
        for cut, begin, end in zip(cuts.tolist(), begins.tolist(), ends.tolist(), strict=True):
            self.buckets[cut].append(new.take(slice(begin, end)))
        self.pending += len(keep)

    def finish(self, least_s: FloatArray, parents: IntArray) -> None:
        """Enter complete plans, with the cost model's figure, into the list of the best, and their bounds into that of the least ones."""
        wanted = np.flatnonzero(least_s * SAFETY < self.wanted_s)
        for i in wanted[np.argsort(least_s[wanted], kind="stable")[: self.copies]].tolist():
            if len(self.least_s) == self.copies and least_s[i] >= self.least_s[-1]:
                break
            insort(self.least_s, float(least_s[i]))
            del self.least_s[self.copies :]
            plan = self.trail.plan(self.problem, self.tables.counts, int(parents[i]))
            if plan in self.evaluated:
                continue
            cost_s = self.evaluated[plan] = objective_s(self.problem, plan)
            if cost_s < self.limits.cutoff_s:
                self.plans.append((cost_s, plan))
                self.plans.sort(key=lambda p: (p[0], p[1].cuts, p[1].replicas))
                del self.plans[self.limits.num_solutions :]

"""The space of mixed plans, from coarse to fine, and what no plan of a part of it can beat.

A *part* is a set of groups that one kind of pipeline crosses. The parts of a plan are disjoint, or two that share devices of a group: some
replicas of a stage are on one kind of device and some on another. A *family* of a part fixes the order of its
groups, their tensor-parallel degrees, the number of replicas and the micro-batch; its *shapes* differ in the stages per group.

Work is measured in units that every group does at a rate of its own, the most favourable of its kinds of blocks: a group's stage of time t
holds at most ``rate t`` of it. So with n_g stages per group and the slowest stage T,

    sum over groups of n_g rate_g T  >=  work of the blocks + rate_first front + rate_last back

and each replica needs T for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mixed.evaluate import StageCosts, StageRows, cost_stages
from costmodel.mixed.model import MixedModel
from costmodel.precision import Precision
from strategies.mesh.settings import Bounds
from strategies.mixed.division import Shape, turns_of
from strategies.mixed.settings import MixedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One group at a tensor-parallel degree and micro-batch."""

    rate: float  # work per second of one stage
    front_s: float  # forward and backward of one micro-batch
    back_s: float
    backward_share: float  # of the time of any unit, at least
    compute_s: tuple[float, ...]  # of one unit of each kind
    room_bytes: float  # of a device
    held_bytes: float  # weights and gradients of the smallest block
    state_bytes: float  # its optimizer state, which replicas may share

    def most_blocks(self, replicas: int) -> float:
        """Blocks that weights, gradients and state alone leave room for."""
        each = self.held_bytes + self.state_bytes / replicas
        return float(np.floor(max(self.room_bytes, 0.0) / each)) if each > 0 else np.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Pipelines over ordered groups."""

    groups: tuple[int, ...]
    tps: tuple[int, ...]
    replicas: int
    micro_batch: int
    most_stages: tuple[int, ...]  # per group
    least_bottleneck_s: float  # slowest stage of any of its shapes, at least
    stage_samples_per_s: tuple[float, ...]  # what a stage on each group adds to those of a replica, at most
    computing_s: FloatArray  # device-seconds that a sample computes on each group, by kind of unit: (groups, kinds)
    kinds: tuple[int, ...]  # of the units of the network, in order

    @property
    def samples_per_s(self) -> float:
        """No shape of the family is faster."""
        return self.replicas * self.micro_batch / self.least_bottleneck_s


def partitions(groups: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to use some of the groups, in disjoint parts.

    >>> list(partitions((0, 1)))
    [((0,),), ((1,),), ((0,), (1,)), ((0, 1),)]
    """
    if not groups:
        return
    *others, last = groups
    before = list(partitions(tuple(others)))
    yield from before
    yield ((last,),)
    for parts in before:
        yield (*parts, (last,))
        for i, part in enumerate(parts):
            yield (*parts[:i], (*part, last), *parts[i + 1 :])


def sharing_pairs(groups: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every two different parts that have a group in common.

    >>> list(sharing_pairs((0, 1)))
    [((0,), (0, 1)), ((1,), (0, 1))]
    """
    parts = [part for size in range(1, len(groups) + 1) for part in combinations(groups, size)]
    yield from (pair for pair in combinations(parts, 2) if set(pair[0]) & set(pair[1]))


class RateBook:
    """Rates of every group, tensor-parallel degree and micro-batch, each asked of the cost model once.

    Parameters
    ----------
    model : MixedModel
    settings : MixedSettings
    capacity_bytes : tuple of float
        Memory of each group's devices.
    """

    def __init__(self, model: MixedModel, settings: MixedSettings, capacity_bytes: tuple[float, ...]) -> None:
        self.model, self.settings, self.capacity_bytes = model, settings, capacity_bytes
        self.degrees = legal_degrees(model, settings)
        self._known: dict[tuple[int, str, int, int], Rates] = {}
        kinds = len(model.modules.kinds)
        self._counts = np.bincount(model.modules.blocks, minlength=kinds).astype(np.float64)
        # Any positive weights will do; time on the first group makes the bound tight where groups differ by a factor.
        first = self._costs(0, model.precision_of((0,)), [(self.degrees[0], 1)])
        self._work = np.where(self._counts > 0, first.forward_s + first.plain_backward_s, 0.0)
        self.work = float(self._counts @ self._work)  # of all blocks

    def _costs(self, group: int, precision: Precision, cuts: Sequence[tuple[int, int]]) -> StageCosts:
        """One unit of each kind, without replicas: the kinds of the first tensor-parallel degree and micro-batch, those of the next, ..."""
        model, kinds = self.model, len(self.model.modules.kinds)
        zeros = dict.fromkeys(
            ("recompute", "recompute_blocks", "zero_stage", "position", "order", "cross_latency_s"), 0
        )
        ones = dict.fromkeys(
            ("num_micro_batches", "stages", "group_stages", "replicas", "shapes", "fewest_ranks", "cross_bytes_per_s"),
            1,
        )
        tps = [tp for tp, _ in cuts]
        own: dict[str, list[int]] = {
            "tp": tps,
            "etp": [model.expert_tp(tp) for tp in tps],
            "sequence_parallel": [int(model.is_sequence_parallel(tp, self.settings.sequence_parallel)) for tp in tps],
            "micro_batch": [micro_batch for _, micro_batch in cuts],
        }
        columns = {name: np.repeat(values, kinds) for name, values in own.items()}
        rows = StageRows.of(np.tile(np.eye(kinds), (len(cuts), 1)), {**zeros, **ones, **columns})
        return cost_stages(model.group_model(group, precision), rows)

    def rates(self, group: int, precision: Precision, tp: int, micro_batch: int) -> Rates:
        """Rates of one group."""
        key = group, precision.name, tp, micro_batch
        if key not in self._known:
            # All that a search may ask for of this group, together: that takes hardly longer than one.
            batch = self.model.shape.global_batch
            sizes = [b for b in self.settings.micro_batches if b <= batch]
            cuts = dict.fromkeys([(tp, micro_batch), *product(self.degrees, sizes)])
            self._ask(group, precision, [cut for cut in cuts if (*key[:2], *cut) not in self._known])
        return self._known[key]

    def _ask(self, group: int, precision: Precision, cuts: Sequence[tuple[int, int]]) -> None:
        """Have the cost model say the rates of one group cut in several ways."""
        kinds, there = len(self._counts), self._counts > 0
        costs = self._costs(group, precision, cuts)
        all_times = costs.forward_s + costs.plain_backward_s
        for n, cut in enumerate(cuts):
            own = slice(n * kinds, (n + 1) * kinds)
            times, backward = all_times[own], costs.plain_backward_s[own]
            parts = {name: part[own] for name, part in costs.memory_parts.items()}
            held, state = parts["weight_bytes"] + parts["gradient_bytes"], parts["optimizer_bytes"]
            smallest = int(np.argmin(np.where(there, held + state, np.inf)))
            self._known[group, precision.name, *cut] = Rates(
                rate=float(np.max(self._work[there] / times[there])),
                front_s=float(times[self.model.modules.kind_of[0]]),
                back_s=float(times[self.model.modules.kind_of[-1]]),
                backward_share=float(np.min(backward[times > 0] / times[times > 0])),
                compute_s=tuple(float(x) for x in costs.compute_s[own]),
                room_bytes=self.capacity_bytes[group] - float(parts["context_bytes"][0]),
                held_bytes=float(held[smallest]),
                state_bytes=float(state[smallest]),
            )


def legal_degrees(model: MixedModel, settings: MixedSettings) -> tuple[int, ...]:
    """Tensor-parallel degrees that the network's rules allow, inside a unit of the innermost level."""
    inside = model.cluster.levels[0].size
    most = inside if inside is not None else max(group.num_devices or 1 for group in model.cluster.groups)
    found = []
    for tp in range(1, most + 1):
        fits = inside is None or inside % tp == 0
        if (
            fits
            and settings.tp.allows(tp)
            and not model.degree_faults(tp, sequence_parallel=settings.sequence_parallel)
        ):
            found.append(tp)
    return tuple(found)


def families_of(
    book: RateBook, part: tuple[int, ...], precision: Precision, devices: Sequence[int], *, alone: bool
) -> list[Family]:
    """Families of a part, the fastest first.

    Parameters
    ----------
    book : RateBook
    part : tuple of int
        Groups.
    precision : Precision
    devices : sequence of int
        Of every group of the cluster.
    alone : bool
        The part takes the whole batch, which the micro-batch then divides.
    """
    batch, settings = book.model.shape.global_batch, book.settings
    sizes = [b for b in settings.micro_batches if b <= batch and not (alone and batch % b)]
    result = []
    left = book.model.shape.num_blocks - len(part) + 1
    for groups in permutations(part):
        for tps, micro_batch in product(product(book.degrees, repeat=len(groups)), sizes):
            rates = [book.rates(g, precision, tp, micro_batch) for g, tp in zip(groups, tps, strict=True)]
            ends = _ends(rates)
            computing = np.array(
                [[tp * x / micro_batch for x in r.compute_s] for tp, r in zip(tps, rates, strict=True)]
            )
            most = min(devices[g] // tp for g, tp in zip(groups, tps, strict=True))
            for replicas in range(1, min(most, batch // micro_batch) + 1):
                each = Shape(replicas=replicas, micro_batch=1, allowed=settings.num_micro_batches)
                if alone and not (settings.replicas.allows(replicas) and each.allows(batch // micro_batch)):
                    continue
                stages = tuple(min(devices[g] // replicas // tp, left) for g, tp in zip(groups, tps, strict=True))
                widest = _widest(stages, rates, settings.stages)
                if widest is None:
                    continue
                slowest = float(_bottleneck_s(book.work, rates, np.array([widest]))[0])
                family = Family(
                    groups=groups,
                    tps=tps,
                    replicas=replicas,
                    micro_batch=micro_batch,
                    most_stages=stages,
                    least_bottleneck_s=slowest,
                    computing_s=computing,
                    kinds=book.model.modules.kind_of,
                    stage_samples_per_s=tuple(micro_batch * r.rate / (book.work + ends) for r in rates),
                )
                result.append(family)
    return sorted(result, key=lambda family: -family.samples_per_s)


def _widest(most: Sequence[int], rates: Sequence[Rates], allowed: Bounds) -> tuple[int, ...] | None:
    """Stages per group of no slower a shape than any that is allowed: all there are, or the fastest of them; None if there is none."""
    if min(most) < 1 or sum(most) < allowed.least or len(most) > allowed.most:
        return None
    left = int(min(allowed.most, sum(most))) - len(most)
    stages = [1] * len(most)
    for i in sorted(range(len(most)), key=lambda i: -rates[i].rate):
        more = min(left, most[i] - 1)
        stages[i] += more
        left -= more
    return tuple(stages)


def _bottleneck_s(work: float, rates: Sequence[Rates], stages: IntArray) -> FloatArray:
    """Slowest stage of shapes with so many stages per group (n, groups), at least."""
    rate = np.array([r.rate for r in rates])
    return np.asarray((work + _ends(rates)) / (stages @ rate))


def _ends(rates: Sequence[Rates]) -> float:
    """Work of front and back on the first and the last group."""
    return rates[0].rate * rates[0].front_s + rates[-1].rate * rates[-1].back_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes of one family: stages per group (n, groups), and what bounds their times (n,)."""

    stages: IntArray
    bottleneck_s: FloatArray
    rates: tuple[Rates, ...]
    work: float

    def least_s(self, num_micro_batches: IntArray | int) -> FloatArray:
        """Forwards and backwards of that many micro-batches take at least this; broadcasts against (n,).

        As `strategies.mixed.division.makespan_bound_s`, of slowest stage and sum. The sum is least when the groups that do most work per
        second are full, so the bound is least at one of the points where the next group is needed.
        """
        rate = np.array([r.rate for r in self.rates])
        share = min(r.backward_share for r in self.rates)
        total = self.stages.sum(axis=1)
        done = self.bottleneck_s * (self.stages @ rate)  # work, front and back included
        order = np.argsort(-rate, kind="stable")
        m = np.asarray(num_micro_batches, dtype=np.float64)
        best = np.full(np.broadcast_shapes(m.shape, total.shape), np.inf)
        for used in range(1, len(order) + 1):
            some = order[:used]
            slowest = done / (self.stages[:, some] @ rate[some])
            spent = slowest * self.stages[:, some].sum(axis=1)
            best = np.minimum(best, spent + turns_of(m, total, share) * slowest)
        return np.asarray(np.maximum(m * self.bottleneck_s, best))


def shapes_of(book: RateBook, family: Family, precision: Precision) -> Shapes:
    """Shapes of a family whose weights can fit at all."""
    rates = tuple(
        book.rates(g, precision, tp, family.micro_batch) for g, tp in zip(family.groups, family.tps, strict=True)
    )
    ranges = [np.arange(1, most + 1, dtype=np.int64) for most in family.most_stages]
    stages = np.stack([x.reshape(-1) for x in np.meshgrid(*ranges, indexing="ij")], axis=1)
    blocks = book.model.shape.num_blocks
    sharing = family.replicas if max(book.settings.zero_stages) > 0 else 1
    capacity = stages @ np.array([min(r.most_blocks(sharing), blocks) for r in rates])
    total = stages.sum(axis=1)
    allowed = np.array([book.settings.stages.allows(n) for n in range(total.max() + 1)])
    stages = stages[(total <= blocks) & allowed[total] & (capacity >= blocks)]
    return Shapes(stages=stages, bottleneck_s=_bottleneck_s(book.work, rates, stages), rates=rates, work=book.work)

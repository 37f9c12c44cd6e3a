"""What a search over mixed plans minimises, and which shapes of several pipelines together are good enough to be solved.

    score = step time x sum over groups of devices in use x weight  (+ computing time x what computing costs besides waiting)

with the costs of `costmodel.objectives`: 1 for GPU hours, the price for money, the peak in the plan's format for the share of the peak that
is used (MFU), the power for energy. The step time alone counts the whole as 1, however many devices are in use.

Several pipelines
-----------------
Samples go through a shape at a rate r at most, and its devices weigh w (nothing, where only the step counts). Shapes p of all parts take

    step >= batch / sum r_p        score >= batch sum w_p / sum r_p

so those that may stay below a limit are found by a sum over the parts: of rates, ``sum r_p >= batch / limit``, or of what the rates are
above what the weights cost, ``sum (r_p - w_p batch / limit) >= 0``.

Parts that share the D devices of a group use u_p of them, ``sum u_p <= D``. At any price q >= 0 of a device, ``sum (r_p - q u_p) >=
sum r_p - q D``, so a sum over the parts tells here, too. The price is what a device adds at most, so that no shape gains anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mixed.evaluate import StageReport, group_computing_s
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan
from costmodel.objectives import OBJECTIVES
from costmodel.precision import Precision
from strategies.limits import Clock
from strategies.mixed.families import Family, RateBook, shapes_of
from strategies.mixed.leaf import LeafSolver


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a device of each group weighs.

    Attributes
    ----------
    of_group : tuple of float or None
        None where only the step counts.
    extra_of_group : tuple of float or None
        What a computing device costs besides a waiting one; the weight is what a waiting one costs then. None where they cost the same.
    """

    of_group: tuple[float, ...] | None
    extra_of_group: tuple[float, ...] | None = None

    @classmethod
    def of(cls, objective: str, model: MixedModel, groups: Sequence[int]) -> Weights:
        """Those of plans over some groups, whose format they share.

        Raises
        ------
        ValueError
            A device that does not state what the objective counts.
        """
        found = OBJECTIVES[objective]
        if not found.is_per_device:
            return cls(of_group=None)
        compute = model.precision_of(tuple(sorted(groups))).compute
        waiting, more, used = [], [], set(groups)
        for g, group in enumerate(model.cluster.groups):
            cost = found.cost_of(group.device, model.cluster.host, compute) if g in used else None
            if g in used and cost is None:
                raise ValueError(f"device '{group.device.name}' {found.unstated}")
            waiting.append(0.0 if cost is None else cost.waiting)
            more.append(0.0 if cost is None else cost.computing - cost.waiting)
        return cls(of_group=tuple(waiting), extra_of_group=tuple(more) if any(more) else None)

    @property
    def is_time(self) -> bool:
        """Whether only the step counts."""
        return self.of_group is None

    def per_stage(self, family: Family) -> FloatArray:
        """What a stage on each group of a family weighs, all replicas together; 0 where only the step counts."""
        if self.of_group is None:
            return np.zeros(len(family.groups))
        each = [self.of_group[g] * tp for g, tp in zip(family.groups, family.tps, strict=True)]
        return family.replicas * np.array(each)

    def shapes(self, family: Family, stages: IntArray) -> FloatArray:
        """What steps of shapes (n, groups) of a lone family are multiplied by: (n,)."""
        return np.ones(len(stages)) if self.of_group is None else stages @ self.per_stage(family)

    def per_sample(self, family: Family) -> float:
        """No shape of a family scores less for each sample that goes through it.

        A stage on group g passes r_g samples per second at most and weighs w_g, so that n_g stages of each score
        ``sum n_g w_g / sum n_g r_g``, no less than the least w_g / r_g.
        """
        if self.of_group is None:
            return 1.0 / family.samples_per_s
        rates = family.replicas * np.array(family.stage_samples_per_s)
        return float(np.min(self.per_stage(family) / rates)) + self.extra_cost(family)

    def extra_cost(self, family: Family) -> float:
        """What computing devices cost besides waiting ones for a sample, at least: every block where it takes least."""
        if self.extra_of_group is None:
            return 0.0
        each = family.computing_s * np.array([self.extra_of_group[g] for g in family.groups])[:, None]
        front, *blocks, back = family.kinds
        return float(each.min(axis=0)[blocks].sum() + each[0, front] + each[-1, back])

    def score(self, plan: MixedPlan, reports: Sequence[StageReport], step_s: float) -> float:
        """What is minimised."""
        if self.of_group is None:
            return step_s
        if self.extra_of_group is None:
            return step_s * sum(plan.devices_of(g) * self.of_group[g] for g in plan.groups)
        computing = group_computing_s(plan, reports, step_s)
        return sum(
            plan.devices_of(g) * (self.of_group[g] * step_s + self.extra_of_group[g] * computing_s)
            for g, computing_s in computing.items()
        )

    def of_group_alone(self, group: int, workers: int, step_s: float, computing_s: float) -> float:
        """Score of a plan on devices of one group."""
        if self.of_group is None:
            return step_s
        more_s = 0.0 if self.extra_of_group is None else self.extra_of_group[group] * computing_s
        return workers * (self.of_group[group] * step_s + more_s)

    def gain(self, family: Family, per_sample: float, price: FloatArray) -> float:
        """Samples per second of a family's best shape beyond those that its weight would cost at a score per sample.

        The score without what computing adds; devices of a group cost ``price`` samples per second each.
        """
        taken = devices_per_stage(family) * price[list(family.groups)]
        if self.of_group is None and not taken.any():
            return family.samples_per_s
        rates = family.replicas * np.array(family.stage_samples_per_s)
        each = rates - self.per_stage(family) / per_sample - taken
        return float(np.sum(np.where(each > 0, each * np.array(family.most_stages), each)))


def devices_per_stage(family: Family) -> FloatArray:
    """Devices of all replicas in a stage on each group of a family."""
    return family.replicas * np.array(family.tps, dtype=np.float64)


def rates_by_group(lists: Sequence[list[Family]], groups: int) -> FloatArray:
    """Samples per second that a device of each group adds to those of any family, at most."""
    most = np.zeros(groups)
    for family in (family for families in lists for family in families):
        each = np.array(family.stage_samples_per_s) / np.array(family.tps)
        np.maximum.at(most, list(family.groups), each)
    return most


PartShape = tuple[Family, tuple[int, ...]]

_MOST_CHOICES = 500_000  # combinations of shapes of several parts that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Choices of one shape per part, the best bound first.

    Attributes
    ----------
    shapes : list of list of PartShape
        Of every part.
    choice : array (n, parts)
        Positions in these lists.
    bounds : array (n,)
        Scores that they cannot go below.
    left_out : float
        No plan of what was left out for want of room or time scores less.
    out_of_time : bool
    """

    shapes: list[list[PartShape]]
    choice: IntArray
    bounds: FloatArray
    left_out: float = np.inf
    out_of_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Lists the shapes of several parts."""

    book: RateBook
    solver: LeafSolver
    batch: int
    devices: tuple[int, ...]  # of every group
    clock: Clock
    counts: Counter[str]

    def listed(
        self, lists: Sequence[list[Family]], precision: Precision, weights: Weights, bound: float, limit: float
    ) -> Together:
        """Shapes of every part that may take part in a plan below a limit, and what they make together.

        Parameters
        ----------
        lists : sequence of list of Family
            Of every part.
        precision : Precision
        weights : Weights
        bound : float
            No plan of the parts scores less.
        limit : float
            Plans at or above are of no interest.
        """
        extra_cost = min(weights.extra_cost(family) for families in lists for family in families)
        per_sample = limit / self.batch - extra_cost
        nothing = Together(shapes=[], choice=np.zeros((0, len(lists)), dtype=np.int64), bounds=np.zeros(0))
        if per_sample <= 0:
            return nothing
        needed = 1.0 / per_sample if weights.is_time else 0.0
        shared = Counter(g for families in lists for g in set(families[0].groups))
        price = np.array([shared[g] > 1 for g in range(len(self.devices))]) * rates_by_group(lists, len(self.devices))
        needed -= float(price @ self.devices)
        ordered = [sorted(families, key=lambda f: -weights.gain(f, per_sample, price)) for families in lists]
        most = [weights.gain(families[0], per_sample, price) for families in ordered]
        shapes: list[list[PartShape]] = []
        rates: list[FloatArray] = []
        weighing: list[FloatArray] = []
        taken: list[FloatArray] = []
        for p, families in enumerate(ordered):
            found = self._good_shapes(families, precision, weights, per_sample, price, needed - (sum(most) - most[p]))
            if self.clock.is_over:
                return replace(nothing, left_out=bound, out_of_time=True)
            if not found:
                return nothing
            shapes.append([(family, stages) for family, stages, _, _ in found])
            rates.append(np.array([rate for _, _, rate, _ in found]))
            weighing.append(np.array([weight for _, _, _, weight in found]))
            taken.append(np.array([self._taken(family, stages) for family, stages, _, _ in found]))
            most[p] = float(np.max(_gains(rates[p], weighing[p], per_sample) - taken[p] @ price))
        gains = [_gains(r, w, per_sample) for r, w in zip(rates, weighing, strict=True)]
        if price.any():
            choice, dropped = _fitting_pairs(gains, taken, np.array(self.devices), needed + float(price @ self.devices))
        else:
            choice, dropped = _good_choices(gains, needed)
        self.counts["shapes"] += len(choice)
        samples = np.sum([rate[choice[:, p]] for p, rate in enumerate(rates)], axis=0)
        weight = 1.0 if weights.is_time else np.sum([w[choice[:, p]] for p, w in enumerate(weighing)], axis=0)
        bounds = np.asarray(self.batch * (weight / samples + extra_cost))
        order = np.argsort(bounds, kind="stable")
        left_out = np.inf
        if np.isfinite(dropped):
            left_out = self.batch / dropped if weights.is_time else bound
        return Together(shapes=shapes, choice=choice[order], bounds=bounds[order], left_out=left_out)

    def _taken(self, family: Family, stages: Sequence[int]) -> FloatArray:
        """Devices of every group that a shape uses."""
        found = np.zeros(len(self.devices))
        found[list(family.groups)] = devices_per_stage(family) * np.array(stages)
        return found

    def _good_shapes(
        self,
        families: list[Family],
        precision: Precision,
        weights: Weights,
        per_sample: float,
        price: FloatArray,
        needed: float,
    ) -> list[tuple[Family, tuple[int, ...], float, float]]:
        """Shapes that gain that much, memory looked at, with their rates and weights."""
        result = []
        for family in families:
            if weights.gain(family, per_sample, price) < needed or self.clock.is_over:
                break
            self.counts["families"] += 1
            found = shapes_of(self.book, family, precision)
            each = found.stages @ weights.per_stage(family)
            cost = found.stages @ (devices_per_stage(family) * price[list(family.groups)])
            quick = family.replicas * family.micro_batch / found.bottleneck_s
            rows = np.flatnonzero(_gains(quick, each, per_sample) - cost >= needed)
            if not len(rows):
                continue
            wanted = needed + each[rows] / per_sample + cost[rows]
            for row in rows[self.solver.may_pass(family, found.stages[rows], precision, found.rates, wanted)]:
                stages = tuple(int(n) for n in found.stages[row])
                speed = self.solver.samples_per_s(family, stages, precision)
                weight = float(each[row])
                if speed > 0 and speed - weight / per_sample - cost[row] >= needed:
                    result.append((family, stages, speed, weight))
        return result


def _gains(rates: FloatArray, weights: FloatArray, per_sample: float) -> FloatArray:
    return np.asarray(rates - weights / per_sample)


_AT_A_TIME = 1_000_000  # pairs of shapes


def _fitting_pairs(
    gains: Sequence[FloatArray], taken: Sequence[FloatArray], devices: IntArray, needed: float
) -> tuple[IntArray, float]:
    """As `_good_choices`, of two shapes that share devices and have enough of them."""
    (first, second), (used, more) = gains, taken
    found: list[IntArray] = []
    step = max(_AT_A_TIME // len(second), 1)
    for start in range(0, len(first), step):
        rows = slice(start, start + step)
        good = first[rows, None] + second >= needed
        for g, most in enumerate(devices):
            good &= used[rows, None, g] + more[:, g] <= most
        found.append(np.add(np.argwhere(good), [start, 0]))
    choice = np.concatenate(found)
    together = first[choice[:, 0]] + second[choice[:, 1]]
    order = np.argsort(-together, kind="stable")
    dropped = float(together[order[_MOST_CHOICES]]) if len(order) > _MOST_CHOICES else -np.inf
    return choice[order[:_MOST_CHOICES]], dropped


def _good_choices(gains: Sequence[FloatArray], needed: float) -> tuple[IntArray, float]:
    """Choices of one shape per part that together gain enough, the most first; and the most that was left out gains."""
    choice, together, dropped = np.zeros((1, 0), dtype=np.int64), np.zeros(1), -np.inf
    left = sum(float(gain.max()) for gain in gains)
    for gain in gains:
        left -= float(gain.max())
        both = together[:, None] + gain[None, :]
        rows, columns = np.nonzero(both + left >= needed)
        choice, together = np.concatenate([choice[rows], columns[:, None]], axis=1), both[rows, columns]
        order = np.argsort(-together, kind="stable")
        if len(order) > _MOST_CHOICES:
            dropped = max(dropped, float(together[order[_MOST_CHOICES]]) + left)
            order = order[:_MOST_CHOICES]
        choice, together = choice[order], together[order]
    return choice, dropped

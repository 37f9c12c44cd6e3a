"""Several pipelines side by side: which shapes of the parts are, together, good enough to be looked at.

Samples go through a shape at a rate r at most, and its devices weigh w (nothing, where only the step counts). Shapes p of all parts take

    step >= batch / sum r_p        score >= batch sum w_p / sum r_p

so those that may stay below a limit are found by a sum over the parts: of rates, ``sum r_p >= batch / limit``, or of what the rates are
above what the weights cost, ``sum (r_p - w_p batch / limit) >= 0``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.precision import Precision
from strategies.mixed.families import Family, RateBook, shapes_of
from strategies.mixed.leaf import LeafSolver
from strategies.mixed.objective import Weights

__all__ = ["PartShape", "SideBySide", "Together"]


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
    deadline: float
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
        joules = min(weights.joules(family) for families in lists for family in families)
        per_sample = limit / self.batch - joules
        nothing = Together(shapes=[], choice=np.zeros((0, len(lists)), dtype=np.int64), bounds=np.zeros(0))
        if per_sample <= 0:
            return nothing
        needed = 1.0 / per_sample if weights.is_time else 0.0
        ordered = [sorted(families, key=lambda f: -weights.gain(f, per_sample)) for families in lists]
        most = [weights.gain(families[0], per_sample) for families in ordered]
        shapes: list[list[PartShape]] = []
        rates: list[FloatArray] = []
        weighing: list[FloatArray] = []
        for p, families in enumerate(ordered):
            found = self._good_shapes(families, precision, weights, per_sample, needed - (sum(most) - most[p]))
            if time.monotonic() > self.deadline:
                return replace(nothing, left_out=bound, out_of_time=True)
            if not found:
                return nothing
            shapes.append([(family, stages) for family, stages, _, _ in found])
            rates.append(np.array([rate for _, _, rate, _ in found]))
            weighing.append(np.array([weight for _, _, _, weight in found]))
            most[p] = float(np.max(_gains(rates[p], weighing[p], per_sample)))
        gains = [_gains(rate, weight, per_sample) for rate, weight in zip(rates, weighing, strict=True)]
        choice, dropped = _good_choices(gains, needed)
        self.counts["shapes"] += len(choice)
        samples = np.sum([rate[choice[:, p]] for p, rate in enumerate(rates)], axis=0)
        weight = 1.0 if weights.is_time else np.sum([w[choice[:, p]] for p, w in enumerate(weighing)], axis=0)
        bounds = np.asarray(self.batch * (weight / samples + joules))
        order = np.argsort(bounds, kind="stable")
        left_out = np.inf
        if np.isfinite(dropped):
            left_out = self.batch / dropped if weights.is_time else bound
        return Together(shapes=shapes, choice=choice[order], bounds=bounds[order], left_out=left_out)

    def _good_shapes(
        self, families: list[Family], precision: Precision, weights: Weights, per_sample: float, needed: float
    ) -> list[tuple[Family, tuple[int, ...], float, float]]:
        """Shapes that gain that much, memory looked at, with their rates and weights."""
        result = []
        for family in families:
            if weights.gain(family, per_sample) < needed or time.monotonic() > self.deadline:
                break
            self.counts["families"] += 1
            found = shapes_of(self.book, family, precision)
            each = found.stages @ weights.per_stage(family)
            quick = family.replicas * family.micro_batch / found.bottleneck_s
            for row in np.flatnonzero(_gains(quick, each, per_sample) >= needed):
                stages = tuple(int(n) for n in found.stages[row])
                speed = self.solver.samples_per_s(family, stages, precision)
                weight = float(each[row])
                if speed > 0 and speed - weight / per_sample >= needed:
                    result.append((family, stages, speed, weight))
        return result


def _gains(rates: FloatArray, weights: FloatArray, per_sample: float) -> FloatArray:
    return np.asarray(rates - weights / per_sample)


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

"""Exact pipeline partition: passes over all labels with falling thresholds, until nothing is left that could be better.

Notes
-----
`strategies.layerwise.pipeline.sweep` has the states and bounds of one pass, which finds the plans of least lower bound; as many as it
takes to prove that no other costs less than those wanted. Its bounds are the stronger the lower the threshold is. Together with
a table of `strategies.layerwise.pipeline.front`, a cutoff from other plans mostly leaves no label at all. Where it leaves too many, a beam
looks for better plans, and the search then guesses the best cost from below (`_Search.solve`).
"""

from __future__ import annotations

import time

import numpy as np

from strategies.layerwise.per_layer.problem import Limits, Status
from strategies.layerwise.pipeline.bounds import SAFETY, pipeline_lower_bound, proves_none_below
from strategies.layerwise.pipeline.front import FrontTable, build_front
from strategies.layerwise.pipeline.problem import PartitionProblem, PipelineSolution
from strategies.layerwise.pipeline.sweep import Sweep

__all__ = ["FRONT_LEVELS", "solve_pipeline"]

_BEAM = 48  # labels per cut in the first pass, which only looks for good plans
_FIRST = 10_000  # pairs of label and stage after which the first pass gives up and asks for a better bound
_PROBE = 1_000_000  # pairs after which a pass gives up and asks for a better bound or a better plan first
_LONG = 20_000_000  # same, before the guesses begin
_STEP = 0.2  # how far the first guess of the cost lies above the bound; later ones rise faster
_GUESSES = 8
_MORE_COPIES = 8  # times as many for the next pass, where plans that were not judged may be better than those that were
_MOST_COPIES = 1 << 15
_STALE = 1e-3  # a front table for a threshold so little higher is as good as a new one
FRONT_LEVELS = 64  # depths that the front table tells apart, memory permitting


class _Search(Sweep):
    """Passes of one call."""

    def run(self, beam: int | None = None, most_pairs: int | None = None) -> float | None:
        """Pass from the last cut to the first.

        Returns +inf when every label was looked at, a bound on what is left when a limit stopped it, None when it looked
        at more than `most_pairs` pairs of a label and a stage. As long as no plan is known, labels are kept for the best plan
        only: mostly there is none, and otherwise a second pass keeps them for all that are wanted. Passes with more and more copies of each
        label follow until no plan that was not judged can be wanted.
        """
        self.copies = self.limits.num_solutions if self.plans else 1
        while True:
            open_s = self.sweep(beam, most_pairs)
            unseen_s = self.unseen_s
            if open_s != float("inf") or beam is not None or unseen_s >= self.threshold_s * SAFETY:
                return open_s
            self.floor_s = max(self.floor_s, unseen_s * SAFETY)
            if self.copies >= _MOST_COPIES:
                return unseen_s
            self.copies = max(self.limits.num_solutions, _MORE_COPIES * self.copies)

    def solve(self) -> float:
        """Look at every label that may lead to a plan of interest.

        A low threshold makes for strong bounds; where it leaves no plan it has become a bound itself. So where the cutoff is too
        high to finish soon, the search goes on with rising guesses of what the best plans cost.

        Returns +inf, or a bound on what is left when a limit stopped the search.
        """
        open_s = self.run(most_pairs=_PROBE if self.front is not None else _FIRST)
        if open_s is not None:
            return open_s
        if np.isfinite(self.wanted_s):
            open_s = self.attempt(_LONG)
            if open_s is not None:
                return open_s
        elif self.run(beam=_BEAM) != float("inf"):  # any plan, should time run out
            return 0.0
        self.floor_s = max(self.floor_s, pipeline_lower_bound(self.problem))
        ratio = 1.0 + _STEP
        for guess in range(_GUESSES, -1, -1):
            self.guess_s = self.floor_s * ratio if guess and self.floor_s > 0 else float("inf")
            open_s = self.attempt()
            assert open_s is not None
            if open_s != float("inf"):
                return open_s
            self.floor_s = max(self.floor_s, self.threshold_s)
            if self.guess_s >= self.wanted_s:
                break
            ratio *= 1.0 + _STEP
        return float("inf")

    def attempt(self, most_pairs: int | None = None) -> float | None:
        """Look at every label below the current threshold, by a beam first if they are many; None past `most_pairs`."""
        while True:
            self.prepare()
            if not self.possible:
                return float("inf")
            threshold_s = self.threshold_s
            if not self.is_fresh:
                self.build()
                open_s = self.run(most_pairs=_PROBE)
                if open_s is not None:
                    return open_s
            if self.run(beam=_BEAM) != float("inf"):
                return 0.0
            if self.threshold_s >= threshold_s / (1 + _STALE):
                return self.run(most_pairs=most_pairs)

    @property
    def is_fresh(self) -> bool:
        """Whether the table of fronts is this problem's own and for this threshold, or one hardly higher."""
        if self.front is None or self.front.problem is not self.problem:
            return False
        return self.threshold_s <= self.front.threshold_s <= self.threshold_s * (1 + _STALE)

    def build(self) -> None:
        """A table of fronts for the plans below the threshold."""
        self.front = build_front(
            self.problem, self.threshold_s, most_levels=FRONT_LEVELS, deadline=self.deadline, tables=self.tables
        )


def solve_pipeline(
    problem: PartitionProblem, limits: Limits | None = None, *, front: FrontTable | None = None
) -> PipelineSolution:
    """Best pipelines of at least two stages that use all workers, within memory and below the cutoff.

    Parameters
    ----------
    problem : PartitionProblem
    limits : Limits, optional
        `cutoff_s`: only plans below it are of interest. `num_solutions`: the K best different plans. `gap`: plans less than
        this share better than the K-th are not looked for.
    front : FrontTable, optional
        Of `build_front`, for this problem or one with the same layers and more workers, and no lower a cutoff: saves building
        one. Not looked at if it does not fit.

    Returns
    -------
    PipelineSolution
        OPTIMAL with plans; CUT_OFF: proved that no plan is below the cutoff; INFEASIBLE: no plan at all; FEASIBLE or LIMIT
        when time ran out with or without a plan. Optimal and bound hold up to 1e-11 relative (rounding).

    Examples
    --------
    >>> row, cut = np.ones((1, 4)), np.zeros((1, 1, 5))
    >>> p = PartitionProblem(num_layers=4, num_workers=2, num_micro_batches=4, replica_counts=np.array([1]),
    ...                      forward_s=row, backward_s=2 * row, cut_forward_s=cut, cut_backward_s=cut, update_s=0 * row,
    ...                      exchange_s=0 * row, static_bytes=row, activation_bytes=row)
    >>> solution = solve_pipeline(p)
    >>> solution.best, solution.objective_s, solution.status.value
    (PipelinePlan(cuts=(2,), replicas=(1, 1)), 30.0, 'optimal')
    """
    limits = limits or Limits()
    begin = time.perf_counter()
    if front is not None and not front.serves(problem, limits.cutoff_s):
        front = None
    search = _Search(problem, limits, front)
    return _report(search, search.solve() if search.possible else float("inf"), begin)


def _report(search: _Search, open_s: float, begin: float) -> PipelineSolution:
    """Solution from the plans found and a bound on what was not looked at."""
    complete = open_s == float("inf")
    if not complete:
        open_s = max(min(open_s, search.threshold_s), search.floor_s, pipeline_lower_bound(search.problem))
    rest_s = min(open_s, search.wanted_s)
    best_s = search.plans[0][0] if search.plans else float("inf")
    if search.plans:
        status = Status.OPTIMAL if complete or rest_s >= search.wanted_s else Status.FEASIBLE
    elif not complete and rest_s < search.wanted_s:
        status = Status.LIMIT
    else:
        status = Status.CUT_OFF
        if proves_none_below(search.problem, search.tables, float("inf")):
            status, rest_s = Status.INFEASIBLE, float("inf")
        elif np.isinf(search.limits.cutoff_s):
            status = Status.INFEASIBLE
    return PipelineSolution(
        status=status,
        plans=tuple(plan for _, plan in search.plans),
        objectives_s=tuple(cost for cost, _ in search.plans),
        bound_s=min(best_s, rest_s),
        rest_bound_s=rest_s,
        wall_s=time.perf_counter() - begin,
        num_labels=search.num_labels,
    )

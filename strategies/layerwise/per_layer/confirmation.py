"""A second opinion on the cheapest choice of one option per layer."""

from __future__ import annotations

from costmodel.tolerances import CONFIRMED
from strategies.layerwise.per_layer.problem import ChoiceProblem, Limits, Status
from strategies.layerwise.per_layer.search import solve

__all__ = ["is_confirmed"]

# Problems with at most so many pairs of options of neighbouring layers are solved a second time by the integer program: it took
# 0.03 s for AlexNet on 8 workers (2,030 pairs) and 0.8 s on 16 (5,141), as long as everything else together.
_CONFIRMED_PAIRS = 4_000
_LEAST_S, _MOST_S = 1.0, 5.0


def is_confirmed(problem: ChoiceProblem, best_s: float, wall_s: float) -> bool:
    """Prove by the integer program that nothing is cheaper than what elimination found, where that takes no time.

    The two methods share nothing but the problem. A contradiction is a defect of the planner, so it is raised.

    Parameters
    ----------
    problem : ChoiceProblem
    best_s : float
    wall_s : float
        What is left of the time; with little left nothing is proved.
    """
    sizes = [len(base) for base in problem.base_s]
    pairs = sum(sizes[edge.producer] * sizes[edge.consumer] for edge in problem.edges)
    if pairs > _CONFIRMED_PAIRS or wall_s < _LEAST_S:
        return False
    limits = Limits(wall_s=min(wall_s, _MOST_S), cutoff_s=best_s * 1.001)
    solution = solve(problem, limits, method="program")
    if solution.status is not Status.OPTIMAL:
        return False
    if not best_s * (1 - CONFIRMED) <= solution.objectives_s[0] <= best_s * (1 + CONFIRMED):
        raise AssertionError(f"elimination found {best_s!r} and the program {solution.objectives_s[0]!r}")
    return True

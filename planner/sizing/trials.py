"""What a training must reach, and what was tried: a number of GPUs with its best plan, and what the whole training takes with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SECONDS_PER_DAY", "ClusterFacts", "Goal", "Trial", "charged_gpus"]

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A training and its limits.

    Attributes
    ----------
    tokens, samples : float or None
        Length of the training: one of them.
    deadline_s, budget : float or None
        In seconds, in USD; no limit where None.
    goodput : float
        Share of the time in which steps are made; the rest is lost to failures, checkpoints and restarts.

    Examples
    --------
    A million samples in steps of 256 that take 0.5 s:

    >>> goal = Goal(samples=1e6, deadline_s=3600.0, goodput=0.5)
    >>> goal.steps({"batch": 256, "seq": None}), goal.time_s({"batch": 256, "seq": None, "step_time_s": 0.5})
    (3907, 3907.0)
    """

    tokens: float | None = None
    samples: float | None = None
    deadline_s: float | None = None
    budget: float | None = None
    goodput: float = 1.0

    def steps(self, row: Mapping[str, Any]) -> int:
        """Steps of the training with the batch and the length of a row of `planner.sweeping.answer`."""
        if self.samples is not None:
            return math.ceil(self.samples / int(row["batch"]))
        assert self.tokens is not None
        return math.ceil(self.tokens / (int(row["batch"]) * int(row["seq"])))

    def time_s(self, row: Mapping[str, Any]) -> float:
        """How long the training takes with the plan of a row."""
        return self.steps(row) * float(row["step_time_s"]) / self.goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What sizing needs to know of a cluster."""

    name: str
    node: int  # devices of a unit of the innermost level
    most: int  # devices at most
    price_per_hour: float | None


def charged_gpus(workers: int, node: int) -> int:
    """GPUs that are paid for: whole nodes, but single GPUs inside one node.

    >>> charged_gpus(3, 8), charged_gpus(8, 8), charged_gpus(9, 8)
    (3, 8, 16)
    """
    return workers if workers <= node else -(-workers // node) * node


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One search and what it means for the goal.

    Attributes
    ----------
    cluster : str
    allowed : int
        GPUs that the search could use.
    objective : str
        What the search made least.
    row : mapping
        Its answer, as in `planner.sweeping.answer.COLUMNS`.
    gpus : int or None
        GPUs that are paid for; None where there is no plan.
    time_s, money, energy_j : float or None
        Of the whole training.
    time_low_s, time_high_s : float or None
        Between these the training takes with a chance of 80 %; None where nothing is known of errors.
    is_proven : bool
        Whether no plan on as many GPUs at most is better by the objective.
    """

    cluster: str
    allowed: int
    objective: str
    row: Mapping[str, Any]
    gpus: int | None = None
    time_s: float | None = None
    time_low_s: float | None = None
    time_high_s: float | None = None
    money: float | None = None
    energy_j: float | None = None
    is_proven: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any], facts: ClusterFacts, goal: Goal, allowed: int) -> Trial:
        """What a row means."""
        base = cls(cluster=facts.name, allowed=allowed, objective=row["objective"], row=row)
        if row["status"] != "ok":
            return base
        time_s, gpus = goal.time_s(row), charged_gpus(row["workers"], facts.node)
        joules = row["energy_per_step_j"]
        ends = (row.get("step_time_low_s"), row.get("step_time_high_s"))
        return cls(
            cluster=facts.name,
            allowed=allowed,
            objective=row["objective"],
            row=row,
            gpus=gpus,
            time_s=time_s,
            time_low_s=None if ends[0] is None else time_s * ends[0] / row["step_time_s"],
            time_high_s=None if ends[1] is None else time_s * ends[1] / row["step_time_s"],
            money=None if facts.price_per_hour is None else gpus * time_s / 3600.0 * facts.price_per_hour,
            # What is lost to failures is spent as steps are.
            energy_j=None if joules is None else joules * goal.steps(row) / goal.goodput,
            is_proven=bool(row["proven_optimal"]),
        )

    @property
    def has_plan(self) -> bool:
        """Whether something fits."""
        return self.time_s is not None

    def slower(self, *, surely: bool) -> float:
        """What the predicted time is multiplied by: 1, or ``surely`` what nine of ten measurements stay below (the upper end of 80 %)."""
        if not surely or self.time_s is None:
            return 1.0
        return math.inf if self.time_high_s is None else self.time_high_s / self.time_s

    def lateness(self, goal: Goal, *, surely: bool = False) -> float:
        """Time over the deadline's; 0 where there is no deadline."""
        if goal.deadline_s is None or self.time_s is None:
            return 0.0
        return self.time_s * self.slower(surely=surely) / goal.deadline_s

    def excess(self, goal: Goal, *, surely: bool = False) -> float:
        """Money over the budget; 0 where there is no budget."""
        if goal.budget is None or self.money is None:
            return 0.0
        return self.money * self.slower(surely=surely) / goal.budget

    def missed_by(self, goal: Goal) -> float:
        """How far the goal is missed: shares of the deadline and of the budget by which they are exceeded, added up."""
        return max(self.lateness(goal) - 1.0, 0.0) + max(self.excess(goal) - 1.0, 0.0)

    def in_time(self, goal: Goal, *, surely: bool = False) -> bool:
        """Whether the training ends by the deadline: as predicted, or ``surely`` with a chance of 90 %."""
        return self.has_plan and self.lateness(goal, surely=surely) <= 1.0

    def meets(self, goal: Goal, *, surely: bool = False) -> bool:
        """Whether it ends by the deadline, within the budget."""
        return self.in_time(goal, surely=surely) and self.excess(goal, surely=surely) <= 1.0

"""Which numbers of GPUs are searched, and what follows from the answers.

Let T(n) be the step of the best plan on *at most* n GPUs. Every plan for n GPUs may be run where there are more, so T never grows with n,
whatever the best plan on *exactly* n does: more GPUs may well be slower, and then the best plan leaves some out. So the least n that meets
a deadline is found by bisection, over whole nodes, between a doubling ladder's last count that is late and first that is not.

Money is n T(n) and has no such law. The least GPU-hours (and the least joules) of any plan at all are one more search each, with that
objective: if its plan is in time, it is the cheapest; if even it is too dear, no number of GPUs will do. In between, the cheapest of what
was tried is the answer, and neighbours of it are tried, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from planner.core.request import Request
from planner.sizing.trials import ClusterFacts, Goal, Trial

__all__ = ["Ask", "ClusterAnswer", "Sized", "ladder", "size"]

# Cells (cluster, GPUs at most, objective) -> their trials, in the same order.
Ask = Callable[[Sequence[tuple[ClusterFacts, int, str]]], list[Trial]]

STEP_TIME, GPU_HOURS, ENERGY = "step_time", "gpu_hours", "energy"
# Rounds in which neighbours of the cheapest count are tried.
_NEIGHBOUR_ROUNDS = 3


def ladder(node: int, most: int) -> tuple[int, ...]:
    """Counts that are tried first: doubling up to a node, then doubling nodes, and all there is.

    >>> ladder(8, 100)
    (1, 2, 4, 8, 16, 32, 64, 96)
    >>> ladder(6, 3)
    (1, 2, 3)
    """
    counts = {n for n in (1 << k for k in range(node.bit_length())) if n <= min(node, most)}
    counts.add(min(node, most))
    nodes = most // node
    counts |= {node << k for k in range(nodes.bit_length())}
    if nodes:
        counts.add(nodes * node)
    return tuple(sorted(n for n in counts if n <= most))


@dataclass(slots=True, kw_only=True)
class ClusterAnswer:
    """Trials on one cluster, and the best of them for each wish; None where none meets the goal."""

    facts: ClusterFacts
    goal: Goal
    trials: list[Trial] = field(default_factory=list)

    def ladder_trials(self) -> list[Trial]:
        """Those that make the step least, by the GPUs allowed."""
        return sorted((t for t in self.trials if t.objective == STEP_TIME), key=lambda t: t.allowed)

    @property
    def good(self) -> list[Trial]:
        """Those that meet the goal."""
        return [trial for trial in self.trials if trial.meets(self.goal)]

    @property
    def least_gpus(self) -> Trial | None:
        """Fewest GPUs; of equal ones the fastest."""
        return min(self.good, key=lambda t: (t.gpus, t.time_s), default=None)

    @property
    def least_gpus_90(self) -> Trial | None:
        """Fewest GPUs that meet the goal with a chance of 90 %; None without error bars."""
        sure = [trial for trial in self.good if trial.time_high_s is not None and trial.meets(self.goal, surely=True)]
        return min(sure, key=lambda t: (t.gpus, t.time_s), default=None)

    @property
    def cheapest(self) -> Trial | None:
        """Least money; without a price, least GPU-hours."""
        return min(self.good, key=lambda t: (self.cost(t), t.gpus), default=None)

    @property
    def thriftiest(self) -> Trial | None:
        """Least energy; None where no power is stated."""
        known = [trial for trial in self.good if trial.energy_j is not None]
        return min(known, key=lambda t: (t.energy_j, t.gpus), default=None)

    @property
    def nearest(self) -> Trial | None:
        """What comes closest to the goal."""
        known = [trial for trial in self.trials if trial.has_plan]
        return min(known, key=lambda t: (t.missed_by(self.goal), t.gpus), default=None)

    @property
    def least_money(self) -> float | None:
        """No plan on any number of GPUs up to the most costs less; None where that is not known."""
        known = [t for t in self.trials if t.objective == GPU_HOURS and t.money is not None and t.is_proven]
        if not known:
            return None
        trial = known[0]
        assert trial.money is not None
        assert trial.gpus is not None
        return (
            trial.money * int(trial.row["workers"]) / trial.gpus
        )  # GPUs that whole nodes leave idle are not in the bound

    def is_proven(self, trial: Trial) -> bool:
        """Whether no fewer whole nodes meet the goal: the count below is known to be late, or to hold nothing."""
        below = [t for t in self.ladder_trials() if t.allowed < (trial.gpus or 0)]
        if (trial.gpus or 0) <= 1:
            return True
        nearest = below[-1] if below else None
        if nearest is None or (nearest.has_plan and not nearest.is_proven):
            return False
        step = self.facts.node if (trial.gpus or 0) > self.facts.node else 0
        is_next = nearest.allowed >= (trial.gpus or 0) - max(step, 1)
        return is_next and not nearest.in_time(self.goal)

    def brackets(self) -> list[int]:
        """Counts to try next for the least GPUs in time, as predicted and with a chance of 90 %."""
        found = (self.bracket(), self.bracket(surely=True))
        return sorted({count for count in found if count is not None})

    def bracket(self, *, surely: bool = False) -> int | None:
        """The count to try next for the least GPUs in time; None where nothing is left between."""
        trials = self.ladder_trials()
        timely = [t.allowed for t in trials if t.in_time(self.goal, surely=surely)]
        if not timely:
            return None
        high = min(timely)
        low = max((t.allowed for t in trials if t.allowed < high), default=0)
        step = self.facts.node if high > self.facts.node else 1
        between = (high - low) // step
        return low + between // 2 * step if between > 1 else None

    def neighbours(self) -> list[int]:
        """Counts between the cheapest and those tried on either side of it, where its cheapness is not proven."""
        best = self.cheapest
        if best is None or best.objective != STEP_TIME:
            return []
        counts = [t.allowed for t in self.ladder_trials()]
        here = best.allowed
        below = max((n for n in counts if n < here), default=here)
        above = min((n for n in counts if n > here), default=here)
        node = self.facts.node
        step = node if below >= node else 1
        middle = [below + (here - below) // (2 * step) * step, here + (above - here) // (2 * node) * node]
        return sorted({n for n in middle if n not in counts and 0 < n <= self.facts.most})

    def cost(self, trial: Trial) -> float:
        """Money of a trial with a plan; GPU-seconds where there is no price."""
        assert trial.gpus is not None
        assert trial.time_s is not None
        return trial.gpus * trial.time_s if trial.money is None else trial.money


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The answer: what was tried on every cluster."""

    request: Request
    goal: Goal
    clusters: tuple[ClusterAnswer, ...]
    interrupted: bool = False

    def best(self, wish: str) -> tuple[ClusterAnswer, Trial] | None:
        """The best of all clusters for a wish: ``least_gpus``, ``least_gpus_90``, ``cheapest`` or ``thriftiest``."""
        keys: dict[str, Callable[[Trial], tuple[float, ...]]] = {
            "least_gpus": lambda t: (t.gpus or 0, t.time_s or 0.0),
            "least_gpus_90": lambda t: (t.gpus or 0, t.time_s or 0.0),
            "cheapest": lambda t: (t.money or 0.0, t.gpus or 0),
            "thriftiest": lambda t: (t.energy_j or 0.0, t.gpus or 0),
        }
        found = [(answer, getattr(answer, wish)) for answer in self.clusters]
        known = [(answer, trial) for answer, trial in found if trial is not None]
        if wish == "cheapest" and len(known) > 1 and any(trial.money is None for _, trial in known):
            return None  # GPU-hours of different GPUs cannot be compared
        return min(known, key=lambda pair: keys[wish](pair[1]), default=None)


def size(request: Request, goal: Goal, clusters: Iterable[ClusterFacts], ask: Ask, *, has_objectives: bool) -> Sized:
    """Find how many GPUs of every cluster meet a goal.

    Parameters
    ----------
    request : Request
    goal : Goal
    clusters : iterable of ClusterFacts
    ask : function
        Searches cells.
    has_objectives : bool
        Whether searches can make GPU-hours and energy least (plans over a mesh).

    Returns
    -------
    Sized
        After Ctrl-C, with what was tried until then.
    """
    answers = [ClusterAnswer(facts=facts, goal=goal) for facts in clusters]
    interrupted = False

    def try_all(cells: list[tuple[ClusterAnswer, int, str]]) -> None:
        for (answer, _, _), trial in zip(cells, ask([(a.facts, n, o) for a, n, o in cells]), strict=True):
            answer.trials.append(trial)

    try:
        first = [(a, n, STEP_TIME) for a in answers for n in ladder(a.facts.node, a.facts.most)]
        objectives = (GPU_HOURS, ENERGY) if has_objectives else ()
        try_all(first + [(a, a.facts.most, objective) for a in answers for objective in objectives])
        while cells := [(a, n, STEP_TIME) for a in answers for n in a.brackets()]:
            try_all(cells)
        for _ in range(_NEIGHBOUR_ROUNDS):
            if not (cells := [(a, n, STEP_TIME) for a in answers for n in a.neighbours()]):
                break
            try_all(cells)
    except KeyboardInterrupt:
        interrupted = True
    return Sized(request=dataclasses.replace(request), goal=goal, clusters=tuple(answers), interrupted=interrupted)

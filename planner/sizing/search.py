"""Which numbers of GPUs are searched for a training, and what follows from the answers.

Let T(n) be the step of the best plan on *at most* n GPUs. Every plan for n GPUs may be run where there are more, so T never grows with n,
whatever the best plan on *exactly* n does: more GPUs may well be slower, and then the best plan leaves some out. So a doubling ladder is
tried from its top down to the first count that is late, since all below are late too, and the least n that meets the deadline is found by
bisection, over whole nodes, between that count and the next.

With failures a training takes steps x T / share, and its share of useful time falls with the GPUs: more of them fail more often. Then the
fastest plan on at most n GPUs may not be the one that is done first, and a count may be late though fewer GPUs are not. What holds: every
plan on k to n GPUs takes at least T(n) x the overhead that none on k GPUs or more goes below (`costmodel.failures.outlook.least_overhead`).
So a count excludes all below it only where T(n) is late without failures; a proof that no fewer will do goes up the counts that were tried,
each with the overhead of the count before it (`ClusterAnswer.is_proven`).

Money is n T(n) and has no such law. The least GPU-hours (and the least joules) of any plan on more GPUs than are known to be late are one
more search each, with that objective: if its plan is in time, it is the cheapest. In between, the cheapest of what was tried is the answer,
and neighbours of it are tried, too. Where nothing is within the budget, the rest of the ladder is tried for the nearest miss, and the least
GPU-hours of all are searched: if even they are too dear, no number of GPUs will do.

A goal is what a training must reach; a trial is a number of GPUs with its best plan, and what the whole training takes with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.failures.checkpoint import Checkpoint, Mode, SavedState, checkpoint_of
from costmodel.failures.outlook import Outlook, Recovery, least_overhead
from costmodel.failures.rates import FailureModel, Units
from costmodel.uncertainty.limits import chance_of_all, deviates
from planner.core.request import Request
from planner.sweeping.grid import doubling_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """What fails, and what is done about it.

    Attributes
    ----------
    failures : FailureModel
    mode : "sync", "async" or "peers"
        How checkpoints are made.
    interval_s : float or None
        Work between them; None: the best.
    spares : int or None
        Hosts in reserve; None: as many as make hosts x time least, none where training shrinks.
    recovery : "wait" or "shrink"
        Without a spare, training waits for the repair, or goes on with fewer data-parallel replicas.
    """

    failures: FailureModel
    mode: Mode = "async"
    recovery: Recovery = "wait"
    interval_s: float | None = None
    spares: int | None = None


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
        Share of the time in which steps are made; the rest is lost to failures, checkpoints and restarts. Not read with ``resilience``.
    resilience : Resilience or None
        Where that share follows from the plan.

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
    resilience: Resilience | None = None

    def steps(self, row: Mapping[str, Any]) -> int:
        """Steps of the training with the batch and the length of a row of `planner.sweeping.answer`."""
        if self.samples is not None:
            return math.ceil(self.samples / int(row["batch"]))
        assert self.tokens is not None
        return math.ceil(self.tokens / (int(row["batch"]) * int(row["seq"])))

    def time_s(self, row: Mapping[str, Any], outlook: Outlook | None = None) -> float:
        """How long the training takes with the plan of a row, and what failures do to it."""
        useful = self.steps(row) * float(row["step_time_s"])
        return useful / self.goodput if outlook is None else outlook.time_s(useful)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What sizing needs to know of a cluster."""

    name: str
    node: int  # devices of a unit of the innermost level
    most: int  # devices at most
    price_per_hour: float | None
    units: Units = Units()
    copy_bytes_per_s: float = math.inf  # from a device to its host
    peer_bytes_per_s: float = math.inf  # from a device to another host

    def checkpoint(self, state: SavedState, asked: Resilience) -> Checkpoint:
        """Times of a checkpoint here."""
        rates = {"copy_bytes_per_s": self.copy_bytes_per_s, "peer_bytes_per_s": self.peer_bytes_per_s}
        return checkpoint_of(state, asked.failures, asked.mode, **rates)


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
    facts : ClusterFacts
    goal : Goal
    allowed : int
        GPUs that the search could use.
    row : mapping
        Its answer, as in `planner.sweeping.answer.COLUMNS`; `objective` is what the search made least.
    gpus : int or None
        GPUs that are paid for, spares aside; None where there is no plan.
    spare_gpus : int
        Those of hosts in reserve, that are paid for, too.
    outlook : Outlook or None
        What failures do to it; None where the goal states a goodput.
    time_s, money, energy_j : float or None
        Of the whole training.
    time_low_s, time_high_s : float or None
        Between these the training takes with a chance of 80 %; None where nothing is known of errors.
    plan : Any
        The plan itself, for searches that come after.
    known_gpus : int
        Plans on so many GPUs or fewer were not searched: what matters of them was known.
    """

    facts: ClusterFacts
    goal: Goal
    allowed: int
    row: Mapping[str, Any]
    gpus: int | None = None
    spare_gpus: int = 0
    outlook: Outlook | None = None
    time_s: float | None = None
    time_low_s: float | None = None
    time_high_s: float | None = None
    money: float | None = None
    energy_j: float | None = None
    plan: Any = None
    known_gpus: int = 0

    @classmethod
    def of(
        cls,
        row: Mapping[str, Any],
        facts: ClusterFacts,
        goal: Goal,
        allowed: int,
        plan: Any = None,
        known_gpus: int = 0,
        state: SavedState | None = None,
    ) -> Trial:
        """What a row means; ``state`` is what the plan saves, where the goal asks for what failures do."""
        found = cls(facts=facts, goal=goal, allowed=allowed, row=row, plan=plan, known_gpus=known_gpus)
        if row["status"] != "ok":
            return found
        gpus, asked, outlook = charged_gpus(row["workers"], facts.node), goal.resilience, None
        if asked is not None and state is not None:
            outlook = Outlook.of(
                asked.failures,
                row["workers"],
                facts.checkpoint(state, asked),
                units=facts.units,
                interval_s=asked.interval_s,
                spares=asked.spares,
                recovery=asked.recovery,
                replicas=_replicas(row, facts),
            )
        time_s, spare_gpus = goal.time_s(row, outlook), 0 if outlook is None else outlook.spares * facts.node
        joules, useful_s = row["energy_per_step_j"], goal.steps(row) * row["step_time_s"]
        low_s, high_s = _ends(row, time_s, useful_s, outlook)
        price = facts.price_per_hour
        return dataclasses.replace(
            found,
            gpus=gpus,
            spare_gpus=spare_gpus,
            outlook=outlook,
            time_s=time_s,
            time_low_s=low_s,
            time_high_s=high_s,
            money=None if price is None else (gpus + spare_gpus) * time_s / 3600.0 * price,
            # What is lost to failures is spent as steps are.
            energy_j=None if joules is None else joules * goal.steps(row) * time_s / useful_s,
        )

    @property
    def has_plan(self) -> bool:
        """Whether something fits."""
        return self.time_s is not None

    @property
    def workers(self) -> float:
        """GPUs that its plan uses; infinitely many where it has none."""
        return float(self.row["workers"] or math.inf)

    @property
    def cost(self) -> float:
        """Money; GPU-seconds where there is no price."""
        return (self.gpus or 0) * (self.time_s or 0.0) if self.money is None else self.money

    def slower(self, *, surely: bool) -> float:
        """What the predicted time is multiplied by: 1, or ``surely`` what nine of ten measurements stay below (the upper end of 80 %)."""
        if not surely or self.time_s is None:
            return 1.0
        return math.inf if self.time_high_s is None else self.time_high_s / self.time_s

    def lateness(self, *, surely: bool = False) -> float:
        """Time over the deadline's; 0 where there is no deadline."""
        if self.goal.deadline_s is None or self.time_s is None:
            return 0.0
        return self.time_s * self.slower(surely=surely) / self.goal.deadline_s

    def excess(self, *, surely: bool = False) -> float:
        """Money over the budget; 0 where there is no budget."""
        if self.goal.budget is None or self.money is None:
            return 0.0
        return self.money * self.slower(surely=surely) / self.goal.budget

    @property
    def missed_by(self) -> float:
        """How far the goal is missed: shares of the deadline and of the budget by which they are exceeded, added up."""
        return max(self.lateness() - 1.0, 0.0) + max(self.excess() - 1.0, 0.0)

    def in_time(self, *, surely: bool = False) -> bool:
        """Whether the training ends by the deadline: as predicted, or ``surely`` with a chance of 90 %."""
        return self.has_plan and self.lateness(surely=surely) <= 1.0

    @property
    def chance(self) -> float | None:
        """Chance to end by the deadline, within the budget (`costmodel.uncertainty.limits`); None where nothing is known of errors."""
        if self.time_s is None or self.time_low_s is None or self.time_high_s is None:
            return None
        most_s = self.time_s / max(self.lateness(), self.excess(), 1e-300)
        return float(chance_of_all([deviates(self.time_s, self.time_low_s, self.time_high_s, most_s)]))

    @property
    def interruptions(self) -> float | None:
        """Unexpected ones that are expected until the training is done."""
        return None if self.outlook is None or self.time_s is None else self.outlook.rate_per_s * self.time_s

    @property
    def excludes_fewer(self) -> bool:
        """Whether no plan on so many GPUs or fewer ends by the deadline."""
        return self.excludes(1)

    def excludes(self, least: int) -> bool:
        """Whether no plan on as many GPUs as ``least`` and at most so many ends by the deadline."""
        if not self.has_plan:
            return str(self.row["status"]) in ("no_plan", "refused")
        if self.goal.deadline_s is None or not self.row["proven_optimal"]:
            return False
        return self.least_time_s(least) > self.goal.deadline_s

    def least_time_s(self, least: int) -> float:
        """No plan on as many GPUs as ``least`` and at most so many takes less time, if its step is proven to be the least."""
        outlook, asked = self.outlook, self.goal.resilience
        if outlook is None or asked is None:
            return self.time_s or 0.0
        state = SavedState(total_bytes=outlook.checkpoint.bytes, rank_bytes=0.0)
        overhead = least_overhead(asked.failures, least, self.facts.checkpoint(state, asked), self.facts.units)
        return self.goal.steps(self.row) * float(self.row["step_time_s"]) * overhead

    def meets(self, *, surely: bool = False) -> bool:
        """Whether it ends by the deadline, within the budget."""
        return self.in_time(surely=surely) and self.excess(surely=surely) <= 1.0


def _replicas(row: Mapping[str, Any], facts: ClusterFacts) -> int:
    """Parts of a job that can go on alone when a host is gone: data-parallel replicas, those of one host together."""
    dp = int(row.get("dp_replicate") or 1) * int(row.get("dp_shard") or 1)
    return min(dp, -(-int(row["workers"]) // facts.node))


def _ends(
    row: Mapping[str, Any], time_s: float, useful_s: float, outlook: Outlook | None
) -> tuple[float | None, float | None]:
    """Ends of an interval of 80 % of the time: errors of the step and of what failures do are independent factors."""
    steps = [row.get(f"step_time_{end}_s") for end in ("low", "high")]
    if any(step is None for step in steps):
        return None, None
    factors = [math.log(step / row["step_time_s"]) for step in steps]
    if outlook is not None:
        failing = [math.log(end / time_s) for end in outlook.quantiles_s(useful_s, 0.1, 0.9)]
        factors = [
            math.copysign(math.hypot(*pair), sign) for *pair, sign in zip(factors, failing, (-1, 1), strict=True)
        ]
    low_s, high_s = (time_s * math.exp(factor) for factor in factors)
    return low_s, high_s


_Key = tuple[float, float] | None


def _fewest(trial: Trial) -> _Key:
    return trial.gpus or 0, trial.time_s or 0.0


def _least_energy(trial: Trial) -> _Key:
    return None if trial.energy_j is None else (trial.energy_j, trial.gpus or 0)


# Wish -> what it makes least of the trials that meet the goal; None: a trial does not count.
WISHES: dict[str, Callable[[Trial], _Key]] = {
    "least_gpus": _fewest,
    "least_gpus_90": lambda t: _fewest(t) if t.time_high_s is not None and t.meets(surely=True) else None,
    "cheapest": lambda t: (t.cost, t.gpus or 0),
    "least_energy": _least_energy,
    "thriftiest": _least_energy,  # the old name, for one release
}


# GPUs at most, objective, trials before it -> its trial.
Ask = Callable[[int, str, Sequence[Trial]], Trial]

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
    inside = min(node, most)
    counts = {*doubling_counts(1, inside), inside, *doubling_counts(node, most), most // node * node}
    return tuple(sorted(counts - {0}))


@dataclass(slots=True, kw_only=True)
class ClusterAnswer:
    """Trials on one cluster; not complete where Ctrl-C came before the last."""

    facts: ClusterFacts
    trials: list[Trial] = field(default_factory=list)
    complete: bool = False

    def ladder_trials(self) -> list[Trial]:
        """Those that make the step least, by the GPUs allowed."""
        return sorted((t for t in self.trials if t.row["objective"] == STEP_TIME), key=lambda t: t.allowed)

    def best(self, wish: str) -> Trial | None:
        """The best for one of `WISHES` of those that meet the goal; None where none does."""
        key = WISHES[wish]
        known = (trial for trial in self.trials if trial.meets() and key(trial) is not None)
        return min(known, key=lambda trial: key(trial) or (), default=None)

    @property
    def nearest(self) -> Trial | None:
        """What comes closest to the goal."""
        known = [trial for trial in self.trials if trial.has_plan]
        return min(known, key=lambda t: (t.missed_by, t.gpus), default=None)

    @property
    def least_money(self) -> float | None:
        """No plan on any number of GPUs up to the most costs less; None where that is not known."""
        for trial in self.trials:
            is_of_all = trial.row["objective"] == GPU_HOURS and not trial.known_gpus
            if is_of_all and trial.money is not None and trial.row["proven_optimal"]:
                # GPUs that whole nodes leave idle and spares are not in the bound, nor is what more GPUs than one lose to failures.
                paid = trial.money / (trial.gpus + trial.spare_gpus) if trial.gpus else 0.0
                return paid * int(trial.row["workers"]) * trial.least_time_s(1) / (trial.time_s or 1.0)
        return None

    def is_proven(self, trial: Trial) -> bool:
        """Whether no fewer whole nodes meet the goal: all counts below are known to be late, or to hold nothing."""
        gpus = trial.gpus or 0
        below = [t for t in self.ladder_trials() if t.allowed < gpus]
        if gpus <= 1 or not below:
            return gpus <= 1
        is_next = below[-1].allowed >= gpus - (self.facts.node if gpus > self.facts.node else 1)
        # A count is settled by the next one that was tried above it; the first that is settled alone settles all below it.
        before = [0, *(t.allowed for t in below[:-1])]
        settled = [t.excludes(least + 1) for t, least in zip(below, before, strict=True)]
        alone = max((n for n, t in enumerate(below) if t.excludes_fewer), default=0)
        return is_next and all(settled[alone + 1 :]) and (settled[alone] or below[alone].excludes_fewer)

    def brackets(self) -> list[int]:
        """Counts to try next for the least GPUs in time, as predicted and with a chance of 90 %; none where nothing is left between."""
        trials, found = self.ladder_trials(), set()
        for surely in (False, True):
            high = min((t.allowed for t in trials if t.in_time(surely=surely)), default=0)
            low = max((t.allowed for t in trials if t.allowed < high), default=0)
            step = self.facts.node if high > self.facts.node else 1
            between = (high - low) // step
            if between > 1:
                found.add(low + between // 2 * step)
        return sorted(found)

    def neighbours(self) -> list[int]:
        """Counts between the cheapest and those tried on either side of it, where its cheapness is not proven."""
        best = self.best("cheapest")
        if best is None or best.row["objective"] != STEP_TIME:
            return []
        counts = [t.allowed for t in self.ladder_trials()]
        here = best.allowed
        below = max((n for n in counts if n < here), default=here)
        above = min((n for n in counts if n > here), default=here)
        node = self.facts.node
        step = node if below >= node else 1
        middle = [below + (here - below) // (2 * step) * step, here + (above - here) // (2 * node) * node]
        return sorted({n for n in middle if n not in counts and 0 < n <= self.facts.most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The answer: what was tried on every cluster."""

    request: Request
    goal: Goal
    clusters: tuple[ClusterAnswer, ...]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C left something untried."""
        return not all(answer.complete for answer in self.clusters)

    def best(self, wish: str) -> tuple[ClusterAnswer, Trial] | None:
        """The best of all clusters for one of `WISHES`."""
        known = [(answer, trial) for answer in self.clusters if (trial := answer.best(wish)) is not None]
        if wish == "cheapest" and len(known) > 1 and any(trial.money is None for _, trial in known):
            return None  # GPU-hours of different GPUs cannot be compared
        return min(known, key=lambda pair: WISHES[wish](pair[1]) or (), default=None)

    @property
    def trials(self) -> list[Trial]:
        """Of all clusters."""
        return [trial for answer in self.clusters for trial in answer.trials]

    @property
    def nearest(self) -> tuple[ClusterAnswer, Trial] | None:
        """What comes closest to the goal on any cluster."""
        known = [(answer, trial) for answer in self.clusters if (trial := answer.nearest) is not None]
        return min(known, key=lambda pair: pair[1].missed_by, default=None)


def size_cluster(facts: ClusterFacts, goal: Goal, ask: Ask, *, has_objectives: bool) -> ClusterAnswer:
    """Find how many GPUs of a cluster meet a goal.

    Parameters
    ----------
    facts : ClusterFacts
    goal : Goal
    ask : function
        Makes a trial.
    has_objectives : bool
        Whether searches can make GPU-hours and energy least (plans over a mesh).

    Returns
    -------
    ClusterAnswer
        After Ctrl-C, with what was tried until then.
    """
    answer = ClusterAnswer(facts=facts)
    trials, left = answer.trials, list(ladder(facts.node, facts.most))

    def search(counts: Iterable[int], objective: str = STEP_TIME) -> None:
        for count in counts:
            trials.append(ask(count, objective, trials))

    with contextlib.suppress(KeyboardInterrupt):
        while left and not (trials and trials[-1].excludes_fewer):
            search([left.pop()])
        while counts := answer.brackets():
            search(counts)
        is_over_budget = goal.budget is not None and answer.nearest is not None and answer.best("least_gpus") is None
        if is_over_budget:
            search(left)
        if has_objectives and (is_over_budget or any(trial.in_time() for trial in trials)):
            search([facts.most], GPU_HOURS)
            search([facts.most], ENERGY)
        for _ in range(_NEIGHBOUR_ROUNDS):
            search(answer.neighbours())
        answer.complete = True
    trials.sort(key=lambda t: (t.row["objective"] != STEP_TIME, t.allowed))
    return answer

"""How many of which GPUs serve requests that come at a rate: on every cluster the fewest that keep the limits, and some in reserve.

The fewest replicas of the best plan, and the fewest prefill workers where these read the prompts, come from the search of
`planner optimize --rate`. Beyond them a fleet has spare ones, so that it keeps its limits while as many are down. Where the rate changes
over the hours, the most that comes in an hour decides; following the demand would take only as many in each hour as keep the limits then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from costmodel.serving.plan import SERVING_RATES, ServingBatch, ServingPlan
from costmodel.uncertainty.limits import SURE
from planner.core.answer import Answer, RankedPlan
from planner.core.errors import InputFileError, NoFeasiblePlan, UsageError
from planner.core.request import Request
from planner.sizing.search import ClusterFacts, charged_gpus
from strategies.serving.pools_at_rate import fewest_workers
from strategies.serving.search import binding, excess, fewest_replicas, for_rate, largest_rate, with_rate
from strategies.serving.simplest import lacks, usual_below

if TYPE_CHECKING:
    from planner.spaces.serving.space import ServingPlanSpace
    from strategies.limits import Progress

_AS_SURE = 0.01  # chances that differ by no more than this are the same
HOURS_PER_MONTH = 730.0
# Choices of degrees that are looked at with their spare replicas, and those with as many GPUs of which the surest is taken.
_CANDIDATES, _COMPARED = 1000, 8


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas of one plan on one cluster that serve a demand.

    Attributes
    ----------
    facts : ClusterFacts
    answer : Answer or None
        The plans at the highest rate, the first with the fewest GPUs; None where there is none.
    reason : str
        Why there is none.
    spares : int
        Replicas, or groups of them that share experts, that may be down, and as many prefill workers.
    hours : sequence of float
        Requests per second of every hour; empty where the rate stays.
    plan : RankedPlan, optional
        Another plan than the first.
    """

    facts: ClusterFacts
    answer: Answer | None = None
    reason: str = ""
    spares: int = 1
    hours: Sequence[float] = ()
    plan: RankedPlan | None = None

    @property
    def found(self) -> Answer:
        """The answer, where there is one."""
        assert self.answer is not None, self.reason
        return self.answer

    @property
    def best(self) -> RankedPlan:
        """The plan, with the replicas that the demand needs."""
        return self.plan or self.found.plans[0]

    @property
    def surer(self) -> Fleet | None:
        """The fewest GPUs that keep the limits with a chance of 90 %, where the first plan does not; None where there are none."""
        surer = self.found.baselines.get("surer")
        if surer is None or self.is_sure:
            return None
        fleet = dataclasses.replace(self, plan=surer)
        return fleet if fleet.gpus <= self.facts.most else None

    @property
    def is_sure(self) -> bool:
        """Whether the limits are kept with a chance of 90 %, or there are none."""
        chance = self.best["limits_probability"]
        return chance is None or chance >= SURE

    @property
    def lacks_surer(self) -> bool:
        """Whether none keeps the limits with a chance of 90 %."""
        return not self.is_sure and self.surer is None

    @property
    def space(self) -> ServingPlanSpace:
        """Its cost model at the highest rate."""
        space: ServingPlanSpace = self.found.space  # type: ignore[assignment]
        return space

    @cached_property
    def batch(self) -> ServingBatch:
        """The plan as the cost model takes it."""
        return ServingBatch.from_plans([self.best.plan])

    @property
    def unit(self) -> int:
        """Replicas that are added together: one, or those that share experts."""
        return int(self.batch.sharing[0])

    @property
    def gpus(self) -> int:
        """GPUs that are paid for, of whole nodes beyond one."""
        return charged_gpus(with_spares(self.best.plan, self.spares).workers, self.facts.node)

    @property
    def all_workers(self) -> ServingPlan:
        """With as many replicas as these GPUs hold: those that the demand needs, the spare ones, and what whole nodes have room for."""
        plan = with_spares(self.best.plan, self.spares)
        room = self.gpus - plan.prefill_dp * plan.prefill_tp * plan.prefill_pp
        return dataclasses.replace(plan, dp=room // (plan.tp * plan.pp * self.unit) * self.unit)

    @property
    def replicas(self) -> int:
        """How many these are."""
        return self.all_workers.dp

    @property
    def other_kind(self) -> Fleet | None:
        """The fleet of the best plan of two pools, where this one has none, or the other way round; None where none is known."""
        plans = [*self.found.plans, self.found.baselines.get("aggregated"), self.found.baselines.get("disaggregated")]
        is_apart = self.best.plan.prefill_dp > 0
        found = [plan for plan in plans if plan is not None and (plan.plan.prefill_dp > 0) != is_apart]
        return dataclasses.replace(self, plan=found[0]) if found else None

    @property
    def money_per_hour(self) -> float | None:
        """In USD; None where no price is stated."""
        return None if self.facts.price_per_hour is None else self.facts.price_per_hour * self.gpus

    @property
    def money_per_month(self) -> float | None:
        """In USD."""
        return None if self.money_per_hour is None else self.money_per_hour * HOURS_PER_MONTH

    @property
    def money_per_million_output_tokens(self) -> float | None:
        """At the mean rate of the hours."""
        if self.money_per_hour is None:
            return None
        rate = self.best["output_tokens_per_s"]
        mean = rate if not self.hours else rate * sum(self.hours) / len(self.hours) / max(self.hours)
        return self.money_per_hour / 3600.0 / float(mean) * 1e6

    @cached_property
    def most_rate_per_s(self) -> float:
        """Requests per second at which a limit would be reached, with no replica down."""
        return largest_rate(self.space.model, self.all_workers, self.space.settings())

    @cached_property
    def binds(self) -> tuple[str, ...]:
        """What is missed with one replica, or prefill worker, fewer than the demand needs: columns of `ServingCosts`, and "load"."""
        plan = self.best.plan
        fewer = [dataclasses.replace(plan, dp=plan.dp - self.unit)] if plan.dp > self.unit else []
        if plan.prefill_dp > (unit := reading_unit(plan)):
            fewer.append(dataclasses.replace(plan, prefill_dp=plan.prefill_dp - unit))
        model, settings = self.space.model, self.space.settings()
        return tuple(dict.fromkeys(name for one in fewer for name in binding(model, one, settings)))

    @cached_property
    def plans_by_hour(self) -> tuple[ServingPlan, ...]:
        """The plan with the replicas, and prefill workers, that each hour needs, and the spare ones."""
        found, model, settings = {}, self.space.model, self.space.settings()
        plan, most = self.best.plan, self.all_workers
        timed = None if plan.prefill_dp else model.replicas(self.batch)
        for rate in set(self.hours):
            if not rate:
                read = dataclasses.replace(plan, dp=self.unit, prefill_dp=reading_unit(plan))
            elif timed is None:
                read = fewest_workers(with_rate(model, rate), plan, settings)
            else:
                read = fewest_replicas(for_rate(timed, rate), self.batch, settings).plan(0)
            one = with_spares(read, self.spares)
            found[rate] = dataclasses.replace(
                one, dp=min(one.dp, most.dp), prefill_dp=min(one.prefill_dp, most.prefill_dp)
            )
        return tuple(found[rate] for rate in self.hours)

    @property
    def replicas_by_hour(self) -> tuple[int, ...]:
        """Replicas that each hour needs, with the spare ones."""
        return tuple(plan.dp for plan in self.plans_by_hour)

    @property
    def gpu_hours_share(self) -> float:
        """GPU-hours of as many workers as each hour needs, over those of the fleet."""
        return float(np.mean([plan.workers for plan in self.plans_by_hour])) / self.all_workers.workers


def reading_unit(plan: ServingPlan) -> int:
    """Prefill workers that are added together: one, or those that share experts; none where replicas read their own prompts.

    >>> [reading_unit(ServingPlan(prefill_dp=n, prefill_ep=2, prefill_tp=1)) for n in (0, 4)]
    [0, 2]
    """
    return max(plan.prefill_ep * plan.prefill_etp // plan.prefill_tp, 1) if plan.prefill_dp else 0


def with_spares(plan: ServingPlan, spares: int) -> ServingPlan:
    """A plan with so many replicas more, or groups of them that share experts, and as many prefill workers where there are some.

    >>> with_spares(ServingPlan(tp=2, dp=3), 1).dp, with_spares(ServingPlan(prefill_dp=4), 2).prefill_dp
    (4, 6)
    """
    unit = max(plan.ep * plan.etp // plan.tp, 1)
    return dataclasses.replace(
        plan, dp=plan.dp + spares * unit, prefill_dp=plan.prefill_dp + spares * reading_unit(plan)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """Fleets on every cluster, for one demand."""

    request: Request
    fleets: tuple[Fleet, ...]

    @property
    def ranked(self) -> list[Fleet]:
        """Those that serve the demand: the cheapest first, or where a price is missing, the fewest GPUs."""
        found = [fleet for fleet in self.fleets if fleet.answer is not None]
        return sorted(found, key=lambda f: (f.money_per_hour if self.has_prices else f.gpus, f.gpus))

    @property
    def has_prices(self) -> bool:
        """Whether the price of every one that serves the demand is known."""
        return all(fleet.money_per_hour is not None for fleet in self.fleets if fleet.answer is not None)


def size_fleet(
    request: Request,
    facts: Sequence[ClusterFacts],
    *,
    spares: int = 1,
    hours: Sequence[float] = (),
    progress: Progress | None = None,
) -> Fleets:
    """Find the fewest GPUs of every cluster that serve requests at a rate.

    Parameters
    ----------
    request : Request
        Network, requests and limits; its cluster and its GPUs are not read.
    facts : sequence of ClusterFacts
    spares : int
        Replicas that may be down, at least 0.
    hours : sequence of float
        Requests per second of every hour, in place of the request's rate; empty: the rate stays.
    progress : function of (message, share done), optional

    Raises
    ------
    UsageError
        The network generates no text, or options make no sense.
    PlannerError
        Something cannot be read.
    """
    from planner.spaces.ask import optimize

    if hours:
        request = dataclasses.replace(request, rate_per_s=max(hours))
    found, errors = [], []
    for count, one in enumerate(facts):
        if progress is not None:
            progress(f"{one.name}, up to {one.most} GPUs", count / len(facts))
        asked = dataclasses.replace(request, cluster=one.name, gpus=one.most, fastest=True)
        try:
            fleet = _smallest(Fleet(facts=one, answer=optimize(asked), spares=spares, hours=hours))
            if fleet.gpus > one.most:
                reason = f"{fleet.gpus} GPUs with the spare ones are more than the {one.most} there are (--spares, --max-gpus)"
                fleet = dataclasses.replace(fleet, answer=None, reason=reason)
        except InputFileError:
            raise
        except (NoFeasiblePlan, UsageError) as error:
            errors.append(error)
            fleet = Fleet(facts=one, reason=str(error), spares=spares, hours=hours)
        found.append(fleet)
    wrong = [error for error in errors if isinstance(error, UsageError)]
    if len(wrong) == len(facts):  # with the question, not with a cluster
        raise wrong[0]
    return Fleets(request=request, fleets=tuple(found))


def _smallest(fleet: Fleet) -> Fleet:
    """The fleet of the fewest GPUs that are paid for, with spare replicas and whole nodes: a plan with smaller replicas may need fewer.

    Of several with as many GPUs, the surest to keep the limits; of those that are within one percent of it, the simplest.
    """
    # What needs no more GPUs with its spare replicas has no more without them.
    candidates = fleet.space.searched_up_to(min(fleet.gpus, fleet.facts.most), _CANDIDATES).candidates
    plans = [candidate.plan for candidate in candidates]
    gpus = np.array([charged_gpus(with_spares(plan, fleet.spares).workers, fleet.facts.node) for plan in plans])
    few = [plans[n] for n in np.flatnonzero(gpus == gpus.min())[:_COMPARED]]
    ranked, _ = fleet.space.error_bars(fleet.space.rank(few, fleet.best.score))
    simple = lacks(ServingBatch.from_plans(few), fleet.space.node).tolist()
    most = max(_chance(plan) for plan in ranked)
    near = [n for n, plan in enumerate(ranked) if _chance(plan) >= most - _AS_SURE]
    chosen = ranked[min(near, key=lambda n: (simple[n], -_chance(ranked[n]), ranked[n].score))]
    chosen = _with_usual_sequences(fleet, chosen, most - _AS_SURE)
    return fleet if chosen.plan == fleet.best.plan else dataclasses.replace(fleet, plan=chosen)


def _chance(plan: RankedPlan) -> float:
    """That the limits are kept; 1 where there are none."""
    chance = plan["limits_probability"]
    return 1.0 if chance is None else float(chance)


def _with_usual_sequences(fleet: Fleet, plan: RankedPlan, least: float) -> RankedPlan:
    """A plan with a usual number of sequences where it does as well and is at least so sure; the most that fit were searched."""
    space, usual = fleet.space, usual_below(plan.plan.max_batch)
    if "max_batch" in space.degrees or usual < plan.plan.prefill_batch:
        return plan
    (fewer,), _ = space.error_bars(space.rank([dataclasses.replace(plan.plan, max_batch=usual)], fleet.best.score))
    batch, times = ServingBatch.from_plans([fewer.plan]), {name: np.array([fewer[name]]) for name in SERVING_RATES}
    return fewer if excess(batch, times, space.settings())[0] <= 1.0 and _chance(fewer) >= least else plan

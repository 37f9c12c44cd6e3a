"""Why a plan is not the first: which rules it breaks, whether it fits, how many are better, and what each difference costs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.tolerances import EQUAL
from planner.core.answer import Answer, Assumption, Estimate, RankedPlan
from planner.core.errors import NoFeasiblePlan, SearchInterrupted, UsageError
from planner.core.request import Request
from planner.question.fixed import fixed_by, flag_of, single
from planner.question.resolve import resolve
from planner.spaces.ask import predicted, searched
from planner.spaces.base import PlanSpace, space_of
from strategies.limits import Progress
from strategies.mesh.settings import Bounds

# Values on either side of one that is not allowed, of which the nearest legal ones are named.
_MOST_VALUES = 64
# Settings that change together at most, where none may change alone; beyond, all that are left do.
_MOST_TOGETHER = 3
# Legal plans near one that is not, of which the best are named.
_MOST_LEGAL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Legal:
    """A change that makes the options of an illegal plan legal, and the best plan under it."""

    change: str
    plan: RankedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change on the way from the plan to the first plan.

    Attributes
    ----------
    names : tuple of str
        What is changed; several where none of them could change alone.
    texts : tuple of (before, after)
        Of each; "" where the text would be long.
    plan : RankedPlan
        The plan after the change.
    change_s, change_bytes : float
        Of the step time (of serving, the time per token) and of the memory.
    """

    names: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    plan: RankedPlan
    change_s: float
    change_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The answer.

    Attributes
    ----------
    request : Request
    broken : tuple of str
        Every rule that the plan breaks; empty for a legal plan.
    legal : tuple of Legal
        Of an illegal plan: the nearest legal values of one setting.
    misfit : str
        Why no plan with these settings fits, and what would; empty where one does.
    plan : Estimate or None
        The plan; of an illegal one the best of `legal`; None where there is none.
    filled_in : bool
        Whether a search chose what was left open: the best plan with these settings.
    first : Answer or None
        What a search with nothing fixed names first; None where nothing fits, which `no_plan` says.
    better : int
        How many plans score less than `plan`, counted as `PlanSpace.better_plans` says.
    is_counted : bool
        Whether there are no more.
    steps : tuple of Step
        From `plan` to the first plan; their changes add up to the whole difference.
    """

    request: Request
    broken: tuple[str, ...] = ()
    legal: tuple[Legal, ...] = ()
    misfit: str = ""
    plan: Estimate | None = None
    filled_in: bool = False
    first: Answer | None = None
    no_plan: str = ""
    better: int = 0
    is_counted: bool = True
    steps: tuple[Step, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the plan is legal, fits and keeps the limits."""
        return not (self.broken or self.misfit) and self.plan is not None and self.plan.ranked.fits

    @property
    def is_first(self) -> bool:
        """Whether it is the first plan, or does the same."""
        return self.plan is not None and self.first is not None and not self.steps


def why_not(
    request: Request,
    plan: Any = None,
    *,
    broken: Sequence[str] = (),
    is_run: bool = False,
    progress: Progress | None = None,
) -> WhyNot:
    """Say why a plan is not the first.

    Parameters
    ----------
    request : Request
        Its settings, where they are options: what they leave open is chosen by a search.
    plan : object, optional
        A given plan.
    broken : sequence of str
        Rules that a given plan breaks.
    is_run : bool
        Whether the request is of something that runs today: what is left open has the default of its framework.
    progress : function of (message, share done), optional

    Raises
    ------
    UsageError
        Nothing says which plan is meant.
    SearchInterrupted
        Ctrl-C.
    PlannerError
        Unusable options or files.
    """
    space = space_of(resolve(request))
    found = _Meant(plan=plan, broken=tuple(broken))
    if plan is None and not broken:
        if not (space.is_spelled_out or is_run):
            raise UsageError(
                "why-not: say which plan is meant: --plan FILE, --from TRAINER FILE, or settings such as --tp 8 --pp 4 "
                "(of splits per layer --family or --fix)"
            )
        found = _exact(space) if is_run and space.has_exact_plans else _best_with(space, progress)
    legal = _legal(space) if found.broken and plan is None and not broken else ()
    chosen = legal[0].plan.plan if legal else found.plan
    first, no_plan = _first(space, progress)
    answer = WhyNot(
        request=request, broken=found.broken, legal=legal, misfit=found.misfit, first=first, no_plan=no_plan
    )
    if chosen is None:
        return answer
    best = None if first is None else first.best
    estimate = predicted(space, chosen, found.defaults, best)
    answer = dataclasses.replace(answer, plan=estimate, filled_in=found.filled_in or bool(legal))
    if best is None:
        return answer
    free = _free(space, space.most_better)
    better, is_counted = free.better_than(estimate.ranked.score)
    # The plan that `steps_between` costs again costs what it did.
    steps = steps_between(free, estimate.ranked, best)
    return dataclasses.replace(answer, better=better, is_counted=is_counted, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meant:
    """The plan that is meant, or what is wrong with it."""

    plan: Any = None
    broken: tuple[str, ...] = ()
    misfit: str = ""
    defaults: tuple[Assumption, ...] = ()
    filled_in: bool = False


def _free(space: PlanSpace, top: int) -> PlanSpace:
    """The same question with nothing fixed."""
    return space.without_fixed(space.request.gpus, top)


def _first(space: PlanSpace, progress: Progress | None) -> tuple[Answer | None, str]:
    from planner.uncertainty.bars import COMPARED_PLANS

    # As many plans as `optimize` looks for unless told: of plans that are equally good it names the same.
    try:
        return searched(_free(space, Request(model="").top), COMPARED_PLANS, progress, compare=False, prefer=True), ""
    except NoFeasiblePlan as error:
        return None, str(error)


def _exact(space: PlanSpace) -> _Meant:
    """The plan that options spell out, and what is left open as the framework has it."""
    try:
        plan, defaults = space.exact_plan()
    except (UsageError, NoFeasiblePlan) as error:
        return _Meant(broken=tuple(str(error).splitlines()))
    return _Meant(plan=plan, defaults=defaults)


def _best_with(space: PlanSpace, progress: Progress | None) -> _Meant:
    """The best plan with these settings; where none fits, the one that comes closest."""
    try:
        space.refuse_contradiction()
        found = space.search(1, progress)
    except UsageError as error:
        return _Meant(broken=_rules(space, error))
    if found.outcome.interrupted:
        raise SearchInterrupted(None)
    if found.plans:
        return _Meant(plan=found.plans[0], filled_in=True)
    reason, miss = space.no_plan(found.outcome), found.outcome.nearest_miss
    if not isinstance(reason, (UsageError, NoFeasiblePlan)):
        raise reason
    if miss is None or isinstance(reason, UsageError):  # no legal plan at all
        return _Meant(broken=_rules(space, reason))
    return _Meant(plan=miss.plan, misfit=str(reason), filled_in=True)


def _rules(space: PlanSpace, error: Exception) -> tuple[str, ...]:
    """What the settings break, whatever the best plan with them has for those that are open; else what the search says."""
    contradictions = tuple(space.diagnosis().contradictions()) if space.diagnoses_options else ()
    return contradictions or tuple(str(error).splitlines())


# -- the nearest legal plans ------------------------------------------------------------------------------------------------


def _legal(space: PlanSpace) -> tuple[Legal, ...]:
    """Nearest values of one setting under which the others are legal, the best plan first."""
    found: list[tuple[tuple[bool, float], Legal]] = []
    for changes in _nearest_values(space.request):
        wanted = 2
        for text, request in changes:
            changed = dataclasses.replace(space, resolved=dataclasses.replace(space.resolved, request=request))
            if not changed.is_possible():
                continue
            outcome = changed.search(1, None)
            plan = next(iter(outcome.plans), None) or getattr(outcome.outcome.nearest_miss, "plan", None)
            if plan is not None:
                ranked = changed.rank([plan])[0]
                found.append(((not outcome.plans, ranked.score), Legal(change=text, plan=ranked)))
                wanted -= 1
            if not wanted:
                break
    found.sort(key=lambda entry: entry[0])
    return tuple(legal for _, legal in found[:_MOST_LEGAL])


def _nearest_values(request: Request) -> Iterator[Iterator[tuple[str, Request]]]:
    """Of every setting with one value, the others, the nearest first: as an option, and the question with it."""
    fixed = fixed_by(request)
    for name, value in {**single(fixed.degrees), **single(request.serving_degrees)}.items():
        values = sorted(_around(name, value), key=lambda v: (abs(v - value), v))
        yield ((f"{flag_of(name)} {v}", _with_degree(request, name, v)) for v in values)
    for name, flag in fixed.flags.items():
        mesh = dataclasses.replace(request.mesh or fixed, flags={**fixed.flags, name: not flag})
        if name == "sequence_parallel":
            text = "--no-sequence-parallel" if flag else "--sequence-parallel"
            yield iter([(text, dataclasses.replace(request, mesh=mesh))])
    for name, names in fixed.names.items():
        rest = {other: value for other, value in fixed.names.items() if other != name}
        mesh = dataclasses.replace(request.mesh or fixed, names=rest)
        yield iter([(f"without {flag_of(name)} {','.join(names)}", dataclasses.replace(request, mesh=mesh))])


def _around(name: str, value: int) -> Sequence[int]:
    if name == "zero_stage":
        return [stage for stage in range(4) if stage != value]
    least = 0 if name in ("recompute_blocks", "domain_gpus", "prefill_chunk") else 1
    return [v for v in range(max(least, value - _MOST_VALUES), value + _MOST_VALUES + 1) if v != value]


def _with_degree(request: Request, name: str, value: int) -> Request:
    bounds = Bounds(values=(value,))
    if name in request.serving_degrees:
        return dataclasses.replace(request, serving_degrees={**request.serving_degrees, name: bounds})
    if name == "num_micro_batches" and request.micro_batches is not None:
        return dataclasses.replace(request, micro_batches=value)
    assert request.mesh is not None, "it has the degree"
    mesh = dataclasses.replace(request.mesh, degrees={**request.mesh.degrees, name: bounds})
    return dataclasses.replace(request, mesh=mesh)


# -- what each difference costs ---------------------------------------------------------------------------------------------


def steps_between(space: PlanSpace, plan: RankedPlan, first: RankedPlan) -> tuple[Step, ...]:
    """Turn one plan into another, one setting at a time; two or more together where none alone leaves a legal plan.

    Parameters
    ----------
    space : PlanSpace
    plan, first : RankedPlan

    Returns
    -------
    tuple of Step
        The last is at the second plan, whose figures it has: the changes add up to the difference. What changes nothing is no step.
    """
    texts = dict(space.differing(plan.plan, first.plan))
    if plan.plan != first.plan and not texts:
        texts = {"other settings": ("", "")}
    left, at = list(texts), plan
    done: list[str] = []
    steps: list[Step] = []
    while left:
        names, changed = _next_change(space, plan.plan, first, left, done)
        done += names
        left = [name for name in left if name not in names]
        ranked = first if not left else space.for_plan(changed).rank([changed])[0]
        if ranked.plan == at.plan and left:
            continue
        steps.append(
            Step(
                names=tuple(names),
                texts=tuple(texts[name] for name in names),
                plan=ranked,
                change_s=ranked.step_time_s - at.step_time_s,
                change_bytes=ranked.memory_bytes_per_gpu - at.memory_bytes_per_gpu,
            )
        )
        at = ranked
    is_same = all(
        abs(getattr(plan, name) - getattr(first, name)) <= EQUAL * getattr(first, name)
        for name in ("step_time_s", "memory_bytes_per_gpu")
    )
    return () if is_same and plan.summary == first.summary else tuple(steps)


def _next_change(
    space: PlanSpace, plan: Any, first: RankedPlan, left: Sequence[str], done: Sequence[str]
) -> tuple[list[str], Any]:
    """The next setting with what has to change along with it, and the plan after it; where nothing lets it change yet, a later one."""
    most = min(_MOST_TOGETHER, len(left) - 1)
    companions = [
        (name, *others)
        for name in left
        for size in range(most)
        for others in itertools.combinations([n for n in left if n != name], size)
    ]
    for names in companions:
        changed = space.part_way(plan, first.plan, [*done, *names])
        if changed is not None:
            return list(names), changed
    return list(left), first.plan

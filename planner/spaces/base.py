"""What the planner needs of a space of plans to answer questions about it (`planner.spaces.ask`), and which spaces there are."""

from __future__ import annotations

import dataclasses
import importlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from costmodel.fields import Figure
from costmodel.kernels.roofline import RooflineCompute
from costmodel.tolerances import EQUAL, PROOF_SLACK
from planner.core.answer import (
    Answer,
    AnswerSpace,
    Assumption,
    ErrorBars,
    Estimate,
    LayerCost,
    Proof,
    RankedPlan,
    ReportParts,
    Setting,
)
from planner.core.errors import NoFeasiblePlan, SearchInterrupted, UsageError, no_plan_in_time
from planner.core.notes import Note
from planner.core.numbers import counted
from planner.core.objectives import stated_rates
from planner.core.request import SPACES, Request, imported
from planner.question.resolve import Resolved, resolve
from strategies.score import Score, score_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument
    from planner.spaces.diagnose import Diagnosis
    from planner.spaces.items import Item
    from strategies.limits import Progress


# A simpler plan is named first if it scores at most so much more than the best.
NEARLY = 0.01
# Another batch is worth a sentence where a sample is so many times faster.
WORTH_FASTER = 1.05
# An interval that is wider from end to end says why; those of well-known frameworks are 1.2 to 2 wide.
_WIDE = 3.0
# So many runs know their own tails.
_FEW_RUNS = 50
_DEFAULT_TIME_LIMIT_S = 60.0
# What follows a search has so long at least.
_MOMENT_S = 1.0
# A longer text of a setting says nothing in a table.
_MOST_LETTERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search brought, in any space.

    Attributes
    ----------
    plans : sequence
        Best first, as many as are compared; empty where nothing fits.
    shown : int
        How many of them the answer lists.
    outcome : object
        The answer of the search itself, of the type of its space.
    wall_s : float
        Time that the search took.
    refined : RankedPlan, optional
        A plan beyond the space that is searched, which is better than all of them.
    fastest : RankedPlan, optional
        The best plan, where the first of ``plans`` is a simpler one.
    forgone : tuple of str
        What makes it less simple, by its name in ``--json``.
    details : mapping
        What only this space says, by its key in ``--json``.
    """

    plans: Sequence[Any]
    shown: int
    outcome: Any
    wall_s: float = 0.0
    refined: RankedPlan | None = None
    fastest: RankedPlan | None = None
    forgone: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def led_by(self, first: Any, others: Sequence[Any], fastest: RankedPlan, forgone: Sequence[str]) -> Found:
        """The same with a simpler plan to run first, as many as before at most."""
        plans = [first, *others][: len(self.plans)]
        return dataclasses.replace(
            self, plans=plans, shown=min(self.shown, len(plans)), fastest=fastest, forgone=tuple(forgone)
        )


@dataclass(frozen=True, kw_only=True)
class PlanSpace(AnswerSpace):
    """A question with its cost model and its search, over one space of plans.

    The plans that go in and out are of the type of the space; everything else is common to all spaces. A space has to say what is abstract
    here, and may say the rest differently.

    Attributes
    ----------
    resolved : Resolved
        The question.
    name : str
        ``layers``, ``mesh``, ``mixed`` or ``serving``.
    declared : mapping of str to Figure
        The figures of a plan.
    """

    resolved: Resolved

    declared: ClassVar[Mapping[str, Figure]]
    usual_objective: ClassVar[str] = "step_time"
    # Whether a diagnosis tells without a search that options leave no legal plan.
    diagnoses_options: ClassVar[bool] = False
    # Whether options can spell out a whole plan.
    has_exact_plans: ClassVar[bool] = True

    @property
    def request(self) -> Request:
        return self.resolved.request

    @property
    def choice(self) -> str:
        return self.resolved.kind.choice

    @property
    def objective(self) -> str:
        """What is minimised."""
        return self.resolved.request.objective or self.usual_objective

    @property
    def ranks_by_time(self) -> bool:
        """Whether plans are compared by their step times alone, however many devices they take."""
        return self.objective in ("step_time", "tokens_per_s")

    @property
    def score(self) -> Score:
        """What plans are compared by, where all devices are of one kind."""
        return score_of(self.objective, self.resolved.cluster.device, self.resolved.cluster.host)

    @property
    def time_limit_s(self) -> float:
        """How long a search may take."""
        limit_s = self.resolved.request.time_limit_s
        return _DEFAULT_TIME_LIMIT_S if limit_s is None else limit_s

    @property
    def free_layers(self) -> tuple[str, ...]:
        """Layers that the cost model counts as free, where it costs layers one by one."""
        return ()

    @property
    @abstractmethod
    def is_spelled_out(self) -> bool:
        """Whether options name the plan that is meant, or a part of it."""

    @classmethod
    def module(cls, name: str) -> ModuleType:
        """A module beside that of the space, imported when it is needed: ``plans``, ``report`` or ``diagnose``."""
        return importlib.import_module(f"{cls.__module__.rpartition('.')[0]}.{name}")

    # -- the search

    def refuse_contradiction(self) -> None:
        """Raise `UsageError` where the options leave no legal plan; where only a search can tell, `nothing_fits` says it."""

    @abstractmethod
    def outcome_of(self, top: int, progress: Progress | None) -> Any:
        """Search for the ``top`` best plans; the outcome has candidates, a bound and the nearest miss, and says what stopped it."""

    def search(self, top: int, progress: Progress | None) -> Found:
        """Look for the ``top`` best plans."""
        outcome = self.outcome_of(top, progress)
        plans = [candidate.plan for candidate in outcome.candidates]
        shown = min(self.resolved.request.top, len(plans))
        return Found(plans=plans, shown=shown, outcome=outcome)

    def time_left_s(self, found: Found) -> float:
        """How long what comes after a search may take: what is left of its limit, and a moment."""
        return max(self.time_limit_s - found.wall_s, _MOMENT_S)

    def preferred(self, found: Found) -> Found:
        """What a search brought with the plan to run first: another than the best, where that is hardly better and harder to run."""
        return found

    def after(self, asked: Request, known_gpus: int, known: Sequence[Any]) -> PlanSpace:
        """The space of the same question on other GPUs; a space may search the quicker for what is known.

        Parameters
        ----------
        asked : Request
            The same but for its GPUs.
        known_gpus : int
            All plans on so many GPUs are known.
        known : sequence
            Plans that the others have to beat, the best on so many GPUs among them.
        """
        return self if asked == self.resolved.request else space_of(resolve(asked))

    def no_plan(self, outcome: Any) -> Exception:
        """Say why a search found none."""
        if outcome.interrupted:
            return SearchInterrupted(None)
        return no_plan_in_time() if outcome.out_of_time else self.nothing_fits(outcome)

    def diagnosis(self) -> Diagnosis:
        """What says why there is no plan, and whether options leave a legal one."""
        found: Diagnosis = self.module("diagnose").DIAGNOSIS(self)
        return found

    def nothing_fits(self, outcome: Any) -> Exception:
        """Say why no plan of the space fits, and what would."""
        error: Exception = self.diagnosis().nothing_fits(outcome.nearest_miss)
        return error

    def proof(self, found: Found, plans: Sequence[RankedPlan]) -> Proof:
        """What the search proves about the plans of the list."""
        outcome, best = found.outcome, found.outcome.candidates[0].score
        ratio = min(outcome.bound_score / best, 1.0)
        proven = ratio >= 1 - PROOF_SLACK
        return Proof(
            proven_optimal=proven,
            bound_s=min((best if proven else ratio * best) / self.most_weight(), plans[0].step_time_s),
            gap=0.0 if proven else 1.0 - ratio,
            space_size=outcome.space_size or None,
            searched=outcome.searched,
            wall_s=found.wall_s,
        )

    def most_weight(self) -> float:
        """A plan scores its step time multiplied by this at most: no device costs more than a computing one."""
        return float(self.resolved.request.gpus) if self.score.per_device else 1.0

    @abstractmethod
    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, Any]:
        """What the best plan is compared with."""

    def search_notes(self, found: Found, answer: Answer) -> Sequence[str]:
        """What there is to say about the plans that were found."""
        if found.outcome.interrupted:
            return [Note("interrupted")]
        return [Note("out_of_time")] if found.outcome.out_of_time else []

    def finished(self, answer: Answer, found: Found) -> Answer:
        """The answer with what takes further searches: refined plans, what it depends on."""
        return answer

    def saved_bytes(self, plan: Any, workers: int) -> tuple[float, float]:
        """Bytes of a checkpoint of a training, and most that one rank writes of it, where ranks with the same weights share the work."""
        workload = self.resolved.workload
        width = workload.precision.weight_bytes + workload.precision.master_bytes + workload.optimizer.state_bytes
        total = (workload.graph.weight_count + workload.graph.norm_count) * width
        return total, total / workers

    # -- figures

    @abstractmethod
    def described(self, plans: Sequence[Any]) -> list[RankedPlan]:
        """Cost and describe plans, at least one, in their order."""

    def rank(self, plans: Sequence[Any], reference: float | None = None) -> list[RankedPlan]:
        """Cost and describe plans in their order; gaps are measured against a score, or against the first."""
        if not plans:
            return []
        found = self.described(plans)
        best = found[0].score if reference is None else reference
        return [dataclasses.replace(plan, rank=n, gap=plan.score / best - 1.0) for n, plan in enumerate(found, 1)]

    def bars(self, plans: Sequence[RankedPlan]) -> ErrorBars:
        """Intervals and chances of plans, and where these come from; nothing where there is no error model."""
        return ErrorBars()

    def error_bars(self, plans: Sequence[RankedPlan]) -> tuple[list[RankedPlan], ErrorBars]:
        """Plans with their intervals and chances, and where these come from."""
        from planner.uncertainty.bars import WITHOUT_MODEL, with_bars

        bars = self.bars(plans) if isinstance(self.resolved.workload.compute, RooflineCompute) else WITHOUT_MODEL
        listed, near = (tuple(plans[n - 1].rank for n in some) for some in (bars.benchmark_list, bars.near_list))
        bars = dataclasses.replace(bars, benchmark_list=listed, near_list=near)
        return with_bars(plans, bars), bars

    def wide_interval(self, plan: RankedPlan, bars: ErrorBars) -> list[Note]:
        """Why the interval of a plan is much wider than usual; nothing where it is not."""
        low, high = plan.step_time_low_s, plan.step_time_high_s
        if not low or high is None or high < _WIDE * low:  # an answer of one token has no time per token
            return []
        used = [group.device.name for group in self.resolved.cluster.groups]
        strange = [name for name in used if bars.devices and name not in bars.devices]
        runs = f"{counted(bars.rows, 'measured run')} of {bars.kind}" if bars.rows else f"runs known of {bars.kind}"
        tails = (
            f"a tenth of the {runs} took longer than its upper end, for reasons that no plan shows (docs/accuracy.md)"
        )
        why = f"it is from {runs} only" if 0 < bars.rows < _FEW_RUNS else tails
        if strange:
            why = f"no measured run of {bars.kind} was on {' or '.join(strange)}, and {why}"
        return [Note("wide_interval", ratio=high / low, why=why)]

    # -- what was assumed

    def setting(self, plan: Any) -> Setting:
        """The question as the answer states it."""
        return self.resolved.setting

    def assumptions(self, plan: Any) -> tuple[Assumption, ...]:
        """What was taken for granted about the question, where a plan is the answer."""
        resolved = self.resolved
        device, compute = resolved.cluster.device, resolved.workload.precision.compute
        rates = stated_rates(resolved.request, [(device.name, device, compute)], resolved.cluster.host)
        return (*resolved.assumptions, *rates)

    @property
    def assumed(self) -> Any:
        """Constants that the cost model takes for granted, a dataclass; None where it has none by name."""
        return None

    def source_of(self, name: str) -> str:
        """Where such a constant comes from."""
        return self.resolved.source_of(name)

    def model_assumptions(self) -> tuple[Assumption, ...]:
        """What the cost model takes for granted, by name."""
        constants = () if self.assumed is None else dataclasses.fields(self.assumed)
        return tuple(
            Assumption(
                name=item.name,
                value=f"{getattr(self.assumed, item.name):g}",
                source=self.source_of(item.name),
                meaning=item.metadata["doc"],
            )
            for item in constants
        )

    # -- one plan

    @abstractmethod
    def exact_plan(self) -> tuple[Any, tuple[Assumption, ...]]:
        """The plan that the options spell out, and what was chosen for the user."""

    @abstractmethod
    def broken(self, plan: Any) -> list[str]:
        """Say which rules a plan breaks."""

    def check(self, plan: Any) -> None:
        """Raise `UsageError` with every rule that a plan breaks."""
        problems = self.broken(plan)
        if problems:
            raise UsageError("\n".join(problems))

    def for_plan(self, plan: Any) -> PlanSpace:
        """The space to predict a given plan in: it may name what a search does not choose by itself."""
        return self

    def tables(self, plan: Any, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        """Rows by layer, stage and link."""
        return {}

    def plan_notes(self, ranked: RankedPlan) -> Sequence[str]:
        """What there is to say about one plan: that it does not fit, and what would help."""
        return self.does_not_fit(ranked)

    def does_not_fit(self, ranked: RankedPlan, **more: Any) -> list[Note]:
        """Say that a plan does not fit, if it does not, and what takes most of the memory."""
        if ranked.fits:
            return []
        if ranked.memory_parts:
            label, size = ranked.largest_memory_part
            more |= {"largest": label, "largest_bytes": size}
        need, have = ranked.memory_bytes_per_gpu, ranked.memory_capacity_bytes
        if ranked.fits_probability is not None and self.request.memory_limit is None:
            more |= {"device_bytes": ranked.memory_there_bytes, "fits_probability": ranked.fits_probability}
        return [Note("does_not_fit", needed_bytes=need, capacity_bytes=have, **more)]

    def explained(self, estimate: Estimate, plans: Sequence[RankedPlan], proof: Proof | None) -> Estimate:
        """An explanation with what only this space knows; ``plans``: the best, where they were searched for."""
        return estimate

    @property
    def report(self) -> ReportParts:
        parts: ReportParts = self.module("report").REPORT
        return parts

    # -- plan files

    def plan_entry(self, plan: Any) -> Mapping[str, Any]:
        """The section of a plan file that holds a plan, which is named as the space."""
        return dataclasses.asdict(plan)

    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        request = self.resolved.request
        return {"workers": ranked.workers, self.name: self.plan_entry(ranked.plan), "assume": dict(request.assume)}

    def plan_values(self, answer: Answer | Estimate, ranked: RankedPlan) -> Mapping[str, Any]:
        return self.plan_entry(ranked.plan)

    def plan_of(self, document: PlanDocument, source: Document | None) -> Any:
        """The plan of a plan file, checked against the network and the rules; raises `InputFileError`."""
        from planner.files.plan_file import PlanProblems

        problems = PlanProblems(document, source)
        plan = self.module("plans").read_plan(document, self, problems)
        problems.check()
        return plan

    # -- comparisons

    def item_type(self) -> type[Item]:
        """How its plans are compared with others."""
        from planner.spaces.items import Item

        return Item

    def setting_texts(self, estimate: Estimate) -> Mapping[str, str]:
        """A plan as text, by name of the setting."""
        from planner.spaces.items import setting_texts

        return setting_texts(estimate.ranked.plan)

    def split_layers(self, estimate: Estimate) -> Sequence[LayerCost]:
        """Layers that have splits of their own."""
        return ()

    # -- from one plan to another

    def differing(self, plan: Any, other: Any) -> Mapping[str, tuple[str, str]]:
        """What differs between two plans, as text of both, in the order in which it is changed; "" where the text would be long."""
        from planner.spaces.items import setting_texts

        first, second = setting_texts(plan), setting_texts(other)
        texts = {name: (first[name], second[name]) for name in first if first[name] != second[name]}
        return {name: both if max(map(len, both)) <= _MOST_LETTERS else ("", "") for name, both in texts.items()}

    def part_way(self, plan: Any, other: Any, names: Collection[str]) -> Any:
        """The first plan with some settings of the second; None where that is no legal plan."""
        changed = dataclasses.replace(plan, **{name: getattr(other, name) for name in names})
        return None if self.broken(changed) else changed

    # Plans that are looked at, at most, to say how many are better than one; and what they are.
    most_better: ClassVar[int] = 20
    better_plans: ClassVar[str] = "plans"
    # What follows where a setting changes: a sentence with a space in front.
    follows: ClassVar[str] = ""

    def better_than(self, score: float) -> tuple[int, bool]:
        """How many plans that fit score less, and whether there are no more; `most_better` of them are looked at.

        Ask a space in which nothing is fixed.
        """
        outcome = self.outcome_of(self.most_better, None)
        scores = [candidate.score for candidate in outcome.candidates]
        better = sum(1 for found in scores if found < score * (1 - EQUAL))
        return better, self.has_all_below(score, outcome)

    def has_all_below(self, score: float, outcome: Any) -> bool:
        """Whether a search is known to have found every plan that scores less."""
        return bool(outcome.bound_score >= score * (1 - EQUAL))

    # -- other questions

    def is_possible(self) -> bool:
        """Whether a legal plan may obey the options; a search tells for certain."""
        if self.diagnoses_options:
            diagnosis = self.diagnosis()
            return not diagnosis.is_empty(diagnosis.fixed)
        if not self.has_exact_plans:
            return True
        try:
            self.exact_plan()
        except (UsageError, NoFeasiblePlan):
            return False
        return True

    def without_fixed(self, gpus: int, top: int) -> PlanSpace:
        """The same question on so many GPUs with nothing fixed."""
        request = self.resolved.request
        free = dataclasses.replace(request, mesh=None, micro_batches=None, serving_degrees={}, top=top, gpus=gpus)
        return dataclasses.replace(self, resolved=dataclasses.replace(self.resolved, request=free))


def check_framework(resolved: Resolved, *conditions: str) -> None:
    """Refuse a framework that runs no plan of a question.

    Parameters
    ----------
    resolved : Resolved
    *conditions : str
        Conditions of rules that every plan of the space meets, such as "unequal_ranks".

    Raises
    ------
    UsageError
        With every rule that refuses them.
    """
    from costmodel.mesh.framework_rules import facts_of, of_no_plan

    workload = resolved.workload
    framework = workload.framework
    refusals = framework.rules.of()
    if not refusals:
        return
    facts = facts_of(workload.graph, workload.precision.name, workload.optimizer.name)
    values = as_asked(resolved, facts.values)
    problems = [framework.rules.cited(refusal, values, framework.name) for refusal in of_no_plan(refusals, facts)]
    problems += [
        framework.rules.cited(refusal, values, framework.name)
        for refusal in refusals
        if any(refusal.when.get(condition) is True for condition in conditions)
    ]
    if problems:
        raise UsageError("\n".join(f"--framework {framework.name}: {problem}" for problem in problems))


def as_asked(resolved: Resolved, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of facts for people, with the question's own word for its number format."""
    asked, name = resolved.request.precision, resolved.workload.precision.name
    return {**values, "precision": name if asked in (None, name) else f"{asked} ({name})"}


def space_of(resolved: Resolved) -> PlanSpace:
    """The space that a question is about; its modules are imported now.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned in it.
    """
    space: PlanSpace = imported(SPACES[resolved.space].make)(resolved=resolved)
    return space

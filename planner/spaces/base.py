"""What the planner needs of a space of plans to answer questions about it (`planner.ask`), and which spaces there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from costmodel.fields import Figure
from planner.core.answer import Answer, Assumption, Estimate, Proof, RankedPlan, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from costmodel.timeline import Tracks
    from planner.files.documents import Document
    from planner.report.blocks import Block, Table
    from planner.report.figures.standard import Curve
    from planner.resolve import Resolved
    from planner.schema.plan import PlanDocument
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = ["Found", "PlanSpace", "Progress", "ReportParts", "space_of"]

Progress = Callable[[str, float], None]


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
    interrupted : bool
        By the user.
    wall_s : float
        Time that the search took.
    """

    plans: Sequence[Any]
    shown: int
    outcome: Any
    interrupted: bool
    wall_s: float = 0.0


class ReportParts(Protocol):
    """What reports show of the plans of one space; everything else is the same for all spaces."""

    def plans_table(self, plans: Sequence[RankedPlan], objective: str, *, ranks: bool = True) -> Table:
        """Columns of plans; ``ranks``: whether they come from a search."""

    def search_facts(self, answer: Answer) -> Sequence[tuple[str, str]]:
        """What the answer of a search says about this kind of plans, by name."""

    def plan_facts(self, estimate: Estimate) -> Sequence[tuple[str, str]]:
        """What is said of one plan, by name."""

    def baselines_document(self, answer: Answer) -> Mapping[str, Any]:
        """What the best plan is compared with, by its keys in ``--json``."""

    def details_document(self, answer: Answer | Estimate) -> Mapping[str, Any]:
        """What only this space says, by its keys in ``--json``."""

    def compared(self, answer: Answer) -> Sequence[tuple[str, RankedPlan | None]]:
        """Baselines by what figures show them for."""

    def estimate_blocks(self, estimate: Estimate) -> Sequence[Block]:
        """What is shown of one plan: its parts, its stages."""

    def explain_blocks(self, estimate: Estimate) -> Sequence[Block]:
        """What is shown of one plan besides that, where it is explained: its layers."""


class PlanSpace(Protocol):
    """A question with its cost model and its search, over one space of plans.

    The plans that go in and out are of the type of the space; everything else is common to all spaces.
    """

    @property
    def name(self) -> str:
        """``layers``, ``mesh``, ``mixed`` or ``serving``."""

    @property
    def resolved(self) -> Resolved:
        """The question."""

    @property
    def objective(self) -> str:
        """What is minimised."""

    @property
    def declared(self) -> Mapping[str, Figure]:
        """The figures of a plan."""

    @property
    def free_layers(self) -> tuple[str, ...]:
        """Layers that the cost model counts as free, where it costs layers one by one."""

    @property
    def is_spelled_out(self) -> bool:
        """Whether options name the plan that is meant, or a part of it."""

    @property
    def has_exact_plans(self) -> bool:
        """Whether options can spell out a whole plan."""

    def refuse_contradiction(self) -> None:
        """Raise `UsageError` where the options leave no legal plan."""

    def search(self, top: int, progress: Progress | None) -> Found:
        """Look for the ``top`` best plans."""

    def no_plan(self, found: Found) -> Exception:
        """Say why a search found none."""

    def rank(self, plans: Sequence[Any], reference: float | None = None) -> list[RankedPlan]:
        """Cost and describe plans in their order; gaps are measured against a score, or against the first."""

    def error_bars(self, plans: Sequence[RankedPlan]) -> tuple[list[RankedPlan], ErrorBars]:
        """Plans with their intervals and chances, and where these come from."""

    def proof(self, found: Found, plans: Sequence[RankedPlan], wall_s: float) -> Proof:
        """What the search proves about the plans of the list."""

    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, Any]:
        """What the best plan is compared with."""

    def search_notes(self, found: Found, answer: Answer) -> Sequence[str]:
        """What there is to say about the plans that were found."""

    def finished(self, answer: Answer, found: Found) -> Answer:
        """The answer with what takes further searches: refined plans, what it depends on."""

    def setting(self, plan: Any) -> Setting:
        """The question as the answer states it."""

    def assumptions(self) -> tuple[Assumption, ...]:
        """What was taken for granted about the question."""

    def model_assumptions(self) -> tuple[Assumption, ...]:
        """What the cost model takes for granted, by name."""

    def exact_plan(self) -> tuple[Any, tuple[Assumption, ...]]:
        """The plan that the options spell out, and what was chosen for the user."""

    def check(self, plan: Any) -> None:
        """Raise `UsageError` with every rule that a plan breaks."""

    def for_plan(self, plan: Any) -> PlanSpace:
        """The space to predict a given plan in: it may name what a search does not choose by itself."""

    def tables(self, plan: Any, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        """Rows by layer, stage and link."""

    def plan_notes(self, ranked: RankedPlan) -> Sequence[str]:
        """What there is to say about one plan: that it does not fit, and what would help."""

    def without_fixed(self, gpus: int, top: int) -> PlanSpace:
        """The same question on so many GPUs with nothing fixed."""

    def explained(self, estimate: Estimate, plans: Sequence[RankedPlan], proof: Proof | None) -> Estimate:
        """An explanation with what only this space knows; ``plans``: the best, where they were searched for."""

    def sensitivity(self, plans: Sequence[RankedPlan]) -> tuple[Sensitivity, ...] | None:
        """Which constants would have to change for another plan to win."""

    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        """Entries of a plan file that hold a plan; relative paths in it start at ``folder``."""

    def plan_of(self, document: PlanDocument, source: Document | None) -> Any:
        """The plan of a plan file, checked against the network and the rules; raises `InputFileError`."""

    def tracks(self, plan: Any) -> Tracks:
        """The step of a plan, event by event."""

    @property
    def report(self) -> ReportParts:
        """What reports show of these plans: a module of the space."""

    def with_question(self, resolved: Resolved) -> PlanSpace:
        """The same space of another question about the same network and cluster."""

    def study(self, answer: Answer, progress: Progress) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        """More searches with the same cost model, for Pareto fronts and scaling curves: plans, curves, and a note."""


def space_of(resolved: Resolved) -> PlanSpace:
    """The space that a question is about; its modules are imported now.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned in it.
    """
    match resolved.space:
        case "mesh":
            from planner.spaces.mesh.space import mesh_space

            return mesh_space(resolved)
        case "mixed":
            from planner.spaces.mixed.space import mixed_space

            return mixed_space(resolved)
        case "serving":
            from planner.spaces.serving.space import serving_space

            return serving_space(resolved)
        case "layers":
            from planner.spaces.layers.space import layerwise_space

            return layerwise_space(resolved)

"""What the planner answers with, in every space of plans: ranked plans with their proof, and one plan part by part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from costmodel.fields import Figure, parts_of
from costmodel.uncertainty.limits import MemoryErrors
from planner.core.blocks import Block, Table
from planner.core.numbers import chance_text, surest_there
from planner.core.request import Request, TimeLimit

if TYPE_CHECKING:
    from costmodel.timeline import Tracks
    from planner.core.what_if import WhatIf

# Plans that people may benchmark before they choose.
SHORT_LIST = 4
# Sources of what somebody stated (`Request.source_of`).
STATED = ("given", "plan file")
# How a source begins that nobody stated and everybody should know of.
ASSUMED = "assumed: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that was taken for granted, as text for people."""

    name: str
    value: str
    source: str = ""  # where it came from: "given", "model file", "default", ...
    meaning: str = ""  # where the name does not say it


def assumption_text(assumption: Assumption, *, stated_only: bool = False) -> str:
    """Write an assumption for people: ``global batch 128 (model file)``.

    ``stated_only``: with the source of what somebody stated, and of what decides about the answer and nobody did.
    """
    is_said = assumption.source.startswith((*STATED, ASSUMED)) if stated_only else assumption.source
    return f"{assumption.name} {assumption.value}" + (f" ({assumption.source})" if is_said else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """Requests that are served, and the promises about their times; None where there is no such limit."""

    prompt_tokens: int
    output_tokens: int
    kv_precision: str
    load: str = "traffic"
    concurrency: int | None = None
    rate_per_s: float | None = None
    arrival_cv: float | None = None
    prompt_cv: float | None = None
    output_cv: float | None = None
    prefix_cached: float | None = None
    acceptance: float | None = None
    draft: str | None = None
    prefill_device: str | None = None
    max_ttft: TimeLimit | None = None
    max_tpot: TimeLimit | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Limits that were given, by the figure that they are about."""
        limits = {"ttft": self.max_ttft, "tpot": self.max_tpot}
        return {limit.figure(time): limit.seconds for time, limit in limits.items() if limit is not None}

    def document(self) -> dict[str, Any]:
        """The requests as files and answers state them: of each limit its seconds and, where it is no mean, its percentile."""
        stated = {item.name: getattr(self, item.name) for item in fields(self)}
        for time in ("max_ttft", "max_tpot"):
            limit = stated.pop(time)
            stated |= {
                f"{time}_s": limit and limit.seconds,
                f"{time}_percentile": limit and limit.percentile,
            }
        return stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The question that was asked, resolved to names and numbers."""

    model: str
    cluster: str
    device: str
    gpus: int
    global_batch: int
    precision: str
    optimizer: str
    mode: str  # "training" or "inference"
    cost_model: str  # "roofline" or "paleo"
    memory_capacity_bytes: float  # per worker, after --memory-limit
    # sha256 of every input file by role ("model", "cluster", "device"): provenance of exported plans.
    inputs: Mapping[str, str]
    command_line: str = ""
    cost_model_options: Mapping[str, float | str] = field(default_factory=dict)  # ppp_comp, ppp_comm, ...
    seq: int | None = None  # positions of a sample; None: the network's input is no sequence
    load: ServingLoad | None = None  # None: the question is not about serving
    framework: str = ""  # empty: a well-tuned implementation
    formats: Mapping[str, str | float] = field(default_factory=dict)  # what is in which number format
    memory_errors: MemoryErrors | None = None  # of the predicted memory; None: not known

    @property
    def limits(self) -> dict[str, float]:
        """Limits on the times of requests, by the figure that they are about."""
        return {} if self.load is None else self.load.limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """One plan of any space with its predicted costs.

    Attributes
    ----------
    rank : int
        1 is the best.
    plan : object
        The plan itself, of the type of its space.
    family, summary : str
        The region of the space that it lies in, and the plan in words.
    workers : int
        Devices in use.
    bottleneck : str
        The largest part of its time, in words.
    declared : mapping of str to Figure
        What its figures mean, by name: the declaration of its space.
    figures : mapping
        Values by name, in SI units; None where a figure is not known.
    main : str
        The figure that the parts of its time add up to: ``step_time_s``, or of serving ``tpot_s``.
    score : float
        What is minimised.
    gap : float
        Score over the best plan's, minus 1.
    step_time_low_s, step_time_high_s : float or None
        A measurement of the step (of serving, of the time per token) lies between these with a chance of 80 %.
    probability_best : float or None
        Of the plans that it is compared with; None: not compared.
    groups : tuple
        What it takes of every group of a cluster of several kinds of devices.
    fits_surest : float
        Largest P(fits) that measured runs can show.
    """

    plan: Any
    family: str
    summary: str
    workers: int
    bottleneck: str
    declared: Mapping[str, Figure]
    figures: Mapping[str, Any]
    score: float
    rank: int = 1
    gap: float = 0.0
    main: str = "step_time_s"
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    probability_best: float | None = None
    groups: tuple[Any, ...] = ()
    fits_surest: float = 1.0

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    def get(self, name: str) -> Any:
        """A figure that not every space has; None where this one lacks it."""
        return self.figures.get(name)

    @property
    def step_time_s(self) -> float:
        """Time of one training step; of serving, the time per token."""
        return float(self.figures["step_time_s"])

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples per second; of serving, requests."""
        return float(self.figures["throughput_samples_per_s"])

    @property
    def memory_bytes_per_gpu(self) -> float:
        """Peak memory of the device that is fullest for its size."""
        return float(self.figures["memory_bytes_per_gpu"])

    @property
    def memory_capacity_bytes(self) -> float:
        """What the plan may be predicted to need of it."""
        return float(self.figures["memory_capacity_bytes"])

    @property
    def fits_probability(self) -> float | None:
        """P(fits) of that device; None where it is not known."""
        found = self.figures.get("fits_probability")
        return None if found is None else float(found)

    @property
    def fits_surest_here(self) -> float:
        """Largest P(fits) that measured runs can show of so full a memory."""
        return surest_there(self.fits_surest, self.memory_bytes_per_gpu, self.memory_there_bytes)

    @property
    def fits_text(self) -> str:
        """P(fits) for people, as sure as the runs behind it allow; empty where it is not known."""
        return "" if self.fits_probability is None else chance_text(self.fits_probability, self.fits_surest_here)

    @property
    def memory_there_bytes(self) -> float:
        """What people call the memory of that device: all of it where P(fits) says what a plan may need, else what it may use."""
        return (
            float(self.figures["gpu_memory_bytes"]) if self.fits_probability is not None else self.memory_capacity_bytes
        )

    @property
    def exposed_communication_s(self) -> float:
        """Part of the step spent waiting for the network."""
        return float(self.figures["exposed_communication_s"])

    @property
    def exposed_communication_share(self) -> float:
        """The same as a share of the step."""
        return self.exposed_communication_s / self.step_time_s

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes_per_gpu <= self.memory_capacity_bytes

    def parts(self, total: str) -> dict[str, float]:
        """Figures that add up to another."""
        return {name: float(self.figures[name]) for name in parts_of(self.declared.values(), total)}

    def labelled_parts(self, total: str) -> dict[str, float]:
        """The same by what people call them."""
        return {self.declared[name].label: value for name, value in self.parts(total).items()}

    @property
    def time_parts(self) -> dict[str, float]:
        """Terms that add up to the step; of serving, to the time per token."""
        return self.parts(self.main)

    @property
    def time_totals(self) -> tuple[str, ...]:
        """Times that its terms add up to."""
        return tuple(dict.fromkeys(f.part_of for f in self.declared.values() if f.part_of.endswith("_s")))

    @property
    def memory_parts(self) -> dict[str, float]:
        """Terms that add up to the memory; empty where it is known as a whole only."""
        return self.parts("memory_bytes_per_gpu")

    @property
    def largest_memory_part(self) -> tuple[str, float]:
        """What people call the largest term of the memory, and its size."""
        return max(self.labelled_parts("memory_bytes_per_gpu").items(), key=lambda part: part[1])

    def record(self) -> dict[str, Any]:
        """Every figure by its key in ``--json``, without the plan itself."""
        figures = dict(self.figures)
        step = figures.pop("step_time_s")
        return {
            "rank": self.rank,
            "step_time_s": step,
            "step_time_low_s": self.step_time_low_s,
            "step_time_high_s": self.step_time_high_s,
            "probability_best": self.probability_best,
            "workers": self.workers,
            "family": self.family,
            "summary": self.summary,
            "bottleneck": self.bottleneck,
            "gap": self.gap,
            **figures,
        }

    def row(self) -> dict[str, Any]:
        """The figures and the plan's own settings as columns (``tp``, ``pp``, ``dp``, ``zero_stage``, ...) of a table."""
        settings = {
            item.name: getattr(self.plan, item.name)
            for item in fields(self.plan)
            if isinstance(getattr(self.plan, item.name), int | float | str) and item.name not in ("workers",)
        }
        dp = {"dp": self.plan.dp} if hasattr(self.plan, "dp") else {}
        return {**self.record(), **settings, **dp}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What somebody may want besides the best score, and the plan for it.

    Attributes
    ----------
    name : str
        Of `planner.report.roles.TITLES`.
    plan : RankedPlan or None
        None: there is none that fits.
    source : str
        Who says so, where somebody does.
    note : str
        How the plan differs from what is published; of the most headroom, how much more would count.
    why_not : str
        Why there is none, where that is known.
    """

    name: str
    plan: RankedPlan | None
    source: str = ""
    note: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBars:
    """How sure an answer is.

    Attributes
    ----------
    low_s, high_s : tuple of float
        Step times between which a measurement of each ranked plan lies with a chance of 80 %; empty where there is no error model.
    scores : tuple of float
        What the plans that were compared are predicted to cost, by the objective.
    probability_best : tuple of float
        Chance that each of the first `COMPARED_PLANS` ranked plans is the best of them; empty where they were not compared. More or fewer
        may be shown.
    benchmark_list : tuple of int
        Ranks of the fewest plans of which one is the best with a chance of `LISTED_SHARE`, of the first, and of those that take as long as
        one of them.
    benchmark_probability : float or None
        That chance, as it was found; None where nothing was compared.
    near_list, near_probability : tuple of int, float or None
        The same of the plans of which one is the best or within ``near_within`` of it.
    near_within : float or None
        `SAME_WITHIN`, or the least of some rounded numbers above it for which `NEAR_PLANS` are enough.
    calibration, kind : str
        Whose error model it is.
    note : str
        Why there are no error bars; empty where there are.
    basis : str
        What they stand on, where that is not training steps of the same kind.
    rows, devices : int, tuple of str
        How many measured runs they are from, and on which devices; 0 and none: not stated.
    """

    low_s: tuple[float, ...] = ()
    high_s: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    probability_best: tuple[float, ...] = ()
    benchmark_list: tuple[int, ...] = ()
    benchmark_probability: float | None = None
    near_list: tuple[int, ...] = ()
    near_probability: float | None = None
    near_within: float | None = None
    calibration: str = ""
    kind: str = ""
    note: str = ""
    basis: str = ""
    rows: int = 0
    devices: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[int, ...]:
        """Ranks that people are told to benchmark: a list of more than `SHORT_LIST` is no advice but a statement about the model."""
        every = len(self.benchmark_list) <= SHORT_LIST or not self.near_list
        return self.benchmark_list if every else self.near_list


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One constant.

    Attributes
    ----------
    constant, meaning : str
    now : tuple of (str, float)
        What the constant multiplies, in SI units.
    factor : float or None
        The nearest to 1 at which another plan is the best; None: none of up to 8 times more or less.
    winner : int or None
        Rank of that plan.
    winner_summary : str
    log_sd : float
        How sure the constant is.
    standard_deviations : float or None
        How many of these the change is.
    """

    constant: str
    meaning: str
    now: tuple[tuple[str, float], ...]
    factor: float | None
    winner: int | None
    winner_summary: str
    log_sd: float
    standard_deviations: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a search proves.

    Attributes
    ----------
    proven_optimal : bool
        No plan of the space is better than the first.
    proven_top : bool
        The whole list is the best of the space.
    bound_s : float
        No plan of the space takes less time per step (of serving: the objective as a time); 0 where nothing is known.
    gap : float
        (best - bound) / best, of the objective.
    space_size : int or None
        Distinct plans of the space; None where they are not counted.
    searched : mapping of str to int
        How the space was handled: "enumerated", "bounded away", ...
    solver : str
        Exact methods that proved the answer.
    wall_s : float
    """

    proven_optimal: bool
    bound_s: float
    gap: float
    searched: Mapping[str, int]
    wall_s: float
    space_size: int | None = None
    proven_top: bool = False
    solver: str = ""


class AnswerSpace(ABC):
    """What reports and plan files ask the space of an answer; `planner.spaces.base.PlanSpace` is all of it.

    Attributes
    ----------
    predicted : sequence of str
        Figures that a plan file states of its prediction.
    bounds_a_time : bool
        Whether the bound of a search is a time of a step.
    has_figures : bool
        Whether figures, traces and pages show the step of a plan.
    step_word : str
        What the time of a plan is per: ``step`` or ``token``.
    has_several_capacities : bool
        Whether devices differ in what they may hold.
    names_roles : bool
        Whether an answer names plans for other wishes than the best score.
    """

    name: ClassVar[str]
    predicted: ClassVar[Sequence[str]] = ("step_time_s", "throughput_samples_per_s", "memory_bytes_per_gpu")
    bounds_a_time: ClassVar[bool] = True
    has_figures: ClassVar[bool] = True
    step_word: ClassVar[str] = "step"
    has_several_capacities: ClassVar[bool] = False
    names_roles: ClassVar[bool] = False

    @property
    @abstractmethod
    def request(self) -> Request:
        """The question as it was asked."""

    @property
    @abstractmethod
    def choice(self) -> str:
        """What --space says to ask about it again."""

    @property
    @abstractmethod
    def report(self) -> ReportParts:
        """What reports show of these plans."""

    def sensitivity(self, plans: Sequence[RankedPlan]) -> tuple[Sensitivity, ...] | None:
        """Which constants would have to change for another plan to win; None where that is not known."""
        return None

    @abstractmethod
    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        """Entries of a plan file that hold a plan; relative paths in it start at ``folder``."""

    @abstractmethod
    def plan_values(self, answer: Answer | Estimate, ranked: RankedPlan) -> Mapping[str, Any]:
        """A plan as ``--json`` has it."""

    @abstractmethod
    def tracks(self, plan: Any) -> Tracks:
        """The step of a plan, event by event."""

    def memory_parts(self, plan: Any, total_bytes: float) -> Sequence[tuple[str, float]]:
        """Words and bytes that fill the memory of a plan, where its figures do not say; what is left over is the driver's."""
        return ()

    def study(
        self, answer: Answer, progress: Callable[[str, float], None]
    ) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        """More searches with the same cost model, for Pareto fronts and scaling curves: plans, curves, and a note."""
        return (), (), ""

    def what_if(self, ranked: RankedPlan) -> WhatIf | None:
        """A plan at other batches, sequences and numbers of devices; None where nothing can change."""
        return None


class ReportParts(Protocol):
    """What reports show of the plans of one space; everything else is the same for all spaces.

    Attributes
    ----------
    data_parallelism : str
        What its simplest plans have.
    space : str
        Which plans are searched.
    settings : mapping of str to str
        Settings of a plan that answers name a framework's own options for, and what they are in words.
    """

    data_parallelism: ClassVar[str] = "data parallelism (ZeRO, FSDP) only"
    space: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def plans_table(self, plans: Sequence[RankedPlan], objective: str, *, ranks: bool = True) -> Table:
        """Columns of plans; ``ranks``: whether they come from a search."""

    def shown(self, answer: Answer) -> Sequence[RankedPlan]:
        """Plans of the table, where not all that were found are worth a row."""

    def speed_facts(self, plan: RankedPlan, objective: str, runs: str = "") -> Sequence[tuple[str, str]]:
        """How fast a plan is, by name: what an answer says first; ``runs``: those that its interval is from."""

    def promise(self, answer: Answer | Estimate, plan: RankedPlan) -> str:
        """What a plan keeps with which chance, for the sentence that names it; begins with its comma."""
        return ""

    def binding(self, answer: Answer | Estimate, plan: RankedPlan) -> str:
        """Which limit keeps a plan from more, behind what its time goes to; empty where none does."""
        return ""

    def surer_options(self, answer: Answer) -> Mapping[str, str]:
        """Options that ask for a plan that keeps the limits more surely; empty where none is needed, or keeps them."""
        return {}

    def where_fullest(self, answer: Answer | Estimate, plan: RankedPlan) -> tuple[str, str]:
        """Where the memory of a plan is fullest, and what is to say of it elsewhere; of several kinds the first that is as full."""
        group = next((use.name for use in plan.groups if use.memory_bytes == plan.memory_bytes_per_gpu), None)
        return f"per {group or 'GPU'}", ""

    def search_facts(self, answer: Answer) -> Sequence[tuple[str, str]]:
        """What the answer of a search says about this kind of plans, by name."""
        return ()

    def detail_facts(self, answer: Answer) -> Sequence[tuple[str, str]]:
        """What ``--verbose`` adds to that."""
        return ()

    def plan_facts(self, estimate: Estimate) -> Sequence[tuple[str, str]]:
        """What is said of one plan beside its parts, by name."""
        return ()

    def baselines_document(self, answer: Answer) -> Mapping[str, Any]:
        """What the best plan is compared with, by its keys in ``--json``."""

    def details_document(self, answer: Answer | Estimate) -> Mapping[str, Any]:
        """What only this space says, by its keys in ``--json``."""
        return {}

    def compared(self, answer: Answer) -> Sequence[tuple[str, RankedPlan | None]]:
        """Baselines by what figures show them for."""

    def estimate_blocks(self, estimate: Estimate) -> Sequence[Block]:
        """What is shown of one plan: its parts, its stages."""

    def explain_blocks(self, estimate: Estimate) -> Sequence[Block]:
        """What is shown of one plan besides that, where it is explained: its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """What both kinds of answers say.

    Attributes
    ----------
    space : AnswerSpace
        The question with its cost model.
    free_layers : tuple of str
        Layers that the cost model counts as free.
    details : mapping
        What only the answers of some space say, by its key in ``--json``.
    """

    space: AnswerSpace
    setting: Setting
    objective: str
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...] = ()
    free_layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error_bars: ErrorBars | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPlan:
    """What the search under one of several frameworks found.

    Attributes
    ----------
    framework : str
    answer : Answer or None
        None: ``reason`` says why there is none.
    behind : float
        How much more its plan to run takes than that of the best framework, of the objective: 0.04 is 4 %.
    why : str
        Against the best framework, part by part, in sentences.
    target : str
        What `planner export` writes its launch files by; "": nothing does.
    """

    framework: str
    answer: Answer | None = None
    behind: float = 0.0
    why: str = ""
    target: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(_Answered):
    """Ranked plans with the proof that travels with them.

    Attributes
    ----------
    plans : tuple of RankedPlan
        The one to run, then the others, the best first.
    more : tuple of RankedPlan
        Plans beyond those that were asked for that the error bars name.
    refined : RankedPlan or None
        The best with blocks and recomputation of its own on every stage, or splits of its own inside the blocks, where it is faster than
        all of them; the proof is about the uniform space.
    fastest : RankedPlan or None
        The best plan for the objective, where the plan to run is a simpler one; ``proof`` is about it.
    forgone : tuple of str
        What makes it less simple.
    baselines : mapping
        What the best plan is compared with, by name; None where none fits.
    roles : tuple of Role
        Plans for other wishes, each by a search of its own.
    frameworks : tuple of FrameworkPlan
        Where several were asked about, the best first; the answer is that of the first.
    """

    plans: tuple[RankedPlan, ...]
    proof: Proof
    more: tuple[RankedPlan, ...] = ()
    refined: RankedPlan | None = None
    fastest: RankedPlan | None = None
    forgone: tuple[str, ...] = ()
    baselines: Mapping[str, Any] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    interrupted: bool = False
    frameworks: tuple[FrameworkPlan, ...] = ()

    @property
    def listed(self) -> tuple[RankedPlan, ...]:
        """Plans as a table has them: the refined one, where there is one, before those of the proven space."""
        return self.plans if self.refined is None else (self.refined, *self.plans)

    @property
    def tabled(self) -> tuple[RankedPlan, ...]:
        """The same, and those that are named to be benchmarked."""
        return (*self.listed, *self.more)

    @property
    def best(self) -> RankedPlan:
        """What to run."""
        return self.listed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(_Answered):
    """One plan, part by part.

    Attributes
    ----------
    ranked : RankedPlan
    tables : mapping of str to tuple of dataclass
        Rows by their key in ``--json``: ``layers``, ``stages``, ``links``.
    best : RankedPlan or None
        The best plan, where it was searched for.
    comparison : tuple of (part, this plan's seconds, the best plan's seconds)
        Why this plan is not the best, the largest difference first.
    sensitivity : tuple or None
        None: not asked for.
    """

    ranked: RankedPlan
    tables: Mapping[str, tuple[Any, ...]]
    best: RankedPlan | None = None
    comparison: tuple[tuple[str, float, float], ...] = ()
    sensitivity: tuple[Sensitivity, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Cost of one layer under a plan: time per step on the slowest worker, bytes per worker."""

    name: str
    kind: str
    split: str  # "data x16", "batch x4, out channels x4"
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    update_s: float
    reshard_s: float  # moves of the inputs and exchanges inside the layer, both passes
    exchange_s: float  # gradient exchange, hidden or not
    exposed_exchange_s: float
    collective: str  # "" where nothing is exchanged
    group: int  # workers in the gradient exchange
    flops: float  # forward, of the whole layer at the global batch
    weight_bytes: float  # of the whole layer
    memory_bytes: float  # per worker
    # [batch, height, width, channels] for images, [batch, positions, features] for sequences
    output_shape: tuple[int, ...]
    algorithms: tuple[str, str, str]  # forward, gradient of the input, gradient of the weights
    is_free: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """One row of a scaling curve."""

    workers: int
    global_batch: int
    batch_per_worker: int
    step_time_s: float
    compute_s: float
    exposed_communication_s: float
    throughput_samples_per_s: float
    speedup: float
    efficiency: float
    hours: float | None  # of training, with --epochs and --samples
    summary: str
    fits: bool
    # A measurement lies between these with a chance of 80 %; None: no error model.
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None

    @classmethod
    def of(
        cls,
        workers: int,
        global_batch: int,
        *,
        step_time_s: float,
        exposed_communication_s: float,
        epochs: float | None = None,
        samples: float | None = None,
        reference: float | None = None,
        **more: Any,
    ) -> ScalePoint:
        """The point of a plan; ``reference``: the throughput of one worker, that of this plan where it is left out.

        >>> point = ScalePoint.of(4, 64, step_time_s=2.0, exposed_communication_s=0.5, reference=10.0, summary="data", fits=True)
        >>> point.compute_s, point.speedup, point.efficiency
        (1.5, 3.2, 0.8)
        """
        rate = global_batch / step_time_s
        speedup = rate / (reference or rate)
        return cls(
            workers=workers,
            global_batch=global_batch,
            batch_per_worker=-(-global_batch // workers),
            step_time_s=step_time_s,
            compute_s=step_time_s - exposed_communication_s,
            exposed_communication_s=exposed_communication_s,
            throughput_samples_per_s=rate,
            speedup=speedup,
            efficiency=speedup / workers,
            hours=None if epochs is None or samples is None else epochs * samples / rate / 3600.0,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A scaling curve and the question that it answers."""

    setting: Setting
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...] = ()
    weak: bool
    family: str
    family_words: str = ""  # where its name does not say what it is
    epochs: float | None
    samples: float | None
    points: tuple[ScalePoint, ...]
    notes: tuple[str, ...] = ()
    error_bars: ErrorBars | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The best plan (or that of one family) at several numbers of GPUs."""

    name: str
    weak: bool
    points: tuple[
        tuple[int, int, float, str], ...
    ]  # GPUs allowed, global batch, step time in seconds, the plan in words

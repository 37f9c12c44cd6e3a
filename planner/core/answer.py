"""What the planner answers with, in every space of plans: ranked plans with their proof, and one plan part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from costmodel.fields import Figure, labels_of, parts_of

if TYPE_CHECKING:
    from planner.spaces.base import PlanSpace
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = [
    "Answer",
    "Assumption",
    "Estimate",
    "LayerCost",
    "Proof",
    "RankedPlan",
    "ScalePoint",
    "ServingLoad",
    "Setting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that was taken for granted, as text for people."""

    name: str
    value: str
    source: str = ""  # where it came from: "--batch", "model file", "default", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """Requests that are served, and the promises about their times; None where there is no such limit."""

    prompt_tokens: int
    output_tokens: int
    kv_precision: str
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Limits that were given, by the figure that they are about."""
        limits = {"ttft_s": self.max_ttft_s, "tpot_s": self.max_tpot_s}
        return {name: value for name, value in limits.items() if value is not None}


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
        """What that device may use."""
        return float(self.figures["memory_capacity_bytes"])

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

    def labels(self, total: str) -> dict[str, str]:
        """What people call them."""
        return labels_of(self.declared.values(), total)

    @property
    def time_parts(self) -> dict[str, float]:
        """Terms that add up to the step; of serving, to the time per token."""
        return self.parts(self.main)

    @property
    def memory_parts(self) -> dict[str, float]:
        """Terms that add up to the memory; empty where it is known as a whole only."""
        return self.parts("memory_bytes_per_gpu")

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

    def with_figures(self, **figures: float | None) -> RankedPlan:
        """The same with other values of some figures."""
        return replace(self, figures={**self.figures, **figures})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a search proves.

    Attributes
    ----------
    proven_optimal : bool
        No plan of the stated space is better than the first.
    proven_top : bool
        The whole list is the best of the space.
    bound_s : float
        No plan of the space takes less time per step (of serving: the objective as a time); 0 where nothing is known.
    gap : float
        (best - bound) / best, of the objective.
    space_size : int or None
        Distinct plans of the stated space; None where they are not counted.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Ranked plans with the proof that travels with them.

    Attributes
    ----------
    space : PlanSpace
        The question with its cost model.
    plans : tuple of RankedPlan
        Best first.
    refined : RankedPlan or None
        The best with blocks and recomputation of its own on every stage, or splits of its own inside the blocks, where it is faster than
        all of them; the proof is about the uniform space.
    baselines : mapping
        What the best plan is compared with, by name; None where none fits.
    free_layers : tuple of str
        Layers that the cost model counts as free.
    details : mapping
        What only the answers of some space say, by its key in ``--json``.
    """

    space: PlanSpace
    setting: Setting
    objective: str
    plans: tuple[RankedPlan, ...]
    proof: Proof
    refined: RankedPlan | None = None
    baselines: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...] = ()
    free_layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error_bars: ErrorBars | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def best(self) -> RankedPlan:
        """What to run: the refined plan where there is one, else the first."""
        return self.plans[0] if self.refined is None else self.refined


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One plan, part by part.

    Attributes
    ----------
    space : PlanSpace
        The question with its cost model.
    ranked : RankedPlan
    tables : mapping of str to tuple of dataclass
        Rows by their key in ``--json``: ``layers``, ``stages``, ``links``.
    best : RankedPlan or None
        The best plan, where it was searched for.
    comparison : tuple of (part, this plan's seconds, the best plan's seconds)
        Why this plan is not the best, the largest difference first.
    sensitivity : tuple or None
        None: not asked for.
    details : mapping
        What only the answers of some space say, by its key in ``--json``.
    """

    space: PlanSpace
    setting: Setting
    objective: str
    ranked: RankedPlan
    tables: Mapping[str, tuple[Any, ...]]
    best: RankedPlan | None = None
    comparison: tuple[tuple[str, float, float], ...] = ()
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...] = ()
    free_layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error_bars: ErrorBars | None = None
    sensitivity: tuple[Sensitivity, ...] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


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

"""What the planner answers with: plain types that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from costmodel.layerwise.plan import Plan

if TYPE_CHECKING:
    from costmodel.hardware.links import LinkRow
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = ["Assumption", "Breakdown", "LayerCost", "RankedPlan", "ScalePoint", "SearchResult", "Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that was taken for granted, as text for people."""

    name: str
    value: str
    source: str = ""  # where it came from: "--batch", "model file", "default", ...


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
    framework: str = ""  # empty: a well-tuned implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """One plan with its predicted cost; times per step, in seconds."""

    rank: int
    plan: Plan
    family: str
    summary: str  # "conv1-conv5: data x16, fc6-fc8: channels x16, ring"
    workers: int
    step_time_s: float
    throughput_samples_per_s: float
    speedup: float | None  # over one worker at the same global batch; None: one worker does not fit
    efficiency: float | None  # speedup / workers
    memory_bytes_per_gpu: float
    memory_capacity_bytes: float
    # The parts add up to the step.
    compute_s: float  # forward + backward
    update_s: float
    reshard_s: float  # moving activations and their gradients between and inside layers
    exposed_exchange_s: float  # gradient exchange not hidden by the backward pass
    bubble_s: float  # pipeline fill and drain
    exchange_s: float  # all gradient exchange, hidden or not
    exposed_communication_s: float  # reshard_s + exposed_exchange_s
    bottleneck: str  # "compute", "memory bandwidth", "gradient exchange", "resharding", "bubble", "optimizer"
    gap: float  # score over the best plan's, minus 1; the score is the step time unless another objective is asked for
    money_per_step: float | None = None  # in USD; None: no price is stated
    energy_per_step_j: float | None = None  # of the devices in use and their hosts; None: no power is stated
    step_time_low_s: float | None = None  # a measurement lies between these with a chance of 80 %; None: no error model
    step_time_high_s: float | None = None
    probability_best: float | None = None  # of the plans it is ranked with; None: not compared

    @property
    def exposed_communication_share(self) -> float:
        """Part of the step spent waiting for the network."""
        return self.exposed_communication_s / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Ranked plans with the proof that travels with them."""

    setting: Setting
    plans: tuple[RankedPlan, ...]  # best first
    proven_optimal: bool  # the first plan is the best of the whole stated space
    proven_top: bool  # the whole list is the K best with different keys
    bound_s: float  # no plan of the space is faster
    gap: float  # (best - bound) / best, of the objective
    space_size: int  # distinct plans in the stated space
    searched: Mapping[
        str, int
    ]  # plans or worker counts handled, by how ("enumerated", "solved exactly", "bounded away", ...)
    wall_s: float
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...]  # layers that the cost model counts as free
    data_parallel: RankedPlan | None  # best plain data parallelism over at most the same workers; None: does not fit
    data_parallel_all: RankedPlan | None  # the same over all `gpus` workers
    notes: tuple[str, ...]  # sentences for people: limits hit, options that change nothing
    solver: str  # which exact methods proved the answer
    error_bars: ErrorBars | None = None
    objective: str = "step_time"


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
    output_shape: tuple[
        int, ...
    ]  # [batch, height, width, channels] for images, [batch, positions, features] for sequences
    algorithms: tuple[str, str, str]  # forward, gradient of the input, gradient of the weights
    is_free: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One plan layer by layer; ``totals`` has the same keys as a layer, plus the step."""

    setting: Setting
    ranked: RankedPlan
    layers: tuple[LayerCost, ...]
    best: RankedPlan | None  # the best plan, when it was searched for
    # Why this plan is not the best: (term, this plan's seconds, the best plan's seconds), largest difference first.
    comparison: tuple[tuple[str, float, float], ...]
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...]
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    sensitivity: tuple[Sensitivity, ...] | None = None  # None: not asked for
    links: tuple[LinkRow, ...] = ()  # what the step waits for the network, by the links that are used
    objective: str = "step_time"  # what the best plan is the best by


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

"""What `--json` prints, one model per kind of answer; `planner schema result` publishes them as JSON Schema.

Times are in seconds, sizes in bytes, rates per second; a value that does not exist is null, never NaN or infinity.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.schema.plan import PlanDocument

__all__ = [
    "BreakdownDocument",
    "ComparisonEntry",
    "Head",
    "ListDocument",
    "Number",
    "ResultDocument",
    "ScaleDocument",
    "Seconds",
    "Tail",
]

Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Result(BaseModel):
    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = ConfigDict(extra="ignore", frozen=True)


class PlanCost(_Result):
    """One plan's predicted cost, per step."""

    rank: int = Field(ge=1, description="1 is the fastest.")
    step_time_s: Seconds = Field(description="Time of one step.")
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None
    probability_best: Number | None = Field(
        default=None,
        description="Chance that the plan is the best of the `benchmark_compared` first ones; null where it is none of these.",
    )
    throughput_samples_per_s: Number = Field(description="Global batch / step time.")
    memory_bytes_per_gpu: Number = Field(description="Peak memory of the fullest worker.")
    exposed_communication_s: Seconds = Field(description="Part of the step spent waiting for the network.")
    workers: int = Field(ge=1, description="Workers used; at most `gpus`.")
    family: str = Field(description="one-device, data, model, hybrid, spatial, mixed or pipeline.")
    summary: str = Field(description="The plan in words.")
    speedup: Number | None = Field(
        description="Over one worker at the same global batch; null where one worker does not fit."
    )
    efficiency: Number | None = Field(description="speedup / workers.")
    memory_capacity_bytes: Number = Field(description="Memory that a worker may use.")
    compute_s: Seconds = Field(description="Forward and backward pass.")
    update_s: Seconds = Field(description="Optimizer.")
    reshard_s: Seconds = Field(description="Moving activations and their gradients between and inside layers.")
    exposed_exchange_s: Seconds = Field(description="Gradient exchange that the backward pass does not hide.")
    bubble_s: Seconds = Field(description="Filling and draining of a pipeline.")
    exchange_s: Seconds = Field(description="All gradient exchange, hidden or not.")
    bottleneck: str = Field(description="The term that takes longest.")
    gap: Number = Field(description="Step time over the best plan's, minus 1.")
    money_per_step: Number | None = Field(default=None, description="In USD; null where no `price_per_hour` is stated.")
    energy_per_step_j: Number | None = Field(
        default=None, description="Of the workers and their hosts, in joules; null where no `power` is stated."
    )


class RankedPlanEntry(PlanCost):
    """A plan and its cost."""

    plan: PlanDocument = Field(description="The plan itself, as in a plan file.")


class AssumptionEntry(_Result):
    """One thing that was taken for granted."""

    name: str
    value: str
    source: str = Field(description="Where it came from; empty where it was computed.")


class SettingEntry(_Result):
    """The question, resolved to names."""

    device: str
    precision: str
    optimizer: str
    mode: Literal["training", "inference"]
    framework: str = Field(description="What runs the plans; empty: a well-tuned implementation.")
    memory_capacity_bytes: Number | None
    cost_model_options: dict[str, Number | str]
    inputs: dict[str, str] = Field(description="sha256 of the input files, by role.")
    command_line: str


class Head(_Result):
    """What every answer begins with."""

    schema_version: Literal[1]
    model: str
    cluster: str
    gpus: int = Field(ge=1, description="Workers that were allowed.")
    global_batch: int = Field(ge=1, description="Samples per step, all workers together.")
    cost_model: Literal["roofline", "paleo"]


class Tail(_Result):
    """What every answer ends with."""

    setting: SettingEntry
    assumptions: list[AssumptionEntry]
    free_layers: list[str] = Field(description="Layers that the cost model counts as free.")
    notes: list[str] = Field(description="Sentences for people.")


class ErrorBarsEntry(_Result):
    """Where the error bars come from."""

    calibration: str = Field(description="Whose residuals they are.")
    kind: str = Field(
        description="Kind of workload: transformers, images, a framework, serving, serving-experts or serving-shared-experts."
    )
    note: str = Field(description="Why there are no error bars; empty where there are.")
    basis: str = Field(
        default="",
        description="What they stand on, where that is not training steps: fewer measurements, so they are wider.",
    )


class Compared(_Result):
    """How sure a ranking is."""

    error_bars: ErrorBarsEntry | None = None
    benchmark_list: list[int] = Field(
        default_factory=list,
        description=(
            "Ranks of the fewest plans of which one is the best of those compared with a chance of at least 90 %, with those that take "
            "as long; ranks above `plans` are shown by a larger --top. Empty: not compared."
        ),
    )
    benchmark_probability: Number | None = Field(default=None, description="That chance, as it was found.")
    benchmark_compared: int = Field(
        default=0,
        ge=0,
        description="How many of the best plans were compared, whatever --top shows; their probability_best add up to 1.",
    )
    probability_others: Number | None = Field(
        default=None, description="Chance that the best is one of those compared that are not in `plans`."
    )
    near_list: list[int] = Field(
        default_factory=list,
        description=(
            "Ranks of the fewest plans, at most 4, of which one is the best or slower by at most `near_within` with a chance of at "
            "least 90 %."
        ),
    )
    near_probability: Number | None = Field(default=None, description="That chance, as it was found.")
    near_within: Number | None = Field(
        default=None, description="0.03, or the least rounded number above for which 4 plans are enough."
    )


class SensitivityEntry(_Result):
    """One constant of the cost model, and the change at which another plan is the best."""

    constant: str
    meaning: str
    now: dict[str, Number] = Field(description="What the constant multiplies, in SI units.")
    factor: Number | None = Field(
        description="The nearest to 1 at which another of the best plans wins; null: none of up to 8 times more or less."
    )
    winner: int | None = Field(description="Rank of that plan in the search.")
    winner_summary: str
    log_sd: Number = Field(description="How sure the constant is: standard deviation of its natural logarithm.")
    standard_deviations: Number | None = Field(description="How many of these the change is.")


class ResultDocument(Compared, Tail, Head):
    """Answer of `planner optimize --json`."""

    objective: str = Field(
        description="What is best: step_time, tokens_per_s, tokens_per_s_per_gpu, gpu_hours, money or energy."
    )
    plans: list[RankedPlanEntry] = Field(description="Best first.")
    proven_optimal: bool = Field(description="Whether no plan of the stated space is better than the first.")
    proven_top: bool = Field(description="Whether the list is the best of the space.")
    bound_s: Seconds = Field(description="No plan of the space is faster.")
    gap: Number = Field(ge=0, description="(best - bound) / best, of the objective.")
    space_size: int = Field(ge=0, description="Distinct plans in the stated space, exact; may exceed 64 bits.")
    space_size_log10: Number | None
    wall_s: Seconds = Field(description="Time of the search.")
    searched: dict[str, int] = Field(description="How the space was handled.")
    solver: str = Field(description="Exact methods that proved the answer.")
    data_parallel: PlanCost | None = Field(
        description="Best plain data parallelism on at most `gpus` workers; null: does not fit."
    )
    data_parallel_all: PlanCost | None = Field(
        description="Plain data parallelism on all `gpus` workers; null: does not fit."
    )


class LayerEntry(_Result):
    """One layer under a plan: times per step on the slowest worker."""

    name: str
    kind: str
    split: str
    forward_s: Seconds
    backward_input_s: Seconds = Field(description="Gradient of the layer's input.")
    backward_weight_s: Seconds = Field(description="Gradient of the layer's weights.")
    update_s: Seconds
    reshard_s: Seconds
    exchange_s: Seconds
    exposed_exchange_s: Seconds
    collective: str
    group: int = Field(description="Workers in the gradient exchange.")
    flops: Number = Field(description="Forward, of the whole layer at the global batch.")
    weight_bytes: Number = Field(description="Of the whole layer.")
    memory_bytes: Number = Field(description="Per worker.")
    output_shape: list[int] = Field(description="Batch first, channels last.")
    algorithms: list[str] = Field(description="Forward, gradient of the input, gradient of the weights.")
    is_free: bool


class ComparisonEntry(_Result):
    """One term of this plan and of the best."""

    term: str
    plan_s: Number
    best_s: Number


class LinkEntry(_Result):
    """One kind of traffic of a plan."""

    traffic: str = Field(description="What travels.")
    group: int = Field(ge=2, description="Ranks that take part together.")
    stride: int = Field(ge=1, description="Distance of neighbours in the numbering of the ranks.")
    level: str = Field(description="Outermost level of links that a group spans.")
    bytes_per_s: Number = Field(description="What a rank reaches over it while all others do the same.")
    waiting_s: Seconds = Field(description="Of a step.")


class BreakdownDocument(Tail, Head):
    """Answer of `planner explain --json`, and without `layers` and `totals` of `planner estimate --json`."""

    step_time_s: Seconds
    plans: list[RankedPlanEntry] = Field(min_length=1, max_length=1)
    layers: list[LayerEntry] | None = None
    totals: LayerEntry | None = Field(default=None, description="Sums over the layers, under the same keys.")
    links: list[LinkEntry] | None = Field(default=None, description="What the step waits for the network.")
    best: PlanCost | None = Field(description="The best plan, where it was searched for.")
    comparison: list[ComparisonEntry] = Field(description="Largest difference first.")
    error_bars: ErrorBarsEntry | None = None
    sensitivity: list[SensitivityEntry] | None = Field(
        default=None, description="With `--sensitivity`: what needs the smallest change first."
    )


class PointEntry(_Result):
    """One number of workers."""

    workers: int
    global_batch: int
    batch_per_worker: int
    step_time_s: Seconds
    compute_s: Seconds
    exposed_communication_s: Seconds
    throughput_samples_per_s: Number
    speedup: Number
    efficiency: Number
    hours: Number | None = Field(description="Of training, with --epochs and --samples.")
    summary: str
    fits: bool
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None


class ScaleDocument(Tail):
    """Answer of `planner scale --json`."""

    schema_version: Literal[1]
    model: str
    cluster: str
    cost_model: Literal["roofline", "paleo"]
    scaling: Literal["weak", "strong"]
    family: str
    batch: int = Field(ge=1, description="Samples per step: of each worker (weak) or of all together (strong).")
    epochs: Number | None
    samples: Number | None = Field(description="Samples of one epoch.")
    points: list[PointEntry]
    error_bars: ErrorBarsEntry | None = None


class ListDocument(_Result):
    """Answer of `planner list --json`."""

    schema_version: Literal[1]
    kind: Literal["models", "devices", "clusters", "collectives"]
    items: list[dict[str, Any]]

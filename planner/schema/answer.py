"""What `--json` prints about plans of every space: records made from the figures that each space declares (`costmodel.fields.Figure`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from costmodel.fields import parts_of
from costmodel.serving.workload import Load
from planner.core.request import SPACES, imported
from planner.report.roles import TITLES
from planner.schema.plan import (
    MeshEntry,
    MixedEntry,
    PlanDocument,
    ServingPlanEntry,
    SplitEntry,
    limit_keys,
    request_keys,
)
from planner.schema.records import INTERVAL, Amount, Number, Seconds, any_of, key, record, several

# -- what answers have in common -----------------------------------------------------------------------------------------------

AssumptionEntry = record(
    "AssumptionEntry",
    "One thing that was taken for granted.",
    name=str,
    value=str,
    source=key(str, "Where it came from; empty where it was computed."),
)

SettingEntry = record(
    "SettingEntry",
    "The question, resolved to names.",
    device=str,
    precision=str,
    formats=key(
        dict[str, Number | str], "What is in which number format, as `planner list precisions` has it, on the device."
    ),
    optimizer=str,
    mode=Literal["training", "inference"],
    framework=key(str, "What runs the plans; empty: a well-tuned implementation."),
    memory_capacity_bytes=Number | None,
    cost_model_options=dict[str, Number | str],
    inputs=key(dict[str, str], "sha256 of the input files, by role."),
    command_line=str,
)

Head = record(
    "Head",
    "What every answer begins with.",
    schema_version=Literal[1],
    model=str,
    cluster=str,
    gpus=key(int, "Workers that were allowed.", ge=1),
    global_batch=key(int, "Samples per step, all workers together.", ge=1),
    cost_model=Literal["roofline", "paleo"],
)

NoteEntry = record(
    "NoteEntry",
    "What a note says.",
    code=key(str, "What it is about, as in `does_not_fit`; `remark`: only a text is known."),
    values=key(dict[str, Any], "What the sentence says of this answer, in SI units."),
    text=key(str, "The sentence."),
)

Tail = record(
    "Tail",
    "What every answer ends with.",
    setting=SettingEntry,
    assumptions=several(AssumptionEntry),
    free_layers=key(list[str], "Layers that the cost model counts as free."),
    notes=key(list[str], "Sentences for people."),
    note_codes=key(several(NoteEntry), "The same notes for programs, in the same order."),
)

ErrorBarsEntry = record(
    "ErrorBarsEntry",
    "Where the error bars come from.",
    calibration=key(str, "Whose residuals they are."),
    kind=key(
        str, "Kind of workload: transformers, images, a framework, serving, serving-experts or serving-shared-experts."
    ),
    note=key(str, "Why there are no error bars; empty where there are."),
    basis=key(
        str,
        "What they stand on, where that is not training steps, or fewer than a framework of its own needs: they are wider.",
        default="",
    ),
)

Compared = record(
    "Compared",
    "How sure a ranking is.",
    error_bars=key(ErrorBarsEntry | None, default=None),
    benchmark_list=key(
        list[int],
        "Ranks of the fewest plans of which one is the best of those compared with a chance of at least 90 %, with those that take "
        "as long; ranks above `plans` are shown by a larger --top. Empty: not compared.",
        default_factory=list,
    ),
    benchmark_probability=key(Number | None, "That chance, as it was found.", default=None),
    benchmark_compared=key(
        int,
        "How many of the best plans were compared, whatever --top shows; their probability_best add up to 1.",
        default=0,
        ge=0,
    ),
    probability_others=key(
        Number | None, "Chance that the best is one of those compared that are not in `plans`.", default=None
    ),
    near_list=key(
        list[int],
        "Ranks of the fewest plans, at most 4, of which one is the best or slower by at most `near_within` with a chance of at "
        "least 90 %.",
        default_factory=list,
    ),
    near_probability=key(Number | None, "That chance, as it was found.", default=None),
    near_within=key(
        Number | None, "0.03, or the least rounded number above for which 4 plans are enough.", default=None
    ),
)

SensitivityEntry = record(
    "SensitivityEntry",
    "One constant of the cost model, and the change at which another plan is the best.",
    constant=str,
    meaning=str,
    now=key(dict[str, Number], "What the constant multiplies, in SI units."),
    factor=key(
        Number | None,
        "The nearest to 1 at which another of the best plans wins; null: none of up to 8 times more or less.",
    ),
    winner=key(int | None, "Rank of that plan in the search."),
    winner_summary=str,
    log_sd=key(Number, "How sure the constant is: standard deviation of its natural logarithm."),
    standard_deviations=key(Number | None, "How many of these the change is."),
)

ComparisonEntry = record(
    "ComparisonEntry",
    "One term of this plan and of the best.",
    term=str,
    plan_s=Number,
    best_s=Number,
)

PointEntry = record(
    "PointEntry",
    "One number of workers.",
    workers=int,
    global_batch=int,
    batch_per_worker=int,
    step_time_s=Seconds,
    compute_s=Seconds,
    exposed_communication_s=Seconds,
    throughput_samples_per_s=Number,
    speedup=Number,
    efficiency=Number,
    hours=key(Number | None, "Of training, with --epochs and --samples."),
    summary=str,
    fits=bool,
    **INTERVAL,
)

ScaleDocument = record(
    "ScaleDocument",
    "Answer of `planner scale --json`.",
    Tail,
    schema_version=Literal[1],
    model=str,
    cluster=str,
    cost_model=Literal["roofline", "paleo"],
    scaling=Literal["weak", "strong"],
    family=str,
    batch=key(int, "Samples per step: of each worker (weak) or of all together (strong).", ge=1),
    epochs=Number | None,
    samples=key(Number | None, "Samples of one epoch."),
    points=several(PointEntry),
    error_bars=key(ErrorBarsEntry | None, default=None),
)

# -- rows by layer, by stage, by link, by group of devices ---------------------------------------------------------------------

SplitCheckEntry = record(
    "SplitCheckEntry",
    "What the per-layer program says about how tensor parallelism splits the layers of a plan.",
    tp=key(int, "Tensor parallel degree of the plan.", ge=2),
    sequence_parallel=bool,
    is_confirmed=key(bool, "No split that the program suggests is faster than the standard one."),
    standard_step_time_s=key(Seconds, "Of the plan with columns, then rows, over all tp ranks."),
    best_step_time_s=key(Seconds, "Of the best split found, the standard one included."),
    best_ratio=key(Number, "That split takes this share of the standard one's time in the layers (passes and update)."),
    bound_ratio=key(
        Number, "No split takes less than this share of the standard one's time in the layers (passes and update)."
    ),
    splits=key(dict[str, SplitEntry], "Layers that the best split treats otherwise than the standard."),
)

MeshStageEntry = record(
    "MeshStageEntry",
    "One pipeline rank; times of one micro-batch.",
    rank=key(int, "Of the pipeline.", ge=0),
    blocks=key(str, "Per chunk: 8, or 4+4."),
    forward_s=key(Seconds, "Communication inside the layers included."),
    backward_s=Seconds,
    recompute_s=Seconds,
    transfer_s=key(Seconds, "To and from the neighbouring stages."),
    in_flight=key(Amount, "Micro-batches whose activations it keeps at once."),
    memory_bytes=key(Amount, "Of the GPU; the parts that follow, but for host_bytes, add up to it."),
    weight_bytes=Amount,
    gradient_bytes=Amount,
    optimizer_bytes=key(Amount, "Optimizer state and master weights."),
    activation_bytes=Amount,
    working_bytes=Amount,
    logits_bytes=Amount,
    buffer_bytes=key(Amount, "Communication buffers."),
    slack_bytes=key(Amount, "Lost to the allocator."),
    context_bytes=key(Amount, "Driver and libraries."),
    host_bytes=key(Amount, "Offloaded to the host."),
)

MeshLayerEntry = record(
    "MeshLayerEntry",
    "One layer on one rank, for one micro-batch.",
    unit=key(str, "embedding, head, or the first block of its kind."),
    count=key(int, "Equal blocks in the network.", ge=1),
    name=str,
    kind=str,
    split=key(str, "How tensor parallelism splits it: column, row, channel, whole, vocabulary, experts or repeated."),
    degree=key(int, "Ranks that share its weights or channels; those beyond repeat them.", ge=1),
    forward_s=Seconds,
    backward_s=Seconds,
    tp_exchange_s=key(Seconds, "Tensor-parallel communication of both passes."),
    weight_count=key(int, "Of the whole layer.", ge=0),
    weights_per_rank=key(int, ge=0),
    saved_bytes=key(Amount, "What it adds to what a micro-batch keeps for the backward pass, nothing recomputed."),
    saved_selective_bytes=key(Amount, "The same under selective recomputation."),
)

ServingLayerEntry = record(
    "ServingLayerEntry",
    "One layer on one rank, in a decoding pass of one group of sequences and in a pass that reads prompts.",
    unit=key(str, "embedding, head, or the first block of its kind."),
    count=key(int, "Equal blocks in the network.", ge=1),
    name=str,
    kind=str,
    decode_s=key(Seconds, "Kernels of the decoding pass."),
    decode_exchange_s=key(Seconds, "Tensor- and expert-parallel communication of it."),
    prefill_s=key(Seconds, "Kernels of the pass that reads prompts."),
    prefill_exchange_s=key(Seconds, "Communication of it."),
    weight_bytes=key(Amount, "Weights on the rank."),
    cache_bytes=key(Amount, "Keys and values of one sequence on the rank."),
)

GroupUseEntry = record(
    "GroupUseEntry",
    "What a plan takes of one group.",
    name=key(str, "The group's name, or its device's; with ` #1`, ` #2` ... where several are alike."),
    device=str,
    devices=key(int, "In use.", ge=0),
    available=key(int, "That `gpus` leave of the group: they are counted through the groups in order.", ge=0),
    memory_bytes=key(Amount, "Peak memory of the group's fullest device; 0 where none is in use."),
    memory_capacity_bytes=key(Amount, "Memory that a device of the group may use."),
)

MeshAloneEntry = record(
    "MeshAloneEntry",
    "A plan over a device mesh of one group alone.",
    step_time_s=Seconds,
    summary=key(str, "The plan in words."),
    plan=key(MeshEntry, "As under `mesh` in a plan file."),
)

MixedStageRowEntry = record(
    "MixedStageRowEntry",
    "One stage of one replica; times of one micro-batch but for exchange and update, which are of the step.",
    pipeline=key(int, ge=0),
    stage=key(int, ge=0),
    group=str,
    devices=key(int, "Tensor parallel degree.", ge=1),
    blocks=key(int, ge=1),
    forward_s=key(Seconds, "Communication inside the layers and the transfer it waits for included."),
    backward_s=key(Seconds, "The same, and recomputation."),
    recompute_s=Seconds,
    tp_s=Seconds,
    transfer_s=Seconds,
    exchange_s=Seconds,
    update_s=Seconds,
    busy_s=key(Seconds, "Of the step: all micro-batches of the busiest replica, exchange and update."),
    recompute=key(str, "none, selective or full."),
    recompute_blocks=key(int, "Under full.", ge=0),
    memory_bytes=Amount,
    memory_capacity_bytes=Amount,
)

StepBoundEntry = record(
    "StepBoundEntry",
    "What bounds the step: `working_s`, `waiting_s` and `end_s` add up to it.",
    pipeline=key(int, "The one that ends its passes last.", ge=0),
    stage=key(int, "Its busiest stage.", ge=0),
    group=str,
    num_micro_batches=key(int, "Of the busiest replica.", ge=1),
    working_s=key(Seconds, "Forward and backward passes of that stage for all micro-batches."),
    waiting_s=key(Number, "What the pipeline takes longer: filling, draining, waiting for other stages."),
    end_s=key(Number, "What exchange and update leave behind the last backward pass."),
    largest=key(str, "The largest part of the stage's work, in words."),
    largest_share=key(Number, "And its share of that work."),
    spare_s=key(list[Number], "How much earlier each pipeline ends its passes."),
)

WhatIfEntry = record(
    "WhatIfEntry",
    "One change of the hardware or of the plan, evaluated by the cost model.",
    change=key(str, "In words."),
    kind=key(Literal["hardware", "plan"], "What is changed; the other stays as it is."),
    step_time_s=key(Seconds, "What the step takes then."),
    gain=key(Number, "Step time now over step time then, minus 1: positive is faster."),
    fits=key(bool, "Whether the memory suffices."),
)

LayerEntry = record(
    "LayerEntry",
    "One layer under a plan: times per step on the slowest worker.",
    name=str,
    kind=str,
    split=str,
    forward_s=Seconds,
    backward_input_s=key(Seconds, "Gradient of the layer's input."),
    backward_weight_s=key(Seconds, "Gradient of the layer's weights."),
    update_s=Seconds,
    reshard_s=Seconds,
    exchange_s=Seconds,
    exposed_exchange_s=Seconds,
    collective=str,
    group=key(int, "Workers in the gradient exchange."),
    flops=key(Number, "Forward, of the whole layer at the global batch."),
    weight_bytes=key(Number, "Of the whole layer."),
    memory_bytes=key(Number, "Per worker."),
    output_shape=key(list[int], "Batch first, channels last."),
    algorithms=key(list[str], "Forward, gradient of the input, gradient of the weights."),
    is_free=bool,
)

LinkEntry = record(
    "LinkEntry",
    "One kind of traffic of a plan.",
    traffic=key(str, "What travels."),
    group=key(int, "Ranks that take part together.", ge=2),
    stride=key(int, "Distance of neighbours in the numbering of the ranks.", ge=1),
    level=key(str, "Outermost level of links that a group spans."),
    bytes_per_s=key(Number, "What a rank reaches over it while all others do the same."),
    waiting_s=key(Seconds, "Of a step."),
    domains=key(int, "Domains of fast links (nodes, NVLink racks) that the worst group touches.", ge=1),
    fewest_ranks=key(int, "Ranks of that group in the emptiest of them.", ge=1),
    most_ranks=key(int, "The same in the fullest.", ge=1),
)

# -- what every space says -----------------------------------------------------------------------------------------------------

PlanHead = record(
    "PlanHead",
    "What every space says of a plan.",
    rank=key(
        int,
        "1 is the plan to run, and the others follow by the objective.",
        ge=1,
    ),
    **INTERVAL,
    probability_best=key(
        Number | None,
        "Chance that the plan is the best of the `benchmark_compared` first ones; null where it is none of these.",
        default=None,
    ),
    workers=key(int, "GPUs used; at most `gpus`.", ge=1),
    family=key(str, "Parallel dimensions in use, joined by `+`, or the kind of split."),
    summary=key(str, "The plan in words."),
    bottleneck=key(str, "The part of its time that takes longest, in words."),
    gap=key(Number, "Objective over the best plan's, minus 1; a rate counts as its reciprocal."),
)

AnswerHead = record(
    "AnswerHead",
    "What every answer about plans begins with.",
    Head,
    seq=key(int | None, "Positions (tokens) of a sample; of serving, prompt and answer.", default=None),
    objective=key(str, "What is best: step_time, gpu_hours, money, throughput, ..."),
)

SearchHead = record(
    "SearchHead",
    "What every answer of `planner optimize --json` says.",
    Compared,
    Tail,
    AnswerHead,
    proven_optimal=key(bool, "Whether no plan of the space is better than the first."),
    proven_top=key(bool, "Whether the list is the best of the space.", default=False),
    bound_s=key(
        Seconds,
        "No plan of the space takes less time per step; of serving, the objective as a time where proven, else 0.",
    ),
    gap=key(Number, "(best - bound) / best, of the objective.", ge=0),
    space_size=key(
        int | None,
        "Distinct plans in the space, exact; may exceed 64 bits. Null: not counted.",
        default=None,
        ge=0,
    ),
    space_size_log10=key(Number | None, default=None),
    wall_s=key(Seconds, "Time of the search."),
    searched=key(dict[str, int], "How the space was handled."),
    solver=key(str, "Exact methods that proved the answer.", default=""),
)

EstimateHead = record(
    "EstimateHead",
    "What every answer of `planner estimate --json` and `planner explain --json` says.",
    Tail,
    AnswerHead,
    step_time_s=key(Seconds, "Time of one step; of serving, the mean time per token after the first."),
    comparison=key(several(ComparisonEntry), "Why it is not the best: the largest difference first."),
    error_bars=key(ErrorBarsEntry | None, default=None),
    sensitivity=key(
        several(SensitivityEntry) | None, "With `--sensitivity`: what needs the smallest change first.", default=None
    ),
    links=key(several(LinkEntry) | None, "What the step waits for the network.", default=None),
)

ServingHead = record(
    "ServingHead",
    "The requests that are served.",
    prompt_tokens=key(int, "Mean length of a prompt.", ge=1),
    output_tokens=key(int, "Mean length of an answer.", ge=1),
    kv_precision=key(str, "Cache of keys and values: fp32, fp16, bf16, fp8, int8 or nvfp4."),
    load=key(Load, "How requests come: `--load`."),
    **request_keys(),
    **limit_keys(Seconds),
)

# -- one space ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """What only one space has: its plans, and keys of its answers."""

    plan: Any
    of_plan: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    head: tuple[Any, ...] = ()
    search: Callable[[Any], Mapping[str, Any]] = lambda cost: {}  # noqa: ARG005 - of what a search answers beside its plans


def _rows(entry: Any, doc: str) -> tuple[Any, Any]:
    return key(several(entry) | None, doc, default=None)


def _role_keys(space: str, cost: Any) -> dict[str, Any]:
    entry = record(
        f"{SPACES[space].title}RoleEntry",
        "A plan by what it is for.",
        roles=key(several(Literal[tuple(TITLES)]), "Several where one plan is for all of them."),
        rank=key(int | None, "Of that plan in the list; null: it is not listed."),
        reason=key(str, "How it differs from the plan to run, or why there is none."),
        source=key(str | None, "Who published it; null: nobody did."),
        plan=key(cost | None, "null: none fits."),
    )
    return {"roles": key(several(entry), "Plans for other wishes than the best score.", default_factory=list)}


def _layer_search_keys(cost: Any) -> dict[str, Any]:
    from strategies.layerwise.simplest import FORGONE

    entry = record("LayerwiseCost", "A plan with a split per layer by its cost alone.", PlanHead, **_figures("layers"))
    return {
        "data_parallel": key(
            entry | None, "Best plain data parallelism on at most `gpus` workers; null: does not fit."
        ),
        "data_parallel_all": key(entry | None, "Plain data parallelism on all `gpus` workers; null: does not fit."),
        "fastest": key(
            cost | None,
            "The best plan for the objective, where the plan to run is a simpler one within 1 % of it (`rank` 2: it comes next, listed "
            "or not). null: the plan to run is the best.",
        ),
        "forgone": key(several(Literal[FORGONE]), "What the plan to run has, and `fastest` lacks."),
        **_role_keys("layers", cost),
    }


def _mesh_search_keys(cost: Any) -> dict[str, Any]:
    from strategies.mesh.simplest import FORGONE

    return {
        "refined": key(
            cost | None,
            "Best plan found with `stage_blocks` and `stage_recompute` of its own, or `block_splits` that save at least "
            "1 %, where it is better than all uniform ones, those of `plans` (its `rank` is 1 and theirs begin at 2, its `gap` is "
            "negative); null: none is. `--export` writes it. `proven_optimal`, `bound_s` and `gap` are about the uniform "
            "plans: this one may be below the bound.",
        ),
        "fastest": key(
            cost | None,
            "The best plan for the objective, where the plan to run is a simpler one: one within 1 % of it, or of the best that keeps "
            "activations on the device. `rank` 2: it comes next, listed or not; where `forgone` has `uniform`, it "
            "has stages or splits of its own, and `proven_optimal`, `bound_s` and `gap` are about the others. null: the "
            "plan to run is the best.",
        ),
        "forgone": key(several(Literal[FORGONE]), "What the plan to run has, and `fastest` lacks."),
        **_role_keys("mesh", cost),
        "splits": key(
            several(SplitCheckEntry),
            "What the per-layer program says about the splits inside the blocks of the best plans with tp > 1.",
        ),
    }


def _mixed_search_keys(cost: Any) -> dict[str, Any]:
    baseline = record(
        "BaselineEntry",
        "One group alone.",
        group=str,
        plan=key(cost | None, "Its best plan of the space; null: nothing was found that fits."),
        bound_s=key(Seconds | None, "No plan of that space on the group alone takes less; null: none."),
        mesh=key(
            MeshAloneEntry | None,
            "The best plan found on the group alone with all that `space: mesh` knows; null: none.",
        ),
    )
    return {"baselines": key(several(baseline), "Every group alone.")}


def _serving_search_keys(cost: Any) -> dict[str, Any]:
    from strategies.serving.simplest import FORGONE

    return {
        "fastest": key(
            cost | None,
            "The best plan for the objective, where the plan to run is a simpler one within 1 % of it. null: the plan to run is the best.",
        ),
        "forgone": key(several(Literal[FORGONE]), "What the plan to run has, and `fastest` lacks."),
        "surer": key(
            cost | None,
            "The best plan that keeps the limits with a chance of 90 %, where the first does not; null: none does, or it takes long.",
            default=None,
        ),
        "aggregated": key(
            cost | None, "Where GPUs of their own read prompts in the first plan: the best plan without.", default=None
        ),
        "undrafted": key(
            cost | None, "Where tokens are drafted in the first plan: the best plan without.", default=None
        ),
        "drafted": key(
            cost | None, "Where `acceptance` is given and none are: the best plan that drafts some.", default=None
        ),
        "disaggregated": key(
            cost | None, "Where they do not: the best plan in which GPUs of their own read prompts.", default=None
        ),
    }


_NETWORK_ORDER = "In network order; of equal blocks, the first one's."
_SPACES: dict[str, _Space] = {
    "layers": _Space(
        search=_layer_search_keys,
        plan=PlanDocument,
        rows={
            "layers": _rows(LayerEntry, "Times per step on the slowest worker."),
            "totals": key(LayerEntry | None, "Sums over the layers, under the same keys.", default=None),
        },
    ),
    "mesh": _Space(
        search=_mesh_search_keys,
        plan=MeshEntry,
        rows={
            "stages": _rows(MeshStageEntry, "One per pipeline rank."),
            "layers": _rows(MeshLayerEntry, _NETWORK_ORDER),
            "split": key(
                SplitCheckEntry | None,
                "What the per-layer program says about the splits; null: nothing is split.",
                default=None,
            ),
        },
    ),
    "mixed": _Space(
        search=_mixed_search_keys,
        plan=MixedEntry,
        of_plan={"groups": key(several(GroupUseEntry), "In the order of the cluster.")},
        rows={
            "stages": _rows(MixedStageRowEntry, "Of one replica of every pipeline."),
            "bound": key(StepBoundEntry | None, "What bounds the step.", default=None),
            "what_if": _rows(WhatIfEntry, "Hardware before plans, the most useful change first."),
        },
    ),
    "serving": _Space(
        search=_serving_search_keys,
        plan=ServingPlanEntry,
        rows={"layers": _rows(ServingLayerEntry, _NETWORK_ORDER)},
        head=(ServingHead,),
    ),
}
_SPACES |= {name: _Space(plan=PlanDocument.model_fields[name].annotation) for name, info in SPACES.items() if info.plan}
_KINDS = {"number": Number, "amount": Amount, "count": int, "text": str}


def _figures(space: str) -> dict[str, Any]:
    """A key for every figure of a space."""
    keys = {}
    for name, figure in imported(SPACES[space].figures).items():
        kind: Any = _KINDS[figure.kind]
        least: dict[str, Any] = {"ge": figure.least} if figure.kind == "count" else {}
        keys[name] = (
            key(kind | None, figure.doc, default=None, **least) if figure.optional else key(kind, figure.doc, **least)
        )
    return keys


@functools.cache
def cost_model(space: str) -> Any:
    """A plan of a space with its figures."""
    known, figures = _SPACES[space], imported(SPACES[space].figures).values()
    sums = dict.fromkeys(figure.part_of for figure in figures if figure.part_of)
    text = "A plan and its cost."
    for total in sums:
        names = parts_of(figures, total)
        text += f" `{names[0]}` to `{names[-1]}` add up to `{total}`."
    plan = key(known.plan, "The plan itself, as in a plan file.")
    return record(f"{SPACES[space].title}PlanCost", text, PlanHead, **_figures(space), **known.of_plan, plan=plan)


def _frameworks_key(space: str, plan: Any) -> Any:
    """Where several frameworks were asked about."""
    entry = record(
        f"{SPACES[space].title}FrameworkEntry",
        "The plan to run under one of several frameworks; null where it has none.",
        framework=str,
        reason=key(str | None, "Why there is no plan; null: there is one."),
        step_time_s=Seconds | None,
        step_time_low_s=key(
            Seconds | None, "A measurement lies between these with a chance of 80 %; null: no error model."
        ),
        step_time_high_s=Seconds | None,
        memory_bytes_per_gpu=Number | None,
        mfu=Number | None,
        workers=int | None,
        summary=key(str | None, "The plan in words."),
        behind=key(Number | None, "How much more it takes than the first, of the objective: 0.04 is 4 %."),
        proven_optimal=key(bool | None, "No plan of this framework's space is better."),
        bound_s=key(Number | None, "No plan of this framework's space takes less time."),
        gap=key(Number | None, "How much better another plan of this framework could be."),
        plan=key(plan | None, "The plan itself, as in a plan file."),
        why=key(str, "What the first does better, part by part, in sentences."),
        target=key(str, "What `planner export --to` calls it; empty: nothing writes its launch files."),
    )
    return key(
        several(entry),
        "Where several were asked about: the best first, those without a plan last. The rest of the document is about the first.",
        default_factory=list,
    )


@functools.cache
def search_model(space: str) -> Any:
    """Answer of `planner optimize --json` about plans of a space."""
    known, cost = _SPACES[space], cost_model(space)
    keys: dict[str, Any] = {
        "space": key(Literal[space], "Space of the plans."),
        "plans": key(several(cost), "Best first."),
        "data_parallel": key(
            cost | None,
            "The best plan with data parallelism only; of serving, replicas of one GPU each.",
            default=None,
        ),
    }
    keys |= known.search(cost)
    keys["frameworks"] = _frameworks_key(space, known.plan)
    text = f"Answer of `planner optimize --json` with `space: {space}`."
    return record(f"{SPACES[space].title}ResultDocument", text, SearchHead, *known.head, **keys)


@functools.cache
def estimate_model(space: str) -> Any:
    """Answer of `planner estimate --json` and `planner explain --json` about a plan of a space."""
    known, cost = _SPACES[space], cost_model(space)
    return record(
        f"{SPACES[space].title}BreakdownDocument",
        f"Answer of `planner explain --json` with `space: {space}`; of `planner estimate --json` without rows by layer.",
        EstimateHead,
        *known.head,
        space=key(Literal[space], "Space of the plans."),
        plans=key(several(cost), min_length=1, max_length=1),
        **known.rows,
        best=key(cost | None, "The best plan, where it was searched for."),
    )


AnyResult = any_of(
    "AnyResult",
    "Answer of `planner optimize --json`: by `space` of plans with a split per layer, over a device mesh, over several groups of devices, "
    "or of serving.",
    [search_model(space) for space in _SPACES],
)
AnyBreakdown = any_of(
    "AnyBreakdown",
    "Answer of `planner explain --json` and `planner estimate --json`, of any space.",
    [estimate_model(space) for space in _SPACES],
)

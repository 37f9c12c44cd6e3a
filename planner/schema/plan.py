"""Plan files: a chosen split of a network over a cluster, with its prediction and where it came from.

::

    schema_version: 1
    model: alexnet                       # bundled name, or a path relative to this file (absolute, or starting with "./" or "../")
    cluster: dgx-h100
    gpus: 16                             # what was allowed; `workers` is what is used
    global_batch: 128
    precision: bf16
    optimizer: momentum
    mode: training
    cost_model: roofline
    workers: 16
    num_micro_batches: 1
    layers:                              # every layer; degrees of 1 are left out; their product is `workers`
      data: {batch: 16}
      conv1: {batch: 16, collective: ring}
      fc6: {batch: 2, out_channels: 8, collective: tree}
    prediction: {step_time_s: 0.00123, memory_bytes_per_gpu: 1234567.0}
    provenance: {planner_version: 0.1.0, inputs: {model: 3fa9...}}

A plan over a device mesh has ``mesh`` in place of ``layers``, and its ``workers`` are tp x cp x pp x dp_replicate x dp_shard::

    workers: 64
    mesh: {tp: 8, sequence_parallel: true, pp: 4, dp_shard: 2, zero_stage: 1, micro_batch: 2, num_micro_batches: 16}

A plan over several groups of devices has ``mixed`` instead: pipelines, each with its stages and its share of the batch::

    mixed:
      zero_stage: 1
      pipelines:
        - replicas: 16
          num_micro_batches: 16
          stages:
            - {group: v100-32gb, tp: 2, blocks: 17}
            - {group: a100-80gb, tp: 1, blocks: 23, recompute: full, recompute_blocks: 2}

A way to serve has ``serving`` instead; its ``workers`` are tp x pp x dp and those that only read prompts,
its ``global_batch`` is dp x max_batch::

    mode: inference
    workers: 16
    serving: {tp: 8, dp: 2, max_batch: 64, prefill_chunk: 512, prompt_tokens: 1024, output_tokens: 256}

A pipeline names its stages; the layers of a stage are all split ``batch: replicas``:
``stages: [{first: data, last: pool5, replicas: 4}, {first: fc6, last: softmax, replicas: 2}]``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from costmodel.mesh.plan import MeshPlan
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from costmodel.objectives import PERCENTILES, SERVING_OBJECTIVES, with_figures
from costmodel.paleo.convolution import ALGORITHMS
from costmodel.serving.plan import ServingPlan
from costmodel.serving.workload import Load
from planner.core.errors import did_you_mean
from planner.core.request import SPACES, imported
from planner.schema.common import FileModel, Text, fail
from planner.schema.records import key, record

Degree = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Word = Annotated[str, Field(strict=True, min_length=1, max_length=4096)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=10**8)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def request_keys(**more: Any) -> dict[str, Any]:
    """Keys that say how many requests come, and how they differ."""
    variation = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None
    return {
        "concurrency": key(
            Count | None, "Requests in flight, of all replicas; null: as many as there are places.", **more
        ),
        "rate_per_s": key(
            Limit | None, "Requests per second, of all replicas; null: the next one comes when one is answered.", **more
        ),
        "arrival_cv": key(variation, "Coefficient of variation of the times between requests; null: 1.", **more),
        "prompt_cv": key(variation, "Coefficient of variation of the lengths of prompts; null: 0.", **more),
        "output_cv": key(variation, "Coefficient of variation of the lengths of answers; null: 0.", **more),
        "prefix_cached": key(
            Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None,
            "Share of a prompt's tokens that are in the cache when it comes; null: 0.",
            **more,
        ),
        "acceptance": key(
            Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None,
            "Share of drafted tokens that are accepted where those before them were; null: none are drafted.",
            **more,
        ),
        "prefill_device": key(
            Word | None, "Devices of the workers that only read prompts, by name or path; null: as the others.", **more
        ),
        "draft": key(Word | None, "What drafts: `mtp`, `ngram`, or a network by name or path.", **more),
    }


def limit_keys(seconds: Any, **more: Any) -> dict[str, Any]:
    """Keys of the limits on times, each with the percentile that it is about."""
    keys: dict[str, Any] = {}
    for time, words in (("ttft", "time to first token"), ("tpot", "time per token")):
        about = f"Percentile of the {words} that the limit is about; null: its mean."
        keys[f"max_{time}_s"] = key(seconds | None, f"Limit on the {words}.", **more)
        keys[f"max_{time}_percentile"] = key(Literal[PERCENTILES] | None, about, **more)
    return keys


def _settings(plan: Any) -> dict[str, Any]:
    """A key for every setting that a plan declares (`costmodel.fields.setting`)."""
    keys = {}
    for item in fields(plan):
        if not item.metadata:
            continue
        whole = Annotated[int, Field(strict=True, ge=item.metadata["least"], le=item.metadata["most"])]
        flag = Annotated[bool, Field(strict=True)]
        kinds: dict[type, Any] = {bool: flag, int: whole, tuple: tuple[whole, ...], str: Literal[item.metadata["of"]]}
        keys[item.name] = key(kinds[type(item.default)], item.metadata["doc"], default=item.default)
    return keys


if TYPE_CHECKING:
    CostModelOptions: TypeAlias = Any
    LayerSplit: TypeAlias = Any
    MeshEntry: TypeAlias = Any
    MixedEntry: TypeAlias = Any
    Prediction: TypeAlias = Any
    Provenance: TypeAlias = Any
    ServingEntry: TypeAlias = Any
    ServingPlanEntry: TypeAlias = Any
    SplitEntry: TypeAlias = Any
    StageEntry: TypeAlias = Any
else:
    # -- a plan over a device mesh: `costmodel.mesh.plan.MeshPlan`

    SplitEntry = record(
        "SplitEntry",
        "How tensor parallelism splits a layer.",
        FileModel,
        role=key(
            Literal["column", "row", "channel", "whole", "vocabulary", "repeated"],
            "column, row: a matrix by its outputs, inputs; channel: a share of the channels or heads; vocabulary: rows of an embedding; "
            "whole: not split, on a share of the positions under sequence parallelism; repeated: everything on every rank.",
        ),
        degree=key(Degree, "Shares; where there are fewer than tp, ranks repeat them.", default=1),
    )
    MeshEntry = record(
        "MeshEntry",
        "One choice for the whole network; what is left out is 1, none or false.",
        FileModel,
        **_settings(MeshPlan),
        block_splits=key(
            dict[Annotated[str, Field(min_length=1, max_length=4096)], SplitEntry],
            "Layers (of equal blocks, the first one's) that are not split by columns, then rows, over all tp ranks.",
            default_factory=dict,
        ),
    )

    # -- a way to serve: `costmodel.serving.plan.ServingPlan`

    ServingPlanEntry = record(
        "ServingPlanEntry", "One way to serve; degrees that are left out are 1.", FileModel, **_settings(ServingPlan)
    )
    ServingEntry = record(
        "ServingEntry",
        "One way to serve, and what for.",
        ServingPlanEntry,
        prompt_tokens=key(Tokens, "Mean length of a prompt."),
        output_tokens=key(Tokens, "Mean length of an answer."),
        kv_precision=key(
            Literal["fp32", "fp16", "bf16", "fp8", "int8", "nvfp4"] | None,
            "Cache of keys and values; that of the activations where it is left out.",
            default=None,
        ),
        load=key(Load, "How requests come: `--load`.", default="traffic"),
        objective=key(
            Literal[tuple(SERVING_OBJECTIVES)],
            "What the plan was chosen for.",
            default="throughput",
        ),
        **request_keys(default=None),
        **limit_keys(Limit, default=None),
    )

    # -- a plan over several groups of devices: `costmodel.mixed.plan.MixedPlan`

    MixedStageEntry = record(
        "MixedStageEntry",
        "Consecutive blocks on devices of one group.",
        FileModel,
        group=key(Word, "Name of the group, or of its device; with ` #1`, ` #2` ... where several are alike."),
        blocks=key(
            Annotated[int, Field(strict=True, ge=1, le=10**6)],
            "Of the network, in its order; embedding and head go with the first and the last stage.",
        ),
        **_settings(MixedStage),
    )
    MixedPipelineEntry = record(
        "MixedPipelineEntry",
        "Equal replicas of one pipeline (1F1B).",
        FileModel,
        **_settings(MixedPipeline),
        stages=key(tuple[MixedStageEntry, ...], "In network order.", min_length=1, max_length=10_000),
    )
    MixedEntry = record(
        "MixedEntry",
        "Pipelines that together work through the global batch.",
        FileModel,
        **_settings(MixedPlan),
        pipelines=key(
            tuple[MixedPipelineEntry, ...],
            "Each with its own stages and share of the batch.",
            min_length=1,
            max_length=100,
        ),
    )

    # -- the file

    LayerSplit = record(
        "LayerSplit",
        "How one layer is split; 1 means not split that way.",
        FileModel,
        batch=key(Degree, "Parts of the batch.", default=1),
        out_channels=key(Degree, "Parts of the output channels (features).", default=1),
        in_channels=key(Degree, "Parts of the input channels; partial sums are reduced.", default=1),
        height=key(Degree, "Parts of the rows of an image.", default=1),
        collective=key(
            Word | None, "All-reduce of the layer's gradient; the cheapest where it is left out.", default=None
        ),
    )
    StageEntry = record(
        "StageEntry",
        "A contiguous piece of the layers, in the order of the network, on workers of its own.",
        FileModel,
        first=key(Word, "Name of the first layer."),
        last=key(Word, "Name of the last layer, inclusive."),
        replicas=key(Degree, "Workers of the stage; each takes a part of every micro-batch."),
    )
    CostModelOptions = record(
        "CostModelOptions",
        "Options of the cost model `paleo`.",
        FileModel,
        ppp_comp=key(Share, "Share of the peak that computation reaches.", default=1.0),
        ppp_comm=key(Share, "Share of the bandwidth that messages reach.", default=1.0),
        paleo_pipeline=key(bool, "Memory and computation overlap in a layer.", default=False),
        paleo_extensions=key(bool, "Kinds unknown to PALEO are costed by the roofline.", default=False),
        paleo_algorithms=key(Word | None, "File with the algorithm of each convolution and pass.", default=None),
    )
    Prediction = record(
        "Prediction",
        "What the cost model said when the plan was written; checked by nobody, recomputed by `planner estimate --plan`.",
        FileModel,
        summary=key(Text, "The plan in words.", default=""),
        family=key(Text, "Region of the space that the plan lies in.", default=""),
        step_time_s=key(Number | None, "Time of one training step, in seconds.", default=None),
        throughput_samples_per_s=key(Number | None, default=None),
        ttft_s=key(Number | None, "Of serving: time to first token, in seconds.", default=None),
        tpot_s=key(Number | None, "Of serving: mean time per token after the first, in seconds.", default=None),
        requests_per_s=key(Number | None, "Of serving, all replicas.", default=None),
        output_tokens_per_s=key(Number | None, "Of serving, all replicas.", default=None),
        memory_bytes_per_gpu=key(Number | None, "Peak memory of the fullest worker, in bytes.", default=None),
        objective=key(Word | None, "What the search made least; the step time where it is left out.", default=None),
        proven_optimal=key(bool | None, "Whether no plan of the space is better by the objective.", default=None),
        **{
            name: key(Number | None, f"What a step costs, in {cost.unit}, where that is the objective.", default=None)
            for name, cost in with_figures().items()
        },
        bound_s=key(Number | None, "No plan of the space is faster, in seconds.", default=None),
    )
    Provenance = record(
        "Provenance",
        "Where the plan came from.",
        FileModel,
        planner_version=key(Text, default=""),
        command_line=key(Text, default=""),
        inputs=key(dict[str, Text], "sha256 of the input files, by role.", default_factory=dict),
        assumptions=key(tuple[Text, ...], default=()),
    )


class PlanDocument(FileModel):
    """A plan file."""

    schema_version: Literal[1] = Field(description="Version of this format.")
    model: Word = Field(description="The network: a bundled name, or a path relative to this file.")
    cluster: Word | None = Field(
        default=None, description="The cluster: a bundled name, or a path relative to this file."
    )
    device: Word | None = Field(default=None, description="Takes the place of the cluster's own device.")
    gpus: Degree = Field(description="Workers that were allowed.")
    global_batch: Count = Field(
        description="Samples per step, all workers together; of a plan with `serving`, the sequences at a time."
    )
    seq: Count | None = Field(
        default=None, description="Positions of a sample; the network's own where it is left out."
    )
    doc_lengths: tuple[Count, ...] | None = Field(
        default=None, description="Lengths of the documents packed into a sample, in turn; it is one where left out."
    )
    doc_cv: float | None = Field(
        default=None, gt=0, description="Coefficient of variation of lengths whose mean is that of doc_lengths."
    )
    assume_free: list[Word] = Field(
        default_factory=list,
        description="Operators of another program's network that are not known and are taken to cost nothing.",
    )
    lora_rank: Count | None = Field(
        default=None, description="All weights are frozen; the linear layers of the blocks train adapters of this rank."
    )
    precision: Word | None = None
    optimizer: Word | None = None
    mode: Literal["training", "inference"] = "training"
    cost_model: Literal["roofline", "paleo"] = "roofline"
    cost_model_options: CostModelOptions = Field(default_factory=CostModelOptions)
    calibration: Word | None = Field(
        default=None,
        description="Constants of the cost model: a bundled name, or a path relative to this file; the bundled ones where it is left out.",
    )
    framework: Word | None = Field(
        default=None,
        description="What runs the plan: a bundled name or a path relative to this file; a well-tuned implementation where left out.",
    )
    memory_limit: Word | None = Field(default=None, description="Memory per worker that may be used, with its unit.")
    memory_reserve: Word | None = Field(
        default=None,
        description="Memory per worker that is left free, a share or with its unit.",
    )
    memory_confidence: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None,
        description="Chance of fitting that the plan needs. Where this, memory_reserve and memory_limit are left out: 95 % (inference and "
        "the paleo cost model: 5 % are left free).",
    )
    workers: Degree = Field(description="Workers that the plan uses.")
    num_micro_batches: Count = Field(
        default=1, description="Parts into which every step's batch is cut, one after the other."
    )
    stages: tuple[StageEntry, ...] = Field(
        default=(), description="Stages of a pipeline; none where every worker holds every layer."
    )
    layers: dict[str, LayerSplit] = Field(
        default_factory=dict,
        description="Every layer of the network and its split; not with `mesh`, `mixed` or `serving`.",
    )
    mesh: MeshEntry | None = Field(default=None, description="The plan over a device mesh; in place of `layers`.")
    mixed: MixedEntry | None = Field(
        default=None, description="The plan over several groups of devices; in place of `layers`."
    )
    serving: ServingEntry | None = Field(default=None, description="A way to serve; in place of `layers`.")
    assume: dict[str, Number] = Field(
        default_factory=dict, description="Assumptions of the cost model that differ from its defaults, by name."
    )
    prediction: Prediction = Field(default_factory=Prediction)
    provenance: Provenance = Field(default_factory=Provenance)

    @model_validator(mode="before")
    @classmethod
    def _no_answer(cls, given: Any) -> Any:
        if isinstance(given, dict) and "plans" in given:
            fail("this file holds an answer (--output); --export FILE writes the best plan of an answer as a plan file")
        return given

    @property
    def section(self) -> str:
        """Where the plan stands, which is the name of its space."""
        return next(name for name in reversed(SPACES) if getattr(self, name))

    @model_validator(mode="after")
    def _one_space(self) -> Self:
        given = [name for name in SPACES if getattr(self, name)]
        if not given:
            fail("a plan has either 'layers' or 'mesh' (or 'mixed', or 'serving')")
        for name, (value, contradiction) in SPACES[self.section].keys.items():
            if getattr(self, name) != value:
                fail(contradiction.format(section=self.section), at=name)
        if len(given) > 1:
            fail(f"a plan has either '{given[0]}' or '{given[1]}'; this one has both", at=given[1])
        return self


# A space that was added has a section, too.
_ADDED = {
    info.name: key(
        record(f"{info.title}Entry", info.product, FileModel, **_settings(imported(info.plan))) | None,
        "The plan; in place of `layers`.",
        default=None,
    )
    for info in SPACES.values()
    if info.plan
}
if _ADDED and not TYPE_CHECKING:
    PlanDocument = record("PlanDocument", PlanDocument.__doc__, PlanDocument, **_ADDED)

# -- the convolution algorithms that the paleo cost model is told to use -----------------------------------------------------


# A pass that PALEO does not compute (the gradient of the first layer's input) may be written so.
_KNOWN = (*ALGORITHMS, "skip")


def _algorithm(value: Any) -> Any:
    if not isinstance(value, str) or value not in _KNOWN:
        hint = did_you_mean(value, _KNOWN) if isinstance(value, str) else ""
        fail(f"algorithm '{value}' is not known{hint} (known: {', '.join(_KNOWN)})")
    return value


Algorithm = Annotated[str, BeforeValidator(_algorithm), Field(json_schema_extra={"enum": list(_KNOWN)})]
if TYPE_CHECKING:
    AlgorithmsEntry: TypeAlias = Any
else:
    AlgorithmsEntry = record(
        "AlgorithmsEntry",
        "Algorithms of one convolution.",
        FileModel,
        forward=key(Algorithm, "forward pass", default="gemm"),
        backward_input=key(Algorithm, "gradient of the input", default="gemm"),
        backward_weight=key(Algorithm, "gradient of the weights", default="gemm"),
    )


class AlgorithmsFile(FileModel):
    """Algorithms by layer."""

    schema_version: Literal[1] = Field(description="version of this file format")
    description: Text = ""
    source: Text = Field(default="", description="where the choices come from")
    algorithms: dict[str, AlgorithmsEntry] = Field(description="layer -> algorithm of each pass")

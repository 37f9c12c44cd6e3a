"""Options that several questions share, each declared once, in groups.

A key of a class below is a keyword of the Python function with the type that checkers see, and an option of the command with its flags,
help, completion and what reads its value. `planner.api.keywords` says which groups a function takes, and which options are its own.
"""
# No "from __future__ import annotations": the declarations are read from the annotations.

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict

from planner.api.readers import (
    COSTS,
    LAYERS,
    MESH,
    SEARCH,
    SERVING,
    SPACE,
    Option,
    as_given,
    fixes,
    known_precision,
    one_framework,
    power,
    price,
    schedules,
    size,
    time_limit,
)
from planner.api.values import MAX_GPUS, Values
from planner.core.request import DEFAULT_OUTPUT_TOKENS, DEFAULT_PROMPT_TOKENS

if TYPE_CHECKING:
    from planner.files.loading import LoadedCluster, LoadedDevice, LoadedModel

    ModelLike: TypeAlias = str | os.PathLike[str] | LoadedModel | Mapping[str, Any]
    ClusterLike: TypeAlias = str | os.PathLike[str] | LoadedCluster | Mapping[str, Any]
    DeviceLike: TypeAlias = str | os.PathLike[str] | LoadedDevice | Mapping[str, Any]

# One number, or several: 8, "1..8", range(1, 9), [1, 2, 4].
Degrees: TypeAlias = int | str | Sequence[int]
Time: TypeAlias = float | str | dt.timedelta  # a number is seconds
Size: TypeAlias = int | float | str  # a number is bytes
Amount: TypeAlias = float | str  # a number, or 1T, 300B, 2M
PathLike: TypeAlias = str | os.PathLike[str]
FrameworkLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
Several: TypeAlias = "ClusterLike | Sequence[ClusterLike]"

_MOST_TOKENS = 10**8
_MOST_SEQUENCES = 10**6
_MOST_DRAFTS = 16
_MOST_SEED = 2**31 - 1
_FORMATS = (
    "A number format (bf16, fp8, nvfp4, w4a16) or a recipe as frameworks call it (mxfp8, fp8-blockwise, Float8CurrentScaling): "
    "'planner list precisions'. Default: of transformers bf16, or fp16 on V100 and T4, of others the same where it is much faster than "
    "fp32, else fp32; fp32 with paleo."
)
_OBJECTIVES = (
    "What is best: {costmodel.objectives:OBJECTIVES}; cost is money. Default: step_time. "
    "Serving: {costmodel.objectives:SERVING_OBJECTIVES}. Default: throughput."
)
_SPACES = (
    "mesh: one degree per parallel dimension for the whole network; layers: a split per layer; auto: mesh for "
    "transformers unless an option of the other is given. Default: auto."
)


def _alias(name: str) -> Option:
    """Another name of a keyword; on the command line it is a flag of that one."""
    return Option("", None, "", field=name)


def _degree(name: str, help: str, *, rare: bool = False, **more: Any) -> Option:  # noqa: A002 - what it is
    """A degree of a mesh plan: 8, 1..8 or 1,2,4."""
    field = f"degrees:{name.replace('-', '_')}"
    return Option(f"--{name}", "N", help, panel=MESH, field=field, read=partial(Values.bounds, **more), rare=rare)


def _name(name: str, help: str, words: str, *, rare: bool = False, read: Any = None) -> Option:  # noqa: A002 - what it is
    """A setting of a mesh plan that has a name: one, or several with commas."""
    field = f"names:{name.replace('-', '_')}"
    return Option(f"--{name}", "NAME", help, panel=MESH, field=field, words=words, is_list=True, rare=rare, read=read)


_OFFLOADED = ("optimizer", "activations", "none")

# Options of questions about plans and of operator placement.
AssumeFree: TypeAlias = Annotated[
    str | Sequence[str] | None,
    Option(
        "--assume-free",
        "OP",
        "An operator of another program's file that is not known costs nothing, which every output says. Repeatable.",
        is_repeated=True,
        read=Values.texts,
        rare=True,
    ),
]
Calibration: TypeAlias = Annotated[
    PathLike | None,
    Option(
        "--calibration",
        "NAME|FILE",
        "Constants fitted by 'planner calibrate' ('planner list calibrations'). Default: the bundled ones.",
        panel=COSTS,
        words="kind:calibrations",
    ),
]


class Hardware(TypedDict, total=False):
    """What the plans run on."""

    cluster: Annotated[
        "ClusterLike | None",
        Option(
            "--cluster -c",
            "NAME|FILE",
            "Node, links and how many nodes at most ('planner list clusters'), or a GPU's name for its usual cluster (h100: dgx-h100). "
            "Default: where --device usually stands, else dgx-h100.",
            words="kind:clusters",
        ),
    ]


class Device(TypedDict, total=False):
    """Another device in the place of the cluster's own."""

    device: Annotated[
        "DeviceLike | None",
        Option(
            "--device -d",
            "NAME|FILE",
            "Use this device in place of the cluster's own ('planner list devices').",
            words="kind:devices",
        ),
    ]


class Load(TypedDict, total=False):
    """How much a step does."""

    batch: Annotated[
        int | str | None,  # samples, or "4Mi tokens"
        Option(
            "--batch -b",
            "N",
            "Samples per step, all workers together, or tokens, as in '4Mi tokens' (Mi is 2^20). Default: the model's usual batch.",
            read=as_given,
        ),
    ]


class Length(TypedDict, total=False):
    """How long a sample is."""

    seq: Annotated[
        int | None,
        Option("--seq", "N", "Positions (tokens) of a sample, in place of the network's own.", read=Values.count),
    ]


class Network(TypedDict, total=False):
    """What every question about the plans of a network may say."""

    precision: Annotated[
        str | None,
        Option("--precision", "NAME", _FORMATS, words="costmodel.precision:PRECISIONS", read=known_precision),
    ]
    optimizer: Annotated[
        str | None,
        Option(
            "--optimizer",
            "NAME",
            "sgd, momentum, adam (also adamw), or adam-bf16, adam-8bit or adam-4bit with narrower moments. Default: adam for "
            "transformers, else momentum; sgd with paleo.",
            words="costmodel.precision:OPTIMIZERS",
            read=as_given,
        ),
    ]
    memory_limit: Annotated[
        Size | None,
        Option("--memory-limit", "SIZE", "Use at most so much memory per worker, as in '40 GiB'.", read=size),
    ]
    memory_reserve: Annotated[
        Size | None,  # below 1: a share
        Option(
            "--memory-reserve",
            "SIZE",
            "Leave so much memory of every worker free: a share ('5%') or bytes ('4GB'). Default: what --memory-confidence needs; for "
            "inference and with the paleo cost model 5%.",
            read=partial(size, shares=True),
            rare=True,
        ),
    ]
    memory_confidence: Annotated[
        float | str | None,
        Option(
            "--memory-confidence",
            "SHARE",
            "Chance that a plan must have to fit into the memory of its devices, by the errors of measured runs. Default: 95%; none with "
            "--memory-limit or --memory-reserve, which limit the predicted memory as it is.",
            read=Values.chance,
        ),
    ]
    assume_free: AssumeFree
    doc_lengths: Annotated[
        int | str | Sequence[int] | None,
        Option(
            "--doc-lengths",
            "N,N,...",
            "Lengths of the documents that are packed into a sample, each of which attends to itself alone; in turn until it is full. With "
            "--doc-cv, their mean. Default: a sample is one document.",
            read=Values.numbers,
            rare=True,
        ),
    ]
    doc_cv: Annotated[
        float | str | None,
        Option(
            "--doc-cv",
            "CV",
            "Coefficient of variation of the documents' lengths (standard deviation over mean): log-normal around --doc-lengths.",
            read=Values.positive,
            rare=True,
        ),
    ]
    lora_rank: Annotated[
        int | None,
        Option(
            "--lora-rank",
            "R",
            "Freeze all weights and train adapters of rank R on the linear layers of the blocks.",
            read=Values.count,
        ),
    ]
    num_micro_batches: Annotated[
        Degrees | None,
        Option(
            "--num-micro-batches --micro-batches",
            "N",
            "Cut every step into N micro-batches, one after the other (accumulation). Default: the best number.",
            panel=SPACE,
            field="micro_batches",
            read=partial(Values.bounds, most=10**9),
        ),
    ]
    micro_batches: Annotated[Degrees | None, _alias("num_micro_batches")]
    fix: Annotated[
        str | Sequence[str] | Mapping[str, str | Mapping[str, int]] | None,
        Option(
            "--fix",
            "LAYERS:SPLIT",
            "Fix how layers are split: 'conv*:batch', 'fc*:out_channels', 'fc6:batch=4,out_channels=2'. Repeatable.",
            panel=LAYERS,
            rare=True,
            is_repeated=True,
            read=fixes,
        ),
    ]
    collective: Annotated[
        str | None,
        Option(
            "--collective",
            "NAME",
            "Fix the all-reduce ('planner list collectives'). Default: the cheapest per message.",
            panel=LAYERS,
            words="costmodel.hardware.collectives:names_of:all_reduce",
            read=Values.text,
            rare=True,
        ),
    ]
    calibration: Calibration
    # A plan over a device mesh: fixed, or bounded for a search.
    tp: Annotated[
        Degrees | None,
        _degree("tp", "Tensor parallel degree. Every degree is 8 or, to search among some, 1..8 or 1,2,4."),
    ]
    cp: Annotated[Degrees | None, _degree("cp", "Context parallel degree: parts of every sequence.")]
    ep: Annotated[Degrees | None, _degree("ep", "Expert parallel degree.")]
    etp: Annotated[Degrees | None, _degree("etp", "Tensor parallel degree inside an expert.", rare=True)]
    pp: Annotated[Degrees | None, _degree("pp", "Pipeline stages.")]
    vpp: Annotated[Degrees | None, _degree("vpp", "Virtual stages (chunks) per pipeline rank.")]
    dp: Annotated[Degrees | None, _degree("dp", "Data parallel degree, replicas that share a copy (--zero) or not.")]
    dp_replicate: Annotated[
        Degrees | None, _degree("dp-replicate", "Data parallel ranks that keep their own copy.", rare=True)
    ]
    dp_shard: Annotated[
        Degrees | None, _degree("dp-shard", "Data parallel ranks that share one copy under ZeRO.", rare=True)
    ]
    zero: Annotated[
        Degrees | None,
        Option(
            "--zero",
            "STAGE",
            "What is shared: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights (FSDP).",
            panel=MESH,
            words="0 1 2 3",
            is_list=True,
            field="degrees:zero_stage",
            read=partial(Values.bounds, least=0, most=3),
        ),
    ]
    micro_batch: Annotated[
        Degrees | None, _degree("micro-batch", "Samples per micro-batch and data parallel rank.", most=10**9)
    ]
    schedule: Annotated[
        str | Sequence[str] | None,
        _name(
            "schedule",
            "gpipe, 1f1b, interleaved, zero_bubble, zb_h2, zb_v, dualpipe_v, combined_1f1b or interleaved_zb ('planner list schedules').",
            "costmodel.schedules:SCHEDULES",
            read=schedules,
        ),
    ]
    recompute: Annotated[
        str | Sequence[str] | None,
        _name(
            "recompute",
            "What the backward pass computes again: none, selective or full.",
            "costmodel.mesh.plan:RECOMPUTE",
        ),
    ]
    recompute_blocks: Annotated[
        Degrees | None,
        _degree("recompute-blocks", "Blocks per stage that are recomputed under full.", rare=True, least=0, most=10**6),
    ]
    sequence_parallel: Annotated[
        bool | None,
        Option(
            "--sequence-parallel/--no-sequence-parallel",
            None,
            "Cut tensors between split matrices along the positions.",
            panel=MESH,
            field="flags:sequence_parallel",
            rare=True,
        ),
    ]
    cp_kind: Annotated[
        str | Sequence[str] | None,
        _name(
            "cp-kind",
            "How attention sees other positions: ring, all_gather or all_to_all.",
            "costmodel.mesh.plan:CP_KINDS",
            rare=True,
        ),
    ]
    order: Annotated[
        str | Sequence[str] | None,
        _name("order", "Rank order, innermost first, as in tp-cp-dp-pp.", "costmodel.mesh.plan:ORDERS", rare=True),
    ]
    domain_gpus: Annotated[
        Degrees | None,
        _degree(
            "domain-gpus",
            "GPUs used of every domain of fast links, such as 64 of the 72 of an NVLink rack. Default: of racks every share "
            "that divides the GPUs and is more than half is tried.",
            rare=True,
        ),
    ]
    offload: Annotated[
        str | Sequence[str] | None,
        Option(
            "--offload",
            "WHAT",
            "What is kept on the host: optimizer, activations, both with a comma, or none.",
            panel=MESH,
            words=" ".join(_OFFLOADED),
            is_list=True,
            field="offload",
            read=partial(
                Values.names,
                allowed=_OFFLOADED,
                meant=dict.fromkeys(("both", "all", "true"), "'optimizer,activations'?"),
            ),
        ),
    ]


class Framework(TypedDict, total=False):
    """What runs the plans."""

    framework: Annotated[
        FrameworkLike | None,
        Option(
            "--framework",
            "NAME|FILE",
            "What runs the plan: its costs, its defaults, and only plans that its rules allow ('planner list frameworks'). Default: none, "
            "a well-tuned implementation.",
            words="kind:frameworks",
            read=one_framework,
        ),
    ]


class Mode(TypedDict, total=False):
    """What is predicted: a step of training or of inference, and by which cost model."""

    mode: Annotated[
        Literal["training", "inference"] | None,
        Option(
            "--mode",
            "MODE",
            "training, or inference: serving a network that generates text, the forward pass of others. Default: training.",
            words="training inference",
        ),
    ]
    cost_model: Annotated[
        Literal["roofline", "paleo"] | None,
        Option(
            "--cost-model",
            "NAME",
            "roofline, or paleo (the program of the paper). Default: roofline.",
            panel=COSTS,
            words="roofline paleo",
            rare=True,
        ),
    ]
    ppp_comp: Annotated[
        float | str | None,
        Option(
            "--ppp-comp",
            "X",
            "paleo: share of the peak that computation reaches. Default: 1.0.",
            panel=COSTS,
            read=Values.share,
            rare=True,
        ),
    ]
    ppp_comm: Annotated[
        float | str | None,
        Option(
            "--ppp-comm",
            "X",
            "paleo: share of the bandwidth that messages reach. Default: 1.0.",
            panel=COSTS,
            read=Values.share,
            rare=True,
        ),
    ]
    paleo_pipeline: Annotated[
        bool,
        Option("--paleo-pipeline", None, "paleo: memory and computation overlap in a layer.", panel=COSTS, rare=True),
    ]
    paleo_algorithms: Annotated[
        PathLike | None,
        Option(
            "--paleo-algorithms",
            "FILE",
            "paleo: algorithm of each convolution and pass. Default: gemm.",
            panel=COSTS,
            read=as_given,
            rare=True,
        ),
    ]
    paleo_extensions: Annotated[
        bool,
        Option(
            "--paleo-extensions",
            None,
            "paleo: cost what PALEO cannot evaluate by the roofline instead of refusing it.",
            panel=COSTS,
            rare=True,
        ),
    ]


class Requests(TypedDict, total=False):
    """What is served, with ``mode="inference"``."""

    prompt: Annotated[
        int | None,
        Option(
            "--prompt",
            "N",
            f"Tokens of a prompt, on average. Default: {DEFAULT_PROMPT_TOKENS}.",
            panel=SERVING,
            field="prompt_tokens",
            read=partial(Values.count, most=_MOST_TOKENS),
        ),
    ]
    output_tokens: Annotated[
        int | None,
        Option(
            "--output-tokens",
            "N",
            f"Tokens of an answer, on average. Default: {DEFAULT_OUTPUT_TOKENS}.",
            panel=SERVING,
            read=partial(Values.count, most=_MOST_TOKENS),
        ),
    ]
    max_ttft: Annotated[
        Time | None,
        Option(
            "--max-ttft",
            "TIME",
            "Most time to the first token: 500ms on average, p99:2s of 99 % of the requests (p50, p90 or p99).",
            panel=SERVING,
            read=time_limit,
        ),
    ]
    max_tpot: Annotated[
        Time | None,
        Option(
            "--max-tpot",
            "TIME",
            "Most time per token after the first: 30ms on average, p90:40ms of 90 % of the requests.",
            panel=SERVING,
            read=time_limit,
        ),
    ]
    limit_confidence: Annotated[
        float | str | None,
        Option(
            "--limit-confidence",
            "SHARE",
            "Chance that a plan must have to keep --max-ttft and --max-tpot together, by the errors of measured servers. Default: 50%.",
            panel=SERVING,
            read=Values.likely,
            rare=True,
        ),
    ]
    rate: Annotated[
        float | str | None,
        Option(
            "--rate",
            "R",
            "Requests per second that come, of all replicas: 50, 50/s, 3000/min. Default: as many are in flight as there are places.",
            panel=SERVING,
            field="rate_per_s",
            read=Values.rate,
        ),
    ]
    arrival_cv: Annotated[
        float | None,
        Option(
            "--arrival-cv",
            "X",
            "With --rate: coefficient of variation of the times between requests; 1: at random (the default), more: in bursts.",
            panel=SERVING,
            rare=True,
            read=Values.variation,
        ),
    ]
    prompt_cv: Annotated[
        float | None,
        Option(
            "--prompt-cv",
            "X",
            "Coefficient of variation of the lengths of prompts. Default: 0, all alike.",
            panel=SERVING,
            rare=True,
            read=Values.variation,
        ),
    ]
    output_cv: Annotated[
        float | None,
        Option(
            "--output-cv",
            "X",
            "The same of the lengths of answers.",
            panel=SERVING,
            rare=True,
            read=Values.variation,
        ),
    ]
    prefix_cached: Annotated[
        float | str | None,
        Option(
            "--prefix-cached",
            "X",
            "Share of a prompt's tokens that the cache has from earlier requests (prefix caching): 0.4 or 40%. Default: 0.",
            panel=SERVING,
            rare=True,
            read=Values.part,
        ),
    ]
    requests: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "--requests",
            "FILE",
            "Requests that were served (CSV or JSON lines, docs/inference.md): their rate and lengths, unless said otherwise.",
            panel=SERVING,
            rare=True,
        ),
    ]
    kv_precision: Annotated[
        str | None,
        Option(
            "--kv-precision",
            "NAME",
            "Cache of keys and values: fp32, fp16, bf16, fp8, int8 or nvfp4. Default: as activations.",
            panel=SERVING,
            words="fp32 fp16 bf16 fp8 int8 nvfp4",
            field="kv",
            rare=True,
        ),
    ]
    acceptance: Annotated[
        float | str | None,
        Option(
            "--acceptance",
            "X",
            "Speculative decoding: share of drafted tokens that the network accepts where those before them were, as in 0.8. Default: none "
            "are drafted.",
            panel=SERVING,
            rare=True,
            read=Values.part,
        ),
    ]
    draft: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "--draft",
            "NAME|FILE",
            "With --acceptance, what drafts: mtp, the network's own layer for multi-token prediction (the default where it has one), ngram "
            "(no network; the default elsewhere), or a smaller network with the same vocabulary.",
            panel=SERVING,
            rare=True,
        ),
    ]
    draft_tokens: Annotated[
        Degrees | None,
        Option(
            "--draft-tokens",
            "N",
            "With --acceptance: tokens drafted per sequence and pass, 0 to 16: 3, 0..8 or 0,1,3. Default: the best of 0..5.",
            panel=SERVING,
            field="serving_degrees:draft_tokens",
            read=partial(Values.bounds, least=0, most=_MOST_DRAFTS),
            rare=True,
        ),
    ]
    max_batch: Annotated[
        Degrees | None,
        Option(
            "--max-batch",
            "N",
            "Sequences at a time per replica: 64, 1..64 or 32,64. Default: the best up to 1024.",
            panel=SERVING,
            field="serving_degrees:max_batch",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
        ),
    ]
    prefill_chunk: Annotated[
        Degrees | None,
        Option(
            "--prefill-chunk",
            "N",
            "Read prompts in chunks of N tokens beside the decoding; 0: whole prompts. Default: the best.",
            panel=SERVING,
            field="serving_degrees:prefill_chunk",
            read=partial(Values.bounds, least=0, most=_MOST_TOKENS),
            rare=True,
        ),
    ]
    prefill_batch: Annotated[
        Degrees | None,
        Option(
            "--prefill-batch",
            "N",
            "Prompts per pass. Default: the best.",
            panel=SERVING,
            field="serving_degrees:prefill_batch",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    disaggregate: Annotated[
        str | None,
        Option(
            "--disaggregate",
            "WORD",
            "Whether GPUs of their own read the prompts: yes, no or auto, which compares both. Default: auto.",
            panel=SERVING,
            words="auto yes no",
            rare=True,
        ),
    ]
    prefill_dp: Annotated[
        Degrees | None,
        Option(
            "--prefill-dp",
            "N",
            "Workers that only read prompts (disaggregated serving); 0: replicas read their own. Default: the best.",
            panel=SERVING,
            field="serving_degrees:prefill_dp",
            read=partial(Values.bounds, least=0, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    prefill_tp: Annotated[
        Degrees | None,
        Option(
            "--prefill-tp",
            "N",
            "Tensor parallel degree of each of them.",
            panel=SERVING,
            field="serving_degrees:prefill_tp",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    prefill_pp: Annotated[
        Degrees | None,
        Option(
            "--prefill-pp",
            "N",
            "Pipeline stages of each of them.",
            panel=SERVING,
            field="serving_degrees:prefill_pp",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    prefill_ep: Annotated[
        Degrees | None,
        Option(
            "--prefill-ep",
            "N",
            "Expert parallel degree of theirs.",
            panel=SERVING,
            field="serving_degrees:prefill_ep",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    prefill_etp: Annotated[
        Degrees | None,
        Option(
            "--prefill-etp",
            "N",
            "Tensor parallel degree inside an expert of theirs.",
            panel=SERVING,
            field="serving_degrees:prefill_etp",
            read=partial(Values.bounds, most=_MOST_SEQUENCES),
            rare=True,
        ),
    ]
    prefill_device: Annotated[
        str | None,
        Option(
            "--prefill-device",
            "NAME|FILE",
            "Devices of the workers that only read prompts, a bundled device or a YAML file. Default: as the others.",
            panel=SERVING,
            rare=True,
        ),
    ]


class Serving(Requests, total=False):
    """And how full servers are, where nothing says how many requests come."""

    concurrency: Annotated[
        int | None,
        Option(
            "--concurrency",
            "N",
            "Requests in flight, of all replicas; the next comes when one is answered. With --max-batch, those beyond the places wait for "
            "one. Default: the best.",
            panel=SERVING,
            rare=True,
            read=partial(Values.count, most=_MOST_SEQUENCES),
        ),
    ]
    load: Annotated[
        str | None,
        Option(
            "--load",
            "NAME",
            "How requests come. traffic: their lengths differ, and the next one comes when one is answered (the default); benchmark: equal "
            "ones, ten per place, the first all at once; backlog: equal ones, of which more wait than there are places.",
            panel=SERVING,
            words="traffic benchmark backlog",
            rare=True,
        ),
    ]


class Space(TypedDict, total=False):
    """Which plans are looked at, and what a device costs."""

    space: Annotated[
        str | None,
        Option("--space", "NAME", _SPACES, panel=SPACE, words="planner.core.request:CHOICES", rare=True),
    ]
    family: Annotated[
        str | None,
        Option(
            "--family",
            "NAME",
            "Only plans of a family: one-device, data, model, hybrid, pipeline, spatial or mixed (a different split for each layer). "
            "Default: all.",
            panel=LAYERS,
            words="one-device data model hybrid pipeline spatial mixed",
        ),
    ]
    assume: Annotated[
        Mapping[str, float] | Sequence[str] | None,
        Option(
            "--assume",
            "NAME=VALUE",
            "Change a named assumption of the cost model, as in dp_overlap=0.8. Repeatable.",
            panel=COSTS,
            is_repeated=True,
            read=as_given,
        ),
    ]
    price: Annotated[
        float | str | None,
        Option(
            "--price",
            "USD",
            "Of one GPU for an hour, in place of the cluster or device file's.",
            panel=COSTS,
            field="price_per_hour",
            read=price,
            rare=True,
        ),
    ]
    power: Annotated[
        float | str | Sequence[float | str] | None,
        Option(
            "--power",
            "BUSY[,IDLE]",
            "Of one GPU, in place of the device file's: '700 W' or '700 W,100 W'.",
            panel=COSTS,
            field="power_w",
            read=power,
            rare=True,
        ),
    ]


class Objective(TypedDict, total=False):
    """What is best."""

    objective: Annotated[
        str | None,
        Option(
            "--objective",
            "NAME",
            _OBJECTIVES,
            words="costmodel.objectives:OBJECTIVES",
            inference_words="costmodel.objectives:SERVING_OBJECTIVES",
            read=as_given,
        ),
    ]


class TimeLimit(TypedDict, total=False):
    """When a search stops."""

    time_limit: Annotated[
        Time | None,
        Option(
            "--time-limit",
            "TIME",
            "Stop after 30s, 2min, ... with the best so far. Default: 60s.",
            panel=SEARCH,
            field="time_limit_s",
            read=Values.seconds,
        ),
    ]


class Proof(TimeLimit, total=False):
    """How far a search goes, and from which seed."""

    gap: Annotated[
        float | str,
        Option(
            "--gap",
            "X",
            "Stop when no plan can be better by more than X, as in 1%. Default: 0.",
            panel=SEARCH,
            read=Values.ratio,
            rare=True,
        ),
    ]
    seed: Annotated[
        int,
        Option(
            "--seed",
            "N",
            "Seed of the solvers; the answer does not depend on it. Default: 0.",
            panel=SEARCH,
            read=partial(Values.count, least=0, most=_MOST_SEED),
            rare=True,
        ),
    ]


class Solver(TypedDict, total=False):
    """By which exact method splits per layer are found."""

    solver: Annotated[
        Literal["auto", "program", "elimination"] | None,
        Option(
            "--solver",
            "NAME",
            "Exact method: auto, program (integer program) or elimination. Default: auto.",
            panel=SEARCH,
            words="auto program elimination",
            rare=True,
        ),
    ]


class Nodes(TypedDict, total=False):
    """What says how many GPUs there are in place of `gpus` (`planner.api.requests.with_gpus`)."""

    nodes: Annotated[
        int | None,
        Option(
            "--nodes",
            "N",
            "In place of --gpus: all GPUs of N nodes of the cluster.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]


class OnePlan(Nodes, Hardware, Device, Load, Length, Network, Mode, Serving, Space, total=False):
    """A question about plans on one cluster at one batch."""


class First(TypedDict, total=False):
    """Which plan is named first."""

    fastest: Annotated[
        bool,
        Option(
            "--fastest",
            None,
            "Name the fastest plan first. Default: the simplest within 1 % of it, activations on the device; the fastest for "
            "several kinds of GPUs, and where a family or splits are fixed.",
            panel=SEARCH,
        ),
    ]


class Jobs(TypedDict, total=False):
    """How many processes search."""

    jobs: Annotated[
        int | None,
        Option(
            "--jobs -j",
            "N",
            "Search in N processes here. Default: 1.",
            panel=SEARCH,
            read=partial(Values.count, most=1024),
        ),
    ]

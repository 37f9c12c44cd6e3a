"""The options that commands share, each written once: its flag, its metavar and its help."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.commands.completion import completion_of, words_from

__all__ = [
    "SCALE_FAMILIES",
    "Algorithms",
    "Assume",
    "Batch",
    "Calibration",
    "Cluster",
    "Collective",
    "CostModel",
    "Device",
    "Diverse",
    "Epochs",
    "ExactGpus",
    "Export",
    "Extensions",
    "Family",
    "Fix",
    "Format",
    "Gap",
    "Gpus",
    "Json",
    "LoraRank",
    "MemoryLimit",
    "MicroBatches",
    "Mode",
    "Model",
    "Objective",
    "Optimizer",
    "OptionalModel",
    "Output",
    "Pipeline",
    "PlanFile",
    "Power",
    "PppComm",
    "PppComp",
    "Precision",
    "Price",
    "Quiet",
    "Samples",
    "ScaleBatch",
    "ScaleFamily",
    "Seed",
    "Seq",
    "Solver",
    "Space",
    "Strong",
    "TimeLimit",
    "Top",
    "Verbose",
    "Weak",
    "Width",
    "Workers",
    "option",
]

# Titles of the groups in the help, in the order in which they are shown.
QUESTION = "What is planned"
SPACE = "Which plans are looked at"
LAYERS = "Which plans with a split per layer are looked at"
MESH = "Which plans over a device mesh are looked at (transformers)"
SERVING = "What is served (--mode inference of a network that generates text)"
COSTS = "How plans are costed"
SEARCH = "How long and how hard to search"
OUTPUT = "What is printed and where"
GROUPS = (QUESTION, SERVING, SPACE, MESH, LAYERS, COSTS, SEARCH, OUTPUT)


def complete_models(incomplete: str) -> list[str]:
    """Bundled networks for the shell's completion; a file is completed by the shell itself."""
    return [name for name in words_from("kind:models") if name.startswith(incomplete)]


def option(*flags: str, metavar: str | None, help: str, group: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    """Declare an option; its default stands in the help text, where it can say more than a value."""
    more.setdefault("autocompletion", completion_of(flags))
    return typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=group, show_default=False, **more)


# Values are read as words and checked by planner.commands.values, so that one message names everything wrong with a command line.
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A bundled network ('planner list models') or a file; a file wins.",
        show_default=False,
        autocompletion=complete_models,
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",  # brackets: may be left out
        help="A bundled network ('planner list models') or a file; with --plan, the plan's own by default.",
        show_default=False,
        autocompletion=complete_models,
    ),
]

# --- the question
Gpus = Annotated[
    str | None,
    option(
        "--gpus",
        "-g",
        metavar="N",
        help="Use at most N workers; fewer may be best. Default: all of a cluster with a size.",
        group=QUESTION,
    ),
]
Cluster = Annotated[
    str | None,
    option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        help="Node, links and how many nodes at most ('planner list clusters'). Default: dgx-h100.",
        group=QUESTION,
    ),
]
Device = Annotated[
    str | None,
    option(
        "--device",
        "-d",
        metavar="NAME|FILE",
        help="Use this device in place of the cluster's own ('planner list devices').",
        group=QUESTION,
    ),
]
Batch = Annotated[
    str | None,
    option(
        "--batch",
        "-b",
        metavar="N",
        help="Samples per step, all workers together. Default: the model's usual batch.",
        group=QUESTION,
    ),
]
Precision = Annotated[
    str | None,
    option(
        "--precision",
        metavar="NAME",
        help=(
            "Number formats: fp32, tf32, fp16, bf16 or fp8. Default: of transformers bf16, or fp16 on V100 and T4, of others the same "
            "where it is much faster than fp32, else fp32; fp32 with paleo."
        ),
        group=QUESTION,
    ),
]
Optimizer = Annotated[
    str | None,
    option(
        "--optimizer",
        metavar="NAME",
        help="sgd, momentum or adam. Default: adam for transformers, else momentum; sgd with paleo.",
        group=QUESTION,
    ),
]
Mode = Annotated[
    str | None,
    option(
        "--mode",
        metavar="MODE",
        help="training, or inference: serving a network that generates text, the forward pass of others. Default: training.",
        group=QUESTION,
    ),
]
MemoryLimit = Annotated[
    str | None,
    option(
        "--memory-limit", metavar="SIZE", help="Use at most so much memory per worker, as in '40 GiB'.", group=QUESTION
    ),
]

Seq = Annotated[
    str | None,
    option(
        "--seq",
        metavar="N",
        help="Positions (tokens) of a sample, in place of the network's own.",
        group=QUESTION,
    ),
]
LoraRank = Annotated[
    str | None,
    option(
        "--lora-rank",
        metavar="R",
        help="Freeze all weights and train adapters of rank R on the linear layers of the blocks.",
        group=QUESTION,
    ),
]
Objective = Annotated[
    str | None,
    option(
        "--objective",
        metavar="NAME",
        help=(
            "What is best: step_time, tokens_per_s, tokens_per_s_per_gpu, mfu, gpu_hours, money or energy (per token). "
            "Default: step_time. Serving: throughput, latency, ttft, tpot or tokens_per_s_per_gpu. Default: throughput."
        ),
        group=QUESTION,
    ),
]

Price = Annotated[
    str | None,
    option(
        "--price", metavar="USD", help="Of one GPU for an hour, in place of the cluster or device file's.", group=COSTS
    ),
]
Power = Annotated[
    str | None,
    option(
        "--power",
        metavar="BUSY[,IDLE]",
        help="Of one GPU, in place of the device file's: '700 W' or '700 W,100 W'.",
        group=COSTS,
    ),
]

ExactGpus = Annotated[
    str | None, option("--gpus", "-g", metavar="N", help="Use exactly N workers. Default: 1.", group=QUESTION)
]

# --- the space
Space = Annotated[
    str | None,
    option(
        "--space",
        metavar="NAME",
        help=(
            "mesh: one degree per parallel dimension for the whole network; layers: a split per layer; auto: mesh for "
            "transformers unless an option of the other is given. Default: auto."
        ),
        group=SPACE,
    ),
]
Family = Annotated[
    str | None,
    option(
        "--family",
        metavar="NAME",
        help="Only plans of a family: one-device, data, model, hybrid, pipeline, spatial or mixed. Default: all.",
        group=LAYERS,
    ),
]
Fix = Annotated[
    list[str] | None,
    option(
        "--fix",
        metavar="LAYERS:SPLIT",
        help="Fix how layers are split: 'conv*:batch', 'fc*:out_channels', 'fc6:batch=4,out_channels=2'. Repeatable.",
        group=LAYERS,
    ),
]
Collective = Annotated[
    str | None,
    option(
        "--collective",
        metavar="NAME",
        help="Fix the all-reduce ('planner list collectives'). Default: the cheapest per message.",
        group=LAYERS,
    ),
]
MicroBatches = Annotated[
    str | None,
    option(
        "--num-micro-batches",
        "--micro-batches",
        metavar="N",
        help="Cut every step into N micro-batches, one after the other (accumulation). Default: the best number.",
        group=SPACE,
    ),
]

# --- the costs
Assume = Annotated[
    list[str] | None,
    option(
        "--assume",
        metavar="NAME=VALUE",
        help="mesh: change a named assumption of the cost model, as in dp_overlap=0.8. Repeatable.",
        group=COSTS,
    ),
]
CostModel = Annotated[
    str | None,
    option(
        "--cost-model",
        metavar="NAME",
        help="roofline, or paleo (the program of the paper). Default: roofline.",
        group=COSTS,
    ),
]
Calibration = Annotated[
    str | None,
    option(
        "--calibration",
        metavar="NAME|FILE",
        help="Constants fitted by 'planner calibrate' ('planner list calibrations'). Default: the bundled ones.",
        group=COSTS,
    ),
]
PppComp = Annotated[
    str | None,
    option(
        "--ppp-comp", metavar="X", help="paleo: share of the peak that computation reaches. Default: 1.0.", group=COSTS
    ),
]
PppComm = Annotated[
    str | None,
    option(
        "--ppp-comm", metavar="X", help="paleo: share of the bandwidth that messages reach. Default: 1.0.", group=COSTS
    ),
]
Pipeline = Annotated[
    bool,
    option("--paleo-pipeline", metavar=None, help="paleo: memory and computation overlap in a layer.", group=COSTS),
]
Algorithms = Annotated[
    str | None,
    option(
        "--paleo-algorithms",
        metavar="FILE",
        help="paleo: algorithm of each convolution and pass. Default: gemm.",
        group=COSTS,
    ),
]
Extensions = Annotated[
    bool,
    option(
        "--paleo-extensions",
        metavar=None,
        help="paleo: cost what PALEO cannot evaluate by the roofline instead of refusing it.",
        group=COSTS,
    ),
]

# --- the search
Top = Annotated[str, option("--top", "-k", metavar="K", help="Show the K best plans. Default: 5.", group=SEARCH)]
Sensitivity = Annotated[
    bool,
    option(
        "--sensitivity",
        metavar=None,
        help="Which constant (a bandwidth, an efficiency, ...) would have to change by how much for another plan to win.",
        group=SEARCH,
    ),
]
Diverse = Annotated[
    bool | None,
    option(
        "--diverse/--no-diverse",
        metavar=None,
        help=(
            "List plans that really differ: over a device mesh the best of each tp, cp, ep, pp, ZeRO stage, micro-batch and schedule (the "
            "default there); with a split per layer the best of each family."
        ),
        group=SEARCH,
    ),
]
TimeLimit = Annotated[
    str | None,
    option(
        "--time-limit",
        metavar="TIME",
        help="Stop after 30s, 2min, ... with the best so far. Default: 60s.",
        group=SEARCH,
    ),
]
Gap = Annotated[
    str,
    option(
        "--gap", metavar="X", help="Stop when no plan can be better by more than X, as in 1%. Default: 0.", group=SEARCH
    ),
]
Solver = Annotated[
    str | None,
    option(
        "--solver",
        metavar="NAME",
        help="Exact method: auto, program (integer program) or elimination. Default: auto.",
        group=SEARCH,
    ),
]
Seed = Annotated[
    str,
    option(
        "--seed", metavar="N", help="Seed of the solvers; the answer does not depend on it. Default: 0.", group=SEARCH
    ),
]
PlanFile = Annotated[
    str | None,
    option("--plan", "-p", metavar="FILE", help="A plan file, from 'planner optimize --export'.", group=QUESTION),
]

# --- scaling curves
SCALE_FAMILIES = ("mesh", "data", "model", "hybrid", "pipeline", "spatial", "mixed", "best")
Workers = Annotated[
    str | None,
    option(
        "--workers",
        "-w",
        "--gpus",
        "-g",
        metavar="LIST",
        help="Worker counts: 1,2,4,8 or 1..8. Default: 1,2,4,8, as far as the cluster goes.",
        group=QUESTION,
    ),
]
Weak = Annotated[
    bool,
    option("--weak", metavar=None, help="Every worker has its own --batch: the global batch grows.", group=QUESTION),
]
Strong = Annotated[
    bool, option("--strong", metavar=None, help="The workers share one --batch. This is the default.", group=QUESTION)
]
ScaleBatch = Annotated[
    str | None,
    option(
        "--batch",
        "-b",
        metavar="N",
        help="Samples per step: of all workers together, or of each with --weak. Default: the model's usual batch.",
        group=QUESTION,
    ),
]
ScaleFamily = Annotated[
    str | None,
    option(
        "--family",
        metavar="NAME",
        help=(
            "mesh (the best plan over a device mesh: transformers), data, model, hybrid (the paper's formula under paleo), pipeline, "
            "spatial, mixed or best (of a split per layer). Default: mesh for transformers, else data."
        ),
        group=SPACE,
    ),
]
Epochs = Annotated[
    str | None,
    option("--epochs", metavar="X", help="Passes over the data, for the hours of a training.", group=QUESTION),
]
Samples = Annotated[
    str | None, option("--samples", metavar="N", help="Samples of one epoch, as in 1.2e6.", group=QUESTION)
]

# --- the output
Json = Annotated[bool, option("--json", metavar=None, help="The same as --format json.", group=OUTPUT)]
Format = Annotated[
    str | None,
    option(
        "--format",
        "-f",
        metavar="NAME",
        help="table, json, csv, markdown or yaml. Default: by the suffix of -o, else table.",
        group=OUTPUT,
    ),
]
Output = Annotated[
    str | None,
    option("--output", "-o", metavar="FILE", help="Write the result to FILE in place of stdout.", group=OUTPUT),
]
Export = Annotated[
    str | None, option("--export", metavar="FILE", help="Also write the best plan as a plan file (YAML).", group=OUTPUT)
]
Width = Annotated[
    str | None,
    option("--width", metavar="N", help="Characters per line of the table. Default: the terminal's.", group=OUTPUT),
]
Quiet = Annotated[
    bool, option("--quiet", "-q", metavar=None, help="No progress and no remarks on stderr.", group=OUTPUT)
]
Verbose = Annotated[
    bool,
    option(
        "--verbose", "-v", metavar=None, help="Log each step on stderr; tracebacks of internal errors.", group=OUTPUT
    ),
]

"""The options that say what is planned: the network, the workers and the batch."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.commands.completion import words_from
from planner.commands.options.panels import QUESTION, option

__all__ = [
    "AssumeFree",
    "Batch",
    "Cluster",
    "Device",
    "Epochs",
    "ExactGpus",
    "Gpus",
    "LoraRank",
    "MemoryLimit",
    "Mode",
    "Model",
    "Objective",
    "Optimizer",
    "OptionalModel",
    "PlanFile",
    "Precision",
    "Samples",
    "ScaleBatch",
    "Seq",
    "Strong",
    "Weak",
    "Workers",
]


def complete_models(incomplete: str) -> list[str]:
    """Bundled networks for the shell's completion; a file is completed by the shell itself."""
    return [name for name in words_from("kind:models") if name.startswith(incomplete)]


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
        help="Node, links and how many nodes at most ('planner list clusters'). Default: where --device usually stands, else dgx-h100.",
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
        help="Samples per step, all workers together, or tokens, as in '4Mi tokens' (Mi is 2^20). Default: the model's usual batch.",
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
MemoryReserve = Annotated[
    str | None,
    option(
        "--memory-reserve",
        metavar="SIZE",
        help="Leave so much memory of every worker free: a share ('5%') or bytes ('4GB'). Default: 5% of what the driver shows, "
        "nothing of a --memory-limit.",
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
AssumeFree = Annotated[
    list[str] | None,
    option(
        "--assume-free",
        metavar="OP",
        help="An operator of another program's file that is not known costs nothing, which every output says. Repeatable.",
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
            "What is best: step_time, tokens_per_s, tokens_per_s_per_gpu, mfu, gpu_hours, money or energy (per token or sample). "
            "Default: step_time. Serving: throughput, latency, ttft, tpot or tokens_per_s_per_gpu. Default: throughput."
        ),
        group=QUESTION,
    ),
]
ExactGpus = Annotated[
    str | None, option("--gpus", "-g", metavar="N", help="Use exactly N workers. Default: 1.", group=QUESTION)
]
PlanFile = Annotated[
    str | None,
    option("--plan", "-p", metavar="FILE", help="A plan file, from 'planner optimize --export'.", group=QUESTION),
]

# --- scaling curves
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
Epochs = Annotated[
    str | None,
    option("--epochs", metavar="X", help="Passes over the data, for the hours of a training.", group=QUESTION),
]
Samples = Annotated[str | None, option("--samples", metavar="N", help="Samples of one epoch: 1.28M.", group=QUESTION)]

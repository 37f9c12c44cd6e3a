"""The keywords of every function that asks a question: the groups of options that it takes (`planner.api.options`), and its own.

`planner.commands.command` makes the command line of them, `planner.api.requests` the request.
"""
# No "from __future__ import annotations": the declarations are read from the annotations.

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, get_args

from planner.api.options import (
    Amount,
    Degrees,
    Device,
    First,
    Framework,
    Hardware,
    Jobs,
    Length,
    Load,
    Mode,
    Network,
    Objective,
    OnePlan,
    Proof,
    Requests,
    Solver,
    Space,
    Time,
    TimeLimit,
)
from planner.api.readers import COSTS, SEARCH, SERVING, SPACE, Option, as_given, one_framework
from planner.api.values import MAX_GPUS, Values

if TYPE_CHECKING:
    from planner.api.options import FrameworkLike, Several

_MOST_REPLICAS = 10**6
_DIVERSE = (
    "List plans that really differ: over a device mesh the best of each tp, ep, pp, ZeRO stage, number of micro-batches and "
    "schedule (the default there); with a split per layer the best of each family."
)
_CLUSTERS = (
    "by names or files with commas; a GPU's name (a100) is its usual cluster (dgx-a100). "
    "Default: where --device usually stands, else dgx-h100."
)


class EstimateOptions(OnePlan, Framework, total=False):
    """Keywords of `planner.estimate`."""

    gpus: Annotated[
        int | None,
        Option(
            "--gpus -g",
            "N",
            "Use exactly N workers. Default: those of the degrees that are given, else 1.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]


class ExplainOptions(EstimateOptions, First, Objective, TimeLimit, Solver, total=False):
    """Keywords of `planner.explain`."""

    sensitivity: Annotated[
        bool,
        Option(
            "--sensitivity",
            None,
            "Which constant (a bandwidth, an efficiency, ...) would have to change by how much for another plan to win.",
            panel=SEARCH,
        ),
    ]


class WhyNotOptions(EstimateOptions, First, Objective, TimeLimit, total=False):
    """Keywords of `planner.why_not`."""

    gpus: Annotated[
        int | None,
        Option(
            "--gpus -g",
            "N",
            "Workers there are; the plan may leave some idle. Default: those of the degrees that are given, else 1.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]


# What people say of nearly every question; the help begins with it, in this order.
_USUAL = ("gpus", "nodes", "cluster", "device", "batch", "seq", "framework", "precision", "optimizer", "objective")


class OptimizeOptions(OnePlan, First, Objective, Proof, Solver, total=False):
    """Keywords of `planner.optimize`."""

    framework: Annotated[
        "FrameworkLike | Sequence[FrameworkLike] | None",
        Option(
            "--framework",
            "LIST",
            "What runs the plan: its costs, its defaults, and only plans that its rules allow ('planner list frameworks'). Several "
            "(torchtitan,megatron-lm) are searched one by one and compared; auto: all that can run the network and be exported. "
            "Default: none, a well-tuned implementation.",
            words="kind:frameworks",
            is_list=True,
            read=one_framework,
        ),
    ]

    gpus: Annotated[
        int | None,
        Option(
            "--gpus -g",
            "N",
            "Use at most N workers; fewer may be best. Default: all of a cluster with a size.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]
    top: Annotated[
        int,
        Option(
            "--top -k", "K", "Show the K best plans. Default: 5.", panel=SEARCH, read=partial(Values.count, most=10_000)
        ),
    ]
    diverse: Annotated[bool | None, Option("--diverse/--no-diverse", None, _DIVERSE, panel=SEARCH, rare=True)]


class ScaleOptions(Hardware, Device, Length, Network, Framework, Mode, total=False):
    """Keywords of `planner.scale`."""

    nodes: Annotated[
        Degrees | None,
        Option(
            "--nodes",
            "LIST",
            "In place of --workers: all GPUs of so many nodes of the cluster, as in 1,2,4,8.",
            read=Values.worker_counts,
        ),
    ]
    workers: Annotated[
        Degrees | None,
        Option(
            "--workers -w --gpus -g",
            "LIST",
            "Worker counts: 1,2,4,8 or 1..8. Default: 1,2,4,8, as far as the cluster goes.",
            read=Values.worker_counts,
        ),
    ]
    weak: Annotated[bool, Option("--weak", None, "Every worker has its own --batch: the global batch grows.")]
    strong: Annotated[bool, Option("--strong", None, "The workers share one --batch. This is the default.")]
    batch: Annotated[
        int | str | None,
        Option(
            "--batch -b",
            "N",
            "Samples per step: of all workers together, or of each with --weak. Default: the model's usual batch.",
            read=as_given,
        ),
    ]
    family: Annotated[
        str | None,
        Option(
            "--family",
            "NAME",
            "mesh (the best plan over a device mesh: transformers), data, model, hybrid (the paper's formula under paleo), pipeline, "
            "spatial, mixed or best (of a split per layer). Default: mesh for transformers, else data.",
            panel=SPACE,
            words="mesh data model hybrid pipeline spatial mixed best",
        ),
    ]
    epochs: Annotated[
        float | None,
        Option("--epochs", "X", "Passes over the data, for the hours of a training.", read=Values.positive),
    ]
    samples: Annotated[Amount | None, Option("--samples", "N", "Samples of one epoch: 1.28M.", read=Values.amount)]


class SweepOptions(Device, Network, Framework, Objective, Space, Jobs, Proof, total=False):
    """Keywords of `planner.sweep`."""

    nodes: Annotated[
        Degrees | None,
        Option(
            "--nodes",
            "LIST",
            "In place of --gpus: all GPUs of so many nodes of the cluster, as in 1,2,4..16.",
            read=Values.doubled_counts,
        ),
    ]
    gpus: Annotated[
        Degrees,
        Option(
            "--gpus -g",
            "LIST",
            "Workers at most, one question each: 8,16,32..1024; a range doubles, as in 32,64,128,...,1024.",
            read=Values.doubled_counts,
        ),
    ]
    cluster: Annotated[
        "Several | None", Option("--cluster -c", "LIST", f"Clusters, {_CLUSTERS}", words="kind:clusters", is_list=True)
    ]
    batch: Annotated[
        Degrees | None,
        Option("--batch -b", "LIST", "Samples per step: 256,512. Default: the model's own.", read=Values.counts),
    ]
    seq: Annotated[
        Degrees | None,
        Option("--seq", "LIST", "Positions of a sample: 4096,8192. Default: the network's own.", read=Values.counts),
    ]
    dask: Annotated[
        str | None,
        Option(
            "--dask",
            "ADDRESS",
            "Search on the workers of a Dask scheduler, as in tcp://10.0.0.1:8786 (extra 'dask').",
            panel=SEARCH,
        ),
    ]
    fresh: Annotated[bool, Option("--fresh", None, "Search everything again, whatever a journal has.", panel=SEARCH)]


class SizeOptions(Device, Load, Length, Network, Framework, Requests, Space, Jobs, Proof, total=False):
    """Keywords of `planner.size`."""

    spares: Annotated[
        int | None,
        Option(
            "--spares",
            "N",
            "In reserve. Of a training: hosts; default: as many as make its cost least. Serving: replicas that may be down; default: 1.",
            read=partial(Values.count, least=0, most=_MOST_REPLICAS),
        ),
    ]
    demand: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "--demand",
            "FILE",
            "Serving: requests per second hour by hour (CSV: hour,rate_per_s), in place of --rate.",
            panel=SERVING,
        ),
    ]

    tokens: Annotated[
        Amount | None,
        Option("--tokens", "N", "Length of the training in tokens: 1T, 300B, 1.5e13.", read=Values.amount),
    ]
    samples: Annotated[
        Amount | None,
        Option(
            "--samples",
            "N",
            "Length of the training in samples, or, with --epochs, samples of one epoch: 1.28M.",
            read=Values.amount,
        ),
    ]
    epochs: Annotated[
        float | None, Option("--epochs", "X", "Passes over the --samples. Default: 1.", read=Values.positive)
    ]
    days: Annotated[float | None, Option("--days", "X", "Finish within so many days.", read=Values.positive)]
    budget: Annotated[Amount | None, Option("--budget", "USD", "Spend at most so much: 2M, 500k.", read=Values.amount)]
    cluster: Annotated[
        "Several | None",
        Option("--cluster -c", "LIST", f"Clusters to choose among, {_CLUSTERS}", words="kind:clusters", is_list=True),
    ]
    max_gpus: Annotated[
        int | None,
        Option(
            "--max-gpus",
            "N",
            "Look at no more GPUs of a cluster. Default: 4096.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]
    nodes: Annotated[
        int | None,
        Option(
            "--nodes",
            "N",
            "In place of --max-gpus: look at no more nodes of a cluster.",
            read=partial(Values.count, most=MAX_GPUS),
        ),
    ]
    goodput: Annotated[
        float | str | None,
        Option(
            "--goodput",
            "X",
            "Share of the time in which steps are made, in place of what --failures, checkpoints and restarts leave: 90%.",
            panel=COSTS,
            read=Values.share,
        ),
    ]
    failures: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "--failures",
            "NAME|FILE",
            "How often what fails ('planner show failure default', docs/failures.md). Default: default, of seven published fleets.",
            panel=COSTS,
            words="kind:failures",
        ),
    ]
    checkpoint: Annotated[
        str | None,
        Option(
            "--checkpoint",
            "MODE",
            "sync: training waits for the storage; async: for a copy to the host; peers: copies in other hosts' memory. Default: async.",
            panel=COSTS,
            words="costmodel.failures.checkpoint:MODES",
        ),
    ]
    recovery: Annotated[
        str | None,
        Option(
            "--recovery",
            "WHAT",
            "Where no spare host is left: wait for the repair, or shrink to fewer data-parallel replicas. Default: wait.",
            panel=COSTS,
            words="costmodel.failures.outlook:RECOVERIES",
        ),
    ]
    checkpoint_interval: Annotated[
        Time | None,
        Option(
            "--checkpoint-interval",
            "TIME",
            "Work between checkpoints: 30min. Default: what makes the training shortest.",
            panel=COSTS,
            read=Values.seconds,
        ),
    ]


def options_of(declared: type, *names: str) -> dict[str, Option]:
    """Options of a class by keyword, those that are named and then the usual ones first; other names of a keyword are left out.

    >>> list(options_of(OptimizeOptions, "gpus"))[:2], options_of(OptimizeOptions)["top"].flags
    (['gpus', 'nodes'], '--top -k')
    """
    options = {name: get_args(annotation)[1] for name, annotation in declared.__annotations__.items()}
    ordered = {name: options[name] for name in (*names, *_USUAL) if name in options} | options
    return {name: option for name, option in ordered.items() if option.flags}


def aliases_of(declared: type) -> dict[str, str]:
    """Other names of keywords, as ``micro_batches`` is one of ``num_micro_batches``."""
    options = {name: get_args(annotation)[1] for name, annotation in declared.__annotations__.items()}
    return {name: option.field for name, option in options.items() if not option.flags}

"""Options of the placement of operator graphs, declared as those of plans are in `planner.api.options`."""
# No "from __future__ import annotations": the declarations are read from the annotations.

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from planner.api.options import AssumeFree, Calibration, PathLike, Size, Time
from planner.api.readers import SEARCH, Option, as_given
from planner.api.values import Values

if TYPE_CHECKING:
    from planner.api.options import ClusterLike


class PlaceOptions(TypedDict, total=False):
    """Keywords of `planner.place`."""

    cluster: Annotated[
        "ClusterLike | None",
        Option(
            "--cluster",
            "NAME|FILE",
            "WORKLOAD is a network ('planner list models'), whose layers the cost model times on the devices of this cluster.",
            words="kind:clusters",
        ),
    ]
    batch: Annotated[
        int | None,
        Option(
            "--batch",
            "N",
            "Samples that pass through the devices together, with --cluster. Default: 1.",
            read=Values.count,
        ),
    ]
    mode: Annotated[
        Literal["training", "inference"] | None,
        Option(
            "--mode", "MODE", "training or inference, with --cluster. Default: training.", words="training inference"
        ),
    ]
    assume_free: AssumeFree
    calibration: Calibration
    objective: Annotated[
        Literal["throughput", "latency"] | None,
        Option(
            "--objective",
            "NAME",
            "throughput: the least largest load; latency: one sample's least time. Default: throughput.",
            words="throughput latency",
        ),
    ]
    contiguous: Annotated[
        bool | None,
        Option(
            "--contiguous/--non-contiguous",
            None,
            "Whether devices get consecutive parts of the graph. Default: contiguous.",
        ),
    ]
    contiguity: Annotated[
        Literal["chain", "convex"] | None,
        Option(
            "--contiguity",
            "KIND",
            "chain: devices follow each other; convex: only no path leaves a device and comes back. Default: chain.",
            words="chain convex",
        ),
    ]
    devices: Annotated[
        int | None,
        Option(
            "--devices",
            "K",
            "Accelerators. Default: the workload's.",
            field="num_devices",
            read=partial(Values.count, most=10**6),
        ),
    ]
    subgraphs: Annotated[
        int | None,
        Option(
            "--subgraphs",
            "Q",
            "Parts of the graph that an accelerator runs one after the other (--objective latency). Default: 1.",
            field="num_subgraphs",
            read=partial(Values.count, most=1000),
        ),
    ]
    cpus: Annotated[
        int | None,
        Option(
            "--cpus",
            "N",
            "CPUs. Default: the workload's.",
            field="num_cpus",
            read=partial(Values.count, least=0, most=10**6),
        ),
    ]
    memory: Annotated[
        Size | None,
        Option(
            "--memory",
            "SIZE",
            "Memory of an accelerator, as in 16GB. Default: the workload's.",
            field="memory_bytes",
            read=partial(Values.quantity, dimension="bytes"),
        ),
    ]
    bandwidth: Annotated[
        str | None,
        Option(
            "--bandwidth",
            "RATE",
            "Bandwidth between devices, as in 25GiB/s (workloads of Piper's format). Default: the workload's.",
            field="bandwidth_bytes_per_s",
            read=partial(Values.quantity, dimension="bytes_per_s"),
        ),
    ]
    micro_batches: Annotated[
        int | None,
        Option(
            "--micro-batches",
            "N",
            "Micro-batches of a batch (workloads of Piper's format). Default: the workload's.",
            field="num_micro_batches",
            read=Values.count,
        ),
    ]
    method: Annotated[
        str | None,
        Option(
            "--method",
            "NAME",
            "auto, or a baseline: one-device, greedy, pipedream, local-search, expert. Default: auto.",
            panel=SEARCH,
            words="planner.placement.question:METHODS",
        ),
    ]
    expert: Annotated[
        PathLike | None,
        Option("--expert", "FILE", "Split made by an expert (JSON), for --method expert.", panel=SEARCH, read=as_given),
    ]
    time_limit: Annotated[
        Time | None,
        Option(
            "--time-limit",
            "TIME",
            "Stop after this time with the best so far. Default: 60s.",
            panel=SEARCH,
            field="time_limit_s",
            read=Values.seconds,
        ),
    ]
    gap: Annotated[
        float | str | None,
        Option(
            "--gap", "SHARE", "Stop when the bound is this near, as in 1%. Default: 0.", panel=SEARCH, read=Values.ratio
        ),
    ]
    seed: Annotated[
        int | None,
        Option(
            "--seed",
            "N",
            "Of everything that is drawn at random. Default: 0.",
            panel=SEARCH,
            read=partial(Values.count, least=0, most=2**32 - 1),
        ),
    ]

"""``planner place``: operator graphs on devices, optimal or with a certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import Output, emit, remark
from planner.commands.question import output_of, refuse_inputs
from planner.commands.values import Values
from planner.core.errors import ExitCode

if TYPE_CHECKING:
    from planner.placement.question import PlaceRequest

__all__ = ["place", "place_request", "progress_words"]

_MOST_DEVICES = 1_000_000
_MOST_SUBGRAPHS = 1000
_MOST_SEED = 2**32 - 1

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="WORKLOAD",
        help="An operator graph (JSON), or a network with --cluster. Or: check WORKLOAD PLACEMENT, which judges a file of --export.",
        show_default=False,
    ),
]
Objective = Annotated[
    str | None,
    o.option(
        "--objective",
        metavar="NAME",
        help="throughput: the least largest load; latency: one sample's least time. Default: throughput.",
        group=o.QUESTION,
    ),
]
Contiguous = Annotated[
    bool | None,
    o.option(
        "--contiguous/--non-contiguous",
        metavar=None,
        help="Whether devices get consecutive parts of the graph. Default: contiguous.",
        group=o.QUESTION,
    ),
]
Contiguity = Annotated[
    str | None,
    o.option(
        "--contiguity",
        metavar="KIND",
        help="chain: devices follow each other; convex: only no path leaves a device and comes back. Default: chain.",
        group=o.QUESTION,
    ),
]
Devices = Annotated[
    str | None, o.option("--devices", metavar="K", help="Accelerators. Default: the workload's.", group=o.QUESTION)
]
Subgraphs = Annotated[
    str | None,
    o.option(
        "--subgraphs",
        metavar="Q",
        help="Parts of the graph that an accelerator runs one after the other (--objective latency). Default: 1.",
        group=o.QUESTION,
    ),
]
Cpus = Annotated[str | None, o.option("--cpus", metavar="N", help="CPUs. Default: the workload's.", group=o.QUESTION)]
Memory = Annotated[
    str | None,
    o.option(
        "--memory",
        metavar="SIZE",
        help="Memory of an accelerator, as in 16GB. Default: the workload's.",
        group=o.QUESTION,
    ),
]
Bandwidth = Annotated[
    str | None,
    o.option(
        "--bandwidth",
        metavar="RATE",
        help="Bandwidth between devices, as in 25GiB/s (workloads of Piper's format). Default: the workload's.",
        group=o.QUESTION,
    ),
]
MicroBatches = Annotated[
    str | None,
    o.option(
        "--micro-batches",
        metavar="N",
        help="Micro-batches of a batch (workloads of Piper's format). Default: the workload's.",
        group=o.QUESTION,
    ),
]
Cluster = Annotated[
    str | None,
    o.option(
        "--cluster",
        metavar="NAME|FILE",
        help="WORKLOAD is a network ('planner list models'), whose layers the cost model times on the devices of this cluster.",
        group=o.QUESTION,
    ),
]
Batch = Annotated[
    str | None,
    o.option(
        "--batch",
        metavar="N",
        help="Samples that pass through the devices together, with --cluster. Default: 1.",
        group=o.QUESTION,
    ),
]
Mode = Annotated[
    str | None,
    o.option(
        "--mode", metavar="MODE", help="training or inference, with --cluster. Default: training.", group=o.QUESTION
    ),
]
Method = Annotated[
    str | None,
    o.option(
        "--method",
        metavar="NAME",
        help="auto, or a baseline: one-device, greedy, pipedream, local-search, expert. Default: auto.",
        group=o.SEARCH,
    ),
]
Expert = Annotated[
    str | None,
    o.option("--expert", metavar="FILE", help="Split made by an expert (JSON), for --method expert.", group=o.SEARCH),
]
TimeLimit = Annotated[
    str | None,
    o.option(
        "--time-limit", metavar="TIME", help="Stop after this time with the best so far. Default: 60s.", group=o.SEARCH
    ),
]
Gap = Annotated[
    str | None,
    o.option("--gap", metavar="SHARE", help="Stop when the bound is this near, as in 1%. Default: 0.", group=o.SEARCH),
]
Seed = Annotated[
    str | None,
    o.option("--seed", metavar="N", help="Of everything that is drawn at random. Default: 0.", group=o.SEARCH),
]
ExportWorkload = Annotated[
    str | None,
    o.option(
        "--export-workload",
        metavar="FILE",
        help="Also write the operator graph to a file of the public JSON format.",
        group=o.OUTPUT,
    ),
]
Export = Annotated[
    str | None,
    o.option("--export", metavar="FILE", help="Also write the placement to a YAML file.", group=o.OUTPUT),
]


def place(
    words: Words,
    cluster: Cluster = None,
    batch: Batch = None,
    mode: Mode = None,
    assume_free: o.AssumeFree = None,
    calibration: o.Calibration = None,
    objective: Objective = None,
    contiguous: Contiguous = None,
    contiguity: Contiguity = None,
    devices: Devices = None,
    subgraphs: Subgraphs = None,
    cpus: Cpus = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    micro_batches: MicroBatches = None,
    method: Method = None,
    expert: Expert = None,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    seed: Seed = None,
    export: Export = None,
    export_workload: ExportWorkload = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Place the operators of a graph on accelerators and CPUs, optimally or with a bound.

    planner place bert24.json --contiguous --devices 6

    planner place bert-large --cluster dgx1-v100 --batch 4

    planner place check bert24.json placement.yaml

    planner place check bert-large placement.yaml --cluster dgx1-v100
    """
    options: dict[str, Any] = locals()
    values = Values()
    where = output_of({**options, "inputs": words}, values)
    if words[0] == "check" and len(words) > 1:
        _check(words[1:], options, where, values)
        return
    if export_workload is not None:
        refuse_inputs(values, "--export-workload", Path(export_workload), {**options, "inputs": words})
    if len(words) > 1:
        values.add(f"WORKLOAD: one file at a time, not {len(words)}")
    request = place_request(words[0], options, values)
    values.check()

    from json import dumps

    from planner.commands.progress import Progress
    from planner.files.output import write_atomically
    from planner.placement.placement_file import placement_text
    from planner.placement.report import place_report
    from planner.placement.run import place as answer_of

    with Progress(where) as progress:
        answer = answer_of(request, lambda stage, best, bound: progress(*progress_words(stage, best, bound)))
    if export_workload is not None:
        write_atomically(Path(export_workload), dumps(answer.content))
        remark(where, f"wrote {export_workload}")
    if where.export is not None:
        write_atomically(where.export, placement_text(answer))
        remark(where, f"wrote {where.export}")
    emit(place_report(answer), where)
    if answer.result.stopped == "interrupted":
        raise KeyboardInterrupt  # the best so far is shown; the exit code says that it was stopped


def progress_words(stage: str, best: float, bound: float) -> tuple[str, float]:
    """What a search has found so far in words, and the share of its best that the bound has reached."""
    known = best < float("inf")
    text = f"{stage}: best {best:.6g}, bound {bound:.6g}" if known else f"{stage}: bound {bound:.6g}"
    return text, bound / best if known and best > 0 else 0.0


def place_request(workload: str, options: Mapping[str, Any], values: Values) -> PlaceRequest:
    """Check the options that ask a question; ``values`` takes the problems."""
    from planner.placement.question import METHODS, OBJECTIVES, PlaceRequest

    get = options.get
    method = values.choice("--method", get("method") or "auto", METHODS)
    expert = get("expert")
    if (method == "expert") != (expert is not None):
        values.add(
            "--method expert needs --expert FILE"
            if expert is None
            else "--expert: only has a meaning with --method expert"
        )
    if get("objective") == "latency" and (get("contiguous") is not None or get("contiguity") is not None):
        values.add("--contiguity, --contiguous: have no meaning for --objective latency (see --subgraphs)")
    _check_contiguity_of_method(method, get, values)
    if get("cluster") is None:
        for name in _NETWORK_OPTIONS[1:]:
            if get(name):
                values.add(f"--{name.replace('_', '-')}: only has a meaning for a network with --cluster")
    bandwidth = _quantity(values, "--bandwidth", get("bandwidth"), "bytes_per_s")
    batch = values.count("--batch", get("batch") or "1")
    mode = values.choice("--mode", get("mode") or "training", ("training", "inference"))
    return PlaceRequest(
        workload=Path(workload),
        cluster=get("cluster"),
        batch=batch,
        assume_free=tuple(dict.fromkeys(get("assume_free") or ())),
        mode="inference" if mode == "inference" else "training",
        calibration=get("calibration"),
        objective=values.choice("--objective", get("objective") or "throughput", OBJECTIVES),
        contiguity=_contiguity(values, get("contiguous"), get("contiguity")),
        method=method,
        expert=None if expert is None else Path(expert),
        num_devices=values.optional_count("--devices", get("devices"), most=_MOST_DEVICES),
        num_subgraphs=values.optional_count("--subgraphs", get("subgraphs"), most=_MOST_SUBGRAPHS),
        num_cpus=values.optional_count("--cpus", get("cpus"), least=0, most=_MOST_DEVICES),
        memory_bytes=_quantity(values, "--memory", get("memory"), "bytes"),
        bandwidth_bytes_per_s=bandwidth,
        num_micro_batches=values.optional_count("--micro-batches", get("micro_batches")),
        time_limit_s=values.seconds("--time-limit", get("time_limit") or "60s") or 60.0,
        gap=values.ratio("--gap", get("gap") or "0"),
        seed=values.count("--seed", get("seed") or "0", least=0, most=_MOST_SEED),
    )


def _check_contiguity_of_method(method: str, get: Callable[[str], Any], values: Values) -> None:
    """Baselines have the contiguity that they have; asking for another must not be passed over in silence."""
    from planner.placement.question import BASELINES

    asked = "--non-contiguous" if get("contiguous") is False else "--contiguous" if get("contiguous") else None
    asked = f"--contiguity {get('contiguity')}" if get("contiguity") is not None else asked
    baseline = BASELINES.get(method)
    if asked is None or get("objective") == "latency" or (baseline is None and method != "expert"):
        return
    is_chain = baseline is not None and baseline.contiguity == "chain"
    if is_chain and asked in ("--contiguous", "--contiguity chain"):
        return
    found = (
        "places a chain of down-sets" if is_chain else "takes no account of contiguity; the answer says which there is"
    )
    values.add(f"{asked}: --method {method} {found}")


def _contiguity(values: Values, contiguous: bool | None, kind: str | None) -> str:
    if kind is None:
        return "none" if contiguous is False else "chain"
    if contiguous is False:
        values.add(f"--non-contiguous and --contiguity {kind}: choose one")
    return values.choice("--contiguity", kind, ("chain", "convex"))


def _quantity(values: Values, flag: str, text: str | None, dimension: str) -> float | None:
    from planner.core.quantities import QuantityError, parse_quantity

    if text is None:
        return None
    try:
        number = parse_quantity(text, dimension)
    except QuantityError as error:
        values.add(f"{flag}: {error}")
        return None
    if number <= 0:
        values.add(f"{flag} {text}: must be above 0")
        return None
    return number


# Options of a search, which a check has none of: the placement file says what it was made for.
_SEARCH_OPTIONS = (
    "objective",
    "contiguous",
    "contiguity",
    "devices",
    "subgraphs",
    "cpus",
    "memory",
    "bandwidth",
    "micro_batches",
    "method",
    "expert",
    "time_limit",
    "gap",
    "seed",
    "export",
    "export_workload",
)


# Options that say which operator graph a network becomes.
_NETWORK_OPTIONS = ("cluster", "batch", "mode", "assume_free", "calibration")


def _check(files: list[str], options: Mapping[str, Any], where: Output, values: Values) -> None:
    from planner.placement.run import check_files

    if len(files) != 2:
        values.add("check: needs two files, WORKLOAD and PLACEMENT")
    ignored = [f"--{name.replace('_', '-')}" for name in _SEARCH_OPTIONS if options[name] is not None]
    if ignored:
        values.add(
            f"check: {', '.join(ignored)}: the placement file says this; only --cluster, --batch, --mode and --calibration go with it"
        )
    request = place_request(files[0], {name: options[name] for name in _NETWORK_OPTIONS}, values)
    values.check()
    report, ok = check_files(request, Path(files[1]))
    emit(report, where)
    if not ok:
        raise typer.Exit(ExitCode.NO_PLAN)

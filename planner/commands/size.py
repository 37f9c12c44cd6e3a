"""``planner size``: how many of which GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import Output, emit, export_plan
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.sweep import Jobs
from planner.commands.values import MAX_GPUS, Values

if TYPE_CHECKING:
    from planner.core.request import Request
    from planner.sizing.search import Sized
    from planner.sizing.trials import Goal, Trial

__all__ = ["SizeQuestion", "size", "size_question"]

Tokens = Annotated[
    str | None,
    o.option("--tokens", metavar="N", help="Length of the training in tokens: 1T, 300B, 1.5e13.", group=o.QUESTION),
]
SamplesSeen = Annotated[
    str | None,
    o.option(
        "--samples",
        metavar="N",
        help="Length of the training in samples, or, with --epochs, samples of one epoch: 1.28M.",
        group=o.QUESTION,
    ),
]
Epochs = Annotated[
    str | None, o.option("--epochs", metavar="X", help="Passes over the --samples. Default: 1.", group=o.QUESTION)
]
Days = Annotated[str | None, o.option("--days", metavar="X", help="Finish within so many days.", group=o.QUESTION)]
Budget = Annotated[
    str | None, o.option("--budget", metavar="USD", help="Spend at most so much: 2M, 500k.", group=o.QUESTION)
]
Clusters = Annotated[
    str | None,
    o.option(
        "--cluster",
        "-c",
        metavar="LIST",
        help="Clusters to choose among, by names or files with commas; a100 is short for dgx-a100. Default: where --device usually stands,"
        " else dgx-h100.",
        group=o.QUESTION,
    ),
]
MaxGpus = Annotated[
    str | None,
    o.option("--max-gpus", metavar="N", help="Look at no more GPUs of a cluster. Default: 4096.", group=o.QUESTION),
]
Goodput = Annotated[
    str | None,
    o.option(
        "--goodput",
        metavar="X",
        help="Share of the time in which steps are made, the rest being lost to failures and restarts: 90%. Default: 100%.",
        group=o.COSTS,
    ),
]


@takes_mesh_options
def size(
    context: typer.Context,
    model: o.Model,
    tokens: Tokens = None,
    samples: SamplesSeen = None,
    epochs: Epochs = None,
    days: Days = None,
    budget: Budget = None,
    cluster: Clusters = None,
    max_gpus: MaxGpus = None,
    device: o.Device = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    assume_free: o.AssumeFree = None,
    lora_rank: o.LoraRank = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    assume: o.Assume = None,
    price_per_hour: o.Price = None,
    power_w: o.Power = None,
    goodput: Goodput = None,
    jobs: Jobs = None,
    time_limit: o.TimeLimit = None,
    gap: o.Gap = "0",
    seed: o.Seed = "0",
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    export: o.Export = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    *,
    mesh: Mapping[str, Any],
) -> None:
    """Find how many of which GPUs finish a training in time and within a budget.

    Says the fewest GPUs, the cheapest and the thriftiest way on every cluster, with the plan, what binds, and all that was
    tried; where nothing will do, the nearest miss. Counts are whole nodes (single GPUs inside one): doubled first, then every
    gap that matters halved.

    \b
    planner size llama3-70b --tokens 1T --days 30 --budget 2M --cluster a100,h100 --batch 1024 --seq 8192
    planner size resnet50 --samples 1.28M --epochs 90 --days 1 --cluster dgx1-v100 --batch 1024
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    options: dict[str, Any] = locals()
    values = Values()
    question = size_question(options, values)
    where = output_of(options, values)
    values.check()
    with Progress(where) as progress:
        sized = question.answer(progress)
    _show(sized, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """What is asked, checked."""

    request: Request
    goal: Goal
    clusters: tuple[str, ...]  # names or files
    most_gpus: int | None
    jobs: int

    def answer(self, progress: Callable[[str, float], None] | None = None) -> Sized:
        """Search; after Ctrl-C, what was tried until then."""
        from planner.sizing.run import DEFAULT_MOST_GPUS, size_training

        most = self.most_gpus or DEFAULT_MOST_GPUS
        return size_training(self.request, self.goal, self.clusters, most_gpus=most, jobs=self.jobs, progress=progress)


def size_question(options: Mapping[str, Any], values: Values) -> SizeQuestion:
    """Check the options that ask; what is wrong goes to `values`.

    Parameters
    ----------
    options : mapping
        Parameters of the command by name; ``cluster`` may be a sequence of names and files.
    values : Values
    """
    get = options.get
    names = _names(get("cluster"), get("device"), values)
    if len(names) > 1:
        for flag, name in (("--price", "price_per_hour"), ("--power", "power_w"), ("--device", "device")):
            if get(name) is not None:
                values.add(
                    f"{flag}: is about one kind of GPU; name one --cluster, or write it in the files of {', '.join(names)}"
                )
    return SizeQuestion(
        goal=_goal(options, values),
        clusters=tuple(names),
        most_gpus=values.optional_count("--max-gpus", get("max_gpus"), most=MAX_GPUS),
        jobs=1 if get("jobs") is None else values.count("--jobs", options["jobs"], most=1024),
        request=request_from({**options, "cluster": None, "gpus": None, "top": "1"}, values),
    )


def _show(sized: Sized, where: Output) -> None:
    from planner.core.errors import NoFeasiblePlan
    from planner.sizing.report import miss_in_words, size_report

    best = sized.best("least_gpus")
    if best is not None:
        export_plan(where, functools.partial(_document, sized, best[1]), "the plan of the fewest GPUs, refined,")
    emit(size_report(sized), where)
    if sized.interrupted:
        raise KeyboardInterrupt
    if best is None:
        raise NoFeasiblePlan(miss_in_words(sized))


def _document(sized: Sized, trial: Trial, folder: Path) -> dict[str, Any]:
    from planner.files.plan_file import plan_document
    from planner.sizing.run import answer_of

    return plan_document(answer_of(sized, trial), folder=folder)


def _goal(options: Mapping[str, Any], values: Values) -> Goal:
    from planner.sizing.trials import SECONDS_PER_DAY, Goal

    given = {name: options.get(name) for name in ("tokens", "samples", "epochs", "days", "budget")}
    tokens, samples = values.amount("--tokens", given["tokens"]), values.amount("--samples", given["samples"])
    epochs = values.positive("--epochs", given["epochs"])
    if given["tokens"] is None and given["samples"] is None:
        values.add("--tokens: is missing; say how long the training is: --tokens 1T, or --samples 1.28M --epochs 90")
    if given["tokens"] is not None and given["samples"] is not None:
        values.add("--tokens and --samples: choose one")
    if given["epochs"] is not None and given["samples"] is None:
        values.add("--epochs: needs --samples, those of one epoch")
    if given["days"] is None and given["budget"] is None:
        values.add("--days, --budget: give at least one; without a limit one GPU that holds the network will do")
    days, budget = values.positive("--days", given["days"]), values.amount("--budget", given["budget"])
    return Goal(
        tokens=tokens,
        samples=None if samples is None or tokens is not None else samples * (epochs or 1.0),
        deadline_s=None if days is None else days * SECONDS_PER_DAY,
        budget=budget,
        goodput=values.share("--goodput", options.get("goodput")),
    )


def _names(given: str | Sequence[str] | None, device: str | None, values: Values) -> list[str]:
    from planner.core.errors import PlannerError
    from planner.question.lookup import DEFAULT_CLUSTER, default_cluster
    from planner.sweeping.grid import cluster_name

    if given is None:
        try:
            return [default_cluster(device)]
        except PlannerError:  # said when the question is resolved
            return [DEFAULT_CLUSTER]
    parts = given.split(",") if isinstance(given, str) else given
    names = list(dict.fromkeys(cluster_name(part.strip()) for part in parts if part.strip()))
    if not names:
        values.add("--cluster: names no cluster")
    return names or [DEFAULT_CLUSTER]

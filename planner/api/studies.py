"""`planner.sweep` and `planner.size`: many searches, as one table or as one recommendation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from costmodel.failures.rates import SECONDS_PER_DAY
from planner.api.calls import Interrupted, call_text, given_in_python, in_python_words, takes_options
from planner.api.keywords import SizeOptions, SweepOptions, options_of
from planner.api.plans import Plan
from planner.api.readers import SERVING
from planner.api.requests import Progress, check_samples, read_options, request_of, with_gpus
from planner.api.shown import Answer, Reads
from planner.api.values import Values, as_flag, listed
from planner.core.errors import NoFeasiblePlan, PlannerError
from planner.core.quantities import in_tokens
from planner.files.resources import reference_to, stands_for
from planner.sizing.report import miss_in_words, size_report
from planner.sizing.run import DEFAULT_MOST_GPUS, answer_of, facts_of, size_training
from planner.sizing.search import Goal, Resilience, Sized
from planner.sweeping.grid import Axes, cells_of
from planner.sweeping.report import scaling_figure, sweep_report
from planner.sweeping.run import Swept, run

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.core.blocks import Report
    from planner.sizing.fleet import Fleets

Wish: TypeAlias = Literal["least_gpus", "least_gpus_90", "cheapest", "least_energy", "thriftiest"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep(Answer):
    """A grid of searches: one row per question, in the order of the axes; iterating gives the rows.

    Attributes
    ----------
    command : str
        The call.
    raw : planner.sweeping.run.Swept

    Examples
    --------
    >>> import planner
    >>> [(row["gpus"], row["status"]) for row in planner.sweep("alexnet", gpus="1..4")]
    [(1, 'ok'), (2, 'ok'), (4, 'ok')]
    """

    command: str
    raw: Any

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Columns of `planner.sweeping.answer.COLUMNS`; ``status`` is ``ok``, or ``reason`` says why there is no plan."""
        return self.to_records()

    def write_plot(self, path: str | os.PathLike[str]) -> Path:
        """Write throughput over GPUs as ``.svg``, or ``.png`` with the extra ``plots``.

        Raises
        ------
        UsageError
            Another ending, or no question has a plan.
        """
        from planner.api.report_files import write_plot

        return write_plot(scaling_figure(self.raw.rows), path)

    def __len__(self) -> int:
        return len(self.raw.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<planner.Sweep of {len(self)} questions>"

    def _report(self) -> Report:
        return sweep_report(self.raw, self.command)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizing(Answer):
    """How many of which GPUs, and all that was tried.

    Attributes
    ----------
    raw : planner.sizing.search.Sized

    Examples
    --------
    >>> import planner
    >>> sizing = planner.size("alexnet", samples="1.28M", epochs=90, days=1, max_gpus=8)
    >>> sizing.least_gpus["gpus"], sizing.least_gpus["time_s"] <= 86400
    (1, True)
    """

    raw: Any

    least_gpus = Reads[dict[str, Any] | None](
        "_found.least_gpus",
        "The fewest GPUs that meet the goal: ``cluster``, ``gpus``, ``time_s``, ``money``, ``plan``, ...; None where none do.",
    )
    least_gpus_90 = Reads[dict[str, Any] | None](
        "_found.least_gpus_90",
        "The fewest GPUs that meet the goal with a chance of 90 %: at the upper end of the 80 % interval; None where none do.",
    )
    cheapest = Reads[dict[str, Any] | None]("_found.cheapest", "Least money of what meets the goal.")
    least_energy = Reads[dict[str, Any] | None]("_found.least_energy", "Least energy of what meets the goal.")
    thriftiest = Reads[dict[str, Any] | None]("_found.least_energy", "The old name of `least_energy`, for one release.")
    nearest = Reads[dict[str, Any] | None]("_found.nearest", "What comes closest, where nothing meets the goal.")

    @property
    def _found(self) -> SimpleNamespace:
        return SimpleNamespace(**self.to_dict())

    @property
    def miss(self) -> str | None:
        """Say what comes closest, where nothing meets the goal."""
        return None if self.least_gpus is not None else miss_in_words(self.raw)

    def plan(self, wish: Wish = "least_gpus") -> Plan:
        """Search the plan of an answer again, stages and recomputation refined, to be saved or exported.

        Raises
        ------
        NoFeasiblePlan
            Nothing meets the goal.
        """
        found = self.raw.best(wish)
        if found is None:
            raise NoFeasiblePlan(self.miss or f"{wish}: is not known")
        answer = answer_of(self.raw, found[1])
        return Plan(ranked=answer.best, _answer=answer)

    def __repr__(self) -> str:
        found = self.least_gpus
        words = self.miss if found is None else f"{found['gpus']} GPUs of {found['cluster']}: {found['plan']}"
        return f"<planner.Sizing: {words}>"

    def _report(self) -> Report:
        return size_report(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetSizing(Answer):
    """How many of which GPUs serve requests that come at a rate.

    Attributes
    ----------
    raw : planner.sizing.fleet.Fleets

    Examples
    --------
    >>> import planner
    >>> fleet = planner.size_fleet("llama3-8b", rate=5, max_tpot="30ms", cluster="h100", max_gpus=4)
    >>> fleet.best["cost"]["tpot_s"] <= 0.03, fleet.plan().workers <= fleet.best["gpus"]
    (True, True)
    """

    raw: Any

    @property
    def best(self) -> dict[str, Any] | None:
        """The cheapest: ``cluster``, ``gpus``, ``replicas``, ``money_per_month``, ``plan``, ...; None where none serves the demand."""
        found: dict[str, Any] | None = self.to_dict()["best"]
        return found

    def plan(self) -> Plan:
        """The plan of the cheapest, with the replicas that the demand needs.

        Raises
        ------
        NoFeasiblePlan
            None serves the demand.
        """
        if not self.raw.ranked:
            raise NoFeasiblePlan(self.raw.fleets[0].reason)
        fleet = self.raw.ranked[0]
        return Plan(ranked=fleet.best, _answer=fleet.found)

    def _report(self) -> Report:
        from planner.sizing.fleet_report import fleet_report

        return fleet_report(self.raw)


@takes_options(SweepOptions)
def sweep(
    model: ModelLike,
    /,
    *,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Search a grid of clusters, numbers of GPUs, batches and lengths: one row each.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    journal : path, optional
        Where rows are kept as they are done: the same call goes on where an interrupted one stopped.
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner sweep``, by the same names: ``gpus=[8, 16]`` or ``"8,16,32..1024"``, ``cluster=["a100", "h100"]``,
        ``batch=[256, 512]``, ``jobs=4``, ... With more than one job a script needs ``if __name__ == "__main__":``, as with all of
        multiprocessing.

    Returns
    -------
    Sweep

    Raises
    ------
    PlannerError
        A mistake that is the same in every question; one without a plan is a row that says why.
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds the rows so far.

    Examples
    --------
    >>> import planner
    >>> table = planner.sweep("alexnet", gpus=[1, 2, 4], batch=256)
    >>> [(row["gpus"], row["status"]) for row in table]
    [(1, 'ok'), (2, 'ok'), (4, 'ok')]
    """
    call = call_text("sweep", [model], options)
    with in_python_words() as values:
        question = sweep_question(given_in_python(SweepOptions, model, options), values, call)
        values.check()
        swept = question(None if journal is None else Path(journal), progress)
    answer = Sweep(command=call, raw=swept)
    if swept.interrupted:
        raise Interrupted(answer)
    return answer


@takes_options(SizeOptions)
def size_fleet(model: ModelLike, /, *, progress: Progress | None = None, **options: Unpack[SizeOptions]) -> FleetSizing:
    """Find how many of which GPUs serve requests that come at a rate.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner size`` that are about serving, by the same names: ``rate=50``, ``demand="day.csv"`` or
        ``requests="log.csv"``, ``prompt=2000``, ``output_tokens=500``, ``max_tpot="p90:40ms"``, ``cluster=["h100", "h200"]``, ...

    Returns
    -------
    FleetSizing
        Where no cluster serves the demand, its `best` is None.

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> fleet = planner.size_fleet("llama3-8b", rate=5, prompt=1024, output_tokens=128, max_tpot="30ms", cluster="h100", max_gpus=4)
    >>> fleet.best["replicas"] - fleet.best["replicas_needed"]
    1
    """
    call = call_text("size_fleet", [model], options)
    with in_python_words() as values:
        given = given_in_python(SizeOptions, model, options)
        if not is_about_serving(given):
            values.add("rate: is missing; say how many requests come per second, or name demand or requests")
        question = fleet_question(given, values, call)
        values.check()
        return FleetSizing(raw=question(progress))


@takes_options(SizeOptions)
def size(model: ModelLike, /, *, progress: Progress | None = None, **options: Unpack[SizeOptions]) -> Sizing:
    """Find how many of which GPUs finish a training in time and within a budget.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner size``, by the same names: ``tokens="1T"`` or ``1e12``, ``days=30``, ``budget="2M"``,
        ``cluster=["a100", "h100"]``, ``max_gpus=1024``, ``jobs=4``, ...

    Returns
    -------
    Sizing
        Where nothing meets the goal, its `least_gpus` is None, and `nearest` and `miss` say what comes closest.

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds what was tried.

    Examples
    --------
    >>> import planner
    >>> sizing = planner.size("alexnet", samples=1.28e6, epochs=90, days=0.5, cluster="dgx1-v100", max_gpus=8)
    >>> sizing.least_gpus["cluster"], sizing.least_gpus["time_s"] <= 43200
    ('dgx1-v100', True)
    """
    with in_python_words() as values:
        call = call_text("size", [model], options)
        given = given_in_python(SizeOptions, model, options)
        if is_about_serving(given):
            values.add(
                "planner.size is about a training; planner.size_fleet sizes servers for requests that come at a rate"
            )
            values.check()
        question = size_question(given, values, call)
        values.check()
        sized = question(progress)
    answer = Sizing(raw=sized)
    if sized.interrupted:
        raise Interrupted(answer)
    return answer


# -- from options to questions: what the functions and the commands have in common ------------------------------------------

_MOST_CELLS = 100_000


def sweep_question(
    given: Mapping[str, Any], values: Values, command_line: str
) -> Callable[[Path | None, Progress | None], Swept]:
    """Read the options of a sweep; what is wrong goes to `values`.

    Returns
    -------
    callable
        Searches what a journal does not have; after Ctrl-C, gives what is done.
    """
    options = options_of(SweepOptions)
    given = with_gpus(options, given, values, "gpus", _readable(given, values))
    del options["nodes"]
    asks = {name: options.pop(name) for name in ("jobs", "dask", "fresh")}
    axes = {name: options.pop(name) for name in ("gpus", "cluster", "batch", "seq")}
    asked = read_options(asks, given, values)
    dask = asked.get("dask")
    if "jobs" in given and dask is not None:
        values.add(f"{values.called('jobs')} and {values.called('dask')}: choose one")
    if dask is not None and not dask.strip():
        values.add(f"{values.called('dask')}: needs the address of a scheduler, as in tcp://10.0.0.1:8786")
    if isinstance(given.get("batch"), str) and any(in_tokens(part) for part in given["batch"].split(",")):
        values.add(
            f"{values.called('batch')} {given['batch']}: a sweep counts samples, as its lengths differ; divide the tokens by "
            f"{values.called('seq')}"
        )
        axes.pop("batch")
    elif "batch" in given and "seq" not in given:
        for part in listed("batch", given["batch"]):
            check_samples(given, part, Values().count("batch", part), values)
    grid = _axes(read_options(axes, given, values), values)
    request = request_of(options, given, values, command_line, top=1)

    def answer(journal: Path | None, progress: Progress | None) -> Swept:
        from planner.sweeping.journal import Journal

        cells = cells_of(request, grid)
        with Journal(journal, fresh=asked.get("fresh", False)) as opened:
            return run(cells, opened, jobs=asked.get("jobs", 1), dask=dask, progress=progress)

    return answer


def _axes(found: Mapping[str, Any], values: Values) -> Axes:
    if "gpus" not in found:
        gpus = values.called("gpus")
        values.add(f"{gpus}: is missing; say how many workers there are at most, as in {gpus} 8,16,32..1024")
    axes = Axes(
        clusters=_clusters(found["cluster"], values) if "cluster" in found else (None,),
        gpus=found.get("gpus", (1,)),
        batches=found.get("batch", (None,)),
        seqs=found.get("seq", (None,)),
    )
    if axes.size > _MOST_CELLS:
        values.add(f"the grid has {axes.size:,} questions, more than {_MOST_CELLS:,}; give shorter lists")
    return axes


def _readable(given: Mapping[str, Any], values: Values) -> tuple[str, ...]:
    """Clusters that are named, whose problems are said elsewhere."""
    return _clusters(given["cluster"], Values(values.called)) if "cluster" in given and "nodes" in given else ()


def _own_name(cluster: str) -> str:
    """The name of the cluster that a device's name stands for, by which rows are told apart; any other as it is."""
    from planner.files.loading import load_cluster

    return cluster if stands_for(cluster) is None else load_cluster(cluster).cluster.name


def _clusters(given: Any, values: Values) -> tuple[str, ...]:
    """Names and files of clusters: a text with commas, one of Python or several."""
    is_one = not isinstance(given, Sequence)
    parts = [given] if is_one else listed("cluster", given)
    references = [
        one
        if isinstance(given, str) and values.called is as_flag
        else reference_to("clusters", one, "" if is_one else f"[{n}]")
        for n, one in enumerate(parts)
    ]
    names = tuple(dict.fromkeys(map(_own_name, references)))
    if not names:
        values.add(f"{values.called('cluster')}: names no cluster")
    return names


def is_about_serving(given: Mapping[str, Any]) -> bool:
    """Whether a size is asked for requests that come, and not for a training."""
    return bool(_SAYS_RATE & set(given))


# Options that say how many requests come.
_SAYS_RATE = frozenset({"rate", "requests", "demand"})
_OF_FAILURES = ("failures", "checkpoint", "checkpoint_interval", "recovery")
_OF_TRAINING = ("tokens", "samples", "epochs", "days", "budget", "goodput", "jobs", *_OF_FAILURES)
_OF_FLEETS = ("spares", "demand")


def fleet_question(given: Mapping[str, Any], values: Values, command_line: str) -> Callable[[Progress | None], Fleets]:
    """Read the options of a size for requests that come at a rate; what is wrong goes to `values`."""
    options, names, given = _size_options(given, values)
    for name in _OF_TRAINING:
        if name in given:
            values.add(
                f"{values.called(name)}: is about a training, and the question about requests; leave one of them out"
            )
        options.pop(name)
    asked = read_options({name: options.pop(name) for name in (*_OF_FLEETS, "max_gpus")}, given, values)
    demand = given.get("demand")
    if demand is not None and "rate" in given:
        values.add(f"{values.called('demand')} and {values.called('rate')}: choose one")
    request = request_of(options, given, values, command_line, mode="inference")

    def answer(progress: Progress | None) -> Fleets:
        from planner.files.demand_file import read_demand
        from planner.sizing.fleet import size_fleet

        hours = () if demand is None else read_demand(Path(demand))
        facts = facts_of(request, names, asked.get("max_gpus", DEFAULT_MOST_GPUS))
        return size_fleet(request, facts, spares=asked.get("spares", 1), hours=hours, progress=progress)

    return answer


def _size_options(
    given: Mapping[str, Any], values: Values
) -> tuple[dict[str, Any], tuple[str, ...], Mapping[str, Any]]:
    """Options of `planner size` but for the clusters, the clusters, and what is given with nodes as GPUs."""
    from planner.question.lookup import DEFAULT_CLUSTER, default_cluster

    options = options_of(SizeOptions)
    given = with_gpus(options, given, values, "max_gpus", _readable(given, values))
    del options["nodes"], options["cluster"]
    if "cluster" in given:
        names = _clusters(given["cluster"], values) or (DEFAULT_CLUSTER,)
    else:
        try:
            names = (default_cluster(given.get("device")),)
        except PlannerError:  # said when the question is resolved
            names = (DEFAULT_CLUSTER,)
    if len(names) > 1:
        for name in ("price", "power", "device"):
            if name in given:
                label = f"{values.called(name)}: is about one kind of GPU; name one {values.called('cluster')}"
                values.add(f"{label}, or write it in the files of {', '.join(names)}")
    return options, names, given


def size_question(given: Mapping[str, Any], values: Values, command_line: str) -> Callable[[Progress | None], Sized]:
    """Read the options of a size of a training; what is wrong goes to `values`.

    Returns
    -------
    callable
        Searches; after Ctrl-C, gives what was tried until then.
    """
    options, names, given = _size_options(given, values)
    asked = read_options({name: options.pop(name) for name in (*_OF_TRAINING, "spares", "max_gpus")}, given, values)
    serving = [name for name, option in options.items() if option.panel == SERVING and name in given]
    if serving:
        rate = values.called("rate")
        values.add(
            f"{values.called(serving[0])}: is about serving; say with {rate} how many requests come, as in {rate} 50"
        )
        values.check()  # the rest would be about a training
    goal = _goal(asked, given, values)
    request = request_of(options, given, values, command_line, top=1)

    def answer(progress: Progress | None) -> Sized:
        most = asked.get("max_gpus", DEFAULT_MOST_GPUS)
        return size_training(request, goal, names, most_gpus=most, jobs=asked.get("jobs", 1), progress=progress)

    return answer


def _goal(asked: Mapping[str, Any], given: Mapping[str, Any], values: Values) -> Goal:
    tokens, samples, epochs, days, budget = map(values.called, ("tokens", "samples", "epochs", "days", "budget"))
    if "tokens" not in given and "samples" not in given:
        values.add(f"{tokens}: is missing; say how long the training is: {tokens} 1T, or {samples} 1.28M {epochs} 90")
    if "tokens" in given and "samples" in given:
        values.add(f"{tokens} and {samples}: choose one")
    if "epochs" in given and "samples" not in given:
        values.add(f"{epochs}: needs {samples}, those of one epoch")
    if "days" not in given and "budget" not in given:
        values.add(f"{days}, {budget}: give at least one; without a limit one GPU that holds the network will do")
    wanted, limit = asked.get("samples"), asked.get("days")
    both = [values.called(name) for name in (*_OF_FAILURES, "spares") if name in given and "goodput" in given]
    if both:
        values.add(f"{both[0]} and {values.called('goodput')}: choose one; a stated share needs no failures")
    return Goal(
        tokens=asked.get("tokens"),
        samples=None if wanted is None or asked.get("tokens") is not None else wanted * (asked.get("epochs") or 1.0),
        deadline_s=None if limit is None else limit * SECONDS_PER_DAY,
        budget=asked.get("budget"),
        goodput=asked.get("goodput", 1.0),
        resilience=None if "goodput" in given else _resilience(asked),
    )


def _resilience(asked: Mapping[str, Any]) -> Resilience:
    """Read the rates of failures, and what is done about them."""
    from planner.files.loading import load_failures

    return Resilience(
        failures=load_failures(reference_to("failures", asked.get("failures", "default"))),
        mode=asked.get("checkpoint", "async"),
        interval_s=asked.get("checkpoint_interval"),
        spares=asked.get("spares"),
        recovery=asked.get("recovery", "wait"),
    )

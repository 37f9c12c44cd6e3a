"""Asks the searches of a sizing, cluster by cluster, in this process or in many."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from costmodel.failures.checkpoint import SavedState
from costmodel.failures.rates import Units
from costmodel.hardware.host import host_rates
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from planner.core.errors import LimitReached, UsageError
from planner.core.request import Request
from planner.sizing.search import STEP_TIME, ClusterAnswer, ClusterFacts, Goal, Sized, Trial, size_cluster
from planner.sweeping.answer import answered
from planner.sweeping.grid import Cell, load_clusters
from planner.sweeping.run import answers_here
from strategies.limits import Progress

if TYPE_CHECKING:
    from costmodel.hardware.cluster import Cluster
    from planner.core.answer import Answer, Estimate
    from planner.spaces.base import PlanSpace

DEFAULT_MOST_GPUS = 4_096


def size_training(
    request: Request,
    goal: Goal,
    names: Sequence[str],
    *,
    most_gpus: int = DEFAULT_MOST_GPUS,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Sized:
    """Find how many of which GPUs meet a goal.

    Parameters
    ----------
    request : Request
        The network and everything that is fixed; its cluster and its GPUs are not read.
    goal : Goal
    names : sequence of str
        Clusters, by name or file.
    most_gpus : int
        Counts that are looked at, at most.
    jobs : int
        Processes.
    progress : function of (message, share done), optional

    Raises
    ------
    LimitReached
        A process died each time, perhaps for want of memory.
    UsageError
        A cluster with several kinds of GPUs, a budget without a price, tokens of a network whose input is no sequence.
    PlannerError
        Something cannot be read.
    """
    clusters = _clusters(request, names)
    has_objectives = _checked_network(request, goal, names[0])
    facts = [_facts(request, goal, name, cluster, most_gpus) for name, cluster in clusters.items()]
    common = {"request": request, "goal": goal, "has_objectives": has_objectives}
    cells = [Cell(key=one.name, question={**common, "facts": one}) for one in facts]
    found = {one.name: ClusterAnswer(facts=one) for one in facts}
    work = partial(sized_cluster, progress=progress) if jobs == 1 or len(cells) == 1 else sized_cluster
    with contextlib.suppress(KeyboardInterrupt):
        for cell, row in answers_here(cells, jobs, work):
            if "answer" not in row:
                raise LimitReached(f"--cluster {cell.key}: {row['reason']}")
            found[cell.key] = row["answer"]
            if not row["answer"].complete:
                break
    return Sized(request=request, goal=goal, clusters=tuple(found.values()))


def sized_cluster(question: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """Size one cluster, in any process: one search after the other, each of which knows what those before it found."""
    request, goal, facts, has_objectives = (question[name] for name in ("request", "goal", "facts", "has_objectives"))
    spaces: dict[str, PlanSpace] = {}

    def tried(allowed: int, objective: str, known: Sequence[Trial]) -> Trial:
        # The answer of more GPUs that leaves so many out is the answer here, too.
        same = [t for t in known if t.row["objective"] == objective and t.allowed > allowed >= t.workers]
        if same:
            trial = dataclasses.replace(same[0], allowed=allowed)
        else:
            asked = dataclasses.replace(_asked(request, facts, allowed, objective), top=1)
            trial = _searched(asked, facts, goal, known, spaces)
        if progress is not None:
            count = len(known) + 1
            progress(f"search {count}: {facts.name}, {allowed} GPUs", count / (count + 1))
        return trial

    return {"answer": size_cluster(facts, goal, tried, has_objectives=has_objectives)}


def _searched(
    asked: Request, facts: ClusterFacts, goal: Goal, known: Sequence[Trial], spaces: dict[str, PlanSpace]
) -> Trial:
    """Search one count, without the smaller counts that other trials settle; ``spaces`` keeps cost models by objective."""
    fewer = [trial for trial in known if trial.allowed < asked.gpus]
    if asked.objective is None:
        settled = [trial for trial in fewer if trial.row["proven_optimal"] or trial.excludes_fewer]
        rivals = [trial for trial in known if trial.workers <= asked.gpus]
    else:
        # Plans that are late do not count, but where nothing is within the budget, the least money of all plans is asked for.
        is_met = goal.budget is None or any(trial.meets() for trial in known)
        settled = [trial for trial in fewer if is_met and trial.excludes_fewer]
        rivals = [trial for trial in known if trial.has_plan and trial not in settled]
    known_gpus = max((trial.allowed for trial in settled), default=0)
    plans = [trial.plan for trial in rivals]

    def search(request: Request) -> Answer:
        from planner.question.resolve import resolve
        from planner.spaces.ask import searched
        from planner.spaces.base import space_of

        objective = request.objective or STEP_TIME
        if objective not in spaces:
            spaces[objective] = space_of(resolve(request))
        return searched(spaces[objective].after(request, known_gpus, plans), 1, compare=False)

    row, found = answered(asked, search)
    plan = None if found is None else found.plans[0].plan
    state = None
    if plan is not None and goal.resilience is not None:
        total, rank = spaces[asked.objective or STEP_TIME].saved_bytes(plan, row["workers"])
        state = SavedState(total_bytes=total, rank_bytes=rank, ranks_per_host=min(facts.node, row["workers"]))
    return Trial.of(row, facts, goal, asked.gpus, plan, known_gpus, state)


def answer_of(sized: Sized, trial: Trial) -> Answer:
    """Search the plan of a trial again, this time with the refinement that `planner optimize` adds on top."""
    from planner.spaces.ask import optimize

    return optimize(_asked(sized.request, trial.facts, trial.allowed, trial.row["objective"]))


def estimate_of(sized: Sized, trial: Trial) -> Estimate | None:
    """Predict the plan of a trial, part by part; None where the plan itself is not known."""
    from planner.spaces.ask import estimate

    asked = _asked(sized.request, trial.facts, trial.allowed, trial.row["objective"])
    return None if trial.plan is None else estimate(asked, trial.plan)


def _asked(request: Request, facts: ClusterFacts, allowed: int, objective: str) -> Request:
    # Step time is the default; naming it would be refused for splits per layer.
    stated = None if objective == STEP_TIME else objective
    return dataclasses.replace(request, cluster=facts.name, gpus=allowed, objective=stated, fastest=True)


def _checked_network(request: Request, goal: Goal, cluster: str) -> bool:
    """Whether the searches are over a mesh, which know objectives; refuses what no cluster could answer."""
    from planner.question.resolve import resolve

    resolved = resolve(dataclasses.replace(request, cluster=cluster, gpus=1))
    if goal.tokens is not None and resolved.setting.seq is None:
        raise UsageError(
            f"--tokens: the input of network '{resolved.setting.model}' is no sequence; say --samples, or --epochs too"
        )
    return resolved.kind.has_objectives


def _clusters(request: Request, names: Sequence[str]) -> dict[str, Cluster]:
    from planner.files.loading import load_device

    device = None if request.device is None else load_device(request.device).device
    clusters = {}
    for name, loaded in load_clusters(names, names[0]).items():
        cluster = loaded.cluster
        if len(cluster.groups) != 1:
            raise UsageError(
                f"--cluster {name}: has several kinds of GPUs; 'planner optimize --cluster {name}' plans for all of them"
            )
        clusters[name] = cluster if device is None else cluster.with_device(device)
    return clusters


def facts_of(request: Request, names: Sequence[str], most_gpus: int) -> list[ClusterFacts]:
    """What sizing needs to know of clusters, by name or file.

    Raises
    ------
    UsageError
        A cluster with several kinds of GPUs.
    """
    clusters = _clusters(request, names)
    return [_facts(request, Goal(), name, cluster, most_gpus) for name, cluster in clusters.items()]


def _facts(request: Request, goal: Goal, name: str, cluster: Cluster, most_gpus: int) -> ClusterFacts:
    price = request.price_per_hour or cluster.device.price_per_hour
    if goal.budget is not None and price is None:
        raise UsageError(
            f"--budget: neither cluster '{cluster.name}' nor device '{cluster.device.name}' states a price; give --price (USD per GPU and "
            "hour), or write 'price_per_hour: X' in the file"
        )
    most = most_gpus if cluster.max_devices is None else min(most_gpus, cluster.max_devices)
    node = (cluster.levels[0].size or 1) if cluster.host is None else cluster.host.devices
    outer = cluster.levels[-1]
    return ClusterFacts(
        name=name,
        node=min(node, most),
        most=most,
        price_per_hour=price,
        units=Units(host=node, adapter=outer.shared_by, rack=max(node, cluster.domain_size or 0, Units().rack)),
        copy_bytes_per_s=host_rates(cluster.host).get("host_bytes_per_s", DEFAULT_ASSUMPTIONS.host_bytes_per_s),
        peer_bytes_per_s=outer.bandwidth_bytes_per_s * outer.efficiency,
    )

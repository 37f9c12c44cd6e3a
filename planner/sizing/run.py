"""Asks the searches of a sizing: the same cells as a sweep, in this process or in many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from planner.core.errors import UsageError
from planner.core.request import Request
from planner.sizing.search import ClusterFacts, Goal, Sized, Trial, size
from planner.sweeping.answer import key_of, to_plain
from planner.sweeping.grid import Cell, load_clusters
from planner.sweeping.run import answers_here

if TYPE_CHECKING:
    from costmodel.hardware.cluster import Cluster
    from planner.core.answer import Answer

__all__ = ["DEFAULT_MOST_GPUS", "answer_of", "size_training"]

Progress = Callable[[str, float], None]

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
    UsageError
        A cluster with several kinds of GPUs, a budget without a price, tokens of a network whose input is no sequence.
    PlannerError
        Something cannot be read.
    """
    clusters = _clusters(request, names)
    has_objectives = _checked_network(request, goal, names[0])
    facts = [_facts(request, goal, name, cluster, most_gpus) for name, cluster in clusters.items()]
    known: dict[str, Trial] = {}
    asked = 0

    def ask(cells: Sequence[tuple[ClusterFacts, int, str]]) -> list[Trial]:
        nonlocal asked
        questions = [to_plain(_asked(request, *cell)) for cell in cells]
        keys = [key_of(question, {}, "") for question in questions]
        wanted = {
            key: (Cell(key=key, question=question), facts, allowed)
            for key, question, (facts, allowed, _) in zip(keys, questions, cells, strict=True)
            if key not in known
        }
        for cell, row in answers_here([cell for cell, _, _ in wanted.values()], jobs):
            _, where, allowed = wanted[cell.key]
            if row["status"] == "failed":
                raise UsageError(f"{where.name}, {allowed} GPUs: {row['reason']}")
            known[cell.key] = Trial.of(row, where, goal, allowed)
            asked += 1
            if progress is not None:
                progress(f"search {asked}: {where.name}, {allowed} GPUs", asked / (asked + len(wanted)))
        return [known[key] for key in keys]

    return size(request, goal, facts, ask, has_objectives=has_objectives)


def answer_of(sized: Sized, trial: Trial) -> Answer:
    """Search the plan of a trial again, this time with the refinement that `planner optimize` adds on top."""
    from planner.spaces.ask import optimize

    return optimize(_asked(sized.request, trial.facts, trial.allowed, trial.row["objective"]))


def _asked(request: Request, facts: ClusterFacts, allowed: int, objective: str) -> Request:
    # Step time is the default; naming it would be refused for splits per layer.
    known = None if objective == "step_time" else objective
    return dataclasses.replace(request, cluster=facts.name, gpus=allowed, objective=known)


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


def _facts(request: Request, goal: Goal, name: str, cluster: Cluster, most_gpus: int) -> ClusterFacts:
    price = request.price_per_hour or cluster.device.price_per_hour
    if goal.budget is not None and price is None:
        raise UsageError(
            f"--budget: neither cluster '{cluster.name}' nor device '{cluster.device.name}' states a price; give --price (USD per GPU and "
            "hour), or write 'price_per_hour: X' in the file"
        )
    most = most_gpus if cluster.max_devices is None else min(most_gpus, cluster.max_devices)
    node = cluster.levels[0].size or (1 if cluster.host is None else cluster.host.devices)
    return ClusterFacts(name=name, node=min(node, most), most=most, price_per_hour=price)

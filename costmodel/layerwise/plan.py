"""A plan with a split per layer: how many workers, how each layer is split, which collective carries each exchange; one and as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from costmodel.arrays import FloatArray, IntArray, StructOfArrays
from costmodel.fields import Figure, declared, part
from costmodel.layerwise.splits import Split
from costmodel.network.graph import Graph
from costmodel.rates import COMMON_FIGURES, COST_FIGURES

LAYERWISE_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    Figure(
        name="speedup",
        doc="Over one worker at the same global batch; null where one worker does not fit.",
        kind="number",
        optional=True,
    ),
    Figure(name="efficiency", doc="speedup / workers.", kind="number", optional=True),
    part("step_time_s", "compute_s", "compute", "Forward and backward pass."),
    part("step_time_s", "update_s", "optimizer", "Optimizer."),
    part("step_time_s", "reshard_s", "resharding", "Moving activations and their gradients between and inside layers."),
    part(
        "step_time_s",
        "exposed_exchange_s",
        "exposed gradient exchange",
        "Gradient exchange that the backward pass does not hide.",
    ),
    part("step_time_s", "bubble_s", "pipeline bubble", "Filling and draining of a pipeline."),
    Figure(name="exchange_s", doc="All gradient exchange, hidden or not."),
    *COST_FIGURES,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stage:
    """A contiguous piece of the layers (topological order, ``first`` to ``last`` inclusive) on ``replicas`` workers."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One complete choice.

    Without a pipeline (``stages`` empty) every layer is split over all workers. With one, each stage runs on its own workers, data
    parallel inside: the layers of a stage all have ``Split(batch=replicas)``.
    """

    workers: int
    num_micro_batches: int
    splits: tuple[Split, ...]  # layer -> split, in the graph's order
    collectives: tuple[str | None, ...]  # layer -> all-reduce of its gradient; None where nothing is exchanged
    stages: tuple[Stage, ...] = ()

    @property
    def is_pipeline(self) -> bool:
        """Whether the layers are cut into stages."""
        return len(self.stages) > 1


def plan_key(graph: Graph, plan: Plan) -> tuple[object, ...]:
    """What makes two plans different to a user: workers, stages, and split and collective of every layer with weights.

    Examples
    --------
    Plans that differ only in the split of a pooling layer or in micro-batches are the same plan, run its best way.
    """
    return (
        plan.workers,
        plan.stages,
        tuple(plan.splits[i].degrees for i in graph.weighted),
        tuple(plan.collectives[i] for i in graph.weighted),
    )


def family_of_plan(graph: Graph, plan: Plan) -> str:
    """Name the region of the space that a plan lies in.

    ``one-device``; ``pipeline``; ``data`` (weights whole everywhere, batch split); ``model`` (all weights split by channels);
    ``hybrid`` (convolutions or other feature layers by batch, every fully connected layer by channels or batch, not all alike);
    ``spatial`` (some height split and no channel split); ``mixed`` for the rest.
    """
    if plan.workers == 1:
        return "one-device"
    if plan.is_pipeline:
        return "pipeline"
    pairs = [(layer, plan.splits[i]) for i, layer in enumerate(graph.layers) if layer.weight_count > 0]
    by_batch = [split.batch == plan.workers for _, split in pairs]
    by_channels = [split.out_channels * split.in_channels == plan.workers for _, split in pairs]
    features_by_batch = all(
        whole or layer.family.is_fully_connected(layer) for (layer, _), whole in zip(pairs, by_batch, strict=True)
    )
    regions = {
        "data": all(by_batch),
        "model": all(by_channels),
        "hybrid": features_by_batch and all(b or c for b, c in zip(by_batch, by_channels, strict=True)),
        "spatial": all(split.out_channels * split.in_channels == 1 for _, split in pairs),
    }
    return next((name for name, inside in regions.items() if inside), "mixed")


def runs(names: Sequence[str], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Group neighbouring names with equal labels: ``[("conv1-conv5", "data x8"), ("fc6", ...)]``."""
    grouped = []
    for label, group in groupby(zip(names, labels, strict=True), key=itemgetter(1)):
        members = [name for name, _ in group]
        grouped.append((members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}", label))
    return grouped


# Collective index that stands for "the cheapest for this message".
CHEAPEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch:
    """Many plans without stages, struct of arrays, all with the same number of micro-batches.

    ``row[n, i]`` is the split (row of the tables' SplitTable) that plan n gives to layer i; ``collective[n, i]`` is the index of the
    collective for its gradient, or CHEAPEST.
    """

    row: IntArray  # (plans, layers)
    collective: IntArray  # (plans, layers)

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBatch(StructOfArrays):
    """Costs of many plans; every array has shape (plans,).

    ``step_time_s`` is the sum of compute, update, resharding, exposed exchange and bubble. Illegal plans cost infinity. The
    parts are those of the slowest worker; ``computing_s`` is what a worker computes, averaged over the workers.
    """

    step_time_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    reshard_s: FloatArray
    exchange_s: FloatArray
    exposed_exchange_s: FloatArray
    bubble_s: FloatArray
    memory_bytes: FloatArray
    computing_s: FloatArray  # kernels of forward, backward and optimizer

    @property
    def compute_s(self) -> FloatArray:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def exposed_communication_s(self) -> FloatArray:
        """Time spent waiting for the network."""
        return self.reshard_s + self.exposed_exchange_s

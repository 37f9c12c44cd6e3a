"""The plan space: which splits are allowed, and how many plans there are.

The space, for up to N workers and global batch B:

* every worker count w = 1 ... N and every number of micro-batches m that divides B;
* per layer, every ordered factorisation of w into batch x output channels x input channels x height whose degrees do not exceed the
  extents they divide (`costmodel.layerwise.plan.legal_splits`), and for every gradient exchange a collective;
* pipelines: the layers in topological order cut into 2 <= S <= m contiguous stages, stage s on r_s replicas with sum r_s = w, data
  parallel inside a stage (with fewer micro-batches than stages some stage is always idle).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, prod

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.layerwise.plan import SplitTable, legal_splits
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer

_DEGREES = ("batch", "out_channels", "in_channels", "height")
# Families of plans that may split layers by the batch alone.
BATCH_FAMILIES = ("one-device", "data")
FAMILY_NAMES = ("one-device", "data", "model", "hybrid", "spatial", "mixed", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What a user has fixed, and what the framework leaves: nothing and everything by default.

    ``fixed`` maps a layer name to {degree name: degree}; degree names are the fields of Split; a degree of 0 means "all workers".
    Degrees not named are 1. ``by_batch``: every worker has whole layers and a part of the batch, or is alone; goes with plans of the
    families `BATCH_FAMILIES` and with fixed degrees of the batch only. ``one_dimension``: every layer with weights is split along one
    dimension; what is counted is the space without it.
    """

    fixed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    family: str | None = None
    by_batch: bool = False
    one_dimension: bool = False

    @property
    def is_free(self) -> bool:
        """Whether nothing is fixed, and plain data parallelism is in the region."""
        return self.family in (None, *BATCH_FAMILIES) and not self.fixed

    @property
    def allows_layers(self) -> bool:
        """Whether plans without stages are in the region."""
        return self.family != "pipeline"

    @property
    def allows_pipelines(self) -> bool:
        """Whether plans with stages are in the region."""
        return self.family in (None, "pipeline") and not self.fixed and not self.by_batch

    def mask(self, layer: Layer, table: SplitTable) -> BoolArray:
        """Splits that the restriction leaves to a layer, shape (splits,)."""
        keep = np.ones(len(table.workers), dtype=bool)
        if layer.name in self.fixed:
            fixed = self.fixed[layer.name]
            for name in _DEGREES:
                wanted = fixed.get(name, 1)
                column: IntArray = getattr(table, name)
                keep &= column == (table.workers if wanted == 0 else wanted)
        if self.by_batch:
            keep &= table.batch == table.workers
        if layer.weight_count > 0:
            keep &= self._family_mask(layer, table)
            if self.one_dimension:
                degrees = np.array([getattr(table, name) for name in _DEGREES])
                keep &= degrees.max(axis=0) == table.workers
        return keep

    def _family_mask(self, layer: Layer, table: SplitTable) -> BoolArray:
        """Supersets of the families, layer by layer; `costmodel.layerwise.plan.family_of_plan` decides."""
        workers = table.workers
        whole_batch = table.batch == workers
        whole_channels = table.out_channels * table.in_channels == workers
        match self.family:
            case "one-device":
                return np.asarray(workers == 1)
            case "data":
                return np.asarray(whole_batch & (workers > 1))
            case "model":
                return np.asarray(whole_channels & (workers > 1))
            case "hybrid":
                fully = layer.family.is_fully_connected(layer)
                return np.asarray((whole_batch | (whole_channels & fully)) & (workers > 1))
            case "spatial":
                return np.asarray((table.out_channels * table.in_channels == 1) & (workers > 1))
            case _:
                return np.ones(len(workers), dtype=bool)


def fixed_by_patterns(graph: Graph, patterns: Sequence[tuple[str, Mapping[str, int]]]) -> dict[str, Mapping[str, int]]:
    """Expand name patterns (``conv*``) to layers; a later pattern wins.

    Raises
    ------
    ValueError
        A pattern matches no layer, or later ones say something else for every layer that it matches.
    """
    matched: list[list[str]] = []
    fixed: dict[str, Mapping[str, int]] = {}
    for pattern, degrees in patterns:
        names = [layer.name for layer in graph.layers if fnmatch.fnmatchcase(layer.name, pattern)]
        if not names:
            known = ", ".join(layer.name for layer in graph.layers[:12])
            raise ValueError(
                f"'{pattern}' matches no layer; layers are {known}{' ...' if len(graph.layers) > 12 else ''}"
            )
        matched.append(names)
        fixed.update(dict.fromkeys(names, degrees))
    for (pattern, degrees), names in zip(patterns, matched, strict=True):
        if all(fixed[name] != degrees for name in names):
            raise ValueError(f"'{pattern}' has no effect: a later --fix says something else for all of its layers")
    return fixed


def count_layer_plans(
    graph: Graph,
    worker_counts: Sequence[int],
    micro_batch_sizes: Sequence[int],
    restriction: Restriction,
    num_collectives: int,
    *,
    training: bool,
) -> tuple[int, BoolArray]:
    """Count the plans without stages: the product over layers of splits x collectives, summed over workers and micro-batches.

    No split is built. With A(k) the legal pairs of channel degrees whose product is k, a layer has ``sum over b h k = w`` of A(k) splits
    over w workers, for all w at once.

    Parameters
    ----------
    graph : Graph
    worker_counts : sequence of int
    micro_batch_sizes : sequence of int
        Samples of a micro-batch over all workers.
    restriction : Restriction
    num_collectives : int
        A layer whose weights have copies exchanges gradients by one of these.
    training : bool

    Returns
    -------
    plans : int
        Exact.
    is_possible : array of bool, shape (worker counts,)
        Whether a worker count has any plan.
    """
    workers, sizes = np.array(worker_counts, dtype=np.int64), np.array(micro_batch_sizes, dtype=np.int64)
    layers_of: dict[tuple[object, ...], list[Layer]] = {}
    for layer in graph.layers:
        if layer.kind != "input":  # whoever reads the input decides how it is laid out
            fixed = layer.name if layer.name in restriction.fixed else None
            weights = (layer.weight_count > 0, layer.has_weights, layer.family.is_fully_connected(layer))
            key = (layer.family.limits(layer), layer.output_shape[0], weights, fixed)
            layers_of.setdefault(key, []).append(layer)
    # Layers with few splits first: worker counts that they rule out are not kept for the others.
    kinds = sorted(
        layers_of.values(), key=lambda layers: _most_channels(layers[0]) * layers[0].family.limits(layers[0]).height
    )
    alive = np.arange(len(workers))
    kept: list[tuple[IntArray, int]] = []
    for layers in kinds:
        number = num_collectives if training and layers[0].has_weights else 1
        options = _options(layers[0], workers[alive], sizes, restriction, number)
        some = np.any(options > 0, axis=0)
        kept = [(one[:, some], times) for one, times in kept]
        kept.append((options[:, some], len(layers)))
        alive = alive[some]
    is_possible = np.zeros(len(workers), dtype=np.bool_)
    is_possible[alive] = True
    if not len(alive):
        return 0, is_possible
    if not kept:
        return len(alive) * len(sizes), is_possible
    # Whole numbers of any length, once for each combination that occurs.
    columns = np.stack([one.ravel() for one, _ in kept])
    different, repeats = np.unique(columns[:, np.all(columns > 0, axis=0)], axis=1, return_counts=True)
    products = (prod(n**times for n, (_, times) in zip(column, kept, strict=True)) for column in different.T.tolist())
    return sum(n * product for n, product in zip(repeats.tolist(), products, strict=True)), is_possible


def _options(
    layer: Layer, workers: IntArray, sizes: IntArray, restriction: Restriction, num_collectives: int
) -> IntArray:
    """Splits that a layer may take, times collectives where gradients are exchanged: (micro-batch sizes, worker counts)."""
    if layer.name in restriction.fixed:
        return _fixed_options(layer, workers, sizes, restriction, num_collectives)
    family = restriction.family if layer.weight_count > 0 else None
    limits = layer.family.limits(layer)
    most = int(min(workers.max(initial=1), _most_channels(layer) * limits.height * sizes.max()))
    alone = np.zeros(most + 1, dtype=np.int64)
    alone[1] = 1
    channels = _channel_pairs(layer, most)
    several = (np.arange(most + 1) > 1).astype(np.int64)
    match family:
        case "one-device":
            options = np.stack([alone] * len(sizes))
            unexchanged = alone
        case None if restriction.by_batch:
            options, unexchanged = _spread(alone, sizes), alone
        case "data" | "hybrid":
            unexchanged = (
                channels * several if family == "hybrid" and layer.family.is_fully_connected(layer) else 0 * alone
            )
            options = several * _spread(alone, sizes) + unexchanged
        case "model":
            options, unexchanged = np.stack([channels * several] * len(sizes)), channels * several
        case "spatial":
            options, unexchanged = several * _spread(_spread(alone, limits.height)[0], sizes), 0 * alone
        case _:
            options, unexchanged = _spread(_spread(channels, limits.height)[0], sizes), channels
    counted = num_collectives * options - (num_collectives - 1) * unexchanged
    return np.where(workers <= most, counted[:, np.minimum(workers, most)], 0)


def _most_channels(layer: Layer) -> int:
    """Most workers that the channels of a layer can be split over."""
    limits = layer.family.limits(layer)
    return max(limits.out_channels, layer.output_shape[0] if limits.in_channels > 1 else 1)


def _channel_pairs(layer: Layer, most: int) -> IntArray:
    """Legal pairs of degrees of output and input channels (`costmodel.layerwise.plan.legal_splits`) by their product, 0 to ``most``."""
    limits = layer.family.limits(layer)
    pairs = np.zeros(most + 1, dtype=np.int64)
    pairs[1 : limits.out_channels + 1] = 1
    channels = min(layer.output_shape[0], most)
    for inner in range(2, min(limits.in_channels, channels) + 1):
        pairs[inner : inner * min(limits.out_channels, channels // inner) + 1 : inner] += 1
    return pairs


def _spread(options: IntArray, limits: int | IntArray) -> IntArray:
    """Options by the product with one more degree, up to each of some limits: from (most + 1,) to (limits, most + 1).

    >>> _spread(np.array([0, 1, 1, 0, 0, 0, 0]), 3).tolist()  # 1 and 2, times 1 to 3
    [[0, 1, 2, 1, 1, 0, 1]]
    """
    most = len(options) - 1
    wanted = np.minimum(np.atleast_1d(limits), most)
    result = np.empty((len(wanted), most + 1), dtype=np.int64)
    total = np.zeros(most + 1, dtype=np.int64)
    for degree in range(1, int(wanted.max(initial=0)) + 1):
        times = most // degree
        total[degree : degree * times + 1 : degree] += options[1 : times + 1]
        result[wanted == degree] = total
    return result


def _fixed_options(
    layer: Layer, workers: IntArray, sizes: IntArray, restriction: Restriction, num_collectives: int
) -> IntArray:
    """The same of a layer whose degrees the user has fixed: one split over every worker count, or none."""
    degrees = [restriction.fixed[layer.name].get(name, 1) for name in _DEGREES]
    columns = [np.where(degree == 0, workers, degree) for degree in degrees]
    rows = np.flatnonzero(np.prod(np.array(columns, dtype=np.float64), axis=0) == workers)
    table = SplitTable(
        worker_counts=tuple(workers[rows].tolist()),
        offsets=tuple(range(len(rows) + 1)),
        workers=workers[rows],
        **{name: column[rows] for name, column in zip(_DEGREES, columns, strict=True)},
    )
    options = np.zeros((len(sizes), len(workers)), dtype=np.int64)
    weight = np.where(table.batch * table.height > 1, num_collectives, 1)
    for n, size in enumerate(sizes.tolist()):
        options[n, rows] = np.where(legal_splits(layer, table, size) & restriction.mask(layer, table), weight, 0)
    return options


def count_pipelines(num_layers: int, max_workers: int, max_replicas: int, max_stages: int) -> int:
    """Count (cuts, replicas) of all pipelines on 2 to ``max_workers`` workers.

    They have 2 to ``max_stages`` stages, each on at most ``max_replicas`` replicas. Without the limits it is
    ``sum_S C(L-1, S-1) C(N, S)``.

    >>> count_pipelines(3, 2, 2, 2)  # 2 cuts x one replica each
    2
    """
    total = 0
    for stages in range(2, min(num_layers, max_workers, max_stages) + 1):
        # Compositions of any w <= N into `stages` parts between 1 and R, by inclusion and exclusion.
        compositions = 0
        for over in range(stages + 1):
            room = max_workers - over * max_replicas
            if room < stages:
                break
            compositions += (-1) ** over * comb(stages, over) * comb(room, stages)
        total += comb(num_layers - 1, stages - 1) * compositions
    return total

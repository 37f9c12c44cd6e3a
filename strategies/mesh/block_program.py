"""The split of a module over its tensor-parallel ranks, chosen by the per-layer program: no pattern is given, Megatron's comes out.

Options of a layer
------------------
Shapes: o options of a layer. Collectives between layers are not in these costs (`strategies.mesh.block_program`).

Program
-------
One block stands for all of its kind. Between blocks tensors lie as the plan says (`costmodel.mesh.tensor_parallel.home_of`), so that
blocks do not hear of each other's splits. What the program minimises is the time that one more module adds to a step: its passes as often
as they are waited for, and the update of its weights. A pass takes as long as the device or as its host takes, which starts kernels and
collectives, whichever is longer; any mean of both with fixed weights is a bound, and linear. The cost model decides between what the means
suggest.

A tensor that several matrices read has a node of its own, whose options are the sets of degrees that it is gathered for, so that what
they all need gathered is gathered once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, StructOfArrays
from costmodel.mesh.communication import CopyTimes, Division, GroupTimes, add_moves
from costmodel.mesh.memory import add_saved_layer, saved_facts
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MODULE_COLUMNS, ModuleKind, RowKeys, flow_of
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.step import gradient_passes_s
from costmodel.mesh.tables import add_layer
from costmodel.mesh.tensor_parallel import (
    FOREIGN,
    LayerRole,
    Layout,
    Move,
    home_of,
    layout_held,
    layout_needed,
    moves_between,
    roles_of,
    sources_of,
    split_options,
)
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge, Limits
from strategies.layerwise.per_layer.search import solve

Total = dict[str, FloatArray]

# A message whose latency is nothing, for the time of a byte.
_LARGE_BYTES = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrices:
    """What a module of a plan is charged for.

    Attributes
    ----------
    model : MeshModel
    plan : MeshPlan
    kind : ModuleKind
    keys : RowKeys
        Of the plan, one row.
    copies : CopyTimes
        Data parallelism of the plan.
    passes : float
        How often the passes of a module are waited for in a step: micro-batches, and the filling of the pipeline.
    recomputed : float
        Share of the blocks that is recomputed in full, on the first rank of the pipeline.
    alive : float
        Micro-batches whose activations it keeps.
    """

    model: MeshModel
    plan: MeshPlan
    kind: ModuleKind
    keys: RowKeys
    copies: CopyTimes
    passes: float
    recomputed: float
    alive: float

    @classmethod
    def of(cls, model: MeshModel, plan: MeshPlan, kind: ModuleKind) -> ModulePrices:
        """Prices of a module in a plan; those of the others differ in the kind."""
        batch = MeshBatch.from_plans([replace(plan, block_splits=())])
        memory = model.pipeline_memory(batch)
        first = int(np.argmin(np.abs(model.layouts(batch).rank_first[0])))
        return cls(
            model=model,
            plan=plan,
            kind=kind,
            keys=model.row_keys(batch),
            copies=CopyTimes.of(model.groups, Division.of(batch), model.groups.places(batch), has_experts=False),
            passes=plan.num_micro_batches + (plan.pp - 1.0) / plan.vpp,
            recomputed=float(memory.share[0, first]),
            alive=float(memory.alive[0, first]),
        )

    @property
    def groups(self) -> GroupTimes:
        """Collectives of the cost model."""
        return self.model.groups

    @property
    def again(self) -> float:
        """Share of the modules that is recomputed in full."""
        return self.recomputed if self.kind.is_block else 0.0

    @property
    def is_selective(self) -> bool:
        """Whether the module is recomputed selectively."""
        return self.kind.is_block and self.plan.recompute == "selective"

    def pass_s(self, total: Total) -> tuple[FloatArray, FloatArray]:
        """Time of the passes over a step, by the device and by its host, which starts kernels and collectives."""
        assumed = self.model.assumptions
        shown = 1.0 - assumed.tp_overlap
        forward = total["forward_s"] + shown * total["tp_forward_s"]
        device = (1.0 + self.again) * forward + total["backward_s"] + shown * total["tp_backward_s"]
        if self.is_selective:
            device = device + total["selective_s"]
        bare = assumed.bare_launch * (total["backward_launches"] + total["weight_launches"])
        started = (1.0 + self.again) * total["forward_launches"] + bare
        collectives = (1.0 + self.again) * total["tp_forward_starts"] + total["tp_backward_starts"]
        host = assumed.host_launch_s * started + assumed.host_collective_s * collectives
        return self.passes * device, self.passes * host

    def once_s(self, total: Total) -> FloatArray:
        """Time of the update, and of adding up what tensor-parallel ranks find for a matrix that they all hold.

        Of both by what a weight adds: what starting takes is waited for once, whatever the layers.
        """
        workload, plan = self.model.workload, self.plan
        trained = total["dense_trainable"]
        if not workload.training:
            return np.zeros_like(trained)
        shared = plan.dp_shard * plan.cp if plan.zero_stage else 1
        some = trained / shared
        passed = trained if self.model.assumptions.zero_whole else some
        update = workload.compute.update_s(2.0 * some) - workload.compute.update_s(some)
        update = update + gradient_passes_s(workload, self.groups, passed)
        ranks = self.groups.find(self.keys.tp, np.ones(1, dtype=np.int64), self.keys.place)
        once, twice = self.groups.time_s("all_reduce", ranks, _LARGE_BYTES * np.array([[1.0, 2.0]]))[0]
        message = total["apart_trainable"] * self.groups.assumptions.gradient_width(workload.precision)
        return np.asarray(update + message * (twice - once) / _LARGE_BYTES)

    def exchange_s(self, total: Total) -> FloatArray:
        """What data parallelism exchanges once per step, nothing of it hidden."""
        workload, copies = self.model.workload, self.copies
        if not workload.training:
            return np.zeros_like(total["dense_count"])
        gradients = (total["dense_trainable"] * self.groups.assumptions.gradient_width(workload.precision))[None]
        precision, none = workload.precision, np.zeros_like(gradients)
        weights = precision.sized(precision.gathered_bytes, total["dense_count"], total["narrow_count"], none)[0][None]
        exchanged = copies.replicate_s(gradients, none)
        if self.plan.zero_stage:
            exchanged = exchanged + copies.reduce_s(gradients, none) + copies.gather_s(weights, none)
        return np.asarray(exchanged[0])

    def memory_bytes(self, total: Total) -> FloatArray:
        """Weights with their state, and activations of a module."""
        workload, plan = self.model.workload, self.plan
        precision, shared = workload.precision, plan.dp_shard * plan.cp if plan.zero_stage else 1
        share = [1.0 / shared if plan.zero_stage >= stage else 1.0 for stage in (1, 2, 3)]
        width = precision.held_bytes if workload.training else precision.served_bytes
        none = np.zeros_like(total["dense_count"])
        size = share[2] * precision.sized(width, total["dense_count"], total["narrow_count"], none)[0]
        if not workload.training:
            return np.asarray(size)
        state = 0 if plan.offload_optimizer else workload.optimizer.state_bytes + precision.master_bytes
        leaves = plan.offload_optimizer and self.groups.assumptions.hosted_gradients
        gradients = 0.0 if leaves else self.groups.assumptions.gradient_width(workload.precision) * share[1]
        per_weight = gradients + state * share[0]
        kept = total["saved_selective_bytes" if self.is_selective else "saved_bytes"]
        away = self.kind.is_block and plan.offload_activations
        activations = 0.0 if away else self.alive * (1.0 - self.again)
        return np.asarray(size + per_weight * total["dense_trainable"] + activations * kept)

    def moved(self, position: int, moves: Sequence[Move], weight_gradient_s: float = 0.0) -> tuple[float, float]:
        """Time over a step of collectives at a layer, by the device and by its host.

        Gradients of gathered inputs are added up while those of weights are computed, which takes so long per pass.
        """
        total = _empty(1)
        graph = self.model.workload.graph
        flow = flow_of(self.model.workload, self.kind, position)
        layer = graph.layers[self.kind.layers[position]]
        behind = np.array([weight_gradient_s])
        add_moves(total, self.model.workload, self.groups, layer, moves, self.keys, flow, behind)
        device, host = self.pass_s(total)
        return float(device[0]), float(host[0])


@dataclass(frozen=True, slots=True)
class LayerCosts(StructOfArrays):
    """Options of a layer and their costs; arrays (o,), seconds over a step (``weight_gradient_s``: per pass) and bytes of a rank."""

    # The standard one first; none for a layer that has no splits, whose costs have one entry.
    options: tuple[LayerSplit, ...]
    device_s: FloatArray
    host_s: FloatArray
    once_s: FloatArray
    exchange_s: FloatArray
    memory_bytes: FloatArray
    weight_gradient_s: FloatArray

    @property
    def spared_bytes(self) -> float:
        """The most memory that an option has less than the standard one."""
        return float(self.memory_bytes[0] - self.memory_bytes.min())


def _empty(rows: int) -> Total:
    """Rows of the module table, nothing in them."""
    return {name: np.zeros(rows) for name in MODULE_COLUMNS}


def layer_costs(prices: ModulePrices, position: int) -> LayerCosts:
    """Cost the options of one layer of a module."""
    graph, kind = prices.model.workload.graph, prices.kind
    usual = roles_of(graph, kind)[position]
    if graph.layers[kind.layers[position]].kind in FOREIGN:
        return _filled((), [_figures(prices, position, usual, prices.keys)])
    options = split_options(graph, kind, position, prices.plan.tp)
    rows: list[list[FloatArray]] = []
    place: dict[LayerSplit, int] = {}
    for role in dict.fromkeys(option.role for option in options):
        some = [option for option in options if option.role == role]
        keys, degree = prices.keys, 0
        if role in ("whole", "repeated"):
            degree = 0 if usual.role == "whole" else 1
        else:  # one row per degree: a layer that is split over so many ranks is alike in all larger groups
            degrees = np.array([option.degree for option in some], dtype=np.int64)
            keys = replace(prices.keys.take(np.zeros(len(some), dtype=np.int64)), tp=degrees)
        place |= {option: sum(len(r[0]) for r in rows) + n for n, option in enumerate(some)}
        rows.append(_figures(prices, position, LayerRole(role=role, degree=degree, moves=()), keys))  # type: ignore[arg-type]
    return _filled(options, rows).take(np.array([place[option] for option in options], dtype=np.int64))


def _filled(options: tuple[LayerSplit, ...], rows: list[list[FloatArray]]) -> LayerCosts:
    return LayerCosts(options, *(np.concatenate(column) for column in zip(*rows, strict=True)))


def _figures(prices: ModulePrices, position: int, role: LayerRole, keys: RowKeys) -> list[FloatArray]:
    """The costs of one role in every row, as `LayerCosts` has them."""
    total = _empty(len(keys))
    model, kind = prices.model, prices.kind
    weight_gradient_s = add_layer(total, model.workload, prices.groups, kind, position, role, keys)
    facts = saved_facts(model.workload, kind)[position]
    add_saved_layer(total, model.workload, model.assumptions, kind, keys, position, role, facts)
    costs = [*prices.pass_s(total), prices.once_s(total), prices.exchange_s(total), prices.memory_bytes(total)]
    return [*costs, weight_gradient_s]


# A matrix cannot read what is not gathered for it; larger than any step.
_NEVER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSplit:
    """A split of a module that the program suggests.

    Attributes
    ----------
    splits : tuple of LayerSplit
        Of all layers of the module that have any.
    time_s : float
        What a module adds to a step, by the mean that was minimised.
    """

    splits: tuple[LayerSplit, ...]
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Costs of every pair of options of two nodes, by device and host."""

    producer: int
    consumer: int
    device_s: FloatArray
    host_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleProblem:
    """The program of a module: nodes are its layers, then the tensors that several matrices read.

    Attributes
    ----------
    layers : tuple of LayerCosts
        Collectives at the output of a layer included.
    tensors : tuple of tuple of sets
        Degrees that the tensors of several matrices are gathered for, by option.
    """

    layers: tuple[LayerCosts, ...]
    tensors: tuple[tuple[frozenset[int], ...], ...]
    tensor_costs: tuple[tuple[FloatArray, FloatArray], ...]
    pairs: tuple[_Pairs, ...]

    def problem(self, device: float, *, exposed: float = 0.0, capacity_bytes: float = float("inf")) -> ChoiceProblem:
        """Minimise ``device`` x the device's time + (1 - device) x its host's, and the update.

        Parameters
        ----------
        device : float
            From 0 to 1.
        exposed : float
            Share of the data-parallel exchange that is waited for.
        capacity_bytes : float
            Memory for the module.
        """
        host = 1.0 - device
        base = [device * c.device_s + host * c.host_s + c.once_s + exposed * c.exchange_s for c in self.layers]
        base += [device * d + host * h for d, h in self.tensor_costs]
        none = [np.zeros(len(b)) for b in base]
        edges = []
        for pair in self.pairs:
            cost = device * pair.device_s + host * pair.host_s
            if cost.any():
                rows, columns = (np.arange(n, dtype=np.int64) for n in cost.shape)
                edges.append(
                    Edge(
                        producer=pair.producer,
                        consumer=pair.consumer,
                        producer_class=rows,
                        consumer_class=columns,
                        cost_s=cost,
                    )
                )
        memory = [c.memory_bytes for c in self.layers]
        return ChoiceProblem(
            base_s=tuple(base),
            hide_s=tuple(none),
            exchange_s=tuple(none),
            memory_bytes=(*memory, *none[len(memory) :]),
            edges=tuple(edges),
            memory_capacity_bytes=capacity_bytes,
            # What a tensor is gathered for follows from its readers.
            key_class=tuple(
                np.arange(len(b)) if n < len(memory) else np.zeros(len(b), dtype=np.int64) for n, b in enumerate(base)
            ),
        )

    def updated_s(self, splits: Sequence[LayerSplit]) -> float:
        """What it takes to update a module, and to add up what its ranks find, with the given splits and else the standard ones."""
        return sum(float(c.once_s[pick]) for c, pick in zip(self.layers, self.picks(splits), strict=True))

    def picks(self, splits: Sequence[LayerSplit]) -> list[int]:
        """The option of every layer with the given splits and else the standard ones."""
        return [next((c.options.index(s) for s in splits if s in c.options), 0) for c in self.layers]

    def spared_bytes(self) -> float:
        """The most memory that a split of the module has less than the standard one."""
        return sum(costs.spared_bytes for costs in self.layers)

    def standard_bytes(self) -> float:
        """Memory of a module split as `costmodel.mesh.tensor_parallel` says."""
        return sum(float(costs.memory_bytes[0]) for costs in self.layers)


def split_module(
    built: ModuleProblem,
    device: float = 1.0,
    *,
    exposed: float = 0.0,
    capacity_bytes: float = float("inf"),
) -> tuple[tuple[ModuleSplit, ...], float]:
    """Solve the program of a module.

    Parameters
    ----------
    built : ModuleProblem
    device, exposed, capacity_bytes
        As for `ModuleProblem.problem`.

    Returns
    -------
    splits : tuple of ModuleSplit
        The best one; none if none fits.
    bound_s : float
        No split within memory takes less.
    """
    problem = built.problem(device, exposed=exposed, capacity_bytes=capacity_bytes)
    answer = solve(problem, Limits())
    found = tuple(
        ModuleSplit(
            # What tensors are gathered for comes after the layers.
            splits=tuple(c.options[o] for c, o in zip(built.layers, choice.tolist(), strict=False) if c.options),
            time_s=time,
        )
        for choice, time in zip(answer.choices, answer.objectives_s, strict=True)
    )
    return found, answer.bound_s


def module_problem(prices: ModulePrices) -> ModuleProblem:
    """Build the program of a module of a plan, whose own ``block_splits`` are not looked at.

    Under sequence parallelism a matrix that is whole works on a share of the positions, so that tp is parallelism of sequences for it
    (DeepSpeed Ulysses, arXiv:2309.14509), not of tensors.
    """
    return _Builder(prices).build()


class _Builder:
    """Collects the nodes and pairs of a module."""

    def __init__(self, prices: ModulePrices) -> None:
        self.prices, self.kind, self.graph = prices, prices.kind, prices.model.workload.graph
        self.home = home_of(prices.plan.tp, sequence_parallel=prices.plan.sequence_parallel)
        self.costs = [layer_costs(prices, p) for p in range(len(self.kind.layers))]
        self.pairs: list[_Pairs] = []
        self.sets: list[tuple[frozenset[int], ...]] = []
        self.set_costs: list[tuple[FloatArray, FloatArray]] = []
        self.known: dict[tuple[int, tuple[Move, ...], float], tuple[float, float]] = {}

    def build(self) -> ModuleProblem:
        """The whole problem."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for position, sources in enumerate(sources_of(self.graph, self.kind)):
            for n, source in enumerate(sources):
                if self.graph.layers[source].kind != "input":
                    readers.setdefault(source, []).append((position, n))
        outputs = [self._output(p) for p in range(len(self.kind.layers))]
        inside = {index: p for p, index in enumerate(self.kind.layers)}
        for source, found in readers.items():
            self._tensor(inside.get(source), found)
        arriving = self._arriving(readers, inside)
        layers = tuple(
            replace(c, device_s=c.device_s + out[0] + into[0], host_s=c.host_s + out[1] + into[1])
            for c, out, into in zip(self.costs, outputs, arriving, strict=True)
        )
        return ModuleProblem(
            layers=layers,
            tensors=tuple(self.sets),
            tensor_costs=tuple(self.set_costs),
            pairs=tuple(self.pairs),
        )

    # -- layouts ------------------------------------------------------------------------------------------------------------

    def _held(self, position: int | None) -> list[Layout]:
        """Layout of a layer's output by option; of a tensor from another module, home."""
        if position is None or not self.costs[position].options:
            return [self.home]
        return [layout_held(s.role, s.degree, self.home) for s in self.costs[position].options]

    def _needed(self, position: int, n: int) -> list[Layout]:
        options, kind = self.costs[position].options, self.graph.layers[self.kind.layers[position]].kind
        if not options:
            return [self.home]
        return [layout_needed(kind, s.role, s.degree, n, self.home) for s in options]

    def _moved(self, position: int, moves: Sequence[Move], weight_gradient_s: float = 0.0) -> tuple[float, float]:
        key = (position, tuple(moves), weight_gradient_s)
        if key not in self.known:
            self.known[key] = self.prices.moved(position, moves, weight_gradient_s) if moves else (0.0, 0.0)
        return self.known[key]

    # -- nodes and pairs ----------------------------------------------------------------------------------------------------

    def _output(self, position: int) -> tuple[FloatArray, FloatArray]:
        """Partial sums that a layer reduces, and what it brings home for other modules: by option."""
        index = self.kind.layers[position]
        leaves = any(u == index and v not in self.kind.layers for u, v in self.graph.edges)
        times = []
        for split, held in zip(self.costs[position].options or (None,), self._held(position), strict=True):
            moves: list[Move] = []
            if split is not None and split.role in ("row", "vocabulary"):
                moves += moves_between(Layout(form="partial", degree=split.degree), self.home, -1)
            if leaves:
                moves += moves_between(held, self.home, -1)
            times.append(self._moved(position, moves))
        device, host = np.array(times, dtype=np.float64).T
        return device, host

    def _arriving(
        self, readers: dict[int, list[tuple[int, int]]], inside: dict[int, int]
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Moves of tensors from other modules, by option of the layer that reads them; not those of `_tensor`."""
        result = [(np.zeros(len(c.device_s)), np.zeros(len(c.device_s))) for c in self.costs]
        for source, found in readers.items():
            if source in inside:
                continue
            shared = self._is_shared(found)
            for position, n in found:
                for o, needed in enumerate(self._needed(position, n)):
                    if needed.form == "gathered" and shared:
                        continue
                    device, host = self._between(position, o, self.home, needed, n)
                    result[position][0][o] += device
                    result[position][1][o] += host
        return result

    def _tensor(self, producer: int | None, found: list[tuple[int, int]]) -> None:
        """Pairs of a tensor's producer and readers, by way of a node of its own where several may gather it."""
        shared = self._is_shared(found)
        for position, n in found if producer is not None else ():
            assert producer is not None
            times = [
                [
                    (0.0, 0.0) if needed.form == "gathered" and shared else self._between(position, o, held, needed, n)
                    for o, needed in enumerate(self._needed(position, n))
                ]
                for held in self._held(producer)
            ]
            self._add(producer, position, np.array(times, dtype=np.float64))
        if shared:
            self._hub(producer, self._gathering(found))

    def _gathering(self, found: list[tuple[int, int]]) -> dict[tuple[int, int], set[int]]:
        """Readers of a tensor that may gather it, and the degrees."""
        degrees = {(p, n): {x.degree for x in self._needed(p, n) if x.form == "gathered"} for p, n in found}
        return {reader: some for reader, some in degrees.items() if some}

    def _is_shared(self, found: list[tuple[int, int]]) -> bool:
        return len(self._gathering(found)) > 1

    def _between(self, position: int, option: int, held: Layout, needed: Layout, n: int) -> tuple[float, float]:
        behind = float(self.costs[position].weight_gradient_s[option])
        return self._moved(position, moves_between(held, needed, n), behind)

    def _hub(self, producer: int | None, gathering: dict[tuple[int, int], set[int]]) -> None:
        """The node of a tensor that several matrices gather, each set of degrees once."""
        degrees = sorted(set().union(*gathering.values()))
        sizes = range(min(len(degrees), len(gathering)) + 1)
        sets = tuple(frozenset(some) for size in sizes for some in itertools.combinations(degrees, size))
        hub = len(self.kind.layers) + len(self.sets)
        position, n = next(iter(gathering))
        behind = dict.fromkeys(degrees, 0.0)  # the longest of the readers: a lower bound whichever of them it is
        for reader, index in gathering:
            for needed, weight_gradient_s in zip(
                self._needed(reader, index), self.costs[reader].weight_gradient_s.tolist(), strict=True
            ):
                if needed.form == "gathered":
                    behind[needed.degree] = max(behind[needed.degree], weight_gradient_s)
        times = [[self._gathered(position, n, held, some, behind) for some in sets] for held in self._held(producer)]
        cost = np.array(times, dtype=np.float64)
        self.sets.append(sets)
        if producer is None:
            self.set_costs.append((cost[0, :, 0], cost[0, :, 1]))
        else:
            self.set_costs.append((np.zeros(len(sets)), np.zeros(len(sets))))
            self._add(producer, hub, cost)
        for reader, index in gathering:
            missing = [
                [(_NEVER_S, _NEVER_S) if x.form == "gathered" and x.degree not in some else (0.0, 0.0) for some in sets]
                for x in self._needed(reader, index)
            ]
            self._add(reader, hub, np.array(missing, dtype=np.float64))

    def _gathered(
        self, position: int, n: int, held: Layout, degrees: frozenset[int], behind: Mapping[int, float]
    ) -> FloatArray:
        """Gather a tensor once, and add its gradients up for every degree while those of weights are computed."""
        cost, is_gathered = np.zeros(2), False
        for degree in sorted(degrees):
            found = moves_between(held, Layout(form="gathered", degree=degree), n)
            cost = cost + self._moved(position, [m for m in found if m.is_backward or not is_gathered], behind[degree])
            is_gathered = is_gathered or not all(m.is_backward for m in found)
        return cost

    def _add(self, producer: int, consumer: int, cost: FloatArray) -> None:
        self.pairs.append(_Pairs(producer=producer, consumer=consumer, device_s=cost[:, :, 0], host_s=cost[:, :, 1]))

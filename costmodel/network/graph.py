"""A network as layers in topological order with inferred shapes.

Forks
-----
The gradients of a tensor that several layers read are added up before the backward pass goes on. An addition passes its gradient on as it
is, to all of its inputs, but `costmodel.network.layers.elementwise.Add` charges as many passes backward as forward: they stand for the sum
where its branches part. What is left are branches that are joined otherwise (Inception, DenseNet, SqueezeNet), or more of them than an
addition joins (Inception-ResNet).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from costmodel.network.layers import Layer, ShapeError, family_of
from costmodel.network.layers.attention import Documents
from costmodel.network.layers.base import LayerSpec

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


def once(known: dict[_K, _T], key: _K, make: Callable[[], _T]) -> _T:
    """What is known under a key, made and remembered where nothing is.

    >>> known: dict[str, int] = {}
    >>> once(known, "a", lambda: 1), once(known, "a", lambda: 2)
    (1, 1)
    """
    if key not in known:
        known[key] = make()
    return known[key]


@dataclass(frozen=True, slots=True)
class GraphProblem:
    """One thing wrong with a network, and the layer it is wrong in."""

    layer: str
    message: str


class GraphError(ValueError):
    """The layers do not form a network; ``problems`` names every fault."""

    def __init__(self, problems: Sequence[GraphProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.layer}: {p.message}" for p in problems))


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Layers in topological order and the edges between them.

    Examples
    --------
    >>> from costmodel.network.layers.base import params_from
    >>> specs = [LayerSpec(name="data", kind="input", params=params_from("input", {"shape": (3, 32, 32)})),
    ...          LayerSpec(name="fc", kind="linear", params=params_from("linear", {"out_features": 10}), inputs=("data",))]
    >>> Graph.build("tiny", specs).weight_count  # 3*32*32*10 + 10
    30730
    """

    name: str
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]  # (producer, consumer) indices, sorted

    @classmethod
    def build(cls, name: str, specs: Sequence[LayerSpec]) -> Graph:
        """Order the layers, infer every shape, and collect every fault.

        Parameters
        ----------
        name : str
        specs : sequence of LayerSpec
            In any order; the order given breaks ties.

        Returns
        -------
        Graph

        Raises
        ------
        GraphError
            Duplicate names, unknown parents, cycles, shapes that do not fit, adapters where there can be none, tied weights that no layer
            owns.
        """
        problems = _structure_problems(specs)
        if problems:
            raise GraphError(problems)
        layers = _infer_shapes(_topological(specs))
        problems = _tying_problems(layers)
        if problems:
            raise GraphError(problems)
        index = {layer.name: i for i, layer in enumerate(layers)}
        edges = sorted({(index[p], i) for i, layer in enumerate(layers) for p in layer.inputs})
        return cls(name=name, layers=tuple(layers), edges=tuple(edges))

    def packed(self, documents: Documents) -> Graph:
        """The same with documents in its sequences of that length, which self-attention reads each for itself."""
        layers = [
            replace(layer, documents=documents)
            if layer.kind in ("self_attention", "latent_attention") and layer.output_shape[1] == documents.positions
            else layer
            for layer in self.layers
        ]
        return replace(self, layers=tuple(layers))

    @cached_property
    def is_packed(self) -> bool:
        """Whether documents are packed into its sequences."""
        return any(layer.documents is not None for layer in self.layers)

    @cached_property
    def weight_count(self) -> int:
        """Parameters, biases included, attached normalisation and adapters excluded.

        The convention of the published tables here: for convolutional networks without normalisation, which is attached there;
        for transformers with it, since theirs are layers of their own.
        """
        return sum(layer.weight_count for layer in self.layers)

    @property
    def norm_count(self) -> int:
        """Parameters of attached normalisations."""
        return sum(layer.norm_count for layer in self.layers)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of its layers."""
        return frozenset(layer.kind for layer in self.layers)

    @cached_property
    def weighted(self) -> tuple[int, ...]:
        """Indices of the layers that have something to train (frozen ones have not)."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.has_weights)

    @cached_property
    def needs_gradient(self) -> tuple[bool, ...]:
        """Layer -> whether a gradient flows through its output: it or a layer before it has weights to train."""
        result: list[bool] = []
        for layer, sources in zip(self.layers, self.producers, strict=True):
            result.append(layer.has_weights or any(result[u] for u in sources))
        return tuple(result)

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What follows from the network, and from nothing besides it but the key: made when it is first asked for, then remembered.

        Parameters
        ----------
        key : hashable
            What is wanted, first of all whose it is.
        make : function
            Makes it; what it makes is never changed.
        """
        found: _T = once(self._derived, key, make)
        return found

    def index(self, name: str) -> int:
        """Position of a layer by name.

        Raises
        ------
        KeyError
            No such layer.
        """
        for i, layer in enumerate(self.layers):
            if layer.name == name:
                return i
        raise KeyError(name)

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """Layer -> indices of the layers that feed it, ascending."""
        result: list[list[int]] = [[] for _ in self.layers]
        for u, v in self.edges:
            result[v].append(u)
        return tuple(map(tuple, result))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Layer -> indices of the layers that it feeds, ascending."""
        result: list[list[int]] = [[] for _ in self.layers]
        for u, v in self.edges:
            result[u].append(v)
        return tuple(map(tuple, result))

    @cached_property
    def blocks(self) -> dict[str, tuple[Layer, ...]]:
        """Name of every repetition of a block -> its layers, in the order of the network."""
        found: dict[str, tuple[Layer, ...]] = {}
        for layer in self.layers:
            if layer.block:
                found[layer.block] = (*found.get(layer.block, ()), layer)
        return found


def _structure_problems(specs: Sequence[LayerSpec]) -> list[GraphProblem]:
    problems: list[GraphProblem] = []
    names: set[str] = set()
    for spec in specs:
        if spec.name in names:
            problems.append(GraphProblem(spec.name, "two layers have this name"))
        names.add(spec.name)
    if not specs:
        problems.append(GraphProblem("layers", "a network needs at least one layer"))
    elif not any(spec.kind == "input" for spec in specs):
        problems.append(GraphProblem("layers", "a network needs at least one layer of type 'input'"))
    elif all(spec.kind == "input" for spec in specs):
        problems.append(GraphProblem("layers", "a network needs at least one layer that is no input"))
    for spec in specs:
        family = family_of(spec.kind)
        missing = (parent for parent in spec.inputs if parent not in names)
        problems.extend(GraphProblem(spec.name, _unknown_parent(parent, names)) for parent in missing)
        if not family.min_inputs <= len(spec.inputs) <= family.max_inputs:
            wanted = str(family.min_inputs)
            if family.max_inputs != family.min_inputs:
                wanted += "..." if family.max_inputs >= 1 << 30 else f" to {family.max_inputs}"
            problems.append(
                GraphProblem(spec.name, f"type '{spec.kind}' takes {wanted} inputs, not {len(spec.inputs)}")
            )
        if spec.lora_rank and not family.takes_adapter:
            problems.append(
                GraphProblem(spec.name, f"type '{spec.kind}' takes no adapter: lora_rank is for linear layers")
            )
    return problems


def _unknown_parent(parent: str, names: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(parent, sorted(names), n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"input '{parent}' does not exist{hint}"


def _topological(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Kahn's order, keeping the order given where it is free; iterative, so depth does not matter."""
    by_name = {spec.name: spec for spec in specs}
    children: dict[str, list[str]] = {spec.name: [] for spec in specs}
    missing = {spec.name: len(set(spec.inputs)) for spec in specs}
    for spec in specs:
        for parent in dict.fromkeys(spec.inputs):
            children[parent].append(spec.name)
    # A depth-first flavour keeps the branches of a fork together, which keeps the frontier of a sweep small.
    ready = [spec.name for spec in reversed(specs) if missing[spec.name] == 0]
    order: list[LayerSpec] = []
    while ready:
        name = ready.pop()
        order.append(by_name[name])
        for child in reversed(children[name]):
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    if len(order) < len(specs):
        done = {spec.name for spec in order}
        stuck = [spec.name for spec in specs if spec.name not in done]
        raise GraphError([GraphProblem(stuck[0], f"the layers form a cycle: {' -> '.join(_cycle(by_name, stuck))}")])
    return order


def _cycle(by_name: dict[str, LayerSpec], stuck: list[str]) -> list[str]:
    seen: list[str] = []
    remaining = set(stuck)
    name = stuck[0]
    while name not in seen:
        seen.append(name)
        name = next(parent for parent in by_name[name].inputs if parent in remaining)
    loop = seen[seen.index(name) :]
    return [*reversed([*loop, name])] if len(loop) > 1 else [name, name]


def _infer_shapes(specs: Sequence[LayerSpec]) -> list[Layer]:
    layers: dict[str, Layer] = {}
    problems: list[GraphProblem] = []
    broken: set[str] = set()
    for spec in specs:
        if any(parent in broken for parent in spec.inputs):
            broken.add(spec.name)  # its shape cannot be known; the cause is already reported
            continue
        shapes = tuple(layers[parent].output_shape for parent in spec.inputs)
        try:
            output = family_of(spec.kind).output_shape(spec.params, shapes)
        except ShapeError as error:
            problems.append(GraphProblem(spec.name, str(error)))
            broken.add(spec.name)
            continue
        layers[spec.name] = Layer(
            name=spec.name,
            kind=spec.kind,
            params=spec.params,
            inputs=spec.inputs,
            input_shapes=shapes,
            output_shape=output,
            block=spec.block,
            frozen=spec.frozen,
            lora_rank=spec.lora_rank,
        )
    if problems:
        raise GraphError(problems)
    return list(layers.values())


def _tying_problems(layers: Sequence[Layer]) -> list[GraphProblem]:
    """Tied layers whose weights no layer of the network owns: an embedding, or a matrix that is used again (transposed, too)."""
    owners = {layer.name: layer.matrix_shape for layer in layers if not layer.tied_count and any(layer.matrix_shape)}
    shapes = {pair for shape in owners.values() for pair in (shape, shape[::-1])}
    tables = {layer.name: owners[layer.name] for layer in layers if layer.kind == "embedding" and layer.name in owners}
    problems = []
    for layer in layers:
        if not layer.tied_count or layer.matrix_shape in shapes:
            continue
        rows, features = layer.matrix_shape
        reason = f"tied: no layer has {rows:,} x {features:,} weights that it could share; "
        found = ", ".join(f"embedding '{name}' has {a:,} x {b:,}" for name, (a, b) in tables.items())
        problems.append(
            GraphProblem(layer.name, reason + (found or "the network has no embedding with weights of its own"))
        )
    return problems


def gradient_passes(graph: Graph) -> tuple[float, ...]:
    """Layer -> passes over its output that adding up the gradients of its readers takes, besides those that additions charge.

    n gradients are read and their sum is written, ``n + 1`` passes (TensorFlow, gradients_util.py: AddN of what several readers give back;
    an engine that adds them in pairs, as PyTorch's, takes ``3 (n - 1)``, the same for two), less ``m + 1`` where the branches end in an
    addition of m.

    Examples
    --------
    >>> from costmodel.network.layers.base import LayerSpec, params_from
    >>> def layer(name: str, kind: str, *inputs: str, **params: object) -> LayerSpec:
    ...     return LayerSpec(name=name, kind=kind, params=params_from(kind, params), inputs=inputs)
    >>> def joined(kind: str) -> tuple[float, ...]:
    ...     convs = [layer(n, "convolution", i, out_channels=4, kernel=1) for n, i in (("a", "x"), ("b", "a"), ("c", "a"))]
    ...     return gradient_passes(Graph.build(kind, [layer("x", "input", shape=(4, 8, 8)), *convs, layer("j", kind, "b", "c")]))
    >>> joined("concat"), joined("add")  # two gradients are read and one is written; the addition has charged that
    ((0.0, 3.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0))
    """
    ends = _joins(graph.readers)
    passes = []
    for number, of in enumerate(graph.readers):
        taken = 0.0
        if len(of) > 1 and graph.needs_gradient[number]:
            end = ends[number]
            is_sum = end < len(graph.layers) and graph.layers[end].kind == "add"
            charged = len(graph.layers[end].input_shapes) + 1.0 if is_sum else 0.0
            taken = max(len(of) + 1.0 - charged, 0.0)
        passes.append(taken)
    return tuple(passes)


def _joins(readers: Sequence[Sequence[int]]) -> list[int]:
    """Layer -> the first layer after it that every path from it goes through; one past the last where there is none.

    Layers are in topological order. That of a layer is where the paths of its readers first meet: whichever of two is further ahead stays,
    the other goes on to its own join (Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001, on the reversed graph).

    >>> _joins([[1, 2], [3], [3], [4], []])
    [3, 3, 3, 4, 5]
    """
    last = len(readers)
    joins = [last] * last
    for number in reversed(range(last)):
        meeting, *others = readers[number] or [last]
        for other in others:
            place = other
            while meeting != place:
                if meeting < place:
                    meeting = joins[meeting]
                else:
                    place = joins[place]
        joins[number] = meeting
    return joins

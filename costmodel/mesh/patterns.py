"""Splits of the layers of a unit that a plan names itself, in place of Megatron's pattern (`costmodel.mesh.roles`).

Between the split layers of a unit, and between units, tensors lie as in a uniform plan: in pieces of the positions under sequence
parallelism, whole on every rank without it. That layout is called home. A layer that is split over fewer ranks than tp is repeated by the
others, which find the same gradients and need not exchange them. A matrix that is whole under sequence parallelism sees other positions
on every rank, so that its gradients are added up over the tp ranks once per step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from costmodel.layerwise.splits import divisors
from costmodel.mesh.layouts import WHOLE, Layout, transfers
from costmodel.mesh.plan import LayerSplit, MeshPlan
from costmodel.mesh.roles import CHANNELWISE, WHOLE_INPUTS, LayerRole, Move, roles_of
from costmodel.mesh.units import MeshError, UnitKind, Units
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer

__all__ = [
    "check_splits",
    "home_of",
    "layout_held",
    "layout_needed",
    "moves_between",
    "sources_of",
    "split_options",
    "split_roles",
    "standard_splits",
]

# Experts have groups of their own, and an input lies on the device anyway.
_FOREIGN = frozenset({"moe", "input"})


def home_of(tp: int, *, sequence_parallel: bool) -> Layout:
    """Layout of the tensors between split layers."""
    return Layout(form="positions", degree=tp) if sequence_parallel else WHOLE


def layout_held(role: str, degree: int, home: Layout) -> Layout:
    """Layout in which a layer leaves its output; of rows and of a table by vocabulary once the partial sums are added up.

    >>> layout_held("column", 4, WHOLE)
    Layout(form='channels', degree=4)
    """
    if role in ("column", "channel"):
        return Layout(form="channels", degree=degree)
    return WHOLE if role == "repeated" else home


def layout_needed(kind: str, role: str, degree: int, input_index: int, home: Layout) -> Layout:
    """Layout in which a layer reads an input."""
    if role == "column":
        return Layout(form="gathered", degree=degree)
    # What all heads share is exchanged inside the layer.
    if role == "channel" and input_index in WHOLE_INPUTS.get(kind, frozenset()):
        return home
    if role in ("row", "channel"):
        return Layout(form="channels", degree=degree)
    return WHOLE if role == "repeated" else home


def sources_of(graph: Graph, kind: UnitKind) -> tuple[tuple[int, ...], ...]:
    """Layer of a unit -> layers of the graph that it reads, in the order in which it names them (as ``kind.inputs``)."""
    number = {layer.name: i for i, layer in enumerate(graph.layers)}
    return tuple(tuple(number[name] for name in graph.layers[i].inputs) for i in kind.layers)


def standard_splits(graph: Graph, kind: UnitKind, tp: int) -> tuple[LayerSplit, ...]:
    """The pattern of `costmodel.mesh.roles` in the words of a plan, experts left out."""
    layers = [graph.layers[i] for i in kind.layers]
    return tuple(
        LayerSplit(layer=layer.name, role=role.role, degree=1 if role.role == "whole" else tp)
        for layer, role in zip(layers, roles_of(graph, kind), strict=True)
        if layer.kind not in _FOREIGN
    )


def split_options(graph: Graph, kind: UnitKind, position: int, tp: int) -> tuple[LayerSplit, ...]:
    """Every legal split of a layer of a unit over tp ranks, the standard one first.

    Degrees divide tp and what they share out: features of a matrix, heads (key and value heads are repeated where there are fewer), rows of
    an embedding. Normalisations and sums keep their standard role, as in all trainers; so do tied weights, which two layers share, and
    experts.
    """
    layer = graph.layers[kind.layers[position]]
    role = roles_of(graph, kind)[position].role
    found = [(role, 1 if role == "whole" else tp)]
    degrees = [d for d in divisors(tp) if d > 1]
    if layer.kind == "linear" and len(layer.input_shapes[0]) <= 2 and not _is_tied(graph, layer):
        out, inside = layer.output_shape[0], layer.input_shapes[0][0]
        found += [("column", d) for d in degrees if out % d == 0 and _heads_fit(_reader(graph, kind, position), d)]
        found += [("row", d) for d in degrees if inside % d == 0]
        found.append(("whole", 1))
    elif layer.kind == "embedding" and not _is_tied(graph, layer):
        found += [*(("vocabulary", d) for d in degrees), ("whole", 1)]
    elif layer.kind in ATTENTION:
        found += [*(("channel", d) for d in degrees if _heads_fit(layer, d)), ("repeated", 1)]
    elif layer.kind in CHANNELWISE and layer.kind != "add":
        found += [*(("channel", d) for d in degrees if layer.output_shape[0] % d == 0), ("whole", 1)]
    return tuple(LayerSplit(layer=layer.name, role=r, degree=d) for r, d in dict.fromkeys(found))


def split_roles(
    graph: Graph, kind: UnitKind, splits: Mapping[str, LayerSplit], tp: int, *, sequence_parallel: bool
) -> tuple[LayerRole, ...]:
    """Roles of the layers of a unit, with the collectives between them.

    Parameters
    ----------
    graph : Graph
    kind : UnitKind
    splits : mapping
        Name of a layer -> its split; layers that are not named have their standard role.
    tp : int
    sequence_parallel : bool

    Returns
    -------
    tuple of LayerRole
        The standard ones (`costmodel.mesh.roles.roles_of`) where no layer of the unit is named.
    """
    standard = roles_of(graph, kind)
    layers = [graph.layers[i] for i in kind.layers]
    if not any(layer.name in splits for layer in layers):
        return standard
    home = home_of(tp, sequence_parallel=sequence_parallel)
    usual = {split.layer: split for split in standard_splits(graph, kind, tp)}
    chosen = [splits.get(layer.name, usual.get(layer.name)) for layer in layers]
    leaving = {u for u, v in graph.edges if u in kind.layers and v not in kind.layers}
    held = [home if s is None else layout_held(s.role, s.degree, home) for s in chosen]
    gathered: dict[int, set[int]] = {}
    sources = sources_of(graph, kind)
    result = []
    for position, (layer, split, role) in enumerate(zip(layers, chosen, standard, strict=True)):
        if split is None:
            result.append(role)
            continue
        moves = _entering(graph, kind, position, split, sources[position], held, home, gathered)
        out = Layout(form="partial", degree=split.degree)
        if split.role in ("row", "vocabulary"):
            moves += moves_between(out, home, -1)
        if kind.layers[position] in leaving:
            moves += moves_between(held[position], home, -1)
        result.append(
            LayerRole(
                role=split.role,  # type: ignore[arg-type]  # checked by `check_splits`
                gathers=any(move.input_index >= 0 and move.is_gathered for move in moves),
                reduces=split.role in ("row", "vocabulary"),
                # What the standard leaves whole has no degree of its own.
                degree=0 if split == usual[layer.name] and split.role == "whole" else split.degree,
                moves=tuple(moves),
            )
        )
    return tuple(result)


def _entering(
    graph: Graph,
    kind: UnitKind,
    position: int,
    split: LayerSplit,
    sources: Sequence[int],
    held: Sequence[Layout],
    home: Layout,
    gathered: dict[int, set[int]],
) -> list[Move]:
    """Collectives before a layer, and behind its gradients; what matrices gather of one tensor, they gather once."""
    layer = graph.layers[kind.layers[position]]
    moves: list[Move] = []
    for n, (source, inside) in enumerate(zip(sources, kind.inputs[position], strict=True)):
        if graph.layers[source].kind == "input":
            continue
        needed = layout_needed(layer.kind, split.role, split.degree, n, home)
        found = moves_between(held[inside] if inside >= 0 else home, needed, n)
        if needed.form == "gathered":
            known = gathered.setdefault(source, set())
            found = [m for m in found if (m.is_backward and needed.degree not in known) or not (m.is_backward or known)]
            known.add(needed.degree)
        moves += found
    return moves


def moves_between(held: Layout, needed: Layout, input_index: int) -> list[Move]:
    """Collectives of a layer that reads an input (-1: leaves its output) in another layout than it is held in."""
    forward, backward = transfers(held, needed)
    gathers = needed.form == "gathered"
    pieces = needed.degree if needed.form in ("channels", "positions") else 1
    return [
        Move(transfer=t, is_backward=is_backward, input_index=input_index, is_gathered=gathers, pieces=pieces)
        for is_backward, some in ((False, forward), (True, backward))
        for t in some
    ]


def check_splits(graph: Graph, units: Units, plan: MeshPlan) -> None:
    """Refuse splits that the network or the plan cannot run.

    Raises
    ------
    MeshError
        Everything that is wrong, a line each.
    """
    if not plan.block_splits:
        return
    if plan.tp == 1:
        raise MeshError("block_splits needs tp > 1: one rank has nothing to split")
    places = {graph.layers[i].name: (kind, p) for kind in units.kinds for p, i in enumerate(kind.layers)}
    names = [split.layer for split in plan.block_splits]
    problems = [
        f"block_splits names layer '{name}' more than once" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    for split in plan.block_splits:
        if split.layer not in places:
            problems.append(_unknown(graph, split.layer, list(places)))
            continue
        kind, position = places[split.layer]
        layer = graph.layers[kind.layers[position]]
        if layer.kind in _FOREIGN:
            problems.append(f"block_splits: layer '{split.layer}' ({layer.kind}) is not split by tp")
            continue
        options = split_options(graph, kind, position, plan.tp)
        if split not in options:
            allowed: dict[str, list[int]] = {}
            for option in options:
                allowed.setdefault(option.role, []).append(option.degree)
            text = "; ".join(f"{role} {', '.join(map(str, sorted(found)))}" for role, found in allowed.items())
            problems.append(
                f"block_splits: layer '{split.layer}' ({layer.kind}) cannot be split as {split.role} {split.degree} with tp {plan.tp}; "
                f"allowed: {text}"
            )
    if problems:
        raise MeshError("\n".join(problems))


def _unknown(graph: Graph, name: str, known: Sequence[str]) -> str:
    if any(layer.name == name for layer in graph.layers):
        return f"block_splits: layer '{name}' repeats an earlier block; equal blocks are split alike, name the layer of the first"
    near = difflib.get_close_matches(name, known, n=1)
    return f"block_splits: the network has no layer '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")


def _is_tied(graph: Graph, layer: Layer) -> bool:
    """Whether the layer shares its weights with another, or may: an embedding of a network with a tied head."""
    tied = any(other.tied_count for other in graph.layers)
    return tied and (layer.kind == "embedding" or layer.tied_count > 0)


def _reader(graph: Graph, kind: UnitKind, position: int) -> Layer | None:
    """The attention that reads a layer directly, whose heads its columns are."""
    for other, inputs in enumerate(kind.inputs):
        layer = graph.layers[kind.layers[other]]
        if position in inputs and layer.kind in ATTENTION:
            return layer
    return None


def _heads_fit(layer: Layer | None, degree: int) -> bool:
    if layer is None:
        return True
    heads: int = layer.params.heads
    kv: int = getattr(layer.params, "kv_heads", 0) or heads
    return heads % degree == 0 and (kv % degree == 0 or degree % kv == 0)

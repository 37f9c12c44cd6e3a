"""How a plan splits each layer over the tensor-parallel ranks, and what it gathers and reduces between the layers.

Uniform plans
-------------
The rule finds Megatron's split (Shoeybi et al., arXiv:1909.08053, section 3) in any block: a matrix that reads a
whole tensor is split by its columns if everything after it works on a share of the channels until the next matrix,
which is then split by its rows; its partial sums are reduced. What does not fit the pattern works on whole tensors:
repeated on every rank, or on a share of the positions (sequence parallelism, Korthikanti et al., arXiv:2205.05198,
section 4.2.2). `tests` show that the per-layer program arrives at the same split by cost.

Layouts of a tensor
-------------------
Degrees divide tp, and neighbouring ranks form the groups: rank r holds piece ``r mod t``, so fewer pieces than ranks are
repeated further out, where links are slower. Pieces of a finer layout lie inside those of a coarser one whose degree divides
theirs (they are numbered to that end), so refining is free.

A tensor can also be *gathered*: whole on every rank, while its gradient is the sum of what the t ranks of a group find, each for its
share of the work. A tensor that is *whole* has a gradient that every rank finds alike. A *partial* one is a sum over t ranks that is not
yet taken.

Splits that a plan names itself
-------------------------------
Between the split layers of a module, and between modules, tensors lie as in a uniform plan: in pieces of the positions under sequence
parallelism, whole on every rank without it. That layout is called home. A layer that is split over fewer ranks than tp is repeated by the
others, which find the same gradients and need not exchange them. A matrix that is whole under sequence parallelism sees other positions
on every rank, so that its gradients are added up over the tp ranks once per step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.layerwise.plan import divisors
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.modules import MeshError, ModuleKind, Modules, RowKeys
from costmodel.mesh.plan import LayerSplit, MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer, Shard
from costmodel.network.layers.mixture import MixtureParams, fullest_rank

# column: output features split; row: input features split, output reduced; channel: a share of the channels (heads); whole: all
# channels (of a share of the positions under sequence parallelism); vocabulary: rows of the embedding table; experts: a mixture with
# its own group; repeated: everything on every rank, never the standard (`costmodel.mesh.tensor_parallel`).
Role = Literal["column", "row", "channel", "whole", "vocabulary", "experts", "repeated"]

# How uneven experts are where a bias per expert follows their loads, over how uneven they are with an auxiliary loss: the fullest exceeds
# the mean by 0.04 and by 0.72 of it (Wang et al., arXiv:2408.15664, table 2).
_BIASED_SPREAD = 0.06

# Layers that work on a share of the channels without hearing of the others, if all their inputs are split alike.
CHANNELWISE = ATTENTION | {"glu", "activation", "dropout", "softmax", "add"}
# Inputs of a kind that stay whole alongside split ones: the rotary part of compressed keys is shared by all heads, and so is an indexer.
WHOLE_INPUTS = {"latent_attention": frozenset({2, 3, 4, 5})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A collective that changes the layout of a tensor at a layer.

    Attributes
    ----------
    transfer : Transfer
    is_backward : bool
        It moves the tensor's gradient.
    input_index : int
        Which input of the layer it moves; -1: the output.
    is_gathered : bool
        The tensor is gathered for a matrix split by columns.
    is_async : bool
        It may travel while the gradient of the layer's weights is computed: what a matrix split by columns sends back to where tensors
        lie between split layers, which is what software does (`MeshAssumptions.column_overlap`).
    pieces : int
        Pieces of the tensor of which a rank has one after it (forward).
    """

    transfer: Transfer
    is_backward: bool
    input_index: int
    is_gathered: bool
    is_async: bool
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRole:
    """The role of one layer of a module.

    Attributes
    ----------
    gathers : bool
        The layer is the first to read a whole tensor into split matrices: under sequence parallelism the tensor is gathered before it,
        and the gradient of the tensor is reduced after it. Matrices that read the same tensor share this.
    reduces : bool
        The output is a partial sum that is reduced.
    degree : int
        Shares of the weights or channels; 0: tp, or none where the layer is whole.
    moves : tuple of Move, optional
        Collectives at the layer, where the plan says how it is split; None: those that ``gathers`` and ``reduces`` stand for.
    """

    role: Role
    gathers: bool = False
    reduces: bool = False
    degree: int = 0
    moves: tuple[Move, ...] | None = None

    @property
    def is_split(self) -> bool:
        """Whether every rank of tensor parallelism has a share of the weights or channels."""
        return self.role in ("column", "row", "channel", "vocabulary")

    def ranks(self, tp: IntArray) -> IntArray:
        """Ranks that share the layer in every row of a table."""
        return tp if self.degree == 0 else np.full_like(tp, self.degree)


def roles_of(graph: Graph, kind: ModuleKind) -> tuple[LayerRole, ...]:
    """Role of every layer of a module, in the order of ``kind.layers``.

    Parameters
    ----------
    graph : Graph
    kind : ModuleKind

    Returns
    -------
    tuple of LayerRole
    """
    return graph.once(("roles", kind), lambda: _roles(graph, kind))


def _roles(graph: Graph, kind: ModuleKind) -> tuple[LayerRole, ...]:
    layers = [graph.layers[i] for i in kind.layers]
    accepts = _accepting(graph, kind)
    result: list[LayerRole] = []
    gathered: set[object] = set()
    for position, layer in enumerate(layers):
        sources = kind.inputs[position]
        split_inputs = [u >= 0 and result[u].role in ("column", "channel") for u in sources]
        allowed_whole = WHOLE_INPUTS.get(layer.kind, frozenset())
        needed = [s for n, s in enumerate(split_inputs) if n not in allowed_whole]
        if layer.kind == "embedding":
            role = LayerRole(role="vocabulary", reduces=True)
        elif layer.kind == "moe":
            role = LayerRole(role="experts")
        elif layer.kind == "linear":
            role = _linear_role(split_inputs[0], accepts[position], graph.producers[kind.layers[position]], gathered)
        elif layer.kind in CHANNELWISE and needed and all(needed):
            role = LayerRole(role="channel")
        else:
            role = LayerRole(role="whole")
        result.append(role)
    return tuple(result)


def _linear_role(is_split: bool, splits: bool, producers: tuple[int, ...], gathered: set[object]) -> LayerRole:
    if is_split:
        return LayerRole(role="row", reduces=True)
    if not splits:
        return LayerRole(role="whole")
    first = producers not in gathered
    gathered.add(producers)
    return LayerRole(role="column", gathers=first)


def _accepting(graph: Graph, kind: ModuleKind) -> list[bool]:
    """Layer of the module -> whether its output may stay split by channels.

    It may where all that read it work on shares and end in a matrix or the loss.
    """
    layers = [graph.layers[i] for i in kind.layers]
    outside = _read_outside(graph, kind)
    accepts = [False] * len(layers)
    for position in reversed(range(len(layers))):
        readers = kind.readers(position)
        if position in outside:
            continue
        if not readers:
            accepts[position] = True  # the end of the network: logits or loss per share of the vocabulary
            continue
        accepts[position] = all(_passes_on(layers[r].kind, accepts[r], kind.inputs[r], position) for r in readers)
    return accepts


def _passes_on(kind: str, accepted: bool, inputs: tuple[int, ...], source: int) -> bool:
    if kind == "linear":
        return True
    if kind not in CHANNELWISE or inputs.index(source) in WHOLE_INPUTS.get(kind, frozenset()):
        return False
    # A residual connection would need its other inputs split alike: it joins whole tensors.
    return accepted and kind != "add"


def _read_outside(graph: Graph, kind: ModuleKind) -> set[int]:
    """Layers of the module whose output another module reads."""
    position = {i: p for p, i in enumerate(kind.layers)}
    return {position[u] for u, v in graph.edges if u in position and v not in position}


Form = Literal["whole", "gathered", "channels", "positions", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Layout:
    """Form of a tensor on the ranks: whole, gathered for t of them, in t pieces, or t terms of a sum."""

    form: Form
    degree: int = 1


WHOLE = Layout(form="whole")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Transfer:
    """A collective in every group of ``ranks`` that are ``stride`` apart; its message is 1 / ``parts`` of the whole tensor."""

    operation: str
    ranks: int
    stride: int = 1
    parts: int = 1


def transfers(held: Layout, needed: Layout) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """Collectives that bring a tensor from a layout to another, and its gradient back.

    Parameters
    ----------
    held : Layout
        Not gathered.
    needed : Layout
        Not partial.

    Returns
    -------
    forward, backward : tuples of Transfer

    Notes
    -----
    ====================  =============================  =======================================
    held -> needed        forward                        backward
    ====================  =============================  =======================================
    pieces -> whole       all-gather                     free slice
    pieces -> gathered    all-gather                     reduce-scatter
    whole -> gathered     free                           all-reduce
    whole -> pieces       free slice                     all-gather
    coarse -> fine        free slice                     all-gather among the fine ones
    channels, positions   all-to-all                     all-to-all
    partial -> whole      all-reduce                     free
    partial -> pieces     reduce-scatter                 all-gather
    ====================  =============================  =======================================

    Examples
    --------
    Megatron's operator f and its conjugate under sequence parallelism, over 8 ranks:

    >>> forward, backward = transfers(Layout(form="positions", degree=8), Layout(form="gathered", degree=8))
    >>> [(t.operation, t.ranks) for t in (*forward, *backward)]
    [('all_gather', 8), ('reduce_scatter', 8)]
    """
    if held.form == "partial":
        return _reduced(held.degree, needed), _spread(needed, WHOLE)
    forward = _spread(held, needed)
    if needed.form == "gathered":
        return forward, _reduced(needed.degree, held)
    return forward, _spread(needed, held)


def _spread(source: Layout, target: Layout) -> tuple[Transfer, ...]:
    """Bring values from pieces to pieces, or to all ranks."""
    t, u = source.degree, target.degree
    if source.form in ("whole", "gathered") or t == 1:
        return ()
    if target.form in ("whole", "gathered") or u == 1:
        return (Transfer(operation="all_gather", ranks=t),)
    if source.form == target.form and u % t == 0:
        return ()
    if source.form == target.form and t % u == 0:
        return (Transfer(operation="all_gather", ranks=t // u, stride=u, parts=u),)
    if source.form != target.form and t == u:
        return (Transfer(operation="all_to_all", ranks=t, parts=t),)
    return (Transfer(operation="all_gather", ranks=t),)


def _reduced(terms: int, target: Layout) -> tuple[Transfer, ...]:
    """Add up what the ranks of a group found, and leave it in a layout."""
    t = target.degree
    if terms == 1:
        return ()
    if target.form == "whole" or t == 1:
        return (Transfer(operation="all_reduce", ranks=terms),)
    if t % terms == 0:
        return (Transfer(operation="reduce_scatter", ranks=terms),)
    if terms % t == 0:
        scattered = Transfer(operation="reduce_scatter", ranks=terms)
        return scattered, Transfer(operation="all_gather", ranks=terms // t, stride=t, parts=t)
    return (Transfer(operation="all_reduce", ranks=terms),)


# Not split over the tensor-parallel ranks: experts have groups of their own, and an input lies on the device anyway.
FOREIGN = frozenset({"moe", "input"})


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


def sources_of(graph: Graph, kind: ModuleKind) -> tuple[tuple[int, ...], ...]:
    """Layer of a module -> layers of the graph that it reads, in the order in which it names them (as ``kind.inputs``)."""
    number = {layer.name: i for i, layer in enumerate(graph.layers)}
    return tuple(tuple(number[name] for name in graph.layers[i].inputs) for i in kind.layers)


def standard_splits(graph: Graph, kind: ModuleKind, tp: int) -> tuple[LayerSplit, ...]:
    """The pattern of `costmodel.mesh.tensor_parallel` in the words of a plan, experts left out."""
    layers = [graph.layers[i] for i in kind.layers]
    return tuple(
        LayerSplit(layer=layer.name, role=role.role, degree=1 if role.role == "whole" else tp)
        for layer, role in zip(layers, roles_of(graph, kind), strict=True)
        if layer.kind not in FOREIGN
    )


def split_options(graph: Graph, kind: ModuleKind, position: int, tp: int) -> tuple[LayerSplit, ...]:
    """Every legal split of a layer of a module over tp ranks, the standard one first.

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
    graph: Graph, kind: ModuleKind, splits: Mapping[str, LayerSplit], tp: int, *, sequence_parallel: bool
) -> tuple[LayerRole, ...]:
    """Roles of the layers of a module, with the collectives between them.

    Parameters
    ----------
    graph : Graph
    kind : ModuleKind
    splits : mapping
        Name of a layer -> its split; layers that are not named have their standard role.
    tp : int
    sequence_parallel : bool

    Returns
    -------
    tuple of LayerRole
        The standard ones (`costmodel.mesh.tensor_parallel.roles_of`) where no layer of the module is named.
    """
    standard = roles_of(graph, kind)
    layers = [graph.layers[i] for i in kind.layers]
    if not any(layer.name in splits for layer in layers):
        return standard
    home = home_of(tp, sequence_parallel=sequence_parallel)
    usual = {split.layer: split for split in standard_splits(graph, kind, tp)}
    chosen = [splits.get(layer.name, usual.get(layer.name)) for layer in layers]
    leaving = _read_outside(graph, kind)
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
        if position in leaving:
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
    kind: ModuleKind,
    position: int,
    split: LayerSplit,
    sources: Sequence[int],
    held: Sequence[Layout],
    home: Layout,
    gathered: dict[int, set[int]],
) -> list[Move]:
    """Collectives before a layer, and after its gradients; what matrices gather of one tensor, they gather once."""
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
    is_async = gathers and held.form != "channels"
    pieces = needed.degree if needed.form in ("channels", "positions") else 1
    return [
        Move(
            transfer=t,
            is_backward=is_backward,
            input_index=input_index,
            is_gathered=gathers,
            is_async=is_async and is_backward,
            pieces=pieces,
        )
        for is_backward, some in ((False, forward), (True, backward))
        for t in some
    ]


def check_splits(graph: Graph, modules: Modules, plan: MeshPlan) -> None:
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
    places = {graph.layers[i].name: (kind, p) for kind in modules.kinds for p, i in enumerate(kind.layers)}
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
        if layer.kind in FOREIGN:
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


def _reader(graph: Graph, kind: ModuleKind, position: int) -> Layer | None:
    """The attention that reads a layer directly, whose heads its columns are."""
    readers = (graph.layers[kind.layers[reader]] for reader in kind.readers(position))
    return next((layer for layer in readers if layer.kind in ATTENTION), None)


def _heads_fit(layer: Layer | None, degree: int) -> bool:
    if layer is None:
        return True
    heads: int = layer.params.heads
    kv: int = getattr(layer.params, "kv_heads", 0) or heads
    return heads % degree == 0 and (kv % degree == 0 or degree % kv == 0)


def expert_load(params: MixtureParams, ep: IntArray, assumptions: MeshAssumptions) -> FloatArray:
    """Tokens that the fullest of ``ep`` ranks computes over those of the mean one, (n,), beyond what the network states.

    Examples
    --------
    >>> params, ep = MixtureParams(experts=128, top_k=8, ffn=1), np.array([1, 8])
    >>> padded = MeshAssumptions(expert_capacity=1.25, expert_padding=1.0)
    >>> [expert_load(params, ep, a).round(2).tolist() for a in (MeshAssumptions(), MeshAssumptions(expert_capacity=1.25), padded)]
    [[1.0, 1.36], [1.0, 1.25], [1.25, 1.25]]
    """
    if params.capacity_factor != 1.0:
        return np.ones(len(ep))
    if assumptions.is_padded:
        return np.full(len(ep), assumptions.expert_capacity)
    return fullest_rank(params, ep, expert_spread(params, assumptions), assumptions.expert_capacity)


def expert_spread(params: MixtureParams, assumptions: MeshAssumptions) -> float:
    """Standard deviation of the loads of experts over their mean."""
    return assumptions.expert_spread * (_BIASED_SPREAD if params.is_balanced_by_bias else 1.0)


def shard_of(
    layers: Sequence[Layer],
    kind: ModuleKind,
    position: int,
    role: LayerRole,
    keys: RowKeys,
    assumptions: MeshAssumptions | None = None,
) -> Shard:
    """Share of one rank of a layer of a module, in every row; under assumptions that of the rank whose experts get most tokens."""
    layer = layers[kind.layers[position]]
    tp, ranks = keys.tp.astype(np.float64), role.ranks(keys.tp).astype(np.float64)
    one = np.ones_like(tp)
    out, inside = float(layer.output_shape[0]), float(layer.input_shapes[0][0]) if layer.input_shapes else 1.0
    if layer.kind == "linear" and len(layer.input_shapes[0]) > 2:
        inside = float(np.prod(layer.input_shapes[0]))
    sequence = keys.cp.astype(np.float64)
    split_out = split_in = one
    out_channels, in_channels = out * one, inside * one
    if role.role == "column":
        split_out, out_channels = ranks, _column_width(layers, kind, position, ranks)
    elif role.role == "row":
        split_in, in_channels = ranks, np.ceil(inside / ranks)
    elif role.role == "channel":
        split_out, out_channels, in_channels = ranks, np.ceil(out / ranks), np.ceil(inside / ranks)
    elif role.role == "experts":
        split_out, sequence = keys.etp.astype(np.float64), sequence * tp / keys.etp
    elif role.role == "whole":
        sequence = sequence * np.where(keys.sequence_parallel > 0, tp, 1.0)
    height = float(layer.output_shape[1]) if len(layer.output_shape) == 3 else 1.0
    return Shard(
        batch=keys.micro_batch.astype(np.float64),
        out_channels=out_channels,
        in_channels=in_channels,
        height=height * one,
        split_out=split_out,
        split_in=split_in,
        split_height=one,
        sequence=sequence,
        experts=keys.ep.astype(np.float64),
        load=one if assumptions is None or layer.kind != "moe" else expert_load(layer.params, keys.ep, assumptions),
    )


def rows_held(layer: Layer, shard: Shard) -> FloatArray:
    """Positions of all samples of a share."""
    return np.asarray(shard.batch * np.ceil(np.prod(layer.output_shape[1:]) / shard.sequence))


def chunks_of(
    graph: Graph, kind: ModuleKind, position: int, assumptions: MeshAssumptions, shard: Shard
) -> FloatArray | None:
    """Chunks of a rank's positions that a layer of a module computes one after the other, (n,); None: all together.

    The loss and the matrix whose outputs enter it have ``loss_chunks``, the feed-forward part of a block ``mlp_chunks``.
    """
    if assumptions.loss_chunks == 1.0 == assumptions.mlp_chunks:
        return None
    layer = graph.layers[kind.layers[position]]
    rows, features = rows_held(layer, shard), in_mlp(graph, kind)[position]
    matrix = _head_of(graph, kind, position)
    if matrix is not None:
        count = assumptions.loss_chunks or np.ceil(matrix.output_shape[0] / matrix.input_shapes[0][0])
    else:
        count = (assumptions.mlp_chunks or np.ceil(rows / features)) if features else 1.0
    return None if np.all(count == 1.0) else np.minimum(count + 0.0 * rows, rows)


def _head_of(graph: Graph, kind: ModuleKind, position: int) -> Layer | None:
    """The matrix whose outputs enter the loss, of that matrix and of the loss."""
    layers = [graph.layers[index] for index in kind.layers]
    if layers[position].kind == "softmax":
        position = kind.inputs[position][0]
    is_head = position >= 0 and any(layers[r].kind == "softmax" for r in kind.readers(position))
    return layers[position] if is_head and layers[position].kind == "linear" else None


def in_mlp(graph: Graph, kind: ModuleKind) -> tuple[int, ...]:
    """Of every layer in the feed-forward part of a block, its routed experts excepted, the features that leave that part; else 0.

    It reaches from a matrix that is split by columns, to the row-split one behind it with no attention between.
    """
    return graph.once(("mlp", kind), lambda: _in_mlp(graph, kind))


def _in_mlp(graph: Graph, kind: ModuleKind) -> tuple[int, ...]:
    roles, layers = roles_of(graph, kind), [graph.layers[index] for index in kind.layers]
    found = [0] * len(layers)
    for p in reversed(range(len(layers) if kind.is_block else 0)):
        if roles[p].role in ("column", "channel") and layers[p].kind not in ATTENTION:
            behind = {
                layers[r].output_shape[0] if roles[r].role == "row" else found[r] * (roles[r].role == "channel")
                for r in kind.readers(p)
            }
            found[p] = behind.pop() if len(behind) == 1 else 0
    for p, layer in enumerate(layers):
        if roles[p].role == "row" and any(q >= 0 and found[q] for q in kind.inputs[p]):
            found[p] = layer.output_shape[0]
    return tuple(found)


def _column_width(layers: Sequence[Layer], kind: ModuleKind, position: int, ranks: FloatArray) -> FloatArray:
    """Outputs of a rank of a column-split matrix; key and value heads are repeated where there are fewer of them than ranks."""
    for reader in kind.readers(position):
        layer = layers[kind.layers[reader]]
        if layer.kind in ("self_attention", "cross_attention"):
            heads, dim = layer.params.heads, layer.params.head_dim
            own_kv = np.maximum(np.ceil((layer.params.kv_heads or heads) / ranks), 1.0)
            if layer.kind == "self_attention":
                return np.asarray(layer.params.width(np.ceil(heads / ranks), own_kv))
            if kind.inputs[reader][1] == position:
                return np.asarray(2.0 * own_kv * dim)
    return np.asarray(np.ceil(float(layers[kind.layers[position]].output_shape[0]) / ranks))

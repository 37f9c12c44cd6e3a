"""A network as a chain of modules between which pipelines may cut: embedding, blocks, head; and which of them have a backward pass.

Equal modules are one kind: 96 equal transformer blocks are costed once. Blocks through which no gradient flows, since nothing before or in
them is trained, are of another kind than those that have a backward pass.

Layers before the first trained one have no backward pass, and keep no activations for one.

Costs of a module are rows of a table (`ModuleTable`), one for each (tp, sequence parallel, cp, ep, etp, micro-batch) and, where the
tensor-parallel ranks may lie across the end of a domain, its place. All that plans differ in besides does not change the time of a module.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, combined
from costmodel.framework import Selective
from costmodel.mesh.plan import MeshBatch
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION
from costmodel.workload import Workload


class MeshError(ValueError):
    """A network or a plan that a device mesh cannot run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleKind:
    """Equal modules.

    Attributes
    ----------
    layers : tuple of int
        Indices (in the graph) of the layers of the first module of this kind.
    inputs : tuple of tuple of int
        Layer of the module -> positions in the module of the layers that feed it, in the order in which it names them; -1
        for a tensor from another module.
    is_block : bool
        Whether it is one of the repeated blocks (and can be recomputed, or start a stage).
    """

    name: str
    layers: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    is_block: bool

    def readers(self, position: int) -> list[int]:
        """Positions of the layers of the module that read a layer of it."""
        return [reader for reader, inputs in enumerate(self.inputs) if position in inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The modules in network order: the first is the embedding, the last the head, all between are blocks.

    Attributes
    ----------
    kinds : tuple of ModuleKind
        The embedding is kind 0 and the head the last.
    kind_of : tuple of int
        Module -> kind.
    cut_elements : tuple of int
        Module -> elements per sample of the tensors that enter it or pass over it from the modules before; 0 for the embedding.
    """

    kinds: tuple[ModuleKind, ...]
    kind_of: tuple[int, ...]
    cut_elements: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        """Repeated blocks."""
        return len(self.kind_of) - 2

    @property
    def blocks(self) -> tuple[int, ...]:
        """Kinds of the blocks, in order."""
        return self.kind_of[1:-1]


def fold(graph: Graph) -> Modules:
    """Fold a network into modules.

    Layers outside the blocks belong to the embedding if the first block reads them, to the head if no block does, and else
    to the block before the first that reads them (the layers between an encoder and a decoder).

    Raises
    ------
    MeshError
        The network has no repeated blocks.
    """
    return graph.once("units", lambda: _folded(graph))


def _folded(graph: Graph) -> Modules:
    owner = _owners(graph)
    count = max(owner) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for i, module in enumerate(owner):
        members[module].append(i)
    names = {layer.name: i for i, layer in enumerate(graph.layers)}
    kinds: list[ModuleKind] = []
    signatures: dict[object, int] = {}
    kind_of: list[int] = []
    for module, indices in enumerate(members):
        position = {i: p for p, i in enumerate(indices)}
        inputs = tuple(tuple(position.get(names[u], -1) for u in graph.layers[i].inputs) for i in indices)
        is_block = 0 < module < count - 1
        signature = (is_block or module, tuple(_signature(graph, i) for i in indices), inputs)
        if signature not in signatures:
            signatures[signature] = len(kinds)
            name = graph.layers[indices[0]].block if is_block else ("embedding" if module == 0 else "head")
            kinds.append(ModuleKind(name=name, layers=tuple(indices), inputs=inputs, is_block=is_block))
        kind_of.append(signatures[signature])
    return Modules(kinds=tuple(kinds), kind_of=tuple(kind_of), cut_elements=_cuts(graph, owner, count))


def mesh_fault(graph: Graph) -> str | None:
    """Why the blocks of a network cannot be laid over a mesh; None where they can."""
    try:
        _owners(graph)
    except MeshError as error:
        return str(error)
    return None


def _owners(graph: Graph) -> list[int]:
    """Layer -> module. The order of the layers is topological but otherwise free: what they read and who reads them decides."""
    order = {name: number for number, name in enumerate(graph.blocks, start=1)}
    if not order:
        raise MeshError(
            "the network has no repeated blocks (write them with 'repeat'), so it has nothing to cut into stages"
        )
    head = len(order) + 1
    # As late as its readers allow, in the module before the first block that reads it...
    owner = [order.get(layer.block, head) for layer in graph.layers]
    for u in reversed(range(len(owner))):
        if not graph.layers[u].block:
            owner[u] = min((owner[v] - bool(graph.layers[v].block) for v in graph.readers[u]), default=head)
    # ... but not before what it reads.
    for v, layer in enumerate(graph.layers):
        if not layer.block:
            owner[v] = max([owner[v], *(owner[u] for u in graph.producers[v])])
    if head not in owner:
        raise MeshError(
            f"the network ends inside its last block ('{graph.layers[-1].name}'); add the layers after it, such as the final "
            "norm or the loss"
        )
    return owner


def _signature(graph: Graph, index: int) -> object:
    layer, needs = graph.layers[index], graph.needs_gradient
    flows = (needs[index], *(needs[u] for u in graph.producers[index]))
    return (*layer.signature, layer.output_shape, flows)


def _cuts(graph: Graph, owner: list[int], count: int) -> tuple[int, ...]:
    last_use = list(owner)
    for u, v in graph.edges:
        last_use[u] = max(last_use[u], owner[v])
    difference = [0] * (count + 1)
    for u, layer in enumerate(graph.layers):
        if layer.kind == "input" or last_use[u] == owner[u]:
            continue  # whoever needs samples loads them
        difference[owner[u] + 1] += layer.output_elements
        difference[last_use[u] + 1] -= layer.output_elements
    cuts, running = [], 0
    for module in range(count):
        running += difference[module]
        cuts.append(running)
    return tuple(cuts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFlow:
    """The backward pass of one layer.

    Attributes
    ----------
    through : bool
        It has one: the layer is trained, or one before it is.
    to_inputs : bool
        It finds gradients of its inputs: a layer before it is trained.
    again : float
        Share of the layer that selective recomputation runs again (`repeats_of`), where it has a reason to: its own backward pass, or
        that of a layer of the module that reads it. Checkpointing of operators runs all of a block again through which a gradient flows.
    kept : tuple of (int, float)
        Its kernels of which that keeps a share (`Repeats.kept`).
    is_checkpointed : bool
        It is in a block whose operators are checkpointed one by one.
    """

    through: bool
    to_inputs: bool
    again: float
    kept: tuple[tuple[int, float], ...] = ()
    is_checkpointed: bool = False


def flow_of(workload: Workload, kind: ModuleKind, position: int) -> GradientFlow:
    """The backward pass of a layer of a module; modules of a kind are alike in this (`costmodel.mesh.modules.fold`).

    Parameters
    ----------
    workload : Workload
    kind : ModuleKind
    position : int
        Of the layer in the module.
    """
    if not workload.training:
        return GradientFlow(through=False, to_inputs=False, again=0.0)
    selective = workload.framework.defaults.selective
    return workload.graph.once(
        ("flow", kind, position, selective), lambda: _flow(workload.graph, kind, position, selective)
    )


def _flow(graph: Graph, kind: ModuleKind, position: int, selective: Selective) -> GradientFlow:
    index, needs = kind.layers[position], graph.needs_gradient
    repeats = repeats_of(graph, kind, selective)[position]
    is_checkpointed = selective == "operators" and any(needs[i] for i in kind.layers)
    reading = any(needs[kind.layers[reader]] for reader in kind.readers(position))
    runs_again = is_checkpointed or needs[index] or reading
    return GradientFlow(
        through=needs[index],
        to_inputs=any(needs[u] for u in graph.producers[index]),
        again=repeats.again if runs_again else 0.0,
        kept=repeats.kept if runs_again else (),
        is_checkpointed=is_checkpointed,
    )


# Places of kernels in the forward pass of a matrix with an adapter, whose products and sum come last (`costmodel.network.layers.linear`),
# and of a mixture: the first product of the shared experts, their activation, the last one, and the sum over experts (`...mixture`).
MATRIX, ADAPTER_IN, ADAPTER_OUT = 0, -3, -2
UP, DOWN = -4, -2
_NORMS = frozenset({"rms_norm", "layer_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What selective recomputation runs again of a layer.

    Attributes
    ----------
    again : float
        Share of it, but for the kernels in ``kept``.
    kept : tuple of (int, float)
        Kernels of the forward pass, by place, and the share of each that does not run again: of a matrix with an adapter the matrix and
        both products of the adapter; of a mixture the first and the last product of its shared experts.
    """

    again: float
    kept: tuple[tuple[int, float], ...] = ()


def repeats_of(graph: Graph, kind: ModuleKind, selective: Selective) -> tuple[Repeats, ...]:
    """What selective recomputation runs again of every layer of a module, instead of keeping what it makes.

    *cheap* and *modules* are `_is_repeated`. *operators* is what torchtitan does (`Defaults.selective`): of the products of a block, in
    the order in which they run, the outputs of the first, third, ... are kept, needed or not, and so is what fused attention makes.
    Everything else runs again, and so does a mixture of experts except for the exchanges of its tokens and for the products of its
    shared experts, which are counted like those of other layers (torchtitan, models/moe/moe.py: a FeedForward; its router is named in
    per_op_sac_force_recompute_mm_shapes_by_fqns, and not counted). Queries, keys and values are three products, and the two halves
    of a gated linear unit are two. An adapter adds two to each, behind it (components/lora.py, LoRALinear.forward). Products with a
    bias are kept (torch, torch/_functorch/partitioners.py: get_default_op_list, compute_intensive_ops has addmm).
    """
    make = _operators_again if selective == "operators" else _layers_again
    return graph.once(("repeats", kind, selective), lambda: make(graph, kind, selective))


def _layers_again(graph: Graph, kind: ModuleKind, selective: Selective) -> tuple[Repeats, ...]:
    return tuple(
        Repeats(again=float(_is_repeated(graph, kind, position, modules=selective == "modules")))
        for position in range(len(kind.layers))
    )


def _operators_again(graph: Graph, kind: ModuleKind, _: Selective) -> tuple[Repeats, ...]:
    found, is_kept = [], itertools.cycle((True, False))
    for position, index in enumerate(kind.layers):
        layer = graph.layers[index]
        if layer.kind == "moe" and layer.params.shared_width:
            first = [next(is_kept) for _ in range(layer.params.matrices - 1)]
            kept = ((UP, sum(first) / len(first)), (DOWN, float(next(is_kept))))
            found.append(Repeats(again=1.0, kept=kept))
        elif layer.kind != "linear":
            found.append(Repeats(again=float(not (layer.kind in ATTENTION and layer.params.fused))))
        else:
            widths = _products(graph, kind, position)
            names = (MATRIX, ADAPTER_IN, ADAPTER_OUT)[: 3 if layer.lora_rank else 1]
            # A bias makes it addmm, which is not counted, and is in torch's list of operators that are kept.
            runs = [[(layer.params.bias and name == MATRIX) or next(is_kept) for name in names] for _ in widths]
            # Each matrix has an equal share of what an adapter keeps between its products.
            weights = [[1] * len(widths) if name == ADAPTER_IN else widths for name in names]
            shares = [
                sum(np.multiply(w, run)) / sum(w) for w, run in zip(weights, zip(*runs, strict=True), strict=True)
            ]
            if layer.lora_rank:
                found.append(Repeats(again=1.0, kept=tuple(zip(names, map(float, shares), strict=True))))
            else:
                found.append(Repeats(again=1.0 - float(shares[0])))
    return tuple(found)


def _products(graph: Graph, kind: ModuleKind, position: int) -> tuple[int, ...]:
    """Relative widths of the matrices that a linear layer stands for, in the order in which they are multiplied."""
    reading = [graph.layers[kind.layers[reader]] for reader in kind.readers(position)]
    if len(reading) == 1 and reading[0].kind == "self_attention":
        params = reading[0].params
        pairs = params.kv_heads or params.heads
        return params.heads, pairs, pairs
    return (1, 1) if len(reading) == 1 and reading[0].kind == "glu" else (1,)


def _is_repeated(graph: Graph, kind: ModuleKind, position: int, *, modules: bool = False) -> bool:
    """Whether selective recomputation runs a whole layer of a module again instead of keeping what it makes.

    Cheap layers, attention that is written out, and the matrices that spread the narrow vectors of latent attention over its heads: those
    keep many times what they read (DeepSeek-V3, arXiv:2412.19437, section 3.2.3: norms and up-projections are computed again;
    Megatron-LM, ``--recompute-modules mla_up_proj``).

    With ``modules``, only what ``--recompute-modules core_attn layernorm mla_up_proj moe_act`` names: of
    the cheap layers, norms before a mixture and before latent attention. Others are a part of the matrix behind them, which keeps what
    enters it, and there is none for the activation of a dense MLP (Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py:
    pre_mlp_layernorm and input_layernorm are IdentityOp but for experts and for latent attention).
    """
    layer = graph.layers[kind.layers[position]]
    if layer.is_recomputable:
        is_apart = layer.kind in ATTENTION or (layer.kind in _NORMS and _enters_module(graph, kind, position))
        return is_apart or not modules
    if layer.kind != "linear" or layer.output_shape[0] <= layer.input_shapes[0][0]:
        return False
    readers = kind.readers(position)
    return bool(readers) and all(graph.layers[kind.layers[r]].kind == "latent_attention" for r in readers)


def _enters_module(graph: Graph, kind: ModuleKind, position: int) -> bool:
    """Whether a norm is before a mixture, or with others and with matrices before latent attention."""
    readers = [(r, graph.layers[kind.layers[r]].kind) for r in kind.readers(position)]
    return any(
        name in ("moe", "latent_attention")
        or ((name == "linear" or name in _NORMS) and _enters_module(graph, kind, reader))
        for reader, name in readers
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys(StructOfArrays):
    """Rows of the table; arrays (n,)."""

    tp: IntArray
    sequence_parallel: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch: IntArray
    place: IntArray  # of the tensor-parallel ranks (`costmodel.mesh.communication.GroupTimes.settled`)

    @classmethod
    def of(cls, batch: MeshBatch, place: IntArray) -> RowKeys:
        """Those of plans."""
        names = [item.name for item in fields(cls) if item.name != "place"]
        return cls(**{name: getattr(batch, name) for name in names}, place=place)

    def __len__(self) -> int:
        return len(self.tp)

    def without_experts(self) -> tuple[RowKeys, IntArray]:
        """The rows that differ but for ep and etp, and which of them every row is."""
        first, row = combined(self.tp, self.sequence_parallel, self.cp, self.micro_batch, self.place)
        one = np.ones(len(first), dtype=np.int64)
        return replace(self.take(first), ep=one, etp=one), row


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """Costs of a module; arrays (n rows, K kinds). Times and message sizes are of one micro-batch, sizes in bytes per rank."""

    forward_s: FloatArray
    backward_s: FloatArray  # both gradients
    weight_s: FloatArray  # the part of backward_s that only weight gradients need
    selective_s: FloatArray  # forward time of the layers that selective recomputation runs again
    tp_forward_s: FloatArray
    tp_backward_s: FloatArray
    etp_forward_s: FloatArray  # gathering and reducing tokens inside experts
    attention_forward_s: FloatArray  # part of forward_s that hides a ring of keys and values
    attention_backward_s: FloatArray
    # What attention takes longer on the fullest context-parallel rank (ring, all-gather) than on all of them on average, and the standard
    # deviation of its time from one sequence of packed documents to another.
    uneven_forward_s: FloatArray
    uneven_backward_s: FloatArray
    spread_forward_s: FloatArray
    spread_backward_s: FloatArray
    kv_bytes: FloatArray  # keys and values of a rank's positions
    heads_bytes: FloatArray  # queries, keys, values and outputs of a rank's positions
    dispatch_bytes: FloatArray  # tokens that a rank sends to experts, once for each expert of theirs
    uneven_bytes: FloatArray  # what the rank whose experts get most tokens receives beyond that
    token_bytes: FloatArray  # the tokens that a rank sends, each once
    drawn_bytes: FloatArray  # each as often as `costmodel.mesh.communication.free_draws` says
    returned_bytes: FloatArray  # the same of their gradients
    saved_bytes: FloatArray  # kept for the backward pass, nothing recomputed
    saved_selective_bytes: FloatArray
    remade_bytes: FloatArray  # the part of saved_bytes that selective recomputation makes again
    entering_bytes: FloatArray  # the module's input
    input_bytes: FloatArray  # the same if full recomputation keeps it: where a gradient flows through the module
    logits_bytes: FloatArray  # the loss and what enters it; not in saved_bytes
    dense_count: FloatArray  # weights of a rank outside routed experts
    expert_count: FloatArray
    narrow_count: FloatArray  # the part of dense_count that a recipe keeps in a narrow format
    narrow_trainable: FloatArray
    dense_trainable: FloatArray
    expert_trainable: FloatArray
    tied_count: FloatArray  # weights of another module that this one needs a copy of
    tied_trainable: FloatArray
    apart_trainable: (
        FloatArray  # the part of dense_trainable whose gradients tensor-parallel ranks add up once per step
    )
    # What the host starts: kernels, and collectives over the tensor-parallel ranks (0 for one rank).
    forward_launches: FloatArray
    backward_launches: FloatArray  # without those that only weight gradients need
    weight_launches: FloatArray
    selective_launches: FloatArray
    tensors: FloatArray  # weight tensors that are trained
    tp_forward_starts: FloatArray
    tp_backward_starts: FloatArray
    widest_bytes: FloatArray  # largest tensor of a rank: the gradient that is under way in the backward pass
    chunk_bytes: (
        FloatArray  # tensors of one chunk of a feed-forward part that is computed in chunks, and their gradients
    )

    @classmethod
    def of_stack(cls, stack: FloatArray) -> ModuleTable:
        """The table of an array (fields, n, K)."""
        return cls(**dict(zip(MODULE_COLUMNS, stack, strict=True)))


MODULE_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(ModuleTable))


@dataclass(slots=True, kw_only=True)
class ModuleRows:
    """Rows of the table that have been computed, each under a key.

    >>> rows, ones = ModuleRows(), np.ones((len(MODULE_COLUMNS), 2, 3))
    >>> rows.add([(1,), (2,)], ModuleTable.of_stack(ones * np.array([[[1.0], [2.0]]])))
    >>> rows.missing([(2,), (3,)]), rows.table([(2,), (2,), (1,)]).forward_s[:, 0].tolist()
    ([1], [2.0, 2.0, 1.0])
    """

    _places: dict[Hashable, int] = field(default_factory=dict)
    # (fields, room, K): rows beyond those known are room for more, so that adding does not copy all of them every time.
    _stack: FloatArray = field(default_factory=lambda: np.zeros((len(MODULE_COLUMNS), 0, 0)))

    def missing(self, keys: Sequence[Hashable]) -> list[int]:
        """Positions of the keys that are not known."""
        return [n for n, key in enumerate(keys) if key not in self._places]

    def add(self, keys: Sequence[Hashable], rows: ModuleTable) -> None:
        """Remember rows under keys that are not known."""
        columns = [getattr(rows, name) for name in MODULE_COLUMNS]
        known, kinds = len(self._places), columns[0].shape[1]
        size = known + len(keys)
        if size > self._stack.shape[1]:
            grown = np.empty((len(MODULE_COLUMNS), max(size, 2 * known), kinds))
            if known:
                grown[:, :known] = self._stack[:, :known]
            self._stack = grown
        for own, column in zip(self._stack, columns, strict=True):
            own[known:size] = column
        self._places |= {key: known + n for n, key in enumerate(keys)}

    def table(self, keys: Sequence[Hashable], index: IntArray | None = None) -> ModuleTable:
        """Rows of known keys; with an index, those of ``keys[index]``."""
        place = np.array([self._places[key] for key in keys], dtype=np.int64)
        return ModuleTable.of_stack(self._stack.take(place if index is None else place[index], axis=1))

"""A network as a chain of modules between which pipelines may cut: embedding, blocks, head; and which of them have a backward pass.

Equal modules are one kind: 96 equal transformer blocks are costed once. Blocks through which no gradient flows, since nothing before or in
them is trained, are of another kind than those that have a backward pass.

Layers before the first trained one have no backward pass, and keep no activations for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.network.graph import Graph
from costmodel.workload import Workload

__all__ = ["GradientFlow", "MeshError", "ModuleKind", "Modules", "flow_of", "fold", "is_repeated", "mesh_fault"]


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
    order: dict[str, int] = {}
    for layer in graph.layers:
        if layer.block and layer.block not in order:
            order[layer.block] = len(order) + 1
    if not order:
        raise MeshError(
            "the network has no repeated blocks (write them with 'repeat'), so it has nothing to cut into stages"
        )
    head = len(order) + 1
    # As late as its readers allow, in the module before the first block that reads it...
    owner = [order.get(layer.block, head) for layer in graph.layers]
    readers: list[list[int]] = [[] for _ in graph.layers]
    for u, v in graph.edges:
        readers[u].append(v)
    for u in reversed(range(len(owner))):
        if not graph.layers[u].block:
            owner[u] = min((owner[v] - bool(graph.layers[v].block) for v in readers[u]), default=head)
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
    return (layer.kind, layer.params, layer.input_shapes, layer.output_shape, layer.frozen, layer.lora_rank, flows)


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
    runs_again : bool
        Selective recomputation runs the layer again (`is_repeated`), and has a reason to: its own backward pass, or that of a layer of the
        module that reads it.
    """

    through: bool
    to_inputs: bool
    runs_again: bool


def flow_of(workload: Workload, kind: ModuleKind, position: int, needs: Sequence[bool]) -> GradientFlow:
    """The backward pass of a layer of a module; modules of a kind are alike in this (`costmodel.mesh.modules.fold`).

    Parameters
    ----------
    workload : Workload
    kind : ModuleKind
    position : int
        Of the layer in the module.
    needs : sequence of bool
        Layer of the graph -> whether a gradient flows through its output.
    """
    if not workload.training:
        return GradientFlow(through=False, to_inputs=False, runs_again=False)
    if needs is workload.graph.needs_gradient:  # as almost always
        return workload.graph.once(("flow", kind, position), lambda: _flow(workload.graph, kind, position, needs))
    return _flow(workload.graph, kind, position, needs)


def _flow(graph: Graph, kind: ModuleKind, position: int, needs: Sequence[bool]) -> GradientFlow:
    index = kind.layers[position]
    reading = any(needs[kind.layers[r]] for r, inputs in enumerate(kind.inputs) if position in inputs)
    return GradientFlow(
        through=needs[index],
        to_inputs=any(needs[u] for u in graph.producers[index]),
        runs_again=is_repeated(graph, kind, position) and (needs[index] or reading),
    )


def is_repeated(graph: Graph, kind: ModuleKind, position: int) -> bool:
    """Whether selective recomputation runs a layer of a module again instead of keeping what it makes.

    Cheap layers, attention that is written out, and the matrices that spread the narrow vectors of latent attention over its heads: those
    keep many times what they read (DeepSeek-V3, arXiv:2412.19437, section 3.2.3: norms and up-projections are computed again;
    Megatron-LM, ``--recompute-modules mla_up_proj``).
    """
    layer = graph.layers[kind.layers[position]]
    if layer.is_recomputable:
        return True
    if layer.kind != "linear" or layer.output_shape[0] <= layer.input_shapes[0][0]:
        return False
    readers = [kind.layers[r] for r, inputs in enumerate(kind.inputs) if position in inputs]
    return bool(readers) and all(graph.layers[index].kind == "latent_attention" for index in readers)

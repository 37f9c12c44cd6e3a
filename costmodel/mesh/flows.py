"""Where gradients flow: below the first layer that is trained there is no backward pass, and nothing is kept for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.mesh.units import UnitKind
from costmodel.network.graph import Graph
from costmodel.workload import Workload

__all__ = ["GradientFlow", "flow_of", "is_repeated"]


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
        unit that reads it.
    """

    through: bool
    to_inputs: bool
    runs_again: bool


def flow_of(workload: Workload, kind: UnitKind, position: int, needs: Sequence[bool]) -> GradientFlow:
    """The backward pass of a layer of a unit; units of a kind are alike in this (`costmodel.mesh.units.fold`).

    Parameters
    ----------
    workload : Workload
    kind : UnitKind
    position : int
        Of the layer in the unit.
    needs : sequence of bool
        Layer of the graph -> whether a gradient flows through its output.
    """
    if not workload.training:
        return GradientFlow(through=False, to_inputs=False, runs_again=False)
    if needs is workload.graph.needs_gradient:  # as almost always
        return workload.graph.once(("flow", kind, position), lambda: _flow(workload.graph, kind, position, needs))
    return _flow(workload.graph, kind, position, needs)


def _flow(graph: Graph, kind: UnitKind, position: int, needs: Sequence[bool]) -> GradientFlow:
    index = kind.layers[position]
    reading = any(needs[kind.layers[r]] for r, inputs in enumerate(kind.inputs) if position in inputs)
    return GradientFlow(
        through=needs[index],
        to_inputs=any(needs[u] for u in graph.producers[index]),
        runs_again=is_repeated(graph, kind, position) and (needs[index] or reading),
    )


def is_repeated(graph: Graph, kind: UnitKind, position: int) -> bool:
    """Whether selective recomputation runs a layer of a unit again instead of keeping what it makes.

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

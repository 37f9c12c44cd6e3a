"""Which space of plans a question is about: one degree per parallel dimension for the whole network, or a split per layer."""

from __future__ import annotations

from typing import Literal

from costmodel.framework import LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.question.fixed import flag_of

__all__ = ["Space", "choose_space", "is_transformer", "lead_device", "why_layers"]

Space = Literal["mesh", "layers", "mixed", "serving"]


# Attention that can generate text.
_GENERATING = frozenset({"self_attention", "latent_attention"})


def is_transformer(graph: Graph) -> bool:
    """Whether a network has attention."""
    return any(layer.kind in ATTENTION for layer in graph.layers)


def _has_blocks(graph: Graph) -> bool:
    """Whether blocks with attention or experts are repeated, which have the dimensions of a mesh."""
    return any(layer.kind in ATTENTION or layer.kind == "moe" for layer in graph.layers if layer.block)


def choose_space(request: Request, graph: Graph, cluster: Cluster | None = None) -> Space:
    """Choose the space that a question is about.

    A cluster of several groups of devices has a space of its own. Otherwise ``auto`` is the mesh for a transformer with repeated blocks
    that is trained, unless an option is given that only the other space knows, or nothing follows the last block.

    Raises
    ------
    UsageError
        An option that the chosen space does not know; options of both spaces; a space that the network does not have.
    """
    of_layers, of_mesh = _layer_options(request), _mesh_options(request)
    fits = _has_blocks(graph)
    if cluster is not None and len(cluster.groups) > 1:
        of_layers += ["--diverse"] if request.diverse else []
        from planner.question.mixed import check_mixed  # other questions do without

        check_mixed(request, graph, cluster, is_foldable=fits, of_layers=of_layers, of_mesh=of_mesh)
        return "mixed"
    if request.mode == "inference" and _is_serving(request, graph):
        return "serving"
    if of_layers and of_mesh:
        raise UsageError(
            f"{of_mesh[0]} is for plans over a device mesh and {of_layers[0]} for plans with a split per layer; leave one of them out"
        )
    if request.space == "auto":
        chosen: Space = "mesh" if of_mesh or _is_mesh_by_itself(request, graph, of_layers) else "layers"
        if chosen == "mesh" and not of_mesh and _mesh_fault(graph) is not None:
            chosen = "layers"
    else:
        chosen = request.space
    if chosen == "layers" and of_mesh:
        raise UsageError(f"--space layers: {of_mesh[0]} is for plans over a device mesh (--space mesh)")
    if chosen == "mesh":
        _check_mesh(request, graph, of_layers, of_mesh, fits=fits)
    return chosen


def _is_serving(request: Request, graph: Graph) -> bool:
    """Whether a question is about serving: inference of a network that generates text, and no option of a split per layer.

    Raises
    ------
    UsageError
        Options of serving for a network that cannot be served, or together with those of a split per layer.
    """
    if request.mode != "inference" or request.space == "mesh":
        return False
    per_layer = {
        "--space layers": request.space == "layers",
        f"--family {request.family}": request.family is not None,
        "--fix": bool(request.fix),
        f"--solver {request.solver}": request.solver != "auto",
        f"--collective {request.collective}": request.collective is not None,
        "--diverse": bool(request.diverse),
        f"--cost-model {request.cost_model}": request.cost_model != "roofline",
    }
    asked = [flag for flag, given in per_layer.items() if given]
    served = request.serving_options
    if asked and served:
        raise UsageError(
            f"{served[0]} is for serving and {asked[0]} for plans with a split per layer; leave one of them out"
        )
    generates = any(layer.kind in _GENERATING and layer.params.causal and layer.block for layer in graph.layers)
    if served and not generates:
        raise UsageError(
            f"{served[0]}: network '{graph.name}' does not generate text; without it, "
            "--mode inference costs the forward pass"
        )
    return generates and not asked


def _is_mesh_by_itself(request: Request, graph: Graph, of_layers: list[str]) -> bool:
    """Whether blocks are there to lay over a mesh, and nothing asks for a split per layer."""
    return _has_blocks(graph) and not of_layers and request.mode == "training"


def _mesh_fault(graph: Graph) -> str | None:
    from costmodel.mesh.modules import mesh_fault

    return mesh_fault(graph)


def why_layers(request: Request, graph: Graph, space: Space) -> str | None:
    """Why ``auto`` chose a split per layer for a transformer that is trained; None where it did not, or an option asked for it."""
    if request.space != "auto" or space != "layers" or not _is_mesh_by_itself(request, graph, _layer_options(request)):
        return None
    return f"a split per layer, not a device mesh: {_mesh_fault(graph)}"


def _check_mesh(request: Request, graph: Graph, of_layers: list[str], of_mesh: list[str], *, fits: bool) -> None:
    asked = "--space mesh" if request.space == "mesh" else of_mesh[0] if of_mesh else "--space auto"
    if of_layers:
        raise UsageError(f"{asked}: {of_layers[0]} is for plans with a split per layer (--space layers)")
    if not fits:
        raise UsageError(
            f"{asked}: network '{graph.name}' has no repeated blocks with attention or experts to lay over a mesh"
        )
    if request.mode != "training":
        raise UsageError(
            f"{asked}: plans over a device mesh are for training; --mode {request.mode} has --space layers"
        )


def _layer_options(request: Request) -> list[str]:
    """Options given that only a split per layer knows."""
    given = {
        f"--family {request.family}": request.family is not None,
        "--fix": bool(request.fix),
        f"--solver {request.solver}": request.solver != "auto",
        f"--collective {request.collective}": request.collective is not None,
        f"--cost-model {request.cost_model}": request.cost_model != "roofline",
        "--assume": any(name in LayerAssumptions.__dataclass_fields__ for name, _ in request.assume),
    }
    return [name for name, is_given in given.items() if is_given]


def _mesh_options(request: Request) -> list[str]:
    """Options given that only a mesh knows."""
    restriction = request.mesh
    names: list[str] = []
    if restriction is not None:
        fields = (*restriction.degrees, *restriction.names, *restriction.flags)
        names = [flag_of(field) for field in fields]
    # Assumptions about a split per layer are checked when the space is known.
    of_mesh = any(name in MeshAssumptions.__dataclass_fields__ for name, _ in request.assume)
    return names + (["--assume"] if of_mesh else [])


def lead_device(cluster: Cluster, wanted: str | None) -> int:
    """The group whose number format a job has unless it is told: the fastest, among those that have the wanted one.

    Returns
    -------
    int
        Position of the group; the first of all where none has the format.
    """

    def speed(position: int) -> float:
        rates = cluster.groups[position].device.peak_flop_per_s
        return rates.get(wanted, 0.0) if wanted is not None else max(rates.values())

    return max(range(len(cluster.groups)), key=lambda position: (speed(position), -position))

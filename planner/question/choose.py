"""Which space of plans a question is about: each kind of questions says which are its own, what it refuses, and how it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from costmodel.framework import LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.layerwise.splits import divisors
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION
from planner.core.errors import UsageError
from planner.core.objectives import check_layer_objective
from planner.core.request import Request, Space, SpaceChoice
from planner.question.fixed import flags_of

__all__ = ["KINDS", "LAYERS", "MESH", "Asked", "Kind", "choose_space", "is_transformer", "lead_device"]

# Attention that can generate text.
_GENERATING = frozenset({"self_attention", "latent_attention"})


def is_transformer(graph: Graph) -> bool:
    """Whether a network has attention."""
    return any(layer.kind in ATTENTION for layer in graph.layers)


def _has_blocks(graph: Graph) -> bool:
    """Whether blocks with attention or experts are repeated, which have the dimensions of a mesh."""
    return any(layer.kind in ATTENTION or layer.kind == "moe" for layer in graph.layers if layer.block)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What decides which space a question is about.

    Attributes
    ----------
    cluster : Cluster or None
        None: of one kind of device.
    """

    request: Request
    graph: Graph
    cluster: Cluster | None = None

    @cached_property
    def of_layers(self) -> list[str]:
        """Options given that only a split per layer knows."""
        request = self.request
        given = {
            f"--family {request.family}": request.family is not None,
            "--fix": bool(request.fix),
            f"--solver {request.solver}": request.solver != "auto",
            f"--collective {request.collective}": request.collective is not None,
            f"--cost-model {request.cost_model}": request.cost_model != "roofline",
        }
        assumed = [f"--assume {name}" for name, _ in request.assume if name in LayerAssumptions.__dataclass_fields__]
        return [name for name, is_given in given.items() if is_given] + assumed

    @cached_property
    def of_mesh(self) -> list[str]:
        """Options given that only a mesh knows; its assumptions are checked when the space is known."""
        return [] if self.request.mesh is None else list(flags_of(self.request.mesh).values())

    @property
    def is_mesh_by_itself(self) -> bool:
        """Whether blocks are there to lay over a mesh, and nothing asks for a split per layer."""
        return _has_blocks(self.graph) and not self.of_layers and self.request.mode == "training"


class Kind:
    """Questions about one space of plans.

    Attributes
    ----------
    space : str
        Name of the space.
    choice : str
        What --space says to ask so again.
    has_objectives : bool
        Whether ``planner size`` can search by money and energy.
    scaled_family : str
        What ``planner scale`` follows unless --family says otherwise.
    assumed : type
        Assumptions that --assume may change.
    """

    space: ClassVar[Space]
    choice: ClassVar[SpaceChoice] = "auto"
    has_objectives: ClassVar[bool] = False
    scaled_family: ClassVar[str] = "data"
    assumed: ClassVar[type] = MeshAssumptions
    assumed_words: ClassVar[str] = "plans over a device mesh; docs/transformers.md lists theirs"

    def is_named(self, request: Request) -> bool:
        """Whether --space names it."""
        return request.space == self.space

    def applies(self, asked: Asked) -> bool:
        """Whether a question is of this kind, where none before it in `KINDS` is.

        Raises
        ------
        UsageError
            It is, and has options that contradict it.
        """
        raise NotImplementedError

    def why(self, asked: Asked) -> str | None:
        """Why a question is of this kind where another would be expected."""
        return None

    def check_objective(self, request: Request, cluster: Cluster, *, reads_tokens: bool) -> None:
        """Refuse an objective that its plans cannot be ranked by, before anything is costed."""

    def check_batch(self, request: Request, global_batch: int) -> None:
        """Refuse a division of the batch that its plans cannot have."""

    def check_assumed(self, assumed: Sequence[tuple[str, float]]) -> None:
        """Refuse assumptions of another space: they would be ignored."""
        for name, _ in assumed:
            if name not in self.assumed.__dataclass_fields__:  # type: ignore[attr-defined]
                raise UsageError(f"--assume {name}: is no assumption about {self.assumed_words}")

    def check_plan_of(self, resolved_kind: Kind, cluster: Cluster) -> None:
        """Refuse a cluster on which a plan of this kind is another kind of question."""

    def without_rate(self, device: Device, cluster: Cluster) -> str:
        """Says that devices compute in other number formats only."""
        return f"device '{device.name}' has no"


class _Mixed(Kind):
    """Clusters of several groups of devices, which have a space of their own."""

    space = "mixed"

    def applies(self, asked: Asked) -> bool:
        cluster, request = asked.cluster, asked.request
        if cluster is None or len(cluster.groups) == 1:
            return False
        from planner.question.mixed import check_mixed  # other questions do without

        of_layers = asked.of_layers + (["--diverse"] if request.diverse else [])
        is_foldable = _has_blocks(asked.graph)
        check_mixed(request, asked.graph, cluster, is_foldable=is_foldable, of_layers=of_layers, of_mesh=asked.of_mesh)
        return True

    def check_plan_of(self, resolved_kind: Kind, cluster: Cluster) -> None:
        if resolved_kind is not self:
            raise UsageError(
                f"the plan is for several groups of devices, and cluster '{cluster.name}' has one; name one with groups by --cluster"
            )

    def without_rate(self, device: Device, cluster: Cluster) -> str:
        return f"no device of cluster '{cluster.name}' has a"


class _Serving(Kind):
    """Inference of a network that generates text, without an option of a split per layer."""

    space = "serving"

    def applies(self, asked: Asked) -> bool:
        request, graph = asked.request, asked.graph
        if request.mode != "inference" or MESH.is_named(request):
            return False
        given = ["--space layers"] if LAYERS.is_named(request) else []
        given += [option for option in asked.of_layers if not option.startswith("--assume ")]
        given += ["--diverse"] if request.diverse else []
        served = request.serving_options
        if given and served:
            raise UsageError(
                f"{served[0]} is for serving and {given[0]} for plans with a split per layer; leave one of them out"
            )
        generates = any(layer.kind in _GENERATING and layer.params.causal and layer.block for layer in graph.layers)
        if served and not generates:
            raise UsageError(
                f"{served[0]}: network '{graph.name}' does not generate text; without it, "
                "--mode inference costs the forward pass"
            )
        return generates and not given

    def check_assumed(self, assumed: Sequence[tuple[str, float]]) -> None:
        """Its cost model checks them, with all else that is wrong."""


class _Mesh(Kind):
    """A transformer with repeated blocks that is trained, unless an option is given that only a split per layer knows."""

    space = "mesh"
    choice = "mesh"
    has_objectives = True
    scaled_family = "mesh"

    def applies(self, asked: Asked) -> bool:
        of_layers, of_mesh = asked.of_layers, asked.of_mesh
        if of_layers and of_mesh:
            raise UsageError(
                f"{of_mesh[0]} is for plans over a device mesh and {of_layers[0]} for plans with a split per layer; leave one of them out"
            )
        if LAYERS.is_named(asked.request):
            if of_mesh:
                raise UsageError(f"--space layers: {of_mesh[0]} is for plans over a device mesh (--space mesh)")
            return False
        is_asked = bool(of_mesh) or self.is_named(asked.request)
        if not is_asked and not (asked.is_mesh_by_itself and _mesh_fault(asked.graph) is None):
            return False
        request = asked.request
        option = "--space mesh" if self.is_named(request) else asked.of_mesh[0] if asked.of_mesh else "--space auto"
        if asked.of_layers:
            raise UsageError(f"{option}: {asked.of_layers[0]} is for plans with a split per layer (--space layers)")
        if not _has_blocks(asked.graph):
            raise UsageError(
                f"{option}: network '{asked.graph.name}' has no repeated blocks with attention or experts to lay over a mesh"
            )
        if request.mode != "training":
            raise UsageError(
                f"{option}: plans over a device mesh are for training; --mode {request.mode} has --space layers"
            )
        return True


class _Layers(Kind):
    """Everything else: any network can have a split for every layer."""

    space = "layers"
    choice = "layers"
    assumed = LayerAssumptions
    assumed_words = f"plans with a split per layer; theirs are {', '.join(LayerAssumptions.__dataclass_fields__)}"

    def applies(self, asked: Asked) -> bool:
        return True

    def why(self, asked: Asked) -> str | None:
        if self.is_named(asked.request) or not asked.is_mesh_by_itself:
            return None
        return f"a split per layer, not a device mesh: {_mesh_fault(asked.graph)}"

    def check_objective(self, request: Request, cluster: Cluster, *, reads_tokens: bool) -> None:
        check_layer_objective(request.objective, cluster.device, reads_tokens=reads_tokens)

    def check_batch(self, request: Request, global_batch: int) -> None:
        wanted = request.micro_batches
        if wanted is None:
            return
        if not 1 <= wanted <= global_batch:
            raise UsageError(f"--micro-batches must be between 1 and the global batch ({global_batch})")
        if global_batch % wanted:
            near = sorted(divisors(global_batch), key=lambda m: (abs(m - wanted), m))[:3]
            raise UsageError(
                f"--micro-batches {wanted} does not divide the global batch {global_batch}; "
                f"near it are {', '.join(map(str, sorted(near)))}"
            )


MESH, LAYERS = _Mesh(), _Layers()
# In the order in which they are asked whether a question is theirs.
KINDS: list[Kind] = [_Mixed(), _Serving(), MESH, LAYERS]


def choose_space(asked: Asked) -> Kind:
    """Choose the space that a question is about.

    Raises
    ------
    UsageError
        An option that the chosen space does not know; options of both spaces; a space that the network does not have.
    """
    return next(kind for kind in KINDS if kind.applies(asked))


def _mesh_fault(graph: Graph) -> str | None:
    from costmodel.mesh.modules import mesh_fault

    return mesh_fault(graph)


def lead_device(cluster: Cluster, wanted: str | None) -> int:
    """The group whose number format a job has unless it is told: the fastest, among those that have the wanted one.

    Returns
    -------
    int
        Position of the group; the first of all where none has the format.
    """
    rates = [group.device.peak_flop_per_s for group in cluster.groups]
    speeds = [max(rate.values()) if wanted is None else rate.get(wanted, 0.0) for rate in rates]
    return speeds.index(max(speeds))

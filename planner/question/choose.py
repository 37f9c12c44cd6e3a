"""Which space of plans a question is about: the kind of the questions of each space says which are its own, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from costmodel.framework import LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION
from costmodel.precision import Precision
from planner.core.errors import UsageError
from planner.core.request import SPACES, Request, SpaceInfo, imported
from planner.question.fixed import flags_of

if TYPE_CHECKING:
    from planner.schema.plan import PlanDocument


def is_transformer(graph: Graph) -> bool:
    """Whether a network has attention."""
    return any(layer.kind in ATTENTION for layer in graph.layers)


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
    def has_blocks(self) -> bool:
        """Whether blocks with attention or experts are repeated, which have the dimensions of a mesh."""
        return any(layer.kind in ATTENTION or layer.kind == "moe" for layer in self.graph.layers if layer.block)

    @property
    def is_mesh_by_itself(self) -> bool:
        """Whether blocks are there to lay over a mesh, and nothing asks for a split per layer."""
        return self.has_blocks and not self.of_layers and self.request.mode == "training"


@dataclass(frozen=True, slots=True)
class Kind:
    """Questions about one space of plans; unless a space has a kind of its own, those that name it by --space.

    Attributes
    ----------
    info : SpaceInfo
    has_objectives : bool
        Whether ``planner size`` can search by money and energy.
    scaled_family : str
        What ``planner scale`` follows unless --family says otherwise; empty: there is no curve.
    assumed : type
        Assumptions that --assume may change.
    assumed_words : str
        Which these are.
    """

    info: SpaceInfo

    has_objectives: ClassVar[bool] = False
    scaled_family: ClassVar[str] = "data"
    assumed: ClassVar[type] = MeshAssumptions
    assumed_words: ClassVar[str] = "docs/transformers.md lists theirs"

    @property
    def space(self) -> str:
        """Name of the space."""
        return self.info.name

    @property
    def choice(self) -> str:
        """What --space says to ask so again."""
        return self.space if self.info.is_chosen else "auto"

    def is_named(self, request: Request) -> bool:
        """Whether --space names it."""
        return request.space == self.space

    def applies(self, asked: Asked) -> bool:
        """Whether a question is of this kind; kinds of spaces that were registered later are asked first.

        Raises
        ------
        UsageError
            It is, and has options that contradict it.
        """
        return self.is_named(asked.request)

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
                raise UsageError(f"--assume {name}: is no assumption about {self.info.plans}; {self.assumed_words}")

    def asked_by(self, document: PlanDocument) -> dict[str, Any]:
        """Fields of the request that a plan file of this space answers, beside those that every space has."""
        return {"batch": document.global_batch}

    def with_batch(self, document: PlanDocument, batch: int) -> PlanDocument:
        """A plan file whose plan is asked for another batch."""
        return document.model_copy(update={"global_batch": batch})

    def other_question(self, cluster: Cluster) -> str:
        """Why a plan file does not answer its question any more where what is changed makes it one about another space."""
        return f"the plan is one of the {self.info.plans}, and the question is about others"

    def without_rate(self, device: Device, cluster: Cluster) -> str:
        """How a sentence begins that says that devices have no rate in a number format."""
        return f"device '{device.name}' has no"


def kind_of(name: str) -> Kind:
    """The kind of the questions about a space."""
    kind: Kind = imported(SPACES[name].kind)(SPACES[name])
    return kind


def choose_space(asked: Asked) -> Kind:
    """Choose the space that a question is about.

    Raises
    ------
    UsageError
        An option that the chosen space does not know; options of both spaces; a space that the network does not have.
    """
    return next(kind for kind in map(kind_of, reversed(SPACES)) if kind.applies(asked))


def lead_device(cluster: Cluster, wanted: Sequence[Precision]) -> int:
    """The group whose number format a job has unless it is told: the fastest, among those that have one of the wanted.

    Returns
    -------
    int
        Position of the group; the first of all where none has the format.
    """
    rates = [group.device.peak_flop_per_s for group in cluster.groups]
    products = [name for precision in wanted for name in precision.products]
    speeds = [max((rate.get(name, 0.0) for name in products), default=max(rate.values())) for rate in rates]
    return speeds.index(max(speeds))

"""The spaces of plans that there are, each declared once: what makes it, what its plans cost, and how a plan file holds them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["CHOICES", "SPACES", "SpaceInfo", "imported", "register"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceInfo:
    """A space of plans. What stands in another module is named ``module:NAME``, and imported when it is needed.

    Attributes
    ----------
    name : str
        In answers and, as the section of a plan, in plan files.
    title : str
        In the names of its JSON schema.
    make : str
        A function of a resolved question to its `planner.spaces.base.PlanSpace`.
    figures : str
        What its plans cost, by name (`costmodel.fields.declared`).
    product : str
        Which numbers of a plan file multiply to the workers, as a sentence.
    plan : str
        The class of a plan, whose settings are the keys of its section; empty: `planner.schema.plan` spells them out.
    """

    name: str
    title: str
    make: str
    figures: str
    product: str
    plan: str = ""


SPACES: dict[str, SpaceInfo] = {
    info.name: info
    for info in (
        SpaceInfo(
            name="layers",
            title="Layerwise",
            make="planner.spaces.layers.space:layerwise_space",
            figures="costmodel.layerwise.plan:LAYERWISE_FIGURES",
            product="The degrees of every layer multiply to the workers; degrees of 1 are left out.",
        ),
        SpaceInfo(
            name="mesh",
            title="Mesh",
            make="planner.spaces.mesh.space:mesh_space",
            figures="costmodel.mesh.plan:MESH_FIGURES",
            product="tp x cp x pp x dp_replicate x dp_shard are the workers; "
            "these data-parallel ranks x micro_batch x num_micro_batches the batch.",
        ),
        SpaceInfo(
            name="mixed",
            title="Mixed",
            make="planner.spaces.mixed.space:mixed_space",
            figures="costmodel.mixed.plan:MIXED_FIGURES",
            product="replicas x the tp of all stages are the workers; "
            "micro_batch x (replicas x num_micro_batches + longer) the batch.",
        ),
        SpaceInfo(
            name="serving",
            title="Serving",
            make="planner.spaces.serving.space:serving_space",
            figures="costmodel.serving.plan:SERVING_FIGURES",
            product="tp x pp x dp are the workers; dp x max_batch the sequences at a time (global_batch).",
        ),
    )
}
# What --space takes.
CHOICES: list[str] = ["auto", "mesh", "layers"]


def register(info: SpaceInfo) -> None:
    """Add a space, which --space names. Its `planner.question.choose.Kind` says what it refuses."""
    SPACES[info.name] = info
    CHOICES.append(info.name)


def imported(source: str) -> Any:
    """What ``module:NAME`` names.

    >>> imported("math:pi") > 3
    True
    """
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)

"""What a training framework does beside the arithmetic of its network: a few constants of the mesh model that differ from the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions

__all__ = ["FRAMEWORKS", "MOST_CONSTANTS", "FrameworkProfile", "profile_of"]

# A profile with more than these would describe data, not a framework.
MOST_CONSTANTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile:
    """Constants of a framework.

    Attributes
    ----------
    name : str
    doc : str
        What is particular about it.
    source : str
        Where the numbers come from; constants that were fitted say "fit".
    pattern : str
        Regular expression that finds the framework in what people call it, in lower case.
    constants : mapping of str to float
        Fields of `MeshAssumptions` that differ from the defaults, at most four.

    Raises
    ------
    ValueError
        More constants than four, or one that is no field.

    Examples
    --------
    >>> profile = FrameworkProfile(name="slow", doc="", source="", pattern="slow", constants={"host_launch_s": 1e-3})
    >>> profile.applied().host_launch_s
    0.001
    """

    name: str
    doc: str
    source: str
    pattern: str
    constants: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the constants and make them read-only."""
        unknown = [name for name in self.constants if name not in MeshAssumptions.__dataclass_fields__]
        if unknown:
            raise ValueError(f"framework '{self.name}': '{unknown[0]}' is no assumption of the mesh model")
        if len(self.constants) > MOST_CONSTANTS:
            raise ValueError(f"framework '{self.name}' has {len(self.constants)} constants, at most {MOST_CONSTANTS}")
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))

    def __hash__(self) -> int:
        """By name: a mapping has none."""
        return hash(self.name)

    def applied(self, assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS) -> MeshAssumptions:
        """Assumptions with the constants of the profile put in."""
        return replace(assumptions, **self.constants)


# The first whose pattern is found is meant; the last is everything else.
FRAMEWORKS: tuple[FrameworkProfile, ...] = (
    FrameworkProfile(
        name="nanotron",
        doc="no fused functions of its own; rings between nodes (EFA) of high latency; tensor-parallel collectives that wait for "
        "the host while stages on other nodes exchange tensors",
        source="host_collective_s, ring_step_s, contended_step_s: fit to the sweep of the Ultra-Scale Playbook (Hugging Face, nanotron on "
        "H100), runs inside a node, tensor parallelism over 2 and 4 nodes, and pipelines over nodes; autograd_copies: fit to the memory of "
        "the same runs",
        pattern=r"nanotron",
        constants={
            "host_collective_s": 250e-6,
            "ring_step_s": 60e-6,
            "contended_step_s": 420e-6,
            "autograd_copies": 1.0,
        },
    ),
    FrameworkProfile(
        name="default", doc="the defaults of the mesh model", source="those of the assumptions", pattern=r""
    ),
)


def profile_of(text: str) -> FrameworkProfile:
    """Find the profile of a framework by what people call it.

    >>> profile_of("nanotron v0.5").name, profile_of("something new").name
    ('nanotron', 'default')
    """
    word = text.lower()
    return next(profile for profile in FRAMEWORKS if re.search(profile.pattern, word))

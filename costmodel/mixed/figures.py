"""The figures of a plan over several kinds of devices: those of a mesh that such plans have."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.fields import Figure, declared
from costmodel.mesh.figures import MEMORY_FIGURES, STEP_FIGURES
from costmodel.rates import COMMON_FIGURES, COST_FIGURES, TOKEN_FIGURES

__all__ = ["MIXED_FIGURES"]

# Such plans have no context or expert parallelism and keep everything on the devices.
_ABSENT = ("cp_exposed_s", "ep_exposed_s", "offload_s")

MIXED_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    Figure(name="precision", doc="Number format that all its devices compute in.", kind="text"),
    *TOKEN_FIGURES,
    *COST_FIGURES,
    *(figure for figure in STEP_FIGURES if figure.name not in _ABSENT),
    *MEMORY_FIGURES,
)

"""The cost model that rows are scored with: the planner's default, or the ``paleo`` preset beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodel.framework import WELL_TUNED, LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ComputeModel, RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.paleo.model import PaleoCompute
from costmodel.precision import OPTIMIZERS, Optimizer, Precision
from costmodel.uncertainty.calibration import Calibration
from costmodel.uncertainty.constants import assumptions_with, device_with, links_with

__all__ = ["DEFAULT", "PALEO", "Preset", "calibrated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A cost model for devices and links.

    ``paleo`` is PALEO's program where it has a formula (fp32, every kernel at the peak of the device, links without latency at
    their nominal bandwidth); what it does not know (sequences, attention, normalisation) is costed by the default, as
    ``--paleo-extensions`` does.

    Attributes
    ----------
    name : str
    efficiency, assumed : tuple of (str, float)
        Constants of `Efficiency` (of every device) and of `MeshAssumptions` in place of the bundled ones: trials of a fit.
    assumed_of : str
        Framework of whose rows ``assumed`` holds; empty: of all.
    constants : tuple of (str, float)
        Factors by name (`costmodel.uncertainty.constants`), as a calibration has them.
    """

    name: str
    efficiency: tuple[tuple[str, float], ...] = ()
    assumed: tuple[tuple[str, float], ...] = ()
    assumed_of: str = ""
    constants: tuple[tuple[str, float], ...] = ()

    def compute(
        self,
        device: Device,
        precision: Precision,
        optimizer: str | Optimizer,
        *,
        alone: bool = False,
        assumptions: LayerAssumptions = WELL_TUNED,
    ) -> ComputeModel:
        """Cost model of one device; ``alone``: of kernels timed by themselves, ``assumptions``: of the software."""
        if self.efficiency:
            constants: dict[str, Any] = dict(self.efficiency)
            device = replace(device, efficiency=replace(device.efficiency, **constants))
        device = assumptions.device_as_used(device_with(device, dict(self.constants)))
        update = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        roofline = RooflineCompute(
            device=device, precision=precision, optimizer=update, alone=alone, software=assumptions.image_software()
        )
        return PaleoCompute(device=device, extensions=roofline) if self.name == "paleo" else roofline

    def assumptions(self, bundled: MeshAssumptions, framework: str) -> MeshAssumptions:
        """What the mesh model takes for granted of runs of a framework."""
        changes = self.assumed if self.assumed_of in ("", framework) else ()
        changed = replace(bundled, **dict(changes)) if changes else bundled
        return assumptions_with(changed, dict(self.constants))

    def cluster(self, cluster: Cluster) -> Cluster:
        """Links as the preset sees them."""
        return cluster.with_ideal_links() if self.name == "paleo" else links_with(cluster, dict(self.constants))


DEFAULT = Preset(name="roofline")
PALEO = Preset(name="paleo")


def calibrated(preset: Preset, calibration: Calibration) -> Preset:
    """The preset with the factors of a calibration, and with what it assumes of the runs of its framework."""
    return replace(
        preset,
        constants=tuple(calibration.values.items()),
        assumed=tuple(calibration.assumed.items()),
        assumed_of=calibration.framework,
    )

"""The cost model that rows are scored with: the planner's default, or the ``paleo`` preset beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.kernels.compute import ComputeModel
from costmodel.kernels.roofline import EAGER, ImageSoftware, RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.paleo.model import PaleoCompute
from costmodel.precision import OPTIMIZERS, Optimizer, Precision
from costmodel.uncertainty.constants import assumptions_with, device_with, links_with

__all__ = ["DEFAULT", "PALEO", "Preset"]


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
    constants : tuple of (str, float)
        Factors by name (`costmodel.uncertainty.constants`), as a calibration has them.
    """

    name: str
    efficiency: tuple[tuple[str, float], ...] = ()
    assumed: tuple[tuple[str, float], ...] = ()
    constants: tuple[tuple[str, float], ...] = ()

    def compute(
        self,
        device: Device,
        precision: Precision,
        optimizer: str | Optimizer,
        *,
        alone: bool = False,
        software: ImageSoftware = EAGER,
    ) -> ComputeModel:
        """Cost model of one device; ``alone``: of kernels timed by themselves, ``software``: see `RooflineCompute`."""
        if self.efficiency:
            constants: dict[str, Any] = dict(self.efficiency)
            device = replace(device, efficiency=replace(device.efficiency, **constants))
        device = device_with(device, dict(self.constants))
        update = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        roofline = RooflineCompute(device=device, precision=precision, optimizer=update, alone=alone, software=software)
        return PaleoCompute(device=device, extensions=roofline) if self.name == "paleo" else roofline

    def assumptions(self, bundled: MeshAssumptions) -> MeshAssumptions:
        """What the mesh model takes for granted."""
        changed = replace(bundled, **dict(self.assumed)) if self.assumed else bundled
        return assumptions_with(changed, dict(self.constants))

    def cluster(self, cluster: Cluster) -> Cluster:
        """Links as the preset sees them."""
        return cluster.with_ideal_links() if self.name == "paleo" else links_with(cluster, dict(self.constants))


DEFAULT = Preset(name="roofline")
PALEO = Preset(name="paleo")

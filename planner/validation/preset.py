"""The cost model that rows are scored with: the planner's default, or the ``paleo`` preset beside it."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.compute import ComputeModel
from costmodel.device import Device
from costmodel.network import Cluster
from costmodel.paleo.model import PaleoCompute
from costmodel.precision import OPTIMIZERS, Precision
from costmodel.roofline import RooflineCompute

__all__ = ["DEFAULT", "PALEO", "Preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A cost model for devices and links.

    ``paleo`` is PALEO's program where it has a formula (fp32, every kernel at the peak of the device, links without latency at
    their nominal bandwidth); what it does not know (sequences, attention, normalisation) is costed by the default, as
    ``--paleo-extensions`` does.
    """

    name: str

    def compute(self, device: Device, precision: Precision, optimizer: str) -> ComputeModel:
        """Cost model of one device."""
        roofline = RooflineCompute(device=device, precision=precision, optimizer=OPTIMIZERS[optimizer])
        return PaleoCompute(device=device, extensions=roofline) if self.name == "paleo" else roofline

    def cluster(self, cluster: Cluster) -> Cluster:
        """Links as the preset sees them."""
        return cluster.with_ideal_links() if self.name == "paleo" else cluster


DEFAULT = Preset(name="roofline")
PALEO = Preset(name="paleo")

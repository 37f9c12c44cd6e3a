"""What comes of one row: predicted against measured, or why there is nothing to compare.

Rows are scored with a cost model: the planner's default, or the ``paleo`` preset beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.framework import WELL_TUNED, LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ComputeModel, CostModelError, RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import MeshPlan
from costmodel.network.layers import ShapeError
from costmodel.paleo.model import PaleoCompute
from costmodel.precision import OPTIMIZERS, Optimizer, Precision
from costmodel.uncertainty.constants import Calibration, assumptions_with, device_with, links_with
from planner.measurements.tables import Row, RowSkipped


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
        Constants of `Efficiency` (of every device), and of `MeshAssumptions` or `ServingAssumptions`, in place of the bundled ones: trials
        of a fit.
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
            device=device,
            precision=precision,
            optimizer=update,
            alone=alone,
            software=assumptions.image_software(),
            overlaps_exchange=bool(assumptions.layer_overlap),
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


# Why a row is skipped whose numbers overflow on the way.
TOO_LARGE = "its numbers are too large to count with: wrong unit?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One predicted time beside the measured one."""

    what: str  # "step", "forward", "all_reduce", ...
    predicted_s: float
    measured_s: float
    ideal_s: float  # FLOPs over the peak of the devices (bytes over the links for collectives): the baseline before its efficiency
    # Of the parts of a step (costmodel.uncertainty.intervals.PARTS); empty where they are not known.
    shares: tuple[float, ...] = ()
    plan: MeshPlan | None = None
    slowest: float = 1.0  # over the prediction, of the numbers of chunks that the row may mean: the interval reaches as far beyond it


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """Memory of the fullest device, and of the one whose memory was measured.

    ``device_bytes`` is what the device has, ``capacity_bytes`` what a run can use of it.
    """

    predicted_bytes: float
    capacity_bytes: float
    device_bytes: float
    measured_bytes: float | None = None
    reported_bytes: float | None = None  # predicted of what was measured; None: of the fullest

    @property
    def fits(self) -> bool:
        """Whether the run is predicted to fit."""
        return self.predicted_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row after its prediction.

    Attributes
    ----------
    comparisons : tuple of Comparison
        Empty where the run failed or the row was skipped.
    memory : MemoryComparison, optional
    failed : bool
        The run failed: it is scored for feasibility only.
    impossible : str
        Why the plan cannot run whatever the memory; empty where it can.
    ranking : hashable
        Rows with equal keys are alternatives to one another; None where rows are not ranked.
    skipped : str
        Why the row was not scored; empty where it was.
    usable : bool
        Whether it has a measurement (or a failure) and a known shape.
    fitted : frozenset of str
        Fitted constants that the prediction used.
    needs : tuple of tuples of str
        Columns that would have said what a skipped row lacks (`RowSkipped`).
    """

    row: Row
    comparisons: tuple[Comparison, ...] = ()
    memory: MemoryComparison | None = None
    failed: bool = False
    impossible: str = ""
    ranking: Hashable = None
    skipped: str = ""
    usable: bool = True
    fitted: frozenset[str] = frozenset()
    needs: tuple[tuple[str, ...], ...] = ()

    @property
    def is_scored(self) -> bool:
        """Whether the row counts."""
        return not self.skipped


def outcomes_of(rows: Sequence[Row], preset: Preset, one: Callable[[Row, Preset], Outcome]) -> list[Outcome]:
    """Predict rows one by one; those that cannot be scored are skipped with the reason."""
    outcomes = []
    for row in rows:
        try:
            if row.flag("suspect"):
                raise RowSkipped("marked suspect")
            outcomes.append(one(row, preset))
        except RowSkipped as trouble:
            outcomes.append(Outcome(row=row, skipped=trouble.reason, usable=trouble.usable, needs=trouble.needs))
        except OverflowError:
            outcomes.append(Outcome(row=row, skipped=TOO_LARGE, usable=False))
        except ShapeError:
            outcomes.append(Outcome(row=row, skipped="the shapes do not fit together", usable=False))
        except CostModelError as error:
            outcomes.append(Outcome(row=row, skipped=f"the cost model refuses the layer: {error}"))
    return outcomes

"""What comes of one row: predicted against measured, or why there is nothing to compare."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from costmodel.mesh.plan import MeshPlan
from planner.measurements.tables import Row

__all__ = ["TOO_LARGE", "Comparison", "MemoryComparison", "Outcome", "skipped"]


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


def skipped(row: Row, reason: str, *, usable: bool, needs: tuple[tuple[str, ...], ...] = ()) -> Outcome:
    """An outcome of a row that is left out."""
    return Outcome(row=row, skipped=reason, usable=usable, needs=needs)

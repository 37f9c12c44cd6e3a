"""What the converters of kernels share: the device of a row, and the loop that turns trouble into counted rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from costmodel.hardware.device import Device
from costmodel.kernels.compute import ComputeModel, CostModelError
from costmodel.network.layers import ShapeError
from costmodel.precision import Precision
from planner.measurements.fitted import fitted_of
from planner.measurements.hardware import Links, format_of, machine_of, precision_of, with_stated_math
from planner.measurements.outcomes import TOO_LARGE, Comparison, Outcome, skipped
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped

__all__ = ["RowPredictor", "Unit", "compared", "kernel_outcomes", "unit_of"]

# A kernel takes at least this share of the time of its FLOPs at the peak: FFT and Winograd save up to nine tenths of them.
_LEAST_OF_IDEAL = 0.1
# Times the larger of what the FLOPs need and what is predicted: a wrong unit (seconds are the measured kernels of other tables in us).
_LONGEST = 1e5
_TOO_SHORT = "time far below what the peak of the device allows: wrong unit?"
# Nothing that runs on a device is shorter than a clock period.
_SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A device as a row used it."""

    device: Device
    precision: Precision
    compute: ComputeModel

    @property
    def peak_flop_per_s(self) -> float:
        """Matrix rate in the number format of the row."""
        return self.device.peak(self.precision.compute)


# Units that rows asked for, by the device (it is kept with the unit, so that no other has its id), precision and cost model.
_UNITS: dict[tuple[int, Precision, Preset], Unit] = {}
_MOST_UNITS = 256

RowPredictor = Callable[[Row, Preset], tuple[tuple[Comparison, ...], Device]]


def unit_of(row: Row, preset: Preset, default: str = "fp32", *, stated_math: bool = True) -> Unit:
    """What a row ran on; products in the format that it states beside that of the storage, unless told otherwise.

    Raises
    ------
    RowSkipped
        Either is not known.
    """
    device = machine_of(row, Links(gpus_per_node=1, joined=1)).device
    precision = precision_of(format_of(row, default), device.formats)
    if stated_math:
        precision = with_stated_math(row, precision, device.formats)
    key = (id(device), precision, preset)
    if key not in _UNITS:
        if len(_UNITS) >= _MOST_UNITS:
            _UNITS.clear()
        _UNITS[key] = Unit(
            device=device, precision=precision, compute=preset.compute(device, precision, "sgd", alone=True)
        )
    return _UNITS[key]


def compared(
    what: str, predicted_s: float, measured_s: float | None, flop: float, peak: float
) -> tuple[Comparison, ...]:
    """One comparison, or none where nothing was measured.

    Raises
    ------
    RowSkipped
        The measurement cannot be right.
    """
    if measured_s is None:
        return ()
    ideal_s = flop / peak
    if measured_s < max(_SHORTEST_S, _LEAST_OF_IDEAL * ideal_s):
        raise RowSkipped(_TOO_SHORT)
    if measured_s > _LONGEST * max(ideal_s, predicted_s):
        raise RowSkipped(f"time above {_LONGEST:,.0f} times what the device needs: wrong unit?")
    return (Comparison(what=what, predicted_s=predicted_s, measured_s=measured_s, ideal_s=ideal_s),)


def kernel_outcomes(
    rows: Sequence[Row], preset: Preset, one: RowPredictor, kinds: frozenset[str] | None = None
) -> list[Outcome]:
    """Outcomes of rows that are predicted one by one; ``kinds``: families of their layers, for the fitted constants."""
    outcomes = []
    for row in rows:
        try:
            if row.says("suspect"):
                raise RowSkipped("marked suspect")
            comparisons, device = one(row, preset)
            if not comparisons:
                raise RowSkipped("no measured time")
            outcomes.append(
                Outcome(row=row, comparisons=comparisons, fitted=fitted_of(device, kinds=kinds, alone=True))
            )
        except RowSkipped as trouble:
            # What looks like a wrong unit is often a format that the row does not state.
            is_assumed = trouble.reason == _TOO_SHORT and "precision" in row.defaults
            reason = f"{trouble.reason} (or another precision than {row.defaults['precision']})" if is_assumed else ""
            outcomes.append(skipped(row, reason or trouble.reason, usable=trouble.usable, needs=trouble.needs))
        except OverflowError:
            outcomes.append(skipped(row, TOO_LARGE, usable=False))
        except ShapeError:
            outcomes.append(skipped(row, "the shapes do not fit together", usable=False))
        except CostModelError as error:
            outcomes.append(skipped(row, f"the cost model refuses the layer: {error}", usable=True))
    return outcomes

"""Matrix products: m x k by k x n.

Columns ``a_t`` and ``b_t`` (N or T) say that a product was called as BLAS has it, matrices column by column. On the first devices with
tensor cores these then ran on them only where columns begin at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.hardware.device import Device
from planner.measurements.kernel_rows import Unit, compared, kernel_outcomes, unit_of
from planner.measurements.outcomes import Comparison, Outcome
from planner.measurements.passes import layer_of, layer_times, positive_ms
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped

__all__ = ["predict", "product_s"]

# Volta and Turing, whose cuBLAS (of CUDA 9 and 10: its guide, tensor core usage) has that rule; that of CUDA 11 takes any matrices.
_ALIGNED_ONLY = ("v100", "titan-v", "t4", "rtx-20", "titan-rtx", "quadro-rtx", "quadro-gv100")
_ALIGNED_BYTES = 16


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _one, frozenset(("linear",)))


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    m, n, k = row.count("m"), row.count("n"), row.count("k")
    if not (m and n and k):
        raise RowSkipped("m, n or k is not stated")
    unit = unit_of(row, preset)
    ran_on = unit
    if _is_unaligned(row, unit, m, n, k) and preset.name != "paleo":
        ran_on = _on_vector_units(unit, preset)
    measured_s = positive_ms(row, "time_ms")
    predicted_s = product_s(ran_on, m, n, k)
    return compared("product", predicted_s, measured_s, 2.0 * m * n * k, unit.peak_flop_per_s), unit.device


def product_s(unit: Unit, m: int, n: int, k: int) -> float:
    """Time of a product of m x k by k x n: the forward pass of a linear layer with k inputs and n outputs on m samples."""
    layer = layer_of("linear", ((k,),), (("out_features", n), ("bias", False)))
    return layer_times(layer, m, unit.compute).forward_s


def _is_unaligned(row: Row, unit: Unit, m: int, n: int, k: int) -> bool:
    """Whether tensor cores of an early device could not take the matrices as they lie."""
    if not (row.has("a_t") or row.has("b_t")) or not unit.device.name.startswith(_ALIGNED_ONLY):
        return False
    if not unit.device.has_matrix_units(unit.precision.compute):
        return False
    columns = (k if row.text("a_t").upper() == "T" else m, n if row.text("b_t").upper() == "T" else k, m)
    return any(int(length * unit.precision.activation_bytes) % _ALIGNED_BYTES for length in columns)


def _on_vector_units(unit: Unit, preset: Preset) -> Unit:
    """The device as it is without matrix units: two halves per lane."""
    fp32 = unit.device.peak("fp32")
    peaks = {name: min(rate, 2.0 * fp32) for name, rate in unit.device.peak_flop_per_s.items()}
    device = replace(unit.device, peak_flop_per_s=peaks)
    return replace(unit, device=device, compute=preset.compute(device, unit.precision, "sgd", alone=True))

"""Matrix products: m x k by k x n."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.device import Device
from costmodel.efficiency import kernel_time_s
from planner.validation.kernel_rows import compared, device_and_precision, kernel_outcomes
from planner.validation.outcomes import Comparison, Outcome
from planner.validation.passes import positive_ms
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict"]


def predict(rows: Sequence[Row]) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, _one)


def _one(row: Row) -> tuple[tuple[Comparison, ...], Device]:
    m, n, k = row.count("m"), row.count("n"), row.count("k")
    if not (m and n and k):
        raise RowSkipped("m, n or k is not stated")
    device, precision = device_and_precision(row)
    flop = 2.0 * m * n * k
    moved = (m * k + k * n + m * n) * float(precision.activation_bytes)
    time_s = float(kernel_time_s(device, precision.compute, flop=flop, memory_bytes=moved, gemm=(m, n, k)))
    return compared("product", time_s, positive_ms(row, "time_ms"), flop, device.peak(precision.compute)), device

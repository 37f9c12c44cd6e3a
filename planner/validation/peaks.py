"""The best matrix throughput of a device: the product of the best shape against its measured rate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel.device import Device
from costmodel.efficiency import kernel_time_s
from planner.validation.kernel_rows import compared, device_and_precision, kernel_outcomes
from planner.validation.outcomes import Comparison, Outcome
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict"]


def predict(rows: Sequence[Row]) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, _one)


def _one(row: Row) -> tuple[tuple[Comparison, ...], Device]:
    rate = row.positive("mamf_tflops")
    if rate is None:
        raise RowSkipped("no measured rate")
    shape = re.fullmatch(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)", row.text("best_mnk"))
    m, n, k = (int(x) for x in shape.groups()) if shape else row.default("best_mnk", (8192, 8192, 8192))
    device, precision = device_and_precision(row, "bf16")
    flop = 2.0 * m * n * k
    moved = (m * k + k * n + m * n) * float(precision.activation_bytes)
    time_s = float(kernel_time_s(device, precision.compute, flop=flop, memory_bytes=moved, gemm=(m, n, k)))
    return compared("product", time_s, flop / (rate * 1e12), flop, device.peak(precision.compute)), device

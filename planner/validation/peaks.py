"""The best matrix throughput of a device: the product of the best shape against its measured rate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel.device import Device
from planner.validation.kernel_rows import compared, kernel_outcomes, unit_of
from planner.validation.outcomes import Comparison, Outcome
from planner.validation.preset import Preset
from planner.validation.products import product_s
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict"]


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _one)


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    rate = row.positive("mamf_tflops")
    if rate is None:
        raise RowSkipped("no measured rate")
    shape = re.fullmatch(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)", row.text("best_mnk"))
    m, n, k = (int(x) for x in shape.groups()) if shape else row.default("best_mnk", (8192, 8192, 8192))
    unit = unit_of(row, preset, "bf16")
    flop = 2.0 * m * n * k
    return compared("product", product_s(unit, m, n, k), flop / (rate * 1e12), flop, unit.peak_flop_per_s), unit.device

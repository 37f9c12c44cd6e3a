"""The best matrix throughput of a device: the product of the best shape against its measured rate.

The best of many shapes fills whole tiles and whole waves of them: what a product loses by those on average, this one does not. The
fractions of peaks in the device files are such rates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from costmodel.hardware.device import Device
from planner.measurements.kernel_rows import Unit, compared, kernel_outcomes, unit_of
from planner.measurements.outcomes import Comparison, Outcome
from planner.measurements.preset import Preset
from planner.measurements.products import product_s
from planner.measurements.tables import Row, RowSkipped

__all__ = ["predict"]


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _one, frozenset(("linear",)))


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    rate = row.positive("mamf_tflops")
    if rate is None:
        raise RowSkipped("no measured rate")
    shape = re.fullmatch(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)", row.text("best_mnk"))
    m, n, k = (int(x) for x in shape.groups()) if shape else row.default("best_mnk", (8192, 8192, 8192))
    unit = _without_edges(unit_of(row, preset, "bf16"), preset)
    flop = 2.0 * m * n * k
    return compared("product", product_s(unit, m, n, k), flop / (rate * 1e12), flop, unit.peak_flop_per_s), unit.device


def _without_edges(unit: Unit, preset: Preset) -> Unit:
    """The device as the best shape finds it: no tile is partly in vain, no wave of tiles partly empty."""
    efficiency = replace(unit.device.efficiency, tile_half=0.0, fill_outputs=0.0)
    device = replace(unit.device, efficiency=efficiency)
    return replace(unit, device=device, compute=preset.compute(device, unit.precision, "sgd", alone=True))

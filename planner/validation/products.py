"""Matrix products: m x k by k x n."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.device import Device
from planner.validation.kernel_rows import Unit, compared, kernel_outcomes, unit_of
from planner.validation.outcomes import Comparison, Outcome
from planner.validation.passes import layer_of, layer_times, positive_ms
from planner.validation.preset import Preset
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict", "product_s"]


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _one)


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    m, n, k = row.count("m"), row.count("n"), row.count("k")
    if not (m and n and k):
        raise RowSkipped("m, n or k is not stated")
    unit = unit_of(row, preset)
    measured_s = positive_ms(row, "time_ms")
    return compared("product", product_s(unit, m, n, k), measured_s, 2.0 * m * n * k, unit.peak_flop_per_s), unit.device


def product_s(unit: Unit, m: int, n: int, k: int) -> float:
    """Time of a product of m x k by k x n: the forward pass of a linear layer with k inputs and n outputs on m samples."""
    layer = layer_of("linear", ((k,),), (("out_features", n), ("bias", False)))
    return layer_times(layer, m, unit.compute).forward_s

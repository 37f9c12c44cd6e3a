"""Convolutions: all three passes in one row (DeepBench), or one pass a row (convnet-benchmarks)."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.device import Device
from planner.validation import layer_logs
from planner.validation.kernel_rows import compared, device_and_precision, kernel_outcomes
from planner.validation.outcomes import Comparison, Outcome
from planner.validation.passes import LayerTimes, compute_on, layer_of, layer_times, positive_ms
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict"]

_SHAPE = ("n", "c", "h", "w", "k", "r", "s")


def predict(rows: Sequence[Row]) -> list[Outcome]:
    """Predict rows of this kind, in the order given; rows without a shape may name a layer of a bundled network."""
    return kernel_outcomes(rows, lambda row: _one(row) if row.has(*_SHAPE) or not row.has("net", "layer") else layer_logs.one(row))


def _one(row: Row) -> tuple[tuple[Comparison, ...], Device]:
    sizes = [row.count(name) for name in _SHAPE]
    if None in sizes:
        raise RowSkipped("n, c, h, w, k, r or s is not stated")
    n, c, h, w, k, r, s = (size or 0 for size in sizes)
    device, precision = device_and_precision(row)
    stride = (row.count("stride_h") or row.count("stride") or 1, row.count("stride_w") or row.count("stride") or 1)
    padding = (int(row.number("pad_h") or 0), int(row.number("pad_w") or 0))
    params = (("out_channels", k), ("kernel", (r, s)), ("stride", stride), ("padding", padding), ("bias", False))
    times = layer_times(layer_of("convolution", ((c, h, w),), params), n, compute_on(device, precision))
    return _comparisons(row, times, device.peak(precision.compute)), device


def _comparisons(row: Row, times: LayerTimes, peak: float) -> tuple[Comparison, ...]:
    if row.has("pass_"):
        return layer_logs.one_pass(row, times, peak)
    return (
        *compared("forward", times.forward_s, positive_ms(row, "fwd_ms"), times.forward_flop, peak),
        *compared("backward input", times.backward_input_s, positive_ms(row, "bwd_input_ms"), times.backward_input_flop, peak),
        *compared("backward weight", times.backward_weight_s, positive_ms(row, "bwd_param_ms"), times.backward_weight_flop, peak),
    )


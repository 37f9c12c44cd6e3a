"""Convolutions: all three passes in one row (DeepBench), or one pass a row (convnet-benchmarks)."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.device import Device
from planner.measurements import layer_logs
from planner.measurements.kernel_rows import compared, kernel_outcomes, unit_of
from planner.measurements.outcomes import Comparison, Outcome
from planner.measurements.passes import LayerTimes, layer_of, layer_times, positive_ms
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped

__all__ = ["predict"]

_SHAPE = ("n", "c", "h", "w", "k", "r", "s")


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given; rows without a shape may name a layer of a bundled network."""

    def one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
        is_named = row.has("net", "layer") and not row.has(*_SHAPE)
        return layer_logs.one(row, preset) if is_named else _one(row, preset)

    return kernel_outcomes(rows, preset, one, frozenset(("convolution",)))


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    sizes = [row.count(name) for name in _SHAPE]
    if None in sizes:
        raise RowSkipped("n, c, h, w, k, r or s is not stated")
    n, c, h, w, k, r, s = (size or 0 for size in sizes)
    unit = unit_of(row, preset, stated_math=not _multiplies_halves(row))
    stride = (row.count("stride_h") or row.count("stride") or 1, row.count("stride_w") or row.count("stride") or 1)
    both = row.count("padding") or row.count("pad") or 0
    padding = (row.count("pad_h") or both, row.count("pad_w") or both)
    params = (
        ("out_channels", k),
        ("kernel", (r, s)),
        ("stride", stride),
        ("padding", padding),
        ("groups", row.count("groups") or 1),
        ("bias", False),
    )
    times = layer_times(layer_of("convolution", ((c, h, w),), params), n, unit.compute)
    return _comparisons(row, times, unit.peak_flop_per_s), unit.device


def _multiplies_halves(row: Row) -> bool:
    """Whether convolutions of 16 bits multiply in them, whatever the row says.

    DeepBench's tables say fp32 math for all of P100's kernels in 16 bits; its convolutions hand CUDNN_DATA_HALF to cuDNN as the type to
    compute in (code/nvidia/cudnn_helper.h), and 1x1 ones, which no algorithm makes cheaper, ran at up to 1.26 times the peak of fp32.

    >>> [_multiplies_halves(Row(line=2, cells={"source": text})) for text in ("DeepBench train conv", "")]
    [True, False]
    """
    return "deepbench" in row.text("source").lower()


def _comparisons(row: Row, times: LayerTimes, peak: float) -> tuple[Comparison, ...]:
    if row.has("pass_"):
        return layer_logs.one_pass(row, times, peak)
    return (
        *compared("forward", times.forward_s, positive_ms(row, "fwd_ms"), times.forward_flop, peak),
        *compared(
            "backward input", times.backward_input_s, positive_ms(row, "bwd_input_ms"), times.backward_input_flop, peak
        ),
        *compared(
            "backward weight",
            times.backward_weight_s,
            positive_ms(row, "bwd_param_ms"),
            times.backward_weight_flop,
            peak,
        ),
    )

"""Tables that ``planner measure`` writes: kernels and collectives of all kinds in one file, told apart by the column ``kernel``.

A row of a kind that other tables have too is handed to their predictor with its columns renamed; attention, element-wise kernels and
copies are predicted here. One row has one time: ``pass_`` says of which pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from costmodel.hardware.device import Device
from costmodel.network.layers import ATTENTION, Layer
from planner.measurements import collective_rows, kernels
from planner.measurements.kernels import compared, kernel_outcomes, layer_of, layer_times, positive_ms, unit_of
from planner.measurements.outcomes import Comparison, Outcome, Preset, skipped
from planner.measurements.tables import Row, RowSkipped, short_name

__all__ = ["ELEMENTWISE", "KERNELS", "predict"]

# Kernel -> function that predicts it, and the column that takes the time of each pass.
_ELSEWHERE: dict[str, tuple[Callable[[Sequence[Row], Preset], list[Outcome]], dict[str, tuple[str, ...]]]] = {
    "gemm": (kernels.predict_products, {"": ("time_ms",)}),
    "convolution": (
        kernels.predict_convolutions,
        {
            "forward": ("fwd_ms",),
            "backward_input": ("bwd_input_ms",),
            "backward_weight": ("bwd_param_ms",),
            "backward": ("bwd_input_ms", "bwd_param_ms"),
        },
    ),
    "recurrent": (kernels.predict_recurrent, {"forward": ("fwd_ms",), "backward": ("bwd_input_ms", "bwd_weight_ms")}),
    "collective": (collective_rows.predict, {"": ("time_ms",)}),
}
# Operation -> layer family and parameters; both passes.
ELEMENTWISE: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "relu": ("activation", (("function", "relu"),)),
    "gelu": ("activation", (("function", "gelu"),)),
    "sigmoid": ("activation", (("function", "sigmoid"),)),
    "tanh": ("activation", (("function", "tanh"),)),
    "dropout": ("dropout", ()),
    "add": ("add", ()),
    "layer_norm": ("layer_norm", ()),
    "rms_norm": ("rms_norm", ()),
    "batch_norm": ("batch_norm", ()),
}
KERNELS: tuple[str, ...] = (*_ELSEWHERE, "attention", "elementwise", "copy")


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return [_outcome(row, preset) for row in rows]


def _outcome(row: Row, preset: Preset) -> Outcome:
    kernel = row.text("kernel")
    here = _HERE.get(kernel)
    if here is not None:
        kinds = ATTENTION if kernel == "attention" else frozenset((kernel,))
        return kernel_outcomes([row], preset, here, kinds)[0]
    if kernel not in _ELSEWHERE:
        if not kernel:
            return skipped(row, "no kernel is stated (put rows of another kind into a file of their own)", usable=True)
        return skipped(row, f"kernel '{short_name(kernel)}' is not known ({', '.join(KERNELS)})", usable=True)
    predict_them, passes = _ELSEWHERE[kernel]
    name = _pass(row)
    columns = passes.get("" if "" in passes else name)
    if columns is None:
        return skipped(row, f"pass_ of a {kernel} is none of {', '.join(passes)}", usable=False)
    cells = {column: text for column, text in row.cells.items() if column not in ("time_ms", "pass_")}
    renamed = replace(row, cells=cells | dict.fromkeys(columns, row.text("time_ms")))  # shares the noted defaults
    outcome = predict_them([renamed], preset)[0]
    return replace(outcome, row=row, comparisons=_joined(outcome.comparisons, name))


def _pass(row: Row) -> str:
    return row.text("pass_") or "forward"


def _joined(comparisons: tuple[Comparison, ...], name: str) -> tuple[Comparison, ...]:
    """A pass that is predicted in parts was measured as a whole: the same time stands in each."""
    if len(comparisons) < 2:
        return comparisons
    whole = Comparison(
        what=name,
        predicted_s=sum(part.predicted_s for part in comparisons),
        measured_s=comparisons[0].measured_s,
        ideal_s=sum(part.ideal_s for part in comparisons),
    )
    return (whole,)


def _layer_pass(row: Row, preset: Preset, layer: Layer, batch: int) -> tuple[tuple[Comparison, ...], Device]:
    """Compare the pass of a layer that a row names.

    Raises
    ------
    RowSkipped
        It names none.
    """
    unit = unit_of(row, preset)
    times = layer_times(layer, batch, unit.compute)
    name = _pass(row)
    parts = {
        "forward": (times.forward_s, times.forward_flop),
        "backward": (
            times.backward_input_s + times.backward_weight_s,
            times.backward_input_flop + times.backward_weight_flop,
        ),
    }
    if name not in parts:
        raise RowSkipped("column pass_ is neither forward nor backward")
    predicted_s, flop = parts[name]
    return compared(name, predicted_s, positive_ms(row, "time_ms"), flop, unit.peak_flop_per_s), unit.device


def _attention(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    batch, heads, dim, seq = (row.count(name) for name in ("batch", "heads", "head_dim", "seq"))
    if not (batch and heads and dim and seq):
        raise RowSkipped("batch, heads, head_dim or seq is not stated")
    kv_heads = row.count("kv_heads") or heads
    params = (
        ("heads", heads),
        ("kv_heads", kv_heads),
        ("head_dim", dim),
        ("causal", _is_yes(row, "causal")),
        ("fused", _is_yes(row, "flash_attention")),
    )
    layer = layer_of("self_attention", (((heads + 2 * kv_heads) * dim, seq),), params)
    return _layer_pass(row, preset, layer, batch)


def _is_yes(row: Row, name: str) -> bool:
    stated = row.flag(name)
    return row.default(name, True) if stated is None else stated


def _elementwise(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    family = ELEMENTWISE.get(row.text("op"))
    if family is None:
        raise RowSkipped(f"op of an elementwise kernel is none of {', '.join(ELEMENTWISE)}", usable=True)
    batch, width = row.count("batch"), row.count("hidden")
    if not (batch and width):
        raise RowSkipped("batch or hidden is not stated")
    kind, params = family
    shapes = ((width,),) * (2 if kind == "add" else 1)
    return _layer_pass(row, preset, layer_of(kind, shapes, params), batch)


def _copy(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    """Reads and writes so many bytes: what an activation does, whose arithmetic is hidden behind the memory."""
    size = row.number("bytes")
    if not size:
        raise RowSkipped("bytes is not stated")
    unit = unit_of(row, preset)
    elements = max(int(size / unit.precision.activation_bytes), 1)
    layer = layer_of("activation", ((elements,),), (("function", "relu"),))
    predicted_s = layer_times(layer, 1, unit.compute).forward_s
    ideal_flop = (
        2.0 * size / unit.device.memory_bandwidth_bytes_per_s * unit.peak_flop_per_s
    )  # baseline: the memory's peak
    measured_s = positive_ms(row, "time_ms")
    return compared("copy", predicted_s, measured_s, ideal_flop, unit.peak_flop_per_s), unit.device


_Comparer = Callable[[Row, Preset], tuple[tuple[Comparison, ...], Device]]
_HERE: dict[str, _Comparer] = {"attention": _attention, "elementwise": _elementwise, "copy": _copy}

"""Recurrent layers: vanilla, GRU and LSTM cells over a sequence.

Without a column ``input`` the input is added to the state as it is, without a product (cuDNN's CUDNN_SKIP_INPUT, which DeepBench sets).
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.device import Device
from planner.measurements.kernel_rows import compared, kernel_outcomes, unit_of
from planner.measurements.outcomes import Comparison, Outcome
from planner.measurements.passes import layer_of, layer_times, positive_ms, through_input
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped

__all__ = ["predict"]

# Products with the state (and with the input) per cell; an LSTM has four gates (Hochreiter and Schmidhuber, 1997), a GRU three
# (Cho et al., arXiv:1406.1078).
_GATES = {"lstm": 4, "gru": 3, "vanilla": 1, "rnn": 1}


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _one, frozenset(("lstm",)))


def _one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    gates = _GATES.get(row.text("cell").lower())
    if gates is None:
        raise RowSkipped("the cell is none of vanilla, GRU, LSTM")
    hidden, batch, steps = row.count("hidden"), row.count("batch"), row.count("timesteps")
    if not (hidden and batch and steps):
        raise RowSkipped("hidden, batch or timesteps is not stated")
    if preset.name == "paleo":
        raise RowSkipped("the preset paleo has no formula for recurrent layers", usable=True)
    unit = unit_of(row, preset)
    # One feature stands for no product with the input: a product of that depth costs next to nothing.
    features = row.count("input") or row.default("input", 1)
    layer = layer_of("lstm", ((features, steps),), (("hidden", hidden),))
    # A share of an LSTM's units reads the whole state: a cell with fewer gates does as much work as such a share.
    compute, share = unit.compute, gates / 4
    times = layer_times(layer, batch, compute, share)
    # cuDNN's gradient of the data runs back through all steps; that of the weights is one product afterwards.
    data = layer_times(through_input(layer), batch, compute, share)
    peak = unit.peak_flop_per_s
    weight_s = times.backward_input_s + times.backward_weight_s - data.backward_input_s
    weight_flop = times.backward_input_flop + times.backward_weight_flop - data.backward_input_flop
    return (
        *compared("forward", times.forward_s, positive_ms(row, "fwd_ms"), times.forward_flop, peak),
        *compared(
            "backward input", data.backward_input_s, positive_ms(row, "bwd_input_ms"), data.backward_input_flop, peak
        ),
        *compared("backward weight", weight_s, positive_ms(row, "bwd_weight_ms"), weight_flop, peak),
    ), unit.device

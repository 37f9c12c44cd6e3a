"""Kernels timed alone: matrix products, convolutions, recurrent layers, layers of bundled networks, the best matrix rate of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ComputeModel, CostModelError
from costmodel.network.layers import Layer, ShapeError, Shard, family_of
from costmodel.network.layers.base import PassWork, Shape, params_from
from costmodel.precision import Precision
from planner.core.errors import did_you_mean
from planner.files.resources import bundled
from planner.measurements.convnets import graph_of
from planner.measurements.fitted import fitted_of
from planner.measurements.hardware import Links, format_of, machine_of, precision_of
from planner.measurements.outcomes import TOO_LARGE, Comparison, Outcome, Preset, skipped
from planner.measurements.tables import Row, RowSkipped, short_name

__all__ = [
    "LayerTimes",
    "compared",
    "kernel_outcomes",
    "layer_of",
    "layer_times",
    "pass_flop",
    "positive_ms",
    "predict_convolutions",
    "predict_layers",
    "predict_peaks",
    "predict_products",
    "predict_recurrent",
    "unit_of",
]

# A kernel takes at least this share of the time of its FLOPs at the peak: FFT and Winograd save up to nine tenths of them.
_LEAST_OF_IDEAL = 0.1
# Times the larger of what the FLOPs need and what is predicted: a wrong unit (seconds are the measured kernels of other tables in us).
_LONGEST = 1e5
_TOO_SHORT = "time far below what the peak of the device allows: wrong unit?"
# Nothing that runs on a device is shorter than a clock period.
_SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A device as a row used it."""

    device: Device
    precision: Precision
    compute: ComputeModel

    @property
    def peak_flop_per_s(self) -> float:
        """Matrix rate in the number format of the row."""
        return self.device.peak(self.precision.compute)


# Units that rows asked for, by the device (it is kept with the unit, so that no other has its id), precision and cost model.
_UNITS: dict[tuple[int, Precision, Preset], Unit] = {}
_MOST_UNITS = 256

RowPredictor = Callable[[Row, Preset], tuple[tuple[Comparison, ...], Device]]


def unit_of(row: Row, preset: Preset, default: str = "fp32") -> Unit:
    """What a row ran on.

    Raises
    ------
    RowSkipped
        The device is not known.
    """
    device = machine_of(row, Links(gpus_per_node=1, joined=1)).device
    precision = precision_of(format_of(row, default), device.formats, row.text("products"))
    key = (id(device), precision, preset)
    if key not in _UNITS:
        if len(_UNITS) >= _MOST_UNITS:
            _UNITS.clear()
        _UNITS[key] = Unit(
            device=device, precision=precision, compute=preset.compute(device, precision, "sgd", alone=True)
        )
    return _UNITS[key]


def compared(
    what: str, predicted_s: float, measured_s: float | None, flop: float, peak: float
) -> tuple[Comparison, ...]:
    """One comparison, or none where nothing was measured.

    Raises
    ------
    RowSkipped
        The measurement cannot be right.
    """
    if measured_s is None:
        return ()
    ideal_s = flop / peak
    if measured_s < max(_SHORTEST_S, _LEAST_OF_IDEAL * ideal_s):
        raise RowSkipped(_TOO_SHORT)
    if measured_s > _LONGEST * max(ideal_s, predicted_s):
        raise RowSkipped(f"time above {_LONGEST:,.0f} times what the device needs: wrong unit?")
    return (Comparison(what=what, predicted_s=predicted_s, measured_s=measured_s, ideal_s=ideal_s),)


def kernel_outcomes(
    rows: Sequence[Row], preset: Preset, one: RowPredictor, kinds: frozenset[str] | None = None
) -> list[Outcome]:
    """Outcomes of rows that are predicted one by one; ``kinds``: families of their layers, for the fitted constants."""
    outcomes = []
    for row in rows:
        try:
            if row.flag("suspect"):
                raise RowSkipped("marked suspect")
            comparisons, device = one(row, preset)
            if not comparisons:
                raise RowSkipped("no measured time")
            outcomes.append(
                Outcome(row=row, comparisons=comparisons, fitted=fitted_of(device, kinds=kinds, alone=True))
            )
        except RowSkipped as trouble:
            # What looks like a wrong unit is often a format that the row does not state.
            is_assumed = trouble.reason == _TOO_SHORT and "precision" in row.defaults
            reason = f"{trouble.reason} (or another precision than {row.defaults['precision']})" if is_assumed else ""
            outcomes.append(skipped(row, reason or trouble.reason, usable=trouble.usable, needs=trouble.needs))
        except OverflowError:
            outcomes.append(skipped(row, TOO_LARGE, usable=False))
        except ShapeError:
            outcomes.append(skipped(row, "the shapes do not fit together", usable=False))
        except CostModelError as error:
            outcomes.append(skipped(row, f"the cost model refuses the layer: {error}", usable=True))
    return outcomes


# -- one layer -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One layer: seconds of its passes, and the FLOPs of its matrix products (or of all its arithmetic) in each."""

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    forward_flop: float
    backward_input_flop: float
    backward_weight_flop: float


@cache
def layer_of(kind: str, inputs: tuple[Shape, ...], params: tuple[tuple[str, Any], ...]) -> Layer:
    """A layer that stands alone.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    """
    values = params_from(kind, dict(params))
    output = family_of(kind).output_shape(values, inputs)
    names = tuple(f"input{n}" for n in range(len(inputs)))
    return Layer(name=kind, kind=kind, params=values, inputs=names, input_shapes=inputs, output_shape=output)


def _whole(layer: Layer, batch: float, out_share: float = 1.0) -> Shard:
    """Everything on one device; ``out_share`` of the outputs."""
    one = np.ones(1)
    shape, inside = layer.output_shape, layer.input_shapes[0]
    flattened = layer.kind == "linear" and len(inside) != 2
    return Shard(
        batch=batch * one,
        out_channels=out_share * shape[0] * one,
        in_channels=(float(np.prod(inside)) if flattened else float(inside[0])) * one,
        height=(float(shape[1]) if len(shape) == 3 else 1.0) * one,
        split_out=one,
        split_in=one,
        split_height=one,
    )


# What was timed, by layer, batch, share and cost model (the two are kept with the times, so that no others have their ids): tables repeat
# their kernels.
_TIMED: dict[tuple[int, float, float, int], tuple[Layer, ComputeModel, LayerTimes]] = {}
_MOST_TIMED = 20_000


def layer_times(layer: Layer, batch: float, compute: ComputeModel, out_share: float = 1.0) -> LayerTimes:
    """Time the passes of a layer on one device."""
    key = (id(layer), batch, out_share, id(compute))
    if key not in _TIMED:
        if len(_TIMED) >= _MOST_TIMED:
            _TIMED.clear()
        _TIMED[key] = (layer, compute, _layer_times(layer, batch, compute, out_share))
    return _TIMED[key][2]


def _layer_times(layer: Layer, batch: float, compute: ComputeModel, out_share: float) -> LayerTimes:
    shard = _whole(layer, batch, out_share)
    times = compute.pass_times(layer, shard, needs_input_gradient=True)
    work = layer.family.work(layer, shard)
    return LayerTimes(
        forward_s=float(times.forward_s[0]),
        backward_input_s=float(times.backward_input_s[0]),
        backward_weight_s=float(times.backward_weight_s[0]),
        forward_flop=pass_flop(work.forward),
        backward_input_flop=pass_flop(work.backward_input),
        backward_weight_flop=pass_flop(work.backward_weight),
    )


def pass_flop(work: PassWork) -> float:
    """FLOPs of the first alternative, the plain algorithm: of its matrix products where it has any."""
    if not work:
        return 0.0
    products = [kernel for kernel in work[0] if kernel.gemm is not None]
    return float(sum(np.sum(kernel.flop) for kernel in products or work[0]))


@lru_cache(maxsize=4096)  # the same layer for the same one
def through_input(layer: Layer) -> Layer:
    """The layer with its weights frozen: the gradient of its input is all that is left of its backward pass."""
    return replace(layer, frozen=True)


def positive_ms(row: Row, name: str) -> float | None:
    """Seconds from a column of milliseconds; None where it is empty or 0.

    Raises
    ------
    RowSkipped
        It cannot be the time of a kernel.
    """
    value = row.number(name)
    if value is not None and value > 1e7:  # three hours
        raise RowSkipped(f"column {name} is no time of a kernel: wrong unit?")
    return None if value is None else value * 1e-3


# -- matrix products -----------------------------------------------------------------------------------------------------------

# Columns a_t and b_t say that a product was called as BLAS has it, matrices column by column. On the first devices with tensor cores these
# then ran on them only where columns begin at multiples of 16 bytes.
# Volta and Turing, whose cuBLAS (of CUDA 9 and 10: its guide, tensor core usage) has that rule; that of CUDA 11 takes any matrices.
_ALIGNED_ONLY = ("v100", "titan-v", "t4", "rtx-20", "titan-rtx", "quadro-rtx", "quadro-gv100")
_ALIGNED_BYTES = 16


def predict_products(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _product, frozenset(("linear",)))


def _product(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
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
    columns = (k if row.text("a_t") == "T" else m, n if row.text("b_t") == "T" else k, m)
    return any(int(length * unit.precision.activation_bytes) % _ALIGNED_BYTES for length in columns)


def _on_vector_units(unit: Unit, preset: Preset) -> Unit:
    """The device as it is without matrix units: two halves per lane."""
    fp32 = unit.device.peak("fp32")
    peaks = {name: min(rate, 2.0 * fp32) for name, rate in unit.device.peak_flop_per_s.items()}
    device = replace(unit.device, peak_flop_per_s=peaks)
    return replace(unit, device=device, compute=preset.compute(device, unit.precision, "sgd", alone=True))


# -- convolutions --------------------------------------------------------------------------------------------------------------

_SHAPE = ("n", "c", "h", "w", "k", "r", "s")


def predict_convolutions(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict convolutions, in the order given; rows without a shape may name a layer of a bundled network."""

    def one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
        is_named = row.has("net", "layer") and not row.has(*_SHAPE)
        return _named_layer(row, preset) if is_named else _convolution(row, preset)

    return kernel_outcomes(rows, preset, one, frozenset(("convolution",)))


def _convolution(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    sizes = [row.count(name) for name in _SHAPE]
    if None in sizes:
        raise RowSkipped("n, c, h, w, k, r or s is not stated")
    n, c, h, w, k, r, s = (size or 0 for size in sizes)
    unit = unit_of(row, preset)
    params = (
        ("out_channels", k),
        ("kernel", (r, s)),
        ("stride", (row.count("stride_h") or 1, row.count("stride_w") or 1)),
        ("padding", (row.count("pad_h") or 0, row.count("pad_w") or 0)),
        ("groups", row.count("groups") or 1),
        ("bias", False),
    )
    times = layer_times(layer_of("convolution", ((c, h, w),), params), n, unit.compute)
    peak = unit.peak_flop_per_s
    if row.has("pass_"):
        return _one_pass(row, times, peak), unit.device
    passes = (
        ("forward", "fwd_ms", times.forward_s, times.forward_flop),
        ("backward input", "bwd_input_ms", times.backward_input_s, times.backward_input_flop),
        ("backward weight", "bwd_param_ms", times.backward_weight_s, times.backward_weight_flop),
    )
    return tuple(
        one
        for what, name, seconds, flop in passes
        for one in compared(what, seconds, positive_ms(row, name), flop, peak)
    ), unit.device


# -- layers of bundled networks ------------------------------------------------------------------------------------------------


def predict_layers(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict layers of bundled networks, named as in their files, in the order given."""
    return kernel_outcomes(rows, preset, _named_layer)


def _named_layer(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    name = row.text("net")
    if name not in bundled("models"):
        raise RowSkipped(f"no bundled network has this name{did_you_mean(short_name(name), bundled('models'))}")
    layer = _layer(name, row.text("layer"), row.text("op"))
    if layer is None:
        raise RowSkipped("the bundled network has no such layer")
    unit = unit_of(row, preset)
    batch = row.count("n") or row.count("batch")
    if batch is None:
        raise RowSkipped("no batch is stated (n)")
    return _one_pass(row, layer_times(layer, batch, unit.compute), unit.peak_flop_per_s), unit.device


def _one_pass(row: Row, times: LayerTimes, peak: float) -> tuple[Comparison, ...]:
    """The pass that a row names: forward, or backward with both gradients, or one of them."""
    passes = {
        "forward": (times.forward_s, times.forward_flop),
        "backward": (
            times.backward_input_s + times.backward_weight_s,
            times.backward_input_flop + times.backward_weight_flop,
        ),
        "backward_input": (times.backward_input_s, times.backward_input_flop),
        "backward_weight": (times.backward_weight_s, times.backward_weight_flop),
    }
    word = row.text("pass_") or "forward"
    seconds, flop = passes[word]
    return compared(word.replace("_", " "), seconds, positive_ms(row, "time_ms"), flop, peak)


@cache
def _layer(network: str, name: str, part: str) -> Layer | None:
    """A layer of a bundled network: itself without what is attached to it, or its activation; None where there is none."""
    found = next((layer for layer in graph_of(network).layers if layer.name == name), None)
    if found is None:
        return None
    if part == "activation":
        return layer_of("activation", (found.output_shape,), ())
    changes = {"activation": None, "norm": None}
    params = replace(found.params, **{key: value for key, value in changes.items() if hasattr(found.params, key)})
    return replace(found, params=params)


# -- recurrent layers ----------------------------------------------------------------------------------------------------------

# Products with the state (and with the input) per cell; an LSTM has four gates (Hochreiter and Schmidhuber, 1997), a GRU three
# (Cho et al., arXiv:1406.1078).
_GATES = {"LSTM": 4, "GRU": 3, "vanilla": 1}


def predict_recurrent(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _recurrent, frozenset(("lstm",)))


def _recurrent(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    gates = _GATES.get(row.text("cell"))
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


# -- matrix peaks --------------------------------------------------------------------------------------------------------------

# The best of many shapes fills whole tiles and whole waves of them: what a product loses by those on average, this one does not. The
# fractions of peaks in the device files are such rates.
_USUAL_SIDE = 8192


def predict_peaks(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, _peak, frozenset(("linear",)))


def _peak(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    rate = row.number("mamf_tflops")
    if rate is None:
        raise RowSkipped("no measured rate")
    m, n, k = (row.count(name) or row.default(name, _USUAL_SIDE) for name in "mnk")
    unit = _without_edges(unit_of(row, preset, "bf16"), preset)
    flop = 2.0 * m * n * k
    return compared("product", product_s(unit, m, n, k), flop / (rate * 1e12), flop, unit.peak_flop_per_s), unit.device


def _without_edges(unit: Unit, preset: Preset) -> Unit:
    """The device as the best shape finds it: no tile is partly in vain, no wave of tiles partly empty."""
    efficiency = replace(unit.device.efficiency, tile_half=0.0, fill_outputs=0.0)
    device = replace(unit.device, efficiency=efficiency)
    return replace(unit, device=device, compute=preset.compute(device, unit.precision, "sgd", alone=True))

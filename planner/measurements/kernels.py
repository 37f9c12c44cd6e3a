"""Kernels timed alone: products, convolutions, recurrent layers, attention, experts, element-wise kernels, copies, layers of networks.

A kernel is predicted pass by pass. A row has the time of each pass in a column of its own, or one time, and ``pass_`` says of which.
Tables that ``planner measure`` writes hold kernels and collectives of all kinds, told apart by the column ``kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ComputeModel, kernel_time_s
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer, Shard, family_of
from costmodel.network.layers.base import PassWork, Shape, params_from
from costmodel.precision import PRECISIONS, Precision
from costmodel.serving.tables import PassKeys, attention_kernels, kernel_s, mixture_kernels
from costmodel.serving.workload import ServingAssumptions, ServingWorkload
from planner.core.errors import did_you_mean
from planner.files.resources import bundled
from planner.measurements import collective_rows
from planner.measurements.convnets import graph_of
from planner.measurements.fitted import fitted_of
from planner.measurements.hardware import Links, format_of, framework_of_row, machine_of, precision_of
from planner.measurements.outcomes import Comparison, Outcome, Preset, outcomes_of
from planner.measurements.tables import LONGEST, Row, RowSkipped, short_name

# A kernel takes at least this share of the time of its FLOPs at the peak: FFT and Winograd save up to nine tenths of them.
_LEAST_OF_IDEAL = 0.1
# What a cache holds travels over ten times as fast as memory does (1 MiB on two cores: 235 against 20 GB/s).
_LEAST_OF_MEMORY = 0.01
# Times the larger of what the FLOPs need and what is predicted: a wrong unit (seconds are the measured kernels of other tables in us).
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


# What of a kernel was timed: its name, predicted seconds, FLOPs of its matrix products (or of all its arithmetic), measured seconds.
Timed = tuple[str, float, float, float | None]
# What a row ran on, and what of it was timed.
Kernel = Callable[[Row, Preset], tuple[Unit, Sequence[Timed]]]


def _outcome(row: Row, preset: Preset, kernel: Kernel, kinds: frozenset[str] | None) -> Outcome:
    unit, found = kernel(row, preset)
    comparisons = tuple(_compared(row, unit, *one) for one in found if one[-1] is not None)
    if not comparisons:
        raise RowSkipped("no measured time")
    return Outcome(row=row, comparisons=comparisons, fitted=fitted_of(unit.device, kinds=kinds, alone=True))


def _compared(row: Row, unit: Unit, what: str, predicted_s: float, flop: float, measured_s: float | None) -> Comparison:
    """One comparison.

    Raises
    ------
    RowSkipped
        The measurement cannot be right.
    """
    assert measured_s is not None
    ideal_s = flop / unit.peak_flop_per_s
    if measured_s < max(_SHORTEST_S, (_LEAST_OF_MEMORY if what == "copy" else _LEAST_OF_IDEAL) * ideal_s):
        # What looks like a wrong unit is often a format that the row does not state.
        assumed = row.defaults.get("precision")
        other = "" if assumed is None else f" (or another precision than {assumed})"
        raise RowSkipped(f"time far below what the peak of the device allows: wrong unit?{other}")
    if measured_s > LONGEST * max(ideal_s, predicted_s):
        raise RowSkipped(f"time above {LONGEST:,.0f} times what the device needs: wrong unit?")
    return Comparison(what=what, predicted_s=predicted_s, measured_s=measured_s, ideal_s=ideal_s)


def predict_kernels(
    rows: Sequence[Row], preset: Preset, *, kernel: Kernel, kinds: frozenset[str] | None = None
) -> list[Outcome]:
    """Predict rows one by one; ``kinds``: families of their layers, for the fitted constants (None: any)."""
    return outcomes_of(rows, preset, partial(_outcome, kernel=kernel, kinds=kinds))


# -- one layer -----------------------------------------------------------------------------------------------------------------


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


def layer_passes(layer: Layer, batch: float, compute: ComputeModel, out_share: float = 1.0) -> FloatArray:
    """Seconds and FLOPs (columns) of forward pass, gradient of the input, and gradient of the weights (rows) on one device, (3, 2)."""
    shard = _whole(layer, batch, out_share)
    times = compute.pass_times(layer, shard, needs_input_gradient=True)
    work = layer.family.work(layer, shard)
    seconds = (times.forward_s[0], times.backward_input_s[0], times.backward_weight_s[0])
    flop = [_pass_flop(one) for one in (work.forward, work.backward_input, work.backward_weight)]
    return np.array([seconds, flop], dtype=np.float64).T


def _pass_flop(work: PassWork) -> float:
    """FLOPs of the first alternative, the plain algorithm: of its matrix products where it has any."""
    if not work:
        return 0.0
    products = [kernel for kernel in work[0] if kernel.gemm is not None]
    return float(sum(np.sum(kernel.flop) for kernel in products or work[0]))


_WHOLE = ("forward", "backward")
_PARTS = ("backward_input", "backward_weight")


def timed(
    row: Row, passes: FloatArray, columns: Mapping[str, str] | None = None, may_name: Sequence[str] = _WHOLE
) -> list[Timed]:
    """What of a layer a row has times of.

    Parameters
    ----------
    row : Row
    passes : array (3, 2)
        See `layer_passes`.
    columns : mapping of str to str, optional
        Pass -> column of its time. Where the row states none of them, ``time_ms`` is the time of the pass that it names.
    may_name : sequence of str
        Passes that it may name.

    Raises
    ------
    RowSkipped
        It names another one.
    """
    known = dict(zip((*_WHOLE, *_PARTS), (passes[0], passes[1] + passes[2], passes[1], passes[2]), strict=True))
    if columns is None or not any(row.has(column) for column in columns.values()):
        columns = {row.text("pass_") or "forward": "time_ms"}
        if not set(columns) <= set(may_name):
            raise RowSkipped("column pass_ is neither forward nor backward")
    return [
        (name.replace("_", " "), float(known[name][0]), float(known[name][1]), positive_ms(row, column))
        for name, column in columns.items()
    ]


def positive_ms(row: Row, name: str) -> float | None:
    """Seconds from a column of milliseconds; None where it is empty.

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


# Kernels that make 16-bit inputs fp8 with one scale for all of them, found on the way: clearing, the largest input, its scale, the cast
# (NVIDIA/TensorRT-LLM, quantize_e4m3_per_tensor). With a scale per block the cast finds it.
_CASTS = 4


def _product(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    m, n, k = row.counts("m", "n", "k")
    unit = unit_of(row, preset)
    time_s = _product_s(unit, m, n, k)
    if row.flag("casts") and unit.precision.casts:
        by_tensor = "block" not in unit.precision.name
        moved = m * k * ((1 + by_tensor) * unit.precision.plain.bytes + unit.precision.operand.bytes)
        kernels = _CASTS if by_tensor else 1
        time_s += float(
            kernel_time_s(unit.device, unit.precision.compute, flop=0.0, memory_bytes=moved, launches=kernels)
        )
    return unit, [("product", time_s, 2.0 * m * n * k, positive_ms(row, "time_ms"))]


def _product_s(unit: Unit, m: int, n: int, k: int) -> float:
    """Time of a product of m x k by k x n: the forward pass of a linear layer with k inputs and n outputs on m samples."""
    layer = layer_of("linear", ((k,),), (("out_features", n), ("bias", False)))
    return float(layer_passes(layer, m, unit.compute)[0, 0])


# The best of many shapes fills whole tiles and whole waves of them: what a product loses by those on average, this one does not. The
# best rates in the device files are such rates; the power limit is not reached in so short a time (S. Bekman, ml-engineering,
# compute/accelerator/benchmarks/README.md, "The window is a time").
_USUAL_SIDE = 8192


def _peak(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    """The device as the best shape finds it: no tile is partly in vain, no wave of tiles partly empty."""
    rate = row.number("mamf_tflops")
    if rate is None:
        raise RowSkipped("no measured rate")
    m, n, k = (row.count(name) or row.default(name, _USUAL_SIDE) for name in "mnk")
    unit = unit_of(row, preset, "bf16")
    efficiency = replace(unit.device.efficiency, tile_half=0.0, fill_outputs=0.0)
    device = replace(unit.device, efficiency=efficiency, sustained_flop_per_s={})
    unit = replace(unit, device=device, compute=preset.compute(device, unit.precision, "sgd", alone=True))
    flop = 2.0 * m * n * k
    return unit, [("product", _product_s(unit, m, n, k), flop, flop / (rate * 1e12))]


# -- convolutions and layers of bundled networks ---------------------------------------------------------------------------------

_SHAPE = ("n", "c", "h", "w", "k", "r", "s")


def _convolution(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    """A convolution; a row without a shape may name a layer of a bundled network."""
    sizes = [row.count(name) for name in _SHAPE]
    if None in sizes:
        if row.has("net", "layer"):
            return _named_layer(row, preset)
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
    passes = layer_passes(layer_of("convolution", ((c, h, w),), params), n, unit.compute)
    columns = {"forward": "fwd_ms", "backward_input": "bwd_input_ms", "backward_weight": "bwd_param_ms"}
    return unit, timed(row, passes, None if row.has("pass_") else columns, (*_WHOLE, *_PARTS))


def _named_layer(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
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
    return unit, timed(row, layer_passes(layer, batch, unit.compute), may_name=(*_WHOLE, *_PARTS))


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


def _recurrent(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    gates = _GATES.get(row.text("cell"))
    if gates is None:
        raise RowSkipped("the cell is none of vanilla, GRU, LSTM")
    hidden, batch, steps = row.counts("hidden", "batch", "timesteps")
    if preset.name == "paleo":
        raise RowSkipped("the preset paleo has no formula for recurrent layers", usable=True)
    unit = unit_of(row, preset)
    # One feature stands for no product with the input: a product of that depth costs next to nothing.
    features = row.count("input") or row.default("input", 1)
    layer = layer_of("lstm", ((features, steps),), (("hidden", hidden),))
    # A share of an LSTM's units reads the whole state: a cell with fewer gates does as much work as such a share.
    passes = layer_passes(layer, batch, unit.compute, gates / 4)
    # cuDNN's gradient of the data runs back through all steps, as with frozen weights; that of the weights is one product afterwards.
    data = layer_passes(replace(layer, frozen=True), batch, unit.compute, gates / 4)[1]
    passes = np.stack([passes[0], data, passes[1] + passes[2] - data])
    columns = {"forward": "fwd_ms", "backward_input": "bwd_input_ms", "backward_weight": "bwd_weight_ms"}
    return unit, timed(row, passes, columns)


# -- kernels of planner measure ------------------------------------------------------------------------------------------------

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


def _attention(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    if row.flag("served"):
        return _served_attention(row, preset)
    batch, heads, dim, seq = row.counts("batch", "heads", "head_dim", "seq")
    kv_heads = row.count("kv_heads") or heads
    params = (
        ("heads", heads),
        ("kv_heads", kv_heads),
        ("head_dim", dim),
        ("causal", _is_yes(row, "causal")),
        ("fused", _is_yes(row, "flash_attention")),
    )
    layer = layer_of("self_attention", (((heads + 2 * kv_heads) * dim, seq),), params)
    unit = unit_of(row, preset)
    return unit, timed(row, layer_passes(layer, batch, unit.compute))


# Features of DeepSeek's latent attention: of a head without and with position, of its values, and of the compressed vector
# (DeepSeek-V2, arXiv:2405.04434, section 3.1.2).
_LATENT = {"nope_dim": 128, "rope_dim": 64, "value_dim": 128}
_COMPRESSED = 512
# No device has a larger cache than 256 MiB (AMD CDNA 3 white paper).
_LARGEST_CACHE = 2.0**28
_ASSUMED = ServingAssumptions()


@cache
def _served(precision: Precision) -> ServingWorkload:
    """Something that is served in these formats."""
    return ServingWorkload(
        graph=Graph(name="", layers=(), edges=()), prompt_tokens=1, output_tokens=2, precision=precision
    )


def _served_layer(row: Row, positions: int) -> Layer:
    [heads] = row.counts("heads")
    if row.flag("latent"):
        nope, rope, value = _LATENT.values()
        widths = (heads * (nope + rope), heads * (nope + value), _COMPRESSED + rope)
        return layer_of("latent_attention", tuple((w, positions) for w in widths), (("heads", heads), *_LATENT.items()))
    [dim], kv_heads = row.counts("head_dim"), row.count("kv_heads") or heads
    params = (("heads", heads), ("kv_heads", kv_heads), ("head_dim", dim), ("window", row.count("window") or 0))
    return layer_of("self_attention", (((heads + 2 * kv_heads) * dim, positions),), params)


def _served_attention(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    """The operator of an engine, as a pass that serves has it: new tokens are rotated and written into the cache first."""
    (batch, seq), context = row.counts("batch", "seq"), row.count("kv_tokens")
    if context is not None and seq > 1:
        raise RowSkipped("several new tokens beside a cache")
    if preset.name == "paleo":
        raise RowSkipped("the preset paleo has no formula for attention", usable=True)
    unit, layer = unit_of(row, preset), _served_layer(row, context or seq)
    count, none = np.array([batch]), np.zeros(1, dtype=np.int64)
    one = np.ones(1, dtype=np.int64)
    prompts, decodes = (count, none) if context is None else (none, count)
    keys = PassKeys(tp=one, ep=one, etp=one, prompts=prompts, chunk=seq * one, decodes=decodes, queries=one)
    kept = PRECISIONS[row.text("kv_precision") or "bf16"].operand.bytes
    workload = replace(_served(unit.precision), prompt_tokens=max((context or seq + 1) - 1, 1), kv_bytes=kept)
    seconds = float((row.count("other_kernels") or 0) * unit.device.launch_overhead_s)
    flop = read = 0.0
    for item in attention_kernels(layer, keys, workload):
        seconds += float(kernel_s(item, layer, workload, unit.device, _ASSUMED, products=unit.precision.compute)[0])
        flop, read = flop + float(item.kernel.flop[0]), read + float(item.cached[0]) * kept
    if row.flag("latent") and context is None and unit.precision.compute == "fp8":
        # Queries, keys and values of all heads are cast first (TensorRT-LLM, invokeMLAContextFp8Quantize).
        whole = batch * seq * (layer.input_shapes[0][0] + layer.input_shapes[1][0])
        cast = whole * (unit.precision.plain.bytes + 1.0)
        seconds += float(kernel_time_s(unit.device, unit.precision.compute, flop=0.0, memory_bytes=cast))
    measured_s = positive_ms(row, "time_ms")
    if measured_s is not None and read > max(_LARGEST_CACHE, measured_s * unit.device.memory_bandwidth_bytes_per_s):
        raise RowSkipped("faster than the memory of the device can be read", usable=True)
    return unit, [("attention", seconds, flop, positive_ms(row, "time_ms"))]


def _mixture(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    """The experts of a rank as a pass that serves has them: chosen by scores that are there, tokens sorted, two products, summed."""
    tokens, hidden, experts, top_k, ffn = row.counts("tokens", "hidden", "experts", "top_k", "expert_ffn")
    if preset.name == "paleo":
        raise RowSkipped("the preset paleo has no formula for mixtures of experts", usable=True)
    unit = unit_of(row, preset, "bf16")
    params = (("experts", experts), ("top_k", top_k), ("ffn", ffn))
    layer = replace(layer_of("moe", ((hidden, 1),), params), block="block")  # what recipes narrow lies in one
    ep, etp, new = (np.array([n]) for n in (row.count("ep") or 1, row.count("etp") or 1, tokens))
    keys = PassKeys(tp=ep * etp, ep=ep, etp=etp, prompts=0 * new, chunk=0 * new, decodes=new, queries=0 * new + 1)
    engine = ServingAssumptions.of(framework_of_row(row))
    unpacking_s = None if unit.precision.stored is None else engine.unpacking_s
    spread = row.number("expert_spread") or 0.0
    _, *kernels = mixture_kernels(layer, keys, spread, unpacking_s=unpacking_s)  # the first makes the scores
    workload = _served(unit.precision)
    seconds = float((row.count("other_kernels") or 0) * unit.device.launch_overhead_s)
    seconds += sum(float(kernel_s(item, layer, workload, unit.device, engine)[0]) for item in kernels)
    flop = sum(float(item.kernel.flop[0]) for item in kernels if item.kernel.gemm is not None)
    return unit, [("moe", seconds, flop, positive_ms(row, "time_ms"))]


def _is_yes(row: Row, name: str) -> bool:
    stated = row.flag(name)
    return row.default(name, True) if stated is None else stated


def _elementwise(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    family = ELEMENTWISE.get(row.text("op"))
    if family is None:
        raise RowSkipped(f"op of an elementwise kernel is none of {', '.join(ELEMENTWISE)}", usable=True)
    batch, width = row.counts("batch", "hidden")
    kind, params = family
    shapes = ((width,),) * (2 if kind == "add" else 1)
    unit = unit_of(row, preset)
    return unit, timed(row, layer_passes(layer_of(kind, shapes, params), batch, unit.compute))


def _copy(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    """Reads and writes so many bytes: what an activation does, whose arithmetic is hidden behind the memory."""
    size = row.number("bytes")
    if not size:
        raise RowSkipped("bytes is not stated")
    unit = unit_of(row, preset)
    elements = max(int(size / unit.precision.activation_bytes), 1)
    layer = layer_of("activation", ((elements,),), (("function", "relu"),))
    predicted_s = float(layer_passes(layer, 1, unit.compute)[0, 0])
    # The baseline is the memory's peak, here in FLOPs.
    flop = 2.0 * size / unit.device.memory_bandwidth_bytes_per_s * unit.peak_flop_per_s
    return unit, [("copy", predicted_s, flop, positive_ms(row, "time_ms"))]


# Kernel -> function that predicts it, and the families of its layers; in the order in which messages list them.
_KERNELS: dict[str, tuple[Kernel, frozenset[str]]] = {
    "gemm": (_product, frozenset(("linear",))),
    "convolution": (_convolution, frozenset(("convolution",))),
    "recurrent": (_recurrent, frozenset(("lstm",))),
    "attention": (_attention, ATTENTION),
    "moe": (_mixture, frozenset(("moe",))),
    "elementwise": (_elementwise, frozenset(("elementwise",))),
    "copy": (_copy, frozenset(("copy",))),
}
KERNELS: tuple[str, ...] = ("gemm", "convolution", "recurrent", "collective", "attention", "moe", "elementwise", "copy")


def _measured(row: Row, preset: Preset) -> Outcome:
    name = row.text("kernel")
    if name == "collective":
        return collective_rows.outcome_of(row, preset)
    if not name:
        raise RowSkipped("no kernel is stated (put rows of another kind into a file of their own)", usable=True)
    if name not in _KERNELS:
        raise RowSkipped(f"kernel '{short_name(name)}' is not known ({', '.join(KERNELS)})", usable=True)
    return _outcome(row, preset, *_KERNELS[name])


# Predict the rows of a table, in the order given: (rows, preset) -> outcomes.
predict_products = partial(predict_kernels, kernel=_product, kinds=frozenset(("linear",)))
predict_convolutions = partial(predict_kernels, kernel=_convolution, kinds=frozenset(("convolution",)))
predict_recurrent = partial(predict_kernels, kernel=_recurrent, kinds=frozenset(("lstm",)))
predict_peaks = partial(predict_kernels, kernel=_peak, kinds=frozenset(("linear",)))
predict_layers = partial(predict_kernels, kernel=_named_layer)
predict_measured = partial(outcomes_of, one=_measured)

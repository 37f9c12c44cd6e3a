"""The preset `paleo` against a second, scalar transcription of its formulas, and against what must hold of any times."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import CostModelError, RooflineCompute
from costmodel.layerwise.plan import shard_of, split_table
from costmodel.network.layers import FAMILIES, Layer, family_of
from costmodel.network.layers.base import params_from
from costmodel.paleo.convolution import ALGORITHMS, Rates
from costmodel.paleo.model import FREE_KINDS, KINDS, PaleoCompute
from costmodel.paleo.scaling import batch_table
from costmodel.precision import OPTIMIZERS, PRECISIONS

CLOCK_HZ = 1e9
DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 4e12},
    memory_bytes=1e10,
    memory_bandwidth_bytes_per_s=250e9,
    clock_hz=CLOCK_HZ,
)
ROOFLINE = RooflineCompute(device=DEVICE, precision=PRECISIONS["fp32"], optimizer=OPTIMIZERS["sgd"])


def layer_of(
    kind: str, shape: tuple[int, ...], *, name: str = "x", inputs: tuple[str, ...] = ("y",), **params: Any
) -> Layer:
    values = params_from(kind, params)
    shapes = (shape,) * len(inputs)
    output = family_of(kind).output_shape(values, shapes)
    return Layer(name=name, kind=kind, params=values, inputs=inputs, input_shapes=shapes, output_shape=output)


# -- a second transcription, in milliseconds and scalars -------------------------------------------------------------------


def comp_ms(flop: float, ppp: float) -> float:
    return 0.0 if flop == 0 else max(1 / (CLOCK_HZ / 1e6) / 10**3, flop / 10**9 / 4000 * 10**3 / ppp)


def mem_ms(moved: float, ppp: float) -> float:
    return max(1 / (CLOCK_HZ / 1e6) / 10**3, moved / 2**30 / 250 * 10**3 / ppp)


def gemm_ms(flop: float, moved: list[float], ppp: float) -> float:
    return comp_ms(flop, ppp) + sum(mem_ms(b, ppp) for b in moved)


def first_release_ms(
    n: int, size: list[int], ci: int, co: int, k: list[int], s: list[int], padding: str | int, ppp: float
) -> tuple[float, float, float] | None:
    """All three passes of a convolution; None where the program stops."""
    out, dilated = [], []
    for h, kk, ss in zip(size, k, s, strict=True):
        if padding == "same":
            pad, ho = ((h - 1) * ss + kk - h) // 2, math.ceil(h / ss)
        elif padding == "valid":
            pad, ho = 0, math.ceil((h - kk + 1) / ss)
        else:
            assert isinstance(padding, int)
            pad, ho = padding, (h + 2 * padding - kk) // ss + 1
        expanded = (ho - 1) * ss + 1
        before = kk - 1 - pad
        after = h + kk - 1 - expanded - before
        if before == after - 1:
            expanded += 1
        if expanded + 2 * before - kk + 1 != h or h + 2 * pad - expanded + 1 != kk:
            return None
        out.append(ho)
        dilated.append(expanded)
    x, w, y = 4 * n * size[0] * size[1] * ci, 4 * k[0] * k[1] * ci * co, 4 * n * out[0] * out[1] * co
    multiply = 2 * k[0] * k[1] * ci * co * n
    return (
        gemm_ms(multiply * out[0] * out[1], [x, w, y], ppp),
        gemm_ms(multiply * size[0] * size[1], [4 * n * dilated[0] * dilated[1] * co, w, x], ppp),
        gemm_ms(multiply * out[0] * out[1], [x, y, w], ppp),
    )


paddings = st.one_of(st.sampled_from(["same", "valid"]), st.integers(0, 3))
sizes = st.lists(st.integers(1, 40), min_size=2, max_size=2)
small = st.lists(st.integers(1, 5), min_size=2, max_size=2)


@given(
    batch=st.integers(1, 64),
    size=sizes,
    channels=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    kernel=small,
    stride=small,
    padding=paddings,
    ppp=st.sampled_from([1.0, 0.62, 0.1]),
)
def test_convolutions_against_scalars(
    batch: int,
    size: list[int],
    channels: tuple[int, int],
    kernel: list[int],
    stride: list[int],
    padding: Any,
    ppp: float,
) -> None:
    wide = 0 if isinstance(padding, str) else 2 * padding
    assume(all(h + wide >= k for h, k in zip(size, kernel, strict=True)))
    layer = layer_of(
        "convolution",
        (channels[0], *size),
        out_channels=channels[1],
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=padding,
    )
    compute = PaleoCompute(device=DEVICE, ppp_comp=ppp)
    expected = first_release_ms(batch, size, *channels, kernel, stride, padding, ppp)
    shard = shard_of(layer, batch_table([1]), batch)
    if expected is None:
        assert compute.refusal(layer)
        with pytest.raises(CostModelError):
            compute.pass_times(layer, shard, needs_input_gradient=True)
        return
    assert not compute.refusal(layer)
    times = compute.pass_times(layer, shard, needs_input_gradient=True)
    ours = [float(t[0]) * 1e3 for t in (times.forward_s, times.backward_input_s, times.backward_weight_s)]
    assert ours == pytest.approx(expected, rel=1e-12)


def test_inner_product_and_deconvolution_by_hand() -> None:
    """Formulas of the last release: X, W and Y moved in every pass; a transposed convolution is a strided one reversed."""
    compute = PaleoCompute(device=DEVICE, ppp_comp=0.5)
    linear = layer_of("linear", (30, 4, 4), out_features=70)
    times = compute.pass_times(linear, shard_of(linear, batch_table([1]), 16), needs_input_gradient=False)
    expected = gemm_ms(2 * 16 * 480 * 70, [4 * 16 * 480, 4 * 480 * 70, 4 * 16 * 70], 0.5)
    for ours in (times.forward_s, times.backward_input_s, times.backward_weight_s):
        assert float(ours[0]) * 1e3 == pytest.approx(expected, rel=1e-12)

    # 5x5, stride 2, 4x4 -> 8x8: pad 1, dilated 7 + 1 zero, gradient pad 2.
    layer = layer_of("deconvolution", (32, 4, 4), out_channels=16, kernel=5, stride=2, padding="same")
    assert layer.output_shape == (16, 8, 8)
    times = compute.pass_times(layer, shard_of(layer, batch_table([1]), 10), needs_input_gradient=True)
    holes = (8 * 8 - 4 * 4) / 64
    multiply = 2 * 25 * 32 * 16 * 10
    moving = 2 * 10 * 64 * 32 * (1 - holes)
    w, y = 4 * 25 * 32 * 16, 4 * 10 * 64 * 16
    assert [
        float(t[0]) * 1e3 for t in (times.forward_s, times.backward_input_s, times.backward_weight_s)
    ] == pytest.approx(
        [
            gemm_ms(multiply * 64 + moving, [4 * 10 * 12 * 12 * 32, w, y], 0.5),
            gemm_ms(multiply * 16, [4 * 10 * 10 * 10 * 16, w, 4 * 10 * 16 * 32], 0.5),
            gemm_ms(2 * 64 * 25 * 32 * 16 * 10 * (1 - holes), [4 * 32 * 12 * 12 * 10, y * (1 - holes), w], 0.5),
        ],
        rel=1e-12,
    )


# -- what must hold of any times ---------------------------------------------------------------------------------------------

LAYERS = [
    layer_of("convolution", (48, 26, 26), out_channels=96, kernel=5, padding="same"),
    layer_of("convolution", (48, 27, 27), out_channels=96, kernel=3, stride=2),
    layer_of("pool", (48, 27, 27), kernel=3, stride=2),
    layer_of("global_pool", (48, 8, 8)),
    layer_of("dropout", (48, 8, 8)),
    layer_of("linear", (48, 8, 8), out_features=96),
    layer_of("deconvolution", (48, 8, 8), out_channels=24, kernel=5, stride=2, padding="same"),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kind)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shares(layer: Layer, algorithm: str) -> None:
    """Every split: finite, at least the floors, at most the whole layer; FLOP of all shares at least the whole's."""
    chosen = {layer.name: (algorithm,) * 3} if layer.kind == "convolution" else None
    compute = PaleoCompute(device=DEVICE, ppp_comp=0.5, algorithms=chosen)
    table = split_table([1, 2, 4, 8])
    shard = shard_of(layer, table, 32)
    times = compute.pass_times(layer, shard, needs_input_gradient=True)
    flop = compute.pass_flop(layer, shard)
    whole = table.rows(1).start
    for values, counted in zip((times.forward_s, times.backward_input_s, times.backward_weight_s), flop, strict=True):
        assert values.shape == shard.batch.shape
        assert np.all(np.isfinite(values))
        if values[whole] == 0:  # no such pass
            assert not values.any()
            continue
        assert np.all(values >= 3e-9 - 1e-18)
        if not algorithm.startswith("fft"):  # transforms of shares are not shares of transforms
            assert np.all(values <= values[whole] * (1 + 1e-12))
            channelwise = layer.family.limits(layer).channelwise
            rows_fit = table.height <= layer.family.limits(layer).height
            exact = rows_fit & ((table.in_channels == 1) | (not channelwise))
            assert np.all((counted * table.workers >= counted[whole] * (1 - 1e-12))[exact])


@given(batch=st.integers(1, 200), factor=st.integers(2, 5), which=st.integers(0, len(LAYERS) - 1))
def test_work_is_linear_in_the_batch(batch: int, factor: int, which: int) -> None:
    layer, compute = LAYERS[which], PaleoCompute(device=DEVICE)
    one, more = (compute.pass_flop(layer, shard_of(layer, batch_table([1]), b)) for b in (batch, batch * factor))
    for a, b in zip(one, more, strict=True):
        assert b == pytest.approx(a * factor, rel=1e-12)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kind)
def test_efficiency_scales_everything_but_the_update(layer: Layer) -> None:
    shard = shard_of(layer, batch_table([1]), 64)
    full, half = (PaleoCompute(device=DEVICE, ppp_comp=ppp) for ppp in (1.0, 0.5))
    a, b = (c.pass_times(layer, shard, needs_input_gradient=True) for c in (full, half))
    assert b.forward_s == pytest.approx(2 * a.forward_s)
    assert b.backward_s == pytest.approx(2 * a.backward_s)
    assert full.update_s(np.asarray(1e6)) == half.update_s(np.asarray(1e6)) > 0


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kind)
def test_pipeline_is_the_longer_part(layer: Layer) -> None:
    shard = shard_of(layer, batch_table([1]), 64)
    serial, overlapped = (PaleoCompute(device=DEVICE, use_pipeline=p) for p in (False, True))
    parts = serial.pass_parts(layer, shard, needs_input_gradient=True)
    times = overlapped.pass_times(layer, shard, needs_input_gradient=True)
    assert times.forward_s == np.maximum(parts.forward.compute_s, parts.forward.memory_s)
    both = parts.backward_input + parts.backward_weight
    assert times.backward_s == np.maximum(both.compute_s, both.memory_s)
    assert not times.backward_input_s.any()


def test_floors() -> None:
    rates = Rates.of(DEVICE, 1.0)
    assert rates.compute_s([0.0, 1.0]).tolist() == [0.0, 1e-9]
    assert rates.memory_s([0.0, 1.0]).tolist() == [1e-9, 1e-9]
    assert PaleoCompute(device=DEVICE).update_s(np.array([0.0, 1e9])).tolist()[0] == 0.0
    assert float(PaleoCompute(device=DEVICE).update_parts(np.asarray(0.0)).total_s) == pytest.approx(3e-9)


# -- which layers it knows ---------------------------------------------------------------------------------------------------


def test_every_kind_is_free_known_or_refused() -> None:
    assert not FREE_KINDS & set(KINDS)
    assert set(FAMILIES) >= FREE_KINDS | set(KINDS)
    compute = PaleoCompute(device=DEVICE)
    for kind in set(FAMILIES) - FREE_KINDS - set(KINDS):
        layer = Layer(name="odd", kind=kind, params=None, inputs=("x",), input_shapes=((4, 4),), output_shape=(4, 4))
        assert kind in compute.refusal(layer)
        assert not compute.is_free(layer)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (layer_of("lstm", (8, 5), hidden=4), "no formula for layers of type 'lstm'"),
        (layer_of("convolution", (8, 9, 9), out_channels=8, kernel=3, groups=2), "no grouped convolutions"),
        (layer_of("convolution", (8, 9, 9), out_channels=8, kernel=2, padding="same"), "kernel 2, stride 1"),
        (layer_of("convolution", (8, 9, 9), out_channels=8, kernel=3, stride=2, padding="same"), "stops at this shape"),
        (layer_of("deconvolution", (8, 4, 4), out_channels=8, kernel=4, stride=2, padding=1), "stops at this shape"),
        (layer_of("linear", (8, 5), out_features=8), "not a sequence"),
        (layer_of("pool", (8, 8, 8), kernel=2, stride=2, padding=1), "not to 5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_and_extensions(layer: Layer, reason: str) -> None:
    shard = shard_of(layer, batch_table([1, 2]), 8)
    with pytest.raises(CostModelError, match=f"x: .*{reason}"):
        PaleoCompute(device=DEVICE).pass_times(layer, shard, needs_input_gradient=True)
    extended = PaleoCompute(device=DEVICE, extensions=ROOFLINE)
    assert extended.is_extension(layer)
    ours, theirs = (c.pass_times(layer, shard, needs_input_gradient=True) for c in (extended, ROOFLINE))
    assert ours.forward_s.tolist() == theirs.forward_s.tolist()
    assert np.all(ours.forward_s > 0)


def test_free_layers_cost_nothing_even_with_extensions() -> None:
    compute = PaleoCompute(device=DEVICE, extensions=ROOFLINE)
    for layer in (layer_of("softmax", (8, 4, 4)), layer_of("concat", (8, 4, 4), inputs=("a", "b"))):
        times = compute.pass_times(layer, shard_of(layer, batch_table([1]), 8), needs_input_gradient=True)
        assert compute.is_free(layer)
        assert not times.forward_s.any()
        assert not times.backward_s.any()


def test_gradient_of_the_input() -> None:
    """Convolutions that read "data" have none; those behind it have; inner products always have."""
    shape = (3, 8, 8)

    def gradient(compute: PaleoCompute, layer: Layer, *, needed: bool) -> bool:
        shard = shard_of(layer, batch_table([1]), 8)
        return bool(compute.pass_times(layer, shard, needs_input_gradient=needed).backward_input_s[0] > 0)

    plain, told = PaleoCompute(device=DEVICE), PaleoCompute(device=DEVICE, input_names=frozenset({"image"}))
    reads = {
        name: layer_of("convolution", shape, out_channels=4, kernel=3, inputs=(name,))
        for name in ("data", "image", "a")
    }
    assert [gradient(plain, reads[name], needed=True) for name in reads] == [False, True, True]
    assert [gradient(plain, reads[name], needed=False) for name in reads] == [False, False, False]
    assert [gradient(told, reads[name], needed=False) for name in reads] == [True, False, True]
    assert gradient(plain, layer_of("linear", shape, out_features=4, inputs=("data",)), needed=False)
    assert plain.cost_key(reads["data"]) != plain.cost_key(reads["a"])


def test_algorithms() -> None:
    wide = layer_of("convolution", (8, 9, 9), out_channels=8, kernel=3, name="wide", inputs=("data",))
    narrow = layer_of("convolution", (8, 9, 9), out_channels=8, kernel=1, name="narrow")
    shard = shard_of(wide, batch_table([1]), 8)
    compute = PaleoCompute(
        device=DEVICE,
        algorithms={"wide": ("fft", "skip", "fft_tiling"), "narrow": ("fft", "gemm", "gemm"), "x": ("gemm",) * 3},
    )
    plain = PaleoCompute(device=DEVICE)
    assert compute.cost_key(wide) != plain.cost_key(wide)
    chosen, default = (c.pass_times(wide, shard, needs_input_gradient=True) for c in (compute, plain))
    assert chosen.forward_s != default.forward_s
    with pytest.raises(CostModelError, match=r"narrow: .*1x1"):
        compute.pass_times(narrow, shard, needs_input_gradient=True)
    with pytest.raises(CostModelError, match=r"x: .*convolutions only"):
        compute.pass_times(LAYERS[2], shard_of(LAYERS[2], batch_table([1]), 8), needs_input_gradient=True)
    skips = PaleoCompute(device=DEVICE, algorithms={"x": ("gemm", "skip", "gemm")})
    with pytest.raises(CostModelError, match="can be skipped"):
        skips.pass_times(LAYERS[0], shard_of(LAYERS[0], batch_table([1]), 8), needs_input_gradient=True)
    with pytest.raises(CostModelError, match="unknown algorithm 'winograd'"):
        PaleoCompute(device=DEVICE, algorithms={"wide": ("gemm", "winograd", "gemm")})


@pytest.mark.parametrize("ppp", [0.0, -1.0, 1.5, math.nan, math.inf])
def test_efficiency_must_be_a_fraction(ppp: float) -> None:
    with pytest.raises(CostModelError, match="ppp_comp"):
        PaleoCompute(device=DEVICE, ppp_comp=ppp)

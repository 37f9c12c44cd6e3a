"""The preset `paleo` against a second, scalar transcription of its formulas, and against what must hold of any times."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.compute import CostModelError
from costmodel.device import Device
from costmodel.graph import Graph, LayerSpec
from costmodel.layers import FAMILIES, Layer, family_of
from costmodel.layers.base import params_from
from costmodel.paleo.convolution import ALGORITHMS
from costmodel.paleo.elementary import Rates
from costmodel.paleo.kinds import FREE_KINDS, KINDS
from costmodel.paleo.model import PaleoCompute
from costmodel.paleo.partition import (
    Node,
    batch_table,
    channel_table,
    critical_path,
    fetch_s,
    hybrid_layers,
    partition,
)
from costmodel.paleo.scaling import Link, data_parallel_rows, hybrid_step, model_parallel_bounds
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.roofline import RooflineCompute
from costmodel.splits import shard_of, split_table

CLOCK_HZ = 1e9
DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 4e12},
    memory_bytes=1e10,
    memory_bandwidth_bytes_per_s=250e9,
    clock_hz=CLOCK_HZ,
)
LINK = Link(bandwidth_bytes_per_s=8e9, ppp_comm=0.75)
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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=50, deadline=None)
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
        (layer_of("pool", (8, 9, 9), kernel=2, stride=2, padding=1, ceil_mode=True), "not to 6"),
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
    with pytest.raises(CostModelError, match="narrow: .*1x1"):
        compute.pass_times(narrow, shard, needs_input_gradient=True)
    with pytest.raises(CostModelError, match="x: .*convolutions only"):
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


# -- model and hybrid parallelism --------------------------------------------------------------------------------------------


def nested(
    tree: Any, nodes: list[Node], weights: list[float], parents: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    """Build a chain of numbers and forks (tuples of chains) as nodes; returns its last nodes and PALEO's lower bound."""
    bound = 0.0
    for item in tree:
        if isinstance(item, tuple):
            ends: list[int] = []
            bounds = []
            for chain in item:
                last, value = nested(chain, nodes, weights, parents)
                ends.extend(last)
                bounds.append(value)
            parents, bound = tuple(dict.fromkeys(ends)), bound + max(bounds)
        else:
            nodes.append(
                Node(
                    name=str(len(nodes)),
                    layer=None,
                    device=None,
                    parents=parents,
                    inputs_elements=(0.0,) * len(parents),
                )
            )
            weights.append(float(item))
            parents, bound = (len(nodes) - 1,), bound + item
    return parents, bound


chains = st.recursive(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    lambda chain: st.lists(
        st.one_of(st.integers(0, 9), st.lists(chain, min_size=2, max_size=3).map(tuple)), min_size=1, max_size=3
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(chain=chains)
def test_lower_bound_of_nested_forks(chain: list[Any]) -> None:
    nodes: list[Node] = []
    weights: list[float] = []
    _, bound = nested(chain, nodes, weights, ())
    assert critical_path(tuple(nodes), np.array(weights)) == bound


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 16])
def test_fetches(workers: int) -> None:
    """The halving accumulates from one parent to the next, and "0" is not 0: the joint fetches every part."""
    parts = tuple(Node(name=f"p@{k}", layer=None, device=k, parents=(), inputs_elements=()) for k in range(workers))
    every = tuple(range(workers))
    rates = Rates.of(DEVICE, 0.75, bandwidth_bytes_per_s=8e9)
    for device in (None, *every):
        node = Node(name="join", layer=None, device=device, parents=every, inputs_elements=(1e6,) * workers)
        bandwidth, expected = 8.0, 0.0
        for k in every:
            if k == device:
                continue
            if (device or 0) // 4 != k // 4:
                bandwidth /= 2
            expected += 4e6 * 32 / 2**30 / bandwidth / 0.75
        assert fetch_s((*parts, node), node, 32, rates) == pytest.approx(expected, rel=1e-12)
    alone = Node(name="copy", layer=None, device=0, parents=(0,), inputs_elements=(1e6,))
    whole = Node(name="whole", layer=None, device=None, parents=(), inputs_elements=())
    assert fetch_s((whole, alone), alone, 1, rates) == pytest.approx(4e6 / 2**30 / 8.0 / 0.75)


def network(*layers: tuple[str, str, dict[str, Any], tuple[str, ...]]) -> Graph:
    specs = [LayerSpec(name=n, kind=k, params=params_from(k, p), inputs=i) for n, k, p, i in layers]
    return Graph.build("net", specs)


TOWER = network(
    ("data", "input", {"shape": (3, 17, 17)}, ()),
    ("conv", "convolution", {"out_channels": 16, "kernel": 3, "padding": "same"}, ("data",)),
    ("pool", "pool", {"kernel": 3, "stride": 2}, ("conv",)),
    ("fc1", "linear", {"out_features": 64}, ("pool",)),
    ("drop", "dropout", {}, ("fc1",)),
    ("fc2", "linear", {"out_features": 32}, ("drop",)),
    ("fc3", "linear", {"out_features": 10}, ("fc2",)),
    ("loss", "softmax", {}, ("fc3",)),
)


def test_partition() -> None:
    assert hybrid_layers(TOWER) == ("fc1", "fc2")
    assert [node.name for node in partition(TOWER, hybrid_layers(TOWER), 2)] == [
        "data",
        "conv",
        "pool",
        *("fc1@0", "fc1@1", "drop@0", "drop@1"),
        *("drop: gather@0", "fc2@0", "drop: gather@1", "fc2@1"),
        *("fc2: join", "fc3", "loss"),
    ]
    with pytest.raises(CostModelError, match="fc1: .*64 do not divide by 5 workers"):
        partition(TOWER, hybrid_layers(TOWER), 5)
    assert len(partition(TOWER, hybrid_layers(TOWER), 5, uneven=True)) == 3 + 5 * 4 + 3
    assert all(node.device is None for node in partition(TOWER, hybrid_layers(TOWER), 1))
    only = network(
        ("data", "input", {"shape": (3, 8, 8)}, ()),
        ("fc", "linear", {"out_features": 4}, ("data",)),
    )
    assert hybrid_layers(only) == ("fc",)


def test_hybrid_without_splits_is_data_parallel() -> None:
    compute = PaleoCompute(device=DEVICE, ppp_comp=0.46)
    for workers in (1, 8):
        step = hybrid_step(TOWER, workers, 32, compute, LINK, split=())
        (row,) = data_parallel_rows(TOWER, compute, LINK, batch=32, workers=[workers], scaling="weak")
        assert step.split == ()
        assert step.data.total_s == pytest.approx(row.step_s("tree"), rel=1e-12)
        assert step.model.total_s == pytest.approx(3e-9)  # an update of no weights is three clock periods
        assert step.sync_s == pytest.approx(row.exchange_s["tree"])


def test_hybrid_by_hand() -> None:
    """Layer by layer on 4 workers: shares of the split layers, fetches, and the pipeline saving."""
    compute, batch, k = PaleoCompute(device=DEVICE, ppp_comp=0.5), 32, 4

    def total(name: str, workers: int) -> tuple[float, float]:
        layer = TOWER.layers[TOWER.index(name)]
        shard = shard_of(layer, channel_table(workers), batch)
        times = compute.pass_times(layer, shard, needs_input_gradient=True)
        return float(times.forward_s[0]), float(times.backward_s[0])

    def fetched(elements: int) -> float:
        return 4 * elements * batch / 2**30 / 8 / 0.75

    step = hybrid_step(TOWER, k, batch, compute, LINK)
    saving = 16 * 8 * 8 * batch / 2**30 / 8 * (k - 1)
    for i, part in enumerate(("forward_s", "backward_s")):
        lower = fetched(16 * 8 * 8) + total("fc1", k)[i] + total("drop", k)[i] + 3 * fetched(16) + total("fc2", k)[i]
        assert getattr(step.model, part) == pytest.approx((lower - saving) * k + saving, rel=1e-12)
        whole = sum(total(name, 1)[i] for name in ("conv", "pool", "fc3")) + 4 * fetched(8)
        assert getattr(step.data, part) == pytest.approx(whole, rel=1e-12)
    assert step.split == ("fc1", "drop", "fc2")


def test_bounds_of_model_parallelism() -> None:
    fork = network(
        ("data", "input", {"shape": (8, 16, 16)}, ()),
        ("a", "convolution", {"out_channels": 8, "kernel": 3, "padding": "same"}, ("data",)),
        ("b1", "convolution", {"out_channels": 8, "kernel": 1}, ("a",)),
        ("b2", "convolution", {"out_channels": 8, "kernel": 3, "padding": "same"}, ("b1",)),
        ("b3", "convolution", {"out_channels": 8, "kernel": 5, "padding": "same"}, ("b1",)),
        ("c", "convolution", {"out_channels": 8, "kernel": 1}, ("a",)),
        ("join", "concat", {}, ("b2", "b3", "c")),
    )
    compute = PaleoCompute(device=DEVICE)

    def forward(name: str) -> float:
        layer = fork.layers[fork.index(name)]
        return float(
            compute.pass_times(layer, shard_of(layer, batch_table([1]), 16), needs_input_gradient=True).forward_s[0]
        )

    bounds, backward = model_parallel_bounds(fork, compute, batch=16)
    assert bounds.lower_s == pytest.approx(forward("a") + forward("b1") + forward("b3"))
    assert bounds.upper_s == pytest.approx(sum(forward(layer.name) for layer in fork.layers))
    assert bounds.lower_s < backward.lower_s < backward.upper_s
    chain, _ = model_parallel_bounds(TOWER, compute, batch=16)
    assert chain.lower_s == pytest.approx(chain.upper_s)
    # Fetches go at the memory bandwidth unless a link is given: PALEO ignores its network here.
    without, with_link = (model_parallel_bounds(TOWER, compute, batch=16, workers=4, link=x)[0] for x in (None, LINK))
    assert without.lower_s < with_link.lower_s < with_link.upper_s


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 300), workers=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_rows(batch: int, workers: list[int]) -> None:
    """Strong scaling rounds up per worker and reports the batch asked for; weak scaling repeats one worker's time."""
    compute = PaleoCompute(device=DEVICE)
    strong = data_parallel_rows(TOWER, compute, LINK, batch=batch, workers=workers, scaling="strong")
    weak = data_parallel_rows(TOWER, compute, LINK, batch=batch, workers=workers, scaling="weak")
    for row, count in zip(strong, workers, strict=True):
        assert (row.batch_per_worker, row.effective_batch) == (math.ceil(batch / count), batch)
        (alone,) = data_parallel_rows(TOWER, compute, LINK, batch=row.batch_per_worker, workers=[1], scaling="weak")
        assert row.compute_s == pytest.approx(alone.compute_s, rel=1e-12)
    for row, count in zip(weak, workers, strict=True):
        assert row.effective_batch == batch * count
        assert row.compute_s == weak[0].compute_s

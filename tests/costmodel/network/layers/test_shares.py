"""Shares of splits: even ones divide the operations evenly, halos are the rows that are missing, partial sums are whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.layerwise.plan import Split
from costmodel.network.layers import Layer
from tests.costmodel.network.layers.cases import flop, layer, passes, work_of

# -- shares -----------------------------------------------------------------------------------------------------------------

SPLITTABLE = [
    layer("convolution", (24, 24, 24), out_channels=48, kernel=3, padding=1, norm="batch", activation="relu"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=5, padding="same", stride=2, activation="relu"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=3, padding=1, groups=12, norm="batch"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=1),
    layer("deconvolution", (24, 24, 24), out_channels=48, kernel=1, stride=1, activation="relu"),
    layer("linear", (24, 6, 6), out_features=48, activation="relu"),
    layer("linear", (24, 24), out_features=48),
    layer("embedding", (1, 24), num_embeddings=24, dim=48),
    layer("lstm", (24, 24), hidden=48),
    layer("lstm", (24, 24), hidden=48, bidirectional=True),
    layer("attention", (24, 5), (24, 6), units=8),
    layer("pool", (24, 24, 24), kernel=3, stride=2, padding=1),
    layer("global_pool", (24, 24, 24)),
    layer("softmax", (48,)),
    layer("activation", (24, 24, 24)),
    layer("dropout", (48,)),
    layer("add", (24, 24, 24), (24, 24, 24)),
    layer("concat", (24, 24, 24), (48, 24, 24)),
    layer("batch_norm", (24, 24, 24)),
    layer("local_response_norm", (24, 24, 24)),
    layer("upsample", (24, 24, 24), factor=2),
]
SPLITS = [
    Split(batch=3),
    Split(out_channels=4),
    Split(in_channels=3),
    Split(height=3),
    Split(batch=2, out_channels=2, height=2),
    Split(batch=2, out_channels=4, in_channels=3),
]


def _can_take(one: Layer, split: Split) -> bool:
    limits = one.family.limits(one)
    return (
        split.out_channels <= limits.out_channels
        and split.in_channels <= limits.in_channels
        and split.height <= limits.height
    )


@pytest.mark.parametrize(
    ("one", "split"),
    [(one, split) for one in SPLITTABLE for split in SPLITS if _can_take(one, split)],
    ids=lambda value: value.kind if isinstance(value, Layer) else "x".join(map(str, value.degrees)),
)
def test_even_splits_share_the_operations_evenly(one: Layer, split: Split) -> None:
    whole, share = work_of(one, 12), work_of(one, 12, split)
    for a, b in zip(passes(whole), passes(share), strict=True):
        assert len(a) == len(b)
        if a:  # the first alternative is the plain algorithm
            assert flop(b) == pytest.approx(flop(a) / split.workers, rel=1e-12)


def test_limits_are_the_extents() -> None:
    def limits(one: Layer) -> tuple[int, int, int, bool]:
        found = one.family.limits(one)
        return found.out_channels, found.in_channels, found.height, found.channelwise

    assert limits(layer("convolution", (24, 20, 18), out_channels=48, kernel=3)) == (48, 24, 18, False)
    assert limits(layer("convolution", (24, 20, 18), out_channels=48, kernel=3, groups=12)) == (12, 1, 18, True)
    assert limits(layer("linear", (24, 2, 3), out_features=10)) == (10, 144, 1, False)
    assert limits(layer("linear", (24, 7), out_features=10)) == (10, 24, 1, False)
    assert limits(layer("concat", (24, 4, 4), (3, 4, 4))) == (3, 1, 4, True)
    assert limits(layer("pool", (24, 20, 18), kernel=2, stride=2)) == (24, 1, 10, True)
    assert limits(layer("flatten", (24, 20, 18))) == (24, 1, 1, True)
    assert limits(layer("local_response_norm", (24, 20, 18))) == (1, 1, 20, True)
    assert limits(layer("attention", (8, 5), (6, 7), units=4)) == (1, 1, 1, True)
    assert limits(layer("lstm", (8, 5), hidden=3, bidirectional=True)) == (3, 1, 1, False)


def _halo_rows(extent: int, kernel: int, stride: int, pad: int, parts: int) -> int:
    """Rows that a worker in the middle needs and does not have, counted one by one (rows and outputs divide evenly)."""
    outputs = (extent + 2 * pad - kernel) // stride + 1
    middle = parts // 2
    mine = range(middle * extent // parts, (middle + 1) * extent // parts)
    rows = range(middle * outputs // parts, (middle + 1) * outputs // parts)
    needed = {r * stride - pad + k for r in rows for k in range(kernel)} & set(range(extent))
    return len(needed - set(mine))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "parts"),
    [(3, 1, 1, 3), (5, 1, 2, 4), (1, 1, 0, 4), (3, 2, 1, 3), (2, 2, 0, 3), (7, 1, 3, 3)],
)
def test_halo_is_the_rows_that_are_missing(kernel: int, stride: int, pad: int, parts: int) -> None:
    rows = _halo_rows(24, kernel, stride, pad, parts)
    for one in (
        layer("convolution", (6, 24, 10), out_channels=5, kernel=kernel, stride=stride, padding=pad),
        layer("pool", (6, 24, 10), kernel=kernel, stride=stride, padding=pad),
    ):
        sent = {
            e.phase: float(np.ravel(e.elements)[0])
            for e in work_of(one, 4, Split(height=parts)).exchanges
            if e.operation == "point_to_point"
        }
        expected = 4.0 * rows * 10 * 6
        assert sent.get("forward", 0.0) == expected
        assert sent.get("input_gradient", 0.0) == expected


def test_partial_sums_are_the_whole_share() -> None:
    conv = layer("convolution", (8, 6, 6), out_channels=12, kernel=3, padding=1)
    found = {
        e.phase: e for e in work_of(conv, 4, Split(in_channels=4, out_channels=3)).exchanges if e.over == "in_channels"
    }
    assert found["forward"].operation == "reduce_scatter"
    assert found["backward"].operation == "all_gather"
    assert float(found["forward"].elements[0]) == float(found["backward"].elements[0]) == 4 * 4 * 36


def test_an_attached_activation_costs_its_gradient_even_in_the_first_layer() -> None:
    """The gradient of the weights needs that of the activation, whether or not anybody wants the gradient of the input."""
    for kind, values in (("convolution", {"out_channels": 4, "kernel": 1}), ("linear", {"out_features": 4})):
        plain = layer(kind, (4, 8, 8), **values)
        dressed = layer(kind, (4, 8, 8), activation="relu", **values)
        assert flop(work_of(dressed, 1).backward_weight) > flop(work_of(plain, 1).backward_weight)
        assert flop(work_of(dressed, 1).backward_input) == flop(work_of(plain, 1).backward_input)


@given(
    st.integers(1, 40),
    st.integers(1, 24),
    st.integers(1, 24),
    st.integers(3, 20),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 1, 1), (1, 3, 2, 1), (2, 1, 1, 3)]),
)
def test_the_largest_share_is_at_least_the_even_share(
    batch: int, channels: int, filters: int, extent: int, kernel: int, degrees: tuple[int, int, int, int]
) -> None:
    """Every pass of any legal split: at least 1/workers of the whole, at most the whole, for each algorithm."""
    b, o, i, h = degrees
    assume(b <= batch and o * i <= filters and i <= channels and h <= extent)
    conv = layer("convolution", (channels, extent, extent), out_channels=filters, kernel=kernel, padding="same")
    split = Split(batch=b, out_channels=o, in_channels=i, height=h)
    whole, share = work_of(conv, batch), work_of(conv, batch, split)
    for a, c in zip(passes(whole), passes(share), strict=True):
        for before, after in zip(a, c, strict=True):
            for x, y in zip(before, after, strict=True):
                assert float(np.ravel(y.flop)[0]) <= float(np.ravel(x.flop)[0]) * (1 + 1e-12)
                assert float(np.ravel(y.elements)[0]) <= float(np.ravel(x.elements)[0]) * (1 + 1e-12)
        assert flop(c) >= flop(a) / split.workers * (1 - 1e-12)

"""Windows that slide over rows: extents by brute force and as published."""

from __future__ import annotations

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.network.layers.pooling import window
from tests.costmodel.network.layers.cases import layer


def _slide(extent: int, kernel: int, stride: int, pad: int, *, ceil_mode: bool) -> int:
    """Count windows by sliding one: inside the padded image, or (ceil mode) starting at or before the last element or padding."""
    for count, start in enumerate(itertools.count(-pad, stride)):
        inside = start + kernel <= extent + pad
        # Caffe's rule: a window that overhangs counts if it begins inside the image or its left padding, and the one before it
        # did not already reach the end.
        overhangs = ceil_mode and start < extent and start - stride + kernel < extent + pad
        if not (inside or overhangs):
            return count
    raise AssertionError


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_windows_are_those_that_slide(extent: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> None:
    assume(2 * pad <= kernel)
    assume(extent + 2 * pad >= kernel)
    win = window("pool", (1, extent, extent), kernel, stride, pad, ceil_mode=ceil_mode)
    assert win.output == (_slide(extent, kernel, stride, pad, ceil_mode=ceil_mode),) * 2


def test_published_window_extents() -> None:
    # GoogLeNet (Szegedy et al. 2015, table 1): 112 to 56 by a 3x3 maximum at stride 2, rounded up.
    assert layer("pool", (64, 112, 112), kernel=3, stride=2, ceil_mode=True).output_shape == (64, 56, 56)
    assert layer("pool", (64, 112, 112), kernel=3, stride=2).output_shape == (64, 55, 55)
    assert layer("pool", (64, 112, 112), kernel=3, stride=2, padding="same").output_shape == (64, 56, 56)
    # Inception v3 (Szegedy et al. 2016): 299 to 149; 1x7 and 7x1 keep 17x17 if padded alike.
    assert layer("convolution", (3, 299, 299), out_channels=32, kernel=3, stride=2, padding="valid").output_shape == (
        32,
        149,
        149,
    )
    assert layer("convolution", (128, 17, 17), out_channels=128, kernel=(1, 7), padding=(0, 3)).output_shape == (
        128,
        17,
        17,
    )
    assert layer("convolution", (128, 17, 17), out_channels=128, kernel=(7, 1), padding="same").output_shape == (
        128,
        17,
        17,
    )

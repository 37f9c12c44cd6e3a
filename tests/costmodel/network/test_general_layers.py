"""Layers of last resort, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.network.layers import Layer, Shape, ShapeError, Shard, family_of, params_from


def layer(kind: str, *shapes: Shape, **values: object) -> Layer:
    params = params_from(kind, values)
    out = family_of(kind).output_shape(params, shapes)
    names = tuple(f"x{i}" for i in range(len(shapes)))
    return Layer(name="l", kind=kind, params=params, inputs=names, input_shapes=shapes, output_shape=out)


def shard(one: Layer, batch: float, split: float = 1.0) -> Shard:
    unit = np.ones(1)
    channels = one.output_shape[0] / split * unit
    height = (one.output_shape[1] if len(one.output_shape) == 3 else 1) * unit
    return Shard(batch=batch * unit, out_channels=channels, in_channels=channels, height=height, split_out=split * unit,
                 split_in=unit, split_height=unit)  # fmt: skip


def test_products_count_every_pair_and_share_whole_products() -> None:
    scores = layer("matmul", (4, 3, 5), (4, 7, 5), transposed=True)
    assert scores.output_shape == (4, 3, 7)
    work = scores.family.work(scores, shard(scores, 2))
    assert float(work.forward[0][0].flop[0]) == 2 * 4 * (2 * 3 * 7 * 5)
    assert sum(float(k.flop[0]) for k in work.backward_input[0]) == 2 * float(work.forward[0][0].flop[0])
    assert float(scores.family.work(scores, shard(scores, 2, 4)).forward[0][0].flop[0]) == 2 * (2 * 3 * 7 * 5)
    with pytest.raises(ShapeError, match="a product needs inputs"):
        layer("matmul", (4, 3, 5), (4, 7, 5))


def test_a_gate_per_channel_is_read_once_per_channel() -> None:
    gated = layer("pointwise", (8, 4, 4), (8,))
    forward = gated.family.work(gated, shard(gated, 2)).forward[0][0]
    assert float(forward.elements[0]) == 2 * (2 * 128 + 8)
    assert gated.family.limits(gated).out_channels == 8
    with pytest.raises(ShapeError, match="cannot be repeated"):
        layer("pointwise", (8, 4, 4), (4,))


def test_copies_and_sums() -> None:
    turned = layer("rearrange", (6, 4), shape=(4, 6))
    assert float(turned.family.work(turned, shard(turned, 3)).forward[0][0].elements[0]) == 3 * 48
    summed = layer("reduce", (6, 4), shape=(6,))
    assert float(summed.family.work(summed, shard(summed, 3)).forward[0][0].flop[0]) == 3 * 24
    assert layer("batch_norm", (6, 2, 2), affine=True).weight_count == 12
    assert layer("batch_norm", (6, 2, 2)).weight_count == 0

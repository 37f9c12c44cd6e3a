"""Splits of a layer: all factorisations, which are legal, and the largest share."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layerwise.splits import Split, divisors, factorisations, legal_splits, shard_of, split_table
from costmodel.network.layers import Layer, Shape, family_of
from costmodel.network.layers.base import params_from


def layer(kind: str, *shapes: Shape, **values: Any) -> Layer:
    params = params_from(kind, values)
    output = family_of(kind).output_shape(params, shapes)
    return Layer(name="l", kind=kind, params=params, inputs=(), input_shapes=shapes, output_shape=output)


LAYERS = [
    layer("convolution", (5, 9, 7), out_channels=6, kernel=3),
    layer("convolution", (6, 9, 7), out_channels=9, kernel=3, groups=3),
    layer("linear", (3, 2, 2), out_features=5),
    layer("linear", (4, 9), out_features=5),
    layer("pool", (4, 9, 9), kernel=3, stride=3),
    layer("lstm", (4, 9), hidden=3, bidirectional=True),
    layer("flatten", (4, 3, 3)),
]


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@pytest.mark.parametrize("number", range(1, 33))
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_factorisations_are_all_of_them_in_order(number: int, parts: int) -> None:
    brute = [f for f in itertools.product(range(1, number + 1), repeat=min(parts, 2)) if math.prod(f) == number]
    if parts > 2:
        brute = [(*f, *g) for d, e in brute for f in factorisations(d, parts - 2) for g in factorisations(e, 2)]
    assert sorted(brute) == list(factorisations(number, parts))


def test_tables_list_every_split_of_every_count_once() -> None:
    counts = [6, 1, 4, 16]
    table = split_table(counts)
    for w in counts:
        rows = range(*table.rows(w).indices(len(table.workers)))
        assert sorted(table.split(r).degrees for r in rows) == sorted(factorisations(w, 4))
        assert all(table.workers[r] == w == table.split(r).workers for r in rows)
    assert all(table.row_of(table.split(r)) == r for r in range(len(table.workers)))
    with pytest.raises(KeyError):
        table.row_of(Split(batch=5))
    batches = split_table([3, 7], batch_only=True)
    assert [batches.split(r).degrees for r in range(2)] == [(3, 1, 1, 1), (7, 1, 1, 1)]


@pytest.mark.parametrize("one", LAYERS, ids=lambda one: f"{one.kind}-{one.output_shape}")
@pytest.mark.parametrize("micro_batch", [1, 5, 12])
def test_legal_splits_and_shares_one_by_one(one: Layer, micro_batch: int) -> None:
    table = split_table([1, 2, 3, 4, 6, 8, 12])
    legal = legal_splits(one, table, micro_batch)
    shard = shard_of(one, table, micro_batch)
    limits = one.family.limits(one)
    rows = one.output_shape[1] if len(one.output_shape) == 3 else 1
    for r in range(len(table.workers)):
        b, o, i, h = table.split(r).degrees
        fits = b <= micro_batch and o <= limits.out_channels and i <= limits.in_channels and h <= limits.height
        # Partial sums are reduced into shares of the output channels: there must be one for everybody.
        fits = fits and (i == 1 or o * i <= one.output_shape[0])
        assert bool(legal[r]) == fits
        if not fits:
            continue
        inputs = {
            "linear": math.prod(one.input_shapes[0][:1] if len(one.input_shapes[0]) == 2 else one.input_shapes[0])
        }
        in_extent = inputs.get(one.kind, one.input_shapes[0][0])
        assert shard.batch[r] == math.ceil(micro_batch / b)
        assert shard.out_channels[r] == math.ceil(one.output_shape[0] / o)
        assert shard.in_channels[r] == math.ceil(in_extent / (o if limits.channelwise else i))
        assert shard.height[r] == math.ceil(rows / h)
        assert (shard.split_out[r], shard.split_in[r], shard.split_height[r]) == (o, i, h)


def test_one_worker_takes_everything() -> None:
    table = split_table([1])
    for one in LAYERS:
        assert np.all(legal_splits(one, table, 1))

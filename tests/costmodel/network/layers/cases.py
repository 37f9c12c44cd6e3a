"""Layers to test, and what their work adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from costmodel.layerwise.splits import Split, SplitTable, shard_of, split_table
from costmodel.network.layers import Kernel, Layer, LayerWork, Shape, family_of
from costmodel.network.layers.base import PassWork, params_from


def layer(kind: str, *shapes: Shape, **values: Any) -> Layer:
    params = params_from(kind, values)
    return Layer(
        name="l",
        kind=kind,
        params=params,
        inputs=tuple(f"i{k}" for k in range(len(shapes))),
        input_shapes=shapes,
        output_shape=family_of(kind).output_shape(params, shapes),
    )


def work_of(one: Layer, batch: int, split: Split = Split()) -> LayerWork:  # noqa: B008 - immutable
    """Work of one share, every array of length 1."""
    table = split_table([split.workers])
    row = table.row_of(split)
    single = SplitTable(
        worker_counts=(split.workers,),
        offsets=(0, 1),
        workers=table.workers[row : row + 1],
        batch=table.batch[row : row + 1],
        out_channels=table.out_channels[row : row + 1],
        in_channels=table.in_channels[row : row + 1],
        height=table.height[row : row + 1],
    )
    return one.family.work(one, shard_of(one, single, batch))


def gemm_flop(alternatives: PassWork) -> float:
    """Operations of the matrix products of the first alternative, which is the plain algorithm."""
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0] if k.gemm is not None)


def flop(alternatives: PassWork) -> float:
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0])


def passes(work: LayerWork) -> tuple[PassWork, PassWork, PassWork]:
    return work.forward, work.backward_input, work.backward_weight


def gemms(work: LayerWork) -> Iterator[Kernel]:
    for alternatives in passes(work):
        for kernels in alternatives:
            yield from (k for k in kernels if k.gemm is not None)

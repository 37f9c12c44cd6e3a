"""Times of single layers and kernels on one device, by the same formulas as whole networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from costmodel.kernels.compute import ComputeModel
from costmodel.network.layers import Layer, Shard, family_of
from costmodel.network.layers.base import PassWork, Shape, params_from
from planner.measurements.tables import Row, RowSkipped

__all__ = ["LayerTimes", "layer_of", "layer_times", "pass_flop", "positive_ms", "through_input"]


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
    value = row.positive(name)
    if value is not None and value > 1e7:  # three hours
        raise RowSkipped(f"column {name} is no time of a kernel: wrong unit?")
    return None if value is None else value * 1e-3

"""What PALEO charges for a convolution: as a matrix product, or through Fourier transforms."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.paleo.elementary import FLOAT_BYTES, Call, Calls
from costmodel.paleo.geometry import Plain

__all__ = ["ALGORITHMS", "algorithm_calls", "fft_calls", "gemm_calls"]

# Names of the algorithms that can be chosen per pass; "gemm_additional_mem" is the last release's BWD_DATA_ALGO_1.
ALGORITHMS: tuple[str, ...] = ("gemm", "fft", "fft_tiling", "gemm_additional_mem")

_COMPLEX_BYTES = 2 * FLOAT_BYTES
_TILE = 32


def algorithm_calls(algorithm: str, plain: Plain) -> Calls:
    """Elementary calls of a pass by the name of its algorithm."""
    if algorithm == "fft":
        return fft_calls(plain, tiled=False)
    if algorithm == "fft_tiling":
        return fft_calls(plain, tiled=True)
    return gemm_calls(plain, workspace=algorithm == "gemm_additional_mem")


def gemm_calls(plain: Plain, *, padded_read: bool = False, workspace: bool = False) -> Calls:
    """Matrix product over unfolded patches.

    ``FLOP = 2 kh kw c ho wo o n (1 - filter holes)``, with holes in the inputs ``+ 2 |inputs| (1 - input holes)``;
    bytes: inputs, filters without holes, outputs.

    Parameters
    ----------
    plain : Plain
    padded_read : bool
        Count the padding among the inputs read (last release).
    workspace : bool
        Write and read the unfolded patches, ``8 n ho wo kh kw c`` bytes (last release).

    Returns
    -------
    Calls

    Examples
    --------
    >>> one = Plain(inputs=(1.0, 4.0, 4.0, 2.0), filters=(3.0, 3.0, 2.0, 5.0), outputs=(1.0, 2.0, 2.0, 5.0), padding=(0, 0))
    >>> calls = gemm_calls(one)
    >>> float(calls.flop[0].amount), [float(c.amount) for c in calls.moved_bytes]  # 2*3*3*2 * 2*2*5
    (720.0, [128.0, 360.0, 80.0])
    """
    n, h, w, c = plain.inputs
    kh, kw, depth, o = plain.filters
    _, ho, wo, _ = plain.outputs
    kept = 1.0 - plain.filter_holes
    flop = 2.0 * kh * kw * depth * ho * wo * o * n * kept
    flop = flop + np.where(np.asarray(plain.input_holes) > 0, 2.0 * n * h * w * c * (1.0 - plain.input_holes), 0.0)
    ph, pw = plain.padding if padded_read else (0, 0)
    moved = [
        FLOAT_BYTES * n * (h + 2 * ph) * (w + 2 * pw) * c,
        FLOAT_BYTES * kh * kw * depth * o * kept,
        FLOAT_BYTES * n * ho * wo * o,
    ]
    if workspace:
        moved.append(2 * FLOAT_BYTES * n * ho * wo * kh * kw * depth)
    return Calls(flop=(Call(np.asarray(flop)),), moved_bytes=tuple(Call(np.asarray(b)) for b in moved))


def fft_calls(plain: Plain, *, tiled: bool) -> Calls:
    """Transforms of inputs, filters and outputs, and a product per frequency; whole image or tiles of 32 x 32.

    With T tiles of S points (whole image: T = 1, S = padded rows x columns) and t = S^(1/2) rounded up to a power of two::

        transform = 2 t 5 t log2 t   (halved for one-dimensional filters); real to complex takes half of it
        FLOP : T [n c transform/2], T [4 n c o S], T [n o transform], c o transform/2
        bytes: T [4 n c S], T [8 n c S], T [8 n c S], T [8 n o S], 8 n o S, 4 |outputs|, 4 c o S, f, T f

    f = 8 c o S, or 8 c o (longest side) for one-dimensional filters. Tiles overlap nowhere and sizes are not rounded for memory:
    PALEO's simplifications.

    Parameters
    ----------
    plain : Plain
    tiled : bool

    Returns
    -------
    Calls
    """
    n, h, w, c = plain.inputs
    kh, kw, depth, o = (np.asarray(extent, dtype=np.float64) for extent in plain.filters)
    outputs = np.asarray(plain.outputs[0] * plain.outputs[1] * plain.outputs[2] * plain.outputs[3])
    if tiled:
        tiles = np.ceil(np.asarray(h) / _TILE) * np.ceil(np.asarray(w) / _TILE)
        points, side = np.asarray(float(_TILE**2)), np.asarray(float(_TILE))
    else:
        rows = np.maximum(h + 2.0 * plain.padding[0], kh)
        columns = np.maximum(w + 2.0 * plain.padding[1], kw)
        tiles, points, side = np.asarray(1.0), rows * columns, np.maximum(rows, columns)
    one_dimensional = (kh == 1) | (kw == 1)
    transform = _transform_flop(points) * np.where(one_dimensional, 0.5, 1.0)
    spectrum = _COMPLEX_BYTES * depth * o * np.where(one_dimensional, side, points)
    samples_in, samples_out = np.asarray(n * c), np.asarray(n * o)
    return Calls(
        flop=(
            Call(samples_in * transform / 2.0, tiles),
            Call(depth * o * transform / 2.0),
            Call(4.0 * samples_in * o * points, tiles),
            Call(samples_out * transform, tiles),
        ),
        moved_bytes=(
            Call(FLOAT_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_out * points, tiles),
            Call(_COMPLEX_BYTES * samples_out * points),
            Call(FLOAT_BYTES * outputs),
            Call(FLOAT_BYTES * depth * o * points),
            Call(spectrum),
            Call(spectrum, tiles),
        ),
    )


def _transform_flop(points: FloatArray) -> FloatArray:
    """``10 t^2 log2 t`` with t the square root of the points, rounded up to a power of two.

    >>> float(_transform_flop(np.asarray(1024.0)))  # 10 * 32 * 32 * 5
    51200.0
    """
    mantissa, exponent = np.frexp(np.sqrt(points))
    log2 = np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.float64)
    side = np.exp2(log2)
    return np.asarray(10.0 * side * side * log2)

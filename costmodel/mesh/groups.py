"""Communication groups of a device mesh: which ranks they hold, and the time of a message in them.

Ranks are numbered by an order such as tp-cp-dp-pp, the first dimension being neighbours. A group over some of the dimensions covers a range of ranks in which its
members are spread evenly: exactly so where the dimensions follow each other in the order, on average otherwise.

All collective formulas are affine in the size of the message (`costmodel.collective_formulas`), so a group needs two numbers per
algorithm, found once by asking the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import collective_s, names_of
from costmodel.mesh.plan import ORDERS
from costmodel.network import Cluster, span

__all__ = ["GroupTimes", "strides"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_PROBE_BYTES = 1e9


def strides(order: IntArray, tp: IntArray, cp: IntArray, dp: IntArray, pp: IntArray) -> dict[str, IntArray]:
    """Distance of neighbouring ranks of each dimension.

    Parameters
    ----------
    order : array (n,)
        Position in ORDERS.
    tp, cp, dp, pp : arrays (n,)

    Returns
    -------
    dict of arrays (n,)
        For "tp", "cp", "dp" and "pp".

    Examples
    --------
    >>> one = np.array([1])
    >>> found = strides(0 * one, 8 * one, 2 * one, 4 * one, 16 * one)  # tp-cp-dp-pp
    >>> {name: int(value[0]) for name, value in found.items()}
    {'tp': 1, 'cp': 8, 'dp': 16, 'pp': 64}
    """
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    # Whether dimension b comes before dimension a, for every order.
    result: dict[str, IntArray] = {}
    for name in sizes:
        stride = np.ones_like(tp)
        for other, size in sizes.items():
            if other != name:
                before = np.array([text.split("-").index(other) < text.split("-").index(name) for text in ORDERS])
                stride = stride * np.where(before[order], size, 1)
        result[name] = stride
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Times of the cheapest collective in any group of a cluster."""

    cluster: Cluster

    def time_s(self, operation: str, size: IntArray, stride: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Time of messages, by the cheapest default algorithm each.

        Parameters
        ----------
        operation : str
            One of `costmodel.collectives.OPERATIONS`.
        size, stride : arrays (n,)
            Ranks of a group, and their distance.
        message_bytes : array (n,) or (n, m)
            As `costmodel.collectives` counts it for the operation.

        Returns
        -------
        array
            Seconds, of the shape of the messages; 0 in groups of one and for empty messages.
        """
        latency_s, slope = self._affine(operation, size, stride)
        message = np.asarray(message_bytes, dtype=np.float64)
        if message.ndim == 2:
            latency_s, slope = latency_s[:, None, :], slope[:, None, :]
        alone = size <= 1 if message.ndim == 1 else (size <= 1)[:, None]
        best = latency_s[..., 0] + slope[..., 0] * message
        for k in range(1, latency_s.shape[-1]):
            best = np.minimum(best, latency_s[..., k] + slope[..., k] * message)
        return np.where((message > 0.0) & ~alone, best, 0.0)

    def _affine(self, operation: str, size: IntArray, stride: IntArray) -> tuple[FloatArray, FloatArray]:
        """Latency and seconds per byte of every algorithm; arrays (n, algorithms)."""
        key = size * (1 << 32) + np.where(size > 1, stride, 1)
        if len(key) and np.all(key == key[0]):
            unique, inverse = key[:1], np.zeros(len(key), dtype=np.int64)
        else:
            unique, inverse = np.unique(key, return_inverse=True)
        table = self._table(operation, unique)
        return table[0][inverse], table[1][inverse]

    def _table(self, operation: str, keys: IntArray) -> tuple[FloatArray, FloatArray]:
        names = names_of(operation, by_default=True)
        where = span(self.cluster, (keys >> 32).astype(np.float64), (keys & 0xFFFFFFFF).astype(np.float64))
        once = [collective_s(operation, name, np.full(len(keys), _PROBE_BYTES), where, self.cluster) for name in names]
        twice = [collective_s(operation, name, np.full(len(keys), 2 * _PROBE_BYTES), where, self.cluster) for name in names]
        first, second = np.stack(once, axis=1), np.stack(twice, axis=1)
        slope = (second - first) / _PROBE_BYTES
        return np.maximum(first - slope * _PROBE_BYTES, 0.0), slope

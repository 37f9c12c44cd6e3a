"""Communication groups of a device mesh: which ranks they hold, and the time of a message in them.

Ranks are numbered by an order such as tp-cp-dp-pp, the first dimension being neighbours. A group over some of the
dimensions covers a range of ranks in which its members are spread evenly: exactly so where the dimensions follow each
other in the order, on average otherwise.

Collectives are those that libraries run (`costmodel.hardware.collectives.library_s`): every formula is ``a + b B + c sqrt(B)`` for a
message of B bytes, with c > 0 where pieces are handed on from stage to stage, so a group needs three numbers per algorithm, found once
by asking the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import collective_s, names_of
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.plan import ORDERS
from costmodel.tolerances import EQUAL

__all__ = ["GroupTimes", "strides"]


# Messages whose times give the three numbers: one that takes only latency, one of a size at which volume counts, and four times that.
_NO_BYTES, _PROBE_BYTES = 1e-30, 1e9
# Dimensions (a, b) -> for every order, whether a comes before b.
_BEFORE = {
    (a, b): np.array([text.index(a) < text.index(b) for text in ORDERS])
    for a in ("cp", "dp", "pp")
    for b in ("cp", "dp", "pp")
    if a != b
}
_RADIX = 1 << 31
# Latency, seconds per byte and seconds per root of a byte of groups, (g,) each.
_Law = tuple[FloatArray, FloatArray, FloatArray]


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
    result = {"tp": np.ones_like(tp)}  # always innermost
    for name in ("cp", "dp", "pp"):
        stride = tp
        for other in ("cp", "dp", "pp"):
            if other != name:
                stride = stride * np.where(_BEFORE[other, name][order], sizes[other], 1)
        result[name] = stride
    return result


@dataclass(slots=True, kw_only=True)
class _Known:
    """Groups seen so far, and three numbers per algorithm and operation for each of them."""

    keys: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # sorted
    ids: IntArray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # of the sorted keys, in order of arrival
    arrived: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # keys in order of arrival
    laws: dict[str, list[_Law]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Times of collectives in any group of a cluster, as a library runs them, and what is assumed about them.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> level = Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    >>> groups = GroupTimes(cluster=Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(level,)))
    >>> four = groups.find(np.array([4]), np.array([1]))
    >>> round(float(groups.time_s("all_gather", four, np.array([4e9]))[0]), 9)  # 3 of 4 GB arrive over a link of 1 GB/s
    3.0
    """

    cluster: Cluster
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS
    _known: _Known = field(default_factory=_Known, repr=False, compare=False)

    def changed(self, cluster: Cluster, assumptions: MeshAssumptions) -> GroupTimes:
        """The same where other constants hold; where they say nothing of links, what is known of groups is kept."""
        is_alike = cluster.levels == self.cluster.levels
        return GroupTimes(cluster=cluster, assumptions=assumptions, _known=self._known if is_alike else _Known())

    @property
    def node_size(self) -> float:
        """Devices that the innermost level joins."""
        return float(self.cluster.levels[0].size or np.inf)

    def find(self, size: IntArray, stride: IntArray) -> IntArray:
        """Numbers of groups, to ask for times with.

        Parameters
        ----------
        size, stride : arrays (n,)
            Ranks of a group, and their distance.

        Returns
        -------
        array (n,)
        """
        key = np.where(size > 1, size * _RADIX + stride, _RADIX)
        known = self._known
        if len(known.keys):
            place = np.minimum(known.keys.searchsorted(key), len(known.keys) - 1)
            if (known.keys[place] == key).all():
                return known.ids[place]
        new = np.setdiff1d(key, known.keys)
        known.arrived = np.concatenate([known.arrived, new])
        order = np.argsort(known.arrived, kind="stable")
        known.keys, known.ids = known.arrived[order], order
        return known.ids[np.searchsorted(known.keys, key)]

    def spans_nodes(self, group: IntArray) -> BoolArray:
        """Which groups, by their numbers, have ranks on several nodes (of `node_size`, from whose first rank they begin)."""
        key = self._known.arrived[group]
        return np.asarray((key // _RADIX - 1) * (key % _RADIX) >= self.node_size)

    def time_s(self, operation: str, group: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Time of messages, by the algorithm of `library_s` that is the quickest for each.

        Parameters
        ----------
        operation : str
            One of `costmodel.hardware.collectives.OPERATIONS`.
        group : array (n,)
            From `find`.
        message_bytes : array (n,) or (n, m)
            As `costmodel.hardware.collectives` counts it for the operation.

        Returns
        -------
        array
            Seconds, of the shape of the messages; 0 in groups of one and for empty messages.
        """
        message = np.asarray(message_bytes, dtype=np.float64)
        if not len(group) or not message.any():
            return np.zeros_like(message)
        best, root = None, None
        for law in self._laws(operation):
            a, b = (column[group] for column in law[:2])
            time = a[:, None] + b[:, None] * message if message.ndim == 2 else a + b * message
            if law[2].any():
                root = np.sqrt(message) if root is None else root
                c = law[2][group]
                time += c[:, None] * root if message.ndim == 2 else c * root
            best = time if best is None else np.minimum(best, time, out=best)
        assert best is not None
        best[message <= 0.0] = 0.0
        return best

    def least_law(self, operation: str, group: IntArray) -> tuple[FloatArray, FloatArray]:
        """Latency and seconds per byte of which the first plus the second times its bytes is no more than any message takes: (n,) each."""
        laws = self._laws(operation)
        latency_s, rate = (np.minimum.reduce([law[part] for law in laws]) for part in (0, 1))
        return latency_s[group], rate[group]

    def _laws(self, operation: str) -> list[_Law]:
        """Per algorithm: the three numbers of every known group, in order of arrival."""
        known = self._known
        done = known.laws.get(operation)
        have = 0 if done is None else len(done[0][0])
        if have < len(known.arrived):
            added = self._table(operation, known.arrived[have:])
            if done is not None:
                added = [
                    (np.concatenate([a, d]), np.concatenate([b, e]), np.concatenate([c, f]))
                    for (a, b, c), (d, e, f) in zip(done, added, strict=True)
                ]
            done = known.laws[operation] = added
        assert done is not None
        return done

    def _table(self, operation: str, keys: IntArray) -> list[_Law]:
        size, stride = keys // _RADIX, np.maximum(keys % _RADIX, 1)
        where = span(self.cluster, size.astype(np.float64), stride.astype(np.float64))
        result = []
        for name in names_of(operation, in_libraries=True):
            latency_s, once, four_times = (
                collective_s(operation, name, np.full(len(keys), message), where, self.cluster)
                for message in (_NO_BYTES, _PROBE_BYTES, 4.0 * _PROBE_BYTES)
            )
            # a + b B + c sqrt(B) at B and 4 B, less a: b B + c sqrt(B) and 4 b B + 2 c sqrt(B).
            slope = np.maximum((four_times - latency_s) - 2.0 * (once - latency_s), 0.0) / (2.0 * _PROBE_BYTES)
            rest = once - latency_s - slope * _PROBE_BYTES
            root = np.where(rest > EQUAL * once, rest, 0.0) / np.sqrt(_PROBE_BYTES)
            result.append((latency_s, slope, root))
        return result

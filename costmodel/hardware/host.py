"""The host of a node: the memory that its devices may move tensors to, and how fast they do; what devices and hosts draw.

Energy
------
The energy of a step is what devices draw while they compute and while they wait, and what their hosts draw all the time.

    energy = workers ((idle + host) step + (busy - idle) computing)                                                      [J]

with the power of a device while it computes (busy) and while it waits (idle), its share of what a node draws besides its devices (host),
the step, and the time that a device computes in a step, averaged over the devices. With every term at least 0, energy grows with the step
and with the computing time, so a bound of each gives a bound of the energy (`DeviceCost.of_step` of lower bounds). Devices that a plan
leaves out are somebody else's and cost nothing.

A device *computes* during the kernels of the forward and backward passes, recomputation included, and of the optimizer. All else is
waiting: communication that is not hidden, pipeline bubbles, transfers from the host. Hidden communication is part of the computing time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.hardware.device import Device

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from costmodel.arrays import FloatArray


# Of a host's memory, what tensors may fill; the rest is for the system, loaders of samples and what the trainer keeps (an assumption).
USABLE_SHARE = 0.8


class HostError(ValueError):
    """The description of a host contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the devices of one node share.

    Attributes
    ----------
    devices : int
        Of one node.
    memory_bytes : float
        Of the node's host.
    memory_bandwidth_bytes_per_s : float or None
        Nominal, of all its memory; None: unknown.
    link_bytes_per_s : float or None
        Nominal, between the host and a port, in each direction; None: unknown.
    link_shared_by : int
        Devices behind one such port. 1 = a port of its own.
    power_w : float or None
        What one node draws besides its devices; None: unknown.

    Raises
    ------
    HostError
        A number that is not positive; ports that do not divide the devices.

    Examples
    --------
    >>> host = Host(devices=8, memory_bytes=2e12, memory_bandwidth_bytes_per_s=400e9, link_bytes_per_s=32e9, link_shared_by=2)
    >>> host.memory_bandwidth_per_device, host.link_per_device
    (50000000000.0, 16000000000.0)
    >>> host.share_bytes(workers=4), host.share_bytes(workers=64)
    (400000000000.0, 200000000000.0)
    """

    devices: int
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    link_shared_by: int = 1
    power_w: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.devices < 1:
            raise HostError(f"a host has {self.devices} devices, expected at least 1")
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s", "link_bytes_per_s", "power_w"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise HostError(f"the host's {name} is {value}, expected a positive number")
        if self.link_shared_by < 1 or self.devices % self.link_shared_by:
            raise HostError(
                f"a link to the host is shared by {self.link_shared_by} devices, which does not divide the {self.devices} of a node"
            )

    @property
    def staged_bytes_per_s(self) -> float:
        """What an adapter of the network gets, in each direction, of data that pass through the host's memory; infinite if unknown.

        Where several devices share a port there is a switch, and the adapter sits on it beside them: what it sends crosses the port towards
        the host and back again, while what it receives does the same, so that it gets half of the port.

        >>> [Host(devices=8, memory_bytes=1e12, link_bytes_per_s=15e9, link_shared_by=n).staged_bytes_per_s / 1e9 for n in (1, 2)]
        [12.0, 6.0]
        """
        if self.link_bytes_per_s is None:
            return math.inf
        return _LINK_SHARE * self.link_bytes_per_s / (2 if self.link_shared_by > 1 else 1)

    @property
    def memory_bandwidth_per_device(self) -> float | None:
        """Share of a device when all of the node use the host's memory at once."""
        return None if self.memory_bandwidth_bytes_per_s is None else self.memory_bandwidth_bytes_per_s / self.devices

    @property
    def link_per_device(self) -> float | None:
        """Share of a device when all of the node move tensors at once."""
        return None if self.link_bytes_per_s is None else self.link_bytes_per_s / self.link_shared_by

    def share_bytes(self, workers: int) -> float:
        """Memory that each of the workers of a node may fill, where so many are in use in all."""
        return USABLE_SHARE * self.memory_bytes / min(self.devices, max(workers, 1))


# Long copies over PCIe 4.0 x16 reach about 25 of 31.5 GB/s; an optimizer on the host about 40 % of its memory's bandwidth (CPU Adam,
# Ren et al., ZeRO-Offload, arXiv:2101.06840, section 5), copies about 80 %.
_LINK_SHARE, _UPDATE_SHARE, _COPY_SHARE = 0.8, 0.4, 0.8


def host_rates(host: Host | None) -> dict[str, float]:
    """What a host lets each device of a busy node have, by the name of the assumption that it takes the place of.

    Parameters
    ----------
    host : Host or None

    Returns
    -------
    dict
        ``host_bytes_per_s`` and ``host_update_bytes_per_s`` of `costmodel.mesh.assumptions.MeshAssumptions`; what is not known is left out.

    Examples
    --------
    >>> host_rates(Host(devices=8, memory_bytes=1e12, memory_bandwidth_bytes_per_s=400e9, link_bytes_per_s=32e9, link_shared_by=2))
    {'host_bytes_per_s': 12800000000.0, 'host_update_bytes_per_s': 20000000000.0}
    """
    if host is None:
        return {}
    rates, own, link = {}, host.memory_bandwidth_per_device, host.link_per_device
    if link is not None:
        rates["host_bytes_per_s"] = _LINK_SHARE * link if own is None else min(_LINK_SHARE * link, _COPY_SHARE * own)
    if own is not None:
        rates["host_update_bytes_per_s"] = _UPDATE_SHARE * own
    return rates


# A waiting device against a computing one, where its file does not say (an assumption): boards without work draw about a tenth to a
# seventh of their thermal design power, and one that waits inside a collective still runs its kernel.
DEFAULT_IDLE_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """What one device costs per second, such as its power or its price (`costmodel.objectives`).

    Attributes
    ----------
    waiting, computing : float
        ``0 <= waiting <= computing``, and ``computing > 0``.

    Examples
    --------
    Two devices that draw 340 W while they compute and 100 W while they wait compute for 8 of 10 seconds:

    >>> float(DeviceCost(waiting=100.0, computing=340.0).of_step(10.0, 8.0, 2))
    5840.0
    """

    waiting: float
    computing: float

    def of_step(self, step_s: ArrayLike, computing_s: ArrayLike, workers: ArrayLike) -> FloatArray:
        """Cost of a step.

        Parameters
        ----------
        step_s : array_like (n,)
        computing_s : array_like (n,)
            Of a device, averaged over the workers; at most the step.
        workers : array_like (n,)
        """
        import numpy as np  # names of objectives are shown without it

        more = self.computing - self.waiting
        return np.asarray(
            np.asarray(workers) * (self.waiting * np.asarray(step_s) + more * np.asarray(computing_s)), dtype=np.float64
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What one device draws, with its share of its node.

    Attributes
    ----------
    busy_w, idle_w : float
        While it computes, while it waits; ``busy_w >= idle_w``.
    host_w : float
        Its share of what the node draws besides its devices.

    Examples
    --------
    Two devices of 300 W (60 W when waiting) that compute for 8 of 10 seconds, with 40 W of a host each:

    >>> power = Power(busy_w=300.0, idle_w=60.0, host_w=40.0)
    >>> float(power.cost.of_step(10.0, 8.0, 2))
    5840.0
    """

    busy_w: float
    idle_w: float
    host_w: float = 0.0

    @classmethod
    def of(cls, device: Device, host: Host | None) -> Power | None:
        """That of a device in its node; None where nobody has stated what the device draws."""
        if device.busy_power_w is None:
            return None
        idle = DEFAULT_IDLE_SHARE * device.busy_power_w if device.idle_power_w is None else device.idle_power_w
        beside = 0.0 if host is None or host.power_w is None else host.power_w / host.devices
        return cls(busy_w=device.busy_power_w, idle_w=idle, host_w=beside)

    @property
    def cost(self) -> DeviceCost:
        """Joules per second."""
        return DeviceCost(waiting=self.idle_w + self.host_w, computing=self.busy_w + self.host_w)

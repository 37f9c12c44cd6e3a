"""The energy of a step: what devices draw while they compute and while they wait, and what their hosts draw all the time.

    energy = workers ((idle + host) step + (busy - idle) computing)                                                      [J]

with the power of a device while it computes (busy) and while it waits (idle), its share of what a node draws besides its devices (host),
the step, and the time that a device computes in a step, averaged over the devices. With every term at least 0, energy grows with the step
and with the computing time, so a bound of each gives a bound of the energy (`Power.energy_j` of lower bounds). Devices that a plan leaves
out are somebody else's and cost nothing.

A device *computes* during the kernels of the forward and backward passes, recomputation included, and of the optimizer. All else is
waiting: communication that is not hidden, pipeline bubbles, transfers from the host. Hidden communication is part of the computing time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host

__all__ = ["DEFAULT_IDLE_SHARE", "Power", "money_of"]


# A waiting device against a computing one, where its file does not say (an assumption): boards without work draw about a tenth to a
# seventh of their thermal design power, and one that waits inside a collective still runs its kernel.
DEFAULT_IDLE_SHARE = 0.2


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
    >>> float(power.energy_j(10.0, 8.0, 2))
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

    def energy_j(self, step_s: ArrayLike, computing_s: ArrayLike, workers: ArrayLike) -> FloatArray:
        """Energy of a step.

        Parameters
        ----------
        step_s : array_like (n,)
        computing_s : array_like (n,)
            Of a device, averaged over the workers; at most the step.
        workers : array_like (n,)
        """
        waiting_w, more_w = self.idle_w + self.host_w, self.busy_w - self.idle_w
        return np.asarray(
            np.asarray(workers) * (waiting_w * np.asarray(step_s) + more_w * np.asarray(computing_s)), dtype=np.float64
        )


def money_of(device: Device, step_s: float, workers: int) -> float | None:
    """What a step costs in USD: device-hours at the stated price; None where there is none.

    >>> device = Device(
    ...     name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11, price_per_hour=3.6
    ... )
    >>> round(money_of(device, 2.0, 8), 6)
    0.016
    """
    return None if device.price_per_hour is None else workers * step_s / 3600.0 * device.price_per_hour

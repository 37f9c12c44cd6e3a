"""How often a job is interrupted, and by what.

Failures of unlike units are independent Poisson processes, so those of a job are one, whose rate is the sum over the classes:

    rate = level x sum over classes (units of the class in the job x rate of one unit)                                   [1/s]

The classes say what fails how often in the one fleet that published a list of causes. Fleets differ by much more than chance, and count
different things: interruptions of jobs, failures of nodes, failures of GPUs. So each fleet gives one factor, its own rate over that of the
classes that it counted; their median is the level (`FailureModel.level`), for unexpected interruptions. The logarithms of the factors
spread by a standard deviation s, and the next fleet is off by s sqrt(1 + 1/m), where m fleets are known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

SECONDS_PER_DAY = 86_400.0
_MANY = 1e9
# What a failure takes from a job, beside its processes: nothing, the host, all hosts of the rack.
TAKES_DOWN: tuple[str, ...] = ("job", "host", "rack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Devices that share a unit which can fail.

    Attributes
    ----------
    host, adapter, rack : float
        Devices of one of them.

    Examples
    --------
    >>> Units(host=4).count("host", devices=64), Units().count("device", devices=64)
    (16.0, 64.0)
    """

    host: float = 8.0
    adapter: float = 1.0
    rack: float = 16.0

    def count(self, unit: str, devices: float) -> float:
        """Units of a kind ("device", "host", "adapter", "rack") of so many devices, begun ones included."""
        return float(devices) if unit == "device" else float(math.ceil(devices / getattr(self, unit)))

    def hosts_lost(self, takes_down: str) -> float:
        """Hosts that a failure takes from the job."""
        return {"job": 0.0, "host": 1.0, "rack": max(self.rack / self.host, 1.0)}[takes_down]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One cause of interruptions.

    Attributes
    ----------
    name : str
    unit : str
        What fails: device, host, adapter or rack.
    per_s : float
        Failures of one unit per second.
    takes_down : str
        One of `TAKES_DOWN`.
    planned : bool
        Work is saved before it, so that none is lost (maintenance).
    """

    name: str
    unit: str
    per_s: float
    takes_down: str = "host"
    planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What was counted on one fleet: ``interruptions`` on ``devices`` in ``days``, of some classes (empty: of all unexpected ones)."""

    name: str
    interruptions: float
    devices: float
    days: float
    counts: tuple[str, ...] = ()

    @property
    def per_device_s(self) -> float:
        """What was counted, per device and second.

        >>> fleet = Fleet(name="llama-3", interruptions=419, devices=16384, days=54)
        >>> round(fleet.per_device_s * 8 * 1000 * SECONDS_PER_DAY, 2)  # per 1,000 days of a host with eight
        3.79
        """
        return self.interruptions / (self.devices * self.days * SECONDS_PER_DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """Rates of failures, how fleets differ, what recovery takes, and where checkpoints go.

    Attributes
    ----------
    name : str
    classes : tuple of FailureClass
    fleets : tuple of Fleet
        The unexpected interruptions are scaled to their median; none: the classes as they are.
    log_sd : float or None
        Standard deviation of the logarithm of a fleet's rate; None: that of the fleets, or of the count where there is one.
    restart_s, restart_high_s : float
        From a failure until the processes run again on other hosts, without loading: typical, and at most usually.
    repair_s : float
        Until a host that failed is back.
    snapshot_s : float
        That training waits for a checkpoint beside copying and writing: planning, and ranks that wait for each other.
    storage_bytes_per_s, storage_bytes_per_s_and_host : float
        Of the shared storage, all hosts together; of one host towards it.
    """

    name: str
    classes: tuple[FailureClass, ...]
    fleets: tuple[Fleet, ...] = ()
    log_sd: float | None = None
    restart_s: float = 600.0
    restart_high_s: float = 1200.0
    repair_s: float = 4 * 3600.0
    snapshot_s: float = 0.0
    storage_bytes_per_s: float = math.inf
    storage_bytes_per_s_and_host: float = math.inf

    def without(self, names: Collection[str]) -> FailureModel:
        """The same without some fleets: what would be said of them if nobody had counted.

        Examples
        --------
        >>> known = tuple(Fleet(name=name, interruptions=n, devices=800, days=10) for name, n in (("a", 8), ("b", 32), ("c", 99)))
        >>> model = FailureModel(name="m", classes=(FailureClass(name="gpu", unit="device", per_s=1e-9),), fleets=known)
        >>> round(model.without(["c"]).interruptions(800, 10 * SECONDS_PER_DAY), 6)  # between 8 and 32
        20.0
        """
        return replace(self, fleets=tuple(fleet for fleet in self.fleets if fleet.name not in names))

    @property
    def level(self) -> float:
        """What the rates of all classes are multiplied by."""
        return statistics.median(self._factors) if self.fleets else 1.0

    @property
    def _factors(self) -> list[float]:
        """Rate of every fleet over that of the classes that it counted."""

        def own(fleet: Fleet) -> float:
            counted = [each for each in self.classes if each.name in fleet.counts or not (fleet.counts or each.planned)]
            # Of many devices, so that begun units do not count.
            return sum(each.per_s * Units().count(each.unit, _MANY) for each in counted) / _MANY

        return [fleet.per_device_s / own(fleet) for fleet in self.fleets]

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of what another fleet has over what is predicted.

        Examples
        --------
        One fleet with 25 interruptions is known to 1 / sqrt(25):

        >>> gpu = FailureClass(name="gpu", unit="device", per_s=1e-9)
        >>> own = Fleet(name="ours", interruptions=25, devices=64, days=30)
        >>> FailureModel(name="m", classes=(gpu,), fleets=(own,)).spread
        0.2
        """
        if self.log_sd is not None:
            return self.log_sd
        count = len(self.fleets)
        if count < 2:
            return 1.0 / math.sqrt(max(self.fleets[0].interruptions, 1.0)) if count else 0.0
        return statistics.stdev(map(math.log, self._factors)) * math.sqrt(1.0 + 1.0 / count)

    def rates_per_s(self, devices: float, units: Units | None = None) -> Mapping[str, float]:
        """Interruptions of a job per second, by class.

        Parameters
        ----------
        devices : float
        units : Units, optional

        Examples
        --------
        >>> gpu = FailureClass(name="gpu", unit="device", per_s=2e-9)
        >>> nic = FailureClass(name="adapter", unit="adapter", per_s=1e-9)
        >>> rates = FailureModel(name="m", classes=(gpu, nic)).rates_per_s(1000, Units(adapter=2))
        >>> {name: round(rate * 1e6, 6) for name, rate in rates.items()}
        {'gpu': 2.0, 'adapter': 0.5}
        """
        units, level = units or Units(), self.level
        return {
            each.name: (1.0 if each.planned else level) * each.per_s * units.count(each.unit, devices)
            for each in self.classes
        }

    def rate_per_s(self, devices: float, units: Units | None = None, *, planned: bool = False) -> float:
        """Unexpected (or planned) interruptions of a job per second."""
        rates = self.rates_per_s(devices, units)
        return sum(rates[each.name] for each in self.classes if each.planned == planned)

    def hosts_lost_per_s(self, devices: float, units: Units | None = None) -> float:
        """Hosts that leave for repair per second, of a job that runs."""
        units = units or Units()
        rates = self.rates_per_s(devices, units)
        return sum(rates[each.name] * units.hosts_lost(each.takes_down) for each in self.classes if not each.planned)

    def interruptions(self, devices: float, time_s: float, units: Units | None = None) -> float:
        """Unexpected interruptions that are expected in a time."""
        return self.rate_per_s(devices, units) * time_s

"""Reads sysfs: network adapters and the speed of their ports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.detect.system import System

__all__ = ["Adapter", "find_adapters"]

_INFINIBAND = "/sys/class/infiniband"
_NETWORK = "/sys/class/net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A port of a network adapter that is up; ``is_remote_memory`` where it can write to another machine's memory (RDMA)."""

    name: str
    kind: str  # "infiniband" or "ethernet"
    bytes_per_s: float | None
    is_remote_memory: bool
    source: str


def find_adapters(system: System) -> tuple[Adapter, ...]:
    """Ports that are up: those of RDMA adapters where there are any, else Ethernet ports of real hardware."""
    return tuple(_remote_memory(system)) or tuple(_ethernet(system))


def _remote_memory(system: System) -> Sequence[Adapter]:
    found = []
    for name in system.names(_INFINIBAND):
        for port in system.names(f"{_INFINIBAND}/{name}/ports"):
            folder = f"{_INFINIBAND}/{name}/ports/{port}"
            # "4: ACTIVE"; "400 Gb/sec (4X NDR)" (kernel documentation, ABI/stable/sysfs-class-infiniband)
            if "ACTIVE" not in (system.read(f"{folder}/state") or ""):
                continue
            rate = re.match(r"(\d{1,5}(?:\.\d+)?) Gb/sec", system.read(f"{folder}/rate") or "")
            kind = "ethernet" if (system.read(f"{folder}/link_layer") or "") == "Ethernet" else "infiniband"
            found.append(
                Adapter(
                    name=name,
                    kind=kind,
                    bytes_per_s=float(rate[1]) * 1e9 / 8 if rate and float(rate[1]) > 0 else None,
                    is_remote_memory=True,
                    source=f"{folder}/rate",
                )
            )
    return found


def _ethernet(system: System) -> Sequence[Adapter]:
    found = []
    for name in system.names(_NETWORK):
        folder = f"{_NETWORK}/{name}"
        # Bridges, tunnels and the loopback have no device behind them; a wireless port joins no cluster.
        if not system.exists(f"{folder}/device") or system.exists(f"{folder}/wireless"):
            continue
        if system.read(f"{folder}/operstate") != "up":
            continue
        # In Mb/s; -1 where a virtual adapter does not know (kernel documentation, ABI/testing/sysfs-class-net)
        speed = re.fullmatch(r"\d{1,7}", system.read(f"{folder}/speed") or "")
        known = float(speed[0]) * 1e6 / 8 if speed and int(speed[0]) > 0 else None
        found.append(
            Adapter(name=name, kind="ethernet", bytes_per_s=known, is_remote_memory=False, source=f"{folder}/speed")
        )
    return found

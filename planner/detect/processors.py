"""Reads lscpu, /proc and cgroups: what the processors of a machine are, and what their cores can compute at most."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.detect.system import System

__all__ = ["Processor", "find_processor", "flop_per_cycle", "parse_lscpu"]

# A clock where nothing states one.
_ASSUMED_HZ = 2.5e9
_KIB = 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The processors of a machine as one device.

    Attributes
    ----------
    sockets, cores : int
        ``cores`` are those that this process may use, all sockets together.
    clock_hz : float
    clock_source : str
        Where the clock comes from; empty where it is an assumption.
    flags : frozenset of str
        Instruction sets as lscpu names them.
    family : int
        CPUID's family; 0 where unknown.
    memory_bytes : float or None
    """

    name: str
    vendor: str
    family: int
    sockets: int
    cores: int
    clock_hz: float
    clock_source: str
    flags: frozenset[str]
    memory_bytes: float | None
    is_limited: bool = False  # fewer cores than the machine has: a container or a batch system


def find_processor(system: System) -> Processor:
    """The processors of the machine; whatever is missing is taken to be the least there can be."""
    fields = parse_lscpu(system.run("lscpu") or "")
    info = parse_lscpu((system.read("/proc/cpuinfo") or "").split("\n\n", maxsplit=1)[0])
    sockets = _whole(fields.get("Socket(s)")) or 1
    per_socket = _whole(fields.get("Core(s) per socket")) or _whole(fields.get("Core(s) per cluster")) or 0
    threads = _whole(fields.get("Thread(s) per core")) or 1
    logical = _whole(fields.get("CPU(s)")) or system.usable_cpus() or 1
    physical = sockets * per_socket or max(logical // threads, 1)
    usable = system.usable_cpus() or logical
    quota = _quota_cpus(system)
    # Two threads of a core share its arithmetic units.
    cores = max(min(physical, -(-usable // threads), int(quota) if quota and quota >= 1 else physical), 1)
    clock_hz, clock_source = _clock(fields, info)
    return Processor(
        name=_clean(fields.get("Model name") or info.get("model name") or fields.get("Architecture") or "CPU"),
        vendor=fields.get("Vendor ID") or info.get("vendor_id") or "",
        family=_whole(fields.get("CPU family") or info.get("cpu family")) or 0,
        sockets=sockets,
        cores=cores,
        clock_hz=clock_hz,
        clock_source=clock_source,
        flags=frozenset((fields.get("Flags") or info.get("flags") or info.get("Features") or "").split()),
        memory_bytes=_memory(system),
        is_limited=cores < physical,
    )


def parse_lscpu(text: str) -> dict[str, str]:
    r"""Read lscpu's "name: value" lines.

    >>> parse_lscpu("CPU(s):                  2\nModel name:   AMD EPYC\n")
    {'CPU(s)': '2', 'Model name': 'AMD EPYC'}
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def flop_per_cycle(processor: Processor) -> tuple[dict[str, int], str]:
    """FLOPs of a core per cycle by number format, a multiply-add counted as two, and why.

    Lanes of 32 bits x fused multiply-add units x 2. Units per core: Intel 64 and IA-32 Architectures Optimization Reference Manual
    (two of 512 bits on servers, of 256 bits before); AMD, Software Optimization Guides for family 17h, 19h (512-bit
    instructions run on 256-bit units) and 1Ah (two of 512 bits); Arm, Neoverse N1 Software Optimization Guide (two of 128 bits).

    Examples
    --------
    >>> zen4 = Processor(
    ...     name="EPYC 9654", vendor="AuthenticAMD", family=25, sockets=1, cores=96, clock_hz=2.4e9, clock_source="",
    ...     flags=frozenset({"avx2", "fma", "avx512f", "avx512_bf16"}), memory_bytes=None,
    ... )
    >>> flop_per_cycle(zen4)[0]
    {'fp32': 32, 'bf16': 64}
    """
    flags = processor.flags
    if "avx512f" in flags:
        halved = processor.vendor == "AuthenticAMD" and processor.family <= 25
        fp32, why = (32, "AVX-512 on two 256-bit units") if halved else (64, "two 512-bit multiply-add units")
    elif "avx2" in flags and "fma" in flags:
        fp32, why = 32, "two 256-bit multiply-add units"
    elif "avx" in flags:
        fp32, why = 16, "a 256-bit addition and a multiplication"
    elif "asimd" in flags or "neon" in flags:
        fp32, why = 16, "two 128-bit multiply-add units"
    else:
        fp32, why = 8, "a 128-bit addition and a multiplication"
    rates = {"fp32": fp32}
    if "amx_bf16" in flags:
        rates["bf16"] = 1024
        why += "; AMX tiles for bf16"
    elif "avx512_bf16" in flags or "bf16" in flags:
        rates["bf16"] = 2 * fp32
        why += "; twice as many products of bf16"
    return rates, why


def _clock(fields: Mapping[str, str], info: Mapping[str, str]) -> tuple[float, str]:
    """Clock and its source: what all cores sustain is rarely stated, so the nominal one comes before the highest."""
    named = re.search(r"@ (\d+\.\d+)\s?GHz", fields.get("Model name", ""))
    if named:
        return float(named[1]) * 1e9, "the processor's name"
    # On x86 twice the clock of the time stamp counter, which is the base clock.
    bogus = _decimal(fields.get("BogoMIPS"))
    if bogus and fields.get("Architecture", "").startswith("x86") and bogus > 1000:
        return bogus / 2 * 1e6, "lscpu, half of the BogoMIPS: the time stamp counter runs at the base clock"
    for name in ("CPU max MHz", "CPU MHz"):
        value = _decimal(fields.get(name))
        if value and value > 100:
            return value * 1e6, f"lscpu, {name}"
    value = _decimal(info.get("cpu MHz"))
    return (value * 1e6, "/proc/cpuinfo, cpu MHz now") if value and value > 100 else (_ASSUMED_HZ, "")


def _quota_cpus(system: System) -> float | None:
    """CPUs that a control group allows (cgroup v2, then v1)."""
    words = (system.read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(words) != 2:
        words = [system.read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    quota, period = (_decimal(word) for word in words)
    return quota / period if quota and period else None


def _memory(system: System) -> float | None:
    """Memory of the machine, or what a control group leaves of it."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", system.read("/proc/meminfo") or "", flags=re.MULTILINE)
    limits = [_decimal(system.read("/sys/fs/cgroup/memory.max")), float(total[1]) * _KIB if total else None]
    known = [limit for limit in limits if limit]
    return min(known) if known else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) and int(text) > 0 else None


def _decimal(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,18}(\.\d{1,9})?", text) and float(text) > 0 else None


def _clean(text: str) -> str:
    return "".join(c for c in text if c.isprintable()).strip()[:100] or "CPU"

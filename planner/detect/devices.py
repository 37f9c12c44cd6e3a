"""Which bundled device a GPU is, or which one stands in for it; device files of processors and of GPUs that nobody has described.

A fact is a value that was found, or had to be assumed, with its source. Processors are read from lscpu, /proc and cgroups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY
from planner.detect.nvidia import Gpu
from planner.detect.system import System, clean_text, number_in
from planner.files.naming.devices import device_called

# Plain text needs no quotes in YAML: it starts with a letter and holds no character that means something, or is a quantity with a
# unit. Whatever might be a number to some reader ("0E0", "1_000", "0o7") is quoted.
_PLAIN = re.compile(r"[A-Za-z][^#:\n\"'{}\[\],&*!|>%@`\\]*|[0-9][0-9.e+]* [A-Za-z][A-Za-z/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A key of a file and its value.

    Attributes
    ----------
    key : str
    text : str
        The value with its unit, as the file has it.
    source : str
        Where it comes from; for an assumption, what is assumed and why.
    is_known : bool
        False for an assumption.
    is_mapping : bool
        The text is a YAML mapping, not a string.
    """

    key: str
    text: str
    source: str
    is_known: bool = True
    is_mapping: bool = False

    def line(self, indent: str = "") -> str:
        """``key: value  # unknown: assumed ...``.

        >>> Fact(key="memory", text="80 GiB", source="nvidia-smi").line()
        'memory: 80 GiB'
        >>> Fact(key="latency", text="5 us", source="a guess", is_known=False).line()
        'latency: 5 us  # unknown: assumed, a guess'
        """
        remark = "" if self.is_known else f"  # unknown: assumed, {comment_text(self.source)}"
        return f"{indent}{self.key}: {self.text if self.is_mapping else quoted(self.text)}{remark}"


def quoted(text: str) -> str:
    r"""Write a text as a YAML scalar on one line.

    >>> quoted("450 GB/s"), quoted('say "x": 1'), quoted("a\nb")
    ('450 GB/s', '"say \\"x\\": 1"', '"a\\nb"')
    """
    plain = _PLAIN.fullmatch(text) and text == text.strip() and text.isprintable() and _reads_back(text)
    # What JSON writes is YAML too.
    return text if plain else json.dumps(text, ensure_ascii=False)


def _reads_back(text: str) -> bool:
    """Whether YAML takes a plain text for that text, not for a number, a date or a truth value."""
    import yaml

    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False


def comment_text(text: str) -> str:
    """One printable line for a comment."""
    return "".join(c if c.isprintable() else " " for c in text)


def number_text(value: float) -> str:
    """A number as short as it is exact to six digits.

    >>> number_text(450.0), number_text(26.5625), number_text(1234567.0)
    ('450', '26.5625', '1.23457e+06')
    """
    return f"{value:.6g}"


# What a core reads and writes in its second-level cache: copies, sums and maxima of 0.5 to 1 MB took 61 to 67 GB/s on one core of an
# Intel Xeon of family 6, model 207 (measured for this planner with PyTorch 2.13, November 2026). For other processors it is an assumption.
_CACHE_BYTES_PER_S = 65e9
# What processors are compared with.
_PROCESSOR = "cpu-xeon-8480"
# Highest over nominal clock of servers, about: 3.8 over 2.0 GHz (Intel Xeon 8480+), 3.7 over 2.4 (AMD EPYC 9654), 3.5 over 2.5 (Intel Xeon
# 8259CL), of their product pages.
_HIGHEST_CLOCK = 1.6
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
    cache_bytes : float
        Second-level cache of a core; 0 where unknown.
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
    cache_bytes: float = 0.0
    is_limited: bool = False  # fewer cores than the machine has: a container or a batch system
    devices: int = 1  # that share the memory of the machine

    def share(self, cores: int, devices: int) -> Processor:
        """One of several devices: so many of the cores, and its part of the memory.

        >>> cpu = Processor(
        ...     name="CPU", vendor="", family=0, sockets=1, cores=8, clock_hz=2e9, clock_source="", flags=frozenset(), memory_bytes=8e9
        ... )
        >>> cpu.share(2, 4).cores, cpu.share(2, 4).memory_bytes
        (2, 2000000000.0)
        """
        memory = None if self.memory_bytes is None else self.memory_bytes / devices
        is_part = (cores, devices) != (self.cores, 1)
        return replace(self, cores=cores, memory_bytes=memory, is_limited=self.is_limited or is_part, devices=devices)


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
        name=clean_text(fields.get("Model name") or info.get("model name") or fields.get("Architecture") or "")
        or "CPU",
        vendor=fields.get("Vendor ID") or info.get("vendor_id") or "",
        family=_whole(fields.get("CPU family") or info.get("cpu family")) or 0,
        sockets=sockets,
        cores=cores,
        clock_hz=clock_hz,
        clock_source=clock_source,
        flags=frozenset((fields.get("Flags") or info.get("flags") or info.get("Features") or "").split()),
        memory_bytes=_memory(system),
        cache_bytes=_cache(fields.get("L2 cache", "")),
        is_limited=cores < physical,
    )


def _cache(text: str) -> float:
    """Bytes of one cache, as lscpu counts them: all of them together since version 2.37, one of them before.

    >>> _cache("4 MiB (2 instances)"), _cache("1024K"), _cache("")
    (2097152.0, 1048576.0, 0.0)
    """
    found = re.fullmatch(r"([\d.]{1,9}) ?([KM])(?:iB)?(?: \((\d{1,6}) instances?\))?", text.strip())
    return float(found[1]) * {"K": _KIB, "M": _KIB**2}[found[2]] / int(found[3] or 1) if found else 0.0


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


# Flags that a processor has -> FLOPs of a core per cycle in fp32, and its units; see `flop_per_cycle`.
_UNITS: tuple[tuple[frozenset[str], int, str], ...] = (
    (frozenset({"avx512f"}), 64, "two 512-bit multiply-add units"),
    (frozenset({"avx2", "fma"}), 32, "two 256-bit multiply-add units"),
    (frozenset({"avx"}), 16, "a 256-bit addition and a multiplication"),
    (frozenset({"asimd"}), 16, "two 128-bit multiply-add units"),
    (frozenset({"neon"}), 16, "two 128-bit multiply-add units"),
    (frozenset(), 8, "a 128-bit addition and a multiplication"),
)


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
    fp32, why = next((rate, units) for needed, rate, units in _UNITS if needed <= flags)
    if "avx512f" in flags and processor.vendor == "AuthenticAMD" and processor.family <= 25:
        fp32, why = 32, "AVX-512 on two 256-bit units"
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
    bogus = number_in(fields.get("BogoMIPS"))
    if bogus and fields.get("Architecture", "").startswith("x86") and bogus > 1000:
        return bogus / 2 * 1e6, "lscpu, half of the BogoMIPS: the time stamp counter runs at the base clock"
    for name in ("CPU max MHz", "CPU MHz"):
        value = number_in(fields.get(name))
        if value and value > 100:
            return value * 1e6, f"lscpu, {name}"
    value = number_in(info.get("cpu MHz"))
    return (value * 1e6, "/proc/cpuinfo, cpu MHz now") if value and value > 100 else (_ASSUMED_HZ, "")


def _quota_cpus(system: System) -> float | None:
    """CPUs that a control group allows (cgroup v2, then v1)."""
    words = (system.read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(words) != 2:
        words = [system.read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    quota, period = (number_in(word) for word in words)
    return quota / period if quota and period else None


def _memory(system: System) -> float | None:
    """Memory of the machine, or what a control group leaves of it."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", system.read("/proc/meminfo") or "", flags=re.MULTILINE)
    limits = [number_in(system.read("/sys/fs/cgroup/memory.max")), float(total[1]) * _KIB if total else None]
    known = [limit for limit in limits if limit]
    return min(known) if known else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) and int(text) > 0 else None


_GIB = 2**30
# What a driver reports is a little less than the nominal size: an H100 of 80 GiB has 81,559 MiB, a T4 of 16 GiB 15,360 MiB.
_MEMORY_TOLERANCE = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevice:
    """A device of the machine.

    Attributes
    ----------
    name : str
        Of the bundled file, or of the new one.
    label : str
        What the machine calls it.
    usual_cluster : str
        Bundled cluster that it usually stands in: measured efficiencies of its links.
    facts : tuple of Fact
        Contents of a new device file; empty where the bundled file describes it.
    driver_memory : Fact or None
        What the driver shows of the memory of a bundled device.
    """

    name: str
    label: str
    usual_cluster: str
    facts: tuple[Fact, ...] = ()
    driver_memory: Fact | None = None
    efficiency: tuple[tuple[str, float], ...] = ()
    efficiency_source: str = ""

    @property
    def is_bundled(self) -> bool:
        """Whether a bundled file describes it."""
        return not self.facts


# Names of boards as their tools print them, without "NVIDIA ", whose bundled files are those that `planner.files.naming` says. The whole
# name must match: a "Laptop GPU" or a "D" of the same number is another device.
_PRINTED = re.compile(
    "|".join(
        (
            r"GB[23]00|GH200 (120|480)GB|B200|B300( SXM6 AC)?|GeForce RTX 5090",
            r"H20|H200|H100 (80GB HBM3|SXM5?( 80GB)?|PCIe|NVL)|H800",
            r"L4|L40S?|GeForce RTX 4090|RTX 6000 Ada Generation",
            r"A800-SXM4-80GB|A100-SXM4-[48]0GB|A100-PCIE-[48]0GB|A100 80GB PCIe|A10G?|A30|A40",
            r"RTX A[456]000|GeForce RTX 30[789]0",
            r"(Tesla )?T4|GeForce RTX 2080 Ti|TITAN RTX|Quadro RTX [68]000",
            r"(Tesla )?V100-(SXM[23]|PCIE)-(16GB|32GB(-LS)?)|(Tesla )?V100S-PCIE-32GB|TITAN V",
            r"(Tesla )?P100-(SXM2-16GB|PCIE-1[26]GB)|Tesla P(4|40)|GeForce GTX (1070|1080( Ti)?)",
            r"TITAN Xp( COLLECTORS EDITION)?|TITAN X \(Pascal\)",
            r"Tesla M40( 24GB)?|GeForce GTX (980|TITAN X)",
            r"Tesla K(80|40[cmst]?|20[cms]?|20Xm?)|GeForce GTX TITAN Black",
            r"AMD Instinct (MI(355|325|300)X( OAM)?|MI250X.*|MI210|MI100)",
        )
    ),
    flags=re.IGNORECASE,
)
# A device that is not bundled borrows what cannot be detected from one of the same architecture: by a word in its name, then by the
# compute capability in brackets (NVIDIA, CUDA GPUs), the most common board of each; the last is the least known.
_NEAREST: tuple[tuple[str, str, str], ...] = (
    (r"H200", "h200", "pcie5-node"),
    (r"H100.*(NVL|PCI)", "h100-pcie", "pcie5-node"),
    (r"[HA]100.*SXM.*64", "a100-80gb", "dgx-a100"),
    (r"V100.*16", "v100-16gb", "pcie3-fdr"),
    (r"V100", "v100-32gb", "pcie3-fdr"),
    (r"P100", "p100", "pcie3-fdr"),
    (r"\bA10\b", "a10g", "pcie4-node"),
    (r"RTX (3080|3090)", "rtx-3090", "pcie4-node"),
    (r"\[10\.\d\]$", "b200", "dgx-b200"),
    (r"\[12\.\d\]$", "rtx-4090", "pcie5-node"),
    (r"\[9\.0\]$", "h100-pcie", "pcie5-node"),
    (r"\[8\.9\]$", "rtx-4090", "pcie4-node"),
    (r"\[8\.0\]$", "a100-40gb", "pcie4-node"),
    (r"\[8\.\d\]$", "rtx-3090", "pcie4-node"),
    (r"\[7\.5\]$", "t4", "pcie3-fdr"),
    (r"\[7\.\d\]$", "v100-16gb", "pcie3-fdr"),
    (r"\[6\.0\]$", "p100", "pcie3-fdr"),
    (r"\[6\.\d\]$", "gtx-1080ti", "pcie3-fdr"),
    (r"\[5\.\d\]$", "titan-x", "pcie3-fdr"),
    (r"\[3\.\d\]$", "k40", "pcie3-fdr"),
    (r"", "t4", "pcie3-fdr"),
)


# What CUDA calls a part of a GPU: "NVIDIA A100-SXM4-40GB MIG 3g.20gb" (MIG User Guide; also "1g.10gb+me").
_INSTANCE = re.compile(r"\s+MIG\s+[0-9].*$")


def device_of_gpu(gpu: Gpu) -> FoundDevice:
    """The bundled device that a GPU is, or a new one with the rates of the nearest.

    Examples
    --------
    >>> device_of_gpu(Gpu(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=81559 * 2**20)).name
    'h100-sxm'
    >>> strange = device_of_gpu(Gpu(index=0, name="NVIDIA L20", memory_bytes=46068 * 2**20, compute_capability="8.9"))
    >>> strange.name, [fact.key for fact in strange.facts if not fact.is_known]
    ('nvidia-l20', ['memory_bandwidth', 'peak'])
    """
    word = re.sub(r"^NVIDIA\s+", "", gpu.name)
    whole = _INSTANCE.sub("", word)
    if whole != word:
        word, gpu = whole, replace(gpu, is_cut=True)
    known, cluster = device_called(word) if _PRINTED.fullmatch(word) else (None, "")
    if known is None:
        named = f"{word} [{gpu.compute_capability or ''}]"
        known, cluster = next((name, usual) for pattern, name, usual in _NEAREST if re.search(pattern, named))
    elif _same_memory(known, gpu.memory_bytes) and not gpu.is_cut:
        shown = None
        if gpu.memory_bytes is not None:
            text = f"{round(gpu.memory_bytes / 2**20)} MiB"
            shown = Fact(key="driver_memory", text=text, source="nvidia-smi, memory.total")
        return FoundDevice(name=known, label=gpu.name, usual_cluster=cluster, driver_memory=shown)
    # Another board; or the same with another amount of memory, or cut by MIG.
    return FoundDevice(name=_slug(gpu.name), label=gpu.name, usual_cluster=cluster, facts=_borrowed(gpu, known))


def _borrowed(gpu: Gpu, nearest: str) -> tuple[Fact, ...]:
    """A device file with another's rates."""
    content = _content(nearest)
    assumed = f"as bundled {nearest}"
    cut = " (MIG is on: an instance has only a part of this)" if gpu.is_cut else ""
    size = gpu.memory_bytes
    memory = f"{number_text(round(size / _GIB, 2))} GiB" if size else str(content["memory"])
    rates = ", ".join(f"{key}: {value}" for key, value in content["peak"].items())
    return (
        Fact(
            key="memory",
            text=memory,
            source=f"nvidia-smi, memory.total{cut}" if size else assumed,
            is_known=size is not None,
        ),
        Fact(key="memory_bandwidth", text=str(content["memory_bandwidth"]), source=assumed + cut, is_known=False),
        Fact(key="peak", text=f"{{{rates}}}", source=assumed + cut, is_known=False, is_mapping=True),
    )


def device_of_processor(processor: Processor) -> FoundDevice:
    """The processors of a machine as one device: peak = cores x highest clock x FLOPs per cycle.

    Nobody but the firmware knows how many memory modules there are: as few as a core can fill, as many as a socket has. A core has about
    12 line fills of 64 bytes in flight over some 80 ns: 10 GB/s (McCalpin, "Memory Bandwidth Requirements", 2010, and Little's law), and
    up to 48 of its second-level cache since Intel's Ice Lake (Intel 64 and IA-32 Architectures Optimization Reference Manual): 30 GB/s over
    100 ns; eight channels of DDR4-3200 are 204.8 GB/s.

    Rates are what no kernel exceeds, so that a calibration may find a core that is faster than usual; the fractions are what is usual.
    """
    rates, why = flop_per_cycle(processor)
    clock_ghz = processor.clock_hz * _HIGHEST_CLOCK / 1e9
    cores = f"{processor.cores} core{'s' if processor.cores > 1 else ''}"
    peaks = ", ".join(
        f"{key}: {number_text(processor.cores * clock_ghz * rate)} GFLOP/s" for key, rate in rates.items()
    )
    counted = "; ".join(f"{rate} FLOP per core and cycle in {key}" for key, rate in rates.items())
    usual, bandwidth = (min(rate * processor.cores, 204.8e9 * processor.sockets) for rate in (10e9, 30e9))
    size = processor.memory_bytes
    limited = " that this process may use" if processor.is_limited else ""
    shared = f", shared by {processor.devices} devices" if processor.devices > 1 else ""
    return FoundDevice(
        name=_slug(f"cpu-{processor.name}-{cores}"),
        label=f"{processor.name}, {cores}",
        usual_cluster="",
        facts=(
            Fact(
                key="memory",
                text=f"{number_text(round((size or 8 * _GIB) / _GIB, 2))} GiB",
                source=f"/proc/meminfo or the limit of the control group{shared}" if size else "nothing states it",
                is_known=size is not None,
            ),
            Fact(
                key="memory_bandwidth",
                text=f"{number_text(bandwidth / 1e9)} GB/s",
                source="30 GB/s per core, at most 204.8 GB/s (eight channels of DDR4-3200) per socket; measure it: planner measure "
                "--only copy",
                is_known=False,
            ),
            Fact(
                key="peak",
                text=f"{{{peaks}}}",
                source=f"estimate - {cores}{limited} x {clock_ghz:.3g} GHz ({_HIGHEST_CLOCK:g} times the nominal clock, as the highest of "
                f"servers) x {counted}: {why}",
                is_known=False,
                is_mapping=True,
            ),
            Fact(
                key="lanes_per_multiprocessor",
                text=str(rates["fp32"] // 2),
                source=f"{why}, as for the peak",
                is_known=False,
                is_mapping=True,
            ),
            Fact(
                key="clock",
                text=f"{number_text(round(processor.clock_hz / 1e9, 3))} GHz",
                source=processor.clock_source or "nothing states a clock",
                is_known=bool(processor.clock_source),
            ),
        ),
        efficiency=tuple(
            {
                **_content(_PROCESSOR)["efficiency"],
                "matmul_fraction": round(DEFAULT_EFFICIENCY.matmul_fraction / _HIGHEST_CLOCK, 3),
                "memory_fraction": round(DEFAULT_EFFICIENCY.memory_fraction * usual / bandwidth, 3),
                "fill_outputs": 128.0 * 128.0 / 2 * processor.cores,
                "cache_bytes": processor.cache_bytes * processor.cores,
                "cache_speedup": round(
                    _CACHE_BYTES_PER_S * processor.cores / (DEFAULT_EFFICIENCY.memory_fraction * usual), 1
                ),
            }.items()
        ),
        efficiency_source=f"assumption - matmul_fraction: products run at the nominal clock; memory_fraction: 10 GB/s per core; "
        f"fill_outputs: {cores} x 128 x 128 / 2, half a wave of tiles; cache_bytes: lscpu, second-level caches; "
        f"cache_speedup: 65 GB/s per core (PyTorch on Intel Xeon, model 207); others: as bundled "
        f"{_PROCESSOR}",
    )


def _same_memory(name: str, memory_bytes: float | None) -> bool:
    if memory_bytes is None:
        return True
    from planner.files.loading import load_device

    nominal = load_device(name).device.memory_bytes
    return abs(memory_bytes - nominal) <= _MEMORY_TOLERANCE * nominal


@cache
def _content(name: str) -> dict[str, Any]:
    """A bundled device file as it is written."""
    from planner.files.documents import parse_document
    from planner.files.resources import resolve

    content: dict[str, Any] = dict(parse_document(resolve("devices", name)).value)
    return content


def _slug(text: str) -> str:
    """A name for a file: small letters, digits and hyphens.

    >>> _slug("NVIDIA GeForce RTX 5090")
    'nvidia-geforce-rtx-5090'
    """
    word = re.sub(r"\((r|tm)\)", "", text.lower())
    word = re.sub(r"[^a-z0-9]+", "-", word).strip("-")[:60].strip("-")
    return word or "device"

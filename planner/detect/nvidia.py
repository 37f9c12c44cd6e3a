"""Reads what nvidia-smi prints: GPUs, the matrix of links between them and to network adapters, and the speed of NVLinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.detect.system import System, clean_text, number_in

_MIB = 2**20
_MOST_GPUS = 1024  # of one machine; more is no answer of nvidia-smi
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RELATION = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|PSB|SOC", re.ASCII)
_COLUMN = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\w+|bnxt_re\w+|rdmap\w+|irdma\w+|efa\w+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None where nvidia-smi does not say."""

    index: int
    name: str
    memory_bytes: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    compute_capability: str | None = None
    is_cut: bool = False  # MIG is on


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which links join which GPUs and adapters.

    Attributes
    ----------
    gpus : mapping
        (GPU, GPU) -> relation as nvidia-smi writes it: NV12, PIX, PXB, PHB, NODE, SYS.
    adapters : mapping
        Name of an adapter (mlx5_0) -> its relation to each GPU.
    """

    gpus: Mapping[tuple[int, int], str] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def nvlinks(self, a: int, b: int) -> int:
        """NVLinks between two GPUs, as the matrix counts them.

        >>> Topology(gpus={(0, 1): "NV12", (0, 2): "SYS"}).nvlinks(0, 1)
        12
        """
        relation = self.gpus.get((a, b), "")
        return int(relation[2:]) if relation.startswith("NV") else 0


def find_gpus(system: System) -> tuple[Gpu, ...]:
    """GPUs of the machine by index; none where there are none, or no driver."""
    base = system.run("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")
    if base is None:
        return parse_gpu_list(system.run("nvidia-smi", "-L") or "")
    # Asked apart: a driver that does not know one of the fields answers none of them.
    links = system.run(
        "nvidia-smi", "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits"
    )
    more = system.run("nvidia-smi", "--query-gpu=index,compute_cap,mig.mode.current", "--format=csv,noheader,nounits")
    return parse_gpus(base, links or "", more or "")


def parse_gpus(base: str, links: str = "", more: str = "") -> tuple[Gpu, ...]:
    """Read answers of ``nvidia-smi --query-gpu``; lines that make no sense are left out.

    Examples
    --------
    >>> parse_gpus("0, NVIDIA H100 80GB HBM3, 81559", "0, 5, 16", "0, 9.0, Disabled")[0].pcie_generation
    5
    >>> parse_gpus("No devices were found")
    ()
    """
    pcie, other = _by_index(links), _by_index(more)
    gpus = []
    for index, cells in sorted(_by_index(base).items()):
        memory = number_in(cells[1])
        generation, lanes = (number_in(text) for text in pcie.get(index, ("", "")))
        capability, mig = other.get(index, ("", ""))
        gpus.append(
            Gpu(
                index=index,
                name=clean_text(cells[0]),
                memory_bytes=memory * _MIB if memory else None,
                pcie_generation=int(generation) if generation and 1 <= generation <= 9 else None,
                pcie_lanes=int(lanes) if lanes and 1 <= lanes <= 32 else None,
                compute_capability=capability if re.fullmatch(r"\d{1,2}\.\d", capability) else None,
                is_cut=mig.lower() == "enabled",
            )
        )
    return tuple(gpus)


def parse_gpu_list(text: str) -> tuple[Gpu, ...]:
    """Read ``nvidia-smi -L``.

    >>> parse_gpu_list("GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-1234)")[0].name
    'Tesla V100-SXM2-16GB'
    """
    found = re.findall(r"^GPU (\d{1,4}): (.{1,200}?) \(UUID", text, flags=re.MULTILINE)
    gpus = {int(index): Gpu(index=int(index), name=clean_text(name)) for index, name in found}
    return tuple(gpus[index] for index in sorted(gpus))[:_MOST_GPUS]


def parse_topology(text: str) -> Topology:
    """Links of a machine as ``nvidia-smi topo -m`` has them; none where it says nothing.

    It prints a table with a header of GPUs and adapters, then the legend that names the adapters.
    """
    lines = [_ESCAPES.sub("", line).rstrip() for line in text.splitlines()]
    start = next((n for n, line in enumerate(lines) if re.match(r"\s*GPU0\b", line)), None)
    if start is None:
        return Topology()
    header: list[str] = []
    for word in lines[start].split():
        if not _COLUMN.fullmatch(word):
            break
        header.append(word)
    called = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)\s*$", "\n".join(lines), flags=re.MULTILINE))
    gpus: dict[tuple[int, int], str] = {}
    adapters: dict[str, dict[int, str]] = {}
    for line in lines[start + 1 :]:
        name, *cells = line.split() or [""]
        cells = cells[: len(header)]
        if name not in header or len(cells) < len(header) or not all(_RELATION.fullmatch(cell) for cell in cells):
            continue
        for column, cell in zip(header, cells, strict=True):
            if not column.startswith("GPU") or cell == "X":
                continue
            other = int(column[3:])
            if name.startswith("GPU"):
                gpus[int(name[3:]), other] = cell
            else:
                adapters.setdefault(called.get(name, name), {})[other] = cell
    return Topology(gpus=gpus, adapters=adapters)


def parse_nvlinks(text: str) -> dict[int, list[float]]:
    r"""Bytes/s and direction of every active NVLink by GPU, from ``nvidia-smi nvlink -s``; links that are down do not count.

    >>> parse_nvlinks("GPU 0: A100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n")
    {0: [25000000000.0]}
    """
    links: dict[int, list[float]] = {}
    gpu: int | None = None
    for line in text.splitlines():
        heading = re.match(r"GPU (\d{1,4}):", line)
        if heading:
            gpu = int(heading[1])
        speed = re.match(r"\s*Link \d+: (\d{1,4}(?:\.\d+)?) GB/s", line)
        if speed and gpu is not None and float(speed[1]) > 0:
            links.setdefault(gpu, []).append(float(speed[1]) * 1e9)
    return links


def _by_index(text: str) -> dict[int, tuple[str, ...]]:
    """Lines "index, cell, cell"; the last line of an index counts."""
    rows = {}
    for line in text.splitlines():
        first, *rest = (cell.strip() for cell in line.split(","))
        if len(rest) == 2 and re.fullmatch(r"\d{1,4}", first) and int(first) < _MOST_GPUS:
            rows[int(first)] = tuple(rest)
    return rows

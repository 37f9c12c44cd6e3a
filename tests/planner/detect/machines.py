"""Machines made of text: what their programs print and their files hold, in the format of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NO_GPU_LSCPU = """\
Architecture:                            x86_64
CPU(s):                                  64
On-line CPU(s) list:                     0-63
Vendor ID:                               GenuineIntel
Model name:                              Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz
CPU family:                              6
Thread(s) per core:                      2
Core(s) per socket:                      16
Socket(s):                               2
CPU max MHz:                             3200.0000
BogoMIPS:                                4000.00
Flags:                                   fpu sse sse2 avx avx2 fma avx512f avx512dq
"""
MEMINFO = "MemTotal:       263778152 kB\nMemFree:        200000000 kB\nMemAvailable:   240000000 kB"


@dataclass(kw_only=True)
class RecordedSystem:
    """Answers from tables; everything else is missing."""

    outputs: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    cpus: int | None = None

    def run(self, program: str, *arguments: str) -> str | None:
        return self.outputs.get((program, *arguments))

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, folder: str) -> Sequence[str]:
        start = folder.rstrip("/") + "/"
        return sorted({path[len(start) :].split("/")[0] for path in self.files if path.startswith(start)})

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(path + "/") for name in self.files)

    def usable_cpus(self) -> int | None:
        return self.cpus


BASE = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")
LINKS = (
    "nvidia-smi",
    "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max",
    "--format=csv,noheader,nounits",
)
MORE = ("nvidia-smi", "--query-gpu=index,compute_cap,mig.mode.current", "--format=csv,noheader,nounits")
TOPOLOGY = ("nvidia-smi", "topo", "-m")
NVLINKS = ("nvidia-smi", "nvlink", "-s")


def queries(count: int, name: str, mebibytes: int, generation: int, capability: str, mig: str = "[N/A]") -> dict:
    return {
        BASE: "".join(f"{i}, {name}, {mebibytes}\n" for i in range(count)),
        LINKS: "".join(f"{i}, {generation}, 16\n" for i in range(count)),
        MORE: "".join(f"{i}, {capability}, {mig}\n" for i in range(count)),
    }


def nvlink_status(count: int, name: str, links: int, speed: str, down: int = 0) -> str:
    lines = []
    for i in range(count):
        lines.append(f"GPU {i}: {name} (UUID: GPU-0000000{i}-1111-2222-3333-444444444444)")
        lines += [f"\t Link {n}: {speed} GB/s" for n in range(links)]
        lines += [f"\t Link {n}: <inactive>" for n in range(links, links + down)]
    return "\n".join(lines) + "\n"


def infiniband(adapters: Mapping[str, tuple[str, str, str]]) -> dict[str, str]:
    """Adapter -> state, rate, link layer."""
    files = {}
    for name, (state, rate, layer) in adapters.items():
        folder = f"/sys/class/infiniband/{name}/ports/1"
        files |= {f"{folder}/state": state, f"{folder}/rate": rate, f"{folder}/link_layer": layer}
    return files


def _table(header: Sequence[str], rows: Mapping[str, Sequence[str]], tail: str) -> str:
    # nvidia-smi underlines the header with escape codes, and pads cells with blanks before tabs.
    lines = ["\t\x1b[4m" + "\t".join(header) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for name, cells in rows.items():
        ending = "\t0-55,112-167\t0\t\tN/A" if name.startswith("GPU") else "\t\t\t\t "
        lines.append(name + "\t" + "\t".join(f" {cell} " if cell == "X" else cell for cell in cells) + ending)
    return "\n".join(lines) + "\n\n" + tail


LEGEND = """\
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

"""


def dgx_h100() -> RecordedSystem:
    """Eight GPUs behind NVSwitch, an adapter of 400 Gb/s beside each, two more for storage, Ethernet for people."""
    gpus, nics = [f"GPU{i}" for i in range(8)], [f"NIC{i}" for i in range(10)]
    rows = {}
    for i in range(8):
        near = ["PXB" if n == i else ("NODE" if n // 4 == i // 4 and n < 8 else "SYS") for n in range(10)]
        rows[gpus[i]] = ["X" if j == i else "NV18" for j in range(8)] + near
    for n in range(10):
        near = ["PXB" if n == i else ("NODE" if n // 4 == i // 4 and n < 8 else "SYS") for i in range(8)]
        rows[nics[n]] = near + ["X" if m == n else "SYS" for m in range(10)]
    names = [f"mlx5_{n}" for n in range(10)]
    tail = LEGEND + "NIC Legend:\n\n" + "\n".join(f"  NIC{n}: {name}" for n, name in enumerate(names)) + "\n"
    outputs = queries(8, "NVIDIA H100 80GB HBM3", 81559, 5, "9.0", "Disabled")
    outputs[TOPOLOGY] = _table([*gpus, *nics], rows, tail)
    outputs[NVLINKS] = nvlink_status(8, "NVIDIA H100 80GB HBM3", 18, "26.562")
    files = infiniband(dict.fromkeys(names, ("4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand")))
    files |= {"/sys/class/net/eno3/operstate": "up", "/sys/class/net/eno3/speed": "10000"}
    files |= {"/sys/class/net/eno3/device/vendor": "0x8086"}
    return RecordedSystem(outputs=outputs, files=files)


def four_a100_pcie(*, bridges: bool) -> RecordedSystem:
    """Four boards on PCI Express, in pairs joined by NVLink bridges or not; one adapter of 100 Gb/s (RoCE)."""
    pairs = {(0, 1), (1, 0), (2, 3), (3, 2)} if bridges else set()
    relation = {
        (i, j): "NV12" if (i, j) in pairs else "SYS" if i // 2 != j // 2 else "NODE" for i in range(4) for j in range(4)
    }
    rows = {
        f"GPU{i}": ["X" if i == j else relation[i, j] for j in range(4)] + ["NODE" if i < 2 else "SYS"]
        for i in range(4)
    }
    rows["mlx5_0"] = ["NODE", "NODE", "SYS", "SYS", "X"]
    outputs = queries(4, "NVIDIA A100 80GB PCIe", 81920, 4, "8.0", "Disabled")
    outputs[TOPOLOGY] = _table([*(f"GPU{i}" for i in range(4)), "mlx5_0"], rows, LEGEND)
    if bridges:
        outputs[NVLINKS] = nvlink_status(4, "NVIDIA A100 80GB PCIe", 12, "25")
    files = infiniband(
        {
            "mlx5_0": ("4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet"),
            "mlx5_1": ("1: DOWN", "10 Gb/sec (4X SDR)", "Ethernet"),
        }
    )
    return RecordedSystem(outputs=outputs, files=files)


def dgx1_v100() -> RecordedSystem:
    """The hybrid cube mesh of a DGX-1: one or two links to four of the others, none to the rest; four adapters."""
    # The cells are those of NVIDIA's white paper WP-08437: six links per GPU.
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (6, 7), (4, 7), (5, 6)}
    single = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}

    def cell(i: int, j: int) -> str:
        pair = (min(i, j), max(i, j))
        return (
            "X"
            if i == j
            else "NV2"
            if pair in double
            else "NV1"
            if pair in single
            else "SYS"
            if i // 4 != j // 4
            else "PHB"
        )

    rows = {
        f"GPU{i}": [cell(i, j) for j in range(8)] + ["PIX" if n == i // 2 else "SYS" for n in range(4)]
        for i in range(8)
    }
    for n in range(4):
        rows[f"mlx5_{n}"] = ["PIX" if n == i // 2 else "SYS" for i in range(8)] + [
            "X" if n == m else "SYS" for m in range(4)
        ]
    outputs = queries(8, "Tesla V100-SXM2-16GB", 16160, 3, "7.0")
    outputs[TOPOLOGY] = _table([*(f"GPU{i}" for i in range(8)), *(f"mlx5_{n}" for n in range(4))], rows, LEGEND)
    return RecordedSystem(
        outputs=outputs,
        files=infiniband({f"mlx5_{n}": ("4: ACTIVE", "100 Gb/sec (4X EDR)", "InfiniBand") for n in range(4)}),
    )


def without_gpu() -> RecordedSystem:
    """Two sockets and a virtual adapter that does not know its speed."""
    files = {
        "/proc/meminfo": MEMINFO,
        "/sys/class/net/lo/operstate": "unknown",
        "/sys/class/net/docker0/operstate": "up",
        "/sys/class/net/eth0/operstate": "up",
        "/sys/class/net/eth0/speed": "-1",
        "/sys/class/net/eth0/device/vendor": "0x1af4",
    }
    return RecordedSystem(outputs={("lscpu",): NO_GPU_LSCPU}, files=files, cpus=64)

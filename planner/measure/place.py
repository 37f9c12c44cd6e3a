"""The device that is measured: which one it is, how long calls take on it, and what it has memory for."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.core.errors import UsageError
from planner.detect.devices import FoundDevice, Processor, device_of_gpu, device_of_processor, find_processor
from planner.detect.nvidia import Gpu
from planner.detect.system import System
from planner.measure.processes import Processes

__all__ = ["Place", "place_of"]

# Share of the free memory that tensors may take: other programs and the library's workspaces need some.
_MEMORY_SHARE = {"cuda": 0.9, "cpu": 0.5}
_KIB = 2**10
_BUSY_SHARE = 0.5  # of the cores at work for others
_NO_LIMIT = 2.0**33  # of a machine that does not say how much memory it has: 8 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where kernels run.

    Attributes
    ----------
    kind : "cuda" or "cpu"
    device : torch.device
    found : FoundDevice
    memory_bytes : float
        That tensors may take together.
    precisions : tuple of str
        Number formats that the device computes in, not only emulates.
    software : str
        Library and versions.
    remark : str
        What makes the times doubtful; empty where nothing does.
    """

    kind: str
    device: Any
    found: FoundDevice
    memory_bytes: float
    precisions: tuple[str, ...]
    software: str
    remark: str = ""

    def timer(self, torch: Any) -> Callable[[Callable[[], object], int], float]:
        """Timer of calls on this device: events of the GPU, or the processor's clock."""
        return _gpu_timer(torch) if self.kind == "cuda" else _processor_timer


def place_of(torch: Any, system: System, processes: Processes, wanted: str | None) -> Place:
    """Pick the device of this process.

    Parameters
    ----------
    torch : module
    system : System
    processes : Processes
    wanted : "cuda", "cpu" or None
        None: a GPU where there is one.

    Raises
    ------
    UsageError
        No GPU, or more processes on this machine than GPUs.
    """
    has_gpu = bool(torch.cuda.is_available())
    if wanted == "cuda" and not has_gpu:
        raise UsageError(
            f"--device cuda: PyTorch {torch.__version__} sees no GPU here (--device cpu measures the processors)"
        )
    kind = wanted or ("cuda" if has_gpu else "cpu")
    return _gpu(torch, processes) if kind == "cuda" else _processor(torch, system, processes)


def _gpu(torch: Any, processes: Processes) -> Place:
    count = int(torch.cuda.device_count())
    if processes.local_ranks > count:
        raise UsageError(
            f"{processes.local_ranks} processes and {count} GPUs on this machine: start one process per GPU "
            f"(torchrun --nproc-per-node {count})"
        )
    index = processes.local_rank
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    free, _ = torch.cuda.mem_get_info(index)
    is_amd = getattr(torch.version, "hip", None) is not None
    formats = ["fp32", "fp16"]
    if is_amd or properties.major >= 8:
        formats = ["fp32", "bf16", "fp16"] if is_amd else ["fp32", "tf32", "bf16", "fp16"]
    elif (
        properties.major < 7 and capability != "6.0"
    ):  # half the rate of fp32 and less before tensor cores, but for P100
        formats = ["fp32"]
    gpu = Gpu(
        index=index,
        name=str(properties.name),
        memory_bytes=float(properties.total_memory),
        compute_capability=None if is_amd else capability,
    )
    runtime = (
        f"HIP {torch.version.hip}" if is_amd else f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    )
    return Place(
        kind="cuda",
        device=torch.device("cuda", index),
        found=device_of_gpu(gpu),
        memory_bytes=free * _MEMORY_SHARE["cuda"],
        precisions=tuple(formats),
        software=f"PyTorch {torch.__version__}, {runtime}",
    )


def _processor(torch: Any, system: System, processes: Processes) -> Place:
    processor = find_processor(system)
    # torchrun allows each process one thread; kernels are timed by the first process alone, on all cores.
    torch.set_num_threads(processor.cores)
    return Place(
        kind="cpu",
        device=torch.device("cpu"),
        found=device_of_processor(processor),
        memory_bytes=_free_memory(system, processor) * _MEMORY_SHARE["cpu"] / processes.local_ranks,
        precisions=("fp32", "bf16") if {"amx_bf16", "avx512_bf16", "bf16"} & processor.flags else ("fp32",),
        software=f"PyTorch {torch.__version__}, {processor.cores} threads",
        remark=_load_remark(processor.cores),
    )


def _load_remark(cores: int) -> str:
    """Other programs on the cores that are timed: threads wait for one another, and a short kernel takes a whole time slice."""
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return ""
    if load < _BUSY_SHARE * cores:
        return ""
    return f"this machine is busy (load {load:.1f} on {cores} cores): the times are too long and scatter; measure when it is idle"


def _free_memory(system: System, processor: Processor) -> float:
    free = re.search(r"^MemAvailable:\s+(\d+) kB", system.read("/proc/meminfo") or "", flags=re.MULTILINE)
    known = [size for size in (float(free[1]) * _KIB if free else None, processor.memory_bytes) if size]
    return min(known, default=_NO_LIMIT)


def _processor_timer(call: Callable[[], object], count: int) -> float:
    start_s = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start_s


def _gpu_timer(torch: Any) -> Callable[[Callable[[], object], int], float]:
    def timer(call: Callable[[], object], count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return timer

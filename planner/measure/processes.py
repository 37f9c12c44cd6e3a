"""Which of several processes this one is, as torchrun says in the environment, the exchange between them, and the device of each.

This is the one place that imports PyTorch, which is an extra: everything else gets the module handed in. Of the device: which one it
is, how long calls take on it, and what it has memory for.
"""

from __future__ import annotations

import importlib
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.core.errors import UsageError
from planner.core.numbers import counted
from planner.detect.devices import FoundDevice, Processor, device_of_gpu, device_of_processor, find_processor
from planner.detect.nvidia import Gpu
from planner.detect.system import System


def load_torch() -> Any:
    """PyTorch.

    Raises
    ------
    UsageError
        It is not installed, or cannot be loaded; the message names the extra.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about NumPy, which it does not need here
            torch = importlib.import_module("torch")
            importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torch.distributed"):
            raise UsageError(f"PyTorch cannot be loaded: it lacks the module {error.name}") from None
        raise UsageError(
            "planner measure needs PyTorch, which is not installed; install the extra 'torch': pip install 'paleo-planner[torch]'"
        ) from None
    except (ImportError, OSError) as error:  # a library of CUDA that is missing or of another version
        raise UsageError(f"PyTorch cannot be loaded: {str(error).splitlines()[0][:300]}") from None
    return torch


_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MOST_RANKS = 1_000_000
# Of a collective or of the meeting of all processes: longer than any message here takes.
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Which of all processes one is."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.ranks // self.local_ranks

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0


def threads_of(environment: Mapping[str, str]) -> int | None:
    """Threads that OMP_NUM_THREADS gives a process; None where it is not set. Of a list, one number per nested level, the first counts.

    Raises
    ------
    UsageError
        It is no whole number above 0.

    Examples
    --------
    >>> threads_of({"OMP_NUM_THREADS": "4"}), threads_of({"OMP_NUM_THREADS": "4,2"}), threads_of({})
    (4, 4, None)
    """
    text = environment.get("OMP_NUM_THREADS", "").strip()
    if not text:
        return None
    first = text.split(",", maxsplit=1)[0].strip()
    if not re.fullmatch(r"0*[1-9]\d{0,5}", first):
        raise UsageError(f"OMP_NUM_THREADS={text[:20]} in the environment is not a whole number from 1")
    return int(first)


def processes_of(environment: Mapping[str, str]) -> Processes:
    """Read what torchrun sets; one process where it does not run.

    Raises
    ------
    UsageError
        The variables contradict one another.

    Examples
    --------
    >>> torchrun = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    >>> processes_of({**torchrun, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}).nodes
    2
    """
    # A shell or a batch system may set some of them for purposes of its own.
    if "WORLD_SIZE" not in environment or (environment["WORLD_SIZE"] == "1" and "RANK" not in environment):
        return Processes()
    missing = [name for name in (*_NAMES, "MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is set in the environment but {', '.join(missing)} is not: start several processes with "
            "torchrun --nproc-per-node N -m planner measure, or unset WORLD_SIZE"
        )
    rank, ranks, local_rank, local_ranks = (_whole(name, environment[name]) for name in _NAMES)
    fits = rank < ranks and local_rank < local_ranks <= ranks and ranks % local_ranks == 0 and local_ranks >= 1
    if not fits:
        said = ", ".join(f"{name}={environment[name]}" for name in _NAMES)
        raise UsageError(
            f"the environment contradicts itself: {said}; ranks count from 0 and every machine has as many processes "
            "(torchrun --nproc-per-node N -m planner measure)"
        )
    return Processes(rank=rank, ranks=ranks, local_rank=local_rank, local_ranks=local_ranks)


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,7}", text) or int(text) > _MOST_RANKS:
        raise UsageError(f"{name}={text[:20]} in the environment is not a whole number from 0")
    return int(text)


class Group:
    """All processes, joined by NCCL (GPUs) or Gloo."""

    def __init__(self, torch: Any, processes: Processes, device: Any) -> None:
        """Meet the others.

        Raises
        ------
        UsageError
            They do not all come.
        """
        import datetime as dt

        self._torch = torch
        self._device = device
        self.processes = processes
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        if not torch.distributed.is_available():
            raise UsageError("this build of PyTorch has no torch.distributed: measure with one process")
        try:
            torch.distributed.init_process_group(self.backend, timeout=dt.timedelta(seconds=_TIMEOUT_S))
        except (RuntimeError, ValueError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UsageError(f"the {processes.ranks} processes do not meet: {reason}") from None

    def worst(self, values: Sequence[float]) -> list[float]:
        """The largest of each over all processes."""
        numbers = self._torch.tensor(list(values), dtype=self._torch.float64, device=self._device)
        self._torch.distributed.all_reduce(numbers, op=self._torch.distributed.ReduceOp.MAX)
        return [float(number) for number in numbers.tolist()]

    def agree(self, value: float) -> float:
        """The largest over all processes."""
        return self.worst([value])[0]

    def leave(self) -> None:
        """Part from the others."""
        self._torch.distributed.destroy_process_group()


# Share of the free memory that tensors may take: other programs and the library's workspaces need some.
_MEMORY_SHARE = {"cuda": 0.9, "cpu": 0.5}
_KIB = 2**10
_BUSY_SHARE = 0.5  # of the cores at work for others
_CLOCK_S = 1e-7  # that clocks and calls of Python can tell
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
    cores : int
        Of a processor, those that one process computes on; 0 for a GPU.
    threads : int
        Of a process on a processor; 0 for a GPU, and where messages are timed, by the clock of the machine.
    """

    kind: str
    device: Any
    found: FoundDevice
    memory_bytes: float
    precisions: tuple[str, ...]
    software: str
    remark: str = ""
    cores: int = 0
    threads: int = 0

    def timer(self, torch: Any) -> Callable[[Callable[[], object], int], float]:
        """Timer of calls on this device: events of the GPU, or a clock of the processor (`_processor_timer`)."""
        return _gpu_timer(torch) if self.kind == "cuda" else _processor_timer(self.threads)


def place_of(torch: Any, system: System, processes: Processes, wanted: str | None, threads: int | None = None) -> Place:
    """Pick the device of this process.

    Parameters
    ----------
    torch : module
    system : System
    processes : Processes
    wanted : "cuda", "cpu" or None
        None: a GPU where there is one.
    threads : int, optional
        Of a process on processors; the cores are divided among the processes unless given.

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
    return _gpu(torch, processes) if kind == "cuda" else _processor(torch, system, processes, threads)


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


def _processor(torch: Any, system: System, processes: Processes, wanted: int | None) -> Place:
    whole = find_processor(system)
    # As training does: OMP_NUM_THREADS, which torchrun sets to 1 for several processes, else all cores among the processes.
    threads = wanted or max(whole.cores // processes.local_ranks, 1)
    torch.set_num_threads(threads)
    processor = whole.share(min(threads, whole.cores), processes.local_ranks)
    from_environment = " (OMP_NUM_THREADS)" if wanted else ""
    return Place(
        kind="cpu",
        device=torch.device("cpu"),
        found=device_of_processor(processor),
        memory_bytes=_free_memory(system, whole) * _MEMORY_SHARE["cpu"] / processes.local_ranks,
        precisions=("fp32", "bf16") if {"amx_bf16", "avx512_bf16", "bf16"} & processor.flags else ("fp32",),
        software=f"PyTorch {torch.__version__}, {counted(threads, 'thread')}{from_environment}",
        remark=_threads_remark(threads * processes.local_ranks, whole.cores) or _load_remark(whole.cores),
        cores=processor.cores,
        threads=threads,
    )


def _threads_remark(threads: int, cores: int) -> str:
    """More threads than cores: they take turns."""
    if threads <= cores:
        return ""
    return f"{threads} threads share {counted(cores, 'core')}: the times are too long; set OMP_NUM_THREADS lower"


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


def _processor_timer(threads: int) -> Callable[[Callable[[], object], int], float]:
    """Time of the machine, or of this process where it has one thread: what other programs take of the core does not count then.

    Several threads wait for one another, which their own time does not show.
    """
    clock = time.process_time if threads == 1 else time.perf_counter

    def timer(call: Callable[[], object], count: int) -> float:
        start_s = clock()
        for _ in range(count):
            call()
        return clock() - start_s

    return timer


# Edge of a square product that takes about as long as the kernels between two messages of a step, a millisecond.
_BETWEEN = 384


def message_timer(torch: Any, place: Place) -> Callable[[Callable[[], object], int], float]:
    """Timer of collectives: on processors, what a product before each of them adds is taken out again.

    A step computes between its messages. On processors the system then has to wake the threads that exchange, ranks come late, and
    caches are full of other data: two ranks of gloo take two to four times as long as one message after the other. GPUs start
    their messages from a stream, so that those wait for nobody.
    """
    timer = replace(place, threads=0).timer(torch)
    if place.kind == "cuda":
        return timer
    a, out = torch.ones(_BETWEEN, _BETWEEN), torch.empty(_BETWEEN, _BETWEEN)

    def compute() -> None:
        torch.mm(a, a, out=out)

    def between(call: Callable[[], object], count: int) -> float:
        def both() -> None:
            compute()
            call()

        compute_s = timer(compute, count)
        return max(timer(both, count) - compute_s, _CLOCK_S)

    return between


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

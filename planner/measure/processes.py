"""Which of several processes this one is, as torchrun says in the environment, and the exchange between them.

This is the one place that imports PyTorch, which is an extra: everything else gets the module handed in.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.core.errors import UsageError

__all__ = ["Group", "Processes", "load_torch", "processes_of"]


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

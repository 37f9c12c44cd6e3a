"""What a checkpoint holds, how long training waits for it, when it is safe, and how long it takes to load.

    bytes        = trained weights x (weight + 32-bit copy + optimizer state) + other weights x weight
    to storage   = max(bytes / storage, bytes of the fullest host / (storage, one host))                     [s]
    to the host  = bytes of the fullest rank / (device to host)                                              [s]

- synchronous: training waits until the checkpoint is in storage;
- asynchronous: it waits for the copy to the memory of the host, and the write overlaps (torch.distributed.checkpoint.async_save,
  Megatron-LM --async-save);
- peers: the copy goes on to the memory of another host (GEMINI, SOSP 2023), so that the failure of one host needs no storage.

Every distinct shard is written once. Replicas either share the work (Megatron Core's fully parallel save, torch.distributed.checkpoint), or
the first of them writes all. Loading is taken to move what saving does: one replica reads a shard, and passes it on over the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from costmodel.failures.rates import FailureModel

Mode = Literal["sync", "async", "peers"]
MODES: tuple[Mode, ...] = ("sync", "async", "peers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """What a plan saves.

    Attributes
    ----------
    total_bytes : float
        Of a checkpoint.
    rank_bytes : float
        Most that one rank writes.
    ranks_per_host : int
        Ranks of a host that write.

    Examples
    --------
    175e9 weights in 16 bits, with 32-bit copies and two 32-bit moments, over 1,024 ranks that share the work:

    >>> state = SavedState.shared(175e9 * (2 + 4 + 8), ranks=1024, ranks_per_host=8)
    >>> state.total_bytes, round(state.rank_bytes), round(state.host_bytes)
    (2450000000000.0, 2392578125, 19140625000)
    """

    total_bytes: float
    rank_bytes: float
    ranks_per_host: int = 1

    @classmethod
    def shared(cls, total_bytes: float, ranks: int, ranks_per_host: int) -> SavedState:
        """All ranks write as much."""
        return cls(total_bytes=total_bytes, rank_bytes=total_bytes / ranks, ranks_per_host=min(ranks_per_host, ranks))

    @property
    def host_bytes(self) -> float:
        """Most that one host writes."""
        return min(self.rank_bytes * self.ranks_per_host, self.total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Times of a checkpoint.

    Attributes
    ----------
    bytes : float
    stall_s : float
        That training stops.
    write_s : float
        From then on until it is safe.
    load_s : float
    """

    bytes: float
    stall_s: float
    write_s: float
    load_s: float


def checkpoint_of(
    state: SavedState,
    model: FailureModel,
    mode: Mode = "async",
    *,
    copy_bytes_per_s: float = math.inf,
    peer_bytes_per_s: float = math.inf,
) -> Checkpoint:
    """Times of a checkpoint.

    Parameters
    ----------
    state : SavedState
    model : FailureModel
        Storage, and what training waits for besides.
    mode : "sync", "async" or "peers"
    copy_bytes_per_s : float
        From a device to its host, all devices of the host at once.
    peer_bytes_per_s : float
        From a device to another host.

    Examples
    --------
    2 TB from 128 hosts, 100 GB/s of storage, 1 GB/s of each host towards it: the storage needs 20 s, each host 15.6 s.

    >>> storage = FailureModel(name="m", classes=(), snapshot_s=0.5, storage_bytes_per_s=1e11, storage_bytes_per_s_and_host=1e9)
    >>> state = SavedState.shared(2e12, ranks=1024, ranks_per_host=8)
    >>> checkpoint_of(state, storage, "sync")
    Checkpoint(bytes=2000000000000.0, stall_s=20.5, write_s=0.0, load_s=20.0)
    >>> checkpoint_of(state, storage, copy_bytes_per_s=19.53125e9)  # 1.95 GB from each device
    Checkpoint(bytes=2000000000000.0, stall_s=0.6, write_s=20.0, load_s=20.0)
    """
    stored_s = max(state.total_bytes / model.storage_bytes_per_s, state.host_bytes / model.storage_bytes_per_s_and_host)
    copied_s = model.snapshot_s + state.rank_bytes / copy_bytes_per_s
    if mode == "sync":
        return Checkpoint(bytes=state.total_bytes, stall_s=model.snapshot_s + stored_s, write_s=0.0, load_s=stored_s)
    passed_s = state.rank_bytes / peer_bytes_per_s if mode == "peers" else stored_s
    return Checkpoint(bytes=state.total_bytes, stall_s=copied_s, write_s=passed_s, load_s=passed_s)

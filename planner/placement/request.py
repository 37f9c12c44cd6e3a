"""What `planner place` is asked, checked but not yet resolved to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PlaceRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """The options of ``planner place``; None leaves the workload's word."""

    workload: Path  # a network's name where a cluster is given
    cluster: str | None = None
    batch: int = 1  # samples of a micro-batch, with a cluster
    assume_free: tuple[str, ...] = ()  # with a cluster: operators that are not known and are taken to cost nothing
    mode: str = "training"  # or inference, with a cluster
    calibration: str | None = None  # with a cluster
    objective: str = "throughput"
    contiguity: str = "chain"  # chain, convex or none
    method: str = "auto"
    expert: Path | None = None
    num_devices: int | None = None
    num_subgraphs: int | None = None  # calls of an accelerator, for latency
    num_cpus: int | None = None
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    num_micro_batches: int | None = None
    time_limit_s: float = 60.0
    gap: float = 0.0
    seed: int = 0

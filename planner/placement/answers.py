"""Answers of `planner place`, ready for any report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.placement.request import PlaceRequest
from strategies.placement.latency.evaluate import Timing
from strategies.placement.loads import DeviceLoads
from strategies.placement.piper import PiperProblem, PiperResult
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = ["LatencyAnswer", "PiperAnswer", "PlaceAnswer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """A placement with its devices and what it is compared with."""

    request: PlaceRequest
    problem: PlacementProblem
    result: PlacementResult
    loads: DeviceLoads
    one_device: float  # time of everything on one device, memory aside
    contiguous: PlacementResult | None  # the best contiguous placement, where another kind was asked for
    sha256: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyAnswer:
    """A placement for latency, with the times of its subgraphs."""

    request: PlaceRequest
    problem: PlacementProblem
    result: PlacementResult
    timing: Timing
    one_device: float  # latency of one accelerator, memory aside, or of CPUs where operators are not supported
    sha256: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperAnswer:
    """A plan of Piper's problem."""

    request: PlaceRequest
    problem: PiperProblem
    result: PiperResult
    sha256: str
    content: Mapping[str, Any]

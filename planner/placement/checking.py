"""``planner place check``: a placement file judged against its workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputFileError
from planner.placement.check import check_latency, check_throughput
from planner.placement.check_piper import check_piper
from planner.placement.json_file import read_json_file
from planner.placement.piper_file import PiperOverrides, is_piper, piper_from
from planner.placement.placement_file import PlacementFile, read_placement_file
from planner.placement.report import check_report
from planner.placement.workload_file import Overrides, workload_from
from planner.report.blocks import Report

__all__ = ["check_files"]


def check_files(workload: Path, placement: Path) -> tuple[Report, bool]:
    """Recompute objective and constraints from scratch.

    Parameters
    ----------
    workload : Path
        The public JSON format, or Piper's.
    placement : Path
        As written by ``planner place --export``; its limits replace those of the workload.

    Returns
    -------
    report : Report
    ok : bool

    Raises
    ------
    InputFileError
    """
    file = read_json_file(workload)
    claim = read_placement_file(placement)
    piper = is_piper(file.content)
    if piper != (claim.objective == "piper"):
        words = ("is of Piper's format", "is an operator graph")
        message = f"is a placement for {claim.objective}, but {workload.name} {words[0] if piper else words[1]}"
        raise InputFileError([_problem(placement, message)])
    if piper:
        content = {**piper_from(file, PiperOverrides()).content, **claim.limits}
        judged = check_piper(content, claim.stages)
        objective, violations = judged.objective, judged.violations
    else:
        objective, violations = _judged(_overridden(workload_from(file, Overrides()).content, claim), claim)
    report = check_report(placement.name, objective, violations, claim.claimed)
    return report, bool(report.data()["ok"])


def _overridden(content: Mapping[str, Any], claim: PlacementFile) -> Mapping[str, Any]:
    return {**content, **{key: value for key, value in claim.limits.items() if key in content}}


def _judged(content: Mapping[str, Any], claim: PlacementFile) -> tuple[float, tuple[str, ...]]:
    if claim.objective == "latency":
        subgraphs = int(claim.limits.get("subgraphs", 1))
        latency = check_latency(content, claim.device_of, claim.subgraph_of, num_subgraphs=subgraphs)
        return latency.objective, latency.violations
    judged = check_throughput(content, claim.device_of, contiguity=claim.contiguity)
    return judged.objective, judged.violations


def _problem(path: Path, message: str) -> Any:
    from planner.errors import FileProblem

    return FileProblem(path=path, message=message)

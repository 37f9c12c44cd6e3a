"""``planner place check``: a placement file judged against its workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError
from planner.core.request import Mode
from planner.files.json_file import JsonFile, read_workload
from planner.placement.check import check_latency, check_throughput
from planner.placement.check_piper import check_piper
from planner.placement.piper_file import PiperOverrides, is_piper, piper_from
from planner.placement.placement_reader import PlacementFile, read_placement_file
from planner.placement.report import check_report
from planner.placement.workload_file import Overrides, workload_from
from planner.report.blocks import Report

__all__ = ["ModelOfCheck", "check_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOfCheck:
    """What makes an operator graph of a network, as ``planner place`` was told."""

    cluster: str
    batch: int = 1
    mode: Mode = "training"
    assume_free: tuple[str, ...] = ()
    calibration: str | None = None


def check_files(workload: str, placement: Path, model: ModelOfCheck | None = None) -> tuple[Report, bool]:
    """Recompute objective and constraints from scratch.

    Parameters
    ----------
    workload : str
        File of the public JSON format, or of Piper's; a network where ``model`` says on what cluster.
    placement : Path
        As written by ``planner place --export``; its limits replace those of the workload.
    model : ModelOfCheck, optional

    Returns
    -------
    report : Report
    ok : bool

    Raises
    ------
    PlannerError
        A file cannot be used, or a name is not known.
    """
    claim = read_placement_file(placement)
    file = read_workload(Path(workload)) if model is None else _of_model(workload, model, claim)
    piper = is_piper(file.content)
    if piper != (claim.objective == "piper"):
        words = ("is of Piper's format", "is an operator graph")
        message = f"is a placement for {claim.objective}, but {file.path.name} {words[0] if piper else words[1]}"
        raise InputFileError([FileProblem(path=placement, message=message)])
    if piper:
        content = {**piper_from(file, PiperOverrides()).content, **claim.limits}
        judged = check_piper(content, claim.stages)
        objective, violations = judged.objective, judged.violations
    else:
        objective, violations = _judged(_overridden(workload_from(file, Overrides()).content, claim), claim)
    report = check_report(claim, objective, violations, sha256=file.sha256)
    return report, bool(report.data()["ok"])


def _of_model(name: str, model: ModelOfCheck, claim: PlacementFile) -> JsonFile:
    """The operator graph for as many devices as the placement was made for: their number decides on the links."""
    from planner.files.loading import load_cluster
    from planner.placement.model_workload import ModelQuestion, workload_of_model

    devices = claim.limits.get("maxFPGAs")
    several = len(load_cluster(model.cluster).cluster.groups) > 1  # all of whose devices are used
    return workload_of_model(
        ModelQuestion(
            model=name,
            cluster=model.cluster,
            mode=model.mode,
            batch=model.batch,
            assume_free=model.assume_free,
            calibration=model.calibration,
            num_devices=None if several or not devices else int(devices),
        )
    )


def _overridden(content: Mapping[str, Any], claim: PlacementFile) -> Mapping[str, Any]:
    return {**content, **{key: value for key, value in claim.limits.items() if key in content}}


def _judged(content: Mapping[str, Any], claim: PlacementFile) -> tuple[float, tuple[str, ...]]:
    if claim.objective == "latency":
        subgraphs = int(claim.limits.get("subgraphs", 1))
        latency = check_latency(content, claim.device_of, claim.subgraph_of, num_subgraphs=subgraphs)
        return latency.objective, latency.violations
    judged = check_throughput(content, claim.device_of, contiguity=claim.contiguity)
    return judged.objective, judged.violations

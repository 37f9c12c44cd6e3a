"""Writes placements to files: YAML with the devices' operators, the limits that were used and the claim that was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.files.yaml_text import yaml_text
from planner.placement.answers import LatencyAnswer, PiperAnswer, PlaceAnswer
from planner.placement.placement_reader import SCHEMA_VERSION
from strategies.placement.latency.evaluate import CPU
from strategies.placement.piper import PiperPlan, PiperProblem
from strategies.placement.problem import Placement, PlacementProblem

__all__ = ["assignment_of", "piper_stages", "placement_text", "subgraphs_of"]


def assignment_of(problem: PlacementProblem, placement: Placement) -> dict[Any, str]:
    """Name of every node's device."""
    return {problem.node_ids[v]: problem.device_name(d) for v, d in enumerate(placement.device.tolist())}


def subgraphs_of(problem: PlacementProblem, placement: Placement) -> dict[Any, int]:
    """Number of every node's subgraph on its accelerator."""
    numbers = [0] * problem.num_nodes if placement.subgraph is None else placement.subgraph.tolist()
    return dict(zip(problem.node_ids, numbers, strict=True))


def piper_stages(problem: PiperProblem, plan: PiperPlan) -> list[Mapping[str, Any]]:
    """Stages as plain values, in the order of the data."""
    return [
        {
            "data_parallel": stage.data_parallel,
            "tensor_parallel": stage.tensor_parallel,
            "nodes": [problem.node_ids[v] for v in stage.nodes],
            "ways": list(stage.ways),
        }
        for stage in plan.stages
    ]


def placement_text(answer: PlaceAnswer | LatencyAnswer | PiperAnswer) -> str:
    """Write an answer as a placement file."""
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": answer.request.workload.name,
        "workload_sha256": answer.sha256,
    }
    if answer.request.assume_free:
        head["assumed_free"] = list(answer.request.assume_free)
    claim = {
        "objective_value": answer.result.objective,
        "bound": answer.result.bound,
        "method": answer.result.method,
        "proof": answer.result.proof,
    }
    if isinstance(answer, PiperAnswer):
        limits = {
            "devices": answer.problem.num_devices,
            "device_memory_bytes": answer.problem.memory_bytes,
            "bandwidth_bytes_per_s": answer.problem.bandwidth_bytes_per_s,
            "micro_batches": answer.problem.num_micro_batches,
        }
        assert answer.result.plan is not None
        stages = piper_stages(answer.problem, answer.result.plan)
        return yaml_text({**head, "objective": "piper", "limits": limits, **claim, "stages": stages})
    assert answer.result.placement is not None
    problem = answer.problem
    limits = {
        "accelerators": problem.num_accelerators,
        "cpus": problem.num_cpus,
        "memory_bytes": problem.memory_bytes,
    }
    if isinstance(answer, LatencyAnswer):
        return yaml_text({**head, **_latency_body(answer, limits, claim)})
    on_device: dict[int, list[Any]] = {}
    for v, d in enumerate(answer.result.placement.device.tolist()):
        on_device.setdefault(d, []).append(problem.node_ids[v])
    body = {
        "objective": answer.request.objective,
        "contiguity": answer.request.contiguity,
        "limits": limits,
        **claim,
        # Devices without operators say nothing.
        "devices": {problem.device_name(d): _in_rows(nodes) for d, nodes in sorted(on_device.items())},
    }
    return yaml_text({**head, **body})


def _latency_body(answer: LatencyAnswer, limits: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    """Accelerators have a list of operators for each subgraph, in the order in which they run."""
    problem, timing = answer.problem, answer.timing
    devices: dict[str, list[Any]] = {}
    for i, accelerator in enumerate(timing.accelerator.tolist()):
        nodes = [problem.node_ids[v] for v in np.flatnonzero(timing.unit == i).tolist()]
        devices.setdefault(f"acc{accelerator + 1}", []).append(nodes)
    on_cpu = [problem.node_ids[v] for v in np.flatnonzero(timing.unit == CPU).tolist()]
    if on_cpu:
        devices["cpu1"] = _in_rows(on_cpu)
    limits = {**limits, "subgraphs": answer.request.num_subgraphs}
    return {"objective": "latency", "limits": limits, **claim, "devices": devices}


def _in_rows(nodes: list[Any]) -> list[Any]:
    """Nest long lists, so that a line of the file holds some operators and not one."""
    return nodes if len(nodes) <= 12 else [nodes[i : i + 16] for i in range(0, len(nodes), 16)]

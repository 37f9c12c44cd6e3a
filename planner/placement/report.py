"""The answers of `planner place` in every form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.tolerances import PRINTED_COST
from planner.placement.answers import LatencyAnswer, PiperAnswer, PlaceAnswer
from planner.placement.facts import TimeWords, bound_facts, free_facts, times_text
from planner.placement.latency_report import latency_report
from planner.placement.placement_file import assignment_of, piper_stages
from planner.placement.placement_reader import PlacementFile
from planner.report.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.report.numbers import byte_text, duration_text, significant, used_of_total
from strategies.placement.piper import PiperProblem

__all__ = ["RESULT_VERSION", "check_report", "place_report"]

RESULT_VERSION = 1
_DIGITS = 6
# With more devices than this those without operators are not listed one by one.
_MOST_LISTED = 10_000
_CONTIGUITY = {
    "chain": "contiguous (a chain of down-sets of the forward graph)",
    "convex": "contiguous device by device (every device's forward operators are convex)",
    "none": "not contiguous",
}


def place_report(answer: PlaceAnswer | LatencyAnswer | PiperAnswer) -> Report:
    """Devices, objective, bound and what proved it."""
    if isinstance(answer, LatencyAnswer):
        return latency_report(answer)
    if isinstance(answer, PiperAnswer):
        return Report(
            blocks=lambda: _piper_blocks(answer),
            data=lambda: _piper_document(answer),
            records=lambda: _piper_document(answer)["stages"],
        )
    hidden = ("nodes",) if answer.problem.types else ("nodes", "type")
    return Report(
        blocks=lambda: _blocks(answer),
        data=lambda: _document(answer),
        records=lambda: [{k: v for k, v in device.items() if k not in hidden} for device in _devices(answer)],
    )


# -- operator graphs ----------------------------------------------------------------------------------------------------


def _devices(answer: PlaceAnswer) -> list[dict[str, Any]]:
    problem, loads = answer.problem, answer.loads
    assert answer.result.placement is not None
    nodes: dict[int, list[Any]] = {}
    for v, d in enumerate(answer.result.placement.device.tolist()):
        nodes.setdefault(d, []).append(problem.node_ids[v])
    listed = range(problem.num_devices) if problem.num_devices <= _MOST_LISTED else sorted(nodes)
    load = loads.load
    return [
        {
            "name": problem.device_name(d),
            "num_nodes": int(loads.num_nodes[d]),
            "compute": float(loads.compute[d]),
            "communication": float(loads.communication[d]),
            "load": float(load[d]),
            "type": kind.name if (kind := problem.type_of(d)) is not None else None,
            "memory_bytes": float(loads.memory_bytes[d]),
            "memory_capacity_bytes": problem.memory_of(d) if d < problem.num_accelerators else None,
            "nodes": nodes.get(d, []),
        }
        for d in listed
    ]


def _document(answer: PlaceAnswer) -> dict[str, Any]:
    result, problem = answer.result, answer.problem
    assert result.placement is not None
    return {
        "schema_version": RESULT_VERSION,
        "command": "place",
        "workload": str(answer.request.workload),
        "objective_name": answer.request.objective,
        "contiguity": answer.request.contiguity,
        "num_accelerators": problem.num_accelerators,
        "num_cpus": problem.num_cpus,
        "memory_bytes": problem.memory_bytes,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "proof": result.proof,
        "method": result.method,
        "stopped": result.stopped or None,
        "speedup_over_one_device": _ratio(answer.one_device, result.objective),
        "speedup_over_contiguous": None
        if answer.contiguous is None
        else _ratio(answer.contiguous.objective, result.objective),
        "assignment": {str(node): name for node, name in assignment_of(problem, result.placement).items()},
        "devices": _devices(answer),
        "assumed_free": list(answer.request.assume_free),
        "seed": answer.request.seed,
        "wall_s": result.wall_s,
    }


def _ratio(other: float, value: float) -> float | None:
    return other / value if np.isfinite(other) and value > 0 else None


def _blocks(answer: PlaceAnswer) -> list[Block]:
    result, request = answer.result, answer.request
    devices = _devices(answer)
    used = [device for device in devices if device["num_nodes"]]
    largest = max(range(len(used)), key=lambda i: used[i]["load"])
    idle = answer.problem.num_devices - len(used)
    words = TimeWords.of(request, result.objective)
    facts = [
        ("Objective", f"{words.text(result.objective)}, the largest load{words.note}"),
        *bound_facts(result.bound, result.gap, result.proven_optimal, result.proof, result.stopped, words),
        *free_facts(request),
        ("Placement", _CONTIGUITY[request.contiguity]),
        ("Method", f"{result.method}, {duration_text(result.wall_s)}"),
        ("Against one device", _speedup_text(answer.one_device, result.objective, answer, words)),
    ]
    if answer.contiguous is not None:
        facts.append(("Against the best contiguous split", _contiguous_text(answer, words)))
    if idle:
        facts.append(("Idle", f"{idle:,} of {answer.problem.num_devices:,} devices"))
    title = f"{request.workload.name}: {answer.problem.num_nodes:,} operators on {_counts(answer)}"
    return [Heading(title), Table(columns=_columns(used, words), highlight=largest), Facts(tuple(facts))]


def _counts(answer: PlaceAnswer) -> str:
    k, cpus = answer.problem.num_accelerators, answer.problem.num_cpus
    text = f"{k} accelerator{'s' * (k != 1)} of {byte_text(answer.problem.memory_bytes)}"
    if answer.problem.types:
        text = " + ".join(f"{t.count} {t.name} of {byte_text(t.memory_bytes)}" for t in answer.problem.types)
    return f"{text} and {cpus} CPU{'s' * (cpus != 1)}" if cpus else text


def _columns(devices: Sequence[Mapping[str, Any]], words: TimeWords) -> tuple[Column, ...]:
    def numbers(key: str) -> tuple[str, ...]:
        return tuple(words.number(device[key]) for device in devices)

    return (
        Column(
            title="device",
            cells=tuple(f"{d['name']} ({d['type']})" if d["type"] else d["name"] for d in devices),
            is_text=True,
        ),
        Column(title="operators", cells=tuple(f"{device['num_nodes']:,}" for device in devices), priority=2),
        Column(title="compute", unit=words.unit_name, cells=numbers("compute")),
        Column(title="communication", unit=words.unit_name, cells=numbers("communication")),
        Column(title="load", unit=words.unit_name, cells=numbers("load")),
        Column(title="memory", cells=tuple(_memory_text(device) for device in devices), priority=1),
    )


def _memory_text(device: Mapping[str, Any]) -> str:
    capacity = device["memory_capacity_bytes"]
    return byte_text(device["memory_bytes"]) if capacity is None else used_of_total(device["memory_bytes"], capacity)


def _speedup_text(other: float, value: float, answer: PlaceAnswer, words: TimeWords) -> str:
    if not np.isfinite(other):
        return "no single device can run all operators"
    fits = float(answer.problem.size_bytes.sum()) <= answer.problem.capacity_bytes
    note = "" if fits else "; it would not fit into its memory"
    return f"{times_text(other, value, words)}{note}"


def _contiguous_text(answer: PlaceAnswer, words: TimeWords) -> str:
    assert answer.contiguous is not None
    chain = answer.contiguous
    if chain.placement is None:
        return "none was found" if np.isfinite(chain.bound) else "there is none"
    note = "" if chain.proven_optimal else " (not proven to be the best)"
    return f"{times_text(chain.objective, answer.result.objective, words)}{note}"


# -- Piper's problem ----------------------------------------------------------------------------------------------------


def _piper_document(answer: PiperAnswer) -> dict[str, Any]:
    result, problem = answer.result, answer.problem
    assert result.plan is not None
    stages = []
    for plain, stage in zip(piper_stages(problem, result.plan), result.plan.stages, strict=True):
        names = [
            problem.options[v][stage.tensor_parallel][way].name for v, way in zip(stage.nodes, stage.ways, strict=True)
        ]
        stages.append(
            {
                **plain,
                "way_names": names,
                "in_flight": stage.in_flight,
                "time_s": stage.time_s,
                "memory_bytes": stage.memory_bytes,
            }
        )
    assignment = {str(node): i + 1 for i, stage in enumerate(stages) for node in stage["nodes"]}
    return {
        "schema_version": RESULT_VERSION,
        "command": "place",
        "workload": str(answer.request.workload),
        "objective_name": "piper",
        "num_devices": problem.num_devices,
        "used_devices": result.plan.num_devices,
        "memory_bytes": problem.memory_bytes,
        "bandwidth_bytes_per_s": problem.bandwidth_bytes_per_s,
        "num_micro_batches": problem.num_micro_batches,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "proof": result.proof,
        "method": result.method,
        "stopped": result.stopped or None,
        "assignment": assignment,
        "stages": stages,
        "wall_s": result.wall_s,
    }


def _piper_blocks(answer: PiperAnswer) -> list[Block]:
    result, problem = answer.result, answer.problem
    assert result.plan is not None
    stages = result.plan.stages
    recomputed = [_ways_text(problem, answer, i) for i in range(len(stages))]
    table = Table(
        columns=(
            Column(title="stage", cells=tuple(str(i + 1) for i in range(len(stages)))),
            Column(title="operators", cells=tuple(str(len(stage.nodes)) for stage in stages), priority=1),
            Column(title="data\nparallel", cells=tuple(str(stage.data_parallel) for stage in stages)),
            Column(title="tensor\nparallel", cells=tuple(str(stage.tensor_parallel) for stage in stages)),
            Column(title="in flight", cells=tuple(str(stage.in_flight) for stage in stages), priority=1),
            Column(title="time", unit="ms", cells=tuple(significant(stage.time_s * 1e3, _DIGITS) for stage in stages)),
            Column(title="memory", cells=tuple(used_of_total(s.memory_bytes, problem.memory_bytes) for s in stages)),
            Column(title="ways to run", cells=tuple(recomputed), is_text=True, flexible=True, priority=2),
        ),
        highlight=max(range(len(stages)), key=lambda i: stages[i].time_s),
    )
    facts = [
        ("Objective", f"{significant(result.objective * 1e3, _DIGITS)} ms per micro-batch, the slowest stage"),
        *bound_facts(result.bound, result.gap, result.proven_optimal, result.proof, result.stopped),
        ("Devices", f"{result.plan.num_devices:,} of {problem.num_devices:,}"),
        ("Method", f"{result.method}, {duration_text(result.wall_s)}"),
    ]
    title = f"{answer.request.workload.name}: {problem.num_nodes:,} operators on {problem.num_devices:,} devices"
    return [Heading(title), table, Facts(tuple(facts))]


def _ways_text(problem: PiperProblem, answer: PiperAnswer, index: int) -> str:
    assert answer.result.plan is not None
    stage = answer.result.plan.stages[index]
    counts: dict[str, int] = {}
    for v, way in zip(stage.nodes, stage.ways, strict=True):
        name = problem.options[v][stage.tensor_parallel][way].name or f"way {way}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# -- checks -------------------------------------------------------------------------------------------------------------


def check_report(
    claim: PlacementFile, objective: float, violations: Sequence[str], *, sha256: str | None = None
) -> Report:
    """What the checker says of a placement file; ``sha256`` is that of the workload it was judged by."""
    name, claimed, bound = claim.path.name, claim.claimed, claim.bound
    problems = list(violations)
    if claimed is not None and not abs(claimed - objective) <= PRINTED_COST * max(abs(objective), 1e-300):
        problems.append(f"the file claims {claimed!r}, the checker computes {objective!r}")
    if bound is not None and bound > objective * (1 + PRINTED_COST):
        problems.append(f"the file claims a bound of {bound!r}, above its own objective of {objective!r}")
    same = None if claim.workload_sha256 is None or sha256 is None else claim.workload_sha256 == sha256
    note = "" if same is not False else "the workload is not the file that the placement was made for (another SHA-256)"

    def blocks() -> list[Block]:
        value = significant(objective, 10)
        count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        head = f"{name}: {count}, objective {value}" if problems else f"{name}: ok, objective {value}"
        lines = [*problems, note] if note else problems
        return [Sentence(head, strong=True), *(Sentence(line) for line in lines)]

    return Report(
        blocks=blocks,
        data=lambda: {
            "schema_version": RESULT_VERSION,
            "command": "place check",
            "ok": not problems,
            "objective": objective,
            "claimed": claimed,
            "bound": bound,
            "same_workload": same,
            "violations": problems,
        },
        records=lambda: [{"ok": not problems, "objective": objective, "claimed": claimed}],
    )

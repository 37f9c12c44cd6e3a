"""The answers of `planner place` in every form: devices, subgraphs or stages, objective, bound and what proved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.tolerances import EQUAL, PRINTED_COST
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import Unit, byte_text, duration_text, percent, significant, time_unit, used_of_total
from planner.placement.placement_file import PlacementFile, assignment_of, piper_stages
from planner.placement.question import LatencyAnswer, PiperAnswer, PlaceAnswer, PlacementAnswer, PlaceRequest
from planner.report.documents import RESULT_VERSION
from planner.report.tables import ratio_text
from strategies.placement.latency.evaluate import CPU
from strategies.placement.piper import PiperProblem, PiperResult
from strategies.placement.problem import PlacementResult

__all__ = ["TimeWords", "check_report", "place_report", "times_text"]

_DIGITS = 6
# Smaller and larger numbers are written with an exponent: nobody counts so many zeros.
_LEAST_PLAIN, _MOST_PLAIN = 1e-9, 1e15


def _bound_facts(result: PlacementResult | PiperResult, words: TimeWords) -> list[tuple[str, str]]:
    """How good the answer is at most, what proved it, and what stopped the search."""
    text = (
        "proven optimal" if result.proven_optimal else f"at least {words.text(result.bound)}, gap {percent(result.gap)}"
    )
    return [("Bound", f"{text} ({result.proof})"), *([("Stopped", result.stopped)] if result.stopped else [])]


def _free_facts(request: PlaceRequest) -> list[tuple[str, str]]:
    """Operators of the network that the user takes to cost nothing."""
    return [("Assumed free", f"{', '.join(request.assume_free)} (--assume-free)")] if request.assume_free else []


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWords:
    """How times are written: those of a workload's file have no unit that we know, those of the cost model are seconds."""

    unit: Unit | None = None

    @classmethod
    def of(cls, request: PlaceRequest, largest: float) -> TimeWords:
        """For an answer whose largest time is given."""
        return cls(unit=time_unit(largest) if request.cluster is not None else None)

    @property
    def unit_name(self) -> str:
        """For the head of a column; empty where there is none."""
        return "" if self.unit is None else self.unit.name

    @property
    def note(self) -> str:
        """Says that the unit is the workload's."""
        return " (in the workload's unit of time)" if self.unit is None else ""

    def number(self, value: float) -> str:
        """Without the unit.

        >>> TimeWords().number(1e-300), TimeWords().number(0.25)
        ('1.00000e-300', '0.250000')
        """
        scaled = value if self.unit is None else value / self.unit.size
        if 0 < abs(scaled) < _LEAST_PLAIN or abs(scaled) >= _MOST_PLAIN:
            return f"{scaled:.{_DIGITS - 1}e}"
        return significant(scaled, _DIGITS)

    def text(self, value: float) -> str:
        """With the unit, where there is one."""
        return f"{self.number(value)} {self.unit_name}".rstrip()


def times_text(other: float, value: float, words: TimeWords) -> str:
    """Say how much faster (or slower) a value is than another.

    >>> times_text(3.0, 2.0, TimeWords())
    '1.50 times faster than 3.00000'
    """
    shown = words.text(other)
    if value <= 0 or abs(other - value) <= EQUAL * other:
        return f"as fast as {shown}"
    ratio = other / value
    return (
        f"{ratio_text(ratio)} times faster than {shown}"
        if ratio > 1
        else f"{ratio_text(1 / ratio)} times slower than {shown}"
    )


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
        return Report(
            blocks=lambda: _latency_blocks(answer),
            data=lambda: _latency_document(answer),
            records=lambda: [{k: v for k, v in entry.items() if k != "nodes"} for entry in _subgraphs(answer)],
        )
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
        **_head(answer),
        "objective_name": answer.request.objective,
        "contiguity": answer.request.contiguity,
        "num_accelerators": problem.num_accelerators,
        "num_cpus": problem.num_cpus,
        "memory_bytes": problem.memory_bytes,
        **_claim(result),
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


def _head(answer: PlacementAnswer) -> dict[str, Any]:
    return {"schema_version": RESULT_VERSION, "command": "place", "workload": str(answer.request.workload)}


def _claim(result: PlacementResult | PiperResult) -> dict[str, Any]:
    return {
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "proof": result.proof,
        "method": result.method,
        "stopped": result.stopped or None,
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
        *_bound_facts(result, words),
        *_free_facts(request),
        ("Placement", _CONTIGUITY[request.contiguity]),
        ("Method", f"{result.method}, {duration_text(result.wall_s)}"),
        ("Against one device", _against_one(answer, words)),
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


def _against_one(answer: PlaceAnswer | LatencyAnswer, words: TimeWords) -> str:
    """What the placement gains over one device, or for latency over CPUs alone where an operator runs on them only."""
    problem = answer.problem
    if not np.isfinite(answer.one_device):
        return "no single device can run all operators"
    text = times_text(answer.one_device, answer.result.objective, words)
    if isinstance(answer, LatencyAnswer) and not (problem.num_accelerators and bool(problem.supported.all())):
        return f"{text} on CPUs alone"
    fits = float(problem.size_bytes.sum()) <= problem.capacity_bytes
    return text if fits else f"{text}; it would not fit into its memory"


def _contiguous_text(answer: PlaceAnswer, words: TimeWords) -> str:
    assert answer.contiguous is not None
    chain = answer.contiguous
    if chain.placement is None:
        return "none was found" if np.isfinite(chain.bound) else "there is none"
    note = "" if chain.proven_optimal else " (not proven to be the best)"
    return f"{times_text(chain.objective, answer.result.objective, words)}{note}"


# -- latency --------------------------------------------------------------------------------------------------------------


def _subgraphs(answer: LatencyAnswer) -> list[dict[str, Any]]:
    """Plain values of each subgraph, by accelerator and order."""
    problem, timing = answer.problem, answer.timing
    finish = timing.finish
    result = []
    for i, a in enumerate(timing.accelerator.tolist()):
        inside = np.flatnonzero(timing.unit == i)
        result.append(
            {
                "device": f"acc{a + 1}",
                "subgraph": int(timing.order[i]) + 1,
                "start": float(timing.start[i]),
                "finish": float(finish[i]),
                "compute": float(timing.compute[i]),
                "communication": float(timing.communication[i]),
                "num_nodes": len(inside),
                "memory_bytes": float(problem.size_bytes[inside].sum()),
                "nodes": [problem.node_ids[v] for v in inside.tolist()],
            }
        )
    return result


def _latency_document(answer: LatencyAnswer) -> dict[str, Any]:
    result, problem, timing = answer.result, answer.problem, answer.timing
    assert result.placement is not None
    on_cpu = np.flatnonzero(timing.unit == CPU)
    return {
        **_head(answer),
        "objective_name": "latency",
        "num_accelerators": problem.num_accelerators,
        "num_subgraphs": answer.request.num_subgraphs,
        "memory_bytes": problem.memory_bytes,
        **_claim(result),
        "speedup_over_one_device": _ratio(answer.one_device, result.objective),
        "assignment": {str(node): name for node, name in assignment_of(problem, result.placement).items()},
        "subgraphs": _subgraphs(answer),
        "cpu_nodes": [problem.node_ids[v] for v in on_cpu.tolist()],
        "available": {str(node): float(timing.available[v]) for v, node in enumerate(problem.node_ids)},
        "assumed_free": list(answer.request.assume_free),
        "seed": answer.request.seed,
        "wall_s": result.wall_s,
    }


def _latency_blocks(answer: LatencyAnswer) -> list[Block]:
    result, problem = answer.result, answer.problem
    calls = answer.request.num_subgraphs or 1
    rows = _subgraphs(answer)
    on_cpu = int(np.sum(answer.timing.unit == CPU))
    used = len({row["device"] for row in rows})
    words = TimeWords.of(answer.request, result.objective)
    facts = [
        ("Objective", f"{words.text(result.objective)}, the latency{words.note}"),
        *_bound_facts(result, words),
        *_free_facts(answer.request),
        ("Placement", f"{_count(calls, 'convex subgraph')} per accelerator at most"),
        ("CPUs", f"{_count(on_cpu, 'operator')}, each as soon as it can"),
        ("Method", f"{result.method}, {duration_text(result.wall_s)}"),
        ("Against one device", _against_one(answer, words)),
    ]
    if used < problem.num_accelerators:
        facts.append(
            ("Idle", f"{problem.num_accelerators - used} of {_count(problem.num_accelerators, 'accelerator')}")
        )
    devices = f"{_count(problem.num_accelerators, 'accelerator')} of {byte_text(problem.memory_bytes)}"
    title = f"{answer.request.workload.name}: {_count(problem.num_nodes, 'operator')} on {devices} and CPUs"
    table: list[Block] = [_latency_table(answer, rows, words)] if rows else []
    return [Heading(title), *table, Facts(tuple(facts))]


def _latency_table(answer: LatencyAnswer, rows: list[dict[str, Any]], words: TimeWords) -> Table:
    capacity = answer.problem.memory_bytes

    def numbers(key: str) -> tuple[str, ...]:
        return tuple(words.number(row[key]) for row in rows)

    columns = [
        Column(title="device", cells=tuple(row["device"] for row in rows), is_text=True),
        Column(title="subgraph", cells=tuple(str(row["subgraph"]) for row in rows)),
        Column(title="operators", cells=tuple(f"{row['num_nodes']:,}" for row in rows), priority=2),
        Column(title="start", unit=words.unit_name, cells=numbers("start")),
        Column(title="finish", unit=words.unit_name, cells=numbers("finish")),
        Column(title="compute", unit=words.unit_name, cells=numbers("compute"), priority=1),
        Column(title="communication", unit=words.unit_name, cells=numbers("communication"), priority=1),
        Column(title="memory", cells=tuple(used_of_total(row["memory_bytes"], capacity) for row in rows), priority=1),
    ]
    if answer.request.num_subgraphs == 1:
        del columns[1]
    return Table(columns=tuple(columns), highlight=max(range(len(rows)), key=lambda i: rows[i]["finish"]))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


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
        **_head(answer),
        "objective_name": "piper",
        "num_devices": problem.num_devices,
        "used_devices": result.plan.num_devices,
        "memory_bytes": problem.memory_bytes,
        "bandwidth_bytes_per_s": problem.bandwidth_bytes_per_s,
        "num_micro_batches": problem.num_micro_batches,
        **_claim(result),
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
        *_bound_facts(result, TimeWords()),
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

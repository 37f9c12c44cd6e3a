"""The answer about latency in every form: when each subgraph runs, what it does, what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.placement.answers import LatencyAnswer
from planner.placement.facts import TimeWords, bound_facts, free_facts, times_text
from planner.placement.placement_file import assignment_of
from planner.report.blocks import Block, Column, Facts, Heading, Report, Table
from planner.report.numbers import byte_text, duration_text, used_of_total
from strategies.placement.latency.evaluate import CPU

__all__ = ["latency_report"]

RESULT_VERSION = 1
_DIGITS = 6


def latency_report(answer: LatencyAnswer) -> Report:
    """Subgraphs in the order of their accelerators, latency, bound and what proved it."""
    return Report(
        blocks=lambda: _blocks(answer),
        data=lambda: _document(answer),
        records=lambda: [{k: v for k, v in entry.items() if k != "nodes"} for entry in subgraphs(answer)],
    )


def subgraphs(answer: LatencyAnswer) -> list[dict[str, Any]]:
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


def _document(answer: LatencyAnswer) -> dict[str, Any]:
    result, problem, timing = answer.result, answer.problem, answer.timing
    assert result.placement is not None
    on_cpu = np.flatnonzero(timing.unit == CPU)
    return {
        "schema_version": RESULT_VERSION,
        "command": "place",
        "workload": str(answer.request.workload),
        "objective_name": "latency",
        "num_accelerators": problem.num_accelerators,
        "num_subgraphs": answer.request.num_subgraphs,
        "memory_bytes": problem.memory_bytes,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "proof": result.proof,
        "method": result.method,
        "stopped": result.stopped or None,
        "speedup_over_one_device": answer.one_device / result.objective if result.objective > 0 else None,
        "assignment": {str(node): name for node, name in assignment_of(problem, result.placement).items()},
        "subgraphs": subgraphs(answer),
        "cpu_nodes": [problem.node_ids[v] for v in on_cpu.tolist()],
        "available": {str(node): float(timing.available[v]) for v, node in enumerate(problem.node_ids)},
        "assumed_free": list(answer.request.assume_free),
        "seed": answer.request.seed,
        "wall_s": result.wall_s,
    }


def _blocks(answer: LatencyAnswer) -> list[Block]:
    result, problem = answer.result, answer.problem
    calls = answer.request.num_subgraphs or 1
    rows = subgraphs(answer)
    on_cpu = int(np.sum(answer.timing.unit == CPU))
    used = len({row["device"] for row in rows})
    words = TimeWords.of(answer.request, result.objective)
    facts = [
        ("Objective", f"{words.text(result.objective)}, the latency{words.note}"),
        *bound_facts(result.bound, result.gap, result.proven_optimal, result.proof, result.stopped, words),
        *free_facts(answer.request),
        ("Placement", f"{_count(calls, 'convex subgraph')} per accelerator at most"),
        ("CPUs", f"{_count(on_cpu, 'operator')}, each as soon as it can"),
        ("Method", f"{result.method}, {duration_text(result.wall_s)}"),
        ("Against one device", _against(answer, words)),
    ]
    if used < problem.num_accelerators:
        facts.append(
            ("Idle", f"{problem.num_accelerators - used} of {_count(problem.num_accelerators, 'accelerator')}")
        )
    devices = f"{_count(problem.num_accelerators, 'accelerator')} of {byte_text(problem.memory_bytes)}"
    title = f"{answer.request.workload.name}: {_count(problem.num_nodes, 'operator')} on {devices} and CPUs"
    table: list[Block] = [_table(answer, rows, words)] if rows else []
    return [Heading(title), *table, Facts(tuple(facts))]


def _table(answer: LatencyAnswer, rows: list[dict[str, Any]], words: TimeWords) -> Table:
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


def _against(answer: LatencyAnswer, words: TimeWords) -> str:
    problem = answer.problem
    if not (problem.num_accelerators and bool(problem.supported.all())):
        return f"{times_text(answer.one_device, answer.result.objective, words)} on CPUs alone"
    fits = float(problem.size_bytes.sum()) <= problem.capacity_bytes
    note = "" if fits else "; it would not fit into its memory"
    return f"{times_text(answer.one_device, answer.result.objective, words)}{note}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"

"""The answers of `planner place` in every form: devices, subgraphs or stages, objective, bound and what proved it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.tolerances import EQUAL, PRINTED_COST
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import Unit, byte_text, duration_text, percent, significant, time_unit, used_of_total
from planner.placement.check import Checked
from planner.placement.placement_file import Claim, assignment_of
from planner.placement.question import PlaceAnswer, rows_of
from planner.report.documents import RESULT_VERSION
from planner.report.tables import ratio_text
from strategies.placement.latency.evaluate import CPU

__all__ = ["TimeWords", "check_report", "place_report", "times_text"]

_DIGITS = 6
# Smaller and larger numbers are written with an exponent: nobody counts so many zeros.
_LEAST_PLAIN, _MOST_PLAIN = 1e-9, 1e15
_MS = Unit(name="ms", size=1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWords:
    """How times are written: those of a workload's file have no unit that we know, those of the cost model are seconds."""

    unit: Unit | None = None

    @property
    def unit_name(self) -> str:
        """For the head of a column; empty where there is none."""
        return "" if self.unit is None else self.unit.name

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
    faster = "faster" if ratio > 1 else "slower"
    return f"{ratio_text(max(ratio, 1 / ratio))} times {faster} than {shown}"


_CONTIGUITY = {
    "chain": "contiguous (a chain of down-sets of the forward graph)",
    "convex": "contiguous device by device (every device's forward operators are convex)",
    "none": "not contiguous",
}
# What the rows of an answer are called in ``--json``.
_ROWS = {"throughput": "devices", "latency": "subgraphs", "piper": "stages"}


def place_report(answer: PlaceAnswer) -> Report:
    """Devices, objective, bound and what proved it."""
    hidden = {
        "throughput": ("nodes",) if getattr(answer.problem, "types", ()) else ("nodes", "type"),
        "latency": ("nodes",),
    }
    return Report(
        blocks=lambda: _blocks(answer),
        data=lambda: _document(answer),
        records=lambda: [
            {name: value for name, value in row.items() if name not in hidden.get(answer.objective, ())}
            for row in rows_of(answer)
        ],
    )


# -- for programs


def _document(answer: PlaceAnswer) -> dict[str, Any]:
    request, result, problem = answer.request, answer.result, answer.problem
    rows = rows_of(answer)
    assignment: dict[Any, Any]
    if answer.objective == "piper":
        assignment = {node: i for i, stage in enumerate(rows, start=1) for node in stage["nodes"]}
        own = {
            "num_devices": problem.num_devices,
            "used_devices": result.plan.num_devices,
            "bandwidth_bytes_per_s": problem.bandwidth_bytes_per_s,
            "num_micro_batches": problem.num_micro_batches,
        }
    else:
        assignment = assignment_of(problem, result.placement)
        own = {
            "num_accelerators": problem.num_accelerators,
            "speedup_over_one_device": _ratio(answer.one_device, result.objective),
            "assumed_free": list(request.assume_free),
            "seed": request.seed,
        }
    if answer.timing is not None:
        available = zip(problem.node_ids, answer.timing.available.tolist(), strict=True)
        own |= {
            "num_subgraphs": request.num_subgraphs,
            "cpu_nodes": _on_cpus(answer),
            "available": {str(node): time for node, time in available},
        }
    elif answer.objective == "throughput":
        chain = result.chain
        own |= {
            "contiguity": request.contiguity,
            "num_cpus": problem.num_cpus,
            "speedup_over_contiguous": None if chain is None else _ratio(chain.objective, result.objective),
        }
    return {
        "schema_version": RESULT_VERSION,
        "command": "place",
        "workload": str(request.workload),
        "objective_name": answer.objective,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "proof": result.proof,
        "method": result.method,
        "stopped": result.stopped or None,
        "memory_bytes": problem.memory_bytes,
        **own,
        "assignment": {str(node): place for node, place in assignment.items()},
        _ROWS[answer.objective]: rows,
        "wall_s": result.wall_s,
    }


def _on_cpus(answer: PlaceAnswer) -> list[Any]:
    """For latency: operators on CPUs."""
    assert answer.timing is not None
    return [answer.problem.node_ids[v] for v in np.flatnonzero(answer.timing.unit == CPU).tolist()]


def _ratio(other: float, value: float) -> float | None:
    return other / value if np.isfinite(other) and value > 0 else None


# -- for people


def _blocks(answer: PlaceAnswer) -> list[Block]:
    request, result, problem = answer.request, answer.result, answer.problem
    rows = [row for row in rows_of(answer) if row.get("num_nodes", 1)]
    unit = time_unit(result.objective) if request.cluster is not None else None
    words = TimeWords(unit=_MS if answer.objective == "piper" else unit)
    unknown = "" if words.unit is not None else " (in the workload's unit of time)"
    text = (
        "proven optimal"
        if result.proven_optimal
        else f"at least {TimeWords(unit=unit).text(result.bound)}, gap {percent(result.gap)}"
    )
    bound = [("Bound", f"{text} ({result.proof})"), *([("Stopped", result.stopped)] if result.stopped else [])]
    if request.assume_free:
        bound.append(("Assumed free", f"{', '.join(request.assume_free)} (--assume-free)"))
    method = ("Method", f"{result.method}, {duration_text(result.wall_s)}")
    own: list[tuple[str, str]]
    if answer.objective == "piper":
        where = f"{problem.num_devices:,} devices"
        own = [
            ("Objective", f"{words.text(result.objective)} per micro-batch, the slowest stage"),
            *bound,
            ("Devices", f"{result.plan.num_devices:,} of {problem.num_devices:,}"),
            method,
        ]
    elif answer.timing is not None:
        accelerators = _count(problem.num_accelerators, "accelerator")
        where = f"{accelerators} of {byte_text(problem.memory_bytes)} and CPUs"
        own = [
            ("Objective", f"{words.text(result.objective)}, the latency{unknown}"),
            *bound,
            ("Placement", f"{_count(request.num_subgraphs or 1, 'convex subgraph')} per accelerator at most"),
            ("CPUs", f"{_count(len(_on_cpus(answer)), 'operator')}, each as soon as it can"),
            method,
            ("Against one device", _against_one(answer, words)),
        ]
        idle = problem.num_accelerators - len({row["device"] for row in rows})
        own += [("Idle", f"{idle} of {accelerators}")] if idle else []
    else:
        where = _devices_text(problem)
        own = [
            ("Objective", f"{words.text(result.objective)}, the largest load{unknown}"),
            *bound,
            ("Placement", _CONTIGUITY[request.contiguity]),
            method,
            ("Against one device", _against_one(answer, words)),
        ]
        if result.chain is not None:
            own.append(("Against the best contiguous split", _against_chain(answer, words)))
        idle = problem.num_devices - len(rows)
        own += [("Idle", f"{idle:,} of {problem.num_devices:,} devices")] if idle else []
    title = f"{request.workload.name}: {_count(problem.num_nodes, 'operator')} on {where}"
    return [Heading(title), *([_table(answer, rows, words)] if rows else []), Facts(tuple(own))]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _devices_text(problem: Any) -> str:
    text = f"{problem.num_accelerators} accelerator{'s' * (problem.num_accelerators != 1)} of {byte_text(problem.memory_bytes)}"
    if problem.types:
        text = " + ".join(f"{kind.count} {kind.name} of {byte_text(kind.memory_bytes)}" for kind in problem.types)
    return f"{text} and {problem.num_cpus} CPU{'s' * (problem.num_cpus != 1)}" if problem.num_cpus else text


# Of each kind of answer, by the keys of its rows: title and priority of the columns. Times are marked by a unit.
_TIMES = ("start", "finish", "compute", "communication", "load", "time_s")
_COLUMNS: dict[str, dict[str, tuple[str, int]]] = {
    "throughput": {
        "name": ("device", 0),
        "num_nodes": ("operators", 2),
        "compute": ("compute", 0),
        "communication": ("communication", 0),
        "load": ("load", 0),
        "memory_bytes": ("memory", 1),
    },
    "latency": {
        "device": ("device", 0),
        "subgraph": ("subgraph", 0),
        "num_nodes": ("operators", 2),
        "start": ("start", 0),
        "finish": ("finish", 0),
        "compute": ("compute", 1),
        "communication": ("communication", 1),
        "memory_bytes": ("memory", 1),
    },
    "piper": {
        "stage": ("stage", 0),
        "nodes": ("operators", 1),
        "data_parallel": ("data\nparallel", 0),
        "tensor_parallel": ("tensor\nparallel", 0),
        "in_flight": ("in flight", 1),
        "time_s": ("time", 0),
        "memory_bytes": ("memory", 0),
        "way_names": ("ways to run", 2),
    },
}
_DECIDES = {"throughput": "load", "latency": "finish", "piper": "time_s"}


def _table(answer: PlaceAnswer, rows: Sequence[Mapping[str, Any]], words: TimeWords) -> Table:
    columns = dict(_COLUMNS[answer.objective])
    if answer.request.num_subgraphs == 1:
        columns.pop("subgraph", None)
    decides = _DECIDES[answer.objective]
    return Table(
        columns=tuple(
            Column(
                title=title,
                unit=words.unit_name if name in _TIMES else "",
                cells=tuple(_cell(answer, name, {"stage": n, **row}, words) for n, row in enumerate(rows, start=1)),
                is_text=title in ("device", "ways to run"),
                flexible=title == "ways to run",
                priority=priority,
            )
            for name, (title, priority) in columns.items()
        ),
        highlight=max(range(len(rows)), key=lambda i: rows[i][decides]),
    )


def _cell(answer: PlaceAnswer, name: str, row: Mapping[str, Any], words: TimeWords) -> str:
    value = row[name]
    if name in _TIMES:
        return words.number(value)
    if name == "memory_bytes":
        capacity = row.get("memory_capacity_bytes", answer.problem.memory_bytes)
        return byte_text(value) if capacity is None else used_of_total(value, capacity)
    if name == "way_names":
        counts = Counter(way or f"way {n}" for way, n in zip(value, row["ways"], strict=True))
        ways = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} {way}" for way, count in ways)
    if name == "name" and row["type"]:
        return f"{value} ({row['type']})"
    return str(len(value)) if name == "nodes" else f"{value:,}" if isinstance(value, int) else str(value)


def _against_one(answer: PlaceAnswer, words: TimeWords) -> str:
    """What the placement gains over one device, or for latency over CPUs alone where an operator runs on them only."""
    problem = answer.problem
    if not np.isfinite(answer.one_device):
        return "no single device can run all operators"
    text = times_text(answer.one_device, answer.result.objective, words)
    if answer.timing is not None and not (problem.num_accelerators and bool(problem.supported.all())):
        return f"{text} on CPUs alone"
    fits = float(problem.size_bytes.sum()) <= problem.capacity_bytes
    return text if fits else f"{text}; it would not fit into its memory"


def _against_chain(answer: PlaceAnswer, words: TimeWords) -> str:
    chain = answer.result.chain
    if chain.placement is None:
        return "none was found" if np.isfinite(chain.bound) else "there is none"
    note = "" if chain.proven_optimal else " (not proven to be the best)"
    return f"{times_text(chain.objective, answer.result.objective, words)}{note}"


# -- checks


def check_report(name: str, claim: Claim, checked: Checked, *, sha256: str) -> Report:
    """What the checker says of a placement file of this name; ``sha256`` is that of the workload it was checked with."""
    objective, claimed, bound = checked.objective, claim.claimed, claim.bound
    problems = list(checked.violations)
    if claimed is not None and not abs(claimed - objective) <= PRINTED_COST * max(abs(objective), 1e-300):
        problems.append(f"the file claims {claimed!r}, the checker computes {objective!r}")
    if bound is not None and bound > objective * (1 + PRINTED_COST):
        problems.append(f"the file claims a bound of {bound!r}, above its own objective of {objective!r}")
    same = None if claim.workload_sha256 is None else claim.workload_sha256 == sha256
    note = "the workload is not the file that the placement was made for (another SHA-256)"
    state = _count(len(problems), "problem") if problems else "ok"
    return Report(
        blocks=lambda: [
            Sentence(f"{name}: {state}, objective {significant(objective, 10)}", strong=True),
            *(Sentence(line) for line in [*problems, *([note] if same is False else [])]),
        ],
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

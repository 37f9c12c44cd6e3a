"""The answers of `planner place` in every form: devices, subgraphs or stages, objective, bound and what proved it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from costmodel.tolerances import PRINTED_COST
from planner.core.blocks import Block, Column, Facts, Report, Sentence, Table
from planner.core.numbers import Unit, byte_text, counted, duration_text, significant, time_unit, used_of_total
from planner.core.objectives import compared_words
from planner.placement.check import Checked
from planner.placement.placement_file import Claim, assignment_of
from planner.placement.question import PlaceAnswer, rows_of
from planner.report.answer import memory_text, unproven_text, used_text, verdict_blocks
from planner.report.documents import RESULT_VERSION

# Smaller and larger numbers are written with an exponent: nobody counts so many zeros.
_LEAST_PLAIN, _MOST_PLAIN = 1e-9, 1e15
# Of the sentence that says what goes where; -v has longer ones.
_MOST_TOLD = 500
# What the rows of an answer are called in ``--json``.
_ROWS = {"throughput": "devices", "latency": "subgraphs", "piper": "stages"}


def place_report(answer: PlaceAnswer, following: str = "") -> Report:
    """Devices, objective, bound and what proved it; ``following`` is what to type next."""
    hidden = {
        "throughput": ("nodes",) if getattr(answer.problem, "types", ()) else ("nodes", "type"),
        "latency": ("nodes",),
    }
    return Report(
        blocks=lambda: _blocks(answer, following),
        details=lambda: _details(answer),
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
    if answer.objective == "piper":
        assignment: Mapping[Any, Any] = {node: i for i, stage in enumerate(rows, start=1) for node in stage["nodes"]}
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
            "cpu_nodes": list(answer.cpu_nodes),
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


def _ratio(other: float, value: float) -> float | None:
    return other / value if np.isfinite(other) and value > 0 else None


# -- for people


_NEXT = "--export placement.yaml keeps it for 'planner place check', -v says more"
# What a placement keeps to, by contiguity: what it is called, and what that means.
_KINDS = {
    "chain": ("contiguous placement", "in the forward pass a device reads only from itself and devices before it"),
    "convex": ("placement of convex parts", "no forward path leaves a device and comes back"),
    "none": ("placement", "any operators may share a device"),
}


def _blocks(answer: PlaceAnswer, following: str) -> list[Block]:
    request, rows = answer.request, _rows(answer)
    is_at = ": " if answer.objective == "piper" else " on "
    text = "; ".join(f"{nodes}{is_at}{where}" for where, nodes in _held(answer, rows))
    text = f"{'operators' if request.cluster is None else 'layers'} {text}"
    if len(text) > _MOST_TOLD:
        text = f"{counted(answer.problem.num_nodes, 'operator')} divided as in the table; -v lists which are where"
    word = "Best" if request.method == "auto" else f"Method {request.method}"
    return [*verdict_blocks(word, text, _facts(answer, rows, following)), *([_table(answer, rows)] if rows else [])]


def _rows(answer: PlaceAnswer) -> list[dict[str, Any]]:
    """Devices that hold operators, subgraphs or stages, each with its ``place`` in words."""
    rows = [{"stage": n, **row} for n, row in enumerate(rows_of(answer), start=1) if row.get("num_nodes", 1)]
    for row in rows:
        row["place"] = row.get("name") or row.get("device") or f"stage {row['stage']}"
        row["place"] += f" ({row['type']})" if row.get("type") else ""
    return rows


def _held(answer: PlaceAnswer, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Places with their operators, those that follow each other as first-last; layers stand for their backward operators, too."""
    problem, is_network, parts = answer.problem, answer.request.cluster is not None, answer.request.num_subgraphs or 1
    names = problem.names if is_network else problem.node_ids
    rank = {node: v for v, node in enumerate(problem.node_ids)}
    for row in [*rows, *([{"nodes": answer.cpu_nodes, "place": "CPUs"}] if answer.cpu_nodes else [])]:
        held = sorted(rank[node] for node in row["nodes"] if not (is_network and problem.backward[rank[node]]))
        runs = np.split(held, np.flatnonzero(np.diff(held) != 1) + 1) if held else []
        where = row["place"] + (f" (part {row['subgraph']})" if row.get("subgraph") and parts > 1 else "")
        if answer.objective == "piper":
            where = f"data x{row['data_parallel']} tensor x{row['tensor_parallel']}".removesuffix(" tensor x1")
        if runs:
            yield where, ", ".join("-".join(str(names[v]) for v in sorted({run[0], run[-1]})) for run in runs)


def _facts(answer: PlaceAnswer, rows: Sequence[Mapping[str, Any]], following: str) -> list[tuple[str, str]]:
    """What decides about a placement, as `planner optimize` says it of a plan."""
    request, result, problem = answer.request, answer.result, answer.problem
    samples = f" of {counted(request.batch, 'sample')}" if request.cluster is not None else ""
    time = _text(answer, result.objective) + ("" if _unit(answer) else " in the workload's unit of time")
    facts = [("Time", f"{time} until the last output of a micro-batch{samples} is there")]
    if answer.timing is None:
        slowest = max(rows, key=lambda row: row[_DECIDES[answer.objective]])
        parts = ", ".join(f"{name} {_text(answer, slowest[name])}" for name in _PARTS if name in slowest)
        facts = [("Time", f"{time} per micro-batch{samples}, set by {slowest['place']}{parts and f': {parts}'}")]
        if request.cluster is not None and result.objective > 0:
            rate = significant(request.batch / result.objective)
            facts.append(("Rate", f"{rate} samples/s once the pipeline is full"))
    rooms = []
    for place, parts_of in groupby(rows, key=lambda row: row["place"]):
        held = list(parts_of)
        capacity = held[0].get("memory_capacity_bytes", problem.memory_bytes)
        if capacity is not None:
            where = f"on {'each device of ' * (answer.objective == 'piper')}{place}, the fullest"
            rooms.append((sum(row["memory_bytes"] for row in held), capacity, where))
    if rooms:
        facts.append(("Memory", memory_text(*min(rooms, key=lambda room: room[1] - room[0]))))
    noun = (
        _KINDS[request.contiguity][0] if request.method == "auto" and answer.objective == "throughput" else "placement"
    )
    least = f"{_text(answer, result.bound)}: {result.proof}"
    proof = (
        f"proven optimal: no {noun} is faster" if result.proven_optimal else unproven_text(result.gap, least, noun=noun)
    )
    facts += [("Proof", proof), *([("Stopped", result.stopped)] if result.stopped else [])]
    return [
        *facts,
        ("Devices", _used(answer, rows)),
        *_compared(answer),
        ("Assumed", _assumed(answer)),
        ("Next", following or _NEXT),
    ]


def _used(answer: PlaceAnswer, rows: Sequence[Mapping[str, Any]]) -> str:
    problem, proven = answer.problem, answer.result.proven_optimal
    if answer.timing is None:
        used = answer.result.plan.num_devices if answer.objective == "piper" else len(rows)
        return used_text(used, problem.num_devices, proven=proven, noun="device")
    used = len({row["device"] for row in rows})
    text = used_text(used, problem.num_accelerators, proven=proven, noun="accelerator")
    return text + (f"; {counted(len(answer.cpu_nodes), 'operator')} on CPUs" if answer.cpu_nodes else "")


def _compared(answer: PlaceAnswer) -> Iterator[tuple[str, str]]:
    """What the placement gains over simpler ones."""
    problem, result, one = answer.problem, answer.result, answer.one_device

    def gain(other: float, name: str, note: str = "") -> str:
        ratio = result.objective / other if result.objective > 0 else 1.0
        return f"{compared_words(ratio, 'step_time', name)} ({_text(answer, other)}{note})"

    if answer.objective == "piper":
        name = f"data parallelism on {counted(max(problem.copies), 'device')}"
        yield from [("Against data parallelism", gain(one, name, ", memory aside"))] if np.isfinite(one) else []
        return
    needs_cpus = answer.timing is not None and not (problem.num_accelerators and bool(problem.supported.all()))
    fits = needs_cpus or float(problem.size_bytes.sum()) <= problem.capacity_bytes
    note = "" if fits else ", but the operators do not fit into its memory"
    text = gain(one, "CPUs alone" if needs_cpus else "one device alone", note)
    yield "Against one device", text if np.isfinite(one) else "no single device can run all operators"
    chain = result.chain
    if chain is not None:
        missing = f"no contiguous placement {'was found' if np.isfinite(chain.bound) else 'exists'}"
        text = gain(
            chain.objective,
            "the best contiguous placement",
            "" if chain.proven_optimal else ", not proven to be the best",
        )
        yield "Against contiguous", missing if chain.placement is None else text


def _assumed(answer: PlaceAnswer) -> str:
    """What decides about the answer beside the graph."""
    request, problem = answer.request, answer.problem
    parts = answer.made_with or (f"times, transfers and sizes of {request.workload.name}",)
    if answer.objective == "piper":
        links = (
            f"{problem.num_micro_batches:,} micro-batches, {byte_text(problem.bandwidth_bytes_per_s)}/s between devices"
        )
        own = f"{counted(problem.num_devices, 'device')} of {byte_text(problem.memory_bytes)}, {links}"
    elif answer.timing is not None:
        own = f"{_devices_text(problem)}, at most {counted(request.num_subgraphs or 1, 'part')} of the graph on each"
    else:
        own = f"{_devices_text(problem)}, {_KINDS[request.contiguity][1]}"
    return ", ".join([*parts, own, *(f"{operator} free (--assume-free)" for operator in request.assume_free)])


def _details(answer: PlaceAnswer) -> list[Block]:
    """How the answer was found and proven, and where every operator is."""
    result = answer.result
    method = ("Method", f"{result.method}, {duration_text(result.wall_s)}")
    return [
        Facts((method, ("Bound", f"{_text(answer, result.bound)} ({result.proof})"), *_held(answer, _rows(answer))))
    ]


def _unit(answer: PlaceAnswer) -> Unit | None:
    """Of the times in a table; None where they are those of a file that does not name its unit."""
    return (
        None if answer.request.cluster is None and answer.objective != "piper" else time_unit(answer.result.objective)
    )


def _text(answer: PlaceAnswer, value: float) -> str:
    return _number(value) if _unit(answer) is None else duration_text(value)


def _number(value: float) -> str:
    """A time without its unit.

    >>> _number(1e-300), _number(0.25)
    ('1.00e-300', '0.250')
    """
    return significant(value) if value == 0 or _LEAST_PLAIN <= abs(value) < _MOST_PLAIN else f"{value:.2e}"


def _devices_text(problem: Any) -> str:
    kinds = [f"{kind.count} {kind.name} of {byte_text(kind.memory_bytes)}" for kind in problem.types]
    text = (
        " + ".join(kinds) or f"{counted(problem.num_accelerators, 'accelerator')} of {byte_text(problem.memory_bytes)}"
    )
    return f"{text} and {counted(problem.num_cpus, 'CPU')}" if problem.num_cpus else text


# Of each kind of answer, by the keys of its rows: title and priority of the columns. Times are marked by a unit.
_PARTS = ("compute", "communication")
_TIMES = ("start", "finish", *_PARTS, "load", "time_s")
_COLUMNS: dict[str, dict[str, tuple[str, int]]] = {
    "throughput": {
        "place": ("device", 0),
        "num_nodes": ("operators", 2),
        "compute": ("compute", 0),
        "communication": ("communication", 0),
        "load": ("load", 0),
        "memory_bytes": ("memory", 1),
    },
    "latency": {
        "place": ("device", 0),
        "subgraph": ("part", 0),
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


def _table(answer: PlaceAnswer, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = dict(_COLUMNS[answer.objective])
    if answer.request.num_subgraphs == 1:
        columns.pop("subgraph", None)
    unit, decides = _unit(answer), _DECIDES[answer.objective]
    return Table(
        columns=tuple(
            Column(
                title=title,
                unit=unit.name if unit is not None and name in _TIMES else "",
                cells=tuple(_cell(answer, name, row, unit) for row in rows),
                is_text=title in ("device", "ways to run"),
                flexible=title == "ways to run",
                priority=priority,
            )
            for name, (title, priority) in columns.items()
        ),
        highlight=max(range(len(rows)), key=lambda i: rows[i][decides]),
    )


def _cell(answer: PlaceAnswer, name: str, row: Mapping[str, Any], unit: Unit | None) -> str:
    value = row[name]
    if name in _TIMES:
        return _number(value / (1.0 if unit is None else unit.size))
    if name == "memory_bytes":
        capacity = row.get("memory_capacity_bytes", answer.problem.memory_bytes)
        return byte_text(value) if capacity is None else used_of_total(value, capacity)
    if name == "way_names":
        counts = Counter(way or f"way {n}" for way, n in zip(value, row["ways"], strict=True))
        return ", ".join(f"{count} {way}" for way, count in counts.most_common())
    return str(len(value)) if name == "nodes" else f"{value:,}" if isinstance(value, int) else str(value)


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
    state = counted(len(problems), "problem") if problems else "ok"
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

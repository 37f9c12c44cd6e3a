"""The answer of ``planner detect``: what was found, from where, and what had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.core.blocks import Block, Column, Report, Sentence, Table
from planner.detect.machine import FoundMachine
from planner.detect.values import Fact
from planner.report.documents import RESULT_VERSION

__all__ = ["detect_report"]


def detect_report(machine: FoundMachine, remarks: Sequence[str], written: Sequence[Path]) -> Report:
    """Make the report.

    Parameters
    ----------
    machine : FoundMachine
    remarks : sequence of str
        What did not work.
    written : sequence of Path
        Files that now exist.
    """
    records = _records(machine)
    notes = [*machine.remarks, *remarks]
    return Report(
        blocks=lambda: _blocks(machine, records, notes, written),
        data=lambda: {
            "schema_version": RESULT_VERSION,
            "name": machine.name,
            "description": machine.description,
            "values": records,
            "remarks": notes,
            "files": [str(path) for path in written],
        },
        records=lambda: records,
    )


def _records(machine: FoundMachine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for device, count in machine.devices:
        where = "bundled device" if device.is_bundled else "new device"
        rows.append(_record(where, Fact(key="name", text=device.name, source=f"{count} x {device.label}")))
        rows += [_record("new device", fact) for fact in device.facts]
    for level in machine.levels:
        counted = "counted" if "assum" in level.source else level.source
        if level is machine.levels[-1]:
            counted = "machines like this one (--nodes)"
        if level.size == 1:
            counted = "this machine alone"
        rows.append(_record(level.name, Fact(key="size", text=str(level.size), source=counted)))
        rows += [_record(level.name, fact) for fact in level.facts]
    return rows


def _record(part: str, fact: Fact) -> dict[str, Any]:
    return {"part": part, "key": fact.key, "value": fact.text, "known": fact.is_known, "source": fact.source}


def _blocks(
    machine: FoundMachine, records: Sequence[Mapping[str, Any]], notes: Sequence[str], written: Sequence[Path]
) -> list[Block]:
    def column(title: str, key: str, *, flexible: bool = False) -> Column:
        return Column(title=title, cells=tuple(str(row[key]) for row in records), is_text=True, flexible=flexible)

    unknown = sum(not row["known"] for row in records)
    blocks: list[Block] = [
        Sentence(machine.description, strong=True),
        Table(
            columns=(
                column("part", "part"),
                column("key", "key"),
                column("value", "value", flexible=True),
                Column(title="known", cells=tuple("yes" if r["known"] else "ASSUMED" for r in records), is_text=True),
                column("source", "source", flexible=True),
            )
        ),
        Sentence(f"{unknown} of {len(records)} values are assumptions; in the files these lines say 'unknown'."),
    ]
    blocks += [Sentence(f"remark: {note}") for note in notes]
    if not written:
        blocks.append(Sentence("No file was written: -o cluster.yaml writes one that --cluster takes."))
    return blocks

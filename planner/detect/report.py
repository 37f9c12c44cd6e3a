"""What `planner detect` found, from where, and what had to be assumed: as a report, and as files that describe cluster and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.core.blocks import Block, Column, Report, Sentence, Table
from planner.detect.devices import Fact, FoundDevice, comment_text, number_text, quoted
from planner.detect.machine import FoundLevel, FoundMachine
from planner.report.documents import RESULT_VERSION

_HEAD = """\
# Written by 'planner detect' for the machine it ran on. Every value has its source below;
# lines marked "unknown" hold assumptions: put the right value there.
schema_version: 1
"""


def machine_files(machine: FoundMachine, path: Path, *, stem: str = "") -> dict[Path, str]:
    """Files to write: the cluster at a path, its new devices beside it.

    Parameters
    ----------
    machine : FoundMachine
    path : Path
        Of the cluster file.
    stem : str
        How names of device files begin; as the cluster file's unless given.
    """
    fresh = [device for device, _ in machine.devices if not device.is_bundled]
    named = path.with_name(f"{stem or path.stem}.yaml")
    names = {device.name: device_file_name(named, device if len(fresh) > 1 else None) for device in fresh}
    files = {path.with_name(names[device.name]): device_text(device) for device in fresh}
    return files | {path: cluster_text(machine, names)}


def device_file_name(path: Path, device: FoundDevice | None = None) -> str:
    """Name of a device file beside a cluster file; with the device's name where there are several.

    >>> device_file_name(Path("here/cluster.yaml"))
    'cluster-device.yaml'
    """
    return f"{path.stem}-{'device' if device is None else device.name}.yaml"


def cluster_text(machine: FoundMachine, device_files: dict[str, str]) -> str:
    """Text of a cluster file.

    Parameters
    ----------
    machine : FoundMachine
    device_files : dict
        Name of a device -> its file beside the cluster; bundled devices are named as they are.
    """
    is_one = len(machine.devices) == 1
    only = machine.devices[0][0].driver_memory if is_one else None
    indent = "" if is_one else "    "
    devices = [] if is_one else ["groups:"]
    for device, count in machine.devices:
        shown = device.driver_memory
        devices += [
            f"{'' if is_one else '  - '}device: {quoted(device_files.get(device.name, device.name))}",
            *([] if is_one else [f"    count: {count}"]),
            *([] if shown is None else [shown.line(indent)]),
        ]
    levels = []
    for level in machine.levels:
        is_last = level.name == machine.levels[-1].name
        remark = "  # machines like this one: raise it to plan for several" if is_last else ""
        levels += [f"  - name: {level.name}", f"    size: {level.size}{remark}"]
        levels += [fact.line("    ") for fact in level.facts]
    lines = [
        f"name: {quoted(machine.name)}",
        f"description: {quoted(machine.description)}",
        *devices,
        "levels:",
        *levels,
        "source:",
        f"  {'device' if is_one else 'groups'}: {quoted(machine.device_source)}",
        *([f"  {only.key}: {quoted(only.source)}"] if only is not None else []),
        *(f"  {level.name}: {quoted(_level_source(level))}" for level in machine.levels),
    ]
    remarks = "".join(f"# {comment_text(remark)}\n" for remark in machine.remarks)
    return _HEAD + remarks + "\n".join(lines) + "\n"


def _level_source(level: FoundLevel) -> str:
    """Where each number of a level comes from: what was found, and what was assumed; numbers of one source together."""
    named: dict[tuple[bool, str], list[str]] = {}
    for fact in level.facts:
        named.setdefault((fact.is_known, fact.source), []).append(fact.key)
    words = [
        f"{' and '.join(keys)}: {'' if known else 'assumption - '}{source}" for (known, source), keys in named.items()
    ]
    # What asked for the first number, and what was left out.
    before = level.source.removesuffix(level.facts[0].source).strip("; ") if level.facts else ""
    asked = [before] if before and level.source.endswith(level.facts[0].source) else []
    return "; ".join([*asked, *words])


def device_text(device: FoundDevice) -> str:
    """Text of a device file."""
    values = ", ".join(f"{key}: {number_text(value)}" for key, value in device.efficiency)
    sources = {fact.key: fact.source if fact.is_known else f"assumption - {fact.source}" for fact in device.facts}
    lines = [
        f"name: {quoted(device.name)}",
        f"description: {quoted(device.label)}",
        *(fact.line() for fact in device.facts),
        *([f"efficiency: {{{values}}}"] if values else []),
        "source:",
        *(f"  {key}: {quoted(source)}" for key, source in sources.items()),
        *([f"  efficiency: {quoted(device.efficiency_source)}"] if values else []),
    ]
    return _HEAD + "\n".join(lines) + "\n"


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
    no_file = "No file was written: -o cluster.yaml writes one that --cluster takes."
    return [
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
        *(Sentence(f"remark: {note}") for note in notes),
        *([] if written else [Sentence(no_file)]),
    ]

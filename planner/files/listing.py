"""The answers of ``planner list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import percent
from planner.core.quantities import format_rate
from planner.files.documents import parse_document
from planner.files.loading import load_cluster, load_device, load_framework
from planner.files.resources import bundled, cluster_aliases, stands_for
from planner.report.documents import RESULT_VERSION

_DESCRIPTION = "description"
_LONG = (_DESCRIPTION, "source", "value", "why", "frameworks", "kinds", "other_names")


def listing_report(kind: str, rows: Sequence[Mapping[str, Any]]) -> Report:
    """List rows with equal keys, in every form."""
    return Report(
        blocks=lambda: _blocks(kind, rows),
        data=lambda: {"schema_version": RESULT_VERSION, "kind": kind, "items": list(rows)},
        records=lambda: rows,
    )


def _blocks(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return [Sentence(f"no {kind} are bundled")]
    if "best_flop_per_s" in rows[0]:
        return _rate_blocks(rows)
    if "setting" not in rows[0] and "links" not in rows[0]:
        return [row_table(rows)]
    # Many rows of each: its name stands once, above them.
    groups: dict[str, list[dict[str, Any]]] = {row["name"]: [] for row in rows}
    for row in rows:
        groups[row["name"]].append({key: value for key, value in row.items() if key != "name" and value is not None})
    return [block for name, its in groups.items() for block in (Heading(name), row_table(its))]


def _rate_blocks(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A table of rates per device, what it is above and where they come from below."""
    blocks: list[Block] = []
    for name in dict.fromkeys(row["name"] for row in rows):
        its = [row for row in rows if row["name"] == name]
        first = its[0]
        power = "" if first["power_w"] is None else f"{first['power_w']:g} W"
        title = first[_DESCRIPTION] if power in first[_DESCRIPTION] else f"{first[_DESCRIPTION]}, {power}"
        peak = [("Peak", first["peak_source"])] if first["peak_source"] else []
        reached = [(key, first[f"{key.lower()}_source"] or _NOT_FOUND) for key in ("Best", "Sustained")]
        blocks += [Heading(name), Sentence(title), rate_table(its), Facts((*peak, *reached))]
    return [*blocks, *assumed_rates(rows)]


def rate_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rates of a device, a row for each format."""
    return row_table(
        [
            {
                "format": row["format"],
                "peak": format_rate(row["peak_flop_per_s"], "FLOP/s"),
                **{
                    key: format_rate(row[f"{key}_flop_per_s"], "FLOP/s") + ("*" if row[f"{key}_is_assumed"] else "")
                    for key in ("best", "sustained")
                },
                "of peak": percent(row["sustained_share"]),
            }
            for row in rows
        ]
    )


def assumed_rates(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """What is meant by the rates that are marked; nothing where none is."""
    is_marked = any(row["best_is_assumed"] or row["sustained_is_assumed"] for row in rows)
    return [Sentence(_ASSUMED)] if is_marked else []


# The rule is that of `Device.best` and `Device.sustained`.
_ASSUMED = (
    "* not measured. Best: the same share of the peak as the format most alike, as a fit, or 80 %. Sustained: the same share of the best "
    "rate as the format most alike, or all of it."
)
_NOT_FOUND = "assumed: no measurement on record"


def row_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A column per key."""
    values = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    return Table(
        columns=tuple(
            Column(
                title=key.replace("_", " "),
                cells=tuple(_cell(value) for value in cells),
                is_text=not all(value is None or isinstance(value, (int, float)) for value in cells),
                flexible=key in _LONG,
                priority=0 if key in ("name", "setting", *_LONG) else i,
            )
            for i, (key, cells) in enumerate(values.items())
        )
    )


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if type(value) is int else _words(value)


def file_rows(kind: str, files: Iterable[Path]) -> list[dict[str, Any]]:
    """Name and main facts of files of a kind, as each writes them."""
    rows = []
    for path in files:
        content = parse_document(path).value
        description = str(content.get(_DESCRIPTION) or content.get("source") or "").strip()
        rows.append({"name": path.stem, **_FACTS[kind](content), _DESCRIPTION: description})
    return rows


def _device_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    peak = content.get("peak")
    rates = ", ".join(f"{name} {rate}" for name, rate in peak.items()) if isinstance(peak, dict) else ""
    return {"memory": content.get("memory"), "memory_bandwidth": content.get("memory_bandwidth"), "peak": rates}


def device_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Peak, best and sustained rate of every format of devices, with their sources."""
    rows: list[dict[str, Any]] = []
    for path in files:
        device, content = load_device(str(path)).device, parse_document(path).value
        source = dict(content.get("source") or {})
        if "matmul_fraction" in content.get("efficiency", {}) and "efficiency" in source:  # a fit to whole steps
            source.setdefault("best", source["efficiency"])
        rows += [
            {
                "name": path.stem,
                "format": name,
                "peak_flop_per_s": peak,
                "best_flop_per_s": device.best(name),
                "sustained_flop_per_s": device.sustained(name),
                "sustained_share": device.sustained(name) / peak,
                "best_is_assumed": name not in device.best_flop_per_s,
                "sustained_is_assumed": name not in device.sustained_flop_per_s,
                "power_w": device.busy_power_w,
                **{f"{key}_source": source.get(key) for key in ("peak", "best", "sustained")},
                _DESCRIPTION: device.description,
            }
            for name, peak in device.peak_flop_per_s.items()
        ]
    return rows


def _cluster_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    groups = content.get("groups")
    devices = [content.get("device"), *(group.get("device") for group in groups or () if isinstance(group, dict))]
    name, device = content.get("name"), str(content.get("device"))
    # "h100" of an h100-sxm, and the board's own name, where they mean this cluster.
    short = [word for word in (device.partition("-")[0], device) if (stands_for(word) or ("",))[0] == name]
    return {
        "device": ", ".join(str(device) for device in devices if device),
        "also_called": ", ".join(dict.fromkeys((*cluster_aliases(str(name)), *short))),
    }


def cluster_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Links of clusters, level by level: what long messages reach, how data get there, and where it comes from."""
    from planner.report.hardware import level_cells

    rows: list[dict[str, Any]] = []
    for path in files:
        cluster, source = load_cluster(str(path)).cluster, parse_document(path).value.get("source") or {}
        rows += [
            {"name": path.stem, **cells, "source": source.get(level.name)}
            for level, cells in zip(cluster.levels, level_cells(cluster.levels), strict=True)
        ]
    return rows


def _calibration_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    constants = content.get("constants")
    source = content.get("source")
    fitted = [entry for entry in constants.values() if entry.get("determined")] if isinstance(constants, dict) else []
    return {"rows": source.get("used", 0) if isinstance(source, dict) else 0, "determined": len(fitted)}


def _failure_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"classes": len(content.get("classes") or {}), "fleets": len(content.get("fleets") or ())}


def failure_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Every cause of interruptions, and how often it comes."""
    contents = [parse_document(path).value for path in files]
    return [{"cause": name, **entry} for content in contents for name, entry in content["classes"].items()]


def _framework_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    costs = [content.get(key) or {} for key in ("costs", *_CONDITIONAL_COSTS)]
    return {
        "title": content.get("title"),
        "version": content.get("version"),
        "also_called": ", ".join(content.get("aliases") or ()),
        "costs": sum(map(len, costs)),
    }


# Costs of a framework file that count under a condition -> the condition.
_CONDITIONAL_COSTS = {
    "costs_on_fp4_devices": "on devices with fp4",
    "costs_in_fp16": "in fp16",
    "costs_in_16_bits": "in fp16 and bf16",
    "costs_in_mxfp8": "in mxfp8",
}


def _words(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return " or ".join({True: "on", False: "off"}[one] if isinstance(one, bool) else str(one) for one in values)


def framework_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Every number and choice of frameworks, with its source."""
    from costmodel.mesh.framework_rules import DERIVED

    rows: list[dict[str, Any]] = []
    for path in files:
        content = parse_document(path).value
        rules = content.get("rules") or {}
        its = [
            _setting(
                section.split("_")[0].removesuffix("s"),
                key,
                entry.get("value"),
                ("fitted: " if entry.get("fitted") else "") + str(entry.get("source")),
                _CONDITIONAL_COSTS.get(section),
            )
            for section in ("costs", *_CONDITIONAL_COSTS, "defaults")
            for key, entry in (content.get(section) or {}).items()
        ]
        its += [
            _setting(key, key, content[key]["value"], content[key].get("source"))
            for key in ("stages", "attention")
            if content.get(key)
        ]
        its += [
            _setting(
                "version" if key == "version" else "rules",
                key,
                " ".join(map(str, value)) if isinstance(value, list) else value,
                rules.get("source"),
            )
            for key, value in rules.items()
            if key not in ("source", "refuses") and value is not None
        ]
        its += [
            _setting(
                "rules",
                "refuses",
                " with ".join(
                    DERIVED[key].about or DERIVED[key].words if key in DERIVED else f"{key} {_words(value)}"
                    for key, value in entry["when"].items()
                ),
                f"{entry['why']} ({entry.get('source') or rules.get('source')})",
                f"version {_words(entry['versions'])}" if entry.get("versions") else None,
            )
            for entry in rules.get("refuses") or ()
        ]
        rows += [
            {"name": path.stem, **row} for row in its or [_setting("nothing", None, None, content.get(_DESCRIPTION))]
        ]
    return rows


def _setting(what: str, name: str | None, value: Any, source: Any, when: str | None = None) -> dict[str, Any]:
    return {"what": what, "setting": name, "value": value, "when": when, "source": source}


_FACTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "models": lambda content: {"global_batch": content.get("global_batch")},
    "devices": _device_facts,
    "clusters": _cluster_facts,
    "frameworks": _framework_facts,
    "calibrations": _calibration_facts,
    "failures": _failure_facts,
}


def precision_rows() -> list[dict[str, Any]]:
    """Every number format and recipe, by the names that options take; what means one of several has no figures of its own."""
    from costmodel.precision import PRECISIONS
    from planner.files.naming.precisions import BARE, WORDS

    formats = [load_device(name).device.formats for name in bundled("devices")]
    rows = [
        {
            "name": name,
            **known.formats(),
            "devices": sum(known.runs_on(each) for each in formats),
            "other_names": ", ".join(WORDS.get(name, ())),
            _DESCRIPTION: known.about or "one format for weights, products and what is kept",
        }
        for name, known in PRECISIONS.items()
    ]
    bare = [
        {
            "name": name,
            "other_names": ", ".join(WORDS[name]),
            _DESCRIPTION: f"{' or '.join(meant)}, as the device has it",
        }
        for name, meant in BARE.items()
        if name not in PRECISIONS
    ]
    return [*rows, *({**dict.fromkeys(rows[0]), **row} for row in bare)]


def schedule_rows() -> list[dict[str, Any]]:
    """Every pipeline schedule: what it is, how long ranks wait, what they keep, and the frameworks whose rules let it run."""
    from costmodel.mesh.framework_rules import Span
    from costmodel.schedules import PIPELINE_SCHEDULES, SCHEDULES

    rules = {name: load_framework(name).framework.rules for name in bundled("frameworks")}
    # Those that say nothing about pipelines are left out: nothing is known of their schedules.
    runs = {name: its.runs("schedule", SCHEDULES) for name, its in rules.items() if its.runs("pp", [Span(2)])}
    return [
        {
            "name": each.name,
            _DESCRIPTION: each.about,
            "bubble": each.bubble,
            "micro_batches_in_flight": each.kept,
            "frameworks": ", ".join(
                name for name, its in runs.items() if each.name in its and len(its) < len(SCHEDULES)
            ),
        }
        for each in PIPELINE_SCHEDULES
    ]


def collective_rows() -> list[dict[str, Any]]:
    """Every algorithm of every operation, in the order that breaks ties."""
    from costmodel.hardware.collectives import COLLECTIVES

    return [
        {
            "name": collective.name,
            "operation": collective.operation,
            "chosen_by_itself": "yes" if collective.by_default else "only when named",
            _DESCRIPTION: collective.summary.rstrip("."),
        }
        for collective in COLLECTIVES.values()
    ]

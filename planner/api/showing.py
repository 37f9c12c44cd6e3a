"""The answers of ``planner show``: everything that is known of one thing, each number with its source.

A thing is a device, a cluster, a network, a framework or a list of failures.

It is what ``planner list`` says of it in a line and with ``-v``, and what its file states besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.core.blocks import Block, Facts, Heading, Report, Sentence
from planner.core.numbers import counted, percent
from planner.files.listing import (
    assumed_rates,
    cluster_rows,
    device_rows,
    failure_rows,
    file_rows,
    framework_rows,
    rate_table,
    row_table,
)
from planner.files.loading import load_cluster, load_document
from planner.files.resources import Kind, bundled, resolve
from planner.report.documents import RESULT_VERSION

# Kind -> that of `planner list`.
SHOWN: dict[str, Kind] = {
    "device": "devices",
    "cluster": "clusters",
    "model": "models",
    "framework": "frameworks",
    "failure": "failures",
}
# Kind -> rows of what its files hold many of.
_DETAILS = {"device": device_rows, "cluster": cluster_rows, "framework": framework_rows, "failure": failure_rows}
# Keys of a framework's rules -> what people call them, where the key does not say it.
_RULES = {
    "version": "version that plans are for",
    "one_mesh": "same degrees in all stages and replicas",
    "orders": "orders of ranks",
    "whole_nodes": "as many processes on every node",
    "layers_by_batch": "layers split by the batch alone",
    "schedules_on_request": "schedules, only where asked for",
    "groups": "groups of interleaved micro-batches",
}
_GROUPS = {"whole": "of pp each", "equal": "of equal size", "any": "of any size"}
_SAID = ("schema_version", "name", "description", "source", "aliases", "title")


def show_report(kind: str, name: str) -> Report:
    """Describe one thing by any name that it has, or the file of one.

    Parameters
    ----------
    kind : str
        One of `SHOWN`.
    name : str

    Raises
    ------
    PlannerError
        No such name or file; every problem of the file.
    """
    document = _model(name) if kind == "model" else _file(kind, name)
    return Report(blocks=lambda: _blocks(document), data=lambda: document, records=lambda: document["values"])


def _file(kind: str, name: str) -> dict[str, Any]:
    from planner.core.request import imported
    from planner.schema import DOCUMENTS

    path = resolve(SHOWN[kind], name)
    content = load_document(path, imported(DOCUMENTS[kind])).document.value
    [summary] = file_rows(SHOWN[kind], [path])
    used = _between_others(name, content["name"]) if kind == "cluster" else None
    if used is not None:  # the board's own names do not mean this one
        content = content | {
            "name": used,
            "device": used,
            "description": f"links of {content['name']}, with {used} as devices",
        }
        sources = content.get("source") or {}
        its = {"device": f"asked for; of {path.stem}: {sources['device']}"} if "device" in sources else {}
        content["source"] = {**sources, **its}
        summary["also_called"] = ""
    details = _DETAILS[kind]([path])
    stated = () if kind == "framework" else tuple(content)  # is among the values
    facts = {key: value for key, value in summary.items() if key not in ("name", "description", "costs", *stated)}
    if kind == "device":
        from planner.files.naming.devices import usual_cluster

        facts["usual_cluster"] = usual_cluster(str(content["name"]))
    values = [] if kind == "framework" else list(_values(content))
    return _document(kind, str(content["name"]), path, content.get("description", ""), facts, values, details)


def _between_others(given: str, cluster: str) -> str | None:
    """The device that a question has on the links of a cluster where its name is given for the cluster's; None where it has its own."""
    used = load_cluster(given).cluster.name
    return None if used == cluster else used


def _document(
    kind: str,
    name: str,
    path: Path,
    description: str,
    facts: Mapping[str, Any],
    values: Sequence[Mapping[str, Any]],
    details: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    is_bundled = path in bundled(SHOWN[kind]).values()
    return {
        "schema_version": RESULT_VERSION,
        "kind": kind,
        "name": name,
        "description": description,
        "file": None if is_bundled else str(path),
        "facts": {key: value for key, value in facts.items() if value not in (None, "")},
        "values": list(values),
        "details": list(details),
    }


def _values(content: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """What a file states, with units as it writes them, a row for each key that has a source of its own."""
    sources = content.get("source") or {}
    for key, value in content.items():
        if key == "levels":
            for level in value:
                rest = {name: one for name, one in level.items() if name != "name"}
                yield {"key": f"links {level['name']}", "value": _text(rest), "source": sources.get(level["name"])}
        elif key == "fleets":
            for fleet in value:
                rest = {name: one for name, one in fleet.items() if name not in ("name", "source")}
                yield {"key": f"fleet {fleet['name']}", "value": _text(rest), "source": fleet.get("source")}
        elif key == "classes":
            yield {"key": key, "value": counted(len(value), "cause"), "source": sources.get(key)}
        elif key not in _SAID:
            yield {"key": key, "value": _text(value), "source": sources.get(key)}


def _text(value: Any) -> str:
    """A value of a file on one line.

    >>> _text({"busy": "700 W", "formats": ["fp8", "bf16"]}), _text(6.88)
    ('busy 700 W, formats fp8 bf16', '6.88')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list):
        is_plain = not any(isinstance(one, (Mapping, list)) for one in value)
        return (" " if is_plain else "; ").join(map(_text, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _model(name: str) -> dict[str, Any]:
    from planner.importers.networks import load_model

    model = load_model(name)
    graph = model.graph
    facts = {
        "weights": graph.weight_count + graph.norm_count,
        "layers": len(graph.layers),
        "blocks": len(graph.blocks) or None,
        "global_batch": model.global_batch,
        "seq": model.seq,
        "weights_published_in": None if model.checkpoint is None else model.checkpoint.name,
        "source": model.source,
    }
    total = max(graph.weight_count + graph.norm_count, 1)
    # Equal blocks, by the repeated part that they are of; what is in none of them is by itself.
    parts: dict[str, list[Any]] = {}
    for layer in graph.layers:
        parts.setdefault(layer.block.rpartition(".")[0] if layer.block else layer.name, []).append(layer)
    repeats = {part: len({layer.block for layer in layers}) for part, layers in parts.items()}
    details = []
    for part, layers in parts.items():
        weights = sum(layer.weight_count + layer.norm_count for layer in layers)
        kinds = list(dict.fromkeys(layer.kind for layer in layers))
        details.append(
            {
                "part": part,
                "times": repeats[part],
                "layers": len(layers) // repeats[part],
                "weights": weights // repeats[part],
                "share": weights / total,
                "kinds": kinds,
            }
        )
    return _document("model", model.name, model.path, model.description, facts, [], details)


def _blocks(document: Mapping[str, Any]) -> list[Block]:
    title = document["facts"].get("title")
    # Rules, which exports follow, may be of a newer one.
    titles = {"version": "Costs are of version"} if document["kind"] == "framework" else {}
    facts = [
        ("Description", document["description"]),
        ("File", document["file"] or ""),
        *(
            (titles.get(key, key.replace("_", " ").capitalize()), f"{value:,}" if type(value) is int else str(value))
            for key, value in document["facts"].items()
            if key != "title"
        ),
    ]
    name = f"{document['kind']} {document['name']}"
    blocks: list[Block] = [
        Sentence(f"{title} ({name})" if title else name, strong=True),
        Facts(tuple((key, text) for key, text in facts if text)),
    ]
    if document["values"]:
        blocks.append(row_table(document["values"]))
    return [*blocks, *_details(document["kind"], document["details"])]


def _details(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Tables of the details, without what stands above them."""
    if kind == "device":
        return [Heading("Rates of large products"), rate_table(rows), *assumed_rates(rows)]
    said = ("name", "source") if kind == "cluster" else ("name",)
    rows = [{key: value for key, value in row.items() if key not in said and value is not None} for row in rows]
    if kind == "model":
        rows = [{**row, "share": percent(row["share"]), "kinds": ", ".join(row["kinds"])} for row in rows]
    if kind != "framework":
        titles = {"cluster": "Links", "model": "Parts", "failure": "Causes"}
        return [Heading(titles[kind]), row_table(rows)]
    rules = [row for row in rows if row["what"] in ("rules", "version")]
    costs = [row for row in rows if row not in rules]
    blocks: list[Block] = []
    if rules:
        # The reason of a refusal stands before its source, which is that of all rules where it has none of its own.
        common = next((row["source"] for row in rules if row["setting"] != "refuses"), "")
        runs = [
            {
                "rule": _RULES.get(row["setting"], row["setting"].replace("_", " "))
                + (f" ({row['when']})" if "when" in row else ""),
                "value": _GROUPS[row["value"]] if row["setting"] == "groups" else row["value"],
                "why": row["source"].replace(f" ({common})", "").replace(common, "") if common else row["source"],
            }
            for row in rules
        ]
        blocks += [Heading("What it can run"), row_table(runs), *([Facts((("Source", common),))] if common else [])]
    return [*blocks, Heading("What it costs, and what it does unless told"), row_table(costs)] if costs else blocks

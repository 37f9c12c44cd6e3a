"""`planner show`: everything that is known of one thing is said, each number with its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api.showing import SHOWN, show_report
from planner.files.documents import parse_document
from planner.files.listing import framework_rows
from planner.files.resources import bundled
from planner.report.text import plain_text
from planner.schema import schema_of


def shown(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    report = show_report(kind, name)
    document = json.loads(json.dumps(report.data()))
    schema_of("show").model_validate(document)
    return " ".join(plain_text([*report.blocks()], 5000).split()), document


@pytest.mark.parametrize("kind", ["device", "cluster"])
@pytest.mark.parametrize("which", ["first", "last", "middle"])
def test_every_key_of_a_file_is_shown_with_its_source(kind: str, which: str) -> None:
    names = list(bundled(SHOWN[kind]))
    name = {"first": names[0], "last": names[-1], "middle": names[len(names) // 2]}[which]
    content = parse_document(bundled(SHOWN[kind])[name]).value
    text, document = shown(kind, name)
    for source in content["source"].values():
        assert " ".join(source.split()) in text
    stated = {value["key"].removeprefix("links ") for value in document["values"]}
    named = {level["name"] for level in content.get("levels", ())}
    assert stated == (content.keys() | named) - {"schema_version", "name", "description", "source", "levels"}


def test_a_cluster_by_the_name_of_its_device() -> None:
    text, document = shown("cluster", "h100")
    assert document["name"] == "dgx-h100"
    assert "Also called: h100, h100-sxm" in text
    assert document["details"][0]["links"] == "nvlink"


@pytest.mark.parametrize(
    ("name", "links"), [("h200", "dgx-h100"), ("rtx-4090", "pcie4-node"), ("MI355X", "mi300x-node")]
)
def test_a_device_on_the_links_of_its_usual_cluster_is_that_of_a_question(name: str, links: str) -> None:
    text, document = shown("cluster", name)
    used = planner.load_cluster(name).cluster
    assert document["name"] == used.name == used.device.name == name.lower()
    assert document["description"] == f"links of {links}, with {used.name} as devices"
    assert [value["value"] for value in document["values"] if value["key"] == "device"] == [used.name]
    assert "Also called" not in text


def test_a_device_says_where_it_usually_stands() -> None:
    assert shown("device", "NVIDIA A100-SXM4-80GB")[1]["facts"]["usual_cluster"] == "dgx-a100"


def test_parts_of_a_network_add_up() -> None:
    text, document = shown("model", "deepseek-ai/DeepSeek-V3")
    parts = document["details"]
    assert sum(part["times"] * part["weights"] for part in parts) == document["facts"]["weights"] == 671_026_419_200
    assert sum(part["times"] * part["layers"] for part in parts) == document["facts"]["layers"]
    assert sum(part["share"] for part in parts) == pytest.approx(1)
    assert {type(part["kinds"]) for part in parts} == {list}
    assert [(part["part"], part["times"]) for part in parts if part["times"] > 1] == [("dense", 3), ("blocks", 58)]
    assert "arXiv:2412.19437" in text


@pytest.mark.parametrize("name", sorted(bundled("frameworks")))
def test_every_rule_and_cost_of_a_framework_is_shown(name: str) -> None:
    text, document = shown("framework", name)
    assert document["details"] == json.loads(json.dumps(framework_rows([bundled("frameworks")[name]])))
    for row in document["details"]:
        if row["what"] == "rules" and row["setting"] == "refuses":
            assert " ".join(row["source"].partition(" (")[0].split()) in text


def test_rules_of_some_versions_say_which() -> None:
    text, document = shown("framework", "torchtitan")
    assert "Costs are of version: 0.2" in text
    assert "version that plans are for 2026-08" in text
    assert "refuses (version v0.2.2) sequence_parallel off with tp 2.. up to v0.2.2" in text
    assert "refuses (version 2026-08 or v0.3.0) etp 2.." in text
    assert "groups of interleaved micro-batches of equal size" in text
    assert "refuses recompute full of some blocks" in text
    assert {row["when"] for row in document["details"] if row["setting"] == "zero_stage"} == {None}


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = bundled("clusters")["dgx-a100"].read_text()
    path.write_text(text[: text.index("source:")].replace("name: dgx-a100", "name: mine", 1))
    said, document = shown("cluster", str(path))
    assert (document["name"], document["file"]) == ("mine", str(path))
    assert all(value["source"] is None for value in document["values"])
    assert str(path) in said

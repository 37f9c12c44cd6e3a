"""Reading key by key against reading item by item, which says what is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.files.json_file import JsonFile
from planner.placement.workload_file import JsonReader, _edge, _node, edges_at_once, nodes_at_once

NUMBERS: st.SearchStrategy[Any] = st.sampled_from([0, 0.0, 1, 2.5, 1e300, -0.0])
BAD_NUMBERS: st.SearchStrategy[Any] = st.sampled_from([-1, math.nan, math.inf, None, True, "3", [], 1e300])
FLAGS: st.SearchStrategy[Any] = st.sampled_from([0, 1, True, False])
BAD_FLAGS: st.SearchStrategy[Any] = st.sampled_from([2, 1.0, None, "1", {}])
NAMES: st.SearchStrategy[Any] = st.sampled_from([1, -7, "a", ""])
BAD_NAMES: st.SearchStrategy[Any] = st.sampled_from([1.5, None, True, [], {}])


def _mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 15).flatmap(lambda i: bad if i == 0 else good)


TIME = _mostly(NUMBERS, BAD_NUMBERS)
NODES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "id": _mostly(NAMES, BAD_NAMES),
                "supportedOnFpga": _mostly(FLAGS, BAD_FLAGS),
                "fpgaLatency": TIME,
                "cpuLatency": TIME,
            },
            optional={
                "size": TIME,
                "isBackwardNode": _mostly(FLAGS, BAD_FLAGS),
                "colorClass": _mostly(st.one_of(NAMES, st.none()), BAD_NAMES),
                "name": st.sampled_from(["x", 3]),
            },
        ),
    ),
    max_size=4,
)
EDGES = st.lists(
    st.fixed_dictionaries(
        {"sourceId": _mostly(NAMES, BAD_NAMES), "destId": _mostly(NAMES, BAD_NAMES), "cost": TIME},
    ),
    max_size=4,
)


def one_by_one(items: list[Any], read: Any) -> tuple[list[Any], bool]:
    """What each item is read as, and whether there is a fault."""
    reader = JsonReader(JsonFile(path=Path("w.json"), text="[]", sha256="", content=items))
    values = reader.list_of(items, (), lambda value, at: read(reader, value, at))
    return values, not reader._problems


@given(NODES)
def test_nodes_are_those_read_one_by_one(items: list[Any]) -> None:
    expected, sound = one_by_one(items, _node)
    found = nodes_at_once(items)
    assert found == (expected if sound else None)


@given(EDGES)
def test_edges_are_those_read_one_by_one(items: list[Any]) -> None:
    expected, sound = one_by_one(items, _edge)
    assert edges_at_once(items) == (expected if sound else None)


@pytest.mark.parametrize("items", [None, {}, "nodes", [1], [[]], [{}], ["id"], [None]])
def test_what_is_no_list_of_objects_is_left_to_the_other(items: Any) -> None:
    assert nodes_at_once(items) is None
    assert edges_at_once(items) is None

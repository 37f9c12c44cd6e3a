"""Repeated blocks of network files with faults: each named once, and none invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.schema.model import MAX_LAYERS
from tests.planner.files.bad_files import DATA, HEAD, error, errors

POOL_BLOCK = (
    "blocks:\n  b:\n    parameters: [k]\n    layers:\n      - {name: p, type: pool, kernel: $k}\n"  # lines 4 to 8
)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{name: s, block: bb}", ["11:22: layers[1].block: block 'bb' does not exist; did you mean 'b'?"]),
        ("{name: s, block: b}", ["11:5: layers[1]: block 'b' needs k under 'with'"]),
        (
            "{name: s, block: b, with: {k: 1, kk: 2}}",
            ["11:38: layers[1].with.kk: block 'b' has no parameter 'kk'; did you mean 'k'?"],
        ),
        (
            "{name: s, block: b, with: {k: 0}}",
            ["11:35: layers[1].with.k: must be at least 1, got 0 (kernel of layer 'p', line 8)"],
        ),
        (
            "{name: s, block: b, with: {k: big}}",
            ["11:35: layers[1].with.k: expected a number or [height, width] (kernel of layer 'p', line 8)"],
        ),
        ("{name: s, block: b, repeat: 0, with: {k: 1}}", ["11:33: layers[1].repeat: must be at least 1, got 0"]),
        (
            "{name: s, block: b, repeat: 1000000, with: {k: 1}}",
            ["11:33: layers[1].repeat: must be at most 100000, got 1000000"],
        ),
        (
            "{name: s, block: b, with: {k: 1}, first: {with: {k: 0}}}",
            ["11:57: layers[1].first.with.k: must be at least 1, got 0 (kernel of layer 'p', line 8)"],
        ),
        (
            "{name: s, block: b, with: {k: 40}}",
            ["8:9: s.p: kernel 40x40 does not fit into its input 3x32x32 with padding 0 (inputs: data)"],
        ),
        (
            "{name: s, block: b, inputs: [data, data], with: {k: 1}}",
            [
                "11:33: layers[1].inputs: blocks and branches take one input; hand other layers in as parameters ('with')"
            ],
        ),
        ("{name: s, block: b, wiht: {k: 1}}", ["11:25: layers[1].wiht: unknown key 'wiht'; did you mean 'with'?"]),
    ],
)
def test_use_of_a_block(tmp_path: Path, entry: str, expected: list[str]) -> None:
    assert errors(tmp_path, HEAD + POOL_BLOCK + DATA + f"  - {entry}\n") == expected


def test_copies_of_a_layer_with_the_same_problem_are_counted(tmp_path: Path) -> None:
    block = "blocks:\n  b:\n    layers:\n      - {name: p, type: pool, kernel: 40, inputs: $x}\n    parameters: [x]\n"
    uses = "".join(f"  - {{name: s{i}, block: b, with: {{x: data}}}}\n" for i in range(4))
    message = error(tmp_path, HEAD + block + DATA + uses)
    assert message.startswith("7:9: s0.p: kernel 40x40 does not fit")
    assert message.endswith("; so do 3 more copies of this layer")


def test_unknown_parameter_of_an_unused_block(tmp_path: Path) -> None:
    text = HEAD + POOL_BLOCK.replace("$k", "$kk") + DATA
    assert (
        error(tmp_path, text) == "8:39: blocks.b.layers[0].kernel: block 'b' has no parameter 'kk'; did you mean 'k'?"
    )


def test_a_block_sees_only_its_own_layers(tmp_path: Path) -> None:
    text = (
        HEAD + "blocks: {b: {layers: [{name: p, type: flatten, inputs: data}]}}\n" + DATA + "  - {name: s, block: b}\n"
    )
    assert error(tmp_path, text).endswith("blocks.b.layers[0].inputs: input 'data' does not exist in block 'b'")


def test_a_block_that_uses_itself(tmp_path: Path) -> None:
    for body in ("{name: p, block: b}", "{name: p, branches: [[{name: q, block: b}], []]}"):
        text = HEAD + f"blocks: {{b: {{layers: [{body}]}}}}\n" + DATA + "  - {name: s, block: b}\n"
        assert "blocks are nested more than 16 deep" in error(tmp_path, text)


@pytest.mark.fuzz
def test_blocks_that_use_each_other_grow_no_further_than_the_limit(tmp_path: Path) -> None:
    blocks = "blocks:\n  b0: {layers: [{name: a, type: flatten}]}\n"
    blocks += "".join(f"  b{i}: {{layers: [{{name: a, block: b{i - 1}, repeat: 10}}]}}\n" for i in range(1, 12))
    message = error(tmp_path, HEAD + blocks + DATA + "  - {name: s, block: b11}\n")
    assert f"more than {MAX_LAYERS:,} layers" in message


def test_problems_around_a_broken_entry_are_reported_and_none_invented(tmp_path: Path) -> None:
    entries = [
        "{name: s, block: b}",
        "{name: t, type: flatten, inputs: s.p}",  # s could not be unfolded: not a second problem
        "{name: u, type: flatten, inputs: s}",
        "{name: v, type: flatten, inputs: nowhere}",
    ]
    text = HEAD + POOL_BLOCK + DATA + "".join(f"  - {entry}\n" for entry in entries)
    assert errors(tmp_path, text) == [
        "11:5: layers[1]: block 'b' needs k under 'with'",
        "14:38: layers[4].inputs: input 'nowhere' does not exist",
    ]

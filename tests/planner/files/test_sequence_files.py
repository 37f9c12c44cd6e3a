"""Network files of sequences: ``seq``, repeated blocks as instances, frozen layers and adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.network.graph import Graph
from planner.core.errors import InputFileError, UsageError
from planner.files.loading import LoadedModel
from planner.files.network_file import network_text
from planner.importers.networks import load_model

HEAD = "schema_version: 1\nname: net\nglobal_batch: 8\n"
NET = """
blocks:
  inner:
    parameters: [width]
    defaults: {positions: $seq, train: false}
    layers:
      - {name: up, type: linear, out_features: $width, frozen: $train}
      - {name: places, type: position_embedding, max_positions: $positions}
  outer:
    layers:
      - {name: norm, type: rms_norm}
      - {name: a, block: inner, with: {width: 12}}
      - {name: b, block: inner, repeat: 2, with: {width: 12, positions: $seq}}
layers:
  - {name: tokens, type: input, shape: [1, $seq]}
  - {name: embedding, type: embedding, num_embeddings: 100, dim: 8}
  - {name: once, block: inner, with: {width: 8}}
  - {name: blocks, block: outer, repeat: 3}
  - name: fork
    branches: [[{name: c, type: linear, out_features: $seq}], [{name: d, type: linear, out_features: $seq}]]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "net.yaml"
    path.write_text(HEAD + text)
    return path


def load(tmp_path: Path, text: str, seq: int | None = None) -> LoadedModel:
    return load_model(str(write(tmp_path, text)), seq=seq)


def shape(graph: Graph, name: str) -> tuple[int, ...]:
    return graph.layers[graph.index(name)].output_shape


def test_seq_stands_for_a_number_anywhere(tmp_path: Path) -> None:
    for seq, model in ((32, load(tmp_path, "seq: 32\n" + NET)), (7, load(tmp_path, "seq: 32\n" + NET, seq=7))):
        assert model.seq == seq
        assert shape(model.graph, "tokens") == (1, seq)
        assert shape(model.graph, "fork.concat") == (2 * seq, seq)
        tables = {one.params.max_positions for one in model.graph.layers if one.kind == "position_embedding"}
        assert tables == {seq}  # from the block's default, and from a value given to it


@pytest.mark.parametrize(
    ("block", "entries", "last", "expected"),
    [
        (
            "{parameters: [seq], layers: [{name: up, type: linear, out_features: $seq}]}",
            "  - {name: use, block: b, with: {seq: 5}}\n",
            "use.up",
            (5, 32),
        ),
        (
            "{parameters: [shape], layers: [{name: more, type: input, shape: $shape}]}",
            "  - {name: use, block: b, with: {shape: [6, $seq]}}\n  - {name: both, type: concat, inputs: [tokens, use]}\n",
            "both",
            (10, 32),
        ),
    ],
    ids=["a parameter of that name is the block's own", "a list given to a block may hold parameters"],
)
def test_parameters_of_a_block(tmp_path: Path, block: str, entries: str, last: str, expected: tuple[int, ...]) -> None:
    text = f"seq: 32\nblocks:\n  b: {block}\nlayers:\n  - {{name: tokens, type: input, shape: [4, $seq]}}\n{entries}"
    assert shape(load(tmp_path, text).graph, last) == expected


def test_a_file_without_seq(tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as caught:
        load(tmp_path, NET)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5  # the default, the value given, the input, both branches
    assert all("'$seq' stands for the positions of a sample" in line and "'seq: 2048'" in line for line in lines)
    plain = "layers: [{name: data, type: input, shape: [3]}, {name: fc, type: linear, out_features: 2}]\n"
    assert load(tmp_path, plain).seq is None
    with pytest.raises(UsageError, match="network 'net' has no sequence length to change"):
        load(tmp_path, plain, seq=64)
    with pytest.raises(UsageError, match="'alexnet' has no sequence length"):
        load_model("alexnet", seq=64)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq: 0\nlayers: [{name: x, type: input, shape: [3]}]\n", "seq: "),
        ("seq: 4\nlayers: [{name: x, type: input, shape: [3, $sec]}]\n", "'$sec' names a parameter"),
        (
            "seq: 4\nlayers: [{name: x, type: input, shape: [3, 4]}, {name: y, type: glu, inputs: $seq}]\n",
            "expected the name of a layer, '$seq' is a number",
        ),
        (
            "seq: 9\nlayers: [{name: x, type: input, shape: [3, $seq]}, {name: p, type: position_embedding, max_positions: 8}]\n",
            "max_positions 8 is less than the 9 positions",
        ),
        (
            "layers: [{name: x, type: input, shape: [3, 4]}, {name: n, type: rms_norm, lora_rank: 8}]\n",
            "a layer of type 'rms_norm' takes no adapter",
        ),
        (
            "layers: [{name: x, type: input, shape: [3, 4]}, {name: n, type: rms_norm, frozen: 1}]\n",
            "frozen",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputFileError) as caught:
        load(tmp_path, text)
    (line,) = str(caught.value).splitlines()
    assert said in line


def test_layers_know_their_repetition(tmp_path: Path) -> None:
    """The outermost repeated block counts; blocks used once, and what lies outside, belong to none."""
    graph = load(tmp_path, "seq: 4\n" + NET).graph
    blocks = {one.name: one.block for one in graph.layers}
    assert blocks["tokens"] == blocks["once.up"] == blocks["fork.c"] == blocks["fork.concat"] == ""
    assert blocks["blocks.1.norm"] == blocks["blocks.1.a.up"] == blocks["blocks.1.b.2.up"] == "blocks.1"
    assert [b for b in dict.fromkeys(blocks.values()) if b] == ["blocks.1", "blocks.2", "blocks.3"]


def test_frozen_entries_and_blocks(tmp_path: Path) -> None:
    text = "seq: 4\n" + NET.replace("{name: blocks,", "{name: blocks, frozen: true,").replace(
        "width: 8", "width: 8, train: true"
    )
    graph = load(tmp_path, text).graph
    frozen = {one.name for one in graph.layers if one.frozen}
    assert frozen == {one.name for one in graph.layers if one.block} | {"once.up"}
    assert sum(layer.trainable_count for layer in graph.layers) < graph.weight_count


def test_adapters_survive_being_written(tmp_path: Path) -> None:
    text = """
blocks:
  b:
    defaults: {rank: 0}
    layers:
      - {name: up, type: linear, out_features: 8, lora_rank: $rank}
layers:
  - {name: data, type: input, shape: [8, 4]}
  - {name: stem, type: linear, out_features: 8, frozen: true}
  - {name: plain, block: b}
  - {name: thin, block: b, with: {rank: 2}}
"""
    model = load(tmp_path, text)
    assert [(one.frozen, one.lora_rank) for one in model.graph.layers] == [
        (False, 0),
        (True, 0),
        (False, 0),
        (False, 2),
    ]
    assert sum(layer.trainable_count for layer in model.graph.layers) == 72 + 2 * 16
    path = tmp_path / "again.yaml"
    path.write_text(network_text(model))
    again = load_model(str(path)).graph
    assert [one.signature for one in again.layers] == [one.signature for one in model.graph.layers]

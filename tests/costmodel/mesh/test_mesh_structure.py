"""How networks are cut: Megatron's split of every bundled family, folding into modules, and uniform layouts against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.detail import layer_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MODULE_COLUMNS, MeshError, ModuleKind, Modules, ModuleTable, fold
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshPlan
from costmodel.mesh.rules import NetworkShape, broken_rules
from costmodel.mesh.stages import balanced_blocks, layout_of
from costmodel.mesh.tensor_parallel import roles_of
from costmodel.network.graph import Graph
from planner.importers.networks import load_model
from tests.cases import mostly
from tests.costmodel.mesh import plans as make
from tests.networks import spec
from tests.strategies.mesh.brute_force import compositions
from tests.strategies.mesh.networks import decoder, two_level_cluster


def _splits(graph: Graph, kind: ModuleKind) -> dict[str, str]:
    """Layer -> role; '<' gathers before it, '>' reduces behind it."""
    found = {}
    for index, role in zip(kind.layers, roles_of(graph, kind), strict=True):
        layer = graph.layers[index]
        if layer.kind != "input":
            name = layer.name.removeprefix(f"{layer.block}.")
            found[name] = ("<" if role.gathers else "") + role.role + (">" if role.reduces else "")
    return found


def _kinds(name: str) -> tuple[Graph, Modules]:
    graph = load_model(name).graph
    return graph, fold(graph)


LLAMA = {
    "norm1": "whole",
    "qkv": "<column",
    "attention": "channel",
    "proj": "row>",
    "add1": "whole",
    "norm2": "whole",
    "up": "<column",
    "glu": "channel",
    "down": "row>",
    "add2": "whole",
}
FRONT = {"embedding": "vocabulary>"}
BACK = {"norm": "whole", "head": "<column", "loss": "channel"}


def test_llama_is_split_by_columns_then_rows() -> None:
    graph, modules = _kinds("llama3-8b")
    assert [_splits(graph, kind) for kind in modules.kinds] == [FRONT, LLAMA, BACK]
    assert modules.kind_of == (0, *[1] * 32, 2)
    assert modules.cut_elements == (0, *[4096 * 8192] * 33)


def test_gpt2_is_split_like_megatron() -> None:
    graph, modules = _kinds("gpt2-1.5b")
    front, block, back = (_splits(graph, kind) for kind in modules.kinds)
    assert front["embedding"] == "vocabulary>"
    assert {name: front[name] for name in front if name != "embedding"} == dict.fromkeys(
        ["positions", "dropout"], "whole"
    )
    gelu = {"gelu": "channel", "dropout1": "whole", "dropout2": "whole"}
    assert block == {name: role for name, role in LLAMA.items() if name != "glu"} | gelu
    assert back == BACK
    assert len(modules.blocks) == 48


def test_parallel_branches_are_split_apart() -> None:
    """GPT-NeoX: attention and MLP read the block's input, their sums meet it."""
    specs = [
        spec("tokens", "input", shape=(1, 8)),
        spec("embedding", "embedding", "tokens", num_embeddings=100, dim=16),
        spec("b.norm1", "layer_norm", "embedding", block="b"),
        spec("b.qkv", "linear", "b.norm1", block="b", out_features=48),
        spec("b.attention", "self_attention", "b.qkv", block="b", heads=4, head_dim=4),
        spec("b.proj", "linear", "b.attention", block="b", out_features=16),
        spec("b.norm2", "layer_norm", "embedding", block="b"),
        spec("b.up", "linear", "b.norm2", block="b", out_features=64),
        spec("b.gelu", "activation", "b.up", block="b", function="gelu"),
        spec("b.down", "linear", "b.gelu", block="b", out_features=16),
        spec("b.add", "add", "b.proj", "b.down", "embedding", block="b"),
        spec("head", "linear", "b.add", out_features=100),
        spec("loss", "softmax", "head"),
    ]
    graph = Graph.build("neox", specs)
    kinds = fold(graph).kinds
    split = {
        "qkv": "<column",
        "attention": "channel",
        "proj": "row>",
        "up": "<column",
        "gelu": "channel",
        "down": "row>",
    }
    assert _splits(graph, kinds[1]) == {"norm1": "whole", "norm2": "whole", "add": "whole"} | split


def test_matrices_that_read_the_same_tensor_gather_it_once() -> None:
    specs = [
        spec("tokens", "input", shape=(1, 8)),
        spec("embedding", "embedding", "tokens", num_embeddings=100, dim=16),
        spec("b.norm", "layer_norm", "embedding", block="b"),
        spec("b.qkv", "linear", "b.norm", block="b", out_features=48),
        spec("b.attention", "self_attention", "b.qkv", block="b", heads=4, head_dim=4),
        spec("b.proj", "linear", "b.attention", block="b", out_features=16),
        spec("b.up", "linear", "b.norm", block="b", out_features=64),
        spec("b.down", "linear", "b.up", block="b", out_features=16),
        spec("b.add", "add", "b.proj", "b.down", "embedding", block="b"),
        spec("head", "linear", "b.add", out_features=100),
        spec("loss", "softmax", "head"),
    ]
    graph = Graph.build("falcon", specs)
    found = _splits(graph, fold(graph).kinds[1])
    assert [found[name] for name in ("qkv", "up")] == ["<column", "column"]


def test_bert_splits_blocks_and_words_but_not_the_heads_transform() -> None:
    graph, modules = _kinds("bert-large")
    front, block, back = (_splits(graph, kind) for kind in modules.kinds)
    assert [front[name] for name in ("segment_embedding", "embedding")] == ["vocabulary>"] * 2
    assert [block[name] for name in ("qkv", "attention", "proj", "up", "gelu", "down")] == [
        "<column", "channel", "row>", "<column", "channel", "row>"
    ]  # fmt: skip
    assert {block[name] for name in ("add1", "add2", "norm1", "norm2", "dropout1", "dropout2")} == {"whole"}
    assert [back[name] for name in ("transform", "gelu", "transform_norm")] == ["whole"] * 3
    assert [back[name] for name in ("words", "loss")] == ["<column", "channel"]
    assert [back[name] for name in ("first", "pooler", "follows", "follows_loss")] == [
        "whole",
        "<column",
        "row>",
        "whole",
    ]


def test_t5_splits_both_sides_and_carries_the_encoded_sequence() -> None:
    graph, modules = _kinds("t5-11b")
    # Front; first, plain and last encoder (with what lies between the sides); first and plain decoder; back.
    assert [len([k for k in modules.kind_of if k == n]) for n in range(len(modules.kinds))] == [1, 1, 22, 1, 1, 23, 1]
    encoder, decoder_kind = _splits(graph, modules.kinds[2]), _splits(graph, modules.kinds[5])
    assert [encoder[n] for n in ("qkv", "attention", "proj", "up", "relu", "dropout2", "down")] == [
        "<column", "channel", "row>", "<column", "channel", "channel", "row>"
    ]  # fmt: skip
    assert [decoder_kind[n] for n in ("queries", "keys_values", "cross", "cross_proj")] == [
        "<column",
        "<column",
        "channel",
        "row>",
    ]
    last = _splits(graph, modules.kinds[3])
    assert last["target_embedding"] == "vocabulary>"
    assert {last[name] for name in ("encoder_norm", "encoded", "target_dropout")} == {"whole"}
    source, target = 1024 * 512, 1024 * 114
    # The back reads the decoder only; every decoder block reads the encoded sequence, those before the last for the others too.
    assert modules.cut_elements == (0, *[source] * 24, *[source + target] * 24, target)


def test_deepseek_splits_behind_the_compressed_vectors() -> None:
    graph, modules = _kinds("deepseek-v3")
    assert modules.kind_of == (0, *[1] * 3, *[2] * 58, 3)
    latent = {
        "norm": "whole", "q_a": "whole", "q_norm": "whole", "q_b": "<column", "kv_a": "whole", "kv": "whole", "kv_norm": "whole",
        "kv_b": "<column", "attention": "channel", "proj": "row>", "add": "whole",
    }  # fmt: skip
    dense, mixture = _splits(graph, modules.kinds[1]), _splits(graph, modules.kinds[2])
    short = [{name.rsplit("attention.", 1)[-1]: role for name, role in found.items()} for found in (dense, mixture)]
    for found in short:
        assert {name: found[name] for name in latent} == latent
    assert [short[0][name] for name in ("norm2", "up", "glu", "down", "add2")] == [
        "whole",
        "<column",
        "channel",
        "row>",
        "whole",
    ]
    assert [short[1][name] for name in ("norm2", "experts", "add2")] == ["whole", "experts", "whole"]


def test_mixtral_and_vit() -> None:
    graph, modules = _kinds("mixtral-8x7b")
    block = {name: role for name, role in LLAMA.items() if name not in ("up", "glu", "down")} | {"experts": "experts"}
    assert [_splits(graph, kind) for kind in modules.kinds] == [FRONT, block, BACK]
    graph, modules = _kinds("vit-l")
    front, block, back = (_splits(graph, kind) for kind in modules.kinds)
    assert set(front.values()) == {"whole"}
    assert block == {name: role for name, role in LLAMA.items() if name != "glu"} | {"gelu": "channel"}
    assert back == {"norm": "whole", "class": "whole", "head": "<column", "loss": "channel"}
    assert modules.cut_elements == (0, *[1024 * 197] * 24, 1024 * 197)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_key_and_value_heads_are_repeated_where_they_are_fewer_than_ranks(tp: int) -> None:
    model = make.model_of(decoder(blocks=2, features=64, heads=8, kv_heads=2), 1, two_level_cluster())
    rows = {row.name: row for row in layer_rows(model, MeshPlan(tp=tp))}
    assert rows["qkv"].weight_count == 64 * (8 + 2 * 2) * 8
    assert rows["qkv"].weights_per_rank == 64 * (8 // tp + 2 * max(2 // tp, 1)) * 8
    assert rows["proj"].weights_per_rank == 64 * 64 // tp
    assert rows["norm1"].weights_per_rank == 64
    assert rows["head"].weights_per_rank == rows["embedding"].weights_per_rank == 512 * 64 // tp


def test_a_network_without_blocks_cannot_be_cut() -> None:
    with pytest.raises(MeshError, match="no repeated blocks"):
        fold(load_model("alexnet").graph)


# -- layouts ---------------------------------------------------------------------------------------------------------------


def _modules(kinds: tuple[int, ...], count: int) -> Modules:
    """Blocks of some kinds, 1 and up; 0 is the front, the last the back."""
    made = tuple(ModuleKind(name=str(n), layers=(), inputs=(), is_block=0 < n < count + 1) for n in range(count + 2))
    return Modules(kinds=made, kind_of=(0, *kinds, count + 1), cut_elements=(0,) * (len(kinds) + 2))


def _loads(modules: Modules, weights: list[float], blocks: tuple[int, ...]) -> list[float]:
    values = [weights[k] for k in modules.blocks]
    loads, start = [], 0
    for length in blocks:
        loads.append(sum(values[start : start + length]))
        start += length
    loads[0] += weights[0]
    loads[-1] += weights[-1]
    return loads


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_uniform_layouts_have_the_least_bottleneck(kinds: int) -> None:
    """All compositions of up to 9 blocks; front and back from nothing to more than all blocks."""
    rng = random.Random(kinds)
    for _ in range(150):
        count = rng.randint(1, 9)
        modules = _modules(tuple(rng.randint(1, kinds) for _ in range(count)), kinds)
        front, back = rng.choice([0.0, 0.2, 1.0, 2.5, 12.0]), rng.choice([0.0, 0.7, 1.0, 3.3, 20.0])
        weights = [front, *(rng.choice([1.0, rng.uniform(0.2, 3.0)]) for _ in range(kinds)), back]
        chunks = rng.randint(1, count)
        found = balanced_blocks(modules, weights, chunks)
        assert sum(found) == count
        assert len(found) == chunks
        assert min(found) >= 1
        least = min(max(_loads(modules, weights, lengths)) for lengths in compositions(count, chunks))
        assert max(_loads(modules, weights, found)) == pytest.approx(least, rel=1e-9), (weights, chunks, found)


def test_layouts_hold_every_module_once() -> None:
    rng = random.Random(9)
    for _ in range(100):
        count, pp = rng.randint(4, 12), rng.choice([1, 2, 3, 4])
        modules = _modules(tuple(rng.randint(1, 2) for _ in range(count)), 2)
        chunks = pp * rng.randint(1, count // pp)
        blocks = balanced_blocks(modules, [0.5, 1.0, 2.0, 0.7], chunks)
        layout = layout_of(modules, blocks, pp)
        expected = np.bincount(modules.kind_of, minlength=4)
        assert (layout.run_chunks @ layout.run_modules == expected).all()
        each = layout_of(modules, blocks, pp, every_rank=True)
        assert (each.rank_modules.sum(axis=0) == expected).all()
        # Every rank is of one of the kinds.
        described = {tuple(row) for row in layout.rank_modules}
        assert {tuple(row) for row in each.rank_modules} == described


def test_more_stages_than_blocks_are_refused() -> None:
    modules = _modules((1, 1, 1), 1)
    with pytest.raises(MeshError, match="at least as many blocks"):
        balanced_blocks(modules, [0, 1, 0], 4)
    with pytest.raises(MeshError, match="hold 2 blocks"):
        layout_of(modules, (1, 1), 2)
    model = make.model_of(decoder(blocks=3), 4, two_level_cluster())
    assert "more than the 3 blocks" in broken_rules(make.shape_of(model), MeshPlan(pp=4, num_micro_batches=4))[0]


def test_the_shape_that_rules_read() -> None:
    graph, modules = _kinds("deepseek-v3")
    shape = NetworkShape.of(graph, modules, 15360)
    assert (shape.heads, shape.kv_heads, shape.experts, shape.expert_widths) == ((128,), (128,), (256,), (2048,))
    assert (shape.num_blocks, shape.positions, shape.is_causal) == (61, (4096,), True)
    graph, modules = _kinds("t5-11b")
    assert NetworkShape.of(graph, modules, 1).positions == (114, 512)


# --- Rows of the module table: the same however they are asked for, and the memory of what is recomputed one way or another ---------------


_FULL = RECOMPUTE.index("full")


def _case(seed: int) -> tuple[MeshModel, MeshBatch]:
    rng = random.Random(seed)
    model = make.model_of(make.network(rng), 48, make.cluster(rng), make.assumptions(rng))
    shape = make.shape_of(model)
    return model, MeshBatch.from_plans([make.random_plan(rng, shape) for _ in range(40)])


def _assert_equal(left: ModuleTable, right: ModuleTable) -> None:
    for name in MODULE_COLUMNS:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name


@mostly("exact", "seed", range(12))
def test_rows_are_the_same_alone_and_together(seed: int) -> None:
    model, batch = _case(seed)
    together = model.rows(batch)
    fresh = MeshModel(workload=model.workload, groups=model.groups, modules=model.modules)
    for n in reversed(range(len(batch))):
        _assert_equal(fresh.rows(batch.take(np.array([n]))), ModuleTable.of_stack(_stack(together)[:, [n]]))
    _assert_equal(fresh.rows(batch), together)


def _stack(table: ModuleTable) -> np.ndarray:
    return np.array([getattr(table, name) for name in MODULE_COLUMNS])


@mostly("exact", "seed", range(12))
def test_memories_of_several_recomputations_are_those_of_each(seed: int) -> None:
    model, batch = _case(seed)
    rng = np.random.default_rng(seed)
    zero = np.zeros(len(batch), dtype=np.int64)
    kinds = [zero, zero + 1, zero + _FULL, rng.integers(0, 3, len(batch))]
    batches = [
        replace(batch, recompute=kind, recompute_blocks=np.where(kind == _FULL, rng.integers(1, 4, len(batch)), 0))
        for kind in kinds
    ]
    for one, memory in zip(batches, model.pipeline_memories(batches), strict=True):
        alone = model.pipeline_memory(one)
        for name in (
            "kept_bytes",
            "input_bytes",
            "share",
            "waiting_bytes",
            "again_bytes",
            "logits_bytes",
            "dense_bytes",
        ):
            assert np.array_equal(getattr(memory, name), getattr(alone, name)), name

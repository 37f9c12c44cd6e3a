"""Megatron's split comes out of the per-layer program by cost, and costs what the mesh model says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.graph import Graph, LayerSpec
from costmodel.layers.base import params_from
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.roles import roles_of
from costmodel.mesh.shares import RowKeys
from costmodel.mesh.tables import unit_table
from costmodel.mesh.units import MeshError, UnitKind, fold
from costmodel.network import Cluster
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.roofline import RooflineCompute
from costmodel.workload import Workload
from planner.loading import load_cluster
from strategies.mesh.block_moves import WHOLE, Collectives, Layout, move_s
from strategies.mesh.block_options import BlockSpace, cost_options
from strategies.mesh.block_program import block_problem, split_block, uniform_space
from strategies.per_layer.problem import Limits, objective_s
from strategies.per_layer.search import solve

CLUSTER = load_cluster("dgx-h100").cluster


def at_best_rate(cluster: Cluster) -> Cluster:
    """Element-wise kernels as fast as alone. Slower ones favour splitting the sum of two branches by channels over Megatron's split."""
    (group,) = cluster.groups
    efficiency = replace(group.device.efficiency, elementwise_fraction=1.0)
    return replace(cluster, groups=(replace(group, device=replace(group.device, efficiency=efficiency)),))


class Builder:
    """A network written layer by layer."""

    def __init__(self, dim: int, positions: int) -> None:
        self.specs: list[LayerSpec] = []
        self.dim = dim
        self.block = ""
        self.add("tokens", "input", shape=(1, positions))
        self.last = self.add("embedding", "embedding", "tokens", num_embeddings=32_000, dim=dim)

    def add(self, name: str, kind: str, *inputs: str, **values: Any) -> str:
        full = f"{self.block}.{name}" if self.block else name
        self.specs.append(
            LayerSpec(name=full, kind=kind, params=params_from(kind, values), inputs=inputs, block=self.block)
        )
        return full

    def graph(self) -> Graph:
        self.block = ""
        self.add("head", "linear", self.add("norm", "rms_norm", self.last), out_features=32_000, bias=False)
        self.add("loss", "softmax", "head")
        return Graph.build("net", self.specs)


def llama(dim: int = 4096, positions: int = 4096, kv_heads: int = 8) -> Graph:
    """Gated, grouped queries, no biases."""
    b, heads, width = Builder(dim, positions), dim // 128, dim * 7 // 2
    for n in range(3):
        b.block, x = f"blocks.{n}", b.last
        a = b.add("norm1", "rms_norm", x)
        a = b.add("qkv", "linear", a, out_features=(heads + 2 * kv_heads) * 128, bias=False)
        a = b.add("attention", "self_attention", a, heads=heads, kv_heads=kv_heads, head_dim=128)
        x = b.add("add1", "add", b.add("proj", "linear", a, out_features=dim, bias=False), x)
        a = b.add("up", "linear", b.add("norm2", "rms_norm", x), out_features=2 * width, bias=False)
        a = b.add("down", "linear", b.add("glu", "glu", a, function="silu"), out_features=dim, bias=False)
        b.last = b.add("add2", "add", a, x)
    return b.graph()


def gpt2(dim: int = 2048, positions: int = 1024) -> Graph:
    """Layer normalisation, biases, dropout, attention written out."""
    b, heads = Builder(dim, positions), dim // 64
    for n in range(3):
        b.block, x = f"blocks.{n}", b.last
        a = b.add("qkv", "linear", b.add("norm1", "layer_norm", x), out_features=3 * dim)
        a = b.add("attention", "self_attention", a, heads=heads, head_dim=64, fused=False, dropout=True)
        a = b.add("dropout1", "dropout", b.add("proj", "linear", a, out_features=dim), keep=0.9)
        x = b.add("add1", "add", a, x)
        a = b.add("up", "linear", b.add("norm2", "layer_norm", x), out_features=4 * dim)
        a = b.add("down", "linear", b.add("gelu", "activation", a, function="gelu"), out_features=dim)
        b.last = b.add("add2", "add", b.add("dropout2", "dropout", a, keep=0.9), x)
    return b.graph()


def parallel_attention(dim: int = 4096, positions: int = 2048) -> Graph:
    """Both branches read one normed tensor, and one sum takes all three (GPT-J, Falcon, Phi)."""
    b, heads = Builder(dim, positions), dim // 128
    for n in range(3):
        b.block, x = f"blocks.{n}", b.last
        normed = b.add("norm", "layer_norm", x)
        a = b.add("qkv", "linear", normed, out_features=3 * dim)
        a = b.add(
            "proj", "linear", b.add("attention", "self_attention", a, heads=heads, head_dim=128), out_features=dim
        )
        m = b.add("gelu", "activation", b.add("up", "linear", normed, out_features=4 * dim), function="gelu")
        b.last = b.add("sum", "add", a, b.add("down", "linear", m, out_features=dim), x)
    return b.graph()


def mlp_only(dim: int = 4096, positions: int = 2048) -> Graph:
    b = Builder(dim, positions)
    for n in range(3):
        b.block, x = f"blocks.{n}", b.last
        a = b.add("up", "linear", b.add("norm", "rms_norm", x), out_features=4 * dim, bias=False)
        a = b.add("down", "linear", b.add("gelu", "activation", a, function="gelu"), out_features=dim, bias=False)
        b.last = b.add("add", "add", a, x)
    return b.graph()


NETWORKS = {"llama": llama, "gpt2": gpt2, "parallel_attention": parallel_attention, "mlp": mlp_only}


def workload(graph: Graph, cluster: Cluster = CLUSTER, *, training: bool = True) -> Workload:
    precision, optimizer = PRECISIONS["bf16"], OPTIMIZERS["adam"]
    compute = RooflineCompute(device=cluster.device, precision=precision, optimizer=optimizer)
    return Workload(
        graph=graph, global_batch=1, precision=precision, optimizer=optimizer, compute=compute, training=training
    )


def block_of(graph: Graph) -> UnitKind:
    return next(kind for kind in fold(graph).kinds if kind.is_block)


def megatron(graph: Graph) -> tuple[str, ...]:
    return tuple(role.role for role in roles_of(graph, block_of(graph)))


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_megatron_comes_out(name: str, tp: int) -> None:
    """Nothing says which way a layer is split, over how many ranks, or how tensors lie between the matrices."""
    graph = NETWORKS[name]()
    found = split_block(workload(graph), CLUSTER, block_of(graph), tp)
    assert found is not None
    assert found.roles == megatron(graph)
    assert found.bound_s == found.time_s
    for option in found.options:
        assert option.degree == tp
        # Between the matrices tensors are cut along the positions: sequence parallelism comes out as well.
        assert (option.way == "positions") == (option.role == "whole")


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_megatron_without_sequence_parallelism(name: str, tp: int) -> None:
    """Without shares of the positions, and with normalisations on whole features, as trainers run them."""
    graph = NETWORKS[name]()
    space = BlockSpace(degrees=(tp,), positions=False, split_norms=False)
    found = split_block(workload(graph, at_best_rate(CLUSTER)), CLUSTER, block_of(graph), tp, space=space)
    assert found is not None
    assert found.roles == megatron(graph)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_costs_what_the_mesh_model_says(name: str, tp: int, sequence_parallel: bool) -> None:
    """Passes and collectives of Megatron's split, from two sources that share no formula for communication."""
    graph = NETWORKS[name]()
    work, kind = workload(graph, at_best_rate(CLUSTER)), block_of(graph)
    space = BlockSpace(degrees=(tp,), positions=sequence_parallel, split_norms=False)
    built = block_problem(work, CLUSTER, kind, space)
    answer = solve(built.problem, Limits())
    choice = answer.choices[0]
    picked = choice[: len(built.layers)]
    passes = sum(float((c.forward_s + c.backward_s)[o]) for c, o in zip(built.layers, picked, strict=True))
    passes += sum(
        float(e.cost_s[e.producer_class[choice[e.producer]], e.consumer_class[choice[e.consumer]]])
        for e in built.problem.edges
    )
    ends = sum(float((c.update_s + c.exchange_s)[o]) for c, o in zip(built.layers, picked, strict=True))
    assert passes < answer.objectives_s[0] <= (passes + ends) * (1 + 1e-12)
    one, units = np.ones(1, dtype=np.int64), fold(graph)
    keys = RowKeys(
        tp=tp * one, sequence_parallel=int(sequence_parallel) * one, cp=one, ep=one, etp=one, micro_batch=one
    )
    # What adding gradients up costs depends on the weights alone; the program compares passes and collectives.
    table = unit_table(work, CLUSTER, units, keys, assumptions=MeshAssumptions(main_gradient_bytes=0.0))
    expected = (table.forward_s + table.backward_s + table.tp_forward_s + table.tp_backward_s)[
        0, units.kinds.index(kind)
    ]
    assert passes == pytest.approx(float(expected), rel=1e-9)


def test_one_gather_serves_all_that_read_a_tensor() -> None:
    """Both branches of a parallel block are offered the normed tensor gathered, and pay for it once."""
    graph = parallel_attention()
    built = block_problem(workload(graph), CLUSTER, block_of(graph), uniform_space(8))
    answer = solve(built.problem, Limits())
    offered = answer.choices[0][len(built.layers) :].tolist()
    forms = [layouts[o].form for layouts, o in zip(built.offers, offered, strict=True)]
    assert sorted(forms) == ["gathered", "positions"]  # the normed tensor, and the residual


def test_solve_equals_brute_force_on_the_ring() -> None:
    """The ring that closes the block is no obstacle to the program: every choice of a small block, one by one."""
    graph = mlp_only(dim=512, positions=64)
    for space in (uniform_space(2), BlockSpace(degrees=(2,), split_norms=False, whole_matrices=False)):
        built = block_problem(workload(graph), CLUSTER, block_of(graph), space)
        sizes = [range(len(b)) for b in built.problem.base_s]
        least = min(objective_s(built.problem, np.array(choice)) for choice in itertools.product(*sizes))
        assert solve(built.problem, Limits()).objectives_s[0] == pytest.approx(least, rel=1e-12)


def test_small_matrices_are_split_over_fewer_ranks() -> None:
    """Where latency outweighs arithmetic, fewer ranks are cheaper for some or all layers."""
    graph = gpt2(dim=512, positions=128)
    work, kind = workload(graph), block_of(graph)
    everywhere = split_block(work, CLUSTER, kind, 8, space=uniform_space(8))
    matrices_split = BlockSpace(degrees=(8,), whole_matrices=False)
    uniform = split_block(work, CLUSTER, kind, 8, space=matrices_split)
    free = split_block(work, CLUSTER, kind, 8)
    assert everywhere is not None
    assert uniform is not None
    assert free is not None
    assert free.time_s <= everywhere.time_s <= uniform.time_s
    assert free.time_s < uniform.time_s
    assert min(free.degrees) < 8


def test_ranks_beyond_a_node_repeat_what_is_too_dear_to_split() -> None:
    """Sixteen ranks lie on two nodes; shares of eight or fewer stay inside one."""
    graph = llama(dim=2048, positions=1024, kv_heads=16)
    work, kind = workload(graph), block_of(graph)
    uniform = split_block(work, CLUSTER, kind, 16, space=BlockSpace(degrees=(16,), whole_matrices=False))
    free = split_block(work, CLUSTER, kind, 16)
    assert uniform is not None
    assert free is not None
    assert max(free.degrees) <= 8
    assert free.time_s < uniform.time_s


def test_memory_forces_matrices_apart() -> None:
    """A block too small to be worth splitting is split where a rank cannot hold it."""
    graph = gpt2(dim=512, positions=128)
    work, kind = workload(graph), block_of(graph)
    free = split_block(work, CLUSTER, kind, 8)
    assert free is not None
    tight = split_block(work, CLUSTER, kind, 8, capacity_bytes=0.5 * free.memory_bytes)
    assert tight is not None
    assert tight.memory_bytes <= 0.5 * free.memory_bytes
    assert tight.time_s > free.time_s
    assert split_block(work, CLUSTER, kind, 8, capacity_bytes=1.0) is None


def test_degrees_divide_heads() -> None:
    graph = gpt2(dim=64 * 25, positions=512)  # GPT-2 1.5B has 25 heads
    found = split_block(workload(graph), CLUSTER, block_of(graph), 4)
    assert found is not None
    kinds = [graph.layers[i].kind for i in block_of(graph).layers]
    assert found.options[kinds.index("self_attention")].way == "whole"


def test_inference_has_no_exchange() -> None:
    graph = llama()
    built = block_problem(workload(graph, training=False), CLUSTER, block_of(graph), uniform_space(8))
    assert not any(c.exchange_s.any() or c.backward_s.any() or c.update_s.any() for c in built.layers)


def test_choices_that_were_not_searched_for_can_be_costed() -> None:
    graph = mlp_only()
    built = block_problem(workload(graph), CLUSTER, block_of(graph), uniform_space(8))
    found = split_block(workload(graph), CLUSTER, block_of(graph), 8, space=uniform_space(8))
    assert found is not None
    offers = [Layout(form="positions", degree=8)] * len(built.offers)
    assert objective_s(built.problem, built.choice_of(found.options, offers)) == pytest.approx(found.time_s)


def test_mixtures_are_refused() -> None:
    b = Builder(256, 64)
    for n in range(2):
        b.block = f"blocks.{n}"
        b.last = b.add("moe", "moe", b.add("norm", "rms_norm", b.last), experts=4, top_k=2, ffn=256)
    graph = b.graph()
    with pytest.raises(MeshError, match=r"blocks\.\d+\.moe"):
        split_block(workload(graph), CLUSTER, block_of(graph), 2)


# -- moves --------------------------------------------------------------------------------------------------------------

SIZE = 64e6
PIECES = Layout(form="positions", degree=8)
SHARES = Layout(form="channels", degree=8)
GATHERED = Layout(form="gathered", degree=8)


def test_moves_by_hand() -> None:
    """Two costs of Megatron-LM's operators: f and its conjugate, and g."""
    c = Collectives(cluster=CLUSTER)
    gather, scatter = c.time_s("all_gather", 8, SIZE), c.time_s("reduce_scatter", 8, SIZE)
    assert move_s(PIECES, GATHERED, SIZE, c) == (gather, scatter)
    assert move_s(WHOLE, GATHERED, SIZE, c) == (0.0, c.time_s("all_reduce", 8, SIZE))
    assert move_s(WHOLE, SHARES, SIZE, c) == (0.0, gather)
    assert move_s(SHARES, WHOLE, SIZE, c) == (gather, 0.0)
    traded = c.time_s("all_to_all", 8, SIZE / 8)
    assert move_s(SHARES, PIECES, SIZE, c) == (traded, traded)
    assert move_s(GATHERED, SHARES, SIZE, c) == (0.0, 0.0)
    four = Layout(form="channels", degree=4)
    pair = c.time_s("all_gather", 2, SIZE / 4, stride=4)
    assert move_s(four, SHARES, SIZE, c) == (0.0, pair)
    assert move_s(SHARES, four, SIZE, c) == (pair, 0.0)


@pytest.mark.parametrize("layout", [WHOLE, PIECES, SHARES, GATHERED, Layout(form="channels", degree=3)])
def test_staying_is_free(layout: Layout) -> None:
    assert move_s(layout, layout, SIZE, Collectives(cluster=CLUSTER)) == (0.0, 0.0)


def test_options_of_a_matrix_share_work() -> None:
    """Column and row shares take about the time of the whole, divided, plus a row's reduction."""
    graph = mlp_only()
    work, kind = workload(graph), block_of(graph)
    built = block_problem(work, CLUSTER, kind, uniform_space(8))
    up = built.layers[1]
    time = {option.way: up.forward_s[n] for n, option in enumerate(up.options) if option.way != "row"}
    assert time["whole"] / 8 <= time["column"] < time["whole"] / 4
    again = cost_options(work, graph.layers, kind, 1, up.options, 1, Collectives(cluster=CLUSTER))
    assert np.array_equal(again.forward_s, up.forward_s)

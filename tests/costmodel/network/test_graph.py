"""Networks: order, edges, shapes, and every fault named."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.network.graph import Graph, GraphError
from costmodel.network.layers.base import LayerSpec, params_from
from costmodel.network.sizes import network_kind, sizes_of
from planner.importers.networks import load_model
from tests.planner.published_configs import published


def spec(name: str, kind: str, inputs: tuple[str, ...] = (), **values: Any) -> LayerSpec:
    return LayerSpec(name=name, kind=kind, params=params_from(kind, values), inputs=inputs)


def data(shape: tuple[int, ...] = (8, 4, 4)) -> LayerSpec:
    return spec("data", "input", shape=shape)


def faults(*specs: LayerSpec) -> list[tuple[str, str]]:
    with pytest.raises(GraphError) as caught:
        Graph.build("net", specs)
    return [(problem.layer, problem.message) for problem in caught.value.problems]


def names(graph: Graph) -> list[str]:
    return [layer.name for layer in graph.layers]


def test_layers_are_ordered_and_wired() -> None:
    graph = Graph.build(
        "net",
        [
            spec("sum", "add", ("left", "right", "stem")),
            spec("right", "activation", ("stem",)),
            spec("left", "convolution", ("stem",), out_channels=8, kernel=3, padding=1),
            spec("stem", "convolution", ("data",), out_channels=8, kernel=1, bias=False, norm="batch"),
            data(),
        ],
    )
    assert set(names(graph)) == {"data", "stem", "left", "right", "sum"}
    at = {layer.name: i for i, layer in enumerate(graph.layers)}
    wanted = {("data", "stem"), ("stem", "left"), ("stem", "right"), ("left", "sum"), ("right", "sum"), ("stem", "sum")}
    assert set(graph.edges) == {(at[u], at[v]) for u, v in wanted}
    assert list(graph.edges) == sorted(graph.edges)
    assert all(u < v for u, v in graph.edges)
    assert set(graph.producers[at["sum"]]) == {at["left"], at["right"], at["stem"]}
    assert graph.index("left") == at["left"]
    assert set(graph.readers[at["stem"]]) == {at["left"], at["right"], at["sum"]}
    assert graph.weight_count == 8 * 8 + (9 * 8 * 8 + 8)
    assert graph.norm_count == 16
    with pytest.raises(KeyError):
        graph.index("nothing")


def test_branches_stay_together() -> None:
    """A fork's branches one after the other: the frontier of a sweep over the graph stays small."""
    branches = [spec(f"{b}{i}", "activation", (f"{b}{i - 1}" if i else "data",)) for i in range(4) for b in ("a", "b")]
    graph = Graph.build("net", [data(), *branches, spec("end", "add", ("a3", "b3"))])
    assert names(graph) == ["data", "a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "end"]


def test_a_tensor_used_twice_by_a_layer_is_one_edge() -> None:
    graph = Graph.build("net", [data(), spec("twice", "add", ("data", "data"))])
    assert graph.edges == ((0, 1),)
    assert graph.layers[1].input_shapes == ((8, 4, 4), (8, 4, 4))


def test_depth_does_not_matter() -> None:
    chain = [spec(f"l{i}", "activation", (f"l{i - 1}" if i else "data",)) for i in range(3000)]
    assert names(Graph.build("net", [*reversed(chain), data()])) == ["data", *(s.name for s in chain)]


def test_cycles_are_spelled_out() -> None:
    (problem,) = faults(
        data(), spec("a", "add", ("data", "c")), spec("b", "activation", ("a",)), spec("c", "activation", ("b",))
    )
    assert "cycle" in problem[1]
    walk = problem[1].split(": ")[-1].split(" -> ")
    assert walk[0] == walk[-1]
    assert set(walk) == {"a", "b", "c"}
    arrows = {("a", "b"), ("b", "c"), ("c", "a")}
    assert set(itertools.pairwise(walk)) == arrows
    (self_loop,) = faults(data(), spec("a", "add", ("data", "a")))
    assert self_loop == ("a", "the layers form a cycle: a -> a")
    # Layers behind a cycle are stuck too, but are not part of it.
    (behind,) = faults(data(), spec("z", "activation", ("a",)), spec("a", "add", ("data", "a")))
    assert behind[1].endswith("a -> a")


def test_every_structural_fault_is_named_at_once() -> None:
    found = faults(
        data(),
        spec("conv1", "convolution", ("dat",), out_channels=8, kernel=3),
        spec("conv1", "activation", ("data",)),
        spec("sum", "add", ("data",)),
        spec("relu", "activation", ("data", "data")),
        spec("second", "input", ("data",), shape=(3,)),
    )
    for words in (
        ("conv1", "two layers have this name"),
        ("conv1", "input 'dat' does not exist; did you mean 'data'?"),
        ("sum", "type 'add' takes 2... inputs, not 1"),
        ("relu", "type 'activation' takes 1 inputs, not 2"),
        ("second", "type 'input' takes 0 inputs, not 1"),
    ):
        assert words in found
    assert len(found) == 5


def test_a_network_has_layers_and_an_input() -> None:
    assert faults() == [("layers", "a network needs at least one layer")]
    assert ("layers", "a network needs at least one layer of type 'input'") in faults(spec("a", "activation", ("a",)))
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        params_from("lineer", {})


def test_every_shape_fault_is_named_but_not_its_consequences() -> None:
    found = faults(
        data(),
        spec("big", "convolution", ("data",), out_channels=8, kernel=7),
        spec("after", "activation", ("big",)),
        spec("flat", "flatten", ("data",)),
        spec("pool", "pool", ("flat",), kernel=2),
        spec("wide", "convolution", ("data",), out_channels=16, kernel=1),
        spec("sum", "add", ("data", "wide")),
    )
    assert [layer for layer, _ in found] == ["big", "pool", "sum"]
    messages = dict(found)
    assert "7x7" in messages["big"]
    assert "8x4x4" in messages["big"]
    assert "its input is 128" in messages["pool"]
    assert "8x4x4, 16x4x4" in messages["sum"]


@given(st.data())
def test_any_acyclic_network_in_any_order_comes_out_topological(draw: st.DataObject) -> None:
    count = draw.draw(st.integers(1, 12))
    parents = [
        draw.draw(st.lists(st.integers(0, i), min_size=2, max_size=4)) for i in range(count)
    ]  # node i + 1 has parents among 0 ... i
    specs = [
        data(),
        *(spec(f"n{i + 1}", "add", tuple(f"n{p}" if p else "data" for p in ps)) for i, ps in enumerate(parents)),
    ]
    graph = Graph.build("net", draw.draw(st.permutations(specs)))
    at = {layer.name: i for i, layer in enumerate(graph.layers)}
    assert len(at) == count + 1
    wanted = {(at[f"n{p}" if p else "data"], at[f"n{i + 1}"]) for i, ps in enumerate(parents) for p in ps}
    assert set(graph.edges) == wanted
    assert all(u < v for u, v in graph.edges)


def tied_to(*others: LayerSpec, features: int = 8) -> list[LayerSpec]:
    """Eight features of 4 positions, and a head whose weights are another layer's."""
    return [
        data((1, 4)),
        *others,
        spec("head", "linear", (others[-1].name,), out_features=features, bias=False, tied=True),
    ]


def test_tied_weights_belong_to_a_layer() -> None:
    table = spec("table", "embedding", ("data",), num_embeddings=100, dim=8)
    assert Graph.build("net", tied_to(table, features=100)).weight_count == 800
    assert faults(*tied_to(table, features=200)) == [
        ("head", "tied: no layer has 200 x 8 weights that it could share; embedding 'table' has 100 x 8")
    ]
    # A matrix that is used twice, as it is or transposed, is a matrix too.
    square = spec("square", "linear", ("data",), out_features=100, bias=False)
    back = spec("back", "linear", ("square",), out_features=8)
    assert Graph.build("net", tied_to(square, back, features=100)).weight_count == 100 + 808
    assert faults(*tied_to(back_of("data"), features=100)) == [
        (
            "head",
            "tied: no layer has 100 x 8 weights that it could share; the network has no embedding with weights of its own",
        )
    ]


def back_of(source: str) -> LayerSpec:
    return spec("back", "linear", (source,), out_features=8)


# --- Which networks the arguments of a trainer can state ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "CohereForAI/c4ai-command-r-v01",  # parts side by side
        "THUDM/GLM-4-9B-0414",  # norms before and after
        "allenai/OLMo-2-1124-7B",  # norms after, and of queries and keys
        "openai/gpt-oss-20b",  # sinks and windows
        "facebook/opt-350m",  # norms after the sums
    ],
)
def test_other_blocks_are_not_stated(name: str, tmp_path: Path) -> None:
    assert sizes_of(published(name, tmp_path).graph) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert-large", "encoder"),
        ("t5-11b", "encoder-decoder"),
        ("deepseek-v3", "decoder"),  # latent attention, and blocks of two kinds
        ("alexnet", "no transformer"),
    ],
)
def test_other_networks_have_a_kind_and_no_sizes(name: str, kind: str) -> None:
    graph = load_model(name).graph
    assert network_kind(graph) == kind
    assert sizes_of(graph) is None


def test_mixtures_of_experts_are_stated() -> None:
    graph = load_model("mixtral-8x7b").graph
    sizes = sizes_of(graph)
    assert sizes is not None
    assert (sizes.layers, sizes.hidden, sizes.kv_heads, sizes.ffn, sizes.experts) == (32, 4096, 8, 14336, 8)
    assert network_kind(graph, sizes) == "llama"


def test_plain_decoders_are(tmp_path: Path) -> None:
    sizes = sizes_of(published("ibm-granite/granite-3.0-2b-base", tmp_path, attention_dropout=0.0).graph)
    assert (sizes.layers, sizes.heads, sizes.kv_heads, sizes.ffn, sizes.norm) == (40, 32, 8, 8192, "RMSNorm")

"""PALEO's network files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.network.graph import GraphError, GraphProblem
from planner.core.errors import InputFileError
from planner.importers.networks import load_model
from planner.importers.paleo_json import ImportedNetwork, convert, detect
from planner.importers.sources import text_of

# Trainable parameters that PALEO's own summary gives (reference/summary.json).
PARAMETERS = {
    "alex_v2": 50_303_912,
    "alex_v2_1gpu": 49_566_504,
    "alex_v2_2gpu": 49_566_504,
    "alex_v2_4gpu": 49_566_504,
    "alex_v2_8gpu": 49_566_504,
    "inception_v3": 23_734_312,
    "nin": 7_595_176,
    "overfeat": 145_704_424,
    "vgg16": 138_357_544,
}


def net_file(reference_data: Path, name: str) -> Path:
    return reference_data / "paleo" / "nets" / f"{name}.json"


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks(name: str, reference_data: Path) -> None:
    """Parameters, batch, and every layer's shape as PALEO has them (it flattens after softmax, and splits layers)."""
    model = load_model(str(net_file(reference_data, name)))
    summary = json.loads((reference_data / "paleo" / "reference" / "summary.json").read_text())["nets"][name]
    assert model.graph.weight_count == PARAMETERS[name] == summary["total_params"]
    assert model.global_batch == summary["layers"][0]["outputs"][0]
    theirs = {layer["name"]: layer for layer in summary["layers"] if layer["type"] != "softmax"}
    compared = 0
    for layer in model.graph.layers:
        if layer.name in theirs:
            compared += 1
            assert theirs[layer.name]["outputs"][1:] == [*layer.output_shape[1:], layer.output_shape[0]]
            assert theirs[layer.name]["num_params"] == layer.weight_count
    if not model.notes:
        assert compared == len(theirs) == len(model.graph.layers) - 1


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_splits_become_the_plain_network(splits: int, reference_data: Path) -> None:
    whole = load_model(str(net_file(reference_data, "alex_v2_1gpu")))
    merged = load_model(str(net_file(reference_data, f"alex_v2_{splits}gpu")))
    for a, b in zip(whole.graph.layers, merged.graph.layers, strict=True):
        assert (a.kind, a.params, a.input_shapes, a.output_shape) == (b.kind, b.params, b.input_shapes, b.output_shape)
        assert b.name in (a.name, f"parallel_fc67/{a.name}")
    assert merged.notes == (
        f"parallel_fc67: {splits} splits merged into whole layers; the planner chooses the split",
        "parallel_fc67/concat6: joins the parts of one layer; left out",
        "concat7: joins the parts of one layer; left out",
    )


@pytest.mark.parametrize("name", PARAMETERS)
def test_import_writes_the_same_network(name: str, reference_data: Path, new_file: Any) -> None:
    source = net_file(reference_data, name)
    target = new_file(f"{name}.yaml", text_of(load_model(str(source))))
    written, read = load_model(str(target)), load_model(str(source))
    assert written.graph.layers == read.graph.layers
    assert written.graph.edges == read.graph.edges
    assert (written.global_batch, written.description) == (read.global_batch, read.description)


def conv(parents: list[str], filters: list[int], **more: Any) -> dict[str, Any]:
    return {
        "type": "Convolution",
        "parents": parents,
        "filter": filters,
        "strides": [1, 1, 1, 1],
        "padding": "SAME",
        **more,
    }


DATA: dict[str, Any] = {"type": "Input", "parents": [], "tensor": [16, 8, 8, 3]}


def built(**layers: Any) -> ImportedNetwork:
    return convert({"name": "n", "layers": {"data": DATA, **layers}})


def problems(**layers: Any) -> dict[str, str]:
    with pytest.raises(GraphError) as caught:
        built(**layers)
    return {problem.layer: problem.message for problem in caught.value.problems}


def test_layer_types() -> None:
    """One of each type, with the shapes that follow."""
    network = built(
        a=conv(["data"], [3, 3, -1, 8], padding=[1, 1], activation_fn=None, normalizer_fn="batch_norm"),
        b=conv(["a"], [1, 5, 8, 8], strides=[1, 2, 1, 1], padding="VALID"),
        pool={"type": "Pooling", "parents": ["b"], "ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"},
        mean={"type": "AvgPool", "parents": ["b"], "ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"},
        both={"type": "Concatenate", "parents": ["pool", "mean"], "dim": 3},
        relu={"type": "ReLU", "parents": ["both"]},
        norm={"type": "BatchNorm", "parents": ["relu"]},
        lrn={"type": "LRN", "parents": ["norm"]},
        up={"type": "UpSampling2D", "parents": ["lrn"], "ksize": [1, 2, 2, 1]},
        wide={
            "type": "Deconvolution",
            "parents": ["up"],
            "filter": [5, 5, 4, 16],
            "strides": [1, 2, 2, 1],
            "padding": "SAME",
            "output_shape": [16, 8, 8, 4],
        },
        sum={"type": "Elementwise", "parents": ["wide", "wide"]},
        drop={"type": "Dropout", "parents": ["sum"], "dropout_keep_prob": 0.7},
        flat={"type": "Reshape", "parents": ["drop"], "output_shape": [16, 256]},
        fc={"type": "InnerProduct", "parents": ["flat"], "num_outputs": 10},
        out={"type": "Sigmoid", "parents": ["fc"]},
        loss={"type": "Softmax", "parents": ["fc"], "num_classes": 10},
    )
    shapes = {layer.name: layer.output_shape for layer in network.graph.layers}
    assert shapes == {
        "data": (3, 8, 8),
        "a": (8, 8, 8),
        "b": (8, 4, 4),
        "pool": (8, 2, 2),
        "mean": (8, 2, 2),
        "both": (16, 2, 2),
        "relu": (16, 2, 2),
        "norm": (16, 2, 2),
        "lrn": (16, 2, 2),
        "up": (16, 4, 4),
        "wide": (4, 8, 8),
        "sum": (4, 8, 8),
        "drop": (4, 8, 8),
        "flat": (256,),
        "fc": (10,),
        "out": (10,),
        "loss": (10,),
    }
    params = {layer.name: layer.params for layer in network.graph.layers}
    assert (params["a"].norm, params["a"].activation, params["a"].padding) == ("batch", None, 1)
    assert (params["b"].activation, params["b"].kernel, params["b"].stride) == ("relu", (1, 5), (2, 1))
    assert (params["pool"].mode, params["mean"].mode, params["drop"].keep) == ("max", "average", 0.7)


def test_blocks() -> None:
    block = {
        "type": "Block",
        "parents": ["data"],
        "endpoint": "join",
        "layers": {
            "left": conv([], [1, 1, 3, 4]),
            "right": conv([], [3, 3, 3, 4]),
            "join": {"type": "Concatenate", "parents": ["left", "right"], "dim": 3},
        },
    }
    network = built(mixed=block, after=conv(["mixed"], [1, 1, 8, 2]), left=conv(["mixed/left"], [1, 1, 4, 2]))
    inputs = {layer.name: layer.inputs for layer in network.graph.layers}
    assert inputs == {
        "data": (),
        "mixed/left": ("data",),
        "mixed/right": ("data",),
        "mixed/join": ("mixed/left", "mixed/right"),
        "after": ("mixed/join",),
        "left": ("mixed/left",),
    }


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"type": "Convolutoin", "parents": ["data"]}, "did you mean 'Convolution'?"),
        ({"type": "RNN", "parents": ["data"]}, "layer type 'RNN' is not known; did you mean 'LRN'? (known: AvgPool, "),
        ({"type": "Softmax"}, "'parents' must be a list"),
        ({"type": "Softmax", "parents": ["dta"]}, "input 'dta' does not exist; did you mean 'data'?"),
        ({"parents": ["data"]}, "expected a layer"),
        (3, "expected a layer"),
        (conv(["data"], [3, 3, 4, 8]), "its filters take 4 channels, its input has 3x8x8"),
        (conv(["data"], [3, 3, 8]), "'filter' is [3, 3, 8], expected a list of 4 whole numbers"),
        (conv(["data"], [3, 0, 3, 8]), "0 is not a whole number of at least 1"),
        (conv(["data"], [3, -1, 3, 8]), "-1 is not a whole number"),
        (conv(["data"], [3, True, 3, 8]), "True is not a whole number"),
        (conv(["data"], [3, 3, 3, 10**12]), "is not a whole number of at least 1"),
        (conv(["data"], [9, 9, 3, 8], padding="VALID"), "kernel 9x9 does not fit into its input 3x8x8"),
        (conv(["data"], [3, 3, 3, 8], strides=[2, 1, 1, 1]), "samples and channels take 1"),
        (conv(["data"], [3, 3, 3, 8], padding="FULL"), "'padding' is 'FULL'"),
        (conv(["data"], [3, 3, 3, 8], padding=[1]), "'padding' is [1]"),
        (conv(["data"], [3, 3, 3, 8], activation_fn="softplus"), "'activation_fn' is 'softplus'"),
        (conv(["data"], [3, 3, 3, 8], activation_fn=[1]), "'activation_fn' is [1]"),
        (conv(["data"], [3, 3, 3, 8], normalizer_fn="layer"), "'normalizer_fn' is 'layer'"),
        ({"type": "Dropout", "parents": ["data"], "dropout_keep_prob": 2}, "from 0 to 1"),
        ({"type": "InnerProduct", "parents": ["data"]}, "'num_outputs' is None"),
        ({"type": "Concatenate", "parents": ["data", "data"], "dim": 0}, "only channels"),
        ({"type": "Reshape", "parents": ["data"], "output_shape": [16, 4, 4, 12]}, "one vector per sample"),
        (
            {"type": "Reshape", "parents": ["data"], "output_shape": [16, 100]},
            "'output_shape' gives 100, the layer gives 192",
        ),
        ({"type": "UpSampling2D", "parents": ["data"], "ksize": [1, 2, 3, 1]}, "only equal factors"),
        ({"type": "Input", "parents": [], "tensor": [8, 4]}, "its batch is 8, another input has 16"),
        ({"type": "Input", "parents": [], "tensor": [16, 4, 4]}, "expected a list of 2 or 4 whole numbers"),
        ({"type": "Elementwise", "parents": ["data"]}, "takes 2... inputs, not 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems(layer: Any, message: str) -> None:
    assert message in problems(bad=layer)["bad"]


def test_problems_of_blocks() -> None:
    inner = conv([], [1, 1, 3, 4])
    assert "'layers'" in problems(b={"type": "Block", "parents": ["data"]})["b"]
    block = {"type": "Block", "parents": ["data"], "layers": {"c": inner}, "endpoint": "d"}
    assert "'endpoint' names 'd'" in problems(b=block)["b"]
    assert "'endpoint' names ['c']" in problems(b={**block, "endpoint": ["c"]})["b"]
    nested = {"type": "Block", "parents": ["data"], "layers": {"c": {"type": "Block", "parents": []}}}
    assert "inside blocks" in problems(b=nested)["b/c"]
    split = {"type": "ModelParallel", "parents": ["data"], "layers": {"c": inner}, "splits": 0}
    assert "'splits' is 0" in problems(b=split)["b"]


def test_all_problems_at_once() -> None:
    found = problems(
        a=conv(["data"], [3, 3, 3, 8], padding="FULL"), b={"type": "RNN", "parents": ["a"]}, c=conv(["a"], [0, 1, 8, 8])
    )
    assert set(found) == {"a", "b", "c"}
    assert "cycle" in problems(a=conv(["b"], [1, 1, 3, 3]), b=conv(["a"], [1, 1, 3, 3]))["a"]


def test_problems_carry_their_place(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    layers = {"data": DATA, "bad": conv(["data"], [3, 3, 4, 8]), "odd": {"type": "RNN", "parents": ["bad"]}}
    path.write_text(json.dumps({"name": "n", "layers": layers}, indent=1))
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    line = path.read_text().splitlines().index('  "odd": {') + 1
    assert [(p.line, p.column, p.where) for p in caught.value.problems] == [(line, 3, "odd")]


def test_names_that_a_network_file_cannot_have(tmp_path: Path) -> None:
    path, out = tmp_path / "net.json", tmp_path / "net.yaml"
    layers = {"data": DATA, "a b": conv(["data"], [1, 1, 3, 4]), "a_b": conv(["a b"], [1, 1, 4, 4])}
    path.write_text(json.dumps({"layers": layers}))
    out.write_text(text_of(load_model(str(path))))
    assert [layer.name for layer in load_model(str(out)).graph.layers] == ["data", "a_b", "a_b_2"]


@pytest.mark.parametrize("content", [None, 3, [], {}, {"layers": []}, {"layers": {}}, {"layers": {"a": 1}}])
def test_other_files(content: object) -> None:
    assert not detect(content)
    with pytest.raises(GraphError, match="is not a PALEO network"):
        convert(content)


SMALL: dict[str, Any] = {
    "name": "n",
    "layers": {
        "data": DATA,
        "block": {
            "type": "ModelParallel",
            "splits": 2,
            "parents": ["data"],
            "layers": {
                "c": conv([], [3, 3, 3, 4]),
                "g": {"type": "Concatenate", "parents": ["c@all"], "dim": 3},
                "d": conv(["g@self"], [3, 3, 4, 4], normalizer_fn="batch_norm"),
            },
        },
        "pool": {
            "type": "Pooling",
            "parents": ["block/d@all"],
            "ksize": [1, 2, 2, 1],
            "strides": [1, 2, 2, 1],
            "padding": "VALID",
        },
        "fc": {"type": "InnerProduct", "parents": ["pool"], "num_outputs": 3},
    },
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**10),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "data", "fc", "block", "@all", "c@0", "SAME", "Block", "Concatenate", "Softmax", "ModelParallel"]
    ),
    st.lists(st.one_of(st.integers(-1, 5), st.sampled_from(["data", "fc", "block"])), max_size=4),
    st.just({}),
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [prefix, *(path for key, child in children for path in paths(child, (*prefix, key)))]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    """Replace or remove up to three values: either a network comes out or an GraphError with named layers."""
    content = copy.deepcopy(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        places = [p for p in paths(content) if p]
        if not places:
            break
        path = data.draw(st.sampled_from(places))
        place = content
        for step in path[:-1]:
            place = place[step]
        if data.draw(st.booleans()):
            place[path[-1]] = data.draw(JUNK)
        elif isinstance(place, dict):
            del place[path[-1]]
    found: tuple[GraphProblem, ...] = ()
    try:
        assert convert(content).graph.layers
    except GraphError as error:
        found = error.problems
    assert all(problem.layer and problem.message for problem in found)

"""The form of network files: fields from the layer families, blocks, repetitions, branches, names and inputs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Discriminator, Tag, TypeAdapter, ValidationError

from costmodel.network.graph import Graph
from costmodel.network.layers import FAMILIES, params_from
from costmodel.network.layers.base import LayerSpec
from planner.importers.networks import load_model
from planner.schema import DOCUMENTS, json_schema
from planner.schema.common import LazyUnion, WholeJsonSchema
from planner.schema.model import layer_model

HEAD = "schema_version: 1\nname: net\nglobal_batch: 8\n"


def load(tmp_path: Path, text: str) -> Graph:
    path = tmp_path / "net.yaml"
    path.write_text(HEAD + text)
    return load_model(str(path)).graph


def wiring(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.inputs for layer in graph.layers}


# -- layer families --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_fields_are_the_parameters_of_the_family(kind: str) -> None:
    fields = layer_model(kind).model_fields
    parameters = dataclasses.fields(FAMILIES[kind].Params)
    assert set(fields) == {"name", "type", "inputs", "frozen", "lora_rank", *(p.name for p in parameters)}
    for parameter in parameters:
        field = fields[parameter.name]
        assert field.description == parameter.metadata["doc"]
        assert field.is_required() == (parameter.default is dataclasses.MISSING)
        if not field.is_required():
            assert field.default == parameter.default


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_schema_states_ranges(kind: str) -> None:
    schema = str(layer_model(kind).model_json_schema())
    for parameter in dataclasses.fields(FAMILIES[kind].Params):
        assert parameter.name in schema
        if parameter.metadata["minimum"] is not None:
            assert f"'minimum': {parameter.metadata['minimum']}" in schema


def test_json_schema_of_a_network_file() -> None:
    schema = json_schema("model")
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"schema_version", "name", "global_batch", "layers"}
    assert {"ConvolutionLayer", "LinearLayer", "BlockUse", "Branches", "Block"} <= set(schema["$defs"])
    assert set(DOCUMENTS) >= {"model", "device", "cluster"}


@pytest.mark.e2e
def test_json_schema_does_not_depend_on_the_hash_seed() -> None:
    code = "import json; from planner.schema import json_schema; print(json.dumps(json_schema('model')))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_a_new_family_needs_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of a layer is made from the registry alone."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Params:
        size: int = dataclasses.field(metadata={"doc": "how large", "minimum": 2, "maximum": 5})
        mode: int | None = dataclasses.field(default=None, metadata={"doc": "mode", "minimum": None, "maximum": None})

    class Family(type(FAMILIES["pool"])):  # type: ignore[misc]
        kind = "brand_new"
        summary = "a test"

    Family.Params = Params
    monkeypatch.setitem(FAMILIES, "brand_new", Family())
    model = layer_model("brand_new")
    assert model.model_validate({"name": "x", "type": "brand_new", "size": 3}).size == 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="less than or equal to 5"):
        model.model_validate({"name": "x", "type": "brand_new", "size": 6})


# -- inputs and names --------------------------------------------------------------------------------------------------------------


def test_a_layer_reads_the_one_before(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        """
layers:
  - {name: a, type: input, shape: [3, 8, 8]}
  - {name: b, type: convolution, out_channels: 4, kernel: 3, padding: same}
  - {name: c, type: convolution, out_channels: 4, kernel: 1, inputs: a}
  - {name: d, type: add, inputs: [b, c]}
  - {name: second, type: input, shape: [4, 8, 8]}
  - {name: e, type: activation}
  - {name: f, type: concat, inputs: [d, e, d]}
""",
    )
    assert wiring(net) == {
        "a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "second": (), "e": ("second",), "f": ("d", "e", "d"),
    }  # fmt: skip
    assert net.layers[net.index("f")].output_shape == (12, 8, 8)


def test_layers_may_stand_in_any_order(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        """
layers:
  - {name: last, type: linear, out_features: 2, inputs: middle}
  - {name: middle, type: linear, out_features: 3, inputs: data}
  - {name: data, type: input, shape: [5]}
""",
    )
    assert [layer.name for layer in net.layers] == ["data", "middle", "last"]


BLOCKS = """
blocks:
  residual:
    parameters: [channels]
    defaults: {stride: 1, kernel: 3}
    layers:
      - {name: conv, type: convolution, out_channels: $channels, kernel: $kernel, stride: $stride, padding: same}
      - {name: add, type: add, inputs: [conv, input]}
  plain:
    parameters: [channels, stride]
    layers:
      - {name: conv, type: convolution, out_channels: $channels, kernel: 1, stride: $stride}
"""


def test_a_block_repeated(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        BLOCKS
        + """
layers:
  - {name: data, type: input, shape: [4, 8, 8]}
  - {name: s, block: residual, repeat: 2, with: {channels: 4}}
  - {name: once, block: residual, with: {channels: 4, kernel: [1, 5]}}
  - {name: end, type: activation}
  - {name: tap, type: activation, inputs: s.1}
  - {name: inner, type: activation, inputs: s.2.conv}
""",
    )
    assert wiring(net) == {
        "data": (), "s.1.conv": ("data",), "s.1.add": ("s.1.conv", "data"), "s.2.conv": ("s.1.add",),
        "s.2.add": ("s.2.conv", "s.1.add"), "once.conv": ("s.2.add",), "once.add": ("once.conv", "s.2.add"),
        "end": ("once.add",), "tap": ("s.1.add",), "inner": ("s.2.conv",),
    }  # fmt: skip
    assert net.layers[net.index("once.conv")].params.kernel == (1, 5)
    assert net.layers[net.index("s.1.conv")].params.kernel == 3


def test_the_first_repetition_may_differ(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        BLOCKS
        + """
layers:
  - {name: data, type: input, shape: [4, 8, 8]}
  - {name: s, block: residual, repeat: 3, with: {channels: 6}, first: {block: plain, with: {stride: 2}}}
""",
    )
    assert [layer.name for layer in net.layers] == ["data", "s.1.conv", "s.2.conv", "s.2.add", "s.3.conv", "s.3.add"]
    assert net.layers[1].output_shape == (6, 4, 4)
    assert net.layers[2].params.stride == 1


def test_blocks_in_blocks(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        BLOCKS
        + """
  stage:
    parameters: [channels, depth, skip]
    layers:
      - {name: down, block: plain, with: {channels: $channels, stride: 2}}
      - {name: body, block: residual, repeat: $depth, with: {channels: $channels}}
      - {name: mix, type: concat, inputs: [body, $skip]}
layers:
  - {name: data, type: input, shape: [4, 8, 8]}
  - {name: side, type: pool, kernel: 2, stride: 2}
  - {name: s, block: stage, inputs: data, with: {channels: 6, depth: 2, skip: side}}
""",
    )
    assert wiring(net)["s.down.conv"] == ("data",)
    assert wiring(net)["s.body.2.add"] == ("s.body.2.conv", "s.body.1.add")
    assert wiring(net)["s.mix"] == ("s.body.2.add", "side")
    assert net.layers[-1].output_shape == (10, 4, 4)


def test_branches(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        """
layers:
  - {name: data, type: input, shape: [4, 8, 8]}
  - name: mix
    branches:
      - [{name: a, type: convolution, out_channels: 2, kernel: 1}]
      - - {name: b1, type: convolution, out_channels: 3, kernel: 1}
        - {name: b2, type: convolution, out_channels: 5, kernel: [1, 3], padding: same}
      - [{name: b3, type: convolution, out_channels: 7, kernel: [3, 1], padding: same, inputs: b1}]
      - []
      - [{name: outer, type: activation, inputs: data}]
  - {name: sum, join: add, branches: [[{name: r, type: activation}], []]}
  - {name: end, type: activation}
""",
    )
    assert wiring(net)["mix.b3"] == ("mix.b1",)
    assert wiring(net)["mix.outer"] == ("data",)
    assert wiring(net)["mix.concat"] == ("mix.a", "mix.b2", "mix.b3", "data", "mix.outer")
    assert net.layers[net.index("mix.concat")].output_shape == (2 + 5 + 7 + 4 + 4, 8, 8)
    assert wiring(net)["sum.add"] == ("sum.r", "mix.concat")
    assert wiring(net)["end"] == ("sum.add",)


def test_a_block_of_branches(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        """
blocks:
  inception:
    parameters: [n]
    join: concat
    branches:
      - [{name: a, type: convolution, out_channels: $n, kernel: 1}]
      - [{name: b, branches: [[{name: c, type: pool, kernel: 3, padding: 1}], []], join: add}]
layers:
  - {name: data, type: input, shape: [4, 8, 8]}
  - {name: i, block: inception, repeat: 2, with: {n: 3}}
""",
    )
    assert wiring(net)["i.1.concat"] == ("i.1.a", "i.1.b.add")
    assert wiring(net)["i.1.b.add"] == ("i.1.b.c", "data")
    assert wiring(net)["i.2.a"] == ("i.1.concat",)
    assert net.layers[-1].output_shape == (3 + 3 + 4, 8, 8)


def test_anchors_work_within_limits(tmp_path: Path) -> None:
    net = load(
        tmp_path,
        """
layers:
  - {name: data, type: input, shape: &shape [3, 8, 8]}
  - {name: other, type: input, shape: *shape}
  - {name: sum, type: add, inputs: [data, other]}
""",
    )
    assert net.layers[-1].output_shape == (3, 8, 8)


@pytest.mark.fuzz
def test_deep_chains_do_not_recurse(tmp_path: Path) -> None:
    """The seventh part of the largest network allowed, ten times Python's limit of recursion."""
    net = load(
        tmp_path,
        """
blocks: {b: {layers: [{name: a, type: activation}]}}
layers:
  - {name: data, type: input, shape: [3]}
  - {name: s, block: b, repeat: 15000}
""",
    )
    assert len(net.layers) == 15_001
    assert net.layers[-1].inputs == ("s.14999.a",)


# -- against a direct construction -------------------------------------------------------------------------------------------------

_layer = st.sampled_from(
    [
        ("convolution", {"out_channels": 4, "kernel": 3, "padding": "same"}),
        ("convolution", {"out_channels": 6, "kernel": [1, 3], "padding": [0, 1], "bias": False, "norm": "batch"}),
        ("pool", {"kernel": 3, "padding": 1, "mode": "average"}),
        ("activation", {"function": "gelu"}),
        ("dropout", {"keep": 0.25}),
    ]
)


@given(layers=st.lists(_layer, min_size=1, max_size=5), repeat=st.integers(1, 4), explicit=st.booleans())
def test_a_file_equals_a_graph_built_by_hand(
    tmp_path_factory: pytest.TempPathFactory, layers: list[tuple[str, dict[str, Any]]], repeat: int, explicit: bool
) -> None:
    specs = [LayerSpec(name="data", kind="input", params=params_from("input", {"shape": (3, 6, 6)}))]
    for number in range(1, repeat + 1):
        for index, (kind, values) in enumerate(layers):
            plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            name = f"s.{number}.l{index}"
            params = params_from(kind, plain)
            specs.append(LayerSpec(name=name, kind=kind, params=params, inputs=(specs[-1].name,), block=f"s.{number}"))
    by_hand = Graph.build("net", specs)

    body = [{"name": f"l{index}", "type": kind, **values} for index, (kind, values) in enumerate(layers)]
    if explicit:
        for index, entry in enumerate(body):
            entry["inputs"] = body[index - 1]["name"] if index else "input"
    document = {
        "schema_version": 1, "name": "net", "global_batch": 1, "blocks": {"b": {"layers": body}},
        "layers": [{"name": "data", "type": "input", "shape": [3, 6, 6]}, {"name": "s", "block": "b", "repeat": repeat}],
    }  # fmt: skip
    path = tmp_path_factory.mktemp("net") / "net.yaml"
    path.write_text(yaml.safe_dump(document))
    assert load_model(str(path)).graph == by_hand


def test_a_loaded_model_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    layers = "layers: [{name: data, type: input, shape: [3]}, {name: fc, type: linear, out_features: 2}]\n"
    path.write_text(HEAD + "source: a paper\ndescription: small\n" + layers)
    model = load_model(str(path))
    assert (model.name, model.global_batch, model.source, model.description) == ("net", 8, "a paper", "small")
    assert model.path == path
    assert len(model.sha256) == 64


def test_the_example_of_the_documentation(new_file: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "model-files.md").read_text()
    path = new_file("net.yaml", page.split("```yaml\n")[1].split("```")[0])
    names = [layer.name for layer in load_model(str(path)).graph.layers]
    assert names[:3] == ["data", "stem", "stage.1.conv1"]
    assert names[-4:] == ["mix.1x1", "mix.pool", "mix.concat", "fc"]


# --- A union whose members are made when a value is of them behaves as one of models that exist -------------------------------------------


MADE: list[str] = []


class Dog(BaseModel):
    kind: Literal["dog"]
    legs: int


class Bird(BaseModel):
    kind: Literal["bird"]
    wings: int
    eggs: tuple[int, ...] = ()


@cache
def made(model: type[BaseModel]) -> type[BaseModel]:
    MADE.append(model.__name__)
    return model


def tag_of(value: Any) -> str | None:
    return f"<{value.get('kind')}>" if isinstance(value, dict) else f"<{value.kind}>"


LAZY = Annotated[Any, LazyUnion({"<dog>": lambda: made(Dog), "<bird>": lambda: made(Bird)}, tag_of)]
EAGER = Annotated[
    Union[Annotated[Dog, Tag("<dog>")], Annotated[Bird, Tag("<bird>")]],  # noqa: UP007 - as in the schema
    Discriminator(tag_of),
]


class Zoo(BaseModel):
    animals: tuple[LAZY, ...]


def test_only_what_is_met_is_made() -> None:
    made.cache_clear()
    MADE.clear()
    zoo = Zoo.model_validate({"animals": [{"kind": "dog", "legs": 4}, {"kind": "dog", "legs": 3}]})
    assert zoo.animals == (Dog(kind="dog", legs=4), Dog(kind="dog", legs=3))
    assert MADE == ["Dog"]
    assert Zoo.model_validate({"animals": zoo.animals}) == zoo  # what is made already stays as it is


@pytest.mark.parametrize(
    "animals",
    [
        [{"kind": "dog"}],
        [{"kind": "bird", "wings": "x", "eggs": [1, "y"]}],
        [{"kind": "cat"}],
        [{"kind": "dog", "legs": []}],
    ],
)
def test_errors_are_those_of_a_union_of_models(animals: list[Any]) -> None:
    found = []
    for union in (LAZY, EAGER):
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(tuple[union, ...]).validate_python(animals)
        found.append([(e["loc"], e["type"], e["msg"], e["input"]) for e in caught.value.errors()])
    assert found[0] == found[1]


def test_the_json_schema_has_every_member() -> None:
    schema = Zoo.model_json_schema(schema_generator=WholeJsonSchema)
    assert set(schema["$defs"]) == {"Dog", "Bird"}
    assert {"$ref": "#/$defs/Bird"} in schema["properties"]["animals"]["items"]["oneOf"]


def test_the_schema_of_networks_has_every_layer_and_closes_over_itself() -> None:
    schema = json_schema("model")
    layers = {name for name in schema["$defs"] if name.endswith("Layer")}
    assert len(layers) == len(FAMILIES)
    chain = schema["$defs"]["Branches"]["properties"]["branches"]["items"]["items"]["oneOf"]
    assert {"$ref": "#/$defs/Branches"} in chain

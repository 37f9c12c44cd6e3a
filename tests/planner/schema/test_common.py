"""A union whose members are made when a value is of them behaves as one of models that exist."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Union

import pytest
from pydantic import BaseModel, Discriminator, Tag, TypeAdapter, ValidationError

from costmodel.network.layers import FAMILIES
from planner.schema import json_schema
from planner.schema.common import LazyUnion, WholeJsonSchema

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

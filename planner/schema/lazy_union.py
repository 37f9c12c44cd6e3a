"""A union whose members are built when a value is of them: a network file knows 34 kinds of layers, a network uses six."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import CoreRef, GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

__all__ = ["LazyUnion", "WholeJsonSchema"]


class _Reader:
    """Validates by a model that is made at the first value."""

    def __init__(self, member: Callable[[], type[BaseModel]]) -> None:
        self.member = member

    def __call__(self, value: Any) -> Any:
        return self.member().model_validate(value)


class LazyUnion:
    """Annotation of a field: a union of models told apart by a tag, as pydantic's ``Discriminator`` does, made one by one.

    Parameters
    ----------
    members : mapping of str to function
        Tag -> function that returns the model.
    tag_of : function
        Of a value that is to be validated, or of a model.
    """

    def __init__(
        self, members: Mapping[str, Callable[[], type[BaseModel]]], tag_of: Callable[[Any], str | None]
    ) -> None:
        self._members, self._tag_of = members, tag_of

    def members(self, tag: str | None = None) -> Iterator[type[BaseModel]]:
        """Models of a tag; all of them without one."""
        chosen = self._members if tag is None else [tag] if tag in self._members else []
        return (self._members[name]() for name in chosen)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """A tagged union of functions; errors carry the same locations as those of a union of models."""
        choices: dict[Any, core_schema.CoreSchema] = {
            tag: core_schema.no_info_plain_validator_function(_Reader(member)) for tag, member in self._members.items()
        }
        return core_schema.tagged_union_schema(choices, self._tag_of)


class WholeJsonSchema(GenerateJsonSchema):
    """JSON Schema with every member of a `LazyUnion` written out."""

    def __init__(self, by_alias: bool = True, ref_template: str = "#/$defs/{model}", **more: Any) -> None:
        super().__init__(by_alias, ref_template, **more)
        self._started: set[CoreRef] = set()

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """Write a member under ``$defs``, once, and refer to it."""
        reader = schema["function"]["function"]
        if not isinstance(reader, _Reader):
            return super().function_plain_schema(schema)
        model = reader.member()
        ref = CoreRef(f"{model.__module__}.{model.__qualname__}:{id(model)}")
        if ref in self._started:
            return self.get_cache_defs_ref_schema(ref)[1]
        self._started.add(ref)
        model.model_rebuild()  # where it is made when it is needed
        core: Any = model.__pydantic_core_schema__
        if core["type"] == "definitions":
            for definition in core["definitions"]:
                self.generate_inner(definition)
            core = core["schema"]
        return self.generate_inner({**core, "ref": ref})

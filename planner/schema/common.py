"""What the schemas of all files share: strict models, types of fields (names, quantities, unions), errors that say where they point."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic.json_schema import CoreRef, GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from planner.core.errors import did_you_mean
from planner.core.quantities import QuantityError, parse_quantity

# Larger extents, counts or batches are typing errors, and their products would leave the exact range of a float.
MAX_INTEGER = 10**9

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/@+-]{0,63}")


class FileModel(BaseModel):
    """A mapping of a file: unknown keys are errors, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=False)


def fail(message: str, at: str = "") -> NoReturn:
    """Refuse a value from inside a validator, in words that are shown as they are.

    Parameters
    ----------
    message : str
    at : str, optional
        Key below the validated mapping that the message points at.
    """
    raise PydanticCustomError("domain", "{message}", {"message": message, "at": at})


def plain_number(value: object) -> float:
    """A number without a unit; a truth value or text is refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail("expected a number")
    return float(value)


def is_name(text: str) -> bool:
    """Whether a text may be the name of a thing in a file.

    >>> is_name("mine-2"), is_name("-x"), is_name("two words")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def named(pattern: re.Pattern[str], symbols: str) -> BeforeValidator:
    """Refuse what is no name of a pattern; ``symbols`` are those that it allows, for the message."""

    def check(value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            fail(f"expected a name, got the number {value}; quote it: '{value}'")
        if not isinstance(value, str):
            fail("expected a name")
        if not pattern.fullmatch(value):
            allowed = f"letters, digits and any of {symbols}, at most 64, the first a letter, digit or _"
            fail(f"'{value[:70]}' is not a name: {allowed}")
        return value

    return BeforeValidator(check)


Name = Annotated[str, named(_NAME, "_ - / @ +"), Field(json_schema_extra={"pattern": f"^{_NAME.pattern}$"})]
Text = Annotated[str, Field(strict=True, max_length=10_000)]


class NamedFile(FileModel):
    """A file about one thing that has a name."""

    schema_version: Literal[1] = Field(description="version of this file format")
    name: Name
    description: Text = ""


def is_reference(value: Any) -> bool:
    """Whether a value is the name of a block's parameter, ``$stride``."""
    return isinstance(value, str) and value.startswith("$")


class Reference:
    """Annotation: the value may also be the name of a block's parameter, ``$stride``."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], core_schema.CoreSchema]
    ) -> core_schema.CoreSchema:
        """Let references through untouched."""
        return core_schema.no_info_wrap_validator_function(_unless_reference, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: Callable[[core_schema.CoreSchema], dict[str, Any]]
    ) -> dict[str, Any]:
        """Either form."""
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"^\$[A-Za-z0-9_]+$"}]}


def _unless_reference(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if is_reference(value) else validate(value)


def field_type(annotation: Any, minimum: float | None = None, maximum: float | None = None) -> Any:
    """Turn the annotation of a layer parameter into the type of a file's field, range included.

    Whole numbers are whole (no `3.0`, no `true`); the members of a union are told apart by their form, so that an error speaks
    of the one that was meant; every number of a pair has the range.

    Parameters
    ----------
    annotation : type
        int, float, bool, str, Literal, tuple, or a union of these.
    minimum, maximum : float, optional

    Returns
    -------
    type
        For pydantic.
    """
    return Annotated[_checked(annotation, minimum, maximum), Reference()]


def _checked(annotation: Any, minimum: float | None, maximum: float | None) -> Any:
    if annotation is bool or annotation is str:
        return Annotated[annotation, Field(strict=True)]
    if annotation is int:
        return Annotated[int, Field(strict=True, ge=minimum, le=MAX_INTEGER if maximum is None else maximum)]
    if annotation is float:
        return Annotated[float, Field(strict=True, ge=minimum, le=maximum, allow_inf_nan=False)]
    if annotation is types.NoneType or get_origin(annotation) is Literal:
        return annotation
    return _compound(annotation, minimum, maximum)


def _compound(annotation: Any, minimum: float | None, maximum: float | None) -> Any:
    arguments = get_args(annotation)
    if get_origin(annotation) is not tuple:
        assert get_origin(annotation) in (Union, types.UnionType), f"no file form for {annotation}"
        return _union(arguments, minimum, maximum)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        elements: Any = (field_type(arguments[0], minimum, maximum), ...)
        return Annotated[tuple.__class_getitem__(elements), Field(min_length=1, max_length=8)]
    return tuple.__class_getitem__(tuple(field_type(argument, minimum, maximum) for argument in arguments))


def _union(members: tuple[Any, ...], minimum: float | None, maximum: float | None) -> Any:
    present = [member for member in members if member is not types.NoneType]
    if len(present) == 1:
        return _checked(present[0], minimum, maximum) | None
    tagged = [Annotated[_checked(member, minimum, maximum), Tag(_form_of(member))] for member in members]
    return Annotated[
        Union[tuple(tagged)],  # noqa: UP007 - made at run time
        Discriminator(
            _form,
            custom_error_type="form",
            custom_error_message="expected " + " or ".join(_words(member) for member in members),
        ),
    ]


def _form_of(annotation: Any) -> str:
    if annotation in (int, float):
        return "<number>"
    if annotation is types.NoneType:
        return "<nothing>"
    return "<list>" if get_origin(annotation) is tuple else "<word>"


def _form(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return "<number>"
    if isinstance(value, str):
        return "<word>"
    if isinstance(value, (list, tuple)):
        return "<list>"
    return "<nothing>" if value is None else None


def _words(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"'{word}'" for word in get_args(annotation))
    return {"<number>": "a number", "<list>": "[height, width]", "<nothing>": "null"}[_form_of(annotation)]


def known(names: Collection[str], what: str) -> AfterValidator:
    """Refuse a word that is none of some names; ``what`` says what it is not: "no constant of the cost model"."""

    def check(name: str) -> str:
        if name not in names:
            fail(f"'{name[:60]}' is {what}{did_you_mean(name, names)} (known: {', '.join(names)})")
        return name

    return AfterValidator(check)


# -- quantities with units, fractions and sources ----------------------------------------------------------------------------


def _reader(dimension: str, *, zero: bool) -> BeforeValidator:
    def read(value: Any) -> Any:
        try:
            number = parse_quantity(value, dimension)
        except QuantityError as error:
            fail(str(error))
        if number == 0 and not zero:
            fail(f"'{value}' is zero; expected more")
        return number

    return BeforeValidator(read)


def _text(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": "a number and a unit", "examples": [example]})


Bytes = Annotated[float, _reader("bytes", zero=False), _text("80 GiB")]
Bandwidth = Annotated[float, _reader("bytes_per_s", zero=False), _text("900 GB/s")]
FlopRate = Annotated[float, _reader("flop_per_s", zero=False), _text("989 TFLOP/s")]
Frequency = Annotated[float, _reader("hz", zero=False), _text("1410 MHz")]
Power = Annotated[float, _reader("watts", zero=False), _text("700 W")]
Seconds = Annotated[float, _reader("seconds", zero=True), _text("5 us")]


Fraction = Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(plain_number)]
Share = Annotated[float, Field(ge=0.0, le=1.0), BeforeValidator(plain_number)]
HalfSize = Annotated[float, Field(ge=0.0, le=1e12), BeforeValidator(plain_number)]
Price = Annotated[float, Field(gt=0.0, le=1e6), BeforeValidator(plain_number)]
Sources = Annotated[dict[str, Text], Field(max_length=100)]


def check_sources(sources: dict[str, str], model: type[BaseModel]) -> None:
    """Refuse a source for a key that the file does not have."""
    keys = [name for name in model.model_fields if name not in ("schema_version", "source")]
    for key in sources:
        if key not in keys:
            fail(f"'{key[:60]}' is not a key of this file{did_you_mean(key, keys)}", at="source")


# -- a union whose members are built when a value is of them: a network file knows 34 kinds of layers, a network uses six --------


class _Member:
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
            tag: core_schema.no_info_plain_validator_function(_Member(member)) for tag, member in self._members.items()
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
        if not isinstance(reader, _Member):
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

"""Turns the errors of pydantic into the words of this domain, each with its line and column."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Location
from planner.schema.common import LazyUnion

_Model = TypeVar("_Model", bound=BaseModel)


class ParsedFile(Protocol):
    """A file's content as plain values, and the place of every one of them; YAML or JSON."""

    @property
    def value(self) -> Any:
        """The content."""

    @property
    def problems(self) -> Sequence[FileProblem]:
        """Faults of single values that were found while it was read."""

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> FileProblem:
        """Say that something is wrong at a location."""


def validate(model: type[_Model], document: ParsedFile, most: int | None = None) -> _Model:
    """Check a document against a pydantic model.

    Parameters
    ----------
    model : type
    document : ParsedFile
    most : int, optional
        How many problems are looked up, where each takes long.

    Raises
    ------
    InputFileError
        All problems at once.
    """
    if not isinstance(document.value, dict):
        kind = "a list" if isinstance(document.value, list) else f"the single value {_show(document.value)}"
        message = f"expected keys and values ('key: value' lines), got {kind}"
        raise InputFileError([*document.problems, document.problem((), message)])
    try:
        content = model.model_validate(document.value)
    except ValidationError as error:
        # A value that could not be read would only be complained of twice.
        known = {(problem.line, problem.column) for problem in document.problems}
        found = [p for p in problems_of(error, document, model, most) if (p.line, p.column) not in known]
        raise InputFileError([*document.problems, *found]) from None
    if document.problems:
        raise InputFileError(document.problems)
    return content


def problems_of(
    error: ValidationError, document: ParsedFile, model: type[BaseModel], most: int | None = None
) -> list[FileProblem]:
    """Translate every error.

    Parameters
    ----------
    error : ValidationError
    document : ParsedFile
        Where the places are looked up.
    model : type
        The model that was validated; its fields are what an unknown key is compared with.
    most : int, optional
        Errors, the first ones.

    Returns
    -------
    list of FileProblem
    """
    problems: list[FileProblem] = []
    meant: set[tuple[Location, str]] = set()  # keys that a misspelt one stands for: not reported as missing as well
    missing: list[tuple[Location, str, str]] = []
    for item in error.errors(include_url=False)[:most]:
        location: Location = item["loc"]
        step = location[-1] if location else ""
        if item["type"] == "missing" and isinstance(step, str):
            known = _keys_at(model, location[:-1])
            near = [key for key in item["input"] if key not in known and f"'{step}'" in did_you_mean(key, known)]
            missing.append((location[:-1], step, did_you_mean(step, near)))
        elif item["type"] == "extra_forbidden":
            hint = did_you_mean(str(step), _keys_at(model, item["loc"][:-1]))
            if hint:
                meant.add((_without_tags(location[:-1]), hint.split("'")[1]))
            text = f"unknown key '{str(step)[:60]}'{hint}"
            if not hint:
                text += f"; allowed: {', '.join(_keys_at(model, item['loc'][:-1]))}"
            problems.append(document.problem(_without_tags(location), text, at_key=True))
        elif (translated := error_text(item)) is not None:
            is_key = step == "[key]"  # pydantic's word for the key of a mapping
            at = item.get("ctx", {}).get("at", "")
            place = location[:-1] if is_key else (*location, at) if at else location
            problems.append(document.problem(_without_tags(place), translated, at_key=is_key))
    problems.extend(
        document.problem(_without_tags(location), f"missing key '{key}'{hint}")
        for location, key, hint in missing
        if (_without_tags(location), key) not in meant
    )
    return problems


def _without_tags(location: Location) -> Location:
    """Drop what pydantic inserts for members of unions; ours are written ``<so>``."""
    return tuple(step for step in location if not (isinstance(step, str) and step.startswith("<")))


def error_text(item: Any) -> str | None:
    """Say one of pydantic's errors in the words of this domain; None for an echo of another error.

    Examples
    --------
    >>> error_text({"type": "greater_than_equal", "ctx": {"ge": 1}, "input": 0, "msg": ""})
    'must be at least 1, got 0'
    """
    translate = _TRANSLATIONS.get(item["type"])
    if translate is not None:
        return translate(item.get("ctx", {}), item["input"])
    message: str = item["msg"]
    return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value[:60]}'" if isinstance(value, str) else str(value)


def _whole_number(_: Any, value: Any) -> str:
    hint = ""
    if isinstance(value, float) and value.is_integer():
        hint = f"; write {int(value)}"
    elif isinstance(value, str):
        digits = value.replace("_", "").replace(",", "").replace(" ", "")
        if digits.isdecimal():
            hint = f"; write {digits[:20]}"
    return f"expected a whole number, got {_show(value)}{hint}"


def _true_or_false(_: Any, value: Any) -> str:
    meaning = {"yes": "true", "on": "true", "y": "true", "1": "true", "no": "false", "off": "false", "n": "false"}
    hint = meaning.get(str(value).lower())
    return f"expected true or false, got {_show(value)}" + (f"; write {hint}" if hint else "")


def _one_of(context: Any, value: Any) -> str:
    expected = str(context["expected"])
    words = re.findall(r"'([^']*)'", expected)
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"expected {expected}, got {_show(value)}{hint}"


def _too_short(context: Any, value: Any) -> str | None:
    if isinstance(value, (list, dict)) and len(value) >= context["min_length"]:
        return None  # pydantic dropped entries for which it has already reported errors
    least = context["min_length"]
    return f"needs at least {least} {'entry' if least == 1 else 'entries'}"


_Translation = Callable[[Any, Any], str | None]


def _expected(what: str) -> _Translation:
    return lambda _, value: f"expected {what}, got {_show(value)}"


_TRANSLATIONS: dict[str, _Translation] = {
    "domain": lambda context, _: str(context["message"]),
    "missing": lambda *_: "too few numbers",  # of a pair; missing keys are reported together
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "int_parsing": _whole_number,
    "float_type": _expected("a number"),
    "float_parsing": _expected("a number"),
    "finite_number": lambda *_: "expected a finite number",
    "bool_type": _true_or_false,
    "bool_parsing": _true_or_false,
    "string_type": lambda _, value: (
        f"expected text, got {_show(value)}" + (f"; quote it: '{value}'" if isinstance(value, (int, float)) else "")
    ),
    "node_id": _expected("a whole number or a name"),
    "literal_error": _one_of,
    "enum": _one_of,
    "greater_than_equal": lambda context, value: f"must be at least {context['ge']:g}, got {_show(value)}",
    "greater_than": lambda context, value: f"must be greater than {context['gt']:g}, got {_show(value)}",
    "less_than_equal": lambda context, value: f"must be at most {context['le']}, got {_show(value)}",
    "less_than": lambda context, value: f"must be less than {context['lt']}, got {_show(value)}",
    "list_type": _expected("a list"),
    "tuple_type": _expected("a list"),
    "dict_type": _expected("a mapping (key: value)"),
    "model_type": _expected("a mapping (key: value)"),
    "model_attributes_type": _expected("a mapping (key: value)"),
    "too_short": _too_short,
    "too_long": lambda context, value: (
        f"takes at most {context['max_length']} entries"
        + (f", got {len(value)}" if isinstance(value, (list, dict)) else "")
    ),
    "string_too_long": lambda context, _: f"is longer than {context['max_length']} characters",
    "string_too_short": lambda *_: "must not be empty",
}


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """Keys that the model at a location knows, as a file writes them."""
    annotations: list[Any] = [model]
    for step in location:
        annotations = [child for annotation in annotations for child in _descend(annotation, step)]
    keys: list[str] = []
    for candidate in annotations:
        for plain in _members(candidate):
            if _is_model(plain):
                keys.extend(field.alias or name for name, field in plain.model_fields.items())
    return list(dict.fromkeys(keys))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _members(annotation: Any, tag: str | None = None) -> Iterator[Any]:
    """Plain types behind an annotation; of a tagged union only the member that the tag names."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        for union in (item for item in metadata if isinstance(item, LazyUnion)):
            yield from union.members(tag)
        tags = [item.tag for item in metadata if isinstance(item, Tag)]
        if tag is None or not tags or tag in tags:
            yield from _members(inner, tag)
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member, tag)
    else:
        yield annotation


def _descend(annotation: Any, step: str | int) -> Iterator[Any]:
    if isinstance(step, str) and step.startswith("<"):
        yield from _members(annotation, step)
        return
    for plain in _members(annotation):
        arguments = get_args(plain)
        if _is_model(plain):
            for name, field in plain.model_fields.items():
                if step in (name, field.alias):
                    yield field.annotation
        elif get_origin(plain) is dict:
            yield arguments[1]
        elif arguments:
            yield arguments[0]

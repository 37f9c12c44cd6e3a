"""Protocol buffers' text format without a schema: ``name: value`` and ``name { ... }``, every value with its place and its type checked.

Tokens, strings and numbers are read by protobuf's own tokenizer. Its parser is not used: it needs the schema of everything that a file
holds, also of layers of Caffe's many forks, and does not say where a value stood when something is found wrong with it later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format

MAX_DEPTH = 20  # Caffe's own schema is 6 levels deep
MAX_VALUES = 200_000  # values of all messages; ResNet-152 has about 8,000

_CLOSING = {"{": "}", "<": ">"}
_WORDS: dict[str, Any] = {"true": True, "false": False}
_MAX_EXTENT = 10**9


class Fault(ValueError):  # noqa: N818 - caught and attached to its file
    """What is wrong, and where; lines and columns count from 1. ``is_follow_up``: its cause is reported already."""

    def __init__(self, message: str, line: int, column: int, where: str = "", *, is_follow_up: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.where = where
        self.is_follow_up = is_follow_up


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it stands; of a message, ``value`` is a dict with all values of every field."""

    value: Any
    line: int = 1
    column: int = 1


def parse(text: str) -> Value:
    """Read a text as a message.

    Parameters
    ----------
    text : str

    Returns
    -------
    Value

    Raises
    ------
    Fault
        The first one; too deep or too many values are faults.

    Examples
    --------
    >>> message = parse('name: "tiny" layer { type: "Input" top: "data" input_param { shape: { dim: [1, 3] } } }')
    >>> message.value["name"][0], message.value["layer"][0].value["top"][0].value
    (Value(value='tiny', line=1, column=7), 'data')
    >>> parse("layer { ")
    Traceback (most recent call last):
    ...
    planner.importers.caffe.text_format.Fault: the file ends inside the message opened on line 1; '}' is missing
    """
    try:
        return Value(_Parser(text).message())
    except text_format.ParseError as error:
        reason = str(error).rpartition("': ")[2]  # behind the place and the line
        raise Fault(reason[:200], error.GetLine() or 1, error.GetColumn() or 1) from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = text_format.Tokenizer(text.rstrip().split("\n"))
        self._count = 0

    def message(self, closing: str = "", line: int = 1, depth: int = 1) -> dict[str, list[Value]]:
        """The fields up to the closing bracket; the message was opened on ``line``."""
        if depth > MAX_DEPTH:
            raise self._fault(f"messages are nested more than {MAX_DEPTH} levels deep")
        tokens, fields = self._tokens, dict[str, list[Value]]()
        while not tokens.AtEnd():
            if closing and tokens.TryConsume(closing):
                return fields
            if tokens.TryConsume(";") or tokens.TryConsume(","):
                continue
            place = self._place()
            if not tokens.token.isidentifier():  # the tokenizer takes "num-output" for one
                raise self._fault(f"expected the name of a field, found '{tokens.token[:40]}'")
            name = tokens.ConsumeIdentifier()
            has_colon = tokens.TryConsume(":")
            values = fields.setdefault(name, [])
            if tokens.token in _CLOSING:
                end = _CLOSING[tokens.token]
                tokens.NextToken()
                self._add(values, Value(self.message(end, place[0], depth + 1), *place))
            elif not has_colon:
                raise self._fault(f"expected ':' or '{{' after '{name[:40]}'")
            elif tokens.TryConsume("["):
                while not tokens.TryConsume("]"):
                    if not tokens.TryConsume(","):
                        self._add(values, self._scalar(name))
            else:
                self._add(values, self._scalar(name))
        if closing:
            raise self._fault(f"the file ends inside the message opened on line {line}; '{closing}' is missing")
        return fields

    def _add(self, values: list[Value], value: Value) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._fault(f"the file holds more than {MAX_VALUES:,} values")
        values.append(value)

    def _scalar(self, name: str) -> Value:
        tokens, place = self._tokens, self._place()
        if tokens.AtEnd():
            raise self._fault(f"the file ends after '{name[:40]}'")
        if tokens.token[0] in "\"'":
            return Value(tokens.ConsumeString(), *place)
        if tokens.token.isidentifier():
            word = tokens.ConsumeIdentifier()
            return Value(_WORDS.get(word, word), *place)
        try:
            return Value(tokens.ConsumeInteger(), *place)
        except text_format.ParseError:
            return Value(tokens.ConsumeFloat(), *place)

    def _place(self) -> tuple[int, int]:
        here = self._tokens.ParseError("")
        return here.GetLine(), here.GetColumn()

    def _fault(self, message: str) -> Fault:
        return Fault(message, *self._place())


# -- fields of a message ----------------------------------------------------------------------------------------------------


class Fields:
    """Reads the fields of one message; of a field given twice the last value counts, as in protocol buffers."""

    def __init__(self, message: Value, label: str = "") -> None:
        self.message = message
        names = self.values("name")
        self.label = label or (names[0].value if names and isinstance(names[0].value, str) else "")

    def values(self, name: str) -> list[Value]:
        """Every value of a field."""
        values: list[Value] = self.message.value.get(name, [])
        return values

    def messages(self, name: str) -> list[Fields]:
        """Every value of a field that is a message."""
        return [Fields(item) for item in self.values(name) if isinstance(item.value, dict)]

    def fault(self, message: str, at: Value | None = None, *, is_follow_up: bool = False) -> Fault:
        """A fault at a value, or at the message."""
        place = at or self.message
        return Fault(message, place.line, place.column, self.label, is_follow_up=is_follow_up)

    def inner(self, name: str) -> Fields:
        """A message inside; an empty one where it is missing."""
        values, messages = self.values(name), self.messages(name)
        if values and not messages:
            raise self.fault(f"'{name}' must be a message: {name} {{ ... }}", values[0])
        empty = Value({}, self.message.line, self.message.column)
        return Fields(messages[-1].message if messages else empty, self.label)

    def _checked(self, name: str, what: str, *types: type) -> list[Any]:
        for item in self.values(name):  # true and false are whole numbers in Python only
            if not isinstance(item.value, types) or (isinstance(item.value, bool) and bool not in types):
                raise self.fault(f"'{name}' must be {what}", item)
        return [item.value for item in self.values(name)]

    def texts(self, name: str) -> list[str]:
        """Every value of a field of strings or words."""
        return self._checked(name, "text", str)

    def text(self, name: str, default: str) -> str:
        """A string or word."""
        return [default, *self.texts(name)][-1]

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = [default, *self._checked(name, "true or false", bool, int)][-1]
        if value not in (0, 1):
            raise self.fault(f"'{name}' must be true or false", self.values(name)[-1])
        return bool(value)

    def number(self, name: str, default: float) -> float:
        """A number."""
        return float([default, *self._checked(name, "a number", int, float)][-1])

    def integers(self, name: str, *, least: int = 0) -> list[int]:
        """Every value of a field of whole numbers."""
        numbers = self._checked(name, "a whole number", int)
        for item in self.values(name):
            if not least <= item.value <= _MAX_EXTENT:
                raise self.fault(f"'{name}' is {item.value}; it must be from {least} to {_MAX_EXTENT}", item)
        return numbers

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number; needed where there is no default."""
        value = [default, *self.integers(name, least=least)][-1]
        if value is None:
            raise self.fault(f"'{name}' is missing")
        return value

    def size(self, name: str, prefix: str, default: int, *, least: int) -> tuple[int, int]:
        """Height and width: ``name`` once or twice, or ``prefix_h`` and ``prefix_w``."""
        repeated = self.integers(name, least=least)
        height, width = self.integers(f"{prefix}_h", least=least), self.integers(f"{prefix}_w", least=least)
        if height or width:
            if repeated or not (height and width):
                raise self.fault(f"'{prefix}_h' and '{prefix}_w' go together and exclude '{name}'")
            return height[-1], width[-1]
        if len(repeated) > 2:
            raise self.fault(f"'{name}' has {len(repeated)} values; only images (2 dimensions) are known")
        return (repeated[0], repeated[-1]) if repeated else (default, default)

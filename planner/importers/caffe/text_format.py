"""Protocol buffers' text format without a schema: ``name: value`` and ``name { ... }``, every value with its place and its type checked.

Tokens, strings and numbers are read by protobuf's own tokenizer. Its parser is not used: it needs the schema of everything that a file
holds, also of layers of Caffe's many forks, and does not say where a value stood when something is found wrong with it later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf import text_format

__all__ = ["MAX_DEPTH", "MAX_VALUES", "Fault", "Fields", "Message", "TextFormatError", "Value", "parse"]

MAX_DEPTH = 20  # Caffe's own schema is 6 levels deep
MAX_VALUES = 200_000  # values of all messages; ResNet-152 has about 8,000

Scalar = str | int | float | bool

_CLOSING = {"{": "}", "<": ">"}
_WORDS: dict[str, Scalar] = {"true": True, "false": False}


class TextFormatError(ValueError):
    """The text is not in this format; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it stands."""

    value: Scalar | Message
    line: int
    column: int


@dataclass(slots=True)
class Message:
    """Fields in the order of the file; every field may be repeated."""

    line: int = 1
    column: int = 1
    fields: dict[str, list[Value]] = field(default_factory=dict)

    def values(self, name: str) -> list[Value]:
        """Every value of a field."""
        return self.fields.get(name, [])

    def messages(self, name: str) -> list[Message]:
        """Every value of a field that is a message."""
        return [item.value for item in self.values(name) if isinstance(item.value, Message)]


def parse(text: str) -> Message:
    """Read a text.

    Parameters
    ----------
    text : str

    Returns
    -------
    Message

    Raises
    ------
    TextFormatError
        With the place of the first fault; too deep or too many values are faults.

    Examples
    --------
    >>> message = parse('name: "tiny" layer { type: "Input" top: "data" input_param { shape: { dim: [1, 3] } } }')
    >>> message.values("name")[0].value, message.messages("layer")[0].values("top")[0].value
    ('tiny', 'data')
    >>> parse("layer { ")
    Traceback (most recent call last):
    ...
    planner.importers.caffe.text_format.TextFormatError: the file ends inside the message opened on line 1; '}' is missing
    """
    try:
        return _Parser(text).run()
    except text_format.ParseError as error:
        reason = str(error).rpartition("': ")[2]  # behind the place and the line
        raise TextFormatError(reason[:200], error.GetLine() or 1, error.GetColumn() or 1) from None


class _Parser:
    """Iterative: depth costs no stack."""

    def __init__(self, text: str) -> None:
        self._tokens = text_format.Tokenizer(text.rstrip().split("\n"))
        self._count = 0

    def run(self) -> Message:
        tokens, root = self._tokens, Message()
        open_: list[tuple[Message, str]] = [(root, "")]
        while not tokens.AtEnd():
            message, closing = open_[-1]
            if closing and tokens.TryConsume(closing):
                open_.pop()
            elif not (tokens.TryConsume(";") or tokens.TryConsume(",")):
                inner = self._field(message)
                open_ += [inner] if inner else []
                if len(open_) > MAX_DEPTH:
                    raise self._error(f"messages are nested more than {MAX_DEPTH} levels deep")
        if len(open_) > 1:
            message, closing = open_[-1]
            raise self._error(f"the file ends inside the message opened on line {message.line}; '{closing}' is missing")
        return root

    def _field(self, parent: Message) -> tuple[Message, str] | None:
        """One field; a message that it opens, and how that ends."""
        tokens, line, column = self._tokens, *self._place()
        if not tokens.token.isidentifier():  # the tokenizer takes "num-output" for one
            raise self._error(f"expected the name of a field, found '{tokens.token[:40]}'")
        name = tokens.ConsumeIdentifier()
        has_colon = tokens.TryConsume(":")
        if tokens.token in _CLOSING:
            closing = _CLOSING[tokens.token]
            tokens.NextToken()
            message = Message(line, column)
            self._add(parent, name, Value(message, line, column))
            return message, closing
        if not has_colon:
            raise self._error(f"expected ':' or '{{' after '{name[:40]}'")
        if tokens.TryConsume("["):
            while not tokens.TryConsume("]"):
                if not tokens.TryConsume(","):
                    self._add(parent, name, self._value(name))
        else:
            self._add(parent, name, self._value(name))
        return None

    def _add(self, parent: Message, name: str, value: Value) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(f"the file holds more than {MAX_VALUES:,} values")
        parent.fields.setdefault(name, []).append(value)

    def _value(self, name: str) -> Value:
        tokens, place = self._tokens, self._place()
        if tokens.AtEnd():
            raise self._error(f"the file ends after '{name[:40]}'")
        start = tokens.token[0]
        if start in "\"'":
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

    def _error(self, message: str) -> TextFormatError:
        return TextFormatError(message, *self._place())


# -- fields of a message ----------------------------------------------------------------------------------------------------


_MAX_EXTENT = 10**9


class Fault(ValueError):  # noqa: N818 - caught and attached to its file
    """What is wrong in a message. ``is_follow_up``: its cause is reported already."""

    def __init__(self, message: str, line: int, column: int, where: str = "", *, is_follow_up: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.where = where
        self.is_follow_up = is_follow_up


class Fields:
    """Reads the fields of one message; of a field given twice the last value counts, as in protocol buffers."""

    def __init__(self, message: Message, label: str = "") -> None:
        self.message = message
        names = message.values("name")
        name = names[0].value if names and isinstance(names[0].value, str) else ""
        self.label = label or name

    def fault(self, message: str, at: Value | None = None, *, is_follow_up: bool = False) -> Fault:
        """A fault at a value, or at the message."""
        place = at or self.message
        return Fault(message, place.line, place.column, self.label, is_follow_up=is_follow_up)

    def inner(self, name: str) -> Fields:
        """A message inside; an empty one where it is missing."""
        messages = self.message.messages(name)
        if self.message.values(name) and not messages:
            raise self.fault(f"'{name}' must be a message: {name} {{ ... }}", self.message.values(name)[0])
        return Fields(messages[-1] if messages else Message(self.message.line, self.message.column), self.label)

    def has(self, name: str) -> bool:
        """Whether a field is given."""
        return bool(self.message.values(name))

    def texts(self, name: str) -> list[str]:
        """Every value of a field of strings or words."""
        result = []
        for item in self.message.values(name):
            if not isinstance(item.value, str):
                raise self.fault(f"'{name}' must be text", item)
            result.append(item.value)
        return result

    def text(self, name: str, default: str) -> str:
        """A string or word."""
        values = self.texts(name)
        return values[-1] if values else default

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        values = self.message.values(name)
        if not values:
            return default
        if not isinstance(values[-1].value, (bool, int)) or values[-1].value not in (0, 1):
            raise self.fault(f"'{name}' must be true or false", values[-1])
        return bool(values[-1].value)

    def integers(self, name: str, *, least: int = 0) -> list[int]:
        """Every value of a field of whole numbers."""
        result = []
        for item in self.message.values(name):
            if isinstance(item.value, bool) or not isinstance(item.value, int):
                raise self.fault(f"'{name}' must be a whole number", item)
            if not least <= item.value <= _MAX_EXTENT:
                raise self.fault(f"'{name}' is {item.value}; it must be from {least} to {_MAX_EXTENT}", item)
            result.append(item.value)
        return result

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number; needed where there is no default."""
        values = self.integers(name, least=least)
        if values:
            return values[-1]
        if default is None:
            raise self.fault(f"'{name}' is missing")
        return default

    def number(self, name: str, default: float) -> float:
        """A number."""
        values = self.message.values(name)
        if not values:
            return default
        value = values[-1].value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(f"'{name}' must be a number", values[-1])
        return float(value)

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
        if not repeated:
            return default, default
        return repeated[0], repeated[-1]

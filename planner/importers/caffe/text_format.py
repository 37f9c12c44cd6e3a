"""Protocol buffers' text format, as far as Caffe's prototxt files use it: ``name: value`` and ``name { ... }``.

Written out here so that reading a file needs no schema, no generated code and no package; the size of the file, its depth and the
number of its values are limited.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["MAX_DEPTH", "MAX_VALUES", "Message", "TextFormatError", "Value", "parse"]

MAX_DEPTH = 20  # Caffe's own schema is 6 levels deep
MAX_VALUES = 200_000  # values of all messages; ResNet-152 has about 8,000

Scalar = str | int | float | bool

_TOKEN = re.compile(
    r"""(?P<space>(?:\s+|\#[^\n]*)+)
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?(?![A-Za-z0-9_.]))
    |(?P<word>-?[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}<>:;,\[\]])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}


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


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


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
    return _Parser(text).run()


class _Parser:
    """Iterative: depth costs no stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._tokens = self._scan()
        self._ahead: _Token | None = next(self._tokens, None)
        self._count = 0

    def run(self) -> Message:
        root = Message()
        open_: list[tuple[Message, str]] = [(root, "")]
        while True:
            token = self._next()
            if token is None:
                break
            if open_[-1][1] and token.text == open_[-1][1] and token.kind == "mark":
                open_.pop()
                continue
            if token.text in (";", ",") and token.kind == "mark":
                continue
            if token.kind != "word" or token.text.startswith("-"):
                raise self._error(f"expected the name of a field, found '{token.text[:40]}'", token.start)
            self._field(token, open_)
        if len(open_) > 1:
            message, closing = open_[-1]
            where = f"the file ends inside the message opened on line {message.line}; '{closing}' is missing"
            raise self._error(where, len(self._text.rstrip()))
        return root

    def _field(self, name: _Token, open_: list[tuple[Message, str]]) -> None:
        parent = open_[-1][0]
        has_colon = self._ahead is not None and self._ahead.text == ":"
        if has_colon:
            self._next()
        token = self._next()
        if token is None:
            raise self._error(f"the file ends after '{name.text[:40]}'", name.start)
        if token.text in _CLOSING and token.kind == "mark":
            line, column = self._place(name.start)
            message = Message(line, column)
            self._add(parent, name, Value(message, line, column))
            open_.append((message, _CLOSING[token.text]))
            if len(open_) > MAX_DEPTH:
                raise self._error(f"messages are nested more than {MAX_DEPTH} levels deep", token.start)
        elif not has_colon:
            raise self._error(f"expected ':' or '{{' after '{name.text[:40]}'", token.start)
        elif token.text == "[" and token.kind == "mark":
            self._list(parent, name)
        else:
            self._add(parent, name, self._value(token))

    def _list(self, parent: Message, name: _Token) -> None:
        while True:
            token = self._next()
            if token is None:
                raise self._error(f"the list of '{name.text[:40]}' is not closed", name.start)
            if token.kind == "mark" and token.text == "]":
                return
            if token.kind == "mark" and token.text == ",":
                continue
            self._add(parent, name, self._value(token))

    def _add(self, parent: Message, name: _Token, value: Value) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(f"the file holds more than {MAX_VALUES:,} values", name.start)
        parent.fields.setdefault(name.text, []).append(value)

    def _value(self, token: _Token) -> Value:
        line, column = self._place(token.start)
        if token.kind == "string":
            text = token.text[1:-1]
            while self._ahead is not None and self._ahead.kind == "string":  # neighbours are one string
                text += self._next().text[1:-1]  # type: ignore[union-attr]
            return Value(re.sub(r"\\(.)", r"\1", text), line, column)
        if token.kind == "number":
            return Value(self._number(token), line, column)
        if token.kind == "word":
            words: dict[str, Scalar] = {"true": True, "false": False}
            return Value(words.get(token.text, token.text), line, column)
        raise self._error(f"expected a value, found '{token.text[:40]}'", token.start)

    def _number(self, token: _Token) -> int | float:
        text = token.text
        if len(text) > 40:
            raise self._error(f"the number {text[:24]}... is too long", token.start)
        if re.fullmatch(r"[-+]?0[xX][0-9a-fA-F]+", text):
            return int(text, 16)
        text = text.rstrip("fF")
        return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text)

    def _next(self) -> _Token | None:
        token, self._ahead = self._ahead, next(self._tokens, None)
        return token

    def _scan(self) -> Iterator[_Token]:
        position, end = 0, len(self._text)
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error(f"unexpected {self._text[position]!a}", position)
            if match.lastgroup != "space":
                assert match.lastgroup is not None
                yield _Token(match.lastgroup, match.group(), position)
            position = match.end()

    def _place(self, position: int) -> tuple[int, int]:
        line = bisect.bisect_left(self._newlines, position)
        return line + 1, position - (self._newlines[line - 1] if line else -1)

    def _error(self, message: str, position: int) -> TextFormatError:
        return TextFormatError(message, *self._place(position))

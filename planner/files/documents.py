"""Reads YAML and JSON files into plain values that remember where they stand, within limits on size, depth and count.

YAML: the parser's events are turned into a tree here, without its constructors: no tag can build an object, a bomb of aliases or of
brackets is refused before it grows, duplicate keys are errors, and scalars follow YAML 1.2 (`yes`, `on`, `1:30` and dates are
words; `1e3` is a number).

JSON, small and large: the line and column of a value are looked for only when there is something to say about it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from planner.core.errors import FileProblem, InputFileError
from planner.files.text import failure, read_text

Location = tuple[str | int, ...]

MAX_NODES = 400_000  # values and keys, aliases expanded: about 40,000 layers written one by one, or a second of reading
MAX_DEPTH = 40

# Whole numbers beyond this are typing errors; it also keeps products of two of them inside a float.
_MAX_INTEGER = 10**18

_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Node:
    """A value of the file, where it stands, and where its key stands (both count from 1)."""

    value: Any
    line: int
    column: int
    key_line: int = 0
    key_column: int = 0
    children: dict[str | int, Node] | None = None  # of mappings and lists; most nodes have none
    size: int = 1  # nodes in it, itself included; while it is open, those before it
    depth: int = 0  # levels below it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """A file's content as plain values, and the place of every one of them; of content that is no file, ``path`` says what it is."""

    path: Path
    sha256: str
    root: Node
    problems: tuple[FileProblem, ...] = ()  # faults of single values; the rest of the content is usable

    @property
    def value(self) -> Any:
        """The content as dicts, lists, strings and numbers."""
        return self.root.value

    def find(self, location: Sequence[str | int]) -> tuple[Node, Location, Location]:
        """Node at a location, as deep as the file goes; steps that the file does not have are skipped.

        Returns
        -------
        node : Node
        found : tuple
            The steps that exist.
        missing : tuple
            The steps that do not.
        """
        node = self.root
        found: list[str | int] = []
        missing: list[str | int] = []
        for step in location:
            child = node.children.get(step) if node.children is not None else None
            if child is None:
                missing.append(step)
            else:
                node = child
                found.append(step)
        return node, tuple(found), tuple(missing)

    def problem(
        self, location: Sequence[str | int], message: str, *, at_key: bool = False, where: str = ""
    ) -> FileProblem:
        """Say that something is wrong at a location.

        Parameters
        ----------
        location : sequence of keys and indices
        message : str
        at_key : bool
            Point at the key instead of its value.
        where : str, optional
            Replaces the location in the text.
        """
        node, found, _ = self.find(location)
        line, column = (node.key_line, node.key_column) if at_key and node.key_line else (node.line, node.column)
        return FileProblem(
            path=self.path, line=line, column=column, where=where or location_text(found), message=message
        )


def document_of(path: Path, sha256: str, content: Any) -> Document:
    """Make a document of plain values, which stand nowhere in the file.

    Examples
    --------
    >>> document = document_of(Path("a.json"), "", {"layers": [{"name": "fc"}]})
    >>> str(document.problem(("layers", 0, "name"), "is taken"))
    'a.json: layers[0].name: is taken'
    """
    return Document(path=path, sha256=sha256, root=_without_places(content))


def _without_places(value: Any) -> Node:
    children: dict[str | int, Node] | None = None
    if isinstance(value, Mapping):
        children = {str(key): _without_places(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        children = {index: _without_places(item) for index, item in enumerate(value)}
    return Node(value, 0, 0, children=children)


def location_text(location: Iterable[str | int]) -> str:
    """Write a location for people.

    >>> location_text(("layers", 0, "kernel"))
    'layers[0].kernel'
    """
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def parse_document(path: Path, *, keep_faults: bool = False) -> Document:
    """Read a YAML file.

    Parameters
    ----------
    path : Path
    keep_faults : bool
        Leave faults of single values (duplicate keys, numbers that are not finite) to `planner.files.validation.validate`, which
        reports them together with its own.

    Raises
    ------
    InputFileError
        It cannot be read, is not YAML, has duplicate keys or numbers that are not finite, or exceeds a limit.
    """
    text, sha256 = read_text(path)
    return parse_text(path, text, sha256, keep_faults=keep_faults)


def parse_text(
    path: Path, text: str, sha256: str, *, keep_faults: bool = False, most_values: int = MAX_NODES
) -> Document:
    """As `parse_document`, of a file that is already read.

    Raises
    ------
    InputFileError
        As there.
    """
    builder = _Builder(path, most_values)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        if "nesting depth" in str(error.problem):  # libyaml has a limit of its own, and reads ahead
            raise failure(path, f"nested more than {MAX_DEPTH} levels deep", line, column) from None
        raise failure(path, f"is not YAML: {_syntax_message(error, text, line)}", line, column) from None
    except yaml.reader.ReaderError as error:
        # The position of the error counts bytes or characters, depending on the parser.
        position = max(text.find(chr(error.character)), 0)
        line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
        raise failure(
            path, f"is not YAML: the character U+{error.character:04X} is not allowed", line, column
        ) from None
    except yaml.YAMLError as error:
        raise failure(path, f"is not YAML: {error}") from None
    except RecursionError:
        raise failure(path, "is nested too deeply") from None
    if builder.root is None:
        raise failure(path, "is empty")
    if builder.problems and not keep_faults:
        raise InputFileError(builder.problems)
    return Document(path=path, sha256=sha256, root=builder.root, problems=tuple(builder.problems))


def _syntax_message(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    lines = text.splitlines()
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return "a tab indents this line; use spaces"
    problem = str(error.problem or error.context or "syntax error")
    return f"{error.context}: {problem}" if error.context and error.problem else problem


class _Builder:
    """Events of the parser in, nodes out; iterative, so that depth costs no stack."""

    def __init__(self, path: Path, most_values: int) -> None:
        self.path = path
        self.most_values = most_values
        self.root: Node | None = None
        self.problems: list[FileProblem] = []
        self._open: list[Node] = []
        self._keys: list[tuple[str, yaml.Mark] | None] = []  # pending key of each open mapping
        self._anchors: dict[str, Node] = {}
        self._anchored: list[str | None] = []  # anchor of each that is open
        self._count = 0

    def add(self, event: Any) -> None:
        """Take one event."""
        if isinstance(event, yaml.ScalarEvent):
            self._count_nodes(1, event)
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._count_nodes(1, event)
            self._start(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            self._fail("a second document starts here; a file holds one", event)

    def _fail(self, message: str, event: Any) -> None:
        raise failure(self.path, message, event.start_mark.line + 1, event.start_mark.column + 1)

    def _note(self, message: str, mark: Any, where: str = "") -> None:
        self.problems.append(
            FileProblem(path=self.path, line=mark.line + 1, column=mark.column + 1, where=where, message=message)
        )

    def _count_nodes(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > self.most_values:
            self._fail(
                f"the file holds more than {self.most_values:,} values (aliases count each time they are used)", event
            )

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._keys[-1] is None

    def _scalar(self, event: Any) -> None:
        if self._expects_key():
            self._key(event)
            return
        if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
            self._note(f"tags such as '{event.tag[:60]}' are not allowed", event.start_mark)
        quoted = event.style in ("'", '"', "|", ">") or event.tag is not None
        value = event.value if quoted else self._resolve(event)
        node = Node(value, event.start_mark.line + 1, event.start_mark.column + 1)
        self._attach(node, event.anchor)

    def _key(self, event: Any) -> None:
        key: str = event.value
        if key == "<<" and not event.style:
            self._fail("merge keys ('<<') are not supported; write the keys out, or use a block", event)
        if key in self._open[-1].value:
            first = (self._open[-1].children or {})[key]
            self._note(f"duplicate key '{key}' (first on line {first.key_line})", event.start_mark)
        self._keys[-1] = (key, event.start_mark)

    def _resolve(self, event: Any) -> Any:
        """Value of a scalar without quotes, by the core schema of YAML 1.2 (decimal numbers only)."""
        text: str = event.value
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            if len(text) <= 20 and abs(int(text)) <= _MAX_INTEGER:
                return int(text)
            self._note(f"the number {text[:24]}{'...' * (len(text) > 24)} is too large", event.start_mark)
            return 0
        if _NOT_FINITE.match(text) or (len(text) <= 400 and _FLOAT.match(text)):
            value = math.nan if _NOT_FINITE.match(text) else float(text)
            if math.isfinite(value):
                return value
            self._note(f"'{text[:24]}' is not a finite number", event.start_mark)
            return 0.0
        return text

    def _start(self, event: Any) -> None:
        if self._expects_key():
            self._fail("a key must be a single word", event)
        if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            self._note(f"tags such as '{event.tag[:60]}' are not allowed", event.start_mark)
        if len(self._open) >= MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep", event)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        self._open.append(Node(value, line, column, children={}, size=self._count, depth=1))
        self._keys.append(None)
        self._anchored.append(event.anchor)

    def _end(self) -> None:
        node = self._open.pop()
        self._keys.pop()
        node.size = self._count - node.size + 1
        self._attach(node, self._anchored.pop())

    def _alias(self, event: Any) -> None:
        if self._expects_key():
            self._fail("a key must be a single word, not an alias", event)
        if event.anchor not in self._anchors:  # not yet defined, or defined by a node that is still open (a loop)
            self._fail(f"the alias '*{event.anchor}' names no anchor before it", event)
        target = self._anchors[event.anchor]
        self._count_nodes(target.size, event)
        if len(self._open) + target.depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep", event)
        # The value is shared, never copied or changed; it keeps the place where it was written.
        self._attach(dataclasses.replace(target, key_line=0, key_column=0), None)

    def _attach(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        parent.depth = max(parent.depth, node.depth + 1)
        children = parent.children
        assert children is not None  # _start made it
        if isinstance(parent.value, list):
            children[len(parent.value)] = node
            parent.value.append(node.value)
            return
        pending = self._keys[-1]
        assert pending is not None
        key, mark = pending
        node.key_line, node.key_column = mark.line + 1, mark.column + 1
        self._keys[-1] = None
        if key not in parent.value:
            children[key] = node
            parent.value[key] = node.value


# A graph of 100,000 operators takes about 25 MB; a hundred times the largest public workload.
MAX_WORKLOAD_BYTES = 64 * 2**20
# Half of a character outside of the first plane, which YAML does not allow in an escape.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """A parsed file; numbers may be infinite or NaN, because their reader can say where they stand."""

    path: Path
    text: str
    sha256: str
    content: Any
    problems: tuple[FileProblem, ...] = ()  # what cannot be read raises; `Document` has some
    made_with: tuple[str, ...] = ()  # of content that the planner made: what it rests on, for people

    @property
    def value(self) -> Any:
        """The content, as of `Document`."""
        return self.content

    def problem(self, location: Location, message: str, *, at_key: bool = False, where: str = "") -> FileProblem:
        """Say that something is wrong at a location, or as near to it as the file goes; ``where`` replaces the location in the text."""
        document = document_of_json(self.path, self.text, self.sha256, self.content)
        return document.problem(location, message, at_key=at_key, where=where)


def read_json_file(path: Path) -> JsonFile:
    """Read a JSON file of at most 8 MiB.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputFileError
        It cannot be read, is not JSON (with line and column), has a key twice or numbers that are not finite.
    """

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise failure(path, f"'{number[:24]}' is not a finite number")
        return value

    def whole(number: str) -> int:
        if len(number) > 20:
            raise failure(path, f"the number {number[:24]}... is too large")
        return int(number)

    text, sha256 = read_text(path)
    return _parsed(path, text, sha256, parse_float=finite, parse_int=whole, parse_constant=finite)


def read_workload(path: Path) -> JsonFile:
    """Read a JSON file of at most `MAX_WORKLOAD_BYTES` whose numbers may be infinite or NaN.

    Whole numbers that no count or identifier needs become floats, which the reader's range checks see.

    Raises
    ------
    InputFileError
        As `read_json_file`.
    """
    text, sha256 = read_text(path, MAX_WORKLOAD_BYTES, "a workload")
    return workload_of(path, text, sha256)


def workload_of(path: Path, text: str, sha256: str) -> JsonFile:
    """As `read_workload`, of a file that is already read, or of content that is no file."""

    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) <= 18 else float(digits)

    return _parsed(path, text, sha256, parse_int=whole)


def _parsed(path: Path, text: str, sha256: str, **hooks: Any) -> JsonFile:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            document = document_of_json(path, text, sha256, None)
            twice = [problem for problem in document.problems if problem.message.startswith("duplicate key")]
            raise InputFileError(twice or [document.problem((), "an object has a key twice")])
        return result

    try:
        content = json.loads(text, object_pairs_hook=without_duplicates, **hooks)
    except json.JSONDecodeError as error:
        cut = " (the file ends too early)" if error.pos >= len(text.rstrip()) else ""
        raise failure(path, f"is not JSON: {error.msg}{cut}", error.lineno, error.colno) from None
    except RecursionError:
        raise failure(path, "is nested too deeply") from None
    return JsonFile(path=path, text=text, sha256=sha256, content=content)


@lru_cache(maxsize=1)  # a file may have many problems
def _places(path: Path, text: str, sha256: str) -> Document:
    text = _SURROGATE.sub("......", text)
    return parse_text(path, text, sha256, keep_faults=True, most_values=MAX_WORKLOAD_BYTES)


def document_of_json(path: Path, text: str, sha256: str, content: Any) -> Document:
    """The content with the places of its values: JSON is read as the YAML that it nearly always is; without places where it is not."""
    try:
        return _places(path, text, sha256)
    except InputFileError:
        return document_of(path, sha256, content)

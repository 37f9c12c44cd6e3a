"""Settings of a run by name, each with its place in the file: from TOML, YAML, JSON, Python and the words of a launch script.

Nothing is executed. Of a Python file what stands there as plain values is read: assignments to attributes
(``config.training.seq_len = 4096``), keywords of calls (``TrainingConfig(seq_len=4096)``), constants, defaults of parameters, and
functions of the same file that it calls.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Node, parse_text
from planner.files.text import failure


@dataclass(frozen=True, slots=True)
class Code:
    """A value that only running the file would tell."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting.

    Attributes
    ----------
    name : str
        As the file writes it.
    value : object
        A plain value, or `Code`.
    line, column : int
        Its place, from 1; 0 where it has none.
    """

    name: str
    value: Any
    line: int = 0
    column: int = 0

    def problem(self, path: Path, message: str) -> FileProblem:
        """Say that it cannot be used."""
        return FileProblem(path=path, line=self.line, column=self.column, where=self.name, message=message)


@dataclass(slots=True, kw_only=True)
class Settings:
    """Settings by name, the last of each.

    Attributes
    ----------
    path : Path
    of : dict
        Name -> Setting.
    """

    path: Path
    of: dict[str, Setting] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.of

    def problem(self, name: str, message: str) -> InputFileError:
        """Say that a setting cannot be used."""
        return InputFileError([self.of.get(name, Setting(name=name, value=None)).problem(self.path, message)])

    def value(self, name: str, default: Any = None) -> Any:
        """The plain value of a setting.

        Raises
        ------
        InputFileError
            Only running the file would tell it.
        """
        if name not in self.of:
            return default
        value = self.of[name].value
        if isinstance(value, Code):
            raise self.problem(name, f"is {value.text[:80]}, which would have to be executed; write the value")
        return default if value is None else value

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number; None where the file has none.

        Raises
        ------
        InputFileError
            It is something else.
        """
        value = self.value(name)
        if value is None:
            return None
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_digits = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value)
        if not (is_number or is_digits) or not least <= int(value) < _LARGEST:
            raise self.problem(name, f"is {str(value)[:80]!r}; a whole number of at least {least} is expected")
        return int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether something is on; a name without a value is.

        Raises
        ------
        InputFileError
            It is neither on nor off.
        """
        value = self.value(name, default)
        if isinstance(value, str) and value.lower() in ("", "true", "1", "false", "0"):
            return value.lower() in ("", "true", "1")
        if not isinstance(value, bool):
            raise self.problem(name, f"is {str(value)[:80]!r}; true or false is expected")
        return value

    def word(self, name: str, known: Mapping[str, str], default: str | None = None) -> str | None:
        """What a word of the file means; ``default`` where the file has none.

        Raises
        ------
        InputFileError
            It is not known.
        """
        value = self.value(name)
        if value is None:
            return default
        if str(value) not in known:
            near = did_you_mean(str(value)[:80], known)
            raise self.problem(name, f"is {str(value)[:80]!r}; known: {', '.join(known)}{near}")
        return known[str(value)]


def settings_of(path: Path, text: str, part: str = "") -> Settings:
    r"""Read settings of a file, by its ending; a file without one of these is a launch script.

    Parameters
    ----------
    path : Path
    text : str
        Its content.
    part : str
        Of a Python file, the function that is meant, where several make a configuration.

    Returns
    -------
    Settings
        Names with dots: ``parallelism.tensor_parallel_degree``; of a script, hyphens are underscores.

    Raises
    ------
    InputFileError
        It is no such file; a Python file has several functions and none is named.

    Examples
    --------
    >>> found = settings_of(Path("a.toml"), "[training]\nseq_len = 4096\n")
    >>> found.number("training.seq_len"), found.of["training.seq_len"].line
    (4096, 2)
    >>> settings_of(Path("a.py"), "config.training.seq_len = 8 * 1024").number("training.seq_len")
    8192
    """
    readers: Mapping[str, Callable[[Path, str], Iterable[Setting]]] = {
        ".toml": _toml,
        **dict.fromkeys((".yaml", ".yml", ".json"), _yaml),
        ".py": lambda path, text: _Python(path, text, part).settings(),
    }
    found = Settings(path=path)
    for setting in readers.get(path.suffix.lower(), _script)(path, text):
        name = setting.name.removeprefix("--")
        found.of[name.lstrip("+").replace("-", "_") if "-" in name or "+" in name else name] = setting
    return found


# -- TOML, YAML and JSON ----------------------------------------------------------------------------------------------------


def _toml(path: Path, text: str) -> Iterator[Setting]:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        message = str(error)[:200]
        place = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)", message)
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        raise failure(path, f"is not TOML: {message.replace(place[0] if place else '', '')}", line, column) from None
    places: dict[str, tuple[int, int]] = {}
    section = ""
    for number, line_text in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line_text):
            section = header[1] + "."
        elif key := re.match(r"(\s*)([\w.-]+)\s*=\s*", line_text):
            places[section + key[2]] = number, key.end() + 1
    for name, value in _leaves(content):
        line, column = places.get(name, (0, 0))
        yield Setting(name=name, value=value, line=line, column=column)


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _yaml(path: Path, text: str) -> Iterator[Setting]:
    def walked(node: Node, name: str) -> Iterator[Setting]:
        if isinstance(node.value, dict) and node.children:
            for key, child in node.children.items():
                yield from walked(child, f"{name}.{key}" if name else str(key))
        elif name:
            yield Setting(name=name, value=_known(node.value), line=node.line, column=node.column)

    root = parse_text(path, text, "").root
    if not isinstance(root.value, dict):
        raise failure(path, "is no configuration: a mapping is expected", root.line, root.column)
    yield from walked(root, "")


def _known(value: Any) -> Any:
    """A value whose interpolation of OmegaConf would have to be resolved is code."""
    return Code(value) if isinstance(value, str) and "${" in value else value


# -- launch scripts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a script, and its place."""

    text: str
    line: int
    column: int


_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}$`]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")
# Variables may name variables, but not forever.
_MOST_ROUNDS = 20
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)\Z", re.DOTALL)


def words_of(path: Path, text: str) -> tuple[list[Word], dict[str, str]]:
    r"""The words of a script with those of its arrays and of its variables of arguments, and the plain values of its variables.

    Raises
    ------
    InputFileError
        A quotation that does not end.

    Examples
    --------
    >>> words, values = words_of(Path("a.sh"), "TP=4\nARGS=(--tp $TP)")
    >>> [word.text for word in words], values
    (['4', 'TP=4', '--tp', '$TP)'], {'TP': '4'})
    """
    try:
        raw = shlex.split(text, comments=True)
    except ValueError as error:
        raise failure(path, f"is no shell script or list of arguments: {error}") from None
    values: dict[str, str] = {}
    for word in raw:
        match = _ASSIGNMENT.match(word)
        if match and not match[2].startswith("("):
            values[match[1]] = _without_itself(match[1], match[2], values)
    cursor, words = 0, []
    for word in raw:
        match = _ASSIGNMENT.match(word)
        if match is None:
            parts = [word]
        elif match[2].startswith("("):
            parts = [match[2][1:]]  # the first word of an array
        else:
            # A string of arguments in a variable is several words where a shell puts it in without quotes.
            parts = match[2].split()
            if _OVERRIDE.match(word) and len(parts) <= 1 and not word.startswith("export"):
                parts = [*parts, word]  # or it overrides a setting
        for part in parts:
            start = text.find(part, cursor)
            cursor = cursor if start < 0 else start
            line = text.count("\n", 0, max(start, 0)) + 1 if start >= 0 else 0
            words.append(Word(part, line, start - text.rfind("\n", 0, start) if start >= 0 else 0))
    return words, values


def _without_itself(name: str, value: str, earlier: dict[str, str]) -> str:
    """The value of a variable with what it says of itself put in: what it was before, else the script's default.

    >>> _without_itself("PP", "${PP:-4}", {}), _without_itself("PP", "${PP:-4}", {"PP": "2"})
    ('4', '2')
    """

    def put_in(match: re.Match[str]) -> str:
        before = earlier.get(name, match[2]) if name in (match[1], match[3]) else None
        return match[0] if before is None else before

    return _VARIABLE.sub(put_in, value)


def resolved(setting: Setting, values: dict[str, str], path: Path) -> Setting:
    """A setting of a script with the values of its variables put in.

    Raises
    ------
    InputFileError
        A variable is not set to plain text, or something would have to be executed.
    """
    raw = str(setting.value)
    for _ in range(_MOST_ROUNDS):
        match = _VARIABLE.search(raw)
        if match is None:
            break
        variable = match[1] or match[3]
        value: str | None = values.get(variable, match[2])
        if value is None:
            what = f"is {raw}, and the file does not set {variable} to plain text; write the value"
            raise InputFileError([setting.problem(path, what)])
        raw = raw[: match.start()] + value + raw[match.end() :]
    if "$" in raw or "`" in raw:
        raise InputFileError([setting.problem(path, f"is {raw}, which would have to be executed; write the value")])
    return replace(setting, value=raw)


def _script(path: Path, text: str) -> Iterator[Setting]:
    """Options (``--training.seq_len 4096``) and overrides (``model.seq_length=4096``); a value that is not plain is code."""
    words, values = words_of(path, text)
    for number, word in enumerate(words):
        text_of = word.text.rstrip(")") if word.text.count(")") > word.text.count("(") else word.text
        name, equals, value = text_of.partition("=")
        if text_of.startswith("--") and len(name) > 2:
            if not equals and number + 1 < len(words) and not words[number + 1].text.startswith("--"):
                value = words[number + 1].text
        elif not (equals and _OVERRIDE.match(text_of)) or name.isupper():  # a variable of the shell
            continue
        setting = Setting(name=name, value=value.rstrip(")"), line=word.line, column=word.column)
        try:
            plain = resolved(setting, values, path).value.strip("'\"")
            yield replace(setting, value=None if plain in ("null", "None", "none", "~") else plain)
        except InputFileError:
            yield replace(setting, value=Code(value))


# -- Python -----------------------------------------------------------------------------------------------------------------


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_MOST_CALLS = 8  # functions that call functions
_MOST_SETTINGS = 20_000
_LARGEST = 10**12


class _Python:
    """Settings that the functions of a file make, read as a syntax tree."""

    def __init__(self, path: Path, text: str, part: str) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # of escapes in strings, which are no matter here
                tree = ast.parse(text)
        except SyntaxError as error:
            raise failure(path, f"is not Python: {error.msg}", error.lineno or 0, error.offset or 0) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise failure(path, f"is not Python: {str(error)[:200]}") from None
        self.path, self.part, self.tree = path, part, tree
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.count = 0

    def settings(self) -> list[Setting]:
        """All settings of the file, or of the function that is meant."""
        try:
            constants: dict[str, Any] = {}
            own = list(self._block([s for s in self.tree.body if not isinstance(s, ast.FunctionDef)], constants, 0))
            makers = {name: list(self._called(node, constants, {}, 0)) for name, node in self.functions.items()}
        except RecursionError:
            raise failure(self.path, "is nested too deeply") from None
        makers = {name: found for name, found in makers.items() if any("." in s.name for s in found)}
        if self.part:
            if self.part not in makers:
                near = did_you_mean(self.part, makers)
                raise failure(
                    self.path,
                    f"has no function {self.part} that makes a configuration; it has {', '.join(makers)}{near}",
                )
            return [*own, *makers[self.part]]
        called = {
            node.func.id
            for function in self.functions.values()
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        makers = {name: found for name, found in makers.items() if name not in called} or makers
        if len(makers) > 1 and not any("." in s.name for s in own):
            raise failure(
                self.path,
                f"has several functions that make a configuration: {', '.join(makers)}; name one: {self.path.name}:{next(iter(makers))}",
            )
        return [*own, *(next(iter(makers.values())) if len(makers) == 1 else [])]

    def _called(
        self, node: ast.FunctionDef, outer: Mapping[str, Any], given: Mapping[str, Any], depth: int
    ) -> Iterator[Setting]:
        names = dict(outer)
        parameters = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [*[None] * (len(parameters) - len(node.args.defaults)), *node.args.defaults]
        for parameter, default in zip(
            [*parameters, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults], strict=True
        ):
            names[parameter.arg] = Code(parameter.arg) if default is None else self._value(default, names)
        names |= given
        yield from self._block(node.body, names, depth)

    def _block(self, body: Iterable[ast.stmt], names: dict[str, Any], depth: int) -> Iterator[Setting]:
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                continue
            if isinstance(statement, ast.Return) and statement.value is not None:
                yield from self._parts("", statement.value, names, depth)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets = [statement.target]
            for target in targets:
                yield from self._assigned(target, statement.value, names, depth)  # type: ignore[attr-defined]
            for inside in ("body", "orelse", "finalbody"):
                yield from self._block(getattr(statement, inside, ()), names, depth)

    def _assigned(self, target: ast.expr, value: ast.expr, names: dict[str, Any], depth: int) -> Iterator[Setting]:
        if isinstance(target, ast.Name):
            names[target.id] = self._value(value, names)
            # What a variable is called is no part of a name: `config = base()`; but `training = TrainingConfig(...)` is one.
            parts = list(self._parts("", value, names, depth))
            yield from parts
            if isinstance(value, ast.Call):
                yield from (self._renamed(s, f"{target.id}.{s.name}") for s in parts if "." not in s.name)
        elif isinstance(target, ast.Attribute):
            name = _dotted(target).partition(".")[2]
            if name:
                yield self._setting(name, target, self._value(value, names))
                yield from self._parts(f"{name}.", value, names, depth)

    def _parts(self, prefix: str, value: ast.expr, names: Mapping[str, Any], depth: int) -> Iterator[Setting]:
        """Settings of a call: its keywords, those of calls in them, and what a function of this file makes."""
        if not isinstance(value, ast.Call):
            return
        function = self.functions.get(value.func.id) if isinstance(value.func, ast.Name) else None
        if function is not None and depth < _MOST_CALLS:
            given = {word.arg: self._value(word.value, names) for word in value.keywords if word.arg}
            parameters = [*function.args.posonlyargs, *function.args.args]
            given |= {p.arg: self._value(a, names) for p, a in zip(parameters, value.args, strict=False)}
            constants = {name: v for name, v in names.items() if name.isupper()}
            for setting in self._called(function, constants, given, depth + 1):
                yield self._renamed(setting, prefix + setting.name)
            return
        for word in value.keywords:
            if word.arg:
                name = prefix + word.arg
                yield self._setting(name, word.value, self._value(word.value, names))
                yield from self._parts(f"{name}.", word.value, names, depth)

    def _counted(self, setting: Setting) -> Setting:
        self.count += 1
        if self.count > _MOST_SETTINGS:
            raise failure(self.path, f"makes more than {_MOST_SETTINGS:,} settings")
        return setting

    def _setting(self, name: str, node: ast.expr, value: Any) -> Setting:
        return self._counted(Setting(name=name, value=value, line=node.lineno, column=node.col_offset + 1))

    def _renamed(self, setting: Setting, name: str) -> Setting:
        return self._counted(replace(setting, name=name))

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """A plain value; the name of what a call makes (``FullAC.Config``) or of an attribute (``torch.bfloat16``); or code."""
        value: Any = Code(ast.unparse(node)[:80])
        if isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.Name):
            value = names.get(node.id, value)
        elif isinstance(node, ast.List | ast.Tuple):
            found = [self._value(item, names) for item in node.elts]
            value = value if any(isinstance(item, Code) for item in found) else found
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._value(node.left, names), self._value(node.right, names)
            are_numbers = all(type(side) is int and 0 <= side < _LARGEST for side in (left, right))
            if are_numbers and (right or not isinstance(node.op, ast.FloorDiv)):
                value = _OPERATORS[type(node.op)](left, right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inside = self._value(node.operand, names)
            value = -inside if type(inside) in (int, float) else value
        elif isinstance(node, ast.Call):
            name = _dotted(node.func)
            value = name if name and name not in self.functions else value
        elif _dotted(node).startswith("torch."):
            value = _dotted(node)
        return value


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` as it is written; empty where something else than names and dots is in it.

    >>> _dotted(ast.parse("config.training.seq_len", mode="eval").body)
    'config.training.seq_len'
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""

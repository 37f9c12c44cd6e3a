"""A command from its declarations: its options on the command line, its help, and what was typed."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from planner.api.pages import writable
from planner.api.readers import PANELS, Option, words_from
from planner.api.requests import read_options
from planner.api.values import Values, as_flag

_REST, _ALL = "Help", "--help-all"
# Options that name what is written; every other file that is named is read.
_WRITTEN = frozenset({"output", "export", "export_workload", "html", "plot", "trace", "output_dir", "row", "calibrate"})

RUN_FROM = {
    "run_from": Option(
        "--from",
        "TRAINER FILE",
        "Predict what you run today: megatron or megatron-bridge ARGS.sh, nemo RECIPE.py, torchtitan CONFIG.toml, nanotron CONFIG.yaml, "
        "deepspeed ds.json or accelerate fsdp.yaml; under the trainer's framework unless --framework says another or none. Nothing in "
        "the file is executed.",
        words="planner.exporters.runs:RUNS",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What was typed.

    Attributes
    ----------
    given : dict
        Words of the options and arguments that were given, by keyword; of a switch True or False.
    command_line : str
        For provenance.
    values : Values
        Takes the problems.
    files : dict
        File that is written -> option that names it.
    """

    given: dict[str, Any]
    command_line: str
    values: Values = field(default_factory=Values)
    files: dict[Path, str] = field(default_factory=dict)

    def read(self, options: Mapping[str, Option]) -> dict[str, Any]:
        """Values of options that are given."""
        return read_options(options, self.given, self.values)

    def file(self, name: str, endings: tuple[str, ...] = (), meaning: str = "") -> Path | None:
        """The file of an option that names what is written; None where it is left out or cannot be.

        It must have one of the endings, be writable, and be neither an input of the command nor what another option writes.
        """
        label = as_flag(name)
        if name not in self.given:
            return None
        path = writable(self.values, label, self.given[name], endings, meaning)
        if path is None:
            return None
        first = self.files.setdefault(path.resolve(), label)
        if first != label:
            self.values.add(f"{first} and {label}: both name {path}")
        for other, value in self.given.items():
            words = [] if other in _WRITTEN else value if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(word, str) and _is_same_file(path, word) for word in words):
                self.values.add(f"{label} {path}: is an input of this command; choose another file")
                break
        return path


def _is_same_file(path: Path, word: str) -> bool:
    try:
        return path.samefile(word)
    except (OSError, ValueError):  # no such file, a name that is too long, a NUL character
        return False


# -- from declarations to a command -----------------------------------------------------------------------------------------


def is_completing() -> bool:
    """Whether the shell asks for words, which nothing else needs the words of options for."""
    return any(name.startswith("_PLANNER_COMPLETE") for name in os.environ)


def argument(kind: Any, metavar: str, text: str, words: str = "") -> Any:
    """A positional argument: its type, its name in the usage, its help, and a source of words to complete it."""
    complete = None
    if words and is_completing():
        from planner.commands.completion import words_starting

        def complete(incomplete: str) -> list[str]:
            return words_starting(words, incomplete)

    return Annotated[kind, typer.Argument(metavar=metavar, help=text, show_default=False, autocompletion=complete)]


MODEL = argument(str, "MODEL", "A bundled network ('planner list models') or a file; a file wins.", "kind:models")


def command(
    *tables: Mapping[str, Option], **arguments: Any
) -> Callable[[Callable[[Typed], None]], Callable[..., None]]:
    """Give a function the options of tables and positional arguments; it gets what was typed.

    Parameters
    ----------
    *tables : mapping of str to Option
    **arguments
        See `argument`; those that may be left out have a type with None.
    """
    options = {name: option for table in tables for name, option in table.items()}

    switches = {name for name, option in options.items() if option.metavar is None and "/" not in option.flags}
    types: dict[str, Any] = {"context": typer.Context, **arguments}
    types |= {name: _annotation(option) for name, option in options.items()}

    def decorate(function: Callable[[Typed], None]) -> Callable[..., None]:
        def run(context: typer.Context, **words: Any) -> None:
            given = {
                name: word
                for name, word in words.items()
                if word not in (None, []) and not (word is False and name in switches)
            }
            function(Typed(given=given, command_line=shlex.join(["planner", *_argv(context)])))

        run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, types
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=_default(name, kind))
                for name, kind in types.items()
            ]
        )
        return run

    return decorate


def _argv(context: Any) -> list[str]:
    return context.obj["argv"] if isinstance(context.obj, dict) else sys.argv[1:]


def _default(name: str, kind: Any) -> Any:
    is_required = name == "context" or type(None) not in get_args(get_args(kind)[0])
    return inspect.Parameter.empty if is_required else None


def _annotation(option: Option) -> Any:
    """An option as typer reads it; words are read later, so that one message names everything wrong with a command line."""
    complete: Callable[..., list[str]] | None = None
    if is_completing():
        from planner.commands.completion import completion_of

        complete = completion_of(option)
    flags: list[str] = option.flags.split()
    word: Any = tuple[str, str] if option.metavar and " " in option.metavar else str
    kind = bool if option.metavar is None else list[str] if option.is_repeated else word
    return Annotated[
        kind | None,
        typer.Option(
            *flags,
            metavar=option.metavar,
            help=_with_words(option.help) if is_completing() else option.help,
            rich_help_panel=option.panel,
            hidden=option.rare and not is_completing(),
            show_default=False,
            autocompletion=complete,
        ),
    ]


# -- help -------------------------------------------------------------------------------------------------------------------


def _with_words(text: str) -> str:
    """A help with the words that its braces stand for."""
    for source in re.findall(r"{([\w.]+:\w+)}", text):
        *words, last = words_from(source)
        text = text.replace(f"{{{source}}}", f"{', '.join(words)} or {last}")
    return text


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group, in the order in which they are declared; rare ones with ``--help-all`` alone.

    Plain text, the same with every version of typer and without rich (100 ms).
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write MODEL where typer may write {MODEL}: one form for every version."""
        arguments = [p.metavar or p.name or "" for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a list that is given twice: the last would be taken, without a word about the first."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in order:
            if parameter.metavar == "LIST" and order.count(parameter) > 1:
                ctx.fail(f"{max(parameter.opts, key=len)}: is given twice; separate the names with commas")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the groups."""
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (*PANELS, _REST)}
        is_short = _ALL not in _argv(ctx)
        for parameter in self.get_params(ctx):
            if is_short and getattr(parameter, "hidden", False):
                groups[_REST] = [(_ALL, "Also show the options that are rarely needed.")]
                continue
            text = _with_words(getattr(parameter, "help", None) or "")
            if parameter.param_type_name == "argument":
                arguments.append((parameter.metavar or parameter.name or "", text))
                continue
            flags = ", ".join(sorted({*parameter.opts} - {_ALL}, key=lambda flag: (flag.startswith("--"), flag)))
            if parameter.secondary_opts:
                flags += " / " + ", ".join(parameter.secondary_opts)
            metavar = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or ''}"
            groups[getattr(parameter, "rich_help_panel", None) or _REST].append((flags + metavar, text))
        for title, records in (("Arguments", arguments), *groups.items()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

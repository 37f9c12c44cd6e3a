"""The panels of the help, what declares an option in one of them, and what gives a command a whole table of options."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import typer

from planner.commands.completion import completion_of

__all__ = [
    "COSTS",
    "GROUPS",
    "LAYERS",
    "MESH",
    "OUTPUT",
    "QUESTION",
    "SEARCH",
    "SERVING",
    "SPACE",
    "option",
    "takes_table",
]

# Titles of the groups in the help, in the order in which they are shown.
QUESTION = "What is planned"
SPACE = "Which plans are looked at"
LAYERS = "Which plans with a split per layer are looked at"
MESH = "Which plans over a device mesh are looked at (transformers)"
SERVING = "What is served (--mode inference of a network that generates text)"
COSTS = "How plans are costed"
SEARCH = "How long and how hard to search"
OUTPUT = "What is printed and where"
GROUPS = (QUESTION, SERVING, SPACE, MESH, LAYERS, COSTS, SEARCH, OUTPUT)


def option(*flags: str, metavar: str | None, help: str, group: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    """Declare an option; its default stands in the help text, where it can say more than a value."""
    more.setdefault("autocompletion", completion_of(flags))
    return typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=group, show_default=False, **more)


def takes_table(
    parameter: str, table: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every option of a table; it gets their words as one mapping.

    Parameters
    ----------
    parameter : str
        The command's own parameter that takes the mapping.
    table : mapping
        Name of an option's word -> the option, as `option` declares it.
    defaults : mapping, optional
        Words of options that are not given; None where a name is left out.
    """
    absent = {name: (defaults or {}).get(name) for name in table}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            words = {name: given.pop(name) for name in table}
            command(**given, **{parameter: words})

        hints = typing.get_type_hints(command, include_extras=True)
        own = [
            one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in inspect.signature(command).parameters.items()
            if name != parameter
        ]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=absent[name], annotation=annotation)
            for name, annotation in table.items()
        ]
        signature = inspect.Signature(own + more)
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        del wrapper.__wrapped__  # typer would read the annotations of the wrapped function
        return wrapper

    return decorate

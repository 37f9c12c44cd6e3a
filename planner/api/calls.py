"""A call of Python: keywords as options declare them, objects as inputs, the call as text, and errors in the words of Python."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

from planner.api.keywords import aliases_of, options_of
from planner.api.values import Values
from planner.core.errors import PlannerError, SearchInterrupted, UsageError, did_you_mean
from planner.files.resources import reference_to

if TYPE_CHECKING:
    from planner.api.placement import Placement
    from planner.api.results import SearchResult
    from planner.api.studies import Sizing, Sweep

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C (or a notebook's stop button) during a search.

    Attributes
    ----------
    result : SearchResult, Placement, Sweep, Sizing or None
        The best so far.

    Examples
    --------
    >>> import planner
    >>> def stop(what, share):  # as Ctrl-C does
    ...     raise KeyboardInterrupt
    >>> try:
    ...     planner.optimize("alexnet", gpus=4, progress=stop)
    ... except planner.Interrupted as stopped:
    ...     print(stopped)
    ...     print(stopped.result.best.workers)
    the search was stopped: .result holds the best so far
    4
    """

    def __init__(self, result: SearchResult | Placement | Sweep | Sizing | None) -> None:
        self.result = result
        super().__init__("the search was stopped" + (": .result holds the best so far" if result is not None else ""))


@contextlib.contextmanager
def in_python_words() -> Iterator[Values]:
    """Check values by the names that they have in Python, and write ``gpus`` for ``--gpus`` in the messages of other errors.

    >>> with in_python_words():
    ...     raise PlannerError("--max-tpot 3x: must be a time such as 30s; see --prompt")
    Traceback (most recent call last):
    ...
    planner.core.errors.PlannerError: max_tpot 3x: must be a time such as 30s; see prompt
    """
    try:
        yield Values(str)
    except SearchInterrupted:
        raise
    except PlannerError as error:
        message = str(error)
        # A command in quotes is for a shell, where options have dashes.
        pieces = re.split(r"('planner [^']*'|`planner [^`]*`|planner estimate with [^\n]*)", message)
        pieces[::2] = [_FLAG.sub(lambda match: match[1].replace("-", "_"), piece) for piece in pieces[::2]]
        error.args = ("".join(pieces).replace("MODEL: ", "model: "), *error.args[1:])
        raise


def takes_options(
    declared: type,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Show the keywords of a class of options in a function's signature, for `help`, notebooks and a wrong keyword's error."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        types = {name: get_args(annotation)[0] for name, annotation in declared.__annotations__.items()}
        # A type as it is written here: a reference to it would be shown with everything around it.
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=getattr(kind, "__forward_arg__", kind)
            )
            for name, kind in types.items()
        ]
        known = [p.name for p in (*own, *keywords) if p.kind is not inspect.Parameter.POSITIONAL_ONLY]

        @functools.wraps(function)
        def checked(*positional: _Parameters.args, **given: _Parameters.kwargs) -> _Result:
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise TypeError(f"planner.{function.__name__}() got an unexpected keyword argument '{name}'{hint}")
            return function(*positional, **given)

        checked.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return checked

    return decorate


def given_in_python(declared: type, model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that are given, by their first names; networks, clusters, ... that are objects by the files they are.

    Raises
    ------
    UsageError
        A keyword is given by two of its names.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for alias, name in aliases_of(declared).items():
        if alias in given and name in given:
            raise UsageError(f"{name} and {alias} are the same; give one of them")
        if alias in given:
            given[name] = given.pop(alias)
    for name, option in options_of(declared).items():
        if name not in given:
            continue
        if given[name] is False and "/" not in option.flags:
            del given[name]  # a switch that is off is not given
        elif option.words.startswith("kind:") and not option.is_list:
            given[name] = reference_to(option.words.removeprefix("kind:"), given[name])  # type: ignore[arg-type]
    if "paleo_algorithms" in given:
        given["paleo_algorithms"] = Path(given["paleo_algorithms"]).absolute()
    if model is not None:
        given["model"] = reference_to("models", model)
        length = getattr(model, "seq", None)  # of a network that was loaded, perhaps with another than its file's
        if length is not None:
            given.setdefault("seq", length)
    return given


def call_text(function: str, positional: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A call as Python writes it, for the provenance of plans; objects by their names.

    >>> call_text("optimize", ["alexnet"], {"gpus": 16, "tp": None})
    "planner.optimize('alexnet', gpus=16)"
    """
    words = [_shown(value) for value in positional]
    words += [f"{name}={_shown(value)}" for name, value in options.items() if value is not None]
    return f"planner.{function}({', '.join(words)})"


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, range, list, tuple)):
        return f"{value!r:.200}"
    name = getattr(value, "name", None)
    return f"<{name}>" if isinstance(name, str) else f"<{type(value).__name__}>"

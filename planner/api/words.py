"""Errors in the words of Python: an option is a keyword here, and Ctrl-C stays a KeyboardInterrupt."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.core.errors import PlannerError
from planner.core.search_errors import SearchInterrupted

if TYPE_CHECKING:
    from planner.api.placement import Placement
    from planner.api.results import SearchResult
    from planner.api.studies import Sizing, Sweep

__all__ = ["Interrupted", "in_python_words"]

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


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
def in_python_words() -> Iterator[None]:
    """Write ``gpus`` for ``--gpus`` in the messages of errors; what they are about is the same.

    >>> with in_python_words():
    ...     raise PlannerError("--max-tpot 3x: must be a time such as 30s; see --prompt")
    Traceback (most recent call last):
    ...
    planner.core.errors.PlannerError: max_tpot 3x: must be a time such as 30s; see prompt
    """
    try:
        yield
    except SearchInterrupted:
        raise
    except PlannerError as error:
        message = str(error)
        # A command in quotes is for a shell, where options have dashes.
        pieces = re.split(r"('planner [^']*'|`planner [^`]*`|planner estimate with [^\n]*)", message)
        pieces[::2] = [_FLAG.sub(lambda match: match[1].replace("-", "_"), piece) for piece in pieces[::2]]
        error.args = ("".join(pieces).replace("MODEL: ", "model: "), *error.args[1:])
        raise

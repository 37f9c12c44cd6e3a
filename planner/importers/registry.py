"""Tables of readers that fill themselves: a decorator enters a function under the names of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["registering"]

_F = TypeVar("_F")


class _Register(Protocol[_F]):
    def __call__(self, *names: str) -> Callable[[_F], _F]: ...


def registering(table: dict[str, _F], what: str) -> _Register[_F]:
    """Make the decorator that fills a table (name -> function); what it calls the names is for whoever enters one twice.

    >>> table = {}
    >>> reads = registering(table, "operator")
    >>> @reads("relu", "gelu")
    ... def activation(operator):
    ...     return f"{operator} per element"
    >>> sorted(table), table["gelu"]("gelu")
    (['gelu', 'relu'], 'gelu per element')
    >>> _ = reads("relu")(activation)
    Traceback (most recent call last):
    ...
    AssertionError: operator 'relu' registered twice
    """

    def register(*names: str) -> Callable[[_F], _F]:
        def add(function: _F) -> _F:
            for name in names:
                assert name not in table, f"{what} {name!r} registered twice"
                table[name] = function
            return function

        return add

    return register

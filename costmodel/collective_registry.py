"""The registry of collective algorithms; the formulas are in `costmodel.collective_formulas`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.network import GroupSpan

__all__ = ["COLLECTIVES", "OPERATIONS", "Collective", "CollectiveError", "Formula", "Traffic", "collective", "names_of"]

FloatArray = NDArray[np.float64]

OPERATIONS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")


class CollectiveError(ValueError):
    """No such collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One call: messages, where the group lies, and the levels' latencies; rows are levels."""

    message_bytes: FloatArray
    span: GroupSpan
    latency_s: tuple[float, ...]
    ppp_comm: float

    @property
    def levels(self) -> range:
        """Indices of the levels, innermost first."""
        return range(len(self.latency_s))


Formula = Callable[[Traffic], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An algorithm of an operation.

    Attributes
    ----------
    operation, name : str
    formula : function of Traffic
    summary : str
    by_default : bool
        May be chosen as the cheapest; otherwise it runs only when named.
    costs_alone : bool
        Costs something even for one rank (a property of PALEO's formula, kept for comparison).
    """

    operation: str
    name: str
    formula: Formula
    summary: str
    by_default: bool = True
    costs_alone: bool = False


# (operation, name) -> algorithm, in the order that breaks ties: the first of equally fast ones is taken.
COLLECTIVES: dict[tuple[str, str], Collective] = {}


def collective(
    name: str, *, operation: str, by_default: bool = True, costs_alone: bool = False
) -> Callable[[Formula], Formula]:
    """Register a formula; its docstring's first line is its summary."""
    assert operation in OPERATIONS, operation
    assert (operation, name) not in COLLECTIVES, f"{operation} {name} is registered twice"

    def register(formula: Formula) -> Formula:
        summary = (formula.__doc__ or "").strip().split("\n")[0]
        COLLECTIVES[operation, name] = Collective(
            operation=operation,
            name=name,
            formula=formula,
            summary=summary,
            by_default=by_default,
            costs_alone=costs_alone,
        )
        return formula

    return register


def names_of(operation: str, *, by_default: bool = False) -> tuple[str, ...]:
    """Algorithms of an operation in the order that breaks ties.

    >>> names_of("all_to_all")
    ('pairwise',)
    """
    return tuple(c.name for c in COLLECTIVES.values() if c.operation == operation and (c.by_default or not by_default))

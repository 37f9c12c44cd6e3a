"""The registry of collective algorithms; the formulas are in `costmodel.hardware.collective_formulas`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import GroupSpan

__all__ = ["COLLECTIVES", "OPERATIONS", "Collective", "CollectiveError", "Formula", "Traffic", "collective", "names_of"]


OPERATIONS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")


class CollectiveError(ValueError):
    """No such collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One call: messages, where the group lies, and what the levels are like; rows are levels.

    ``in_network`` is the bandwidth at which the switches of a level sum, over that at which they pass messages on; 0 where they do not.
    """

    message_bytes: FloatArray
    span: GroupSpan
    latency_s: tuple[float, ...]
    ppp_comm: float
    ring_step_s: tuple[float, ...]
    in_network: tuple[float, ...]

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
    in_libraries : bool
        NCCL and its like run it, so that measured collectives took this or another one of these.
    costs_alone : bool
        Costs something even for one rank (a property of PALEO's formula, kept for comparison).
    """

    operation: str
    name: str
    formula: Formula
    summary: str
    by_default: bool = True
    costs_alone: bool = False
    in_libraries: bool = False


# (operation, name) -> algorithm, in the order that breaks ties: the first of equally fast ones is taken.
COLLECTIVES: dict[tuple[str, str], Collective] = {}


def collective(
    name: str, *, operation: str, by_default: bool = True, costs_alone: bool = False, in_libraries: bool = False
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
            in_libraries=in_libraries,
        )
        return formula

    return register


def names_of(operation: str, *, by_default: bool = False, in_libraries: bool = False) -> tuple[str, ...]:
    """Algorithms of an operation in the order that breaks ties: all, those chosen by default, or those that libraries run.

    >>> names_of("all_to_all"), names_of("all_reduce", in_libraries=True)
    (('pairwise',), ('ring', 'double-tree', 'in-network'))
    """
    return tuple(
        c.name
        for c in COLLECTIVES.values()
        if c.operation == operation and (c.by_default or not by_default) and (c.in_libraries or not in_libraries)
    )

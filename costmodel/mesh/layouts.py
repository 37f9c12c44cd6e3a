"""Layouts of a tensor over the tensor-parallel ranks, and the collectives that bring it from one to another, forward and back.

Degrees divide tp, and neighbouring ranks form the groups: rank r holds piece ``r mod t``, so fewer pieces than ranks are
repeated further out, where links are slower. Pieces of a finer layout lie inside those of a coarser one whose degree divides
theirs (they are numbered to that end), so refining is free.

A tensor can also be *gathered*: whole on every rank, while its gradient is the sum of what the t ranks of a group find, each for its
share of the work. A tensor that is *whole* has a gradient that every rank finds alike. A *partial* one is a sum over t ranks that is not
yet taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["WHOLE", "Form", "Layout", "Transfer", "transfers"]

Form = Literal["whole", "gathered", "channels", "positions", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Layout:
    """Form of a tensor on the ranks: whole, gathered for t of them, in t pieces, or t terms of a sum."""

    form: Form
    degree: int = 1


WHOLE = Layout(form="whole")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Transfer:
    """A collective in every group of ``ranks`` that are ``stride`` apart; its message is 1 / ``parts`` of the whole tensor."""

    operation: str
    ranks: int
    stride: int = 1
    parts: int = 1


def transfers(held: Layout, needed: Layout) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """Collectives that bring a tensor from a layout to another, and its gradient back.

    Parameters
    ----------
    held : Layout
        Not gathered.
    needed : Layout
        Not partial.

    Returns
    -------
    forward, backward : tuples of Transfer

    Notes
    -----
    ====================  =============================  =======================================
    held -> needed        forward                        backward
    ====================  =============================  =======================================
    pieces -> whole       all-gather                     free slice
    pieces -> gathered    all-gather                     reduce-scatter
    whole -> gathered     free                           all-reduce
    whole -> pieces       free slice                     all-gather
    coarse -> fine        free slice                     all-gather among the fine ones
    channels, positions   all-to-all                     all-to-all
    partial -> whole      all-reduce                     free
    partial -> pieces     reduce-scatter                 all-gather
    ====================  =============================  =======================================

    Examples
    --------
    Megatron's operator f and its conjugate under sequence parallelism, over 8 ranks:

    >>> forward, backward = transfers(Layout(form="positions", degree=8), Layout(form="gathered", degree=8))
    >>> [(t.operation, t.ranks) for t in (*forward, *backward)]
    [('all_gather', 8), ('reduce_scatter', 8)]
    """
    if held.form == "partial":
        return _reduced(held.degree, needed), _spread(needed, WHOLE)
    forward = _spread(held, needed)
    if needed.form == "gathered":
        return forward, _reduced(needed.degree, held)
    return forward, _spread(needed, held)


def _spread(source: Layout, target: Layout) -> tuple[Transfer, ...]:
    """Bring values from pieces to pieces, or to all ranks."""
    t, u = source.degree, target.degree
    if source.form in ("whole", "gathered") or t == 1:
        return ()
    if target.form in ("whole", "gathered") or u == 1:
        return (Transfer(operation="all_gather", ranks=t),)
    if source.form == target.form and u % t == 0:
        return ()
    if source.form == target.form and t % u == 0:
        return (Transfer(operation="all_gather", ranks=t // u, stride=u, parts=u),)
    if source.form != target.form and t == u:
        return (Transfer(operation="all_to_all", ranks=t, parts=t),)
    return (Transfer(operation="all_gather", ranks=t),)


def _reduced(terms: int, target: Layout) -> tuple[Transfer, ...]:
    """Add up what the ranks of a group found, and leave it in a layout."""
    t = target.degree
    if terms == 1:
        return ()
    if target.form == "whole" or t == 1:
        return (Transfer(operation="all_reduce", ranks=terms),)
    if t % terms == 0:
        return (Transfer(operation="reduce_scatter", ranks=terms),)
    if terms % t == 0:
        scattered = Transfer(operation="reduce_scatter", ranks=terms)
        return scattered, Transfer(operation="all_gather", ranks=terms // t, stride=t, parts=t)
    return (Transfer(operation="all_reduce", ranks=terms),)

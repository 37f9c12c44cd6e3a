"""Layouts of a tensor inside a block over tp ranks, and what it costs to bring it from one to another, forward and back.

Degrees t divide tp or not, but neighbouring ranks always form the groups: rank r holds piece ``r mod t``, so fewer pieces than ranks are
repeated further out, where links are slower. Pieces of a finer layout lie inside those of a coarser one whose degree divides
theirs (they are numbered to that end), so refining is free.

A tensor can also be *gathered*: whole on every rank, while its gradient is the sum of what the t ranks of a group find, each for its
share of the work. A tensor that is *whole* has a gradient that every rank finds alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from costmodel.collectives import cheapest_s
from costmodel.network import Cluster, span

__all__ = ["WHOLE", "Collectives", "Layout", "move_s"]

Form = Literal["whole", "gathered", "channels", "positions"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Layout:
    """Form of a tensor on the ranks: whole, gathered for t of them, or in t pieces."""

    form: Form
    degree: int = 1


WHOLE = Layout(form="whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Times of collectives inside the ranks of one tensor-parallel group, remembered."""

    cluster: Cluster
    _known: dict[tuple[str, int, int, float], float] = field(default_factory=dict, repr=False, compare=False)

    def time_s(self, operation: str, group: int, message_bytes: float, stride: int = 1) -> float:
        """Time of a message, by the cheapest algorithm; 0 in a group of one."""
        if group <= 1 or message_bytes <= 0:
            return 0.0
        key = (operation, group, stride, message_bytes)
        known = self._known.get(key)
        if known is None:
            where = span(self.cluster, np.array([float(group)]), np.array([float(stride)]))
            known = self._known[key] = float(cheapest_s(operation, np.array([message_bytes]), where, self.cluster)[0])
        return known


def move_s(held: Layout, needed: Layout, tensor_bytes: float, collectives: Collectives) -> tuple[float, float]:
    """Time to bring a tensor from a layout to another, and its gradient back.

    Parameters
    ----------
    held, needed : Layout
        ``held`` may be gathered only where ``needed`` is any share of it.
    tensor_bytes : float
        The whole tensor.
    collectives : Collectives

    Returns
    -------
    forward_s, backward_s : float

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
    gathered -> any       free                           free (the sum over the ranks comes later)
    ====================  =============================  =======================================
    """
    if held.form == "gathered":
        return 0.0, _completed_s(held.degree, needed, tensor_bytes, collectives)
    forward = _spread_s(held, needed, tensor_bytes, collectives)
    if needed.form == "gathered":
        return forward, _reduced_s(needed.degree, held, tensor_bytes, collectives)
    return forward, _spread_s(needed, held, tensor_bytes, collectives)


def _spread_s(source: Layout, target: Layout, tensor_bytes: float, collectives: Collectives) -> float:
    """Bring values from pieces to pieces, or to all ranks."""
    t, u = source.degree, target.degree
    if source.form in ("whole", "gathered") or t == 1:
        return 0.0
    if target.form in ("whole", "gathered") or u == 1:
        return collectives.time_s("all_gather", t, tensor_bytes)
    if source.form == target.form and u % t == 0:
        return 0.0
    if source.form == target.form and t % u == 0:
        return collectives.time_s("all_gather", t // u, tensor_bytes / u, stride=u)
    traded = source.form != target.form and t == u
    return collectives.time_s("all_to_all" if traded else "all_gather", t, tensor_bytes / t if traded else tensor_bytes)


def _reduced_s(terms: int, target: Layout, tensor_bytes: float, collectives: Collectives) -> float:
    """Add up what the ranks of a group found, and leave it in a layout."""
    t = target.degree
    if terms == 1:
        return 0.0
    if target.form == "whole" or t == 1:
        return collectives.time_s("all_reduce", terms, tensor_bytes)
    if t % terms == 0:
        return collectives.time_s("reduce_scatter", terms, tensor_bytes)
    if terms % t == 0:
        scattered = collectives.time_s("reduce_scatter", terms, tensor_bytes)
        return scattered + collectives.time_s("all_gather", terms // t, tensor_bytes / t, stride=t)
    return collectives.time_s("all_reduce", terms, tensor_bytes)


def _completed_s(terms: int, reader: Layout, tensor_bytes: float, collectives: Collectives) -> float:
    """Make a reader's gradient one that can be added up over ``terms`` neighbouring ranks.

    Zeros fill what a rank does not know, and what several know alike is divided among them: free, unless the reader's groups reach
    further than the sum will.
    """
    u = reader.degree
    if u == 1 or terms % u == 0:
        return 0.0
    if reader.form == "gathered":
        operation = ("all_reduce", u // terms, terms) if u % terms == 0 else ("all_reduce", u, 1)
        return collectives.time_s(operation[0], operation[1], tensor_bytes, stride=operation[2])
    return collectives.time_s("all_gather", u, tensor_bytes)

"""Layouts of a tensor over tensor-parallel ranks: what it takes to change them, by hand and by what must hold of any."""

from __future__ import annotations

import itertools

import pytest

from costmodel.mesh.tensor_parallel import WHOLE, Layout, Transfer, transfers

PIECES = Layout(form="positions", degree=8)
SHARES = Layout(form="channels", degree=8)
FOUR = Layout(form="channels", degree=4)
GATHERED = Layout(form="gathered", degree=8)
PARTIAL = Layout(form="partial", degree=8)
GATHER = Transfer(operation="all_gather", ranks=8)
SCATTER = Transfer(operation="reduce_scatter", ranks=8)
REDUCE = Transfer(operation="all_reduce", ranks=8)
TRADE = Transfer(operation="all_to_all", ranks=8, parts=8)
PAIR = Transfer(operation="all_gather", ranks=2, stride=4, parts=4)


@pytest.mark.parametrize(
    ("held", "needed", "forward", "backward"),
    [
        (PIECES, GATHERED, (GATHER,), (SCATTER,)),  # Megatron-LM's g and its conjugate
        (WHOLE, GATHERED, (), (REDUCE,)),  # its f
        (PARTIAL, WHOLE, (REDUCE,), ()),
        (PARTIAL, PIECES, (SCATTER,), (GATHER,)),
        (WHOLE, SHARES, (), (GATHER,)),
        (SHARES, WHOLE, (GATHER,), ()),
        (SHARES, PIECES, (TRADE,), (TRADE,)),  # DeepSpeed Ulysses
        (FOUR, SHARES, (), (PAIR,)),
        (SHARES, FOUR, (PAIR,), ()),
        # Four ranks of eight add up shares that all eight have a piece of; the other four do the same.
        (PIECES, Layout(form="gathered", degree=4), (GATHER,), (Transfer(operation="reduce_scatter", ranks=4),)),
    ],
)
def test_moves_by_hand(
    held: Layout, needed: Layout, forward: tuple[Transfer, ...], backward: tuple[Transfer, ...]
) -> None:
    assert transfers(held, needed) == (forward, backward)


@pytest.mark.parametrize("layout", [WHOLE, PIECES, SHARES, Layout(form="channels", degree=3)])
def test_staying_is_free(layout: Layout) -> None:
    assert transfers(layout, layout) == ((), ())


def test_no_rank_receives_more_than_a_tensor_and_values_never_arrive_from_nowhere() -> None:
    """A move that adds what a rank did not have takes a collective; one that only leaves out does not."""
    forms = ("channels", "positions")
    layouts = [WHOLE, *(Layout(form=form, degree=d) for form in forms for d in (2, 4, 8))]
    for held, needed in itertools.product(layouts, layouts):
        forward, _ = transfers(held, needed)
        has_all = held == WHOLE or (held.form == needed.form and needed.degree % held.degree == 0)
        assert bool(forward) == (not has_all)
        for move in forward:
            assert move.ranks * move.stride <= 8
            assert move.parts in (1, needed.degree, held.degree)

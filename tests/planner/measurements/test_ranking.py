"""Rankings against counting pairs one by one, and against all ways to break ties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.measurements.metrics import kendall_tau, pair_accuracy, ranking_summary, regret

# Few values, so that ties are common.
rows = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=9)


@given(rows)
def test_tau_counts_pairs(members: list[tuple[int, int]]) -> None:
    concordant = discordant = tied_predicted = tied_measured = 0
    for (a, b), (c, d) in itertools.combinations(members, 2):
        concordant += (a < c and b < d) or (a > c and b > d)
        discordant += (a < c and b > d) or (a > c and b < d)
        tied_predicted += a == c
        tied_measured += b == d
    pairs = len(members) * (len(members) - 1) // 2
    tau = kendall_tau([a for a, _ in members], [b for _, b in members])
    if tied_measured == pairs:
        assert tau is None
    elif tied_predicted == pairs:
        assert tau == 0.0
    else:
        expected = (concordant - discordant) / math.sqrt((pairs - tied_predicted) * (pairs - tied_measured))
        assert tau == pytest.approx(expected)


@given(rows)
def test_accuracy_counts_pairs(members: list[tuple[int, int]]) -> None:
    right, told = 0.0, 0
    for (a, b), (c, d) in itertools.combinations(members, 2):
        if b != d:
            told += 1
            right += 0.5 if a == c else float((a < c) == (b < d))
    accuracy = pair_accuracy([a for a, _ in members], [b for _, b in members])
    assert accuracy == (pytest.approx(right / told) if told else None)


@given(rows, st.integers(1, 4))
def test_regret_is_the_mean_over_all_orders_of_equal_predictions(members: list[tuple[int, int]], top: int) -> None:
    members = members[:7]
    best = min(b for _, b in members)
    values = []
    for order in itertools.permutations(members):
        ranked = sorted(order, key=lambda row: row[0])  # stable: every order of the ties comes up equally often
        values.append(min(b for _, b in ranked[:top]) / best)
    assert regret([a for a, _ in members], [b for _, b in members], top) == pytest.approx(sum(values) / len(values))


def test_groups_of_two_say_nothing() -> None:
    assert ranking_summary([([1, 2], [1, 2], [True, True])])["kendall_tau"] is None
    assert ranking_summary([])["groups"] == 0


def test_means_and_worst_over_groups() -> None:
    right = ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [True] * 3)
    wrong = ([3.0, 2.0, 1.0], [10.0, 20.0, 40.0], [True] * 3)  # picks 40; the three best hold the best
    summary = ranking_summary([right, wrong, ([1.0], [1.0], [True])])
    assert summary["groups"] == 2
    assert (summary["kendall_tau"], summary["pair_accuracy"]) == (0.0, 0.5)
    assert (summary["regret_top1_mean"], summary["regret_top1_max"], summary["regret_top3_mean"]) == (2.5, 4.0, 1.0)


def test_the_pick_is_predicted_to_fit() -> None:
    """The quickest does not fit and is left where it is for the order of times; without any that fits it is picked."""
    times, measured = [1.0, 2.0, 3.0, 4.0], [50.0, 20.0, 10.0, 30.0]
    some = ranking_summary([(times, measured, [False, True, True, True])])
    none = ranking_summary([(times, measured, [False] * 4)])
    assert (some["regret_top1_mean"], none["regret_top1_mean"]) == (2.0, 5.0)
    assert (some["regret_top3_mean"], none["regret_top3_mean"]) == (1.0, 1.0)
    assert some["kendall_tau"] == none["kendall_tau"] == ranking_summary([(times, measured, [True] * 4)])["kendall_tau"]
    one = ranking_summary([(times, measured, [True, False, False, False])])  # of the others the quickest comes next
    assert one["regret_top3_mean"] == 1.0

"""Documents packed into sequences: pairs counted one by one, ranks filled position by position, lengths by their integral."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest

from costmodel.network.layers.attention import Documents, one_document, pairs_of_positions


def _seen(lengths: list[int], *, causal: bool, window: int) -> list[float]:
    """Keys that every position sees; under a causal mask the diagonal counts half, and keys that a window cuts off do not count."""
    seen: list[float] = []
    for length in lengths:
        for at in range(length):
            keys = at + 0.5 if causal else float(length)
            seen.append(min(keys, float(window)) if window else keys)
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_pairs_and_the_fullest_rank_are_those_counted_position_by_position(seed: int) -> None:
    rng = random.Random(seed)
    ranks, causal = rng.choice([2, 3, 4]), rng.random() < 0.7
    window = rng.choice([0, 0, 4])
    positions = 2 * ranks * rng.choice([4, 5, 12])
    lengths = [rng.randint(1, positions // 2)]
    while sum(lengths) < positions:
        lengths.append(rng.randint(1, positions // 2))
    lengths[-1] -= sum(lengths) - positions
    lengths = [length for length in lengths if length]
    packed = Documents.of(lengths, positions)
    counted = _seen(lengths, causal=causal, window=window)
    mask = {"causal": causal, "window": window}
    assert packed.pairs(causal=causal, window=window) == pytest.approx(sum(counted))
    assert packed.pairs(**mask) == pytest.approx(sum(pairs_of_positions(length, length, **mask) for length in lengths))
    pieces = np.array(counted).reshape(2 * ranks, -1).sum(axis=1)
    head_tail = [pieces[r] + pieces[2 * ranks - 1 - r] for r in range(ranks)]
    contiguous = [pieces[2 * r] + pieces[2 * r + 1] for r in range(ranks)]
    assert packed.fullest(ranks, 1.0, **mask) == pytest.approx(max(head_tail) / np.mean(head_tail))
    assert packed.fullest(ranks, 0.0, **mask) == pytest.approx(max(contiguous) / np.mean(contiguous))
    assert packed.fullest(ranks, 2.0, **mask) == 1.0
    assert packed.spread(**mask) == 0.0


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_one_document_in_contiguous_pieces(ranks: int) -> None:
    """The last of c ranks has (c - 1/2) / c^2 of the pairs: 2 - 1 / c times the mean. An early and a late piece are even."""
    whole = one_document(64)
    assert whole.fullest(ranks, 0.0, causal=True, window=0) == pytest.approx(2.0 - 1.0 / ranks)
    assert whole.fullest(ranks, 1.0, causal=True, window=0) == pytest.approx(1.0)
    assert whole.fullest(ranks, 0.0, causal=False, window=0) == pytest.approx(1.0)


def test_lengths_are_laid_in_turn_until_the_sequence_is_full() -> None:
    assert Documents.of([3, 4], 10).ends.tolist() == [3.0, 7.0, 10.0]
    assert Documents.of([3], 9).ends.tolist() == [3.0, 6.0, 9.0]
    assert Documents.of([20], 9).ends.tolist() == [9.0]


@pytest.mark.parametrize(("mean", "cv"), [(512.0, 0.5), (512.0, 1.5), (4096.0, 1.0)])
def test_drawn_lengths_have_the_pairs_of_their_distribution(mean: float, cv: float) -> None:
    """Two positions u apart are in one document with E[(l - u)+] / mean, so that pairs are 2 times the integral of (S - u) of that."""
    positions = 8192
    width = math.sqrt(math.log1p(cv * cv))
    centre = math.log(mean) - 0.5 * width * width
    normal = NormalDist()

    def beyond(u: float) -> float:  # E[(l - u)+] of a log-normal length
        if u == 0.0:
            return mean
        d = (centre - math.log(u)) / width
        return mean * normal.cdf(d + width) - u * normal.cdf(d)

    steps = np.linspace(0.0, positions, 4001)
    wanted = np.trapezoid([2.0 * (positions - u) * beyond(u) / mean for u in steps], steps)
    packed = Documents.of([round(mean)], positions, cv)
    assert packed.pairs(causal=False, window=0) == pytest.approx(wanted, rel=0.05)
    assert packed.ends[-1] % positions == 0.0
    assert np.all(np.diff(packed.ends) > 0.0)


def test_longer_tails_are_less_even() -> None:
    short, long = (Documents.of([512], 8192, cv) for cv in (0.3, 2.0))
    assert long.spread(causal=True, window=0) > short.spread(causal=True, window=0) > 0.0
    assert long.fullest(4, 1.0, causal=True, window=0) > short.fullest(4, 1.0, causal=True, window=0) > 1.0

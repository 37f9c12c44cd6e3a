"""Transformer-XL's memory and attention by relative positions, and gates with a second input, counted by hand."""

from __future__ import annotations

import pytest

from costmodel.network.layers import ShapeError
from tests.costmodel.network.layers.transformer_cases import flop, layer, moved, saved, work

HEADS, DIM, WIDTH, MEMORY, OWN = 4, 8, 24, 5, 7
KEYS = MEMORY + OWN
SIZES = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "memory": MEMORY}


def test_shapes_and_weights() -> None:
    one = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES)
    assert one.output_shape == (HEADS * DIM, OWN)
    assert one.weight_count == WIDTH * HEADS * DIM
    both = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES, biases=True)
    assert both.weight_count - one.weight_count == 2 * HEADS * DIM
    assert layer("segment_memory", (16, OWN), positions=MEMORY).output_shape == (16, KEYS)


@pytest.mark.parametrize("batch", [1, 3])
def test_operations_of_attention_by_distance(batch: int) -> None:
    """Three products of all pairs, and the keys of the distances, which the samples share; twice that for the gradients."""
    one = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES)
    found = work(one, batch=batch)
    pairs = 2 * batch * HEADS * OWN * KEYS * DIM
    distances = 2 * KEYS * WIDTH * HEADS * DIM
    assert flop(found.forward) == 3 * pairs + distances
    assert flop(found.backward_input) + flop(found.backward_weight) == 2 * 3 * pairs + distances


def test_scores_are_shifted_added_and_masked_in_memory() -> None:
    """Beside those of plain attention: scores written once more, copied (2), added (3) and masked (2); its operands; two biases;

    keys, values and the result copied.
    """
    plain = layer("self_attention", (3 * HEADS * DIM, OWN), heads=HEADS, head_dim=DIM, fused=False)
    one = layer("relative_attention", (3 * HEADS * DIM, OWN), **{**SIZES, "memory": 0})
    scores, rows, features = HEADS * OWN * OWN, OWN * HEADS * DIM, HEADS * DIM
    more = (1 + 2 + 3 + 2) * scores + 2 * rows + 4 * rows + 3 * 2 * rows
    more += OWN * (WIDTH + features) + WIDTH * features
    assert moved(work(one).forward) - moved(work(plain).forward) == more
    back = (1 + 6 + 5) * scores + 2 * rows + 12 * rows
    assert moved(work(one).backward_input) - moved(work(plain).backward_input) == back


def test_a_memory_is_copied_and_kept_without_gradient() -> None:
    one = layer("segment_memory", (16, OWN), positions=MEMORY)
    assert moved(work(one, batch=2).forward) == 2 * 2 * 16 * KEYS
    assert not work(one).backward_input
    assert saved(one, batch=2) == 2 * 16 * MEMORY


def test_gates_add_a_second_input_in_the_same_kernel() -> None:
    """Forward reads gate and value of both and writes the product; images are gated along their channels."""
    alone, two = layer("glu", (8, 9)), layer("glu", (8, 9), (8, 9))
    assert [moved(work(one).forward) for one in (alone, two)] == [3 * 36, 5 * 36]
    assert [moved(work(one).backward_input) for one in (alone, two)] == [5 * 36, 7 * 36]
    assert layer("glu", (8, 1, 9)).output_shape == (4, 1, 9)


@pytest.mark.parametrize(
    ("kind", "shapes", "values", "said"),
    [
        ("relative_attention", ((95, 9),), SIZES, "3 x 4 heads x head_dim 8 = 96"),
        ("relative_attention", ((96, 5),), SIZES, "memory 5 leaves no positions"),
        ("segment_memory", ((4, 3, 3),), {"positions": 2}, "its input is 4x3x3"),
        ("glu", ((8, 9), (8, 8)), {}, "differ: 8x9, 8x8"),
    ],
)
def test_what_does_not_fit_is_said(
    kind: str, shapes: tuple[tuple[int, ...], ...], values: dict[str, int], said: str
) -> None:
    with pytest.raises(ShapeError, match=said):
        layer(kind, *shapes, **values)

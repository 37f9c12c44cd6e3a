"""Shapes of published models against the numbers of weights that they are named after."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.shapes import maxtext_shape, with_published_shape
from planner.measurements.networks import transformer
from tests.benchmarks.datasets.published_rows import shape_of

# Billions; PaLM's paper: 8.63, 62.50, 540.35.
BILLIONS = {
    "Megatron-LM GPT-2 1.2B": 1.2, "GPT 2.5B": 2.5, "Megatron 4.2B": 4.2, "Megatron 8.3B": 8.3, "GPT3-40B": 39.5, "Turing-NLG 17B": 17.2,
    "T-NLG": 17.2, "GLM-130B": 130, "PaLM 8B": 8.63, "PaLM-62B": 62.5, "palm_540b": 540.35, "GPT 39.1B": 39.1, "Megatron 145.6B": 145.6,
    "Nemotron-4 15B": 15.6, "Nemotron-4-340B": 341,
}  # fmt: skip


@pytest.mark.parametrize(("model", "billions"), BILLIONS.items())
def test_a_name_stands_for_a_shape_of_that_many_weights(model: str, billions: float) -> None:
    row = Row(line=2, cells={"model": model, "seq": "2048"})
    found = transformer(shape_of(row, fused=True)).weight_count / 1e9
    assert found == pytest.approx(billions, rel=0.035)


@pytest.mark.parametrize("billions", [16, 32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("spelled", ["{}B", "MaxText {}b", "default-{}B"])
def test_sizes_of_maxtext(billions: int, spelled: str) -> None:
    row = Row(line=2, cells={"model": spelled.format(billions), "framework": "MaxText"})
    assert transformer(shape_of(row, fused=True)).weight_count / 1e9 == pytest.approx(billions, rel=0.04)


def test_maxtext_scales_layers_heads_and_width_in_turn() -> None:
    named = [
        tuple(maxtext_shape(scale)[name] for name in ("hidden", "layers", "heads", "ffn")) for scale in (1, 2, 4, 8)
    ]
    assert named == [(2048, 16, 16, 7168), (2048, 16, 32, 14336), (4096, 16, 32, 14336), (4096, 32, 32, 14336)]


def test_what_a_row_states_stays() -> None:
    row = Row(line=2, cells={"model": "Megatron 8.3B", "layers": "71", "vocab": "51200"})
    assert (shape_of(row, fused=True).layers, shape_of(row, fused=True).vocab) == (71, 51200)


@pytest.mark.parametrize("model", ["32B", "my 32B", "Llama-like 64B", "palm 7B", "Megatron MoE 8.3B", "GPT 140B", ""])
def test_other_names_stand_for_nothing(model: str) -> None:
    row = Row(line=2, cells={"model": model, "framework": "mine"})
    assert with_published_shape(row) is row
    with pytest.raises(Unreadable):
        shape_of(row, fused=True)

"""Networks made from columns have the parameters that were published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.shapes import bundled_name
from planner.importers.networks import load_model
from planner.measurements.networks import bundled_transformer, transformer
from planner.measurements.tables import RowSkipped
from tests.benchmarks.datasets.published_rows import shape_of


def row(**cells: object) -> Row:
    return Row(line=2, cells={name: str(value) for name, value in cells.items()})


@pytest.mark.parametrize(
    ("cells", "parameters"),
    [
        # Llama 2 7B (arXiv:2307.09288) and Llama 3 8B (arXiv:2407.21783), counts of the released weights.
        ({"net": "LLaMA", "hidden": 4096, "layers": 32, "heads": 32, "ffn": 11008, "vocab": 32000}, 6_738_415_616),
        (
            {"net": "LLaMA", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
            8_030_261_248,
        ),
        # GPT-2 1.5B (1,557,611,200 with its 1,024 positions).
        ({"net": "GPT", "hidden": 1600, "layers": 48, "heads": 25, "vocab": 50257, "seq": 1024}, 1_557_611_200),
    ],
)
def test_published_counts(cells: dict[str, object], parameters: int) -> None:
    assert transformer(shape_of(row(**{"seq": 2048, **cells}), fused=True)).weight_count == parameters


def test_counts_of_the_llm_foundry_tables(reference_data: Path) -> None:
    with (reference_data / "measurements" / "llm_foundry.csv").open() as file:
        rows = list(csv.DictReader(file))
    for cells in rows:
        made = transformer(shape_of(Row(line=2, cells=cells), fused=True))
        assert made.weight_count == pytest.approx(1e9 * float(cells["params_b"]), rel=1e-9), cells["model"]


def test_bert_is_the_bundled_bert_but_for_the_second_head() -> None:
    made = transformer(shape_of(row(net="BERT-Large", hidden=1024, layers=24, heads=16, seq=512), fused=False))
    # Bundled: segments (2 x 1024), pooler (1024^2 + 1024), which of two sentences (2 x 1024 + 2).
    assert load_model("bert-large").graph.weight_count - made.weight_count == 2 * 1024 + 1024**2 + 1024 + 2 * 1024 + 2


@pytest.mark.parametrize(("params", "tied"), [("8.0", True), ("8.86", False), ("8", False), ("", False)])
def test_a_published_number_of_parameters_tells_whether_the_head_is_shared(params: str, tied: bool) -> None:
    cells = {
        "net": "LLaMA",
        "hidden": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 32,
        "ffn": 14336,
        "vocab": 131072,
        "seq": 4096,
    }
    labelled = row(**cells, params_b=params)
    assert shape_of(labelled, fused=True).tied is tied
    assert shape_of(row(**cells, params_b=params, tied="no"), fused=True).tied is False


def test_widths_that_are_not_stated() -> None:
    plain = row(net="LLaMA", hidden=4096, layers=32, heads=32, seq=2048)
    assert shape_of(plain, fused=True).ffn == 11008  # as the released Llama 7B


def test_the_shape_of_a_well_known_model_need_not_be_stated() -> None:
    shape = shape_of(row(model="Nemotron-340B", seq=4096), fused=True)
    assert transformer(shape).weight_count == pytest.approx(341e9, rel=0.01)  # arXiv:2406.11704: 331.6 + 9.4 billion
    assert shape_of(row(model="Nemotron-340B", seq=4096, layers=48), fused=True).layers == 48


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"hidden": 1024, "layers": 2}, "shape is not stated"),
        ({"hidden": 1000, "layers": 2, "heads": 16}, "heads do not divide hidden"),
        ({"hidden": 1024, "layers": 2, "heads": 16, "kv_heads": 3}, "kv_heads do not divide heads"),
    ],
)
def test_shapes_that_make_no_sense(cells: dict[str, object], message: str) -> None:
    with pytest.raises((Unreadable, RowSkipped), match=message):
        shape_of(row(**cells), fused=True)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
        ("DeepSeekV3 (dropless)", "deepseek-v3"),
        ("MPT-7b", "mpt-7b"),
        ("LLAMA3.1_405B", "llama3-405b"),
        ("Clippy", None),
    ],
)
def test_names_of_bundled_networks(model: str, name: str | None) -> None:
    assert bundled_name(row(model=model)) == name


NAMES = {
    "Megatron 530B": "megatron-530b", "MT-NLG 530B": "megatron-530b", "T5 11B": "t5-11b", "T5-XXL": "t5-11b", "GPT-2 XL": "gpt2-1.5b",
    "GPT-2 1.5B": "gpt2-1.5b", "gpt2_xl (1.5 B)": "gpt2-1.5b", "meta-llama/Llama-2-7b-hf": "llama2-7b", "Llama-3.1 8B": "llama3-8b",
    "Llama3.1-405B": "llama3-405b", "GPT3-175B": "gpt3-175b", "gpt_oss_20b": "gpt-oss-20b", "BERT-Large": "bert-large",
    "bert-base-uncased": "bert-base", "ViT-B/16": "vit-b16", "ViT-L": "vit-l", "BLOOM": "bloom-176b", "Megatron 1T": "megatron-1t",
    "GPT-2 medium": "gpt2-355m", "bloom-7b1": "bloom-7b1", "Mixtral-8x22B": "mixtral-8x22b", "DeepSeek-R1-Distill-Llama-8B": "llama3-8b",
    # Others of a family are none of these.
    "Llama-3.2-11B-Vision": None, "GPT-3 4B": None, "bloom-13b": None, "Mixtral-8x3B": None, "ViT-G/14": None, "Megatron-LM 18.4B": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_names_that_people_give_bundled_networks(text: str, name: str | None) -> None:
    assert bundled_name(row(model=text)) == name


def test_a_published_network_on_longer_samples() -> None:
    """Only what is learned for each position grows: 512 more rows of 1,024; rotary positions need none."""
    assert (
        bundled_transformer("bert-large", 1024).weight_count == load_model("bert-large").graph.weight_count + 512 * 1024
    )
    assert bundled_transformer("llama3-8b", 16384).weight_count == load_model("llama3-8b").graph.weight_count
    assert bundled_transformer("bert-large", 1024).layers[0].output_shape == (1, 1024)


def test_a_network_for_patches_on_images_of_another_size() -> None:
    """Their side says so, or how many patches there are, with the class token or without; 577 - 197 more rows of 1,024 are learned."""
    own = bundled_transformer("vit-l", None)
    assert all(bundled_transformer("vit-l", seq) == own for seq in (197, 196, 224))
    for seq in (384, 576, 577):
        larger = bundled_transformer("vit-l", seq)
        assert larger.weight_count - own.weight_count == (577 - 197) * 1024
        assert next(one for one in larger.layers if one.kind == "self_attention").output_shape == (1024, 577)
    huge = bundled_transformer("vit-h14", None)
    assert all(bundled_transformer("vit-h14", seq) == huge for seq in (257, 256, 224))
    with pytest.raises(RowSkipped, match="network 'vit-l' has 197 positions, whatever column seq says"):
        bundled_transformer("vit-l", 500)


def test_a_column_seq_of_patches_may_be_the_side_of_images() -> None:
    cells = {"net": "ViT", "hidden": "768", "layers": "12", "heads": "12"}
    assert [shape_of(row(**cells, seq=text), fused=True).seq for text in ("", "197", "224", "384")] == [
        197,
        197,
        197,
        577,
    ]


def test_heads_that_are_not_stated_have_the_usual_width() -> None:
    stated = row(model="Mamba 2.8B", hidden="2560", layers="64")
    assert shape_of(stated, fused=True).heads == 20
    assert shape_of(row(model="mine", hidden="768", layers="12"), fused=True).heads == 12


def test_a_model_that_is_not_known_suggests_the_nearest() -> None:
    with pytest.raises(Unreadable, match=r"no bundled network has the name 'Llama3-8bb' .*; did you mean 'llama3-8b'"):
        shape_of(row(model="Llama3-8bb"), fused=True)
    with pytest.raises(Unreadable, match=r"no bundled network has the name 'Clippy' \(planner list models\)$"):
        shape_of(row(model="Clippy"), fused=True)

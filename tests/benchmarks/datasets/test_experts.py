"""Rows about mixtures of experts, encoders with decoders and networks for patches that state widths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.datasets.convert import convert, read
from benchmarks.datasets.reading import Row, Unreadable
from planner.importers.networks import load_model
from planner.measurements.kinds import predict_table, recognise
from planner.measurements.networks import bundled_transformer, transformer
from planner.measurements.outcomes import Outcome
from planner.measurements.tables import RowSkipped
from tests.benchmarks.datasets.published_rows import shape_of

HEADER = "model,net,hidden,layers,heads,kv_heads,ffn,vocab,seq,device,gpus,global_batch,micro_batch,ep,step_time_ms,experts,top_k\n"
MIXTRAL = "4096,32,32,8,14336,32000,4096,h100-sxm,64,256,1,8,4000"


@pytest.fixture
def outcomes(tmp_path: Path) -> Callable[[str], list[Outcome]]:
    def predict(text: str) -> list[Outcome]:
        path = tmp_path / "runs.csv"
        path.write_text(text)
        return predict_table(read(path))[1]

    return predict


def test_a_bundled_mixture_with_its_widths_is_that_mixture(outcomes: Callable[[str], list[Outcome]]) -> None:
    """With its widths, without them, and with its experts in columns: the same step."""
    found = outcomes(
        HEADER
        + f"Mixtral-8x7B,,{MIXTRAL},,\n"
        + "Mixtral-8x7B,,,,,,,,4096,h100-sxm,64,256,1,8,4000,,\n"
        + f"mine,LLaMA,{MIXTRAL},8,2\n"
    )
    times = [outcome.comparisons[0].predicted_s for outcome in found]
    assert times == pytest.approx([times[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("name", ["my MoE", "Moe 8x7B", "Mixtral 8x7B (16 layers)", "some-30B-A3B"])
def test_a_mixture_is_never_taken_for_a_dense_network(tmp_path: Path, name: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        HEADER + f"{name},," + MIXTRAL.replace("4096,32", "4096,16", 1).replace("1,8,4000", "1,,4000") + ",,\n"
    )
    (problem,) = convert(path).refused
    assert "experts" in problem.message


def test_a_network_left_open_stays_dense() -> None:
    """ "MoE/other" is how NVIDIA's table calls what it does not describe, Nemotron 8B among it."""
    cells = {"model": "Some-8B", "net": "MoE/other (see HF config)", "hidden": "4096", "layers": "32", "heads": "32"}
    assert shape_of(Row(line=2, cells=cells), fused=True).experts is None


def test_columns_of_a_mixture_make_its_published_count() -> None:
    """Mixtral 8x7B has 46,702,792,704 weights (released checkpoint)."""
    cells = "hidden=4096 layers=32 heads=32 kv_heads=8 ffn=14336 vocab=32000 seq=4096 experts=8 net=LLaMA"
    row = Row(line=2, cells=dict(pair.split("=") for pair in cells.split()))
    assert transformer(shape_of(row, fused=True)).weight_count == 46_702_792_704
    with pytest.raises((RowSkipped, Unreadable), match="top_k"):
        shape_of(Row(line=2, cells={**row.cells, "top_k": "9"}), fused=True)


def test_encoder_and_decoder_keep_their_shape(outcomes: Callable[[str], list[Outcome]]) -> None:
    rows = ("T5-11B,,1024,24,128,,65536,32128,512", "T5-11B,,1024,48,128,,,,512", "T5-11B,,,,,,,,512")
    found = outcomes(HEADER + "".join(f"{row},h100-sxm,64,256,1,,9000,,\n" for row in rows))
    assert len({outcome.comparisons[0].predicted_s for outcome in found}) == 1


def test_patches_by_their_widths_cost_as_the_bundled_network() -> None:
    """ViT-H of other images than the bundled: blocks of the columns; at its own size both are within 2 %."""
    cells = {"model": "large", "net": "ViT", "hidden": "1280", "layers": "32", "heads": "16"}
    made = transformer(shape_of(Row(line=2, cells=cells), fused=True))
    known = load_model("vit-h14").graph
    assert made.weight_count == pytest.approx(known.weight_count, rel=0.02)
    assert not any(layer.params.causal for layer in made.layers if layer.kind == "self_attention")


def test_patches_may_be_counted_without_the_class_token() -> None:
    assert bundled_transformer("vit-l", 196) == bundled_transformer("vit-l", 197)


@pytest.mark.parametrize(
    "text",
    [
        "model,device,gpus,global_batch,seq,tokens_per_s_per_gpu\nllama3-8b,H100,64,128,8192,9000\n",
        "device,step_time_ms,model,gpus,micro_batch\nH100,900,llama3-8b,64,1\n",
        "model,device,gpus,global_batch,oom\nllama3-8b,H100,64,128,1\n",
        "hidden,layers,heads,device,nodes,gpus_per_node,global_batch,tokens_per_s_per_gpu\n4096,32,32,H100,8,8,128,9000\n",
    ],
)
def test_runs_need_no_column_that_another_replaces(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    table = read(path)
    assert recognise(table).name == "plan"
    assert [outcome.skipped for outcome in predict_table(table)[1]] == [""]


@pytest.mark.parametrize(
    ("name", "known"), [("Meta-Llama-3-8B", "llama3-8b"), ("Llama-2 70B", "llama2-70b"), ("gemma 7b", "gemma-7b")]
)
def test_widths_that_no_column_states_are_those_of_the_network_named(name: str, known: str) -> None:
    graph = load_model(known).graph
    attention = next(layer for layer in graph.layers if layer.kind == "self_attention")
    layers = sum(layer.kind == "self_attention" for layer in graph.layers)
    hidden = graph.layers[1].output_shape[0]
    cells = {
        "model": name,
        "net": "LLaMA",
        "hidden": str(hidden),
        "layers": str(layers),
        "heads": str(attention.params.heads),
    }
    made = shape_of(Row(line=2, cells=cells), fused=True)
    assert transformer(made).weight_count == pytest.approx(graph.weight_count, rel=0.1 if "gemma" in known else 1e-6)
    assert made.kv_heads == (attention.params.kv_heads or attention.params.heads)
    other = shape_of(Row(line=2, cells={**cells, "layers": str(layers + 1), "vocab": "1000"}), fused=True)
    assert (other.layers, other.vocab, other.kv_heads) == (layers + 1, 1000, attention.params.heads)
    stated = shape_of(Row(line=2, cells={**cells, "ffn": "999"}), fused=True)
    assert stated.ffn == 999

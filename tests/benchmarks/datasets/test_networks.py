"""Networks made from columns have the parameters that were published."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets.convert import convert, read
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.runs import says_adapters, transformer_run
from benchmarks.datasets.shapes import bundled_name, maxtext_shape, with_published_shape
from planner.importers.networks import load_model
from planner.measurements.kinds import predict_table, recognise
from planner.measurements.networks import bundled_transformer, transformer
from planner.measurements.outcomes import Outcome
from planner.measurements.tables import RowSkipped
from tests.benchmarks.datasets.published_rows import run, seconds, shape_of


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


# --- Shapes of published models against the numbers of weights that they are named after --------------------------------------------------


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


# --- Rows about mixtures of experts, encoders with decoders and networks for patches that state widths ------------------------------------


HEADER = "model,net,hidden,layers,heads,kv_heads,ffn,vocab,seq,device,gpus,global_batch,micro_batch,ep,step_time_ms,experts,top_k\n"
MIXTRAL = "4096,32,32,8,14336,32000,4096,h100-sxm,64,256,1,8,4000"


@pytest.fixture
def outcomes(new_file: Any) -> Callable[[str], list[Outcome]]:
    def predict(text: str) -> list[Outcome]:
        return predict_table(read(new_file("runs.csv", text)))[1]

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
def test_a_mixture_is_never_taken_for_a_dense_network(new_file: Any, name: str) -> None:
    path = new_file(
        "runs.csv",
        HEADER + f"{name},," + MIXTRAL.replace("4096,32", "4096,16", 1).replace("1,8,4000", "1,,4000") + ",,\n",
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
def test_runs_need_no_column_that_another_replaces(new_file: Any, text: str) -> None:
    table = read(new_file("runs.csv", text))
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


# --- Rows of runs that train adapters: by which words they are known, and what they do not do ---------------------------------------------


@pytest.mark.parametrize(
    ("cells", "adapters"),
    [
        ({"notes": "task=LoRA; lora_rank=8"}, True),
        ({"task": "LoRA"}, True),
        ({"method": "QLoRA (nf4)"}, True),
        ({"model": "Llama 2 7B fine-tuning (LoRA)"}, True),
        ({"dataset_group": "24.07|LoRA"}, True),
        ({"method": "full fine-tuning", "model": "lorax"}, False),
        ({"notes": "task=SFT", "dataset_group": "LoRA against SFT"}, False),
        ({"model": "explorable"}, None),
        ({"method": "DoRA"}, True),
        ({"lora_rank": "16"}, True),
        *(({"method": text}, None) for text in ("no_lora", "no LoRA", "without adapters", "w/o LoRA", "non-LoRA")),
    ],
)
def test_words_of_adapters(cells: dict[str, str], adapters: bool | None) -> None:
    assert says_adapters(Row(line=2, cells=cells)) is adapters


def test_adapters_of_a_network_that_only_its_name_says() -> None:
    """A backward pass without gradients of weights: two thirds of the work."""
    cells = {
        "net": "",
        "hidden": "",
        "layers": "",
        "heads": "",
        "seq": "4096",
        "recompute": "none",
        "step_time_ms": "20000",
    }
    whole, adapters = (run(**cells, model="llama2-13b", task=task) for task in ("SFT", "LoRA"))
    spelled = run(
        **{**cells, "hidden": "5120", "layers": "40", "heads": "40"},
        model="llama2-13b",
        ffn="13824",
        task="LoRA",
        vocab="32000",
    )
    assert seconds(adapters) == seconds(spelled)
    assert 0.55 < seconds(adapters) / seconds(whole) < 0.85


def test_recipes_that_adapt_every_product_of_a_block() -> None:
    """Adapters of Hugging Face's recipes stand beside all products, those of NeMo beside three: more to compute."""
    cells = {"net": "", "hidden": "", "layers": "", "heads": "", "seq": "4096", "recompute": "none"}
    cells["step_time_ms"] = "20000"
    few, all_ = (run(**cells, model="llama2-13b", task="LoRA", framework=name) for name in ("a trainer", "XTuner"))
    assert 1.01 < seconds(all_) / seconds(few) < 1.5


@pytest.mark.parametrize("model", ["mixtral-8x7b", ""], ids=["by its name", "by its shape"])
def test_adapters_of_a_mixture_leave_its_experts_as_they_are(model: str) -> None:
    """A backward pass without gradients of weights: two thirds of the work, and no exchange of gradients of experts."""
    shape = {
        "hidden": "4096",
        "layers": "32",
        "heads": "32",
        "kv_heads": "8",
        "ffn": "14336",
        "experts": "8",
        "top_k": "2",
    }
    cells = dict.fromkeys(shape, "") if model else shape
    cells |= {
        "net": "llama",
        "seq": "4096",
        "ep": "8",
        "tp": "1",
        "pp": "1",
        "cp": "1",
        "dp": "",
        "step_time_ms": "20000",
    }
    whole, adapters = (run(**cells, model=model, task=task) for task in ("SFT", "LoRA"))
    assert seconds(adapters) < 0.8 * seconds(whole)


# -- networks that are cut, and cells that nobody reads ---------------------------------------------------------------------------

_CUT = {
    "model": "DeepSeek-V2 cut to 4 layers", "net": "MoE", "hidden": 5120, "layers": 4, "heads": 128, "seq": 4096, "vocab": 102400,
    "experts": 160, "top_k": 6, "expert_ffn": 1536, "shared_expert_ffn": 3072, "dense_layers": 1, "device": "A100", "gpus": 8,
    "ep": 8, "dp": 8, "micro_batch": 1, "global_batch": 32, "step_time_ms": 3600,
}  # fmt: skip


def test_a_bundled_mixture_may_be_cut() -> None:
    cells = transformer_run(row(**_CUT))
    assert (cells["model"], cells["cut_layers"]) == ("deepseek-v2", "4")


@pytest.mark.parametrize(("column", "value"), [("shared_expert_ffn", 1536), ("dense_layers", 2), ("hidden", 4096)])
def test_a_cut_network_is_not_contradicted(column: str, value: int) -> None:
    with pytest.raises(Unreadable, match=f"column {column} is {value}, 'deepseek-v2' cut to 4 layers has"):
        transformer_run(row(**{**_CUT, column: value}))


def test_columns_that_nobody_reads_are_named(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "source,model,device,gpus,micro_batch,step_time_ms,mood,empty\nme,llama3-8b,A100,8,1,900,good,\n",
        encoding="utf-8",
    )
    assert convert(table).unread == ("mood",)

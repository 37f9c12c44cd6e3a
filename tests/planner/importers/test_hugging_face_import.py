"""Hugging Face's config.json: published networks, the files that are written, and the way through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.core.errors import InputFileError, UsageError
from planner.importers.hugging_face.config import IMAGES_PER_STEP, TOKENS_PER_STEP
from planner.importers.hugging_face.fields import ARCHITECTURES, WITH_TEXT_PART, notes_of_quantization
from planner.importers.networks import load_model
from planner.importers.sources import imported_document, text_of
from tests.planner.published_configs import PUBLISHED, layers_of, loaded, published, whole, written
from tests.planner.published_families import PARTS

# --- published networks


def test_every_architecture_has_a_published_network() -> None:
    parts = {part["model_type"] for _, text in PARTS.values() if (part := json.loads(text).get("text_config"))}
    assert {json.loads(text)["model_type"] for _, text in PUBLISHED.values()} | parts == set(ARCHITECTURES)


def test_the_guide_lists_every_type() -> None:
    text = (Path(__file__).parents[3] / "docs" / "importers.md").read_text(encoding="utf-8")
    rows = text.partition("## Hugging Face")[2].partition("\n\nParameters")[0].splitlines()
    listed = [word for row in rows if row.startswith("| ") for word in re.findall("`([a-z0-9_-]+)`", row)]
    assert sorted(word for word in listed if word != "model_type") == sorted([*ARCHITECTURES, *WITH_TEXT_PART])


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_of_published_networks(name: str, tmp_path: Path) -> None:
    count, text = PUBLISHED[name]
    assert load_model(str(written(tmp_path, text))).graph.weight_count == count


@pytest.mark.parametrize("name", PARTS)
def test_weights_of_text_parts(name: str, tmp_path: Path) -> None:
    """What the part leaves out is as in its config class, and is said; so is what of the network is not read."""
    count, text = PARTS[name]
    model = load_model(str(written(tmp_path, text)))
    assert model.graph.weight_count == count
    assert model.notes[-1] == "the text part alone is read; left out: vision_config"


def test_defaults_of_a_text_part(tmp_path: Path) -> None:
    notes = load_model(str(written(tmp_path, PARTS["google/gemma-3-4b-pt"][1]))).notes
    assert (
        "as in Gemma3TextConfig: vocab_size 262208, max_position_embeddings 131072, num_attention_heads 8" in notes[0]
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_import_writes_the_same_network(name: str, tmp_path: Path, new_file: Any) -> None:
    """The YAML that `planner import` writes loads back to the identical graph."""
    read = load_model(str(written(tmp_path, PUBLISHED[name][1])))
    again = load_model(str(new_file("network.yaml", text_of(read))))
    assert again.graph.layers == read.graph.layers
    assert again.graph.edges == read.graph.edges
    assert (again.global_batch, again.seq, again.name, again.source) == (
        read.global_batch,
        read.seq,
        read.name,
        read.source,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_layer_of_the_config_is_a_repetition_of_a_block(name: str, tmp_path: Path) -> None:
    """Pipelines are cut between them: as many as the config has layers, all but the embedding and the head inside."""
    config = json.loads(PUBLISHED[name][1])
    model = load_model(str(written(tmp_path, PUBLISHED[name][1])))
    depth = next(config[k] for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if k in config)
    blocks = {layer.block for layer in model.graph.layers if layer.block}
    assert len(blocks) == depth * (2 if "T5" in config["architectures"][0] else 1)
    inside = {"self_attention", "latent_attention", "cross_attention", "moe", "glu"}
    assert all(layer.block for layer in model.graph.layers if layer.kind in inside)


def test_written_files_are_short(tmp_path: Path) -> None:
    """A block once, however many layers: 61 of DeepSeek-V3 in some 70 lines, a parameter per line where a layer has many."""
    model = published("deepseek-ai/DeepSeek-V3", tmp_path)
    text = text_of(model)
    assert len(text.splitlines()) < 75
    document = yaml.safe_load(text)
    assert [(entry["block"], entry["repeat"]) for entry in document["layers"] if "block" in entry] == [
        ("dense", 3),
        ("sparse", 58),
    ]


# --- what a config does not say


def test_length_and_batch_are_chosen_and_said(tmp_path: Path) -> None:
    model = published("meta-llama/Meta-Llama-3-8B", tmp_path)
    assert (model.seq, model.global_batch) == (8192, 512)
    assert model.seq * model.global_batch == TOKENS_PER_STEP
    assert "seq is max_position_embeddings" in model.source
    assert "assumption, 4194304 tokens per step" in model.source
    shorter = load_model(str(model.path), seq=1024)
    assert (shorter.seq, shorter.graph.layers[0].output_shape) == (1024, (1, 1024))
    assert shorter.graph.weight_count == model.graph.weight_count


def test_images_have_no_length(tmp_path: Path) -> None:
    model = published("google/vit-base-patch16-224", tmp_path)
    assert (model.seq, model.global_batch) == (None, IMAGES_PER_STEP)
    assert layers_of(model, "position_embedding")[0].output_shape == (768, 14 * 14 + 1)
    with pytest.raises(UsageError, match="no sequence length"):
        load_model(str(model.path), seq=128)


def test_a_longer_sample_than_learned_positions_is_refused(tmp_path: Path) -> None:
    path = published("openai-community/gpt2", tmp_path).path
    with pytest.raises(
        UsageError, match=r"--seq 1025: .* \(its file says 1024\): positions: max_positions 1024 is less"
    ):
        load_model(str(path), seq=1025)


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file is called by itself, else its folder, else the type."""
    assert published("meta-llama/Llama-2-7b-hf", tmp_path).name == "Llama-2-7b-hf"
    folder = tmp_path / "Qwen2.5-0.5B"
    folder.mkdir()
    assert published("Qwen/Qwen2.5-0.5B", folder).name == "Qwen2-5-0-5B"
    monkeypatch.chdir(folder)
    assert load_model("config.json").name == "Qwen2-5-0-5B"  # the same from within
    folder = tmp_path / "..."
    folder.mkdir()
    assert published("Qwen/Qwen2.5-0.5B", folder).name == "qwen2"


def test_defaults_are_those_of_the_config_class(tmp_path: Path) -> None:
    """Configs with width, depth and heads alone are the networks that the classes were made for, and the notes say what was filled in."""
    mistral = loaded(tmp_path, **whole({"model_type": "mistral"}))
    assert mistral.graph.weight_count == PUBLISHED["mistralai/Mistral-7B-v0.1"][0]
    assert "MistralConfig" in mistral.notes[0]
    assert "num_key_value_heads 8" in mistral.notes[0]
    for kind, name in (
        ("gpt2", "openai-community/gpt2"),
        ("deepseek_v3", "deepseek-ai/DeepSeek-V3"),
        ("opt", "facebook/opt-125m"),
        ("gemma2", "google/gemma-2-2b"),
    ):
        assert loaded(tmp_path, **whole({"model_type": kind})).graph.weight_count == PUBLISHED[name][0], kind
    assert published("openai-community/gpt2", tmp_path).notes == ()


def test_an_indexer_has_three_matrices_and_a_norm_per_layer(tmp_path: Path) -> None:
    """arXiv:2512.02556, section 2.1: queries from the narrow vector, keys and weights from what enters the layer."""
    plain, sparse = (published(f"deepseek-ai/{name}", tmp_path) for name in ("DeepSeek-V3", "DeepSeek-V3.2"))
    per_layer = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert sparse.graph.weight_count - plain.graph.weight_count == 61 * per_layer
    assert sparse.graph.weight_count == load_model("deepseek-v3.2").graph.weight_count


def test_both_names_of_a_key_are_read(tmp_path: Path) -> None:
    """transformers' attribute_map: GPT-2 files may say hidden_size for n_embd."""
    config = {"model_type": "gpt2", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}
    assert loaded(tmp_path, **config).graph.weight_count == 354_823_168  # gpt2-medium


# --- files and commands


def test_folders_and_other_names(tmp_path: Path, new_file: Any) -> None:
    path = published("openai-community/gpt2", tmp_path).path
    assert load_model(str(tmp_path)).path == path
    assert load_model(str(new_file("gpt2.json", path.read_text()))).graph == load_model(str(tmp_path)).graph
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputFileError, match="is a folder"):
        load_model(str(empty))


def test_import_command(tmp_path: Path, answer: Any) -> None:
    published("Qwen/Qwen2.5-0.5B", tmp_path)
    target = tmp_path / "qwen.yaml"
    answer("import", tmp_path, "-o", target)
    assert answer("import", tmp_path / "config.json") == target.read_text()
    assert load_model(str(target)).graph.weight_count == PUBLISHED["Qwen/Qwen2.5-0.5B"][0]


def test_escapes_that_yaml_does_not_know(tmp_path: Path) -> None:
    """JSON writes characters beyond U+FFFF as two escapes; the file is read all the same, without places."""
    text = PUBLISHED["openai-community/gpt2"][1]
    path = written(tmp_path, text.replace('"n_ctx": 1024', '"emoji": "\\ud83e\\udd17"'))
    assert load_model(str(path)).graph.weight_count == PUBLISHED["openai-community/gpt2"][0]
    written(tmp_path, '{"model_type": "gpt2", "emoji": "\\ud83e\\udd17", "n_head": NaN}')
    with pytest.raises(InputFileError, match="n_head: expected a whole number, got 'NaN'"):
        load_model(str(path))


def test_other_json_is_left_to_the_other_readers(tmp_path: Path) -> None:
    layers = {"data": {"type": "Input", "parents": [], "tensor": [1, 8, 8, 3]}}
    assert imported_document(written(tmp_path, json.dumps({"name": "n", "layers": layers}))) is None
    assert imported_document(written(tmp_path, "[1, 2]")) is None
    assert imported_document(written(tmp_path, "{")) is None


# --- Keys that would change the network and are not read are named in the notes; those that change nothing are not ------------------------


FORMAT = "is not used: weights are in the run's number format (--precision)"


def unused(folder: Path, model_type: str, **keys: Any) -> list[str]:
    """Notes on keys that are not used."""
    notes = loaded(folder, **whole({"model_type": model_type}), **keys).notes
    return [note for note in notes if "is not used" in note]


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, " (gptq, 4 bits)"),
        ({"quant_method": "awq", "w_bit": 4}, " (awq, 4 bits)"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, " (fp8)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, " (bitsandbytes, 4 bits)"),
        ({"load_in_8bit": True}, " (8 bits)"),
        ({"quant_method": "a\nb: {}", "bits": "many"}, " (a-b)"),  # stays one line
        ({"quant_method": [], "bits": True}, ""),
        ("gptq", ""),
    ],
)
def test_quantization(tmp_path: Path, stated: Any, shown: str) -> None:
    assert unused(tmp_path, "llama", quantization_config=stated) == [f"quantization_config{shown} {FORMAT}"]


def test_no_quantization(tmp_path: Path) -> None:
    assert unused(tmp_path, "llama", quantization_config=None) == []
    assert unused(tmp_path, "llama", quantization_config={}) == []


def test_quantization_of_a_network_with_parts(tmp_path: Path) -> None:
    """It stands at the top or in the part."""
    gptq = {"quant_method": "gptq", "bits": 8}
    expected = [f"quantization_config (gptq, 8 bits) {FORMAT}"]
    assert notes_of_quantization({"quantization_config": gptq, "text_config": {}}, "text_config") == expected
    assert notes_of_quantization({"text_config": {"quantization_config": gptq}}, "text_config") == expected
    assert notes_of_quantization({"text_config": {"quantization_config": gptq}}, None) == []
    text = json.loads(PARTS["google/gemma-3-4b-pt"][1])
    text["quantization_config"] = gptq
    assert set(expected) < set(loaded(tmp_path, **text).notes)


@pytest.mark.parametrize(
    ("model_type", "keys", "notes"),
    [
        ("llama", {"num_experts": 8}, ["num_experts (8) is not used: llama has no such key"]),
        ("llama", {"num_local_experts": 8}, ["num_local_experts (8) is not used: llama has no such key"]),
        ("llama", {"num_local_experts": 0, "num_experts": None}, []),
        ("mixtral", {"num_experts": 16}, []),  # another name of num_local_experts
        ("mixtral", {"n_shared_experts": 1}, ["n_shared_experts (1) is not used: mixtral has no such key"]),
        ("mixtral", {"decoder_sparse_step": 2}, ["decoder_sparse_step (2) is not used: mixtral has no such key"]),
        ("mixtral", {"decoder_sparse_step": 1, "mlp_only_layers": []}, []),
        ("mixtral", {"mlp_only_layers": [0]}, ["mlp_only_layers (a list) is not used: mixtral has no such key"]),
        ("llama", {"sliding_window": 4096}, ["sliding_window (4096) is not used: llama has no such key"]),
        ("llama", {"sliding_window": None, "use_sliding_window": True}, []),
        ("llama", {"sliding_window": 4096, "use_sliding_window": False}, []),
        (
            "llama",
            {"sliding_window": 4096, "use_sliding_window": True},
            ["sliding_window (4096) is not used: llama has no such key"],
        ),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, []),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, []),
        (
            "qwen2",
            {"sliding_window": 4096},
            ["sliding_window (4096) is not used: use_sliding_window is absent, and so false"],
        ),
        (
            "mistral",
            {"sliding_window": 4096, "use_sliding_window": False},
            [
                "use_sliding_window (false) is not used: mistral has no such key; sliding_window null switches windows off"
            ],
        ),
        ("mistral", {"sliding_window": None, "use_sliding_window": False}, []),
        ("llama", {"layer_types": ["full_attention"] * 32}, []),
        (
            "llama",
            {"layer_types": ["full_attention", "sliding_attention"] * 16},
            ["layer_types (full_attention, sliding_attention) is not used: llama has no such key"],
        ),
        ("llama", {"layer_types": 3}, ["layer_types (3) is not used: llama has no such key"]),
        ("qwen2", {"attention_bias": True}, ["attention_bias (true) is not used: qwen2 has no such key"]),
        ("llama", {"attention_bias": True, "mlp_bias": True}, []),  # read
        ("gpt2", {"rope_theta": 1e4, "torch_dtype": "bfloat16", "use_cache": True}, []),
    ],
)
def test_keys_of_other_types(tmp_path: Path, model_type: str, keys: dict[str, Any], notes: list[str]) -> None:
    assert unused(tmp_path, model_type, **keys) == notes


@pytest.mark.e2e
def test_published_networks_have_no_such_keys(tmp_path: Path) -> None:
    """But layers for multi-token prediction, which are not built."""
    for name, (_, text) in {**PUBLISHED, **PARTS}.items():
        config = json.loads(text)
        expected = 1 if config.get("num_nextn_predict_layers") else 0
        notes = [note for note in loaded(tmp_path, **config).notes if "is not used" in note]
        assert len(notes) == expected, name
        assert all("multi-token prediction are not built" in note for note in notes)


@pytest.mark.e2e
def test_the_commands_say_it(tmp_path: Path, said: Any) -> None:
    config = json.loads(PUBLISHED["Qwen/Qwen2.5-0.5B"][1])
    path = written(tmp_path, json.dumps({**config, "quantization_config": {"quant_method": "awq", "bits": 4}}))
    note = f"quantization_config (awq, 4 bits) {FORMAT}"
    assert f"# {note}" in said("import", path)[0]
    assert note in " ".join("".join(said("optimize", path, "--gpus", "8", "--device", "H100-SXM")).split())


def test_the_network_is_that_without_the_key(tmp_path: Path) -> None:
    plain = published("meta-llama/Meta-Llama-3-8B", tmp_path).graph
    assert published("meta-llama/Meta-Llama-3-8B", tmp_path, num_experts=8, sliding_window=9).graph == plain

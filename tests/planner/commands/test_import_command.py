"""`planner import` writes the network that it understood, as YAML or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planner.cli import run

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def test_both_forms_say_the_same(config: str, tmp_path: Path, answer: Callable[..., str]) -> None:
    text = answer("import", config)
    assert answer("import", config, "--format", "yaml") == text
    document = json.loads(answer("import", config, "--json"))
    assert document == yaml.safe_load(text)
    assert document["schema_version"] == 1
    answer("import", config, "--json", "-o", str(tmp_path / "net.json"))
    assert json.loads((tmp_path / "net.json").read_text(encoding="utf-8")) == document


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "csv"], "a network file is yaml or json"),
        (["--json", "--format", "yaml"], "--json and --format yaml: choose one"),
        (["-o", "no/such/net.yaml"], "there is no folder"),
    ],
)
def test_bad_options(config: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", config, *options]) == 2
    assert words in capsys.readouterr().err

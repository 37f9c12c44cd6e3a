"""Every command that prints a result prints it in every format, well-formed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli import run
from tests.cases import mostly

Ask = Callable[..., str]

GRAPH = {
    "maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10.0,
    "nodes": [
        {"id": n, "name": f"op{n}", "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 1.0 + n, "isBackwardNode": 0, "size": 1.0,
         "colorClass": n}
        for n in range(3)
    ],
    "edges": [{"sourceId": 0, "destId": 1, "cost": 0.5}, {"sourceId": 1, "destId": 2, "cost": 0.5}],
}  # fmt: skip
COMMANDS = {
    "optimize": ["optimize", "alexnet", "--gpus", "2"],
    "optimize-mesh": ["optimize", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8"],
    "optimize-serving": ["optimize", "llama3-8b", "--gpus", "1", "--mode", "inference", "--max-batch", "8"],
    "optimize-mixed": ["optimize", "llama2-7b", "--cluster", "a100-v100", "--gpus", "4", "--batch", "16"],
    "estimate": ["estimate", "alexnet", "--gpus", "2", "--family", "data"],
    "explain": ["explain", "alexnet", "--gpus", "2"],
    "explain-mesh": ["explain", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8"],
    "compare": ["compare", "a.yaml", "b.yaml"],
    "scale": ["scale", "mlp", "--workers", "1,2"],
    "place": ["place", "graph.json"],
    "place-latency": ["place", "graph.json", "--objective", "latency"],
    "place-check": ["place", "check", "graph.json", "placement.yaml"],
    "list": ["list", "clusters"],
    "list-exporters": ["list", "exporters"],
    "export": ["export", "mesh.yaml", "--to", "megatron", "-o", "run", "--force"],
    "validate": ["validate", "runs.csv"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that the commands read."""
    from planner.measurements.kinds import KINDS, template

    place = tmp_path_factory.mktemp("formats")
    (place / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    kind = next(kind for kind in KINDS if kind.name == "gemm")
    (place / "runs.csv").write_text(template(kind), encoding="utf-8")
    alone, both = ["--gpus", "1", "--family", "one-device"], ["--gpus", "2", "--family", "data"]
    mesh = ["llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8"]
    for name, question in (
        ("a.yaml", ["estimate", "mlp", *alone]),
        ("b.yaml", ["estimate", "mlp", *both]),
        ("mesh.yaml", ["estimate", *mesh]),
        ("placement.yaml", ["place", str(place / "graph.json")]),
    ):
        assert run([*question, "--export", str(place / name), "--quiet"]) == 0
    return place


@pytest.mark.e2e
@mostly("e2e", "command", COMMANDS, quick=4)
def test_every_format(command: str, folder: Path, answer: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = [*COMMANDS[command], "--quiet"]
    document = json.loads(answer(*arguments, "--format", "json"))
    assert isinstance(document, dict)
    again = yaml.safe_load(answer(*arguments, "--format", "yaml"))
    assert list(again) == list(document)
    rows = list(csv.reader(io.StringIO(answer(*arguments, "--format", "csv"))))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1
    assert len(set(rows[0])) == len(rows[0])
    if "rank" in rows[0]:
        ranks = [row[rows[0].index("rank")] for row in rows[1:]]
        first = int(ranks[0] == "1")  # a plan with stages of its own stands before the proven ones, as 0
        assert ranks == [str(first + n) for n in range(len(ranks))]
    assert not any("'" in cell and "[" in cell for row in rows for cell in row)  # no lists as Python writes them
    markdown = answer(*arguments, "--format", "markdown")
    assert markdown.strip()
    _check_tables(markdown)
    table = answer(*arguments, "--format", "table", "--width", "100")
    assert table.strip()
    assert all(line == line.rstrip() and line.isprintable() for line in table.splitlines())


def _check_tables(text: str) -> None:
    """Rows of a Markdown table have as many cells as its header."""
    cells = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = line.replace("\\|", "").count("|")
        assert cells in (0, count), line
        cells = count


def test_words_in_a_list_are_no_extents() -> None:
    from planner.report.machine import csv_text

    text = csv_text([{"shape": (3, 4), "algorithms": ("gemm", "fft"), "none": ("", "")}])
    assert text == "shape,algorithms,none\n3x4,gemm fft,\n"


# --- `planner import` writes the network that it understood, as YAML or as JSON -----------------------------------------------------------


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture
def config(new_file: Any) -> str:
    return str(new_file("config.json", json.dumps(CONFIG)))


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
        (["-o", "/dev/null/net.yaml"], "Not a directory"),
    ],
)
def test_bad_options(config: str, options: list[str], words: str, fails: Any) -> None:
    assert words in fails("import", config, *options)

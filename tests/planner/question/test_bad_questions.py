"""Questions about transformers that cannot be answered: one clear sentence, the documented exit code, and nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.schema import DOCUMENTS

LLAMA = "optimize llama3-8b --gpus 8"
LLAMA_CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
CLUSTER = """\
schema_version: 1
name: mine
groups: {groups}
levels:
  - {{name: network, bandwidth: 10 GB/s, latency: 5 us}}
source: {{}}
"""


def refused(capsys: pytest.CaptureFixture[str], folder: Path, command: str, code: int = 2) -> str:
    """Run a command that must fail and leave nothing behind; its sentence."""
    before = sorted(folder.iterdir())
    assert run([*command.split(), "--export", str(folder / "plan.yaml"), "-o", str(folder / "answer.json")]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(folder.iterdir()) == before
    assert "internal error" not in err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{LLAMA} --seq 0", "--seq 0: must be at least 1"),
        (f"{LLAMA} --batch 0", "--batch 0: must be at least 1"),
        (f"{LLAMA} --gpus 0", "--gpus 0: must be at least 1"),
        (f"{LLAMA} --tp 0", "--tp 0: must be at least 1"),
        (f"{LLAMA} --zero 4", "--zero 4: must be at most 3"),
        ("optimize mixtral-8x7b --gpus 8 --ep -2", "--ep -2: must be at least 1"),
        ("optimize mixtral-8x7b --gpus 8 --ep 3", "ep 3 does not divide the 8 experts; allowed: 1, 2, 4, 8"),
        ("optimize bert-large --gpus 8 --seq 4096", "--seq 4096: network 'bert-large' cannot be that long (its file says 512): "),
        ("optimize bert-large --gpus 8 --seq 513", "max_positions 512 is less than the 513 positions"),
        (f"{LLAMA} --seq 7 --cp 2", "cp 2 needs a sequence length that 4 divides; it is 7 (nearby: 4 or 8)"),
        ("optimize vit-l --gpus 8 --cp 2", "cp 2 needs positions that 2 divides, and the 197 of 'vit-l' come from its input (the patches"),
        ("estimate vit-l --gpus 8 --cp 4", "of an image), not from --seq; allowed: 1, 197"),
        ("optimize llama3-70b --gpus 64 --lora-rank 8193", "--lora-rank 8193 is more than any matrix of 'llama3-70b' that it adapts can"),
        (f"{LLAMA} --batch 7 --dp 2", "dp 2 does not divide --batch 7 (nearby: 6 or 8)"),
        (f"{LLAMA} --batch 100 --micro-batch 3", "micro-batch 3 does not divide --batch 100 (nearby: 99 or 102)"),
        ("estimate llama3-8b --gpus 8 --batch 100 --micro-batch 3", "use --batch 96 or 120"),
        (f"{LLAMA} --gpus 24 --tp 3", "tp 3 does not divide the 32 attention heads; allowed: 1, 2, 4, 8, 16, 32"),
        ("estimate llama3-8b --gpus 3 --batch 3 --tp 3", "tp 3 neither divides the 8 key/value heads nor is a multiple of them"),
        (f"{LLAMA} --gpus 64 --pp 33", "pp 33 is more than the 32 blocks of the network"),
        (f"{LLAMA} --cluster dgx-a100 --precision fp8", "--precision fp8: device 'a100-80gb' has no rate for precision 'fp8'; it has bf16"),
        (f"{LLAMA} --mode inference --max-tpot 1fortnight", "must be a time such as 30s, 500ms, 50us, 2min or 1h"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, message: str
) -> None:
    assert message in refused(capsys, tmp_path, command)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{LLAMA} --batch 8 --memory-limit 2GiB", ["nothing fits: the nearest miss (", "there are 2.00 GiB", "the largest part is"]),
        (f"{LLAMA} --mode inference --max-ttft 1us", ["no plan that fits keeps the limits", "at most 1.00 us asked for"]),
        (f"{LLAMA} --mode inference --max-tpot 900ns", ["no plan that fits keeps the limits", "at most 900 ns asked for"]),
    ],
)  # fmt: skip
def test_a_limit_that_excludes_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: list[str]
) -> None:
    err = refused(capsys, tmp_path, command, code=1)
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[]", "groups: is empty; list the kinds of devices, or name the one with 'device'"),
        ("[{}]", "groups[0]: missing key 'device'"),
        ("[{device: h100-sxm, count: 0}]", "groups[0].count: must be at least 1, got 0"),
        ("[{device: h100, count: 8}]", "did you mean 'h100-nvl' or 'h100-pcie' or 'h100-sxm'?"),
    ],
)
def test_a_cluster_with_an_empty_group(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, groups: str, message: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(CLUSTER.format(groups=groups))
    err = refused(capsys, tmp_path, f"{LLAMA} --cluster {path}")
    assert message in err
    assert err.startswith(f"{path}:3:")


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        ({"num_attention_heads": 33, "num_key_value_heads": 5}, ["33 heads (num", "5 key/value heads evenly; allowed: 1, 3"]),
        ({"intermediate_size": -3, "max_position_embeddings": 0}, ["intermediate_size: must be at least 1", "max_position_embeddings: "]),
        ({"num_hidden_layers": "many"}, ["num_hidden_layers"]),
        ({"model_type": "lama"}, ["'lama' is not known; did you mean 'llama'?"]),
        ({"model_type": "mixtral", "num_local_experts": -8}, ["num_local_experts: must be at least 1, got -8"]),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 16}, ["num_experts_per_tok"]),
    ],
)  # fmt: skip
def test_a_config_json_that_contradicts_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict[str, Any], messages: list[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_CONFIG, **config}))
    err = refused(capsys, tmp_path, f"optimize {path} --gpus 8")
    for message in messages:
        assert message in err
    assert all(line.startswith(f"{path}:1:") for line in err.strip().splitlines())


def test_what_a_config_json_leaves_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_CONFIG, "num_hidden_layers": 32}))
    assert run(["estimate", str(path), "--gpus", "8", "--batch", "8"]) == 0
    assert "not written in the file, so as in LlamaConfig: vocab_size 32000, max_position_embeddings 2048" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_length_is_not_blamed_for_a_file_that_is_wrong_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from planner.importers.networks import load_model

    path = tmp_path / "wrong.yaml"
    path.write_text(load_model("bert-large").path.read_text().replace("max_positions: 512", "max_positions: 100"))
    err = refused(capsys, tmp_path, f"optimize {path} --gpus 8 --seq 300")
    assert err.startswith(f"{path}:")
    assert "max_positions 100" in err


def test_the_help_of_schema_names_every_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "--help"]) == 0
    text = capsys.readouterr().out
    for name in DOCUMENTS:
        assert name in re.split(r"[\s,.]+", text), name

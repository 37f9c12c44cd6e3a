"""Configurations as people write them for torchtitan, nanotron, Megatron-Bridge and NeMo are read without running them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.cli import run
from planner.core.errors import InputFileError
from planner.exporters.runs import Run, read_run

TITAN = """
[model]
name = "llama3"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
steps = 3000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # within a node
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = 'full'
[float8]
recipe_name = "rowwise"
"""
TITAN_PYTHON = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer

LENGTH = 4 * 1024


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=LENGTH, steps=1000),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_8b_pipeline() -> Trainer.Config:
    config = llama3_8b()
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=2, data_parallel_shard_degree=4)
    config.training.local_batch_size = 8
    config.activation_checkpoint = FullAC.Config()
    return config


def other() -> Trainer.Config:
    return Trainer.Config(training=TrainingConfig(local_batch_size=2), parallelism=ParallelismConfig())
"""
TITAN_SCRIPT = (
    "NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 2 --parallelism.data-parallel-shard-degree=4 "
    "--training.local_batch_size 4 --training.global_batch_size 64 --training.seq_len 4096\n"
)
NANOTRON = """
general: {project: debug, seed: 42}
model:
  dtype: bfloat16
  model_config: {num_hidden_layers: 32, hidden_size: 4096, num_attention_heads: 32}
optimizer:
  zero_stage: 1
  optimizer_factory: {name: adamW}
parallelism:
  dp: 4
  pp: 2
  tp: 2
  tp_mode: REDUCE_SCATTER
  recompute_layer: true
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 2
  sequence_length: 4096
  train_steps: 15
"""
BRIDGE = """
from megatron.bridge.recipes.common import _pretrain_common

LENGTH: int = 16384


def llama3_8b_16k():
    cfg = _pretrain_common()
    cfg.tokenizer.vocab_size = DEFAULT
    cfg.dataset.seq_length = LENGTH
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_granularity = None
    cfg.model.cuda_graph_impl = "none"
    cfg.model.fine_grained_activation_offloading = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    return cfg
"""
NEMO = """
import nemo_run as run
from nemo.collections import llm


def configure_recipe(nodes: int = 1, gpus_per_node: int = 8):
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=nodes, num_gpus_per_node=gpus_per_node)
    recipe.trainer.strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    recipe.data.global_batch_size = 64
    recipe.data.micro_batch_size = 1
    recipe.trainer.devices = gpus_per_node
    recipe.trainer.num_nodes = nodes
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    return recipe


def run_pretraining():
    recipe = configure_recipe(nodes=2)
    run.run(recipe)


if __name__ == "__main__":
    run_pretraining()
"""
NEMO_1 = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 8192
  sequence_parallel: True
  activations_checkpoint_granularity: selective
  num_layers: 32
  fp8: False
  optim: {name: distributed_fused_adam, lr: 1e-4}
"""


def read(trainer: str, name: str, text: str, folder: Path, part: str = "") -> Run:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_run(trainer, Path(f"{path}:{part}") if part else path)


@pytest.mark.parametrize(
    ("trainer", "name", "text", "mesh", "options"),
    [
        ("torchtitan", "8b.toml", TITAN, "tp=8 zero=3 micro_batch=2 recompute=full sequence_parallel=True",
            "seq=8192 precision=fp8-rowwise"),
        (
            "torchtitan", "run.sh", TITAN_SCRIPT, "tp=2 dp_shard=4 zero=3 micro_batch=4 recompute=none sequence_parallel=True",
            "gpus=8 batch=64 seq=4096 precision=bf16",
        ),
        (
            "nanotron", "tiny.yaml", NANOTRON, "tp=2 pp=2 zero=1 micro_batch=2 schedule=gpipe recompute=full sequence_parallel=True",
            "gpus=16 seq=4096 num_micro_batches=8 precision=bf16 optimizer=adam",
        ),
        (
            "megatron-bridge", "recipe.py", BRIDGE, "tp=4 pp=2 cp=2 zero=1 micro_batch=1 recompute=none sequence_parallel=True",
            "batch=512 seq=16384 precision=fp8-tensorwise",
        ),
        ("nemo", "pretrain.py", NEMO, "tp=2 pp=1 micro_batch=1", "batch=64 gpus=16 precision=fp8-delayed"),
        (
            "nemo", "gpt.yaml", NEMO_1, "tp=4 pp=2 zero=1 micro_batch=1 recompute=selective sequence_parallel=True",
            "batch=128 seq=8192 gpus=32 precision=bf16",
        ),
    ],
    ids=["toml", "options", "nanotron", "recipe", "nemo", "nemo 1"],
)  # fmt: skip
def test_a_file_by_hand(trainer: str, name: str, text: str, mesh: str, options: str, tmp_path: Path) -> None:
    found = read(trainer, name, text, tmp_path)
    assert {key: str(value) for key, value in found.mesh.items()} == dict(word.split("=") for word in mesh.split())
    stated = dict(word.split("=") for word in options.split())
    assert {key: found.options[key] for key in stated} == stated
    assert ("gpus" in found.options) == ("gpus" in stated)


def test_a_function_of_a_python_file_is_named(tmp_path: Path) -> None:
    found = read("torchtitan", "configs.py", TITAN_PYTHON, tmp_path, "llama3_8b_pipeline")
    assert (found.mesh["pp"], found.mesh["zero"], found.mesh["recompute"]) == ("2", "2", "full")
    assert (found.options["seq"], found.options["num_micro_batches"]) == ("4096", "8")
    # Its pipeline cuts the samples of a rank into micro-batches of one.
    assert found.mesh["micro_batch"] == "1"
    plain = read("torchtitan", "configs.py", TITAN_PYTHON, tmp_path, "llama3_8b")
    assert plain.mesh["recompute"] == "selective"
    assert not any("selective" in note for note in plain.notes)
    with pytest.raises(InputFileError, match=r"llama3_8b_pipeline, other; name one: configs\.py:llama3_8b_pipeline"):
        read("torchtitan", "configs.py", TITAN_PYTHON, tmp_path)
    with pytest.raises(InputFileError, match=r"has no function llama3_80b .*did you mean 'llama3_8b'"):
        read("torchtitan", "configs.py", TITAN_PYTHON, tmp_path, "llama3_80b")


@pytest.mark.parametrize(
    ("option", "is_said"), [('selective_ac_option = "op"', False), ("", True), ('selective_ac_option = "2"', True)]
)
def test_selective_checkpointing_of_whole_blocks_is_read_otherwise(option: str, is_said: bool, tmp_path: Path) -> None:
    """Unless told, the releases with TOML files recompute every second block."""
    found = read("torchtitan", "a.toml", TITAN.replace("mode = 'full'", f"mode = 'selective'\n{option}"), tmp_path)
    assert found.mesh["recompute"] == "selective"
    assert (
        any("selective_ac_option 2: recomputes every so many blocks whole" in note for note in found.notes) == is_said
    )


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    notes = read(
        "torchtitan", "a.toml", TITAN + "[parallelism2]\ntensr = 1\n[compile]\nenable = true\n", tmp_path
    ).notes
    assert any("parallelism2.tensr (line 18): is not a setting of torchtitan" in note for note in notes)
    assert any(note.endswith(": parallelism.enable_async_tensor_parallel, compile.enable") for note in notes)
    notes = read("megatron-bridge", "recipe.py", BRIDGE, tmp_path).notes
    assert notes == ["not modelled, so the prediction leaves it out: model.fine_grained_activation_offloading"]
    notes = read("megatron-bridge", "a.yaml", "model: {tensor_model_parallel_size: 2}", tmp_path).notes
    assert any(
        "does not say pipeline_model_parallel_size, micro_batch_size, global_batch_size" in note for note in notes
    )


@pytest.mark.parametrize(
    ("trainer", "name", "text", "words"),
    [
        ("torchtitan", "a.toml", "[parallelism]\ntensor_parallel_degree = 'x'\n",
            "a.toml:2:26: parallelism.tensor_parallel_degree: is 'x'; a whole"),
        ("torchtitan", "a.toml", "[parallelism]\ntensor_parallel_degree = \n", "a.toml:2:26: is not TOML"),
        ("torchtitan", "a.toml", "[optimizer]\nlr = 1\n", "is no configuration of torchtitan"),
        ("torchtitan", "a.py", "c.parallelism.tensor_parallel_degree = f(2)\n",
            "a.py:1:1: parallelism.tensor_parallel_degree: is 'f'; a whole number"),
        ("torchtitan", "a.py", "def f(:\n", "a.py:1:7: is not Python"),
        ("torchtitan", "a.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'X'\n",
            "a.toml:3:30: .*known: GPipe"),
        ("nanotron", "a.yaml", NANOTRON.replace("zero_stage: 1", "zero_stage: 3"),
            "a.yaml:7:15: optimizer.zero_stage: is 3; 0 or 1"),
        ("nanotron", "a.yaml", NANOTRON.replace("micro_batch_size: 2", "micro_batch_size: 0"),
            "a.yaml:17:21: tokens.micro_batch_size"),
        ("nanotron", "a.yaml", "a: 1\n", "is no configuration of nanotron"),
        ("megatron-bridge", "a.sh", "x model.tensor_model_paralel_size=4",
            "a.sh:1:3: .*did you mean 'tensor_model_parallel_size'"),
        ("megatron-bridge", "a.sh", "x model.tensor_model_parallel_size=$TP", r"a.sh:1:3: .*is \$TP"),
        ("nemo", "a.yaml", "model: {tensor_model_parallel_size: ${x.y}}", "a.yaml:1:"),
        ("megatron", "a.sh", "TP=2\nx --tensor-model-parallel-size 0",
            "a.sh:2:3: --tensor-model-parallel-size: is '0'"),
    ],
)  # fmt: skip
def test_errors_name_line_and_column(trainer: str, name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=words):
        read(trainer, name, text, tmp_path)


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "run"
    for name, text in (
        ("a.py", f"open({str(marker)!r}, 'w')\nc.parallelism.x = 1"),
        ("a.sh", f"--training.seq_len $(touch {marker})"),
    ):
        with contextlib.suppress(InputFileError):
            read("torchtitan", name, text, tmp_path)
    assert not marker.exists()


def test_the_framework_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nanotron.yaml"
    path.write_text(NANOTRON, encoding="utf-8")
    found = planner.estimate("llama3-8b", run_from=("nanotron", path))
    plain = planner.estimate("llama3-8b", run_from=("nanotron", path), framework="none")
    assert (found.raw.setting.framework, plain.raw.setting.framework) == ("nanotron", "")
    assert plain.step_time_s < found.step_time_s
    assert (found.plan.settings["num_micro_batches"], found.plan.workers) == (8, 16)
    assert run(["estimate", "llama2-13b", "--from", "nanotron", str(path)]) == 2
    assert "model.model_config.num_hidden_layers 32 (it has 40)" in capsys.readouterr().err


def test_a_run_of_another_trainer_is_compared(tmp_path: Path, answer: Any) -> None:
    path = tmp_path / "8b.toml"
    path.write_text(
        TITAN.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 2").replace('converters = ["float8"]', "")
    )
    text = answer(
        "compare",
        "--from",
        "torchtitan",
        path,
        "--model",
        "llama3-8b",
        "--gpus",
        "8",
        "--batch",
        "64",
        "--framework",
        "auto",
    )
    assert "best found is" in text

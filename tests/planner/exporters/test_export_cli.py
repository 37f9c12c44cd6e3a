"""``planner export`` from plan files on disk, as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodel.mesh.plan import MeshPlan
from costmodel.network.sizes import sizes_of
from planner.core.errors import PlannerError
from planner.core.numbers import byte_text, duration_text
from planner.core.request import Request
from planner.files.plan_file import plan_document, plan_text
from planner.importers.networks import load_model
from planner.question.resolve import Resolved, resolve
from tests.planner.conftest import about
from tests.planner.mesh_answers import REQUEST, make_ranked, make_result

PLAN = MeshPlan(
    tp=8, sequence_parallel=True, pp=4, dp_replicate=2, dp_shard=4, zero_stage=1, micro_batch=2, num_micro_batches=64
)  # fmt: skip


def _plan_file(folder: Path, plan: MeshPlan = PLAN) -> Path:
    request = dataclasses.replace(REQUEST, cluster="dgx-h100")
    document = plan_document(about(make_result(), request), make_ranked(plan))
    path = folder / "plan.yaml"
    path.write_text(plan_text(document), encoding="utf-8")
    return path


def test_a_plan_file_becomes_a_folder(tmp_path: Path, said: Any) -> None:
    out, _ = said("export", _plan_file(tmp_path), "--to", "megatron", "-o", tmp_path / "run", "--json")
    document = json.loads(out)
    assert document["target"] == "megatron"
    assert {Path(row["file"]).name for row in document["files"]} == {
        "train.sh",
        "train.slurm",
        "ranks.csv",
        "README.md",
        "export.json",
    }
    text = (tmp_path / "run" / "train.sh").read_text(encoding="utf-8")
    for words in ("--num-distributed-optimizer-instances 2", "--tensor-model-parallel-size 8", "# Predicted: "):
        assert words in text


def test_errors_leave_no_folder(tmp_path: Path, fails: Any) -> None:
    plan = str(_plan_file(tmp_path, dataclasses.replace(PLAN, zero_stage=2)))
    for arguments, words in (
        (("--to", "deepspeed"), "pp 4 with zero_stage 2"),
        (("--to", "deepsped"), "did you mean 'deepspeed'"),
        (("--to", "vllm"), "and vLLM takes only plans for serving; use torch, megatron"),
        ((), "--to: is missing; name a target (torch, megatron,"),
        (("--to", "torchtitan", "--target-version", "9"), "version of torchtitan '9' is not known"),
    ):
        assert words in fails("export", plan, *arguments, "-o", tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert "-o: is missing" in fails("export", plan, "--to", "megatron")


def test_strict_and_force(tmp_path: Path, said: Any, fails: Any) -> None:
    plan = str(_plan_file(tmp_path, dataclasses.replace(PLAN, offload_activations=True)))
    where = ("--to", "megatron", "-o", str(tmp_path / "run"))
    assert "cannot express offload_activations" in fails("export", plan, *where, "--strict")
    assert not (tmp_path / "run").exists()
    assert "not expressed: offload_activations: " in said("export", plan, *where)[1]
    fails("export", plan, *where)
    assert said("export", plan, *where, "--force", "-q")[1] == ""


def _layer_plan(folder: Path, layers: dict[str, Any], workers: int = 4) -> Path:
    document = {
        "schema_version": 1, "model": "alexnet", "cluster": "dgx-h100", "gpus": workers, "global_batch": 128, "precision": "bf16",
        "optimizer": "momentum", "workers": workers, "layers": layers, "prediction": {"summary": "by hand"},
    }  # fmt: skip
    path = folder / "layers.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _hybrid_plan(folder: Path) -> Path:
    names = [layer.name for layer in load_model("alexnet").graph.layers]
    return _layer_plan(folder, {n: {"out_channels": 4} if n.startswith("fc") else {"batch": 4} for n in names})


def test_a_split_per_layer_names_who_could(tmp_path: Path, answer: Any, fails: Any) -> None:
    run = tmp_path / "run"
    err = fails("export", _hybrid_plan(tmp_path), "--to", "megatron", "-o", run)
    assert (
        "a plan with a split for each layer (network alexnet), and Megatron-LM takes only plans over a device mesh, "
        in err
    )
    assert (
        "which are for transformers; use torch; plans of data parallelism alone (--family data) also go to deepspeed, accelerate"
        in err
    )
    plan = _layer_plan(tmp_path, {layer.name: {"batch": 4} for layer in load_model("alexnet").graph.layers})
    assert "use deepspeed, accelerate" in fails("export", plan, "--to", "megatron", "-o", run)
    answer("export", plan, "--to", "deepspeed", "-o", run)
    config = json.loads((run / "ds_config.json").read_text(encoding="utf-8"))
    assert config["train_micro_batch_size_per_gpu"] == 32


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_an_answer_is_no_plan_file(tmp_path: Path, answer: Any, fails: Any, suffix: str) -> None:
    file = tmp_path / f"plan.{suffix}"
    answer("optimize", "alexnet", "--gpus", "2", "-q", "-o", file)
    err = fails("export", file, "--to", "megatron", "-o", tmp_path / "run")
    assert err.strip().endswith(
        "holds an answer (--output); --export FILE writes the best plan of an answer as a plan file"
    )


def test_a_serving_plan(tmp_path: Path, answer: Any) -> None:
    plan = tmp_path / "serve.yaml"
    arguments = ["estimate", "llama3-8b", "--mode", "inference", "--gpus", "4", "--tp", "2", "--max-batch", "8", "-q"]
    answer(*arguments, "--export", plan)
    answer("export", plan, "--to", "vllm", "-o", tmp_path / "run")
    assert "--max-num-seqs 8" in (tmp_path / "run" / "serve.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["gpt3-13b", "llama3-8b", "mixtral-8x7b"])
def test_sizes_give_the_weights(name: str) -> None:
    # Counted from the sizes alone, by the textbook: they describe the whole network.
    graph = load_model(name).graph
    n = sizes_of(graph)
    kv = n.kv_heads * n.head_dim
    attention = n.hidden * (n.heads * n.head_dim + 2 * kv) + n.heads * n.head_dim * n.hidden
    mlp = n.hidden * n.ffn * (3 if n.has_glu else 2)
    mlp = mlp * n.experts + n.hidden * n.experts if n.experts else mlp
    biases = (n.heads * n.head_dim + 2 * kv + n.hidden + n.ffn + n.hidden) if n.has_bias else 0
    norms = n.hidden * (2 if n.norm == "LayerNorm" else 1)
    block = attention + mlp + biases + 2 * norms
    embeddings = n.vocabulary * n.hidden * (1 if n.is_tied else 2) + (2048 * n.hidden if n.has_positions else 0)
    assert graph.weight_count == n.layers * block + embeddings + norms


def test_a_hybrid_per_layer_goes_to_torch(tmp_path: Path, answer: Any) -> None:
    answer("export", _hybrid_plan(tmp_path), "--to", "torch", "--strict", "-o", tmp_path / "run")
    text = (tmp_path / "run" / "plan.py").read_text(encoding="utf-8")
    styles = text.partition("STYLES = {")[2]
    assert 'MESH = {"dim0": 4}' in text
    assert "input=(Shard(0),),\n        weight=(Replicate(),)" in styles.partition('"conv5"')[2]
    assert "input=(Replicate(),),\n        weight=(Shard(0),)" in styles.partition('"fc6"')[2]
    assert {"plan_layouts.py", "plan_moves.py", "train.sh"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_what_is_assumed_free_stands_in_every_file(tmp_path: Path, answer: Any) -> None:
    model, plan = tmp_path / "net.yaml", tmp_path / "plan.yaml"
    model.write_text(
        "schema_version: 1\nname: net\nsource: by hand\nglobal_batch: 8\nlayers:\n"
        "  - {name: data, type: input, shape: [8]}\n"
        "  - {name: odd, type: assumed_free, shape: [8]}\n"
        "  - {name: fc, type: linear, out_features: 4}\n",
        encoding="utf-8",
    )
    answer("estimate", model, "--gpus", "2", "--batch", "8", "--family", "data", "-q", "--export", plan)
    for target in ("torch", "deepspeed"):
        folder = tmp_path / target
        answer("export", plan, "--to", target, "-o", folder)
        for name in ("README.md", "export.json", "train.sh"):
            text = (folder / name).read_text(encoding="utf-8")
            assert "ASSUMED FREE, so the prediction leaves them out: odd" in text, (target, name)


@pytest.mark.parametrize(
    ("plan", "target"),
    [("llama3-8b --tp 2", "megatron"), ("alexnet --family data --memory-limit 600MiB", "deepspeed")],
)
def test_a_plan_that_does_not_fit_warns(plan: str, target: str, tmp_path: Path, said: Any, answer: Any) -> None:
    file, folder = tmp_path / "plan.yaml", tmp_path / "run"
    answer("estimate", *plan.split(), "--gpus", "2", "--batch", "8", "-q", "--export", file)
    _, err = said("export", file, "--to", target, "-o", folder)
    assert "warning: the plan does not fit into memory: " in err
    assert "THE PLAN DOES NOT FIT INTO MEMORY" in (folder / "README.md").read_text()


def test_a_plan_of_another_framework_warns(tmp_path: Path, said: Any, answer: Any) -> None:
    """The losses in chunks that make room under ArcticTraining are calls of its own, which no setting of DeepSpeed makes."""
    file, folder = tmp_path / "plan.yaml", tmp_path / "run"
    options = "llama3-8b --gpus 8 --batch 8 --zero 3 --recompute full --framework arctic-training -q"
    answer("estimate", *options.split(), "--export", file)
    _, err = said("export", file, "--to", "deepspeed", "-o", folder)
    assert "warning: the plan was made for arctic-training; with deepspeed a step takes " in err
    assert "the plan was made for arctic-training" in (folder / "README.md").read_text()
    # The figures are those of the plan under the other framework.
    there = json.loads(answer("estimate", "--plan", file, "--framework", "deepspeed", "--json", "-q"))["plans"][0]
    assert f"GPU needs {byte_text(there['memory_bytes_per_gpu'])} in place of " in err
    assert ("THE PLAN DOES NOT FIT THERE" in err) is (there["memory_bytes_per_gpu"] > there["memory_capacity_bytes"])
    answer("estimate", *options.replace("arctic-training", "deepspeed").split(), "--export", tmp_path / "own.yaml")
    _, err = said("export", tmp_path / "own.yaml", "--to", "deepspeed", "-o", tmp_path / "own")
    assert "made for" not in err


def test_a_serving_plan_of_another_engine_warns(tmp_path: Path, said: Any, answer: Any) -> None:
    file, plan = tmp_path / "plan.yaml", "llama3-8b --mode inference --framework sglang --gpus 2"
    answer("estimate", *plan.split(), "-q", "--export", file)
    _, err = said("export", file, "--to", "vllm", "-o", tmp_path / "run")
    there = json.loads(answer("estimate", "--plan", file, "--framework", "vllm", "--json", "-q"))["plans"][0]
    first, each = (duration_text(there[name]) for name in ("ttft_s", "tpot_s"))
    assert f"with vllm the first token takes the same {first}, each one after it the same {each}, and " in err
    assert "'planner optimize --mode inference' with --framework vllm searches" in err
    assert "step" not in err.splitlines()[0]


def test_a_calibration_says_nothing_of_another_framework(tmp_path: Path, said: Any, answer: Any) -> None:
    """It was fitted to runs of the framework of the plan: both are predicted without it."""
    file, plan = tmp_path / "plan.yaml", "gpt3-1.3b --gpus 8 --batch 64"
    answer("estimate", *plan.split(), "--calibration", "vtrain", "-q", "--export", file)
    _, err = said("export", file, "--to", "megatron", "-o", tmp_path / "run")
    here, there = (
        json.loads(answer("estimate", *plan.split(), "--framework", name, "--json", "-q"))["plans"][0]
        for name in ("megatron-deepspeed", "megatron-lm")
    )
    times = [duration_text(found["step_time_s"]) for found in (there, here)]
    assert f"made for megatron-deepspeed; with megatron-lm a step takes {times[0]} in place of {times[1]}" in err
    assert "(both without calibration 'vtrain', which was fitted to runs of megatron-deepspeed)" in err


def test_an_error_under_the_framework_of_the_plan_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, fails: Any
) -> None:
    """What goes wrong there without the calibration says nothing of the framework of the target."""
    file, plan = tmp_path / "plan.yaml", "gpt3-1.3b --gpus 8 --batch 64 --calibration vtrain"
    answer("estimate", *plan.split(), "-q", "--export", file)

    def resolved(request: Request) -> Resolved:
        if request.calibration is None and request.framework == "megatron-deepspeed":
            raise PlannerError("not without it")
        return resolve(request)

    monkeypatch.setattr("planner.exporters.plans.resolve", resolved)
    said = fails("export", file, "--to", "megatron", "-o", tmp_path / "run")
    assert "not without it" in said
    assert "does not run its network" not in said


def test_what_another_framework_does_not_run_is_said(tmp_path: Path, said: Any, answer: Any) -> None:
    """Megatron-LM recomputes some blocks of a stage, and torchtitan all."""
    file = tmp_path / "plan.yaml"
    options = "gpt3-1.3b --gpus 4 --batch 8 --pp 2 --recompute full --recompute-blocks 5 --framework megatron-lm -q"
    answer("estimate", *options.split(), "--export", file)
    _, err = said("export", file, "--to", "torchtitan", "-o", tmp_path / "run")
    assert (
        "the plan was made for megatron-lm; torchtitan does not run it as it is: recompute full of some blocks: " in err
    )


@pytest.mark.e2e
def test_stages_of_a_split_per_layer_have_no_target(tmp_path: Path, answer: Any, fails: Any) -> None:
    plan = tmp_path / "plan.yaml"
    asked = "optimize alexnet --gpus 2 --family pipeline --space layers -q --export"
    answer(*asked.split(), plan)
    for target in ("deepspeed", "torch"):
        assert "no target takes a " in fails("export", plan, "--to", target, "-o", tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "degrees", "words"),
    [
        (
            "bert-large",
            ["--tp", "2"],
            ["pretrain_bert.py}", "--num-layers 24", "--ffn-hidden-size 4096", "--vocab-size 30522"],
        ),
        (
            "t5-11b",
            ["--tp", "8"],
            [
                "pretrain_t5.py}",
                "--encoder-num-layers 24",
                "--decoder-num-layers 24",
                "--kv-channels 128",
                "--ffn-hidden-size 65536",
                "--decoder-seq-length 114",
                "--relative-attention-num-buckets 32",
            ],
        ),
        (  # sizes of deepseek-ai/DeepSeek-V3, config.json
            "deepseek-v3",
            ["--ep", "8", "--zero", "1", "--recompute", "selective"],
            [
                "--recompute-modules layernorm mla_up_proj moe_act",
                "pretrain_gpt.py}",
                "--num-layers 61",
                "--hidden-size 7168",
                "--ffn-hidden-size 18432",
                "--q-lora-rank 1536",
                "--kv-lora-rank 512",
                "--qk-head-dim 128",
                "--qk-pos-emb-head-dim 64",
                "--v-head-dim 128",
                "--num-experts 256",
                "--moe-ffn-hidden-size 2048",
                "--moe-shared-expert-intermediate-size 2048",
                "--moe-layer-freq '[0]*3+[1]*58'",
                "--expert-model-parallel-size 8",
            ],
        ),
        (
            "deepseek-v3.2",
            ["--ep", "8", "--zero", "1", "--seq", "4096"],
            [
                "--num-layers 61",
                "--q-lora-rank 1536",
                "--experimental-attention-variant dsa",
                "--dsa-indexer-topk 2048",
                "--dsa-indexer-n-heads 64",
                "--dsa-indexer-head-dim 128",
            ],
        ),
    ],
)
def test_networks_that_are_no_plain_decoders(
    model: str, degrees: list[str], words: list[str], tmp_path: Path, answer: Any, said: Any
) -> None:
    plan = tmp_path / "plan.yaml"
    answer("estimate", model, "--gpus", "8", "--batch", "64", *degrees, "-q", "--export", plan)
    answer("export", plan, "--to", "megatron", "-o", tmp_path / "run")
    script = (tmp_path / "run" / "train.sh").read_text(encoding="utf-8")
    assert [word for word in words if word not in script] == []
    code = 0 if model.startswith("deepseek") else 2
    _, err = said("export", plan, "--to", "torchtitan", "-o", tmp_path / "titan", code=code)
    assert ("torchtitan has no such model" in err) == (code == 2)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt2-124m", "perceptrons without a gate, LayerNorm, learned positions, biases"),
        ("gpt3-13b", "learned positions"),
        ("megatron-1t", "perceptrons without a gate"),
        ("bloom-7b1", "perceptrons without a gate, LayerNorm"),
        ("llama3-8b", None),
        ("llama2-7b", None),
    ],
)
def test_nanotron_has_llamas_only(model: str, words: str | None, tmp_path: Path, answer: Any, said: Any) -> None:
    # nanotron's models/llama.py: gate_up_proj, TritonRMSNorm, rotary embedding, every matrix without bias.
    plan = tmp_path / "plan.yaml"
    degrees = ("--dp-shard", "8", "--zero", "1")
    answer("estimate", model, "--gpus", "8", "--batch", "64", *degrees, "-q", "--export", plan)
    _, err = said("export", plan, "--to", "nanotron", "-o", tmp_path / "run", code=0 if words is None else 2)
    assert words is None or words in err


def test_megatron_has_no_pipelines_for_t5(tmp_path: Path, answer: Any, fails: Any) -> None:
    plan = tmp_path / "plan.yaml"
    answer("estimate", "t5-11b", "--gpus", "8", "--batch", "64", "--pp", "2", "--tp", "4", "-q", "--export", plan)
    assert "pretrain_t5.py has no pipeline parallelism" in fails(
        "export", plan, "--to", "megatron", "-o", tmp_path / "run"
    )


DEEPSPEED = """
import types
class DeepSpeedConfig:
    def __init__(self, written, mpu):
        assert mpu.get_data_parallel_world_size() == 8
        if {refuses}:
            raise ValueError("no such key")
        self.zero_optimization_stage = {stage}
        self.train_micro_batch_size_per_gpu = written["train_micro_batch_size_per_gpu"]
        self.gradient_accumulation_steps = written["gradient_accumulation_steps"]
"""


@pytest.mark.parametrize(
    ("refuses", "stage", "code", "words"),
    [
        (False, 1, 0, "deepspeed: accepted"),
        (True, 1, 1, "deepspeed: refused: ValueError: no such key"),
        (False, 2, 1, "deepspeed: refused: was read as zero_stage 2, the plan has 1"),
        (None, 1, 1, "deepspeed: not installed: deepspeed:"),
    ],
)
def test_check_asks_the_parser_of_the_target(
    refuses: bool | None, stage: int, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    """With a stand-in for DeepSpeed; `.ci/frameworks` asks the real one."""
    package = tmp_path / "packages" / "deepspeed"
    (package / "comm").mkdir(parents=True)
    text = "raise ImportError" if refuses is None else DEEPSPEED.format(refuses=refuses, stage=stage)
    (package / "__init__.py").write_text(text, encoding="utf-8")
    (package / "comm" / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    plan = _plan_file(tmp_path, dataclasses.replace(PLAN, pp=1, vpp=1, schedule="1f1b", dp_replicate=1, dp_shard=8))
    out, _ = said("export", plan, "--to", "deepspeed", "--check", "-o", tmp_path / "run", code=code)
    assert words in out
    again = planner.export(plan, "deepspeed", check=True)  # without a folder
    assert again.check is not None
    assert again.check.status == words.removeprefix("deepspeed: ").partition(":")[0]
    assert again.folder is None
    assert "check" in again.to_dict()
    assert planner.export(plan, "deepspeed").check is None


def test_a_refusal_names_the_other_versions_of_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    """A stand-in for torchtitan lacks what the newest version has: whoever has an older one is told how to write for it."""
    package = tmp_path / "packages" / "torchtitan"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    for module in ("config", "distributed"):
        (package / f"{module}.py").write_text("class ParallelDims: pass\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    plan = _plan_file(tmp_path, dataclasses.replace(PLAN, pp=1, vpp=1, schedule="1f1b"))
    out, _ = said("export", plan, "--to", "torchtitan", "--check", "-o", tmp_path / "run", code=1)
    assert "torchtitan: refused" in out
    assert "(the files are for 2026-08; other versions: v0.3.0, v0.2.2, by --target-version)" in " ".join(out.split())

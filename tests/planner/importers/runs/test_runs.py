"""What people run today is read without running it, and means what was exported."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli import run
from planner.errors import InputFileError, PlannerError, UnknownName
from planner.exporters.export import make_export
from planner.importers.runs import RUNS, read_run
from tests.planner.exporters.jobs import CONTEXT, EXPERTS, FSDP, ODD_STAGES, PIPELINE


def _file(folder: Path, text: str, name: str = "train.sh") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("job", [PIPELINE, FSDP, EXPERTS, CONTEXT], ids=["pipeline", "fsdp", "experts", "context"])
def test_megatron_reads_what_the_exporter_writes(job: object, tmp_path: Path) -> None:
    text = make_export(job, "megatron").files["train.sh"]  # type: ignore[arg-type]
    found = read_run("megatron", _file(tmp_path, text))
    plan = job.plan  # type: ignore[attr-defined]
    for field in ("tp", "pp", "cp", "ep", "micro_batch"):
        assert int(found.mesh.get(field, 1)) == getattr(plan, field), field
    assert int(found.mesh.get("vpp", 1)) == plan.vpp
    assert int(found.mesh["zero"]) == plan.zero_stage
    assert found.mesh["sequence_parallel"] == plan.sequence_parallel
    assert found.mesh["recompute"] == plan.recompute
    assert int(found.mesh.get("recompute_blocks", 0)) == plan.recompute_blocks
    if plan.cp > 1:
        assert found.mesh["cp_kind"] == plan.cp_kind
    assert int(found.options["batch"]) == plan.global_batch
    assert found.options["precision"] == "bf16"
    # `torchrun --standalone` has no --nnodes.
    assert int(found.options["gpus"]) == plan.workers


def test_a_script_by_hand(tmp_path: Path) -> None:
    text = """
    #!/bin/bash
    # --tensor-model-parallel-size 64 in a comment counts for nothing
    GPUS=8 ; NNODES=${NNODES:-4}
    TP=2
    export PP=$TP
    DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 4"
    GPT_ARGS="
        --tensor-model-parallel-size $TP \\
        --pipeline-model-parallel-size ${PP} \\
        --micro-batch-size 4
        --global-batch-size=512 --seq-length 2048 --fp16 --recompute-activations
    "
    torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS --use-distributed-optimizer --tensor-model-parallel-size 4
    """
    found = read_run("megatron", _file(tmp_path, text))
    assert found.mesh["tp"] == "4"  # the last one counts
    assert (found.mesh["pp"], found.mesh["micro_batch"], found.mesh["zero"]) == ("2", "4", "1")
    assert found.mesh["recompute"] == "selective"
    assert found.options == {"batch": "512", "seq": "2048", "gpus": "32", "precision": "fp16", "optimizer": "adam"}


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    for value in (f"$(touch {marker})", f"`touch {marker}`", "$UNSET", "$((1+1))"):
        path = _file(tmp_path, f'ARGS=(--tensor-model-parallel-size "{value}")')
        with pytest.raises(InputFileError, match="--tensor-model-parallel-size"):
            read_run("megatron", path)
    assert not marker.exists()


def test_layouts_and_virtual_stages(tmp_path: Path) -> None:
    text = make_export(ODD_STAGES, "megatron").files["train.sh"]
    found = read_run("megatron", _file(tmp_path, text))
    assert "vpp" not in found.mesh
    assert any("layout" in note for note in found.notes)
    layered = "--pipeline-model-parallel-size 4 --num-layers 32 --num-layers-per-virtual-pipeline-stage 2"
    assert read_run("megatron", _file(tmp_path, layered)).mesh["vpp"] == "4"
    layout = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|(t|)*6tL'"
    assert read_run("megatron", _file(tmp_path, layout)).mesh["vpp"] == "2"


def test_deepspeed(tmp_path: Path) -> None:
    content = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2, "offload_optimizer": {
            "device": "cpu"}}, "bf16": {"enabled": True}, "tensor_parallel": {"autotp_size": 4}, "train_batch_size": "auto",
    }  # fmt: skip
    found = read_run("deepspeed", _file(tmp_path, json.dumps(content), "ds.json"))
    assert found.mesh == {"micro_batch": "2", "zero": "2", "offload": "optimizer", "tp": "4"}
    assert found.options == {"num_micro_batches": "4", "precision": "bf16"}
    assert any("auto" in note for note in found.notes)


def test_accelerate(tmp_path: Path) -> None:
    text = make_export(CONTEXT, "accelerate").files["accelerate.yaml"]
    found = read_run("accelerate", _file(tmp_path, text, "fsdp.yaml"))
    plan = CONTEXT.plan
    assert found.mesh == {
        "dp_replicate": "1", "dp_shard": "2", "tp": "2", "cp": "4", "cp_kind": plan.cp_kind, "zero": "2", "recompute": "full",
    }  # fmt: skip
    old = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: no\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    found = read_run("accelerate", _file(tmp_path, old, "fsdp.yaml"))
    assert (found.mesh["zero"], found.options) == ("3", {"gpus": "8", "precision": "fp32"})


@pytest.mark.parametrize("trainer", sorted(RUNS))
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"'unclosed",
        b"a: &a [*a]",
        b"--tensor-model-parallel-size x",
        b"3",
    ],
)
def test_bad_files(trainer: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    # The list of arguments without a known flag is a run that says nothing; everything else is refused.
    if trainer == "megatron" and content in (b"", b"{", b"[]", b"[" * 100_000, b"a: &a [*a]", b"3"):
        assert "tp" not in read_run(trainer, path).mesh
        return
    with pytest.raises(InputFileError, match=r"file\.yaml"):
        read_run(trainer, path)


def test_missing_files_and_trainers(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no such file"):
        read_run("megatron", tmp_path / "no")
    with pytest.raises(InputFileError, match="is a folder"):
        read_run("deepspeed", tmp_path)
    with pytest.raises(UnknownName, match="did you mean 'deepspeed'"):
        read_run("deepsped", tmp_path)
    large = tmp_path / "large"
    large.write_bytes(b" " * (2 << 20))
    with pytest.raises(InputFileError, match="larger than 1 MiB"):
        read_run("megatron", large)


@given(text=st.text(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("trainer", sorted(RUNS))
def test_any_text_is_read_or_refused(trainer: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(PlannerError):
        read_run(trainer, path)


def test_estimate_predicts_what_was_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    degrees = [
        "--gpus",
        "16",
        "--tp",
        "2",
        "--sequence-parallel",
        "--pp",
        "2",
        "--zero",
        "1",
        "--micro-batch",
        "2",
        "--batch",
        "64",
    ]
    assert run(["estimate", "llama3-8b", *degrees, "--json", "--export", str(plan)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "run"), "-q"]) == 0
    capsys.readouterr()
    assert run(["estimate", "llama3-8b", "--from", "megatron", str(tmp_path / "run" / "train.sh"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == first["step_time_s"]
    assert run(["estimate", "llama3-8b", "--from", "megatron", str(tmp_path / "no"), "--json"]) == 2

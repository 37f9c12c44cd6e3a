"""What people run today is read without running it, and means what was exported."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import planner
from planner.cli import run
from planner.core.errors import InputFileError, PlannerError, UnknownName
from planner.exporters.export import make_export
from planner.exporters.runs import RUNS, read_run, sizes_of_network, with_run
from planner.files.resources import bundled
from planner.importers.networks import load_model
from tests.cases import mostly
from tests.planner.exporters.jobs import CONTEXT, EXPERTS, FSDP, ODD_STAGES, PIPELINE, PLAIN_PIPELINE


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


# Recipes and moments that Megatron-LM has, and what else it writes: weights kept narrow need the distributed optimizer.
@pytest.mark.parametrize(
    ("precision", "optimizer", "written"),
    [
        ("fp8-delayed", "adam", "--fp8-recipe delayed --fp8-param-gather"),
        ("fp8-tensorwise", "adam", "--fp8-recipe tensorwise --fp8-param-gather"),
        ("fp8-blockwise", "adam", "--fp8-recipe blockwise"),
        ("mxfp8", "adam", "--fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag"),
        ("nvfp4", "adam-bf16", "--fp4-format e2m1 --fp4-recipe nvfp4 --exp-avg-dtype bf16"),
    ],
)
def test_megatron_reads_recipes_that_the_exporter_writes(
    precision: str, optimizer: str, written: str, tmp_path: Path
) -> None:
    job = replace(PIPELINE, precision=precision, optimizer=optimizer, plan=replace(PIPELINE.plan, zero_stage=1))
    text = " ".join(make_export(job, "megatron").files["train.sh"].split())
    assert all(word in text for word in written.split())
    assert ("--fp8-param-gather" in text) == ("--fp8-param-gather" in written)
    found = read_run("megatron", _file(tmp_path, make_export(job, "megatron").files["train.sh"]))
    assert (found.options["precision"], found.options["optimizer"]) == (precision, optimizer)


def test_recipes_that_megatron_does_not_have_are_listed() -> None:
    found = make_export(replace(PIPELINE, precision="fp8-rowwise"), "megatron")
    assert "no such format or recipe; bf16 is written" in found.account.cannot["precision"]
    bridge = make_export(replace(PIPELINE, precision="mxfp8"), "megatron-bridge")
    assert any("mixed_precision=bf16_with_mxfp8_mixed" in text for text in bridge.files.values())


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


def test_a_variable_may_have_itself_with_a_default(tmp_path: Path) -> None:
    """As Megatron's own examples write it: the environment may set it, and the script says what else."""
    words = "--pipeline-model-parallel-size $PP --micro-batch-size ${MBS} --global-batch-size $(($MBS*8))"
    script = "PP=${PP:-4}\nMBS=2\nMBS=${MBS:-1}\n" + words
    with pytest.raises(InputFileError, match=r"--global-batch-size: is \$"):
        read_run("megatron", _file(tmp_path, script))
    found = read_run("megatron", _file(tmp_path, script.replace("$(($MBS*8))", "16")))
    assert (found.mesh["pp"], found.mesh["micro_batch"]) == ("4", "2")
    with pytest.raises(InputFileError, match="pipeline-model-parallel-size"):
        read_run("megatron", _file(tmp_path, "PP=$PP\n" + words))


def test_flags_that_are_not_modelled_are_listed(tmp_path: Path) -> None:
    script = (
        "torchrun --nproc_per_node 8 --rdzv-backend c10d pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 "
        "--lr 1e-4 --save x --tp-comm-overlap --cpu-offloading --cpu_offloading_num_layers=4 --first-last-layers-bf16 --made-up-flag 3"
    )
    (note,) = read_run("megatron", _file(tmp_path, script)).notes
    assert note.endswith(
        ": --tp-comm-overlap, --cpu-offloading, --cpu-offloading-num-layers, --first-last-layers-bf16, --made-up-flag"
    )
    # What the exporter writes is what is modelled.
    for job in (PIPELINE, FSDP, EXPERTS, CONTEXT):
        notes = read_run("megatron", _file(tmp_path, make_export(job, "megatron").files["train.sh"])).notes
        assert not any("not modelled" in note for note in notes)


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--tensor-model-paralel-size 4", "--tensor-model-parallel-size"),
        ("--micro_batch_szie 4", "--micro-batch-size"),
        ("--use-distributed-optimiser", "--use-distributed-optimizer"),
        ("--pipeline-model-parallel 4", "--pipeline-model-parallel-size"),
    ],
)
def test_misspelt_flags_are_errors(flag: str, meant: str, tmp_path: Path) -> None:
    path = _file(tmp_path, f"pretrain_gpt.py --micro-batch-size 1 {flag}")
    with pytest.raises(InputFileError, match=f"did you mean '{meant}'"):
        read_run("megatron", path)


def test_torchtitan_reads_the_checkpointing_that_the_exporter_writes(tmp_path: Path) -> None:
    job = replace(FSDP, plan=replace(FSDP.plan, recompute="selective", recompute_blocks=0))
    text = make_export(job, "torchtitan", version="v0.2.2").files["planned.toml"]
    assert '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n' in text
    found = read_run("torchtitan", _file(tmp_path, text, "planned.toml"))
    assert (found.mesh["recompute"], found.notes) == ("selective", [])


def test_misspelt_settings_with_lists_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "bridge.yaml"
    path.write_text(
        "model:\n  tensor_model_parallel_size: 2\n  pipeline_model_paralel_layout: [[decoder], [decoder]]\n"
    )
    with pytest.raises(InputFileError, match=r"3:.*did you mean 'pipeline_model_parallel_layout'"):
        read_run("megatron-bridge", path)


@pytest.mark.parametrize(
    ("given", "framework"),
    [
        ({}, "megatron-lm"),
        ({"framework": "auto"}, "megatron-lm"),
        ({"framework": "megatron-lm-2021"}, "megatron-lm-2021"),
        ({"framework": "none"}, "none"),
        ({"calibration": "vtrain"}, None),  # that of the runs that it was fitted to, as wherever no framework is named
        ({"calibration": "no-such"}, "megatron-lm"),
        ({"cost_model": "paleo"}, None),  # has none
    ],
)
def test_a_run_is_predicted_under_its_trainers_framework(
    given: dict[str, str], framework: str | None, tmp_path: Path
) -> None:
    path = _file(tmp_path, "pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16")
    filled = with_run({**given, "gpus": "8"}, "megatron", path)
    assert filled.given.get("framework") == framework
    assert filled.origins.get("framework") == ("--from megatron" if framework == "megatron-lm" else None)


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ("", "framework megatron-lm (--from megatron)"),
        ("--framework deepspeed", "framework deepspeed (given)"),
        ("--calibration vtrain", "framework megatron-deepspeed (calibration)"),
    ],
)
def test_where_the_framework_of_a_run_came_from_is_said(options: str, source: str, tmp_path: Path, answer: Any) -> None:
    path = _file(tmp_path, "pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16")
    question = ["estimate", "gpt3-1.3b", "--from", "megatron", str(path), "--gpus", "8", *options.split()]
    text = " ".join(answer(*question, "-v").split())
    assert source in text
    assert "global batch 16 (train.sh)" in text


def test_a_run_takes_the_size_of_the_cluster(tmp_path: Path, said: Any) -> None:
    run = _file(tmp_path, "pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 2")
    text = bundled("clusters")["dgx-h100"].read_text(encoding="utf-8")
    cluster = _file(tmp_path, text.replace("{name: infiniband, ", "{name: infiniband, size: 2, "), "own.yaml")
    out, err = said("estimate", "gpt3-1.3b", "--from", "megatron", str(run), "--cluster", str(cluster), "--json")
    assert json.loads(out)["plans"][0]["workers"] == 16
    assert "--gpus 16: all of the cluster; train.sh does not say how many GPUs it runs on" in err


def test_a_run_names_a_cluster_that_cannot_be_loaded(tmp_path: Path, fails: Any) -> None:
    run = _file(tmp_path, "pretrain_gpt.py --micro-batch-size 1 --tensor-model-parallel-size 2")
    said = fails("estimate", "gpt3-1.3b", "--from", "megatron", str(run), "--cluster", "nonsense")
    assert "cluster 'nonsense'" in said
    assert "--gpus: is missing" not in said


@pytest.mark.parametrize("command", ["estimate llama3-8b", "optimize llama3-8b", "compare --model llama3-8b"])
def test_a_run_says_its_gpus(command: str, tmp_path: Path, fails: Any) -> None:
    path = _file(tmp_path, "pretrain_gpt.py --micro-batch-size 1 --tensor-model-parallel-size 2")
    said = fails(*command.split(), "--from", "megatron", str(path))
    assert "--gpus: is missing: train.sh does not say how many GPUs it runs on; add --gpus N" in said


def test_a_file_of_another_trainer_is_refused(tmp_path: Path) -> None:
    """Every reader refuses the files of every other, and names the trainer that they are for."""
    written = {
        "megatron": "train.sh", "megatron-bridge": "train.sh", "torchtitan": "planned.py", "deepspeed": "ds_config.json",
        "accelerate": "accelerate.yaml", "nanotron": "nanotron.yaml",
    }  # fmt: skip
    assert {RUNS[target] for target in written} == set(RUNS.values())
    for target, name in written.items():
        job = PLAIN_PIPELINE if target == "nanotron" else FSDP
        path = _file(tmp_path, make_export(job, target).files[name], name)
        assert read_run(target, path).mesh
        for trainer in RUNS:
            if RUNS[trainer] != RUNS[target]:
                with pytest.raises(InputFileError, match=f"it looks like a file of .*: --from {target} .*{name}"):
                    read_run(trainer, path)


def test_scripts_of_other_programs(tmp_path: Path, fails: Any) -> None:
    path = _file(tmp_path, "accelerate launch --num_processes 8 x.py --fp16 --hidden-size 3")
    assert "no Megatron arguments in it" in fails(
        "estimate", "llama3-8b", "--from", "megatron", str(path), "--gpus", "8"
    )


def test_the_network_of_the_script_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {
        "num-layers": 32,
        "hidden-size": 4096,
        "num-attention-heads": 32,
        "num-query-groups": 8,
        "ffn-hidden-size": 14336,
    }
    launcher = (
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 32 --bf16"
    )

    def answered(**changes: int) -> int:
        words = " ".join(f"--{name} {number}" for name, number in {**sizes, **changes}.items())
        path = _file(tmp_path, f"{launcher} --tensor-model-parallel-size 8 {words}")
        return run(["estimate", "llama3-8b", "--from", "megatron", str(path), "--gpus", "16"])

    assert answered() == 0
    assert "--gpus 16: the script starts 32" in capsys.readouterr().err
    assert answered(**{"num-layers": 40, "ffn-hidden-size": 11008}) == 2
    error = capsys.readouterr().err
    assert "--num-layers 40 (it has 32), --ffn-hidden-size 11008 (it has 14336)" in error
    assert "--hidden-size" not in error


@pytest.mark.parametrize(("model", "sizes"), [("bert-large", (24, 1024, 16)), ("deepseek-v3", (61, 7168, 128))])
def test_sizes_of_networks_that_are_no_plain_decoders(model: str, sizes: tuple[int, int, int]) -> None:
    found = sizes_of_network(load_model(model).graph)
    assert (found["layers"], found["hidden"]) == sizes[:2]
    assert found.get("heads", sizes[2]) == sizes[2]
    assert sizes_of_network(load_model("t5-11b").graph) == {}


def test_layouts_and_virtual_stages(tmp_path: Path) -> None:
    text = make_export(ODD_STAGES, "megatron").files["train.sh"]
    found = read_run("megatron", _file(tmp_path, text))
    assert "vpp" not in found.mesh
    assert found.stages == " ".join(str(count) for count in ODD_STAGES.plan.stage_blocks)
    layered = "--pipeline-model-parallel-size 4 --num-layers 32 --num-layers-per-virtual-pipeline-stage 2"
    assert read_run("megatron", _file(tmp_path, layered)).mesh["vpp"] == "4"
    for group in (4, 6):
        sized = f"{layered} --microbatch-group-size-per-virtual-pipeline-stage {group}"
        assert any("smallest groups" in n for n in read_run("megatron", _file(tmp_path, sized)).notes) == (group > 4)
    layout = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|(t|)*6tL'"
    assert read_run("megatron", _file(tmp_path, layout)).mesh["vpp"] == "2"
    empty = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|tttL'"
    assert any("without blocks" in note for note in read_run("megatron", _file(tmp_path, empty)).notes)


def test_megatron_gives_every_stage_as_many_blocks(tmp_path: Path) -> None:
    """The planner alone would give the first and the last stage, with embedding and loss, fewer."""
    script = _file(tmp_path, "x --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --bf16")
    plan = planner.estimate("llama3-8b", run_from=("megatron", script), gpus=8, framework="none").plan
    assert plan.settings.get("stage_blocks") == [16, 16]
    layout = _file(tmp_path, script.read_text() + " --pipeline-model-parallel-layout 'Et*14|t*18L'")
    plan = planner.estimate("llama3-8b", run_from=("megatron", layout), gpus=8).plan
    assert plan.settings.get("stage_blocks") == [14, 18]


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ("2 --pipeline-model-parallel-layout 'Et*14|t*17L'", "31 blocks in 2 chunks) do not fit 32 blocks in 2 chunks"),
        ("3", "(equal) do not fit 32 blocks in 3 chunks"),
    ],
)
def test_stages_that_do_not_fit_are_said(tmp_path: Path, stages: str, words: str) -> None:
    script = _file(
        tmp_path, f"x --micro-batch-size 1 --global-batch-size 24 --bf16 --pipeline-model-parallel-size {stages}"
    )
    found = planner.estimate("llama3-8b", run_from=("megatron", script), gpus=6)
    assert found.plan.settings.get("stage_blocks") is None
    assert any(words in row.value for row in found.raw.assumptions)


def test_deepspeed(tmp_path: Path) -> None:
    content = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2, "offload_optimizer": {
            "device": "cpu"}}, "bf16": {"enabled": True}, "tensor_parallel": {"autotp_size": 4}, "train_batch_size": "auto",
    }  # fmt: skip
    found = read_run("deepspeed", _file(tmp_path, json.dumps(content), "ds.json"))
    # AutoTP repeats tensors between the split matrices.
    assert found.mesh == {
        "micro_batch": "2",
        "zero": "2",
        "offload": "optimizer",
        "tp": "4",
        "sequence_parallel": False,
    }
    assert found.options == {"num_micro_batches": "4", "precision": "bf16"}
    assert any("auto" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"stage": 2}, "pipeline": {"stages": 4}}, "support ZeRO-1 at most"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16 and fp16: are both enabled"),
        ({"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}, "cp 2 with tp 2"),
        (
            {
                "expert_parallel": {"enabled": True, "autoep_size": 4},
                "sequence_parallel_size": 2,
                "zero_optimization": {"stage": 3},
            },
            "ep 4 with cp 2 and zero_stage 3",
        ),
    ],
)
def test_what_deepspeed_refuses_is_not_predicted(content: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=words):
        read_run("deepspeed", _file(tmp_path, json.dumps(content), "ds.json"))


def test_unread_keys_of_deepspeed(tmp_path: Path) -> None:
    content = {
        "zero_optimizaton": {"stage": 3}, "sparse_attention": {"mode": "fixed"}, "steps_per_print": 10,
        "zero_optimization": {"stage": 1, "zero_hpz_partition_size": 8, "overlap_comm": True, "stge": 3},
    }  # fmt: skip
    notes = read_run("deepspeed", _file(tmp_path, json.dumps(content), "ds.json")).notes
    assert [note.split(":")[0] for note in notes] == [
        "zero_optimizaton", "sparse_attention", "zero_optimization.zero_hpz_partition_size", "zero_optimization.stge",
    ]  # fmt: skip
    assert "did you mean 'zero_optimization'?" in notes[0]
    # What the exporter writes is what is read.
    notes = read_run("deepspeed", _file(tmp_path, make_export(FSDP, "deepspeed").files["ds_config.json"])).notes
    assert not [note for note in notes if "left out" in note or "leaves it out" in note]


def test_unread_keys_of_accelerate(tmp_path: Path) -> None:
    text = (
        "distributed_type: FSDP\nnum_processes: 16\nmixed_precison: fp16\nmachine_rank: 0\n"
        "fsdp_config: {fsdp_version: 2, fsdp_madeup: 3, fsdp_reshard_after_foward: false, fsdp_use_orig_params: true}\n"
    )
    notes = read_run("accelerate", _file(tmp_path, text, "fsdp.yaml")).notes
    assert [note.split(":")[0] for note in notes] == [
        "mixed_precison", "fsdp_config.fsdp_madeup", "fsdp_config.fsdp_reshard_after_foward",
    ]  # fmt: skip
    assert "did you mean 'mixed_precision'?" in notes[0]
    assert "did you mean 'fsdp_reshard_after_forward'?" in notes[2]
    exported = make_export(CONTEXT, "accelerate").files["accelerate.yaml"]
    assert read_run("accelerate", _file(tmp_path, exported, "fsdp.yaml")).notes == []


@pytest.mark.parametrize(
    ("fsdp", "stage"),
    [
        ("fsdp_version: 2, fsdp_reshard_after_forward: false", "2"),
        ("fsdp_version: 2, fsdp_reshard_after_forward: 'false'", "2"),
        ("fsdp_version: 2, fsdp_reshard_after_forward: 'true'", "3"),
        ("fsdp_version: 2", "3"),
        ("fsdp_reshard_after_forward: false", "2"),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", "2"),
        ("fsdp_sharding_strategy: 1", "3"),
        ("fsdp_sharding_strategy: NO_SHARD", "0"),
    ],
)
def test_stages_of_fsdp(fsdp: str, stage: str, tmp_path: Path) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 16\nfsdp_config: {{{fsdp}}}\n"
    assert read_run("accelerate", _file(tmp_path, text, "fsdp.yaml")).mesh["zero"] == stage


def test_hybrid_shards_replicate_across_machines(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nnum_machines: 4\nnum_processes: 32\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}\n"
    found = read_run("accelerate", _file(tmp_path, text, "fsdp.yaml"))
    assert (found.mesh["zero"], found.mesh["dp_replicate"]) == ("2", "4")


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
    with pytest.raises(InputFileError, match=r"file\.yaml"):
        read_run(trainer, path)


def test_missing_files_and_trainers(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no such file"):
        read_run("megatron", tmp_path / "no")
    with pytest.raises(InputFileError, match="is a folder"):
        read_run("deepspeed", tmp_path)
    with pytest.raises(UnknownName, match="did you mean 'deepspeed'"):
        read_run("deepsped", tmp_path)
    with pytest.raises(InputFileError, match="is empty"):
        read_run("deepspeed", _file(tmp_path, ""))
    with pytest.raises(InputFileError, match=":2:1: is not JSON"):
        read_run("deepspeed", _file(tmp_path, "{\n"))
    large = tmp_path / "large"
    large.write_bytes(b" " * (2 << 20))
    with pytest.raises(InputFileError, match="larger than 1 MiB"):
        read_run("megatron", large)


@given(text=st.text(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@mostly("fuzz", "trainer", sorted(RUNS), quick=2)
def test_any_text_is_read_or_refused(trainer: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(PlannerError):
        read_run(trainer, path)


def test_estimate_predicts_what_was_exported(tmp_path: Path, answer: Any) -> None:
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
    first = json.loads(answer("estimate", "llama3-8b", *degrees, "--json", "--export", str(plan)))
    answer("export", plan, "--to", "megatron", "-o", tmp_path / "run")
    again = json.loads(
        answer("estimate", "llama3-8b", "--from", "megatron", str(tmp_path / "run" / "train.sh"), "--json")
    )
    assert again["step_time_s"] == first["step_time_s"]


@pytest.mark.parametrize("value", [True, False, "3", 1.0, -1, 4, None, [1]])
@pytest.mark.parametrize(
    "keys",
    [
        ("zero_optimization", "stage"),
        ("train_batch_size",),
        ("train_micro_batch_size_per_gpu",),
        ("gradient_accumulation_steps",),
        ("sequence_parallel_size",),
        ("tensor_parallel", "autotp_size"),
        ("pipeline", "stages"),
        ("zero_optimization",),
        ("tensor_parallel",),
        ("bf16",),
        ("optimizer",),
    ],
)
def test_any_value_of_a_deepspeed_key_is_read_or_refused(keys: tuple[str, ...], value: object, new_file: Any) -> None:
    content: dict[str, object] = {"train_batch_size": 8}
    content |= {keys[0]: value if len(keys) == 1 else {keys[1]: value}}
    path = new_file("ds.json", json.dumps(content))
    with contextlib.suppress(InputFileError):
        read_run("deepspeed", path)


@pytest.mark.parametrize(
    ("trainer", "name", "content", "key"),
    [
        (
            "accelerate",
            "accelerate.yaml",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: true}",
            "deepspeed_config.zero_stage",
        ),
        ("deepspeed", "ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": true}}', "zero_optimization.stage"),
    ],
)  # fmt: skip
def test_a_stage_of_zero_is_no_boolean(trainer: str, name: str, content: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=re.escape(f"{key}: is True; 0, 1, 2 or 3 is expected")):
        read_run(trainer, _file(tmp_path, content, name))

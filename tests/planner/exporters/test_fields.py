"""Every setting of a plan goes somewhere: it is written (and then changes the files), listed, left to the user, or refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, LayerSplit, MeshPlan
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.schedules import schedule_of
from costmodel.serving.plan import ServingPlan
from planner.core.errors import UnknownName, UsageError
from planner.exporters import EXPORTERS, exporter_of, exporter_rows, targets_that_take
from planner.exporters.account import LAYER_SETTINGS, MESH_SETTINGS, Account, serving_settings, settings_in_effect
from planner.exporters.export import MANIFEST, README, make_export
from planner.exporters.job import Job
from planner.exporters.rules import broken_rules, own_refusals, refusals_of
from tests.cases import mostly
from tests.planner.exporters.jobs import DATA, EXPERTS, FSDP, MIXTRAL, SERVE, job_of, serving_job

TRAINERS = targets_that_take("mesh")
CASES = [(target, version) for target in TRAINERS for version in exporter_of(target).VERSIONS]

BASE = MeshPlan(dp_shard=4, zero_stage=1, micro_batch=2, num_micro_batches=4)
PIPED = dataclasses.replace(BASE, pp=2)
# Field -> a plan, and the same plan with another value of this field alone (or with what it cannot be without).
PAIRS: dict[str, tuple[MeshPlan, MeshPlan]] = {
    "tp": (BASE, dataclasses.replace(BASE, tp=2)),
    "sequence_parallel": (dataclasses.replace(BASE, tp=2), dataclasses.replace(BASE, tp=2, sequence_parallel=True)),
    "cp": (BASE, dataclasses.replace(BASE, cp=2)),
    "cp_kind": (dataclasses.replace(BASE, cp=2), dataclasses.replace(BASE, cp=2, cp_kind="all_gather")),
    "ep": (BASE, dataclasses.replace(BASE, ep=2)),
    "etp": (
        dataclasses.replace(BASE, tp=2, sequence_parallel=True),
        dataclasses.replace(BASE, tp=2, sequence_parallel=True, etp=2),
    ),
    "pp": (BASE, PIPED),
    "vpp": (PIPED, dataclasses.replace(PIPED, vpp=2, schedule="interleaved")),
    "schedule": (PIPED, dataclasses.replace(PIPED, schedule="gpipe")),
    "dp_replicate": (BASE, dataclasses.replace(BASE, dp_replicate=2)),
    "dp_shard": (BASE, dataclasses.replace(BASE, dp_shard=8)),
    "zero_stage": (BASE, dataclasses.replace(BASE, zero_stage=2)),
    "micro_batch": (BASE, dataclasses.replace(BASE, micro_batch=3)),
    "num_micro_batches": (BASE, dataclasses.replace(BASE, num_micro_batches=8)),
    "recompute": (BASE, dataclasses.replace(BASE, recompute="selective")),
    "recompute_blocks": (
        dataclasses.replace(BASE, recompute="full", recompute_blocks=32),
        dataclasses.replace(BASE, recompute="full", recompute_blocks=3),
    ),
    "offload_optimizer": (BASE, dataclasses.replace(BASE, offload_optimizer=True)),
    "offload_activations": (BASE, dataclasses.replace(BASE, offload_activations=True)),
    "order": (PIPED, dataclasses.replace(PIPED, order="tp-cp-pp-dp")),
    "domain_gpus": (
        dataclasses.replace(BASE, dp_shard=32),
        dataclasses.replace(BASE, dp_shard=32, domain_gpus=16),
    ),
    "stage_blocks": (PIPED, dataclasses.replace(PIPED, stage_blocks=(15, 17))),
    "stage_recompute": (
        dataclasses.replace(PIPED, recompute="full", recompute_blocks=3),
        dataclasses.replace(PIPED, recompute="full", recompute_blocks=3, stage_recompute=(3, 1)),
    ),
    "block_splits": (
        dataclasses.replace(BASE, tp=2),
        dataclasses.replace(BASE, tp=2, block_splits=(LayerSplit(layer="blocks.1.up", role="column", degree=1),)),
    ),
}


def test_every_field_has_a_pair() -> None:
    # A new field of MeshPlan breaks this test and the table of every exporter (below): account for it everywhere.
    assert set(PAIRS) == {item.name for item in dataclasses.fields(MeshPlan)}


@pytest.mark.parametrize("target", TRAINERS)
def test_trainers_say_where_every_setting_goes(target: str) -> None:
    assert set(exporter_of(target).FIELDS) == set(MESH_SETTINGS)


def test_servers_say_where_every_setting_goes() -> None:
    for target in targets_that_take("serving"):
        assert set(exporter_of(target).FIELDS) == set(serving_settings())


def _job(plan: MeshPlan) -> Job:
    return job_of(plan, network=MIXTRAL)


def _configuration(files: Any) -> dict[str, str]:
    """What a program reads: without README, manifest and comments."""
    return {
        name: "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH") or not line.startswith("#"))
        for name, text in files.items()
        if name not in (README, MANIFEST)
    }


@pytest.mark.parametrize(("target", "version"), CASES)
@pytest.mark.parametrize("field", sorted(PAIRS))
def test_a_field_is_written_listed_or_refused(target: str, version: str, field: str) -> None:
    one, other = PAIRS[field]
    exporter = exporter_of(target)
    refused = refusals_of(exporter, _job(one), version) or refusals_of(exporter, _job(other), version)
    if refused:
        # For what was asked, not by accident.
        words = {
            "zero_stage": "zero",
            "cp_kind": "cp",
            "order": "pp",
            "stage_blocks": "pp",
            "stage_recompute": "pp",
            "schedule": "pp",
            "vpp": "pp",
            # torch takes no tensor parallelism of experts, which the network of this test has.
            "sequence_parallel": "tp",
            "block_splits": "tp",
            "etp": "tp",
        }
        assert any(words.get(field, field) in text.lower() for text in refused), refused
        with pytest.raises(UsageError, match="cannot run this plan"):
            make_export(_job(other), target, version)
        return
    before, after = (make_export(_job(plan), target, version) for plan in (one, other))
    account = after.account
    said = field in account.cannot or field in account.by_hand
    if not said:
        assert field in account.written
    # The target may have this value only, and list the other one.
    if not said and field not in before.account.cannot:
        assert _configuration(before.files) != _configuration(after.files), (
            f"{field} is said to be written and changes nothing"
        )
    for name in account.cannot:
        assert name in after.files[README]
        assert account.cannot[name] in after.files[MANIFEST] or '"' in account.cannot[name]


def test_strict_refuses_what_is_listed() -> None:
    job = _job(dataclasses.replace(BASE, offload_activations=True))
    assert "offload_activations" in make_export(job, "megatron").account.cannot
    with pytest.raises(UsageError, match="--strict: Megatron-LM cannot express offload_activations"):
        make_export(job, "megatron", strict=True)
    make_export(_job(BASE), "megatron", strict=True)


@pytest.mark.parametrize(
    ("target", "plan", "words"),
    [
        ("deepspeed", MeshPlan(pp=2, dp_shard=4, zero_stage=2), "pp 2 with zero_stage 2"),
        ("deepspeed", MeshPlan(pp=2, dp_shard=4, zero_stage=3), "pp 2 with zero_stage 3"),
        ("deepspeed", MeshPlan(cp=2, dp_shard=4, zero_stage=1), "Ulysses"),
        ("accelerate", MeshPlan(pp=2), "no pipeline parallelism"),
        ("accelerate", MeshPlan(tp=2, dp_replicate=2), "under FSDP only"),
        ("accelerate", MeshPlan(cp=2, dp_replicate=2, zero_stage=3), "dp_shard above 1"),
        ("accelerate", MeshPlan(tp=8, zero_stage=3), "there is only one"),
        ("nanotron", MeshPlan(dp_shard=4, zero_stage=3), "optimizer state only"),
        ("nanotron", MeshPlan(pp=2, vpp=2, schedule="interleaved"), "no virtual stages"),
        ("nanotron", MeshPlan(pp=8, num_micro_batches=6), "at least pp - 1 micro-batches"),
        (
            "deepspeed",
            MeshPlan(tp=2, pp=2, ep=2, dp_shard=4, zero_stage=1),
            "does not combine expert, tensor and pipeline",
        ),
        ("deepspeed", MeshPlan(tp=2, ep=2, dp_shard=4, zero_stage=2, offload_optimizer=True), "does not offload"),
        (
            "deepspeed",
            MeshPlan(ep=2, cp=2, cp_kind="all_to_all", dp_shard=4, zero_stage=3),
            "does not combine expert and sequence",
        ),
    ],
)
def test_refused_combinations(target: str, plan: MeshPlan, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_export(job_of(plan), target)


# What each target has a word for; its framework refuses every other one, or says what runs instead.
SCHEDULES_WRITTEN = {
    "accelerate": (),
    "deepspeed": ("1f1b",),
    "megatron": ("1f1b", "interleaved", "combined_1f1b"),
    "megatron-bridge": ("1f1b", "interleaved", "combined_1f1b"),
    "nanotron": ("gpipe", "1f1b"),
    "torch": (),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zb_v", "dualpipe_v", "interleaved_zb"),
}


@pytest.mark.parametrize(("target", "version"), CASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_is_written_as_another_without_a_word(target: str, version: str, schedule: str) -> None:
    vpp = schedule_of(schedule).vpp or 2
    plan = MeshPlan(pp=2, vpp=vpp, schedule=schedule, dp_shard=4, zero_stage=1, num_micro_batches=4)
    job = job_of(plan)
    if schedule == "combined_1f1b":  # is for experts alone
        job = job_of(dataclasses.replace(plan, ep=2), network=MIXTRAL)
    refused, cannot = broken_rules(exporter_of(target), job, version)
    refused += own_refusals(exporter_of(target), job, version)
    assert bool(refused or "schedule" in cannot) == (schedule not in SCHEDULES_WRITTEN[target])


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("megatron", "--microbatch-group-size-per-virtual-pipeline-stage 6"),
        ("megatron-bridge", "model.microbatch_group_size_per_vp_stage=6"),
    ],
)
def test_groups_of_micro_batches_are_written(target: str, words: str) -> None:
    """11 micro-batches on 4 ranks in groups of 6 and 5; PyTorch has equal groups only."""
    plan = MeshPlan(pp=4, vpp=2, schedule="interleaved", dp_shard=2, zero_stage=1, num_micro_batches=11)
    assert any(words in text for text in make_export(job_of(plan), target).files.values())
    for groups, refused in ((10, False), (11, True)):
        other = job_of(dataclasses.replace(plan, num_micro_batches=groups))
        found = broken_rules(exporter_of("torchtitan"), other, "2026-08")[0]
        assert any("equal groups" in sentence for sentence in found) == refused


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("megatron", "--overlap-moe-expert-parallel-comm"),
        ("megatron-bridge", "model.overlap_moe_expert_parallel_comm=true"),
    ],
)
def test_passes_that_run_together_are_written(target: str, words: str) -> None:
    """And refused for what Megatron's check of its arguments refuses: whole networks without experts, whole blocks recomputed."""
    plan = MeshPlan(pp=2, vpp=2, schedule="combined_1f1b", ep=2, dp_shard=4, zero_stage=1, num_micro_batches=4)
    for schedule in ("combined_1f1b", "interleaved"):
        files = make_export(job_of(dataclasses.replace(plan, schedule=schedule), network=MIXTRAL), target).files
        written = any(words in text for file, text in files.items() if file not in (README, MANIFEST))
        assert written == (schedule == "combined_1f1b")
    for changes, network in (({}, None), ({"recompute": "full", "recompute_blocks": 8}, MIXTRAL)):
        other = dataclasses.replace(plan, ep=2 if network else 1, **changes)
        refused = broken_rules(
            exporter_of(target), job_of(other, **({"network": network} if network else {})), "2026-08"
        )[0]
        assert any("run together" in sentence for sentence in refused)


def test_nanotron_refuses_pipelines_whose_loss_misses_the_last_stage() -> None:
    """16 blocks and a head of 3.9 on 16 stages (costmodel.framework.threshold_last); 8 stages run."""
    job = job_of(MeshPlan(pp=16, num_micro_batches=32))
    assert job.network is not None
    small = dataclasses.replace(
        job, network=dataclasses.replace(job.network, layers=16, hidden=2048, heads=16, ffn=8192, vocabulary=128256)
    )
    with pytest.raises(UsageError, match="puts the loss on stage 14 and waits for it on stage 15"):
        make_export(small, "nanotron")
    make_export(dataclasses.replace(small, plan=MeshPlan(pp=8, num_micro_batches=32), blocks=(2,) * 8), "nanotron")


def test_replicas_beside_tensor_parallelism_depend_on_the_version() -> None:
    plan = MeshPlan(tp=2, dp_replicate=4)
    with pytest.raises(UsageError, match="dp_replicate 4 with tp 2 and zero_stage 0"):
        make_export(job_of(plan), "torchtitan", "v0.2.2")
    make_export(job_of(plan), "torchtitan", strict=True)
    for able in (MeshPlan(dp_replicate=4), MeshPlan(tp=2, dp_replicate=2, dp_shard=2, zero_stage=2)):
        make_export(job_of(able), "torchtitan", "v0.2.2")


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_the_distributed_optimizer_takes_adam_only(target: str) -> None:
    with pytest.raises(UsageError, match=r"with optimizer momentum: .* with Adam only"):
        make_export(job_of(BASE, optimizer="momentum"), target)


@pytest.mark.parametrize(("ep", "domain_gpus", "backend"), [(4, 0, "deepep"), (4, 64, "hybridep"), (1, 0, "")])
def test_tokens_travel_to_experts_as_priced(ep: int, domain_gpus: int, backend: str) -> None:
    """Megatron-Bridge's costs have a fused dispatcher (node_copies 0), Megatron-LM's NCCL's all-to-all."""
    job = job_of(dataclasses.replace(BASE, ep=ep, dp_replicate=1, dp_shard=4, zero_stage=1))
    job = dataclasses.replace(job, nodes=dataclasses.replace(job.nodes, domain_gpus=domain_gpus))
    bridge = "".join(make_export(job, "megatron-bridge").files.values())
    assert (f"model.moe_flex_dispatcher_backend={backend}" in bridge) == bool(backend)
    assert ("model.moe_token_dispatcher_type=flex" in bridge) == bool(backend)


def test_unknown_targets_and_versions() -> None:
    with pytest.raises(UnknownName, match="did you mean 'megatron'"):
        make_export(FSDP, "megatrn")
    with pytest.raises(UnknownName, match=r"version of torchtitan 'v0\.2\.1' is not known; did you mean 'v0\.2\.2'"):
        make_export(FSDP, "torchtitan", "v0.2.1")


@pytest.mark.parametrize(("target", "version"), CASES)
@given(data=st.data())
def test_nothing_is_forgotten(target: str, version: str, data: Any) -> None:
    pp = data.draw(st.sampled_from([1, 2, 4]))
    schedule = data.draw(st.sampled_from(SCHEDULES)) if pp > 1 else "1f1b"
    vpp = schedule_of(schedule).vpp or data.draw(st.sampled_from([2, 4]))
    recompute = data.draw(st.sampled_from(RECOMPUTE))
    cp, shard = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 2, 8]))
    plan = MeshPlan(
        tp=data.draw(st.sampled_from([1, 2, 8])),
        sequence_parallel=data.draw(st.booleans()),
        cp=cp,
        cp_kind=data.draw(st.sampled_from(CP_KINDS)),
        ep=data.draw(st.sampled_from([1, 2])),
        etp=data.draw(st.sampled_from([1, 2])),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        dp_replicate=data.draw(st.sampled_from([1, 2])),
        dp_shard=shard,
        zero_stage=data.draw(st.integers(1, 3)) if cp * shard > 1 else 0,
        micro_batch=data.draw(st.integers(1, 4)),
        num_micro_batches=data.draw(st.sampled_from([4, 8])),
        recompute=recompute,
        recompute_blocks=data.draw(st.integers(1, 4)) if recompute == "full" else 0,
        offload_optimizer=data.draw(st.booleans()),
        offload_activations=data.draw(st.booleans()),
        order=data.draw(st.sampled_from(ORDERS)),
    )
    job = job_of(
        plan,
        network=data.draw(st.sampled_from([MIXTRAL, None])),
        precision=data.draw(st.sampled_from(list(PRECISIONS))),
        optimizer=data.draw(st.sampled_from(list(OPTIMIZERS))),
        lora_rank=data.draw(st.sampled_from([None, 8])),
        doc_lengths=data.draw(st.sampled_from([None, "of 512 positions"])),
    )
    exporter = exporter_of(target)
    account = Account()
    refused, account.cannot = broken_rules(exporter, job, version)
    if refused or own_refusals(exporter, job, version):
        return
    exporter.render(job, account, version)
    account.fill(exporter.FIELDS, job.in_effect)
    said = {*account.written, *account.cannot, *account.by_hand}
    assert {*settings_in_effect(plan), "precision", "optimizer", "seq"} <= said
    assert job.lora_rank is None or "lora_rank" in said
    assert job.doc_lengths is None or "doc_lengths" in said


def test_the_neutral_plan_has_no_settings() -> None:
    assert settings_in_effect(MeshPlan()) == []


SERVED: dict[str, tuple[Any, Any]] = {
    "tp": (ServingPlan(prefill_chunk=512), ServingPlan(tp=2, prefill_chunk=512)),
    "pp": (ServingPlan(prefill_chunk=512), ServingPlan(pp=2, prefill_chunk=512)),
    "ep": (ServingPlan(tp=2, etp=2), ServingPlan(tp=2, ep=2)),
    "etp": (ServingPlan(tp=2, ep=2), ServingPlan(tp=2, etp=2)),
    "dp": (ServingPlan(), ServingPlan(dp=2)),
    "max_batch": (ServingPlan(), ServingPlan(max_batch=7)),
    "prefill_chunk": (ServingPlan(), ServingPlan(prefill_chunk=512)),
    "prefill_batch": (ServingPlan(prefill_chunk=512), ServingPlan(prefill_chunk=512, prefill_batch=2)),
    "draft_tokens": (ServingPlan(draft_tokens=1), ServingPlan(draft_tokens=2)),
    "prefill_dp": (ServingPlan(prefill_dp=1), ServingPlan(prefill_dp=2)),
    "prefill_tp": (ServingPlan(prefill_dp=1), ServingPlan(prefill_dp=1, prefill_tp=2)),
    "prefill_pp": (ServingPlan(prefill_dp=1), ServingPlan(prefill_dp=1, prefill_pp=2)),
    "prefill_ep": (
        ServingPlan(prefill_dp=1, prefill_tp=2, prefill_etp=2),
        ServingPlan(prefill_dp=1, prefill_tp=2, prefill_ep=2),
    ),
    "prefill_etp": (
        ServingPlan(prefill_dp=1, prefill_tp=2, prefill_ep=2),
        ServingPlan(prefill_dp=1, prefill_tp=2, prefill_etp=2),
    ),
}


def test_every_field_of_serving_has_a_pair() -> None:
    assert {*SERVED} == {item.name for item in dataclasses.fields(ServingPlan)}


@pytest.mark.parametrize(
    ("target", "plan", "why"),
    [
        ("tensorrt-llm", ServingPlan(tp=16, prefill_dp=1), "a decode server of 16 devices: over several nodes of 8"),
        ("vllm", ServingPlan(prefill_dp=1, prefill_pp=2), "no caches of pipelines"),
        ("vllm", ServingPlan(pp=2, prefill_dp=1), "no caches of pipelines"),
        ("vllm", ServingPlan(tp=12, prefill_dp=1), "a decode server of 12 devices does not fill whole nodes of 8"),
        ("sglang", ServingPlan(pp=2, prefill_dp=1, prefill_pp=4), "caches go to as many stages, or to one"),
        ("sglang", ServingPlan(prefill_dp=1, prefill_tp=12), "a prefill server of 12 devices does not fill"),
    ],
)
def test_pools_that_cannot_be_started(target: str, plan: ServingPlan, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_export(serving_job(plan), target)


@pytest.mark.parametrize("target", targets_that_take("serving"))
@pytest.mark.parametrize("field", sorted(SERVED))
def test_a_field_of_serving_is_written(field: str, target: str) -> None:
    if (target, field) == ("vllm", "prefill_pp"):
        pytest.skip("refused: test_pools_that_cannot_be_started")
    one, other = (
        make_export(serving_job(plan, has_experts=field.endswith(("ep", "etp"))), target) for plan in SERVED[field]
    )
    assert _configuration(one.files) != _configuration(other.files)
    assert {*other.account.written, *other.account.cannot} >= {field}


def test_placement_on_uneven_nodes_is_listed() -> None:
    export = make_export(job_of(MeshPlan(dp_replicate=12)), "megatron")
    assert "equally many processes on every node" in export.account.cannot["placement"]
    assert "--nnodes 3" in export.files["train.sh"]
    assert "--nproc-per-node 4" in export.files["train.sh"]


def test_data_parallel_plans_of_any_network() -> None:
    for target in targets_that_take("data"):
        export = make_export(DATA, target)
        assert export.account.cannot == {
            "collective": "the library of collectives chooses; the plan names ring, tree per layer"
        }


def test_rows_of_the_list() -> None:
    rows = exporter_rows()
    assert [row["name"] for row in rows] == list(EXPORTERS)
    assert all(row["program"] and row["versions"] and row["plans"] and row["description"] for row in rows)


def test_all_jobs_of_the_tests_export() -> None:
    for target in targets_that_take("serving"):
        assert not make_export(SERVE, target).account.cannot
    make_export(EXPERTS, "megatron")


# --- The tables of docs/export.md are those of the exporters ------------------------------------------------------------------------------


PAGE = Path(__file__).resolve().parents[3] / "docs" / "export.md"


def _fields(target: str, kind: str) -> Mapping[str, str]:
    exporter: Any = exporter_of(target)
    return exporter.LAYER_FIELDS if kind == "layers" else exporter.FIELDS


@pytest.mark.parametrize(
    ("mark", "kind", "settings"),
    [
        ("trainers", "mesh", MESH_SETTINGS),
        ("servers", "serving", serving_settings()),
        ("layers", "layers", LAYER_SETTINGS),
    ],
)
def test_tables(mark: str, kind: str, settings: Sequence[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in match[1].splitlines()]
    targets = targets_that_take(kind)
    assert header == ["setting", *targets]
    wanted = [[name, *(_fields(target, kind)[name].replace("|", "\\|") for target in targets)] for name in settings]
    assert rows == wanted


def _frameworks() -> list[tuple[str, str]]:
    """Targets and the frameworks whose plans they write."""
    part = PAGE.read_text(encoding="utf-8").split("## What a framework can run\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \| `(.*?)`", part, re.MULTILINE)


def test_every_trainer_has_a_framework() -> None:
    assert dict(_frameworks()) == {target: exporter_of(target).FRAMEWORK for target in targets_that_take("mesh")}


@pytest.mark.e2e
@pytest.mark.parametrize(("target", "framework"), _frameworks())
@mostly(
    "published", "question", ["llama3-8b --gpus 16 --batch 64 --seq 2048", "llama2-13b --gpus 64 --batch 256"], quick=1
)
def test_what_is_found_under_it_loses_nothing(
    target: str, framework: str, question: str, tmp_path: Path, answer: Any
) -> None:
    plan = tmp_path / "plan.yaml"
    answer("optimize", *question.split(), "--framework", framework, "--top", "1", "-q", "--export", plan)
    assert answer("export", plan, "--to", target, "--strict", "-o", tmp_path / "run")

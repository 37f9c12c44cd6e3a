"""Rows of training runs against the cost model asked directly, and rows that cannot be scored."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.machines import put_attention
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.sharding import sharding_of as words_of_sharding
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.workload import Workload
from planner.files.loading import load_cluster
from planner.measurements import tables
from planner.measurements.networks import shape_of, transformer
from planner.measurements.outcomes import Outcome
from planner.measurements.parallelism import sharding_of, step_time_s
from tests.benchmarks.datasets.published_rows import PLANS, canonical, plan_of, run, seconds

CELLS = {
    "net": "GPT",
    "hidden": "2048",
    "layers": "24",
    "heads": "16",
    "ffn": "8192",
    "vocab": "50304",
    "seq": "2048",
    "precision": "bf16",
    "device": "a100-80gb",
    "gpus_per_node": "8",
    "gpus": "16",
    "global_batch": "128",
    "micro_batch": "4",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "sp": "0",
    "zero_stage": "1",
    "recompute": "full",
    "flash_attention": "yes",
    "step_time_ms": "1500",
}


def row(**changes: str) -> Row:
    return Row(line=2, cells={**CELLS, **changes})


def outcome(**changes: str) -> Outcome:
    (only,) = PLANS.predict([row(**changes)])
    return only


def test_a_row_is_what_the_cost_model_says_of_its_plan() -> None:
    graph = transformer(shape_of(canonical(row(), PLANS.convert), fused=True))
    cluster = load_cluster("dgx-a100").cluster
    precision, optimizer = PRECISIONS["bf16"], OPTIMIZERS["adam"]
    compute = RooflineCompute(device=cluster.device, precision=precision, optimizer=optimizer)
    workload = Workload(graph=graph, global_batch=128, precision=precision, optimizer=optimizer, compute=compute)
    plan = MeshPlan(
        tp=2, pp=2, dp_shard=4, zero_stage=1, micro_batch=4, num_micro_batches=8, recompute="full", recompute_blocks=24
    )
    costs = MeshModel.build(
        workload, cluster, dataclasses.replace(MeshAssumptions(), main_gradient_bytes=4.0)
    ).evaluate_plans([plan])
    found = outcome()
    assert found.comparisons[0].predicted_s == pytest.approx(float(costs.step_time_s[0]), rel=1e-12)
    assert found.memory.predicted_bytes == pytest.approx(float(costs.memory_bytes[0]), rel=1e-12)
    assert found.row.defaults == {}
    # 6 FLOPs per parameter in matrices and token (the embedding is tied: its matrix is the head's), and causal attention 6 x seq x hidden
    # per layer and token.
    matrices = 24 * 12 * 2048**2 + 50304 * 2048
    flop = 128 * 2048 * (6 * matrices + 24 * 6 * 2048 * 2048)
    assert found.comparisons[0].ideal_s == pytest.approx(flop / (16 * 312e12), rel=0.002)


def test_what_is_not_stated_is_noted() -> None:
    found = outcome(recompute="", zero_stage="", sp="", vocab="")
    assert set(found.row.defaults) == {"recompute", "zero_stage", "sp", "vocab"}
    assert found.is_scored


def test_a_micro_batch_that_is_not_stated_is_the_fastest_that_fits() -> None:
    tuned = outcome(micro_batch="")
    tried = [outcome(micro_batch=str(2**n)) for n in range(6)]
    fitting = [o for o in tried if o.memory is not None and o.memory.fits]
    assert tuned.comparisons[0].predicted_s == min(o.comparisons[0].predicted_s for o in fitting)
    assert tuned.row.defaults == {"micro_batch": "tuned"}


def test_the_global_batch_decides_how_many_micro_batches_there_are() -> None:
    odd = outcome(grad_accum="5")
    assert odd.comparisons == outcome().comparisons
    assert odd.row.defaults == {"grad_accum": 8}


def test_a_throughput_stands_for_a_step_time() -> None:
    by_time = outcome(step_time_ms="1000")
    by_tokens = outcome(step_time_ms="", tokens_per_s_per_gpu=str(128 * 2048 / 16))
    assert by_tokens.comparisons == by_time.comparisons


@pytest.mark.parametrize(
    ("changes", "reason", "usable"),
    [
        ({"suspect": "1"}, "marked suspect", False),
        ({"step_time_ms": ""}, "no measured time", False),
        ({"step_time_ms": "0"}, "no measured time", False),
        ({"step_time_ms": "nan"}, "column step_time_ms holds no number", False),
        ({"step_time_ms": "0.003"}, "wrong unit", False),
        ({"step_time_ms": "1e9"}, "wrong unit", False),
        ({"memory_gib": "81000"}, "memory above that of the device", False),
        ({"hidden": ""}, "shape is not stated", False),
        ({"dp": "5"}, "is not the number of GPUs", False),
        ({"micro_batch": "64"}, "more than the global batch", False),
        ({"micro_batch": "3"}, "micro_batch x dp does not divide the global batch", False),
        ({"micro_batch": "", "global_batch": "127"}, "dp does not divide the global batch", False),
        ({"vpp": "100"}, "pp 2 x vpp 100 is more than the", False),
        ({"vpp": "100", "pp": "1", "dp": "8"}, "pp 1 x vpp 100 is more than the", False),
        # Not whole groups of pp micro-batches: the chunks would not be interleaved, and cannot be had all the same.
        ({"vpp": "100", "global_batch": "120", "micro_batch": "1"}, "pp 2 x vpp 100 is more than the", False),
        ({"micro_batch": "", "global_batch": "3"}, "more data-parallel ranks than samples", False),
        ({"device": "Abacus 9000"}, "device 'Abacus 9000' is not known", False),
        ({"precision": "int3"}, "'int3' is not known", False),
        ({"recompute": "sometimes"}, "recompute is none of", False),
        ({"pp": "4", "dp": "2", "layers": "3"}, "impossible: pp 4 is more than the 3 blocks of the network", True),
        ({"tp": "3", "gpus": "24"}, "impossible: tp 3 does not divide the 16 attention heads; allowed: ", True),
    ],
)
def test_rows_that_are_left_out(changes: dict[str, str], reason: str, usable: bool) -> None:
    found = outcome(**changes)
    assert reason in found.skipped
    assert found.usable is usable


def test_failed_runs_count_for_feasibility_only() -> None:
    failed = outcome(
        oom="OOM",
        step_time_ms="1500",
        tp="1",
        pp="1",
        dp="16",
        zero_stage="0",
        recompute="none",
        micro_batch="8",
        seq="8192",
        flash_attention="no",
    )
    assert failed.failed
    assert not failed.comparisons
    assert not failed.memory.fits
    more_stages_than_layers = outcome(oom="OOM", pp="4", dp="2", layers="3")
    assert more_stages_than_layers.impossible == "pp 4 is more than the 3 blocks of the network"


def test_rows_of_one_question_have_one_key() -> None:
    first, second = PLANS.predict([row(), row(tp="4", dp="2")])
    assert first.ranking == second.ranking
    assert first.ranking != outcome(global_batch="64").ranking


def shared(said: dict[str, str], node: int = 0) -> tuple[int, int, int]:
    """Stage, replicas and ranks that share of eight replicas."""
    row, cells = Row(line=2, cells=said), Cells()
    stage, group = words_of_sharding(row, node)
    cells.put("zero_stage", stage)
    cells.put("shard_group", group)
    put_attention(row, cells)
    return sharding_of(tables.Row(line=2, cells=cells), dp=8, cp=1)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, (0, 8, 1)),
        ({"zero_stage": "3"}, (3, 1, 8)),
        ({"fsdp": "FULL_SHARD", "zero_stage": "3"}, (3, 1, 8)),
        ({"fsdp": "HYBRID_SHARD", "gpus_per_node": "4"}, (3, 2, 4)),
        ({"fsdp": "SHARD_GRAD_OP"}, (2, 1, 8)),
        ({"fsdp": "0"}, (0, 8, 1)),
        ({"fsdp": "4"}, (3, 2, 4)),
        ({"zero_stage": "1", "zero1_group": "-1 (all DP ranks)"}, (1, 1, 8)),
        ({"zero_stage": "1", "zero1_group": "4"}, (1, 2, 4)),
        ({"framework": "NeMo 24.07"}, (1, 1, 8)),
        ({"fsdp": "HSDP (in a node)", "gpus_per_node": "4"}, (3, 2, 4)),
        ({"fsdp": "FSDP2"}, (3, 1, 8)),
        ({"framework": "DeepSpeed ZeRO-2"}, (2, 1, 8)),
        ({"framework": "DeepSpeed (ZeRO stage 3)"}, (3, 1, 8)),
        ({"framework": "DeepSpeed ZeRO-Infinity"}, (3, 1, 8)),
        ({"framework": "DeepSpeed ZeRO-3", "zero_stage": "1"}, (1, 1, 8)),
        ({"framework": "DeepSpeed 0.6"}, (0, 8, 1)),
    ],
)
def test_sharding(cells: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert shared(cells) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"zero_stage": "HSDP"}, (3, 2, 4)),
        ({"zero_stage": "hybrid_shard", "gpus_per_node": "2"}, (3, 4, 2)),
        ({"zero_stage": "fsdp", "fsdp": "HSDP"}, (3, 2, 4)),
        ({"zero_stage": "ZeRO++"}, (3, 1, 8)),
        ({"zero_stage": "full_shard"}, (3, 1, 8)),
        ({"zero_stage": "ZeRO-Infinity"}, (3, 1, 8)),
        ({"zero_stage": "ZeRO-Offload"}, (2, 1, 8)),
        ({"zero_stage": "SHARD_GRAD_OP"}, (2, 1, 8)),
        ({"zero_stage": "Pos+g"}, (2, 1, 8)),
        ({"zero_stage": "distributed optimizer"}, (1, 1, 8)),
        ({"zero_stage": "3.0"}, (3, 1, 8)),
        ({"zero_stage": "DDP"}, (0, 8, 1)),
    ],
)
def test_sharding_by_name(cells: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert shared(cells, node=4) == expected


@pytest.mark.parametrize("text", ["4", "perhaps", "yes", "1.5", "true"])
def test_sharding_that_nobody_can_read(text: str) -> None:
    with pytest.raises(Unreadable, match="zero_stage is none of 0, 1, 2, 3"):
        shared({"zero_stage": text})


def test_a_run_that_succeeded_shared_as_much_as_it_had_to() -> None:
    """7B on eight GPUs of 40 GB needs 112 GB of states; what it says about memory stays that of plain data parallelism."""
    cells = {
        **CELLS,
        "device": "a100-40gb",
        "hidden": "4096",
        "layers": "32",
        "heads": "32",
        "ffn": "16384",
        "gpus": "8",
        "tp": "",
        "pp": "",
    }
    cells |= {
        "zero_stage": "",
        "recompute": "full",
        "micro_batch": "1",
        "global_batch": "8",
        "dp": "8",
        "step_time_ms": "1500",
    }
    (found,) = PLANS.predict([Row(line=2, cells=cells)])
    assert found.row.defaults["zero_stage"] == 3
    assert found.comparisons[0].plan.zero_stage == 3
    assert not found.memory.fits
    for more in ({"zero_stage": "0"}, {"framework": "DDP", "zero_stage": "ddp"}):
        (stated,) = PLANS.predict([Row(line=2, cells={**cells, **more})])
        assert stated.comparisons[0].plan.zero_stage == 0
    (failed,) = PLANS.predict([Row(line=2, cells={**cells, "step_time_ms": "OOM"})])
    assert failed.failed
    assert failed.memory.predicted_bytes == found.memory.predicted_bytes


def test_one_replica_shards_nothing() -> None:
    assert sharding_of(tables.Row(line=2, cells={"zero_stage": "3"}), dp=1, cp=1) == (0, 1, 1)


LLAMA = {
    "model": "LLAMA3_70B", "seq": "8192", "precision": "FP8", "device": "DGX-GB200", "gpus_per_node": "4", "nvlink_domain": "72",
    "gpus": "64", "global_batch": "256", "micro_batch": "2", "tp": "1", "pp": "1", "fsdp": "64", "tokens_per_s_per_gpu": "4040",
}  # fmt: skip


def test_recipes_recompute_as_much_as_memory_asks_for() -> None:
    """Two sequences of 8192 positions keep 400 GB in 80 blocks; NVIDIA ran this, and does not say what it recomputed."""
    fits, not_stated, full = (
        PLANS.predict([Row(line=2, cells={**LLAMA, **more})])[0]
        for more in ({"framework": "26.02 NeMo Container"}, {"framework": "my trainer"}, {"recompute": "full"})
    )
    assert fits.memory.fits
    assert not not_stated.memory.fits
    assert not_stated.comparisons[0].predicted_s < fits.comparisons[0].predicted_s < full.comparisons[0].predicted_s


def test_embedding_and_loss_may_count_as_blocks_of_a_pipeline() -> None:
    """Llama 3.1 405B has 126 blocks; Megatron-Bridge runs it as 16 stages of 8 chunks."""
    cells = {
        "model": "LLAMA3.1_405B", "seq": "8192", "precision": "MXFP8", "device": "DGX-GB200", "gpus": "256", "global_batch": "1536",
        "micro_batch": "1", "tp": "4", "pp": "16", "vpp": "8", "framework": "26.02 NeMo Container", "step_time_ms": "62530",
    }  # fmt: skip
    found, more = (PLANS.predict([Row(line=2, cells={**cells, "vpp": vpp})])[0] for vpp in ("8", "9"))
    assert found.is_scored
    assert found.comparisons[0].plan.vpp == 7
    assert not more.is_scored
    assert "more than the 126 blocks" in more.skipped


def test_chunks_of_embedding_and_loss_hold_no_block() -> None:
    """22 blocks on 8 stages of 3 chunks: the last rank computes two blocks and the head, as with 1F1B, and waits a third as long.

    Zero Bubble Pipeline Parallelism (arXiv:2401.10241), tables 3 and 4, has 1.37 and 1.53 s for them.
    """
    cells = {
        "net": "GPT", "hidden": "2304", "layers": "22", "heads": "24", "vocab": "50304", "seq": "1024", "precision": "fp16",
        "device": "A100-80GB SXM", "gpus": "8", "global_batch": "144", "micro_batch": "6", "tp": "1", "pp": "8", "dp": "1",
        "framework": "Megatron-LM", "zero_stage": "0", "recompute": "none", "step_time_ms": "1374",
    }  # fmt: skip
    found = [PLANS.predict([Row(line=2, cells={**cells, "vpp": vpp})])[0].comparisons[0] for vpp in ("3", "1")]
    chunked, whole = (one.predicted_s for one in found)
    # (24 + 7 / 3) against (24 + 7) of the slowest rank's time; the transfers of three times as many messages cost a little.
    assert 0.84 < chunked / whole < 1.02


def test_samples_per_second() -> None:
    assert step_time_s(tables.Row(line=2, cells={"samples_per_s": "20", "global_batch": "64"})) == 3.2


@pytest.mark.parametrize("model", ["mixtral-8x7b", "gpt-oss-20b"])
def test_mixtures_of_experts_have_sequence_parallelism_beside_tp(model: str) -> None:
    """They need it, whatever ep and framework are; a row that says otherwise is told why it is left out."""
    cells = {
        "model": model,
        "net": "",
        "hidden": "",
        "layers": "",
        "heads": "",
        "ffn": "",
        "vocab": "",
        "sp": "",
        "gpus": "64",
        "tp": "8",
    }
    cells |= {"pp": "1", "dp": "8", "device": "h100-sxm", "step_time_ms": "9000"}
    found = outcome(**cells)
    assert found.comparisons, found.skipped
    assert found.comparisons[0].plan.sequence_parallel
    assert found.row.defaults["sp"]
    assert "a mixture of experts with tp 8 needs sequence parallelism" in outcome(**{**cells, "sp": "no"}).skipped


# --- Schedules of pipelines in the words of frameworks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "vpp", "schedule"),
    [
        ("", "", "1f1b"),
        ("", "2", "interleaved"),
        ("1F1B", "", "1f1b"),
        ("1F1B", "2", "interleaved"),  # the chunks are stated
        ("Interleaved1F1B", "", "interleaved"),
        ("1F1B (interleaved)", "", "interleaved"),
        ("1F1B, non-interleaved", "", "1f1b"),
        ("GPipe", "", "gpipe"),
        ("AFAB", "", "gpipe"),
        ("ZB-H1", "", "zero_bubble"),
        ("ZBVZeroBubble", "2", "zb_v"),
        ("DualPipeV", "", "dualpipe_v"),
        ("DualPipe", "", "1f1b"),
    ],
)
def test_words_of_schedules(text: str, vpp: str, schedule: str) -> None:
    assert plan_of(schedule=text, vpp=vpp).schedule == schedule


def test_a_schedule_that_is_not_known_and_chunks_that_are_not_stated_are_noted() -> None:
    interleaved = run(schedule="interleaved")
    assert interleaved.row.defaults["vpp"] == "the fastest that fits"
    assert seconds(interleaved) == min(seconds(run(vpp=chunks)) for chunks in ("2", "4", "8", "16"))
    assert plan_of(schedule="ZB-H1", pp="1", dp="16").schedule == "1f1b"
    assert seconds(run(schedule="ZB-H1")) < seconds(run()) < seconds(run(schedule="GPipe", recompute="full")) * 1.001

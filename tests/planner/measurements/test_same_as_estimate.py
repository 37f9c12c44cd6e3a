"""`planner validate` and `planner.estimate` are one cost model: rows of tables predicted by both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from benchmarks.datasets import read
from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from costmodel.mesh.detail import stage_rows
from costmodel.mesh.plan import MEASURED_MEMORY, MeshPlan
from planner.files.documents import parse_document
from planner.files.loading import load_device
from planner.files.naming.frameworks import framework_of
from planner.files.resources import bundled
from planner.measurements import convnets, kernels, plans
from planner.measurements.fitted import _OF_STEPS, _ONLY, fitted_of
from planner.measurements.kinds import recognise
from planner.measurements.networks import network_of
from planner.measurements.outcomes import DEFAULT, Outcome, Preset
from planner.measurements.plans import MemoryLog, asked, reported_bytes
from planner.measurements.tables import Row, RowSkipped, read_table
from tests.cases import mostly
from tests.costmodel.mesh import plans as make
from tests.planner.measurements.single_rows import seconds
from tests.strategies.mesh.networks import decoder

_TABLES = {
    "nemo_megatron_bridge": plans,
    "tf_cnn_benchmarks": convnets,
    "nvidia_dle_resnet_bert": convnets,
}


# Rows that both can be asked about.
_LEAST = {"nemo_megatron_bridge": 23, "tf_cnn_benchmarks": 136, "nvidia_dle_resnet_bert": 48}


def cluster_file(cluster: Cluster, device: str) -> dict[str, Any]:
    """A cluster as a row has it, as a file of one's own; its host is that of the bundled one."""
    base = cluster.name.removesuffix(" as measured")
    content = dict(parse_document(bundled("clusters")[base]).value) if base in bundled("clusters") else {}
    levels = [
        {
            "name": level.name,
            **({} if level.size is None else {"size": level.size}),
            "bandwidth": f"{level.bandwidth_bytes_per_s * level.shared_by!r} B/s",
            "latency": f"{level.latency_s!r} s",
            "efficiency": level.efficiency,
            "shared_by": level.shared_by,
            "ring_step": f"{level.ring_step_s!r} s",
            "in_network": level.in_network,
        }
        for level in cluster.levels
    ]
    kept = {key: content[key] for key in ("host",) if key in content}
    return {
        "schema_version": 1,
        "name": "as-measured",
        "device": device,
        "levels": levels,
        **kept,
        "source": {"levels": "a row of a table"},
    }


def differing(ours: Any, usual: Any) -> dict[str, float]:
    """Assumptions that a row states otherwise."""
    fields = [field.name for field in dataclasses.fields(ours)]
    return {name: getattr(ours, name) for name in fields if getattr(ours, name) != getattr(usual, name)}


def stated(row: Row) -> dict[str, float]:
    """Assumptions that the columns of a row of a transformer state."""
    bits = row.count("gradient_bits")
    found = {} if bits is None else {"main_gradient_bytes": bits / 8.0}
    return {**found, "gathered_copies": 1.0} if row.flag("gathered_inputs") else found


def balanced(meant: plans.Question) -> dict[str, float]:
    """What published runs of a framework that forces equal loads of experts have, and others of it have not."""
    forced = meant.framework.defaults.forces_balance and "moe" in meant.graph.kinds
    return {"expert_spread": 0.0} if forced else {}


def estimate_of_plan(row: Row, plan: MeshPlan) -> float:
    """A row of a transformer as a user would ask it, with the plan that it means."""
    meant = plans.asked(row)
    assert isinstance(meant, plans.Question)
    found = planner.estimate(
        row.text("model"),
        cluster=cluster_file(meant.machine.cluster, meant.machine.device.name),
        gpus=plan.workers,
        batch=meant.global_batch,
        seq=row.count("seq"),
        precision=meant.precision.name,
        framework=meant.framework.name or None,
        assume=stated(row) | balanced(meant) or None,
        tp=plan.tp,
        cp=plan.cp,
        ep=plan.ep,
        etp=plan.etp,
        pp=plan.pp,
        vpp=plan.vpp,
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard,
        zero=plan.zero_stage,
        micro_batch=plan.micro_batch,
        num_micro_batches=plan.num_micro_batches,
        schedule=plan.schedule,
        recompute=plan.recompute,
        recompute_blocks=plan.recompute_blocks or None,
        sequence_parallel=plan.sequence_parallel,
        cp_kind=plan.cp_kind if plan.cp > 1 else None,
        order=plan.order,
        offload="optimizer" if plan.offload_optimizer else "none",
    )
    return float(found.step_time_s)


def estimate_of_images(row: Row) -> float:
    """A row of a network for images as a user would ask it."""
    run = convnets.asked(row)
    usual = run.framework.layer_assumptions(run.precision)
    found = planner.estimate(
        run.network,
        cluster=cluster_file(run.machine.cluster, run.machine.device.name),
        gpus=run.workers,
        batch=run.batch,
        precision=run.precision.name,
        optimizer="adam" if len(convnets.graph_of(run.network).layers[0].output_shape) == 2 else "momentum",
        framework=run.framework.name if run.framework.name not in ("", "unknown") else None,
        assume=differing(run.assumptions, usual) or None,
        micro_batches=run.accumulated,
        family="data" if run.workers > 1 else "one-device",
    )
    return float(found.step_time_s)


def scored(table: str, folder: Path) -> Iterator[tuple[Row, float, MeshPlan | None]]:
    """Rows that both can be asked about, and what validate predicts."""
    rows = read(folder / "measurements" / f"{table}.csv").rows
    module = _TABLES[table]
    if module is convnets:
        rows = tuple(row for row in rows if "BERT" not in row.text("model"))
    for outcome in module.predict(rows, DEFAULT):
        row = outcome.row
        if outcome.skipped or not outcome.comparisons:
            continue
        if module is plans and not _is_bundled(row):
            continue
        if module is convnets and convnets.asked(row).passes_only:
            continue
        yield row, outcome.comparisons[0].predicted_s, outcome.comparisons[0].plan


def _is_bundled(row: Row) -> bool:
    """Whether a row means a bundled network as it is, in a format that questions have."""
    meant = plans.asked(row)
    own = isinstance(meant, plans.Question) and not any(layer.lora_rank for layer in meant.graph.layers)
    return own and row.text("model") in bundled("models") and meant.precision.name != "fp4"


_PARTS = 4


@mostly(
    "published",
    ("table", "part"),
    [(table, part) for part in range(_PARTS) for table in _TABLES],
    quick=0,
    every=len(_TABLES),
)
def test_rows_of_published_tables(table: str, part: int, reference_data: Path) -> None:
    """Together more than 200 rows, those that leave settings open among them; the plan is the one that the row's policy chose.

    A part is every fourth row.
    """
    rows = list(scored(table, reference_data))
    assert len(rows) >= _LEAST[table]
    for row, predicted_s, plan in rows[part::_PARTS]:
        asked_s = estimate_of_images(row) if plan is None else estimate_of_plan(row, plan)
        assert asked_s == pytest.approx(predicted_s, rel=1e-9), f"{table}.csv, line {row.line}"


_RUNS: tuple[Mapping[str, str], ...] = (
    {
        "model": "llama3-8b", "framework": "megatron-lm", "device": "h100-sxm", "precision": "bf16", "gpus": "16", "tp": "2", "pp": "2",
        "dp": "4", "sp": "yes", "recompute": "none", "global_batch": "64", "seq": "4096", "step_time_ms": "2000",
    },
    {
        "model": "llama3-8b", "framework": "nanotron", "device": "h100-sxm", "precision": "bf16", "gpus": "16", "tp": "2", "pp": "4",
        "micro_batch": "1", "global_batch": "64", "seq": "4096", "step_time_ms": "2000",
    },
    {
        "model": "resnet50", "framework": "pytorch", "device": "v100-16gb", "precision": "fp16", "gpus": "8", "batch_per_gpu": "128",
        "step_time_ms": "150",
    },
    {
        "model": "resnet50", "framework": "tensorflow", "parameter_servers": "yes", "data": "real", "storage_MBps": "400",
        "sample_kB": "110", "device": "k80", "precision": "fp32", "gpus": "16", "batch_per_gpu": "32", "step_time_ms": "2000",
    },
)  # fmt: skip


@pytest.mark.parametrize("cells", _RUNS, ids=lambda cells: f"{cells['model']}, {cells['framework']}")
def test_runs(cells: Mapping[str, str]) -> None:
    """Wherever a row and a question say the same, they are answered the same; software, servers and input included."""
    row = Row(line=2, cells=dict(cells))
    module = plans if "seq" in cells else convnets
    (outcome,) = module.predict([row], DEFAULT)
    comparison = outcome.comparisons[0]
    asked_s = estimate_of_images(row) if comparison.plan is None else estimate_of_plan(row, comparison.plan)
    assert asked_s == pytest.approx(comparison.predicted_s, rel=1e-9)
    bare = convnets.asked(row).assumptions if comparison.plan is None else None
    assert bare is None or bare != type(bare)()  # the framework adds something


@pytest.mark.parametrize(
    "cells",
    [
        {"framework": "torchtitan", "micro_batch": "1"},
        {"framework": "pytorch-fsdp", "micro_batch": "1"},
        {"framework": "torchtune", "micro_batch": "1"},
        {"framework": "megatron-bridge", "micro_batch": "1", "tp": "2"},
        {"framework": "megatron-bridge", "micro_batch": "4"},  # recomputes what it must
        {"framework": "megatron-bridge", "micro_batch": "1", "tp": "2", "gradient_bits": "32"},
        {"framework": "jax"},  # cuts no batch into micro-batches, and recomputes all
        {
            "framework": "megatron-lm",
            "micro_batch": "1",
            "tp": "4",
            "sp": "yes",
            "precision": "fp16",
            "device": "a100-80gb",
        },
        {"framework": "deepspeed", "micro_batch": "1", "zero_stage": "2", "cpu_offload": "yes", "recompute": "full"},
        {
            "framework": "pytorch",
            "micro_batch": "1",
            "precision": "fp16",
            "model": "gpt3-1.3b",
            "flash_attention": "yes",
            "seq": "2048",
        },
        {"framework": "arctic-training", "micro_batch": "1"},
    ],
    ids=lambda cells: ", ".join(cells.values()),
)
def test_what_nobody_states_is_the_same(cells: Mapping[str, str]) -> None:
    """A framework's defaults count in both; only what the columns say is asked."""
    run = {
        "model": "llama3-8b",
        "device": "h100-sxm",
        "precision": "bf16",
        "gpus": "16",
        "global_batch": "64",
        "seq": "4096",
    }
    row = Row(line=2, cells={**run, **cells, "step_time_ms": "9000"})
    (outcome,) = plans.predict([row], DEFAULT)
    meant = plans.asked(row)
    assert isinstance(meant, plans.Question), meant
    words = {"tp": "tp", "micro_batch": "micro_batch", "zero_stage": "zero"}
    found = planner.estimate(
        row.text("model"),
        cluster=cluster_file(meant.machine.cluster, meant.machine.device.name),
        gpus=16,
        batch=64,
        seq=row.count("seq"),
        precision=row.text("precision"),
        framework=row.text("framework"),
        assume=stated(row) or None,
        offload="optimizer" if row.flag("cpu_offload") else None,
        recompute=row.text("recompute") or None,
        **{word: row.count(name) for name, word in words.items() if row.has(name)},
    )
    assert found.step_time_s == pytest.approx(outcome.comparisons[0].predicted_s, rel=1e-9)
    plan = outcome.comparisons[0].plan
    assert plan is not None
    usual = meant.framework.defaults
    assert row.has("zero_stage") or plan.zero_stage == (usual.zero_stage or 0)


def test_runs_of_millions_of_positions_are_those_of_their_recipes() -> None:
    """Published to fit 80 GB (arXiv:2506.13996, abstract): Ulysses, chunks, optimizer and inputs of blocks on the host."""
    run = {"model": "llama3-8b", "device": "h100-sxm", "precision": "bf16", "global_batch": "1", "micro_batch": "1"}
    for gpus, seq in (("8", "3700000"), ("32", "15000000")):
        long = {"gpus": gpus, "cp": gpus, "seq": seq, "framework": "DeepSpeed, ArcticTraining", "step_time_ms": "7e6"}
        (outcome,) = plans.predict([Row(line=2, cells={**run, **long})], DEFAULT)
        plan = outcome.comparisons[0].plan
        assert (plan.cp_kind, plan.zero_stage, plan.recompute) == ("all_to_all", 3, "full")
        assert plan.offload_optimizer
        assert plan.offload_activations
        model = plans.model_of(plans.asked(Row(line=2, cells={**run, **long})), DEFAULT)
        # These are the longest sequences that fit the 79.6 GiB of the device.
        assert 0.9 * 79.6 * 2**30 < float(model.evaluate_plans([plan]).memory_bytes[0]) < 79.6 * 2**30


def test_documents_of_a_row_are_those_of_the_option() -> None:
    run = {
        "model": "llama3-8b",
        "device": "h100-sxm",
        "precision": "bf16",
        "gpus": "8",
        "global_batch": "8",
        "seq": "32768",
    }
    packed = {"micro_batch": "1", "zero_stage": "3", "recompute": "full", "doc_length": "2048", "doc_cv": "1.5"}
    row = Row(line=2, cells={**run, **packed, "step_time_ms": "9000"})
    (outcome,) = plans.predict([row], DEFAULT)
    options = {
        "gpus": 8,
        "batch": 8,
        "seq": 32768,
        "micro_batch": 1,
        "zero": 3,
        "recompute": "full",
        "precision": "bf16",
    }
    machine = plans.asked(row).machine
    cluster = cluster_file(machine.cluster, machine.device.name)
    found = planner.estimate("llama3-8b", cluster=cluster, doc_lengths=2048, doc_cv=1.5, assume=stated(row), **options)
    assert found.step_time_s == pytest.approx(outcome.comparisons[0].predicted_s, rel=1e-9)


@pytest.mark.parametrize(
    ("cells", "trained"),
    [
        ({}, "qkv"),
        ({"framework": "accelerate"}, "all"),  # recipes of PEFT
        ({"framework": "accelerate", "lora_targets": "qkv"}, "qkv"),
        ({"lora_targets": "all"}, "all"),
    ],
)
def test_adapters_stand_where_the_framework_puts_them(cells: Mapping[str, str], trained: str) -> None:
    row = Row(line=2, cells={"model": "llama3-8b", "lora_rank": "8", **cells})
    layers = [layer for layer in network_of(row, "bf16").layers if layer.lora_rank]
    assert len(layers) == 32 * (1 if trained == "qkv" else 4)


# --- The memory that the log of a framework has -------------------------------------------------------------------------------------------


_NANOTRON = framework_of("nanotron")


def _model(vocabulary: int = 512, framework: Framework = NO_FRAMEWORK):
    graph = decoder(blocks=8, features=64, kv_heads=4, ffn=128, vocabulary=vocabulary)
    return make.model_of(graph, 8, make.ideal_cluster(), framework=framework)


def test_the_log_has_the_memory_of_the_first_rank() -> None:
    model = _model(vocabulary=65536)  # the last rank is the fullest: it holds the logits
    plan = MeshPlan(pp=2, num_micro_batches=8, stage_blocks=(5, 3))
    costs = model.evaluate_plans([plan])
    rows = stage_rows(model, plan)
    assert rows[1].memory_bytes == costs.memory_bytes[0] > rows[0].memory_bytes
    logged = reported_bytes(model, [plan], costs.memory_bytes, MemoryLog("reserved", "first"))
    assert logged[0] == pytest.approx(rows[0].memory_bytes - model.workload.context_bytes, rel=1e-12)
    tensors = reported_bytes(model, [plan], costs.memory_bytes, MemoryLog("allocated", "fullest"))
    outside = costs.slack_bytes + costs.context_bytes
    assert tensors[0] == pytest.approx(rows[1].memory_bytes - outside[0], rel=1e-12)
    assert np.array_equal(
        reported_bytes(model, [plan], costs.memory_bytes, MemoryLog("used", "fullest")), costs.memory_bytes
    )


@pytest.mark.parametrize(
    ("framework", "cells", "counts", "rank"),
    [
        ("", {}, "used", "fullest"),
        ("nanotron", {}, "reserved", "first"),
        ("nanotron", {"memory_counts": "allocated"}, "allocated", "first"),
        ("megatron-lm", {"memory_rank": "first"}, "used", "first"),
    ],
)
def test_a_row_says_what_its_memory_counts(framework: str, cells: dict[str, str], counts: str, rank: str) -> None:
    row = {"model": "llama3-8b", "device": "a100-80gb", "gpus": "8", "tp": "8", "micro_batch": "1", "memory_gib": "20"}
    question = asked(Row(line=2, cells={**row, "framework": framework, "step_time_ms": "2000", **cells}))
    assert question.log == MemoryLog(counts, rank)
    assert ("memory_counts" in question.row.defaults) == ("memory_counts" not in cells)  # what is assumed is counted


def test_the_memory_of_a_row_is_what_its_log_counts() -> None:
    row = {"model": "llama3-8b", "device": "a100-80gb", "gpus": "8", "tp": "8", "micro_batch": "1", "memory_gib": "20"}
    found = [
        plans.predict([Row(line=2, cells={**row, "step_time_ms": "2000", "memory_counts": counts})], DEFAULT)[0].memory
        for counts in MEASURED_MEMORY
    ]
    assert found[0].reported_bytes < found[1].reported_bytes < found[2].reported_bytes == found[2].predicted_bytes
    assert len({memory.predicted_bytes for memory in found}) == 1  # whether it fits is another question


# --- Stages as a row states them ----------------------------------------------------------------------------------------------------------


def test_stages_of_a_row() -> None:
    row = {"model": "llama3-8b", "device": "a100-80gb", "gpus": "4", "pp": "4", "micro_batch": "1", "global_batch": "8"}
    row["step_time_ms"] = "9000"
    question = asked(Row(line=2, cells={**row, "stage_blocks": "6/9/9/8"}))
    assert {plan.stage_blocks for plan in question.plans} == {(6, 9, 9, 8)}
    equal, own = (
        plans.predict([Row(line=2, cells={**row, "stage_blocks": text})], DEFAULT)[0].comparisons[0].predicted_s
        for text in ("8/8/8/8", "5/11/8/8")
    )
    assert own > equal  # the stage of 11 decides
    for text in ("8/8/16", "8/8/8/9"):
        refused = asked(Row(line=2, cells={**row, "stage_blocks": text}))
        assert isinstance(refused, RowSkipped)
        assert refused.reason == f"stage_blocks {text} is not 32 blocks in 4 chunks (pp x vpp)"


# --- Networks with blocks of two kinds, and cut ones --------------------------------------------------------------------------------------


def test_a_mixture_with_dense_blocks_and_shared_experts() -> None:
    cells = {"hidden": "64", "layers": "4", "heads": "4", "ffn": "256", "style": "llama", "vocab": "1000", "seq": "64"}
    cells |= {"model": "own", "experts": "8", "top_k": "2", "expert_ffn": "32", "tied": "no"}
    plain = network_of(Row(line=2, cells=cells), "bf16").weight_count
    dense = network_of(Row(line=2, cells={**cells, "dense_layers": "1"}), "bf16")
    assert ["moe" in {layer.kind for layer in block} for block in dense.blocks.values()] == [False, True, True, True]
    assert dense.weight_count - plain == 3 * 64 * 256 - (8 * 3 * 64 * 32 + 8 * 64)
    shared = network_of(Row(line=2, cells={**cells, "shared_expert_ffn": "48"}), "bf16").weight_count
    assert shared - plain == 4 * 3 * 64 * 48
    with pytest.raises(RowSkipped, match="dense_layers leaves no block with experts"):
        network_of(Row(line=2, cells={**cells, "dense_layers": "4"}), "bf16")


def test_the_first_blocks_of_a_bundled_network() -> None:
    # DeepSeek-V2 (arXiv:2405.04434, section 3.1.2): latent attention, feed-forward part, mixture of 160 and 2, embedding and head.
    attention = 5120 * 1536 + 1536 + 1536 * 128 * 192 + 5120 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 5120
    mixture = 162 * 3 * 5120 * 1536 + 160 * 5120
    cells = {"model": "deepseek-v2", "seq": "4096", "cut_layers": "4"}
    graph = network_of(Row(line=2, cells=cells), "bf16")
    norms = (4 * 2 + 1) * 5120
    assert graph.weight_count == 4 * attention + 3 * 5120 * 12288 + 3 * mixture + 2 * 102400 * 5120 + norms
    with pytest.raises(RowSkipped, match="has 60 blocks, column cut_layers says 61"):
        network_of(Row(line=2, cells={**cells, "cut_layers": "61"}), "bf16")
    with pytest.raises(RowSkipped, match="more than one stack of blocks"):
        network_of(Row(line=2, cells={"model": "t5-base", "cut_layers": "12"}), "bf16")
    with pytest.raises(RowSkipped, match="for a bundled network"):
        network_of(Row(line=2, cells={"model": "own", "cut_layers": "4"}), "bf16")


# --- Constants that predictions use and that measurements chose are counted ---------------------------------------------------------------


def test_what_was_fitted_to_runs_of_a_framework_counts() -> None:
    nanotron = framework_of("nanotron")
    device = load_device("h100-sxm").device
    counted = {
        name for name in fitted_of(device, nanotron.mesh_assumptions(), nanotron) if name.startswith("nanotron: ")
    }
    assert counted == {"nanotron: host_collective_s"}


def test_constants_of_other_layers_are_not_counted() -> None:
    """Products alone have no convolution, no attention and no step; a step of a network for images has no attention."""
    device = load_device("p100").device
    everything = fitted_of(device)
    product = fitted_of(device, kinds=frozenset(["linear"]), alone=True)
    assert {"winograd_fraction", "thin_tile", "attention_fraction", "step_fraction"} <= everything - product
    assert "vector_tile" in product
    images = fitted_of(device, kinds=frozenset(["convolution", "linear", "pool"]))
    assert everything - images == {"attention_fraction", "attention_backward_fraction"}


def test_what_was_picked_for_some_devices_counts_on_these() -> None:
    nemo, device = framework_of("NeMo"), load_device("b200").device
    both = [fitted_of(device, nemo.mesh_assumptions(has_fp4=has_fp4), nemo) for has_fp4 in (True, False)]
    assert both[0] - both[1] == {"megatron-bridge: captured"}


_A_RUN = "gpt", "2048", "24", "16", "a100-80gb", "bf16", "16", "2", "8", "128", "1500"
_FILES = {
    "gemm": "device,precision,m,n,k,time_ms\np100,fp32,512,512,512,0.1\na100-80gb,bf16,35,700,2048,0.1\n",
    "convolution": "device,precision,n,c,h,w,k,r,s,pad_h,pad_w,fwd_ms,bwd_input_ms,bwd_param_ms\n"
    "p100,fp32,16,64,56,56,128,3,3,1,1,1.2,1.3,1.4\n",
    "recurrent": "device,precision,cell,hidden,batch,timesteps,fwd_ms,bwd_input_ms,bwd_weight_ms\np100,fp32,LSTM,1024,32,25,5.1,5.0,1.2\n",
    "measured": "kernel,device,precision,pass_,op,batch,hidden,heads,head_dim,seq,time_ms\n"
    "attention,a100-80gb,bf16,forward,,4,,16,128,2048,0.35\nelementwise,a100-80gb,bf16,forward,gelu,8192,4096,,,,0.09\n",
    "plan": f"style,hidden,layers,heads,device,precision,gpus,tp,dp,global_batch,step_time_ms\n{','.join(_A_RUN)}\n",
    "network": "model,device,precision,gpus,global_batch,step_time_ms\nresnet50,p100,fp32,4,128,300\n",
}


@pytest.mark.parametrize("kind", _FILES)
def test_constants_that_are_not_counted_change_nothing(kind: str, new_file: Any) -> None:
    path = new_file("table.csv", _FILES[kind])

    def outcomes(*changed: tuple[str, float]) -> list[Outcome]:
        table = read_table(path)
        found = recognise(table)
        assert found.name == kind
        return found.predictor()(table.rows, Preset(name="roofline", efficiency=changed))

    before = outcomes()
    counted = {name.rsplit(": ", 1)[-1] for outcome in before for name in outcome.fitted}
    # What others measured on the device is not counted either.
    own = load_device("a100-80gb").device.efficiency
    counted |= {
        name for name in Efficiency.__dataclass_fields__ if getattr(own, name) != getattr(DEFAULT_EFFICIENCY, name)
    }
    for name in sorted({*(n for n in _ONLY if n in Efficiency.__dataclass_fields__), *_OF_STEPS} - counted):
        after = outcomes((name, 0.3))
        times = [[c.predicted_s for outcome in found for c in outcome.comparisons] for found in (before, after)]
        assert times[0]
        assert times[0] == times[1], name


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"precision": "mxfp8"}, (0.0, 0.0)),  # one kernel for all experts since 26.06, in graphs (costs_in_mxfp8)
        ({"precision": "bf16"}, (0.6, 0.0)),
        ({"precision": "mxfp8", "expert_kernels": "each"}, (0.6, 0.0)),
        ({"precision": "bf16", "expert_kernels": "grouped"}, (0.0, 0.0)),
        ({"precision": "mxfp8", "schedule": "combined_1f1b"}, (0.0, 1.0)),  # without a pipeline
    ],
)
def test_a_row_says_how_experts_are_started_and_hidden(cells: dict[str, str], expected: tuple[float, float]) -> None:
    row = {
        "model": "qwen3-30b-a3b", "device": "gb200", "gpus": "8", "gpus_per_node": "4", "ep": "8", "global_batch": "64",
        "step_time_ms": "2000", "framework": "megatron-bridge",
    }  # fmt: skip
    question = plans.asked(Row(line=2, cells={**row, **cells}))
    assert isinstance(question, plans.Question)
    found = question.assumptions
    assert (found.expert_launches, found.ep_overlap) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, (1.0, 0.0, 0.0)),
        ({"framework": "megatron-bridge"}, (0.0, 0.0, 0.0)),  # its published runs force balance
        ({"framework": "megatron-bridge", "expert_balance": "dropless"}, (1.0, 0.0, 0.0)),
        ({"expert_balance": "forced"}, (0.0, 0.0, 0.0)),
        ({"expert_balance": "dropped", "expert_capacity": "1.25"}, (1.0, 1.25, 0.0)),
        ({"expert_balance": "padded"}, (1.0, 1.0, 1.0)),
    ],
)
def test_a_row_says_how_tokens_are_spread_over_experts(cells: dict[str, str], expected: tuple[float, float]) -> None:
    row = {
        "model": "qwen3-30b-a3b", "device": "h100-sxm", "gpus": "16", "gpus_per_node": "8", "ep": "8", "global_batch": "64",
        "step_time_ms": "2000",
    }  # fmt: skip
    question = plans.asked(Row(line=2, cells={**row, **cells}))
    assert isinstance(question, plans.Question)
    found = question.assumptions
    assert (found.expert_spread, found.expert_capacity, found.expert_padding) == expected
    assert ("expert_balance" in question.row.defaults) == ("expert_balance" not in cells)  # what is assumed is counted


def experts(**cells: object) -> float:
    """Seconds of a rank's experts of Mixtral 8x7B on an H100: 4,096 features, 8 experts of 14,336, two of them for a token."""
    base = {
        "kernel": "moe",
        "device": "h100-sxm",
        "precision": "bf16",
        "hidden": 4096,
        "experts": 8,
        "top_k": 2,
        "expert_ffn": 14336,
    }
    row = Row(line=2, cells={name: str(value) for name, value in {**base, "time_ms": 100, **cells}.items()})
    return seconds(kernels.predict_measured([row], DEFAULT)[0])


def test_experts_of_few_tokens_take_what_their_weights_take_to_read() -> None:
    """One token wakes two experts of three matrices, 705 MB; 8 kernels: choice, sorting, sizes, dispatch, two products, activation, sum."""
    read_s = 2 * 3 * 4096 * 14336 * 2 / (0.85 * 3.35e12)
    assert experts(tokens=1) == pytest.approx(read_s + 8 * 2.6e-6, rel=0.01)
    # Eight ranks of all experts have an eighth of their width.
    assert experts(tokens=1, etp=8) == pytest.approx(read_s / 8 + 8 * 2.6e-6, rel=0.05)
    # Two ranks of four experts: in half of the cases one of them works for both.
    assert 0.5 < (experts(tokens=1, ep=2) - 8 * 2.6e-6) / read_s < 1.0
    assert experts(tokens=1, other_kernels=4) - experts(tokens=1) == pytest.approx(4 * 2.6e-6)


def test_weights_that_are_unpacked_cost_what_the_engine_says() -> None:
    """TensorRT-LLM's experts of gpt-oss on an H100: 40 us beside their kernels, weights at 0.75 of the rate (else 0.55)."""
    cells = {"precision": "w4a16-mxfp4", "experts": 32, "hidden": 2880, "expert_ffn": 2880, "tokens": 256}
    plain, engine = experts(**cells), experts(**cells, framework="tensorrt-llm")
    read_s = 32 * 3 * 2880 * 2880 * (4.25 / 8) / (0.85 * 3.35e12)
    assert engine - plain == pytest.approx(40e-6 - read_s * (1 / 0.55 - 1 / 0.75), rel=0.15)


def test_experts_of_many_tokens_take_what_their_products_take() -> None:
    """65,536 tokens, 3 products of 2 x 4,096 x 14,336 FLOP for two experts each, at 755 TFLOP/s; fp8 has 1.8 times the rate."""
    ideal_s = 2 * 65536 * 3 * 2 * 4096 * 14336 / 755e12
    assert ideal_s < experts(tokens=65536) < 1.15 * ideal_s
    assert experts(tokens=65536, precision="fp8") < experts(tokens=65536) / 1.5
    # The fullest of eight ranks has more than an eighth where loads are uneven, and the other tokens pass it by.
    equal, uneven = experts(tokens=65536, ep=8), experts(tokens=65536, ep=8, expert_spread=1.0)
    assert ideal_s / 8 < equal < uneven < ideal_s / 2

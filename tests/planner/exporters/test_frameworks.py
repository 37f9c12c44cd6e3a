"""Every export of every bundled transformer, read by the real parser of its target. `.ci/frameworks` installs them and runs this."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel.mesh.framework_rules import facts_of
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.sizes import network_kind, sizes_of
from costmodel.precision import PRECISIONS
from costmodel.serving.plan import ServingPlan
from planner.core.errors import UsageError
from planner.exporters import targets_that_take
from planner.exporters.check import check_exports
from planner.exporters.export import AnyJob, make_export, write_folder
from planner.exporters.other_networks import other_network_of
from planner.files.resources import bundled
from planner.importers.networks import load_model
from tests.planner.exporters.jobs import (
    SERVE,
    SERVE_APART,
    SERVE_APART_NODES,
    SERVE_EXPERTS,
    SERVE_PIPELINE,
    job_of,
    origin,
    serving_job,
)

pytestmark = pytest.mark.frameworks

PLANS = {
    "pipeline": MeshPlan(tp=2, sequence_parallel=True, pp=2, dp_shard=2, zero_stage=1, num_micro_batches=8),
    "interleaved": MeshPlan(
        tp=2, sequence_parallel=True, pp=2, vpp=2, schedule="interleaved", dp_shard=2, zero_stage=1, num_micro_batches=8
    ),
    "pipeline-alone": MeshPlan(pp=4, dp_replicate=2, num_micro_batches=8),
    "fsdp": MeshPlan(dp_shard=8, zero_stage=3, micro_batch=2, recompute="full", recompute_blocks=1000),
    "hybrid": MeshPlan(tp=2, sequence_parallel=True, dp_replicate=2, dp_shard=2, zero_stage=2, num_micro_batches=2),
    "context": MeshPlan(tp=2, sequence_parallel=True, cp=2, dp_shard=2, zero_stage=1, micro_batch=2),
    "replicas": MeshPlan(dp_replicate=8, micro_batch=4, recompute="selective"),
    "offload": MeshPlan(dp_shard=8, zero_stage=2, offload_optimizer=True),
    "experts": MeshPlan(ep=4, dp_shard=8, zero_stage=1, num_micro_batches=4),
    "experts-in-stages": MeshPlan(pp=2, ep=4, dp_shard=4, zero_stage=2, num_micro_batches=4),
}  # fmt: skip
# Target and version that the index has, where it is not the newest of the exporter.
TARGETS = {
    "megatron": None, "torchtitan": "v0.3.0", "deepspeed": None, "accelerate": None, "torch": None, "vllm": None,
    "sglang": None, "tensorrt-llm": None, "megatron-bridge": None, "nanotron": None,
}  # fmt: skip


def transformers() -> Iterator[tuple[str, Graph]]:
    for name in bundled("models"):
        graph = load_model(name).graph
        if network_kind(graph) != "no transformer":
            yield name, graph


def servers() -> Iterator[tuple[str, AnyJob]]:
    """Every decoder in a number format, in turn."""
    formats = itertools.cycle(PRECISIONS)
    for model, graph in transformers():
        if network_kind(graph) in ("encoder", "other encoder", "encoder-decoder"):
            continue
        has_experts, layers = any(layer.kind == "moe" for layer in graph.layers), len(graph.blocks)
        plan = ServingPlan(tp=2, pp=2 - has_experts, etp=2 if has_experts else 1, max_batch=16, prefill_chunk=512)
        precision = next(formats)
        yield (
            f"serve-{model}-{precision}",
            serving_job(
                plan,
                origin=origin(model),
                stages=tuple(layers // plan.pp + (s < layers % plan.pp) for s in range(plan.pp)),
                has_experts=has_experts,
                precision=precision,
                kv_precision="fp8" if precision.startswith("fp8") else "bf16",
            ),
        )


def jobs(target: str) -> Iterator[tuple[str, AnyJob]]:
    if target in targets_that_take("serving"):
        yield from {"serve": SERVE, "serve-pipeline": SERVE_PIPELINE, "serve-experts": SERVE_EXPERTS}.items()
        if target != "tensorrt-llm":
            yield from {"serve-apart": SERVE_APART, "serve-apart-nodes": SERVE_APART_NODES}.items()
        yield from servers()
        return
    for i, (model, graph) in enumerate(transformers()):
        network, layers = sizes_of(graph), len(graph.blocks)
        has_experts = any(layer.kind == "moe" for layer in graph.layers)
        names = [name for name, plan in PLANS.items() if plan.ep == 1 or has_experts]
        # Two plans of each network, in turn, and all of some: parsers take a fifth of a second per export.
        chosen = names if i % 25 == 0 else [names[i % len(names)], names[(3 * i + 1) % len(names)]]
        for name in dict.fromkeys(chosen):
            plan = PLANS[name]
            chunks = plan.pp * plan.vpp
            yield (
                f"{model}-{name}",
                job_of(
                    plan,
                    network=network,
                    blocks=tuple(layers // chunks + (c < layers % chunks) for c in range(chunks)),
                    other=other_network_of(graph) if network is None else None,
                    origin=origin(model),
                    seq=1024,
                    facts=facts_of(graph, "bf16", "adam"),
                ),
            )


def written(target: str, version: str | None, folder: Path) -> Iterator[Path]:
    for name, job in jobs(target):
        try:
            made = make_export(job, target, version)
        except UsageError:  # by a rule, with its reason
            continue
        if "network" in made.account.by_hand:
            continue
        write_folder(folder / name, made.files, force=False)
        yield folder / name


@pytest.mark.parametrize("target", TARGETS)
def test_every_transformer_is_read_as_planned(target: str, tmp_path: Path) -> None:
    folders = list(written(target, TARGETS[target], tmp_path))
    checked = check_exports(target, folders)
    if all(answer.status == "not installed" for answer in checked):
        pytest.skip(f"{target}: {checked[0].message}")
    wrong = {
        folder.name: answer.sentence
        for folder, answer in zip(folders, checked, strict=True)
        if answer.status != "accepted"
    }
    assert not wrong

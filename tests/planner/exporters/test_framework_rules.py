"""A plan is legal under a framework exactly if its exporter writes it completely."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.mesh.detail import layer_rows
from costmodel.mesh.plan import MeshPlan
from costmodel.network.sizes import sizes_of
from costmodel.precision import PRECISIONS
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.exporters import exporter_of, targets_that_take
from planner.exporters.export import Export, make_export
from planner.exporters.job import Job, Nodes
from planner.exporters.other_networks import other_network_of
from planner.question.resolve import resolve
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from tests.cases import mostly
from tests.planner.exporters.jobs import drawn_plan, origin

TARGETS = {exporter_of(target).FRAMEWORK: target for target in targets_that_take("mesh")}
# Whose plans a target of another framework writes.
WRITTEN_BY = {**TARGETS, "pytorch": TARGETS["pytorch-fsdp"]}


@lru_cache
def space_of(framework: str, model: str, gpus: int, batch: int = 64) -> MeshPlanSpace:
    return mesh_space(resolve(Request(model=model, gpus=gpus, batch=batch, framework=framework or None)))


def export_of(space: MeshPlanSpace, plan: MeshPlan, target: str, **other: Any) -> Export:
    graph = space.resolved.model.graph
    network = sizes_of(graph)
    job = Job(
        plan=plan,
        origin=origin(),
        nodes=Nodes(workers=plan.workers, capacity=space.resolved.cluster.devices_of_node),
        blocks=plan.stage_blocks or space.model.blocks_of(plan.pp * plan.vpp),
        network=network,
        other=other_network_of(graph) if network is None else None,
        seq=space.seq,
        precision=space.resolved.setting.precision,
        optimizer=space.resolved.setting.optimizer,
        facts=space.model.facts,
    )
    return make_export(replace(job, **other), target)


def writes_completely(space: MeshPlanSpace, plan: MeshPlan, target: str) -> bool:
    try:
        return not export_of(space, plan, target).account.cannot
    except UsageError:
        return False


@pytest.mark.parametrize("framework", sorted(WRITTEN_BY))
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
@given(data=st.data())
def test_legal_plans_are_those_that_are_written_completely(framework: str, model: str, data: Any) -> None:
    space = space_of(framework, model, 96)
    free = space_of("", model, 96)
    plan = drawn_plan(data, has_experts=model.startswith("mixtral"))
    assume(not free.broken(plan))  # what the network or the batch does not allow is no business of a framework
    assert writes_completely(space, plan, WRITTEN_BY[framework]) or space.broken(plan)
    if framework in TARGETS:
        assert not (writes_completely(space, plan, TARGETS[framework]) and space.broken(plan))


@pytest.mark.e2e
@mostly(
    "exact",
    ("framework", "model", "gpus"),
    [
        (framework, model, gpus)
        for model, gpus in (
            ("llama3-8b", 16),
            ("mixtral-8x7b", 64),
            ("llama2-7b", 8),
            ("gpt3-13b", 24),
            ("llama3-70b", 64),
        )
        for framework in sorted(TARGETS)
    ],
    quick=7,
    every=4 * len(TARGETS),
)
def test_the_best_plans_are_written_completely(framework: str, model: str, gpus: int) -> None:
    if (framework, model) == ("nanotron", "gpt3-13b"):
        with pytest.raises(
            UsageError, match="--framework nanotron: a network that is a decoder with perceptrons without a gate"
        ):
            space_of(framework, model, gpus)
        return
    space = space_of(framework, model, gpus)
    space.refuse_contradiction()
    found = space.search(5, None)
    if not found.plans:
        return
    found = space.preferred(found)
    assert not found.details["splits"]  # no framework here splits blocks in another way
    for plan in [*found.plans, *(ranked.plan for ranked in (found.refined, found.fastest) if ranked is not None)]:
        assert not space.broken(plan)
        assert not export_of(space, plan, TARGETS[framework]).account.cannot


def settings_written(export: Export) -> list[str]:
    """Lines of the files that are no comments."""
    lines = [line for text in export.files.values() for line in text.splitlines()]
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("framework", sorted(TARGETS))
@pytest.mark.parametrize("name", PRECISIONS)
def test_formats_that_are_accepted_are_those_that_are_written(framework: str, name: str) -> None:
    space, plan = space_of("", "llama3-8b", 8), MeshPlan(dp_shard=8, zero_stage=2, num_micro_batches=8)
    if framework == "nanotron":
        plan = replace(plan, zero_stage=1)
    facts = replace(space.model.facts, values={**space.model.facts.values, "precision": name})
    exports = {
        precision: export_of(space, plan, TARGETS[framework], precision=precision, facts=facts)
        for precision in ("bf16", name)
    }
    account = exports[name].account
    same = settings_written(exports[name]) == settings_written(exports["bf16"])
    assert same == ("precision" in account.cannot) or "precision" in account.by_hand or name == "bf16"
    if PRECISIONS[name].stored is not None or name == "fp8":
        return  # weights that are not trained; a word for several recipes
    request = Request(model="llama3-8b", gpus=8, batch=64, device="b200", precision=name, framework=framework)
    if "precision" not in account.cannot:
        assert mesh_space(resolve(request)).resolved.setting.precision == name
        return
    with pytest.raises(UsageError, match=rf"precision {name}: .* no such format or recipe; allowed: precision fp32 or"):
        mesh_space(resolve(request))


# Megatron Core, gpt_layer_specs.py: norms are kernels of their own before experts and before latent attention only.
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("model", "modules", "dropped"),
    [
        ("llama3-8b", ["core_attn"], set()),
        ("mixtral-8x7b", ["core_attn", "layernorm", "moe_act"], {"norm2", "experts"}),
        (
            "deepseek-v3",
            ["layernorm", "mla_up_proj", "moe_act"],
            {"norm2", "experts", *(f"attention.{name}" for name in ("norm", "q_norm", "q_b", "kv_norm", "kv_b"))},
        ),
    ],
)
def test_selective_recomputation_drops_what_the_written_modules_drop(
    target: str, model: str, modules: list[str], dropped: set[str]
) -> None:
    space = space_of(exporter_of(target).FRAMEWORK, model, 8)
    plan = MeshPlan(dp_shard=8, zero_stage=1, num_micro_batches=8, recompute="selective")
    rows = [row for row in layer_rows(space.model, plan) if row.saved_selective_bytes < row.saved_bytes]
    assert {row.name for row in rows} == dropped
    written = " ".join(settings_written(export_of(space, plan, target)))
    assert (
        f"--recompute-modules {' '.join(modules)}" in written or f"recompute_modules=[{','.join(modules)}]" in written
    )


@pytest.mark.parametrize("framework", sorted(TARGETS))
@pytest.mark.parametrize("model", ["bert-large", "t5-11b", "vit-s16", "deepseek-v3", "gpt2-124m"])
def test_networks_that_are_refused_are_those_that_are_not_written(framework: str, model: str) -> None:
    free = mesh_space(resolve(Request(model=model, gpus=8, batch=64, precision="bf16", optimizer="adam")))
    plan = MeshPlan(dp_shard=8, zero_stage=2, num_micro_batches=8)
    written = writes_completely(free, plan, TARGETS[framework])
    try:
        resolved = resolve(
            Request(model=model, gpus=8, batch=64, precision="bf16", optimizer="adam", framework=framework)
        )
        legal = not mesh_space(resolved).broken(plan)
    except UsageError:
        legal = False
    assert legal == written

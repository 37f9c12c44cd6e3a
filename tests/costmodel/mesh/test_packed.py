"""Attention to packed documents on a mesh: what the fullest rank and the slowest replica add, by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from costmodel.hardware.efficiency import Efficiency
from costmodel.mesh.detail import layer_rows, model_flops_per_step
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import slowest_draw
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.layers.attention import Documents
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

_POSITIONS, _BLOCKS = 64, 2


def packed(graph: Graph, documents: Documents | None) -> Graph:
    layers = tuple(
        replace(layer, documents=documents) if layer.kind == "self_attention" else layer for layer in graph.layers
    )
    return replace(graph, layers=layers)


def _model(documents: Documents | None, balance: float = 2.0, batch: int = 8) -> MeshModel:
    graph = packed(decoder(blocks=_BLOCKS, positions=_POSITIONS, features=256), documents)
    return make.model_of(graph, batch, make.ideal_cluster(), replace(make.BARE, cp_balance=balance))


def _compute_s(model: MeshModel, plan: MeshPlan) -> float:
    return float(model.evaluate_plans([plan]).compute_s[0])


def _attention_s(model: MeshModel, plan: MeshPlan) -> float:
    """Forward and backward of all blocks, of one micro-batch."""
    return _BLOCKS * sum(
        row.forward_s + row.backward_s for row in layer_rows(model, plan) if row.kind == "self_attention"
    )


def test_attention_computes_the_pairs_of_documents() -> None:
    """16 documents of 4 have a sixteenth of the pairs of one of 64."""
    whole, parts = (
        model_flops_per_step(_model(documents).workload) for documents in (None, Documents.of([4], _POSITIONS))
    )
    # Of 8 samples, both blocks, 4 heads of 64 features: scores and values, and twice that backward.
    assert whole - parts == 8 * _BLOCKS * 4 * 3 * (2 * 2 * 64) * (64**2 - 16 * 4**2) / 2
    plan = MeshPlan(num_micro_batches=8)
    assert _compute_s(_model(Documents.of([4], 64)), plan) < _compute_s(_model(None), plan)
    assert _compute_s(_model(Documents.of([64], 64)), plan) == _compute_s(_model(None), plan)


@pytest.mark.parametrize(("kind", "shows"), [("ring", True), ("all_gather", True), ("all_to_all", False)])
def test_the_fullest_context_parallel_rank_decides(kind: str, shows: bool) -> None:
    plan = MeshPlan(cp=2, cp_kind=kind, num_micro_batches=8)
    documents = Documents.of([2, 2, 60], 64)
    even, uneven = (_model(documents, balance) for balance in (2.0, 1.0))
    fullest = documents.fullest(2, 1.0, causal=True, window=0)
    assert fullest > 1.0
    more = 8 * (fullest - 1.0) * _attention_s(even, plan) if shows else 0.0
    assert _compute_s(uneven, plan) - _compute_s(even, plan) == pytest.approx(more, rel=1e-9, abs=1e-15)


def test_what_starts_rows_of_queries_is_even() -> None:
    """Forward half of the time goes by keys where rows start in as long as they see keys, and all of it backward."""
    documents = Documents.of([2, 2, 60], 64)
    seen = documents.pairs(causal=True, window=0) / 64
    efficiency = Efficiency(attention_start=seen, attention_backward_start=0.0, attention_tile=0.0)
    table = {}
    for balance in (2.0, 1.0):
        model = _model(documents, balance)
        device = replace(model.cluster.device, efficiency=efficiency)
        workload = replace(model.workload, compute=replace(model.workload.compute, device=device))
        rows = MeshModel.build(workload, model.cluster, model.assumptions).rows(MeshBatch.from_plans([MeshPlan(cp=2)]))
        table[balance] = rows
    more = documents.fullest(2, 1.0, causal=True, window=0) - 1.0
    for name, share in (("forward", 0.5), ("backward", 1.0)):
        own = getattr(table[1.0], f"attention_{name}_s")
        assert getattr(table[1.0], f"uneven_{name}_s") == pytest.approx(more * share * own, rel=1e-9)
        assert not getattr(table[2.0], f"uneven_{name}_s").any()


def test_contiguous_pieces_of_one_document() -> None:
    """The last of 4 ranks has 2 - 1/4 times the mean."""
    plan = MeshPlan(cp=4, num_micro_batches=8)
    even, uneven = (_model(None, balance) for balance in (1.0, 0.0))
    more = 8 * 0.75 * _attention_s(even, plan)
    assert _compute_s(uneven, plan) - _compute_s(even, plan) == pytest.approx(more, rel=1e-9)


@pytest.mark.parametrize(("dp", "pp", "count"), [(8, 1, 4), (1, 4, 16), (8, 4, 16), (4, 8, 8), (32, 4, 4)])
def test_draws_of_the_slowest_pipeline_are_those_of_a_simulation(dp: int, pp: int, count: int) -> None:
    """Every stage takes x for a micro-batch, one after the other, as soon as the one before has done it."""
    rng = np.random.default_rng(1)
    times = 1.0 + 0.05 * rng.standard_normal((400, dp, count))
    ends = np.zeros((400, dp, pp))
    for n in range(count):
        for stage in range(pp):
            before = ends[:, :, stage - 1] if stage else 0.0
            ends[:, :, stage] = np.maximum(ends[:, :, stage], before) + times[:, :, n]
    excess = (np.mean(np.max(ends[:, :, -1], axis=1)) - (count + pp - 1)) / 0.05
    batch = MeshBatch.from_plans([MeshPlan(dp_replicate=dp, pp=pp, num_micro_batches=count)])
    draw = float(slowest_draw(batch)[0])
    assert (count + pp - 1) * draw == pytest.approx(excess, rel=0.2, abs=0.15)


def test_the_slowest_replica_decides() -> None:
    """Of 4 replicas with 2 micro-batches each: Blom's quantile of the largest of 4, times the deviation of a sum of 2."""
    documents = Documents.of([8], 64, 1.0)
    model = _model(documents)
    alone, several = MeshPlan(num_micro_batches=8), MeshPlan(dp_replicate=4, num_micro_batches=2)
    per_sample = _compute_s(model, alone) / 8
    draw = NormalDist().inv_cdf((4 - 0.375) / 4.25) * documents.spread(causal=True, window=0)
    more = draw * 2**0.5 * _attention_s(model, alone)
    assert _compute_s(model, several) - 2 * per_sample == pytest.approx(more, rel=1e-9)

"""Stages as frameworks cut them: equal ones, and those that end at thresholds."""

from __future__ import annotations

import pytest

from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.mesh.framework_rules import Refusal, Rules
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.mesh.rules import broken_rules
from costmodel.mesh.stages import threshold_blocks, threshold_last
from costmodel.mesh.tables import module_weights
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of

EQUAL, THRESHOLD = Framework(name="equal", stages="equal"), Framework(name="threshold", stages="threshold")


def model_of(framework: Framework, vocabulary: int):
    """Eight blocks of 40,960 weights each (4 x 64^2 + 3 x 64 x 128), and a head of 64 per word."""
    graph = decoder(blocks=8, features=64, kv_heads=4, ffn=128, vocabulary=vocabulary)
    return make.model_of(graph, 8, make.ideal_cluster(), framework=framework)


def test_stages_are_cut_by_the_costs_of_matrices() -> None:
    """A head of 1,280 words costs two blocks: 10 in all, 5 per stage."""
    assert model_of(THRESHOLD, 1280).blocks_of(2) == (5, 3)
    assert model_of(THRESHOLD, 1280).blocks_of(1) == (8,)


def test_equal_stages_whatever_the_head_takes() -> None:
    """A head of 26 blocks by its weights: a balanced cut puts fewer blocks beside it."""
    assert model_of(NO_FRAMEWORK, 16384).blocks_of(2) == (5, 3)
    assert model_of(EQUAL, 16384).blocks_of(2) == (4, 4)
    assert model_of(EQUAL, 16384).blocks_of(4) == (2,) * 4
    assert model_of(EQUAL, 16384).blocks_of(3) == model_of(NO_FRAMEWORK, 16384).blocks_of(3)  # does not come out even


def test_the_cut_of_the_framework_is_what_is_costed() -> None:
    """A plan that states these stages costs the same as one that leaves them to the framework."""
    model = model_of(EQUAL, 16384)
    own, stated = MeshPlan(pp=2, num_micro_batches=8), MeshPlan(pp=2, num_micro_batches=8, stage_blocks=(4, 4))
    times = model.evaluate_plans([own, stated]).step_time_s
    assert times[0] == times[1] > model_of(NO_FRAMEWORK, 16384).evaluate_plans([own]).step_time_s[0]


def test_a_cut_may_leave_the_loss_without_the_last_stage() -> None:
    """A head of 8 blocks, 2 of 16 per stage: it comes behind 8 blocks to stage 4, what follows it to 5 and 6 of 8."""
    heavy = make.shape_of(model_of(THRESHOLD, 5120))
    assert 8 in heavy.uncut_chunks
    plan = MeshPlan(pp=8, num_micro_batches=8)
    assert [message.split(" so that")[0] for message in broken_rules(heavy, plan)] == [
        "threshold cuts the network into 8 stages"
    ]
    assert not broken_rules(make.shape_of(model_of(EQUAL, 5120)), plan)
    assert not broken_rules(heavy, MeshPlan(num_micro_batches=8))


FEW = Refusal(when={"few_micro_batches": True}, why="its 1F1B needs more", source="test")


def test_a_schedule_may_need_many_micro_batches() -> None:
    picky = Framework(name="picky", rules=Rules(refusals=(FEW,)))
    graph = decoder(blocks=8, features=64, kv_heads=4, ffn=128, vocabulary=512)
    shape = make.shape_of(make.model_of(graph, 6, make.ideal_cluster(), framework=picky))
    few = MeshPlan(pp=8, num_micro_batches=6)
    assert broken_rules(shape, few) == ["picky needs 7 micro-batches for 8 stages; the plan has 6"]
    assert not broken_rules(shape, MeshPlan(pp=4, num_micro_batches=6))
    assert not broken_rules(make.shape_of(make.model_of(graph, 6, make.ideal_cluster())), few)


@pytest.mark.parametrize(
    ("count", "stages", "head", "blocks"),
    [
        # The sums pass 8.55, 17.1 and 25.65 behind blocks 9, 18 and 26.
        (32, 4, 2.2, (9, 9, 8, 6)),
        # Equal shares are reached: without a head, and where it costs as much as four blocks (10 and 5 of 20).
        (8, 4, 0.0, (2, 2, 2, 2)),
        (16, 2, 4.0, (10, 6)),
        (16, 4, 4.0, (5, 5, 5, 1)),
        (16, 4, 4.0 - 1e-12, (5, 5, 5, 1)),
        (16, 4, 4.0 + 1e-12, (5, 5, 5, 1)),
        # A heavy head leaves the last stages without a block.
        (4, 4, 4.0, (2, 2, 0, 0)),
        (4, 4, 4.5, (3, 1, 0, 0)),
        (5, 1, 1.0, (5,)),
    ],
)
def test_stages_end_where_the_cost_reaches_its_share(
    count: int, stages: int, head: float, blocks: tuple[int, ...]
) -> None:
    assert threshold_blocks(count, stages, head) == blocks


@pytest.mark.parametrize("stages", range(1, 17))
@pytest.mark.parametrize("head", [0.0, 0.4, 2.2, 9.0])
def test_stages_hold_all_blocks(stages: int, head: float) -> None:
    blocks = threshold_blocks(16, stages, head)
    assert len(blocks) == stages
    assert sum(blocks) == 16


@pytest.mark.parametrize(
    ("count", "stages", "head", "ends"),
    [
        (32, 4, 2.2, (3, 3)),
        (32, 32, 2.2, (31, 31)),
        # 20 in all, 1.25 per stage: behind 16 blocks stage 12, which takes the head, then 13 and 14 with nothing to do but format and loss.
        (16, 16, 4.0, (14, 15)),
        # 10 in all, 2.5 per stage: blocks behind 3 and 4 in stages 0 and 1, the head in 1, format and loss in 2 and 3.
        (4, 4, 6.0, (3, 3)),
        (4, 4, 20.0, (2, 3)),
        (5, 1, 1.0, (0, 0)),
    ],
)
def test_the_loss_may_miss_the_last_stage(count: int, stages: int, head: float, ends: tuple[int, int]) -> None:
    assert threshold_last(count, stages, head) == ends


@pytest.mark.parametrize("stages", range(1, 17))
@pytest.mark.parametrize("head", [0.4, 2.2, 9.0])
def test_the_loss_is_behind_all_blocks(stages: int, head: float) -> None:
    blocks = threshold_blocks(16, stages, head)
    loss, last = threshold_last(16, stages, head)
    assert max(n for n, count in enumerate(blocks) if count) <= loss <= last < stages


# --- What blocks weigh when stages are cut: a property of the network, whatever the cluster -----------------------------------------------


CLUSTERS = ("dgx-h100", "dgx-a100", "dgx1-v100")


@pytest.mark.parametrize(("name", "chunks"), [("t5-11b", 8), ("deepseek-v3", 16), ("llama3-8b", 8)])
def test_every_cluster_has_the_same_stages(name: str, chunks: int) -> None:
    graph = load_model(name).graph
    found = set()
    for cluster in (load_cluster(cluster).cluster for cluster in CLUSTERS):
        precision = "bf16" if "bf16" in cluster.device.peak_flop_per_s else "fp16"
        found.add(MeshModel.build(workload_of(graph, cluster, 16, precision), cluster).blocks_of(chunks))
    assert len(found) == 1


def test_a_mixture_weighs_what_its_tokens_compute() -> None:
    """DeepSeek-V3: the dense network is 18,432 wide, nine experts (one of them shared) of 2,048 are as much."""
    graph, cluster = load_model("deepseek-v3").graph, load_cluster("dgx-h100").cluster
    model = MeshModel.build(workload_of(graph, cluster, 16), cluster)
    dense, mixture = (
        weight for weight, kind in zip(_weights(model), model.modules.kinds, strict=True) if kind.is_block
    )
    assert mixture == pytest.approx(dense, rel=0.15)


def test_the_embedding_weighs_next_to_nothing_and_the_head_of_llama_two_blocks() -> None:
    """Head 2 x 4096 x 128,256 FLOP per token; block 2 x 218.1 M plus half of 4 x 8192 x 4096 of attention."""
    graph, cluster = load_model("llama3-8b").graph, load_cluster("dgx-h100").cluster
    model = MeshModel.build(workload_of(graph, cluster, 16), cluster)
    front, block, back = _weights(model)
    head = 2 * 4096 * 128256 / (2 * 218.1e6 + 2 * 8192 * 4096)
    assert front < 0.1 * block
    assert back / block == pytest.approx(head, rel=0.3)  # element-wise kernels and the loss weigh beside the products


def _weights(model: MeshModel) -> tuple[float, ...]:
    return module_weights(model.workload, model.cluster, model.modules, make.BARE)

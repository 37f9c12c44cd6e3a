"""What blocks weigh when stages are cut: a property of the network, whatever the cluster."""

from __future__ import annotations

import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.tables import module_weights
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import workload_of

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

"""Tokens on their way to experts: nodes that they reach, against draws of chance, and what the host starts one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.mesh.communication import free_draws, reached
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.network.layers.mixture import MixtureParams
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

_TOKENS, _SEED = 4000, 7
_EXPERTS, _CHOSEN, _POSITIONS, _FEATURES = 8, 2, 32, 64


def _drawn_nodes(experts: int, chosen: int, nodes: int, groups: int = 1, kept: int = 1) -> float:
    """Nodes of a token on average: groups drawn, then experts of these; no expert twice."""
    rng = np.random.default_rng(_SEED)
    total = 0
    for _ in range(_TOKENS):
        some = rng.choice(groups, size=kept, replace=False)
        open_to = np.concatenate([np.arange(g * experts // groups, (g + 1) * experts // groups) for g in some])
        total += len(set(rng.choice(open_to, size=chosen, replace=False) // (experts // nodes)))
    return total / _TOKENS


@pytest.mark.parametrize(("experts", "chosen", "nodes"), [(256, 8, 8), (128, 4, 16), (128, 8, 2), (64, 6, 4)])
def test_nodes_that_a_token_reaches(experts: int, chosen: int, nodes: int) -> None:
    params = MixtureParams(experts=experts, top_k=chosen, ffn=1)
    found = float(reached(np.array(float(nodes)), np.array(free_draws(params))))
    assert found == pytest.approx(_drawn_nodes(experts, chosen, nodes), rel=0.03)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_groups_of_experts_limit_the_nodes(nodes: int) -> None:
    """DeepSeek-V3: 8 experts in 4 of 8 groups. Exact for a node per group, a stand-in elsewhere."""
    params = MixtureParams(experts=256, top_k=8, ffn=1, groups=8, top_groups=4)
    found = float(reached(np.array(float(nodes)), np.array(free_draws(params))))
    assert found == pytest.approx(_drawn_nodes(256, 8, nodes, groups=8, kept=4), rel=0.03 if nodes == 8 else 0.3)


def _cluster(node: int) -> Cluster:
    one = make.ideal_cluster()
    levels = (
        Level(name="node", size=node, bandwidth_bytes_per_s=1e15, latency_s=0.0),
        Level(name="network", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0),
    )
    return Cluster(name="c", groups=(DeviceGroup(device=one.device),), levels=levels)


def _model(cluster: Cluster | None = None, **changes: float) -> MeshModel:
    graph = decoder(blocks=2, experts=_EXPERTS)
    return make.model_of(graph, 8, cluster or make.ideal_cluster(), replace(make.BARE, **changes))


def _exposed_s(model: MeshModel, plan: MeshPlan) -> float:
    return float(model.evaluate(MeshBatch.from_plans([plan])).ep_exposed_s[0])


def test_a_token_crosses_to_each_node_once() -> None:
    """8 ranks on 2 nodes and 2 experts per token: 1.5 nodes in place of 2 copies; inside one node nothing changes."""
    plan = MeshPlan(ep=8, dp_shard=8, zero_stage=1)
    once, copies = (_exposed_s(_model(_cluster(4), node_copies=n), plan) for n in (0.0, 1.0))
    assert once / copies == pytest.approx(1.5 / 2.0, rel=1e-6)
    inside = [_exposed_s(_model(_cluster(8), node_copies=n), plan) for n in (0.0, 1.0)]
    assert inside[0] == inside[1] > 0


def test_the_device_waits_for_the_counts_of_tokens() -> None:
    """The forward pass of a mixture is started behind its router: the host's time for its kernels comes on top of the device's."""
    launch_s, plan = 1e-3, MeshPlan(num_micro_batches=1)
    slow = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5)  # hides all else that the host does

    def step_s(**changes: float) -> float:
        return float(_model(slow, host_launch_s=launch_s, **changes).evaluate_plans([plan]).step_time_s[0])

    ahead = step_s(dispatch_waits=0.0)
    # Router, three for its choice, dispatch, two products, activation and combination; and two products of each expert.
    kernels = 9 + 0.5 * 2 * _EXPERTS
    assert step_s(expert_launches=0.5) - ahead == pytest.approx(2 * kernels * launch_s, rel=1e-6)
    assert step_s(expert_launches=0.5, dispatch_waits=0.25) - ahead == pytest.approx(0.5 * kernels * launch_s, rel=1e-6)


def test_experts_are_started_one_by_one() -> None:
    """Where the host is all that counts: two products forward and four backward per expert that a rank holds, these at half the price."""
    launch_s = 1.0

    def step_s(plan: MeshPlan, share: float) -> float:
        model = _model(host_launch_s=launch_s, expert_launches=share, dispatch_waits=0.0, bare_launch=0.5)
        return float(model.evaluate_plans([plan]).step_time_s[0])

    alone, spread = MeshPlan(num_micro_batches=4), MeshPlan(ep=4, dp_shard=4, zero_stage=1)
    assert step_s(alone, 1.0) - step_s(alone, 0.0) == pytest.approx(
        4 * 2 * (2 + 0.5 * 4) * _EXPERTS * launch_s, rel=1e-6
    )
    assert step_s(spread, 1.0) - step_s(spread, 0.0) == pytest.approx(
        2 * (2 + 0.5 * 4) * _EXPERTS / 4 * launch_s, rel=1e-6
    )

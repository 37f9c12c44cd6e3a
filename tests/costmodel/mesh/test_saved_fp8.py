"""What blocks keep where products run in fp8, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.hardware.device import Device
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of

# 4 heads of queries, 2 of keys and 2 of values, of 16 features each.
_FEATURES, _INNER, _POSITIONS, _EXPERTS, _CHOSEN = 64, 96, 16, 8, 2


def _cluster() -> Cluster:
    one = make.ideal_cluster()
    peaks = {**one.device.peak_flop_per_s, "fp8": 2e12}
    device: Device = replace(one.device, peak_flop_per_s=peaks)
    return replace(one, groups=(DeviceGroup(device=device),))


def _kept(precision: str, *, experts: int = 0, fp8_kept: float = 1.0, column: str = "saved_bytes") -> float:
    graph = decoder(blocks=2, features=_FEATURES, ffn=_INNER, positions=_POSITIONS, experts=experts)
    cluster = _cluster()
    workload = workload_of(graph, cluster, 1, precision)
    model = MeshModel.build(workload, cluster, replace(make.BARE, fp8_kept=fp8_kept))
    table = model.rows(MeshBatch.from_plans([MeshPlan()]))
    return float(getattr(table, column)[0, 1])


@pytest.mark.parametrize(
    ("column", "norms", "gate"),
    # Selective recomputation drops what norms and gates make, in any format.
    [("saved_bytes", -2 * _FEATURES, -_INNER), ("saved_selective_bytes", 0, 0)],
)
def test_products_keep_their_inputs_in_eight_bits(column: str, norms: int, gate: int) -> None:
    """Half the bytes of what norms and the gate make; what attention made stays for itself and, cast, for its product."""
    attention = _FEATURES
    assert _kept("fp8", column=column) - _kept("bf16", column=column) == _POSITIONS * (norms + attention + gate)


def test_experts_keep_their_tokens_in_eight_bits() -> None:
    """And what leaves their activation; the router reads the norm's output as it is, so that it stays."""
    found = _kept("fp8", experts=_EXPERTS) - _kept("bf16", experts=_EXPERTS)
    attention = -_FEATURES + _FEATURES
    assert found == _POSITIONS * (attention - _CHOSEN * (_FEATURES + _INNER))


@pytest.mark.parametrize("experts", [0, _EXPERTS])
def test_products_that_keep_them_as_they_are(experts: int) -> None:
    assert _kept("fp8", experts=experts, fp8_kept=0.0) == _kept("bf16", experts=experts)

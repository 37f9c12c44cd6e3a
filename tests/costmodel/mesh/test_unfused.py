"""Traffic of unfused kernels, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.plan import MeshPlan
from costmodel.mesh.unfused import fp8_bytes
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of

# The network: 2 blocks, 64 features, 4 heads and 2 of keys and values of 16, 96 inner features, 16 positions, 512 words. The device reads
# 1e12 bytes per second at full efficiency.
_POSITIONS, _WORDS, _INNER, _FEATURES = 16, 512, 96, 64


def _step_s(**changes: float) -> float:
    graph = decoder(blocks=2, features=_FEATURES, ffn=_INNER, positions=_POSITIONS, vocabulary=_WORDS)
    model = make.model_of(graph, 4, make.ideal_cluster(), replace(make.BARE, **changes))
    return float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).step_time_s[0])


def _rate() -> float:
    device = workload_of(decoder(blocks=1), make.ideal_cluster(), 1).compute.device  # type: ignore[attr-defined]
    return float(device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction)


def test_the_loss_moves_so_many_bytes_per_logit() -> None:
    """Beyond what the softmax moves by itself: between 100 and 200 bytes it is the difference."""
    more = _step_s(loss_bytes_per_logit=200.0) - _step_s(loss_bytes_per_logit=100.0)
    assert more == pytest.approx(4 * 100 * _POSITIONS * _WORDS / _rate(), rel=1e-9)


def test_a_loss_that_moves_less_than_a_softmax_is_no_quicker() -> None:
    assert _step_s(loss_bytes_per_logit=1.0) == _step_s()


def test_plain_autograd_moves_gates_and_queries_again() -> None:
    gate = (2 + 8) * _POSITIONS * _INNER
    # Forward and backward: read and written, queries three times, keys and values (as many as queries together) four times.
    around_attention = 2 * 2 * (3 + 4) * _POSITIONS * _FEATURES
    more = _step_s(autograd_copies=1.0) - _step_s()
    assert more == pytest.approx(4 * 2 * 2 * (gate + around_attention) / _rate(), rel=1e-9)


def test_casts_to_fp8_write_every_number_twice() -> None:
    forward, backward = fp8_bytes(np.array([100.0]), np.array([300.0]), 2)
    assert (forward[0], backward[0]) == (100 * (2 + 1 + 1), 300 * (2 + 1 + 1))

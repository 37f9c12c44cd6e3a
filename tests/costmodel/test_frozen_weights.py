"""Frozen weights in the cost tables: memory for the weights, no gradient, nothing to exchange or update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostTables, LayerCosts
from costmodel.network.graph import Graph
from costmodel.paleo.model import PaleoCompute
from costmodel.workload import Workload
from tests.networks import roofline_workload, spec

DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e12, "bf16": 2e12},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=1e11,
    launch_overhead_s=0.0,
    efficiency=Efficiency(tile_half=0, depth_half=0, fill_outputs=0),
)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0),),
)


def chain(*changes: dict[str, Any]) -> Graph:
    """Linear layers of 64 x 64 without biases, one per argument."""
    specs = [spec("x", "input", shape=(64, 16))]
    for number, change in enumerate(changes):
        specs.append(replace(spec(f"fc{number}", "linear", specs[-1].name, out_features=64, bias=False), **change))
    return Graph.build("chain", specs)


def workload(graph: Graph) -> Workload:
    return roofline_workload(graph, DEVICE, 8, precision="bf16", optimizer="adam")


def tables(graph: Graph) -> tuple[LayerCosts, ...]:
    return CostTables(workload(graph), CLUSTER, split_table([4]), 1).layers


def test_bytes_and_times_of_frozen_weights() -> None:
    """bf16 with Adam: 2 bytes per frozen weight, 2 + 2 + 4 + 8 per trained one."""
    trained = tables(chain({}, {}))[2]
    frozen = tables(chain({}, {"frozen": True}))[2]
    np.testing.assert_allclose(frozen.static_bytes * 8, trained.static_bytes)
    assert frozen.backward_input_s.tolist() == trained.backward_input_s.tolist()
    assert trained.exchange_s.any()
    assert trained.update_s.all()
    for nothing in (frozen.backward_weight_s, frozen.exchange_s, frozen.update_s):
        assert not nothing.any()
    assert (frozen.exchange_group == 1).all()


def test_the_gradient_stops_at_the_last_trained_layer() -> None:
    graph = chain({"frozen": True}, {"frozen": True}, {}, {"frozen": True})
    assert workload(graph).graph.needs_gradient == (False, False, False, True, True)
    assert [graph.layers[i].name for i in graph.weighted] == ["fc2"]
    assert (graph.weight_count, sum(layer.trainable_count for layer in graph.layers)) == (4 * 64 * 64, 64 * 64)
    costs = tables(graph)
    assert [bool(layer.backward_input_s.any()) for layer in costs] == [False, False, False, False, True]
    assert [bool(layer.backward_weight_s.any()) for layer in costs] == [False, False, False, True, False]


def test_an_adapter_is_exchanged_and_updated_alone() -> None:
    """Rank 8 of 64 x 64: 1024 of 4096 weights are trained, and kept beside all."""
    graph = chain({"lora_rank": 8})
    plain, adapted = tables(chain({}))[1], tables(graph)[1]
    data = split_table([4]).row_of(split_table([4]).split(int(np.argmax(split_table([4]).batch))))
    assert sum(layer.trainable_count for layer in graph.layers) == 8 * (64 + 64)
    assert adapted.exchange_s[0, data] == pytest.approx(plain.exchange_s[0, data] / 4)
    assert adapted.static_bytes[data] == 4096 * 2 + 1024 * 16
    assert adapted.update_s[data] < plain.update_s[data]


def test_equal_layers_that_are_trained_differently_are_told_apart() -> None:
    first, second = (layer.signature for layer in chain({}, {"frozen": True}).layers[1:])
    assert first != second


def test_paleo_refuses_frozen_weights() -> None:
    """Its program trains every layer: a frozen one goes to the extensions, or is an error."""
    compute = PaleoCompute(device=DEVICE)
    graph = chain({"frozen": True})
    assert "frozen" in compute.refusal(graph.layers[1])
    assert compute.refusal(graph.layers[0]) == ""

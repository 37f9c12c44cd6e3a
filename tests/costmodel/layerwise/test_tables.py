"""Cost tables: weights, memory and communication of every layer under every split, from first principles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.framework import NO_FRAMEWORK, Defaults, Framework
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.layerwise.plan import Split, divisors, factorisations, legal_splits, shard_of, split_table
from costmodel.layerwise.tables import CostTables, LayerCosts
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.paleo.model import PaleoCompute
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.workload import Workload
from tests.costmodel.network.layers.cases import layer
from tests.networks import network, roofline_workload, spec

# 1 TFLOP/s and 100 GB/s without losses; links of 1 GB/s without latency.
DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e12, "bf16": 2e12},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=1e11,
    launch_overhead_s=0.0,
    efficiency=Efficiency(
        matmul_fraction=1, winograd_fraction=1e-6, fft_fraction=1e-6, vector_fraction=1, memory_fraction=1,
        tile_half=0, depth_half=0, fill_outputs=0,
    ),
)  # fmt: skip
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0),),
)


def workload(graph: Graph, **changes: Any) -> Workload:
    base = roofline_workload(graph, DEVICE, 24)
    return replace(base, **changes)


CONV = (
    "conv",
    "convolution",
    ("data",),
    {"out_channels": 16, "kernel": 3, "padding": 1, "norm": "batch", "activation": "relu"},
)
_SHAPE = (8, 12, 12)
NET = network(
    _SHAPE,
    CONV,
    ("conv2", "convolution", ("conv",), {"out_channels": 16, "kernel": 3, "padding": 1, "norm": "batch", "activation": "relu"}),
    ("conv3", "convolution", ("conv2",), {"out_channels": 16, "kernel": 3, "padding": 1, "norm": "batch", "activation": "relu"}),
    ("pool", "pool", ("conv3",), {"kernel": 2, "stride": 2}),
    ("fc", "linear", ("pool",), {"out_features": 10}),
    ("loss", "softmax", ("fc",), {}),
)  # fmt: skip


def test_weights_and_states_of_every_split() -> None:
    """Bytes per weight: fp32 with momentum 4 + 4 + 4; bf16 with Adam 2 + 2 + 4 + 8; inference weights alone."""
    table = split_table([1, 2, 3, 4, 6])
    adam = workload(NET, precision=PRECISIONS["bf16"], optimizer=OPTIMIZERS["adam"])
    for case, per_weight in ((workload(NET), 12), (adam, 16), (workload(NET, training=False), 4)):
        costs = CostTables(case, CLUSTER, table, 1).layers[1]
        for row in range(len(table.workers)):
            b, o, i, h = table.split(row).degrees
            share = math.ceil(16 / o) / 16 * math.ceil(8 / i) / 8
            count = (9 * 8 * 16 + 16 + 2 * 16) * share
            assert costs.static_bytes[row] == pytest.approx(per_weight * count)
            # Copies of a share of the weights: one per part of the batch and of the height.
            assert costs.exchange_group[row] == b * h


def test_gradient_exchange_is_a_ring_of_the_share() -> None:
    table = split_table([12])
    costs = CostTables(workload(NET), CLUSTER, table, 1).layers[2]
    message = 4 * (9 * 16 * 16 + 16 + 32)
    for split, share, ranks in (
        (Split(batch=12), 1, 12),
        (Split(batch=3, height=4), 1, 12),
        (Split(batch=3, out_channels=4), 1 / 4, 3),
        (Split(batch=2, in_channels=2, out_channels=3), 6 / 16 / 2, 2),  # 16 channels over 3: the largest share is 6
        (Split(out_channels=12), 2 / 16, 1),
    ):
        expected = 2 * (ranks - 1) / ranks * message * share / 1e9
        assert costs.exchange_s[0, table.row_of(split)] == pytest.approx(expected), split


def test_gradients_are_as_wide_as_the_framework_has_them() -> None:
    """Mixed precision by casts in front of operators: weights and their gradients stay in fp32, in 16 bits as in 32."""
    table = split_table([12])
    row = table.row_of(Split(batch=12))

    def tables(framework: Framework, precision: str = "fp16", like: CostTables | None = None) -> CostTables:
        case = workload(NET, precision=PRECISIONS[precision], framework=framework)
        return CostTables(case, CLUSTER, table, 1, like)

    narrow, wide = tables(NO_FRAMEWORK), tables(Framework(name="casts", defaults=Defaults(gradient_bytes=4.0)))
    assert wide.layers[1].exchange_s[0, row] == 2 * narrow.layers[1].exchange_s[0, row]
    assert wide.layers[1].exchange_s[0, row] == tables(NO_FRAMEWORK, "fp32").layers[1].exchange_s[0, row]
    weights = 9 * 8 * 16 + 16 + 2 * 16
    assert wide.layers[1].static_bytes[row] - narrow.layers[1].static_bytes[row] == pytest.approx(2 * weights)
    # Tables of another width are not those of this one.
    again = tables(NO_FRAMEWORK, like=wide)
    assert again.layers[1].exchange_s[0, row] == narrow.layers[1].exchange_s[0, row]


def test_exchanges_inside_layers() -> None:
    table = split_table([4])
    conv2 = CostTables(workload(NET), CLUSTER, table, 1).layers[2]
    image = 24 * 16 * 144 * 4 / 1e9  # seconds to send the whole tensor
    row = table.row_of(Split(in_channels=4))
    # Reduce-scatter of the partial sums and all-gather of the gradients over 4 workers.
    assert conv2.inner_forward_s[row] == pytest.approx(0.75 * image)
    assert conv2.inner_backward_s[row] == pytest.approx(0.75 * image)
    row = table.row_of(Split(batch=2, in_channels=2))
    assert conv2.inner_forward_s[row] == pytest.approx(0.5 * image / 2)
    row = table.row_of(Split(height=4))  # one row above and one below of 12
    assert conv2.inner_forward_s[row] == pytest.approx(image * 2 / 12)
    assert conv2.inner_backward_s[row] == pytest.approx(image * 2 / 12)
    row = table.row_of(Split(batch=2, out_channels=2))
    assert conv2.inner_forward_s[row] == conv2.inner_backward_s[row] == 0.0
    loss = CostTables(workload(NET), CLUSTER, table, 1).layers[6]
    row = table.row_of(Split(out_channels=4))
    # The maximum and the sum of every sample, cheapest all-reduce: 2 x 3/4 of 24 numbers, twice.
    assert loss.inner_forward_s[row] == pytest.approx(2 * 1.5 * 24 * 4 / 1e9)


def test_first_layers_skip_the_gradient_of_the_input_and_nothing_else() -> None:
    table = split_table([4])
    tables = CostTables(workload(NET), CLUSTER, table, 1)
    first, same = tables.layers[1], CostTables(workload(network((16, 12, 12), CONV)), CLUSTER, table, 1).layers[1]
    deep = tables.layers[2]
    assert not first.backward_input_s.any()
    assert not same.backward_input_s.any()
    assert deep.backward_input_s.all()
    # Same shapes: the gradient of the weights, of the normalisation and of the activation cost the same.
    np.testing.assert_array_equal(same.backward_weight_s, deep.backward_weight_s)
    np.testing.assert_array_equal(same.forward_s, deep.forward_s)
    # Its workers still need the whole gradient of the output when partial sums were scattered; halo gradients they do not.
    columns, rows = table.row_of(Split(in_channels=4)), table.row_of(Split(height=4))
    assert same.inner_backward_s[columns] == deep.inner_backward_s[columns] > 0
    assert same.inner_backward_s[rows] == 0 < deep.inner_backward_s[rows]


def test_layers_before_the_first_weights_have_no_backward_pass() -> None:
    graph = network(
        _SHAPE,
        ("pre", "pool", ("data",), {"kernel": 3, "padding": 1}),
        ("conv", "convolution", ("pre",), {"out_channels": 4, "kernel": 1}),
    )
    tables = CostTables(workload(graph), CLUSTER, split_table([4]), 1)
    pool = tables.layers[1]
    assert not pool.backward_input_s.any()
    assert not pool.inner_backward_s.any()
    assert not tables.layers[2].backward_input_s.any()
    assert tables.layers[2].backward_weight_s.all()
    (edge,) = tables.edges  # the input hands over for free
    assert (edge.producer, edge.consumer) == (1, 2)
    assert edge.forward_s.any()
    assert not edge.backward_s.any()


def test_inference_has_a_forward_pass_only() -> None:
    tables = CostTables(workload(NET, training=False), CLUSTER, split_table([1, 4]), 1)
    training = CostTables(workload(NET), CLUSTER, split_table([1, 4]), 1)
    for costs, trained in zip(tables.layers, training.layers, strict=True):
        for name in ("backward_input_s", "backward_weight_s", "inner_backward_s", "update_s", "exchange_s"):
            assert not getattr(costs, name).any()
        np.testing.assert_array_equal(costs.forward_s, trained.forward_s)
        np.testing.assert_array_equal(costs.inner_forward_s, trained.inner_forward_s)
    assert not any(edge.backward_s.any() for edge in tables.edges)


def test_one_worker_does_not_communicate() -> None:
    tables = CostTables(workload(NET, collectives=tuple(ALL_REDUCE_NAMES)), CLUSTER, split_table([1]), 1)
    for costs in tables.layers:
        assert not costs.inner_forward_s.any()
        assert not costs.inner_backward_s.any()
        assert not costs.exchange_s.any()
        assert np.all(costs.exchange_group == 1)
    assert not any(edge.forward_s.any() or edge.backward_s.any() for edge in tables.edges)


def test_times_of_one_worker_by_hand() -> None:
    """fc: 576 x 10 weights, 24 samples; memory-bound at 1 TFLOP/s and 100 GB/s."""
    tables = CostTables(workload(NET), CLUSTER, split_table([1]), 1)
    fc = tables.layers[5]
    moved = 4 * (24 * 576 + 576 * 10 + 24 * 10)
    assert fc.forward_s[0] == pytest.approx(max(2 * 24 * 576 * 10 / 1e12, moved / 1e11))
    weights = 576 * 10 + 10
    # Momentum: reads the gradient, reads and writes the velocity and the weight.
    assert fc.update_s[0] == pytest.approx(20 * weights / 1e11)
    conv2 = tables.layers[2]
    product = max(2 * 24 * 144 * 144 * 16 / 1e12, 4 * (2 * 24 * 16 * 144 + 9 * 256) / 1e11)
    norm = 3 * 4 * 24 * 16 * 144 / 1e11
    around = 4 * 4 * 24 * 16 * 144 / 1e11  # bias and activation read and write the output
    assert conv2.forward_s[0] == pytest.approx(product + norm + around)
    assert conv2.backward_input_s[0] == pytest.approx(product)
    assert conv2.backward_weight_s[0] == pytest.approx(product + (5 + 3 + 1) * 4 * 24 * 16 * 144 / 1e11)


def test_normalisation_runs_on_the_reduced_share() -> None:
    """With the input channels split over 4, each worker normalises a quarter of the channels, and applies the activation to it."""
    plain = ("conv", "convolution", ("data",), {"out_channels": 16, "kernel": 3, "padding": 1})
    table = split_table([4])
    row = table.row_of(Split(in_channels=4))
    extra = [
        CostTables(workload(network(_SHAPE, layer)), CLUSTER, table, 1).layers[1].forward_s[row]
        for layer in (CONV, plain)
    ]
    assert extra[0] - extra[1] == pytest.approx((3 + 2) * 4 * 24 * 16 * 144 / 4 / 1e11)


def test_activations_kept() -> None:
    table = split_table([4])
    tables = CostTables(workload(NET), CLUSTER, table, 2)
    conv2, pool, fc, data = tables.layers[2], tables.layers[4], tables.layers[5], tables.layers[0]
    image = 12 * 16 * 144 * 4.0

    def at(costs: Any, split: Split) -> float:
        return float(costs.activation_bytes[table.row_of(split)])

    own = 2 * image / 4  # the normalisation keeps its input beside its output
    assert at(conv2, Split(batch=4)) == own
    assert at(conv2, Split(height=4)) == own
    assert at(conv2, Split(in_channels=4)) == own
    # Output channels: a quarter of the output, and the whole input gathered.
    assert at(conv2, Split(out_channels=4)) == own + image
    assert at(conv2, Split(out_channels=2, batch=2)) == own + image / 2
    assert at(pool, Split(out_channels=4)) == image / 4 / 4
    assert at(fc, Split(out_channels=2, batch=2)) == 6 * 5 * 4 + 6 * 576 * 4
    assert at(data, Split(out_channels=4)) == 12 * 8 * 144 * 4 / 4


def test_equal_layers_share_their_costs_and_unequal_ones_do_not() -> None:
    layers = CostTables(workload(NET), CLUSTER, split_table([1, 2, 4]), 1).layers
    assert layers[2] is layers[3]
    assert layers[1] is not layers[2]  # another input, and no gradient for it


def test_cheapest_collective_is_the_first_of_the_fastest() -> None:
    tables = CostTables(workload(NET, collectives=tuple(ALL_REDUCE_NAMES)), CLUSTER, split_table([4, 6]), 1)
    for costs in tables.layers:
        np.testing.assert_array_equal(costs.cheapest_exchange_s, costs.exchange_s.min(axis=0))
        for row, best in enumerate(costs.cheapest_collective):
            assert costs.exchange_s[best, row] == costs.exchange_s[:, row].min()
            assert np.all(costs.exchange_s[:best, row] > costs.exchange_s[best, row])


# --- Splits of a layer: all factorisations, which are legal, and the largest share --------------------------------------------------------


LAYERS = [
    layer("convolution", (5, 9, 7), out_channels=6, kernel=3),
    layer("convolution", (6, 9, 7), out_channels=9, kernel=3, groups=3),
    layer("linear", (3, 2, 2), out_features=5),
    layer("linear", (4, 9), out_features=5),
    layer("pool", (4, 9, 9), kernel=3, stride=3),
    layer("lstm", (4, 9), hidden=3, bidirectional=True),
    layer("flatten", (4, 3, 3)),
]


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@pytest.mark.parametrize("number", range(1, 33))
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_factorisations_are_all_of_them_in_order(number: int, parts: int) -> None:
    brute = [f for f in itertools.product(range(1, number + 1), repeat=min(parts, 2)) if math.prod(f) == number]
    if parts > 2:
        brute = [(*f, *g) for d, e in brute for f in factorisations(d, parts - 2) for g in factorisations(e, 2)]
    assert sorted(brute) == list(factorisations(number, parts))


def test_tables_list_every_split_of_every_count_once() -> None:
    counts = [6, 1, 4, 16]
    table = split_table(counts)
    for w in counts:
        rows = range(*table.rows(w).indices(len(table.workers)))
        assert sorted(table.split(r).degrees for r in rows) == sorted(factorisations(w, 4))
        assert all(table.workers[r] == w == table.split(r).workers for r in rows)
    assert all(table.row_of(table.split(r)) == r for r in range(len(table.workers)))
    with pytest.raises(KeyError):
        table.row_of(Split(batch=5))
    batches = split_table([3, 7], batch_only=True)
    assert [batches.split(r).degrees for r in range(2)] == [(3, 1, 1, 1), (7, 1, 1, 1)]


@pytest.mark.parametrize("one", LAYERS, ids=lambda one: f"{one.kind}-{one.output_shape}")
@pytest.mark.parametrize("micro_batch", [1, 5, 12])
def test_legal_splits_and_shares_one_by_one(one: Layer, micro_batch: int) -> None:
    table = split_table([1, 2, 3, 4, 6, 8, 12])
    legal = legal_splits(one, table, micro_batch)
    shard = shard_of(one, table, micro_batch)
    limits = one.family.limits(one)
    rows = one.output_shape[1] if len(one.output_shape) == 3 else 1
    for r in range(len(table.workers)):
        b, o, i, h = table.split(r).degrees
        fits = b <= micro_batch and o <= limits.out_channels and i <= limits.in_channels and h <= limits.height
        # Partial sums are reduced into shares of the output channels: there must be one for everybody.
        fits = fits and (i == 1 or o * i <= one.output_shape[0])
        assert bool(legal[r]) == fits
        if not fits:
            continue
        inputs = {
            "linear": math.prod(one.input_shapes[0][:1] if len(one.input_shapes[0]) == 2 else one.input_shapes[0])
        }
        in_extent = inputs.get(one.kind, one.input_shapes[0][0])
        assert shard.batch[r] == math.ceil(micro_batch / b)
        assert shard.out_channels[r] == math.ceil(one.output_shape[0] / o)
        assert shard.in_channels[r] == math.ceil(in_extent / (o if limits.channelwise else i))
        assert shard.height[r] == math.ceil(rows / h)
        assert (shard.split_out[r], shard.split_in[r], shard.split_height[r]) == (o, i, h)


def test_one_worker_takes_everything() -> None:
    table = split_table([1])
    for one in LAYERS:
        assert np.all(legal_splits(one, table, 1))


# --- Frozen weights in the cost tables: memory for the weights, no gradient, nothing to exchange or update --------------------------------


def chain(*changes: dict[str, Any]) -> Graph:
    """Linear layers of 64 x 64 without biases, one per argument."""
    specs = [spec("x", "input", shape=(64, 16))]
    for number, change in enumerate(changes):
        specs.append(replace(spec(f"fc{number}", "linear", specs[-1].name, out_features=64, bias=False), **change))
    return Graph.build("chain", specs)


def adam_workload(graph: Graph) -> Workload:
    return roofline_workload(graph, DEVICE, 8, precision="bf16", optimizer="adam")


def layers_of(graph: Graph) -> tuple[LayerCosts, ...]:
    return CostTables(adam_workload(graph), CLUSTER, split_table([4]), 1).layers


def test_bytes_and_times_of_frozen_weights() -> None:
    """bf16 with Adam: 2 bytes per frozen weight, 2 + 2 + 4 + 8 per trained one."""
    trained = layers_of(chain({}, {}))[2]
    frozen = layers_of(chain({}, {"frozen": True}))[2]
    np.testing.assert_allclose(frozen.static_bytes * 8, trained.static_bytes)
    assert frozen.backward_input_s.tolist() == trained.backward_input_s.tolist()
    assert trained.exchange_s.any()
    assert trained.update_s.all()
    for nothing in (frozen.backward_weight_s, frozen.exchange_s, frozen.update_s):
        assert not nothing.any()
    assert (frozen.exchange_group == 1).all()


def test_the_gradient_stops_at_the_last_trained_layer() -> None:
    graph = chain({"frozen": True}, {"frozen": True}, {}, {"frozen": True})
    assert adam_workload(graph).graph.needs_gradient == (False, False, False, True, True)
    assert [graph.layers[i].name for i in graph.weighted] == ["fc2"]
    assert (graph.weight_count, sum(layer.trainable_count for layer in graph.layers)) == (4 * 64 * 64, 64 * 64)
    costs = layers_of(graph)
    assert [bool(layer.backward_input_s.any()) for layer in costs] == [False, False, False, False, True]
    assert [bool(layer.backward_weight_s.any()) for layer in costs] == [False, False, False, True, False]


def test_an_adapter_is_exchanged_and_updated_alone() -> None:
    """Rank 8 of 64 x 64: 1024 of 4096 weights are trained, and kept beside all."""
    graph = chain({"lora_rank": 8})
    plain, adapted = layers_of(chain({}))[1], layers_of(graph)[1]
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

"""PALEO's bounds of model parallelism and its hybrid, against chains built by hand and plain transcriptions of its quirks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import CostModelError
from costmodel.layerwise.plan import shard_of
from costmodel.paleo.convolution import Rates
from costmodel.paleo.model import PaleoCompute
from costmodel.paleo.scaling import (
    Link,
    Node,
    batch_table,
    channel_table,
    critical_path,
    fetch_s,
    hybrid_layers,
    hybrid_step,
    model_parallel_bounds,
    partition,
)
from tests.costmodel.paleo.scaling_tables import data_parallel_rows
from tests.networks import network

DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 4e12},
    memory_bytes=1e10,
    memory_bandwidth_bytes_per_s=250e9,
    clock_hz=1e9,
)
LINK = Link(bandwidth_bytes_per_s=8e9, ppp_comm=0.75)


def nested(
    tree: Any, nodes: list[Node], weights: list[float], parents: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    """Build a chain of numbers and forks (tuples of chains) as nodes; returns its last nodes and PALEO's lower bound."""
    bound = 0.0
    for item in tree:
        if isinstance(item, tuple):
            ends: list[int] = []
            bounds = []
            for chain in item:
                last, value = nested(chain, nodes, weights, parents)
                ends.extend(last)
                bounds.append(value)
            parents, bound = tuple(dict.fromkeys(ends)), bound + max(bounds)
        else:
            nodes.append(
                Node(
                    name=str(len(nodes)),
                    layer=None,
                    device=None,
                    parents=parents,
                    inputs_elements=(0.0,) * len(parents),
                )
            )
            weights.append(float(item))
            parents, bound = (len(nodes) - 1,), bound + item
    return parents, bound


chains = st.recursive(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    lambda chain: st.lists(
        st.one_of(st.integers(0, 9), st.lists(chain, min_size=2, max_size=3).map(tuple)), min_size=1, max_size=3
    ),
    max_leaves=8,
)


@given(chain=chains)
def test_lower_bound_of_nested_forks(chain: list[Any]) -> None:
    nodes: list[Node] = []
    weights: list[float] = []
    _, bound = nested(chain, nodes, weights, ())
    assert critical_path(tuple(nodes), np.array(weights)) == bound


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 16])
def test_fetches(workers: int) -> None:
    """The halving accumulates from one parent to the next, and "0" is not 0: the joint fetches every part."""
    parts = tuple(Node(name=f"p@{k}", layer=None, device=k, parents=(), inputs_elements=()) for k in range(workers))
    every = tuple(range(workers))
    rates = Rates.of(DEVICE, 0.75, bandwidth_bytes_per_s=8e9)
    for device in (None, *every):
        node = Node(name="join", layer=None, device=device, parents=every, inputs_elements=(1e6,) * workers)
        bandwidth, expected = 8.0, 0.0
        for k in every:
            if k == device:
                continue
            if (device or 0) // 4 != k // 4:
                bandwidth /= 2
            expected += 4e6 * 32 / 2**30 / bandwidth / 0.75
        assert fetch_s((*parts, node), node, 32, rates) == pytest.approx(expected, rel=1e-12)
    alone = Node(name="copy", layer=None, device=0, parents=(0,), inputs_elements=(1e6,))
    whole = Node(name="whole", layer=None, device=None, parents=(), inputs_elements=())
    assert fetch_s((whole, alone), alone, 1, rates) == pytest.approx(4e6 / 2**30 / 8.0 / 0.75)


TOWER = network(
    (3, 17, 17),
    ("conv", "convolution", ("data",), {"out_channels": 16, "kernel": 3, "padding": "same"}),
    ("pool", "pool", ("conv",), {"kernel": 3, "stride": 2}),
    ("fc1", "linear", ("pool",), {"out_features": 64}),
    ("drop", "dropout", ("fc1",), {}),
    ("fc2", "linear", ("drop",), {"out_features": 32}),
    ("fc3", "linear", ("fc2",), {"out_features": 10}),
    ("loss", "softmax", ("fc3",), {}),
)


def test_partition() -> None:
    assert hybrid_layers(TOWER) == ("fc1", "fc2")
    assert [node.name for node in partition(TOWER, hybrid_layers(TOWER), 2)] == [
        "data",
        "conv",
        "pool",
        *("fc1@0", "fc1@1", "drop@0", "drop@1"),
        *("drop: gather@0", "fc2@0", "drop: gather@1", "fc2@1"),
        *("fc2: join", "fc3", "loss"),
    ]
    with pytest.raises(CostModelError, match=r"fc1: .*64 do not divide by 5 workers"):
        partition(TOWER, hybrid_layers(TOWER), 5)
    for name in ("fc9", "drop", "data"):
        with pytest.raises(CostModelError, match=f"{name}: the network has no layer with weights"):
            partition(TOWER, [name], 2)
    assert len(partition(TOWER, hybrid_layers(TOWER), 5, uneven=True)) == 3 + 5 * 4 + 3
    assert all(node.device is None for node in partition(TOWER, hybrid_layers(TOWER), 1))
    only = network(
        (3, 8, 8),
        ("fc", "linear", ("data",), {"out_features": 4}),
    )
    assert hybrid_layers(only) == ("fc",)


def test_hybrid_without_splits_is_data_parallel() -> None:
    compute = PaleoCompute(device=DEVICE, ppp_comp=0.46)
    for workers in (1, 8):
        step = hybrid_step(TOWER, workers, 32, compute, LINK, split=())
        (row,) = data_parallel_rows(TOWER, compute, LINK, batch=32, workers=[workers], scaling="weak")
        assert step.split == ()
        assert step.data.total_s == pytest.approx(row.step_s("tree"), rel=1e-12)
        assert step.model.total_s == pytest.approx(3e-9)  # an update of no weights is three clock periods
        assert step.sync_s == pytest.approx(row.exchange_s["tree"])


def test_hybrid_by_hand() -> None:
    """Layer by layer on 4 workers: shares of the split layers, fetches, and the pipeline saving."""
    compute, batch, k = PaleoCompute(device=DEVICE, ppp_comp=0.5), 32, 4

    def total(name: str, workers: int) -> tuple[float, float]:
        layer = TOWER.layers[TOWER.index(name)]
        shard = shard_of(layer, channel_table(workers), batch)
        times = compute.pass_times(layer, shard, needs_input_gradient=True)
        return float(times.forward_s[0]), float(times.backward_s[0])

    def fetched(elements: int) -> float:
        return 4 * elements * batch / 2**30 / 8 / 0.75

    step = hybrid_step(TOWER, k, batch, compute, LINK)
    saving = 16 * 8 * 8 * batch / 2**30 / 8 * (k - 1)
    for i, part in enumerate(("forward_s", "backward_s")):
        lower = fetched(16 * 8 * 8) + total("fc1", k)[i] + total("drop", k)[i] + 3 * fetched(16) + total("fc2", k)[i]
        assert getattr(step.model, part) == pytest.approx((lower - saving) * k + saving, rel=1e-12)
        whole = sum(total(name, 1)[i] for name in ("conv", "pool", "fc3")) + 4 * fetched(8)
        assert getattr(step.data, part) == pytest.approx(whole, rel=1e-12)
    assert step.split == ("fc1", "drop", "fc2")


def test_bounds_of_model_parallelism() -> None:
    fork = network(
        (8, 16, 16),
        ("a", "convolution", ("data",), {"out_channels": 8, "kernel": 3, "padding": "same"}),
        ("b1", "convolution", ("a",), {"out_channels": 8, "kernel": 1}),
        ("b2", "convolution", ("b1",), {"out_channels": 8, "kernel": 3, "padding": "same"}),
        ("b3", "convolution", ("b1",), {"out_channels": 8, "kernel": 5, "padding": "same"}),
        ("c", "convolution", ("a",), {"out_channels": 8, "kernel": 1}),
        ("join", "concat", ("b2", "b3", "c"), {}),
    )
    compute = PaleoCompute(device=DEVICE)

    def forward(name: str) -> float:
        layer = fork.layers[fork.index(name)]
        return float(
            compute.pass_times(layer, shard_of(layer, batch_table([1]), 16), needs_input_gradient=True).forward_s[0]
        )

    bounds, backward = model_parallel_bounds(fork, compute, batch=16)
    assert bounds.lower_s == pytest.approx(forward("a") + forward("b1") + forward("b3"))
    assert bounds.upper_s == pytest.approx(sum(forward(layer.name) for layer in fork.layers))
    assert bounds.lower_s < backward.lower_s < backward.upper_s
    chain, _ = model_parallel_bounds(TOWER, compute, batch=16)
    assert chain.lower_s == pytest.approx(chain.upper_s)
    # Fetches go at the memory bandwidth unless a link is given: PALEO ignores its network here.
    without, with_link = (model_parallel_bounds(TOWER, compute, batch=16, workers=4, link=x)[0] for x in (None, LINK))
    assert without.lower_s < with_link.lower_s < with_link.upper_s


@given(batch=st.integers(1, 300), workers=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_rows(batch: int, workers: list[int]) -> None:
    """Strong scaling rounds up per worker and reports the batch asked for; weak scaling repeats one worker's time."""
    compute = PaleoCompute(device=DEVICE)
    strong = data_parallel_rows(TOWER, compute, LINK, batch=batch, workers=workers, scaling="strong")
    weak = data_parallel_rows(TOWER, compute, LINK, batch=batch, workers=workers, scaling="weak")
    for row, count in zip(strong, workers, strict=True):
        assert (row.batch_per_worker, row.effective_batch) == (math.ceil(batch / count), batch)
        (alone,) = data_parallel_rows(TOWER, compute, LINK, batch=row.batch_per_worker, workers=[1], scaling="weak")
        assert row.compute_s == pytest.approx(alone.compute_s, rel=1e-12)
    for row, count in zip(weak, workers, strict=True):
        assert row.effective_batch == batch * count
        assert row.compute_s == weak[0].compute_s

"""The plan space, counted and enumerated by brute force on networks small enough for it."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.layerwise.plan import Plan, Split, family_of_plan, legal_splits, split_table
from costmodel.network.graph import Graph
from costmodel.workload import Workload
from planner.importers.networks import load_model
from strategies.layerwise.space import (
    BATCH_FAMILIES,
    FAMILY_NAMES,
    Restriction,
    count_layer_plans,
    count_pipelines,
    fixed_by_patterns,
)
from tests.networks import network, roofline_workload

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 10e12}, memory_bytes=16e9, memory_bandwidth_bytes_per_s=500e9)

build = functools.partial(network, (3, 6, 6))


TINY = build(
    ("conv1", "convolution", ("data",), {"out_channels": 4, "kernel": 3, "padding": 1}),
    ("pool", "pool", ("conv1",), {"kernel": 2, "stride": 2}),
    ("fc1", "linear", ("pool",), {"out_features": 5}),
    ("fc2", "linear", ("fc1",), {"out_features": 4}),
)


def workload(graph: Graph = TINY, **changes: Any) -> Workload:
    base = roofline_workload(graph, DEVICE, 12, collectives=("ring", "tree", "butterfly"))
    return replace(base, **changes)


def quadruples(workers: int) -> list[Split]:
    found = [f for f in itertools.product(range(1, workers + 1), repeat=4) if math.prod(f) == workers]
    return [Split(batch=b, out_channels=o, in_channels=i, height=h) for b, o, i, h in found]


def fits(graph: Graph, index: int, split: Split, micro_batch: int) -> bool:
    """Legality from the layer's own description, one split at a time."""
    layer = graph.layers[index]
    limits = layer.family.limits(layer)
    return (
        split.batch <= micro_batch
        and split.out_channels <= limits.out_channels
        and split.in_channels <= limits.in_channels
        and split.height <= limits.height
        and (split.in_channels == 1 or split.out_channels * split.in_channels <= layer.output_shape[0])
    )


def brute_force(
    graph: Graph, workers: int, micro_batch: int, collectives: int, *, training: bool
) -> list[tuple[object, ...]]:
    """Every plan without stages, written out: a (split, collective) for every layer but the inputs."""
    choices = []
    for i, layer in enumerate(graph.layers):
        if layer.kind == "input":
            continue
        options: list[tuple[Split, int | None]] = []
        for split in quadruples(workers):
            if fits(graph, i, split, micro_batch):
                exchanged = training and layer.weight_count > 0 and split.batch * split.height > 1
                options += [(split, c) for c in range(collectives)] if exchanged else [(split, None)]
        choices.append(options)
    return list(itertools.product(*choices))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("training", [True, False])
def test_count_of_layer_plans_is_the_number_of_them(workers: int, training: bool) -> None:
    graph = build(
        ("conv1", "convolution", ("data",), {"out_channels": 3, "kernel": 3}),
        ("pool", "pool", ("conv1",), {"kernel": 2, "stride": 2}),
        ("fc1", "linear", ("pool",), {"out_features": 2}),
    )
    plans = brute_force(graph, workers, 3, 2, training=training)
    assert len(set(plans)) == len(plans)
    counted, is_possible = count_layer_plans(graph, [workers], [3], Restriction(), 2, training=training)
    assert counted == len(plans)
    assert is_possible.tolist() == [bool(plans)]


def test_counts_add_up_over_workers_and_stay_exact() -> None:
    graph = load_model("vgg16").graph
    single = [count_layer_plans(graph, [w], [64], Restriction(), 6, training=True)[0] for w in (1, 8, 64)]
    assert count_layer_plans(graph, [1, 8, 64], [64], Restriction(), 6, training=True)[0] == sum(single)
    other, _ = count_layer_plans(graph, [1, 8, 64], [16], Restriction(), 6, training=True)
    assert count_layer_plans(graph, [1, 8, 64], [64, 16], Restriction(), 6, training=True)[0] == sum(single) + other
    assert single[0] == 1
    # Multiplied out layer by layer in whole numbers.
    table = split_table([64])
    product = 1
    for layer in graph.layers[1:]:
        legal = legal_splits(layer, table, 64)
        product *= sum(
            (6 if layer.weight_count and table.batch[r] * table.height[r] > 1 else 1) for r in np.flatnonzero(legal)
        )
    assert single[2] == product > 2**64


_COUNTED = [(family, False) for family in (None, *FAMILY_NAMES) if family != "pipeline"]


@pytest.mark.parametrize(
    ("family", "by_batch"), [*_COUNTED, (None, True), *((family, True) for family in BATCH_FAMILIES)]
)
@pytest.mark.parametrize(
    "fixed",
    [
        {},
        {"conv1": {"batch": 0}},
        {"conv1": {"batch": 2, "out_channels": 0}, "fc1": {"in_channels": 3, "out_channels": 2}},
        {"fc2": {"out_channels": 0}, "pool": {"height": 2, "batch": 3}},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_plans_are_counted_like_the_splits_that_are_built(
    family: str | None, by_batch: bool, fixed: dict[str, dict[str, int]], training: bool
) -> None:
    """In closed form, against the table of all splits with its masks, one worker count after the other."""
    if by_batch:
        fixed = {name: {"batch": degrees["batch"]} for name, degrees in fixed.items() if "batch" in degrees}
    restriction = Restriction(family=family, fixed=fixed, by_batch=by_batch)
    counts, sizes = list(range(1, 50)), [12, 6, 1]
    plans = np.zeros((len(sizes), len(counts)), dtype=object)
    for n, size in enumerate(sizes):
        for k, workers in enumerate(counts):
            table, plans[n, k] = split_table([workers]), 1
            for layer in TINY.layers[1:]:
                allowed = legal_splits(layer, table, size) & restriction.mask(layer, table)
                copies = table.batch * table.height > 1
                weight = 5 if training and layer.has_weights else 1
                plans[n, k] *= int(np.sum(np.where(copies, weight, 1)[allowed]))
    counted, is_possible = count_layer_plans(TINY, counts, sizes, restriction, 5, training=training)
    assert counted == plans.sum()
    assert is_possible.tolist() == (plans.sum(axis=0) > 0).tolist()


@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if name not in ("pipeline", "mixed")])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_family_counts_every_plan_of_its_name(family: str, workers: int) -> None:
    """Restrictions hold everything that bears the name, and say so plan by plan."""
    restriction = Restriction(family=family)
    table = split_table([workers])
    masks = [restriction.mask(layer, table) for layer in TINY.layers]
    layers = [i for i, layer in enumerate(TINY.layers) if layer.weight_count]
    options = [[s for s in quadruples(workers) if fits(TINY, i, s, 12)] for i in layers]
    members = 0
    for choice in itertools.product(*options):
        splits = [Split(batch=workers)] * len(TINY.layers)
        for i, split in zip(layers, choice, strict=True):
            splits[i] = split
        plan = Plan(workers=workers, num_micro_batches=1, splits=tuple(splits), collectives=(None,) * len(splits))
        if family_of_plan(TINY, plan) == family:
            members += 1
            assert all(masks[i][table.row_of(splits[i])] for i in layers)
    assert members == 0 if (workers == 1) != (family == "one-device") else members > 0


def test_fixed_layers_have_one_choice() -> None:
    fixed = fixed_by_patterns(TINY, [("fc*", {"out_channels": 0}), ("fc1", {"batch": 2, "out_channels": 2})])
    assert fixed == {"fc1": {"batch": 2, "out_channels": 2}, "fc2": {"out_channels": 0}}
    restriction = Restriction(fixed=fixed)
    table = split_table([4, 6])
    masks = {layer.name: restriction.mask(layer, table) for layer in TINY.layers}
    assert [table.split(int(r)) for r in np.flatnonzero(masks["fc1"])] == [Split(batch=2, out_channels=2)]
    assert [table.split(int(r)) for r in np.flatnonzero(masks["fc2"])] == [Split(out_channels=4), Split(out_channels=6)]
    assert masks["conv1"].all()
    assert not restriction.allows_pipelines
    with pytest.raises(ValueError, match="'conv9' matches no layer; layers are data, conv1"):
        fixed_by_patterns(TINY, [("conv9", {})])


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 8), st.integers(1, 7))
def test_count_of_pipelines_is_the_number_of_them(layers: int, workers: int, most: int, m: int) -> None:
    found = 0
    for stages in range(2, min(layers, m) + 1):
        cuts = len(list(itertools.combinations(range(1, layers), stages - 1)))
        replicas = itertools.product(range(1, min(most, workers) + 1), repeat=stages)
        found += cuts * sum(sum(r) <= workers for r in replicas)
    assert count_pipelines(layers, workers, most, m) == found

"""What is searched is what is evaluated: the solver's arrays against the cost model, at random choices of random networks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph
from costmodel.paleo.model import PaleoCompute
from costmodel.workload import Workload
from planner.importers.networks import load_model
from strategies.layerwise.bounds import lower_bounds, memory_extremes
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.per_layer.problem import memory_bytes, objective_s
from strategies.layerwise.space import Restriction, fixed_by_patterns
from tests.cases import mostly
from tests.costmodel.layerwise.evaluate_cases import CLUSTER, DEVICE
from tests.networks import Layers, roofline_workload


def workload(graph: Graph, **changes: Any) -> Workload:
    base = roofline_workload(graph, DEVICE, 24, optimizer="adam", collectives=tuple(ALL_REDUCE_NAMES))
    return replace(base, **changes)


def random_graph(rng: np.random.Generator) -> Graph:
    """Layers of one image size with forks and joins, then a classifier."""
    layers = Layers()
    layers.add("data", "input", shape=(3, 8, 8))

    def add(kind: str, *inputs: str, **values: Any) -> str:
        return layers.add(f"{kind}{len(layers.specs)}", kind, *inputs, **values)

    images = [add("convolution", "data", out_channels=8, kernel=3, padding=1)]
    for _ in range(int(rng.integers(1, 6))):
        source = images[int(rng.integers(len(images)))]
        match int(rng.integers(6)):
            case 0:
                images.append(add("convolution", source, out_channels=8, kernel=1, norm="batch", activation="relu"))
            case 1:
                images.append(add("convolution", source, out_channels=8, kernel=3, padding=1, groups=2))
            case 2:
                images.append(add("pool", source, kernel=3, padding=1))
            case 3:
                images.append(add("local_response_norm", source))
            case _:
                images.append(add("add", source, images[int(rng.integers(len(images)))]))
    end = add("add", *images) if len(images) > 1 else images[0]
    end = add("flatten", end) if rng.random() < 0.5 else end
    for features in (12, 6):
        end = add("linear", end, out_features=features)
    add("softmax", end)
    return layers.graph("net")


@functools.cache
def bundled(name: str) -> Graph:
    return load_model(name).graph


def choices(choice: LayerChoice, rng: np.random.Generator, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    for _ in range(count):
        yield np.array([rng.integers(len(rows)) for rows in choice.rows], dtype=np.int64)


def check(case: Workload, workers: int, m: int, rng: np.random.Generator, count: int) -> None:
    tables = CostTables(case, CLUSTER, split_table([workers]), m)
    choice = choice_problem(tables, 16e9, Restriction())
    problem = choice.problem
    assert problem.memory_capacity_bytes == 16e9 - case.context_bytes
    picked = list(choices(choice, rng, count))
    plans = [choice.plan(c) for c in picked]
    costs = evaluate(case, CLUSTER, plans)
    floor = lower_bounds(tables, Restriction())[0]
    least, most = (float(limit[0]) for limit in memory_extremes(tables, Restriction()))
    for n, c in enumerate(picked):
        assert plans[n].workers == workers
        assert plans[n].num_micro_batches == m
        objective = objective_s(problem, c)
        assert costs.step_time_s[n] == pytest.approx(objective, rel=1e-9)
        memory = memory_bytes(problem, c) + case.context_bytes
        assert costs.memory_bytes[n] == pytest.approx(memory, rel=1e-9)
        assert floor <= objective * (1 + 1e-12)
        assert least <= memory * (1 + 1e-12)
        assert memory <= most * (1 + 1e-12)


@pytest.mark.exact
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1, 2, 3, 6]), st.booleans())
def test_objective_and_memory_are_those_of_the_cost_model(seed: int, workers: int, m: int, training: bool) -> None:
    rng = np.random.default_rng(seed)
    case = workload(random_graph(rng), training=training)
    if workers > case.micro_batch(m) and workers > 8:
        return
    check(case, workers, m, rng, 8)


@mostly("exact", "name", ["alexnet", "gnmt", "googlenet", "dcgan-generator"], quick=1)
@pytest.mark.parametrize("preset", ["roofline", "paleo"])
def test_objective_and_memory_are_those_of_the_cost_model_on_bundled_networks(name: str, preset: str) -> None:
    case = workload(bundled(name))
    if preset == "paleo":
        case = replace(case, compute=PaleoCompute(device=DEVICE, ppp_comp=0.5, extensions=case.compute))
        assert not case.compute.overlaps_exchange
    check(case, 6, 2, np.random.default_rng(1), 20)
    check(case, 16, 1, np.random.default_rng(2), 10)


def test_every_legal_split_is_an_option_and_no_other() -> None:
    case = workload(bundled("alexnet"))
    tables = CostTables(case, CLUSTER, split_table([3, 8, 12]), 2).part(split_table([8]))
    choice = choice_problem(tables, 16e9, Restriction())
    for layer, costs, options in zip(case.graph.layers, tables.layers, choice.rows, strict=True):
        if layer.kind == "input":
            # Whoever reads it decides: one option, by the batch as far as there are samples.
            assert [tables.table.split(int(r)).batch for r in options] == [8]
            continue
        np.testing.assert_array_equal(options, np.flatnonzero(costs.legal))
        assert np.all(tables.table.workers[options] == 8)
    few = CostTables(replace(case, global_batch=4), CLUSTER, split_table([8]), 1)
    small = choice_problem(few, 16e9, Restriction())
    assert few.table.split(int(small.rows[0][0])).batch == 4


def test_restrictions_reach_the_solver_and_impossible_ones_give_no_problem() -> None:
    case = workload(bundled("alexnet"))
    tables = CostTables(case, CLUSTER, split_table([8]), 1)
    fixed = fixed_by_patterns(case.graph, [("conv*", {"batch": 0}), ("fc*", {"out_channels": 0})])
    choice = choice_problem(tables, 16e9, Restriction(fixed=fixed))
    for layer, options in zip(case.graph.layers, choice.rows, strict=True):
        if layer.name in fixed:
            (row,) = options
            split = tables.table.split(int(row))
            assert split.batch == (8 if layer.name.startswith("conv") else 1)
            assert split.out_channels == (1 if layer.name.startswith("conv") else 8)
    assert choice_problem(tables, 16e9, Restriction(family="one-device")) is None
    assert np.isinf(lower_bounds(tables, Restriction(family="one-device"))[0])
    impossible = fixed_by_patterns(case.graph, [("conv1", {"in_channels": 0})])  # three channels for eight workers
    assert choice_problem(tables, 16e9, Restriction(fixed=impossible)) is None


def test_layers_without_weights_do_not_make_plans_different() -> None:
    case = workload(bundled("alexnet"))
    tables = CostTables(case, CLUSTER, split_table([4]), 1)
    choice = choice_problem(tables, 16e9, Restriction())
    for layer, options, key in zip(case.graph.layers, choice.rows, choice.problem.key_class, strict=True):
        assert len(set(key.tolist())) == (len(options) if layer.weight_count else 1)


def test_collectives_are_named_where_something_is_exchanged() -> None:
    for training in (True, False):
        case = workload(bundled("alexnet"), training=training)
        tables = CostTables(case, CLUSTER, split_table([6]), 1)
        choice = choice_problem(tables, 16e9, Restriction())
        assert choice is not None
        for c in choices(choice, np.random.default_rng(3), 5):
            plan = choice.plan(c)
            for layer, split, name in zip(case.graph.layers, plan.splits, plan.collectives, strict=True):
                exchanged = training and layer.weight_count > 0 and split.batch * split.height > 1
                assert (name is not None) == exchanged
                assert name is None or name in ALL_REDUCE_NAMES

"""Piper's objective: against trying every plan on small graphs, and against published values."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.files.documents import JsonFile, read_workload
from planner.placement.check import check_piper
from planner.placement.piper_file import piper_from
from strategies.limits import Clock
from strategies.placement.piper import PiperPlan, PiperProblem, data_parallel_time, solve_piper
from tests.cases import mostly


def random_content(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    count = rng.randint(1, 4)
    edges = [
        {"sourceId": i, "destId": j, "communicationCost": rng.choice([0.0, 1.0, 5.0])}
        for i, j in itertools.combinations(range(count), 2)
        if rng.random() < 0.6
    ]
    ways_differ = rng.random() < 0.4  # in parameters and layout changes too
    nodes = []
    for v in range(count):
        tables = {}
        base = rng.uniform(1, 4)
        for t in (1, 2):
            if t == 2 and rng.random() < 0.3:
                continue
            shared = rng.choice([0.0, 3.0])
            ways = []
            for w in range(rng.randint(1, 3)):
                extra = rng.choice([0.0, 2.0, 7.0]) if ways_differ else shared
                ways.append(
                    {
                        "id": f"way{w}",
                        "timePerSample": 0.0 if rng.random() < 0.1 else base / t * (1 + 0.4 * w),
                        "parameterSize": extra * 4,
                        "memoryUsageA": rng.choice([0.0, 1.0, 2.0, 4.0]) / t,
                        "memoryUsageB": rng.choice([0.0, 1.0, 3.0]),
                        "syncTimeFw": {str(e["sourceId"]): extra for e in edges if e["destId"] == v},
                        "syncTimeBw": {str(e["destId"]): extra for e in edges if e["sourceId"] == v},
                    }
                )
            tables[str(t)] = ways
        nodes.append({"id": v, "name": f"n{v}", "TMPCs": tables})
    return {
        "maxDevices": rng.randint(1, 5),
        "maxMemoryPerDevice": rng.choice([3.0, 6.0, 10.0, 30.0]),
        "bandwidth": rng.choice([2.0, 20.0]),
        "mbsInBatch": rng.choice([1, 2, 4, 6]),
        "nodes": nodes,
        "edges": edges,
    }


def problem_of(content: dict[str, Any], **overrides: Any) -> PiperProblem:
    file = JsonFile(path=Path("w.json"), text=json.dumps(content), sha256="", content=content)
    return piper_from(file, overrides).problem


def stages_of(problem: PiperProblem, plan: PiperPlan) -> list[dict[str, Any]]:
    return [
        {
            "nodes": [problem.node_ids[v] for v in stage.nodes],
            "ways": list(stage.ways),
            "data_parallel": stage.data_parallel,
            "tensor_parallel": stage.tensor_parallel,
        }
        for stage in plan.stages
    ]


def splits(left: frozenset[int], edges: list[tuple[int, int]]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to cut nodes into a chain of stages, the first stage first."""
    if not left:
        yield []
        return
    for size in range(1, len(left) + 1):
        for stage in itertools.combinations(sorted(left), size):
            if all(u in stage for u, v in edges if v in stage and u in left):
                for rest in splits(left - set(stage), edges):
                    yield [stage, *rest]


def try_everything(content: dict[str, Any]) -> float:
    edges = [(e["sourceId"], e["destId"]) for e in content["edges"]]
    copies = [d for d in range(1, content["mbsInBatch"] + 1) if content["mbsInBatch"] % d == 0]
    best = float("inf")
    for chain in splits(frozenset(range(len(content["nodes"]))), edges):
        for shape in itertools.product(itertools.product(copies, (1, 2)), repeat=len(chain)):
            if sum(d * t for d, t in shape) > content["maxDevices"] or sum(d for d, _ in shape) > content["mbsInBatch"]:
                continue
            slowest = 0.0
            # Stages are independent once the copies are known: the best ways of each, one by one.
            for i in range(len(chain)):
                best_stage = float("inf")
                tables = [content["nodes"][v]["TMPCs"].get(str(shape[i][1]), []) for v in chain[i]]
                for ways in itertools.product(*(range(len(table)) for table in tables)):
                    plan = [
                        {
                            "nodes": nodes,
                            "ways": ways if j == i else (0,) * len(nodes),
                            "data_parallel": d,
                            "tensor_parallel": t,
                        }
                        for j, (nodes, (d, t)) in enumerate(zip(chain, shape, strict=True))
                    ]
                    checked = check_piper(content, plan).stages[i]
                    if checked.memory_bytes <= content["maxMemoryPerDevice"] * (1 + 1e-12):
                        best_stage = min(best_stage, checked.time_s)
                slowest = max(slowest, best_stage)
            best = min(best, slowest)
    return best


@mostly("exact", "seeds", [range(10), *(range(start, start + 25) for start in range(0, 200, 25))], quick=1)
def test_equals_trying_everything(seeds: range) -> None:
    nothing = 0
    for seed in seeds:
        content = random_content(seed)
        expected = try_everything(content)
        problem = problem_of(content)
        result = solve_piper(problem)
        assert result.proven_optimal, seed
        if expected == float("inf"):
            nothing += 1
            assert result.plan is None, seed
            assert result.bound == float("inf")
            continue
        assert result.objective == pytest.approx(expected, rel=1e-9, abs=1e-12), seed
        assert result.plan is not None
        checked = check_piper(content, stages_of(problem, result.plan))
        assert checked.violations == (), seed
        assert checked.objective == pytest.approx(result.objective, rel=1e-12)
        for stage, again in zip(result.plan.stages, checked.stages, strict=True):
            assert stage.in_flight == again.in_flight
            assert stage.memory_bytes == pytest.approx(again.memory_bytes)
    assert nothing < 15


@pytest.mark.published
@pytest.mark.parametrize(
    ("devices", "published"),
    [(8, 0.16585575), (64, 0.0202005503), (512, 0.00256112785), (1024, 0.00130317952), (2048, 0.000703591)],
)
def test_published_values(devices: int, published: float, reference_data: Path) -> None:
    """Best known values of bert32a100 with 8 GiB, 25 GiB/s and 1920 micro-batches, to their printed digits."""
    path = reference_data / "placement" / "workloads" / "piper" / "bert32a100.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    file = read_workload(path)
    overrides = {"maxDevices": devices, "maxMemoryPerDevice": 8 * 2.0**30, "bandwidth": 25 * 2.0**30}
    loaded = piper_from(file, overrides)
    result = solve_piper(loaded.problem)
    assert result.proven_optimal
    assert result.objective <= published * (1 + 1e-6)  # the last value is printed with six digits
    assert result.plan is not None
    checked = check_piper(loaded.content, stages_of(loaded.problem, result.plan))
    assert checked.violations == ()
    assert checked.objective == pytest.approx(result.objective, rel=1e-12)
    assert result.plan.num_devices <= devices


def test_stopping_early() -> None:
    problem = problem_of(random_content(4), maxMemoryPerDevice=1e6)
    assert solve_piper(problem, clock=Clock(limit_s=0.0)).stopped == "time limit"
    limited = solve_piper(problem, max_ideals=2)
    assert limited.plan is None
    assert limited.gap == float("inf")
    assert "more than 2 predecessor-closed sets" in limited.proof


@pytest.mark.exact
def test_never_more_devices_than_there_are() -> None:
    for seed in range(410, 430):  # among them a state whose cheapest way is legal and whose other ways are not
        for devices in (3, 5, 7):
            content = random_content(seed) | {"maxDevices": devices}
            problem = problem_of(content)
            result = solve_piper(problem)
            if result.plan is not None:
                assert check_piper(content, stages_of(problem, result.plan)).violations == (), seed


@pytest.mark.exact
def test_more_devices_are_never_worse() -> None:
    for seed in range(20):
        content = random_content(seed)
        values = [solve_piper(problem_of(content, maxDevices=k)).objective for k in range(1, 7)]
        assert all(
            later <= sooner * (1 + 1e-12) for sooner, later in itertools.pairwise(values) if sooner < float("inf")
        )


def test_data_parallelism_is_timed_as_the_checker_times_it() -> None:
    """All operators in one stage, with as many copies as divide the micro-batches; the best plan is not slower where that one fits."""
    compared = 0
    for seed in range(40):
        content = random_content(seed)
        problem, ids = problem_of(content), [node["id"] for node in content["nodes"]]
        copies = max(d for d in range(1, content["maxDevices"] + 1) if content["mbsInBatch"] % d == 0)
        stage = {"data_parallel": copies, "tensor_parallel": 1, "nodes": ids, "ways": [0] * len(ids)}
        checked = check_piper(content, [stage])
        assert data_parallel_time(problem) == pytest.approx(checked.objective)
        if not checked.violations:
            compared += 1
            assert solve_piper(problem).objective <= checked.objective * (1 + 1e-9)
    assert compared > 5

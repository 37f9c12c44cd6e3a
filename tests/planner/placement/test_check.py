"""The checker on placements computed by hand: throughput, latency with serial subgraphs, and every violation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.placement.check import check_latency, check_piper, check_throughput


def workload(
    times: dict[Any, float], edges: list[tuple[Any, Any, float]], *, accelerators: int = 2, **nodes: dict[Any, Any]
) -> dict[str, Any]:
    """Operators with 1 byte and ten times the time on a CPU; ``nodes`` overrides: key -> {id: value}."""
    entries = [
        {"id": v, "supportedOnFpga": 1, "fpgaLatency": time, "cpuLatency": 10 * time, "size": 1.0}
        for v, time in times.items()
    ]
    for key, values in nodes.items():
        for entry in entries:
            if entry["id"] in values:
                entry[key] = values[entry["id"]]
    return {
        "maxFPGAs": accelerators,
        "maxCPUs": 1,
        "maxSizePerFPGA": 3.0,
        "nodes": entries,
        "edges": [{"sourceId": u, "destId": v, "cost": cost} for u, v, cost in edges],
    }


DIAMOND = workload({1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0}, [(1, 2, 0.5), (1, 3, 0.5), (2, 4, 0.25), (3, 4, 0.125)])


def test_each_source_is_paid_once_per_device() -> None:
    checked = check_throughput(DIAMOND, {1: "acc1", 2: "acc2", 3: "acc2", 4: "cpu1"}, contiguity="chain")
    assert checked.violations == ()
    one, two, cpu = checked.devices
    assert (one.compute, one.communication) == (1.0, 0.5)  # two readers, one output
    assert (two.compute, two.communication) == (6.0, 0.5 + 0.25 + 0.125)  # one input, two outputs
    assert (cpu.compute, cpu.communication) == (80.0, 0.0)  # CPUs never pay
    assert checked.objective == 80.0


def test_colour_and_support_and_memory() -> None:
    content = workload(
        {1: 1.0, 2: 1.0, 3: 1.0}, [], colorClass={1: 7, 2: 7}, supportedOnFpga={3: 0}, size={1: 2.0, 2: 2.0}
    )
    assert check_throughput(content, {1: "cpu1", 2: "cpu1", 3: "cpu1"}).violations == ()
    text = " | ".join(check_throughput(content, {1: "acc1", 2: "acc1", 3: "acc2"}).violations)
    assert "not supported on accelerators: 3" in text
    assert "acc1 holds 4 bytes, its memory 3" in text
    assert "colour classes are on several devices: 7" in " ".join(
        check_throughput(content, {1: "acc1", 2: "acc2", 3: "cpu1"}).violations
    )


@pytest.mark.parametrize(
    ("device_of", "expected"),
    [
        ({1: "acc1", 2: "acc1", 3: "acc1"}, "1 operators have no device: 4"),
        ({1: "acc1", 2: "acc1", 3: "acc1", 4: "acc9"}, "there are no devices acc9"),
        ({1: "acc1", 2: "acc1", 3: "acc2", 4: "acc2", 5: "acc2"}, "1 operators are not in the workload: 5"),
    ],
)
def test_assignments_that_are_none(device_of: dict[Any, str], expected: str) -> None:
    assert expected in " ".join(check_throughput(DIAMOND, device_of).violations)


def test_contiguity_has_two_meanings() -> None:
    # 1 -> 2 and 3 -> 4, where acc1 has 1 and 4: convex each, but they feed each other.
    crossed = workload({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, [(1, 2, 0.0), (3, 4, 0.0)])
    device_of = {1: "acc1", 4: "acc1", 2: "acc2", 3: "acc2"}
    checked = check_throughput(crossed, device_of)
    assert (checked.is_chain, checked.is_convex) == (False, True)
    assert check_throughput(crossed, device_of, contiguity="convex").violations == ()
    assert "cannot be put in an order" in check_throughput(crossed, device_of, contiguity="chain").violations[0]
    # 1 -> 2 -> 4 with 2 elsewhere comes back to acc1.
    torn = check_throughput(DIAMOND, {1: "acc1", 2: "acc2", 3: "acc1", 4: "acc1"}, contiguity="convex")
    assert (
        torn.violations
        == (
            "acc1 holds 3 bytes, its memory 3",
            "not contiguous: a path leaves acc1 and comes back",
        )[1:]
    )


def test_backward_operators_need_not_be_contiguous() -> None:
    content = workload(
        {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0},
        [(1, 2, 0.0), (2, 3, 0.0), (3, 4, 0.0)],
        isBackwardNode={3: 1, 4: 1},
        colorClass={1: "a", 4: "a", 2: "b", 3: "b"},
    )
    checked = check_throughput(content, {1: "acc1", 4: "acc1", 2: "acc2", 3: "acc2"}, contiguity="chain")
    assert checked.violations == ()


def test_latency_of_one_subgraph_each() -> None:
    # acc1 does 1 and 3: in 0, compute 5, out 0.5 + 0.125. 2 waits for it on the CPU. acc2 reads both of its inputs.
    checked = check_latency(DIAMOND, {1: "acc1", 3: "acc1", 2: "cpu1", 4: "acc2"}, {})
    assert checked.violations == ()
    assert checked.objective == pytest.approx((5 + 0.625) + 20 + (0.25 + 0.125 + 8))
    everywhere = check_latency(DIAMOND, dict.fromkeys((1, 2, 3, 4), "cpu1"), {})
    assert everywhere.objective == 10 + 40 + 80  # 2 and 3 at the same time


def test_latency_of_serial_subgraphs() -> None:
    # acc1 calls {1} first and {4} second; {2} and {3} run on acc2, one after the other although independent.
    device_of = {1: "acc1", 4: "acc1", 2: "acc2", 3: "acc2"}
    checked = check_latency(DIAMOND, device_of, {1: 0, 4: 1, 2: 0, 3: 1}, num_subgraphs=2)
    assert checked.violations == ()
    first = 1 + 0.5
    second = first + 0.5 + 2 + 0.25
    third = second + 0.5 + 4 + 0.125  # pays for the output of 1 again
    assert checked.objective == pytest.approx(third + 0.25 + 0.125 + 8)
    assert checked.devices[1].communication == pytest.approx(0.5 + 0.25 + 0.5 + 0.125)
    # In the other order the shorter one waits.
    other = check_latency(DIAMOND, device_of, {1: 0, 4: 1, 2: 1, 3: 0}, num_subgraphs=2)
    assert other.objective == pytest.approx(checked.objective)
    assert "runs subgraph 1; only 0 to 0" in " ".join(check_latency(DIAMOND, device_of, {4: 1}).violations)


def test_latency_violations() -> None:
    torn = check_latency(DIAMOND, {1: "acc1", 4: "acc1", 2: "acc2", 3: "acc2"}, {})
    assert "not contiguous: a path leaves subgraph 0 of acc1 and comes back" in torn.violations
    assert "subgraphs wait for each other in a circle" in torn.violations
    assert torn.objective == float("inf")
    # Serial order against the data: 4 is called before 1.
    backwards = check_latency(DIAMOND, {1: "acc1", 4: "acc1", 2: "acc2", 3: "acc2"}, {1: 1, 4: 0}, num_subgraphs=2)
    assert backwards.violations == ("subgraphs wait for each other in a circle",)
    small = {**DIAMOND, "maxSizePerFPGA": 1.0}
    split = check_latency(small, {1: "acc1", 2: "acc1", 3: "cpu1", 4: "cpu2"}, {2: 1}, num_subgraphs=2)
    assert split.violations == ("acc1 holds 2 bytes, its memory 1",)  # of both subgraphs together


def piper(**more: Any) -> dict[str, Any]:
    def way(time: float, stash: float) -> dict[str, Any]:
        return {"timePerSample": time, "parameterSize": 8.0, "memoryUsageA": stash, "memoryUsageB": 2.0}

    nodes = [{"id": v, "TMPCs": {"1": [way(4.0, 3.0), way(5.0, 1.0)], "2": [way(2.5, 2.0)]}} for v in (1, 2)]
    nodes[1]["TMPCs"]["1"][1] |= {"syncTimeFw": {"1": 3.0}}
    edges = [{"sourceId": 1, "destId": 2, "communicationCost": 6.0}]
    return {
        "maxDevices": 3,
        "maxMemoryPerDevice": 9.0,
        "bandwidth": 4.0,
        "mbsInBatch": 4,
        "nodes": nodes,
        "edges": edges,
    } | more


def stage(nodes: list[int], ways: list[int], d: int, t: int) -> dict[str, Any]:
    return {"nodes": nodes, "ways": ways, "data_parallel": d, "tensor_parallel": t}


def test_piper_by_hand() -> None:
    checked = check_piper(piper(), [stage([1], [1], 2, 1), stage([2], [1], 1, 1)])
    first = 5 / 2 + 2 * 6 / (2 * 4) + 4 * (2 - 1) * 8 / (2 * 4) / 4
    second = 5 + 2 * (6 + 3) / 4
    assert [s.time_s for s in checked.stages] == pytest.approx([first, second])
    assert [s.in_flight for s in checked.stages] == [2, 1]  # ceil(3 / 2), 1
    assert [s.memory_bytes for s in checked.stages] == [1 * 2 + 2, 3.0]
    assert checked.violations == ()


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([stage([1], [0], 1, 1)], "1 operators are in no stage"),
        ([stage([1, 2, 2], [0, 0, 0], 1, 1)], "node 2 is in two stages"),
        ([stage([1, 2, 9], [0, 0, 0], 1, 1)], "node 9 is not in the workload"),
        ([stage([2], [0], 1, 1), stage([1], [0], 1, 1)], "leads back, from stage 2 to 1"),
        ([stage([1, 2], [0, 0], 2, 2)], "4 devices are used, 3 are there"),
        ([stage([1, 2], [0, 0], 3, 1)], "3 copies do not divide 4"),
        ([stage([1, 2], [0, 1], 1, 2)], "node 2 has no way 1 to run on 2 devices"),
        ([stage([1], [0], 1, 1), stage([2], [0], 2, 1)], "stage 1 holds 11 bytes per device"),
    ],
)
def test_piper_violations(stages: list[dict[str, Any]], expected: str) -> None:
    assert expected in " | ".join(check_piper(piper(), stages).violations)


# --- Workloads with several kinds of accelerators: reading, answers, and one clear error per fault ----------------------------------------


def content() -> dict[str, Any]:
    """Six operators in a row; the slow accelerator takes twice as long, but for the last operator."""
    nodes = [{"id": i, "supportedOnFpga": 1, "cpuLatency": 90.0, "fpgaLatency": 1.0, "size": 1} for i in range(6)]
    nodes[5]["slow_time"] = 0.5
    return {
        "maxCPUs": 0,
        "deviceTypes": [
            {"name": "fast", "count": 1, "memory": 6},
            {"name": "slow", "count": 1, "memory": 4, "timeFactor": 2.0, "timeKey": "slow_time", "linkFactor": 2.0},
        ],
        "nodes": nodes,
        "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in range(5)],
    }


@pytest.fixture
def mixed(new_file: Any) -> Callable[[dict[str, Any]], Path]:
    def write(workload: dict[str, Any]) -> Path:
        return new_file("mixed.json", json.dumps(workload))

    return write


@pytest.mark.parametrize("mode", ["--contiguous", "--non-contiguous"])
def test_answer_by_hand(mode: str, tmp_path: Path, mixed: Any, answer: Any) -> None:
    """The fast one takes four operators and a transfer, 4.25; the slow one 2 + 0.5 and a transfer at half the speed, 3."""
    path, placed = mixed(content()), tmp_path / "placed.yaml"
    found = json.loads(answer("place", path, mode, "--json", "--export", placed))
    assert found["objective"] == pytest.approx(4.25)
    assert found["proven_optimal"]
    fast, slow = found["devices"]
    assert (fast["type"], slow["type"]) == ("fast", "slow")
    assert (fast["load"], slow["load"]) == (pytest.approx(4.25), pytest.approx(3.0))
    assert (fast["memory_capacity_bytes"], slow["memory_capacity_bytes"]) == (6, 4)
    assert answer("place", "check", path, placed)


def test_memory_of_each_kind_counts(mixed: Any, answer: Any, fails: Any) -> None:
    workload = content()
    workload["deviceTypes"][0]["memory"] = 2  # now the slow one must take four
    assert json.loads(answer("place", mixed(workload), "--json"))["objective"] == pytest.approx(7.0)
    workload["deviceTypes"][1]["memory"] = 3
    assert fails("place", mixed(workload), "--json", code=1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(deviceTypes=[]), "deviceTypes: needs at least 1 entry"),
        (lambda c: c.update(deviceTypes=5), "expected a list"),
        (lambda c: c["deviceTypes"][0].pop("memory"), "missing key 'memory'"),
        (lambda c: c["deviceTypes"][0].update(count=0), "at least 1"),
        (lambda c: c["deviceTypes"][0].update(timeFactor=-1), "at least 0"),
        (lambda c: c["deviceTypes"][0].update(linkFactor=0), "greater than 0"),
        (lambda c: c["deviceTypes"][1].update(name="fast"), "used twice"),
        (lambda c: c["deviceTypes"][1].update(speed=2), "unknown key 'speed'"),
        (lambda c: c["nodes"][5].update(slow_time=-3), "nodes[5].slow_time: must be at least 0, got -3"),
        (lambda c: c["nodes"][5].update(slow_time=None), "nodes[5].slow_time: expected a number, got nothing"),
        (lambda c: c["nodes"][5].update(slow_time=True), "nodes[5].slow_time: expected a number, got true"),
        (
            lambda c: c["deviceTypes"][0].update(timeFactor=1e308),
            "deviceTypes[0]: the times of the operators on fast add",
        ),
        (
            lambda c: c["deviceTypes"][1].update(linkFactor=1e300),
            "deviceTypes[1]: the times of the transfers on slow add",
        ),
        (
            lambda c: c["deviceTypes"][0].update(linkFactor=1e-300),
            "deviceTypes[1]: the times of the transfers on slow add",
        ),
        (
            lambda c: c["nodes"][0].update(fpgaLatency=1e10) or c["deviceTypes"][1].update(timeFactor=1e300),
            "nodes[0].fpgaLatency: expected a finite number",
        ),
        (lambda c: c["deviceTypes"][0].update(timeKey=7), "timeKey: expected text, got 7"),
    ],
)
def test_faults_are_named(change: Any, text: str, mixed: Any, fails: Any) -> None:
    workload = content()
    change(workload)
    assert text in fails("place", mixed(workload))


@pytest.mark.parametrize(
    "words",
    [
        ("--devices", "3"),
        ("--memory", "4B"),
        ("--method", "greedy"),
        ("--contiguity", "convex"),
        ("--objective", "latency"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], mixed: Any, fails: Any) -> None:
    assert "deviceTypes" in fails("place", mixed(content()), *words)

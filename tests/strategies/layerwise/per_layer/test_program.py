"""The integer program against brute force; what it writes, how it stops, and what it costs to load."""

from __future__ import annotations

import _thread
import math
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from strategies.layerwise.per_layer.elimination import Elimination
from strategies.layerwise.per_layer.lagrangian import DualAscent, Multipliers, solve_master
from strategies.layerwise.per_layer.problem import (
    ChoiceProblem,
    Edge,
    FlatTables,
    Limits,
    Status,
    Structure,
    memory_bytes,
    objective_s,
    restrict,
)
from strategies.layerwise.per_layer.program import solve_program
from strategies.solvers import LinearProgram, ProgramStatus, solve_linear_program
from tests.cases import mostly
from tests.strategies.layerwise.per_layer.choice_problems import (
    TOLERANCE,
    best_by_key,
    brute_force,
    key_of,
    random_problem,
)

SOLVER_TOLERANCE = 1e-6  # relative, generous: 1e-9 per node and edge


@pytest.mark.parametrize("memory", ["none", "loose", "binding"])
@mostly("exact", "seed", range(35))
def test_equals_brute_force(memory: str, seed: int) -> None:
    shape = ("chain", "branching", "dense")[seed % 3]
    problem = random_problem(np.random.default_rng(seed), shape=shape, memory=memory, overlap=seed % 4 > 0)
    expected = best_by_key(problem)[:2]
    answer = solve_program(problem, Limits(num_solutions=2))
    assert answer.status is Status.OPTIMAL
    assert answer.objectives_s == pytest.approx(expected, abs=TOLERANCE)
    assert len({key_of(problem, c) for c in answer.choices}) == len(expected)
    assert expected[0] * (1.0 - SOLVER_TOLERANCE) <= answer.bound_s <= expected[0]
    assert answer.rest_bound_s >= answer.objectives_s[-1] * (1.0 - SOLVER_TOLERANCE)
    alone = solve_program(problem, Limits())
    assert alone.objectives_s == pytest.approx(expected[:1], abs=TOLERANCE)


def test_infeasible() -> None:
    problem = random_problem(np.random.default_rng(1), shape="chain", memory="infeasible")
    answer = solve_program(problem, Limits())
    assert (answer.status, answer.choices, answer.bound_s) == (Status.INFEASIBLE, (), math.inf)


@mostly("exact", "seed", range(12))
def test_cutoff(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="branching", memory="binding")
    best = brute_force(problem)[0][0] or 1e-9
    below = solve_program(problem, Limits(cutoff_s=best * (1.0 - 1e-4)))
    if best > 1e-9:
        assert (below.status, below.choices) == (Status.CUT_OFF, ())
        assert below.bound_s <= best
    at = solve_program(problem, Limits(cutoff_s=best))
    assert at.status is Status.OPTIMAL
    assert at.objectives_s == pytest.approx([best], abs=TOLERANCE)


def test_nothing_is_written_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    solve_program(random_problem(np.random.default_rng(2), shape="dense"), Limits())
    sys.stdout.write("after\n")
    sys.stdout.flush()
    assert capfd.readouterr().out == "after\n"


def hard_problem() -> ChoiceProblem:
    """A dense random problem that takes HiGHS minutes."""
    rng = np.random.default_rng(0)
    nodes, options = 26, 14
    zero, own = tuple(np.zeros(options) for _ in range(nodes)), np.arange(options)
    edges = tuple(
        Edge(producer=u, consumer=v, producer_class=own, consumer_class=own, cost_s=rng.random((options, options)))
        for u in range(nodes)
        for v in range(u + 1, nodes)
        if rng.random() < 0.5
    )
    return ChoiceProblem(
        base_s=tuple(rng.random(options) for _ in range(nodes)),
        hide_s=zero,
        exchange_s=zero,
        memory_bytes=zero,
        edges=edges,
    )


@pytest.mark.exact
def test_time_limit_leaves_an_honest_answer() -> None:
    answer = solve_program(hard_problem(), Limits(wall_s=1.0))
    assert answer.status in {Status.FEASIBLE, Status.LIMIT}
    assert all(answer.bound_s <= value for value in answer.objectives_s)
    assert solve_program(hard_problem(), Limits(wall_s=0.0)).status is Status.LIMIT


@pytest.mark.exact
def test_interrupt_passes_through() -> None:
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        solve_program(hard_problem(), Limits(wall_s=120.0))
    timer.join()


def test_statuses_of_linear_programs() -> None:
    one, zero = np.ones(1), np.zeros(1)
    program = LinearProgram(
        cost=one,
        lower=zero,
        upper=one,
        integer=np.array([True]),
        row_lower=np.array([0.5]),
        row_upper=np.array([np.inf]),
        entry_row=np.array([0]),
        entry_column=np.array([0]),
        entry_value=one,
    )
    answer = solve_linear_program(program, time_limit_s=math.inf)
    assert answer.status is ProgramStatus.OPTIMAL
    assert answer.values.tolist() == [1.0]
    impossible = solve_linear_program(replace(program, row_lower=np.array([1.5])), time_limit_s=10.0)
    assert (impossible.status, impossible.values) == (ProgramStatus.INFEASIBLE, None)


@pytest.mark.e2e
def test_importing_is_light() -> None:
    code = (
        "import sys, strategies.layerwise.per_layer.program, strategies.layerwise.per_layer.search\n"
        "assert not any(m.startswith('ortools') for m in sys.modules)\n"
        "from strategies.layerwise.per_layer.problem import ChoiceProblem, Limits\n"
        "import numpy as np\n"
        "z = np.zeros(1)\n"
        "p = ChoiceProblem(base_s=(z + 1,), hide_s=(z,), exchange_s=(z,), memory_bytes=(z,))\n"
        "strategies.layerwise.per_layer.program.solve_program(p, Limits())\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Lagrangian bounds never pass the optimum, whatever the multipliers, and the master program is exact ----------------------------------


@mostly("exact", "seed", range(40))
def test_any_multipliers_bound_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape=("chain", "branching", "dense")[seed % 3], memory="binding")
    optimum = brute_force(problem)[0][0]
    run = Elimination(Structure(problem.num_nodes, [(e.producer, e.consumer) for e in problem.edges]), problem)
    ascent = DualAscent(FlatTables(problem), run, problem.memory_capacity_bytes)
    for _ in range(10):
        multipliers = Multipliers(rng.dirichlet(np.ones(problem.num_nodes)), float(rng.random()))
        assert ascent.bound_at(multipliers) <= optimum + TOLERANCE
    before = ascent.bound_s
    for _ in range(15):
        ascent.step()
    assert before <= ascent.bound_s <= optimum + TOLERANCE
    assert ascent.best.weight.min() >= 0.0
    assert ascent.best.weight.sum() == pytest.approx(1.0)


@mostly("exact", "seed", range(20))
def test_evaluation_equals_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape="dense", memory="loose")
    tables = FlatTables(problem)
    for _, choice in brute_force(problem)[:20]:
        seen = tables.evaluate(choice)
        assert seen.objective_s == pytest.approx(objective_s(problem, choice), abs=TOLERANCE)
        assert seen.memory == pytest.approx(memory_bytes(problem, choice))


@mostly("exact", "seed", range(10))
def test_restricted_problem_costs_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape="branching")
    keep = [np.sort(rng.choice(len(b), size=int(rng.integers(1, len(b) + 1)), replace=False)) for b in problem.base_s]
    small = restrict(problem, keep)
    for value, choice in brute_force(small)[:20]:
        whole = np.array([k[o] for k, o in zip(keep, choice, strict=True)])
        assert objective_s(problem, whole) == value


@mostly("exact", "seed", range(30))
def test_master_beats_every_sample_and_is_attained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices, terms = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    value, excess = rng.normal(size=(choices, terms)), rng.normal(size=choices)
    weights, price, best = solve_master(value, excess, 2.0)
    assert best == pytest.approx(float((value @ weights + price * excess).min()))
    assert weights.min() >= 0.0
    assert weights.sum() == pytest.approx(1.0)
    assert 0.0 <= price <= 2.0
    samples = rng.dirichlet(np.ones(terms), size=500)
    prices = np.append(rng.random(498) * 2.0, [0.0, 2.0])
    assert (samples @ value.T + prices[:, None] * excess).min(axis=1).max() <= best + 1e-9

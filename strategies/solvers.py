"""The one place that knows a solver library: OR-Tools, with HiGHS for linear programs with integers and CP-SAT for constraints.

Notes
-----
MathOpt's convenience classes import pandas and build models object by object; the protocol buffers underneath take numpy
arrays and import in a few hundredths of a second. CP-SAT has no other classes. Everything is imported when a program is
solved, not before.

HiGHS writes to the process's standard output even when told not to, so file descriptor 1 points elsewhere meanwhile. The
solve runs in a thread, because C++ code would hold back Ctrl-C.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import SOLVER_TOLERANCE


class SolverError(RuntimeError):
    """The solver library failed or is missing."""


class ProgramStatus(enum.Enum):
    """What the solver says of a program."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    FEASIBLE = "feasible"  # stopped by a limit, with values
    LIMIT = "limit"  # stopped by a limit, without


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProgram:
    """Minimise ``cost @ x`` with bounds on the variables and on the rows of a sparse matrix."""

    cost: FloatArray  # (variables,)
    lower: FloatArray
    upper: FloatArray
    integer: BoolArray
    row_lower: FloatArray  # (rows,)
    row_upper: FloatArray
    entry_row: IntArray  # (entries,), any order, no (row, column) twice
    entry_column: IntArray
    entry_value: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """Status first: there are values only when it says so."""

    status: ProgramStatus
    values: FloatArray | None
    bound: float  # the solver's claim, subject to its tolerances


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxationResult:
    """Optimum of a linear program without integers, and what each row is worth."""

    objective: float
    values: FloatArray  # (variables,)
    row_duals: FloatArray  # (rows,) change of the objective with the row's bound


def solve_linear_program(
    program: LinearProgram, *, time_limit_s: float, relative_gap: float = 0.0, most_nodes: int | None = None
) -> ProgramResult:
    """Solve a program with HiGHS.

    Parameters
    ----------
    program : LinearProgram
    time_limit_s : float
        Seconds; may be infinite.
    relative_gap : float
        The solver may stop at this relative gap.
    most_nodes : int, optional
        Of the tree of the search: a limit that does not depend on the machine.

    Returns
    -------
    ProgramResult

    Raises
    ------
    SolverError
        When the library is missing or reports an error.

    Examples
    --------
    The cheaper of two items that weigh at least 2 together:

    >>> one, zero = np.ones(2), np.zeros(2)
    >>> p = LinearProgram(cost=np.array([3.0, 2.0]), lower=zero, upper=2 * one, integer=np.array([True, True]),
    ...     row_lower=np.array([2.0]), row_upper=np.array([np.inf]), entry_row=np.array([0, 0]),
    ...     entry_column=np.array([0, 1]), entry_value=one)
    >>> r = solve_linear_program(p, time_limit_s=10.0)
    >>> r.status.value, r.values.tolist()
    ('optimal', [0.0, 2.0])
    """
    parameters = _parameters(relative_gap_tolerance=relative_gap, absolute_gap_tolerance=0.0, node_limit=most_nodes)
    if np.isfinite(time_limit_s):
        parameters.time_limit.FromNanoseconds(int(max(time_limit_s, 0.0) * 1e9))
    for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "mip_feasibility_tolerance"):
        parameters.highs.double_options[option] = SOLVER_TOLERANCE
    parameters.highs.bool_options["log_to_console"] = False
    interrupter = None
    with contextlib.suppress(ImportError):  # OR-Tools 9.11 has none: there Ctrl-C waits for the time limit
        from ortools.util.python import pybind_solve_interrupter

        interrupter = pybind_solve_interrupter.PySolveInterrupter()
    with _silent_stdout():
        answer = _interruptible(lambda: _solve(program, "SOLVER_TYPE_HIGHS", parameters, interrupter), interrupter)
    return _read(answer, len(program.cost))


def _parameters(**values: Any) -> Any:
    try:
        from ortools.math_opt import parameters_pb2
    except ImportError as error:
        raise SolverError("linear programs need OR-Tools 9.11 or later") from error
    return parameters_pb2.SolveParametersProto(enable_output=False, **values)


def _solve(program: LinearProgram, solver: str, parameters: Any, interrupter: Any = None) -> Any:
    from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver as library

    return library.solve(
        _model(program, model_pb2.ModelProto()),
        getattr(parameters_pb2, solver),
        parameters_pb2.SolverInitializerProto(),
        parameters,
        model_parameters_pb2.ModelSolveParametersProto(),
        None,
        callback_pb2.CallbackRegistrationProto(),
        None,
        interrupter,
    )


def solve_relaxation(program: LinearProgram) -> RelaxationResult | None:
    """Solve a program as if nothing in it were integer, by the simplex method (GLOP); None where no values satisfy it.

    Raises
    ------
    SolverError
        When the library is missing or reports an error.

    Examples
    --------
    Two units of the cheaper item; another unit asked for would cost 2 more:

    >>> one, zero = np.ones(2), np.zeros(2)
    >>> p = LinearProgram(cost=np.array([3.0, 2.0]), lower=zero, upper=9 * one, integer=np.array([False, False]),
    ...     row_lower=np.array([2.0]), row_upper=np.array([np.inf]), entry_row=np.array([0, 0]),
    ...     entry_column=np.array([0, 1]), entry_value=one)
    >>> r = solve_relaxation(p)
    >>> r.objective, r.values.tolist(), r.row_duals.tolist()
    (4.0, [0.0, 2.0], [2.0])
    """
    answer = _solve(
        replace(program, integer=np.zeros(len(program.cost), dtype=np.bool_)), "SOLVER_TYPE_GLOP", _parameters()
    )
    from ortools.math_opt import result_pb2

    reason = answer.termination.reason
    if reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
        return None
    if reason != result_pb2.TERMINATION_REASON_OPTIMAL or not answer.solutions:
        raise SolverError(f"GLOP stopped with reason {reason}: {answer.termination.detail}")
    solution = answer.solutions[0]
    return RelaxationResult(
        objective=float(solution.primal_solution.objective_value),
        values=_dense(solution.primal_solution.variable_values, len(program.cost)),
        row_duals=_dense(solution.dual_solution.dual_values, len(program.row_lower)),
    )


def constraint_model() -> Any:
    """Make an empty model of CP-SAT, to be filled and given to `solve_constraints`.

    Raises
    ------
    SolverError
        When the library is missing.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise SolverError("constraint programs need OR-Tools 9.11 or later") from error
    return cp_model.CpModel()


def solve_constraints(model: Any, variables: Sequence[Any], *, time_limit_s: float, effort: float) -> ProgramResult:
    """Minimise a model of `constraint_model` with CP-SAT, on one core: the same answer on all machines within the time limit.

    Parameters
    ----------
    model : CpModel
    variables : sequence of the model's variables
        Their values are the result's.
    time_limit_s : float
        Seconds; may be infinite.
    effort : float
        Work, in about seconds: a limit that does not depend on the machine.

    Raises
    ------
    SolverError
        When the library reports an error.

    Examples
    --------
    >>> model = constraint_model()
    >>> x = model.new_int_var(0, 9, "")
    >>> model.add(3 * x >= 7) is not None
    True
    >>> model.minimize(x)
    >>> solve_constraints(model, [x], time_limit_s=9.0, effort=9.0).values.tolist()
    [3.0]
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.max_deterministic_time = effort
    code = _interruptible(lambda: solver.solve(model), SimpleNamespace(interrupt=solver.stop_search))
    status = {
        cp_model.OPTIMAL: ProgramStatus.OPTIMAL,
        cp_model.INFEASIBLE: ProgramStatus.INFEASIBLE,
        cp_model.FEASIBLE: ProgramStatus.FEASIBLE,
        cp_model.UNKNOWN: ProgramStatus.LIMIT,
    }[code]
    if status not in (ProgramStatus.OPTIMAL, ProgramStatus.FEASIBLE):
        return ProgramResult(
            status=status, values=None, bound=np.inf if status is ProgramStatus.INFEASIBLE else -np.inf
        )
    values = np.array([solver.value(x) for x in variables], dtype=np.float64)
    return ProgramResult(status=status, values=values, bound=solver.best_objective_bound)


def _dense(sparse: Any, size: int) -> FloatArray:
    values = np.zeros(size)
    values[np.array(sparse.ids, dtype=np.int64)] = np.array(sparse.values)
    return values


def _model(program: LinearProgram, model: Any) -> Any:
    """Fill the protocol buffer; ids are positions."""
    variables, rows = len(program.cost), len(program.row_lower)
    model.variables.ids.extend(range(variables))
    model.variables.lower_bounds.extend(program.lower)
    model.variables.upper_bounds.extend(program.upper)
    model.variables.integers.extend(program.integer.tolist())
    used = np.flatnonzero(program.cost)
    model.objective.linear_coefficients.ids.extend(used)
    model.objective.linear_coefficients.values.extend(program.cost[used])
    model.linear_constraints.ids.extend(range(rows))
    model.linear_constraints.lower_bounds.extend(program.row_lower)
    model.linear_constraints.upper_bounds.extend(program.row_upper)
    order = np.lexsort((program.entry_column, program.entry_row))
    model.linear_constraint_matrix.row_ids.extend(program.entry_row[order])
    model.linear_constraint_matrix.column_ids.extend(program.entry_column[order])
    model.linear_constraint_matrix.coefficients.extend(program.entry_value[order])
    return model


def _read(answer: Any, variables: int) -> ProgramResult:
    """Status before values; a bound is there even without values."""
    from ortools.math_opt import result_pb2, solution_pb2

    reason = answer.termination.reason
    bound = float(answer.termination.objective_bounds.dual_bound)
    values: FloatArray | None = None
    for solution in answer.solutions:
        primal = solution.primal_solution
        if primal.feasibility_status == solution_pb2.SOLUTION_STATUS_FEASIBLE:
            values = _dense(primal.variable_values, variables)
            break
    if reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
        return ProgramResult(status=ProgramStatus.INFEASIBLE, values=None, bound=np.inf)
    known = {
        result_pb2.TERMINATION_REASON_OPTIMAL: ProgramStatus.OPTIMAL,
        result_pb2.TERMINATION_REASON_FEASIBLE: ProgramStatus.FEASIBLE,
    }
    if reason in known and values is not None:
        return ProgramResult(status=known[reason], values=values, bound=bound)
    if reason == result_pb2.TERMINATION_REASON_NO_SOLUTION_FOUND:
        return ProgramResult(status=ProgramStatus.LIMIT, values=None, bound=bound)
    raise SolverError(f"HiGHS stopped with reason {reason}: {answer.termination.detail}")


def _interruptible(call: Any, interrupter: Any) -> Any:
    """Run ``call`` in a thread; on Ctrl-C stop it, wait for it, and raise."""
    out: dict[str, Any] = {}

    def target() -> None:
        try:
            out["answer"] = call()
        except Exception as error:
            out["error"] = error

    thread = threading.Thread(target=target, name="solver", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
    except BaseException:
        if interrupter is not None:
            interrupter.interrupt()
        thread.join()
        raise
    if "error" in out:
        raise SolverError(f"the solver failed: {out['error']}") from out["error"]
    return out["answer"]


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """Point file descriptor 1 at nothing, for libraries that print from C++."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):  # no usable standard output
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)

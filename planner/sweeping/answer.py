"""One cell of a grid: a question as plain data in, a row of plain values out. A pure function, whatever process or machine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.core.errors import LimitReached, NoFeasiblePlan, PlannerError
from planner.core.request import Request
from planner.core.search_errors import SearchInterrupted
from planner.report.machine import finite
from planner.sweeping.question import from_plain

if TYPE_CHECKING:
    from planner.core.answer import Answer

__all__ = ["COLUMNS", "DEGREES", "answer", "search"]

# Degrees of a plan over a device mesh; empty for others.
DEGREES = (
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "vpp",
    "dp_replicate",
    "dp_shard",
    "zero_stage",
    "micro_batch",
    "num_micro_batches",
    "schedule",
    "recompute",
)
# Columns of the table, in its order.
COLUMNS = (
    "model",
    "cluster",
    "device",
    "gpus",
    "batch",
    "seq",
    "status",  # ok, no_plan, limit (no plan in time), refused (the question contradicts itself), failed (tried again next time)
    "reason",
    "workers",
    "family",
    "plan",
    "step_time_s",
    "step_time_low_s",  # a measurement lies between these with a chance of 80 %
    "step_time_high_s",
    "throughput_samples_per_s",
    "tokens_per_s",
    "mfu",
    "memory_bytes_per_gpu",
    "exposed_communication_s",
    "money_per_step",
    "energy_per_step_j",
    "objective",
    "proven_optimal",
    "gap",
    *DEGREES,
)
_OF_PLAN = (
    "workers",
    "family",
    "step_time_s",
    "throughput_samples_per_s",
    "memory_bytes_per_gpu",
    "exposed_communication_s",
)
_MAYBE = ("step_time_low_s", "step_time_high_s", "tokens_per_s", "mfu", "money_per_step", "energy_per_step_j")


def answer(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Search one cell of a grid.

    Parameters
    ----------
    plain : mapping
        Of `planner.sweeping.question.to_plain`.

    Returns
    -------
    dict
        The values of `COLUMNS`; a cell without a plan has the reason in words, and so has one that meets a defect of the planner: the
        rest of the grid goes on.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C: half an answer is none.
    """
    request = from_plain(plain)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"model": request.model, "cluster": request.cluster, "gpus": request.gpus, "batch": request.batch}
    row |= {"seq": request.seq, "objective": request.objective or "step_time"}
    try:
        result = search(request)
    except SearchInterrupted:
        raise KeyboardInterrupt from None
    except NoFeasiblePlan as error:
        return row | {"status": "no_plan", "reason": str(error)}
    except LimitReached as error:
        return row | {"status": "limit", "reason": str(error)}
    except PlannerError as error:
        return row | {"status": "refused", "reason": str(error)}
    except Exception as error:
        return row | {"status": "failed", "reason": f"internal error: {type(error).__name__}: {error}"[:1000]}
    found = row | row_of(result)
    if request.assume_free:  # wherever a row goes, it says so
        found["model"] = f"{found['model']} (assumed free: {', '.join(request.assume_free)})"
    return dict(finite(found))


def search(request: Request) -> Answer:
    """Answer one question with the best plans of its space: without the comparison and refinement that `planner optimize` adds on top."""
    from planner.spaces.ask import optimize

    return optimize(request, compare=False)


def row_of(answer: Answer) -> dict[str, Any]:
    """Columns of the best plan of an answer."""
    best, setting = answer.plans[0], answer.setting
    row = {
        "model": setting.model,
        "cluster": setting.cluster,
        "device": setting.device,
        "batch": setting.global_batch,
        "seq": setting.seq,
        "status": "ok",
        "plan": best.summary,
        "proven_optimal": answer.proof.proven_optimal,
        "gap": answer.proof.gap,
    }
    record = best.record()
    row |= {name: record.get(name) for name in (*_OF_PLAN, *_MAYBE)}
    return row | {name: getattr(best.plan, name, None) for name in DEGREES}

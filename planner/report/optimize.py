"""The answer of ``planner optimize``: the ranked table, and under it what was assumed, searched and proved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.core.objectives import BETTER, cost_text
from planner.core.request import Request
from planner.core.results import Assumption, RankedPlan, SearchResult, Setting
from planner.report.blocks import Block, Facts, Report, Sentence
from planner.report.documents import assumption_text, ranked_record, search_document
from planner.report.numbers import big_count, byte_text, duration_text, percent, significant
from planner.report.ranking import ranking_table
from planner.report.uncertainty import bars_facts, benchmark_sentence

__all__ = ["assumed", "ratio_text", "search_report", "space_text", "workers_text"]


def search_report(request: Request, result: SearchResult) -> Report:
    """Answer in every form."""
    return Report(
        blocks=lambda: search_blocks(result),
        data=lambda: search_document(request, result),
        records=lambda: [ranked_record(plan) for plan in result.plans],
    )


def search_blocks(result: SearchResult) -> list[Block]:
    """Table, answer and facts."""
    best, better = result.plans[0], BETTER[result.objective]
    cost = cost_text(result.objective, money=best.money_per_step, joules=best.energy_per_step_j)
    facts = [
        ("Proof", _proof(result, better)),
        *bars_facts(result.error_bars),
        ("Space", space_text(result.space_size, result.searched, result.wall_s)),
        ("Workers", workers_text(best.workers, result.setting.gpus, proven=result.proven_optimal, better=better)),
        *_versus_data_parallel(result, best),
        *_single_worker(best),
        ("Assumed", assumed(result.assumptions, result.setting)),
        *free_layers_fact(result.free_layers),
        *(("Note", note) for note in result.notes),
    ]
    return [
        ranking_table(result.plans, result.objective),
        *benchmark_sentence(result.error_bars, len(result.plans)),
        Sentence(f"Best: {best.summary}: {duration_text(best.step_time_s)}{cost} per step.", strong=True),
        Facts(tuple(facts)),
    ]


def _proof(result: SearchResult, better: str) -> str:
    if result.proven_optimal:
        more = ""
        if len(result.plans) > 1 and result.proven_top:
            more = f", and these are its {len(result.plans)} best"
        solver = f" ({result.solver})" if result.solver else ""
        if better != "faster":
            return f"no plan of the stated space that fits is {better} than the first{more}{solver}"
        return f"the first plan is the fastest of the stated space{more}{solver}"
    if result.bound_s <= 0:
        return "not proven: the search stopped before it had a bound"
    return (
        f"not proven: a plan could be up to {percent(result.gap)} {better} "
        f"(no plan takes less than {duration_text(result.bound_s)})"
    )


def space_text(space_size: int, searched: Mapping[str, int], wall_s: float) -> str:
    """Say how many plans there are and how they were handled."""
    size = f"{big_count(space_size)} distinct plan{'s' if space_size != 1 else ''}"
    if space_size >= 1000:
        size += f" (10^{math.log10(space_size):.1f})"
    handled = ", ".join(f"{big_count(count)} {how}" for how, count in searched.items() if count)
    return f"{size}; {handled + '; ' if handled else ''}searched in {duration_text(wall_s)}"


def workers_text(workers: int, gpus: int, *, proven: bool, better: str = "faster") -> str:
    """Say how many of the GPUs are used."""
    if workers == gpus:
        return f"all {gpus} GPUs are used" if gpus > 1 else "one GPU"
    used = f"{workers} of {gpus} GPUs {'is' if workers == 1 else 'are'} used"
    return f"{used}; using more is not {better}" if proven else f"{used}; no {better} plan was found on more"


def _versus_data_parallel(result: SearchResult, best: RankedPlan) -> list[tuple[str, str]]:
    gpus = result.setting.gpus
    if gpus == 1:
        return []
    name = "Against data parallelism"
    every, fewer = result.data_parallel_all, result.data_parallel
    if fewer is None:
        return [(name, "plain data parallelism fits on no number of workers")]
    on_all = f"on all {gpus} GPUs"
    if every is not None:
        text = f"{_faster(best, every)} {on_all} ({_cost(every)})"
    elif gpus > result.setting.global_batch:
        text = f"{on_all} it is impossible: a batch of {result.setting.global_batch} has no {gpus} parts"
    else:
        text = f"{on_all} it does not fit"
    if every is None or fewer.workers != every.workers:
        text += f"; {_faster(best, fewer)} on {fewer.workers}, its best number ({_cost(fewer)})"
    return [(name, text)]


def _faster(best: RankedPlan, other: RankedPlan) -> str:
    ratio = other.step_time_s / best.step_time_s
    if abs(ratio - 1) < 1e-6:
        return "as fast as plain data parallelism"
    if ratio < 1:  # only where the question fixes something that plain data parallelism does not obey
        return f"{significant(1 / ratio)}x slower than plain data parallelism"
    return f"{ratio_text(ratio)}x faster than plain data parallelism"


def ratio_text(ratio: float) -> str:
    """1.0004 must not read as 1.00."""
    return significant(ratio) if ratio >= 1.005 else significant(ratio, 1 - math.floor(math.log10(ratio - 1)))


def _cost(plan: RankedPlan) -> str:
    return f"{duration_text(plan.step_time_s)}, {byte_text(plan.memory_bytes_per_gpu)}"


def _single_worker(best: RankedPlan) -> list[tuple[str, str]]:
    if best.speedup is None:
        return [("One worker", "does not fit at this global batch, so there is no speed-up over it")]
    return []


def assumed(assumptions: Sequence[Assumption], setting: Setting) -> str:
    """Every assumption on one line, with the numbers that the cost model was given."""
    options = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in setting.cost_model_options.items()
    ]
    return ", ".join([*(assumption_text(assumption) for assumption in assumptions), *options])


def free_layers_fact(names: Sequence[str]) -> list[tuple[str, str]]:
    """Name every layer that the cost model counts as free."""
    return [("Counted as free", ", ".join(names))] if names else []

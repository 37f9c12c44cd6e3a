"""What reports show of plans over a device mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Column, Heading, Sentence, Table
from planner.core.numbers import (
    NOT_AVAILABLE,
    byte_text,
    byte_unit,
    duration_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.core.objectives import objective_columns
from planner.report.answer import speed_facts
from planner.report.documents import baselines_document, with_plan
from planner.report.tables import column_maker, parts_table, ranked_table, ratio_text, rows_table
from planner.report.uncertainty import bars_columns
from planner.spaces.mesh.plans import splits_in_words

if TYPE_CHECKING:
    from strategies.mesh.block_search import SplitCheck

__all__ = [
    "baselines_document",
    "compared",
    "details_document",
    "estimate_blocks",
    "explain_blocks",
    "plan_facts",
    "plans_table",
    "search_facts",
    "speed_facts",
    "split_text",
]

# Below this a bound and what it bounds are the same to people.
_NOT_SHOWN = 5e-4


def plans_table(plans: Sequence[RankedPlan], objective: str = "step_time", *, ranks: bool = True) -> Table:
    """Columns of the ranked plans; a narrow terminal drops those of the largest priority first.

    Parameters
    ----------
    plans : sequence of RankedPlan
    objective : str
        Decides about a column for what a token costs.
    ranks : bool
        Whether rank and gap have a meaning: not for a single plan that was not searched for.
    """
    unit = time_unit(min(plan.step_time_s for plan in plans))
    column = column_maker(plans)

    columns = [
        Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True),
        column("GPUs", lambda plan: f"{plan.workers:,}", 6),
        column("step time", lambda plan: significant(plan.step_time_s / unit.size), 0, unit=unit.name),
        *bars_columns(plans, unit),
        column("tokens/s", lambda plan: significant(plan["tokens_per_s_per_gpu"]), 3, unit="per GPU"),
        column("MFU", lambda plan: percent(plan["mfu"]), 4),
        column("memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_capacity_bytes), 2, unit="per GPU"),
        column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
        column("bubble", lambda plan: percent(plan["bubble_s"] / plan.step_time_s), 7),
        Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=9),
    ]
    columns += objective_columns(plans, objective, 1)
    return ranked_table(columns, plans) if ranks else Table(columns=tuple(columns))


def search_facts(answer: Answer) -> list[tuple[str, str]]:
    """How the best plan compares with data parallelism, and what is known about splits inside the blocks."""
    versus = _versus_data_parallel(answer.plans[0], answer.baselines["data_parallel"])
    splits = answer.details.get("splits", ())[:1]
    return [("Against data parallelism", versus), *(("Inside the blocks", split_text(check)) for check in splits)]


def _versus_data_parallel(best: RankedPlan, plain: RankedPlan | None) -> str:
    name = "the best plan with data parallelism (ZeRO, FSDP) only"
    if plain is None:
        return f"{NOT_AVAILABLE}: no plan with data parallelism (ZeRO, FSDP) only fits"
    if plain.plan == best.plan:
        return "the best plan is one"
    ratio = plain.step_time_s / best.step_time_s
    more = f"{ratio_text(ratio)}x faster" if ratio > 1 else f"{significant(1 / ratio)}x slower"
    cost = f"{duration_text(plain.step_time_s)}, {byte_text(plain.memory_bytes_per_gpu)}"
    return f"{more} than {name}: {plain.summary} ({cost})"


def estimate_blocks(estimate: Estimate) -> list[Block]:
    """The plan, the parts of its step and of its memory, its stages."""
    ranked = estimate.ranked
    stages: list[Block] = []
    if len(estimate.tables["stages"]) > 1:
        stages = [Heading("Stage by stage (one rank each, one micro-batch)"), rows_table(estimate.tables["stages"])]
    return [
        plans_table([ranked], estimate.objective, ranks=False),
        Heading("Where the step goes"),
        parts_table(
            ranked.time_parts,
            ranked.labels("step_time_s"),
            ranked.step_time_s,
            time_unit(ranked.step_time_s),
            title="time",
            name="step",
        ),
        *_launch_blocks(ranked),
        Heading("What fills the memory (per GPU, of the stage that needs most)"),
        parts_table(
            ranked.memory_parts,
            ranked.labels("memory_bytes_per_gpu"),
            ranked.memory_bytes_per_gpu,
            byte_unit(ranked.memory_bytes_per_gpu),
            title="size",
            name="memory",
        ),
        *_host_blocks(ranked),
        *stages,
    ]


def _launch_blocks(ranked: RankedPlan) -> list[Block]:
    """How much of the compute is waiting for the host, where it is any."""
    if not ranked["host_s"] > 0:
        return []
    share = percent(ranked["host_s"] / ranked.time_parts["compute_s"])
    words = f"Of the compute, {duration_text(ranked['host_s'])} ({share}) are waiting for the host to start kernels and collectives."
    return [Sentence(text=words)]


def _host_blocks(ranked: RankedPlan) -> list[Block]:
    if not ranked["host_bytes_per_gpu"]:
        return []
    room = ranked["host_capacity_bytes_per_gpu"]
    limit = "without a known limit" if room is None else f"of {byte_text(room)} that its host has room for"
    return [Sentence(f"On the host, beside this: {byte_text(ranked['host_bytes_per_gpu'])} per GPU, {limit}.")]


def explain_blocks(estimate: Estimate) -> list[Block]:
    """The plan layer by layer, and how its layers are split."""
    blocks: list[Block] = [
        Heading("Layer by layer (of one rank, one micro-batch)"),
        rows_table(estimate.tables["layers"]),
    ]
    check = estimate.details.get("split")
    if check is not None:
        text = split_text(check)
        blocks.append(Sentence(f"{text[0].upper()}{text[1:]}."))
    return blocks


def details_document(answer: Answer | Estimate) -> dict[str, Any]:
    """The refined plan, and what is known about splits inside the blocks."""
    if isinstance(answer, Estimate):
        check = answer.details.get("split")
        return {"split": None if check is None else split_document(check)}
    refined = None if answer.refined is None else with_plan(answer, answer.refined)
    return {"refined": refined, "splits": [split_document(check) for check in answer.details.get("splits", ())]}


def compared(answer: Answer) -> list[tuple[str, RankedPlan | None]]:
    """Baselines by what figures show them for."""
    return [("data parallelism", answer.baselines["data_parallel"])]


def plan_facts(estimate: Estimate) -> list[tuple[str, str]]:  # noqa: ARG001 - as every space
    """Nothing is said of one plan beside its parts."""
    return []


def split_text(check: SplitCheck) -> str:
    """One sentence about a check, without its full stop."""
    left = 1.0 - check.bound_ratio
    bound = (
        "no other that fits makes the layers faster"
        if left < _NOT_SHOWN
        else f"none that fits saves more than {percent(left)} of the time in the layers"
    )
    where = f"tp {check.plan.tp}" + (" (sequence parallel)" if check.plan.sequence_parallel else "")
    if check.best is None:
        return f"at {where} the per-layer program confirms the standard split, columns then rows: {bound}"
    gain = percent(1.0 - check.best_step_time_s / check.step_time_s)
    return (
        f"at {where} the per-layer program finds a split that is {gain} faster than columns then rows "
        f"({duration_text(check.best_step_time_s)} per step): {splits_in_words(check.best.block_splits)}; {bound}"
    )


def split_document(check: SplitCheck) -> dict[str, Any]:
    """A check as plain data."""
    splits = () if check.best is None else check.best.block_splits
    return {
        "tp": check.plan.tp,
        "sequence_parallel": check.plan.sequence_parallel,
        "is_confirmed": check.is_confirmed,
        "standard_step_time_s": check.step_time_s,
        "best_step_time_s": check.best_step_time_s,
        "bound_ratio": check.bound_ratio,
        "splits": {split.layer: {"role": split.role, "degree": split.degree} for split in splits},
    }

"""The answers about plans over a device mesh: ranked plans, and one plan part by part, stage by stage, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from costmodel.tolerances import ROUNDING
from planner.core.objectives import BETTER, cost_text
from planner.report.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.report.links import link_blocks
from planner.report.mesh_documents import mesh_breakdown_document, mesh_record, mesh_search_document
from planner.report.numbers import (
    NOT_AVAILABLE,
    byte_text,
    byte_unit,
    duration_text,
    energy_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.report.optimize import ratio_text, space_text, workers_text
from planner.report.parts import assumed_facts, comparison_table, parts_table
from planner.report.ranking import gap_text, ranked_table
from planner.report.rows import rows_table
from planner.report.splits import split_text
from planner.report.uncertainty import bars_columns, bars_facts, benchmark_sentence, sensitivity_blocks
from planner.spaces.mesh.results import MeshBreakdown, MeshResult, RankedMeshPlan
from planner.spaces.mesh.wording import MEMORY_WORDS, TIME_WORDS

if TYPE_CHECKING:
    from planner.spaces.mixed.results import MixedBreakdown, RankedMixedPlan
    from strategies.mesh.block_search import SplitCheck

__all__ = [
    "comparison_blocks",
    "mesh_estimate_report",
    "mesh_explain_report",
    "mesh_search_report",
    "objective_columns",
]


def mesh_search_report(result: MeshResult) -> Report:
    """Ranked plans in every form."""
    return Report(
        blocks=lambda: search_blocks(result),
        data=lambda: mesh_search_document(result),
        records=lambda: [mesh_record(plan) for plan in result.plans],
    )


def mesh_estimate_report(breakdown: MeshBreakdown, warnings: Sequence[str] = ()) -> Report:
    """Predict one plan, in every form."""
    return Report(
        blocks=lambda: [*_plan_blocks(breakdown), *_closing(breakdown, warnings)],
        data=lambda: mesh_breakdown_document(breakdown, warnings=warnings, rows=False),
        records=lambda: [mesh_record(breakdown.ranked)],
    )


def mesh_explain_report(breakdown: MeshBreakdown, warnings: Sequence[str] = ()) -> Report:
    """Explain one plan, in every form."""
    return Report(
        blocks=lambda: [
            *_plan_blocks(breakdown),
            Heading("Layer by layer (of one rank, one micro-batch)"),
            rows_table(breakdown.layers),
            *link_blocks(breakdown.links, breakdown.ranked.step_time_s),
            *_split_blocks(breakdown.split),
            *comparison_blocks(breakdown),
            *sensitivity_blocks(breakdown.sensitivity),
            *_closing(breakdown, warnings),
        ],
        data=lambda: mesh_breakdown_document(breakdown, warnings=warnings),
        records=lambda: mesh_breakdown_document(breakdown, warnings=warnings)["layers"],
    )


def search_blocks(result: MeshResult) -> list[Block]:
    """Table, answer and facts."""
    best = result.plans[0]
    better = BETTER[result.objective]
    cost = cost_text(result.objective, money=best.money_per_step, joules=best.energy_per_step_j)
    first = "Best" if result.refined is None else "Best uniform plan"
    facts = [
        ("Proof", _proof(result, better)),
        *bars_facts(result.error_bars),
        ("Space", space_text(result.space_size, result.searched, result.wall_s)),
        ("Workers", workers_text(best.workers, result.setting.gpus, proven=result.proven_optimal, better=better)),
        ("Against data parallelism", _versus_data_parallel(best, result.data_parallel)),
        *(("Inside the blocks", split_text(check)) for check in result.splits[:1]),
        *assumed_facts(result.assumptions, result.model_assumptions, result.setting),
        *(("Note", note) for note in result.notes),
    ]
    return [
        mesh_table(result.plans, result.objective),
        *benchmark_sentence(result.error_bars, len(result.plans)),
        *_refined_blocks(result, better),
        Sentence(f"{first}: {best.summary}: {duration_text(best.step_time_s)}{cost} per step.", strong=True),
        Facts(tuple(facts)),
    ]


def _split_blocks(check: SplitCheck | None) -> list[Block]:
    """One line about how the layers are split."""
    if check is None:
        return []
    text = split_text(check)
    return [Sentence(f"{text[0].upper()}{text[1:]}.")]


def _refined_blocks(result: MeshResult, better: str) -> list[Block]:
    """One line about the plan with stages or splits of its own."""
    if result.refined is None:
        return []
    words = "Inside the blocks" if result.refined.plan.block_splits else "Per stage"
    text = (
        f"{words}: {result.refined.summary}: {duration_text(result.refined.step_time_s)} per step, "
        f"{percent(-result.refined.gap)} {better} than the best uniform plan; --export writes it."
    )
    return [Sentence(text)]


def mesh_table(plans: Sequence[RankedMeshPlan], objective: str = "step_time", *, ranks: bool = True) -> Table:
    """Columns of the ranked plans; a narrow terminal drops those of the largest priority first.

    Parameters
    ----------
    plans : sequence of RankedMeshPlan
    objective : str
        Decides about a column for what a token costs.
    ranks : bool
        Whether rank and gap have a meaning: not for a single plan that was not searched for.
    """
    unit = time_unit(min(plan.step_time_s for plan in plans))

    def column(title: str, cell: Callable[[RankedMeshPlan], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=priority)

    columns = [
        Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True),
        column("GPUs", lambda plan: f"{plan.workers:,}", 6),
        column("step time", lambda plan: significant(plan.step_time_s / unit.size), 0, unit=unit.name),
        *bars_columns(plans, unit),
        column("tokens/s", lambda plan: significant(plan.tokens_per_s_per_gpu), 3, unit="per GPU"),
        column("MFU", lambda plan: percent(plan.mfu), 4),
        column("memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_capacity_bytes), 2, unit="per GPU"),
        column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
        column("bubble", lambda plan: percent(plan.bubble_share), 7),
        Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=9),
    ]
    columns += objective_columns(plans, objective)
    return ranked_table(columns, plans) if ranks else Table(columns=tuple(columns))


def objective_columns(plans: Sequence[RankedMeshPlan | RankedMixedPlan], objective: str) -> list[Column]:
    """What plans are ranked by, where no other column says it."""
    cells: dict[str, tuple[str, str, Callable[[RankedMeshPlan | RankedMixedPlan], str]]] = {
        "gpu_hours": ("GPU hours", "per M tokens", lambda p: significant(p.gpu_hours_per_million_tokens)),
        "money": ("USD", "per M tokens", lambda p: significant(p.money_per_million_tokens)),
        "energy": ("energy", "per step", lambda p: energy_text(p.energy_per_step_j)),
    }
    if objective not in cells:
        return []
    title, unit, cell = cells[objective]
    return [Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=1)]


def _proof(result: MeshResult, better: str) -> str:
    if result.proven_optimal:
        uniform = "" if result.refined is None else "uniform "
        return f"no {uniform}plan of the stated space that fits is {better} than the first"
    if result.bound_s <= 0:
        return "not proven: the search stopped before it had a bound"
    return f"not proven: a plan could be up to {percent(result.bound_gap)} {better}"


def _versus_data_parallel(best: RankedMeshPlan, plain: RankedMeshPlan | None) -> str:
    name = "the best plan with data parallelism (ZeRO, FSDP) only"
    if plain is None:
        return f"{NOT_AVAILABLE}: no plan with data parallelism (ZeRO, FSDP) only fits"
    if plain.plan == best.plan:
        return "the best plan is one"
    ratio = plain.step_time_s / best.step_time_s
    more = f"{ratio_text(ratio)}x faster" if ratio > 1 else f"{significant(1 / ratio)}x slower"
    cost = f"{duration_text(plain.step_time_s)}, {byte_text(plain.memory_bytes_per_gpu)}"
    return f"{more} than {name}: {plain.summary} ({cost})"


def _plan_blocks(breakdown: MeshBreakdown) -> list[Block]:
    ranked = breakdown.ranked
    stages: list[Block] = []
    if len(breakdown.stages) > 1:
        stages = [Heading("Stage by stage (one rank each, one micro-batch)"), rows_table(breakdown.stages)]
    return [
        mesh_table([ranked], breakdown.objective, ranks=False),
        Heading("Where the step goes"),
        parts_table(
            ranked.time_parts,
            TIME_WORDS,
            ranked.step_time_s,
            time_unit(ranked.step_time_s),
            title="time",
            name="step",
        ),
        *_launch_blocks(ranked),
        Heading("What fills the memory (per GPU, of the stage that needs most)"),
        parts_table(
            ranked.memory_parts,
            MEMORY_WORDS,
            ranked.memory_bytes_per_gpu,
            byte_unit(ranked.memory_bytes_per_gpu),
            title="size",
            name="memory",
        ),
        *_host_blocks(ranked),
        *stages,
    ]


def _launch_blocks(ranked: RankedMeshPlan) -> list[Block]:
    """How much of the compute is waiting for the host, where it is any."""
    if not ranked.host_s > 0:
        return []
    share = percent(ranked.host_s / ranked.time_parts["compute_s"])
    words = f"Of the compute, {duration_text(ranked.host_s)} ({share}) are waiting for the host to start kernels and collectives."
    return [Sentence(text=words)]


def _host_blocks(ranked: RankedMeshPlan) -> list[Block]:
    if not ranked.host_bytes_per_gpu:
        return []
    room = ranked.host_capacity_bytes_per_gpu
    limit = "without a known limit" if room is None else f"of {byte_text(room)} that its host has room for"
    return [Sentence(f"On the host, beside this: {byte_text(ranked.host_bytes_per_gpu)} per GPU, {limit}.")]


def comparison_blocks(breakdown: MeshBreakdown | MixedBreakdown) -> list[Block]:
    """What the best plan does better than the one that is explained."""
    best, ranked = breakdown.best, breakdown.ranked
    if best is None:
        return []
    if ranked.gap <= ROUNDING and ranked.fits:
        return [Sentence("No plan of the stated space is better.", strong=True)]
    unit = time_unit(best.step_time_s)
    noise = ROUNDING * ranked.step_time_s
    # What one plan does not have at all is a zero, not the rest of a rounded sum.
    cleaned = [(term, a if a > noise else 0.0, b if b > noise else 0.0) for term, a, b in breakdown.comparison]
    rows = [(term, a, b) for term, a, b in cleaned if a > 0 or b > 0]
    rows.append(("step", ranked.step_time_s, best.step_time_s))

    heading = (
        f"Against the best plan: {gap_text(ranked.gap)} against {duration_text(best.step_time_s)} of {best.summary}"
    )
    return [Heading(heading), comparison_table(rows, unit)]


def _closing(breakdown: MeshBreakdown, warnings: Sequence[str]) -> list[Block]:
    facts = [
        *bars_facts(breakdown.error_bars),
        *assumed_facts(breakdown.assumptions, breakdown.model_assumptions, breakdown.setting),
        *(("Note", note) for note in breakdown.notes),
        *(("Warning", warning) for warning in warnings),
    ]
    return [Facts(tuple(facts))]

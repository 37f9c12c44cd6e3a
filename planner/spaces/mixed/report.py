"""The answers about plans over several groups: ranked plans, and one plan part by part and stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.tolerances import EQUAL
from planner.core.objectives import BETTER, cost_text
from planner.report.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.report.mesh import objective_columns
from planner.report.numbers import (
    big_count,
    byte_unit,
    duration_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.report.optimize import ratio_text
from planner.report.parts import assumed_facts, parts_table
from planner.report.ranking import ranked_table
from planner.report.rows import rows_table
from planner.report.uncertainty import bars_columns, bars_facts
from planner.spaces.mesh.wording import MEMORY_WORDS, TIME_WORDS
from planner.spaces.mixed.documents import mixed_breakdown_document, mixed_record, mixed_search_document
from planner.spaces.mixed.results import GroupBaseline, MixedBreakdown, MixedResult, RankedMixedPlan
from strategies.mixed.objective import is_time

__all__ = ["estimate_blocks", "mixed_estimate_report", "mixed_search_report"]


def mixed_search_report(result: MixedResult) -> Report:
    """Ranked plans in every form."""
    return Report(
        blocks=lambda: _search_blocks(result),
        data=lambda: mixed_search_document(result),
        records=lambda: [mixed_record(plan) for plan in result.plans],
    )


def mixed_estimate_report(breakdown: MixedBreakdown, warnings: Sequence[str] = ()) -> Report:
    """Predict one plan, in every form."""
    return Report(
        blocks=lambda: estimate_blocks(breakdown, warnings),
        data=lambda: mixed_breakdown_document(breakdown, warnings=warnings),
        records=lambda: [mixed_record(breakdown.ranked)],
    )


def _search_blocks(result: MixedResult) -> list[Block]:
    best = result.plans[0]
    cost = cost_text(result.objective, money=best.money_per_step, joules=best.energy_per_step_j)
    facts = [
        ("Proof", _proof(result)),
        *bars_facts(result.error_bars),
        ("Searched", _searched(result)),
        ("Devices", _devices(best)),
        *(("Against one group", _versus(best, baseline, result.objective)) for baseline in result.baselines),
        *assumed_facts(result.assumptions, result.model_assumptions, result.setting),
        *(("Note", note) for note in result.notes),
    ]
    return [
        _table(result.plans, result.objective),
        Sentence(f"Best: {best.summary}: {duration_text(best.step_time_s)}{cost} per step.", strong=True),
        Facts(tuple(facts)),
    ]


def _table(plans: Sequence[RankedMixedPlan], objective: str, *, ranks: bool = True) -> Table:
    """Columns of plans; a narrow terminal drops those of the largest priority first."""
    unit = time_unit(min(plan.step_time_s for plan in plans))

    def column(title: str, cell: Callable[[RankedMixedPlan], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=priority)

    def memory(position: int) -> Callable[[RankedMixedPlan], str]:
        def cell(plan: RankedMixedPlan) -> str:
            use = plan.groups[position]
            return used_of_total(use.memory_bytes, use.memory_capacity_bytes) if use.devices else "-"

        return cell

    used = [i for i in range(len(plans[0].groups)) if any(plan.groups[i].devices for plan in plans)]
    columns = [
        Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True),
        column("GPUs", lambda plan: f"{plan.workers:,}", 6),
        column("step time", lambda plan: significant(plan.step_time_s / unit.size), 0, unit=unit.name),
        *bars_columns(plans, unit),
        column("tokens/s", lambda plan: significant(plan.tokens_per_s), 3),
        column("MFU", lambda plan: percent(plan.mfu), 4),
        *(column("memory", memory(i), 2, unit=plans[0].groups[i].name) for i in used),
        column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
        column("bubble", lambda plan: percent(plan.bubble_share), 7),
        column("format", lambda plan: plan.precision, 8),
        Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=9),
    ]
    columns += objective_columns(plans, objective)
    return ranked_table(columns, plans) if ranks else Table(columns=tuple(columns))


def _proof(result: MixedResult) -> str:
    if result.proven_optimal:
        return f"no plan of the stated space that fits is {BETTER[result.objective]} than the first"
    if result.bound_s <= 0:
        return "not proven: the search stopped before it had a bound"
    least = f" (no plan takes less than {duration_text(result.bound_s)})" if is_time(result.objective) else ""
    return f"not proven: a plan could be up to {percent(result.bound_gap)} {BETTER[result.objective]}{least}"


def _searched(result: MixedResult) -> str:
    counts = ", ".join(f"{big_count(count)} {what}" for what, count in result.searched.items() if count)
    return f"{counts}; in {duration_text(result.wall_s)}" if counts else f"in {duration_text(result.wall_s)}"


def _devices(plan: RankedMixedPlan) -> str:
    used = ", ".join(f"{use.devices} of {use.available} {use.name}" for use in plan.groups if use.available)
    return f"{used} are used"


def _versus(best: RankedMixedPlan, baseline: GroupBaseline, objective: str) -> str:
    """How much better the best is than the faster of the two plans of a group: of this space, or of that for one kind of device."""
    better, alone = BETTER[objective], f"the {baseline.available} {baseline.group} alone"
    plans = [p for p in (baseline.mesh, baseline.plan) if p is not None]
    words = [
        f"{duration_text(p.step_time_s)}{cost_text(objective, money=p.score, joules=p.score)}: {p.summary}"
        for p in plans
    ]
    if not words:
        return f"nothing was found that fits on {alone}"
    if baseline.mesh is not None and baseline.plan is not None:
        if baseline.plan.score <= baseline.mesh.score:
            words = words[1:]
        else:
            words[1] = f"with a plan of this space {words[1]}"
    ratio = baseline.score / best.score
    if abs(ratio - 1) <= EQUAL:
        return f"as {'fast' if better == 'faster' else 'good'} as {alone}: the best plan uses no other group"
    worse = "slower" if better == "faster" else "worse"
    compared = f"{ratio_text(ratio)}x {better}" if ratio > 1 else f"{ratio_text(1 / ratio)}x {worse}"
    return f"{compared} than {alone} ({'; '.join(words)})"


def estimate_blocks(breakdown: MixedBreakdown, warnings: Sequence[str]) -> list[Block]:
    """One plan, part by part and stage by stage; assumptions and notes are the last block."""
    ranked = breakdown.ranked
    fullest = ranked.groups[ranked.fullest].name
    facts = [
        *bars_facts(breakdown.error_bars),
        ("Devices", _devices(ranked)),
        *assumed_facts(breakdown.assumptions, breakdown.model_assumptions, breakdown.setting),
        *(("Note", note) for note in breakdown.notes),
        *(("Warning", warning) for warning in warnings),
    ]
    memory = byte_unit(ranked.memory_bytes_per_gpu)
    return [
        _table([ranked], breakdown.objective, ranks=False),
        Heading("Where the step goes (of the slowest pipeline's busiest stage)"),
        parts_table(
            ranked.time_parts,
            TIME_WORDS,
            ranked.step_time_s,
            time_unit(ranked.step_time_s),
            title="time",
            name="step",
        ),
        Heading(f"What fills the memory (of the fullest GPU, {fullest})"),
        parts_table(
            ranked.memory_parts, MEMORY_WORDS, ranked.memory_bytes_per_gpu, memory, title="size", name="memory"
        ),
        Heading("Stage by stage (one replica, one micro-batch; exchange and update once per step)"),
        rows_table(breakdown.stages),
        Facts(tuple(facts)),
    ]

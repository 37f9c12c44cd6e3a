"""What reports show of plans over several kinds of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from costmodel.objectives import OBJECTIVES
from costmodel.tolerances import EQUAL
from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Column, Heading, Sentence, Table
from planner.core.numbers import duration_text, percent, significant, time_unit, used_of_total
from planner.core.objectives import compared_words, cost_text
from planner.report.answer import SpaceReport, parts_blocks
from planner.report.documents import with_plan
from planner.report.tables import column_maker, fits_columns, rows_table
from planner.spaces.mesh.plans import mesh_entry
from planner.spaces.mixed.space import GroupBaseline, fullest_group
from planner.spaces.mixed.what_if import StepBound, TriedChange

__all__ = ["REPORT", "bound_sentences"]

# Changes of the step below this are none.
_NOISE = 5e-5
_KINDS = {"hardware": "With other hardware, the plan as it is", "plan": "With another plan, the hardware as it is"}


class MixedReport(SpaceReport):
    """Reports about plans over several kinds of devices."""

    space = (
        "on any of the groups, pipelines of one kind per part of them, or of two kinds that share groups; all tp inside a node, stages, "
        "replicas, micro-batches of up to 16 samples, divisions of blocks and shares of the batch, ZeRO 0 and 1, and recomputation that "
        "what is fixed allows (docs/mixed-gpus.md)"
    )

    def figure_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        column, groups = column_maker(plans), plans[0].groups

        def memory(position: int) -> Callable[[RankedPlan], str]:
            def cell(plan: RankedPlan) -> str:
                use = plan.groups[position]
                return used_of_total(use.memory_bytes, use.memory_there_bytes) if use.devices else "-"

            return cell

        used = [i for i in range(len(groups)) if any(plan.groups[i].devices for plan in plans)]
        return [
            column("tokens/s", lambda plan: significant(plan["tokens_per_s"]), 3),
            column("MFU", lambda plan: percent(plan["mfu"]), 5),
            *(column("memory", memory(i), 2, unit=groups[i].name) for i in used),
            *fits_columns(plans, 2),
            column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
            column("bubble", lambda plan: percent(plan["bubble_s"] / plan.step_time_s), 7),
            column("format", lambda plan: plan["precision"], 8),
        ]

    def search_facts(self, answer: Answer) -> list[tuple[str, str]]:
        best = answer.plans[0]
        versus = [_versus(best, baseline, answer.objective) for baseline in answer.baselines.values()]
        return [("Devices", _devices(best)), *(("Against one group", text) for text in versus)]

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked = estimate.ranked
        step = "Where the step goes (of the slowest pipeline's busiest stage)"
        memory = f"What fills the memory (of the fullest GPU, {fullest_group(ranked)})"
        return [
            self.plans_table([ranked], estimate.objective, ranks=False),
            *parts_blocks(ranked, step, "step_time_s", title="time", name="step"),
            *parts_blocks(ranked, memory, "memory_bytes_per_gpu", title="size", name="memory"),
            Heading("Stage by stage (one replica, one micro-batch; exchange and update once per step)"),
            rows_table(estimate.tables["stages"]),
            Sentence(f"{_devices(ranked)[0].upper()}{_devices(ranked)[1:]}."),
        ]

    def explain_blocks(self, estimate: Estimate) -> list[Block]:
        sentences = bound_sentences(estimate.details["bound"], estimate.ranked.step_time_s)
        blocks: list[Block] = [Heading("What bounds the step"), *(Sentence(text) for text in sentences)]
        for kind, title in _KINDS.items():
            rows = [row for row in estimate.details["what_if"] if row.kind == kind]
            if rows:
                blocks += [Heading(title), _what_if_table(rows)]
        return blocks

    def baselines_document(self, answer: Answer) -> dict[str, Any]:
        return {
            "data_parallel": None,
            "baselines": [
                {
                    "group": base.group,
                    "plan": None if base.plan is None else with_plan(answer, base.plan),
                    "bound_s": base.bound_s,
                    "mesh": None
                    if base.mesh is None
                    else {
                        "step_time_s": base.mesh.step_time_s,
                        "summary": base.mesh.summary,
                        "plan": mesh_entry(base.mesh.plan),
                    },
                }
                for base in answer.baselines.values()
            ],
        }

    def details_document(self, answer: Answer | Estimate) -> dict[str, Any]:
        if not isinstance(answer, Estimate):
            return {}
        return {
            "bound": asdict(answer.details["bound"]),
            "what_if": [asdict(row) for row in answer.details["what_if"]],
        }

    def compared(self, answer: Answer) -> list[tuple[str, RankedPlan | None]]:
        return [(f"{base.group} alone", base.plan) for base in answer.baselines.values()]


def _devices(plan: RankedPlan) -> str:
    used = ", ".join(f"{use.devices} of {use.available} {use.name}" for use in plan.groups if use.available)
    return f"{used} are used"


def _versus(best: RankedPlan, baseline: GroupBaseline, objective: str) -> str:
    """How much better the best is than the faster of the two plans of a group: of this space, or of that for one kind of device."""
    alone = f"the {baseline.available} {baseline.group} alone"
    plans = [p for p in (baseline.mesh, baseline.plan) if p is not None]
    has_figure = OBJECTIVES[objective].figure is not None
    words = [
        f"{duration_text(p.step_time_s)}{cost_text(objective, p.score if has_figure else None, best)}: {p.summary}"
        for p in plans
    ]
    if not words:
        return f"nothing was found that fits on {alone}"
    if baseline.mesh is not None and baseline.plan is not None:
        if baseline.plan.score <= baseline.mesh.score:
            words = words[1:]
        else:
            words[1] = f"with a plan of this space {words[1]}"
    ratio = best.score / baseline.score
    said = compared_words(ratio, objective, alone)
    return f"{said}: the best plan uses no other group" if abs(ratio - 1) <= EQUAL else f"{said} ({'; '.join(words)})"


def bound_sentences(bound: StepBound, step_s: float) -> list[str]:
    """The step as a sum in words.

    >>> bound = StepBound(
    ...     pipeline=0, stage=1, group="v100", num_micro_batches=16, working_s=8.0, waiting_s=1.5, end_s=0.5, largest="compute",
    ...     largest_share=0.9, spare_s=(0.0,)
    ... )
    >>> for sentence in bound_sentences(bound, 10.0):
    ...     print(sentence)
    Stage 1 on v100 is the busiest: 16 micro-batches x 500 ms = 8.00 s of the step's 10.0 s, 90.0 % of it compute.
    Filling, draining and waiting for the other stages take 1.50 s (15.0 %).
    Exchange and update leave 500 ms (5.0 %) behind the last backward pass.
    """
    several = len(bound.spare_s) > 1
    where = f"Stage {bound.stage} of pipeline {bound.pipeline}" if several else f"Stage {bound.stage}"
    each, count = bound.working_s / bound.num_micro_batches, bound.num_micro_batches
    batches = f"{count} micro-batch{'es' if count > 1 else ''} x {duration_text(each)}"
    work = f"{duration_text(bound.working_s)} of the step's {duration_text(step_s)}"
    texts = [
        f"{where} on {bound.group} is the busiest: {batches} = {work}, {percent(bound.largest_share)} of it {bound.largest}."
    ]
    if bound.waiting_s > _NOISE * step_s:
        share = percent(bound.waiting_s / step_s)
        texts.append(
            f"Filling, draining and waiting for the other stages take {duration_text(bound.waiting_s)} ({share})."
        )
    if bound.end_s > _NOISE * step_s:
        share = percent(bound.end_s / step_s)
        texts.append(f"Exchange and update leave {duration_text(bound.end_s)} ({share}) behind the last backward pass.")
    texts += [
        f"Pipeline {p} ends its passes {duration_text(spare)} earlier."
        for p, spare in enumerate(bound.spare_s)
        if p != bound.pipeline and spare > _NOISE * step_s
    ]
    return texts


def _what_if_table(rows: Sequence[TriedChange]) -> Table:
    unit = time_unit(min(row.step_time_s for row in rows))
    return Table(
        columns=(
            Column(title="change", cells=tuple(row.change for row in rows), is_text=True, flexible=True),
            Column(
                title="step time", unit=unit.name, cells=tuple(significant(r.step_time_s / unit.size) for r in rows)
            ),
            Column(title="faster", cells=tuple(_gain(row.gain) for row in rows)),
            Column(title="fits", cells=tuple("yes" if row.fits else "no" for row in rows), is_text=True, priority=1),
        )
    )


def _gain(gain: float) -> str:
    """A gain with its sign; nothing where there is none.

    >>> _gain(0.052), _gain(-0.1), _gain(0.0)
    ('+5.2 %', '-10.0 %', '-')
    """
    return "-" if abs(gain) < _NOISE else f"{'+' if gain > 0 else '-'}{percent(abs(gain))}"


REPORT = MixedReport()

"""What reports show of plans over a device mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from costmodel.mesh.plan import MEMORY_PARTS
from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Column, Heading, Sentence
from planner.core.numbers import byte_text, duration_text, percent, significant
from planner.report.answer import SpaceReport, parts_blocks
from planner.report.documents import first_plan_document, with_plan
from planner.report.tables import column_maker, memory_columns, rows_table
from planner.spaces.mesh.plans import counts_in_runs, mesh_plan_in_words, splits_in_words

if TYPE_CHECKING:
    from costmodel.mesh.detail import StageRow
    from costmodel.mesh.plan import MeshPlan
    from planner.spaces.mesh.space import MeshPlanSpace
    from strategies.mesh.block_search import SplitCheck

__all__ = ["REPORT", "split_text"]

# Below this a bound and what it bounds are the same to people.
_NOT_SHOWN = 5e-4


# What a stage says of its memory, in the order of its table.
_MEMORY = ("in_flight", "memory_bytes", *MEMORY_PARTS, "host_bytes")


def _memory_rows(stages: Sequence[StageRow]) -> list[dict[str, Any]]:
    """What fills the memory of every stage."""
    most = max(row.memory_bytes for row in stages)
    return [
        {
            "rank": row.rank,
            "blocks": row.blocks,
            "fullest": row.memory_bytes == most,
            **{name: getattr(row, name) for name in _MEMORY},
        }
        for row in stages
    ]


class MeshReport(SpaceReport):
    """Reports about plans over a device mesh."""

    space = (
        "on any number of GPUs, all tp, cp, ep, etp, pp, vpp, dp and micro-batches that the rules and what is fixed allow; with and "
        "without sequence parallelism; schedules, kinds of context parallelism, ZeRO stages and shares of dp, rank orders, recomputation "
        "(of any number of blocks) and offloads (docs/transformers.md, section 3)"
    )

    def figure_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        column = column_maker(plans)
        return [
            column("tokens/s", lambda plan: significant(plan["tokens_per_s_per_gpu"]), 3, unit="per GPU"),
            column("MFU", lambda plan: percent(plan["mfu"]), 5),
            *memory_columns(plans),
            column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
            column("bubble", lambda plan: percent(plan["bubble_s"] / plan.step_time_s), 7),
        ]

    def search_facts(self, answer: Answer) -> list[tuple[str, str]]:
        inside = [("Inside the blocks", split_text(check)) for check in _checked(answer) if _is_of_best(check, answer)]
        return [*_layout(cast("MeshPlanSpace", answer.space), answer.best.plan), *inside]

    def detail_facts(self, answer: Answer) -> list[tuple[str, str]]:
        others = [check for check in _checked(answer) if not _is_of_best(check, answer)]
        return [("Inside the blocks", f"{mesh_plan_in_words(check.plan)}: {split_text(check)}") for check in others]

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked, stages = estimate.ranked, estimate.tables["stages"]
        blocks = super().estimate_blocks(estimate)
        if ranked["host_s"] > 0:
            share = percent(ranked["host_s"] / ranked.time_parts["compute_s"])
            waits = f"Of the compute, {duration_text(ranked['host_s'])} ({share}) are waiting for the host"
            blocks.append(Sentence(f"{waits} to start kernels and collectives."))
        blocks += _bubble_blocks(ranked)
        heading = "What fills the memory (per GPU, of the stage that needs most)"
        blocks += parts_blocks(ranked, heading, "memory_bytes_per_gpu", title="size", name="memory")
        if ranked["host_bytes_per_gpu"]:
            room = ranked["host_capacity_bytes_per_gpu"]
            limit = "without a known limit" if room is None else f"of {byte_text(room)} that its host has room for"
            size = byte_text(ranked["host_bytes_per_gpu"])
            blocks.append(Sentence(f"On the host, beside this: {size} per GPU, {limit}."))
        if len(stages) > 1:
            times = [{name: value for name, value in asdict(row).items() if name not in _MEMORY} for row in stages]
            blocks += [Heading("Stage by stage (one rank each, one micro-batch)"), rows_table(times)]
            blocks += [Heading("Memory stage by stage (one rank each)"), rows_table(_memory_rows(stages))]
        return blocks

    def explain_blocks(self, estimate: Estimate) -> list[Block]:
        check = estimate.details.get("split")
        text = "" if check is None else split_text(check)
        return [*super().explain_blocks(estimate), *([Sentence(f"{text[0].upper()}{text[1:]}.")] if text else [])]

    def details_document(self, answer: Answer | Estimate) -> dict[str, Any]:
        if isinstance(answer, Estimate):
            check = answer.details.get("split")
            return {"split": None if check is None else split_document(check)}
        return {
            "refined": None if answer.refined is None else with_plan(answer, answer.refined),
            **first_plan_document(answer),
            "splits": [split_document(check) for check in answer.details.get("splits", ())],
        }


def _layout(space: MeshPlanSpace, plan: MeshPlan) -> list[tuple[str, str]]:
    """Blocks of chunks that are not equal, where the words of the plan do not list them."""
    chunks = plan.pp * plan.vpp
    blocks = space.model.blocks_of(chunks)
    if plan.stage_blocks or min(blocks) == max(blocks):
        return []
    noun = "chunks" if plan.vpp > 1 else "stages"
    said = f"{sum(blocks)} blocks in {chunks} {noun}, in order {counts_in_runs(blocks)} (planner export writes them)"
    return [("Layers", said)]


# Bubbles of chunks of equal length, as shares of the passes of a rank: (pp - 1) / (vpp m).
_EVEN = ("gpipe", "1f1b", "interleaved")
_NOT_WITHIN_THE_PASSES = ("bubble_s", "dp_exposed_s", "optimizer_s", "offload_s")


def _bubble_blocks(ranked: RankedPlan) -> list[Block]:
    """Why a bubble is not that of chunks of equal length, where it is another by a tenth."""
    plan, parts = ranked.plan, ranked.time_parts
    passes_s = sum(seconds for name, seconds in parts.items() if name not in _NOT_WITHIN_THE_PASSES)
    if plan.pp == 1 or plan.schedule not in _EVEN or not passes_s > 0.0:
        return []
    even, found = (plan.pp - 1) / (plan.vpp * plan.num_micro_batches), parts["bubble_s"] / passes_s
    if abs(found - even) <= 0.1 * even:
        return []
    formula = f"(pp - 1) / ({'vpp x ' * (plan.vpp > 1)}micro-batches)"
    chunks = "chunks" if plan.vpp > 1 else "stages"
    return [
        Sentence(
            f"The bubble is {percent(found)} of what a rank computes and sends. {formula} = {percent(even)} is that of {chunks} of "
            f"equal length; here they differ, and ranks wait for those at the ends (stage by stage, below)."
        )
    ]


def _checked(answer: Answer) -> Sequence[SplitCheck]:
    """What was found out about splits."""
    checks: Sequence[SplitCheck] = answer.details.get("splits", ())
    return checks


def _is_of_best(check: SplitCheck, answer: Answer) -> bool:
    """Whether the best plan has the splits that were found."""
    splits = answer.best.plan.block_splits
    return bool(splits) and check.best is not None and check.best.block_splits == splits


def split_text(check: SplitCheck) -> str:
    """One sentence about a check, without its full stop; what a split saves and what any may save are both of the time in the layers."""
    left, saved = 1.0 - check.bound_ratio, 1.0 - check.best_ratio
    layers = "the layers" if check.plan.pp == 1 else "the layers of all stages"
    if left < _NOT_SHOWN:
        bound = "no other that fits makes the layers faster"
    elif saved < _NOT_SHOWN:
        bound = f"none that fits saves more than {percent(left)} of the time in {layers}"
    else:
        bound = f"of the time in {layers} it saves {percent(saved)}, and none that fits more than {percent(left)}"
    where = f"tp {check.plan.tp}" + (" (sequence parallel)" if check.plan.sequence_parallel else "")
    if check.best is None:
        return f"at {where} the per-layer program confirms the standard split, columns then rows: {bound}"
    gain = percent(1.0 - check.best_step_time_s / check.step_time_s)
    return (
        f"at {where} the per-layer program finds a split that makes the step {gain} shorter than columns then rows: "
        f"{splits_in_words(check.best.block_splits)}; {bound}"
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
        "best_ratio": check.best_ratio,
        "bound_ratio": check.bound_ratio,
        "splits": {split.layer: {"role": split.role, "degree": split.degree} for split in splits},
    }


REPORT = MeshReport()

"""What Megatron-LM and Megatron-Bridge share, since both configure Megatron Core: stage layouts, recomputation, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.exporters.account import Account
from planner.exporters.common import chunk_repeats
from planner.exporters.job import Job

__all__ = ["CP_COMM", "ORDERS", "Recompute", "account_schedule", "layout_text", "megatron_refusals", "recompute_of"]

# costmodel's cp_kind -> cp_comm_type
CP_COMM = {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}
# Rank order -> whether it needs use_tp_pp_dp_mapping.
ORDERS = {"tp-cp-dp-pp": False, "tp-cp-pp-dp": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Settings of recomputation; empty and 0 where there are none."""

    granularity: str = ""
    method: str = ""
    num_layers: int = 0
    modules: tuple[str, ...] = ()


def layout_text(blocks: Sequence[int]) -> str:
    """Blocks per pipeline chunk as `pipeline_model_parallel_layout` writes them: E embedding, t block, L loss, ``|`` between chunks.

    >>> layout_text((7, 8, 8, 8, 7))
    'Et*7|(t*8|)*3t*7L'
    >>> layout_text((2, 1, 0))
    'Et*2|t|L'
    """
    first, *middle = blocks[:-1] or blocks
    text = "E" + _run(first)
    if len(blocks) == 1:
        return text + "L"
    text += "|"
    for length, count in chunk_repeats(middle):
        chunk = _run(length) + "|"
        text += f"({chunk})*{count}" if count > 2 else chunk * count
    return text + _run(blocks[-1]) + "L"


def _run(length: int) -> str:
    return f"t*{length}" if length > 1 else "t" * length


def recompute_of(job: Job, account: Account, words: str) -> Recompute:
    """Choose the settings of recomputation.

    Parameters
    ----------
    words : str
        Where they are written.

    Notes
    -----
    ``block`` recomputes the first N blocks of every (virtual) stage, fewer where it holds fewer.
    """
    plan = job.plan
    if plan.recompute == "none":
        return Recompute()
    account.note("recompute", words)
    if plan.recompute == "selective":
        return Recompute(granularity="selective", modules=_selected_modules(job))
    account.note("recompute_blocks", words)
    wanted = job.chunk_recompute
    most = max(wanted, default=0)
    if plan.stage_recompute:
        account.note("stage_recompute", words)
        if any(n != min(most, length) for n, length in zip(wanted, job.blocks, strict=True)):
            account.impossible(
                "stage_recompute",
                f"every stage recomputes equally many blocks: {most} are written, the most of any stage, which takes longer and fits",
            )
    return Recompute(granularity="full", method="block", num_layers=most)


def _selected_modules(job: Job) -> tuple[str, ...]:
    """What selective recomputation runs again in the words of Megatron Core (megatron/core/transformer/transformer_config.py).

    Latent attention is fused, and keeps hardly more than the matrices before it make.
    """
    words = {word for argument in (job.other.arguments if job.other else ()) for word in argument}
    modules = ["layernorm", "mla_up_proj"] if "--multi-latent-attention" in words else ["core_attn"]
    if "--num-experts" in words or (job.network is not None and job.network.experts):
        modules.append("moe_act")
    return tuple(modules)


def account_schedule(job: Job, account: Account, words: str) -> None:
    """Megatron Core has 1F1B and, with virtual stages, its interleaved form."""
    schedule = job.plan.schedule
    if schedule in ("1f1b", "interleaved"):
        account.note("schedule", words)
    else:
        account.impossible(
            "schedule", f"Megatron Core runs 1F1B (interleaved with virtual stages), not {schedule}; 1F1B is written"
        )


def megatron_refusals(job: Job) -> list[str]:
    """Combinations that Megatron Core asserts against."""
    plan, problems = job.plan, []
    # megatron/core/optimizer/distrib_optimizer.py: only Adam, for its checkpoints
    if plan.zero_stage and job.optimizer != "adam":
        problems.append(
            f"the distributed optimizer (zero_stage {plan.zero_stage}) takes Adam only, not {job.optimizer}"
        )
    if plan.offload_optimizer and job.optimizer != "adam":
        problems.append(f"offloading the optimizer takes Adam only, not {job.optimizer}")
    if plan.cp > 1 and job.seq is not None and job.seq % (2 * plan.cp):
        problems.append(f"the sequence length {job.seq} must be a multiple of 2 x cp = {2 * plan.cp}")
    return problems

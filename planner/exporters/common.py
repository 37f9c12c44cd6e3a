"""What every exporter says in the same words: the comment at the top of a file, and settings that no target or all targets have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

from costmodel.precision import PRECISIONS
from planner.exporters.account import Account
from planner.exporters.job import Job, Nodes, Origin

DOCUMENTS = "by hand: your data and the attention mask"
SPLITS = "-: the trainer splits every block alike"
SEGMENT = "--segment or --gpus-per-node in train.slurm; ranks.csv"
_Argument = TypeVar("_Argument")


def given(arguments: Mapping[_Argument, bool]) -> list[_Argument]:
    """The arguments whose condition holds, in their order.

    >>> given({"--swiglu": True, "--moe": False})
    ['--swiglu']
    """
    return [argument for argument, is_given in arguments.items() if is_given]


def header(origin: Origin, account: Account, program: str) -> list[str]:
    """Lines of the comment at the top of a file: what it is for, what was predicted, what it does not say.

    Parameters
    ----------
    origin : Origin
    account : Account
        Complete: an exporter fills it before it writes comments.
    program : str
        The target and the source that its settings were checked against.
    """
    differs = "The prediction is of the whole plan; without what is not expressed the run differs from it."
    return [
        f"Written by planner {origin.planner_version} for {program}.",
        f"{origin.model} on {origin.cluster} ({origin.device}): {origin.summary}",
        *(f"Predicted: {sentence}" for sentence in origin.prediction),
        *([differs] if account.cannot else []),
        *(f"NOT EXPRESSED {setting}: {why}" for setting, why in account.cannot.items()),
        *(f"LEFT TO YOU {setting}: {what}" for setting, what in account.by_hand.items()),
    ]


def account_basics(job: Job, account: Account) -> None:
    """Where the processes start, of equal numbers on all nodes (a rule of every trainer), and algorithms that no target chooses."""
    nodes = job.nodes
    account.written["placement"] = f"{nodes.count} x {nodes.per_node} processes"
    if nodes.has_neighbours and not nodes.segment:
        account.left_to_user(
            "domain_gpus",
            f"{nodes.layout}, each set in {nodes.domain}: Slurm cannot ask for that; train.slurm warns of another layout",
        )
    if job.doc_lengths is not None:
        account.left_to_user(
            "doc_lengths", f"documents {job.doc_lengths} packed into samples, and attention that reads each for itself"
        )
    account_collectives(job.collectives, account)


def account_script(job: Job, account: Account) -> None:
    """What the user's training script decides where the target has a file of its own for the plan alone."""
    if job.seq is not None:
        account.left_to_user("seq", f"samples of {job.seq} positions, from your data")
    if job.lora_rank is not None:
        account.left_to_user("lora_rank", f"adapters of rank {job.lora_rank} in your model, all else frozen")


def account_trainer(job: Job, account: Account) -> None:
    """What Trainer of Hugging Face transformers takes from its arguments alone (trainer.py, integrations/deepspeed.py; read at 5.20.2)."""
    arguments = {
        "per_device_train_batch_size": job.plan.micro_batch,
        "gradient_accumulation_steps": job.plan.num_micro_batches,
    }
    name = PRECISIONS[job.precision].plain.name
    words = [
        *(f"{key}={value}" for key, value in arguments.items()),
        *([f"{name}=True"] if name in ("bf16", "fp16") else []),
    ]
    account.left_to_user(
        "trainer",
        f"with transformers.Trainer, TrainingArguments({', '.join(words)}) too: it takes them from there alone",
    )


def account_collectives(names: Sequence[str], account: Account) -> None:
    """All-reduce algorithms of single layers; no target chooses them."""
    if names:
        account.impossible(
            "collective", f"the library of collectives chooses; the plan names {', '.join(names)} per layer"
        )


def account_placement(nodes: Nodes, account: Account) -> None:
    """Whether equal nodes hold the workers as they were costed."""
    if nodes.is_even:
        account.written["placement"] = f"{nodes.count} x {nodes.per_node} processes"
    else:
        account.impossible(
            "placement",
            f"{nodes.workers} workers are not whole nodes of {nodes.capacity}: started as {nodes.count} nodes of {nodes.per_node}; "
            "the prediction is for full nodes and one that is partly used",
        )


def is_even_layout(blocks: Sequence[int]) -> bool:
    """Whether all pipeline chunks hold equally many blocks."""
    return len(set(blocks)) <= 1


def chunk_repeats(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of equal neighbours as (value, how many).

    >>> chunk_repeats((7, 8, 8, 7))
    [(7, 1), (8, 2), (7, 1)]
    """
    return [(value, len(list(run))) for value, run in itertools.groupby(blocks)]

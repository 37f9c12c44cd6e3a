"""A serving plan and its costs, one and as a struct of arrays.

A plan has degrees of parallelism, a number of sequences at a time, and a way to read prompts. Costs are times that a user feels, tokens
per second, the parts that add up to each, and what fills the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.fields import parts_of
from costmodel.serving.figures import SERVING_FIGURES

__all__ = ["SERVING_MEMORY_PARTS", "TPOT_PARTS", "TTFT_PARTS", "ServingBatch", "ServingCosts", "ServingPlan"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ServingPlan:
    """One way to serve; the defaults are one worker and one sequence.

    ``workers = tp pp dp``. Routed experts live on ``ep etp`` ranks: those of one stage of one replica (``ep etp = tp``), or of several
    replicas, which then run in step and share them.

    Examples
    --------
    >>> plan = ServingPlan(tp=8, pp=2, dp=4, max_batch=64)
    >>> plan.workers, plan.concurrency, plan.groups, plan.group_batch
    (64, 256, 2, 32)
    """

    tp: int = 1  # tensor parallel degree
    pp: int = 1  # pipeline stages
    ep: int = 1  # expert parallel degree
    etp: int = 1  # tensor parallel degree inside an expert
    dp: int = 1  # replicas
    max_batch: int = 1  # sequences that a replica decodes at a time
    prefill_chunk: int = (
        0  # tokens of a prompt per pass, besides the tokens being decoded; 0: whole prompts in passes of their own
    )
    prefill_batch: int = 1  # prompts per pass

    @property
    def workers(self) -> int:
        """Devices in use."""
        return self.tp * self.pp * self.dp

    @property
    def concurrency(self) -> int:
        """Sequences at a time, all replicas together."""
        return self.dp * self.max_batch

    @property
    def groups(self) -> int:
        """Groups of sequences that follow each other through the stages."""
        return min(self.pp, self.max_batch)

    @property
    def group_batch(self) -> int:
        """Sequences of the largest group."""
        return -(-self.max_batch // self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBatch:
    """Many plans; every array has shape (n,) and the meaning of the `ServingPlan` field of its name."""

    tp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    max_batch: IntArray
    prefill_chunk: IntArray
    prefill_batch: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def from_plans(cls, plans: Sequence[ServingPlan]) -> ServingBatch:
        """Struct of arrays of plans.

        >>> ServingBatch.from_plans([ServingPlan(tp=2), ServingPlan(tp=4)]).workers.tolist()
        [2, 4]
        """
        return cls(
            **{item.name: np.array([getattr(p, item.name) for p in plans], dtype=np.int64) for item in fields(cls)}
        )

    def plan(self, n: int) -> ServingPlan:
        """One of the plans."""
        return ServingPlan(**{item.name: int(getattr(self, item.name)[n]) for item in fields(self)})

    def take(self, index: IntArray | slice | BoolArray) -> ServingBatch:
        """A selection of the plans."""
        return ServingBatch(**{item.name: getattr(self, item.name)[index] for item in fields(self)})

    @classmethod
    def concatenate(cls, batches: Sequence[ServingBatch]) -> ServingBatch:
        """All plans of several batches, one after the other."""
        return cls(**{item.name: np.concatenate([getattr(b, item.name) for b in batches]) for item in fields(cls)})

    @property
    def workers(self) -> IntArray:
        """Devices in use."""
        return self.tp * self.pp * self.dp

    @property
    def groups(self) -> IntArray:
        """Groups of sequences that follow each other through the stages."""
        return np.minimum(self.pp, self.max_batch)

    @property
    def group_batch(self) -> IntArray:
        """Sequences of the largest group."""
        return -(-self.max_batch // self.groups)

    @property
    def sharing(self) -> IntArray:
        """Replicas that share one set of experts."""
        return np.asarray(np.maximum(self.ep * self.etp // self.tp, 1))


# Fields of ServingCosts that add up to tpot_s, to ttft_s and to memory_bytes.
TPOT_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "tpot_s")
TTFT_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "ttft_s")
SERVING_MEMORY_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "memory_bytes_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCosts:
    """Costs of many plans under full load; every array has shape (n,)."""

    ttft_s: FloatArray  # time to first token: a prompt through all stages, not counting a queue before them
    tpot_s: FloatArray  # mean time per output token after the first
    request_s: FloatArray  # first token and all others
    pause_s: FloatArray  # longest pause between two tokens of a sequence
    requests_per_s: FloatArray  # all replicas
    output_tokens_per_s: FloatArray
    total_tokens_per_s: FloatArray  # prompts included
    decode_pass_s: FloatArray  # a decoding pass through all stages, nothing else under way
    decode_compute_s: FloatArray
    decode_tp_s: FloatArray
    decode_ep_s: FloatArray
    decode_pp_s: FloatArray
    decode_host_s: FloatArray
    waiting_s: FloatArray  # per token: prompts of others, other groups on the slowest stage
    prefill_compute_s: FloatArray
    prefill_tp_s: FloatArray
    prefill_ep_s: FloatArray
    prefill_pp_s: FloatArray
    prefill_host_s: FloatArray
    earlier_chunks_s: FloatArray
    memory_bytes: FloatArray  # of the stage that needs most, per device
    weight_bytes: FloatArray
    kv_bytes: FloatArray
    working_bytes: FloatArray
    logits_bytes: FloatArray
    buffer_bytes: FloatArray
    context_bytes: FloatArray
    sequence_bytes: FloatArray  # keys and values of one sequence on that stage's device
    stage: IntArray  # the stage that needs most memory

    def take(self, index: IntArray | slice | BoolArray) -> ServingCosts:
        """A selection of the plans."""
        return ServingCosts(**{item.name: getattr(self, item.name)[index] for item in fields(self)})

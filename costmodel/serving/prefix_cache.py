"""What a cache of earlier prompts finds of those that come: engines keep blocks of tokens, and drop what was used least recently.

vLLM, SGLang and TensorRT-LLM all do so by default (vllm/v1/core/block_pool.py; sglang/srt/mem_cache/radix_cache.py; kv_cache_config of
TensorRT-LLM, enable_block_reuse), the end of a prompt before its beginning.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.serving.plan import ServingBatch, ServingPlan
from costmodel.serving.pools import held_prompts, prefill_memory, reader_of

if TYPE_CHECKING:
    from costmodel.serving.model import ServingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts in the order in which they came, cut into blocks.

    Attributes
    ----------
    tokens : tuple of int
        Of each prompt.
    blocks : tuple of tuple of int
        Names of its blocks; equal ones have equal tokens, and so have all blocks before them.
    block_tokens : int
        Of a block; the last one of a prompt may have fewer.
    """

    tokens: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    block_tokens: int

    def share_found(self, room_tokens: float = math.inf, replicas: int = 1) -> float:
        """Share of the tokens of all prompts that the cache has when they come; at least the last token of each is computed.

        Parameters
        ----------
        room_tokens : float
            What the cache of a replica holds.
        replicas : int
            Replicas that get the requests in turn, each with a cache of its own.

        Examples
        --------
        The first and the third of three prompts begin alike. A cache of two blocks has only the second one when the third comes.

        >>> prompts = Prompts(tokens=(20, 20, 20), blocks=((1, 2), (3, 4), (1, 5)), block_tokens=10)
        >>> prompts.share_found(), prompts.share_found(30), prompts.share_found(20)
        (0.16666666666666666, 0.16666666666666666, 0.0)
        """
        found, room = 0, room_tokens // self.block_tokens
        for replica in range(replicas):
            cache: OrderedDict[int, None] = OrderedDict()
            own = slice(replica, None, replicas)
            for tokens, blocks in zip(self.tokens[own], self.blocks[own], strict=True):
                known = next((n for n, block in enumerate(blocks) if block not in cache), len(blocks))
                found += max(min(known * self.block_tokens, tokens - 1), 0)
                for block in reversed(blocks):
                    cache[block] = None
                    cache.move_to_end(block)
                while len(cache) > room:
                    cache.popitem(last=False)
        return found / max(sum(self.tokens), 1)


def room_tokens(model: ServingModel, plan: ServingPlan, capacity_bytes: float) -> float:
    """Tokens of prompts that the cache of a replica holds, or of a worker that reads them: of those it has, and where memory is free."""
    batch = ServingBatch.from_plans([plan])
    if plan.prefill_dp:
        (items, _), held = prefill_memory(model, batch), int(held_prompts(batch)[0])
        capacity_bytes, workload = capacity_bytes * model.prefill_memory_ratio, reader_of(model).workload
    else:
        (items, _), held, workload = model.memory(batch), plan.max_batch, model.workload
    kept = workload.prompt_tokens + model.assumptions.output_share * workload.output_tokens
    free = capacity_bytes - float(items["memory_bytes"][0])
    return held * workload.prompt_tokens + max(free, 0.0) * kept / float(items["sequence_bytes"][0])

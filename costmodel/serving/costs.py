"""What serving costs: times that a user feels, tokens per second, parts that add up to each, and what fills the memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from costmodel.arrays import BoolArray, FloatArray, IntArray

__all__ = ["SERVING_MEMORY_PARTS", "TPOT_PARTS", "TTFT_PARTS", "ServingCosts"]


# Fields that add up to tpot_s.
TPOT_PARTS: tuple[str, ...] = (
    "decode_compute_s",
    "decode_tp_s",
    "decode_ep_s",
    "decode_pp_s",
    "decode_host_s",
    "waiting_s",
)
# Fields that add up to ttft_s.
TTFT_PARTS: tuple[str, ...] = (
    "prefill_compute_s",
    "prefill_tp_s",
    "prefill_ep_s",
    "prefill_pp_s",
    "prefill_host_s",
    "earlier_chunks_s",
)
# Fields that add up to memory_bytes.
SERVING_MEMORY_PARTS: tuple[str, ...] = (
    "weight_bytes",
    "kv_bytes",
    "working_bytes",
    "logits_bytes",
    "buffer_bytes",
    "context_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCosts:
    """Costs of many plans under full load; every array has shape (n,)."""

    ttft_s: FloatArray  # time to first token: a prompt through all stages, not counting a queue in front of them
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

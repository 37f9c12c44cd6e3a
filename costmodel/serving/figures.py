"""The figures of a plan that serves a network, declared once: times that a user feels, rates, parts of times and memory."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.fields import Figure, declared

__all__ = ["SERVING_FIGURES"]


def _part(of: str, name: str, label: str, doc: str) -> Figure:
    return Figure(name=name, label=label, doc=doc, part_of=of)


def _rate(name: str, doc: str, *, optional: bool = False) -> Figure:
    return Figure(name=name, doc=doc, kind="number", optional=optional)


SERVING_FIGURES: Mapping[str, Figure] = declared(
    Figure(name="step_time_s", doc="The same as `tpot_s`."),
    _rate("throughput_samples_per_s", "The same as `requests_per_s`."),
    _rate("memory_bytes_per_gpu", "Memory of the fullest GPU."),
    Figure(name="exposed_communication_s", doc="Part of the time per token that is communication."),
    Figure(name="ttft_s", doc="Time to first token: the prompt through all stages, without a queue before it."),
    Figure(name="ttft_low_s", doc="Of the interval of `ttft_s`.", optional=True),
    Figure(name="ttft_high_s", doc="Of the interval of `ttft_s`.", optional=True),
    Figure(name="tpot_s", doc="Mean time per token after the first."),
    Figure(name="request_s", doc="ttft_s + (output_tokens - 1) tpot_s."),
    Figure(name="pause_s", doc="Longest pause between two tokens of a sequence."),
    Figure(name="decode_pass_s", doc="A decoding pass with nothing else under way."),
    _rate("requests_per_s", "Of all replicas."),
    _rate("output_tokens_per_s", "Of all replicas."),
    _rate("output_tokens_per_s_low", "Of the interval of `output_tokens_per_s`.", optional=True),
    _rate("output_tokens_per_s_high", "Of the interval of `output_tokens_per_s`.", optional=True),
    _rate("total_tokens_per_s", "Prompts included."),
    _rate("output_tokens_per_s_per_gpu", "Per GPU in use."),
    _rate("memory_capacity_bytes", "Memory that a GPU may use."),
    Figure(name="kv_bytes_per_sequence", doc="Keys and values of one sequence on the fullest GPU."),
    Figure(name="largest_batch", doc="Sequences per replica that fit with the other choices.", kind="count"),
    _rate(
        "money_per_million_output_tokens",
        "In USD; null where the device file states no `price_per_hour`.",
        optional=True,
    ),
    _part("tpot_s", "decode_compute_s", "kernels", "Kernels of a decoding pass."),
    _part(
        "tpot_s", "decode_tp_s", "tensor-parallel communication", "Tensor-parallel communication of a decoding pass."
    ),
    _part(
        "tpot_s", "decode_ep_s", "expert-parallel communication", "Expert-parallel communication of a decoding pass."
    ),
    _part("tpot_s", "decode_pp_s", "transfers between stages", "Transfers between stages of a decoding pass."),
    _part("tpot_s", "decode_host_s", "waiting for the host", "What a decoding pass waits for the host."),
    _part(
        "tpot_s",
        "waiting_s",
        "waiting for prompts of others and for the slowest stage",
        "Waiting for the prompts of others and for the slowest stage.",
    ),
    _part("ttft_s", "prefill_compute_s", "kernels", "Kernels of the prompt's last pass."),
    _part("ttft_s", "prefill_tp_s", "tensor-parallel communication", "Tensor-parallel communication of it."),
    _part("ttft_s", "prefill_ep_s", "expert-parallel communication", "Expert-parallel communication of it."),
    _part("ttft_s", "prefill_pp_s", "transfers between stages", "Transfers between stages of it."),
    _part("ttft_s", "prefill_host_s", "waiting for the host", "What it waits for the host."),
    _part("ttft_s", "earlier_chunks_s", "earlier chunks of the prompt", "Passes of the prompt's earlier chunks."),
    _part("memory_bytes_per_gpu", "weight_bytes", "weights", "Weights."),
    _part("memory_bytes_per_gpu", "kv_bytes", "keys and values", "Keys and values of all sequences."),
    _part("memory_bytes_per_gpu", "working_bytes", "working memory of a pass", "The widest moment of a pass."),
    _part("memory_bytes_per_gpu", "logits_bytes", "logits", "Logits."),
    _part("memory_bytes_per_gpu", "buffer_bytes", "communication buffers", "Communication buffers."),
    _part("memory_bytes_per_gpu", "context_bytes", "context of the driver and libraries", "Driver and libraries."),
)

"""Which attention kernels a framework calls: those made for the device, or those of an earlier generation, which run on any."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.kernels.efficiency import DEFAULT_EFFICIENCY, Efficiency

__all__ = ["Attention", "attention_of", "cluster_run_by", "with_attention"]

Attention = Literal["newest", "portable", "first"]

# Software that calls attention kernels made for the device: cuDNN through Transformer Engine (NeMo, Megatron Core) or XLA, and
# FlashAttention-3. The rest of 2023 to 2025 calls FlashAttention-2 or what PyTorch has of it.
_NEWEST_ATTENTION = re.compile(
    r"nemo|megatron(?!.?deepspeed)|transformer.?engine|maxtext|\bjax\b|\bpax|axlearn|cudnn|flash.?attention.?[34]|\bfa[34]\b|thunder"
)


# llm-foundry's benchmarks call the first FlashAttention as a Triton kernel (scripts/train/benchmarking/submit_benchmarks.py, attn_impl),
# InternEvo version 1.0.5 (InternLM, doc/en/install.md); xFormers has the backward pass of the first one (Llama, arXiv:2302.13971, 2.4).
_FIRST_ATTENTION = re.compile(
    r"triton|llm.?foundry|intern(?:evo|lm)|xformers|flash.?attention.?(?:v?1|v?0)\b|flash.?attn.?(?:==|v)? ?(?:1|0)\.|\bfa1\b"
)
# Rate of the Triton kernel over that of FlashAttention-2, forward and backward: what steps of llm-foundry on A100 were fitted to it
# (`DEFAULT_EFFICIENCY`), times the matmul_fraction of 0.87 there, over 73 and 63 % of the peak (T. Dao, FlashAttention-2,
# arXiv:2307.08691, section 1). Its authors found theirs 1.3 to 2.5 times as fast as the Triton kernel and 1.7 to 3 times as fast as the
# first one in CUDA (section 4.1).
_FIRST_SHARE = (0.71, 0.67)


def attention_of(framework: str, kernel: str = "") -> Attention:
    """Whether a framework has attention kernels of an earlier generation; nobody knows where none is stated.

    Parameters
    ----------
    framework, kernel : str
        As people write them; ``kernel`` is what is said of the attention kernel itself, if anything.

    Examples
    --------
    >>> [attention_of(name) for name in ("", "25.09 NeMo Container", "nanotron v0.5", "llm-foundry")]
    ['newest', 'newest', 'portable', 'first']
    >>> attention_of("llm-foundry", "FlashAttention-3")
    'newest'
    """
    words = f"{framework} {kernel}".lower()
    if not framework.strip() or _NEWEST_ATTENTION.search(words):
        return "newest"
    return "first" if _FIRST_ATTENTION.search(words) else "portable"


def with_attention(device: Device, attention: Attention) -> Device:
    """The device with the rates of these kernels.

    It stays as it is where ``portable_attention_fraction`` is 1 and they are not the first ones, and where its file states no rate of
    attention: the default was fitted to the first ones.
    """
    known = device.efficiency
    forward, backward = _FIRST_SHARE if attention == "first" and _states_attention(known) else (1.0, 1.0)
    portable = 1.0 if attention == "newest" else known.portable_attention_fraction
    if (forward, backward, portable) == (1.0, 1.0, 1.0):
        return device
    slower = replace(
        known,
        attention_fraction=known.attention_fraction * portable * forward,
        attention_backward_fraction=known.attention_backward_fraction * portable * backward,
    )
    return replace(device, efficiency=slower)


def _states_attention(known: Efficiency) -> bool:
    usual = DEFAULT_EFFICIENCY
    return (known.attention_fraction, known.attention_backward_fraction) != (
        usual.attention_fraction,
        usual.attention_backward_fraction,
    )


def cluster_run_by(cluster: Cluster, framework: str) -> Cluster:
    """The cluster with the attention kernels of a framework: what the factors of a calibration that names it multiply."""
    attention = attention_of(framework)
    groups = tuple(replace(group, device=with_attention(group.device, attention)) for group in cluster.groups)
    return replace(cluster, groups=groups)

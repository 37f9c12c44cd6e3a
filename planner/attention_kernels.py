"""Which attention kernels a framework calls: those made for the device, or those of an earlier generation, which run on any."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from costmodel.device import Device
from costmodel.network import Cluster

__all__ = ["Attention", "attention_of", "cluster_run_by", "with_attention"]

Attention = Literal["newest", "portable", "triton"]

# Software that calls attention kernels made for the device: cuDNN through Transformer Engine (NeMo, Megatron Core) or XLA, and
# FlashAttention-3. The rest of 2023 to 2025 calls FlashAttention-2 or what PyTorch has of it.
_NEWEST_ATTENTION = re.compile(
    r"nemo|megatron(?!.?deepspeed)|transformer.?engine|maxtext|\bjax\b|\bpax|axlearn|cudnn|flash.?attention.?[34]|\bfa[34]\b|thunder"
)


# llm-foundry's benchmarks call the first FlashAttention as a Triton kernel (scripts/train/benchmarking/submit_benchmarks.py, attn_impl).
_TRITON_ATTENTION = re.compile(r"triton|llm.?foundry")
# Its rate over that of FlashAttention-2, forward and backward, on A100: `attention_fraction` and `attention_backward_fraction`, which were
# fitted to runs with it, times the matmul_fraction of 0.87 there, over 73 and 63 % of the peak (T. Dao, FlashAttention-2, arXiv:2307.08691,
# section 1). Its authors found theirs 1.3 to 2.5 times as fast (section 4.1). It is taken for the same share of FlashAttention-2 elsewhere.
_TRITON_SHARE = (0.72, 0.66)


def attention_of(framework: str, kernel: str = "") -> Attention:
    """Whether a framework has attention kernels of an earlier generation; nobody knows where none is stated.

    Parameters
    ----------
    framework, kernel : str
        As people write them; ``kernel`` is what is said of the attention kernel itself, if anything.

    Examples
    --------
    >>> [attention_of(name) for name in ("", "25.09 NeMo Container", "nanotron v0.5", "llm-foundry")]
    ['newest', 'newest', 'portable', 'triton']
    >>> attention_of("llm-foundry", "FlashAttention-3")
    'newest'
    """
    words = f"{framework} {kernel}".lower()
    if not framework.strip() or _NEWEST_ATTENTION.search(words):
        return "newest"
    return "triton" if _TRITON_ATTENTION.search(words) else "portable"


def with_attention(device: Device, attention: Attention) -> Device:
    """The device with the rates of these kernels; as it is where it has no others (``portable_attention_fraction`` 1)."""
    known = device.efficiency
    if attention == "newest" or known.portable_attention_fraction == 1.0:
        return device
    forward, backward = _TRITON_SHARE if attention == "triton" else (1.0, 1.0)
    slower = replace(
        known,
        attention_fraction=known.attention_fraction * known.portable_attention_fraction * forward,
        attention_backward_fraction=known.attention_backward_fraction * known.portable_attention_fraction * backward,
    )
    return replace(device, efficiency=slower)


def cluster_run_by(cluster: Cluster, framework: str) -> Cluster:
    """The cluster with the attention kernels of a framework: what the factors of a calibration that names it multiply."""
    attention = attention_of(framework)
    groups = tuple(replace(group, device=with_attention(group.device, attention)) for group in cluster.groups)
    return replace(cluster, groups=groups)

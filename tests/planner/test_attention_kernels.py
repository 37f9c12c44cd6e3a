"""Which attention kernels frameworks call, and what a device and a cluster become with them."""

from __future__ import annotations

import pytest

from planner.attention_kernels import attention_of, cluster_run_by, with_attention
from planner.files.loading import load_cluster, load_device


@pytest.mark.parametrize(
    ("framework", "kernel", "kernels"),
    [
        ("", "triton", "newest"),  # nobody knows
        ("Megatron-LM", "", "newest"),
        ("Megatron-DeepSpeed", "", "portable"),
        ("PyTorch FSDP", "yes", "portable"),
        ("PyTorch FSDP", "FlashAttention-3", "newest"),
        ("Composer", "yes (triton/flash)", "first"),
        ("InternEvo", "yes", "first"),
        ("xformers + FairScale FSDP", "yes", "first"),
        ("transformers", "flash-attn==1.0.5", "first"),
        ("transformers", "flash-attn 2.5", "portable"),
    ],
)
def test_kernels_of_frameworks(framework: str, kernel: str, kernels: str) -> None:
    assert attention_of(framework, kernel) == kernels


def test_only_attention_is_slower_and_only_where_the_device_has_other_kernels() -> None:
    hopper, ampere = load_device("h100-sxm").device, load_device("a100-80gb").device
    slower = with_attention(hopper, "portable")
    assert slower.efficiency.attention_fraction < hopper.efficiency.attention_fraction
    assert slower.efficiency.matmul_fraction == hopper.efficiency.matmul_fraction
    assert with_attention(hopper, "newest") is hopper
    assert with_attention(ampere, "portable") is ampere


def test_the_default_rate_is_that_of_the_first_kernels() -> None:
    """Steps of llm-foundry on A100 found it: 0.60 and 0.48 (FlashAttention-2 has 73 and 63 % of the peak of 0.87)."""
    ampere, other = load_device("a100-80gb").device, load_device("gaudi2").device
    first = with_attention(ampere, "first").efficiency
    assert (first.attention_fraction, first.attention_backward_fraction) == pytest.approx((0.60, 0.48), abs=0.005)
    assert (other.efficiency.attention_fraction, other.efficiency.attention_backward_fraction) == (0.60, 0.48)
    assert with_attention(other, "first") is other


def test_every_group_of_a_cluster_is_run_by_the_framework() -> None:
    cluster = load_cluster("h100-a100").cluster
    found = cluster_run_by(cluster, "nanotron")
    expected = tuple(with_attention(group.device, "portable") for group in cluster.groups)
    assert tuple(group.device for group in found.groups) == expected
    assert found.levels == cluster.levels
    assert cluster_run_by(cluster, "") == cluster

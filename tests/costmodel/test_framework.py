"""What a framework changes: assumptions of both kinds of plans, and the attention kernels of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.framework import (
    AS_RUN,
    DEVICE_SPREAD,
    NO_FRAMEWORK,
    UNKNOWN,
    WELL_TUNED,
    Framework,
    cluster_run_by,
    with_attention,
)
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from costmodel.precision import PRECISIONS
from planner.files.loading import load_cluster, load_device


def test_without_a_framework_nothing_is_added() -> None:
    assert NO_FRAMEWORK.mesh_assumptions() == UNKNOWN.mesh_assumptions() == DEFAULT_ASSUMPTIONS
    assert NO_FRAMEWORK.layer_assumptions() == WELL_TUNED
    assert UNKNOWN.layer_assumptions() == AS_RUN == replace(WELL_TUNED, device_spread=DEVICE_SPREAD)


def test_costs_that_are_no_assumption_are_refused() -> None:
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        Framework(name="x", costs={"speed": 1.0})
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        Framework(name="x", conditional={"in_fp16": {"speed": 1.0}})


def test_costs_count_under_their_condition() -> None:
    found = Framework(
        name="x",
        costs={"captured": 0.1},
        conditional={
            "on_fp4_devices": {"captured": 1.0},
            "in_fp16": {"update_call_s": 1e-5},
            "in_16_bits": {"fused_bias": 1.0},
        },
    )
    assert (found.mesh_assumptions().captured, found.mesh_assumptions(has_fp4=True).captured) == (0.1, 1.0)
    fp32, bf16, fp16 = (found.layer_assumptions(PRECISIONS[name]) for name in ("fp32", "bf16", "fp16"))
    assert (fp32.update_call_s, bf16.update_call_s, fp16.update_call_s) == (0.0, 0.0, 1e-5)
    assert (fp32.fused_bias, bf16.fused_bias, fp16.fused_bias) == (0.0, 1.0, 1.0)
    assert sorted(fp16.image_software().fuses) == ["bias"]


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


def test_every_group_of_a_cluster_has_the_kernels() -> None:
    cluster = load_cluster("h100-a100").cluster
    found = cluster_run_by(cluster, "portable")
    assert tuple(group.device for group in found.groups) == tuple(
        with_attention(group.device, "portable") for group in cluster.groups
    )
    assert found.levels == cluster.levels
    assert cluster_run_by(cluster, "newest") is cluster

"""Named constants: what each multiplies, and how a calibration describes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import (
    CONSTANTS,
    CalibratedConstant,
    Calibration,
    ConstantError,
    assumptions_with,
    cluster_with,
    device_with,
    links_with,
    stated_values,
    with_constants,
)

DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e13, "bf16": 1e14, "fp16": 1e14},
    best_flop_per_s={"fp16": 6e13},
    sustained_flop_per_s={"fp16": 5e13},
    memory_bytes=1e10,
    memory_bandwidth_bytes_per_s=1e12,
    efficiency=Efficiency(
        matmul_fraction=0.7,
        memory_fraction=0.8,
        attention_fraction=0.5,
        attention_backward_fraction=0.4,
        strided_gradient_fraction=0.6,
    ),
)
LEVELS = (
    Level(name="board", size=2, bandwidth_bytes_per_s=200e9, latency_s=2e-6),
    Level(name="node", size=4, bandwidth_bytes_per_s=100e9, latency_s=4e-6),
    Level(name="rack", size=8, bandwidth_bytes_per_s=20e9, latency_s=10e-6, ring_step_s=20e-6),
    Level(name="wan", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-2),
)
CLUSTER = Cluster(name="c", groups=(DeviceGroup(device=DEVICE),), levels=LEVELS)


def test_without_factors_nothing_changes() -> None:
    cluster, assumptions = with_constants(CLUSTER, MeshAssumptions(), dict.fromkeys(CONSTANTS, 1.0))
    assert cluster == CLUSTER
    assert assumptions == MeshAssumptions()
    assert device_with(DEVICE, {}) is DEVICE


def test_every_constant_changes_what_it_names_and_nothing_else() -> None:
    bounded = replace(CLUSTER, levels=tuple(replace(level, port_limit_bytes_per_s=5e8) for level in LEVELS))
    assumptions = MeshAssumptions(collective_wait_s=1e-4, contended_step_s=1e-4)
    for name, constant in CONSTANTS.items():
        cluster, assumed = with_constants(bounded, assumptions, {name: 0.5})
        changed = {
            *(f for f in Efficiency.__dataclass_fields__ if _efficiency(cluster, f) != _efficiency(bounded, f)),
            *(f for f in MeshAssumptions.__dataclass_fields__ if getattr(assumed, f) != getattr(assumptions, f)),
            *(
                f
                for f in ("launch_overhead_s", "best_flop_per_s", "sustained_flop_per_s")
                if getattr(cluster.device, f) != getattr(DEVICE, f)
            ),
            *(
                f
                for f in ("bandwidth_bytes_per_s", "port_limit_bytes_per_s", "latency_s", "ring_step_s", "efficiency")
                if _links(cluster, f) != _links(bounded, f)
            ),
        }
        assert changed == set(constant.fields), name


def _efficiency(cluster: Cluster, field: str) -> object:
    return getattr(cluster.device.efficiency, field)


def _links(cluster: Cluster, field: str) -> list[float]:
    return [getattr(level, field) for level in cluster.levels]


def test_levels_inside_a_node_and_between_nodes() -> None:
    inside = links_with(CLUSTER, {"intra_node_bandwidth": 2.0})
    between = links_with(CLUSTER, {"inter_node_bandwidth": 2.0})
    assert _links(inside, "bandwidth_bytes_per_s") == [400e9, 200e9, 20e9, 1e9]
    assert _links(between, "bandwidth_bytes_per_s") == [200e9, 100e9, 40e9, 2e9]
    assert _links(links_with(CLUSTER, {"link_latency": 3.0}), "latency_s") == pytest.approx([6e-6, 12e-6, 30e-6, 3e-2])
    assert stated_values("link_latency", replace(CLUSTER, levels=LEVELS[2:3]), MeshAssumptions()) == {
        "rack.latency_s": 10e-6,
        "rack.ring_step_s": 20e-6,
    }


def test_a_large_domain_is_a_node_and_a_lone_network_is_none() -> None:
    domain = replace(LEVELS[0], size=72)
    large = replace(CLUSTER, levels=(domain, replace(LEVELS[3], size=None)))
    assert _links(links_with(large, {"intra_node_bandwidth": 2.0}), "bandwidth_bytes_per_s") == [400e9, 1e9]
    lone = replace(CLUSTER, levels=(LEVELS[3],))
    assert _links(links_with(lone, {"inter_node_bandwidth": 2.0}), "bandwidth_bytes_per_s") == [2e9]
    assert links_with(lone, {"intra_node_bandwidth": 2.0}) == lone


def test_a_group_keeps_its_own_links() -> None:
    own = (replace(LEVELS[0], bandwidth_bytes_per_s=50e9),)
    cluster = replace(
        CLUSTER, groups=(replace(CLUSTER.groups[0], levels=own), DeviceGroup(device=DEVICE, name="other"))
    )
    changed = cluster_with(cluster, {"intra_node_bandwidth": 2.0, "matmul_rate": 0.5})
    assert changed.groups[0].levels[0].bandwidth_bytes_per_s == 100e9
    assert [group.device.efficiency.matmul_fraction for group in changed.groups] == [0.35, 0.35]


def test_rates_that_a_device_states_stay_below_its_peak_or_what_was_measured_above_it() -> None:
    stated = replace(DEVICE, best_flop_per_s={"fp32": 1.1e13, "bf16": 8e13}, sustained_flop_per_s={"bf16": 7e13})
    assert dict(device_with(stated, {"matmul_rate": 0.5}).best_flop_per_s) == {"fp32": 5.5e12, "bf16": 4e13}
    quicker = device_with(stated, {"matmul_rate": 2.0})
    assert dict(quicker.best_flop_per_s) == {"fp32": 1.1e13, "bf16": 1e14}
    assert dict(quicker.sustained_flop_per_s) == {"bf16": 1e14}
    cluster = replace(CLUSTER, groups=(DeviceGroup(device=stated),))
    values = stated_values("matmul_rate", cluster, MeshAssumptions())
    assert values == {"fp32 best_flop_per_s": 1.1e13, "bf16 best_flop_per_s": 8e13, "bf16 sustained_flop_per_s": 7e13}
    of_a_run = stated_values("matmul_rate", cluster, MeshAssumptions(), {"bf16"})
    assert of_a_run == {"bf16 best_flop_per_s": 8e13, "bf16 sustained_flop_per_s": 7e13}


def test_an_overlap_is_changed_by_its_exposed_share() -> None:
    base = MeshAssumptions(dp_overlap=0.9)
    assert assumptions_with(base, {"dp_exposed": 2.0}).dp_overlap == pytest.approx(0.8)
    assert assumptions_with(base, {"dp_exposed": 0.5}).dp_overlap == pytest.approx(0.95)
    assert assumptions_with(base, {"dp_exposed": 20.0}).dp_overlap == 0.0


@given(st.dictionaries(st.sampled_from(sorted(CONSTANTS)), st.floats(1e-3, 1e3), max_size=14))
def test_any_factors_make_a_valid_cluster(values: dict[str, float]) -> None:
    """Shares stay shares: the dataclasses themselves check."""
    cluster, assumptions = with_constants(CLUSTER, MeshAssumptions(), values)
    assert 0 < cluster.device.efficiency.matmul_fraction <= 1
    assert 0 <= assumptions.dp_overlap <= 1


@pytest.mark.parametrize(
    "values", [{"matmul": 1.0}, {"matmul_rate": 0.0}, {"matmul_rate": -1.0}, {"matmul_rate": float("nan")}]
)
def test_wrong_factors_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConstantError):
        with_constants(CLUSTER, MeshAssumptions(), values)


def test_stated_values_are_those_of_the_device_and_the_links() -> None:
    assert stated_values("attention_rate", CLUSTER, MeshAssumptions()) == {
        "attention_fraction": 0.5,
        "attention_backward_fraction": 0.4,
    }
    assert set(stated_values("inter_node_bandwidth", CLUSTER, MeshAssumptions())) == {
        "rack.bandwidth_bytes_per_s",
        "wan.bandwidth_bytes_per_s",
    }
    assert stated_values("host_launch", CLUSTER, MeshAssumptions(host_launch_s=1e-5)) == {"host_launch_s": 1e-5}


def test_priors_are_within_their_limits() -> None:
    for constant in CONSTANTS.values():
        assert constant.lowest < 1 < constant.highest
        assert 0 < constant.prior_log_sd < 1


# --- A calibration: its factors, their covariance, the profile that they multiply ---------------------------------------------------------


def test_a_calibration_gives_factors() -> None:
    calibration = Calibration(
        name="c",
        constants={
            "matmul_rate": CalibratedConstant(value=0.9, log_sd=0.1, prior_log_sd=0.17, determined=True),
            "memory_rate": CalibratedConstant(value=1.1, log_sd=0.2, prior_log_sd=0.15),
        },
        correlation=np.array([[1.0, -0.5], [-0.5, 1.0]]),
        residual_log_sd=0.1,
    )
    assert calibration.values == {"matmul_rate": 0.9, "memory_rate": 1.1}


def test_a_calibration_of_the_wrong_shape_is_refused() -> None:
    constants = {"matmul_rate": CalibratedConstant(log_sd=0.1, prior_log_sd=0.1)}
    with pytest.raises(ConstantError):
        Calibration(name="c", constants=constants, correlation=np.eye(2), residual_log_sd=0.1)

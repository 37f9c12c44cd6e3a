"""What a step costs by each objective, by hand; and objectives that are added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.hardware.host import DeviceCost, Power
from costmodel.objectives import OBJECTIVES, Objective, register, step_costs


def device(**more: float) -> Device:
    return Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11, **more)  # type: ignore[arg-type]


def test_a_year_of_a_gpu_by_hand() -> None:
    # 8760 h at 2 USD per hour; 700 W for 6132 h and 140 W for 2628 h are 4292.4 + 367.92 kWh.
    year = 8760 * 3600.0
    stated = device(price_per_hour=2.0, busy_power_w=700.0)
    costs = step_costs([(stated, None, 0.7 * year, 1)], year, "fp32")
    assert costs["money_per_step"] == pytest.approx(17520.0)
    assert (costs["energy_per_step_j"] or 0.0) / 3.6e6 == pytest.approx(4660.32)


def test_a_cost_that_one_kind_of_device_does_not_state_is_not_known() -> None:
    used = [(device(price_per_hour=2.0), None, 1.0, 1), (device(), None, 1.0, 1)]
    assert set(step_costs(used, 1.0, "fp32").values()) == {None}


@given(
    step=st.floats(1e-6, 1e6),
    share=st.floats(0.0, 1.0),
    workers=st.integers(1, 10**6),
    busy=st.floats(1.0, 1e4),
    idle_share=st.floats(0.01, 1.0),
    host=st.floats(0.0, 1e4),
)
def test_energy_lies_between_all_waiting_and_all_computing(
    step: float, share: float, workers: int, busy: float, idle_share: float, host: float
) -> None:
    cost = Power(busy_w=busy, idle_w=idle_share * busy, host_w=host).cost
    energy = float(cost.of_step(step, share * step, workers))
    seconds = workers * step
    assert seconds * (idle_share * busy + host) * (1 - 1e-9) <= energy <= seconds * (busy + host) * (1 + 1e-9)
    # Each of step, computing time and workers alone makes it no less: what bounds in the search rest on.
    assert float(cost.of_step(2 * step, share * step, workers)) >= energy
    assert float(cost.of_step(step, min(2 * share, 1.0) * step, workers)) >= energy * (1 - 1e-12)
    assert float(cost.of_step(step, share * step, workers + 1)) >= energy


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_device_costs_more_while_it_waits(name: str) -> None:
    stated = device(price_per_hour=2.0, busy_power_w=700.0, idle_power_w=100.0)
    cost = OBJECTIVES[name].cost_of(stated, None, "fp32")
    assert (cost is not None) == OBJECTIVES[name].is_per_device
    assert cost is None or 0 < cost.waiting <= cost.computing


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="already"):
        register(Objective(name="money", doc="again", better="cheaper"))


def test_a_cost_by_hand() -> None:
    assert float(DeviceCost(waiting=1.0, computing=3.0).of_step(10.0, 4.0, 2)) == 2 * (1.0 * 10.0 + 2.0 * 4.0)

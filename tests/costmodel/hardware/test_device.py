"""Devices: ranges, formats, immutability."""

from __future__ import annotations

import math
from typing import Any

import pytest

from costmodel.hardware.device import FORMATS, Device, DeviceError

GOOD: dict[str, Any] = {
    "name": "d",
    "peak_flop_per_s": {"fp32": 1e12},
    "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e11,
}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("key", ["memory_bytes", "memory_bandwidth_bytes_per_s", "vector_flop_per_s", "fp32"])
def test_rates_are_positive_numbers(key: str, bad: float) -> None:
    change = {"peak_flop_per_s": {"fp32": bad}} if key == "fp32" else {key: bad}
    with pytest.raises(DeviceError, match="device 'd'"):
        Device(**(GOOD | change))


@pytest.mark.parametrize("key", ["clock_hz", "launch_overhead_s"])
def test_clock_and_launch_may_be_zero(key: str) -> None:
    assert getattr(Device(**(GOOD | {key: 0.0})), key) == 0.0
    with pytest.raises(DeviceError):
        Device(**(GOOD | {key: -1.0}))


def test_formats() -> None:
    with pytest.raises(DeviceError, match="unknown number format 'int8'"):
        Device(**(GOOD | {"peak_flop_per_s": {"fp32": 1.0, "int8": 2.0}}))
    with pytest.raises(DeviceError, match="no fp32"):
        Device(**(GOOD | {"peak_flop_per_s": {"bf16": 1.0}}))
    device = Device(**(GOOD | {"peak_flop_per_s": {"bf16": 4.0, "fp32": 1.0}}))
    assert device.formats == {"fp32", "bf16"}
    assert list(device.peak_flop_per_s) == ["fp32", "bf16"]  # from wide to narrow, however written
    assert set(FORMATS) >= device.formats


def test_rates_cannot_be_changed() -> None:
    rates = {"fp32": 1e12}
    device = Device(**(GOOD | {"peak_flop_per_s": rates}))
    rates["fp32"] = 5.0
    assert device.peak("fp32") == 1e12
    with pytest.raises(TypeError):
        device.peak_flop_per_s["fp32"] = 1.0  # type: ignore[index]


def test_who_has_matrix_units() -> None:
    """Two halves per lane are none; who knows tf32 has them, however slow (a GeForce RTX 3090, by NVIDIA's GA102 white paper)."""
    pascal = Device(**(GOOD | {"peak_flop_per_s": {"fp32": 10.6e12, "fp16": 21.2e12}}))
    assert not pascal.has_matrix_units("fp16")
    peaks = {"fp32": 35.6e12, "tf32": 35.6e12, "fp16": 71e12, "bf16": 71e12}
    geforce = Device(**(GOOD | {"peak_flop_per_s": peaks}))
    assert [geforce.has_matrix_units(name) for name in ("fp32", "tf32", "fp16", "bf16")] == [False, True, True, True]
    # A yardstick that is equally fast in everything has no units of its own.
    alike = Device(**(GOOD | {"peak_flop_per_s": dict.fromkeys(FORMATS, 1e12)}))
    assert not any(alike.has_matrix_units(name) for name in FORMATS)

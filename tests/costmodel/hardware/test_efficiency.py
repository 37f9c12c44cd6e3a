"""Ranges of the constants of the efficiency model; what they are for is tested in test_kernel_time.py."""

from __future__ import annotations

import math

import pytest

from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency, EfficiencyError


def test_efficiency_ranges() -> None:
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(EfficiencyError, match="matmul_fraction"):
            Efficiency(matmul_fraction=bad)
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(EfficiencyError, match="tile_half"):
            Efficiency(tile_half=bad)


def test_the_default_says_where_its_numbers_come_from() -> None:
    assert "DeepBench" in DEFAULT_EFFICIENCY.source
    assert Efficiency().source == ""

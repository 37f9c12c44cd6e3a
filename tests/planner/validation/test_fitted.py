"""Constants that predictions use and that measurements chose are counted."""

from __future__ import annotations

import pytest

from costmodel.framework import FrameworkProfile, profile_of
from planner.loading import load_device
from planner.validation.fitted import fitted_of


def test_what_was_picked_among_readings_is_a_fact_and_counts_as_fitted() -> None:
    nanotron = profile_of("nanotron")
    assert set(nanotron.picked) <= set(nanotron.facts)
    device = load_device("h100-sxm").device
    counted = {name for name in fitted_of(device, nanotron.applied(), nanotron) if name.startswith("nanotron: ")}
    assert counted == {f"nanotron: {name}" for name in (*nanotron.constants, *nanotron.picked)}
    with pytest.raises(ValueError, match="latency_s"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", picked=("latency_s",))

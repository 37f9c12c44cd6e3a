"""Framework profiles: few constants, found by name, the default for whatever is not known."""

from __future__ import annotations

import pytest

from costmodel.framework import FRAMEWORKS, MOST_CONSTANTS, FrameworkProfile, profile_of
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS


def test_profiles_are_few_constants_with_a_source() -> None:
    assert MOST_CONSTANTS == 4
    for profile in FRAMEWORKS:
        assert len(profile.constants) <= 4
        assert profile.doc
        assert profile.source
        assert len({profile, *FRAMEWORKS}) == len(FRAMEWORKS)


@pytest.mark.parametrize(("text", "name"), [("nanotron v0.5", "nanotron"), ("", "default"), ("MosaicML", "default")])
def test_a_profile_is_found_by_what_people_call_it(text: str, name: str) -> None:
    assert profile_of(text).name == name


def test_the_default_changes_nothing() -> None:
    assert profile_of("something").applied() == DEFAULT_ASSUMPTIONS


def test_five_constants_or_unknown_ones_are_refused() -> None:
    five = dict.fromkeys(("host_launch_s", "host_collective_s", "ring_step_s", "tp_overlap", "dp_overlap"), 0.0)
    with pytest.raises(ValueError, match="5 constants, at most 4"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", constants=five)
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", constants={"speed": 1.0})

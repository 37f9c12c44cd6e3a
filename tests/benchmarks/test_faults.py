"""Faults that are put into the code to try the tests."""

from __future__ import annotations

from benchmarks.faults import FAULTS, ROOT, place_of


def test_every_fault_still_has_its_one_place() -> None:
    assert all(place_of(fault, ROOT) for fault in FAULTS)

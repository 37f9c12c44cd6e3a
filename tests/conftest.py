"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published reference data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("PLANNER_REFERENCE_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "paleo").is_dir():
        pytest.skip(f"reference data not found at {folder} (set PLANNER_REFERENCE_DATA)")
    return folder

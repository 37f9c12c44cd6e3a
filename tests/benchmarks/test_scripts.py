"""Benchmarks run as they are documented, `python benchmarks/NAME.py`, where the planner is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def _run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script from another folder; of the repository only what an installation has can be imported."""
    installed = folder / "installed"
    installed.mkdir()
    for package in ("planner", "costmodel", "strategies"):
        (installed / package).symlink_to(ROOT / package)
    environment = {key: value for key, value in os.environ.items() if key != "PLANNER_REFERENCE_DATA"}
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["accuracy.py", "accuracy_kernels.py", "gate.py", "intervals.py"])
def test_scripts_find_their_modules_and_say_that_the_tables_are_missing(name: str, tmp_path: Path) -> None:
    found = _run(name, tmp_path)
    assert found.returncode == 2
    assert found.stderr.strip() == "tables of measurements not found; set PLANNER_REFERENCE_DATA"


@pytest.mark.e2e
def test_targets_are_those_of_the_page(tmp_path: Path) -> None:
    """What the script prints stands in docs/accuracy.md, whose other tables it reads."""
    printed = _run("targets.py", tmp_path).stdout
    assert printed.strip() in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")

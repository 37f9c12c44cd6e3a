"""Programs that hang, fail, print garbage or are not there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from planner.detect.machine import detect
from planner.detect.system import System

pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs here are shell scripts")


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that comes first."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_program_that_hangs_is_stopped_with_its_children(tools: Path) -> None:
    program(tools, "nvidia-smi", f"sleep 60 & echo $! > {tools}/child; wait")
    system = System(timeout_s=0.5)
    start_s = time.monotonic()
    machine = detect(system)
    assert time.monotonic() - start_s < 8
    assert machine.devices[0][0].name.startswith("cpu-")
    assert system.remarks == ["nvidia-smi did not answer within 0.5 s and was stopped"]
    child = int((tools / "child").read_text())
    time.sleep(0.1)
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_program_that_fails_is_remarked(tools: Path) -> None:
    program(
        tools,
        "nvidia-smi",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
    )
    system = System()
    assert detect(system).devices[0][0].name.startswith("cpu-")
    assert any("exit code 9" in remark for remark in system.remarks)


@pytest.mark.e2e
def test_a_program_that_prints_garbage(tools: Path) -> None:
    program(tools, "nvidia-smi", "head -c 3000000 /dev/urandom")
    assert detect(System()).levels


def test_what_is_not_there() -> None:
    system = System()
    assert system.run("no-such-program-of-the-planner") is None
    assert system.read("/no/such/file") is None
    assert list(system.names("/no/such/folder")) == []
    assert not system.exists("/no/such/file")
    assert (system.usable_cpus() or 0) >= 1

"""`planner sweep --dask` on a real scheduler with two worker processes, one of which is killed midway."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planner.sweeping.workers import keys_of

ROOT = Path(__file__).resolve().parents[3]
GRID = ("llama2-7b", "--gpus", "8,16..64", "--cluster", "a100,h100", "--batch", "64,128")  # 16 cells

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="the extra 'dask' is not installed"
)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "3"}


def _start(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "dask.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, env=_environment(), stdout=log, stderr=log
        )


def _worker(address: str, folder: Path) -> subprocess.Popen[bytes]:
    options = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1", "--death-timeout", "60")
    return _start("distributed.cli.dask_worker", address, *options, folder=folder)


def _ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(timeout=20)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "scheduler.json"
    options = ("--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file))
    process = _start("distributed.cli.dask_scheduler", *options, folder=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "dask.log").read_text(encoding="utf-8")
            time.sleep(0.05)
        time.sleep(0.1)
        yield json.loads(file.read_text(encoding="utf-8"))["address"]
    finally:
        _ended(process)


def _sweep(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "planner", "sweep", *arguments],
        cwd=folder,
        env=_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.e2e
@needs_dask
def test_a_worker_that_is_killed_midway_costs_nothing(tmp_path: Path, scheduler: str) -> None:
    workers = [_worker(scheduler, tmp_path) for _ in range(2)]
    try:
        process = _sweep(*GRID, "-o", "out.csv", "--dask", scheduler, folder=tmp_path)
        journal = tmp_path / "out.csv.journal"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.poll() is None:
            if len(keys_of(journal)) >= 3:
                break
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        os.kill(workers[0].pid, signal.SIGKILL)
        assert len(keys_of(journal)) < 16
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        for worker in workers:
            _ended(worker)
    assert len(keys_of(journal)) == 16
    here = _sweep(*GRID, "-o", "here.csv", "--quiet", folder=tmp_path)
    here.communicate(timeout=120)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


@needs_dask
def test_ctrl_c_leaves_the_cluster_free(tmp_path: Path, scheduler: str) -> None:
    worker = _worker(scheduler, tmp_path)
    try:
        process = _sweep(*GRID, "-o", "out.csv", "--dask", scheduler, folder=tmp_path)
        journal = tmp_path / "out.csv.journal"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and len(keys_of(journal)) < 2:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert 1 < len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) < 17
        assert worker.poll() is None
    finally:
        _ended(worker)


@needs_dask
def test_an_address_that_does_not_answer_is_one_error_within_seconds(tmp_path: Path) -> None:
    with socket.socket() as taken:  # accepts nothing and says nothing
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        silent = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for address in (silent, "tcp://127.0.0.1:9", "nonsense", "tcp://no.such.host.invalid:8786"):
            started = time.monotonic()
            process = _sweep("alexnet", "--gpus", "1,2", "--dask", address, folder=tmp_path)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2, (address, errors)
            lines = [line for line in errors.splitlines() if line.strip()]
            assert len(lines) == 1, errors
            assert lines[0].startswith(f"error: --dask {address}: no scheduler answers there")
            assert time.monotonic() - started < 15
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['distributed'] = None\n"
        "from planner.cli import run\n"
        "sys.exit(run(['sweep', 'alexnet', '--gpus', '1', '--dask', 'tcp://127.0.0.1:9']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "paleo-planner[dask]" in done.stderr

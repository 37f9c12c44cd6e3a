"""Where answers go: files that are whole or absent, clean streams, and how the program stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.core.answer import Answer
from planner.core.errors import SearchInterrupted
from planner.core.request import Request

ROOT = Path(__file__).resolve().parents[2]


# --- files and streams


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", "{"), ("a.csv", "rank,"), ("a.md", "**Best: "), ("a.yaml", "schema_version: 1"), ("a.txt", "Best: ")],
)
def test_the_suffix_decides(answer: Any, tmp_path: Path, name: str, start: str) -> None:
    path = tmp_path / name
    assert answer("optimize", "mlp", "--gpus", "2", "-o", str(path)) == ""
    assert path.read_text(encoding="utf-8").startswith(start)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.e2e
def test_a_format_beats_the_suffix(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    answer("list", "models", "-o", str(path), "--json")
    json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.e2e
def test_files_keep_their_mode_and_links(answer: Any, tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)
    link.symlink_to(path)
    answer("list", "models", "-o", str(link))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    json.loads(path.read_text(encoding="utf-8"))


def test_remarks_go_to_stderr(said: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    out, err = said("optimize", "mlp", "--gpus", "2", "--json", "--export", path)
    json.loads(out)
    assert err == f"planner: wrote the best plan to {path}\n"
    assert said("optimize", "mlp", "--gpus", "2", "--json", "--export", path, "-q")[1] == ""


def test_verbose_logs_to_stderr(said: Any) -> None:
    out, err = said("optimize", "mlp", "--gpus", "2", "--json", "-v")
    json.loads(out)
    assert "done" in err


@pytest.mark.e2e
def test_a_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "90")
    for name, value, coloured in (("", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)):
        with monkeypatch.context() as patch:
            patch.delenv("NO_COLOR", raising=False)
            if name:
                patch.setenv(name, value)
            text, _ = said("optimize", "mlp", "--gpus", "2")
        assert ("\x1b[" in text) is coloured
        assert coloured or text.isascii()


@pytest.mark.e2e
def test_head_is_silent() -> None:
    shell = f"{sys.executable} -m planner optimize mlp --gpus 2 --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout == "{\n0\n"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("list models >&-", 2, "error: stdout is closed\n"),
        ("list models -o models.txt >&-", 0, "planner: wrote models.txt\n"),
        ("list nothing >&- 2>&-", 2, ""),
    ],
)
def test_closed_streams_are_no_traceback(words: str, code: int, error: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m planner {words}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", error)
    files = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert all("alexnet" in text for text in files.values())  # nothing else was written into it
    assert list(files) == (["models.txt"] if "-o" in words else [])


def test_names_as_typed_send_no_escapes_to_the_terminal(fails: Any) -> None:
    error = fails("estimate", "al\x1b[31mexnet", "--gpus", "2")
    assert "\x1b" not in error
    assert "al\\x1b[31mexnet" in error


def test_a_closed_reader_is_silent(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    def closed(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(sys.stdout, "write", closed)
    assert said("list", "models")[1] == ""


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    shell = f"{sys.executable} -m planner list models > /dev/full"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


# --- stopping


def fake_search(monkeypatch: pytest.MonkeyPatch, behave: Any) -> None:
    monkeypatch.setattr("planner.spaces.ask.optimize", behave)


def test_ctrl_c_prints_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, said: Any, make_result: Any, tmp_path: Path
) -> None:
    def interrupted(request: Request, progress: object) -> Answer:
        raise SearchInterrupted(make_result(proven_optimal=False, proven_top=False, gap=0.5))

    fake_search(monkeypatch, interrupted)
    path = tmp_path / "plan.yaml"
    out, err = said("optimize", "alexnet", "--gpus", "16", "--json", "--export", path, code=130)
    assert len(json.loads(out)["plans"]) == 4
    assert "interrupted: these are the best plans so far" in err
    assert path.exists()


def test_ctrl_c_before_a_plan(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    def interrupted(request: Request, progress: object) -> Answer:
        raise SearchInterrupted(None)

    def killed(request: Request, progress: object) -> Answer:
        raise KeyboardInterrupt

    for behave in (interrupted, killed):
        fake_search(monkeypatch, behave)
        out, err = said("optimize", "alexnet", "--gpus", "16", code=130)
        assert out == ""
        assert "interrupted" in err
        assert "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_real_ctrl_c() -> None:
    code = """
import os, signal, sys, time, types
module = types.ModuleType("planner.spaces.ask")
def optimize(request, progress):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
module.optimize = optimize
sys.modules["planner.spaces.ask"] = module
sys.argv = ["planner", "optimize", "alexnet", "--gpus", "2"]
from planner.__main__ import main
main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip() == "interrupted"


def test_an_internal_error_is_short(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    def broken(request: Request, progress: object) -> Answer:
        raise KeyError("x\nsecond line")

    fake_search(monkeypatch, broken)
    _, err = said("optimize", "alexnet", "--gpus", "2", code=70)
    assert err.startswith("internal error: KeyError")
    assert "report" in err
    assert "Traceback" not in err
    assert "Traceback" in said("optimize", "alexnet", "--gpus", "2", "--verbose", code=70)[1]

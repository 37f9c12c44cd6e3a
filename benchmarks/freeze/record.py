"""Records what a tree answers: runs the commands of `questions` in worker processes and evaluates the plans of `plans`."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.freeze import plans, questions

_OWN_ADAPTER = Path(__file__).with_name("adapter.py")
# The clock of the workers runs so many times slower, so that counts of work end a search rather than the clock.
_CLOCK_DIVISOR = 4.0
# Not a text that a record keeps: a page or a picture.
_MOST_CHARACTERS = 400_000


def record(
    folder: Path, tree: Path, *, only: str = "", processes: int = 2, resume: bool = False, adapter: Path | None = None
) -> int:
    """Record what a tree answers, one JSON file per job; returns an exit code.

    Parameters
    ----------
    folder : Path
        Where the record is written; files of an earlier one are replaced.
    tree : Path
    only : str
        Part of the names of the jobs to run.
    processes : int
    resume : bool
        Leave out the jobs that the folder already has.
    adapter : Path, optional
        For a tree that is older than this one's and has no adapter of its own.
    """
    tree, folder = tree.resolve(), folder.resolve()
    names = ["api", *(f"evaluations/{name}" for name in plans.PROBLEMS), *(job.name for job in questions.jobs())]
    names = [name for name in names if only in name and not (resume and (folder / f"{name}.json").exists())]
    started = time.time()
    spent: dict[str, float] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes,
        mp_context=context,
        initializer=_prepare,
        initargs=(str(tree), str(adapter or "")),
    ) as pool:
        running = {pool.submit(_run_job, name): name for name in names}
        for done in as_completed(running):
            name = running[done]
            result, spent[name] = done.result()
            _write(folder / f"{name}.json", result)
            print(f"{len(spent):4}/{len(names)} {spent[name]:6.1f} s of CPU  {name}", file=sys.stderr, flush=True)
    about = {
        "commit": _git(tree, "rev-parse", "HEAD"),
        "changed_files": _git(tree, "status", "--porcelain").splitlines(),
        "cpu_s": sum(spent.values()),
        "wall_s": time.time() - started,
        "cpu_s_of_jobs": dict(sorted(spent.items(), key=lambda item: -item[1])),
    }
    if not only:
        _write(folder / "about.json", about)
    print(
        f"{len(names)} jobs, {about['cpu_s']:.0f} s of CPU, {about['wall_s']:.0f} s on the clock, commit {about['commit']}",
        file=sys.stderr,
    )
    return 0


def _git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False).stdout.strip()


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


# --- In a worker process


def _prepare(tree: str, adapter: str) -> None:
    """Make this process import the planner of a tree."""
    os.nice(10)
    # Searches that a clock ends get the same effort on a busy machine: this clock counts the time of this process on the processor.
    time.monotonic = time.perf_counter = lambda: time.process_time() / _CLOCK_DIVISOR
    sys.path.insert(0, tree)
    os.environ["COLUMNS"] = "100"
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    import planner

    assert Path(planner.__file__ or "").is_relative_to(tree), f"planner comes from {planner.__file__}, not from {tree}"
    theirs = Path(adapter or Path(tree, "benchmarks", "freeze", "adapter.py"))
    spec = importlib.util.spec_from_file_location("freeze_adapter", theirs if theirs.is_file() else _OWN_ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["freeze_adapter"] = module
    spec.loader.exec_module(module)


def _run_job(name: str) -> tuple[Any, float]:
    """Run one job; what it gives, and the CPU time that it took."""
    started = time.process_time()
    if name == "api":
        result: Any = _api()
    elif name.startswith("evaluations/"):
        result = _evaluations(name.partition("/")[2])
    else:
        job = next(job for job in questions.jobs() if job.name == name)
        result = run_commands(job)
    return result, time.process_time() - started


def run_commands(job: questions.Job) -> dict[str, Any]:
    """Run commands in a folder of their own; what each said, and the files that they wrote."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            given = {
                name: text for name, text in questions.FILES.items() if any(name in command for command in job.commands)
            }
            if len(job.commands) > 1:  # a plan.yaml is its own
                given = {
                    name: text for name, text in given.items() if not any(f"--export {name}" in c for c in job.commands)
                }
            for name, text in given.items():
                Path(name).write_text(text, encoding="utf-8")
            said = [_command(command, scratch) for command in job.commands]
            files = {
                path.relative_to(scratch).as_posix(): path
                for path in sorted(Path(scratch).rglob("*"))
                if path.is_file()
            }
            written = {name: _text(path, scratch) for name, path in files.items() if name not in given}
        finally:
            os.chdir(before)
    return {
        "commands": {f"{n} {command}": one for n, (command, one) in enumerate(zip(job.commands, said, strict=True))},
        "files": written,
    }


def _text(path: Path, scratch: str) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").replace(scratch, "SCRATCH")
    return text if len(text) <= _MOST_CHARACTERS else f"{len(text)} characters"


def _command(command: str, scratch: str) -> dict[str, Any]:
    from planner.cli import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(shlex.split(command))
    text = out.getvalue().replace(scratch, "SCRATCH")
    try:
        stdout: Any = json.loads(text)
    except ValueError:
        stdout = text
    # Progress and remarks are for people that wait; what a command refuses is part of its answer.
    return {"code": int(code), "stdout": stdout, "stderr": err.getvalue().replace(scratch, "SCRATCH") if code else ""}


def _evaluations(name: str) -> dict[str, Any]:
    adapter: Any = sys.modules["freeze_adapter"]
    drawn = plans.draw(name, adapter.layers_of)
    figures = adapter.evaluate(plans.PROBLEMS[name][0], drawn)
    return {
        "problem": plans.PROBLEMS[name][0],
        "plans": [{"plan": p, "figures": f} for p, f in zip(drawn, figures, strict=True)],
    }


def _api() -> dict[str, Any]:
    """Public names of the Python interface with their signatures."""
    import planner

    return {name: _described(getattr(planner, name)) for name in planner.__all__}


def _described(thing: Any) -> Any:
    if inspect.isclass(thing):
        members = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_") or name == "__init__"}
        if issubclass(thing, BaseException):
            members = {name: member for name, member in members.items() if name in vars(thing)}
        return {name: _signature(member) for name, member in members.items()}
    return _signature(thing)


def _signature(thing: Any) -> str:
    if not callable(thing):
        return "property" if isinstance(thing, property) else type(thing).__name__
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "callable"

"""`planner place` on the public workloads: throughput, latency and Piper's objective, each a fresh process on one thread.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/placement.py [--write] [120s] [contiguous] [free] [piper] [latency]
(free and latency: ten minutes at most for each workload, or the time given; --write puts the tables into docs/placement.md)

CPU seconds and peak memory are those of the whole command, start-up, reading and the independent check included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = (
    Path(os.environ.get("PLANNER_REFERENCE_DATA", Path(__file__).parents[2] / "shared")) / "placement" / "workloads"
)
PIPER = ("--memory", "8GiB", "--bandwidth", "25GiB/s", "--micro-batches", "1920")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "placement.md"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run(*arguments: str | Path) -> tuple[dict[str, Any], float, float]:
    """Run once; return the answer, CPU seconds and MB of peak memory."""
    command = [sys.executable, "-m", "planner", "place", *map(str, arguments), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD})
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments}: exit code {process.returncode}"
    return json.loads(output), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


ROWS: list[str] = []


def write_table(marker: str, lines: list[str]) -> None:
    """Put a table between the marks of docs/placement.md that name the command that makes it."""
    begin, end = f"<!-- table: python benchmarks/{marker} -->", "<!-- end of the table -->"
    head, rest = PAGE.read_text(encoding="utf-8").split(begin)
    text = "\n".join(lines)
    PAGE.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def show(name: str, answer: dict[str, Any], cpu_s: float, memory_mb: float) -> None:
    proof = "proven" if answer["proven_optimal"] else f"gap {answer['gap']:.2%}"
    devices = answer.get("num_accelerators", answer.get("num_devices"))
    values = f"{answer['objective']:.10g} | {answer['bound']:.10g} | {answer['gap']:.2%}".replace("%", " %")
    ROWS.append(f"| {name} | {devices:,} | {values} | {cpu_s:.1f} | {memory_mb:.0f} |")
    print(f"{name:42} {answer['objective']:<14.10g} {proof:8} {cpu_s:6.2f} s {memory_mb:5.0f} MB", flush=True)


def contiguous() -> None:
    """Chains of down-sets, proven."""
    total, most = 0.0, 0.0
    for path in workloads():
        answer, cpu_s, memory_mb = run(path, "--contiguous")
        show(f"{path.parent.name}/{path.stem}", answer, cpu_s, memory_mb)
        total, most = total + cpu_s, max(most, memory_mb)
    print(f"{'together':42} {'':14} {'':8} {total:6.2f} s {most:5.0f} MB")


def free() -> None:
    """Any placement; each stops at 0.1 % or after ten minutes."""
    for path in workloads():
        answer, cpu_s, memory_mb = run(path, "--non-contiguous", "--gap", "0.1%", "--time-limit", limit())
        show(f"{path.parent.name}/{path.stem}", answer, cpu_s, memory_mb)


def piper() -> None:
    """Pipeline, data and tensor parallelism."""
    for devices in (8, 64, 512, 1024, 2048):
        answer, cpu_s, memory_mb = run(FOLDER / "piper" / "bert32a100.json", "--devices", str(devices), *PIPER)
        show(f"piper/bert32a100, {devices} devices", answer, cpu_s, memory_mb)


def limit() -> str:
    """The time limit given, such as 120s; ten minutes unless there is one."""
    return next((word for word in sys.argv[1:] if word[:1].isdigit()), "600s")


def workloads() -> list[Path]:
    """Those of the throughput objective."""
    return sorted((FOLDER / "throughput").glob("*/*.json"))


def latency() -> None:
    """One, two and four subgraphs per accelerator; each stops when proven or after ten minutes."""
    for path in sorted((FOLDER / "latency").glob("*/*.json")):
        for subgraphs in ("1", "2", "4"):
            words = ("--objective", "latency", "--subgraphs", subgraphs, "--time-limit", limit())
            answer, cpu_s, memory_mb = run(path, *words)
            show(f"{path.stem}, {subgraphs} per accelerator", answer, cpu_s, memory_mb)


PARTS = {"contiguous": contiguous, "free": free, "piper": piper, "latency": latency}


HEAD = (
    "| workload | devices | objective | proven bound | gap | CPU s | MB |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def main() -> None:
    if not FOLDER.is_dir():
        print(f"skipped: no workloads at {FOLDER} (set PLANNER_REFERENCE_DATA)")
        return
    print(f"{'workload':42} {'objective':14} {'proof':8} {'CPU':>8} {'memory':>8}")
    for name in [word for word in sys.argv[1:] if word in PARTS] or list(PARTS):
        ROWS.clear()
        PARTS[name]()
        if "--write" in sys.argv:
            limited = [f"Limit: {limit()} per row.", ""] if name in ("free", "latency") else []
            write_table(f"placement.py --write {name}", [*limited, *HEAD, *ROWS])


if __name__ == "__main__":
    main()

"""Time and peak memory of whole commands, as a user waits for them: medians of several runs, each a fresh process.

Usage: python benchmarks/commands.py [RUNS]     (the installed `planner` of this interpreter is run)

The wall time is what the target is about; the time on the processor (user and system) says the same on a machine that others load, too.
Byte code must be compiled, as an installation does: PYTHONDONTWRITEBYTECODE makes every start compile what it loads.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

_PLANNER = ("-m", "planner")
# Name, target in seconds, arguments of python.
TARGETS: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("import planner", 0.3, ("-c", "import planner")),
    ("planner --help", 0.3, (*_PLANNER, "--help")),
    ("alexnet, 16 GPUs", 0.8, (*_PLANNER, "optimize", "alexnet", "--gpus", "16")),
    ("resnet50, 16 GPUs", 1.0, (*_PLANNER, "optimize", "resnet50", "--gpus", "16")),
    ("vgg16, 64 GPUs", 2.0, (*_PLANNER, "optimize", "vgg16", "--gpus", "64")),
    ("inception_v3, 64 GPUs", 15.0, (*_PLANNER, "optimize", "inception_v3", "--gpus", "64")),
    (
        "inception_v3, 64 GPUs, 1.2 GiB",
        15.0,
        (*_PLANNER, "optimize", "inception_v3", "--gpus", "64", "--memory-limit", "1.2 GiB"),
    ),
    ("resnet152, 64 GPUs", 15.0, (*_PLANNER, "optimize", "resnet152", "--gpus", "64")),
    ("resnet152, 64 GPUs, batch 1024", 15.0, (*_PLANNER, "optimize", "resnet152", "--gpus", "64", "--batch", "1024")),
    ("resnet50, 512 GPUs", 3.0, (*_PLANNER, "optimize", "resnet50", "--gpus", "512")),
    ("resnet50, 4096 GPUs", 8.0, (*_PLANNER, "optimize", "resnet50", "--gpus", "4096")),
    (
        "resnet152, 64 GPUs, 1.2 GiB",
        15.0,
        (*_PLANNER, "optimize", "resnet152", "--gpus", "64", "--memory-limit", "1.2 GiB"),
    ),
)


class Run(NamedTuple):
    """One run of a command."""

    wall_s: float
    processor_s: float
    peak_mb: float
    output: str


def run(arguments: tuple[str, ...]) -> Run:
    """Run once."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments}: exit code {process.returncode}"
    return Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3, output)


def main(runs: int = 5) -> None:
    print(f"{'command':34} {'target':>7} {'median':>8} {'min':>8} {'max':>8}  {'on cpu':>7}  {'memory':>7}  proof")
    for name, target, arguments in TARGETS:
        count = runs if target < 5 else max(1, runs // 2)
        measured = [run(arguments) for _ in range(count)]
        times = [one.wall_s for one in measured]
        proof = ""
        if "optimize" in arguments:
            answer = json.loads(run((*arguments, "--json")).output)
            proof = f"proven, {answer['solver']}" if answer["proven_optimal"] else f"gap {answer['gap']:.1%}"
        on_cpu = statistics.median(one.processor_s for one in measured)
        print(
            f"{name:34} {target:6.1f}s {statistics.median(times):7.2f}s {min(times):7.2f}s {max(times):7.2f}s"
            f"  {on_cpu:6.2f}s  {max(one.peak_mb for one in measured):4.0f} MB  {proof}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

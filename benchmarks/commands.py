"""Wall time and peak memory of whole commands, as a user waits for them: medians of several runs, each a fresh process.

Usage: python benchmarks/commands.py [RUNS]     (the installed `planner` of this interpreter is run)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

TARGETS: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("planner --help", 0.3, ("--help",)),
    ("alexnet, 16 GPUs", 0.8, ("optimize", "alexnet", "--gpus", "16")),
    ("vgg16, 64 GPUs", 2.0, ("optimize", "vgg16", "--gpus", "64")),
    ("inception_v3, 64 GPUs", 15.0, ("optimize", "inception_v3", "--gpus", "64")),
    ("inception_v3, 64 GPUs, 1.2 GiB", 15.0, ("optimize", "inception_v3", "--gpus", "64", "--memory-limit", "1.2 GiB")),
    ("resnet152, 64 GPUs", 15.0, ("optimize", "resnet152", "--gpus", "64")),
    ("resnet152, 64 GPUs, batch 1024", 15.0, ("optimize", "resnet152", "--gpus", "64", "--batch", "1024")),
    ("resnet152, 64 GPUs, 1.2 GiB", 15.0, ("optimize", "resnet152", "--gpus", "64", "--memory-limit", "1.2 GiB")),
)


def run(arguments: tuple[str, ...]) -> tuple[float, float, str]:
    """Run once; return seconds, MB of peak memory and stdout."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "planner", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments}: exit code {process.returncode}"
    return time.perf_counter() - started, usage.ru_maxrss / 1e3, output


def main(runs: int = 5) -> None:
    print(f"{'command':34} {'target':>7} {'median':>8} {'min':>8} {'max':>8}  {'memory':>7}  proof")
    for name, target, arguments in TARGETS:
        count = runs if target < 5 else max(1, runs // 2)
        measured = [run(arguments) for _ in range(count)]
        times = [seconds for seconds, _, _ in measured]
        proof = ""
        if arguments[0] == "optimize":
            answer = json.loads(run((*arguments, "--json"))[2])
            proof = f"proven, {answer['solver']}" if answer["proven_optimal"] else f"gap {answer['gap']:.1%}"
        memory = max(megabytes for _, megabytes, _ in measured)
        print(
            f"{name:34} {target:6.1f}s {statistics.median(times):7.2f}s {min(times):7.2f}s {max(times):7.2f}s"
            f"  {memory:4.0f} MB  {proof}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

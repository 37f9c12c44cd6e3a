"""Where the split by channels starts to pay: best plan against plain data parallelism, over batch size and link bandwidth.

Prints the table of docs/crossover.md. Usage: python benchmarks/crossover.py [MODEL] [GPUS]
"""

from __future__ import annotations

import dataclasses
import sys

from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.tables import CostCache
from planner.core.request import Request
from planner.question.resolve import resolve
from strategies.layerwise.candidates import best_data_parallel
from strategies.layerwise.search import SearchSettings, search

BATCHES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
GIGABYTES_PER_S = (1, 2, 4, 8, 16, 32, 64)


def main(model: str = "alexnet-cuda-convnet2", gpus: int = 8) -> None:
    base = resolve(Request(model=model, gpus=gpus, cluster="k20-pcie"))
    print(
        f"{model}, up to {gpus} K20, roofline, fp32: best family (x faster than data parallelism on its best number)\n"
    )
    print("| global batch | " + " | ".join(f"{rate} GB/s" for rate in GIGABYTES_PER_S) + " |")
    print("| ---: |" + " --- |" * len(GIGABYTES_PER_S))
    for batch in BATCHES:
        cells = []
        for rate in GIGABYTES_PER_S:
            levels = tuple(
                dataclasses.replace(level, bandwidth_bytes_per_s=rate * 1e9) for level in base.cluster.levels
            )
            cluster = dataclasses.replace(base.cluster, levels=levels)
            workload = dataclasses.replace(base.workload, global_batch=batch)
            capacity = base.setting.memory_capacity_bytes
            outcome = search(workload, cluster, SearchSettings(max_workers=gpus, capacity_bytes=capacity, top=1))
            if not outcome.candidates:
                cells.append("does not fit")
                continue
            best = outcome.candidates[0]
            _, data = best_data_parallel(CostCache(workload, cluster), gpus, capacity)
            gain = (
                float(evaluate(workload, cluster, [data]).step_time_s[0]) / best.step_time_s if data else float("nan")
            )
            mark = "" if outcome.bound_score >= best.score * (1 - 1e-9) else " (not proven)"
            cells.append(f"{best.family} {gain:.2f}x{mark}")
        print(f"| {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))

"""Rate of the exhaustive enumeration: distinct legal uniform plans per second on one core.

Building the space, costing the tables, scoring time and checking memory are all inside the measured time. Usage:
python benchmarks/enumeration.py [MODEL] [GPUS] [BATCH]
"""

from __future__ import annotations

import sys
import time

from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostTables
from planner.core.request import Request
from planner.question.resolve import resolve
from strategies.layerwise.candidates import blocks, enumerate_uniform
from strategies.layerwise.space import Restriction, micro_batch_counts


def run(model: str, gpus: int, batch: int) -> tuple[int, float]:
    resolved = resolve(Request(model=model, gpus=gpus, batch=batch))
    started = time.process_time()
    total = 0
    for counts in blocks(range(1, gpus + 1), grids=True):
        table = split_table(counts, grids_only=True)
        tables: CostTables | None = None
        for m in micro_batch_counts(batch):
            tables = CostTables(resolved.workload, resolved.cluster, table, m, like=tables)
            count = enumerate_uniform(tables, Restriction(), resolved.setting.memory_capacity_bytes, 10).count
            total += count
    return total, time.process_time() - started


def main(model: str = "alexnet", gpus: int = 1024, batch: int = 1024) -> None:
    rates = []
    for _ in range(5):
        total, seconds = run(model, gpus, batch)
        rates.append(total / seconds / 1e6)
        print(
            f"{model}, up to {gpus} workers, batch {batch}: {total:,} distinct legal plans in {seconds:.2f} s of CPU: {rates[-1]:.2f} M/s"
        )
    print(f"median {sorted(rates)[2]:.2f} M plans/s/core")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:4]))

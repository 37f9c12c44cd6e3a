"""The accuracy gate: no source of measurements may be predicted worse than before, unless the changelog says why.

    python benchmarks/gate.py                        # figures of today beside those on record
    python benchmarks/gate.py --write                # record what improved
    python benchmarks/gate.py --write --because "REASON"  # also what worsened; the text must stand in CHANGELOG.md

`planner validate` scores every table with the bundled constants and no calibration; a column tells the sources of a table apart.
The errors on record are in gate.yaml. A figure fails that is more than a tenth above its record, and a source with fewer rows than there
(``tests/benchmarks/test_gate.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.datasets import read
from benchmarks.pages import measurements
from benchmarks.pages import table as table_path
from planner.measurements.kinds import predict_table
from planner.measurements.scores import score

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "gate.yaml"
WORSE = 1.1  # times the record

# Table -> the column whose texts tell its sources apart; empty: it is one source.
TABLES: Mapping[str, str] = {
    "collectives": "",
    "blackwell_training": "precision",
    "convnet_benchmarks_layers": "device",
    "convnet_benchmarks_nets": "device",
    "deepbench_allreduce": "device",
    "deepbench_conv": "device",
    "deepbench_gemm": "device",
    "deepbench_rnn": "device",
    "hf_ultrascale_nanotron": "",
    "llm_foundry": "",
    "mamf_matmul_peak": "",
    "megatron_lm": "",
    "misc_transformers": "",
    "nemo_megatron_bridge": "precision",
    "nvidia_dle_resnet_bert": "device",
    "pipedream_layers": "",
    "serving_kernels_alltoall": "algorithm",
    "serving_kernels_attention": "precision",
    "serving_kernels_collectives": "device",
    "serving_kernels_gemm": "precision",
    "serving_kernels_moe": "precision",
    "tf_cnn_benchmarks": "",
    "training_moe_and_memory": "device",
    "vtrain": "",
}
# Name in the record -> figure of `planner validate`.
ERRORS = {"mean": "mape", "median": "median_ape", "memory": "memory_median_ape"}
Figures = dict[str, float]


def figures(folder: Path, table: str) -> dict[str, Figures]:
    """Errors of each source of a table, as shares of what was measured, and how many rows have them."""
    _, outcomes = predict_table(read(table_path(folder, table)))
    column = TABLES[table]
    sources: dict[str, list[Any]] = {}
    for outcome in outcomes:
        name = outcome.row.text(column) if column else ""
        sources.setdefault(f"{table}, {name}" if name else table, []).append(outcome)
    scores = {name: score(rows) for name, rows in sources.items()}
    return {
        name: {
            **{own: round(found[figure], 4) for own, figure in ERRORS.items() if found[figure] is not None},
            "rows": found["scored"],
        }
        for name, found in sorted(scores.items())
    }


def recorded() -> dict[str, dict[str, Any]]:
    """The record: source -> its errors, and ``because`` where one was raised."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return found


def worse(today: Mapping[str, Figures], record: Mapping[str, Mapping[str, Any]], table: str) -> list[str]:
    """What fails of a table: errors above their record, fewer rows, sources without a record, and records without a source.

    >>> record = {"a": {"mean": 0.10}}
    >>> worse({"a": {"mean": 0.109}}, record, "a"), worse({"a": {"mean": 0.111}}, record, "a")
    ([], ['a: mean error 11.1 %, on record 10.0 %'])
    """
    own = {name for name in record if name.partition(", ")[0] == table}
    found = [f"{name}: not on record" for name in sorted(today.keys() - own)]
    found += [f"{name}: no longer scored" for name in sorted(own - today.keys())]
    for name in sorted(own & today.keys()):
        rows, before = today[name].get("rows", 0), record[name].get("rows", 0)
        if rows < before:  # rows that are skipped have no error
            found.append(f"{name}: {rows:.0f} rows scored, on record {before}")
        for error in ERRORS:
            now, before = today[name].get(error), record[name].get(error)
            if (now is None) != (before is None):
                found.append(f"{name}: {error} error {now}, on record {before}")
            elif now is not None and now > before * WORSE:
                found.append(f"{name}: {error} error {now:.1%}, on record {before:.1%}".replace("%", " %"))
    return found


def main(arguments: list[str]) -> int:
    """Compare, or record; 1 where a figure is worse."""
    parser = argparse.ArgumentParser(description="Compare prediction errors with those on record.")
    parser.add_argument("--write", action="store_true", help="record figures that are better")
    parser.add_argument(
        "--because", default="", help="also record figures that are worse, for this reason of CHANGELOG.md"
    )
    options = parser.parse_args(arguments)
    if options.because and options.because not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        parser.error("CHANGELOG.md does not say so")
    folder, failed = measurements(), []
    record = recorded() if RECORD.exists() else {}
    updated: dict[str, dict[str, Any]] = {}
    for table in TABLES:
        today = figures(folder, table)
        failed += worse(today, record, table)
        for name, errors in today.items():
            before = record.get(name, {})
            print(name, *(f"{figure} {before.get(figure)} -> {value}" for figure, value in errors.items()), sep="; ")
            rows = errors.pop("rows")
            raised = {error for error, value in errors.items() if value > before.get(error, value) * WORSE}
            raised |= {"rows"} if rows < before.get("rows", rows) else set()
            changed = bool(options.because and raised)
            kept = {e: v if changed else min(v, before.get(e, v)) for e, v in errors.items()}
            kept["rows"] = rows if changed else max(rows, before.get("rows", rows))
            reason = options.because if raised else before.get("because", "")
            updated[name] = {**kept, **({"because": reason} if reason else {})}
    if options.write:
        head = "# Errors on record, by source of the measurements; benchmarks/gate.py compares with them and writes them.\n"
        RECORD.write_text(head + yaml.safe_dump(updated, sort_keys=True, width=150), encoding="utf-8")
        return 0
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

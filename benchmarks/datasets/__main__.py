"""Convert published tables: ``python -m benchmarks.datasets convert TABLE.csv -o rows.csv``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.datasets.convert import convert
from benchmarks.datasets.published import DATASETS
from planner.core.errors import PlannerError

_MOST_SHOWN = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0: done, 1: no row could be read, 2: the table cannot be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert", help="write canonical rows of a published table")
    one.add_argument("table", type=Path, help="CSV file")
    one.add_argument("-o", "--output", type=Path, help="CSV file to write (default: standard output)")
    commands.add_parser("list", help="published tables that have a converter of their own")
    given = parser.parse_args(arguments)
    if given.command == "list":
        for known in DATASETS:
            print(f"{known.name:24} {known.doc}")
        return 0
    try:
        found = convert(given.table)
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    for problem in found.refused[:_MOST_SHOWN]:
        print(problem, file=sys.stderr)
    if found.refused:
        print(f"{len(found.refused):,} rows refused, {len(found.rows):,} converted", file=sys.stderr)
    if found.unread:
        print(f"columns not read: {', '.join(found.unread)}", file=sys.stderr)
    if not found.rows:
        return 1
    text = found.frame().to_csv(index=False, lineterminator="\n")
    if given.output is None:
        sys.stdout.write(text)
    else:
        given.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

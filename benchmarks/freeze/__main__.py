"""Command line of the freeze: ``record`` and ``compare``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.freeze import FREEZE_COMMIT
from benchmarks.freeze.compare import compare, read_allowed, report
from benchmarks.freeze.record import record

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freeze", description=f"The freeze is {FREEZE_COMMIT}.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record what a tree answers")
    recording.add_argument("folder", type=Path, help="where the record is written")
    recording.add_argument("--tree", type=Path, default=ROOT, help="the tree that answers (default: this one)")
    recording.add_argument("--only", default="", metavar="TEXT", help="only jobs with this in their name")
    recording.add_argument("--processes", type=int, default=2, help="worker processes (default: 2)")
    recording.add_argument("--resume", action="store_true", help="leave out the jobs that DIR already has")
    recording.add_argument(
        "--adapter", type=Path, help="an adapter.py for a tree that has none (default: the tree's, else this one)"
    )
    comparing = commands.add_parser("compare", help="list what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--allow", type=Path, metavar="FILE", help="differences that are expected, with their reasons"
    )
    comparing.add_argument("--examples", type=int, default=2, help="examples of each kind of difference (default: 2)")
    comparing.add_argument("--only", default="", metavar="TEXT", help="only jobs with this in their name")
    given = parser.parse_args()
    if given.command == "record":
        return record(
            given.folder,
            given.tree,
            only=given.only,
            processes=given.processes,
            resume=given.resume,
            adapter=given.adapter,
        )
    allowed = read_allowed(given.allow) if given.allow else []
    text, unexpected = report(compare(given.before, given.after, given.only), allowed, examples=given.examples)
    print(text)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())

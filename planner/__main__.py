"""Entry point of the command line: ``planner`` and ``python -m planner``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    # Looking for plugins of pydantic reads the metadata of every installed package; none is wanted here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from planner.cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()

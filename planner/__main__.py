"""Entry point of the command line: ``planner`` and ``python -m planner``."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

# Objects that are made before the garbage collector looks for cycles among them. What a search allocates lives until it ends, so that
# looking finds nothing and takes a twelfth of a small search; mypy collects as rarely.
_COLLECTED_OBJECTS = 200_000


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


def _is_watched() -> bool:
    """Whether a profiler, a debugger or coverage runs, which has something to say at the end."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [] if monitoring is None else [monitoring.get_tool(number) for number in range(6)]
    return sys.gettrace() is not None or sys.getprofile() is not None or any(tools)


def start() -> NoReturn:
    """Be the program: run the command line, and leave without freeing every object one by one.

    Taking down the interpreter takes a tenth of a small search, and the process ends anyway (mypy leaves in the same way). Whatever is
    registered for the exit still runs. Together with rare collections: 1.0 s of CPU instead of 1.2 s for ``optimize alexnet --gpus 8``,
    1.45 s instead of 1.8 s for ``optimize llama3-8b --gpus 16``.
    """
    code: str | int | None = 70
    gc.set_threshold(_COLLECTED_OBJECTS)
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    if _is_watched():
        sys.exit(code)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads any more
        pass
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    start()

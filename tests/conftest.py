"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# Where byte code is not to lie beside the sources, the many processes that tests start, those of xdist first, share a folder of it: each
# would compile all that it loads.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(REPOSITORY / ".pytest_cache" / "bytecode"))

# A job that a shell starts in the background ignores Ctrl-C, and so would all its children; tests of Ctrl-C need it heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# As the program itself (`planner.__main__`): looking for garbage among all collected tests, again and again, takes a tenth of the suite.
gc.set_threshold(50_000)


def pytest_collection_finish() -> None:
    """What was made up to here lives until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published reference data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("PLANNER_REFERENCE_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "paleo").is_dir():
        pytest.skip(f"reference data not found at {folder} (set PLANNER_REFERENCE_DATA)")
    return folder

"""What stands in for a search in other processes, where some cells take their process with them; and the keys of a journal."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keys_of(journal: Path) -> list[str]:
    """Keys of the rows of a journal, also while a sweep writes to it."""
    if not journal.exists():
        return []
    database = sqlite3.connect(f"file:{journal}?immutable=1", uri=True)
    try:
        return [key for (key,) in database.execute("SELECT key FROM rows ORDER BY rowid")]
    except sqlite3.Error:  # it is being written
        return []
    finally:
        database.close()


def deadly(question: Mapping[str, Any]) -> dict[str, Any]:
    """Die for 3 GPUs always, for 5 the first time; answer the others, noting each call."""
    gpus = int(question["gpus"])
    folder = Path(str(question["device"]))
    calls = folder / str(gpus)
    first = not calls.exists()
    with calls.open("a", encoding="utf-8") as stream:
        stream.write("x")
    time.sleep(0.05)
    if gpus == 3 or (gpus == 5 and first):
        os._exit(9)
    return {"gpus": gpus, "status": "ok"}

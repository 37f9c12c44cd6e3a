"""What stands in for a search in other processes: some cells take their process with them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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

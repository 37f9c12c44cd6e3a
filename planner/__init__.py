"""An optimizing planner for distributed deep learning: command line, files and reports.

What Python programs use is imported on first use, so that ``import planner`` stays quick.

Examples
--------
>>> import planner
>>> "from_torch" in dir(planner)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.importers.torch_module import from_torch

__all__ = ["__version__", "from_torch"]

__version__ = "0.1.0"

# Name -> module that has it.
_LAZY = {"from_torch": "planner.importers.torch_module"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'planner' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

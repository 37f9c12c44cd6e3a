"""The one place that imports PyTorch, which is an extra: everything else gets the module handed in."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from planner.core.errors import UsageError

__all__ = ["load_torch"]


def load_torch() -> Any:
    """PyTorch.

    Raises
    ------
    UsageError
        It is not installed, or cannot be loaded; the message names the extra.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about NumPy, which it does not need here
            torch = importlib.import_module("torch")
            importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torch.distributed"):
            raise UsageError(f"PyTorch cannot be loaded: it lacks the module {error.name}") from None
        raise UsageError(
            "planner measure needs PyTorch, which is not installed; install the extra 'torch': pip install 'paleo-planner[torch]'"
        ) from None
    except (ImportError, OSError) as error:  # a library of CUDA that is missing or of another version
        raise UsageError(f"PyTorch cannot be loaded: {str(error).splitlines()[0][:300]}") from None
    return torch

"""Readers of what people run today: launch arguments and configurations of trainers, as options of ``planner estimate``.

Files are read as text: nothing in them is ever executed. To add a reader, write a module with `TITLE` and `read` and list it in `RUNS`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from planner.core.errors import FileProblem, InputFileError, UnknownName

__all__ = ["RUNS", "Run", "RunReader", "problem", "read_run", "text_of_file"]

# Trainer -> module, imported on first use.
RUNS: dict[str, str] = {
    "megatron": "planner.importers.runs.megatron",
    "deepspeed": "planner.importers.runs.deepspeed",
    "accelerate": "planner.importers.runs.accelerate",
}
# Larger than any launch script or configuration.
_MOST_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class Run:
    """A run in words of the command line.

    Attributes
    ----------
    options : dict
        Parameter of ``planner estimate`` -> word: gpus, batch, seq, precision, optimizer.
    mesh : dict
        Option of a mesh plan (`planner.commands.mesh_options`) -> word, or flag.
    notes : list of str
        What was read otherwise than it is written, or has no counterpart.
    stages : str
        Blocks of every chunk of a pipeline, or "equal"; empty where the file does not say.
    network : dict
        Flag -> (size of `planner.importers.runs.networks`, number): what the file states of its network.
    """

    options: dict[str, str] = field(default_factory=dict)
    mesh: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stages: str = ""
    network: dict[str, tuple[str, int]] = field(default_factory=dict)


class RunReader(Protocol):
    """What a module of this package offers."""

    TITLE: str

    def read(self, path: Path, text: str) -> Run:
        """Read a run; raises InputFileError."""
        ...


def problem(path: Path, message: str, where: str = "") -> InputFileError:
    """One thing that makes a file unusable."""
    return InputFileError([FileProblem(path=path, where=where, message=message)])


def read_run(trainer: str, path: Path) -> Run:
    """Read what a trainer runs.

    Raises
    ------
    UnknownName
        No reader for this trainer.
    InputFileError
        The file cannot be read, or says something that cannot be.
    """
    if trainer not in RUNS:
        raise UnknownName(kind="trainer", name=trainer, known=RUNS)
    reader = cast("RunReader", importlib.import_module(RUNS[trainer]))
    return reader.read(path, text_of_file(path))


def text_of_file(path: Path) -> str:
    """Read a text file of reasonable size.

    Raises
    ------
    InputFileError
    """
    try:
        if not path.is_file():
            raise problem(path, "is a folder" if path.is_dir() else "there is no such file")
        if path.stat().st_size > _MOST_BYTES:
            raise problem(path, f"is larger than {_MOST_BYTES >> 20} MiB; launch files are smaller")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise problem(path, "is no text (UTF-8)") from None
    except InputFileError:
        raise
    except (OSError, ValueError) as error:
        raise problem(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None

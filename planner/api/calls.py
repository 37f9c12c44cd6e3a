"""A call of Python: objects as inputs, the call as text, and errors in the words of Python.

Every path of the planner starts at a file, which has places for messages and a hash for provenance. An object that came from a file is
that file; one that did not is written to a folder of the process, named by its content, and `planner.Plan.save` puts a copy beside
the plan.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.api.values import Values
from planner.core.errors import PlannerError, SearchInterrupted
from planner.files.resources import Kind, bundled

if TYPE_CHECKING:
    from planner.api.placement import Placement
    from planner.api.results import SearchResult
    from planner.api.studies import Sizing, Sweep

__all__ = ["Interrupted", "call_text", "in_python_words", "is_in_memory", "reference_to"]

_LONGEST_STEM = 64
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C (or a notebook's stop button) during a search.

    Attributes
    ----------
    result : SearchResult, Placement, Sweep, Sizing or None
        The best so far.

    Examples
    --------
    >>> import planner
    >>> def stop(what, share):  # as Ctrl-C does
    ...     raise KeyboardInterrupt
    >>> try:
    ...     planner.optimize("alexnet", gpus=4, progress=stop)
    ... except planner.Interrupted as stopped:
    ...     print(stopped)
    ...     print(stopped.result.best.workers)
    the search was stopped: .result holds the best so far
    4
    """

    def __init__(self, result: SearchResult | Placement | Sweep | Sizing | None) -> None:
        self.result = result
        super().__init__("the search was stopped" + (": .result holds the best so far" if result is not None else ""))


@contextlib.contextmanager
def in_python_words() -> Iterator[Values]:
    """Check values by the names that they have in Python, and write ``gpus`` for ``--gpus`` in the messages of other errors.

    >>> with in_python_words():
    ...     raise PlannerError("--max-tpot 3x: must be a time such as 30s; see --prompt")
    Traceback (most recent call last):
    ...
    planner.core.errors.PlannerError: max_tpot 3x: must be a time such as 30s; see prompt
    """
    try:
        yield Values(str)
    except SearchInterrupted:
        raise
    except PlannerError as error:
        message = str(error)
        # A command in quotes is for a shell, where options have dashes.
        pieces = re.split(r"('planner [^']*'|`planner [^`]*`|planner estimate with [^\n]*)", message)
        pieces[::2] = [_FLAG.sub(lambda match: match[1].replace("-", "_"), piece) for piece in pieces[::2]]
        error.args = ("".join(pieces).replace("MODEL: ", "model: "), *error.args[1:])
        raise


def reference_to(kind: Kind, given: Any) -> str:
    """Name or absolute path of what was given as a name, a path, a loaded object or the content of a file.

    Parameters
    ----------
    kind : "models", "clusters", "devices", "frameworks" or "calibrations"
    given : str, path, loaded object or mapping

    Raises
    ------
    TypeError
        None of these.

    Examples
    --------
    >>> reference_to("models", "alexnet"), reference_to("clusters", Path("dgx-h100.yaml"))
    ('alexnet', 'dgx-h100.yaml')
    """
    if isinstance(given, str):
        return _absolute(given)
    if isinstance(given, os.PathLike):
        return _absolute(os.fspath(given))
    if isinstance(given, Mapping):
        return str(_written(dict(given), str(given.get("name") or kind.removesuffix("s"))))
    path = getattr(given, "path", None)
    if not isinstance(path, Path):
        raise TypeError(f"{kind.removesuffix('s')}: must be a name, a path or a loaded object, not {given!r:.80}")
    content = getattr(given, "content", None)
    if content is not None:  # made by an importer, perhaps of no file at all
        return str(_written(content, given.name))
    known = bundled(kind)
    return path.stem if known.get(path.stem) == path else str(path.resolve())


def _absolute(text: str) -> str:
    """A file keeps its place when the program changes its folder; a bundled name stays a name."""
    path = Path(text)
    try:
        is_file = path.exists() and not (path.is_dir() and not (path / "config.json").is_file())
    except (OSError, ValueError):  # a name too long, a NUL character: the loader says so
        return text
    return str(path.resolve()) if is_file else text


def is_in_memory(text: str) -> bool:
    """Whether a path is that of an object that was never a file of the user's."""
    return _folder.cache_info().currsize > 0 and _folder() in Path(text).parents


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="planner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder.resolve()


def _written(content: Mapping[str, Any], name: str) -> Path:
    from planner.files.yaml_text import yaml_text

    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()[:16]
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:_LONGEST_STEM].strip(".") or "object"
    path = _folder() / digest / f"{stem}.yaml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml_text(content, ""), encoding="utf-8", newline="\n")
    return path


def call_text(function: str, positional: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A call as Python writes it, for the provenance of plans; objects by their names.

    >>> call_text("optimize", ["alexnet"], {"gpus": 16, "tp": None})
    "planner.optimize('alexnet', gpus=16)"
    """
    words = [_shown(value) for value in positional]
    words += [f"{name}={_shown(value)}" for name, value in options.items() if value is not None]
    return f"planner.{function}({', '.join(words)})"


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, range, list, tuple)):
        return f"{value!r:.200}"
    name = getattr(value, "name", None)
    return f"<{name}>" if isinstance(name, str) else f"<{type(value).__name__}>"

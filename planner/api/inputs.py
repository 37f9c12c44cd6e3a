"""Objects as inputs: networks, clusters and devices that live in memory become files for the time of the process.

Every path of the planner starts at a file, which has places for messages and a hash for provenance. An object that came from a file is
that file; one that did not is written to a folder of the process, named by its content, and `planner.Plan.save` puts a copy beside
the plan.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.files.resources import Kind, bundled

__all__ = ["is_in_memory", "reference_to"]

_LONGEST_STEM = 64


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

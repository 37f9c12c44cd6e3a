"""Framework files: by path, bundled name or alias."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from costmodel.framework import Framework
from planner.files.loading import load_document
from planner.files.resources import bundled, resolve

__all__ = ["LoadedFramework", "framework_aliases", "framework_names", "load_framework"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFramework:
    """A framework and the file it comes from; ``title``: its name for people."""

    framework: Framework
    title: str
    description: str
    path: Path
    sha256: str


def load_framework(text: str) -> LoadedFramework:
    """Load a framework by path, bundled name or alias.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> load_framework("nemo").framework.name
    'megatron-bridge'
    """
    from planner.schema.framework import FrameworkFile

    path = resolve("frameworks", text)
    loaded = load_document(path, FrameworkFile)
    content = loaded.content
    return LoadedFramework(
        framework=content.to_domain(),
        title=content.title,
        description=content.description,
        path=path,
        sha256=loaded.document.sha256,
    )


@cache
def framework_aliases() -> dict[str, str]:
    """Other name of a bundled framework -> its name.

    >>> framework_aliases()["maxtext"]
    'jax'
    """
    from planner.files.documents import parse_document

    found: dict[str, str] = {}
    for name, path in bundled("frameworks").items():
        found |= {str(alias): name for alias in parse_document(path).value.get("aliases", ())}
    return found


def framework_names() -> list[str]:
    """Names and aliases of the bundled frameworks, for completion."""
    return sorted({*bundled("frameworks"), *framework_aliases()})

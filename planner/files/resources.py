"""Finds the bundled models, devices, clusters and calibrations in a checkout, an editable install and a wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from planner.errors import FileProblem, InputFileError, UnknownName

__all__ = ["KINDS", "Kind", "bundled", "config_folder", "resolve"]

Kind = Literal["models", "devices", "clusters", "calibrations"]
KINDS: tuple[Kind, ...] = ("models", "devices", "clusters", "calibrations")
_FOLDERS = {"calibrations": "calibration"}  # a kind is its folder's name unless it stands here

_SUFFIXES = (".yaml", ".yml")
# Other names that people use for bundled files; lists show the names on the right only.
_ALIASES: dict[str, dict[str, str]] = {
    "clusters": {"dgx-v100": "dgx1-v100", "dgx-p100": "dgx1-p100", "dgx1": "dgx1-v100"}
}


@cache
def config_folder() -> Path:
    """Folder of the bundled files: ``configs`` beside the package (checkout, editable install) or inside it (wheel).

    Raises
    ------
    FileNotFoundError
        The installation is incomplete.
    """
    package = Path(__file__).resolve().parent.parent
    # In a wheel the neighbour of the package is site-packages, where a folder "configs" would be someone else's.
    for folder in (package / "_configs", package.parent / "configs"):
        if all((folder / kind).is_dir() for kind in ("models", "devices")):
            return folder
    raise FileNotFoundError(f"the planner's bundled configs are missing beside {package}; install it again")


@cache
def bundled(kind: Kind) -> dict[str, Path]:
    """Bundled files of a kind by name, sorted.

    Examples
    --------
    >>> bundled("models")["alexnet"].name
    'alexnet.yaml'
    """
    folder = config_folder() / _FOLDERS.get(kind, kind)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder.is_dir() else {}


def resolve(kind: Kind, text: str) -> Path:
    """Turn what the user typed into a file: a path that exists, else a bundled name with or without its suffix.

    Parameters
    ----------
    kind : "models", "devices", "clusters" or "calibrations"
    text : str

    Returns
    -------
    Path

    Raises
    ------
    InputFileError
        It is written as a path (it has a folder) and there is no such file.
    UnknownName
        Neither a file nor a bundled name; the nearest name is suggested.

    Examples
    --------
    >>> resolve("clusters", "dgx-v100").name  # an alias
    'dgx1-v100.yaml'
    >>> resolve("models", "alexnet") == resolve("models", "alexnet.yaml") == bundled("models")["alexnet"]
    True
    """
    path = Path(text)
    known = bundled(kind)
    name = path.stem if path.suffix in _SUFFIXES else path.name
    is_bare = path.name == text
    if text and _exists(path) and not (is_bare and path.is_dir() and name in known):
        return path
    name = _ALIASES.get(kind, {}).get(name, name)
    if is_bare and name in known:
        return known[name]
    singular = kind.removesuffix("s")
    if not is_bare:
        raise InputFileError([FileProblem(path=path, message=f"no such {singular} file")])
    raise UnknownName(
        kind=singular, name=text, known=known, hint=f"'planner list {kind}' shows them, and a path to a file works too"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # name too long, forbidden folder, NUL character
        return False

"""Finds the bundled models, devices, clusters, frameworks, calibrations and failures in a checkout, an editable install and a wheel."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.core.errors import FileProblem, InputFileError, UnknownName

if TYPE_CHECKING:
    from planner.files.documents import Document

Kind = Literal["models", "devices", "clusters", "frameworks", "calibrations", "failures"]
KINDS: tuple[Kind, ...] = ("models", "devices", "clusters", "frameworks", "calibrations", "failures")

_SUFFIXES = (".yaml", ".yml")
_FILES = (*_SUFFIXES, ".json", ".onnx", ".pt2", ".pt")
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
    folder = config_folder() / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder.is_dir() else {}


def resolve(kind: Kind, text: str) -> Path:
    """Turn what the user typed into a file: a path that exists, else a bundled name with or without its suffix.

    A model or device may be named as others name it ("meta-llama/Meta-Llama-3-8B", "NVIDIA A100-SXM4-80GB"), where that means one bundled
    file and nothing else. A device's name means its usual cluster where a cluster is asked for.

    Parameters
    ----------
    kind : "models", "devices", "clusters", "frameworks", "calibrations" or "failures"
    text : str

    Returns
    -------
    Path

    Raises
    ------
    InputFileError
        It is written as a path (it has a folder) and there is no such file.
    UnknownName
        Neither a file nor a bundled name; the nearest name is suggested. Or a name of several bundled devices, which are listed.

    Examples
    --------
    >>> resolve("clusters", "dgx-v100").name  # an alias
    'dgx1-v100.yaml'
    >>> resolve("devices", "Tesla V100-SXM2-32GB").name, resolve("models", "meta-llama/Llama-2-7b-hf").name
    ('v100-32gb.yaml', 'llama2-7b.yaml')
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
    meant, several = _meant(kind, text) if path.suffix not in _SUFFIXES else (None, ())
    if meant is not None:
        return known[meant]
    if not is_bare:
        raise InputFileError([FileProblem(path=path, message=f"no such {singular} file{_nearest(kind, text)}")])
    if kind == "frameworks":
        from planner.files.loading import framework_aliases

        known = known | dict.fromkeys(framework_aliases(), path)
    raise UnknownName(
        kind=singular,
        name=text,
        known=known,
        hint=f"'planner list {kind}' shows them, and a path to a file works too",
        meant=several,
        unlisted=_words_of_devices() if kind == "clusters" else (),
    )


class InMemory(str):
    """Content that a program gave in place of a name; the text is what messages call it.

    Examples
    --------
    >>> given = InMemory("the argument model", {"name": "net"})
    >>> str(given.document.problem(("layers",), "is missing"))
    'the argument model: is missing'
    """

    document: Document

    def __new__(cls, words: str, content: Mapping[str, Any]) -> InMemory:
        """Take the content as a file would hold it: its values are those of YAML, and its hash is that of the file."""
        from planner.files.documents import document_of, parse_text
        from planner.files.yaml_text import yaml_text

        text, path = yaml_text(content), Path(words)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        given = super().__new__(cls, words)
        given.document = document_of(path, sha256, parse_text(path, text, sha256).value)
        return given

    def __getnewargs__(self) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        return str(self), self.document.value


def reference_to(kind: Kind, given: Any, place: str = "") -> str:
    """Name or absolute path of what was given as a name, a path or a loaded object; what never was a file, with its content.

    Parameters
    ----------
    kind : "models", "clusters", "devices", "frameworks" or "calibrations"
    given : str, path, loaded object or mapping
    place : str
        Where it stands in the argument, as in ``[1]``.

    Raises
    ------
    TypeError
        None of these.

    Examples
    --------
    >>> reference_to("models", "alexnet"), reference_to("clusters", Path("dgx-h100.yaml"))
    ('alexnet', 'dgx-h100.yaml')
    >>> reference_to("clusters", {"name": "mine"}, "[1]")
    'the argument cluster[1]'
    """
    argument = kind.removesuffix("s")
    if isinstance(given, InMemory):
        return given
    content = given if isinstance(given, Mapping) else getattr(given, "content", None)
    if content is not None:  # an importer's may be of no file at all
        return InMemory(f"the argument {argument}{place}", content)
    if not isinstance(given, (str, os.PathLike)):
        path = getattr(given, "path", None)
        if not isinstance(path, Path):
            raise TypeError(f"{argument}: must be a name, a path or a loaded object, not {given!r:.80}")
        return path.stem if bundled(kind).get(path.stem) == path else str(path.resolve())
    # A file keeps its place when the program changes its folder; a bundled name stays a name.
    text = os.fspath(given)
    path = Path(text)
    try:
        is_file = path.exists() and not (path.is_dir() and not (path / "config.json").is_file())
    except (OSError, ValueError):  # a name too long, a NUL character: the loader says so
        return text
    return str(path.resolve()) if is_file else text


def bundled_name(kind: Kind, text: str) -> str | None:
    """Name of the bundled file that a text means, whatever files there are; None where it means none, or several.

    >>> bundled_name("devices", "Tesla V100-SXM2-32GB"), bundled_name("clusters", "dgx-v100"), bundled_name("models", "abacus")
    ('v100-32gb', 'dgx1-v100', None)
    """
    known = bundled(kind)
    name = text.removesuffix(".yaml").removesuffix(".yml")
    name = _ALIASES.get(kind, {}).get(name, name)
    return name if name in known else _meant(kind, text)[0]


def _meant(kind: Kind, text: str) -> tuple[str | None, tuple[str, ...]]:
    """The bundled file that people call so, or those that it leaves open."""
    if kind == "models" and text.count("/") <= 1 and not text.startswith((".", "/", "~")):
        from planner.files.naming.models import named_model

        return named_model(text), ()
    if kind == "devices" and "/" not in text:
        from planner.files.naming.devices import named_device

        return named_device(text)
    if kind == "frameworks":
        from planner.files.naming.frameworks import framework_named

        return framework_named(text), ()
    same = re.sub(r"[^a-z0-9]", "", text.lower())
    names = {re.sub(r"[^a-z0-9]", "", name): name for name in bundled(kind)} if "/" not in text else {}
    if kind == "clusters" and same not in names and (stood := stands_for(text)) is not None:
        return stood[0], ()
    return names.get(same), ()


def _words_of_devices() -> list[str]:
    """Names of devices that stand for clusters, and their beginnings ("h100")."""
    words = dict.fromkeys(word for name in bundled("devices") for word in (name, name.partition("-")[0]))
    return [word for word in words if stands_for(word) is not None]


def cluster_aliases(name: str) -> list[str]:
    """Other names of a bundled cluster, beside those of devices.

    >>> cluster_aliases("dgx1-v100")
    ['dgx-v100', 'dgx1']
    """
    return [alias for alias, meant in _ALIASES["clusters"].items() if meant == name]


def stands_for(text: str) -> tuple[str, tuple[str, ...]] | None:
    """What the name of a device means where a cluster is asked for (`cluster_of_device`); None where it is a cluster's, or a file's.

    >>> stands_for("b200"), stands_for("dgx-b200")
    (('dgx-b200', ('b200',)), None)
    """
    bare = text.removesuffix(".yaml").removesuffix(".yml")
    is_own = (
        not text
        or isinstance(text, InMemory)
        or bare != text
        or bare in bundled("clusters")
        or bare in _ALIASES["clusters"]
    )
    if is_own or "/" in text or _exists(Path(text)):
        return None
    from planner.files.naming.devices import cluster_of_device

    return cluster_of_device(text)


def _nearest(kind: Kind, text: str) -> str:
    """End of a sentence about a file that is not there, where its path looks like a name of Hugging Face."""
    organisation, _, name = text.partition("/")
    if kind != "models" or "/" in name or organisation in (".", "..", "~", "") or Path(name).suffix in _FILES:
        return ""
    from planner.files.naming.models import nearest_models

    return nearest_models(name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # name too long, forbidden folder, NUL character
        return False


def is_plan_file(text: str) -> bool:
    """Whether a name is that of a file that looks like a plan: it says how many workers it uses.

    >>> is_plan_file("alexnet")
    False
    """
    path = Path(text)
    if path.suffix.lower() not in (".yaml", ".yml") or not path.is_file():
        return False
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # whoever reads it as a network says what is wrong
    return re.search(r"^workers *: *[0-9]", content, re.MULTILINE) is not None

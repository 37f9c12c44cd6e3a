"""Importers that write network files: what they return, and how their content passes through the loader."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from planner.core.errors import InputFileError
from planner.files.documents import Document, Node, parse_document
from planner.files.text import read_text

if TYPE_CHECKING:
    from planner.files.loading import LoadedModel

__all__ = ["DocumentImporter", "ImportedDocument", "document_of", "network_document_of", "text_of"]

# Modules, imported on first use.
_IMPORTERS: tuple[str, ...] = ("planner.importers.hugging_face",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDocument:
    """A network file made of another program's file.

    Attributes
    ----------
    content : mapping
        As a YAML network file holds it.
    notes : tuple of str
        What the file does not say and was filled in.
    """

    content: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class DocumentImporter(Protocol):
    """What a module offers that makes network files."""

    FORMAT: str  # for messages

    def detect(self, content: object) -> bool:
        """Whether the content of a file (already parsed JSON) looks like this format."""
        ...

    def convert(self, document: Document) -> ImportedDocument:
        """Make a network file; raises InputFileError with every problem."""
        ...


def network_document_of(path: Path) -> tuple[Document, ImportedDocument] | None:
    """Make a network file of another program's JSON file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    document, imported
        The network file that is made of it, without places and with the hash of the file itself. None where it is not JSON, or
        of no format of these importers: the next reader says so.

    Raises
    ------
    InputFileError
        It cannot be read, or is of such a format and has faults.
    """
    text, sha256 = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for name in _IMPORTERS:
        module = cast("DocumentImporter", importlib.import_module(name))
        if module.detect(content):
            imported = module.convert(_with_places(path, sha256, content))
            return document_of(path, sha256, imported.content), imported
    return None


def text_of(model: LoadedModel) -> str:
    """Write a network that was read from another program's file as a network file, with what was filled in as comments."""
    if model.content is None:
        from planner.files.network_file import network_text

        return network_text(model)
    from planner.report.yaml_text import yaml_text

    return yaml_text(model.content, "\n".join(model.notes))


def _with_places(path: Path, sha256: str, content: Any) -> Document:
    """The places of values: JSON is read as the YAML it nearly always is (not with escapes for pairs of surrogates)."""
    try:
        return parse_document(path, keep_faults=True)
    except InputFileError:
        return document_of(path, sha256, content)


def document_of(path: Path, sha256: str, content: Any) -> Document:
    """Make a document of plain values, which stand nowhere in the file.

    Examples
    --------
    >>> document = document_of(Path("a.json"), "", {"layers": [{"name": "fc"}]})
    >>> str(document.problem(("layers", 0, "name"), "is taken"))
    'a.json: layers[0].name: is taken'
    """
    return Document(path=path, sha256=sha256, root=_node(content))


def _node(value: Any) -> Node:
    children: dict[str | int, Node] | None = None
    if isinstance(value, Mapping):
        children = {str(key): _node(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        children = {index: _node(item) for index, item in enumerate(value)}
    return Node(value, 0, 0, children=children)

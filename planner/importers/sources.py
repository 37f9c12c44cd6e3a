"""Files of other programs: found by their content, read into network files, which then pass through the loader.

To add a format that is no JSON, write a module with `FORMAT`, `detect` and `load` and list it in `FORMATS`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.core.errors import InputFileError, UsageError, did_you_mean
from planner.files.documents import Document, document_of, document_of_json
from planner.files.text import failure, read_text
from planner.importers.drafts import Drafts, attach, network_layers

if TYPE_CHECKING:
    from planner.files.loading import LoadedModel

_F = TypeVar("_F")


def registering(table: dict[str, _F], what: str) -> Callable[..., Callable[[_F], _F]]:
    """Make the decorator that fills a table (name -> function); what it calls the names is for whoever enters one twice.

    >>> table = {}
    >>> reads = registering(table, "operator")
    >>> @reads("relu", "gelu")
    ... def activation(operator):
    ...     return f"{operator} per element"
    >>> sorted(table), table["gelu"]("gelu")
    (['gelu', 'relu'], 'gelu per element')
    >>> _ = reads("relu")(activation)
    Traceback (most recent call last):
    ...
    AssertionError: operator 'relu' registered twice
    """

    def register(*names: str) -> Callable[[_F], _F]:
        def add(function: _F) -> _F:
            for name in names:
                assert name not in table, f"{what} {name!r} registered twice"
                table[name] = function
            return function

        return add

    return register


# -- network files made of others -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDocument:
    """A network file made of another program's file.

    Attributes
    ----------
    content : mapping
        As a YAML network file holds it.
    notes : tuple of str
        What the file does not say and was filled in.
    sha256 : str
        Hash of the file.
    """

    content: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    sha256: str = ""


def imported_document(path: Path, assume_free: frozenset[str] = frozenset()) -> tuple[Document, tuple[str, ...]] | None:
    """Make a network file of another program's file.

    Parameters
    ----------
    path : Path
    assume_free : frozenset of str
        Operators that are not known and are taken to cost nothing.

    Returns
    -------
    document, notes
        The network file that is made of it, without places and with the hash of the file itself. None where it is of none of these
        formats: the next reader says so.

    Raises
    ------
    InputFileError
        Every fault of the file.
    MissingExtra
        Its format needs a package that is not installed.
    """
    if path.suffix.lower() == ".json":
        imported = _config(path)
    else:
        entry = format_of(path)
        imported = importlib.import_module(entry.module).load(path, assume_free) if entry else None
    return (document_of(path, imported.sha256, imported.content), imported.notes) if imported else None


def _config(path: Path) -> ImportedDocument | None:
    text, sha256 = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    keys = content.keys() if isinstance(content, dict) else ()
    if "layers" in keys or not {"model_type", "architectures"}.intersection(keys):
        return None
    from planner.importers.hugging_face.config import convert

    return dataclasses.replace(convert(document_of_json(path, text, sha256, content)), sha256=sha256)


def text_of(model: LoadedModel) -> str:
    """Write a network that was read from another program's file as a network file, with what was filled in as comments."""
    if model.content is None:
        from planner.files.network_file import network_text

        return network_text(model)
    from planner.files.yaml_text import yaml_text

    return yaml_text(model.content, "\n".join(model.notes))


# -- formats that are no JSON -----------------------------------------------------------------------------------------------


# Bytes of a file that tell its format.
_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that can be read.

    Attributes
    ----------
    module : str
        Imported on first use; has ``detect(head)`` and ``load(path, assume_free)``.
    extra : str
        Optional dependencies that it needs; empty: none.
    """

    name: str
    module: str
    description: str
    files: str
    extra: str = ""


# JSON formats are told apart by `planner.files.loading`; they are here to be listed.
FORMATS: tuple[Format, ...] = (
    Format(name="paleo", module="", files="*.json", description="PALEO's networks"),
    Format(
        name="hugging_face",
        module="",
        files="config.json, or a folder with one",
        description="sizes of a transformer by its model_type",
    ),
    Format(
        name="caffe",
        module="planner.importers.caffe",
        files="*.prototxt",
        description="Caffe's networks, as trained (phase TRAIN)",
    ),
    Format(
        name="onnx",
        module="planner.importers.onnx_file",
        files="*.onnx",
        description="ONNX graphs; only shapes are read, weights need not be there",
        extra="onnx",
    ),
    Format(
        name="torch",
        module="planner.importers.torch_program",
        files="*.pt2",
        description="programs of torch.export; in Python also planner.from_torch(module, example_inputs)",
        extra="torch",
    ),
)


def format_of(path: Path) -> Format | None:
    """Find the format of a file that is neither YAML nor JSON by its first bytes; None where none fits."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return None
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return None
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except (OSError, ValueError):
        return None  # who reads it next says why
    for entry in FORMATS:
        if entry.module and importlib.import_module(entry.module).detect(head):
            return entry
    return None


def format_rows() -> list[dict[str, Any]]:
    """The formats, for ``planner list importers``."""
    return [
        {"name": entry.name, "files": entry.files, "extra": entry.extra or "none", "description": entry.description}
        for entry in FORMATS
    ]


def network_content(drafts: Drafts, *, header: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
    """Attach, fold and write layers as the content of a network file.

    Parameters
    ----------
    drafts : Drafts
    header : mapping
        ``name``, ``description``, ``source``, ``global_batch``.
    outputs : sequence of str
        Layers that are read from outside.
    """
    blocks, layers = network_layers(list(attach(drafts, outputs).values()))
    content: dict[str, Any] = {"schema_version": 1, **{key: value for key, value in header.items() if value != ""}}
    if blocks:
        content["blocks"] = blocks
    content["layers"] = layers
    return content


def counts_text(counts: Mapping[str, int]) -> str:
    """Write how often things occur: ``LSTM (2), Foo (1)``."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def check_assumed(path: Path, unknown: Counter[str], assume_free: frozenset[str]) -> None:
    """Refuse operators that are not known, but those that the user assumes to cost nothing; and assumptions about nothing.

    Raises
    ------
    InputFileError
        With how often each operator occurs.
    UsageError
        An operator is assumed free that the file does not have, or that is known.
    """
    refused = Counter({op: count for op, count in unknown.items() if op not in assume_free})
    if refused:
        raise unknown_operators(path, refused, "")
    pointless = sorted(assume_free - unknown.keys())
    if pointless:
        known = f" (not known are: {', '.join(unknown)})" if unknown else "; all of its operators are known"
        raise UsageError(
            f"--assume-free {', '.join(pointless)}: {path.name} has no such operator that is not known"
            f"{did_you_mean(pointless[0], list(unknown))}{known}"
        )


def unknown_operators(path: Path, counts: Counter[str], known: str) -> InputFileError:
    """Refuse operators that no layer describes, with how often each occurs."""
    shown = counts_text(dict(counts.most_common(40)))
    more = f", and {len(counts) - 40} more" if len(counts) > 40 else ""
    first = counts.most_common(1)[0][0]
    message = (
        f"has operators that are not known: {shown}{more}; --assume-free {first} takes one to cost nothing, which every output then "
        f"says{known}"
    )
    return failure(path, message)

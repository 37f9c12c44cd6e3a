"""Files of other programs that are no JSON: found by their first bytes, read into network files.

To add one, write a module with `FORMAT`, `detect` and `load` and list it in `FORMATS`.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from planner.core.errors import FileProblem, InputFileError, PlannerError, UsageError, did_you_mean
from planner.files.documents import Document
from planner.importers.attaching import attach
from planner.importers.documents import ImportedDocument, document_of
from planner.importers.drafts import Drafts
from planner.importers.folding import network_layers

__all__ = [
    "FORMATS",
    "ForeignNetwork",
    "Format",
    "ImportOptions",
    "MissingExtra",
    "check_assumed",
    "foreign_document_of",
    "format_of",
    "format_rows",
    "network_content",
    "unknown_operators",
]

# Bytes of a file that tell its format.
_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that can be read.

    Attributes
    ----------
    module : str
        Imported on first use.
    extra : str
        Optional dependencies that it needs; empty: none.
    """

    name: str
    module: str
    description: str
    files: str
    extra: str = ""


# JSON formats are told apart by `planner.importers.importer_of` and `planner.importers.documents`; they are here to be listed.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What the user decides about a foreign file.

    Attributes
    ----------
    assume_free : frozenset of str
        Operators that are not known and are taken to cost nothing.
    """

    assume_free: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignNetwork:
    """A network file made of a foreign file, and the hash of that file."""

    sha256: str
    imported: ImportedDocument


class _Reader(Protocol):
    FORMAT: str

    def detect(self, head: bytes) -> bool: ...

    def load(self, path: Path, options: ImportOptions) -> ForeignNetwork: ...


class MissingExtra(PlannerError):  # noqa: N818 - named after the situation
    """A format needs a package that is not installed."""

    def __init__(self, what: str, extra: str, package: str) -> None:
        super().__init__(
            f"{what} needs the package '{package}', which is not installed: pip install 'paleo-planner[{extra}]'"
        )


def format_of(path: Path) -> Format | None:
    """Find the format of a file that is neither YAML nor JSON by its first bytes; None where none fits."""
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return None
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except (OSError, ValueError):
        return None  # who reads it next says why
    for entry in FORMATS:
        if entry.module and cast("_Reader", importlib.import_module(entry.module)).detect(head):
            return entry
    return None


def foreign_document_of(path: Path, options: ImportOptions) -> tuple[Document, ImportedDocument] | None:
    """Make a network file of a foreign file; None where its format is not one of these.

    Raises
    ------
    InputFileError
        Every fault of the file.
    MissingExtra
        Its format needs a package that is not installed.
    """
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return None
    entry = format_of(path)
    if entry is None:
        return None
    network = cast("_Reader", importlib.import_module(entry.module)).load(path, options)
    return document_of(path, network.sha256, network.imported.content), network.imported


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


def check_assumed(path: Path, unknown: Counter[str], options: ImportOptions) -> None:
    """Refuse operators that are not known, but those that the user assumes to cost nothing; and assumptions about nothing.

    Raises
    ------
    InputFileError
        With how often each operator occurs.
    UsageError
        An operator is assumed free that the file does not have, or that is known.
    """
    refused = Counter({op: count for op, count in unknown.items() if op not in options.assume_free})
    if refused:
        raise unknown_operators(path, refused, "")
    pointless = sorted(options.assume_free - unknown.keys())
    if pointless:
        known = f" (not known are: {', '.join(unknown)})" if unknown else "; all of its operators are known"
        raise UsageError(
            f"--assume-free {', '.join(pointless)}: {path.name} has no such operator that is not known"
            f"{did_you_mean(pointless[0], list(unknown))}{known}"
        )


def unknown_operators(path: Path, counts: Counter[str], known: str) -> InputFileError:
    """Refuse operators that no layer describes, with how often each occurs."""
    shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common(40))
    more = f", and {len(counts) - 40} more" if len(counts) > 40 else ""
    first = counts.most_common(1)[0][0]
    message = (
        f"has operators that are not known: {shown}{more}; --assume-free {first} takes one to cost nothing, which every output then "
        f"says{known}"
    )
    return InputFileError([FileProblem(path=path, message=message)])

"""Readers of other programs' network files. To add one, write a module with `detect` and `convert` and list it here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from costmodel.graph import Graph, GraphProblem
from costmodel.layers import Layer
from planner.documents import Document, parse_document, read_json
from planner.errors import FileProblem, InputFileError
from planner.report.yaml_text import yaml_text

if TYPE_CHECKING:
    from planner.loading import LoadedModel

__all__ = ["ImportFailed", "ImportedNetwork", "Importer", "importer_of", "load_network", "network_text"]

# Modules, imported on first use.
_IMPORTERS: tuple[str, ...] = ("planner.importers.paleo_json",)

# Elements of one output, or weights of one layer: beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedNetwork:
    """A network read from another program's file.

    Attributes
    ----------
    graph : Graph
    global_batch : int
        The batch that the file states.
    description : str
        What the file calls it.
    notes : tuple of str
        What was read differently from how it is written.
    """

    graph: Graph
    global_batch: int
    description: str = ""
    notes: tuple[str, ...] = ()


class ImportFailed(ValueError):  # noqa: N818 - named after the situation
    """A file's network cannot be used; ``problems`` names every fault and the layer it is in, as that file calls it."""

    def __init__(self, problems: Sequence[GraphProblem]) -> None:
        assert problems, "an error without a problem"
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(f"{problem.layer}: {problem.message}" for problem in self.problems))


class Importer(Protocol):
    """What a module of this package offers."""

    FORMAT: str  # for messages

    def detect(self, content: object) -> bool:
        """Whether the content of a file (already parsed JSON) looks like this format."""
        ...

    def convert(self, content: Any, name: str) -> ImportedNetwork:
        """Read a network; raises ImportFailed with every problem."""
        ...

    def places(self, layer: str) -> tuple[tuple[str, ...], ...]:
        """Locations in the file where a layer of this name may be written, the most likely first."""
        ...


def importer_of(content: object) -> Importer | None:
    """Find the reader of a file's content.

    Parameters
    ----------
    content : object
        Parsed JSON.

    Returns
    -------
    Importer or None
        None where no format fits.

    Examples
    --------
    >>> importer_of({"layers": {"data": {"type": "Input", "parents": [], "tensor": [1, 8, 8, 3]}}}).FORMAT
    'PALEO network (JSON)'
    """
    for name in _IMPORTERS:
        module = cast("Importer", importlib.import_module(name))
        if module.detect(content):
            return module
    return None


def load_network(path: Path) -> LoadedModel:
    """Read another program's network file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    LoadedModel

    Raises
    ------
    InputFileError
        It cannot be read, is in no known format, or its network cannot be used: every problem, with its place.
    """
    from planner.loading import LoadedModel  # noqa: PLC0415 - that module imports this package

    content, sha256 = read_json(path)
    importer = importer_of(content)
    if importer is None:
        known = ", ".join(cast("Importer", importlib.import_module(name)).FORMAT for name in _IMPORTERS)
        raise InputFileError([FileProblem(path=path, message=f"is not a network in a known format (known: {known})")])
    try:
        network = importer.convert(content, path.stem)
        _check_sizes(network.graph)
    except ImportFailed as error:
        raise InputFileError(_with_places(path, importer, error)) from None
    return LoadedModel(
        graph=network.graph,
        global_batch=network.global_batch,
        name=path.stem,
        path=path,
        sha256=sha256,
        description=network.description,
        source=f"{importer.FORMAT} {path.name}",
        notes=network.notes,
    )


def network_text(path: Path) -> str:
    """Write another program's network as a network file of this one.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
        YAML.

    Raises
    ------
    InputFileError
        See `load_network`.
    """
    model = load_network(path)
    header: dict[str, Any] = {"schema_version": 1, "name": model.name}
    if model.description:
        header["description"] = model.description
    header |= {"source": model.source, "global_batch": model.global_batch}
    layers, previous = [], None
    for layer in model.graph.layers:
        layers.append(_entry(layer, previous))
        previous = layer.name
    return yaml_text({**header, "layers": layers}, "\n".join(model.notes))


def _entry(layer: Layer, previous: str | None) -> dict[str, Any]:
    """A layer as a network file writes it: without what is the default."""
    entry: dict[str, Any] = {"name": layer.name, "type": layer.kind}
    if layer.inputs and layer.inputs != (previous,):
        entry["inputs"] = layer.inputs[0] if len(layer.inputs) == 1 else list(layer.inputs)
    for field in dataclasses.fields(layer.params):
        value = getattr(layer.params, field.name)
        if value == field.default:
            continue
        if isinstance(value, tuple):
            square = field.name in ("kernel", "stride", "padding") and len(set(value)) == 1
            value = value[0] if square else list(value)
            if value == field.default:
                continue
        entry[field.name] = value
    return entry


def _check_sizes(graph: Graph) -> None:
    problems = []
    for layer in graph.layers:
        for what, count in (("outputs per sample", layer.output_elements), ("weights", layer.weight_count)):
            if not 0 <= count <= _MAX_ELEMENTS:
                problems.append(GraphProblem(layer.name, f"has more than 2**53 {what}"))
    if problems:
        raise ImportFailed(problems)


def _with_places(path: Path, importer: Importer, error: ImportFailed) -> list[FileProblem]:
    """Give every problem the line of its layer. JSON is read again as YAML, which knows lines; where that fails, without."""
    try:
        document: Document | None = parse_document(path)
    except InputFileError:
        document = None
    problems = []
    for problem in error.problems:
        place: tuple[str, ...] = ()
        if document is not None:
            candidates = (*importer.places(problem.layer), (problem.layer,))
            place = next((c for c in candidates if not document.find(c)[2]), ())
        if document is not None and place:
            problems.append(document.problem(place, problem.message, at_key=True, where=problem.layer))
        else:
            problems.append(FileProblem(path=path, where=problem.layer, message=problem.message))
    return problems

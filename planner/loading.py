"""Loads the files that people write: networks, devices and clusters, by path or by bundled name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from costmodel.graph import Graph, GraphError
from planner.documents import Document, parse_document
from planner.errors import FileProblem, InputFileError
from planner.resources import resolve
from planner.validation import validate

if TYPE_CHECKING:
    from pydantic import BaseModel

    from planner.expansion import Expansion

__all__ = ["Loaded", "LoadedModel", "load_document", "load_model"]

_Model = TypeVar("_Model", bound="BaseModel")

# Elements of one output per sample: beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[_Model]):
    """A checked file and the places of its values, for errors that are found later."""

    content: _Model
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A network ready for planning."""

    graph: Graph
    global_batch: int  # usual samples per training step, all workers together
    name: str
    path: Path
    sha256: str
    description: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


def load_document(path: Path, model: type[_Model]) -> Loaded[_Model]:
    """Read a YAML file and check it against a pydantic model.

    Parameters
    ----------
    path : Path
    model : type of pydantic model

    Returns
    -------
    Loaded
        ``content`` is an instance of the model.

    Raises
    ------
    InputFileError
        Every problem of the file, with line and column.
    """
    document = parse_document(path)
    return Loaded(content=validate(model, document), document=document)


def load_model(text: str) -> LoadedModel:
    """Load a network.

    Parameters
    ----------
    text : str
        Path of a network file (YAML, or PALEO's JSON), or a bundled name with or without its suffix.

    Returns
    -------
    LoadedModel

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> load_model("alexnet").graph.weight_count
    50303912
    """
    path = resolve("models", text)
    if path.suffix.lower() == ".json":
        return _load_json(path)
    from planner.expansion import expand  # noqa: PLC0415 - making the schema takes time that other files need not
    from planner.schema.model import NetworkFile  # noqa: PLC0415 - same

    loaded = load_document(path, NetworkFile)
    network, document = loaded.content, loaded.document
    expansion = expand(network, document)
    try:
        graph = Graph.build(network.name, expansion.specs)
    except GraphError as error:
        raise InputFileError(_graph_problems(error, expansion, document)) from None
    _check_extents(graph, expansion, document)
    return LoadedModel(
        graph=graph,
        global_batch=network.global_batch,
        name=network.name,
        path=path,
        sha256=document.sha256,
        description=network.description,
        source=network.source,
    )


def _graph_problems(error: GraphError, expansion: Expansion, document: Document) -> list[FileProblem]:
    """Give each problem the line of its layer; copies of a block's layer with the same problem are counted, not repeated."""
    inputs = {spec.name: spec.inputs for spec in expansion.specs}
    first: dict[tuple[Any, str], str] = {}
    copies: dict[tuple[Any, str], int] = {}
    for problem in error.problems:
        key = (expansion.origins.get(problem.layer, ("layers",)), problem.message)
        first.setdefault(key, problem.layer)
        copies[key] = copies.get(key, -1) + 1
    problems = []
    for (location, message), layer in first.items():
        sources = f" (inputs: {', '.join(inputs[layer])})" if inputs.get(layer) and "input" in message else ""
        more = f"; so do {copies[location, message]} more copies of this layer" if copies[location, message] else ""
        problems.append(document.problem(location, f"{message}{sources}{more}", where=layer))
    return problems


def _check_extents(graph: Graph, expansion: Expansion, document: Document) -> None:
    """Refuse layers whose sizes are typing errors: their products would no longer be exact."""
    for layer in graph.layers:
        for what, count in (("outputs", math.prod(layer.output_shape)), ("weights", layer.weight_count)):
            if count > _MAX_ELEMENTS:
                message = f"has {count:.3g} {what} per {'sample' if what == 'outputs' else 'copy'}; more than 2**53 is an error"
                raise InputFileError([document.problem(expansion.origins[layer.name], message, where=layer.name)])

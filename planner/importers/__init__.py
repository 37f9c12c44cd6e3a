"""Readers of other programs' network files. To add one, write a module with `detect` and `convert` and list it here.

Those here make graphs; readers that make network files, with blocks and repetitions, are listed in `planner.importers.documents`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from costmodel.network.graph import Graph, GraphProblem
from costmodel.network.layers import Layer
from planner.core.errors import FileProblem, InputFileError
from planner.report.yaml_text import yaml_text

__all__ = ["ImportFailed", "ImportedNetwork", "Importer", "importer_of", "network_text"]

# What a network file takes for a name (planner.schema.common).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/@+-]{0,63}")
# Modules, imported on first use.
_IMPORTERS: tuple[str, ...] = ("planner.importers.paleo_json",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedNetwork:
    """A network read from another program's file.

    Attributes
    ----------
    graph : Graph
    global_batch : int
        The batch that the file states.
    notes : tuple of str
        What was read differently from how it is written.
    """

    graph: Graph
    global_batch: int
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

    def convert(self, content: Any) -> ImportedNetwork:
        """Read a network; raises ImportFailed with every problem."""
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


def network_text(path: Path) -> str:
    """Write another program's network as a network file of this one.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
        YAML, with what was read differently as comments.

    Raises
    ------
    PlannerError
        The file cannot be loaded (see `planner.files.loading.load_model`), or has a layer whose name a network file cannot have.
    """
    from planner.files.loading import load_model

    model = load_model(str(path))
    if model.content is not None:
        from planner.importers.documents import text_of

        return text_of(model)
    problems = [
        FileProblem(path=path, where=layer.name, message="a layer of a network file cannot have this name")
        for layer in model.graph.layers
        if not _NAME.fullmatch(layer.name)
    ]
    if problems:
        raise InputFileError(problems)
    name = re.sub(r"[^A-Za-z0-9_/@+-]", "-", model.name)[:64].lstrip("-/@+") or "network"
    header: dict[str, Any] = {"schema_version": 1, "name": name}
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
        entry[field.name] = list(value) if isinstance(value, tuple) else value
    return entry

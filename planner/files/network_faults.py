"""What is wrong with a network whose file could be read: in words, and where in the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.network.graph import Graph, GraphError, GraphProblem
from planner.core.errors import FileProblem, InputFileError
from planner.files.documents import Document, Location
from planner.files.json_file import JsonFile

if TYPE_CHECKING:
    from planner.files.expansion import Expansion
    from planner.schema.model import NetworkFile

__all__ = ["check_extents", "graph_problems", "has_own_length", "json_problems", "no_seq", "wrong_seq"]

# Elements of one output per sample: beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53


def no_seq(name: str) -> str:
    """The network cannot be given a length."""
    return f"network '{name}' has no sequence length to change (its file has no key 'seq')"


def has_own_length(network: NetworkFile, document: Document) -> bool:
    """Whether a network is right at the length that its file states, so that another length is to blame."""
    from planner.files.expansion import expand

    try:
        Graph.build(network.name, expand(network, document).specs)
    except GraphError:
        return False
    return True


def wrong_seq(seq: int, network: NetworkFile, error: GraphError) -> str:
    """The network cannot have the length that was asked for."""
    shown = "; ".join(f"{problem.layer}: {problem.message}" for problem in error.problems[:3])
    return f"--seq {seq}: network '{network.name}' cannot be that long (its file says {network.seq}): {shown}"


def json_problems(file: JsonFile, problems: Sequence[GraphProblem]) -> list[FileProblem]:
    """Look the places of layers up, also of those in blocks."""
    layers = file.content.get("layers") if isinstance(file.content, dict) else None
    result = []
    for problem in problems:
        block, _, inner = problem.layer.partition("/")
        is_inner = inner and not (isinstance(layers, dict) and problem.layer in layers)
        location: Location = ("layers", block, "layers", inner) if is_inner else ("layers", problem.layer)
        result.append(file.problem(location, problem.message, at_key=True, where=problem.layer))
    return result


def graph_problems(error: GraphError, expansion: Expansion, document: Document) -> list[FileProblem]:
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


def check_extents(graph: Graph, expansion: Expansion, document: Document) -> None:
    """Refuse layers whose sizes are typing errors: their products would no longer be exact."""
    for layer in graph.layers:
        for what, count in (("outputs", math.prod(layer.output_shape)), ("weights", layer.weight_count)):
            if count > _MAX_ELEMENTS:
                message = f"has {count:.3g} {what} per {'sample' if what == 'outputs' else 'copy'}; more than 2**53 is an error"
                raise InputFileError([document.problem(expansion.origins[layer.name], message, where=layer.name)])

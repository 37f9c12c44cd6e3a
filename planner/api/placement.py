"""`planner.place`: the operators of a graph on devices, optimally or with a bound."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.calls import Interrupted, given_in_python, in_python_words, takes_options
from planner.api.keywords import options_of
from planner.api.place_options import PlaceOptions
from planner.api.requests import read_options
from planner.api.shown import Answer, Reads
from planner.api.values import Values
from planner.core.errors import SearchInterrupted
from planner.files.documents import JsonFile, workload_of
from planner.files.resources import InMemory, reference_to
from planner.placement.question import BASELINES, PlaceRequest

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement(Answer):
    """Operators on devices, the objective and the bound.

    Attributes
    ----------
    raw : object
        The planner's own record of the answer.

    Examples
    --------
    >>> import planner
    >>> placed = planner.place("alexnet", cluster="dgx1-v100", devices=2)
    >>> placed.proven, placed.objective >= placed.bound
    (True, True)
    """

    raw: Any

    objective = Reads[float](
        "raw.result.objective",
        "Largest load of a device, or latency of a sample, in the unit of the workload (seconds of a network).",
    )

    bound = Reads[float]("raw.result.bound", "No placement is better.")

    proven = Reads[bool]("raw.result.proven_optimal", "Whether no placement is better than this one.")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the placement as a file (YAML) that ``planner place check`` checks."""
        from planner.files.output import write_atomically
        from planner.placement.placement_file import placement_text

        target = Path(path)
        write_atomically(target, placement_text(self.raw))
        return target

    def __repr__(self) -> str:
        proof = "proven" if self.proven else f"bound {self.bound:.6g}"
        return f"<planner.Placement: {self.objective:.6g} ({proof})>"

    def _report(self) -> Report:
        from planner.placement.report import place_report

        return place_report(self.raw)


@takes_options(PlaceOptions)
def place(
    workload: ModelLike, /, *, progress: Callable[[str, float], None] | None = None, **options: Unpack[PlaceOptions]
) -> Placement:
    """Place the operators of a graph on accelerators and CPUs, optimally or with a bound.

    Parameters
    ----------
    workload : path, mapping, or a network where ``cluster`` is given
        An operator graph (JSON, or its content), or a network whose layers the cost model times on the devices of the cluster.
    progress : callable, optional
        Takes a message and the share of the bound that is reached.
    **options
        The options of ``planner place``, by the same names.

    Returns
    -------
    Placement

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds the best placement so far.

    Examples
    --------
    >>> import planner
    >>> placed = planner.place("alexnet", cluster="dgx1-v100", devices=2)
    >>> placed.proven, placed.objective == placed.bound
    (True, True)
    """
    from planner.placement.run import place as answer_of

    def report(stage: str, best: float, bound: float) -> None:
        if progress is not None:
            progress(*progress_words(stage, best, bound))

    with in_python_words() as values:
        given = given_in_python(PlaceOptions, None, options)
        if "cluster" not in given and isinstance(workload, Mapping):
            graph = _graph_of(workload)
            request = place_request(str(graph.path), given, values, content=graph)
        else:
            named = reference_to("models", workload) if "cluster" in given else str(workload)
            request = place_request(named, given, values, content=named if isinstance(named, InMemory) else None)
        values.check()
        try:
            placed = Placement(raw=answer_of(request, report))
        except SearchInterrupted:
            raise Interrupted(None) from None
        if placed.raw.result.stopped == "interrupted":
            raise Interrupted(placed)
        return placed


def _graph_of(content: Mapping[str, Any]) -> JsonFile:
    """An operator graph that a program gave in place of a file; its values stand nowhere."""
    text = json.dumps(content)
    graph = workload_of(Path("the argument workload"), text, hashlib.sha256(text.encode()).hexdigest())
    return replace(graph, text="")


def progress_words(stage: str, best: float, bound: float) -> tuple[str, float]:
    """What a search has found so far in words, and the share of its best that the bound has reached."""
    known = best < float("inf")
    text = f"{stage}: best {best:.6g}, bound {bound:.6g}" if known else f"{stage}: bound {bound:.6g}"
    return text, bound / best if known and best > 0 else 0.0


def place_request(
    workload: str, given: Mapping[str, Any], values: Values, content: InMemory | JsonFile | None = None
) -> PlaceRequest:
    """Check the options that ask a question; `values` takes the problems, ``content`` is that of a workload that is no file."""
    called = values.called
    found = read_options(options_of(PlaceOptions), given, values)
    method, expert = found.get("method", "auto"), found.get("expert")
    by_expert = f"{called('method')} expert"
    if method == "expert" and expert is None:
        values.add(f"{by_expert} needs {called('expert')} FILE")
    if method != "expert" and expert is not None:
        values.add(f"{called('expert')}: only has a meaning with {by_expert}")
    is_latency = found.get("objective") == "latency"
    if is_latency and ("contiguous" in given or "contiguity" in given):
        asked = f"{called('contiguity')}, {called('contiguous')}"
        values.add(f"{asked}: have no meaning for {called('objective')} latency (see {called('subgraphs')})")
    if not is_latency:
        _check_contiguity_of_method(method, found, values)
    for name in ("batch", "mode", "assume_free", "calibration"):
        if name in given and "cluster" not in given:
            values.add(f"{called(name)}: only has a meaning for a network with {called('cluster')}")
    contiguous, kind = found.pop("contiguous", None), found.pop("contiguity", None)
    if kind is not None and contiguous is False:
        values.add(f"--non-contiguous and {called('contiguity')} {kind}: choose one")
    fields = {name: value for name, value in found.items() if value is not None}
    fields["contiguity"] = kind or ("none" if contiguous is False else "chain")
    if expert is not None:
        fields["expert"] = Path(expert)
    return PlaceRequest(workload=Path(workload), content=content, **fields)


def _check_contiguity_of_method(method: str, found: Mapping[str, Any], values: Values) -> None:
    """Baselines have the contiguity that they have; asking for another must not be passed over in silence."""
    contiguous, kind = found.get("contiguous"), found.get("contiguity")
    if kind is not None:
        asked = f"{values.called('contiguity')} {kind}"
    else:
        asked = "--non-contiguous" if contiguous is False else values.called("contiguous") if contiguous else ""
    if not asked or method not in (*BASELINES, "expert"):
        return
    is_chain = method in BASELINES and BASELINES[method][1] == "chain"
    if not is_chain or (kind or ("chain" if contiguous else "")) != "chain":
        does = (
            "places contiguous stages" if is_chain else "takes no account of contiguity; the answer says which there is"
        )
        values.add(f"{asked}: {values.called('method')} {method} {does}")

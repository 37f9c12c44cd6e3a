"""`planner.place`: the operators of a graph on devices, optimally or with a bound."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.inputs import reference_to
from planner.api.options import PlaceOptions, takes_options, words_of
from planner.api.shown import Answer
from planner.api.words import Interrupted, in_python_words
from planner.commands.values import Values
from planner.core.search_errors import SearchInterrupted

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.core.blocks import Report

__all__ = ["Placement", "place"]


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

    @property
    def objective(self) -> float:
        """Largest load of a device, or latency of a sample, in the unit of the workload (seconds of a network)."""
        return float(self.raw.result.objective)

    @property
    def bound(self) -> float:
        """No placement is better."""
        return float(self.raw.result.bound)

    @property
    def proven(self) -> bool:
        """Whether no placement is better than this one."""
        return bool(self.raw.result.proven_optimal)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the placement as a file (YAML) that ``planner place check`` judges."""
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
    from planner.commands.place import place_request, progress_words
    from planner.placement.run import place as answer_of

    def report(stage: str, best: float, bound: float) -> None:
        if progress is not None:
            progress(*progress_words(stage, best, bound))

    with in_python_words(), tempfile.TemporaryDirectory(prefix="planner-") as scratch:
        given: dict[str, Any] = dict(options)
        if given.get("cluster") is not None:
            given["cluster"] = reference_to("clusters", given["cluster"])
            name = reference_to("models", workload)
        elif isinstance(workload, Mapping):
            file = Path(scratch) / "workload.json"
            file.write_text(json.dumps(workload), encoding="utf-8")
            name = str(file)
        else:
            name = os.fspath(workload) if isinstance(workload, os.PathLike) else str(workload)
        if given.get("calibration") is not None:
            given["calibration"] = reference_to("calibrations", given["calibration"])
        values = Values()
        request = place_request(name, words_of(given), values)
        values.check()
        try:
            placed = Placement(raw=answer_of(request, report))
        except SearchInterrupted:
            raise Interrupted(None) from None
        if placed.raw.result.stopped == "interrupted":
            raise Interrupted(placed)
        return placed

"""One cell of a grid: a question as plain data (JSON) in, a row of plain values out; and what identifies an answer.

A pure function, whatever process or machine runs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.objectives import with_figures
from planner.core.errors import LimitReached, NoFeasiblePlan, PlannerError, SearchInterrupted
from planner.core.request import Request
from planner.files.resources import InMemory
from planner.report.machine import finite

if TYPE_CHECKING:
    from planner.core.answer import Answer

_NAMES = ("model", "cluster", "device", "calibration", "framework")  # names or paths
# What an answer does not depend on.
_WORDS_ONLY = ("command_line", "changed", "origins")


def to_plain(request: Request) -> dict[str, Any]:
    """Request -> JSON values; paths become absolute, so that the working folder makes no difference.

    >>> to_plain(Request(model="alexnet", gpus=16))["gpus"]
    16
    """
    plain = dataclasses.asdict(request)
    in_memory: dict[str, Any] = {}
    for name in _NAMES:
        text = plain[name]
        if isinstance(text, InMemory):
            in_memory[name] = text.document.value
        elif text is not None and Path(text).exists():
            plain[name] = str(Path(text).resolve())
    if request.paleo_algorithms is not None:
        plain["paleo_algorithms"] = str(request.paleo_algorithms.resolve())
    return dict(json.loads(json.dumps(plain | ({"in_memory": in_memory} if in_memory else {}))))


def from_plain(plain: Mapping[str, Any]) -> Request:
    """JSON values -> Request.

    >>> request = Request(model="alexnet", gpus=16, assume=(("dp_overlap", 0.5),))
    >>> from_plain(to_plain(request)) == request
    True
    """
    fields = dict(plain)
    for name, content in fields.pop("in_memory", {}).items():
        fields[name] = InMemory(fields[name], content)
    fields |= {name: tuple(fields[name]) for name in ("fix", "assume_free", "frameworks")}
    fields["assume"] = tuple((name, value) for name, value in fields["assume"])
    if fields["power_w"] is not None:
        fields["power_w"] = tuple(fields["power_w"])
    if fields["paleo_algorithms"] is not None:
        fields["paleo_algorithms"] = Path(fields["paleo_algorithms"])
    if fields["mesh"] is not None:
        from strategies.mesh.settings import Bounds, MeshRestriction

        mesh = fields["mesh"]
        fields["mesh"] = MeshRestriction(
            degrees={
                name: Bounds(low=bounds["low"], high=bounds["high"], values=tuple(bounds["values"]))
                for name, bounds in mesh["degrees"].items()
            },
            names={name: tuple(values) for name, values in mesh["names"].items()},
            flags=mesh["flags"],
        )
    return Request(**fields)


def key_of(plain: Mapping[str, Any], inputs: Mapping[str, str], version: str) -> str:
    """What identifies an answer: the question, the content of its files, and the program that answers.

    Parameters
    ----------
    plain : mapping
        Of `to_plain`.
    inputs : mapping of str to str
        Role of a file -> sha256 of its content.
    version : str
        Of the planner.
    """
    question = {name: value for name, value in plain.items() if name not in _WORDS_ONLY}
    text = json.dumps([question, dict(inputs), version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# Degrees of a plan over a device mesh, with their types; empty for others.
DEGREES: Mapping[str, type] = {
    **dict.fromkeys(
        (
            "tp",
            "cp",
            "ep",
            "etp",
            "pp",
            "vpp",
            "dp_replicate",
            "dp_shard",
            "zero_stage",
            "micro_batch",
            "num_micro_batches",
        ),
        int,
    ),
    "schedule": str,
    "recompute": str,
}
# Figures of the best plan; None where it has no such figure.
_FIGURES = (
    "step_time_s",
    "step_time_low_s",  # a measurement lies between these with a chance of 80 %
    "step_time_high_s",
    "throughput_samples_per_s",
    "tokens_per_s",
    "mfu",
    "memory_bytes_per_gpu",
    "exposed_communication_s",
    *with_figures(),
)
# Columns of the table, in its order, with their types.
COLUMNS: Mapping[str, type] = {
    "model": str,
    "cluster": str,
    "device": str,
    "gpus": int,
    "batch": int,
    "seq": int,
    "status": str,  # ok, no_plan, limit (no plan in time), refused (the question contradicts itself), failed (tried again next time)
    "reason": str,
    "workers": int,
    "family": str,
    "plan": str,
    **dict.fromkeys(_FIGURES, float),
    "objective": str,
    "proven_optimal": bool,
    "gap": float,
    **DEGREES,
}


_STATUS = {NoFeasiblePlan: "no_plan", LimitReached: "limit"}


def answer(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Search one cell of a grid.

    Parameters
    ----------
    plain : mapping
        Of `planner.sweeping.answer.to_plain`.

    Returns
    -------
    dict
        The values of `COLUMNS`; a cell without a plan has the reason in words, and so has one that meets a defect of the planner: the
        rest of the grid goes on.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C: half an answer is none.
    """
    try:
        return answered(from_plain(plain), search)[0]
    except Exception as error:
        return row_of_question(plain, "failed", f"internal error: {type(error).__name__}: {error}"[:1000])


def answered(request: Request, search: Callable[[Request], Answer]) -> tuple[dict[str, Any], Answer | None]:
    """The values of `COLUMNS` for a question, and its answer; without a plan, the reason in words, and None.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C: half an answer is none.
    """
    asked = to_plain(request)
    try:
        result = search(request)
    except SearchInterrupted:
        raise KeyboardInterrupt from None
    except PlannerError as error:
        return row_of_question(asked, _STATUS.get(type(error), "refused"), str(error)), None
    found = row_of_question(asked, "ok", None) | row_of(result)
    if request.assume_free:  # wherever a row goes, it says so
        found["model"] = f"{found['model']} (assumed free: {', '.join(request.assume_free)})"
    return dict(finite(found)), result


def row_of_question(question: Mapping[str, Any], status: str, reason: str | None) -> dict[str, Any]:
    """What a row says of its question; without an answer, of the reason."""
    asked = {name: question.get(name) for name in ("model", "cluster", "gpus", "batch", "seq")}
    stated = {"objective": question.get("objective") or "step_time", "status": status, "reason": reason}
    return dict.fromkeys(COLUMNS) | asked | stated


def search(request: Request) -> Answer:
    """Answer one question with the best plans of its space: without the comparison and refinement that `planner optimize` adds on top."""
    from planner.spaces.ask import optimize

    return optimize(request, compare=False)


def row_of(answer: Answer) -> dict[str, Any]:
    """Columns of the best plan of an answer."""
    best, setting = answer.plans[0], answer.setting
    record = best.record()
    return {
        "model": setting.model,
        "cluster": setting.cluster,
        "device": setting.device,
        "batch": setting.global_batch,
        "seq": setting.seq,
        "plan": best.summary,
        "proven_optimal": answer.proof.proven_optimal,
        "gap": answer.proof.gap,
        **{name: record.get(name) for name in ("workers", "family", *_FIGURES)},
        **{name: getattr(best.plan, name, None) for name in DEGREES},
    }

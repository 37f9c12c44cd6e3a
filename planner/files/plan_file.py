"""Plans to documents and files, and the question that a plan file asks again; `PlanSpace.plan_of` reads the plan itself."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.objectives import OBJECTIVES
from planner.core.answer import Answer, Estimate, RankedPlan, Setting, assumption_text
from planner.core.capacity import confidence_of, reserve_of
from planner.core.errors import FileProblem, InputFileError
from planner.core.numbers import joined_words
from planner.core.request import SPACES, Request
from planner.files.resources import InMemory, Kind, bundled, bundled_name, stands_for

if TYPE_CHECKING:
    from planner.files.documents import Document, Location
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument

SCHEMA_VERSION = 1
_PALEO_OPTIONS = ("ppp_comp", "ppp_comm", "paleo_pipeline", "paleo_extensions", "paleo_algorithms")


def plan_document(
    answer: Answer | Estimate, ranked: RankedPlan | None = None, *, folder: Path | None = None
) -> dict[str, Any]:
    """Write a plan of any space as plain values, in the order of a plan file.

    Parameters
    ----------
    answer : Answer or Estimate
        Names and paths are taken from its question; a search adds what it proves.
    ranked : RankedPlan, optional
        One of the answer's; the plan to run where none is named.
    folder : Path, optional
        Where the file will be: relative paths in it start there.

    Returns
    -------
    dict
        A valid ``planner.schema.plan.PlanDocument``; entries that say nothing are left out.
    """
    if ranked is None:
        ranked = answer.best if isinstance(answer, Answer) else answer.ranked
    document: dict[str, Any] = {
        **_question_head(answer.space.request, answer.setting, folder),
        **answer.space.plan_section(ranked, folder),
        "prediction": _prediction(answer, ranked),
        "provenance": _provenance(answer.setting, [assumption_text(a) for a in answer.assumptions]),
    }
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def _prediction(answer: Answer | Estimate, ranked: RankedPlan) -> dict[str, Any]:
    figures = {name: ranked[name] for name in answer.space.predicted}
    entry = {"summary": ranked.summary, "family": ranked.family, **figures}
    # The proof is about the uniform space: it says nothing about a plan with stages or splits of its own.
    if not isinstance(answer, Answer) or ranked is answer.refined:
        return entry
    optimum = answer.fastest or answer.plans[0]
    entry["proven_optimal"] = answer.proof.proven_optimal and ranked.plan == optimum.plan
    if not answer.space.bounds_a_time:
        return entry
    # The proof is about the objective: without it, a plan that saves energy would read as the fastest one.
    about = {} if answer.objective == "step_time" else {"objective": answer.objective}
    figure = OBJECTIVES[answer.objective].figure
    cost = {} if figure is None else {figure.name: ranked[figure.name]}
    return {**entry, **about, **cost, "bound_s": answer.proof.bound_s}


def _question_head(request: Request, setting: Setting, folder: Path | None) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "model": reference("models", request.model, folder),
        # The default is written out, so that the plan keeps its meaning when the default changes.
        "cluster": setting.cluster
        if request.cluster is None or stands_for(request.cluster) is not None
        else reference("clusters", request.cluster, folder),
        "device": reference("devices", request.device, folder) if request.device is not None else None,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "seq": setting.seq,
        "doc_lengths": list(request.doc_lengths or ()),
        "doc_cv": request.doc_cv,
        "assume_free": list(request.assume_free),
        "lora_rank": request.lora_rank,
        "precision": setting.precision,
        "optimizer": setting.optimizer,
        "mode": setting.mode,
        "cost_model": setting.cost_model,
        "calibration": None if request.calibration is None else reference("calibrations", request.calibration, folder),
        "framework": reference("frameworks", request.framework, folder) if request.framework else None,
        "memory_limit": request.memory_limit,
        "memory_reserve": reserve_of(request, setting.memory_errors),
        "memory_confidence": confidence_of(request, setting.memory_errors),
    }


def cost_model_options(request: Request, folder: Path | None) -> dict[str, Any]:
    """Options of the paleo cost model that differ from the defaults."""
    neutral = Request(model="")
    options = {
        name: getattr(request, name) for name in _PALEO_OPTIONS if getattr(request, name) != getattr(neutral, name)
    }
    if request.paleo_algorithms is not None:
        options["paleo_algorithms"] = _relative(request.paleo_algorithms, folder)
    return options


def _provenance(setting: Setting, assumptions: Sequence[str]) -> dict[str, Any]:
    from planner import __version__

    known = {"command_line": setting.command_line, "assumptions": list(assumptions)}
    stated = {name: value for name, value in known.items() if value}
    return {"planner_version": __version__, "inputs": dict(setting.inputs), **stated}


def reference(kind: Kind, text: str, folder: Path | None) -> str:
    """Name a file in a plan file: what exists as a path is a path, relative to the plan file; anything else is a bundled name.

    >>> reference("models", "meta-llama/Meta-Llama-3-8B", None)
    'llama3-8b'
    """
    if isinstance(text, InMemory):
        return text
    path = Path(text)
    if not path.exists() and text not in bundled(kind):
        meant = bundled_name(kind, text)
        if meant is not None:
            return meant
    is_path = path.name != text or path.is_file()
    return _relative(path, folder) if is_path else text


def _relative(path: Path, folder: Path | None) -> str:
    if path.is_absolute() or folder is None:
        return str(path)
    text = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    return text if text.startswith(".") else f"./{text}"


def plan_text(document: Mapping[str, Any]) -> str:
    """Write a plan document as YAML."""
    from planner.files.yaml_text import yaml_text

    summary = textwrap.fill(document["prediction"]["summary"], 118, break_on_hyphens=False, break_long_words=False)
    product = next(info.product for name, info in SPACES.items() if name in document)
    return yaml_text(document, f"{summary}\nPredict it again with: planner estimate --plan FILE\n{product}")


def read_plan(path: Path) -> Loaded[PlanDocument]:
    """Read a plan file.

    Raises
    ------
    InputFileError
        Every problem of the file, with line and column.
    """
    from planner.files.loading import load_document
    from planner.schema.plan import PlanDocument

    return load_document(path, PlanDocument)


class PlanProblems:
    """Collects what is wrong with a plan document, with line and column where it came from a file."""

    def __init__(self, document: PlanDocument, source: Document | None) -> None:
        self.document, self.source = document, source
        self.found: list[FileProblem] = []

    def note(self, location: Location, message: str, *, at_key: bool = False) -> None:
        """One thing that is wrong."""
        if self.source is not None:
            self.found.append(self.source.problem(location, message, at_key=at_key))
        else:
            self.found.append(FileProblem(path=Path("plan"), where=".".join(map(str, location)), message=message))

    def check_workers(self, workers: int, words: str) -> None:
        """What the document says of the workers against those of the plan (``words``: where they come from) and of the cluster."""
        stated, gpus = self.document.workers, self.document.gpus
        if workers != stated:
            self.note(("workers",), f"is {stated}, but {words}")
        if stated > gpus:
            self.note(("workers",), f"is {stated}, more than the {gpus} gpus")

    def check_rules(self, section: str, broken: Sequence[str], keys: Sequence[str]) -> None:
        """Sentences about rules that the plan breaks; one that begins with a key of the section stands there."""
        for message in broken:
            word = message.split(" ", 1)[0].replace("-", "_")
            self.note((section, word) if word in keys else (section,), message)

    def check(self) -> None:
        """Raise `InputFileError` with everything that is wrong."""
        if self.found:
            raise InputFileError(self.found)


def changed_inputs(document: PlanDocument, setting: Setting) -> list[str]:
    """Say that input files are not what they were when the plan was written; nothing where all are."""
    recorded = document.provenance.inputs
    roles = sorted(role for role, sha256 in setting.inputs.items() if recorded.get(role, sha256) != sha256)
    which = "files are not those" if len(roles) > 1 else "file is not the one"
    return [f"the {joined_words(roles)} {which} that the plan was made with (sha256 differs)"] if roles else []

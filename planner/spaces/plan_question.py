"""A plan file as a question: what it asks with what is changed of it, its plan checked against its network, and what no longer holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.mesh.assumptions import RENAMED_ASSUMPTIONS
from costmodel.tolerances import EQUAL
from planner.core.errors import InputFileError, PlannerError, UnknownName, UsageError
from planner.core.request import Request
from planner.importers.networks import load_model
from planner.question.choose import kind_of
from planner.question.resolve import resolve
from planner.spaces.base import PlanSpace, space_of

if TYPE_CHECKING:
    from planner.core.answer import Estimate
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument

# Times that a plan file states of its prediction.
_STATED = {"step_time_s": "step", "ttft_s": "time to first token", "tpot_s": "time per token"}


def plan_question(
    loaded: Loaded[PlanDocument], path: Path, changes: Mapping[str, Any], command_line: str = ""
) -> tuple[PlanDocument, Request, Any]:
    """Ask what a plan of any space answered, and check the plan.

    Parameters
    ----------
    loaded, path, changes, command_line
        As for `space_of_file`.

    Returns
    -------
    (PlanDocument, Request, plan)

    Raises
    ------
    PlannerError
        Everything in the file that contradicts itself, its network or what is changed.
    """
    document, space = space_of_file(loaded, path, changes, command_line)
    return document, space.request, space.plan_of(document, loaded.document)


def space_of_file(
    loaded: Loaded[PlanDocument], path: Path, changes: Mapping[str, Any], command_line: str = ""
) -> tuple[PlanDocument, PlanSpace]:
    """Ask what a plan of any space answered, whether the plan is legal or not.

    Parameters
    ----------
    loaded : Loaded
        A plan file.
    path : Path
        Of it: its relative paths start there.
    changes : mapping
        Fields of Request that are asked otherwise.
    command_line : str
        For the provenance of what is exported.

    Returns
    -------
    (PlanDocument, PlanSpace)
        Where something is changed, the document has no prediction: it answered another question. Nor does it say what files it was made
        with that others stand in for.

    Raises
    ------
    PlannerError
        What in the file contradicts itself or what is changed, but for its plan.
    """
    from planner.schema.plan import Prediction

    document = loaded.content
    asked = request_from_document(document, path.resolve().parent)
    kind = kind_of(document.section)
    request = dataclasses.replace(asked, command_line=command_line, changed=tuple(changes), **changes)
    if changes:
        others = {name for name, value in changes.items() if value != getattr(asked, name)}
        others |= {"device"} if "cluster" in others and request.device is None else set()
        inputs = {role: sha256 for role, sha256 in document.provenance.inputs.items() if role not in others}
        provenance = document.provenance.model_copy(update={"inputs": inputs})
        document = document.model_copy(update={"prediction": Prediction(), "provenance": provenance})
    if "model" in changes and "seq" not in changes:
        try:
            load_model(request.model, seq=asked.seq, assume_free=request.assume_free)
        except UsageError:
            raise UsageError(
                f"{request.model}: the plan is of another network, {document.model}, which reads {asked.seq:,} positions"
            ) from None
    mode = kind.info.keys.get("mode", (request.mode, ""))[0]
    if request.mode != mode:
        raise UsageError(f"--mode {request.mode}: the plan is for {mode}")
    if "batch" in changes and request.batch is not None:
        document = kind.with_batch(document, request.batch)
    try:
        resolved = resolve(request)
    except PlannerError as error:
        faults = getattr(error, "faults", ()) or (error,)
        problems = [
            loaded.document.problem((fault.kind,), f"'{fault.name}' {fault.reason}")
            for fault in faults
            if isinstance(fault, UnknownName)
            and fault.kind in type(document).model_fields
            and fault.kind not in changes
        ]
        if len(problems) < len(faults):
            raise
        raise InputFileError(problems) from None
    if resolved.space != kind.space:
        raise UsageError(kind.other_question(resolved.cluster))
    try:
        return document, space_of(resolved)
    except UsageError as error:
        raise _in_file(error, loaded, changes) from None


# Keys of a plan file that are not called as their option.
_KEYS = {"rate": "rate_per_s", "prompt": "prompt_tokens", "max_ttft": "max_ttft_s", "max_tpot": "max_tpot_s"}


def _in_file(error: UsageError, loaded: Loaded[PlanDocument], changes: Mapping[str, Any]) -> PlannerError:
    """What is wrong with options, where the file says it that they stand for; the error itself where one of them is of the command line."""
    document, section, problems = loaded.content, loaded.content.section, []
    for line in str(error).splitlines():
        option, _, reason = line.partition(": ")
        name = option.split(" ")[0].removeprefix("--").replace("-", "_")
        key = _KEYS.get(name, name)
        places = [(owner, at) for owner, at in ((document, (key,)), (getattr(document, section), (section, key)))]
        found = [at for owner, at in places if getattr(owner, key, None) is not None]
        if not option.startswith("--") or not found or {name, key} & set(changes):
            return error
        problems.append(loaded.document.problem(found[0], reason))
    return InputFileError(problems)


def request_from_document(document: PlanDocument, folder: Path) -> Request:
    """Ask the question that a plan answered.

    Parameters
    ----------
    document : PlanDocument
    folder : Path
        Of the plan file: its relative paths start there.
    """

    def found(text: str | None) -> str | None:
        return text if text is None or Path(text).name == text else str(folder / text)

    kind, options = kind_of(document.section), document.cost_model_options
    algorithms, asked = found(options.paleo_algorithms), kind.asked_by(document)
    # Names of files that a space asks for.
    asked |= {name: found(asked[name]) for name in ("prefill_device", "draft") if asked.get(name)}
    return Request(
        model=found(document.model) or "",
        cluster=found(document.cluster),
        device=found(document.device),
        gpus=document.gpus,
        precision=document.precision,
        optimizer=document.optimizer,
        mode=document.mode,
        cost_model=document.cost_model,
        ppp_comp=options.ppp_comp,
        ppp_comm=options.ppp_comm,
        paleo_pipeline=options.paleo_pipeline,
        paleo_extensions=options.paleo_extensions,
        paleo_algorithms=None if algorithms is None else Path(algorithms),
        memory_limit=document.memory_limit,
        memory_reserve=document.memory_reserve,
        memory_confidence=document.memory_confidence,
        seq=document.seq,
        doc_lengths=document.doc_lengths,
        doc_cv=document.doc_cv,
        lora_rank=document.lora_rank,
        assume_free=tuple(document.assume_free),
        assume=tuple((RENAMED_ASSUMPTIONS.get(name, name), value) for name, value in document.assume.items()),
        calibration=found(document.calibration),
        framework=found(document.framework),
        space=kind.choice,
        **asked,
    )


def plan_warnings(document: PlanDocument, estimate: Estimate) -> list[str]:
    """What a plan file states that no longer holds: its inputs, its prediction."""
    from planner.files.plan_file import changed_inputs

    times = [
        (word, getattr(document.prediction, name, None), estimate.ranked.get(name)) for name, word in _STATED.items()
    ]
    return changed_inputs(document, estimate.setting) or [
        f"the plan file states a {word} of {stated:.6g} s; it takes {now:.6g} s"
        for word, stated, now in times
        if stated is not None and now is not None and abs(stated - now) > EQUAL * now
    ]

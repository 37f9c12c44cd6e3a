"""What the Python functions and the commands have in common: from the options of a question to its request, its plan or its curve."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from planner.api.keywords import (
    EstimateOptions,
    ExplainOptions,
    OptimizeOptions,
    ScaleOptions,
    WhyNotOptions,
    options_of,
)
from planner.api.readers import SERVING, Option
from planner.api.values import Values, as_flag, listed
from planner.core.errors import InputFileError, PlannerError, UsageError, did_you_mean
from planner.core.quantities import in_tokens
from planner.core.request import AUTO, SPACES, Request, imported
from planner.files.resources import InMemory, reference_to
from planner.question.fixed import data_fields, no_such_division, single

if TYPE_CHECKING:
    from costmodel.hardware.cluster import Cluster
    from planner.core.answer import Scaling
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument
    from strategies.mesh.settings import Bounds, MeshRestriction

Predicts: TypeAlias = Literal["estimate", "explain"]
Command: TypeAlias = Predicts | Literal["why-not", "optimize"]
Progress: TypeAlias = Callable[[str, float], None]  # takes what is being done, and the share of it that is done

# Fields of a request that a plan file decides itself; giving one twice would leave open which one counts.
_DECIDED_BY_PLAN = ("gpus", "nodes", "space", "family", "fix", "collective", "micro_batches", "lora_rank")
# How the best plan is searched for, which is no part of a file's question.
_SEARCHING = ("sensitivity", "time_limit_s", "solver", "top", "gap", "fastest", "diverse")
_OPTIONS_OF: Mapping[Command, type] = {
    "estimate": EstimateOptions,
    "explain": ExplainOptions,
    "why-not": WhyNotOptions,
    "optimize": OptimizeOptions,
}
_USUAL_COUNTS = (1, 2, 4, 8)  # of workers, on a scaling curve


def read_options(options: Mapping[str, Option], given: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Values by the names that requests have for them; what is wrong goes to `values`."""
    return {
        option.field or name: option.value(values, values.called(name), given[name])
        for name, option in options.items()
        if name in given
    }


def request_of(
    options: Mapping[str, Option], given: Mapping[str, Any], values: Values, command_line: str, **more: Any
) -> Request:
    """The question that options ask.

    Parameters
    ----------
    options : mapping
        Declarations by keyword, as `planner.api.keywords.options_of` has them; those of something else than the request are left out.
    given : mapping
        Values by keyword, and ``model``; what is not given is absent.
    values : Values
        Takes the problems.
    command_line : str
        What was typed or called, for the provenance of exported plans.
    **more
        Other fields of the request.
    """
    called = values.called
    if "model" in given and not given["model"].strip():
        values.add(f"{called('model')}: is empty; give a bundled name or a file")
    found = read_options(options, given, values)
    parts: dict[str, dict[str, Any]] = {"degrees": {}, "names": {}, "flags": {}, "serving_degrees": {}}
    fields: dict[str, Any] = {"model": given.get("model", ""), "command_line": command_line}
    for name, value in found.items():
        kind, _, field = name.rpartition(":")
        (parts[kind] if kind else fields)[field] = value
    offload, micro_batches = fields.pop("offload", None), fields.pop("micro_batches", None)
    if offload is not None:
        if "none" in offload and len(offload) > 1:
            values.add(f"{called('offload')} {given['offload']}: none goes with nothing else")
        parts["flags"] |= {f"offload_{what}": what in offload for what in ("optimizer", "activations")}
    if micro_batches is not None and len(micro_batches.values) == 1:  # which means something to every space
        fields["micro_batches"] = micro_batches.values[0]
    elif micro_batches is not None:
        parts["degrees"]["num_micro_batches"] = micro_batches
    mode = fields.get("mode", more.get("mode", "training"))
    _check_meaning(options, given, fields, mode, values)
    if "batch" in fields:
        fields["batch"] = _batch(given, values)
    fields["top_given"] = "top" in given
    if "objective" in fields:
        fields["objective"] = _objective(fields["objective"], mode, values)
    if "assume" in fields:
        fields["assume"] = _assumed(fields["assume"], values)
    if "paleo_algorithms" in fields:
        fields["paleo_algorithms"] = Path(fields["paleo_algorithms"])
    known = {name: value for name, value in (fields | more).items() if value is not None and name in _FIELDS}
    return Request(mesh=_restriction(parts, values), serving_degrees=parts["serving_degrees"], **known)


_FIELDS = frozenset(field.name for field in dataclasses.fields(Request))


def _check_meaning(
    options: Mapping[str, Option], given: Mapping[str, Any], fields: Mapping[str, Any], mode: str, values: Values
) -> None:
    """An option that would be ignored is an error, never silence."""
    called = values.called
    if fields.get("cost_model") == "paleo":
        for name, reason in (("calibration", "has constants of its own"), ("framework", "is a program of its own")):
            if name in given:
                values.add(f"{called(name)}: only has a meaning with {called('cost_model')} roofline; paleo {reason}")
    else:
        for name in ("ppp_comp", "ppp_comm", "paleo_pipeline", "paleo_algorithms", "paleo_extensions"):
            if name in given:
                values.add(f"{called(name)}: only has a meaning with {called('cost_model')} paleo")
    if mode != "inference":
        for name, option in options.items():
            if option.panel == SERVING and name in given:
                values.add(f"{called(name)}: only has a meaning with {called('mode')} inference")


# -- how many GPUs there are -------------------------------------------------------------------------------------------------


def with_gpus(
    options: Mapping[str, Option], given: Mapping[str, Any], values: Values, keyword: str, clusters: Sequence[Any] = ()
) -> Mapping[str, Any]:
    """Put the GPUs of so many nodes in place of ``nodes``; problems go to `values`.

    Parameters
    ----------
    options, given : mapping
    values : Values
    keyword : str
        The option that counts GPUs: ``gpus``, ``workers`` or ``max_gpus``.
    clusters : sequence of str
        Those that are asked about; without any, the one that is given, or the usual one.

    Examples
    --------
    >>> values = Values()
    >>> with_gpus(options_of(OptimizeOptions), {"cluster": "dgx-a100", "nodes": "4"}, values, "gpus")
    {'cluster': 'dgx-a100', 'gpus': 32}
    >>> _ = with_gpus(options_of(OptimizeOptions), {"nodes": 8, "gpus": "60"}, values, "gpus")
    >>> values.problems
    ["--nodes 8: are 64 GPUs of cluster 'dgx-h100', and --gpus is 60; give one of them"]
    """
    if "nodes" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "nodes"}
    label = f"{values.called('nodes')} {given['nodes']}"
    nodes = options["nodes"].value(values, values.called("nodes"), given["nodes"])
    names = clusters or [given.get("cluster") or _usual_cluster(given.get("device"))]
    known = [cluster for cluster in map(_readable_cluster, names) if cluster is not None]
    if not known:  # said when the question is resolved
        return {keyword: 1} | rest
    sizes = {cluster.name: cluster.devices_of_node for cluster in known}
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{name} {size}" for name, size in sizes.items())
        values.add(f"{label}: nodes differ ({each} GPUs); give {values.called(keyword)}")
    size = known[0].devices_of_node
    gpus = nodes * size if isinstance(nodes, int) else tuple(count * size for count in nodes)
    if keyword not in rest:
        return rest | {keyword: gpus}
    if options[keyword].value(Values(), "", rest[keyword]) != gpus:
        both = f"are {gpus:,} GPUs" if isinstance(gpus, int) else f"are {', '.join(map(str, gpus))} GPUs"
        values.add(
            f"{label}: {both} of cluster '{known[0].name}', and {values.called(keyword)} is {rest[keyword]}; give one of them"
        )
    return rest


def _usual_cluster(device: str | None) -> str:
    from planner.question.lookup import DEFAULT_CLUSTER, default_cluster

    try:
        return default_cluster(device)
    except PlannerError:  # said when the question is resolved
        return DEFAULT_CLUSTER


# -- what is read together with other options -------------------------------------------------------------------------------


# "512 sequences": the unit that a number alone has.
_SAMPLES = re.compile(r"(.*[^A-Za-z\s].*?)\s*(?<![A-Za-z])(?:samples?|sequences?)\s*", re.IGNORECASE)


def _batch(given: Mapping[str, Any], values: Values) -> int | None:
    """Samples of a step; tokens are divided by the positions of a sample, and have to be a whole number of them."""
    label, batch = values.called("batch"), given["batch"]
    if isinstance(batch, str) and (in_samples := _SAMPLES.fullmatch(batch)):
        return values.count(label, in_samples[1])
    tokens = in_tokens(batch) if isinstance(batch, str) else None
    if tokens is None:
        unit = re.fullmatch(r"\s*\d.*?(?<![A-Za-z])((?!tokens?\b)[A-Za-z]{4,})\s*", str(batch))
        if unit is not None:
            hint = did_you_mean(unit[1], ["tokens"]) or "; a number alone counts samples, 'tokens' behind it tokens"
            values.add(f"{label} {batch}: unknown unit '{unit[1][:60]}'{hint}")
            return None
        count = values.count(label, batch)
        check_samples(given, batch, count, values)
        return count
    seq = _positions(given, values)
    if seq is None:
        return None
    stated, binary = tokens
    if stated % seq == 0:
        return values.count(label, int(stated / seq))
    near = binary if binary % seq == 0 else max(int(stated // seq), 1) * seq
    values.add(
        f"{label} {batch}: is {stated / seq:,.2f} samples of {seq:,} positions, not a whole number; "
        f"{label} {near / seq:.0f} is {near:,.0f} tokens"
    )
    return None


# Samples of a step beyond which a number with a suffix is one of tokens that lacks its unit. The largest published batches of sequences
# are 65,536 of 128 (You et al., arXiv:1904.00962, BERT with LAMB).
_MOST_SUFFIXED = 100_000


def check_samples(given: Mapping[str, Any], batch: Any, count: int, values: Values) -> None:
    """Refuse "4M" samples that have tokens: people mean tokens. A number in digits is taken at its word."""
    if not isinstance(batch, str) or batch.strip()[-1:].isdigit() or count <= _MOST_SUFFIXED:
        return
    seq = _positions(given, Values())
    if seq is None:
        return
    label = f"{values.called('batch')} {batch}"
    stated, binary = in_tokens(f"{batch} tokens") or (float(count), float(count))
    exact = stated if stated % seq == 0 else binary if binary % seq == 0 else max(int(stated // seq), 1) * seq
    values.add(
        f"{label}: is {count:,} samples of {seq:,} positions each; did you mean tokens? {values.called('batch')} {exact / seq:.0f} is "
        f"{exact:,.0f} tokens"
    )


def _positions(given: Mapping[str, Any], values: Values) -> int | None:
    """Positions of a sample, as the question or the network file says; None where the network cannot be read (said later)."""
    from planner.importers.networks import load_model

    if "seq" in given:
        return Values().count("seq", given["seq"])  # what is wrong with it is said once
    label = f"{values.called('batch')} {given['batch']}"
    if not given.get("model"):
        values.add(f"{label}: tokens need {values.called('seq')}, or a network; or give samples")
        return None
    try:
        seq = load_model(given["model"], assume_free=tuple(given.get("assume_free", ()))).seq
    except PlannerError:
        return None
    if seq is None:
        values.add(f"{label}: samples of '{given['model']}' have no tokens; give samples")
    return seq


def _objective(given: Any, mode: str, values: Values) -> str:
    """Networks that generate text are served by objectives of their own; the network says later which kind it is."""
    from costmodel.objectives import OBJECTIVES, SERVING_OBJECTIVES

    known = tuple(dict.fromkeys((*SERVING_OBJECTIVES, *OBJECTIVES))) if mode == "inference" else tuple(OBJECTIVES)
    label = values.called("objective")
    word = values.text(label, given).strip().replace("-", "_")
    return values.choice(label, "money" if word.lower() == "cost" else word, known)


def _assumed(given: Mapping[str, float] | Sequence[str], values: Values) -> tuple[tuple[str, float], ...]:
    """Read NAME=VALUE; a later one wins. Which of them a question has is known with its space (`Kind.check_assumed`)."""
    from costmodel.framework import LayerAssumptions
    from costmodel.mesh.assumptions import RENAMED_ASSUMPTIONS, MeshAssumptions
    from costmodel.serving.workload import ServingAssumptions

    label = values.called("assume")
    models = (MeshAssumptions, LayerAssumptions, ServingAssumptions)
    known: dict[str, Mapping[str, Any]] = {
        field.name: field.metadata for model in models for field in dataclasses.fields(model)
    }
    texts = [given] if isinstance(given, str) else given
    result: dict[str, float] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.partition("="))
        stated: Any = given[text] if isinstance(given, Mapping) else number
        if not equals and not isinstance(given, Mapping):
            values.add(f"{label} {text}: must be NAME=VALUE, as in dp_overlap=0.8")
            continue
        name = RENAMED_ASSUMPTIONS.get(name, name)
        if name not in known:
            hint = did_you_mean(name, known)
            where = "-v lists those of an answer; docs/cost-model.md, transformers.md and inference.md describe all"
            values.add(f"{label} {text}: no such assumption{hint} ({where})")
        value = values.at_least_zero(f"{label} {name}", stated)
        limits = {"most": math.inf, "is_whole": False, **known.get(name, {})}
        if value > limits["most"]:
            values.add(
                f"{label} {text}: "
                + ("is a share, at most 1" if limits["most"] == 1.0 else f"must be at most {limits['most']:.0f}")
            )
        if limits["is_whole"] and value != int(value):
            values.add(f"{label} {text}: must be a whole number")
        if name.endswith("_per_s") and value == 0 and name != "storage_bytes_per_s":
            values.add(f"{label} {text}: a bandwidth is above 0")
        result[name] = value
    return tuple(result.items())


# -- limits of plans over a device mesh -------------------------------------------------------------------------------------


def _restriction(parts: Mapping[str, Mapping[str, Any]], values: Values) -> MeshRestriction | None:
    degrees, names, flags = parts["degrees"], dict(parts["names"]), parts["flags"]
    if not degrees and not names and not flags:
        return None
    from strategies.mesh.settings import MeshRestriction

    _check_mesh(degrees, names, flags, values)
    if "recompute" not in names and min(_listed(degrees.get("recompute_blocks")), default=0) > 0:
        names["recompute"] = ("full",)  # the only kind that has a number of blocks
    return MeshRestriction(degrees=degrees, names=names, flags=flags)


def _listed(bounds: Bounds | None) -> tuple[int, ...]:
    """Allowed values, of a range its ends."""
    return () if bounds is None else bounds.values or (bounds.low or 0, bounds.high or 0)


def _check_mesh(
    degrees: Mapping[str, Bounds], names: Mapping[str, tuple[str, ...]], flags: Mapping[str, bool], values: Values
) -> None:
    """Refuse what another option leaves without a meaning: it would be ignored."""
    called = values.called
    if flags.get("sequence_parallel") and set(_listed(degrees.get("tp"))) == {1}:
        values.add(
            f"{called('sequence_parallel')} {called('tp')} 1 exclude each other: the positions are cut between the ranks of tensor "
            "parallelism, which needs tp > 1 (rule sequence-parallel)"
        )
    exact = single(degrees)
    for fault in no_such_division(exact):
        given = " ".join(
            f"{called(name)} {exact[name]}" for name in ("dp", "dp_replicate", "dp_shard") if name in exact
        )
        values.add(f"{given} exclude each other: {fault}")
    if "cp_kind" in names and set(_listed(degrees.get("cp"))) == {1}:
        kinds = ",".join(names["cp_kind"])
        values.add(
            f"{called('cp_kind')} {kinds} {called('cp')} 1 exclude each other: a kind of context parallelism needs cp > 1 (rule cp-kind)"
        )
    blocks, recomputed = _listed(degrees.get("recompute_blocks")), names.get("recompute", ("none", "full"))
    if blocks and ((min(blocks) > 0 and "full" not in recomputed) or (max(blocks) == 0 and recomputed == ("full",))):
        values.add(
            f"{called('recompute')} {','.join(recomputed)} {called('recompute_blocks')} {blocks[0]} exclude each other: "
            "recompute_blocks counts from 1 under full recomputation, and is 0 otherwise (rule recompute)"
        )


# -- a search ---------------------------------------------------------------------------------------------------------------


def search_request(given: Mapping[str, Any], values: Values, command_line: str) -> Request:
    """The request of a search: all of a cluster with a size where the number of workers is left out."""
    options = options_of(OptimizeOptions)
    given, frameworks = _several_frameworks(with_gpus(options, given, values, "gpus"), values)
    if "gpus" in given:
        return request_of(options, given, values, command_line, frameworks=frameworks)
    called = values.called("gpus")
    missing = f"{called}: is missing; say how many workers there are at most, as in {called} 16"
    gpus: int | None = None
    if "cluster" not in given:
        values.add(missing)
    else:
        cluster = _readable_cluster(given["cluster"])
        if cluster is not None and cluster.max_devices is None:
            values.add(f"{missing} (nothing limits the size of cluster '{cluster.name}')")
        gpus = None if cluster is None else cluster.max_devices
    whole = gpus is not None
    return request_of(options, given, values, command_line, gpus=gpus, whole_cluster=whole, frameworks=frameworks)


def _several_frameworks(given: Mapping[str, Any], values: Values) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The options with at most one framework, and those to compare, if there are several."""
    stated = given.get("framework")
    if stated is None or isinstance(stated, Mapping) or (isinstance(stated, str) and Path(stated).exists()):
        return given, ()
    is_one = isinstance(stated, os.PathLike)
    parts = [stated] if is_one else listed("framework", stated)
    others = {name: value for name, value in given.items() if name != "framework"}
    if not parts:
        values.add(f"{values.called('framework')}: is empty; name one or more ('planner list frameworks')")
        return others, ()
    names = tuple(
        part
        if isinstance(stated, str)
        else reference_to("frameworks", part, "" if is_one or len(parts) == 1 else f"[{n}]")
        for n, part in enumerate(parts)
    )
    if len(names) == 1 and names[0].strip().lower() != AUTO:
        return {**others, "framework": names[0]}, ()
    return others, names


def _readable_cluster(name: str) -> Cluster | None:
    """A cluster; None where it cannot be read, which is said when the question is resolved."""
    from planner.files.loading import load_cluster

    try:
        return load_cluster(name).cluster
    except PlannerError:
        return None


def _ranks(request: Request) -> int:
    """Workers of a plan of these degrees; 1 where none is given."""
    degrees = {} if request.mesh is None else single(request.mesh.degrees)
    return math.prod(degrees.get(name, 1) for name in ("tp", "cp", "pp", *data_fields(degrees)))


# -- a question about one plan ----------------------------------------------------------------------------------------------


def question_about_plan(
    command: Command, given: Mapping[str, Any], plan: Any, run_from: Any, values: Values, command_line: str
) -> tuple[Callable[[Progress | None], tuple[Any, tuple[str, ...]]], tuple[str, ...]]:
    """Read the options of a question about one plan; problems go to `values`.

    Parameters
    ----------
    command : "estimate", "explain", "why-not" or "optimize"
    given : mapping
        Options by keyword, and perhaps ``model``.
    plan : path, document of a plan (mapping) or None
    run_from : (trainer, path or Run) or None
        What runs today, whose settings count where no option says otherwise.
    values : Values
    command_line : str

    Returns
    -------
    predicted : callable
        Gives an `Estimate`, for "why-not" a `WhyNot`, for "optimize" an `Answer`, and what no longer holds of the plan's file. Refuses
        what contradicts itself, but that "why-not" says it of a plan.
    notes : tuple of str
        What of a run was read otherwise than it is written.
    """
    options = options_of(_OPTIONS_OF[command])
    if run_from is not None and plan is not None:
        run = "--from" if values.called is as_flag else "run_from"
        raise UsageError(f"{run} and {values.called('plan')}: each names a plan; leave one of them out")
    notes: list[str] = []
    of_run: dict[str, Any] = {}
    if plan is None:
        given = with_gpus(options, given, values, "gpus")
    if run_from is not None:
        from planner.exporters.runs import Run, with_run

        source = run_from[1]
        given, stages, notes, origins = with_run(
            given, run_from[0], source if isinstance(source, Run) else Path(source)
        )
        of_run = {"stages": stages, "origins": origins}
    if plan is None:
        request = request_of(options, given, values, command_line, **of_run)
        if "gpus" not in given:
            request = dataclasses.replace(request, gpus=_ranks(request))
        is_run = run_from is not None
        return lambda progress: (_predicted(command, request, None, progress, is_run=is_run), ()), tuple(notes)
    by = f"is decided by {values.called('plan') if values.called is as_flag else 'the plan'}; leave one of them out"
    fields = {name: option.field or name for name, option in options.items() if name in given}
    for name, field in fields.items():
        if field in _DECIDED_BY_PLAN:
            values.add(f"{values.called(name)}: {by}")
    try:
        loaded, path = loaded_plan(plan)
    except InputFileError:
        values.check()  # what is wrong with the options, whatever the file says
        raise
    request = request_of(options, {"mode": loaded.content.mode, **given}, values, command_line)
    for name, field in fields.items():
        if is_of_plan(field):
            values.add(f"{values.called(name)}: {by}")
    changes = changes_of(options, given, request) | ({"model": request.model} if request.model else {})

    return _of_file(command, (loaded, path), changes, request), ()


def _of_file(
    command: Command, plan: tuple[Loaded[PlanDocument], Path], changes: Mapping[str, Any], request: Request
) -> Callable[[Progress | None], tuple[Any, tuple[str, ...]]]:
    """What `question_about_plan` returns of a plan file."""
    loaded, path = plan

    def predicted(progress: Progress | None) -> tuple[Any, tuple[str, ...]]:
        from planner.spaces.plan_question import plan_warnings, space_of_file

        document, space = space_of_file(loaded, path, changes, request.command_line)
        known, broken = None, []
        try:
            known = space.plan_of(document, loaded.document)
        except InputFileError as error:
            if command != "why-not":
                raise
            broken = str(error).splitlines()
        asked = dataclasses.replace(space.request, **{name: getattr(request, name) for name in _SEARCHING})
        answer = _predicted(command, asked, known, progress, broken=broken)
        estimate = answer.plan if command == "why-not" else None if command == "optimize" else answer
        return answer, () if estimate is None else tuple(plan_warnings(document, estimate))

    return predicted


def _predicted(
    command: Command,
    request: Request,
    plan: Any,
    progress: Progress | None,
    *,
    broken: Sequence[str] = (),
    is_run: bool = False,
) -> Any:
    if command == "why-not":
        from planner.comparison.why_not import why_not

        return why_not(request, plan, broken=broken, is_run=is_run, progress=progress)
    from planner.spaces import ask

    if command == "optimize":
        return ask.optimize_beside(request, plan, progress)
    return ask.estimate(request, plan) if command == "estimate" else ask.explain(request, plan, progress)


def is_of_plan(field: str) -> bool:
    """Whether a field of a request says what plans have."""
    return ":" in field or field == "offload"


def changes_of(options: Mapping[str, Option], given: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """What options ask beside a plan file ("and on that cluster?"): fields of the request."""
    fields = [options[name].field or name for name in options if name in given]
    asked = [name for name in fields if not is_of_plan(name) and name not in (*_DECIDED_BY_PLAN, *_SEARCHING)]
    return {name: getattr(request, name) for name in asked}


def loaded_plan(plan: Any) -> tuple[Loaded[PlanDocument], Path]:
    """A plan file and its path, or the plan file that a document (mapping) would be."""
    if isinstance(plan, (str, os.PathLike)):
        from planner.files.plan_file import read_plan

        path = Path(plan)
        return read_plan(path), path
    from planner.files.documents import document_of
    from planner.files.loading import Loaded
    from planner.files.validation import validate
    from planner.schema.plan import PlanDocument

    path = Path("the argument plan")
    document = document_of(path, "", plan)
    in_memory = {name: value for name, value in plan.items() if isinstance(value, InMemory)}
    content = validate(PlanDocument, document).model_copy(update=in_memory)
    return Loaded(content=content, document=document), path


# -- a scaling curve --------------------------------------------------------------------------------------------------------


def curve_of(given: Mapping[str, Any], values: Values, command_line: str) -> Scaling:
    """Check the options of a curve, and predict it; `values` takes the problems, and raises them all."""
    from planner.question.resolve import resolve

    called = values.called
    options = options_of(ScaleOptions)
    given = with_gpus(options, given, values, "workers")
    del options["nodes"]
    own = {name: options.pop(name) for name in ("workers", "weak", "strong", "family", "epochs", "samples")}
    asked = read_options(own, given, values)
    weak, epochs, samples = bool(asked.get("weak")), asked.get("epochs"), asked.get("samples")
    counts = asked["workers"] if "workers" in asked else _usual_counts(given.get("cluster"))
    if weak and asked.get("strong"):
        values.add(f"{called('weak')} and {called('strong')}: choose one")
    if ("epochs" in given) != ("samples" in given):
        values.add(f"{called('epochs')} and {called('samples')}: give both, for the hours of a training")
    request = request_of(options, given, values, command_line, gpus=max(counts, default=1))
    values.check()
    family = asked.get("family") or resolve(request).kind.scaled_family
    if not family:
        raise UsageError(
            f"{called('mode')} inference: '{request.model}' generates text, token by token, and a scaling curve is of whole batches; "
            f"'planner optimize {request.model} --mode inference --gpus {max(counts)}' finds what serves most on up to so many GPUs"
        )
    # The best plans of a space that has a curve of its own, else those of a family with a split per layer.
    curves = {name: info.curve for name, info in SPACES.items() if info.curve}
    curve: Scaling = imported(curves.get(family, curves["layers"]))(
        request, counts, weak=weak, family=family, epochs=epochs, samples=samples
    )
    return curve


def _usual_counts(cluster: str | None) -> tuple[int, ...]:
    """1, 2, 4, 8 where nothing was asked for; of a smaller cluster those that it has, and all of it."""
    known = None if cluster is None else _readable_cluster(cluster)
    most = math.inf if known is None or known.max_devices is None else known.max_devices
    return tuple(sorted({int(min(count, most)) for count in _USUAL_COUNTS}))

"""Plans to documents and back: what a plan file says about a network, checked against the network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.plan import Plan, Stage
from costmodel.splits import Split, legal_splits, split_table
from planner.errors import FileProblem, InputFileError, did_you_mean
from planner.request import Request
from planner.results import RankedPlan, SearchResult, Setting

if TYPE_CHECKING:
    from costmodel.graph import Graph
    from planner.documents import Document, Location
    from planner.loading import Loaded
    from planner.schema.plan import PlanDocument

__all__ = [
    "SCHEMA_VERSION",
    "changed_inputs",
    "document_from_plan",
    "plan_from_document",
    "plan_text",
    "read_plan",
    "request_from_document",
]

SCHEMA_VERSION = 1
_DEGREES = tuple(field.name for field in fields(Split))
_PALEO_OPTIONS = ("ppp_comp", "ppp_comm", "paleo_pipeline", "paleo_extensions", "paleo_algorithms")


def document_from_plan(
    ranked: RankedPlan,
    *,
    layer_names: Sequence[str],
    request: Request,
    setting: Setting,
    result: SearchResult | None = None,
    assumptions: Sequence[str] = (),
    folder: Path | None = None,
) -> dict[str, Any]:
    """Write a plan as plain values, in the order of a plan file.

    Parameters
    ----------
    ranked : RankedPlan
    layer_names : sequence of str
        Of the network, in its order.
    request : Request
        The question; names and paths are taken from it.
    setting : Setting
        What the question was resolved to.
    result : SearchResult, optional
        The search that the plan came from; adds the proof.
    assumptions : sequence of str
    folder : Path, optional
        Where the file will be: relative paths in it start there.

    Returns
    -------
    dict
        A valid ``planner.schema.plan.PlanDocument``; entries that say nothing are left out.
    """
    plan = ranked.plan
    assert len(layer_names) == len(plan.splits) == len(plan.collectives)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": _reference(request.model, folder),
        "cluster": _cluster(request, setting, folder),
        "device": _reference(request.device, folder) if request.device is not None else None,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "precision": setting.precision,
        "optimizer": setting.optimizer,
        "mode": setting.mode,
        "cost_model": setting.cost_model,
        "cost_model_options": _cost_model_options(request, folder),
        "memory_limit": request.memory_limit,
        "workers": plan.workers,
        "num_micro_batches": plan.num_micro_batches,
        "stages": [
            {"first": layer_names[stage.first], "last": layer_names[stage.last], "replicas": stage.replicas}
            for stage in plan.stages
        ],
        "layers": {
            name: _split_entry(split, collective)
            for name, split, collective in zip(layer_names, plan.splits, plan.collectives, strict=True)
        },
        "prediction": {
            "summary": ranked.summary,
            "family": ranked.family,
            "step_time_s": ranked.step_time_s,
            "throughput_samples_per_s": ranked.throughput_samples_per_s,
            "memory_bytes_per_gpu": ranked.memory_bytes_per_gpu,
        },
        "provenance": _provenance(setting, assumptions),
    }
    if result is not None:
        is_best = ranked.rank == 1
        document["prediction"] |= {"proven_optimal": result.proven_optimal and is_best, "bound_s": result.bound_s}
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def _cluster(request: Request, setting: Setting, folder: Path | None) -> str | None:
    if request.cluster is not None:
        return _reference(request.cluster, folder)
    # Written out, so that the plan keeps its meaning when the default changes; a device alone stays alone.
    return setting.cluster if request.device is None else None


def _cost_model_options(request: Request, folder: Path | None) -> dict[str, Any]:
    neutral = Request(model="")
    options = {name: getattr(request, name) for name in _PALEO_OPTIONS if getattr(request, name) != getattr(neutral, name)}
    if request.paleo_algorithms is not None:
        options["paleo_algorithms"] = _relative(request.paleo_algorithms, folder)
    return options


def _split_entry(split: Split, collective: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {name: degree for name, degree in zip(_DEGREES, split.degrees, strict=True) if degree > 1}
    return entry if collective is None else {**entry, "collective": collective}


def _provenance(setting: Setting, assumptions: Sequence[str]) -> dict[str, Any]:
    from planner import __version__  # noqa: PLC0415 - defined after this module may be imported

    provenance: dict[str, Any] = {"planner_version": __version__, "inputs": dict(setting.inputs)}
    if setting.command_line:
        provenance["command_line"] = setting.command_line
    if assumptions:
        provenance["assumptions"] = list(assumptions)
    return provenance


def _reference(text: str, folder: Path | None) -> str:
    """Name a file in a plan file: what exists as a path is a path, relative to the plan file; anything else is a bundled name."""
    path = Path(text)
    is_path = path.name != text or path.is_file()
    return _relative(path, folder) if is_path else text


def _relative(path: Path, folder: Path | None) -> str:
    if path.is_absolute() or folder is None:
        return str(path)
    text = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    return text if text.startswith(".") else f"./{text}"


def plan_text(document: Mapping[str, Any]) -> str:
    """Write a plan document as YAML."""
    from planner.report.yaml_text import yaml_text  # noqa: PLC0415 - only when something is exported

    comment = (
        f"{document['prediction']['summary']}\n"
        "Predict it again with: planner estimate --plan FILE. The degrees of every layer multiply to the workers;\n"
        "degrees of 1 are left out."
    )
    return yaml_text(document, comment)


def read_plan(path: Path) -> Loaded[PlanDocument]:
    """Read a plan file.

    Raises
    ------
    InputFileError
        Every problem of the file, with line and column.
    """
    from planner.loading import load_document  # noqa: PLC0415 - reading is rarer than writing
    from planner.schema.plan import PlanDocument  # noqa: PLC0415 - same

    return load_document(path, PlanDocument)


def request_from_document(document: PlanDocument, folder: Path) -> Request:
    """Ask the question that a plan answered.

    Parameters
    ----------
    document : PlanDocument
    folder : Path
        Of the plan file: its relative paths start there.
    """

    def found(text: str | None) -> str | None:
        is_path = text is not None and Path(text).name != text
        return str(folder / text) if text is not None and is_path else text

    options = document.cost_model_options
    algorithms = found(options.paleo_algorithms)
    model = found(document.model)
    assert model is not None
    return Request(
        model=model,
        cluster=found(document.cluster),
        device=found(document.device),
        gpus=document.gpus,
        batch=document.global_batch,
        precision=document.precision,
        optimizer=document.optimizer,
        mode=document.mode,
        cost_model=document.cost_model,
        ppp_comp=options.ppp_comp,
        ppp_comm=options.ppp_comm,
        paleo_pipeline=options.paleo_pipeline,
        paleo_extensions=options.paleo_extensions,
        paleo_algorithms=Path(algorithms) if algorithms is not None else None,
        memory_limit=document.memory_limit,
        micro_batches=document.num_micro_batches,
    )


def changed_inputs(document: PlanDocument, setting: Setting) -> tuple[str, ...]:
    """Roles of the input files that are not what they were when the plan was written."""
    recorded = document.provenance.inputs
    return tuple(sorted(role for role, sha256 in setting.inputs.items() if recorded.get(role, sha256) != sha256))


def plan_from_document(document: PlanDocument, graph: Graph, source: Document | None = None) -> Plan:
    """Check a plan document against its network.

    Parameters
    ----------
    document : PlanDocument
    graph : Graph
    source : Document, optional
        The file, for line and column.

    Returns
    -------
    Plan

    Raises
    ------
    InputFileError
        Every layer that is unknown, missing or split in a way that does not fit, and every fault of the stages.
    """
    checker = _Checker(document, graph, source)
    checker.check_layer_names()
    stages = checker.stages()
    checker.check_splits(stages)
    if checker.problems:
        raise InputFileError(checker.problems)
    entries = [document.layers[layer.name] for layer in graph.layers]
    return Plan(
        workers=document.workers,
        num_micro_batches=document.num_micro_batches,
        splits=tuple(_split(entry) for entry in entries),
        collectives=tuple(entry.collective for entry in entries),
        stages=stages,
    )


def _split(entry: Any) -> Split:
    return Split(**{name: getattr(entry, name) for name in _DEGREES})


class _Checker:
    """Collects what is wrong with a plan document."""

    def __init__(self, document: PlanDocument, graph: Graph, source: Document | None) -> None:
        self.document = document
        self.graph = graph
        self.source = source
        self.index = {layer.name: i for i, layer in enumerate(graph.layers)}
        self.problems: list[FileProblem] = []
        self.micro_batch = -(-document.global_batch // document.num_micro_batches)

    def _note(self, location: Location, message: str, *, at_key: bool = False) -> None:
        if self.source is not None:
            self.problems.append(self.source.problem(location, message, at_key=at_key))
        else:
            where = ".".join(map(str, location))
            self.problems.append(FileProblem(path=Path("plan"), where=where, message=message))

    def check_layer_names(self) -> None:
        """Every layer of the network once, and no other."""
        named = self.document.layers
        for name in named:
            if name not in self.index:
                hint = did_you_mean(name, self.index)
                self._note(("layers", name), f"network '{self.graph.name}' has no layer '{name}'{hint}", at_key=True)
        missing = [name for name in self.index if name not in named]
        if missing:
            listed = ", ".join(f"'{name}'" for name in missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
            self._note(("layers",), f"no split is given for {listed}", at_key=True)
        if self.document.num_micro_batches > self.document.global_batch:
            message = f"{self.document.num_micro_batches} micro-batches are more than the {self.document.global_batch} samples"
            self._note(("num_micro_batches",), message)

    def stages(self) -> tuple[Stage, ...]:
        """Stages by index; they must follow each other from the first layer to the last."""
        entries = self.document.stages
        layers = self.graph.layers
        stages: list[Stage] = []
        expected = 0
        for k, entry in enumerate(entries):
            unknown = [(key, name) for key, name in (("first", entry.first), ("last", entry.last)) if name not in self.index]
            for key, name in unknown:
                hint = did_you_mean(name, self.index)
                self._note(("stages", k, key), f"network '{self.graph.name}' has no layer '{name}'{hint}")
            if unknown:
                return ()
            stage = Stage(first=self.index[entry.first], last=self.index[entry.last], replicas=entry.replicas)
            if stage.first != expected:
                wanted = f"'{layers[expected].name}'" if expected < len(layers) else "no more layers"
                self._note(("stages", k, "first"), f"the stage must start where the one before it ends: {wanted}, not '{entry.first}'")
            if stage.last < stage.first:
                self._note(("stages", k, "last"), f"'{entry.last}' comes before '{entry.first}' in the network")
            expected = max(stage.last, stage.first) + 1
            stages.append(stage)
        if entries and expected < len(layers):
            last = len(entries) - 1
            self._note(("stages", last, "last"), f"the stages must cover all layers: '{layers[expected].name}' and after are in none")
        if entries and sum(entry.replicas for entry in entries) != self.document.workers:
            total = " + ".join(str(entry.replicas) for entry in entries)
            self._note(("workers",), f"is {self.document.workers}, but the stages use {total} workers")
        return tuple(stages)

    def check_splits(self, stages: tuple[Stage, ...]) -> None:
        """Degrees that multiply to the workers and fit the layer; collectives that exist."""
        stage_of = {i: stage for stage in stages for i in range(stage.first, stage.last + 1)}
        for name, entry in self.document.layers.items():
            i = self.index.get(name)
            if i is None:
                continue
            split = _split(entry)
            if self.document.stages:
                stage = stage_of.get(i)
                if stage is not None and split != Split(batch=stage.replicas):
                    self._note(("layers", name), f"must be {{batch: {stage.replicas}}}, the replicas of its stage")
            elif split.workers != self.document.workers:
                degrees = " x ".join(str(d) for d in split.degrees if d > 1) or "1"
                message = f"the degrees multiply to {degrees}" + (f" = {split.workers}" if "x" in degrees else "")
                self._note(("layers", name), f"{message}, not to the {self.document.workers} workers")
            self._check_limits(name, i, split)
            self._check_collective(name, i)

    def _check_limits(self, name: str, i: int, split: Split) -> None:
        layer = self.graph.layers[i]
        limits = layer.family.limits(layer)
        largest = {
            "batch": (self.micro_batch, "samples of a micro-batch"),
            "out_channels": (limits.out_channels, "parts that its output channels allow"),
            "in_channels": (limits.in_channels, "parts that its input channels allow"),
            "height": (limits.height, "parts that its rows allow"),
        }
        bad = [key for key in _DEGREES if getattr(split, key) > largest[key][0]]
        for key in bad:
            limit, what = largest[key]
            degree = getattr(split, key)
            reason = f"more than the {limit} {what}" if limit > 1 else f"a layer of type '{layer.kind}' cannot be split that way"
            self._note(("layers", name, key), f"{degree} is {reason}" if limit > 1 else reason)
        table = split_table([split.workers])
        if not bad and not legal_splits(layer, table, self.micro_batch)[table.row_of(split)]:
            message = (
                f"out_channels x in_channels is more than the {layer.output_shape[0]} output channels, among which partial sums are shared"
            )
            self._note(("layers", name), message)

    def _check_collective(self, name: str, i: int) -> None:
        from costmodel.collectives import ALL_REDUCES  # noqa: PLC0415

        collective = self.document.layers[name].collective
        if collective is None:
            return
        layer = self.graph.layers[i]
        if collective not in ALL_REDUCES:
            known = f"known: {', '.join(sorted(ALL_REDUCES))}"
            message = f"collective '{collective}' is not known{did_you_mean(collective, ALL_REDUCES)} ({known})"
            self._note(("layers", name, "collective"), message)
        elif layer.weight_count + layer.norm_count == 0:
            self._note(("layers", name, "collective"), "the layer has no weights, so nothing is exchanged")

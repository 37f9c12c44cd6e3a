"""A plan with a split per layer in words, and in plan files: what a file says must agree with its network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.layerwise.plan import Plan, Split, SplitTable, Stage, legal_splits, runs
from planner.core.errors import did_you_mean
from planner.core.numbers import counted
from planner.core.request import Request
from planner.files.plan_file import PlanProblems, cost_model_options

if TYPE_CHECKING:
    from costmodel.network.graph import Graph
    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument

_DEGREES = tuple(field.name for field in fields(Split))
_WORDS = (("batch", "data"), ("out_channels", "channels"), ("in_channels", "in-channels"), ("height", "rows"))
# A plan with more runs of equal splits, or more stages, than this is grouped: layers by their splits, stages by their replicas.
_MAX_RUNS = 6


def split_in_words(split: Split) -> str:
    """Write a split for people.

    >>> split_in_words(Split(batch=4, out_channels=2)), split_in_words(Split())
    ('data x4 channels x2', 'whole')
    """
    parts = [f"{word} x{getattr(split, name)}" for name, word in _WORDS if getattr(split, name) > 1]
    return " ".join(parts) or "whole"


def plan_in_words(graph: Graph, plan: Plan) -> str:
    """Summarise a plan in one line: ``conv1-conv5: data x16, fc6-fc8: channels x16, ring``."""
    if plan.workers == 1:
        words = ["one worker"]
    elif plan.is_pipeline:
        words = [_stages_in_words(graph, plan)]
    else:
        words = _splits_in_words(graph, plan)
    names = list(dict.fromkeys(name for name in plan.collectives if name is not None))
    if names:
        words.append(names[0] if len(names) == 1 else "cheapest collectives")
    if plan.num_micro_batches > 1:
        words.append(f"{plan.num_micro_batches} micro-batches")
    return ", ".join(words)


def _splits_in_words(graph: Graph, plan: Plan) -> list[str]:
    weighted = [i for i, layer in enumerate(graph.layers) if layer.weight_count > 0] or list(range(len(graph.layers)))
    labels = [split_in_words(plan.splits[i]) for i in weighted]
    if len(set(labels)) == 1:
        return [labels[0]]
    grouped = runs([graph.layers[i].name for i in weighted], labels)
    if len(grouped) <= _MAX_RUNS:
        return [f"{names}: {label}" for names, label in grouped]
    return [f"{counted(count, 'layer')} {label}" for label, count in Counter(labels).most_common()]


def _stages_in_words(graph: Graph, plan: Plan) -> str:
    spans = []
    for stage in plan.stages:
        names = [graph.layers[i].name for i in range(stage.first, stage.last + 1) if graph.layers[i].kind != "input"]
        spans.append(names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}")
    words = [f"{span} x{stage.replicas}" for span, stage in zip(spans, plan.stages, strict=True)]
    if len(spans) > _MAX_RUNS:  # neighbours with equal replicas share the number
        groups = [list(group) for _, group in groupby(range(len(spans)), key=lambda n: plan.stages[n].replicas)]
        words = [
            f"({' | '.join(spans[n] for n in group)}) x{plan.stages[group[0]].replicas} each"
            if len(group) > 1
            else words[group[0]]
            for group in groups
        ]
    return f"{len(spans)} stages: " + " | ".join(words)


def layerwise_section(request: Request, layer_names: Sequence[str], plan: Plan, folder: Path | None) -> dict[str, Any]:
    """Entries of a plan file that hold a plan.

    Parameters
    ----------
    request : Request
        The question; names and paths are taken from it.
    layer_names : sequence of str
        Of the network, in its order.
    plan : Plan
    folder : Path or None
        Where the file will be.
    """
    assert len(layer_names) == len(plan.splits) == len(plan.collectives)
    return {
        "cost_model_options": cost_model_options(request, folder),
        "workers": plan.workers,
        "num_micro_batches": plan.num_micro_batches,
        "stages": [
            {"first": layer_names[stage.first], "last": layer_names[stage.last], "replicas": stage.replicas}
            for stage in plan.stages
        ],
        "layers": {
            name: {
                **{key: degree for key, degree in zip(_DEGREES, split.degrees, strict=True) if degree > 1},
                **({} if collective is None else {"collective": collective}),
            }
            for name, split, collective in zip(layer_names, plan.splits, plan.collectives, strict=True)
        },
    }


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
    checker.check()
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


def _one_row(split: Split) -> SplitTable:
    """A table of a single split, to ask the cost model's own rule."""
    columns = {name: np.array([degree], dtype=np.int64) for name, degree in zip(_DEGREES, split.degrees, strict=True)}
    workers = np.array([split.workers], dtype=np.int64)
    return SplitTable(worker_counts=(split.workers,), offsets=(0, 1), workers=workers, **columns)


class _Checker(PlanProblems):
    def __init__(self, document: PlanDocument, graph: Graph, source: Document | None) -> None:
        super().__init__(document, source)
        self.graph = graph
        self.index = {layer.name: i for i, layer in enumerate(graph.layers)}
        self.micro_batch = -(-document.global_batch // document.num_micro_batches)

    def check_layer_names(self) -> None:
        """Every layer of the network once, and no other."""
        named = self.document.layers
        for name in named:
            if name not in self.index:
                hint = did_you_mean(name, self.index)
                self.note(("layers", name), f"network '{self.graph.name}' has no layer '{name}'{hint}", at_key=True)
        missing = [name for name in self.index if name not in named]
        if missing:
            listed = ", ".join(f"'{name}'" for name in missing[:5]) + (
                f" and {len(missing) - 5} more" if missing[5:] else ""
            )
            self.note(("layers",), f"no split is given for {listed}", at_key=True)
        if self.document.workers > self.document.gpus:
            self.note(("workers",), f"is {self.document.workers}, more than the {self.document.gpus} gpus")
        if self.document.num_micro_batches > self.document.global_batch:
            message = f"{self.document.num_micro_batches} micro-batches are more than the {self.document.global_batch} samples"
            self.note(("num_micro_batches",), message)

    def stages(self) -> tuple[Stage, ...]:
        """Stages by index; they must follow each other from the first layer to the last."""
        entries = self.document.stages
        layers = self.graph.layers
        stages: list[Stage] = []
        expected = 0
        for k, entry in enumerate(entries):
            unknown = [
                (key, name) for key, name in (("first", entry.first), ("last", entry.last)) if name not in self.index
            ]
            for key, name in unknown:
                hint = did_you_mean(name, self.index)
                self.note(("stages", k, key), f"network '{self.graph.name}' has no layer '{name}'{hint}")
            if unknown:
                return ()
            stage = Stage(first=self.index[entry.first], last=self.index[entry.last], replicas=entry.replicas)
            if stage.first != expected:
                wanted = f"'{layers[expected].name}'" if expected < len(layers) else "no more layers"
                self.note(
                    ("stages", k, "first"),
                    f"the stage must start where the one before it ends: {wanted}, not '{entry.first}'",
                )
            if stage.last < stage.first:
                self.note(("stages", k, "last"), f"'{entry.last}' comes before '{entry.first}' in the network")
            expected = max(stage.last, stage.first) + 1
            stages.append(stage)
        if entries and expected < len(layers):
            last = len(entries) - 1
            self.note(
                ("stages", last, "last"),
                f"the stages must cover all layers: '{layers[expected].name}' and after are in none",
            )
        if entries and sum(entry.replicas for entry in entries) != self.document.workers:
            total = " + ".join(str(entry.replicas) for entry in entries)
            self.note(("workers",), f"is {self.document.workers}, but the stages use {total} workers")
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
                    self.note(("layers", name), f"must be {{batch: {stage.replicas}}}, the replicas of its stage")
            elif split.workers != self.document.workers:
                degrees = " x ".join(str(d) for d in split.degrees if d > 1) or "1"
                message = f"the degrees multiply to {degrees}" + (f" = {split.workers}" if "x" in degrees else "")
                self.note(("layers", name), f"{message}, not to the {self.document.workers} workers")
            self._check_limits(name, i, split)
            self._check_collective(name, i)

    def _check_limits(self, name: str, i: int, split: Split) -> None:
        layer = self.graph.layers[i]
        if legal_splits(layer, _one_row(split), self.micro_batch)[0]:
            return
        # The cost model refuses the split: say which degree is at fault.
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
            reason = (
                f"more than the {limit} {what}"
                if limit > 1
                else f"a layer of type '{layer.kind}' cannot be split that way"
            )
            self.note(("layers", name, key), f"{degree} is {reason}" if limit > 1 else reason)
        if not bad:
            message = f"out_channels x in_channels is more than the {layer.output_shape[0]} output channels that share partial sums"
            self.note(("layers", name), message)

    def _check_collective(self, name: str, i: int) -> None:
        from costmodel.hardware.collectives import names_of

        collective = self.document.layers[name].collective
        if collective is None:
            return
        layer = self.graph.layers[i]
        known = names_of("all_reduce")
        if collective not in known:
            hint = did_you_mean(collective, known)
            message = f"collective '{collective}' is not known{hint} (known: {', '.join(sorted(known))})"
            self.note(("layers", name, "collective"), message)
        elif not layer.has_weights:
            self.note(("layers", name, "collective"), "the layer has no weights, so nothing is exchanged")

"""A plan in words."""

from __future__ import annotations

from collections import Counter

from costmodel.layerwise.plan import Plan, runs
from costmodel.layerwise.splits import Split
from costmodel.network.graph import Graph

__all__ = ["plan_in_words", "split_in_words"]

_WORDS = (("batch", "data"), ("out_channels", "channels"), ("in_channels", "in-channels"), ("height", "rows"))
# A plan with more runs of equal splits than this is summarised by counting layers.
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
    counted = Counter(labels).most_common()
    shown = [f"{count} layer{'s' if count > 1 else ''} {label}" for label, count in counted[:3]]
    if len(counted) > 3:
        shown.append(f"{sum(count for _, count in counted[3:])} otherwise")
    return shown


def _stages_in_words(graph: Graph, plan: Plan) -> str:
    stages = []
    for stage in plan.stages:
        names = [graph.layers[i].name for i in range(stage.first, stage.last + 1) if graph.layers[i].kind != "input"]
        span = names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
        stages.append(f"{span} x{stage.replicas}")
    if len(stages) > _MAX_RUNS:
        stages = [stages[0], f"... {len(stages) - 2} stages ...", stages[-1]]
    return f"{len(plan.stages)} stages: " + " | ".join(stages)

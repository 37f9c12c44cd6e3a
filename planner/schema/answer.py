"""What `--json` prints about plans of every space: models made from the figures that each space declares (`costmodel.fields.Figure`)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, create_model

from costmodel.fields import Figure
from costmodel.layerwise.plan import LAYERWISE_FIGURES
from costmodel.mesh.plan import MESH_FIGURES
from costmodel.mixed.plan import MIXED_FIGURES
from costmodel.serving.plan import SERVING_FIGURES
from planner.schema.mesh import MeshEntry
from planner.schema.mixed import MixedEntry
from planner.schema.plan import PlanDocument
from planner.schema.result import (
    Compared,
    ComparisonEntry,
    ErrorBarsEntry,
    Head,
    Number,
    Result,
    Seconds,
    SensitivityEntry,
    Tail,
)
from planner.schema.rows import (
    GroupUseEntry,
    LayerEntry,
    LinkEntry,
    MeshAloneEntry,
    MeshLayerEntry,
    MeshStageEntry,
    MixedStageRowEntry,
    ServingLayerEntry,
    SplitCheckEntry,
    StepBoundEntry,
    WhatIfEntry,
)
from planner.schema.serving import ServingPlanEntry

__all__ = ["AnyBreakdown", "AnyResult", "estimate_model", "search_model"]

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Fields = dict[str, tuple[Any, Any]]


class PlanHead(Result):
    """What every space says of a plan."""

    rank: int = Field(ge=1, description="1 is the best.")
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None
    probability_best: Number | None = Field(
        default=None,
        description="Chance that the plan is the best of the `benchmark_compared` first ones; null where it is none of these.",
    )
    workers: int = Field(ge=1, description="GPUs used; at most `gpus`.")
    family: str = Field(description="Parallel dimensions in use, joined by `+`, or the kind of split.")
    summary: str = Field(description="The plan in words.")
    bottleneck: str = Field(description="The part of its time that takes longest, in words.")
    gap: Number = Field(description="Objective over the best plan's, minus 1; a rate counts as its reciprocal.")


class AnswerHead(Head):
    """What every answer about plans begins with."""

    seq: int | None = Field(default=None, description="Positions (tokens) of a sample; of serving, prompt and answer.")
    objective: str = Field(description="What is best: step_time, gpu_hours, money, throughput, ...")


class SearchHead(Compared, Tail, AnswerHead):
    """What every answer of `planner optimize --json` says."""

    proven_optimal: bool = Field(description="Whether no plan of the stated space is better than the first.")
    proven_top: bool = Field(default=False, description="Whether the list is the best of the space.")
    bound_s: Seconds = Field(
        description="No plan of the stated space takes less time per step; of serving, the objective as a time where proven, else 0."
    )
    gap: Number = Field(ge=0, description="(best - bound) / best, of the objective.")
    space_size: int | None = Field(
        default=None,
        ge=0,
        description="Distinct plans in the stated space, exact; may exceed 64 bits. Null: not counted.",
    )
    space_size_log10: Number | None = None
    wall_s: Seconds = Field(description="Time of the search.")
    searched: dict[str, int] = Field(description="How the space was handled.")
    solver: str = Field(default="", description="Exact methods that proved the answer.")


class EstimateHead(Tail, AnswerHead):
    """What every answer of `planner estimate --json` and `planner explain --json` says."""

    step_time_s: Seconds = Field(description="Time of one step; of serving, the mean time per token after the first.")
    comparison: list[ComparisonEntry] = Field(description="Why it is not the best: the largest difference first.")
    error_bars: ErrorBarsEntry | None = None
    sensitivity: list[SensitivityEntry] | None = Field(
        default=None, description="With `--sensitivity`: what needs the smallest change first."
    )
    links: list[LinkEntry] | None = Field(default=None, description="What the step waits for the network.")


class ServingHead(Result):
    """The requests that are served."""

    prompt_tokens: int = Field(ge=1, description="Mean length of a prompt.")
    output_tokens: int = Field(ge=1, description="Mean length of an answer.")
    kv_precision: str = Field(description="Cache of keys and values: fp32, fp16, bf16 or fp8.")
    max_ttft_s: Seconds | None = Field(description="Limit on the time to first token.")
    max_tpot_s: Seconds | None = Field(description="Limit on the time per token.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """What only one space has: its figures, its plans, and keys of its answers."""

    title: str
    figures: Mapping[str, Figure]
    plan: Any
    of_plan: _Fields = field(default_factory=dict)
    rows: _Fields = field(default_factory=dict)
    head: tuple[type[BaseModel], ...] = ()


def _rows(entry: Any, text: str) -> tuple[Any, Any]:
    return (list[entry] | None, Field(default=None, description=text))


_NETWORK_ORDER = "In network order; of equal blocks, the first one's."
_SPACES: dict[str, _Space] = {
    "layers": _Space(
        title="Layerwise",
        figures=LAYERWISE_FIGURES,
        plan=PlanDocument,
        rows={
            "layers": _rows(LayerEntry, "Times per step on the slowest worker."),
            "totals": (
                LayerEntry | None,
                Field(default=None, description="Sums over the layers, under the same keys."),
            ),
        },
    ),
    "mesh": _Space(
        title="Mesh",
        figures=MESH_FIGURES,
        plan=MeshEntry,
        rows={
            "stages": _rows(MeshStageEntry, "One per pipeline rank."),
            "layers": _rows(MeshLayerEntry, _NETWORK_ORDER),
            "split": (
                SplitCheckEntry | None,
                Field(
                    default=None,
                    description="What the per-layer program says about the splits; null: nothing is split.",
                ),
            ),
        },
    ),
    "mixed": _Space(
        title="Mixed",
        figures=MIXED_FIGURES,
        plan=MixedEntry,
        of_plan={"groups": (list[GroupUseEntry], Field(description="In the order of the cluster."))},
        rows={
            "stages": _rows(MixedStageRowEntry, "Of one replica of every pipeline."),
            "bound": (StepBoundEntry | None, Field(default=None, description="What bounds the step.")),
            "what_if": _rows(WhatIfEntry, "Hardware before plans, the most useful change first."),
        },
    ),
    "serving": _Space(
        title="Serving",
        figures=SERVING_FIGURES,
        plan=ServingPlanEntry,
        rows={"layers": _rows(ServingLayerEntry, _NETWORK_ORDER)},
        head=(ServingHead,),
    ),
}


def _figure(figure: Figure) -> tuple[Any, Any]:
    """Type and field of a figure."""
    kinds: dict[str, Any] = {"number": Number, "amount": Amount, "count": int, "text": str}
    kind = kinds[figure.kind]
    least: dict[str, Any] = {"ge": figure.least} if figure.kind == "count" else {}
    if figure.optional:
        return (kind | None, Field(default=None, description=figure.doc, **least))
    return (kind, Field(description=figure.doc, **least))


@functools.cache
def _cost_model(space: str) -> type[BaseModel]:
    """A plan of a space with its figures."""
    known = _SPACES[space]
    sums = dict.fromkeys(figure.part_of for figure in known.figures.values() if figure.part_of)
    text = "A plan and its cost."
    for total in sums:
        names = [name for name, figure in known.figures.items() if figure.part_of == total]
        text += f" `{names[0]}` to `{names[-1]}` add up to `{total}`."
    fields: _Fields = {name: _figure(figure) for name, figure in known.figures.items()}
    fields |= known.of_plan
    fields["plan"] = (known.plan, Field(description="The plan itself, as in a plan file."))
    return create_model(f"{known.title}PlanCost", __base__=PlanHead, __doc__=text, **fields)  # type: ignore[call-overload, no-any-return]


@functools.cache
def search_model(space: str) -> type[BaseModel]:
    """Answer of `planner optimize --json` about plans of a space."""
    known = _SPACES[space]
    cost: Any = _cost_model(space)
    fields: _Fields = {
        "space": (Literal[space], Field(description="Space of the plans.")),
        "plans": (list[cost], Field(description="Best first.")),
        "data_parallel": (
            Any if space == "layers" else cost | None,
            Field(
                default=None,
                description="The best plan with data parallelism only; of serving, replicas of one GPU each.",
            ),
        ),
    }
    if space == "layers":
        entry: Any = create_model(  # type: ignore[call-overload]
            "LayerwiseCost",
            __base__=PlanHead,
            __doc__="A plan with a split per layer by its cost alone.",
            **{name: _figure(figure) for name, figure in known.figures.items()},
        )
        fields["data_parallel"] = (
            entry | None,
            Field(description="Best plain data parallelism on at most `gpus` workers; null: does not fit."),
        )
        fields["data_parallel_all"] = (
            entry | None,
            Field(description="Plain data parallelism on all `gpus` workers; null: does not fit."),
        )
    if space == "mesh":
        fields["refined"] = (
            cost | None,
            Field(
                description="Best plan found with `stage_blocks` and `stage_recompute` of its own, or `block_splits` that save at least "
                "1 %, where it is better than all uniform ones (its `gap` is negative); null: none is. `--export` writes it. `bound_s` "
                "and `proven_optimal` are about the uniform space."
            ),
        )
        fields["splits"] = (
            list[SplitCheckEntry],
            Field(
                description="What the per-layer program says about the splits inside the blocks of the best plans with tp > 1."
            ),
        )
    if space == "mixed":
        baseline: Any = create_model(
            "BaselineEntry",
            __base__=Result,
            __doc__="One group alone.",
            group=(str, ...),
            plan=(
                cost | None,
                Field(description="Its best plan of the stated space; null: nothing was found that fits."),
            ),
            bound_s=(
                Seconds | None,
                Field(description="No plan of that space on the group alone takes less; null: none."),
            ),
            mesh=(
                MeshAloneEntry | None,
                Field(
                    description="The best plan found on the group alone with all that `space: mesh` knows; null: none."
                ),
            ),
        )
        fields["baselines"] = (list[baseline], Field(description="Every group alone."))
    return create_model(  # type: ignore[call-overload, no-any-return]
        f"{known.title}ResultDocument",
        __base__=(SearchHead, *known.head),
        __doc__=f"Answer of `planner optimize --json` with `space: {space}`.",
        **fields,
    )


@functools.cache
def estimate_model(space: str) -> type[BaseModel]:
    """Answer of `planner estimate --json` and `planner explain --json` about a plan of a space."""
    known = _SPACES[space]
    cost: Any = _cost_model(space)
    fields: _Fields = {
        "space": (Literal[space], Field(description="Space of the plans.")),
        "plans": (list[cost], Field(min_length=1, max_length=1)),
        **known.rows,
        "best": (cost | None, Field(description="The best plan, where it was searched for.")),
    }
    return create_model(  # type: ignore[call-overload, no-any-return]
        f"{known.title}BreakdownDocument",
        __base__=(EstimateHead, *known.head),
        __doc__=f"Answer of `planner explain --json` with `space: {space}`; of `planner estimate --json` without rows by layer.",
        **fields,
    )


def _any(models: list[Any], name: str, text: str) -> type[BaseModel]:
    union: Any = functools.reduce(operator.or_, models)
    return create_model(name, __base__=RootModel[union], __doc__=text)


AnyResult = _any(
    [search_model(space) for space in _SPACES],
    "AnyResult",
    "Answer of `planner optimize --json`: by `space` of plans with a split per layer, over a device mesh, over several groups of devices, "
    "or of serving.",
)
AnyBreakdown = _any(
    [estimate_model(space) for space in _SPACES],
    "AnyBreakdown",
    "Answer of `planner explain --json` and `planner estimate --json`, of any space.",
)

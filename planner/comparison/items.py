"""One plan of a comparison, of any space, in one form: its question, its settings, its terms of time and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from planner.spaces.mesh.wording import MEMORY_WORDS, TIME_WORDS, splits_in_words
from planner.spaces.serving.wording import SERVING_MEMORY_WORDS, TPOT_WORDS, TTFT_WORDS

if TYPE_CHECKING:
    from planner.core.request import Request
    from planner.core.results import Breakdown, Setting
    from planner.spaces.mesh.results import MeshBreakdown
    from planner.spaces.mixed.results import MixedBreakdown
    from planner.spaces.serving.results import ServingEstimate

    Prediction: TypeAlias = Breakdown | MeshBreakdown | MixedBreakdown | ServingEstimate

__all__ = ["FIRST_TOKEN_TERMS", "TIME_TERMS", "Item", "item_of", "memory_terms"]

# Terms of a step and of the memory of every space, in the order in which they are shown. A split per layer has its optimizer and its
# gradient exchange under the names of a mesh, where they mean the same.
TIME_TERMS: Mapping[str, str] = {
    **TIME_WORDS,
    "reshard_s": "resharding",
    **TPOT_WORDS,
}
FIRST_TOKEN_TERMS: Mapping[str, str] = TTFT_WORDS
_LAYER_TERMS = {
    "compute_s": "compute_s",
    "dp_exposed_s": "exposed_exchange_s",
    "reshard_s": "reshard_s",
    "bubble_s": "bubble_s",
    "optimizer_s": "update_s",
}


def memory_terms(space: str) -> Mapping[str, str]:
    """Terms of the memory of a space, as people call them."""
    return SERVING_MEMORY_WORDS if space == "serving" else MEMORY_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One plan of a comparison.

    Attributes
    ----------
    question : mapping
        What was asked, as text by name.
    settings : mapping
        The plan, as text by name.
    layers : mapping
        Split of every layer as text, of a plan with a split per layer; empty otherwise.
    layer_bytes : mapping
        Memory of every layer on a worker; empty where the workers hold different layers.
    time_parts, first_token_parts, memory_parts : mapping
        Terms by key; those of time add up to `step_time_s` (of serving, the time per token), those of memory to `memory_bytes`.
    found : str
        How a search found it ("" for a plan that was given).
    """

    label: str
    space: str
    question: Mapping[str, str]
    settings: Mapping[str, str]
    layers: Mapping[str, str]
    layer_bytes: Mapping[str, float]
    summary: str
    family: str
    workers: int
    samples: int  # per step; of serving, sequences at a time
    seq: int | None
    step_time_s: float
    step_time_low_s: float | None
    step_time_high_s: float | None
    time_parts: Mapping[str, float]
    first_token_parts: Mapping[str, float]
    memory_bytes: float
    memory_capacity_bytes: float
    memory_parts: Mapping[str, float]
    served: Mapping[str, float]  # ttft_s, request_s, output_tokens_per_s, ...; empty of training
    objective: str
    mfu: float | None = None
    money_per_step: float | None = None  # in USD; of serving, per token of every sequence
    energy_per_step_j: float | None = None
    found: str = ""

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.memory_capacity_bytes


def item_of(label: str, request: Request, prediction: Prediction, *, found: str = "") -> Item:
    """Bring a prediction into the form of a comparison.

    Parameters
    ----------
    label : str
        What to call it.
    request : Request
        Its question.
    prediction : a prediction of any space
    found : str
        How a search found it, where one did.
    """
    from planner.core.results import Breakdown
    from planner.spaces.serving.results import ServingEstimate

    if isinstance(prediction, ServingEstimate):
        return _serving_item(label, request, prediction, found)
    ranked: Any = prediction.ranked
    is_layers = isinstance(prediction, Breakdown)
    layers = prediction.layers if isinstance(prediction, Breakdown) else ()
    has_stages = is_layers and bool(ranked.plan.stages)
    return Item(
        label=label,
        space=_space(prediction),
        question=_question(request, prediction.setting),
        settings=_settings(prediction),
        layers={layer.name: _layer_split(layer) for layer in layers},
        layer_bytes={} if has_stages else {layer.name: layer.memory_bytes for layer in layers},
        summary=ranked.summary,
        family=ranked.family,
        workers=ranked.workers,
        samples=prediction.setting.global_batch,
        seq=prediction.setting.seq,
        step_time_s=ranked.step_time_s,
        step_time_low_s=ranked.step_time_low_s,
        step_time_high_s=ranked.step_time_high_s,
        time_parts={key: float(getattr(ranked, name)) for key, name in _LAYER_TERMS.items()}
        if is_layers
        else dict(ranked.time_parts),
        first_token_parts={},
        memory_bytes=ranked.memory_bytes_per_gpu,
        memory_capacity_bytes=ranked.memory_capacity_bytes,
        memory_parts={} if is_layers else dict(ranked.memory_parts),
        served={},
        objective=getattr(prediction, "objective", "step_time"),
        mfu=getattr(ranked, "mfu", None),
        money_per_step=_money(ranked, prediction.setting),
        energy_per_step_j=getattr(ranked, "energy_per_step_j", None),
        found=found,
    )


def _serving_item(label: str, request: Request, prediction: ServingEstimate, found: str) -> Item:
    ranked = prediction.ranked
    asked = {
        "prompt tokens": f"{prediction.prompt_tokens:,}",
        "output tokens": f"{prediction.output_tokens:,}",
        "format of keys and values": prediction.kv_precision,
    }
    question = _question(request, prediction.setting)
    for name in ("global batch", "optimizer", "sequence length"):  # of training
        question.pop(name, None)
    return Item(
        label=label,
        space="serving",
        question={**question, **asked},
        settings={**_fields(ranked.plan), "workers": str(ranked.workers)},
        layers={},
        layer_bytes={},
        summary=ranked.summary,
        family=ranked.family,
        workers=ranked.workers,
        samples=ranked.plan.concurrency,
        seq=None,
        step_time_s=ranked.tpot_s,
        step_time_low_s=ranked.step_time_low_s,
        step_time_high_s=ranked.step_time_high_s,
        time_parts=dict(ranked.tpot_parts),
        first_token_parts=dict(ranked.ttft_parts),
        memory_bytes=ranked.memory_bytes_per_gpu,
        memory_capacity_bytes=ranked.memory_capacity_bytes,
        memory_parts=dict(ranked.memory_parts),
        served={
            "ttft_s": ranked.ttft_s,
            "request_s": ranked.request_s,
            "requests_per_s": ranked.requests_per_s,
            "output_tokens_per_s": ranked.output_tokens_per_s,
            "output_tokens_per_s_per_gpu": ranked.output_tokens_per_s_per_gpu,
        },
        objective=prediction.objective,
        money_per_step=None
        if ranked.money_per_million_output_tokens is None
        else ranked.money_per_million_output_tokens * ranked.plan.concurrency / 1e6,
        found=found,
    )


def _money(ranked: Any, setting: Setting) -> float | None:
    """Of one step, in USD; a plan over several groups knows it per token."""
    money: float | None = getattr(ranked, "money_per_step", None)
    per_token: float | None = getattr(ranked, "money_per_million_tokens", None)
    if money is None and per_token is not None and setting.seq is not None:
        return per_token * setting.global_batch * setting.seq / 1e6
    return money


def _space(prediction: Any) -> str:
    kind = type(prediction).__name__
    return {"Breakdown": "layers", "MeshBreakdown": "mesh", "MixedBreakdown": "mixed"}[kind]


def _question(request: Request, setting: Setting) -> dict[str, str]:
    """What was asked, in words; two questions are the same where all of it is."""
    facts = {
        "mode": setting.mode,
        "model": setting.model,
        "global batch": f"{setting.global_batch:,}",
        "sequence length": None if setting.seq is None else f"{setting.seq:,}",
        "assumed free": ", ".join(request.assume_free) or None,
        "adapters": None if request.lora_rank is None else f"rank {request.lora_rank}",
        "cluster": setting.cluster,
        "device": setting.device,
        "precision": setting.precision,
        "optimizer": setting.optimizer,
        "cost model": setting.cost_model,
        "calibration": request.calibration,
        "framework": setting.framework or None,
        "assumptions": ", ".join(f"{name} {value:g}" for name, value in request.assume) or None,
        # Two files of one name are two networks.
        "model file": setting.inputs.get("model"),
        "cluster file": setting.inputs.get("cluster"),
    }
    options = {
        f"{name} (paleo)": f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in setting.cost_model_options.items()
    }
    return {name: text for name, text in {**facts, **options}.items() if text is not None}


def _settings(prediction: Prediction) -> dict[str, str]:
    """The plan as text by name; what belongs to layers stands apart."""
    from planner.core.results import Breakdown
    from planner.spaces.mixed.results import MixedBreakdown

    ranked: Any = prediction.ranked
    workers = {"workers": f"{ranked.workers:,}"}
    if isinstance(prediction, Breakdown):
        plan = prediction.ranked.plan
        names = [layer.name for layer in prediction.layers]
        stages = " | ".join(f"{names[s.first]}-{names[s.last]} x{s.replicas}" for s in plan.stages)
        return {
            **workers,
            "num_micro_batches": str(plan.num_micro_batches),
            "pp": str(max(1, len(plan.stages))),
            **({"stages": stages} if stages else {}),
        }
    if isinstance(prediction, MixedBreakdown):
        return {**workers, **_mixed_settings(prediction)}
    entries = _fields(ranked.plan)
    splits = entries.pop("block_splits", None)
    if splits:
        entries["block_splits"] = splits_in_words(ranked.plan.block_splits)
    return {**workers, **entries}


def _mixed_settings(prediction: MixedBreakdown) -> dict[str, str]:
    plan, names = prediction.ranked.plan, [use.name for use in prediction.ranked.groups]
    entries = {name: text for name, text in _fields(plan).items() if name != "pipelines"}
    for n, pipeline in enumerate(plan.pipelines):
        number = f" {n + 1}" if len(plan.pipelines) > 1 else ""
        stages = " | ".join(
            f"{names[s.group]}: {s.blocks} blocks, tp {s.tp}"
            + (f", recompute {s.recompute} {s.recompute_blocks or ''}".rstrip() if s.recompute != "none" else "")
            for s in pipeline.stages
        )
        longer = f" (+1 on {pipeline.longer})" if pipeline.longer else ""
        entries[f"pipeline{number}"] = stages
        entries[f"replicas{number}"] = str(pipeline.replicas)
        entries[f"micro-batches{number}"] = f"{pipeline.micro_batch} x {pipeline.num_micro_batches}{longer}"
    return entries


def _fields(plan: Any) -> dict[str, str]:
    return {field.name: _text(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)


def _layer_split(layer: Any) -> str:
    return f"{layer.split}, {layer.collective}" if layer.collective else str(layer.split)

"""One plan of a comparison, of any space, in one form: its question, its settings, its terms of time and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.fields import labels_of
from costmodel.layerwise.plan import LAYERWISE_FIGURES
from costmodel.mesh.plan import MESH_FIGURES
from costmodel.serving.plan import SERVING_FIGURES
from planner.core.answer import Estimate, RankedPlan, Setting
from planner.core.request import Request
from planner.spaces.mesh.labels import splits_in_words

__all__ = ["FIRST_TOKEN_TERMS", "TIME_TERMS", "Item", "item_of", "memory_terms"]

# Terms of a step and of the memory of every space, in the order in which they are shown. A split per layer has its optimizer and its
# gradient exchange under the names of a mesh, where they mean the same.
TIME_TERMS: Mapping[str, str] = {
    **labels_of(MESH_FIGURES.values(), "step_time_s"),
    "reshard_s": LAYERWISE_FIGURES["reshard_s"].label,
    **labels_of(SERVING_FIGURES.values(), "tpot_s"),
}
FIRST_TOKEN_TERMS: Mapping[str, str] = labels_of(SERVING_FIGURES.values(), "ttft_s")
_SAME_TERM = {"exposed_exchange_s": "dp_exposed_s", "update_s": "optimizer_s"}
_SERVED = ("ttft_s", "request_s", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")


def memory_terms(space: str) -> Mapping[str, str]:
    """Terms of the memory of a space, as people call them."""
    figures = SERVING_FIGURES if space == "serving" else MESH_FIGURES
    return labels_of(figures.values(), "memory_bytes_per_gpu")


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


def item_of(label: str, request: Request, estimate: Estimate, *, found: str = "") -> Item:
    """Bring a prediction into the form of a comparison.

    Parameters
    ----------
    label : str
        What to call it.
    request : Request
        Its question.
    estimate : Estimate
    found : str
        How a search found it, where one did.
    """
    ranked, setting, space = estimate.ranked, estimate.setting, estimate.space.name
    layers = estimate.tables["layers"] if space == "layers" else ()
    question = _question(request, setting)
    if setting.load is not None:
        for name in ("global batch", "optimizer", "sequence length"):  # of training
            question.pop(name, None)
        question |= {
            "prompt tokens": f"{setting.load.prompt_tokens:,}",
            "output tokens": f"{setting.load.output_tokens:,}",
            "format of keys and values": setting.load.kv_precision,
        }
    parts = ranked.time_parts
    return Item(
        label=label,
        space=space,
        question=question,
        settings=_settings(estimate),
        layers={layer.name: _layer_split(layer) for layer in layers},
        layer_bytes={} if layers and ranked.plan.stages else {layer.name: layer.memory_bytes for layer in layers},
        summary=ranked.summary,
        family=ranked.family,
        workers=ranked.workers,
        samples=setting.global_batch,
        seq=setting.seq if setting.load is None else None,
        step_time_s=ranked.step_time_s,
        step_time_low_s=ranked.step_time_low_s,
        step_time_high_s=ranked.step_time_high_s,
        time_parts={_SAME_TERM.get(name, name): seconds for name, seconds in parts.items()},
        first_token_parts=ranked.parts("ttft_s"),
        memory_bytes=ranked.memory_bytes_per_gpu,
        memory_capacity_bytes=ranked.memory_capacity_bytes,
        memory_parts=ranked.memory_parts,
        served={name: ranked[name] for name in _SERVED if setting.load is not None},
        objective=estimate.objective,
        mfu=ranked.get("mfu"),
        money_per_step=_money(ranked),
        energy_per_step_j=ranked.get("energy_per_step_j"),
        found=found,
    )


def _money(ranked: RankedPlan) -> float | None:
    """Of one step, in USD; of serving, of one token of every sequence."""
    served: float | None = ranked.get("money_per_million_output_tokens")
    if served is not None:
        return served * int(ranked.plan.concurrency) / 1e6
    money: float | None = ranked.get("money_per_step")
    return money


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


def _settings(estimate: Estimate) -> dict[str, str]:
    """The plan as text by name; what belongs to layers stands apart."""
    ranked = estimate.ranked
    workers = {"workers": f"{ranked.workers:,}"}
    if estimate.space.name == "layers":
        plan = ranked.plan
        names = [layer.name for layer in estimate.tables["layers"]]
        stages = " | ".join(f"{names[s.first]}-{names[s.last]} x{s.replicas}" for s in plan.stages)
        return {
            **workers,
            "num_micro_batches": str(plan.num_micro_batches),
            "pp": str(max(1, len(plan.stages))),
            **({"stages": stages} if stages else {}),
        }
    if ranked.groups:
        return {**workers, **_mixed_settings(ranked)}
    entries = _fields(ranked.plan)
    splits = entries.pop("block_splits", None)
    if splits:
        entries["block_splits"] = splits_in_words(ranked.plan.block_splits)
    return {**workers, **entries}


def _mixed_settings(ranked: RankedPlan) -> dict[str, str]:
    plan, names = ranked.plan, [use.name for use in ranked.groups]
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

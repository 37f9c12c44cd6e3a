"""One plan of a comparison, of any space, in one form: its question, its settings, its terms of time and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from costmodel.fields import labels_of
from costmodel.layerwise.plan import LAYERWISE_FIGURES
from costmodel.mesh.plan import MESH_FIGURES
from costmodel.objectives import with_figures
from costmodel.serving.plan import SERVING_FIGURES
from planner.core.answer import Estimate, Setting
from planner.core.numbers import duration_text
from planner.core.request import Request

if TYPE_CHECKING:
    from planner.spaces.base import PlanSpace

# What times are compared per: a step (of the same work), a sample, a token.
Basis = Literal["step", "sample", "token"]

# Terms of a step and of the memory of every space, in the order in which they are shown. A split per layer has its optimizer and its
# gradient exchange under the names of a mesh, where they mean the same.
TIME_TERMS: Mapping[str, str] = {
    **labels_of(MESH_FIGURES.values(), "step_time_s"),
    "reshard_s": LAYERWISE_FIGURES["reshard_s"].label,
    **labels_of(SERVING_FIGURES.values(), "tpot_s"),
}
FIRST_TOKEN_TERMS: Mapping[str, str] = labels_of(SERVING_FIGURES.values(), "ttft_s")
_SAME_TERM = {"exposed_exchange_s": "dp_exposed_s", "update_s": "optimizer_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One plan of a comparison: of training or a forward pass here; a space whose plans do something else has a class of its own.

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
    costs : mapping
        What a step costs, by figure (`costmodel.objectives.with_figures`).
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
    samples: int  # per step
    seq: int | None
    step_time_s: float
    step_time_low_s: float | None
    step_time_high_s: float | None
    time_parts: Mapping[str, float]
    first_token_parts: Mapping[str, float]
    memory_bytes: float
    memory_capacity_bytes: float
    memory_there_bytes: float
    fits_probability: float | None
    memory_parts: Mapping[str, float]
    objective: str
    costs: Mapping[str, float | None]
    mfu: float | None = None
    found: str = ""
    fits_text: str = ""

    # What plans are compared for in ``--json``, what they do where they train nothing, and what they make, as people count it.
    kind: ClassVar[str] = "training"
    does: ClassVar[str] = "costs one forward pass"
    samples_word: ClassVar[str] = "samples"
    tokens_word: ClassVar[str] = "tokens"
    # Terms of the memory, as people call them.
    memory_terms: ClassVar[Mapping[str, str]] = labels_of(MESH_FIGURES.values(), "memory_bytes_per_gpu")

    @classmethod
    def of(cls, label: str, request: Request, estimate: Estimate, found: str) -> Item:
        """Bring a prediction into the form of a comparison."""
        return cls(**item_fields(label, request, estimate, found))

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.memory_capacity_bytes

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.samples / self.step_time_s

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput in tokens; None where samples are no sequences."""
        return None if self.seq is None else self.samples * self.seq / self.step_time_s

    @property
    def first_token_s(self) -> float | None:
        """Time to the first token; None of what generates none."""
        return None

    def work(self, basis: Basis) -> int:
        """Steps, samples or tokens of one step."""
        return {"step": 1, "sample": self.samples, "token": self.samples * (self.seq or 1)}[basis]

    def usual_basis(self, basis: Basis) -> Basis:
        """What times are compared per, where the questions ask for the given one."""
        return basis

    def per(self, basis: Basis) -> str:
        """What a time is per, in words."""
        return basis

    def amount(self, basis: Basis) -> tuple[int, str]:
        """How much a step makes, and of what: money and energy are shown per one of it."""
        return self.work(basis), basis

    def score(self, basis: Basis, objective: str) -> float:
        """What decides which plan is the better one, less first."""
        return self.step_time_s / self.work(basis)

    def ranked_by(self, objective: str) -> str:
        """The objective that its score is of, where the questions have the given one."""
        return "step_time"

    def rates(self, other: Item, basis: Basis) -> str:
        """Times of it and of another."""
        times = [duration_text(item.step_time_s / item.work(basis)) for item in (self, other)]
        return f"{times[0]} per {basis} against {times[1]}"

    def batches(self, other: Item) -> str:
        """What a larger batch has to do with it."""
        return ""


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
    return _space_of(estimate).item_type().of(label, request, estimate, found)


def _space_of(estimate: Estimate) -> PlanSpace:
    return cast("PlanSpace", estimate.space)  # as every answer has it


def item_fields(label: str, request: Request, estimate: Estimate, found: str) -> dict[str, Any]:
    """Fields of an item, as they are of training."""
    ranked, setting, space = estimate.ranked, estimate.setting, _space_of(estimate)
    layers = space.split_layers(estimate)
    return {
        "label": label,
        "space": space.name,
        "question": _question(request, setting),
        "settings": {"workers": f"{ranked.workers:,}", **space.setting_texts(estimate)},
        "layers": {
            layer.name: f"{layer.split}, {layer.collective}" if layer.collective else layer.split for layer in layers
        },
        "layer_bytes": {} if layers and ranked.plan.stages else {layer.name: layer.memory_bytes for layer in layers},
        "summary": ranked.summary,
        "family": ranked.family,
        "workers": ranked.workers,
        "samples": setting.global_batch,
        "seq": setting.seq,
        "step_time_s": ranked.step_time_s,
        "step_time_low_s": ranked.step_time_low_s,
        "step_time_high_s": ranked.step_time_high_s,
        "time_parts": {_SAME_TERM.get(name, name): seconds for name, seconds in ranked.time_parts.items()},
        "first_token_parts": ranked.parts("ttft_s"),
        "memory_bytes": ranked.memory_bytes_per_gpu,
        "memory_capacity_bytes": ranked.memory_capacity_bytes,
        "memory_there_bytes": ranked.memory_there_bytes,
        "fits_probability": ranked.fits_probability,
        "fits_text": ranked.fits_text,
        "memory_parts": ranked.memory_parts,
        "objective": estimate.objective,
        "mfu": ranked.get("mfu"),
        "costs": {name: ranked.get(name) for name in with_figures()},
        "found": found,
    }


def _question(request: Request, setting: Setting) -> dict[str, str]:
    """What was asked, in words; two questions are the same where all of it is."""
    facts = {
        "mode": setting.mode,
        "model": setting.model,
        "global batch": f"{setting.global_batch:,}",
        "sequence length": None if setting.seq is None else f"{setting.seq:,}",
        "documents": request.documents_text,
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


def setting_texts(plan: Any) -> dict[str, str]:
    """The settings of a plan as text, by name."""
    return {field.name: _text(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)

"""Questions about serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from planner.core.answer import ServingLoad
from planner.core.errors import UsageError
from planner.core.request import TimeLimit
from planner.question.choose import Asked, Kind

if TYPE_CHECKING:
    from planner.schema.plan import PlanDocument

# Limits that a plan file states.
_LIMITED = ("max_ttft", "max_tpot")
# Attention that can generate text.
_GENERATING = frozenset({"self_attention", "latent_attention"})


class ServingKind(Kind):
    """Inference of a network that generates text, without an option of a split per layer."""

    scaled_family: ClassVar[str] = ""

    def applies(self, asked: Asked) -> bool:
        request, graph = asked.request, asked.graph
        if request.mode != "inference" or request.space == "mesh":
            return False
        given = ["--space layers"] if request.space == "layers" else []
        given += [option for option in asked.of_layers if not option.startswith("--assume ")]
        given += ["--diverse"] if request.diverse else []
        served = request.serving_options
        if given and served:
            raise UsageError(
                f"{served[0]} is for serving and {given[0]} for plans with a split per layer; leave one of them out"
            )
        generates = any(layer.kind in _GENERATING and layer.params.causal and layer.block for layer in graph.layers)
        if served and not generates:
            raise UsageError(
                f"{served[0]}: network '{graph.name}' does not generate text; without it, "
                "--mode inference costs the forward pass"
            )
        return generates and not given

    def asked_by(self, document: PlanDocument) -> dict[str, Any]:
        entry: Any = document.serving
        names = {item.name for item in fields(ServingLoad)} - {"kv_precision", "load", *_LIMITED}
        limits = {time: (getattr(entry, f"{time}_s"), getattr(entry, f"{time}_percentile")) for time in _LIMITED}
        return {
            "kv": entry.kv_precision,
            "load": entry.load if entry.rate_per_s is None else None,  # a rate says how requests come, beside "traffic"
            **{name: getattr(entry, name) for name in ("objective", *names)},
            **{time: None if seconds is None else TimeLimit(seconds, of) for time, (seconds, of) in limits.items()},
        }

    def with_batch(self, document: PlanDocument, batch: int) -> PlanDocument:
        return document  # whose batch is the sequences at a time

    def check_assumed(self, assumed: Sequence[tuple[str, float]]) -> None:
        """Its cost model checks them, with all else that is wrong."""

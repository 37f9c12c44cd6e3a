"""Plans that serve a network, as a comparison takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from costmodel.fields import labels_of
from costmodel.objectives import SERVING_OBJECTIVES
from costmodel.serving.plan import SERVING_FIGURES
from planner.core.answer import Estimate
from planner.core.numbers import counted, duration_text, percent, significant
from planner.core.request import Request
from planner.spaces.items import Basis, Item, item_fields
from planner.spaces.serving.space import varying

# What is asked of training only.
_OF_TRAINING = ("global batch", "optimizer", "sequence length")
_COSTS = tuple(objective.cost_figure for objective in SERVING_OBJECTIVES.values() if objective.cost_figure)
_SERVED = ("ttft_s", "request_s", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", *_COSTS)


# What else is asked, by the names of assumptions that say it.
_ASKED = ("load", "prefill device", "drafts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedItem(Item):
    """One plan of a comparison, that serves: its step is a token of every sequence, and its samples the sequences at a time.

    Attributes
    ----------
    served : mapping
        Figures by name: ``ttft_s``, ``request_s``, ``output_tokens_per_s``, ...
    costs : mapping
        Of a token of every sequence: money alone.
    """

    served: Mapping[str, float]

    kind: ClassVar[str] = "serving"
    does: ClassVar[str] = "serves requests"
    samples_word: ClassVar[str] = "requests"
    tokens_word: ClassVar[str] = "output tokens"
    memory_terms: ClassVar[Mapping[str, str]] = labels_of(SERVING_FIGURES.values(), "memory_bytes_per_gpu")

    @classmethod
    def of(cls, label: str, request: Request, estimate: Estimate, found: str) -> ServedItem:
        fields, load, ranked = item_fields(label, request, estimate, found), estimate.setting.load, estimate.ranked
        assert load is not None, "what serves has requests"
        question = {
            **{name: text for name, text in fields["question"].items() if name not in _OF_TRAINING},
            "prompt tokens": f"{load.prompt_tokens:,}"
            + varying(load.prompt_cv)
            + (f", {percent(load.prefix_cached)} of them cached" if load.prefix_cached else ""),
            "output tokens": f"{load.output_tokens:,}" + varying(load.output_cv),
            "format of keys and values": load.kv_precision,
            **{said.name: said.value for said in estimate.assumptions if said.name in _ASKED},
        }
        money = ranked.get("money_per_million_output_tokens")
        fields |= {
            "question": question,
            "seq": None,
            "costs": fields["costs"]
            | {"money_per_step": None if money is None else money * ranked.plan.concurrency / 1e6},
        }
        return cls(**fields, served={name: ranked[name] for name in _SERVED if ranked[name] is not None})

    @property
    def samples_per_s(self) -> float:
        return self.served["requests_per_s"]

    @property
    def tokens_per_s(self) -> float:
        return self.served["output_tokens_per_s"]

    @property
    def first_token_s(self) -> float:
        return self.served["ttft_s"]

    def usual_basis(self, basis: Basis) -> Basis:
        return "step"

    def per(self, basis: Basis) -> str:
        return "token"

    def amount(self, basis: Basis) -> tuple[int, str]:
        return self.samples, "output token"

    def score(self, basis: Basis, objective: str) -> float:
        figures = {**self.served, "tpot_s": self.step_time_s}
        found = SERVING_OBJECTIVES[self.ranked_by(objective)]
        cost = figures.get(found.cost_figure)
        return float(found.score(figures, self.workers)) if cost is None else cost

    def ranked_by(self, objective: str) -> str:
        return objective if objective in SERVING_OBJECTIVES else "throughput"

    def rates(self, other: Item, basis: Basis) -> str:
        rates = [f"{significant(item.tokens_per_s)} output tokens/s" for item in (self, other)]
        times = [duration_text(item.step_time_s) for item in (self, other)]
        return f"{rates[0]} against {rates[1]}, a token every {times[0]} against {times[1]}"

    def batches(self, other: Item) -> str:
        """A larger batch of sequences is where throughput comes from."""
        if self.samples == other.samples:
            return ""
        return f" It serves {counted(self.samples, 'sequence')} at a time against {other.samples:,}."

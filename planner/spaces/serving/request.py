"""The question about serving as the user asked it, beside the options that every question has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.core.request import Request

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds

__all__ = ["DEFAULT_OUTPUT_TOKENS", "DEFAULT_PROMPT_TOKENS", "ServingRequest"]

# A short document and an answer of a few paragraphs.
DEFAULT_PROMPT_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """Options of one command; None means "not given".

    Attributes
    ----------
    base : Request
        Model, cluster, GPUs, precision of the weights, objective, what is shown.
    kv : str or None
        Number format of the cache.
    degrees : mapping
        max_batch, prefill_chunk, prefill_batch -> allowed values.
    """

    base: Request
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None
    kv: str | None = None
    degrees: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """Options that only a question about serving has."""
        flags = {
            "--prompt": self.prompt_tokens,
            "--output-tokens": self.output_tokens,
            "--max-ttft": self.max_ttft_s,
            "--max-tpot": self.max_tpot_s,
            "--kv-precision": self.kv,
        }
        names = [flag for flag, value in flags.items() if value is not None]
        return names + [f"--{name.replace('_', '-')}" for name in self.degrees]

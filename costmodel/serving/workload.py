"""What is served: network, lengths of prompts and answers, number formats."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.graph import Graph
from costmodel.workload import CONTEXT_BYTES

__all__ = ["KV_FORMATS", "WEIGHT_FORMATS", "ServingError", "ServingWorkload", "WeightFormat"]


class ServingError(ValueError):
    """A network or a question that cannot be served; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Number format of the matrices inside the blocks; embedding, head and norms keep the format of the activations.

    Sources: vLLM documentation, quantization, FP8 W8A8 (linear layers of the blocks in fp8, the head is left out); compressed checkpoints
    such as deepseek-ai/DeepSeek-V3 do the same.
    """

    name: str
    compute: str  # key of Device.peak_flop_per_s
    weight_bytes: float
    activation_bytes: float
    activation_compute: str  # format of what is not in fp8


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat(name="fp32", compute="fp32", weight_bytes=4.0, activation_bytes=4.0, activation_compute="fp32"),
        WeightFormat(name="tf32", compute="tf32", weight_bytes=4.0, activation_bytes=4.0, activation_compute="tf32"),
        WeightFormat(name="fp16", compute="fp16", weight_bytes=2.0, activation_bytes=2.0, activation_compute="fp16"),
        WeightFormat(name="bf16", compute="bf16", weight_bytes=2.0, activation_bytes=2.0, activation_compute="bf16"),
        WeightFormat(name="fp8", compute="fp8", weight_bytes=1.0, activation_bytes=2.0, activation_compute="bf16"),
    )
}
# Bytes of an element of the cache of keys and values.
KV_FORMATS: dict[str, float] = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorkload:
    """A network and the requests it answers; lengths are means over the requests.

    Raises
    ------
    ServingError
        A length below 1.
    """

    graph: Graph
    prompt_tokens: int
    output_tokens: int  # the first comes out of the prefill, every other out of a decoding pass
    weights: WeightFormat = WEIGHT_FORMATS["bf16"]
    kv_bytes: float = 2.0  # of an element of the cache
    context_bytes: int = CONTEXT_BYTES

    def __post_init__(self) -> None:
        """Check the lengths."""
        for name, value in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            if value < 1:
                raise ServingError(f"the {name} has {value} tokens; at least 1 is needed")

    @property
    def decode_passes(self) -> int:
        """Decoding passes of one request."""
        return self.output_tokens - 1

    @property
    def decode_context(self) -> float:
        """Keys that a decoding pass reads per sequence, on average: pass j of 1 .. output - 1 sees prompt + j.

        >>> from costmodel.graph import Graph
        >>> ServingWorkload(graph=Graph(name="g", layers=(), edges=()), prompt_tokens=100, output_tokens=3).decode_context
        101.5
        """
        return self.prompt_tokens + self.output_tokens / 2.0

    @property
    def most_context(self) -> int:
        """Positions of a finished sequence."""
        return self.prompt_tokens + self.output_tokens

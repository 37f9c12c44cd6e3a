"""The options of questions about serving, each written once, and how they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from planner.commands.mesh_options import integers
from planner.commands.options import SERVING, option, takes_table
from planner.commands.values import Values
from planner.core.request import DEFAULT_OUTPUT_TOKENS, DEFAULT_PROMPT_TOKENS, Request

__all__ = ["QUESTION_OPTIONS", "SERVING_OPTIONS", "serving_from", "takes_serving_options"]

_MOST_TOKENS = 10**8
_MOST_BATCH = 10**6


def _words(name: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, option(f"--{name}", metavar=metavar, help=text, group=SERVING)]


SERVING_OPTIONS: dict[str, Any] = {
    "prompt": _words("prompt", "N", f"Tokens of a prompt, on average. Default: {DEFAULT_PROMPT_TOKENS}."),
    "output_tokens": _words(
        "output-tokens", "N", f"Tokens of an answer, on average. Default: {DEFAULT_OUTPUT_TOKENS}."
    ),
    "max_ttft": _words("max-ttft", "TIME", "Most time to the first token, as in 500ms."),
    "max_tpot": _words("max-tpot", "TIME", "Most time per token after the first, as in 30ms."),
    "kv_precision": _words(
        "kv-precision", "NAME", "Cache of keys and values: fp32, fp16, bf16 or fp8. Default: as activations."
    ),
    "max_batch": _words(
        "max-batch", "N", "Sequences at a time per replica: 64, 1..64 or 32,64. Default: the best up to 1024."
    ),
    "prefill_chunk": _words(
        "prefill-chunk",
        "N",
        "Read prompts in chunks of N tokens beside the decoding; 0: whole prompts. Default: the best.",
    ),
    "prefill_batch": _words("prefill-batch", "N", "Prompts per pass. Default: the best."),
}


# Options that ask about other requests or limits, and may stand beside a plan file -> field of Request. The others are the plan.
QUESTION_OPTIONS = {
    "prompt": "prompt_tokens",
    "output_tokens": "output_tokens",
    "max_ttft": "max_ttft_s",
    "max_tpot": "max_tpot_s",
    "kv_precision": "kv",
}


# Gives a command every option of `SERVING_OPTIONS`; it gets their words as the mapping ``serving``.
takes_serving_options = takes_table("serving", SERVING_OPTIONS)


def serving_from(words: Mapping[str, str | None], base: Request, values: Values) -> Request:
    """A question with the options of serving that are given; ``values`` takes the problems."""
    degrees = {}
    for name, least, most in (
        ("max_batch", 1, _MOST_BATCH),
        ("prefill_chunk", 0, _MOST_TOKENS),
        ("prefill_batch", 1, _MOST_BATCH),
    ):
        text = words.get(name)
        if text is not None:
            degrees[name] = integers(values, f"--{name.replace('_', '-')}", text, least, most)
    kv = words.get("kv_precision")
    if kv is not None:
        kv = values.choice("--kv-precision", kv, ("fp32", "fp16", "bf16", "fp8"))
    request = dataclasses.replace(
        base,
        prompt_tokens=values.optional_count("--prompt", words.get("prompt"), most=_MOST_TOKENS),
        output_tokens=values.optional_count("--output-tokens", words.get("output_tokens"), most=_MOST_TOKENS),
        max_ttft_s=values.seconds("--max-ttft", words.get("max_ttft"), likely="ms"),
        max_tpot_s=values.seconds("--max-tpot", words.get("max_tpot"), likely="ms"),
        kv=kv,
        serving_degrees=degrees,
    )
    if base.mode != "inference":
        for flag in request.serving_options:
            values.add(f"{flag}: only has a meaning with --mode inference")
    return request

"""Which bundled framework people mean: "NeMo 24.07", "Megatron-LM (Jan 2021)", "Hugging Face Trainer", "25.09 NeMo Container"."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, lru_cache

from costmodel.framework import NO_FRAMEWORK, UNKNOWN, Framework

# The first whose pattern is found decides; a name that holds several, "NeMo AutoModel", means the more particular one.
_CALLED: tuple[tuple[str, str], ...] = (
    (r"nanotron", "nanotron"),
    (r"arctic.?training|\balst\b", "arctic-training"),
    (r"auto.?model\b", "nemo-automodel"),
    (r"\bnemo\b|megatron.?bridge", "megatron-bridge"),
    (r"megatron.?deepspeed", "megatron-deepspeed"),
    (r"megatron.*\bcore\b|\bmcore\b", "megatron-lm"),
    (r"megatron\b.*(?:\b20(?:19|2[0-2])\b|\bv?[123](?:\.\d+)?(?:/|$|\b(?!\.))|\bsc ?21\b)", "megatron-lm-2021"),
    (r"megatron", "megatron-lm"),
    (r"llm.?foundry|composer|mosaic", "llm-foundry"),
    (r"unsloth|xtuner|axolotl|liger|(?:transformers|hugging ?face).*compile", "adapter-trainers"),
    (
        r"transformers\b|hugging ?face|\bhf\b|\btrl\b|\bpeft\b|llama.?factory|fast.?chat|alpaca|\bswift\b|accelerate\b",
        "accelerate",
    ),
    (r"intern(?:evo|lm)", "internevo"),
    (r"paddle", "paddle"),
    (r"torchtitan", "torchtitan"),
    (r"torchtune", "torchtune"),
    (r"vector.?lm", "vectorlm"),
    (r"maxtext|\bpax|axlearn", "jax"),
    (r"levanter", "levanter"),
    (r"easylm", "easylm"),
    (r"olmo", "olmo"),
    (r"deepspeed", "deepspeed"),
    (r"\bjax\b", "jax"),
    (r"fsdp", "pytorch-fsdp"),
    (r"(?:tensorflow|\btf[0-9 ]?).*\bxla\b", "tensorflow-xla"),
    (r"tensorflow|\btf[12]?\b|keras", "tensorflow"),
    (r"\bxla\b", "jax"),
    (r"mxnet|gluon", "mxnet"),
    (r"nervana|\bneon\b", "neon"),
    (r"caffe(?!2)", "caffe"),
    (r"pytorch|\btorch(?!.?7)(?:vision)?\b|\bddp\b|lightning|\btimm\b", "pytorch"),
    (r"torch.?7", "torch7"),
    (r"\bvllm\b", "vllm"),
    (r"sglang", "sglang"),
    (r"tensorrt|\btrt", "tensorrt-llm"),
)
# Where a version begins: "Megatron-LM v1/v2", "NeMo 24.07", "Megatron-LM core 0.12", "Megatron-LM (Jan 2021)".
_VERSION = re.compile(r"\s*\(|[\s,=@-]+(?=v?[0-9]|core\b)")
# Words for attention kernels made for the device (cuDNN, FlashAttention-3), and for those of the first FlashAttention: a Triton kernel,
# xFormers, whose backward pass is the first one's (Llama, arXiv:2302.13971, section 2.4).
_NEWEST_ATTENTION = re.compile(r"transformer.?engine|cudnn|flash.?attention.?[34]|\bfa[34]\b|thunder")
_FIRST_ATTENTION = re.compile(
    r"triton|xformers|flash.?attention.?(?:v?1|v?0)\b|flash.?attn.?(?:==|v)? ?(?:1|0)\.|\bfa1\b"
)


def framework_called(text: str) -> str | None:
    """Bundled framework that people mean by a text; None where it is none that is known.

    >>> [framework_called(text) for text in ("25.09 NeMo Container", "Megatron-LM (Jan 2021)", "Megatron-LM core 0.12", "abacus")]
    ['megatron-bridge', 'megatron-lm-2021', 'megatron-lm', None]
    """
    named = _names().get(_letters(text))
    words = text.lower().replace("_", " ")
    return named or next((name for pattern, name in _CALLED if re.search(pattern, words)), None)


def framework_named(text: str) -> str | None:
    """Bundled framework of which a text is a name, in any case, with or without a version after it; None where it is none's.

    >>> [framework_named(text) for text in ("Megatron-LM", "Megatron-LM v1/v2", "PyTorch FSDP", "megatron-lmm")]
    ['megatron-lm', 'megatron-lm-2021', 'pytorch-fsdp', None]
    """
    without = _names().get(_letters(_VERSION.split(text, maxsplit=1)[0]))
    is_path = text.startswith((".", "/", "~"))
    return None if is_path else _names().get(_letters(text)) or (without and (framework_called(text) or without))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _names() -> dict[str, str]:
    """Every name and other name of a bundled framework, as `_letters` has it -> its name."""
    from planner.files.loading import framework_aliases
    from planner.files.resources import bundled

    known = {**framework_aliases(), **{name: name for name in bundled("frameworks")}}
    return {_letters(alias): name for alias, name in known.items()}


@lru_cache(maxsize=1024)  # asked for every row of a table
def framework_of(text: str, kernel: str = "") -> Framework:
    """The framework that people mean, with the attention kernels that they say it ran with.

    Parameters
    ----------
    text, kernel : str
        As people write them, or the path of a framework file; ``kernel`` is what is said of the attention kernel itself, if anything.

    Returns
    -------
    Framework
        `NO_FRAMEWORK` where nothing is said, `UNKNOWN` (with these attention kernels) where it is none that is known.

    Examples
    --------
    >>> [framework_of(name).attention for name in ("", "NeMo", "nanotron v0.5", "llm-foundry", "something new")]
    ['newest', 'newest', 'portable', 'first', 'portable']
    >>> framework_of("llm-foundry", "FlashAttention-3").attention
    'newest'
    """
    if not text.strip():
        return NO_FRAMEWORK
    from planner.files.loading import load_framework

    if text.endswith((".yaml", ".yml")):
        return load_framework(text).framework
    name = framework_called(text)
    found = UNKNOWN if name is None else load_framework(name).framework
    words = f"{text} {kernel}".lower()
    if found.attention == "newest" or _NEWEST_ATTENTION.search(words):
        return replace(found, attention="newest")
    is_first = found.attention == "first" or _FIRST_ATTENTION.search(words)
    return replace(found, attention="first" if is_first else "portable")

"""What people call bundled models and devices: spellings of publications, of nvidia-smi, of clouds and of Hugging Face."""

from __future__ import annotations

import re
from functools import cache

# Said with a name without making it another: who made it, in which form it was released, how it runs.
_NOISE = frozenset(
    {
        "a", "accelerator", "ai", "aws", "azure", "base", "bf16", "card", "cased", "causal", "chat", "cloud", "core", "cuda",
        "data", "dense", "fp16", "fp32", "fp8", "from", "gcp", "gpu", "gpus", "hf", "imagenet", "instance", "instruct", "it",
        "like", "lm", "lora", "meta", "model", "models", "net", "network", "neural", "node", "nvidia", "oam", "of", "or", "pcie",
        "pretrain", "pretrained", "pretraining", "release", "single", "sxm", "tensor", "text", "the", "torch", "torchvision",
        "training", "transformer", "uncased", "v0.1", "v0.2", "v0.3", "v1", "v1.0", "v1.5", "v2", "v2.0",
    }
)  # fmt: skip


@cache
def plain(text: str) -> str:
    """A name in lower case, its words apart by single blanks, sizes written one way.

    Examples
    --------
    >>> plain("VGG16-BN")  # no billions
    'vgg16 bn'
    >>> plain("meta-llama/Llama-2-7b-hf"), plain("GPT2_XL (1.5 B params)"), plain("Megatron 530 billion"), plain("gpt3_6p7b")
    ('meta llama llama 2 7b hf', 'gpt2 xl 1.5b params', 'megatron 530b', 'gpt3 6.7b')
    """
    word = re.sub(r"(?<=\d)p(?=\d+ ?[bmt]\b)", ".", text.lower())
    word = re.sub(r"[^a-z0-9.]+", " ", word)
    word = re.sub(r"\.(?!\d)|(?<!\d)\.", " ", word)  # a point that is no decimal one
    word = re.sub(
        r"(?<!vgg1)(?<!vgg 1)(\d) ?(billion|bn|million|trillion)\b", lambda found: found[1] + found[2][0], word
    )
    word = re.sub(r"(\d) ([bmt])(?= |$)", r"\1\2", word)
    return re.sub(r" +", " ", word).strip()


def is_noise(words: str) -> bool:
    """Whether none of the words (`plain`) tells one model or device from another.

    >>> is_noise("nvidia gpu"), is_noise(""), is_noise("laptop gpu")
    (True, True, False)
    """
    return all(word in _NOISE for word in words.split())

"""What the abbreviations in the names of plans mean: a sentence under a table of plans."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Degrees, and what so many GPUs split; then what else stands in a name, as a pattern and in words.
_DEGREES = (
    ("tp", "each matrix"),
    ("cp", "each sequence"),
    ("ep", "the experts"),
    ("etp", "each expert"),
    ("pp", "the layers"),
    ("dp", "the batch"),
)
_LAYERS = (("data", "the samples"), ("channels", "outputs"), ("in-channels", "inputs"), ("rows", "image rows"))
_OTHERS = (
    (r"\bep \d", "ep lies within tp x cp x dp, and adds no GPUs"),
    (r"\bvpp \d", "vpp: chunks of layers per GPU"),
    (r"\bzero-bubble\b", "zero-bubble: gradients of weights fill waits of the pipeline"),
    (r"\bzero [1-3]", "zero: dp's GPUs split the optimizer state (1), gradients too (2), weights too (3)"),
    (r"\bzero \d over (\d+)", "over {0}: within groups of {0} GPUs"),
    (r"\bmicro-batch (\d+) x (\d+)", "micro-batch {0} x {1}: {0} at a time, {1} times per step"),
    (
        r"\brecompute (?:selective|full)\b",
        "recompute: backward passes compute again what is cheap (selective) or whole blocks (full)",
    ),
    (r"\boffload (?:optimizer|activations)\b", "offload: kept on the host"),
)


def legend(names: Sequence[str]) -> str:
    """Explain what stands in names of plans, and nothing else; numbers are those of the first that has some.

    >>> legend(["tp 8, pp 2 (interleaved, vpp 4)"]), legend(["one GPU"])
    ('tp, pp: how many GPUs split each matrix, the layers; vpp: chunks of layers per GPU.', '')
    >>> legend(["dp 16 (zero 1 over 8)"]).partition("; over ")[2]
    '8: within groups of 8 GPUs.'
    >>> legend(["conv1-conv5: data x8, fc6: channels x8"])
    'data, channels: how many GPUs split the samples, outputs of a layer.'
    """
    text = "; ".join(names)
    said = []
    for words, pattern, end in ((_DEGREES, r"\b{} \d", ""), (_LAYERS, r"(?<![\w-]){} x\d", " of a layer")):
        used = [(name, what) for name, what in words if re.search(pattern.format(name), text)]
        if used:
            titles, whats = (", ".join(parts) for parts in zip(*used, strict=True))
            said.append(f"{titles}: how many GPUs split {whats}{end}")
    for pattern, meaning in _OTHERS:
        found = re.search(pattern, text)
        said += [meaning.format(*found.groups())] if found else []
    return f"{'; '.join(said)}." if said else ""

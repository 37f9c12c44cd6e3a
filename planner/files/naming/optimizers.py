"""Which optimizer people mean: "adamw", "AdamW8bit", "adamw_torch_fused", "adamw-bf16", "FusedAdam"."""

from __future__ import annotations

import re

from costmodel.precision import OPTIMIZERS

# Names of one update: decoupled weight decay adds one multiplication to Adam's twelve operations and no state (Loshchilov and Hutter,
# arXiv:1711.05101). Nesterov's momentum keeps what momentum keeps.
_SAME = {
    "adamw": "adam",
    "sgdmomentum": "momentum",
    "sgdm": "momentum",
    "nesterov": "momentum",
    "sgdnesterov": "momentum",
}
# Who computes it, which changes neither work nor state: Transformers (training_args.py, OptimizerNames), Apex, DeepSpeed.
_IMPLEMENTATIONS = re.compile(r"torch|fused|apex|bnb|hf|xla|npu|deepspeed|cpu|(?:fp)?32(?:bit)?$")


def optimizer_called(text: str) -> str | None:
    """The name of the optimizer that is meant, a key of `OPTIMIZERS`; None where it is none that is known.

    Examples
    --------
    >>> [optimizer_called(text) for text in ("AdamW", "adamw_torch_fused", "adamw-8bit", "adamw_bnb_8bit", "AdamW4bit", "lion")]
    ['adam', 'adam', 'adam-8bit', 'adam-8bit', 'adam-4bit', None]
    """
    word = _IMPLEMENTATIONS.sub("", re.sub(r"[^a-z0-9]", "", text.lower()))
    word = _SAME.get(word, re.sub("^adamw", "adam", word))
    return next((name for name in OPTIMIZERS if name.replace("-", "") == word), None)


def nearest_optimizer(text: str) -> list[str]:
    """The one that begins so, or none; nobody tells AdamW from Adam here.

    >>> nearest_optimizer("adamw8"), nearest_optimizer("ada")
    (['adam-8bit'], [])
    """
    word = re.sub("^adamw", "adam", re.sub(r"[^a-z0-9]", "", text.lower()))
    near = [name for name in OPTIMIZERS if name.replace("-", "").startswith(word)]
    return near if len(near) == 1 else []

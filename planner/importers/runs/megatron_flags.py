"""Flags of Megatron-LM and of its launchers that are not read: which have no effect on a step, and which are misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["NOT_MEGATRON", "is_without_effect", "meant"]

# Read here, but other programs have them, too: alone they make no Megatron script.
NOT_MEGATRON = frozenset(
    {"nnodes", "nproc-per-node", "bf16", "fp16", "optimizer", "sgd-momentum", "num-layers", "hidden-size"}
)

# Beginnings of flags that change neither the work of a step nor what is stored: data, tokenizer, checkpoints, logs, evaluation, rates,
# launchers (torchrun, srun).
_WITHOUT_EFFECT = (
    "adam-", "attention-dropout", "auto-detect-ckpt", "bert-", "ckpt-", "clip-grad", "cpus-per-task", "data-", "dataloader-", "dist-ckpt",
    "distributed-backend", "distributed-timeout", "end-weight-decay", "eod-", "eval-", "exit-", "export", "finetune", "gpus", "gres",
    "hidden-dropout", "init-", "job-name", "legacy-tokenizer", "load", "local-rank", "log-", "loss-scale", "lr", "make-vocab", "master-",
    "max-position-embeddings", "merge-file", "min-lr", "min-loss-scale", "mmap", "mock-data", "no-load", "no-mmap", "no-save", "node-rank",
    "nodelist", "nodes", "norm-epsilon", "ntasks", "num-workers", "output", "override-opt", "per-split", "profile", "rdzv", "rerun-mode",
    "rotary-", "save", "seed", "slurm", "split", "standalone", "start-weight-decay", "te-rng", "tensorboard", "test-data", "timing-",
    "tokenizer-", "train-", "use-checkpoint", "use-rotary", "valid-data", "vocab-", "wandb", "weight-decay",
)  # fmt: skip
# Describe the network, which MODEL does; or what the cost model takes for granted (overlap of gradients, grouped kernels, ...).
_OF_THE_PLAN = frozenset(
    {
        "activation-func", "add-qkv-bias", "apply-layernorm-1p", "attention-backend", "disable-bias-linear", "group-query-attention",
        "make-vocab-size-divisible-by", "moe-aux-loss-coeff", "moe-grouped-gemm", "moe-router-load-balancing-type",
        "moe-token-dispatcher-type", "normalization", "optimizer-offload-fraction", "overlap-grad-reduce", "overlap-param-gather",
        "position-embedding-type", "recompute-modules", "sequence-length", "squared-relu", "swiglu", "transformer-impl",
        "untie-embeddings-and-output-weights", "use-flash-attn", "use-mcore-models", "use-precision-aware-optimizer",
    }
)  # fmt: skip
# Megatron's own flags that a letter or two tell from one that is read.
_LOOK_ALIKE = frozenset({"fp4-format"})
# Shorter names are near too much; a beginning of this length is an abbreviation, which argparse takes.
_SHORTEST = 8
# Two letters of a flag of twenty.
_NEAR = 0.9


def is_without_effect(name: str) -> bool:
    """Whether a flag leaves the prediction as it is.

    >>> is_without_effect("lr-decay-style"), is_without_effect("tp-comm-overlap")
    (True, False)
    """
    return name in _OF_THE_PLAN or name.startswith(_WITHOUT_EFFECT)


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known flag that a name misspells or abbreviates, if any; names without dashes in front.

    >>> meant("tensor-model-paralel-size", ["tensor-model-parallel-size"])
    'tensor-model-parallel-size'
    >>> meant("tp-comm-overlap", ["cp-comm-type"]) is None
    True
    """
    if len(name) < _SHORTEST or name in _LOOK_ALIKE or is_without_effect(name):
        return None
    names = sorted(known)
    close = [candidate for candidate in names if candidate.startswith(name)]
    close = close or difflib.get_close_matches(name[:200], names, n=1, cutoff=_NEAR)
    return min(close, key=len) if close else None

"""What other programs call the options of this one, for the message where one of their names is typed."""

from __future__ import annotations

from collections.abc import Collection

# Ours, in the order in which they are meant: a command has some of them -> names in Megatron-LM, torchrun, DeepSpeed, Transformers, vLLM.
_ELSEWHERE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("--gpus", "--devices", "--workers", "--max-gpus"),
        ("gpus", "num-gpus", "ngpus", "n-gpus", "workers", "num-workers", "devices", "world-size"),
    ),
    (("--nodes",), ("nnodes", "num-nodes", "n-nodes")),
    (("--batch",), ("global-batch", "global-batch-size", "batch-size", "gbs", "train-batch-size")),
    (("--micro-batch",), ("mbs", "micro-batch-size", "per-device-train-batch-size", "train-micro-batch-size-per-gpu")),
    (("--num-micro-batches", "--micro-batches"), ("gradient-accumulation-steps", "accumulation", "grad-accum")),
    (("--seq",), ("seq-length", "seq-len", "sequence-length", "context-length", "max-seq-len", "max-model-len")),
    (("--tp",), ("tensor-parallel", "tensor-parallel-size", "tensor-model-parallel-size", "tp-size")),
    (("--pp",), ("pipeline-parallel", "pipeline-parallel-size", "pipeline-model-parallel-size", "pp-size")),
    (("--cp",), ("context-parallel", "context-parallel-size", "cp-size")),
    (("--ep",), ("expert-parallel", "expert-parallel-size", "expert-model-parallel-size", "ep-size")),
    (("--dp",), ("data-parallel", "data-parallel-size", "dp-size")),
    (("--zero",), ("zero-stage", "sharding", "fsdp")),
    (("--recompute",), ("recompute-granularity", "activation-checkpointing", "gradient-checkpointing")),
    (("--precision",), ("dtype", "torch-dtype", "mixed-precision")),
    (("--memory-limit", "--memory"), ("memory", "max-memory", "gpu-memory")),
    (("--prompt",), ("input-len", "prompt-tokens", "input-tokens")),
    (("--output-tokens",), ("output-len", "max-tokens", "max-new-tokens")),
    (("--max-batch",), ("max-num-seqs", "concurrency")),
    (("--to",), ("target", "trainer", "framework")),
)


def option_called(name: str, has: Collection[str]) -> str:
    """Our option for another program's, where the command has it; empty where it has none.

    Parameters
    ----------
    name : str
        As typed, with its dashes.
    has : collection of str
        Options of the command.

    Examples
    --------
    >>> option_called("--seq_length", ["--seq", "--batch"]), option_called("--gpus", ["--devices"]), option_called("--lr", ["--seq"])
    ('--seq', '--devices', '')
    """
    word = name.lstrip("-").replace("_", "-").lower()
    ours = next((options for options, names in _ELSEWHERE if word in names), ())
    return next((option for option in ours if option in has), "")

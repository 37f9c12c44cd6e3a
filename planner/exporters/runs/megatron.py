"""Megatron-LM: arguments of pretrain_gpt.py, as they stand in a launch script or a plain list.

Words are split as a shell does (shlex); variables that the same file sets to plain text are put in. Nothing is executed: a setting
that comes from a command, or from a variable set elsewhere, is an error that names it.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError
from planner.exporters.runs import Run, problem

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


TITLE = "Megatron-LM"

# Flag -> option of a mesh plan with the same meaning.
_DEGREES = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "micro-batch-size": "micro_batch",
}
# Flag -> size of `planner.exporters.runs.SIZES` that it states: compared with MODEL.
_NETWORK = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "kv-channels": "head_dim",
    "ffn-hidden-size": "ffn",
    "num-experts": "experts",
    "moe-router-topk": "top_k",
    "moe-ffn-hidden-size": "expert_ffn",
}
_NUMBERS = {*_DEGREES, *_NETWORK, "global-batch-size", "seq-length", "nnodes", "nproc-per-node", "recompute-num-layers",
            "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
            "num-distributed-optimizer-instances"}  # fmt: skip
_WORDS = {"cp-comm-type", "recompute-granularity", "recompute-method", "data-parallel-sharding-strategy", "optimizer",
          "fp8-format", "pipeline-model-parallel-layout", "sgd-momentum"}  # fmt: skip
_FLAGS = {"sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", "recompute-activations",
          "optimizer-cpu-offload", "use-tp-pp-dp-mapping", "bf16", "fp16"}  # fmt: skip
_CP = {"p2p": "ring", "allgather": "all_gather", "a2a": "all_to_all"}
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}$`]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")
# Variables may name variables, but not forever.
_MOST_ROUNDS = 20


def read(path: Path, text: str) -> Run:
    """Read a run from the text of a script."""
    found, left_out = _settings(path, text)
    numbers = {name: _number(path, name, found[name]) for name in _NUMBERS if name in found}
    run = Run()
    for flag, option in _DEGREES.items():
        if flag in numbers:
            run.mesh[option] = str(numbers[flag])
    if "expert-model-parallel-size" in found and "expert-tensor-parallel-size" not in found:
        run.mesh["etp"] = str(numbers.get("tensor-model-parallel-size", 1))  # Megatron's default
    for flag, option in (("global-batch-size", "batch"), ("seq-length", "seq")):
        if flag in numbers:
            run.options[option] = str(numbers[flag])
    if "nproc-per-node" in numbers:
        run.options["gpus"] = str(numbers["nproc-per-node"] * numbers.get("nnodes", 1))
    run.mesh["sequence_parallel"] = "sequence-parallel" in found
    if "cp-comm-type" in found:
        run.mesh["cp_kind"] = _one_of(path, "cp-comm-type", found["cp-comm-type"], _CP)
    if "use-tp-pp-dp-mapping" in found:
        run.mesh["order"] = "tp-cp-pp-dp"
    _pipeline(path, found, numbers, run)
    _zero(path, found, numbers, run)
    _memory(path, found, numbers, run)
    run.network = {f"--{flag}": (size, numbers[flag]) for flag, size in _NETWORK.items() if flag in numbers}
    if left_out:
        run.notes.append(
            f"not modelled, so the prediction leaves it out: {', '.join(f'--{name}' for name in left_out)}"
        )
    return run


def _settings(path: Path, text: str) -> tuple[dict[str, str], list[str]]:
    """Known flags -> their word ("" for flags without one; the last one counts, as in argparse); the flags that are not modelled."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise problem(path, f"is no shell script or list of arguments: {error}") from None
    values: dict[str, str] = {}
    for word in words:
        match = _ASSIGNMENT.match(word)
        if match and not match[2].startswith("("):
            values[match[1]] = _without_itself(match[1], match[2], values)
    found: dict[str, str] = {}
    others: dict[str, None] = {}
    expanded = _expanded(words)
    for i, word in enumerate(expanded):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].rstrip(")").partition("=")
        name = name.replace("_", "-")
        if name in _FLAGS:
            found[name] = ""
        elif name in _NUMBERS or name in _WORDS:
            raw = value if equals else (expanded[i + 1].rstrip(")") if i + 1 < len(expanded) else "")
            found[name] = _resolved(path, name, raw, values)
        else:
            others[name] = None
    known = _FLAGS | _NUMBERS | _WORDS
    misspelt = {name: near for name in others if (near := meant(name, known))}
    if misspelt:
        raise InputFileError(
            [
                FileProblem(path=path, where=f"--{name}", message=f"is not known; did you mean '--{near}'?")
                for name, near in misspelt.items()
            ]
        )
    if not found.keys() - NOT_MEGATRON:
        raise problem(path, "no Megatron arguments in it (such as --tensor-model-parallel-size, --micro-batch-size)")
    return found, [name for name in others if not is_without_effect(name)]


def _without_itself(name: str, value: str, earlier: dict[str, str]) -> str:
    """The value of a variable with what it says of itself put in: what it was before, else the script's default.

    >>> _without_itself("PP", "${PP:-4}", {}), _without_itself("PP", "${PP:-4}", {"PP": "2"})
    ('4', '2')
    """

    def put_in(match: re.Match[str]) -> str:
        before = earlier.get(name, match[2]) if name in (match[1], match[3]) else None
        return match[0] if before is None else before

    return _VARIABLE.sub(put_in, value)


def _expanded(words: list[str]) -> list[str]:
    """The words of a script with those of its arrays and of its variables of arguments."""
    expanded: list[str] = []
    for word in words:
        match = _ASSIGNMENT.match(word)
        if match is None:
            expanded.append(word)
        elif match[2].startswith("("):
            expanded.append(match[2][1:])  # the first word of an array
        else:
            # A string of arguments in a variable is several words where a shell puts it in without quotes.
            expanded += match[2].split()
    return expanded


def _resolved(path: Path, name: str, raw: str, values: dict[str, str]) -> str:
    for _ in range(_MOST_ROUNDS):
        match = _VARIABLE.search(raw)
        if match is None:
            break
        variable = match[1] or match[3]
        value = values.get(variable, match[2])
        if value is None:
            raise problem(
                path, f"is {raw}, and the file does not set {variable} to plain text; write the value", f"--{name}"
            )
        raw = raw[: match.start()] + value + raw[match.end() :]
    if "$" in raw or "`" in raw:
        raise problem(path, f"is {raw}, which would have to be executed; write the value", f"--{name}")
    return raw


def _number(path: Path, name: str, word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", word) or int(word) < 1:
        raise problem(path, f"is '{word}'; a whole number of at least 1 is expected", f"--{name}")
    return int(word)


def _one_of(path: Path, name: str, word: str, known: dict[str, str]) -> str:
    if word not in known:
        raise problem(path, f"is '{word}'; known: {', '.join(known)}", f"--{name}")
    return known[word]


def _pipeline(path: Path, found: dict[str, str], numbers: dict[str, int], run: Run) -> None:
    pp = numbers.get("pipeline-model-parallel-size", 1)
    vpp = numbers.get("num-virtual-stages-per-pipeline-rank", 1)
    per_stage = numbers.get("num-layers-per-virtual-pipeline-stage")
    if per_stage is not None:
        layers = numbers.get("num-layers")
        if layers is None or layers % (pp * per_stage):
            raise problem(path, "needs --num-layers that pp x it divides", "--num-layers-per-virtual-pipeline-stage")
        vpp = layers // (pp * per_stage)
    if "pipeline-model-parallel-layout" in found:
        blocks = _blocks(found["pipeline-model-parallel-layout"])
        vpp = len(blocks) // pp
        if min(blocks) > 0:
            run.stages = " ".join(str(count) for count in blocks)
        else:
            run.notes.append(
                "--pipeline-model-parallel-layout: has stages without blocks; they are laid out as the planner balances them"
            )
    elif pp > 1:
        run.stages = "equal"  # Megatron's default: as many layers on every chunk
    if pp > 1 and vpp > 1:
        run.mesh |= {"vpp": str(vpp), "schedule": "interleaved"}


_LONGEST_LAYOUT = 20_000  # characters; a letter is a layer


def _blocks(layout: str) -> list[int]:
    """Decoder layers of every chunk of a layout, repeats counted.

    >>> _blocks("Et*3|(tt|)*2tL"), _blocks("Ett|ttL")
    ([3, 2, 2, 1], [2, 2])
    """
    for repeated in (r"\(([^()]*)\)\*([0-9]{1,3})", r"([A-Za-z])\*([0-9]{1,3})"):
        layout = re.sub(repeated, lambda match: match[1] * int(match[2]), layout[:_LONGEST_LAYOUT])
    return [chunk.count("t") for chunk in layout.split("|")]


def _zero(path: Path, found: dict[str, str], numbers: dict[str, int], run: Run) -> None:
    stage = 0
    if "use-megatron-fsdp" in found:
        word = found.get("data-parallel-sharding-strategy", "no_shard")
        stage = int(_one_of(path, "data-parallel-sharding-strategy", word, {k: str(v) for k, v in _STRATEGIES.items()}))
    elif "use-torch-fsdp2" in found:
        stage = 3
    elif "use-distributed-optimizer" in found:
        stage = 1
    run.mesh["zero"] = str(stage)
    instances = numbers.get("num-distributed-optimizer-instances", 1)
    if stage and instances > 1:
        run.mesh["dp_replicate"] = str(instances)


def _memory(path: Path, found: dict[str, str], numbers: dict[str, int], run: Run) -> None:
    granularity = found.get("recompute-granularity", "selective" if "recompute-activations" in found else "none")
    if granularity not in ("none", "selective", "full"):
        raise problem(path, f"is '{granularity}'; known: selective, full", "--recompute-granularity")
    run.mesh["recompute"] = granularity
    if granularity == "full" and found.get("recompute-method") == "block" and "recompute-num-layers" in numbers:
        run.mesh["recompute_blocks"] = str(numbers["recompute-num-layers"])
    elif granularity == "full":
        run.notes.append("--recompute-method uniform: every block is recomputed by itself, not in groups")
    if "optimizer-cpu-offload" in found:
        run.mesh["offload"] = "optimizer"
    precision = "fp8" if "fp8-format" in found else next((name for name in ("bf16", "fp16") if name in found), "fp32")
    run.options["precision"] = precision
    optimizer = found.get("optimizer", "adam")
    if optimizer == "sgd":
        run.options["optimizer"] = "sgd" if found.get("sgd-momentum") in ("0", "0.0") else "momentum"
    elif optimizer == "adam":
        run.options["optimizer"] = "adam"
    else:
        run.notes.append(f"--optimizer {optimizer}: is not known to the cost model; the network's usual one is taken")

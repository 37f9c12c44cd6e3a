"""What the columns of plan-level rows mean, and what is taken where they are empty; `docs/measurements.md` has the list."""

from __future__ import annotations

import re

from costmodel.software.framework import Defaults, Framework
from planner.measurements.tables import Row, RowSkipped
from planner.measurements.throughputs import has_failed
from planner.naming.frameworks import framework_of

__all__ = [
    "computed_positions",
    "cuts_vocabulary",
    "defaults_of",
    "flash_attention",
    "framework_default",
    "framework_of_row",
    "gradient_bytes",
    "has_dropout",
    "is_narrow_throughout",
    "measured_bytes",
    "plausible_bytes",
    "recomputes_nothing",
    "says_adapters",
    "trains_adapters_only",
    "yes_or_no",
]

_YES = ("yes", "true", "1", "on")
_NO = ("no", "false", "0", "off", "none")


def yes_or_no(text: str) -> bool | None:
    """Read a flag, which remarks may follow; None where it says neither.

    >>> yes_or_no("yes (triton)"), yes_or_no("no"), yes_or_no("")
    (True, False, None)
    """
    word = re.split(r"[\s(,;]", text.strip().lower(), maxsplit=1)[0]
    return True if word in _YES else False if word in _NO else None


def framework_of_row(row: Row) -> Framework:
    """The framework that a row names, with the attention kernels that it states; its source may say of which year it is.

    >>> framework_of_row(Row(line=2, cells={"framework": "Megatron-LM", "source": "Megatron-LM SC21 Table 1"})).name
    'megatron-lm-2021'
    """
    text, kernel = row.text("framework"), row.text("flash_attention")
    found = framework_of(text, kernel)
    return framework_of(f"{text} {row.text('source')}", kernel) if found.name == "megatron-lm" else found


def defaults_of(row: Row) -> Defaults:
    """What the framework of a row does unless told otherwise; where none is named, that of which its source speaks."""
    return framework_of(row.text("framework") or row.text("source")).defaults


# Sources that say elsewhere what their runs were. vTrain's runs on one node: their times are sums, so that runs with 24 layers less those
# with 16 give the time of a layer, and pipelines those of their stages. Nothing is recomputed there, on any stage, whatever its
# configurations say (its simulator recomputes on all stages but the last: src/predictor.py, create_layer_graph), and a rank has
# vocab_size // tensor_parallel_size words, not padded (src/config.py, src/model/gpt_modeling.py). docs/accuracy-tried.md has the figures.
_SINGLE_NODE_VTRAIN = re.compile(r"\bvtrain\b.*\bsingle.?node")


def recomputes_nothing(row: Row) -> bool:
    """Whether its source recomputed nothing, whatever the row says."""
    return bool(_SINGLE_NODE_VTRAIN.search(row.text("source").lower()))


def framework_default(row: Row, column: str, usual: bool | None, otherwise: bool) -> bool:
    """A flag: its column, else what the framework does, else ``otherwise``."""
    stated = yes_or_no(row.text(column))
    if stated is not None:
        return stated
    return bool(row.default(column, int(otherwise if usual is None else usual)))


def measured_bytes(row: Row, capacity_bytes: float) -> float | None:
    """Measured memory; None where nothing is stated, or what is no number: the time of the row is good without it.

    Raises
    ------
    RowSkipped
        More than the device has: other numbers of the row may be in a wrong unit, too.

    Examples
    --------
    >>> row = Row(line=2, cells={"memory_gib": "NaN"})
    >>> measured_bytes(row, 80e9), row.defaults
    (None, {'memory_gib': 'no number'})
    """
    try:
        memory = row.positive("memory_gib")
    except RowSkipped:
        row.default("memory_gib", "no number")
        return None
    if memory is not None and memory * 2**30 > capacity_bytes:
        raise RowSkipped("memory above that of the device: wrong unit?")
    return None if memory is None else memory * 2**30


# No cost model is off by this much; a share of the device, or TB for GB, is.
_LEAST_MEMORY = 0.1


def plausible_bytes(row: Row, measured: float | None, predicted: float) -> float | None:
    """Measured memory, unless it is so far below what is predicted that its unit must be another one: then nothing, which is counted.

    >>> row = Row(line=2, cells={"memory_gib": "0.62"})
    >>> plausible_bytes(row, 0.62 * 2**30, 50 * 2**30), row.defaults
    (None, {'memory_gib': 'far below the prediction: wrong unit?'})
    """
    if measured is not None and measured < _LEAST_MEMORY * predicted:
        row.default("memory_gib", "far below the prediction: wrong unit?")
        return None
    return measured


def flash_attention(row: Row, number_format: str) -> bool:
    """Whether attention is fused: where nothing is stated, in bf16 and narrower ones (software since 2022), else not."""
    stated = yes_or_no(row.text("flash_attention"))
    return row.default("flash_attention", number_format in ("bf16", "fp8", "fp4")) if stated is None else stated


def cuts_vocabulary(row: Row) -> bool:
    """Whether every tensor-parallel rank has an equal share of the words, as they are: what is over is left out, nothing is padded.

    >>> rows = [Row(line=2, cells={"source": f"vTrain ({nodes}-node ground truth)"}) for nodes in ("single", "multi")]
    >>> [cuts_vocabulary(row) for row in rows]
    [True, False]
    """
    return recomputes_nothing(row)


def has_dropout(row: Row, style: str, *, fused: bool) -> bool:
    """Whether hidden states are dropped: in GPT and BERT with attention written out, and in GPT where the framework's recipes do.

    >>> rows = [Row(line=2, cells={"framework": name}) for name in ("NeMo 24.07", "")]
    >>> [has_dropout(row, "gpt", fused=True) for row in rows]
    [True, False]
    """
    if style == "gpt" and fused and defaults_of(row).drops_hidden_states:
        return row.default("dropout", True)
    return not fused and style in ("gpt", "bert")


# Operations per weight and token of a step: 2 forward, 2 for the gradients of the inputs, 2 for those of the weights (Kaplan et al.,
# arXiv:2001.08361, section 2.1). Between without and with the last.
_FROZEN_FLOP = 5.0


_ADAPTERS = re.compile(
    r"(?:\b|_)(?<!no[ _-])(?<!non[ _-])(?<!without[ _-])(?<!w/o )"
    r"(?:(?:(?:(?:q|dy|rs)-?)?lora|q?dora)(?:\b|_)|low[ _-]rank\b|adapters?\b|peft\b)"
)
_WHOLE = re.compile(r"\bsft\b|\bpre-?train|\bfull\b")


def says_adapters(row: Row) -> bool | None:
    """Whether a row says that adapters are trained, or all weights; None where it says neither.

    >>> [says_adapters(Row(line=2, cells={name: text})) for name, text in (("notes", "task=SFT"), ("method", "QLoRA"), ("model", "7B"))]
    [False, True, None]
    """
    notes = row.text("notes").lower()
    if "task=" in notes:
        return "task=lora" in notes
    own = " ".join(row.text(name) for name in ("task", "method", "finetuning", "training")).lower()
    if row.count("lora_rank") or _ADAPTERS.search(f"{own} {row.text('model')} {row.text('dataset_group')}".lower()):
        return True
    return False if _WHOLE.search(own) else None


def trains_adapters_only(row: Row, block_weights: int) -> bool:
    """Whether a run fine-tunes adapters: its notes say so, or its publisher counts no operations for gradients of the weights.

    Parameters
    ----------
    row : Row
        Columns ``tflops_per_gpu`` (of the model, without recomputation) and ``tokens_per_s_per_gpu``.
    block_weights : int
        Of the matrices of all blocks; the head and attention come on top, so that a full step counts more than 6 for each.

    Examples
    --------
    >>> trains_adapters_only(Row(line=2, cells={"tflops_per_gpu": "735", "tokens_per_s_per_gpu": "2643"}), 68_500_000_000)
    True
    """
    stated = says_adapters(row)
    if stated is not None:
        return stated
    if has_failed(row):
        return False
    rate, tokens = row.positive("tflops_per_gpu"), row.positive("tokens_per_s_per_gpu")
    if rate is None or tokens is None or "moe" in row.text("net").lower():
        return False
    return rate * 1e12 / tokens < _FROZEN_FLOP * block_weights


# NVIDIA DeepLearningExamples read BERT's second phase in bins of 64 positions, each mini-batch padded to its longest sample (phase 1 is
# not binned): LDDL, README.md, and scripts/run_pretraining.sh, "phase2/bin_size_64". Half of the positions of Wikipedia at length 512 are
# padding (Krell et al., Efficient Sequence Packing, arXiv:2107.02027, section 1): what is left, and half a bin.
_BINNED = re.compile(r"deeplearningexamples|\bdle\b")
_UNBINNED_SEQ, _BIN, _PADDING_SHARE = 128, 64, 0.5


def computed_positions(row: Row, seq: int) -> int:
    """Positions per sample that are computed on average: all, unless batches are padded only to their longest sample.

    >>> computed_positions(Row(line=2, cells={"model": "BERT-Large", "source": "NVIDIA DeepLearningExamples"}), 512)
    288
    """
    text = f"{row.text('source')} {row.text('framework')}".lower()
    if seq <= _UNBINNED_SEQ or "bert" not in row.text("model").lower() or not _BINNED.search(text):
        return seq
    return row.default("computed_positions", round(seq * (1.0 - _PADDING_SHARE)) + _BIN // 2)


def gradient_bytes(row: Row, number_format: str) -> float:
    """Bytes per weight of the gradients that accumulate and travel.

    4 where the precision says so or FSDP keeps its default mixed precision (``mp_mode`` DEFAULT); 2 under PURE and in fp16 (Megatron-LM
    accumulates in fp32 by default with bf16 only), in 16 bits throughout and in NeMo's recipes; else 4.
    """
    text, mode = row.text("precision").lower(), row.text("mp_mode").upper()
    if "fp32 grad" in text or mode == "DEFAULT":
        return 4.0
    if mode == "PURE" or number_format == "fp16" or is_narrow_throughout(row):
        return 2.0
    return defaults_of(row).gradient_bytes or 4.0


_THROUGHOUT = re.compile(r"\b(?:pure|true|full)\b")


def is_narrow_throughout(row: Row) -> bool:
    """Whether weights, gradients and optimizer state are kept in 16 bits alone.

    >>> [is_narrow_throughout(Row(line=2, cells={"precision": text})) for text in ("bf16-true", "pure bf16", "bf16-mixed", "fp32-true")]
    [True, True, False, False]
    """
    text = row.text("precision").lower()
    if "32" in text or "mix" in text or "amp" in text:
        return False
    return bool(_THROUGHOUT.search(text) or defaults_of(row).narrow_weights)

"""Words of frameworks, papers and logs for what a canonical row says in one way: formats, schedules, recomputation, failures, software."""

from __future__ import annotations

import re

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.reading import Row, Unreadable
from costmodel.precision import PRECISIONS
from planner.files.naming.frameworks import framework_called
from planner.files.naming.precisions import precision_called
from planner.measurements.tables import short_name

__all__ = [
    "balance_of",
    "dispatcher_of",
    "framework_of",
    "gradient_bits",
    "has_failed",
    "keeps_no_master_weights",
    "precision_of",
    "products_of",
    "put_precision",
    "recompute_of",
    "schedule_of",
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


# -- number formats -----------------------------------------------------------------------------------------------------------

# Beginning of a precision -> number format. The eight bits of "mxfp8" have a scale for 32 values each (OCP Microscaling Formats).
_FORMATS = (
    (r"(?:mx|nv)?fp4|e2m1", "fp4"),
    (r"(?:mx)?fp8|e4m3|e5m2", "fp8"),
    (r"bf16", "bf16"),
    (r"fp16", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32", "fp32"),
)
# Words that leave the format to what stands behind them, and else mean fp16, as they did until bf16 became common: automatic mixed
# precision of PyTorch and TensorFlow, the levels of Apex.
_MIXED = re.compile(r"amp|mixed|o[123]\b")
# Of Lightning ("16-mixed", "32-true") and C; only at the beginning.
_OTHER_WORDS = (
    (r"16(?![0-9])|half|tensor.?cores?\b", "fp16"),
    (r"32(?![0-9])|single|full\b(?!.*(?:16|8))|fp\b|o0\b", "fp32"),
)
# NVIDIA Transformer Engine 1 had no other recipe (NeMo's container of July 2024).
_DELAYED = re.compile(r"\b24\.\d\d\b")
_ADDED = re.compile(r"(?:bf|fp)(?:16|32) ?(?:\+|&|and|w/|with) ?(?:mx|nv)?fp[48]\b")
_MATH = re.compile(r"\b(fp8|bf16|fp16|tf32|fp32) math")
_TENSOR_CORES = re.compile(r"\btensor.?(?:core|op)s?\b")
_PSEUDO = re.compile(r"\bps(?:eu|ue)do\b")  # what DeepBench calls 16 bits that are stored and not computed in


def precision_of(row: Row) -> str:
    """Number format of a row; empty where it states none.

    >>> [precision_of(Row(line=2, cells={"precision": text})) for text in ("BFloat16", "16-mixed", "AMP (bf16)", "MXFP8", "O2", "")]
    ['bf16', 'fp16', 'bf16', 'mxfp8', 'fp16', '']

    Raises
    ------
    Unreadable
        It is none that is known.
    """
    text = row.text("precision").lower()
    if not text:
        return ""
    called = precision_called(text)
    if called is not None and PRECISIONS.get(called, PRECISIONS["fp8"]).casts:
        return "fp8-delayed" if called == "fp8" and _DELAYED.search(row.text("framework")) else called
    text = re.sub(r"(?<=[a-z])-(?=\d)", "", text.replace("float", "fp").replace("bfp", "bf"))
    found = next((name for pattern, name in (*_FORMATS, *_OTHER_WORDS) if re.match(pattern, text)), None)
    # Else, and where another one is mixed with it or added to it ("bf16 + fp8"), the narrowest that is named anywhere.
    found = (None if (found == "fp32" and "mixed" in text) or _ADDED.match(text) else found) or next(
        (name for pattern, name in _FORMATS if re.search(rf"(?<![a-z0-9])(?:{pattern})", text)), None
    )
    if found is not None:
        return found
    if _MIXED.match(text):
        return "fp16"
    if re.match(r"int8|aqt", text):
        return "int8"
    raise Unreadable(f"precision '{short_name(row.text('precision'))}' is not known (planner list precisions)")


def put_precision(row: Row, cells: Cells, default: str = "") -> None:
    """Write the number format, and what the table says where it says more."""
    text = row.text("precision")
    cells.put("precision", precision_of(row) or default)
    cells.put("precision_as_published", text if text != cells.get("precision") else None)


def products_of(row: Row) -> str:
    """Format of the products where a row states another one than that of the storage; empty where it does not.

    >>> products_of(Row(line=2, cells={"precision": "fp16 storage, fp32 math (pseudo)"}))
    'fp32'
    >>> products_of(Row(line=2, cells={"precision": "fp32 inputs, tensor core math"}))
    'tensor-cores'
    """
    text = row.text("precision").lower()
    found = _MATH.search(text)
    if found:
        return found[1]
    if _PSEUDO.search(text):
        return "fp32"
    return "tensor-cores" if _TENSOR_CORES.search(text) and precision_of(row) == "fp32" else ""


def gradient_bits(row: Row) -> str:
    """Bits of the gradients that accumulate and travel, where the precision or FSDP's mixed precision (``mp_mode``) says so; else empty."""
    mode = row.text("mp_mode").upper()
    if "fp32 grad" in row.text("precision").lower() or mode == "DEFAULT":
        return "32"
    return "16" if mode == "PURE" else ""


_THROUGHOUT = re.compile(r"\b(?:pure|true|full)\b")


def keeps_no_master_weights(row: Row) -> bool | None:
    """Whether weights and state are kept in 16 bits alone; None where the precision says nothing about it.

    >>> [keeps_no_master_weights(Row(line=2, cells={"precision": text})) for text in ("bf16-true", "pure bf16", "bf16-mixed", "bf16")]
    [True, True, False, None]
    """
    text = row.text("precision").lower()
    if "32" in text or "mix" in text or "amp" in text:
        return False
    return True if _THROUGHOUT.search(text) else None


# -- plans --------------------------------------------------------------------------------------------------------------------

# torch.distributed.pipelining (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble),
# Megatron-LM, DAPPLE, Paddle (F-then-B), and what Zero Bubble Pipeline Parallelism calls its own (arXiv:2401.10241).
_SCHEDULES = (
    (r"zb.?v\b|zbv|zero.?bubble.?v\b", "zb_v"),
    (r"zb.?(?:h2|2p)\b", "zb_h2"),
    (r"dualpipe.?v\b", "dualpipe_v"),
    (r"zb|zero.?bubble|interleaved.?zero.?bubble", "zero_bubble"),
    (r"combined.?1f1b|overlap.?moe.?expert", "combined_1f1b"),
    (r".*(?<!non)(?<!non.)(?<!not.)(?<!no.)interleav|1f1b.?i\b|looped|vpp\b|virtual", "interleaved"),
    (r"g.?pipe|afab|all.?forward|f.?then.?b", "gpipe"),
    (r"1f1b|one.?forward|pipedream.?flush|dapple|no[nt]?.?interleav", "1f1b"),
)


def schedule_of(text: str) -> str:
    """A name of `costmodel.mesh.plan.SCHEDULES`; empty where the text names none that is known.

    >>> [schedule_of(text) for text in ("ZB-H1", "1F1B (interleaved)", "GPipe", "1F1B", "DualPipe", "")]
    ['zero_bubble', 'interleaved', 'gpipe', '1f1b', '', '']
    >>> [schedule_of(text) for text in ("ScheduleZBVZeroBubble", "ZB-2p", "DualPipeV", "non-interleaved?", "combined_1f1b")]
    ['zb_v', 'zb_h2', 'dualpipe_v', '1f1b', 'combined_1f1b']
    """
    word = re.sub(r"^schedule", "", text.lower())
    return next((name for pattern, name in _SCHEDULES if re.match(pattern, word)), "")


# What frameworks call it: Megatron-LM's --recompute-method (uniform and block go with "full") and its modules (core_attn: "selective"),
# MaxText's remat_policy (configs/base.yml; what keeps the results of products recomputes what selective does), the rest is everyday speech.
# torchtitan names operators ("selective op", "SAC"); blocks may be counted ("12 layers").
_RECOMPUTE = (
    (r"none\b|disabled?\b|without\b|never\b", "none"),
    (r"selective|partial|s\.?ac\b|op\b|core.?attn|mlp|moe|layer.?norm|mla_up|(?:self.)?att(?:entio)?n\b", "selective"),
    (r"minimal\b|minimal_|save_(?:dot|qkv|out)|dots?\b|qkv_proj", "selective"),
    (r"full|uniform|block|enabled?\b|(?:grad|act)\w*.?(?:checkpoint|ckpt)|activation", "full"),
    (r"(?:a|g)c\b|checkpoint|ckpt|remat|recompute|every|always|per.?layer|all\b", "full"),
)
# A number is one of blocks only where it says so; "1" is a yes.
_BLOCKS = re.compile(r"(?:full\W+|block\W+|uniform\W+)?([0-9]+) ?(?:layers?|blocks?)\b")
# "unknown (interleaved schedule not stated)": as empty.
_NOT_SAID = re.compile(r"(?:unknown|not (?:stated|given|reported)|n/?a|\?)(?:\W|$)")


def recompute_of(text: str) -> tuple[str, int | None]:
    """``none``, ``selective`` or ``full``, and of how many blocks of a stage if the text counts them; empty where it says nothing.

    >>> [recompute_of(text)[0] for text in ("full (uniform)", "core_attn", "off", "minimal", "yes", "unknown (maybe full)")]
    ['full', 'selective', 'none', 'selective', 'full', '']
    >>> recompute_of("block, 12 layers")
    ('full', 12)

    Raises
    ------
    Unreadable
        It says something else.
    """
    word = text.lower()
    if not word or _NOT_SAID.match(word):
        return "", None
    counted = _BLOCKS.match(word)
    if counted is not None:
        return ("full", int(counted[1])) if int(counted[1]) else ("none", None)
    named = next((name for pattern, name in _RECOMPUTE if re.match(pattern, word)), None)
    flag = yes_or_no(word)
    if named is None and flag is None:
        raise Unreadable("column recompute is none of none, selective, full")
    return named or ("full" if flag else "none"), None


# -- experts ----

# Megatron-LM --moe-router-force-load-balancing, --moe-expert-capacity-factor, --moe-pad-expert-input-to-capacity.
_BALANCE = (
    (r".*\bpad(?:ded|ding)?\b", "padded"),
    (r"forced?\b|balanced\b|even\b|fake|uniform", "forced"),
    (r"dropless|no.?drop|free|real\b|router", "dropless"),
    (r"(?:tokens? )?drop(?:s|ped|ping)?\b|capped|capacity", "dropped"),
)
_DISPATCHER = ((r"deep.?ep|hybrid.?ep|flex|fused", "fused"), (r"a2a|all.?to.?all|nccl", "all_to_all"))
_CAPACITY = re.compile(r"capacity\D*([0-9]+(?:\.[0-9]+)?)")


def dispatcher_of(text: str) -> str:
    """How tokens travel, in the planner's words; empty where the text says nothing that is known.

    >>> dispatcher_of("DeepEP"), dispatcher_of("A2A"), dispatcher_of("")
    ('fused', 'all_to_all', '')
    """
    return next((name for pattern, name in _DISPATCHER if re.match(pattern, text.lower())), "")


def balance_of(text: str) -> tuple[str, float | None]:
    """What becomes of the loads of experts, in the planner's words, and their capacity over the mean.

    >>> [balance_of(text) for text in ("forced (padded to capacity 1)", "dropless", "token drop, capacity factor 1.25", "")]
    [('padded', 1.0), ('dropless', None), ('dropped', 1.25), ('', None)]
    """
    word = text.lower()
    found = next((name for pattern, name in _BALANCE if re.match(pattern, word)), "")
    capacity = _CAPACITY.search(word)
    return found, float(capacity[1]) if capacity and found in ("padded", "dropped") else None


# -- failures -----------------------------------------------------------------------------------------------------------------

_TIMES = (
    "step_time_ms", "samples_per_s", "tokens_per_s_per_gpu", "tokens_per_s", "frames_per_s", "audio_samples_per_s", "items_per_s",
)  # fmt: skip
# What stands in the cell of a time that there is none of.
_FAILED = re.compile(
    r"\boom\b|out.?of.?memory|\bkilled\b|\bfail|\bcrash|\bh[au]ng\b|\btime[d -]?out|\berror\b|\baborted\b"
    r"|(?:not|n't) (?:fit|run|start)|^[\u2717\u2718\u274c]"
)
_CROSSES = ("\u2717", "\u2718", "\u274c")  # "it failed" or "no", as a time beside them tells


def has_failed(row: Row) -> bool:
    """Whether a run failed: the column ``oom`` says so, or a failure stands where its time should.

    >>> [has_failed(Row(line=2, cells={"step_time_ms": text})) for text in ("CUDA out of memory", "OOM", "12.5", "nan", "")]
    [True, True, False, False, False]
    """
    crossed = row.text("oom").startswith(_CROSSES)
    if row.says("oom") and not crossed:
        return True
    said = [row.text(name).lower() for name in _TIMES if row.has(name)]
    if any(text[0].isdigit() for text in said):
        return False
    return crossed or any(_FAILED.search(text) for text in (*said, row.text("memory_gib").lower()))


# -- software -----------------------------------------------------------------------------------------------------------------


def framework_of(row: Row) -> str:
    """The framework of a canonical row; "other" where none is known, empty where nothing is stated.

    The source may say of which year Megatron-LM was.

    >>> [framework_of(Row(line=2, cells={"framework": text})) for text in ("nanotron v0.5", "26.06 NeMo Container", "ours", "")]
    ['nanotron', 'megatron-bridge', 'other', '']
    """
    text = row.text("framework")
    if not text.strip():
        return ""
    name = framework_called(text)
    if name == "megatron-lm":
        name = framework_called(f"{text} {row.text('source')}")
    return name or "other"

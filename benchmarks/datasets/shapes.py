"""Networks of published rows: names that mean bundled ones, shapes of well-known dense models that are not bundled, styles."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from benchmarks.datasets.reading import Row
from costmodel.network.graph import Graph
from planner.files.naming.models import transformer_called
from planner.files.resources import bundled
from planner.measurements.networks import stack_of

__all__ = [
    "agrees",
    "bundled_name",
    "is_particular",
    "maxtext_shape",
    "says_mixture",
    "style_of",
    "widths_of",
    "with_published_shape",
]

_Shape = dict[str, int | str]


def _shape(hidden: int, layers: int, heads: int, kv_heads: int | None = None, ffn: int | None = None) -> _Shape:
    """Columns of a shape; heads of their own and four times the width in between unless told otherwise."""
    widths = {
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "ffn": ffn or 4 * hidden,
    }
    return {**widths}


_GATED: _Shape = {"net": "Llama-like"}
# Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (arXiv:2104.04473, table 1); Shoeybi et al., Megatron-LM
# (arXiv:1909.08053, table 1: heads of 96); NVIDIA NeMo-Framework-Launcher, conf/training/gpt3/40b.yaml.
_GPT = (
    (r"1\.2", _shape(1536, 40, 16)),
    (r"2\.5", _shape(1920, 54, 20)),
    (r"4\.2", _shape(2304, 64, 24)),
    (r"8\.3", _shape(3072, 72, 32)),
    (r"3\.6", _shape(3072, 30, 32)),
    (r"7\.5", _shape(4096, 36, 32)),
    (r"18\.4", _shape(6144, 40, 48)),
    (r"39\.1", _shape(8192, 48, 64)),
    (r"40", _shape(8192, 48, 64)),
    (r"76\.1", _shape(10240, 60, 80)),
    (r"145\.6", _shape(12288, 80, 96)),
    (r"310\.1", _shape(16384, 96, 128)),
    (r"529\.6", _shape(20480, 105, 128)),
)
# Name in lower case -> shape; the first that is found decides. NVIDIA, Nemotron-4 340B (arXiv:2406.11704, table 1) and 15B
# (arXiv:2402.16819, table 1); Nemotron-3 as in NVIDIA NeMo (nemo/collections/llm/gpt/model/nemotron.py); Microsoft, Turing-NLG (blog of
# 13 February 2020); Zeng et al., GLM-130B (arXiv:2210.02414, section 2.3 and its configuration); Chowdhery et al., PaLM
# (arXiv:2204.02311, table 1: queries share one head of keys and values, heads of 256, gates of four times the width).
_PUBLISHED: tuple[tuple[str, _Shape], ...] = (
    (r"nemotron.*340b", _shape(18432, 96, 96, 8, 73728)),
    (r"nemotron.*15b", _shape(6144, 32, 48, 8, 24576)),
    (r"nemotron.*22b", _shape(6144, 40, 48, 48, 24576)),
    (r"nemotron.*8b", _shape(4096, 32, 32, 32, 16384)),
    (r"turing.?nlg|\bt.?nlg\b", _shape(4256, 78, 28)),
    (r"\bglm.?130b", {**_shape(12288, 70, 96, 96, 32768), **_GATED, "vocab": 150528}),
    (r"\bpalm.?8b", {**_shape(4096, 32, 16, 1), **_GATED, "head_dim": 256, "vocab": 256000, "tied": "yes"}),
    (r"\bpalm.?62b", {**_shape(8192, 64, 32, 1), **_GATED, "head_dim": 256, "vocab": 256000, "tied": "yes"}),
    (r"\bpalm.?540b", {**_shape(18432, 118, 48, 1), **_GATED, "head_dim": 256, "vocab": 256000, "tied": "yes"}),
    *((rf"(?:gpt|megatron)(?!.*moe).*(?<![\d.]){size}b", shape) for size, shape in _GPT),
)
_MAXTEXT_SIZE = re.compile(r"(?:maxtext|default)?\W*(?:model)?\W*(16|32|64|128|256|512|1024)b?")


def with_published_shape(row: Row) -> Row:
    """The row with the shape of a well-known model in the cells that are empty; the same row where it is none."""
    text = row.text("model").lower()
    shape = next((shape for pattern, shape in _PUBLISHED if re.search(pattern, text)), None)
    scale = (
        _MAXTEXT_SIZE.fullmatch(text)
        if "maxtext" in f"{text} {row.text('framework')} {row.text('source')}".lower()
        else None
    )
    if scale is not None:
        shape = maxtext_shape(int(scale[1]))
    if shape is None:
        return row
    known = {name: str(value) for name, value in shape.items()}
    stated = {name: cell for name, cell in row.cells.items() if cell}
    return replace(row, cells={**row.cells, **known, **stated})


def maxtext_shape(billions: int) -> _Shape:
    """What MaxText makes of ``global_parameter_scale`` (MaxText/pyconfig.py, get_individual_scales; configs/base.yml at scale 1).

    Powers of two go to the layers, the heads and inner width, and the width of the model in turn.

    >>> maxtext_shape(64)
    {'hidden': 8192, 'layers': 64, 'heads': 64, 'kv_heads': 64, 'ffn': 28672, 'net': 'Llama-like', 'head_dim': 128, 'vocab': 32000}
    """
    each, rest = divmod(int(math.log2(billions)), 3)
    wide, heads = 2 ** (each + (rest > 1)), 2 ** (each + (rest > 0))
    shape = _shape(2048 * wide, 16 * 2**each, 16 * heads, 16 * heads, 7168 * heads)
    return {**shape, **_GATED, "head_dim": 128, "vocab": 32000}


# -- names --------------------------------------------------------------------------------------------------------------------

# Model and net texts in lower case -> style; the first that is found decides.
_STYLES = (
    (r"bert", "bert"),
    (r"\b(?:vit|deit)\b|vision transformer", "vit"),
    (r"nemotron", "nemotron"),
    (
        r"llama|mi[sx]tral|internlm|qwen|\byi\b|baichuan|vicuna|gemma|deepseek|smollm|olmo|phi.?[34]|\bglm|chatglm|aquila",
        "llama",
    ),
    (r"mpt|gpt|opt|bloom|megatron|turing|chinchilla|neox|pythia|falcon|phi.?[12]|starcoder", "gpt"),
)


def style_of(row: Row) -> str:
    """The style that a row names in ``net`` or ``model``; empty where it names none.

    >>> [style_of(Row(line=2, cells={"model": text})) for text in ("LLAMA3_8B", "GPT3-175B", "ours")]
    ['llama', 'gpt', '']
    """
    texts = (row.text("net").lower(), row.text("model").lower())
    return next((style for text in texts for pattern, style in _STYLES if re.search(pattern, text)), "")


def bundled_name(row: Row) -> str | None:
    """Bundled transformer that a row names in ``model`` or ``net``; None where there is none."""
    known = bundled("models")
    for column in ("model", "net"):
        text = row.text(column)
        if text in known:
            return text
        name = transformer_called(text)
        if name is not None:
            return name
    return None


# "Mixtral 8x7B", "Qwen3-30B-A3B", "GPT MoE": names of mixtures.
_MIXTURE = re.compile(r"\bmoe\b|mixture|\bexperts?\b|\b\d+ ?x ?\d+(?:\.\d+)?b\b|\ba\d+(?:\.\d+)?b\b|mixtral")


def says_mixture(row: Row) -> bool:
    """Whether the name says so, or the kind of the network does ("MoE/other" leaves it open)."""
    model, net = (re.sub(r"[_\-]", " ", row.text(name).lower()) for name in ("model", "net"))
    return bool(_MIXTURE.search(model) or ("other" not in net and _MIXTURE.search(net)))


def is_particular(graph: Graph) -> bool:
    """Whether hidden size, layers and heads do not say what a network is: experts, two stacks, or images."""
    return bool({"moe", "cross_attention"} & set(graph.kinds)) or graph.layers[0].output_shape[0] != 1


def agrees(row: Row, graph: Graph) -> bool:
    """Whether a row's hidden size, layers and heads are those of a network; of an encoder and a decoder either the one or both count.

    >>> from planner.importers.networks import load_model
    >>> cells = {"hidden": "1024", "layers": "24", "heads": "16"}
    >>> agrees(Row(line=2, cells=cells), load_model("t5-large").graph), agrees(Row(line=2, cells=cells), load_model("t5-base").graph)
    (True, False)
    """
    stack = stack_of(graph)
    if not stack:
        return False
    layers = int(stack["layers"])
    crossed = sum(layer.kind == "cross_attention" for layer in graph.layers)
    return row.count("layers") in (layers, layers - crossed) and all(
        row.count(name) == int(stack[name]) for name in ("hidden", "heads")
    )


def widths_of(graph: Graph) -> dict[str, str]:
    """What the columns kv_heads, head_dim, ffn and vocab would say of a network that is a plain stack of blocks.

    >>> from planner.importers.networks import load_model
    >>> widths_of(load_model("llama3-8b").graph)
    {'kv_heads': '8', 'head_dim': '128', 'ffn': '14336', 'vocab': '128256'}
    """
    found: dict[str, str] = {}
    rows = 0  # of the largest embedding: BERT has one for segments, too
    for layer in graph.layers:
        if layer.kind == "self_attention":
            heads = layer.params.heads
            found.setdefault("kv_heads", str(layer.params.kv_heads or heads))
            found.setdefault("head_dim", str(layer.params.head_dim or layer.output_shape[0] // heads))
        elif layer.kind in ("glu", "activation") and layer.block:
            found.setdefault("ffn", str(layer.output_shape[0]))
        elif layer.kind == "embedding":
            rows = max(rows, layer.params.num_embeddings)
            found["vocab"] = str(rows)
    return {name: found[name] for name in ("kv_heads", "head_dim", "ffn", "vocab") if name in found}

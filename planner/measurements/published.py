"""Shapes of dense models that are no bundled networks, for rows that name one and state no widths."""

from __future__ import annotations

import math
import re

from planner.measurements.tables import Row

__all__ = ["maxtext_shape", "with_published_shape"]

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
    row.default("hidden", shape["hidden"])
    known = {name: str(value) for name, value in shape.items()}
    stated = {name: cell for name, cell in row.cells.items() if cell}
    return Row(line=row.line, cells={**row.cells, **known, **stated}, defaults=row.defaults)


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

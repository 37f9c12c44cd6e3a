"""Published deployments of served networks as canonical rows."""

from __future__ import annotations

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.machines import machine, put_attention
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.words import put_precision
from planner.files.naming.models import nearest_models, transformer_called

__all__ = ["deployment"]

# Networks of the same layers under another name: Kimi K2.5 is K2 and an encoder of images, which these runs do not use.
_SAME = {"kimi-k2.5": "kimi-k2"}


def deployment(row: Row) -> Cells:
    """The canonical row; degrees of experts are of all ranks that share them.

    Raises
    ------
    Unreadable
        No network of that name is known, or the phases have pools of their own.
    """
    if row.has("prefill_gpus") or row.text("mode").lower().startswith("dis"):
        raise Unreadable("prefill and decode run on different devices")
    name = row.text("model_family").lower() or row.text("model")
    model = transformer_called(_SAME.get(name, name)) or transformer_called(row.text("model"))
    if model is None:
        raise Unreadable(f"model '{row.text('model')}' is not known{nearest_models(row.text('model'))}")
    cells = Cells()
    cells.put("suspect", True if row.says("suspect") else None)
    cells.put("model", model)
    machine(row, cells)
    put_attention(row, cells)
    # gpt-oss is published with weights of its experts in mxfp4 and everything else in 16 bits, whatever a table calls that.
    if model.startswith("gpt-oss"):
        cells.put("precision", "w4a16-mxfp4")
    elif row.text("precision").startswith("int4"):
        cells.put("precision", "w4a16")
    else:
        put_precision(row, cells, "bf16")
    cells.counts(row, "gpus", "tp", "pp", "concurrency")
    cells.put("dp", (row.count("gpus") or 1) // ((row.count("tp") or 1) * (row.count("pp") or 1)))
    cells.put("ep", row.count("moe_ep"))
    cells.put("etp", row.count("moe_tp"))
    cells.put("prompt", row.count("isl"))
    cells.put("output", row.count("osl"))
    cells.numbers(row, "ttft_ms", "tpot_ms")
    return cells

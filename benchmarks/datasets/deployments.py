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
        No network of that name is known.
    """
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
    cells.counts(row, "gpus", "concurrency")
    if row.has("prefill_gpus"):  # pools of workers, each with several replicas of the attention
        _degrees(row, cells, "decode_", "", of_all="decode_gpus")
        _degrees(row, cells, "prefill_", "prefill_", of_all="prefill_gpus")
    else:
        _degrees(row, cells, "", "", of_all="gpus")
    cells.put("prompt", row.count("isl"))
    cells.put("output", row.count("osl"))
    # InferenceX draws lengths from 80 to 100 % of those it states; runs in house have them all alike.
    cells.put("shortest", None if row.text("dataset_group").startswith("in-house") else 0.8)
    cells.numbers(row, "ttft_ms", "tpot_ms")
    return cells


def _degrees(row: Row, cells: Cells, theirs: str, ours: str, *, of_all: str) -> None:
    tp, pp = row.count(f"{theirs}tp"), row.count(f"{theirs}pp")
    cells.put(f"{ours}tp", tp)
    cells.put(f"{ours}pp", pp)
    cells.put(f"{ours}dp", (row.count(of_all) or 1) // ((tp or 1) * (pp or 1)))
    cells.put(f"{ours}ep", row.count(f"{theirs}moe_ep"))
    cells.put(f"{ours}etp", row.count(f"{theirs}moe_tp"))

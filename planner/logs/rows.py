"""A checked run as a row of a table of measurements, for ``planner validate`` and ``planner calibrate``."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.network.sizes import sizes_of
from planner.core.answer import Estimate
from planner.core.errors import UsageError
from planner.files.naming.models import transformer_called
from planner.files.resources import bundled
from planner.files.text import failure, read_text
from planner.importers.networks import load_model
from planner.logs.compare import Check

# Settings of a plan over a device mesh with a column of the same name, and switches with one of another.
_SETTINGS = ("tp", "pp", "cp", "ep", "etp", "vpp", "dp", "micro_batch", "zero_stage", "recompute")
_SWITCHES = {
    "sequence_parallel": "sp",
    "offload_optimizer": "cpu_offload",
    "offload_activations": "activation_offload",
}
# (norm, gated, biases, learned positions) of blocks -> the style that has them.
_STYLES = {
    ("RMSNorm", True, False, False): "llama",
    ("LayerNorm", False, True, True): "gpt",
    ("LayerNorm", False, False, False): "nemotron",
}


def row_of(check: Check) -> dict[str, str]:
    """Cells of a row by column: the run with its measured median step and memory.

    Raises
    ------
    UsageError
        The columns of a table cannot say what ran.
    """
    estimate = check.estimate
    plan, setting = estimate.ranked.plan, estimate.setting
    if not hasattr(plan, "zero_stage"):
        raise UsageError("--row: a table has columns for plans over a device mesh only; this plan splits layers")
    last = check.memory[-1] if check.memory else None
    stated = {
        "shard_group": plan.dp_shard if plan.zero_stage else None,
        "cp_kind": plan.cp_kind if plan.cp > 1 else None,
        "schedule": plan.schedule if plan.pp > 1 else None,
        "recompute_blocks": plan.recompute_blocks or None,
        "stage_blocks": "/".join(map(str, plan.stage_blocks)) if plan.stage_blocks else None,
        "step_time_ms": f"{check.steps.median_s * 1e3:.6g}",
        "memory_gib": None if last is None else f"{last.measured_bytes / 2**30:.6g}",
        "memory_counts": None if last is None else last.counts,
    }
    cells = {
        **_network_cells(estimate),
        **_machine_cells(estimate),
        "precision": setting.precision,
        "gpus": estimate.ranked.workers,
        "global_batch": setting.global_batch,
        **{name: getattr(plan, name) for name in _SETTINGS},
        **{column: "yes" if getattr(plan, name) else "no" for name, column in _SWITCHES.items()},
        **{name: value for name, value in stated.items() if value is not None},
    }
    return {name: str(value) for name, value in cells.items()}


def _machine_cells(estimate: Estimate) -> dict[str, Any]:
    request, setting = estimate.space.request, estimate.setting
    cells: dict[str, Any] = {"framework": setting.framework} if setting.framework else {}
    if setting.framework and setting.framework not in bundled("frameworks"):
        cells["framework"] = _path("framework", request.framework)
    for kind, name in (("device", setting.device), ("cluster", setting.cluster)):
        if name in bundled(f"{kind}s"):
            cells[kind] = name
        elif not (kind == "device" and request.device is None):  # that of the cluster's file
            cells[f"{kind}_file"] = _path(kind, getattr(request, kind))
    return cells


def _path(kind: str, given: str | None) -> Path:
    if given is None or not Path(given).is_file():
        raise UsageError(f"--row: the row of a table names its {kind} or a file; give --{kind} as one of them")
    return Path(given).resolve()


def _network_cells(estimate: Estimate) -> dict[str, Any]:
    """Columns of the network: the name of a bundled one, else the sizes of its blocks."""
    request, seq = estimate.space.request, estimate.setting.seq
    graph = load_model(request.model, seq=request.seq).graph
    cells: dict[str, Any] = {"model": estimate.setting.model, "seq": seq}
    if graph.name in bundled("models") and transformer_called(graph.name) is not None:
        return cells
    sizes = sizes_of(graph)
    look = None if sizes is None else (sizes.norm, sizes.has_glu, sizes.has_bias, sizes.has_positions)
    style = None if look is None else _STYLES.get(look)
    if sizes is None or style is None:
        raise UsageError(
            f"--row: the columns of a table describe blocks of GPT, Llama and Nemotron; '{estimate.setting.model}' has others"
        )
    experts = {"experts": sizes.experts, "top_k": sizes.top_k, "expert_ffn": sizes.ffn}
    return {
        **cells,
        "style": style,
        "hidden": sizes.hidden,
        "layers": sizes.layers,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "ffn": sizes.ffn,
        "vocab": sizes.vocabulary,
        "tied": "yes" if sizes.is_tied else "no",
        "dropout": "yes" if "dropout" in graph.kinds else "no",
        **(experts if sizes.experts else {}),
        **({"shared_expert_ffn": sizes.shared_ffn} if sizes.experts and sizes.shared_ffn else {}),
    }


def table_with(path: Path, cells: Mapping[str, str]) -> str:
    """The text of a table with one more row; columns that it lacks are added.

    Parameters
    ----------
    path : Path
        A CSV file, or where one will be.
    cells : mapping
        By column.

    Raises
    ------
    InputFileError
        The file is no table.
    """
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    if path.exists():
        text, _ = read_text(path)
        reader = csv.DictReader(io.StringIO(text), restval="")
        columns = list(reader.fieldnames or ())
        rows = list(reader)
        broken = next((n for n, row in enumerate(rows, 2) if None in row), None)
        if "step_time_ms" not in columns or broken is not None:
            message = "is no table of training runs: it has no column step_time_ms"
            raise failure(path, "has more cells than columns" if broken else message, broken or 1, 1)
    columns += [name for name in cells if name not in columns]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, dict(cells)])
    return out.getvalue()

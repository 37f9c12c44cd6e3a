"""DeepSpeed: its JSON configuration. Values that say "auto" come from the program and must be given on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.importers.runs import Run, problem

TITLE = "DeepSpeed"
# Configurations nest a few levels; deeper ones would only exhaust the parser.
_COUNTS = {"train_micro_batch_size_per_gpu": "micro_batch", "train_batch_size": "batch"}


def read(path: Path, text: str) -> Run:
    """Read a run from the text of a configuration."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise problem(path, f"is no JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise problem(path, "is no DeepSpeed configuration: a mapping is expected")
    return run_of(path, content)


def run_of(path: Path, content: Mapping[str, Any]) -> Run:
    """Read a run from the parsed configuration."""
    run = Run()
    for key, option in _COUNTS.items():
        count = _count(path, content, key, run)
        if count is not None:
            (run.options if option == "batch" else run.mesh)[option] = str(count)
    accumulated = _count(path, content, "gradient_accumulation_steps", run)
    if accumulated is not None and "batch" not in run.options:
        run.options["num_micro_batches"] = str(accumulated)
    zero = _section(path, content, "zero_optimization")
    stage = zero.get("stage", 0)
    if stage == "auto" or not isinstance(stage, int) or not 0 <= stage <= 3:
        raise problem(path, f"is {stage!r}; 0, 1, 2 or 3 is expected", "zero_optimization.stage")
    run.mesh["zero"] = str(stage)
    offload = _section(path, zero, "offload_optimizer").get("device", "none")
    if offload == "cpu":
        run.mesh["offload"] = "optimizer"
    elif offload != "none":
        run.notes.append(
            f"zero_optimization.offload_optimizer.device {offload}: is costed as if nothing were offloaded"
        )
    if _section(path, zero, "offload_param").get("device", "none") != "none":
        run.notes.append("zero_optimization.offload_param: is not modelled; weights are costed on the device")
    _parallel(path, content, run)
    precisions = [name for name in ("bf16", "fp16") if _section(path, content, name).get("enabled") is True]
    run.options["precision"] = precisions[0] if precisions else "fp32"
    kind = str(_section(path, content, "optimizer").get("type", "")).lower()
    if kind:
        known = "adam" if "adam" in kind else ("sgd" if kind == "sgd" else None)
        if known:
            run.options["optimizer"] = known
        else:
            run.notes.append(
                f"optimizer.type {kind[:40]}: is not known to the cost model; the network's usual one is taken"
            )
    return run


def _section(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise problem(path, "a mapping is expected", key)
    return value


def _count(path: Path, content: Mapping[str, Any], key: str, run: Run) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if value == "auto":
        run.notes.append(f"{key}: is auto; give it on the command line, or the planner chooses")
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(path, f"is {value!r}; a whole number of at least 1 is expected", key)
    return value


def _parallel(path: Path, content: Mapping[str, Any], run: Run) -> None:
    tp = _count(path, _section(path, content, "tensor_parallel"), "autotp_size", run)
    if tp is not None and tp > 1:
        run.mesh["tp"] = str(tp)
    cp = _count(path, content, "sequence_parallel_size", run)
    if cp is not None and cp > 1:
        run.mesh |= {"cp": str(cp), "cp_kind": "all_to_all"}
    experts = _section(path, content, "expert_parallel")
    ep = _count(path, experts, "autoep_size", run) if experts.get("enabled") else None
    if ep is not None and ep > 1:
        run.mesh["ep"] = str(ep)
    if content.get("activation_checkpointing"):
        run.mesh["recompute"] = "full"
        run.notes.append(
            "activation_checkpointing: taken for full recomputation of every block; --recompute says otherwise"
        )
    if _section(path, content, "pipeline").get("stages") not in (None, "auto"):
        run.mesh["pp"] = str(_count(path, _section(path, content, "pipeline"), "stages", run))

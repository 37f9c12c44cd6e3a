"""Accelerate: the YAML (or JSON) file of `accelerate launch`, with FSDP of either version, DDP or an inline DeepSpeed section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.files.documents import parse_document
from planner.importers.runs import Run, problem

TITLE = "Accelerate"
_MESH = {"dp_replicate": "dp_replicate", "dp_shard": "dp_shard", "tp": "tp", "cp": "cp"}
_CP = {"allgather": "all_gather", "alltoall": "ring"}
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
# FSDP1 names a strategy where FSDP2 has a flag.
_FSDP1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
_SHARDS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}


def read(path: Path, text: str) -> Run:  # noqa: ARG001 - parsed from the file, with limits on aliases and depth
    """Read a run from a configuration file."""
    content = parse_document(path).value
    if not isinstance(content, dict) or "distributed_type" not in content:
        raise problem(path, "is no configuration of Accelerate: it has no distributed_type")
    run = Run()
    processes = _count(path, content, "num_processes")
    if processes is not None:
        run.options["gpus"] = str(processes)
    precision = content.get("mixed_precision", "no")
    precision = "no" if precision is False else str(precision)  # YAML 1.1 reads a bare no as false
    if precision not in _PRECISIONS:
        raise problem(path, f"is {precision!r}; known: {', '.join(_PRECISIONS)}", "mixed_precision")
    run.options["precision"] = _PRECISIONS[precision]
    kind = str(content["distributed_type"])
    if kind == "FSDP":
        _fsdp(path, content, run)
    elif kind == "DEEPSPEED":
        _deepspeed(path, content, run)
    elif kind in ("MULTI_GPU", "NO", "False"):
        run.mesh["zero"] = "0"
    else:
        raise problem(path, f"is {kind}; known: FSDP, DEEPSPEED, MULTI_GPU, NO", "distributed_type")
    return run


def _section(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise problem(path, "a mapping is expected", key)
    return value


def _count(path: Path, content: Mapping[str, Any], key: str) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(path, f"is {value!r}; a whole number of at least 1 is expected", key)
    return value


def _fsdp(path: Path, content: Mapping[str, Any], run: Run) -> None:
    fsdp = _section(path, content, "fsdp_config")
    prefix = "parallelism_config_"
    mesh = _section(path, content, "parallelism_config")
    for key, option in _MESH.items():
        count = _count(path, mesh, f"{prefix}{key}_size")
        if count is not None and (count > 1 or option.startswith("dp_")):
            run.mesh[option] = str(count)
    if "cp" in run.mesh:
        run.mesh["cp_kind"] = _CP.get(str(mesh.get(f"{prefix}cp_comm_strategy", "allgather")), "all_gather")
    if fsdp.get("fsdp_version", 1) == 2:
        stage = 3 if fsdp.get("fsdp_reshard_after_forward", True) is True else 2
    else:
        word = str(fsdp.get("fsdp_sharding_strategy", fsdp.get("fsdp_reshard_after_forward", "FULL_SHARD")))
        word = _SHARDS.get(word, word)
        if word not in _FSDP1:
            raise problem(path, f"is {word}; known: {', '.join(_FSDP1)}", "fsdp_config.fsdp_sharding_strategy")
        stage = _FSDP1[word]
        if word.startswith("HYBRID"):
            run.notes.append("fsdp_sharding_strategy hybrid: give --dp-replicate, the number of nodes as a rule")
    run.mesh["zero"] = str(stage)
    if fsdp.get("fsdp_activation_checkpointing") is True:
        run.mesh["recompute"] = "full"
    if fsdp.get("fsdp_offload_params") is True:
        run.mesh["offload"] = "optimizer"
        run.notes.append("fsdp_offload_params: weights move to the host, too; only the optimizer is costed there")


def _deepspeed(path: Path, content: Mapping[str, Any], run: Run) -> None:
    section = _section(path, content, "deepspeed_config")
    if "deepspeed_config_file" in section:
        raise problem(path, "names a file of DeepSpeed's; read that one: --from deepspeed FILE", "deepspeed_config")
    stage = section.get("zero_stage", 2)
    if not isinstance(stage, int) or not 0 <= stage <= 3:
        raise problem(path, f"is {stage!r}; 0, 1, 2 or 3 is expected", "deepspeed_config.zero_stage")
    run.mesh["zero"] = str(stage)
    if section.get("offload_optimizer_device") == "cpu":
        run.mesh["offload"] = "optimizer"

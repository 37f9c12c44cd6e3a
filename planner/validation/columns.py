"""Names of columns: what other tables call them, and remarks about those that are not read and about units that a whole file has wrong."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

import numpy as np

from planner.validation.outcomes import Outcome

__all__ = ["meant_by", "near_column", "remarks", "unread"]

# Column -> what trainers, their logs and other people's tables call the same thing (Megatron-LM's and DeepSpeed's arguments, config.json of
# Hugging Face, nccl-tests, everyday speech); in lower case, words apart by "_".
_CALLED: dict[str, str] = {
    "hidden": "hidden_size d_model n_embd embed_dim model_dim hidden_dim",
    "layers": "num_layers n_layer n_layers num_hidden_layers num_blocks",
    "heads": "num_heads num_attention_heads n_head n_heads attention_heads",
    "kv_heads": "num_kv_heads num_key_value_heads num_query_groups n_kv_heads",
    "head_dim": "kv_channels head_size",
    "ffn": "ffn_hidden_size intermediate_size ffn_dim d_ff mlp_dim ffn_hidden",
    "vocab": "vocab_size padded_vocab_size n_vocab vocabulary",
    "seq": "seq_len seq_length sequence_length context_length context_len max_seq_len seqlen sequence max_target_length",
    "experts": "num_experts n_experts num_local_experts n_routed_experts",
    "top_k": "moe_router_topk num_experts_per_tok topk",
    "expert_ffn": "moe_ffn_hidden_size moe_intermediate_size",
    "precision": "dtype data_type number_format",
    "device": "gpu gpu_type gpu_name gpu_model accelerator hardware chip device_name",
    "device_mem_gb": "gpu_memory_gb gpu_memory device_memory_gb",
    "gpus": "num_gpus n_gpus ngpus world_size gpu_count num_devices devices chips num_chips",
    "nodes": "num_nodes n_nodes nnodes hosts",
    "gpus_per_node": "nproc_per_node devices_per_node chips_per_node",
    "global_batch": "global_batch_size gbs train_batch_size",
    "micro_batch": "micro_batch_size mbs microbatch_size microbatch train_micro_batch_size_per_gpu",
    "batch_per_gpu": "per_device_batch_size local_batch_size per_gpu_batch_size",
    "grad_accum": "gradient_accumulation_steps grad_accum_steps gradient_accumulation ga",
    "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size tp_degree tensor_parallelism",
    "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size pp_degree pipeline_parallelism",
    "cp": "context_parallel context_parallel_size cp_size cp_degree",
    "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size ep_degree",
    "dp": "data_parallel data_parallel_size dp_size dp_degree data_parallelism",
    "vpp": "vp virtual_pipeline_parallel virtual_pipeline_model_parallel_size num_virtual_stages",
    "sp": "sequence_parallel sequence_parallelism",
    "zero_stage": "zero zero_level zero_optimization_stage",
    "recompute": "activation_checkpointing gradient_checkpointing remat remat_policy activation_recompute recompute_granularity "
    "recomputation checkpointing",
    "flash_attention": "flash_attn use_flash_attn flash use_flash_attention",
    "step_time_ms": "iteration_time_ms iter_time_ms time_per_step_ms step_ms elapsed_time_per_iteration_ms iteration_ms step_time_s "
    "step_time iteration_time_s iteration_time time_per_iteration",
    "tokens_per_s_per_gpu": "tokens_per_sec_per_gpu tokens_per_second_per_gpu tok_s_gpu tgs tokens_per_gpu_per_s "
    "tokens_per_s_per_device",
    "tokens_per_s": "tokens_per_sec tokens_per_second tok_s",
    "samples_per_s": "samples_per_sec samples_per_second images_per_s images_per_sec images_per_second img_s imgs_per_sec",
    "memory_gib": "memory_gb peak_memory_gib peak_memory_gb max_memory_gib max_memory_gb mem_gib mem_gb memory peak_memory memory_mib "
    "peak_memory_mib memory_mb",
    "oom": "out_of_memory failed is_oom",
    "framework": "software trainer",
    "time_ms": "latency_ms duration_ms elapsed_ms time_s time_us",
    "bytes": "size size_bytes message_bytes message_size_bytes message_size",
    "ranks": "nranks n_ranks",
    "busbw_GBps": "busbw bus_bw busbw_gb_s bus_bandwidth",
    "algbw_GBps": "algbw alg_bw algbw_gb_s",
    "pass_": "pass direction",
    "fwd_ms": "forward_time_ms fwd_time_ms",
    "bwd_ms": "backward_time_ms bwd_time_ms",
}
_MEANT = {other: column for column, others in _CALLED.items() for other in others.split()}
# Only tables of kernels have them: a "size" or a "time" of a training run is anything.
_OF_KERNELS = frozenset(("bytes", "time_ms", "ranks", "busbw_GBps", "algbw_GBps", "pass_", "fwd_ms", "bwd_ms"))
# And only training runs have these.
_OF_RUNS = frozenset(
    ("framework", "oom", "memory_gib", "recompute", "zero_stage", "sp", "step_time_ms", "params_b", "device_mem_gb")
)


def _plain(column: str) -> str:
    """Lower case, words apart by "_".

    >>> _plain("Tensor-Parallel size"), _plain("Step time (ms)")
    ('tensor_parallel_size', 'step_time_ms')
    """
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


_OWN = {_plain(column): column for column in _CALLED}


def meant_by(column: str) -> str | None:
    """The column that is probably meant; None where it is that column itself, or nothing that is known.

    >>> meant_by("seq_length"), meant_by("TP"), meant_by("tp"), meant_by("mood")
    ('seq', 'tp', None, None)
    """
    word = _plain(column)
    meant = _OWN.get(word) or _MEANT.get(word)
    return None if meant == column else meant


def near_column(name: str, columns: Sequence[str], known: frozenset[str]) -> str:
    """What a missing column may be called in a file, as the end of a phrase; empty where nothing is near.

    >>> near_column("time_ms", ["time_s", "device"], frozenset({"device"})), near_column("device", ["gpu"], frozenset())
    (" (the file has 'time_s')", " (the file has 'gpu')")
    """
    others = [column for column in columns if column not in known]
    near = [column for column in others if meant_by(column) == name] or difflib.get_close_matches(
        name, others, n=1, cutoff=0.7
    )
    return f" (the file has '{near[0]}')" if near else ""


# What a kind of table calls by a name that means something else in others.
_READ = {"collective": ("time_us",)}
# Predictions that are off by more than this in the median of a file are no matter of a cost model.
_WRONG_UNIT = 30.0
_FEWEST = 3  # rows of which that can be said


def remarks(columns: Sequence[str], kind: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """What a reader of the figures should know about a file.

    Parameters
    ----------
    columns : sequence of str
        Of the file.
    kind : str
        Of table.
    outcomes : sequence of Outcome
    """
    found = [*unread(columns, kind)]
    ratios = [c.predicted_s / c.measured_s for outcome in outcomes if outcome.is_scored for c in outcome.comparisons]
    positive = [ratio for ratio in ratios if ratio > 0]
    middle = float(np.median(positive)) if len(positive) >= _FEWEST else 1.0
    if abs(math.log(middle)) > math.log(_WRONG_UNIT):
        far = "shorter" if middle < 1 else "longer"
        times = 1 / middle if middle < 1 else middle
        found.append(f"half of the predictions are over {times:,.0f} times {far} than what was measured: wrong unit?")
    return tuple(found)


def unread(columns: Sequence[str], kind: str) -> tuple[str, ...]:
    """Columns of a table of this kind that are not read though their names say that they might be, each with what to call it.

    >>> unread(["hidden", "seq_len", "TP", "mood"], "plan")
    ("column 'seq_len' is not read: call it 'seq'", "column 'TP' is not read: call it 'tp'")
    """
    of_runs = kind in ("plan", "network")
    found = []
    for column in columns:
        meant = meant_by(column)
        if meant is None or meant in columns or column in _READ.get(kind, ()):
            continue
        if meant in (_OF_KERNELS if of_runs else _OF_RUNS):
            continue
        unit = "" if re.search(r"_(?:s|us|mib|mb|gb)$", _plain(column)) is None else ", in its unit"
        found.append(f"column '{column}' is not read: call it '{meant}'{unit}")
    return tuple(found)

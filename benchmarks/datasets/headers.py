"""Names of columns: what other tables call them, which of these can be read as they are, and which are only guessed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["MOST_TITLES", "header_below", "meant_by", "names_below", "near_column", "plain", "read_as"]

MOST_TITLES = 5  # lines before the names of the columns
_FEWEST_NAMES = 3  # by which a line is taken for the names of the columns

# Column -> what trainers, their logs and other people's tables call the same thing (Megatron-LM's and DeepSpeed's arguments, config.json of
# Hugging Face, nccl-tests, everyday speech); in lower case, words apart by "_".
_CALLED: dict[str, str] = {
    "model": "model_name",
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
    "schedule": "pipeline_schedule pp_schedule pipeline_parallel_schedule",
    "sp": "sequence_parallel sequence_parallelism",
    "zero_stage": "zero zero_level zero_optimization_stage",
    "recompute": "activation_checkpointing gradient_checkpointing remat remat_policy activation_recompute recompute_granularity "
    "recomputation checkpointing",
    "flash_attention": "flash_attn use_flash_attn flash use_flash_attention",
    "step_time_ms": "iteration_time_ms iter_time_ms time_per_step_ms step_ms elapsed_time_per_iteration_ms iteration_ms step_time_s "
    "step_time iteration_time_s iteration_time time_per_iteration time_per_iteration_ms time_per_iteration_s time_per_step_s time_per_step "
    "iter_time_s iter_time step_s",
    "tokens_per_s_per_gpu": "tokens_per_sec_per_gpu tokens_per_second_per_gpu tok_s_gpu tgs tokens_per_gpu_per_s "
    "tokens_per_s_per_device tokens_s_gpu tokens_sec_gpu tokens_s_per_gpu tokens_sec_per_gpu tok_s_per_gpu",
    "tokens_per_s": "tokens_per_sec tokens_per_second tok_s tokens_s tokens_sec words_per_s words_s words_sec",
    "samples_per_s": "samples_per_sec samples_per_second samples_s samples_sec images_s images_sec images_per_s images_per_sec "
    "images_per_second img_s img_sec imgs_s imgs_sec imgs_per_sec sequences_per_s sequences_per_sec sequences_per_second sequences_s "
    "sequences_sec sentences_per_s sentences_per_sec sentences_s utterances_per_s utterances_s examples_per_s examples_per_sec examples_s "
    "examples_sec",
    "frames_per_s": "frames_per_sec frames_per_second frames_s frames_sec mels_per_s mels_s mels_sec mel_frames_per_s mel_frames_s",
    "audio_samples_per_s": "audio_samples_s audio_samples_sec audio_samples_per_sec",
    "items_per_s": "throughput items_s items_sec items_per_sec items_per_second",
    "memory_gib": "memory_gb peak_memory_gib peak_memory_gb max_memory_gib max_memory_gb mem_gib mem_gb memory peak_memory memory_mib "
    "peak_memory_mib memory_mb",
    "oom": "out_of_memory failed is_oom",
    "framework": "software trainer",
    "time_ms": "latency_ms duration_ms elapsed_ms time_s time_us",
    "bytes": "size size_bytes size_b message_bytes message_size_bytes message_size",
    "ranks": "nranks n_ranks",
    "busbw_GBps": "busbw bus_bw busbw_gb_s bus_bandwidth",
    "algbw_GBps": "algbw alg_bw algbw_gb_s",
    "pass_": "pass direction",
    "fwd_ms": "forward_time_ms fwd_time_ms",
    "bwd_ms": "backward_time_ms bwd_time_ms",
}
_MEANT = {other: column for column, others in _CALLED.items() for other in others.split()}


def plain(column: str) -> str:
    """Lower case, words apart by "_".

    >>> plain("Tensor-Parallel size"), plain("Step time (ms)")
    ('tensor_parallel_size', 'step_time_ms')
    """
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


# Columns that nobody calls otherwise, but that people write in capitals.
_ALSO = (
    "net", "m", "n", "k", "c", "h", "w", "r", "s", "cluster_file", "device_file", "params_b", "batch", "batch_per_dp", "timesteps",
    "cell", "input", "kernel", "op", "pad_h", "pad_w", "stride_h", "stride_w", "groups", "dataset_group", "suspect", "a_t", "b_t",
    "causal", "notes", "source", "library", "fsdp", "zero1_group", "nvlink_domain", "intra_bw_GBps", "inter_bw_Gbps_per_node", "tied",
    "mp_mode", "cpu_offload", "lora_rank", "unit", "bwd_input_ms", "bwd_param_ms", "bwd_weight_ms", "collective",
)  # fmt: skip
_OWN = {plain(column): column for column in (*_CALLED, *_ALSO)}
# Names without the unit that their column has one of: whether they mean it is for their author to say.
_NO_UNIT = frozenset(
    (
        "step_time", "iteration_time", "time_per_iteration", "time_per_step", "iter_time", "gpu_memory", "memory", "peak_memory",
        "memory_gb", "peak_memory_gb", "max_memory_gb", "mem_gb", "memory_mib", "peak_memory_mib", "memory_mb", "size", "message_size",
        "busbw", "bus_bw", "bus_bandwidth", "algbw", "alg_bw",
    )
)  # fmt: skip
# Columns whose names mean something else beside another one: in tables of collectives, and in those that `planner measure` writes.
_UNLESS = {"time_us": "collective", "software": "kernel"}
# End of a name -> unit of its cells, where that is another one than its column's.
_OTHER_UNITS = {"_s": "s", "_us": "us"}


def meant_by(column: str) -> str | None:
    """The column that is probably meant; None where it is that column itself, or nothing that is known.

    >>> meant_by("seq_length"), meant_by("TP"), meant_by("tp"), meant_by("mood")
    ('seq', 'tp', None, None)
    """
    word = plain(column)
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


def read_as(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Columns that mean one that is read, without doubt -> that one, and the unit that their cells are in if it is another one.

    Not those whose column is there as well, two that mean the same, and those whose unit nobody states.

    >>> read_as(["GPU", "TP", "seq_len", "Step time (s)", "memory", "tp_size", "mood"])
    {'GPU': ('device', ''), 'seq_len': ('seq', ''), 'Step time (s)': ('step_time_ms', 's')}
    >>> read_as(["kernel", "software"]), read_as(["model", "software"])  # what `planner measure` notes down; a framework
    ({}, {'software': ('framework', '')})
    """
    meant = {column: name for column in columns if (name := meant_by(column)) is not None and name not in columns}
    several = Counter(meant.values())
    found = {}
    for column, name in meant.items():
        if several[name] > 1 or plain(column) in _NO_UNIT or _UNLESS.get(column) in columns:
            continue
        ends = (unit for end, unit in _OTHER_UNITS.items() if name.endswith("_ms") and plain(column).endswith(end))
        found[column] = (name, next(ends, ""))
    return found


def names_below(line: int) -> str:
    """What to say of a table whose columns are named further down."""
    return f"names no columns, as line {line} does; remove what stands before that line"


def header_below(lines: Sequence[tuple[int, Sequence[str]]]) -> int:
    """The line that names columns behind a title of fewer cells; 0 where the first names one, or none of the next does.

    >>> header_below([(1, ["Runs of June"]), (3, ["model", "GPU", "time_ms"]), (4, ["gpt2", "a100", "5"])]), header_below([(1, ["model"])])
    (3, 0)
    """
    known = [sum(plain(name) in _OWN or plain(name) in _MEANT for name in line) for _, line in lines[: MOST_TITLES + 1]]
    below = (number for (number, _), names in zip(lines, known, strict=False) if names >= _FEWEST_NAMES)
    return 0 if known[0] else next(below, 0)

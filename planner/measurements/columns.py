"""The columns of a table of measurements, each declared once: the reader's checks, `--template` and docs/measurements.md follow from it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from costmodel.framework import LayerAssumptions
from costmodel.hardware.cluster import Transport
from costmodel.hardware.device import FORMATS
from costmodel.mesh.plan import CP_KINDS, MEASURED_MEMORY, RECOMPUTE, SCHEDULES
from planner.core.errors import did_you_mean
from planner.files.naming.frameworks import framework_named
from planner.files.naming.precisions import precision_called
from planner.files.resources import bundled

Type = Literal["text", "count", "counts", "number", "choice", "set", "flag"]
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "mxfp8", "nvfp4", "int8")
_PASSES = ("forward", "backward", "backward_input", "backward_weight")
# Software that is none of the bundled frameworks is "other"; a framework file is named by its path.
_FRAMEWORKS = (*bundled("frameworks"), "other")
_FILES = (".yaml", ".yml")
# Columns whose texts may be what people call one of the allowed ones.
_CALLED: Mapping[str, Callable[[str], object]] = {"precision": precision_called, "framework": framework_named}
# What the column ``fuses`` may say -> the assumption.
FUSED = {
    name.removeprefix("fused_").replace("_", " "): name
    for name in LayerAssumptions.__dataclass_fields__
    if name.startswith("fused_")
}
_SHOWN = 40  # characters of a cell in a message
_MANY = 10**9  # more than anything has that is counted
_LONG_MS = 1e10  # a third of a year


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Attributes
    ----------
    name : str
    doc : str
        What a cell says.
    type : str
        ``text``; ``count`` (a whole number); ``counts`` (joined by "/"); ``number`` (above 0); ``choice`` or ``set`` (joined by "+") of the
        allowed ones; ``flag``.
    unit : str
        Of a number; empty where it has none.
    allowed : tuple of str
        Texts of a choice or set.
    least : int
        Of a whole number.
    most : float
        A number may not be above it.
    empty : str
        What an empty cell means.
    files : bool
        Whether the path of a file may stand in place of the allowed texts.
    """

    name: str
    doc: str
    type: Type = "text"
    unit: str = ""
    allowed: tuple[str, ...] = ()
    least: int = 1
    most: float = _MANY
    empty: str = "not stated"
    files: bool = False

    @property
    def values(self) -> str:
        """What a cell may say, in words.

        >>> COLUMNS["tp"].values, COLUMNS["memory_gib"].values, COLUMNS["sp"].values
        ('whole number', 'number, GiB', 'yes, no')
        """
        words = {"text": "text", "count": "whole number", "number": "number", "flag": "yes, no"}
        words["counts"] = "whole numbers joined by /"
        listed = ", ".join(self.allowed) if self.type == "choice" else " + ".join(self.allowed)
        return words.get(self.type, listed) + (f", {self.unit}" if self.unit else "")

    def problem(self, text: str) -> str:
        """What is wrong with a cell that is not empty; empty where nothing is.

        >>> COLUMNS["tp"].problem("8"), COLUMNS["tp"].problem("8-way")
        ('', "'8-way' is no whole number from 1")
        >>> COLUMNS["precision"].problem("bf15")
        "'bf15' is none of fp32, tf32, fp16, bf16, fp8, fp4, mxfp8, nvfp4, int8; did you mean 'bf16'?"
        """
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        if self.type == "flag":
            return "" if text in ("yes", "no") else f"'{shown}' is neither yes nor no"
        if self.type in ("choice", "set"):
            parts = text.split("+") if self.type == "set" else [text]
            is_called = self.name in _CALLED and _CALLED[self.name](text) is not None
            if set(parts) <= set(self.allowed) or is_called or (self.files and text.endswith(_FILES)):
                return ""
            return f"'{shown}' is none of {', '.join(self.allowed)}{did_you_mean(shown, self.allowed)}"
        if self.type == "counts":
            is_list = re.fullmatch(r"[0-9]{1,5}(/[0-9]{1,5})*", text)
            return "" if is_list else f"'{shown}' is no list of whole numbers such as 7/8/8/7"
        return self._number_problem(text, shown) if self.type != "text" else ""

    def _number_problem(self, text: str, shown: str) -> str:
        is_whole = text.isascii() and text.isdigit() and int(text) >= self.least
        if self.type == "count" and not is_whole:
            return f"'{shown}' is no whole number from {self.least}"
        value = _number(text)
        if value is None or (self.type == "number" and value <= 0):
            return f"'{shown}' is no number above 0{f' ({self.unit})' if self.unit else ''}"
        return f"'{shown}' is above {self.most:,.0f}: wrong unit?" if value > self.most else ""


def _number(text: str) -> float | None:
    """A finite number in digits, with a point or an exponent; None where it is none.

    >>> _number("1.5e3"), _number("1,500"), _number("nan"), _number("1_000")
    (1500.0, None, None, None)
    """
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _text(name: str, doc: str, empty: str = "-") -> Column:
    return Column(name=name, doc=doc, empty=empty)


def _count(name: str, doc: str, empty: str = "not stated", most: float = _MANY) -> Column:
    return Column(name=name, doc=doc, type="count", empty=empty, most=most)


def _number_of(name: str, unit: str, doc: str, empty: str = "not stated", most: float = math.inf) -> Column:
    return Column(name=name, doc=doc, type="number", unit=unit, empty=empty, most=most)


def _choice(name: str, allowed: tuple[str, ...], doc: str, empty: str = "not stated") -> Column:
    return Column(name=name, doc=doc, type="choice", allowed=allowed, empty=empty)


def _flag(name: str, doc: str, empty: str = "no") -> Column:
    return Column(name=name, doc=doc, type="flag", empty=empty)


def _time(name: str, doc: str) -> Column:
    return _number_of(name, "ms", doc, most=_LONG_MS)


_ALL = (
    # what ran
    _text(
        "model",
        "a bundled network (`planner list models`), or any name where `hidden`, `layers` and `heads` state the shape",
    ),
    _choice(
        "style",
        ("gpt", "llama", "nemotron", "bert", "vit"),
        "gpt: layer norms, biases, learned positions, shared embedding; llama: RMS norms, gated feed-forward part; nemotron: no biases, "
        "squared ReLU",
        "gpt where `ffn` is 4 `hidden` or empty, else llama",
    ),
    _count("hidden", "width of the model; of a kernel: features", "that of the bundled network"),
    _count("layers", "blocks", "those of the bundled network", 10_000),
    _count("cut_layers", "blocks that are kept of a bundled network, its first ones", "all", 10_000),
    _count("heads", "attention heads", "those of the bundled network"),
    _count("kv_heads", "heads of keys and values", "`heads`"),
    _count("head_dim", "features of a head", "`hidden / heads`"),
    _count("ffn", "inner width of the feed-forward part", "4 `hidden`; llama: 8/3 `hidden`, rounded up to 256"),
    _count("experts", "experts in every block", "none"),
    _count("top_k", "experts of a token", "2"),
    _count("expert_ffn", "inner width of an expert", "`ffn`"),
    _count("shared_expert_ffn", "inner width of the experts that every token passes, together", "none"),
    _count("dense_layers", "first blocks, which have no experts", "none", 10_000),
    _count("vocab", "rows of the embedding", "gpt 50304, llama 32000, nemotron 256000, bert 30522, vit 1000"),
    _flag("tied", "the head shares the embedding", "yes for gpt and bert, else no"),
    _flag(
        "padded_vocab",
        "the vocabulary is padded for matrix units; no: every tensor-parallel rank has `vocab // tp` words",
        "yes",
    ),
    _flag("dropout", "hidden states are dropped", "gpt and bert without fused attention, gpt of megatron-bridge"),
    _count("seq", "positions of a sample", "that of the bundled network, else 2048; vit 197", 10**8),
    _count(
        "computed_seq",
        "positions computed on average, where batches are padded to their longest sample only",
        "`seq`",
        10**8,
    ),
    _count("doc_length", "mean length of the documents packed into a sample", "it is one", 10**8),
    _number_of("doc_cv", "", "coefficient of variation of these lengths", "all are alike", 10.0),
    _count("lora_rank", "adapters of this rank are trained, the rest is frozen", "all weights are trained"),
    _choice(
        "lora_targets",
        ("qkv", "all"),
        "products with adapters: those of queries, keys and values, or all of a block",
        "that of the framework, else qkv",
    ),
    # number formats
    _choice(
        "precision",
        _PRECISIONS,
        "number format or recipe, by any name of planner list precisions",
        "bf16; of kernels and networks for images fp32",
    ),
    _flag("casts", "of a product: the time holds the cast of the m x k numbers from 16 bits"),
    _flag(
        "served",
        "of attention: the operator of an engine, which also rotates new queries and keys and writes the cache",
    ),
    _flag("latent", "of such an operator: latent attention with the features of DeepSeek-V2, whose `heads` are given"),
    _count(
        "kv_tokens",
        "of such an operator: positions in the cache of each sequence that is decoded",
        "a prompt is read",
        10**8,
    ),
    _count("window", "of such an operator: positions that a token sees", "all", 10**8),
    _count(
        "other_kernels",
        "of such an operator: kernels beside those that rotate and attend; of a mixture of experts beside those that an engine runs",
        "none",
        1000,
    ),
    _choice("kv_precision", ("bf16", "fp8"), "number format of the cache", "bf16"),
    _count("tokens", "of a mixture of experts: tokens that the router sends to the experts of all `ep` x `etp` ranks"),
    _number_of(
        "expert_spread",
        "",
        "of a mixture of experts: standard deviation of the loads of its experts over their mean; the rank with most tokens was timed",
        "all are equal",
        1e3,
    ),
    _choice("products", FORMATS, "format that products are computed in, where it is another one"),
    _choice(
        "gradient_bits",
        ("16", "32"),
        "of the gradients that accumulate and travel",
        "that of the framework; else 32, in fp16 and without master weights 16",
    ),
    _flag(
        "master_weights",
        "weights, gradients and state are also kept in 32 bits",
        "that of the framework, else yes",
    ),
    # where
    _text("device", "a bundled device (`planner list devices`)", "the one of `device_file`"),
    _text("cluster", "a bundled cluster whose links the devices have", "the usual one of the device"),
    _text("device_file", "a device file in place of a bundled device; its path starts at the folder of the table"),
    _text("cluster_file", "a cluster file in place of a bundled cluster and of the columns about links"),
    _number_of("device_mem_gb", "GiB", "memory of a device", "that of the device", 1e5),
    _count("gpus_per_node", "devices of a node", "those of the cluster"),
    _count("nodes", "nodes in use", "`gpus / gpus_per_node`"),
    _count("nvlink_domain", "devices that share the fast links", "`gpus_per_node`"),
    _number_of("intra_bw_GBps", "GB/s", "inside a node, per device and direction", "those of the cluster", 1e6),
    _number_of(
        "inter_bw_Gbps_per_node",
        "Gb/s",
        "between nodes, of a whole node and per direction",
        "those of the cluster",
        1e7,
    ),
    _choice(
        "transport",
        get_args(Transport),
        "how data get to the network between nodes: GPUDirect RDMA, RDMA through the host's memory, TCP",
        "that of the cluster; `tcp` below 100 Gb/s, InfiniBand aside; `host` on PCIe 3.0 with fewer adapters than switches",
    ),
    _count("gpus", "devices in use", "`tp pp cp dp`; without `dp`, `nodes x gpus_per_node`", 10**6),
    _count("ranks", "ranks of a collective", most=10**6),
    # software
    Column(
        name="framework",
        doc="software (`planner list frameworks`), a version after its name or not, or the path of a framework file; other: none of these",
        type="choice",
        allowed=_FRAMEWORKS,
        empty="no framework in particular",
        files=True,
    ),
    _choice(
        "attention_kernels",
        ("newest", "portable", "first"),
        "generation of the attention kernels",
        "that of the framework",
    ),
    _flag("gathered_inputs", "inputs are kept as they are gathered under sequence parallelism"),
    _flag("flash_attention", "attention is fused", "yes in bf16 and narrower formats, else no"),
    _flag("fast_convolutions", "convolutions by FFT and Winograd's algorithm, too", "yes"),
    _choice(
        "layout", ("channels_first", "channels_last"), "how images lie in memory in 16 bits", "that of the framework"
    ),
    Column(
        name="fuses",
        doc="operators without a kernel of their own in networks for images",
        type="set",
        allowed=("none", *FUSED),
        empty="those of the framework",
    ),
    _flag("parameter_servers", "gradients and weights travel through parameter servers between nodes"),
    _choice("data", ("real", "synthetic"), "images are copied to the device, or made there", "synthetic"),
    _number_of("storage_MBps", "MB/s", "reading rate of a node's storage, of real data", "never too slow"),
    _number_of("sample_kB", "kB", "size of a stored sample", "nothing to read"),
    _choice(
        "profiler",
        ("pipedream",),
        "program that timed an operator from the host, whose own time is in what it reports",
        "none",
    ),
    # the plan
    _count("global_batch", "samples of a step", "`batch_per_gpu x dp`, else `micro_batch x grad_accum x dp`"),
    _count("batch_per_gpu", "samples of a step and replica", "`global_batch / dp`"),
    _count(
        "micro_batch",
        "samples of a micro-batch",
        "from `grad_accum`; else the fastest power of two that fits; jax: all",
    ),
    _count("grad_accum", "micro-batches of a step and replica", "from `global_batch` and `micro_batch`; else 1"),
    _count("tp", "tensor parallel degree", "1"),
    _count("pp", "pipeline parallel degree", "1"),
    _count("cp", "context parallel degree", "1"),
    _choice("cp_kind", CP_KINDS, "how attention sees other positions", "the first that the framework has; ring"),
    _count("ep", "expert parallel degree", "1"),
    _count("etp", "tensor parallel degree inside an expert", "1"),
    _count("dp", "replicas, whether they share weights or not", "what is left of `gpus`"),
    _count(
        "vpp",
        "chunks of a pipeline rank",
        "1; where the framework usually interleaves, or `schedule` says so: the fastest that fits",
    ),
    Column(
        name="stage_blocks",
        doc="blocks of every chunk of the pipeline, in the order of the network",
        type="counts",
        empty="as the framework cuts",
    ),
    _choice("schedule", tuple(SCHEDULES), "of the pipeline", "1f1b, interleaved where `vpp` is above 1"),
    _flag(
        "sp",
        "sequence parallelism beside tp",
        "that of the framework; else yes for mixtures only",
    ),
    _choice(
        "zero_stage",
        ("0", "1", "2", "3"),
        "what replicas share: 1 the optimizer state, 2 gradients, too, 3 weights, too",
        "that of the framework, else 0 or what makes the run fit",
    ),
    _count("shard_group", "replicas that share", "all"),
    _flag("cpu_offload", "the host keeps the optimizer", "that of the framework, else no"),
    _flag("activation_offload", "the host keeps the inputs of recomputed blocks", "that of the framework, else no"),
    _choice(
        "recompute",
        tuple(RECOMPUTE),
        "activation checkpointing",
        "that of the framework, which may be the fastest that fits; else none",
    ),
    _choice(
        "dispatcher",
        ("fused", "all_to_all"),
        "how tokens travel to experts: once to a rank or node (DeepEP, HybridEP), or once for each expert (NCCL)",
        "that of the framework",
    ),
    _choice(
        "expert_kernels",
        ("each", "grouped"),
        "products of the experts of a rank: started one by one by the host, or in one kernel for all, which reads on the device how many "
        "tokens each expert has",
        "that of the framework",
    ),
    _choice(
        "expert_balance",
        ("forced", "dropless", "dropped", "padded"),
        "tokens of an expert: equally many whatever the router says, all that the router sends, at most `expert_capacity`, or places for "
        "so many, full or not",
        "forced where the framework's published runs are; else dropless",
    ),
    _number_of("expert_capacity", "times the mean", "most tokens of an expert where they are dropped or padded", "1"),
    _count("recompute_blocks", "blocks of a stage that are recomputed in full", "all"),
    # requests that are served
    _count("prompt", "tokens of a prompt, on average", most=10**8),
    _count("output", "tokens of an answer, on average", most=10**8),
    _count(
        "concurrency", "requests in flight in the whole deployment: as one is answered, the next is sent", most=10**7
    ),
    _count(
        "prefill_dp", "workers that only read prompts; `tp`, `pp`, `ep`, `etp`, `dp` are then of the others", "none"
    ),
    _count("prefill_tp", "tensor parallel degree of each of them", "1"),
    _count("prefill_pp", "pipeline stages of each of them", "1"),
    _count("prefill_ep", "expert parallel degree of theirs", "1"),
    _count(
        "prefill_etp", "tensor parallel degree inside an expert of theirs", "what `prefill_ep` leaves of `prefill_tp`"
    ),
    _number_of(
        "shortest",
        "share",
        "shortest prompt and answer over the stated ones; lengths are drawn evenly from there on",
        "1",
        1.0,
    ),
    # what was measured
    _time("step_time_ms", "a step"),
    _number_of("tokens_per_s_per_gpu", "tokens/s", "throughput of one device"),
    _number_of("tokens_per_s", "tokens/s", "throughput of all devices"),
    _number_of("samples_per_s", "samples/s", "throughput of all devices"),
    _number_of("frames_per_s", "frames/s", "throughput of all devices in frames of a spectrogram"),
    _number_of("audio_samples_per_s", "samples/s", "throughput of all devices in samples of a wave"),
    _number_of("memory_gib", "GiB", "memory of the fullest device", "no memory is compared", 1e5),
    _choice(
        "memory_counts",
        tuple(MEASURED_MEMORY),
        "what `memory_gib` counts: allocated (tensors: PyTorch's max_memory_allocated), reserved (with what its allocator holds unused: "
        "max_memory_reserved), used (with the context of driver and libraries: nvidia-smi)",
        "used; nanotron reserved",
    ),
    _choice(
        "memory_rank",
        ("fullest", "first"),
        "rank of the pipeline whose memory was measured",
        "fullest; nanotron first",
    ),
    _time("ttft_ms", "time from sending a request to its first token"),
    _time("tpot_ms", "time per token after the first"),
    _flag("oom", "the run failed: it is scored for feasibility only"),
    _time("forward_ms", "forward pass of a network, without an optimizer step"),
    _time("backward_ms", "backward pass of a network"),
    # kernels
    _text(
        "kernel",
        "kind of kernel in a table of several: gemm, convolution, recurrent, attention, moe, elementwise, copy, collective",
    ),
    _choice("pass_", _PASSES, "what was timed; backward: both gradients", "forward"),
    _count("m", "rows of the first matrix"),
    _count("n", "columns of the second matrix; of convolutions: samples"),
    _count("k", "columns of the first matrix; of convolutions: filters"),
    _choice("a_t", ("N", "T"), "the first matrix of a BLAS call is transposed"),
    _choice("b_t", ("N", "T"), "the second matrix of a BLAS call is transposed"),
    _number_of("mamf_tflops", "TFLOP/s", "best matrix rate that was found"),
    _count("c", "channels of the input"),
    _count("h", "height of the input"),
    _count("w", "width of the input"),
    _count("r", "height of a filter"),
    _count("s", "width of a filter"),
    Column(name="pad_h", doc="rows of zeros above and below", type="count", least=0, empty="0"),
    Column(name="pad_w", doc="columns of zeros on either side", type="count", least=0, empty="0"),
    _count("stride_h", "rows between positions of a filter", "1"),
    _count("stride_w", "columns between positions of a filter", "1"),
    _count("groups", "groups of channels", "1"),
    _choice("cell", ("vanilla", "GRU", "LSTM"), "of a recurrent layer"),
    _count("batch", "samples; of element-wise kernels rows"),
    _count("timesteps", "steps of a recurrent layer"),
    _count(
        "input", "features of the input of a recurrent layer", "the input is added without a product (CUDNN_SKIP_INPUT)"
    ),
    _flag("causal", "positions see earlier ones only", "yes"),
    _text("op", "an operator as PyTorch prints it; an element-wise operation; of a layer: activation, timed apart"),
    _number_of("activation_bytes", "bytes", "output of an operator for the whole batch"),
    _text("net", "a bundled network whose layer was timed"),
    _text("layer", "its name in the file of the network"),
    _choice(
        "collective",
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point", "broadcast", "reduce"),
        "operation",
        "all_reduce",
    ),
    _number_of(
        "bytes",
        "bytes",
        "of a message as nccl-tests counts it (all_gather: gathered); of a copy: read, and written again",
    ),
    _flag("in_network", "switches add up (SHARP)", "as those of the cluster"),
    _count("tokens_per_rank", "tokens that a rank sends to experts"),
    _count("sms", "multiprocessors that the exchange of tokens may use", "as many as engines give it"),
    _number_of("dispatch_us", "us", "tokens on their way to their experts, waiting for sizes left out"),
    _number_of("combine_us", "us", "results on their way back, waiting left out"),
    _text("algorithm", "who runs a collective: a custom all-reduce of a serving engine, else a library"),
    _time("time_ms", "time of a kernel"),
    _number_of("time_us", "us", "time of a collective"),
    _number_of("busbw_GBps", "GB/s", "bus bandwidth of a collective, as nccl-tests defines it"),
    _number_of("algbw_GBps", "GB/s", "algorithm bandwidth of a collective, as nccl-tests defines it"),
    _time("fwd_ms", "forward pass"),
    _time("bwd_ms", "backward pass"),
    _time("bwd_input_ms", "gradient of the input"),
    _time("bwd_param_ms", "gradient of the weights of a convolution"),
    _time("bwd_weight_ms", "gradient of the weights of a recurrent layer"),
    # about the row
    _text("dataset_group", "runs with equal ones may be compared with each other"),
    _flag("suspect", "left out and counted"),
    _text("source_sha256", "SHA-256 of the published table that a row was converted from"),
)
COLUMNS: dict[str, Column] = {column.name: column for column in _ALL}

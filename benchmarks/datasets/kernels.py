"""Published kernels as canonical rows: matrix products, convolutions, recurrent layers, operators, layers of logs, matrix peaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.images import network_name
from benchmarks.datasets.machines import machine, put_attention
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.words import products_of, put_precision, yes_or_no
from costmodel.network.layers import Layer
from planner.files.loading import load_device
from planner.measurements.convnets import graph_of
from planner.measurements.kernels import KERNELS
from planner.measurements.tables import short_name

__all__ = ["convolution", "experts", "layer_log", "matmul_peak", "measured", "operator", "product", "recurrent"]

_PASSES = (
    (r"^f", "forward"),  # forward, fwd, fprop
    (r"^b(?:ackward|wd|w|prop)?$", "backward"),
    # One of the two gradients: cuDNN's names and those of tables.
    (r"^(?:b\w*[ _-]*(?:input|data)|dgrad|accgradinput|updategradinput)", "backward_input"),
    (r"^(?:b\w*[ _-]*(?:param\w*|weights?|filter)|wgrad|accgradparam\w*)", "backward_weight"),
)


def _kernel(row: Row, default: str = "fp32") -> Cells:
    """Device, formats, and whether the row is to be left aside."""
    cells = Cells()
    cells.put("suspect", True if row.says("suspect") else None)
    machine(row, cells)
    for name in ("nodes", "gpus_per_node", "nvlink_domain", "intra_bw_GBps", "inter_bw_Gbps_per_node", "cluster"):
        cells.pop(name, None)
    put_precision(row, cells, default)
    products = products_of(row)
    if (
        products == "tensor-cores"
    ):  # cuDNN's CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, cuBLAS' CUBLAS_TENSOR_OP_MATH on Volta
        formats = load_device(cells["device"]).device.formats
        products = next((name for name in ("tf32", "fp16") if name in formats), "fp32")
    cells.put("products", products)
    return cells


def _pass(row: Row, cells: Cells) -> None:
    word = row.text("pass_").lower()
    found = next((name for pattern, name in _PASSES if re.search(pattern, word)), None)
    if found is None:
        raise Unreadable(
            "column pass_ is neither forward nor backward (both gradients), backward_input, backward_weight"
        )
    cells.put("pass_", found)


def product(row: Row) -> Cells:
    """A matrix product."""
    cells = _kernel(row)
    cells.counts(row, "m", "n", "k")
    cells.put("a_t", row.text("a_t").upper())
    cells.put("b_t", row.text("b_t").upper())
    # Its collector calls the engine's linear layer in fp8, with the cast of what enters (README of the tables).
    cells.put(
        "casts", (row.text("source").startswith("AIConfigurator") and cells["precision"].startswith("fp8")) or None
    )
    cells.numbers(row, "time_ms")
    return cells


_SHAPE = ("n", "c", "h", "w", "k", "r", "s")


def convolution(row: Row) -> Cells:
    """A convolution by its shape, or a layer of a bundled network by its name."""
    if row.has("net", "layer") and not row.has(*_SHAPE):
        return layer_log(row)
    cells = _kernel(row)
    cells.counts(row, *_SHAPE, "groups")
    both, stride = row.count("padding") or row.count("pad") or 0, row.count("stride") or 1
    cells.put("pad_h", row.count("pad_h") or both or None)
    cells.put("pad_w", row.count("pad_w") or both or None)
    cells.put("stride_h", row.count("stride_h") or stride)
    cells.put("stride_w", row.count("stride_w") or stride)
    if row.has("pass_"):
        _pass(row, cells)
        cells.numbers(row, "time_ms")
    cells.numbers(row, "fwd_ms", "bwd_input_ms", "bwd_param_ms")
    return cells


def recurrent(row: Row) -> Cells:
    """A recurrent layer over a sequence."""
    cells = _kernel(row)
    cells.put(
        "cell", {"lstm": "LSTM", "gru": "GRU", "vanilla": "vanilla", "rnn": "vanilla"}.get(row.text("cell").lower())
    )
    if "cell" not in cells:
        raise Unreadable("the cell is none of vanilla, GRU, LSTM")
    cells.counts(row, "hidden", "batch", "timesteps", "input")
    cells.numbers(row, "fwd_ms", "bwd_input_ms", "bwd_weight_ms")
    return cells


_VIEWS = ("View", "Size", "__getitem__", "Input", "hidden")


def operator(row: Row) -> Cells:
    """An operator of a profiled network as PyTorch prints it."""
    if row.text("op").strip().startswith(_VIEWS):
        raise Unreadable("an input or a view: no kernel of the network")
    cells = _kernel(row)
    cells.texts(row, "net", "op")
    cells.counts(row, "batch")
    cells.numbers(row, "activation_bytes", "fwd_ms", "bwd_ms")
    if "fwd_ms" not in cells and "bwd_ms" not in cells:
        raise Unreadable("no measured time")
    return cells


def matmul_peak(row: Row) -> Cells:
    """The best matrix throughput of a device."""
    cells = _kernel(row, "bf16")
    shape = re.fullmatch(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)", row.text("best_mnk"))
    for name, size in zip("mnk", shape.groups() if shape else (), strict=False):
        cells.put(name, int(size))
    cells.numbers(row, "mamf_tflops")
    return cells


_READ_APART = (
    "device",
    "precision",
    "products",
    "source",
    "provenance",
    "status",
    "framework",
    "notes",
    "device_mem_gb",
)


# Operators of an engine's attention in AIConfigurator's tables, by what they are beside the plain one.
_SERVED = re.compile(r"(attention|mla)(?:_(decode|prefill))?(?:_window)?$")


def measured(row: Row) -> Cells:
    """A row as `planner measure` writes it: what it says is taken as it is, but for device and formats."""
    kernel = row.text("kernel").lower()
    served = _SERVED.match(kernel) if row.text("source").startswith("AIConfigurator") else None
    if kernel not in KERNELS and not served:
        raise Unreadable(f"kernel '{short_name(row.text('kernel'))}' is not known ({', '.join(KERNELS)})")
    cells = _kernel(row)
    put_attention(row, cells)
    if kernel == "collective":
        cells.counts(row, "nodes", "gpus_per_node", "nvlink_domain")
    row.asked.update(row.cells)
    for name, text in row.cells.items():
        if text and name not in _READ_APART:
            cells.setdefault(name, text)
    for name in ("causal", "flash_attention"):
        cells.pop(name, None)
        cells.put(name, yes_or_no(row.text(name)))
    if served:
        _served(row, cells, is_latent=served[1] == "mla", decodes=served[2] == "decode")
    return cells


def _served(row: Row, cells: Cells, *, is_latent: bool, decodes: bool) -> None:
    """An operator of TensorRT-LLM's attention.

    Offsets of the batch are counted in a kernel first (invokeBuildDecoderInfo). On Hopper latent attention is decoded by FlashMLA, which
    lays out its work before and adds up pieces after (deepseek-ai/FlashMLA, csrc: get_mla_metadata, combine). Where the cache is in fp8,
    products are, too, but for whole heads that are decoded (cpp/tensorrt_llm/thop/attentionOp.cpp: mFP8ContextFMHA, mFP8ContextMLA,
    mFP8GenerationMLA).
    """
    cells["kernel"] = "attention"
    cells.put("served", True)
    cells.put("latent", is_latent or None)
    cells.put("other_kernels", 3 if is_latent and decodes and cells["device"].startswith("h100") else 1)
    if not decodes:
        cells.pop("kv_tokens", None)
    narrow = row.text("kv_precision") == "fp8" and (is_latent or not decodes)
    if narrow and "fp8" in load_device(cells["device"]).device.formats:
        cells["products"] = "fp8"


def experts(row: Row) -> Cells:
    """The experts of a rank, with the choice by scores that are there (AIConfigurator, collector/trtllm/collect_moe.py).

    "power_law_1.2": loads are drawn from a density that falls with this power of the load, and the rank with most tokens is timed
    (collector/helper.py, power_law_logits_v3).
    """
    cells = _kernel(row, "bf16")
    cells.put("kernel", "moe")
    cells.texts(row, "framework")
    if row.text("precision").startswith("mxfp4"):  # weights alone
        cells["precision"] = "w4a16-mxfp4"
    cells.counts(row, "tokens", "hidden", "expert_ffn", "top_k", "experts")
    cells.put("ep", row.count("moe_ep"))
    cells.put("etp", row.count("moe_tp"))
    power = re.fullmatch(r"power_law_([0-9.]+)", row.text("distribution"))
    if power:
        cells.put(
            "expert_spread",
            round(_spread(float(power[1]), *(int(cells[n]) for n in ("tokens", "top_k", "experts"))), 4),
        )
    elif row.text("distribution") != "balanced":
        raise Unreadable("column distribution is neither balanced nor power_law_ and a number")
    # More than 128 experts, or 8 of them for a token, are chosen by PyTorch's operators: two kernels of topk, two casts and a softmax in
    # place of one (tensorrt_llm/_torch/modules/fused_moe/routing.py, RenormalizeMoeRoutingMethod).
    by_operators = cells["precision"] != "w4a16-mxfp4" and (int(cells["experts"]) > 128 or int(cells["top_k"]) > 8)
    cells.put("other_kernels", 4 if by_operators else None)
    cells.numbers(row, "time_ms")
    return cells


def _spread(power: float, tokens: int, top_k: int, experts: int) -> float:
    """Standard deviation over the mean of loads with a density of x^-power between the bounds of `power_law_logits_v3`.

    The n-th moment is the integral of x^(n - power) over that of x^-power.

    >>> round(_spread(1.2, 100, 8, 128), 3), round(_spread(1.0001, 4, 8, 128), 3)
    (1.284, 1.295)
    """
    least, most = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    whole, first, second = (
        (most ** (n + 1.0 - power) - least ** (n + 1.0 - power)) / (n + 1.0 - power) for n in range(3)
    )
    return (second * whole / first**2 - 1.0) ** 0.5


# -- layers by name -----------------------------------------------------------------------------------------------------------

# Samples per batch of convnet-benchmarks' networks (its README): 128, for VGG 64.
_BATCH = {"vgg-a": 64}
_USUAL_BATCH = 128


def layer_log(row: Row) -> Cells:
    """A layer of a bundled network, by the name that a log has for it.

    Logs (of Caffe, here) list activations and copies as layers of their own, which bundled networks attach to the layer before.
    """
    name = network_name(row)
    if name is None:
        raise Unreadable("no bundled network has this name")
    text = row.text("layer")
    if text in ("input", "data", "label") or "_split" in text:
        raise Unreadable("moves no data: an input or the splitting of a tensor")
    layer = _layer(name, text)
    if layer is None:
        raise Unreadable("the bundled network has no such layer")
    cells = _kernel(row)
    cells.put("net", name)
    cells.put("layer", layer.name)
    cells.put("op", "activation" if "relu" in text else None)
    cells.put("n", row.count("n") or row.count("batch") or _BATCH.get(name, _USUAL_BATCH))
    _pass(row, cells)
    cells.numbers(row, "time_ms")
    return cells


@cache
def _layer(network: str, text: str) -> Layer | None:
    """The layer of a bundled network that a log means; None where there is none."""
    graph = graph_of(network)
    layers = {_plain(layer.name): layer for layer in graph.layers}
    layers |= {_numbered(graph.layers)[n]: layer for n, layer in enumerate(graph.layers) if _numbered(graph.layers)[n]}
    found = layers.get(_plain(text)) or layers.get(_plain(re.sub(r"relu_?", "", text)))
    first = text.split("/", maxsplit=1)[0]
    found = found or layers.get(_plain(first)) or layers.get(_plain(first).rstrip("0123456789"))
    if text.endswith("/output"):  # where the branches of a block meet
        found = next((layer for layer in graph.layers if layer.kind == "concat" and layer.name.startswith(first)), None)
    return found


def _plain(name: str) -> str:
    """Letters and digits; what a log appends about kernel and stride is dropped.

    >>> _plain("inception_3a/5x5_reduce"), _plain("conv2/5x5_s1"), _plain("conv2/3x3_reduce")
    ('inception3a5x5reduce', 'conv2', 'conv2reduce')
    """
    word = re.sub(r"/?\d+x\d+_s\d+$", "", name)
    if word.startswith("conv"):
        word = re.sub(r"/\d+x\d+", "", word)
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _numbered(layers: Sequence[Layer]) -> dict[int, str]:
    """Position -> "conv3": convolutions counted through, for networks that count them by stage ("conv2-1")."""
    names: dict[int, str] = {}
    for n, layer in enumerate(layers):
        if layer.kind == "convolution" and "-" in layer.name:
            names[n] = f"conv{len(names) + 1}"
    return {n: names.get(n, "") for n in range(len(layers))}

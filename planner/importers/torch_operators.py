"""Operators of torch (ATen) in the vocabulary of `planner.importers.traced`: views, products, windows. To add one, write a function below.

Names are those of torch.export, with and without decomposition (pytorch/pytorch, aten/src/ATen/native/native_functions.yaml).
"""

from __future__ import annotations

from typing import Any

from planner.importers import torch_elementwise
from planner.importers.torch_reading import OPERATORS, Reading, as_list, as_pair, is_tensor, operators, tensor_of
from planner.importers.traced.program import ProgramFault

__all__ = ["OPERATORS"]

assert torch_elementwise.OPERATORS is OPERATORS, "one table, filled by both modules"


# -- views -------------------------------------------------------------------------------------------------------------------


@operators(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "_reshape_alias", "view_copy"
)
def _reshape(r: Reading) -> None:
    r.become("reshape", [tensor_of(r)])


@operators(
    "contiguous", "clone", "alias", "detach", "detach_", "to", "_to_copy", "type_as", "lift_fresh_copy", "lift_fresh",
    "positive", "requires_grad_", "_assert_tensor_metadata", "alias_copy", "detach_copy",
)  # fmt: skip
def _alias(r: Reading) -> None:
    r.become("alias", [tensor_of(r)])


@operators("transpose", "t", "permute", "numpy_T", "swapaxes", "movedim", "mT")
def _permute(r: Reading) -> None:
    rank = len(r.shape(tensor_of(r)))
    order = list(range(rank))
    if "dims" in r.arguments:
        order = [d % rank for d in r.get("dims")]
    elif "dim0" in r.arguments:
        a, b = r.get("dim0", 0) % rank, r.get("dim1", 0) % rank
        order[a], order[b] = order[b], order[a]
    elif rank > 1:
        order[-2], order[-1] = order[-1], order[-2]
    r.become("permute", [tensor_of(r)], order=order)


@operators("expand", "expand_as", "broadcast_to")
def _expand(r: Reading) -> None:
    r.become("expand", [tensor_of(r)])


@operators("slice", "narrow")
def _slice(r: Reading) -> None:
    shape = r.shape(tensor_of(r))
    dim = r.get("dim", 0) % len(shape)
    start = r.get("start", 0)
    start = max(start + shape[dim], 0) if start < 0 else start
    step = r.get("step", 1)
    r.become("slice", [tensor_of(r)], dim=dim, start=start, stop=start + r.shapes[0][dim] * step, step=step)


@operators("select")
def _select(r: Reading) -> None:
    shape = r.shape(tensor_of(r))
    r.become("select", [tensor_of(r)], dim=r.get("dim", 0) % len(shape), index=r.get("index", 0))


@operators("view_as_complex")
def _as_complex(r: Reading) -> None:
    r.become("as_complex", [tensor_of(r)])


@operators("view_as_real")
def _as_real(r: Reading) -> None:
    r.become("as_real", [tensor_of(r)])


@operators("unbind")
def _unbind(r: Reading) -> None:
    r.become("unbind", [tensor_of(r)], dim=r.get("dim", 0) % len(r.shape(tensor_of(r))))


@operators("stack")
def _stack(r: Reading) -> None:
    r.become("stack", list(r.get("tensors")), dim=r.get("dim", 0) % len(r.shapes[0]))


@operators("repeat_interleave")
def _repeat_interleave(r: Reading) -> None:
    shape, times = r.shape(tensor_of(r)), r.get("repeats")
    if isinstance(times, int) and r.get("dim") is not None:
        r.become("repeat", [tensor_of(r)], dim=r.get("dim") % len(shape), times=times, inner=True)
    else:
        r.become("copy", [tensor_of(r)])


@operators("repeat", "tile")
def _repeat(r: Reading) -> None:
    """Repetitions of a dimension of one element are views."""
    shape, out = r.shape(tensor_of(r)), r.shapes[0]
    grown = (1,) * (len(out) - len(shape)) + tuple(shape)
    is_view = all(one in (1, extent) for one, extent in zip(grown, out, strict=True))
    r.become("expand" if is_view else "copy", [tensor_of(r)])


@operators("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(r: Reading) -> None:
    r.become("split", [tensor_of(r)], dim=r.get("dim", 0) % len(r.shape(tensor_of(r))))


@operators("cat", "concat", "concatenate")
def _cat(r: Reading) -> None:
    r.become("cat", list(r.get("tensors")), dim=r.get("dim", 0) % len(r.shapes[0]))


# -- products ----------------------------------------------------------------------------------------------------------------


@operators("linear")
def _linear(r: Reading) -> None:
    r.become("linear", [tensor_of(r), r.get("weight"), r.get("bias")], transposed=True)


@operators("addmm")
def _addmm(r: Reading) -> None:
    r.become("linear", [r.get("mat1"), r.get("mat2"), tensor_of(r)], transposed=False)


@operators("einsum")
def _einsum(r: Reading) -> None:
    r.become("einsum", list(r.get("tensors")), equation=r.get("equation"))


@operators("matmul", "mm", "bmm")
def _matmul(r: Reading) -> None:
    r.become("matmul", [tensor_of(r), r.get("other", r.get("mat2"))])


@operators("baddbmm")
def _baddbmm(r: Reading) -> None:
    r.become("matmul", [r.get("batch1"), r.get("batch2"), tensor_of(r)])


@operators("scaled_dot_product_attention")
def _attention(r: Reading) -> None:
    inputs = [r.get("query"), r.get("key"), r.get("value"), r.get("attn_mask")]
    r.become("attention", inputs, causal=bool(r.get("is_causal", False)), dropout=r.get("dropout_p", 0.0))


@operators("conv1d", "conv2d", "convolution", "conv_transpose2d", "conv_transpose1d")
def _convolution(r: Reading) -> None:
    rank = len(r.shape(r.get("weight"))) - 2
    padding = r.get("padding", 0)
    if isinstance(padding, str):
        kernel = r.shape(r.get("weight"))[2:]
        dilation = (as_list(r.get("dilation", 1)) * rank)[:rank]
        padding = [d * (k - 1) // 2 if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    sizes = {key: (as_list(r.get(key, one)) * rank)[:rank] for key, one in (("stride", 1), ("dilation", 1))}
    r.become(
        "convolution",
        [tensor_of(r), r.get("weight"), r.get("bias")],
        padding=(as_list(padding) * rank)[:rank],
        groups=r.get("groups", 1),
        transposed=bool(r.get("transposed", "output_padding" in r.arguments)),
        output_padding=as_list(r.get("output_padding", 0)),
        **sizes,
    )


_CELLS = {"lstm": ("lstm", 4), "gru": ("gru", 3), "rnn_tanh": ("rnn", 1), "rnn_relu": ("rnn", 1)}


@operators(*_CELLS)
def _recurrent(r: Reading) -> None:
    """nn.LSTM, nn.GRU, nn.RNN: all layers and directions are one operator."""
    cell, gates = _CELLS[r.operator]
    if "params" not in r.arguments or "batch_sizes" in r.arguments:
        raise ProgramFault(f"{r.operator}: packed sequences are not known; pass padded ones")
    states, parameters = r.get("hx"), list(r.get("params"))
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    layers, directions = r.get("num_layers"), 2 if r.get("bidirectional") else 1
    biases = 2 if r.get("has_biases") else 0
    if len(parameters) != layers * directions * (2 + biases):
        raise ProgramFault(f"{r.operator}: projections of the state (proj_size) are not known")
    r.become(
        "recurrent",
        [r.get("input"), *states, *parameters],
        states=len(states),
        cell=cell,
        hidden=r.shape(parameters[0])[0] // gates,
        layers=layers,
        directions=directions,
        time=1 if r.get("batch_first") else 0,
        biases=biases,
        dropout=r.get("dropout", 0.0) if r.get("train") else 0.0,
    )


@operators("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(r: Reading) -> None:
    """Rows of a table, summed per bag: bags of one length, as a matrix of indices says them."""
    r.become("embedding_bag", [r.get("weight"), r.get("indices")])


@operators("embedding")
def _embedding(r: Reading) -> None:
    r.become("embedding", [r.get("weight"), r.get("indices")])


# -- windows and sums --------------------------------------------------------------------------------------------------------


@operators("max_pool1d", "max_pool1d_with_indices", "avg_pool1d")
def _pool_of_rows(r: Reading) -> None:
    kernel = as_list(r.get("kernel_size"))
    r.become(
        "pool",
        [tensor_of(r)],
        kernel=kernel,
        stride=as_list(r.get("stride") or list(kernel)),
        padding=as_list(r.get("padding", 0)),
        ceil=bool(r.get("ceil_mode", False)),
        mode="average" if "count_include_pad" in r.arguments else "max",
    )


@operators("max_pool2d", "max_pool2d_with_indices", "avg_pool2d")
def _pool(r: Reading) -> None:
    kernel = as_pair(r.get("kernel_size"))
    r.become(
        "pool",
        [tensor_of(r)],
        kernel=kernel,
        stride=as_pair(r.get("stride") or list(kernel)),
        padding=as_pair(r.get("padding", 0)),
        ceil=bool(r.get("ceil_mode", False)),
        mode="average" if "count_include_pad" in r.arguments else "max",
    )


@operators(
    "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool1d", "adaptive_max_pool1d"
)
def _adaptive(r: Reading) -> None:
    r.become("adaptive_pool", [tensor_of(r)], mode="max" if len(r.shapes) > 1 else "average")


@operators("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
def _upsample(r: Reading) -> None:
    r.become("upsample", [tensor_of(r)], mode="bilinear" if "align_corners" in r.arguments else "nearest")


@operators(
    "pad", "constant_pad_nd", "roll", "flip", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "reflection_pad1d", "reflection_pad2d",
    "replication_pad2d", "cumsum", "cumprod", "unfold", "im2col",
)  # fmt: skip
def _copy(r: Reading) -> None:
    r.become("copy", [tensor_of(r)])


@operators("index", "gather", "index_select", "topk", "sort", "take_along_dim", "argsort")
def _gather(r: Reading) -> None:
    inputs: list[Any] = [tensor_of(r)]
    indices = r.arguments.get("indices", r.arguments.get("index"))
    inputs += [item for item in (indices if isinstance(indices, (list, tuple)) else [indices]) if is_tensor(item)]
    r.become("gather", inputs)

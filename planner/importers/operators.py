"""The operators of torch (ATen) and ONNX that are known, in one table; what each costs is said once, in `planner.importers.traced`.

Names of torch are those of torch.export, with and without decomposition (pytorch/pytorch, aten/src/ATen/native/native_functions.yaml),
begin with small letters and have their arguments by name; those of ONNX are in docs/Operators.md of onnx/onnx. An operator becomes a
kind of the vocabulary in `planner.importers.traced.program`, with the tensors that it reads and what else matters about it. To add one
that is like another, write its name beside it; for any other write a function (call) -> meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.importers.sources import registering
from planner.importers.traced.program import ProgramFault

# Which of their branches runs, or how often, is known only when they run (ONNX).
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

# Kind, tensors that are read, attributes.
Meaning = tuple[str, Sequence[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One operator as it stands in a program.

    Attributes
    ----------
    operator : str
    inputs : sequence
        The tensors that it reads, by name, in the order of its declaration; None for those that are left out.
    arguments : mapping
        torch: all arguments by name. ONNX: the attributes.
    shapes : tuple
        Of the outputs.
    shape : callable
        Tensor -> its shape.
    constant : callable
        Tensor -> its numbers; None where they are not known.
    """

    operator: str
    inputs: Sequence[Any]
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    shape: Callable[[Any], tuple[int, ...]]
    constant: Callable[[Any], Any] = lambda _: None

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that is no tensor, by its name in torch."""
        value = self.arguments.get(name, self.arguments.get(_IN_ONNX.get(name, name)))
        return default if value is None else value

    def input(self, index: int) -> Any:
        """A tensor; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def own_shape(self) -> tuple[int, ...]:
        """Shape of the first tensor."""
        return self.shape(self.input(0) or "")

    def dim(self, default: int = 0) -> int:
        """The dimension that it works along, counted from the front."""
        rank = max(len(self.shapes[0]), 1)
        return int(self.get("dim", default)) % rank

    def extents(self, name: str, default: Any, rank: int) -> list[int]:
        """Extents of a window; one number is for all directions."""
        return (_listed(self.get(name, default)) * rank)[:rank]

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Whole numbers that older versions of ONNX have as an attribute and newer ones as an input."""
        if attribute in self.arguments:
            return _listed(self.arguments[attribute])
        found = self.constant(self.input(index) or "")
        return None if found is None else [int(item) for item in found.reshape(-1)]


# What ONNX calls arguments of torch.
_IN_ONNX = {
    "dim": "axis",
    "stride": "strides",
    "dilation": "dilations",
    "groups": "group",
    "kernel_size": "kernel_shape",
    "keepdim": "keepdims",
}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


Reader = Callable[[Call], Meaning]
OPERATORS: dict[str, Reader] = {}
_operators = registering(OPERATORS, "operator")


# -- operators that say what they are in a line ----------------------------------------------------------------------

_BINARY = {
    "add": "add add_ Add Sum",
    "sub": "sub sub_ rsub Sub",
    "mul": "mul mul_ prelu _prelu_kernel Mul PRelu",
    "div": "div div_ atan2 Div",
    "pow": "pow Pow",
    "max": "maximum minimum Max Min",
    "eq": "eq Equal",
    "not": "logical_not bitwise_not Not",
    "compare": "ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor remainder fmod floor_divide __and__"
    " __or__ Less LessOrEqual Greater GreaterOrEqual And Or Xor Mod BitwiseAnd BitwiseOr",
}
_REDUCTIONS = {
    "mean": "mean ReduceMean",
    "sum": "sum norm linalg_vector_norm prod logsumexp ReduceSum ReduceL2 ReduceSumSquare ReduceProd",
    "max": "amax amin argmax argmin ReduceMax ReduceMin ArgMax ArgMin",
    "var": "var std var_mean",
}
_Attributes = dict[str, Any] | Callable[[Call], dict[str, Any]]


def _operands(op: str) -> _Attributes:

    def attributes(c: Call) -> dict[str, Any]:
        return {"op": op, "scaled": c.get("alpha", 1) != 1}

    return attributes


def _over(op: str) -> _Attributes:
    """What is done over the dimensions that are said, or all; ONNX keeps them unless told otherwise."""

    def attributes(c: Call) -> dict[str, Any]:
        named = c.numbers(1, "axes") if c.operator.startswith("Reduce") else c.get("dim")
        if named is None and c.operator.startswith("Arg"):
            named = 0
        dims = list(range(len(c.own_shape()))) if named is None or named == [] else _listed(named)
        return {"op": op, "dims": dims, "keep": bool(c.get("keepdim", c.operator[0].isupper()))}

    return attributes


def _element(c: Call) -> dict[str, Any]:
    return {"dim": c.get("dim", 0) % len(c.own_shape()), "index": c.get("index", 0)}


# Which of their tensors matter (the first so many, all, or these; -1 is the last), kind, attributes, names.
_ALIKE: tuple[tuple[int | tuple[int, ...] | None, str, _Attributes, str], ...] = (
    (1, "reshape", {}, ("view reshape reshape_as view_as _unsafe_view flatten unflatten unsqueeze squeeze _reshape_alias view_copy"
     " Reshape Flatten Squeeze Unsqueeze")),
    (1, "select", _element, "select"),
    (1, "unbind", _element, "unbind"),
    (1, "split", lambda c: {"dim": c.dim()}, "split chunk split_with_sizes tensor_split unsafe_split unsafe_chunk Split"),
    (None, "cat", lambda c: {"dim": c.dim()}, "cat concat concatenate Concat"),
    (None, "stack", lambda c: {"dim": c.dim()}, "stack"),
    (1, "alias", {}, ("tril triu"
     " contiguous clone alias detach detach_ to _to_copy type_as lift_fresh_copy lift_fresh positive requires_grad_"
     " _assert_tensor_metadata alias_copy detach_copy Identity Cast CastLike")),
    (1, "expand", {}, "expand expand_as broadcast_to Expand"),
    ((1,), "expand", {}, "copy_"),  # what is written; into what is said by the program (`write`)
    (1, "as_complex", {}, "view_as_complex"),
    (1, "as_real", {}, "view_as_real"),
    (1, "copy", {}, ("pad constant_pad_nd roll flip pixel_shuffle pixel_unshuffle channel_shuffle reflection_pad1d reflection_pad2d"
     " replication_pad2d cumsum cumprod unfold im2col Pad DepthToSpace SpaceToDepth CumSum Trilu ReverseSequence")),
    (None, "gather", {}, ("index gather index_select topk sort take_along_dim argsort"
     " GatherElements GatherND TopK OneHot")),
    ((0, -1), "write", {}, "slice_scatter select_scatter index_put index_put_ ScatterND ScatterElements"),
    (2, "matmul", {}, "matmul mm bmm MatMul"),
    (2, "embedding", {}, "embedding"),
    (2, "embedding_bag", {}, "embedding_bag _embedding_bag _embedding_bag_forward_only"),  # bags of one length, as a matrix of indices
    ((1, 2, 0), "matmul", {}, "baddbmm"),
    (None, "einsum", lambda c: {"equation": c.get("equation", "")}, "einsum Einsum"),
    ((0, 1, 2, 3), "attention", lambda c: {"causal": bool(c.get("is_causal", False)), "dropout": c.get("dropout_p", 0.0)},
     "scaled_dot_product_attention Attention"),
    (3, "linear", {"transposed": True}, "linear"),
    ((1, 2, 0), "linear", {"transposed": False}, "addmm"),
    (1, "softmax", lambda c: {"dim": c.get("dim", -1)},
     "softmax _softmax log_softmax _log_softmax _safe_softmax Softmax LogSoftmax"),
    (1, "dropout", lambda c: {"p": c.get("p", 0.5) if c.arguments.get("train", True) else 0.0},
     "dropout native_dropout dropout_ feature_dropout"),
    (1, "local_response_norm", lambda c: {"size": c.get("size")}, "LRN"),
    (1, "adaptive_pool", lambda c: {"mode": "max" if "max" in c.operator.lower() else "average"},
     ("adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d adaptive_avg_pool1d adaptive_max_pool1d GlobalAveragePool"
      " GlobalMaxPool")),
    (1, "upsample", lambda c: {"mode": "bilinear" if "align_corners" in c.arguments else c.get("mode", "nearest")},
     "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d Resize Upsample"),
    ((), "fixed", {}, ("fill_ zero_ ones ones_like new_ones zeros zeros_like new_zeros full full_like new_full"
     " Shape Size Range ConstantOfShape Constant EyeLike RandomNormal RandomUniform NonZero RandomNormalLike"
     " RandomUniformLike")),
    (3, "batch_norm", {}, ("batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"
     " _native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_with_update_functional BatchNormalization")),
    (3, "group_norm", {}, "group_norm native_group_norm instance_norm InstanceNormalization GroupNormalization"),
    (3, "where", {}, "where Where"),
    (None, "pointwise", {"flop": 2.0}, "addcmul addcdiv lerp"),
    (1, "loss", {"softmax": True}, ("cross_entropy_loss nll_loss nll_loss_forward nll_loss_nd"
     " SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss")),
    (1, "loss", {"softmax": False}, "mse_loss l1_loss smooth_l1_loss binary_cross_entropy_with_logits binary_cross_entropy"),
    (1, "unary", {"flop": 1.0}, ("neg exp log sqrt rsqrt abs reciprocal square sin cos clamp clamp_min clamp_max sign floor ceil round"
     " log1p expm1 log2 log10 exp2 tan atan trunc frac nan_to_num isnan isinf log_sigmoid softsign clip exp_ square_ sqrt_ neg_ clamp_"
     " Neg Exp Log Sqrt Reciprocal Abs Sin Cos Floor Ceil Round Sign IsInf IsNaN")),
    (1, "unary", {"flop": 1.0, "function": "erf"}, "erf Erf"),
    *((1, "activation", {"function": function}, names) for function, names in {
        "relu": "relu relu_ threshold Relu",
        "gelu": "gelu Gelu",
        "swish": "silu silu_ Swish",
        "sigmoid": "sigmoid sigmoid_ Sigmoid",
        "tanh": "tanh tanh_ Tanh",
        "elu": "elu elu_ selu celu Elu Selu Celu",
        "leaky_relu": "leaky_relu leaky_relu_ LeakyRelu",
        "hard": "hardswish hardswish_ hardsigmoid hardtanh hardtanh_ mish softplus relu6 relu6_ hardshrink"
                " HardSwish HardSigmoid Clip Softplus Mish",
    }.items()),
    *((None, "binary", _operands(op), names) for op, names in _BINARY.items()),
    *((1, "reduce", _over(op), names) for op, names in _REDUCTIONS.items()),
)  # fmt: skip


def _alike(read: int | tuple[int, ...] | None, kind: str, attributes: _Attributes) -> Reader:
    def reader(c: Call) -> Meaning:
        last = len(c.inputs)
        inputs = [c.input(index % last) for index in read] if isinstance(read, tuple) else c.inputs[:read]
        return kind, inputs, attributes(c) if callable(attributes) else attributes

    return reader


for _read, _kind, _attributes, _names in _ALIKE:
    _operators(*_names.split())(_alike(_read, _kind, _attributes))


@_operators("max", "min")
def _extremum(c: Call) -> Meaning:
    """Of two tensors, or over a dimension (torch)."""
    is_of_two = "other" in c.arguments
    return (_alike(None, "binary", _operands("max")) if is_of_two else _alike(1, "reduce", _over("max")))(c)


# -- views -------------------------------------------------------------------------------------------------------------------


@_operators("transpose", "t", "permute", "numpy_T", "swapaxes", "movedim", "mT", "Transpose")
def _permute(c: Call) -> Meaning:
    rank = len(c.shapes[0])
    order = list(range(rank))
    if c.operator == "Transpose":
        order = list(c.get("perm", order[::-1]))
    elif "dims" in c.arguments:
        order = [d % rank for d in c.get("dims")]
    elif "dim0" in c.arguments:
        a, b = c.get("dim0", 0) % rank, c.get("dim1", 0) % rank
        order[a], order[b] = order[b], order[a]
    elif rank > 1:
        order[-2], order[-1] = order[-1], order[-2]
    return "permute", c.inputs[:1], {"order": order}


@_operators("slice", "narrow")
def _slice(c: Call) -> Meaning:
    dim, start, step = c.dim(), c.get("start", 0), c.get("step", 1)
    start = max(start + c.own_shape()[dim], 0) if start < 0 else start
    stop = start + c.shapes[0][dim] * step
    return "slice", c.inputs[:1], {"dim": dim, "start": start, "stop": stop, "step": step}


@_operators("Slice")
def _slice_of_axes(c: Call) -> Meaning:
    """Along one axis: exporters cut no more."""
    source = c.own_shape()
    starts, axes, steps = c.numbers(1, "starts"), c.numbers(3, "axes"), c.numbers(4, "steps")
    cut = [i for i, (a, b) in enumerate(zip(source, c.shapes[0], strict=True)) if a != b]
    if not cut:
        return "alias", c.inputs[:1], {}
    if starts is None or len(cut) > 1:
        return "copy", c.inputs[:1], {}
    chosen = axes if axes is not None else list(range(len(starts)))
    where = [axis % len(source) for axis in chosen].index(cut[0])
    start, step = starts[where], steps[where] if steps else 1
    start = max(start + source[cut[0]], 0) if start < 0 else start
    if step < 1:
        return "copy", c.inputs[:1], {}
    stop = start + c.shapes[0][cut[0]] * step
    return "slice", c.inputs[:1], {"dim": cut[0], "start": start, "stop": stop, "step": step}


@_operators("repeat_interleave")
def _repeat_interleave(c: Call) -> Meaning:
    times, dim = c.get("repeats"), c.get("dim")
    if not isinstance(times, int) or dim is None:
        return "copy", c.inputs[:1], {}
    return "repeat", c.inputs[:1], {"dim": dim % len(c.own_shape()), "times": times, "inner": True}


@_operators("repeat", "tile", "Tile")
def _repeat(c: Call) -> Meaning:
    """Repetitions of a dimension of one element are views."""
    shape, out = c.own_shape(), c.shapes[0]
    grown = (1,) * (len(out) - len(shape)) + tuple(shape)
    is_view = all(one in (1, extent) for one, extent in zip(grown, out, strict=True))
    return "expand" if is_view else "copy", c.inputs[:1], {}


@_operators("Gather")
def _gather(c: Call) -> Meaning:
    """A look-up in a table, one element of an axis, or anything else."""
    shape = c.own_shape()
    axis = c.get("dim", 0) % max(len(shape), 1)
    index = c.constant(c.input(1) or "")
    if index is not None and index.size == 1:
        at = int(index.reshape(-1)[0])
        at = at + shape[axis] if at < 0 else at
        kind = "select" if index.ndim == 0 else "slice"
        return kind, c.inputs[:1], {"dim": axis, "index": at, "start": at, "stop": at + 1}
    return "embedding" if axis == 0 else "gather", c.inputs[:2], {}


# -- products ----------------------------------------------------------------------------------------------------------------


@_operators("Gemm")
def _gemm(c: Call) -> Meaning:
    if c.get("transA", 0):
        return "copy", c.inputs[:1], {}
    return "linear", [c.input(0), c.input(1), c.input(2)], {"transposed": bool(c.get("transB", 0))}


def _padding(c: Call, kernel: list[int], stride: list[int], dilation: list[int]) -> list[int] | None:
    """Padding before and after; None where the two are not the same."""
    rank, written, automatic = len(kernel), c.get("padding", 0), c.get("auto_pad", "NOTSET")
    if "pads" in c.arguments and automatic == "NOTSET":
        pads = list(c.get("pads"))
        return pads[:rank] if pads[:rank] == pads[rank:] else None
    if written == "same":
        return [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        sizes = zip(c.own_shape()[2:], kernel, stride, strict=True)
        totals = [max((-(-e // s) - 1) * s + k - e, 0) for e, k, s in sizes]
        return None if any(total % 2 for total in totals) else [total // 2 for total in totals]
    return [0] * rank if isinstance(written, str) else c.extents("padding", 0, rank)


@_operators("conv1d", "conv2d", "convolution", "conv_transpose2d", "conv_transpose1d", "Conv", "ConvTranspose")
def _convolution(c: Call) -> Meaning:
    kernel = list(c.shape(c.input(1) or "")[2:])
    rank = len(kernel)
    stride, dilation = c.extents("stride", 1, rank), c.extents("dilation", 1, rank)
    padding = _padding(c, kernel, stride, dilation)
    if padding is None:  # one more on a side: rounded up, the output is checked against what ONNX infers
        stated = c.get("pads", ())
        if len(stated) not in (0, 2 * rank):
            raise ProgramFault(
                f"{c.operator}: its pads are not two for each of the {rank} dimensions that the kernel has"
            )
        padding = [-(-(a + b) // 2) for a, b in zip(stated[:rank], stated[rank:], strict=True)] or [
            k // 2 for k in kernel
        ]
    is_transposed = c.operator == "ConvTranspose" or (c.operator != "Conv" and "output_padding" in c.arguments)
    return "convolution", [c.input(0), c.input(1), c.input(2)], {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": c.get("groups", 1),
        "transposed": bool(c.get("transposed", is_transposed)), "output_padding": _listed(c.get("output_padding", [])),
    }  # fmt: skip


# Cell, gates, initial states.
_CELLS = {
    "lstm": ("lstm", 4, 2),
    "gru": ("gru", 3, 1),
    "rnn_tanh": ("rnn", 1, 1),
    "rnn_relu": ("rnn", 1, 1),
    "rnn": ("rnn", 1, 1),
}


@_operators("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(c: Call) -> Meaning:
    """nn.LSTM, nn.GRU, nn.RNN: all layers and directions are one operator."""
    cell, gates, _ = _CELLS[c.operator]
    if "params" not in c.arguments or "batch_sizes" in c.arguments:
        raise ProgramFault(f"{c.operator}: packed sequences are not known; pass padded ones")
    states, parameters = c.get("hx"), list(c.get("params"))
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    layers, directions, biases = (
        c.get("num_layers"),
        2 if c.get("bidirectional") else 1,
        2 if c.get("has_biases") else 0,
    )
    if len(parameters) != layers * directions * (2 + biases):
        raise ProgramFault(f"{c.operator}: projections of the state (proj_size) are not known")
    return "recurrent", [c.get("input"), *states, *parameters], {
        "states": len(states), "cell": cell, "hidden": c.shape(parameters[0])[0] // gates, "layers": layers,
        "directions": directions, "time": 1 if c.get("batch_first") else 0, "biases": biases,
        "dropout": c.get("dropout", 0.0) if c.get("train") else 0.0,
    }  # fmt: skip


@_operators("LSTM", "GRU", "RNN")
def _recurrent_layer(c: Call) -> Meaning:
    """One layer of ONNX; W, R and B hold both directions, and B the biases of input and state."""
    cell, gates, states = _CELLS[c.operator.lower()]
    directions = 2 if c.get("direction", "forward") == "bidirectional" else 1
    features, hidden = c.own_shape()[-1:], c.shape(c.input(2) or "")[-1]
    wanted = ((directions, gates * hidden, *features), (directions, gates * hidden, hidden))
    if (c.shape(c.input(1) or ""), c.shape(c.input(2) or "")) != wanted or c.get("hidden_size", hidden) != hidden:
        raise ProgramFault(f"{c.operator}: W and R are not (directions, {gates} x hidden_size, inputs and hidden_size)")
    if c.input(4) is not None and c.constant(c.input(4) or "") is None:
        raise ProgramFault(f"{c.operator}: lengths of sequences that depend on the data are not known")
    initial = [c.input(5 + index) for index in range(states)]
    return "recurrent", [c.input(0), *initial, c.input(1), c.input(2), c.input(3)], {
        "states": states, "cell": cell, "hidden": hidden, "layers": 1, "directions": directions,
        "time": 1 if c.get("layout", 0) else 0, "biases": 2 if c.input(3) is not None else 0, "is_split": True,
    }  # fmt: skip


# -- norms, windows, conditions ----------------------------------------------------------------------------------------------


@_operators(
    "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization",
)  # fmt: skip
def _norm(c: Call) -> Meaning:
    kind = "layer_norm" if c.operator in ("layer_norm", "native_layer_norm", "LayerNormalization") else "rms_norm"
    rank = len(c.shapes[0])
    dims = len(c.get("normalized_shape")) if c.operator[0].islower() or c.operator[0] == "_" else rank - c.dim(-1)
    return kind, [c.input(0), c.input(1), c.input(2)], {"dims": dims}


@_operators("Dropout")
def _dropout_by_input(c: Call) -> Meaning:
    ratio, training = c.constant(c.input(1) or ""), c.constant(c.input(2) or "")
    rate = float(ratio.reshape(-1)[0]) if ratio is not None else float(c.get("ratio", 0.5))
    return "dropout", c.inputs[:1], {"p": rate if training is not None and bool(training.reshape(-1)[0]) else 0.0}


@_operators("masked_fill", "masked_fill_")
def _masked_fill(c: Call) -> Meaning:
    return "where", [c.get("mask"), c.get("value"), c.get("self")], {}


@_operators(
    "max_pool1d", "max_pool1d_with_indices", "avg_pool1d", "max_pool2d", "max_pool2d_with_indices", "avg_pool2d",
    "MaxPool", "AveragePool",
)  # fmt: skip
def _pool(c: Call) -> Meaning:
    is_onnx = c.operator[0].isupper()
    rank = len(c.get("kernel_size")) if is_onnx else 1 if "1d" in c.operator else 2
    kernel = c.extents("kernel_size", 1, rank)
    stride = c.extents("stride", 1 if is_onnx else [], rank) or kernel  # torch: the kernel's where there is none
    padding = _padding(c, kernel, stride, [1] * rank)
    return "pool", c.inputs[:1], {
        "kernel": kernel, "stride": stride, "padding": padding or [0] * rank,
        "mode": "max" if "max" in c.operator.lower() else "average",
        "ceil": bool(c.get("ceil_mode", False)) or padding is None,
    }  # fmt: skip


# -- made of nothing ---------------------------------------------------------------------------------------------------------


@_operators(
    "arange", "empty", "scalar_tensor", "new_empty", "empty_like", "eye", "linspace", "randn", "rand", "_tensor_constant", "outer",
    "any", "all", "rand_like", "randn_like", "bernoulli", "meshgrid",
)  # fmt: skip
def _made(c: Call) -> Meaning:
    return ("alias", c.inputs, {}) if c.inputs else ("fixed", [], {})

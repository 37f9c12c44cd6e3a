"""Operators of torch (ATen) in the vocabulary of `planner.importers.traced`. To add one, list it here or write a function below.

Names are those of torch.export, with and without decomposition (pytorch/pytorch, aten/src/ATen/native/native_functions.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["OPERATORS", "Reading"]


class Reading:
    """One operator as it is read: its arguments by name, shapes of its tensors, and what it becomes.

    ``arguments`` holds tensors as names (str wrapped in `Ref`) and everything else as it is.
    """

    __slots__ = ("arguments", "attributes", "inputs", "kind", "operator", "shape", "shapes")

    def __init__(
        self,
        operator: str,
        arguments: Mapping[str, Any],
        shape: Callable[[Any], tuple[int, ...]],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        self.operator = operator
        self.arguments = arguments
        self.shape = shape
        self.shapes = shapes
        self.kind = ""
        self.inputs: list[Any] = []
        self.attributes: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """An argument."""
        value = self.arguments.get(name)
        return default if value is None else value

    def become(self, kind: str, inputs: list[Any], **attributes: Any) -> None:
        """Say what the operator is."""
        self.kind, self.inputs, self.attributes = kind, inputs, attributes


Read = Callable[[Reading], None]
OPERATORS: dict[str, Read] = {}


def _operators(*names: str) -> Callable[[Read], Read]:
    def add(read: Read) -> Read:
        for name in names:
            assert name not in OPERATORS, f"operator {name!r} registered twice"
            OPERATORS[name] = read
        return read

    return add


def _self(r: Reading) -> Any:
    return r.arguments.get("self", r.arguments.get("input"))


def _pair(value: Any, default: Any = None) -> tuple[int, ...]:
    items = value if isinstance(value, (list, tuple)) and value else [value if isinstance(value, int) else default]
    result = tuple(int(item) for item in items)
    return result * 2 if len(result) == 1 else result


def _list(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


# -- views -------------------------------------------------------------------------------------------------------------------


@_operators(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "_reshape_alias", "view_copy"
)
def _reshape(r: Reading) -> None:
    r.become("reshape", [_self(r)])


@_operators(
    "contiguous", "clone", "alias", "detach", "detach_", "to", "_to_copy", "type_as", "lift_fresh_copy", "lift_fresh",
    "positive", "requires_grad_", "_assert_tensor_metadata", "alias_copy", "detach_copy",
)  # fmt: skip
def _alias(r: Reading) -> None:
    r.become("alias", [_self(r)])


@_operators("transpose", "t", "permute", "numpy_T", "swapaxes", "movedim", "mT")
def _permute(r: Reading) -> None:
    rank = len(r.shape(_self(r)))
    order = list(range(rank))
    if "dims" in r.arguments:
        order = [d % rank for d in r.get("dims")]
    elif "dim0" in r.arguments:
        a, b = r.get("dim0", 0) % rank, r.get("dim1", 0) % rank
        order[a], order[b] = order[b], order[a]
    elif rank > 1:
        order[-2], order[-1] = order[-1], order[-2]
    r.become("permute", [_self(r)], order=order)


@_operators("expand", "expand_as", "broadcast_to")
def _expand(r: Reading) -> None:
    r.become("expand", [_self(r)])


@_operators("slice", "narrow")
def _slice(r: Reading) -> None:
    shape = r.shape(_self(r))
    dim = r.get("dim", 0) % len(shape)
    start = r.get("start", 0)
    start = max(start + shape[dim], 0) if start < 0 else start
    step = r.get("step", 1)
    r.become("slice", [_self(r)], dim=dim, start=start, stop=start + r.shapes[0][dim] * step, step=step)


@_operators("select")
def _select(r: Reading) -> None:
    shape = r.shape(_self(r))
    r.become("select", [_self(r)], dim=r.get("dim", 0) % len(shape), index=r.get("index", 0))


@_operators("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(r: Reading) -> None:
    r.become("split", [_self(r)], dim=r.get("dim", 0) % len(r.shape(_self(r))))


@_operators("cat", "concat", "concatenate")
def _cat(r: Reading) -> None:
    r.become("cat", list(r.get("tensors")), dim=r.get("dim", 0) % len(r.shapes[0]))


# -- products ----------------------------------------------------------------------------------------------------------------


@_operators("linear")
def _linear(r: Reading) -> None:
    r.become("linear", [_self(r), r.get("weight"), r.get("bias")], transposed=True)


@_operators("addmm")
def _addmm(r: Reading) -> None:
    r.become("linear", [r.get("mat1"), r.get("mat2"), _self(r)], transposed=False)


@_operators("matmul", "mm", "bmm")
def _matmul(r: Reading) -> None:
    r.become("matmul", [_self(r), r.get("other", r.get("mat2"))])


@_operators("scaled_dot_product_attention")
def _attention(r: Reading) -> None:
    inputs = [r.get("query"), r.get("key"), r.get("value"), r.get("attn_mask")]
    r.become("attention", inputs, causal=bool(r.get("is_causal", False)), dropout=r.get("dropout_p", 0.0))


@_operators("conv1d", "conv2d", "convolution", "conv_transpose2d", "conv_transpose1d")
def _convolution(r: Reading) -> None:
    rank = len(r.shape(r.get("weight"))) - 2
    padding = r.get("padding", 0)
    if isinstance(padding, str):
        kernel = r.shape(r.get("weight"))[2:]
        dilation = (_list(r.get("dilation", 1)) * rank)[:rank]
        padding = [d * (k - 1) // 2 if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    sizes = {key: (_list(r.get(key, one)) * rank)[:rank] for key, one in (("stride", 1), ("dilation", 1))}
    r.become(
        "convolution",
        [_self(r), r.get("weight"), r.get("bias")],
        padding=(_list(padding) * rank)[:rank],
        groups=r.get("groups", 1),
        transposed=bool(r.get("transposed", "output_padding" in r.arguments)),
        output_padding=_list(r.get("output_padding", 0)),
        **sizes,
    )


@_operators("embedding")
def _embedding(r: Reading) -> None:
    r.become("embedding", [r.get("weight"), r.get("indices")])


# -- norms and activations ---------------------------------------------------------------------------------------------------


@_operators("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _norm(r: Reading) -> None:
    kind = "rms_norm" if "normalized_shape" in r.arguments and "bias" not in r.arguments else "layer_norm"
    r.become(kind, [_self(r), r.get("weight"), r.get("bias")], dims=len(r.get("normalized_shape")))


@_operators(
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "_batch_norm_with_update", "_batch_norm_with_update_functional",
)  # fmt: skip
def _batch_norm(r: Reading) -> None:
    r.become("batch_norm", [_self(r), r.get("weight"), r.get("bias")])


@_operators("group_norm", "native_group_norm", "instance_norm")
def _group_norm(r: Reading) -> None:
    r.become("group_norm", [_self(r), r.get("weight"), r.get("bias")])


@_operators("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
def _softmax(r: Reading) -> None:
    r.become("softmax", [_self(r)], dim=r.get("dim", -1))


@_operators("dropout", "native_dropout", "dropout_", "feature_dropout")
def _dropout(r: Reading) -> None:
    r.become("dropout", [_self(r)], p=r.get("p", 0.5) if r.arguments.get("train", True) else 0.0)


_ACTIVATIONS = {
    "relu": "relu", "relu_": "relu", "gelu": "gelu", "silu": "swish", "silu_": "swish", "sigmoid": "sigmoid", "tanh": "tanh",
    "elu": "elu", "leaky_relu": "leaky_relu", "leaky_relu_": "leaky_relu", "hardswish": "hard", "hardswish_": "hard",
    "hardsigmoid": "hard", "hardtanh": "hard", "hardtanh_": "hard", "mish": "hard", "softplus": "hard", "selu": "elu",
}  # fmt: skip


def _activation(function: str) -> Read:
    def read(r: Reading) -> None:
        r.become("activation", [_self(r)], function=function)

    return read


for _name, _function in _ACTIVATIONS.items():
    OPERATORS[_name] = _activation(_function)


# -- element by element ------------------------------------------------------------------------------------------------------


def _binary(op: str) -> Read:
    def read(r: Reading) -> None:
        other = r.arguments.get("other", r.arguments.get("exponent"))
        scaled = r.get("alpha", 1) != 1
        scalar = None if _is_tensor(other) else other
        inputs = [_self(r), other] if _is_tensor(other) else [_self(r)]
        inputs = [item for item in inputs if _is_tensor(item)]
        r.become("binary", inputs, op=op, scalar=scalar, scaled=scaled)

    return read


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Ref"


for _name, _op in {
    "add": "add", "add_": "add", "sub": "sub", "sub_": "sub", "rsub": "sub", "mul": "mul", "mul_": "mul", "div": "div", "div_": "div",
    "pow": "pow", "maximum": "max", "minimum": "max", "eq": "eq", "ne": "compare", "lt": "compare", "le": "compare",
    "gt": "compare", "ge": "compare", "logical_and": "compare", "logical_or": "compare", "bitwise_and": "compare",
    "bitwise_or": "compare", "remainder": "compare", "floor_divide": "compare", "__and__": "compare", "__or__": "compare",
}.items():  # fmt: skip
    OPERATORS[_name] = _binary(_op)


def _unary(flop: float, function: str = "") -> Read:
    def read(r: Reading) -> None:
        r.become("unary", [_self(r)], flop=flop, function=function)

    return read


for _name in (
    "neg", "exp", "log", "sqrt", "rsqrt", "abs", "reciprocal", "square", "sin", "cos", "clamp", "clamp_min", "clamp_max", "sign",
    "floor", "ceil", "round", "log1p", "expm1",
):  # fmt: skip
    OPERATORS[_name] = _unary(1.0)
OPERATORS["erf"] = _unary(1.0, "erf")
for _name in ("logical_not", "bitwise_not"):
    OPERATORS[_name] = _binary("not")


@_operators("where")
def _where(r: Reading) -> None:
    r.become("where", [r.get("condition"), _self(r), r.get("other")])


@_operators("masked_fill", "masked_fill_")
def _masked_fill(r: Reading) -> None:
    r.become("where", [r.get("mask"), r.get("value"), _self(r)])


# -- windows and sums --------------------------------------------------------------------------------------------------------


@_operators("max_pool2d", "max_pool2d_with_indices", "avg_pool2d")
def _pool(r: Reading) -> None:
    kernel = _pair(r.get("kernel_size"))
    r.become(
        "pool",
        [_self(r)],
        kernel=kernel,
        stride=_pair(r.get("stride") or list(kernel)),
        padding=_pair(r.get("padding", 0)),
        ceil=bool(r.get("ceil_mode", False)),
        mode="average" if "count_include_pad" in r.arguments else "max",
    )


@_operators("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")
def _adaptive(r: Reading) -> None:
    r.become("adaptive_pool", [_self(r)], mode="max" if len(r.shapes) > 1 else "average")


def _reduction(op: str) -> Read:
    def read(r: Reading) -> None:
        dims = r.get("dim")
        every = list(range(len(r.shape(_self(r)))))
        chosen = every if dims is None or dims == [] else list(_list(dims))
        r.become("reduce", [_self(r)], op=op, dims=chosen, keep=bool(r.get("keepdim", False)))

    return read


for _name, _op in {"mean": "mean", "sum": "sum", "amax": "max", "max": "max", "var": "var", "std": "var", "norm": "sum",
                   "argmax": "max", "linalg_vector_norm": "sum"}.items():  # fmt: skip
    OPERATORS[_name] = _reduction(_op)


@_operators("cross_entropy_loss", "nll_loss", "nll_loss_forward", "nll_loss_nd")
def _cross_entropy(r: Reading) -> None:
    r.become("loss", [_self(r)], softmax=True)


@_operators("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy")
def _other_loss(r: Reading) -> None:
    r.become("loss", [_self(r)], softmax=False)


@_operators("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
def _upsample(r: Reading) -> None:
    r.become("upsample", [_self(r)], mode="bilinear" if "align_corners" in r.arguments else "nearest")


@_operators(
    "pad",
    "constant_pad_nd",
    "roll",
    "repeat",
    "repeat_interleave",
    "flip",
    "tile",
    "pixel_shuffle",
    "reflection_pad2d",
    "cumsum",
)
def _copy(r: Reading) -> None:
    r.become("copy", [_self(r)])


@_operators("index", "gather", "index_select", "topk", "sort")
def _gather(r: Reading) -> None:
    inputs: list[Any] = [_self(r)]
    indices = r.arguments.get("indices", r.arguments.get("index"))
    inputs += [item for item in (indices if isinstance(indices, (list, tuple)) else [indices]) if _is_tensor(item)]
    r.become("gather", inputs)


# -- made of nothing ---------------------------------------------------------------------------------------------------------


@_operators("tril", "triu")
def _triangle(r: Reading) -> None:
    r.become("alias", [_self(r)], triangle=r.operator, diagonal=r.get("diagonal", 0))


_FILLS = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0, "zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}


@_operators(*_FILLS)
def _filled(r: Reading) -> None:
    r.become("fixed", [], fill=_FILLS[r.operator])


@_operators("full", "full_like", "new_full")
def _full(r: Reading) -> None:
    value = r.get("fill_value")
    r.become("fixed", [], **({"fill": value} if isinstance(value, (bool, int, float)) else {}))


@_operators(
    "arange", "empty", "scalar_tensor", "new_empty", "empty_like", "eye", "linspace", "randn", "rand", "_tensor_constant", "outer",
    "isinf", "any", "all", "rand_like", "randn_like", "bernoulli", "meshgrid",
)  # fmt: skip
def _made(r: Reading) -> None:
    inputs = [value for value in r.arguments.values() if _is_tensor(value)]
    r.become("fixed" if not inputs else "alias", inputs)

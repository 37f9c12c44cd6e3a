"""Operators of torch (ATen) that work element by element, normalise, or sum; and constants. To add one, list it here."""

from __future__ import annotations

from planner.importers.torch_reading import OPERATORS, Read, Reading, as_list, is_tensor, operators, tensor_of

__all__ = ["OPERATORS"]


# -- norms and activations ---------------------------------------------------------------------------------------------------


@operators("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _norm(r: Reading) -> None:
    kind = "rms_norm" if "normalized_shape" in r.arguments and "bias" not in r.arguments else "layer_norm"
    r.become(kind, [tensor_of(r), r.get("weight"), r.get("bias")], dims=len(r.get("normalized_shape")))


@operators(
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "_batch_norm_with_update", "_batch_norm_with_update_functional",
)  # fmt: skip
def _batch_norm(r: Reading) -> None:
    r.become("batch_norm", [tensor_of(r), r.get("weight"), r.get("bias")])


@operators("group_norm", "native_group_norm", "instance_norm")
def _group_norm(r: Reading) -> None:
    r.become("group_norm", [tensor_of(r), r.get("weight"), r.get("bias")])


@operators("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
def _softmax(r: Reading) -> None:
    r.become("softmax", [tensor_of(r)], dim=r.get("dim", -1))


@operators("dropout", "native_dropout", "dropout_", "feature_dropout")
def _dropout(r: Reading) -> None:
    r.become("dropout", [tensor_of(r)], p=r.get("p", 0.5) if r.arguments.get("train", True) else 0.0)


_ACTIVATIONS = {
    "relu": "relu", "relu_": "relu", "gelu": "gelu", "silu": "swish", "silu_": "swish", "sigmoid": "sigmoid", "tanh": "tanh",
    "elu": "elu", "leaky_relu": "leaky_relu", "leaky_relu_": "leaky_relu", "hardswish": "hard", "hardswish_": "hard",
    "hardsigmoid": "hard", "hardtanh": "hard", "hardtanh_": "hard", "mish": "hard", "softplus": "hard", "selu": "elu",
    "celu": "elu", "elu_": "elu", "relu6": "hard", "relu6_": "hard", "threshold": "relu", "hardshrink": "hard",
}  # fmt: skip


def _activation(function: str) -> Read:
    def read(r: Reading) -> None:
        r.become("activation", [tensor_of(r)], function=function)

    return read


for _name, _function in _ACTIVATIONS.items():
    OPERATORS[_name] = _activation(_function)


# -- element by element ------------------------------------------------------------------------------------------------------


def _binary(op: str) -> Read:
    def read(r: Reading) -> None:
        other = r.arguments.get("other", r.arguments.get("exponent"))
        scaled = r.get("alpha", 1) != 1
        scalar = None if is_tensor(other) else other
        inputs = [tensor_of(r), other] if is_tensor(other) else [tensor_of(r)]
        inputs = [item for item in inputs if is_tensor(item)]
        r.become("binary", inputs, op=op, scalar=scalar, scaled=scaled)

    return read


for _name, _op in {
    "add": "add", "add_": "add", "sub": "sub", "sub_": "sub", "rsub": "sub", "mul": "mul", "mul_": "mul", "div": "div", "div_": "div",
    "pow": "pow", "maximum": "max", "minimum": "max", "eq": "eq", "ne": "compare", "lt": "compare", "le": "compare",
    "gt": "compare", "ge": "compare", "logical_and": "compare", "logical_or": "compare", "bitwise_and": "compare",
    "bitwise_or": "compare", "bitwise_xor": "compare", "logical_xor": "compare", "remainder": "compare", "fmod": "compare",
    "atan2": "div", "floor_divide": "compare", "__and__": "compare", "__or__": "compare",
}.items():  # fmt: skip
    OPERATORS[_name] = _binary(_op)


def _unary(flop: float, function: str = "") -> Read:
    def read(r: Reading) -> None:
        r.become("unary", [tensor_of(r)], flop=flop, function=function)

    return read


for _name in (
    "neg", "exp", "log", "sqrt", "rsqrt", "abs", "reciprocal", "square", "sin", "cos", "clamp", "clamp_min", "clamp_max", "sign",
    "floor", "ceil", "round", "log1p", "expm1", "log2", "log10", "exp2", "tan", "atan", "trunc", "frac", "nan_to_num", "isnan",
    "log_sigmoid", "softsign", "clip", "exp_", "sigmoid_", "tanh_", "square_", "sqrt_", "neg_", "clamp_",
):  # fmt: skip
    OPERATORS[_name] = _unary(1.0)
OPERATORS["erf"] = _unary(1.0, "erf")
for _name in ("logical_not", "bitwise_not"):
    OPERATORS[_name] = _binary("not")


@operators("prelu", "_prelu_kernel")
def _prelu(r: Reading) -> None:
    r.become("binary", [tensor_of(r), r.get("weight")], op="mul")


@operators("addcmul", "addcdiv", "lerp")
def _three(r: Reading) -> None:
    r.become("pointwise", [item for item in r.arguments.values() if is_tensor(item)], flop=2.0)


@operators("where")
def _where(r: Reading) -> None:
    r.become("where", [r.get("condition"), tensor_of(r), r.get("other")])


@operators("masked_fill", "masked_fill_")
def _masked_fill(r: Reading) -> None:
    r.become("where", [r.get("mask"), r.get("value"), tensor_of(r)])


# -- sums and losses ---------------------------------------------------------------------------------------------------------


def _reduction(op: str) -> Read:
    def read(r: Reading) -> None:
        dims = r.get("dim")
        every = list(range(len(r.shape(tensor_of(r)))))
        chosen = every if dims is None or dims == [] else list(as_list(dims))
        r.become("reduce", [tensor_of(r)], op=op, dims=chosen, keep=bool(r.get("keepdim", False)))

    return read


def _extremum(r: Reading) -> None:
    """Of two tensors, or over a dimension."""
    (_binary("max") if "other" in r.arguments else _reduction("max"))(r)


OPERATORS["max"] = OPERATORS["min"] = _extremum
for _name, _op in {"mean": "mean", "sum": "sum", "amax": "max", "amin": "max", "var": "var", "std": "var", "norm": "sum",
                   "argmax": "max", "argmin": "max", "linalg_vector_norm": "sum", "prod": "sum", "logsumexp": "sum",
                   "var_mean": "var"}.items():  # fmt: skip
    OPERATORS[_name] = _reduction(_op)


@operators("cross_entropy_loss", "nll_loss", "nll_loss_forward", "nll_loss_nd")
def _cross_entropy(r: Reading) -> None:
    r.become("loss", [tensor_of(r)], softmax=True)


@operators("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy")
def _other_loss(r: Reading) -> None:
    r.become("loss", [tensor_of(r)], softmax=False)


# -- made of nothing ---------------------------------------------------------------------------------------------------------


@operators("tril", "triu")
def _triangle(r: Reading) -> None:
    r.become("alias", [tensor_of(r)], triangle=r.operator, diagonal=r.get("diagonal", 0))


_FILLS = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0, "zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}


@operators(*_FILLS)
def _filled(r: Reading) -> None:
    r.become("fixed", [], fill=_FILLS[r.operator])


@operators("full", "full_like", "new_full")
def _full(r: Reading) -> None:
    value = r.get("fill_value")
    r.become("fixed", [], **({"fill": value} if isinstance(value, (bool, int, float)) else {}))


@operators(
    "arange", "empty", "scalar_tensor", "new_empty", "empty_like", "eye", "linspace", "randn", "rand", "_tensor_constant", "outer",
    "isinf", "any", "all", "rand_like", "randn_like", "bernoulli", "meshgrid",
)  # fmt: skip
def _made(r: Reading) -> None:
    inputs = [value for value in r.arguments.values() if is_tensor(value)]
    r.become("fixed" if not inputs else "alias", inputs)

"""Operators of ONNX in the vocabulary of `planner.importers.traced`; meanings and defaults from onnx/onnx, docs/Operators.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.importers.registry import registering
from planner.importers.traced.program import ProgramFault

__all__ = ["CONTROL_FLOW", "OPERATORS", "Node"]

# Which of their branches runs, or how often, is known only when they run.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class Node:
    """One node as it is read."""

    __slots__ = ("attributes", "constant", "inputs", "kind", "operator", "result", "shape", "shapes")

    def __init__(
        self,
        operator: str,
        inputs: list[str | None],
        attributes: dict[str, Any],
        shapes: tuple[tuple[int, ...], ...],
        shape: Callable[[str], tuple[int, ...]],
        constant: Callable[[str], Any],
    ) -> None:
        self.operator = operator
        self.inputs = inputs
        self.attributes = attributes
        self.shapes = shapes
        self.shape = shape
        self.constant = constant
        self.kind = ""
        self.result: dict[str, Any] = {}

    def input(self, index: int) -> str | None:
        """An input; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Whole numbers that older versions have as an attribute and newer ones as an input."""
        if attribute in self.attributes:
            value = self.attributes[attribute]
            return list(value) if isinstance(value, (list, tuple)) else [value]
        name = self.input(index)
        found = None if name is None else self.constant(name)
        return None if found is None else [int(item) for item in found.reshape(-1)]

    def become(self, kind: str, inputs: list[str | None], **attributes: Any) -> None:
        """Say what the node is."""
        self.kind, self.inputs, self.result = kind, inputs, attributes


Read = Callable[[Node], None]
OPERATORS: dict[str, Read] = {}
_operators = registering(OPERATORS, "operator")


# -- views -------------------------------------------------------------------------------------------------------------------


@_operators("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(n: Node) -> None:
    n.become("reshape", n.inputs[:1])


@_operators("Identity", "Cast", "CastLike")
def _alias(n: Node) -> None:
    n.become("alias", n.inputs[:1])


@_operators("Transpose")
def _transpose(n: Node) -> None:
    rank = len(n.shapes[0])
    n.become("permute", n.inputs[:1], order=list(n.get("perm", range(rank)[::-1])))


@_operators("Expand")
def _expand(n: Node) -> None:
    n.become("expand", n.inputs[:1])


@_operators("Tile")
def _tile(n: Node) -> None:
    """Repetitions of dimensions of one element are views."""
    source, out = n.shape(n.inputs[0] or ""), n.shapes[0]
    is_view = len(source) == len(out) and all(one in (1, extent) for one, extent in zip(source, out, strict=True))
    n.become("expand" if is_view else "copy", n.inputs[:1])


@_operators("Slice")
def _slice(n: Node) -> None:
    """One axis after the other is not needed: exporters cut one."""
    source = n.shape(n.inputs[0] or "")
    starts, axes, steps = n.numbers(1, "starts"), n.numbers(3, "axes"), n.numbers(4, "steps")
    cut = [i for i, (a, b) in enumerate(zip(source, n.shapes[0], strict=True)) if a != b]
    if not cut:
        n.become("alias", n.inputs[:1])
        return
    if starts is None or len(cut) > 1:
        n.become("copy", n.inputs[:1])
        return
    chosen = axes if axes is not None else list(range(len(starts)))
    where = [axis % len(source) for axis in chosen].index(cut[0])
    start, step = starts[where], steps[where] if steps else 1
    start = max(start + source[cut[0]], 0) if start < 0 else start
    if step < 1:
        n.become("copy", n.inputs[:1])
        return
    n.become("slice", n.inputs[:1], dim=cut[0], start=start, stop=start + n.shapes[0][cut[0]] * step, step=step)


@_operators("Split")
def _split(n: Node) -> None:
    n.become("split", n.inputs[:1], dim=n.get("axis", 0) % len(n.shapes[0]))


@_operators("Concat")
def _concat(n: Node) -> None:
    n.become("cat", n.inputs, dim=n.get("axis", 0) % len(n.shapes[0]))


@_operators("Gather")
def _gather(n: Node) -> None:
    """A look-up in a table, one element of an axis, or anything else."""
    axis = n.get("axis", 0) % max(len(n.shape(n.inputs[0] or "")), 1)
    index = n.constant(n.inputs[1] or "")
    if index is not None and index.size == 1:
        kind = "select" if index.ndim == 0 else "slice"
        at = int(index.reshape(-1)[0])
        size = n.shape(n.inputs[0] or "")[axis]
        at = at + size if at < 0 else at
        n.become(kind, n.inputs[:1], dim=axis, index=at, start=at, stop=at + 1)
    elif axis == 0:
        n.become("embedding", n.inputs[:2])
    else:
        n.become("gather", n.inputs[:2])


# -- products ----------------------------------------------------------------------------------------------------------------


@_operators("Gemm")
def _gemm(n: Node) -> None:
    if n.get("transA", 0):
        n.become("copy", n.inputs[:1])
        return
    n.become("linear", [n.input(0), n.input(1), n.input(2)], transposed=bool(n.get("transB", 0)))


_CELLS = {"LSTM": ("lstm", 2, 4), "GRU": ("gru", 1, 3), "RNN": ("rnn", 1, 1)}  # cell, initial states, gates


@_operators(*_CELLS)
def _recurrent(n: Node) -> None:
    """One layer; W, R and B hold both directions, and B the biases of input and state."""
    cell, states, gates = _CELLS[n.operator]
    directions = 2 if n.get("direction", "forward") == "bidirectional" else 1
    features, hidden = n.shape(n.inputs[0] or "")[-1:], n.shape(n.inputs[2] or "")[-1]
    wanted = ((directions, gates * hidden, *features), (directions, gates * hidden, hidden))
    if (n.shape(n.inputs[1] or ""), n.shape(n.inputs[2] or "")) != wanted or n.get("hidden_size", hidden) != hidden:
        raise ProgramFault(f"{n.operator}: W and R are not (directions, {gates} x hidden_size, inputs and hidden_size)")
    initial = [n.input(5 + index) for index in range(states)]
    if n.input(4) is not None and n.constant(n.input(4) or "") is None:
        raise ProgramFault(f"{n.operator}: lengths of sequences that depend on the data are not known")
    n.become(
        "recurrent",
        [n.input(0), *initial, n.input(1), n.input(2), n.input(3)],
        states=states,
        cell=cell,
        hidden=hidden,
        layers=1,
        directions=directions,
        time=1 if n.get("layout", 0) else 0,
        biases=2 if n.input(3) is not None else 0,
        is_split=True,
    )


@_operators("Einsum")
def _einsum(n: Node) -> None:
    n.become("einsum", n.inputs, equation=n.get("equation", ""))


@_operators("MatMul")
def _matmul(n: Node) -> None:
    n.become("matmul", n.inputs[:2])


@_operators("Attention")
def _attention(n: Node) -> None:
    n.become("attention", [n.input(0), n.input(1), n.input(2), n.input(3)], causal=bool(n.get("is_causal", 0)))


def _pads(n: Node, rank: int, kernel: list[int], strides: list[int], extent: tuple[int, ...]) -> list[int] | None:
    """Padding where it is the same before and after; None where it is not."""
    automatic = n.get("auto_pad", "NOTSET")
    if automatic == "VALID":
        return [0] * rank
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max((-(-e // s) - 1) * s + k - e, 0) for e, k, s in zip(extent, kernel, strides, strict=True)]
        return None if any(total % 2 for total in totals) else [total // 2 for total in totals]
    pads = list(n.get("pads", [0] * 2 * rank))
    return pads[:rank] if pads[:rank] == pads[rank:] else None


@_operators("Conv", "ConvTranspose")
def _conv(n: Node) -> None:
    kernel = list(n.shape(n.inputs[1] or "")[2:])
    rank = len(kernel)
    strides = list(n.get("strides", [1] * rank))
    pads = _pads(n, rank, kernel, strides, n.shape(n.inputs[0] or "")[2:])
    if pads is None:  # one more on a side: rounded up, the output is checked against what ONNX infers
        pads = (
            [-(-(a + b) // 2) for a, b in zip(n.get("pads")[:rank], n.get("pads")[rank:], strict=True)]
            if n.get("pads")
            else [k // 2 for k in kernel]
        )
    n.become(
        "convolution",
        [n.input(0), n.input(1), n.input(2)],
        stride=strides,
        padding=pads,
        dilation=list(n.get("dilations", [1] * rank)),
        groups=n.get("group", 1),
        transposed=n.operator == "ConvTranspose",
        output_padding=list(n.get("output_padding", [])),
    )


# -- norms and activations ---------------------------------------------------------------------------------------------------


@_operators("BatchNormalization")
def _batch_norm(n: Node) -> None:
    n.become("batch_norm", n.inputs[:3])


@_operators("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_norm(n: Node) -> None:
    kind = "layer_norm" if n.operator == "LayerNormalization" else "rms_norm"
    rank = len(n.shapes[0])
    n.become(kind, [n.input(0), n.input(1), n.input(2)], dims=rank - n.get("axis", -1) % rank)


@_operators("InstanceNormalization", "GroupNormalization")
def _group_norm(n: Node) -> None:
    n.become("group_norm", [n.input(0), n.input(1), n.input(2)])


@_operators("LRN")
def _lrn(n: Node) -> None:
    n.become("local_response_norm", n.inputs[:1], size=n.get("size"))


@_operators("Softmax", "LogSoftmax")
def _softmax(n: Node) -> None:
    n.become("softmax", n.inputs[:1], dim=n.get("axis", -1))


@_operators("Dropout")
def _dropout(n: Node) -> None:
    ratio = n.constant(n.input(1) or "")
    training = n.constant(n.input(2) or "")
    rate = float(ratio.reshape(-1)[0]) if ratio is not None else float(n.get("ratio", 0.5))
    n.become("dropout", n.inputs[:1], p=rate if training is not None and bool(training.reshape(-1)[0]) else 0.0)


_ACTIVATIONS = {
    "Relu": "relu", "Gelu": "gelu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Elu": "elu", "LeakyRelu": "leaky_relu", "Swish": "swish",
    "HardSwish": "hard", "HardSigmoid": "hard", "Clip": "hard", "Softplus": "hard", "Mish": "hard", "Selu": "elu", "Celu": "elu",
}  # fmt: skip


@_operators(*_ACTIVATIONS)
def _activation(n: Node) -> None:
    n.become("activation", n.inputs[:1], function=_ACTIVATIONS[n.operator])


# -- element by element ------------------------------------------------------------------------------------------------------

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Max": "max", "Min": "max", "Sum": "add", "PRelu": "mul",
    "Equal": "eq", "Less": "compare", "LessOrEqual": "compare", "Greater": "compare", "GreaterOrEqual": "compare", "And": "compare",
    "Or": "compare", "Xor": "compare", "Mod": "compare", "BitwiseAnd": "compare", "BitwiseOr": "compare",
}  # fmt: skip


@_operators(*_BINARY)
def _binary(n: Node) -> None:
    n.become("binary", n.inputs, op=_BINARY[n.operator])


@_operators(
    "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Sin", "Cos", "Floor", "Ceil", "Round", "Sign", "Erf", "Not", "IsInf", "IsNaN"
)  # fmt: skip
def _unary(n: Node) -> None:
    n.become("unary", n.inputs[:1], flop=1.0, function="erf" if n.operator == "Erf" else "")


@_operators("Where")
def _where(n: Node) -> None:
    n.become("where", n.inputs[:3])


# -- windows and sums --------------------------------------------------------------------------------------------------------


@_operators("MaxPool", "AveragePool")
def _pool(n: Node) -> None:
    kernel = list(n.get("kernel_shape", []))
    strides = list(n.get("strides", [1] * len(kernel)))
    pads = _pads(n, len(kernel), kernel, strides, n.shape(n.inputs[0] or "")[2:])
    mode = "max" if n.operator == "MaxPool" else "average"
    ceil = bool(n.get("ceil_mode", 0))
    n.become(
        "pool",
        n.inputs[:1],
        kernel=kernel,
        stride=strides,
        padding=pads or [0] * len(kernel),
        mode=mode,
        ceil=ceil or pads is None,
    )


@_operators("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(n: Node) -> None:
    n.become("adaptive_pool", n.inputs[:1], mode="average" if n.operator == "GlobalAveragePool" else "max")


_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "max", "ReduceL2": "sum",
               "ReduceSumSquare": "sum", "ReduceProd": "sum", "ArgMax": "max", "ArgMin": "max"}  # fmt: skip


@_operators(*_REDUCTIONS)
def _reduce(n: Node) -> None:
    rank = len(n.shape(n.inputs[0] or ""))
    dims = [n.get("axis", 0)] if n.operator.startswith("Arg") else n.numbers(1, "axes")
    n.become(
        "reduce",
        n.inputs[:1],
        op=_REDUCTIONS[n.operator],
        dims=dims if dims is not None else list(range(rank)),
        keep=bool(n.get("keepdims", 1)),
    )


@_operators("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _loss(n: Node) -> None:
    n.become("loss", n.inputs[:1], softmax=True)


@_operators("Resize", "Upsample")
def _resize(n: Node) -> None:
    n.become("upsample", n.inputs[:1], mode="nearest" if n.get("mode", "nearest") == "nearest" else "bilinear")


@_operators("Pad", "DepthToSpace", "SpaceToDepth", "CumSum", "Trilu", "ReverseSequence")
def _copy(n: Node) -> None:
    n.become("copy", n.inputs[:1])


@_operators("GatherElements", "GatherND", "ScatterND", "ScatterElements", "TopK", "OneHot")
def _pick(n: Node) -> None:
    n.become("gather", n.inputs)


# -- made of nothing ---------------------------------------------------------------------------------------------------------


@_operators("Shape", "Size", "Range", "ConstantOfShape", "Constant", "EyeLike", "RandomNormal", "RandomUniform", "NonZero",
            "RandomNormalLike", "RandomUniformLike")  # fmt: skip
def _fixed(n: Node) -> None:
    n.become("fixed", [])

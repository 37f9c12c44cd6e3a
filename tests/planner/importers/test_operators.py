"""What torch and ONNX call differently means the same; hand-written calls, so that neither library is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.importers.operators import OPERATORS, Call

SHAPES = {"x": (2, 8, 6, 6), "w": (4, 8, 3, 3), "b": (4,), "m": (6, 5)}
NUMBERS = {
    "axes": np.array([1]),
    "one": np.array([1]),
    "start": np.array([-2]),
    "end": np.array([6]),
    "step": np.array([1]),
}


def meaning(
    operator: str, inputs: str, shape: tuple[int, ...], **arguments: Any
) -> tuple[str, list[Any], dict[str, Any]]:
    names = [None if name == "-" else name for name in inputs.split()]
    call = Call(operator, names, arguments, (shape,), lambda name: SHAPES.get(name, ()), NUMBERS.get)
    kind, read, attributes = OPERATORS[operator](call)
    return (
        kind,
        [name for name in read if name is not None],
        {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()},
    )


X = SHAPES["x"]
PAIRS = {
    "activation": (("relu_", "x", X, {}), ("Relu", "x", X, {})),
    "binary": (("add", "x x", X, {"alpha": 1}), ("Add", "x x", X, {})),
    "not": (("logical_not", "x", X, {}), ("Not", "x", X, {})),
    "concatenation": (("cat", "x x", (2, 16, 6, 6), {"dim": -3}), ("Concat", "x x", (2, 16, 6, 6), {"axis": 1})),
    "convolution": (
        ("conv2d", "x w b", (2, 4, 3, 3), {"stride": 2, "padding": [1], "dilation": 1, "groups": 1}),
        ("Conv", "x w b", (2, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 1}),
    ),
    "mean": (
        ("mean", "x", (2, 1, 6, 6), {"dim": [1], "keepdim": True}),
        ("ReduceMean", "x axes", (2, 1, 6, 6), {}),
    ),
    "sum of all": (("sum", "x", (), {"dim": None}), ("ReduceSum", "x", (), {"keepdims": 0})),
    "largest": (("argmax", "x", (2, 6, 6), {"dim": 1}), ("ArgMax", "x", (2, 6, 6), {"axis": 1, "keepdims": 0})),
    "pooling": (
        ("max_pool2d", "x", (2, 8, 3, 3), {"kernel_size": 2, "stride": [], "padding": 0, "ceil_mode": False}),
        ("MaxPool", "x", (2, 8, 3, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ),
    "permutation": (("permute", "x", (2, 6, 6, 8), {"dims": [0, 2, 3, -3]}), ("Transpose", "x", (2, 6, 6, 8), {"perm": [0, 2, 3, 1]})),
    "slice": (
        ("slice", "x", (2, 8, 2, 6), {"dim": 2, "start": -2, "end": 6, "step": 1}),
        ("Slice", "x start end axes2 step", (2, 8, 2, 6), {"axes": [2]}),
    ),
    "softmax": (("_softmax", "x", X, {"dim": -1}), ("Softmax", "x", X, {"axis": -1})),
    "split": (("split", "x", (2, 4, 6, 6), {"dim": 1}), ("Split", "x", (2, 4, 6, 6), {"axis": 1})),
    "layer norm": (
        ("native_layer_norm", "x w b", X, {"normalized_shape": [6]}),
        ("LayerNormalization", "x w b", X, {"axis": -1}),
    ),
    "look-up": (("embedding", "m x", (2, 8, 6, 6, 5), {}), ("Gather", "m x", (2, 8, 6, 6, 5), {})),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_torch_and_onnx_agree(name: str) -> None:
    one, other = ((operator, inputs, shape, words) for operator, inputs, shape, words in PAIRS[name])
    first, second = meaning(*one[:3], **one[3]), meaning(*other[:3], **other[3])
    common = first[2].keys() & second[2].keys() - {"output_padding"}
    assert first[0] == second[0]
    assert first[1] == second[1][: len(first[1])]
    assert {key: first[2][key] for key in common} == {key: second[2][key] for key in common}
    assert common or first[0] in ("embedding",)


def test_positions_and_defaults_by_hand() -> None:
    assert meaning("Flatten", "x", (2, 288), axis=1) == ("reshape", ["x"], {})
    assert meaning("pow", "x", X, exponent=2) == ("binary", ["x"], {"op": "pow", "scaled": False})
    assert meaning("addmm", "b x m", (2, 5)) == ("linear", ["x", "m", "b"], {"transposed": False})
    assert meaning("Gemm", "x m b", (2, 5), transB=1)[2] == {"transposed": True}
    assert meaning("repeat", "b", (3, 4), repeats=[3, 1])[0] == "expand"
    assert meaning("repeat", "b", (8,), repeats=[2])[0] == "copy"

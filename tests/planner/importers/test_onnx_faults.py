"""ONNX files that cannot be used: one clear error each."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.cli import run
from planner.core.errors import InputFileError, PlannerError
from planner.importers.networks import import_network
from planner.importers.onnx_file import detect
from planner.importers.operators import OPERATORS, Call
from planner.importers.sources import imported_document
from tests.cases import mostly

# A model of a few bytes: ir_version, producer_name.
HEAD = bytes((8, 9, 0x12, 3)) + b"abc"


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(HEAD)
    monkeypatch.setitem(sys.modules, "onnx", None)
    error = fails("import", str(path))
    assert "pip install 'paleo-planner[onnx]'" in error
    assert "Traceback" not in error


def test_found_by_content_whatever_its_name(tmp_path: Path) -> None:
    assert detect(HEAD)
    assert not detect(b'name: "net" layer { }')
    path = tmp_path / "net.bin"
    path.write_bytes(b"\0\1\2\3")
    assert imported_document(path) is None


@pytest.fixture
def onnx() -> Any:
    return pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")


def model(nodes: list[Any], inputs: list[Any], *, opset: int = 18, initial: tuple[Any, ...] = ()) -> Any:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    helper = onnx.helper
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    out = [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)]
    graph = helper.make_graph(nodes, "net", values, out, list(initial))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    return onnx.helper.make_node(kind, inputs, [output], **attributes)


def refused(made: Any, folder: Path, **options: Any) -> str:
    path = folder / "net.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    with pytest.raises(PlannerError) as caught:
        import_network(path, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_control_flow_is_named(tmp_path: Path, onnx: Any) -> None:
    body = onnx.helper.make_graph(
        [node("Relu", ["x"], "b")], "b", [], [onnx.helper.make_tensor_value_info("b", 1, None)]
    )
    made = model([node("If", ["c"], "y", then_branch=body, else_branch=body)], [("c", 9, []), ("x", 1, [2, 3])])
    assert "control flow: If (1)" in refused(made, tmp_path)


def test_unknown_operators_are_counted(tmp_path: Path) -> None:
    nodes = [
        node("Hardmax", ["x"], "a"),
        node("Hardmax", ["a"], "b"),
    ]
    made = model([*nodes, node("Relu", ["b"], "y")], [("x", 1, [2, 3, 3])])
    assert "Hardmax (2)" in refused(made, tmp_path)
    path = tmp_path / "net.onnx"
    loaded = import_network(path, assume_free=["Hardmax"])
    assert "Hardmax" in loaded.source
    assert [layer.kind for layer in loaded.graph.layers].count("assumed_free") == 2
    assert run(["import", str(path), "--assume-free", "Hardmax", "-o", str(tmp_path / "net.yaml")]) == 0
    assert "assumed_free/Hardmax" in (tmp_path / "net.yaml").read_text()


@pytest.mark.parametrize("kept", [5, 20, 60, 85])
def test_truncated_files(tmp_path: Path, kept: int) -> None:
    made = model([node("Relu", ["x"], "a"), node("Sigmoid", ["a"], "b"), node("Relu", ["b"], "y")], [("x", 1, [2, 3])])
    data = made.SerializeToString()
    assert len(data) > kept
    assert str(tmp_path / "net.onnx") in refused(data[:kept], tmp_path)


def test_sizes_and_missing_tensors(tmp_path: Path) -> None:
    unknown = model([node("Relu", ["x"], "y")], [("x", 1, [2, "length", 8])])
    assert "'x' has extents that are not numbers: 2 x length x 8" in refused(unknown, tmp_path)
    assert "inferred" in refused(model([node("MatMul", ["x", "x"], "y")], [("x", 1, [2, 3])]), tmp_path)


def test_a_constant_that_asks_for_memory_is_not_made(tmp_path: Path, onnx: Any) -> None:
    shape = onnx.helper.make_tensor("shape", 7, [2], [1 << 30, 1 << 10])
    nodes = [node("ConstantOfShape", ["shape"], "huge"), node("Relu", ["x"], "y")]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, [("x", 1, [2, 3])], initial=(shape,)).SerializeToString())
    assert import_network(path).graph.layers[1].kind == "activation"


def test_external_data_without_its_file(tmp_path: Path, onnx: Any) -> None:

    weight = onnx.numpy_helper.from_array(np.ones((2000, 300), np.float32), "fc.weight")
    made = model([node("MatMul", ["x", "fc.weight"], "y")], [("x", 1, [4, 2000])], initial=(weight,))
    path = tmp_path / "net.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="weights.bin")
    (tmp_path / "weights.bin").unlink()
    assert import_network(path).graph.weight_count == 600_000


def test_external_shapes_without_their_file(tmp_path: Path, onnx: Any) -> None:

    target = onnx.numpy_helper.from_array(np.array([2, 2, 4], np.int64), "target")
    made = model([node("Reshape", ["x", "target"], "y")], [("x", 1, [2, 8])], initial=(target,))
    path = tmp_path / "net.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="shapes.bin", size_threshold=0)
    for location in ("shapes.bin", "../../../etc/passwd"):  # there, and elsewhere: neither is opened
        for entry in made.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        path.write_bytes(made.SerializeToString())
        with pytest.raises(InputFileError, match="shapes depend on the tensor 'target', which is external data"):
            import_network(path)


@pytest.mark.parametrize("ir_version", [10, 99])
def test_versions_of_the_future(tmp_path: Path, onnx: Any, ir_version: int) -> None:
    made = model([node("Relu", ["x"], "y")], [("x", 1, [2, 8])])
    made.ir_version = ir_version
    made.opset_import[0].version = 999
    path = tmp_path / "net.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(
        InputFileError, match=f"opset 999; the installed onnx knows versions up to {onnx.defs.onnx_opset_version()}"
    ):
        import_network(path)


# -- recurrent layers --------------------------------------------------------------------------------------------------------


def recurrent(kind: str, shapes: dict[str, list[int]], **attributes: Any) -> Any:
    """One recurrent node over 7 positions of 2 samples of 3 features."""
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    initial = [
        onnx.helper.make_tensor(name, 1, shape, [0.5 + i for i in range(math.prod(shape))])
        for name, shape in shapes.items()
    ]
    made = node(kind, ["x", *shapes], "h", **attributes)
    axes = onnx.helper.make_tensor("axes", 7, [1], [1])
    return model([made, node("Squeeze", ["h", "axes"], "y")], [("x", 1, [7, 2, 3])], initial=(*initial, axes))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_operators(kind: str, gates: int, tmp_path: Path) -> None:
    """G gates of 5 units: G 5 (3 + 5) weights, and two biases per gate where B is there."""
    sizes = {"w": [1, 5 * gates, 3], "r": [1, 5 * gates, 5], "b": [1, 10 * gates]}
    path = tmp_path / "net.onnx"
    for names, biases in ((("w", "r", "b"), 2), (("w", "r"), 0)):
        made = recurrent(kind, {name: sizes[name] for name in names}, hidden_size=5)
        path.write_bytes(made.SerializeToString())
        loaded = import_network(path)
        layer = loaded.graph.layers[-1]
        assert (layer.kind, layer.params.cell, layer.params.biases) == ("lstm", kind.lower(), biases)
        assert loaded.graph.weight_count == gates * 5 * (3 + 5 + biases)
        assert layer.output_shape == (5, 7)
        assert loaded.global_batch == 2


def test_recurrent_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = recurrent("LSTM", {"w": [1, 20, 3], "r": [1, 20, 4]}, hidden_size=5)
    assert "W and R are not" in refused(made, tmp_path)


# -- what an editor or a broken disk makes of a file -------------------------------------------------------------------------


def broken(fault: str) -> Any:
    """A file that onnx's checks of shapes let through, or that ends the process that runs them."""
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    ones = [onnx.helper.make_tensor(name, 7, [1], [value]) for name, value in (("st", 0), ("en", 1), ("ax", 0))]
    vector = onnx.helper.make_tensor("b", 1, [4], [0.5] * 4)
    x = [("x", 1, [2, 4])]
    if fault == "pieces":
        split = onnx.helper.make_node("Split", ["x"], ["a", "b", "c"], axis=-1, num_outputs=1)
        return model([split, node("Relu", ["a"], "y")], x)
    if fault in ("slice", "empty"):
        extent = -1 if fault == "slice" else 0
        return model([node("Slice", ["x", "st", "en", "ax"], "y")], [("x", 1, [extent, 4])], initial=(*ones,))
    made = node("Conv", ["x", "b", "b"], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return model([made, node("Relu", ["c"], "y")], [("x", 1, [2, 3, 8, 8])], initial=(vector,))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("pieces", "a Split has 3 outputs and says 1"),
        ("slice", "input 'x' has an extent of -1"),
        ("empty", "input 'x' has an extent of 0"),
        ("window", "pads"),
    ],
)
def test_what_onnx_itself_lets_through(fault: str, message: str, tmp_path: Path) -> None:
    assert message in refused(broken(fault), tmp_path)


@pytest.mark.parametrize("extent", [0, -3, 2**62])
def test_extents_that_no_network_has(extent: int, tmp_path: Path) -> None:
    made = model([node("Relu", ["x"], "y")], [("x", 1, [2, extent])])
    assert "input 'x'" in refused(made, tmp_path)


@pytest.mark.parametrize("opset", [0, 999])
def test_versions_that_are_not_known(opset: int, tmp_path: Path) -> None:
    made = model([node("Relu", ["x"], "y")], [("x", 1, [2, 3])], opset=opset)
    assert f"is of opset {opset}" in refused(made, tmp_path)


def test_values_that_nothing_makes(tmp_path: Path, onnx: Any) -> None:
    made = model([node("Add", ["x", "b"], "y")], [("x", 1, [2, 3])])
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 1, [2, 3]))
    assert "'b'" in refused(made, tmp_path)


def test_bytes_that_are_flipped_are_one_error_or_another_network(tmp_path: Path, onnx: Any) -> None:
    """No byte of a file makes the reader stumble: it is read, or refused by one of the planner's own errors."""
    nodes = [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "x"], "b"), node("Relu", ["b"], "y")]
    weight = onnx.helper.make_tensor("w", 1, [3, 3], [0.5 + i for i in range(9)])
    data = model(nodes, [("x", 1, [2, 3])], initial=(weight,)).SerializeToString()
    path, rng = tmp_path / "net.onnx", random.Random(5)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] = rng.randrange(256)
        path.write_bytes(changed)
        with contextlib.suppress(PlannerError):
            import_network(path)


def networks() -> list[Any]:
    """A convolution and what follows it; attention written out; a recurrent layer that is cut."""
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")

    def real(name: str, *shape: int) -> Any:
        return onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)

    def whole(name: str, *values: int) -> Any:
        return onnx.numpy_helper.from_array(np.array(values, np.int64), name)

    image = [
        node("Conv", ["x", "w", "b"], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]),
        node("BatchNormalization", ["c", "b", "b", "b", "b"], "n"),
        node("MaxPool", ["n"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], "f", axis=1),
        node("Gemm", ["f", "g", "h"], "y", transB=1),
        node("Softmax", ["y"], "z", axis=-1),
    ]
    attention = [
        node("Gather", ["e", "t"], "a"),
        node("MatMul", ["a", "q"], "m"),
        onnx.helper.make_node("Split", ["m"], ["k1", "k2", "k3"], axis=-1, num_outputs=3),
        *(node("Reshape", [f"k{n}", "heads"], f"r{n}") for n in (1, 2, 3)),
        *(node("Transpose", [f"r{n}"], f"t{n}", perm=[0, 2, *((1, 3), (3, 1), (1, 3))[n - 1]]) for n in (1, 2, 3)),
        node("MatMul", ["t1", "t2"], "s"),
        node("Softmax", ["s"], "p", axis=-1),
        node("MatMul", ["p", "t3"], "o"),
        node("Transpose", ["o"], "o2", perm=[0, 2, 1, 3]),
        node("Reshape", ["o2", "rows"], "o3"),
        node("Add", ["o3", "a"], "u"),
        node("LayerNormalization", ["u", "g", "g"], "v", axis=-1),
        node("ReduceMean", ["v", "ax"], "y", keepdims=0),
    ]
    state = [
        node("LSTM", ["x", "w", "r", "b"], "h", hidden_size=5),
        node("Squeeze", ["h", "ax"], "s"),
        node("Slice", ["s", "st", "ax", "ax"], "z"),
        node("Concat", ["z", "z"], "c", axis=0),
        node("Sigmoid", ["c"], "y"),
    ]
    return [
        model(
            image,
            [("x", 1, [2, 3, 8, 8])],
            initial=(real("w", 4, 3, 3, 3), real("b", 4), real("g", 5, 64), real("h", 5)),
        ),
        model(
            attention,
            [("t", 7, [2, 6])],
            initial=(real("e", 20, 8), real("q", 8, 24), real("g", 8), whole("heads", 2, 6, 2, 4), whole("rows", 2, 6, 8), whole("ax", 1)),
        ),
        model(
            state,
            [("x", 1, [7, 2, 3])],
            initial=(real("w", 1, 20, 3), real("r", 1, 20, 5), real("b", 1, 40), whole("ax", 1), whole("st", 0)),
        ),
    ]  # fmt: skip


def spoil(made: Any, rng: random.Random) -> None:
    """Change one thing: an operator, what it reads or makes, an attribute, an extent, a constant."""
    graph, odd = made.graph, [0, -1, 1, 7, 2**31, 2**62, -(2**63)]
    chosen, tensor = rng.choice(graph.node), rng.choice(graph.initializer)
    names = [
        "",
        "x",
        "nowhere",
        *(other.output[0] for other in graph.node),
        *(other.name for other in graph.initializer),
    ]
    kind = rng.randrange(9)
    if kind == 0:
        chosen.op_type = rng.choice(["Frob", "Loop", "ConstantOfShape", *(other.op_type for other in graph.node)])
    elif kind == 1:
        chosen.input[rng.randrange(len(chosen.input))] = rng.choice(names)
    elif kind == 2 and chosen.attribute:
        attribute = rng.choice(chosen.attribute)
        attribute.i = rng.choice(odd)
        attribute.ints[:] = [rng.choice([*odd, extent]) for extent in [*attribute.ints, 3][: rng.choice([1, 4, 8])]]
        attribute.name = rng.choice([attribute.name] * 3 + ["axis", ""])
    elif kind == 3:
        rng.choice(graph.input[0].type.tensor_type.shape.dim).dim_value = rng.choice(odd)
    elif kind == 4:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(odd)
    elif kind == 5:
        tensor.raw_data = rng.randbytes(rng.choice([len(tensor.raw_data), 3]))
        tensor.data_type = rng.choice([tensor.data_type] * 3 + [0, 6, 8, 99])
    elif kind == 6:
        graph.node.remove(chosen)
    elif kind == 7:
        chosen.output[0] = rng.choice(names)
    else:
        made.opset_import[0].version = rng.choice([1, 9, 13, 21])


@mostly("fuzz", "seed", range(100), quick=2, every=50)
def test_spoiled_networks_are_one_error_or_another_network(seed: int, tmp_path: Path) -> None:
    """Twenty each, up to three things spoiled in each."""
    path, rng, made = tmp_path / "net.onnx", random.Random(seed), networks()
    for _ in range(20):
        other = type(made[0])()
        other.CopyFrom(rng.choice(made))
        for _ in range(rng.choice([1, 1, 2, 3])):
            spoil(other, rng)
        data = bytearray(other.SerializeToString())
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        path.write_bytes(data)
        try:
            import_network(path)
        except PlannerError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - both outcomes are right


# --- What torch and ONNX call differently means the same; hand-written calls, so that neither library is needed ---------------------------


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
    # Six positions, three of which each of six outputs reads: two are padding, one on each side.
    assert meaning("Conv", "x w b", (2, 4, 6, 6), auto_pad="SAME_UPPER")[2]["padding"] == [1, 1]
    assert meaning("repeat", "b", (3, 4), repeats=[3, 1])[0] == "expand"
    assert meaning("repeat", "b", (8,), repeats=[2])[0] == "copy"

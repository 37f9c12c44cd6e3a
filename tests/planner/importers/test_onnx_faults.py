"""ONNX files that cannot be used: one clear error each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.errors import InputFileError, PlannerError
from planner.files.network_file import import_network
from planner.importers.onnx_graph import detect
from planner.importers.sources import ImportOptions, foreign_document_of

# A model of a few bytes: ir_version, producer_name.
HEAD = bytes((8, 9, 0x12, 3)) + b"abc"


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(HEAD)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run(["import", str(path)]) == 2
    error = capsys.readouterr().err
    assert "pip install 'paleo-planner[onnx]'" in error
    assert "Traceback" not in error


def test_found_by_content_whatever_its_name(tmp_path: Path) -> None:
    assert detect(HEAD)
    assert not detect(b'name: "net" layer { }')
    path = tmp_path / "net.bin"
    path.write_bytes(b"\0\1\2\3")
    assert foreign_document_of(path, ImportOptions()) is None


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


def test_control_flow_is_named(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    body = onnx.helper.make_graph(
        [node("Relu", ["x"], "b")], "b", [], [onnx.helper.make_tensor_value_info("b", 1, None)]
    )
    made = model([node("If", ["c"], "y", then_branch=body, else_branch=body)], [("c", 9, []), ("x", 1, [2, 3])])
    assert "control flow: If (1)" in refused(made, tmp_path)


def test_unknown_operators_are_counted(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", ["x", "x"], "a", equation="bij,bjk->bik"),
        node("Einsum", ["a", "x"], "b", equation="bij,bjk->bik"),
    ]
    made = model([*nodes, node("Relu", ["b"], "y")], [("x", 1, [2, 3, 3])])
    assert "Einsum (2)" in refused(made, tmp_path)
    path = tmp_path / "net.onnx"
    loaded = import_network(path, assume_free=["Einsum"])
    assert "Einsum" in loaded.source
    assert [layer.kind for layer in loaded.graph.layers].count("assumed_free") == 2
    assert run(["import", str(path), "--assume-free", "Einsum", "-o", str(tmp_path / "net.yaml")]) == 0
    assert "assumed_free/Einsum" in (tmp_path / "net.yaml").read_text()


@pytest.mark.parametrize("kept", [5, 20, 60, 85])
def test_truncated_files(tmp_path: Path, kept: int) -> None:
    made = model([node("Relu", ["x"], "a"), node("Sigmoid", ["a"], "b"), node("Relu", ["b"], "y")], [("x", 1, [2, 3])])
    data = made.SerializeToString()
    assert len(data) > kept
    assert str(tmp_path / "net.onnx") in refused(data[:kept], tmp_path)


def test_versions_sizes_and_missing_tensors(tmp_path: Path) -> None:
    made = model([node("Relu", ["x"], "y")], [("x", 1, [2, 3])])
    made.opset_import[0].version = 999
    assert "opset 999" in refused(made, tmp_path)
    unknown = model([node("Relu", ["x"], "y")], [("x", 1, [2, "length", 8])])
    assert "'x' has extents that are not numbers: 2 x length x 8" in refused(unknown, tmp_path)
    assert "inferred" in refused(model([node("MatMul", ["x", "x"], "y")], [("x", 1, [2, 3])]), tmp_path)


def test_a_constant_that_asks_for_memory_is_not_made(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    shape = onnx.helper.make_tensor("shape", 7, [2], [1 << 30, 1 << 10])
    nodes = [node("ConstantOfShape", ["shape"], "huge"), node("Relu", ["x"], "y")]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, [("x", 1, [2, 3])], initial=(shape,)).SerializeToString())
    assert import_network(path).graph.layers[1].kind == "activation"


def test_external_data_without_its_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    import numpy as np

    weight = onnx.numpy_helper.from_array(np.ones((2000, 300), np.float32), "fc.weight")
    made = model([node("MatMul", ["x", "fc.weight"], "y")], [("x", 1, [4, 2000])], initial=(weight,))
    path = tmp_path / "net.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="weights.bin")
    (tmp_path / "weights.bin").unlink()
    assert import_network(path).graph.weight_count == 600_000


def test_external_shapes_without_their_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    import numpy as np

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
def test_versions_of_the_future(tmp_path: Path, ir_version: int) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    made = model([node("Relu", ["x"], "y")], [("x", 1, [2, 8])])
    made.ir_version = ir_version
    made.opset_import[0].version = 999
    path = tmp_path / "net.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(
        InputFileError, match=f"opset 999; the installed onnx knows versions up to {onnx.defs.onnx_opset_version()}"
    ):
        import_network(path)

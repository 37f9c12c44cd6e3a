"""Caffe's networks: published parameter counts, rules of phases, in-place layers, and what is wrong in bad files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.network.graph import Graph
from planner.core.errors import InputFileError
from planner.importers.caffe import detect
from planner.importers.caffe.text_format import MAX_VALUES, Fault, parse
from planner.importers.networks import import_network


class Prototxt:
    """Writes layers in Caffe's syntax."""

    def __init__(self, channels: int = 3, size: int = 224, batch: int = 32) -> None:
        shape = " ".join(f"dim: {extent}" for extent in (batch, channels, size, size))
        self.text = (
            f'name: "net"\nlayer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}\n'
        )
        self.count = 0

    def add(self, kind: str, bottom: str | Sequence[str], parameters: str = "", *, top: str = "") -> str:
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        bottoms = " ".join(f'bottom: "{b}"' for b in ([bottom] if isinstance(bottom, str) else bottom))
        self.text += f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top or name}" {parameters} }}\n'
        return top or name

    def conv(self, x: str, out: int, k: int, s: int = 1, p: int = 0, *, bias: bool = True, group: int = 1) -> str:
        flags = f"num_output: {out} kernel_size: {k} stride: {s} pad: {p} group: {group} bias_term: {str(bias).lower()}"
        return self.add("Convolution", x, f"convolution_param {{ {flags} }}")

    def norm(self, x: str, *, in_place: bool = True) -> str:
        y = self.add("BatchNorm", x, top=x if in_place else "")
        return self.add("Scale", y, "scale_param { bias_term: true }", top=y)

    def relu(self, x: str) -> str:
        return self.add("ReLU", x, top=x)

    def pool(self, x: str, k: int, s: int, p: int = 0, mode: str = "MAX") -> str:
        return self.add("Pooling", x, f"pooling_param {{ pool: {mode} kernel_size: {k} stride: {s} pad: {p} }}")

    def fc(self, x: str, out: int) -> str:
        return self.add("InnerProduct", x, f"inner_product_param {{ num_output: {out} }}")

    def graph(self, folder: Path) -> Graph:
        path = folder / "net.prototxt"
        path.write_text(self.text)
        return import_network(path).graph


def caffenet(folder: Path, *, groups: int = 2) -> Graph:
    n = Prototxt(size=227)
    x = n.pool(n.relu(n.conv("data", 96, 11, 4)), 3, 2)
    x = n.add("LRN", x, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")
    x = n.pool(n.relu(n.conv(x, 256, 5, p=2, group=groups)), 3, 2)
    x = n.add("LRN", x, "lrn_param { local_size: 5 }")
    x = n.relu(n.conv(x, 384, 3, p=1))
    x = n.relu(n.conv(x, 384, 3, p=1, group=groups))
    x = n.pool(n.relu(n.conv(x, 256, 3, p=1, group=groups)), 3, 2)
    for _ in range(2):
        x = n.relu(n.fc(x, 4096))
        x = n.add("Dropout", x, "dropout_param { dropout_ratio: 0.5 }", top=x)
    n.add("Softmax", n.fc(x, 1000))
    return n.graph(folder)


def resnet50(folder: Path) -> Graph:
    n = Prototxt()

    def unit(x: str, channels: int, k: int, s: int = 1) -> str:
        return n.norm(n.conv(x, channels, k, s, k // 2, bias=False))

    x = n.add("Pooling", n.relu(unit("data", 64, 7, 2)), "pooling_param { pool: MAX kernel_size: 3 stride: 2 }")
    inputs = 64
    for blocks, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for number in range(blocks):
            stride = 2 if number == 0 and channels > 64 else 1
            shortcut = unit(x, 4 * channels, 1, stride) if number == 0 else x
            y = n.relu(unit(x, channels, 1, stride))
            y = unit(n.relu(unit(y, channels, 3)), 4 * channels, 1)
            x, inputs = n.relu(n.add("Eltwise", [shortcut, y], "eltwise_param { operation: SUM }")), 4 * channels
    assert inputs == 2048
    n.add("Softmax", n.fc(n.pool(x, 7, 1, mode="AVE"), 1000))
    return n.graph(folder)


def densenet121(folder: Path) -> Graph:
    n = Prototxt()
    x = n.relu(n.norm(n.conv("data", 64, 7, 2, 3, bias=False)))
    x = n.add("Pooling", x, "pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR }")
    channels = 64
    for stage, blocks in enumerate((6, 12, 24, 16)):
        for _ in range(blocks):
            y = n.conv(n.relu(n.norm(x, in_place=False)), 128, 1, bias=False)
            y = n.conv(n.relu(n.norm(y)), 32, 3, p=1, bias=False)
            x, channels = n.add("Concat", [x, y], "concat_param { axis: 1 }"), channels + 32
        if stage < 3:
            channels //= 2
            x = n.pool(n.conv(n.relu(n.norm(x, in_place=False)), channels, 1, bias=False), 2, 2, mode="AVE")
    x = n.add("Pooling", n.relu(n.norm(x, in_place=False)), "pooling_param { pool: AVE global_pooling: true }")
    n.add("Softmax", n.fc(x, 1000))
    return n.graph(folder)


def googlenet(folder: Path) -> Graph:
    n = Prototxt()

    def conv(x: str, out: int, k: int, s: int = 1) -> str:
        return n.relu(n.conv(x, out, k, s, k // 2))

    x = n.pool(conv("data", 64, 7, 2), 3, 2)
    x = n.pool(conv(conv(n.add("LRN", x), 64, 1), 192, 3), 3, 2)
    table = (  # Szegedy et al. (arXiv:1409.4842), table 1
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None, (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None,
        (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    for row in table:
        if row is None:
            x = n.pool(x, 3, 2)
            continue
        a, b, c, d, e, f = row
        parts = [conv(x, a, 1), conv(conv(x, b, 1), c, 3), conv(conv(x, d, 1), e, 5), conv(n.pool(x, 3, 1, 1), f, 1)]
        x = n.add("Concat", parts)
    x = n.add("Dropout", n.pool(x, 7, 1, mode="AVE"), "dropout_param { dropout_ratio: 0.4 }")
    n.add("Softmax", n.fc(x, 1000))
    return n.graph(folder)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (caffenet, 60_965_224),  # BVLC reference CaffeNet: 60.97 M with 2 groups
        (resnet50, 25_557_032),  # torchvision's table of ResNet-50 weights: 25557032
        (densenet121, 7_978_856),  # torchvision's table of DenseNet-121 weights: 7978856
        (googlenet, 6_998_552),  # bvlc_googlenet without its two auxiliary classifiers
    ],
)
def test_published_parameter_counts(make, parameters: int, tmp_path: Path) -> None:
    graph = make(tmp_path)
    assert graph.weight_count + graph.norm_count == parameters


def test_densenet_keeps_its_normalisations_before_convolutions(tmp_path: Path) -> None:
    graph = densenet121(tmp_path)
    alone = [layer for layer in graph.layers if layer.kind == "batch_norm"]
    assert len(alone) == 58 + 3 + 1  # one per dense layer, per transition, at the end
    assert sum(layer.weight_count for layer in alone) > 0


def test_pooling_rounds_up_as_in_caffe(tmp_path: Path) -> None:
    shapes = {layer.name: layer.output_shape for layer in googlenet(tmp_path).layers}
    assert shapes["pooling3"] == (64, 56, 56)  # 112 -> ceil(109 / 2) + 1
    assert caffenet(tmp_path).layers[2].output_shape == (96, 27, 27)


@pytest.mark.parametrize("operation", ["PROD", "MAX"])
def test_three_tensors_are_joined_by_two_operations_per_number(operation: str, tmp_path: Path) -> None:
    n = Prototxt(size=10)
    branches = [n.conv("data", 1, 1) for _ in range(3)]
    n.add("Eltwise", branches, f"eltwise_param {{ operation: {operation} }}")
    layer = n.graph(tmp_path).layers[-1]
    assert (layer.kind, layer.params.flop) == ("pointwise", 2)


def imported(text: str, folder: Path) -> Graph:
    path = folder / "net.prototxt"
    path.write_text(text)
    return import_network(path).graph


DATA = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 3 dim: 16 dim: 16 } } }\n'


def test_the_phase_that_trains_is_read(new_file: Any) -> None:
    text = """
    layer { name: "train" type: "Data" top: "data" top: "label" include { phase: TRAIN } transform_param { crop_size: 32 }
            data_param { batch_size: 256 } }
    layer { name: "test" type: "Data" top: "data" top: "label" include { phase: TEST } transform_param { crop_size: 40 }
            data_param { batch_size: 50 } }
    layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 10 } }
    layer { name: "extra" type: "InnerProduct" bottom: "fc" top: "x" inner_product_param { num_output: 3 } exclude { phase: TRAIN } }
    layer { name: "staged" type: "ReLU" bottom: "fc" top: "fc" include { stage: "deploy" } }
    layer { name: "acc" type: "Accuracy" bottom: "fc" bottom: "label" include { phase: TEST } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
    """
    model = import_network(new_file("train_val.prototxt", text))
    assert [(layer.name, layer.output_shape) for layer in model.graph.layers] == [
        ("train", (3, 32, 32)), ("fc", (10,)), ("loss", (10,)),
    ]  # fmt: skip
    assert model.global_batch == 256


def test_old_format_inputs_splits_and_frozen_layers(tmp_path: Path) -> None:
    text = """
    name: "old" input: "data" input_dim: 4 input_dim: 3 input_dim: 9 input_dim: 9
    layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" convolution_param { num_output: 6 kernel_h: 1 kernel_w: 3 } }
    layers { name: "split" type: SPLIT bottom: "conv" top: "a" top: "b" }
    layers { name: "cut" type: SLICE bottom: "a" top: "a1" top: "a2" slice_param { slice_point: 2 } }
    layers { name: "fc" type: INNER_PRODUCT bottom: "b" top: "fc" inner_product_param { num_output: 5 }
             param { lr_mult: 0 } param { lr_mult: 0 } }
    layers { name: "cat" type: CONCAT bottom: "a1" bottom: "a2" top: "cat" }
    layers { name: "words" type: EMBED bottom: "fc" top: "words" embed_param { input_dim: 9 num_output: 4 } param { lr_mult: 0 } }
    """
    graph = imported(text, tmp_path)
    by_name = {layer.name: layer for layer in graph.layers}
    assert by_name["conv"].output_shape == (6, 9, 7)
    assert by_name["cut/a2"].output_shape == (4, 9, 7)
    assert by_name["cat"].output_shape == (6, 9, 7)
    assert by_name["fc"].frozen
    assert by_name["words"].frozen
    assert not by_name["conv"].frozen


def test_squeeze_and_excitation_after_global_pooling(tmp_path: Path) -> None:
    n = Prototxt(size=16)
    x = n.conv("data", 8, 3, p=1)
    gate = n.add("Pooling", x, "pooling_param { pool: AVE global_pooling: true }")
    gate = n.add("Sigmoid", n.conv(n.relu(n.conv(gate, 2, 1)), 8, 1))
    n.add("Scale", [x, gate], "scale_param { axis: 0 }")
    graph = n.graph(tmp_path)
    assert graph.weight_count == (27 * 8 + 8) + (8 * 2 + 2) + (2 * 8 + 8)
    assert graph.layers[-1].output_shape == (8, 16, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DATA + 'layer { name: "c" type: "Convolution" bottom: "data" convolution_param { kernel_size: 3 } }', "'num_output' is missing"),
        (DATA + 'layer { name: "c" type: "ReLU" bottom: "dat" top: "c" }', "2:1: c: bottom 'dat' is no top.*did you mean 'data'"),
        (DATA + 'layer { name: "a" type: "Frob" bottom: "data" top: "a" }\n' * 3, r"Frob \(3\).*--assume-free Frob"),
        (DATA + 'layer { name: "c" type: "ReLU" bottom: "data" top: "c" ', "the file ends inside the message opened on line 2"),
        (DATA + 'layer { name: "c" type: "ReLU" bottom: "data" top: "c" relu_param { negative_slope: x } }', "must be a number"),
        (DATA + "layer { " * 50, "nested more than"),
        (DATA + 'layer { na-me: "c" }', "2:9: is no Caffe prototxt file: expected the name of a field, found 'na-me'"),
        (DATA + 'layer { name: "c }', r"2:15: is no Caffe prototxt file: String missing ending quote"),
        (DATA + "layer { name: @ }", r"2:15: is no Caffe prototxt file: Couldn't parse float: @"),
        ('layer { name: "d" type: "Data" top: "data" data_param { batch_size: 4 source: "/db" } }', "in the database"),
        (DATA + 'layer { name: "f" type: "InnerProduct" bottom: "data" inner_product_param { num_output: 99999999999 } }', "from 1 to"),
        (DATA + 'layer { layer { name: "f" type: "innerproduct" } }', "upgrade_net_proto_text"),
        (DATA, "no layers in the phase TRAIN"),
    ],
)  # fmt: skip
def test_one_clear_error(text: str, message: str, tmp_path: Path, new_file: Any, fails: Any) -> None:
    path = new_file("net.prototxt", text)
    with pytest.raises(InputFileError, match=message) as caught:
        import_network(path)
    assert len(caught.value.problems) == 1
    fails("import", path, "-o", tmp_path / "out.yaml")
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.fuzz
def test_a_bomb_of_values_is_refused_quickly() -> None:
    with pytest.raises(Fault, match="more than"):
        parse("a: [" + "1," * (MAX_VALUES + 1) + "1]")


def test_assumed_free_layers_are_listed_by_every_answer(tmp_path: Path, said: Any, answer: Any) -> None:
    path, out = tmp_path / "net.prototxt", tmp_path / "net.yaml"
    fc = 'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 4 } }'
    path.write_text(DATA + 'layer { name: "odd" type: "Frob" bottom: "data" top: "x" }\n' + fc)
    assert "ASSUMED FREE" in said("import", path, "--assume-free", "Frob", "-o", out)[1]
    assert "assumed free Frob/odd" in " ".join(answer("optimize", str(out), "--gpus", "2").split())


def test_found_by_content(tmp_path: Path) -> None:
    assert detect(b"# a comment\nname: 'x'\nlayer {\n")
    assert not detect(b"schema_version: 1\nlayers:\n  - {name: data, type: input}\n")
    path = tmp_path / "network.txt"
    fc = 'layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 4 } }'
    path.write_text(DATA + fc)
    assert import_network(path).graph.weight_count == 768 * 4 + 4


def test_importers_are_listed(answer: Any) -> None:
    listed = answer("list", "importers")
    assert all(name in listed for name in ("paleo", "hugging_face", "caffe", "onnx", "torch"))


@given(st.text(alphabet="abc{}<>:;,[]\"'#\\ \n0123.-", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(parse(text).value, dict)
    except Fault as error:
        assert error.line >= 1  # noqa: PT017 - both outcomes are right


def test_dilation_and_grouped_deconvolutions(tmp_path: Path) -> None:
    """Dilation without padding shrinks the image by d (k - 1); FCN's upsampling has a group per class."""
    n = Prototxt(size=32)
    x = n.add("Convolution", "data", "convolution_param { num_output: 8 kernel_size: 3 dilation: 2 }")
    n.add("Deconvolution", x, "convolution_param { num_output: 8 kernel_size: 4 stride: 2 group: 8 bias_term: false }")
    conv, up = (layer for layer in n.graph(tmp_path).layers if "convolution" in layer.kind)
    assert conv.output_shape == (8, 28, 28)
    assert conv.weight_count == 3 * 3 * 3 * 8 + 8
    assert up.output_shape == (8, 58, 58)
    assert up.weight_count == 8 * 16

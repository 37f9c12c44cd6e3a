"""Networks traced by torch and written through ONNX: layers, parameters and operations, against torch's own counters."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import sys
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from costmodel.network.layers import Layer, Shard
from planner.core.errors import InputFileError, PlannerError, UsageError
from planner.files.loading import LoadedModel
from planner.importers.networks import import_network, load_model
from planner.importers.sources import text_of
from tests.cases import mostly

torch = pytest.importorskip("torch", reason="needs torch (extra 'torch')")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6), reason="needs torch 2.6 or later"
    ),
]
sys.path.insert(0, str(Path(__file__).parent))
import torch_models  # noqa: E402 - found beside this file, needs torch

NAMES = sorted(torch_models.NETWORKS)
BATCH = 2


def on_meta(name: str) -> tuple[Any, Any]:
    make, example = torch_models.NETWORKS[name]
    with torch.device("meta"):
        return make(), example()


def traced(name: str) -> LoadedModel:
    module, example = on_meta(name)
    return planner.from_torch(module, (example,))


def whole(layer: Layer, batch: float) -> Shard:
    one = np.ones(1)
    shape, inputs = layer.output_shape, layer.input_shapes[0] if layer.input_shapes else layer.output_shape
    flat = layer.kind == "linear" and len(inputs) != 2
    return Shard(
        batch=batch * one,
        out_channels=shape[0] * one,
        in_channels=(float(np.prod(inputs)) if flat else inputs[0]) * one,
        height=(shape[1] if len(shape) == 3 else 1) * one,
        split_out=one,
        split_in=one,
        split_height=one,
    )


def forward_flop(model: LoadedModel, batch: float) -> float:
    """Operations of matrix products, all pairs of attention counted, as torch's counter does."""
    total = 0.0
    for written in model.graph.layers:
        layer = written
        if layer.kind == "self_attention" and layer.params.causal:
            layer = dataclasses.replace(layer, params=dataclasses.replace(layer.params, causal=False))
        work = layer.family.work(layer, whole(layer, batch))
        total += sum(float(kernel.flop[0]) for kernel in (work.forward[0] if work.forward else ()) if kernel.gemm)
    return total


def layers_of(model: LoadedModel) -> list[tuple[Any, ...]]:
    """Layers without their names; how attention is run is no part of what it is."""
    number = {layer.name: i for i, layer in enumerate(model.graph.layers)}
    result = []
    for layer in model.graph.layers:
        params = layer.params
        if layer.kind in ("self_attention", "cross_attention"):
            params = dataclasses.replace(params, fused=True)
        inputs = tuple(number[name] for name in layer.inputs)
        result.append((layer.kind, params, inputs, layer.output_shape, bool(layer.block)))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_torch_parameters_are_exact(name: str) -> None:
    module, _ = on_meta(name)
    expected = sum(parameter.numel() for parameter in module.parameters())
    model = traced(name)
    assert model.graph.weight_count + model.graph.norm_count == expected
    assert not any("differ" in note for note in model.notes)


@pytest.mark.parametrize("name", NAMES)
def test_torch_operations_are_those_of_its_counter(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, example = on_meta(name)
    with FlopCounterMode(display=False) as counter:
        module(example)
    assert forward_flop(traced(name), BATCH) == pytest.approx(counter.get_total_flops(), rel=0.01)


def exported(name: str, folder: Path) -> Path:
    pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    pytest.importorskip("onnxscript", reason="torch's exporter to ONNX needs onnxscript")
    make, example = torch_models.NETWORKS[name]
    torch.manual_seed(1)
    module = make()
    for parameter in module.parameters():  # exporters merge equal weights and leave out biases of zero
        torch.nn.init.normal_(parameter)
    path = folder / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Optimizing merges batch normalisations into convolutions, which a network that is trained does not.
        program = torch.onnx.export(module, (example(),), dynamo=True, verbose=False, optimize=name != "resnet50")
    program.save(str(path), external_data=name == "resnet50")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_onnx_gives_the_layers_of_torch(name: str, tmp_path: Path) -> None:
    path = exported(name, tmp_path)
    for data in tmp_path.glob("*.data"):  # weights in a file of their own are not needed
        data.unlink()
    model, reference = load_model(str(path)), traced(name)
    assert layers_of(model) == layers_of(reference)
    assert (
        model.graph.weight_count + model.graph.norm_count == reference.graph.weight_count + reference.graph.norm_count
    )
    assert forward_flop(model, BATCH) == pytest.approx(forward_flop(reference, BATCH))


@pytest.mark.parametrize("name", ["gpt", "gpt, written out", "encoder", "llama", "vit"])
def test_blocks_are_found_and_attention_is_one_layer(name: str) -> None:
    graph = traced(name).graph
    blocks = {layer.block for layer in graph.layers} - {""}
    kinds = Counter(layer.kind for layer in graph.layers)
    assert len(blocks) == kinds["self_attention"] >= 2
    assert not kinds["matmul"] + kinds["rearrange"] + kinds["pointwise"] + kinds["concat"]


def test_attention_that_is_written_out_is_not_fused() -> None:
    fused = {layer.params.fused for layer in traced("gpt, written out").graph.layers if layer.kind == "self_attention"}
    causal = {
        layer.params.causal for layer in traced("gpt, written out").graph.layers if layer.kind == "self_attention"
    }
    assert (fused, causal) == ({False}, {True})


def test_grouped_queries_and_gates() -> None:
    attention = [layer.params for layer in traced("llama").graph.layers if layer.kind == "self_attention"]
    assert {(p.heads, p.kv_heads, p.head_dim) for p in attention} == {(4, 2, 16)}
    assert sum(layer.kind == "glu" for layer in traced("llama").graph.layers) == 3


def test_an_archive_is_what_was_traced(tmp_path: Path) -> None:
    module = torch_models.Gpt(2)
    path = tmp_path / "gpt.pt2"
    torch.export.save(torch.export.export(module, (torch_models.ids(),)), str(path))
    archive = load_model(str(path))
    assert layers_of(archive) == layers_of(planner.from_torch(module, (torch_models.ids(),)))


def test_a_mesh_plan_is_found_for_what_was_imported(new_file: Any, answer: Any) -> None:
    path = new_file("gpt.yaml", text_of(traced("gpt")))
    assert "micro-batch" in answer("optimize", str(path), "--gpus", "4", "--batch", "16")


def test_the_text_of_an_import_is_the_same_network(tmp_path: Path) -> None:
    for name in NAMES:
        path = tmp_path / "network.yaml"
        model = traced(name)
        path.write_text(text_of(model))
        assert layers_of(load_model(str(path))) == layers_of(model)


# -- bad input ---------------------------------------------------------------------------------------------------------------


class Strange(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x) @ x


def test_unknown_operators_are_counted_and_refused_unless_assumed_free() -> None:
    example = (torch.zeros(2, 3, 4, 4),)
    with pytest.raises(InputFileError, match=r"linalg_inv.*\(1\).*--assume-free"):
        planner.from_torch(Strange(), example)
    model = planner.from_torch(Strange(), example, assume_free=["aten.linalg_inv.default"])
    assert any("ASSUMED FREE" in note for note in model.notes)
    assert any(layer.kind == "assumed_free" for layer in model.graph.layers)


def test_what_torch_cannot_export_is_one_error() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(UsageError, match=r"torch\.export cannot trace Branching"):
        planner.from_torch(Branching(), (torch.zeros(2, 3),))
    with pytest.raises(UsageError, match=r"takes a torch\.nn\.Module, not str"):
        planner.from_torch("net", (torch.zeros(2, 3),))


class Trap:
    """Would leave a file behind if it were ever unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    checkpoint = tmp_path / "model.pt2"
    torch.save({"model": Trap(str(sprung))}, checkpoint)
    with pytest.raises(InputFileError, match="pickles are never opened"):
        import_network(checkpoint)
    good = tmp_path / "good.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)), str(good))
    import pickle
    import shutil

    shutil.copy(good, checkpoint)
    with zipfile.ZipFile(checkpoint, "a") as archive:
        archive.writestr("good/data/constants/custom_obj_0", pickle.dumps(Trap(str(sprung))))
    with pytest.raises(InputFileError, match="pickled objects"):
        import_network(checkpoint)
    assert not sprung.exists()


@pytest.mark.parametrize("place", ["sample inputs", "weight", "constant", "opaque", "compiled"])
def test_archives_that_would_run_code_are_refused(place: str, tmp_path: Path) -> None:
    """Wherever torch's own loader would unpickle anything, or load a library."""
    sprung, path = tmp_path / "sprung", tmp_path / "model.pt2"
    good = tmp_path / "good.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)), str(good))
    trap = io.BytesIO()
    torch.save(Trap(str(sprung)), trap)
    with zipfile.ZipFile(good) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    folder, weights = "good/data", "good/data/weights/model_weights_config.json"
    constants = "good/data/constants/model_constants_config.json"
    if place == "sample inputs":
        parts[f"{folder}/sample_inputs/model.pt"] = trap.getvalue()
    elif place == "weight":
        config = json.loads(parts[weights])
        entry = next(iter(config["config"].values()))
        entry["use_pickle"] = True
        parts |= {weights: json.dumps(config).encode(), f"{folder}/weights/{entry['path_name']}": trap.getvalue()}
    elif place == "compiled":
        parts[f"{folder}/aotinductor/model/model.so"] = b""
    else:
        entry = {"path_name": "opaque_obj_0" if place == "opaque" else "tensor_0", "is_param": False}
        entry |= {"use_pickle": True, "tensor_meta": None}
        parts[constants] = json.dumps({"config": {"k": entry}}).encode()
        parts[f"{folder}/constants/{entry['path_name']}"] = trap.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(InputFileError, match=r"run code|cannot be read as"):
        import_network(path)
    assert not sprung.exists()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [inner for key, item in pairs for inner in ((*path, key), *places(item, (*path, key)))]


def spoil(parts: dict[str, bytes], rng: random.Random) -> None:
    """Leave out, empty, cut or change one part of an archive; mostly a value of its program or of a list of its tensors."""
    name = rng.choice([*parts, *[part for part in parts if part.endswith(".json")] * 8])
    if not name.endswith(".json") or rng.random() < 0.1:
        content = parts.pop(name)
        if rng.random() < 0.7:
            parts[name] = rng.choice([b"", content[: len(content) // 2], rng.randbytes(len(content))])
        return
    content = json.loads(parts[name])
    *way, last = rng.choice(places(content) or [("config",)])
    holder = content
    for key in way:
        holder = holder[key]
    if rng.random() < 0.3 and last in (holder if isinstance(holder, dict) else range(len(holder))):
        del holder[last]
    else:
        holder[last] = rng.choice([None, True, 0, -1, 3, 2**70, 1.5, "", "x", [], {}, [[]], {"a": 1}])
    parts[name] = json.dumps(content).encode()


@pytest.fixture(scope="module")
def archive_of_gpt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Names and contents of what torch saves."""
    path = tmp_path_factory.mktemp("archive") / "net.pt2"
    module, example = torch_models.NETWORKS["gpt"][0](), torch_models.NETWORKS["gpt"][1]()
    torch.export.save(torch.export.export(module, (example,)), str(path))
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@mostly("fuzz", "seed", range(50), quick=2, every=20)
def test_spoiled_archives_are_one_error_or_another_network(
    seed: int, archive_of_gpt: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ten each; torch's loader prints nothing either."""
    path, rng = tmp_path / "net.pt2", random.Random(seed)
    for _ in range(10):
        other = dict(archive_of_gpt)
        spoil(other, rng)
        with zipfile.ZipFile(path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            for name, content in other.items():
                archive.writestr(name, content)
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([0, 0, 0, 1, 5])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        capfd.readouterr()
        try:
            import_network(path)
        except PlannerError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - both outcomes are right
        assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_one_error(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)), str(path))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(InputFileError) as caught:
        import_network(path)
    assert len(caught.value.problems) == 1

"""Attention in every form of torch's modules, recurrent layers and what else people write: through torch.export and both ONNX exporters."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.core.errors import InputFileError
from planner.files.loading import LoadedModel
from planner.importers.networks import load_model

torch = pytest.importorskip("torch", reason="needs torch (extra 'torch')")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6), reason="needs torch 2.6 or later"
    ),
]
sys.path.insert(0, str(Path(__file__).parent))
import torch_zoo as zoo  # noqa: E402 - found beside this file, needs torch
from test_torch_onnx import forward_flop, layers_of  # noqa: E402

NAMES = sorted(zoo.ZOO)
# What the newer exporter to ONNX is tried with: it takes seconds each. It writes plain recurrences out, position by position.
BY_DYNAMO = (
    "weights, positions first",
    "cross",
    "decoder",
    "LSTM, two, both ways",
    "GRU, one",
    "windows",
    "rotary pairs",
    "einsum",
)
_TRACED: dict[str, LoadedModel] = {}


def made(name: str) -> tuple[Any, Any]:
    make, inputs = zoo.ZOO[name]
    torch.manual_seed(1)
    module = make()
    for parameter in module.parameters():  # exporters merge equal weights and leave out biases of zero
        torch.nn.init.normal_(parameter)
    return module.eval(), inputs()


def traced(name: str) -> LoadedModel:
    if name not in _TRACED:
        _TRACED[name] = planner.from_torch(*made(name))
    return _TRACED[name]


def counted(model: LoadedModel) -> int:
    return model.graph.weight_count + model.graph.norm_count


def recurrent_flop(module: Any) -> float:
    """2 N T G H (I + H) per layer and direction, which torch's counter does not know on every device."""
    cells, total = module.cells, 2.0 * zoo.BATCH * zoo.LENGTH * 0
    for name, weight in cells.named_parameters():
        if name.startswith("weight_"):
            total += 2.0 * zoo.BATCH * zoo.LENGTH * weight.numel()
    positions = zoo.LENGTH if module.where == "all" else 1
    return total + 2.0 * zoo.BATCH * positions * module.head.weight.numel()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_operations_are_those_of_torch(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, inputs = made(name)
    model = traced(name)
    assert counted(model) == sum(parameter.numel() for parameter in module.parameters())
    assert model.global_batch == zoo.BATCH
    if name in zoo.RECURRENT:
        expected = recurrent_flop(module)
    else:
        make, _ = zoo.ZOO[name]
        with torch.device("meta"):
            module, inputs = make().eval(), tuple(torch.empty_like(one, device="meta") for one in inputs)
        torch.backends.mha.set_fastpath_enabled(False)  # one kernel that the counter does not know
        try:
            with FlopCounterMode(display=False) as counter:
                module.to("meta")(*inputs)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        expected = counter.get_total_flops()
    assert forward_flop(model, zoo.BATCH) == pytest.approx(expected, rel=0.01)


def exported(name: str, folder: Path, **options: Any) -> Path:
    pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    module, inputs = made(name)
    path = folder / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(path), **options)
    return path


@pytest.mark.parametrize("folds", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_torchscript_onnx_gives_the_layers_of_torch(name: str, folds: bool, tmp_path: Path) -> None:
    path = exported(name, tmp_path, dynamo=False, opset_version=17, do_constant_folding=folds)
    check_same(load_model(str(path)), name, is_folded=folds)


def check_same(model: LoadedModel, name: str, *, is_folded: bool) -> None:
    """The layers of torch.export; but exporters that fold constants work tables of biases out, which then are no parameters."""
    reference = traced(name)
    if name != "windows" or not is_folded:
        assert layers_of(model) == layers_of(reference)
        assert counted(model) == counted(reference)
        return
    table = (2 * 4 - 1) ** 2 * zoo.HEADS
    assert [layer.kind for layer in model.graph.layers] == [layer.kind for layer in reference.graph.layers]
    assert counted(model) == counted(reference) - table
    assert any("that the exporter worked out" in note for note in model.notes)


@pytest.mark.parametrize("name", BY_DYNAMO)
def test_dynamo_onnx_gives_the_layers_of_torch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch's exporter to ONNX needs onnxscript")
    path = exported(name, tmp_path, dynamo=True, verbose=False, external_data=False)
    check_same(load_model(str(path)), name, is_folded=True)


@pytest.mark.parametrize("opset", [14, 15, 16, 18, 20])
@pytest.mark.parametrize("name", ["causal, bool", "encoder, positions first", "decoder", "GRU, two, both ways"])
def test_every_opset_gives_the_same_layers(name: str, opset: int, tmp_path: Path) -> None:
    path = exported(name, tmp_path, dynamo=False, opset_version=opset)
    assert layers_of(load_model(str(path))) == layers_of(traced(name))


@pytest.mark.parametrize("name", sorted(zoo.ATTENTION))
def test_attention_is_one_layer_each(name: str) -> None:
    kinds = Counter(layer.kind for layer in traced(name).graph.layers)
    # Two layers each; of a decoder, two of each kind.
    wanted = {"cross": (0, 1), "decoder": (2, 2)}.get(name.partition(",")[0], (2, 0))
    assert (kinds["self_attention"], kinds["cross_attention"]) == wanted
    assert not kinds["matmul"] + kinds["softmax"] + kinds["rearrange"]
    causal = {layer.params.causal for layer in traced(name).graph.layers if layer.kind == "self_attention"}
    assert causal <= {"causal" in name or "mask" in name or name.startswith("decoder")}


@pytest.mark.parametrize("name", ["rotary pairs", "rotary halves", "einsum"])
def test_written_out_attention_is_one_layer(name: str) -> None:
    kinds = Counter(layer.kind for layer in traced(name).graph.layers)
    assert kinds == {"input": 1, "linear": 2, "self_attention": 1}


def test_complex_rotary_positions_are_those_of_pairs() -> None:
    module = zoo.Rotary("complex")
    assert layers_of(planner.from_torch(module, (torch.zeros(zoo.X),))) == layers_of(traced("rotary pairs"))


def test_positions_first_are_noted() -> None:
    assert any("second dimension" in note for note in traced("positions first").notes)
    assert not any("second dimension" in note for note in traced("module").notes)


def test_weights_that_are_handed_out_are_written_to_memory() -> None:
    class Shown(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(zoo.WIDTH, zoo.HEADS, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=True)

    model = planner.from_torch(Shown(), (torch.zeros(zoo.X),))
    attention = next(layer for layer in model.graph.layers if layer.kind == "self_attention")
    weights = next(layer for layer in model.graph.layers if layer.kind == "reduce")
    assert not attention.params.fused
    assert weights.output_shape == (zoo.LENGTH, zoo.LENGTH)
    assert weights.inputs == (attention.name,)


def test_the_cell_and_the_biases_are_kept() -> None:
    for name, cell, biases in (("LSTM, one", "lstm", 2), ("GRU, no bias, state", "gru", 0), ("RNN, one", "rnn", 2)):
        found = [layer.params for layer in traced(name).graph.layers if layer.kind == "lstm"]
        assert {(p.cell, p.biases) for p in found} == {(cell, biases)}


def test_initial_states_of_another_layer_are_noted() -> None:
    class Translator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = (torch.nn.GRU(8, 8, batch_first=True) for _ in range(2))

        def forward(self, x, y):
            return self.decoder(y, self.encoder(x)[1])[0]

    model = planner.from_torch(Translator(), (torch.zeros(2, 5, 8), torch.zeros(2, 7, 8)))
    assert any("begin with the state of another layer" in note for note in model.notes)


def test_projected_states_are_refused_by_name() -> None:
    with pytest.raises(InputFileError, match="proj_size"):
        planner.from_torch(torch.nn.LSTM(16, 24, proj_size=8, batch_first=True), (torch.zeros(2, 5, 16),))


def test_learned_queries_are_refused_by_name() -> None:
    class Learned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = torch.nn.Parameter(torch.zeros(1, 4, zoo.WIDTH))
            self.attention = torch.nn.MultiheadAttention(zoo.WIDTH, zoo.HEADS, batch_first=True)

        def forward(self, x):
            return self.attention(self.queries.expand(x.shape[0], -1, -1), x, x)[0]

    with pytest.raises(InputFileError, match=r"queries.*learned"):
        planner.from_torch(Learned(), (torch.zeros(zoo.X),))


def test_extents_that_depend_on_the_data_are_refused() -> None:
    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)

        def forward(self, x):
            chosen = torch.nonzero(x[:, 0] > 0)[:, 0]
            return self.fc(x[chosen])

    with pytest.raises(InputFileError, match="depends on the data"):
        planner.from_torch(Routed(), (torch.zeros(4, 8),))


def test_bags_of_embeddings_and_picked_products_are_costed() -> None:
    class Recommender(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.dense = torch.nn.EmbeddingBag(100, 8), torch.nn.Linear(4, 8)
            self.head = torch.nn.Linear(9, 1)

        def forward(self, x, ids):
            y = self.dense(x)
            both = torch.stack((y, self.bag(ids)), 1)
            products = torch.bmm(both, both.transpose(1, 2))
            return self.head(torch.cat((y, products[:, [1], [0]]), 1))

    model = planner.from_torch(Recommender(), (torch.zeros(3, 4), torch.zeros(3, 5, dtype=torch.long)))
    kinds = Counter(layer.kind for layer in model.graph.layers)
    assert kinds["embedding"] == kinds["matmul"] == 1
    assert counted(model) == 800 + 40 + 10

"""Swin, NFNet, LeViT, XCiT and CaiT through torch.export and torch's exporters to ONNX; tensors that are written in place."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.files.loading import LoadedModel
from planner.importers.networks import load_model

torch = pytest.importorskip("torch", reason="needs torch (extra 'torch')")
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]
sys.path.insert(0, str(Path(__file__).parent))
import torch_vision as vision  # noqa: E402 - found beside this file, needs torch
from test_torch_onnx import forward_flop  # noqa: E402

BATCH = vision.INPUT[0]
# Learned numbers that scale weights, which no layer has: gains of two convolutions of 32 channels.
NOT_COUNTED = {"nfnet": 64}
# Operations on parameters and constants alone, once per step: the network of biases of 16 x 16 pairs (2 to 16 to 4 features), and the
# convolution of 8 waves at 64 positions to 32 features.
OF_PARAMETERS = {"swin": 2 * 256 * (2 * 16 + 16 * 4), "xcit": 2 * 64 * 8 * 32}
# What the exporters to ONNX work out, which are constants then.
FOLDED = {"levit": 4 * 64}


def made(name: str) -> Any:
    torch.manual_seed(1)
    module = vision.VISION[name]()
    for parameter in module.parameters():  # exporters merge equal weights and leave out biases of zero
        torch.nn.init.normal_(parameter)
    return module.eval()


def counted(model: LoadedModel) -> int:
    return model.graph.weight_count + model.graph.norm_count


@pytest.mark.parametrize("name", sorted(vision.VISION))
def test_parameters_and_operations_are_those_of_torch(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module = made(name)
    model = planner.from_torch(module, (torch.zeros(vision.INPUT),))
    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert counted(model) + NOT_COUNTED.get(name, 0) == parameters
    assert any("parameters, the program uses" in note for note in model.notes) == (name in NOT_COUNTED)
    with FlopCounterMode(display=False) as counter:
        module.to("meta")(torch.zeros(vision.INPUT, device="meta"))
    expected = counter.get_total_flops() - OF_PARAMETERS.get(name, 0)
    assert forward_flop(model, BATCH) == pytest.approx(expected, rel=1e-9)
    assert any("once per step" in note for note in model.notes) == (name in {*NOT_COUNTED, *OF_PARAMETERS})


@pytest.mark.parametrize("name", sorted(vision.VISION))
def test_onnx_gives_the_operations_of_torch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    module, path = made(name), tmp_path / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(vision.INPUT),), str(path), dynamo=False, opset_version=17)
    traced, read = planner.from_torch(module, (torch.zeros(vision.INPUT),)), load_model(str(path))
    assert forward_flop(read, BATCH) == pytest.approx(forward_flop(traced, BATCH), rel=1e-9)


def test_masks_that_are_written_piece_by_piece_are_constants() -> None:
    """Their numbers are known, so that nothing has to be assumed about what they hide."""
    model = planner.from_torch(made("swin"), (torch.zeros(vision.INPUT),))
    assert not any("hide nothing" in note for note in model.notes)


class InPlace(torch.nn.Module):
    def __init__(self, write: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.head, self.write = torch.nn.Linear(8, 4), write

    def forward(self, x):
        return self.head(self.write(self.first(x), self.second(x)))


def by_statement(x, y):
    x.add_(y)
    return x


def into_a_part(x, y):
    both = torch.zeros(x.shape[0], 8)
    both[:, :4] = x[:, :4]
    both[:, 4:] = y[:, :4]
    return both


def over_a_part(x, y):
    x[:, 0] = 0.0
    return x + y


def by_indices(x, y):
    x[:, torch.arange(4)] = y[:, :4]
    return x


def all_of_it(x, y):
    x[:] = y
    return x


@pytest.mark.parametrize(
    ("write", "linear"),
    [
        (by_statement, 3),
        (into_a_part, 3),
        (over_a_part, 3),
        (all_of_it, 2),
        (lambda x, y: x.mul_(y), 3),
        (lambda x, y: torch.slice_scatter(x, y[:, :4], 1, 4, 8), 3),
        (by_indices, 3),
    ],
)
def test_what_is_written_in_place_is_read_later(write: Callable[[Any, Any], Any], linear: int) -> None:
    """As torch runs it: what was written counts, and what it replaced does not."""
    model = planner.from_torch(InPlace(write), (torch.zeros(2, 8),))
    assert Counter(layer.kind for layer in model.graph.layers)["linear"] == linear


def test_parts_of_an_output_are_written_to_a_copy(tmp_path: Path) -> None:
    """Both halves come from a layer; ONNX files say it as ScatterND or as a concatenation."""
    pytest.importorskip("onnx", reason="needs onnx (extra 'onnx')")
    module, path = InPlace(into_a_part).eval(), tmp_path / "network.onnx"
    model = planner.from_torch(module, (torch.zeros(2, 8),))
    assert "parts of a layer's output that are written in place are read as copies of all of it" in model.notes
    torch.onnx.export(module, (torch.zeros(2, 8),), str(path), dynamo=False, opset_version=17)
    read = load_model(str(path))
    for one in (model, read):
        assert Counter(layer.kind for layer in one.graph.layers)["linear"] == 3
        assert counted(one) == 2 * 8 * 9 + 4 * 9

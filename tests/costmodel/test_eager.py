"""Weight tensors against what torchvision reports."""

from __future__ import annotations

import pytest

from costmodel.framework import tensors_of
from planner.importers.networks import load_model
from planner.measurements import convnets
from tests.planner.measurements.single_rows import only


# len(list(torchvision.models.<name>().parameters())).
@pytest.mark.parametrize(
    ("name", "count"), [("resnet50", 161), ("vgg16", 32), ("resnext101-32x4d", 314), ("densenet121", 364)]
)
def test_weight_tensors(name: str, count: int) -> None:
    graph = load_model(name).graph
    assert sum(map(tensors_of, graph.layers)) == count


def test_pytorch_waits_for_updates_where_losses_are_scaled() -> None:
    row = {"model": "resnet50", "device": "a100-80gb", "gpus": 1, "global_batch": 128, "step_time_ms": 100}

    def predicted_s(framework: str, precision: str) -> float:
        return only(convnets, **row, framework=framework, precision=precision).comparisons[0].predicted_s

    assert (
        1e-3
        < predicted_s("pytorch-channels-last", "fp16") - predicted_s("tensorflow", "fp16")
        < 24e-6 * sum(map(tensors_of, load_model("resnet50").graph.layers))
    )
    assert predicted_s("pytorch-channels-last", "tf32") == predicted_s("tensorflow", "tf32")

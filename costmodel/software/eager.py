"""What an eager framework's host does between steps while the device waits: updates in a loop over the weight tensors.

The device waits where the host waited for the device just before: with scaled losses, whether gradients overflowed decides whether there is
an update at all (torch/cuda/amp/grad_scaler.py, ``found_inf.item()``). The time of the calls of one tensor is an assumption
(`LayerAssumptions.update_call_s`).
"""

from __future__ import annotations

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer

__all__ = ["tensors_of", "weight_tensors"]


def weight_tensors(graph: Graph) -> int:
    """Tensors of trained weights as PyTorch counts them: a matrix, a bias, scale and shift of a normalisation.

    >>> from costmodel.network.graph import Graph, LayerSpec
    >>> from costmodel.network.layers.base import params_from
    >>> image = LayerSpec(name="image", kind="input", params=params_from("input", {"shape": (3, 8, 8)}))
    >>> params = params_from("convolution", {"out_channels": 4, "kernel": 1, "norm": "batch"})
    >>> conv = LayerSpec(name="conv", kind="convolution", params=params, inputs=("image",))
    >>> weight_tensors(Graph.build("small", [image, conv]))
    4
    """
    return sum(map(tensors_of, graph.layers))


def tensors_of(layer: Layer) -> int:
    """The same of a layer."""
    if layer.is_frozen or not layer.family.weight_count(layer):
        return 0
    parts = (getattr(layer.params, "bias", False), *[getattr(layer.params, "norm", None) is not None] * 2)
    return (2 if layer.kind.endswith("norm") else 1) + sum(map(bool, parts))

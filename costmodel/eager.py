"""What an eager framework's host does between steps while the device waits: updates in a loop over the weight tensors."""

from __future__ import annotations

from costmodel.network.graph import Graph

__all__ = ["loop_update_s", "weight_tensors"]

# torch.optim.SGD before its multi-tensor form (the default since PyTorch 2.0): weight decay, decay of the momentum, addition to it, update
# (torch/optim/sgd.py, _single_tensor_sgd). Each call takes 6 us of a CPU (measured with PyTorch 2 on tensors of 8 numbers).
_CALLS = 4
_CALL_S = 6e-6


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
    total = 0
    for layer in graph.layers:
        if layer.is_frozen or not layer.family.weight_count(layer):
            continue
        parts = (getattr(layer.params, "bias", False), *[getattr(layer.params, "norm", None) is not None] * 2)
        total += (2 if layer.kind.endswith("norm") else 1) + sum(map(bool, parts))
    return total


def loop_update_s(graph: Graph) -> float:
    """Time of the host to start the update of every tensor; the device waits for it where the host waited for the device just before.

    That is so with scaled losses: whether gradients overflowed decides whether there is an update at all (torch/cuda/amp/grad_scaler.py,
    ``found_inf.item()``).
    """
    return _CALLS * _CALL_S * weight_tensors(graph)

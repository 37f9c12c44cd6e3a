"""Tensors that several layers read: their gradients are added up before the backward pass goes on.

An addition passes its gradient on as it is, to all of its inputs, but `costmodel.network.layers.elementwise.Add` charges as many passes
backward as forward: they stand for the sum where its branches part. What is left are branches that are joined otherwise (Inception,
DenseNet, SqueezeNet), or more of them than an addition joins (Inception-ResNet).
"""

from __future__ import annotations

from costmodel.network.graph import Graph

__all__ = ["gradient_passes"]


def gradient_passes(graph: Graph) -> tuple[float, ...]:
    """Layer -> passes over its output that adding up the gradients of its readers takes, besides those that additions charge.

    n gradients are read and their sum is written, ``n + 1`` passes (TensorFlow, gradients_util.py: AddN of what several readers give back;
    an engine that adds them in pairs, as PyTorch's, takes ``3 (n - 1)``, the same for two), less ``m + 1`` where the branches end in an
    addition of m.

    Examples
    --------
    >>> from costmodel.network.graph import LayerSpec
    >>> from costmodel.network.layers.base import params_from
    >>> def layer(name: str, kind: str, *inputs: str, **params: object) -> LayerSpec:
    ...     return LayerSpec(name=name, kind=kind, params=params_from(kind, params), inputs=inputs)
    >>> def joined(kind: str) -> tuple[float, ...]:
    ...     convs = [layer(n, "convolution", i, out_channels=4, kernel=1) for n, i in (("a", "x"), ("b", "a"), ("c", "a"))]
    ...     return gradient_passes(Graph.build(kind, [layer("x", "input", shape=(4, 8, 8)), *convs, layer("j", kind, "b", "c")]))
    >>> joined("concat"), joined("add")  # two gradients are read and one is written; the addition has charged that
    ((0.0, 3.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0))
    """
    readers: list[list[int]] = [[] for _ in graph.layers]
    for reader, sources in enumerate(graph.producers):
        for source in sources:
            readers[source].append(reader)
    ends = _joins(readers)
    passes = []
    for number, of in enumerate(readers):
        taken = 0.0
        if len(of) > 1 and graph.needs_gradient[number]:
            end = ends[number]
            is_sum = end < len(graph.layers) and graph.layers[end].kind == "add"
            charged = len(graph.layers[end].input_shapes) + 1.0 if is_sum else 0.0
            taken = max(len(of) + 1.0 - charged, 0.0)
        passes.append(taken)
    return tuple(passes)


def _joins(readers: list[list[int]]) -> list[int]:
    """Layer -> the first layer after it that every path from it goes through; one past the last where there is none.

    Layers are in topological order. That of a layer is where the ways of its readers first meet: whichever of two is further ahead stays,
    the other goes on to its own join (Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001, on the reversed graph).

    >>> _joins([[1, 2], [3], [3], [4], []])
    [3, 3, 3, 4, 5]
    """
    last = len(readers)
    joins = [last] * last
    for number in reversed(range(last)):
        meeting, *others = readers[number] or [last]
        for other in others:
            way = other
            while meeting != way:
                if meeting < way:
                    meeting = joins[meeting]
                else:
                    way = joins[way]
        joins[number] = meeting
    return joins

"""Activations on their way to the host and back: what of it compute does not hide."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.assumptions import MeshAssumptions

__all__ = ["hidden_s", "one_way_s", "shown_s"]


def one_way_s(assumptions: MeshAssumptions, activation_bytes: FloatArray) -> FloatArray:
    """Time to move activations to the host, or back."""
    return activation_bytes / assumptions.host_bytes_per_s


def hidden_s(assumptions: MeshAssumptions, compute_s: FloatArray) -> FloatArray:
    """The part of a move that forward compute of ``compute_s`` hides; the backward pass, which is longer, is taken to hide no more."""
    return assumptions.offload_overlap * compute_s


def shown_s(one_way: FloatArray, hidden: FloatArray) -> FloatArray:
    """What is left of a move to the host and one back.

    >>> shown_s(np.array([3.0, 1.0]), np.array([2.0, 2.0])).tolist()
    [2.0, 0.0]
    """
    return np.asarray(2.0 * np.maximum(one_way - hidden, 0.0))

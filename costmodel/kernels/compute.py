"""The seam between the cost presets and everything else: how long one worker computes its share of a layer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from costmodel.arrays import FloatArray
from costmodel.network.layers import Layer, Shard

__all__ = ["ComputeModel", "CostModelError", "PassTimes"]


class CostModelError(ValueError):
    """The cost model cannot evaluate a layer; the message names the layer and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Compute time of one worker's share in the three passes, each of shape (n,), in seconds.

    A model that does not separate the two gradients puts their sum into ``backward_weight_s``.
    """

    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray

    @property
    def backward_s(self) -> FloatArray:
        """Both gradients."""
        return self.backward_input_s + self.backward_weight_s


class ComputeModel(Protocol):
    """A cost preset for a device: `paleo` or `roofline`."""

    @property
    def name(self) -> str:
        """Name of the preset."""
        ...

    @property
    def overlaps_exchange(self) -> bool:
        """Whether gradient exchange may overlap with the backward pass."""
        ...

    @property
    def counts_norm(self) -> bool:
        """Whether parameters of attached normalisations count as weights."""
        ...

    def pass_times(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """Time the largest share of every split at once.

        Raises
        ------
        CostModelError
            The model has no formula for the layer.
        """
        ...

    def cost_key(self, layer: Layer) -> Hashable:
        """What beyond kind, parameters and shapes decides the cost (a name that a rule refers to)."""
        ...

    def update_s(self, weight_elements: FloatArray) -> FloatArray:
        """Time to apply the optimizer to a worker's share of the weights."""
        ...

    def sum_s(self, layer: Layer, elements: FloatArray) -> FloatArray:
        """Time to add up the gradients of a layer's output, where that moves so many elements (`costmodel.network.forks`)."""
        ...

    def is_free(self, layer: Layer) -> bool:
        """Whether the model counts the layer as costing nothing (listed in every output)."""
        ...

"""Mixture of experts: a router sends every token to a few of many feed-forward networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray, IntArray, largest_of
from costmodel.network.layers.base import (
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    param,
    positions_of,
    register,
    shape_text,
)
from costmodel.network.layers.sequence import GLU_FLOP, GLU_PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureParams:
    """Parameters of a mixture of experts."""

    experts: int = param(doc="routed experts", minimum=1)
    top_k: int = param(doc="experts per token", minimum=1)
    ffn: int = param(doc="hidden features of an expert", minimum=1)
    gated: bool = param(doc="three matrices per expert (gate, up, down), otherwise two", default=True)
    activation: Literal["silu", "gelu", "relu", "sigmoid"] = param(doc="the function inside", default="silu")
    bias: bool = param(doc="add biases in the routed experts", default=False)
    shared_experts: int = param(doc="experts that every token passes", default=0, minimum=0)
    shared_ffn: int = param(
        doc="hidden features of the shared experts together; 0: shared_experts x ffn", default=0, minimum=0
    )
    shared_gate: bool = param(doc="a learned gate on the shared experts' output", default=False)
    limited: bool = param(
        doc="what enters the activation is limited in size, in kernels of its own (gpt-oss)", default=False
    )
    groups: int = param(doc="groups of experts; with top_groups", default=1, minimum=1)
    top_groups: int = param(doc="groups that a token's experts may be in; 0: all", default=0, minimum=0)
    router_bias: bool = param(doc="a bias per expert in the router", default=False)
    capacity_factor: float = param(
        doc="load of the fullest worker over the mean, where it is known; 1: as assumed", default=1.0, minimum=1.0
    )

    @property
    def shared_width(self) -> int:
        """Hidden features of the shared experts together."""
        return self.shared_ffn or self.shared_experts * self.ffn

    @property
    def matrices(self) -> int:
        """Matrices per expert."""
        return 3 if self.gated else 2

    @property
    def is_balanced_by_bias(self) -> bool:
        """Whether a bias per expert, which follows the loads, balances the router; where all matrices have biases it is one of those."""
        return self.router_bias and not self.bias


def fullest_rank(
    params: MixtureParams, ep: IntArray, spread: float, capacity: float = 0.0, copies: FloatArray | float = math.inf
) -> FloatArray:
    """Tokens of the rank whose experts get most of them, over those of the mean rank.

    The loads of ``E / ep`` experts add up to one with a standard deviation of ``spread sqrt(ep / E)`` of it, and ``ep`` such sums have
    their largest at `costmodel.arrays.largest_of`. Where few tokens are sent, chance makes ranks unequal, too: n copies vary by
    ``sqrt(n)``. No rank gets more than all tokens, each for as many of its experts as a token has. A ``capacity_factor`` that the network
    states says it instead.

    Parameters
    ----------
    params : MixtureParams
    ep : array of int
    spread : float
        Standard deviation of the experts' loads over their mean.
    capacity : float
        Most that an expert takes, over the mean; 0: all that it gets.
    copies : array
        Tokens that the mean rank gets.

    Examples
    --------
    >>> params = MixtureParams(experts=128, top_k=8, ffn=1)
    >>> fullest_rank(params, np.array([1, 8, 128]), 1.0).round(2).tolist(), fullest_rank(params, np.array([8]), 1.0, 1.25).tolist()
    ([1.0, 1.36, 3.58], [1.25])
    >>> fullest_rank(params, np.array([8]), 1.0, copies=np.array([16.0])).round(2).tolist()
    [1.51]
    """
    if params.capacity_factor != 1.0:
        return np.full(len(ep), params.capacity_factor)
    all_tokens = ep * np.minimum(params.top_k, params.experts / ep) / params.top_k
    with np.errstate(divide="ignore"):
        chance = 1.0 / np.asarray(copies, dtype=np.float64)
    load = np.minimum(1.0 + np.sqrt(spread**2 * ep / params.experts + chance) * largest_of(ep), all_tokens)
    return np.asarray(np.minimum(load, capacity) if capacity else load)


def excess_share(numbers: FloatArray | IntArray, ep: FloatArray | IntArray) -> FloatArray:
    """How far the largest of so many equally uneven loads exceeds their mean, over how far that of ``ep`` ranks does.

    >>> excess_share(np.array([8, 64]), np.array([64, 64])).round(3).tolist()
    [0.614, 1.0]
    """
    return np.asarray(largest_of(numbers) / np.maximum(largest_of(ep), largest_of(np.array(2))))


@register(
    "moe",
    MixtureParams,
    "mixture of experts: router, top_k of many feed-forward experts per token, optional shared ones",
)
class Mixture(LayerFamily):
    """Experts after a router (Shazeer et al., arXiv:1701.06538; shared experts as in DeepSeekMoE, arXiv:2401.06066).

    In a share, ``experts`` workers divide the experts and ``split_out`` workers divide the width of each. The worker that gets most tokens
    counts: ``load`` times what it sends, or ``capacity_factor`` times where the network states that.
    """

    keeps_inside = True

    def output_shape(self, params: MixtureParams, inputs: tuple[Shape, ...]) -> Shape:
        """The input's."""
        if len(inputs[0]) > 2:
            raise ShapeError(
                f"a mixture of experts needs a sequence (features x positions), its input is {shape_text(inputs[0])}"
            )
        if params.top_k > params.experts:
            raise ShapeError(f"top_k {params.top_k} is more than there are experts ({params.experts})")
        return inputs[0]

    def weight_count(self, layer: Layer) -> int:
        """Router, routed experts and shared experts."""
        p: MixtureParams = layer.params
        router = p.experts * (layer.output_shape[0] + (1 if p.router_bias else 0))  # d E, and E biases
        return router + self.expert_count(layer) + self.shared_count(layer)

    def expert_count(self, layer: Layer) -> int:
        """``E 3 d f``, or ``E 2 d f`` without gates, and biases."""
        p: MixtureParams = layer.params
        d = layer.output_shape[0]
        biases = (p.matrices - 1) * p.ffn + d if p.bias else 0
        return p.experts * (p.matrices * d * p.ffn + biases)

    def shared_count(self, layer: Layer) -> int:
        """``3 d f`` (2 without gates) of the shared width, and ``d`` for the gate on their output."""
        p: MixtureParams = layer.params
        d = layer.output_shape[0]
        return p.matrices * d * p.shared_width + (d if p.shared_gate else 0)

    def limits(self, layer: Layer) -> SplitLimits:
        """Hidden features of an expert; the partial outputs are reduced into shares of the output."""
        widths = [
            layer.params.ffn,
            layer.output_shape[0],
            *([layer.params.shared_width] if layer.params.shared_width else []),
        ]
        return SplitLimits(out_channels=min(widths))

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Router, dispatch, two products per expert with its activation between, combination; shared experts alongside them."""
        p: MixtureParams = layer.params
        d = float(layer.output_shape[0])
        tokens = shard.batch * positions_of(layer.output_shape, shard)
        router = _Product(tokens, np.full_like(tokens, d), np.full_like(tokens, float(p.experts)), np.ones_like(tokens))
        # Softmax, choice and normalisation of the scores, in a kernel each.
        choose = Kernel(flop=10.0 * tokens * p.experts, elements=4.0 * tokens * p.experts, launches=3)
        sent = tokens * p.top_k
        move = Kernel(flop=0.0 * sent, elements=(tokens + sent) * d)
        # Weights and sums the answers; its gradient also needs the product of answer and gradient for the router.
        combine = Kernel(flop=2.0 * sent * d, elements=(tokens + sent) * d)
        combine_back = Kernel(flop=3.0 * sent * d, elements=(tokens + 2.0 * sent) * d)
        networks = [_routed(p, d, received(p, tokens, shard), shard)]
        if p.shared_width:
            networks.append(_network(p, d, tokens, np.ceil(p.shared_width / shard.split_out), np.ones_like(tokens)))
        through = (combine_back, *(kernel for network in networks for kernel in network.through))
        partial = tokens * d
        return LayerWork(
            forward=((router.forward, choose, move, *(k for network in networks for k in network.forward), combine),),
            backward_input=((router.input_gradient, *(network.up.input_gradient for network in networks), move),),
            backward_weight=(
                (
                    choose,
                    *through,
                    *(k for network in networks for k in network.weight_gradients),
                    router.weight_gradient,
                ),
            ),
            exchanges=(
                InnerExchange(operation="reduce_scatter", over="out_channels", elements=partial, phase="forward"),
                InnerExchange(operation="all_gather", over="out_channels", elements=partial, phase="backward"),
            ),
            through=(choose, *through),
        )

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """The dispatched tokens, what enters and leaves the activation of every expert, and the router's scores in fp32.

        The weighting by the router is taken to happen at the activation, so that the experts' answers need not stay.
        """
        p: MixtureParams = layer.params
        tokens = shard.batch * positions_of(layer.output_shape, shard)
        rows = received(p, tokens, shard)
        hidden = float(p.matrices) * np.ceil(p.ffn / shard.split_out)  # 2f before and f after a gate; f and f without
        shared = float(p.matrices) * np.ceil(p.shared_width / shard.split_out)
        return np.asarray(rows * (layer.output_shape[0] + hidden) + tokens * (shared + 2.0 * p.experts))

    def cast_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """The dispatched tokens, and what leaves the activations."""
        p: MixtureParams = layer.params
        rows = received(p, shard.batch * positions_of(layer.output_shape, shard), shard)
        return np.asarray(rows * layer.output_shape[0] + self.repeated_elements(layer, shard))

    def repeated_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """What leaves the activations (as that of a gated feed-forward part; DeepSeek-V3, arXiv:2412.19437, section 3.3.3)."""
        p: MixtureParams = layer.params
        tokens = shard.batch * positions_of(layer.output_shape, shard)
        rows = received(p, tokens, shard)
        return np.asarray(rows * np.ceil(p.ffn / shard.split_out) + tokens * np.ceil(p.shared_width / shard.split_out))


@dataclass(frozen=True, slots=True)
class _Product:
    """Some equal products side by side: rows (in all) x inputs by inputs x outputs."""

    rows: FloatArray
    inputs: FloatArray
    outputs: FloatArray
    count: FloatArray

    def _kernel(self, gemm: tuple[FloatArray, FloatArray, FloatArray]) -> Kernel:
        rows, inputs, outputs = self.rows, self.inputs, self.outputs
        elements = rows * inputs + self.count * inputs * outputs + rows * outputs
        return Kernel(flop=2.0 * rows * inputs * outputs, elements=elements, gemm=gemm)

    @property
    def forward(self) -> Kernel:
        return self._kernel((self.rows / self.count, self.outputs, self.inputs))

    @property
    def input_gradient(self) -> Kernel:
        return self._kernel((self.rows / self.count, self.inputs, self.outputs))

    @property
    def weight_gradient(self) -> Kernel:
        return self._kernel((self.inputs, self.outputs, self.rows / self.count))


@dataclass(frozen=True, slots=True)
class _Network:
    """Feed-forward networks side by side: up, activation, down."""

    up: _Product
    down: _Product
    activation: Kernel
    activation_gradient: Kernel

    @property
    def forward(self) -> tuple[Kernel, ...]:
        return (self.up.forward, self.activation, self.down.forward)

    @property
    def through(self) -> tuple[Kernel, ...]:
        """What every gradient needs: back to the result of the first product."""
        return (self.down.input_gradient, self.activation_gradient)

    @property
    def weight_gradients(self) -> tuple[Kernel, ...]:
        return (self.down.weight_gradient, self.up.weight_gradient)


def received(params: MixtureParams, tokens: FloatArray, shard: Shard) -> FloatArray:
    """Tokens that the experts of the fullest worker get, where each worker sends so many."""
    return np.asarray(tokens * params.top_k * params.capacity_factor * shard.load)


def _routed(params: MixtureParams, features: float, rows: FloatArray, shard: Shard) -> _Network:
    """The experts that the fullest worker holds; no more of them work than there are tokens."""
    held = np.ceil(params.experts / shard.experts)
    return _network(params, features, rows, np.ceil(params.ffn / shard.split_out), np.minimum(held, rows))


def _network(
    params: MixtureParams, features: float, rows: FloatArray, width: FloatArray, count: FloatArray
) -> _Network:
    d = np.full_like(rows, features)
    if params.gated:
        passes, flop = GLU_PASSES, GLU_FLOP
    else:
        passes, flop = (2.0, 3.0), (1.0, 1.0)
    inside = rows * width
    return _Network(
        up=_Product(rows, d, (params.matrices - 1.0) * width, count),
        down=_Product(rows, width, d, count),
        activation=Kernel(flop=flop[0] * inside, elements=passes[0] * inside),
        activation_gradient=Kernel(flop=flop[1] * inside, elements=passes[1] * inside),
    )

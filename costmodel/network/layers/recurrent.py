"""Recurrent layers and the attention between an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from costmodel.arrays import FloatArray
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
    register,
    shape_text,
    share_of_output,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmParams:
    """Parameters of a recurrent layer."""

    cell: Literal["lstm", "gru", "rnn"] = param(
        doc="long short-term memory, gated recurrent unit, or one tanh or ReLU of a sum", default="lstm"
    )
    hidden: int = param(doc="features of the state, per direction", minimum=1)
    bidirectional: bool = param(
        doc="a second cell reads the sequence backwards; the outputs are concatenated", default=False
    )
    biases: int = param(doc="bias vectors per gate; cuDNN and PyTorch have 2", default=1, minimum=0, maximum=2)


class _Cell(NamedTuple):
    gates: int  # products with the input, and with the state
    flop: float  # per unit and step besides the products
    moved: float  # elements read and written for that
    saved: float  # elements kept for the backward pass


# Hochreiter and Schmidhuber (1997): four gates and the cell, 10 operations. Cho et al. (arXiv:1406.1078): three gates, and the state's part
# of the candidate by itself, as its gate multiplies it (reset after the product, cuDNN's and PyTorch's form): 10 operations too (three
# functions, three products, four sums). Elman (1990): a sum and a function; the state itself is what is kept.
_CELLS = {
    "lstm": _Cell(gates=4, flop=10.0, moved=8.0, saved=5.0),
    "gru": _Cell(gates=3, flop=10.0, moved=7.0, saved=4.0),
    "rnn": _Cell(gates=1, flop=2.0, moved=3.0, saved=1.0),
}


@register(
    "lstm",
    LstmParams,
    "long short-term memory (or a GRU, or a plain recurrence) over a sequence, optionally bidirectional",
)
class Lstm(LayerFamily):
    """LSTM, GRU or plain recurrence over a sequence: one input product for all steps, one recurrent product per step."""

    def output_shape(self, params: LstmParams, inputs: tuple[Shape, ...]) -> Shape:
        """(hidden x directions, positions)."""
        if len(inputs[0]) != 2:
            raise ShapeError(f"an LSTM needs a sequence (features x positions), its input is {shape_text(inputs[0])}")
        return (params.hidden * _directions(params), inputs[0][1])

    def weight_count(self, layer: Layer) -> int:
        """``G H (I + H + biases)`` per direction, G gates: 4 of an LSTM, 3 of a GRU, 1 of a plain recurrence."""
        p: LstmParams = layer.params
        return _directions(p) * _CELLS[p.cell].gates * p.hidden * (layer.input_shapes[0][0] + p.hidden + p.biases)

    def limits(self, layer: Layer) -> SplitLimits:
        """Units of the state; every step then gathers the state."""
        return SplitLimits(out_channels=layer.params.hidden)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Gates: ``2 N T G H (I + H)`` FLOP; the recurrent product runs step by step with N rows."""
        p: LstmParams = layer.params
        kind = _CELLS[p.cell]
        steps = layer.input_shapes[0][1]
        directions = float(_directions(p))
        units = shard.out_channels / directions
        inputs, state = shard.in_channels, float(p.hidden)
        rows = shard.batch * steps
        gates = kind.gates * units
        in_flop, in_elements = 2.0 * rows * inputs * gates, rows * inputs + inputs * gates + rows * gates
        step_flop = 2.0 * rows * state * gates
        step_elements = rows * state + steps * state * gates + rows * gates  # the weights are read at every step
        done = rows * units * directions
        cell = Kernel(flop=kind.flop * done, elements=kind.moved * done)
        wide = state + 0.0 * gates

        def product(
            flop: FloatArray, elements: FloatArray, gemm: tuple[FloatArray, FloatArray, FloatArray], launches: int = 1
        ) -> Kernel:
            """Of all directions."""
            return Kernel(
                flop=directions * flop,
                elements=directions * elements,
                gemm=gemm,
                tiling="recurrent",
                launches=int(directions) * launches,
            )

        forward = (
            product(in_flop, in_elements, (rows, gates, inputs)),
            product(step_flop, step_elements, (shard.batch, gates, wide), steps),
            cell,
        )
        # The gradient of the state runs back through all steps even where nobody wants that of the input.
        through = (product(step_flop, step_elements, (shard.batch, wide, gates), steps), cell)
        of_weights = product(
            in_flop + step_flop,
            in_elements + rows * state + state * gates + rows * gates,
            (inputs + state, gates, rows),
            launches=2,
        )
        return LayerWork(
            forward=(forward,),
            backward_input=((product(in_flop, in_elements, (rows, inputs, gates)),),),
            backward_weight=((*through, of_weights),),
            exchanges=_state_exchanges(shard.batch * state * directions, steps),
            through=through,
        )

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """Of every step: the gates, and an LSTM's cell or the state's part of a GRU's candidate; of a plain recurrence the state."""
        return np.asarray(_CELLS[layer.params.cell].saved * share_of_output(layer, shard))


def _state_exchanges(elements: FloatArray, steps: int) -> tuple[InnerExchange, InnerExchange]:
    """Every step gathers the state, and sums the parts of its gradient."""
    gather = InnerExchange(
        operation="all_gather", over="out_channels", elements=elements, phase="forward", repeats=steps
    )
    return gather, replace(gather, operation="reduce_scatter", phase="backward")


def _directions(params: LstmParams) -> int:
    return 2 if params.bidirectional else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParams:
    """Parameters of encoder-decoder attention."""

    units: int = param(doc="features of the query and key projections", minimum=1)


@register("attention", AttentionParams, "additive attention of a decoder sequence over an encoder sequence")
class Attention(LayerFamily):
    """Additive attention of a decoder (first input) over an encoder (second input); returns the context.

    Bahdanau, Cho, Bengio (arXiv:1409.0473): score = v' tanh(W q + U k).
    """

    splits_channels = False  # every score sums over all features
    min_inputs = 2
    max_inputs = 2

    def output_shape(self, params: AttentionParams, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - units are inside
        """(encoder features, decoder positions)."""
        if any(len(shape) != 2 for shape in inputs):
            raise ShapeError(f"attention needs two sequences, its inputs are {', '.join(map(shape_text, inputs))}")
        return (inputs[1][0], inputs[0][1])

    def weight_count(self, layer: Layer) -> int:
        """``A (Iq + Ik) + A``."""
        units: int = layer.params.units
        return units * (layer.input_shapes[0][0] + layer.input_shapes[1][0]) + units

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Two projections, a score per pair of positions, a weighted sum."""
        (query, steps), (key, positions) = layer.input_shapes
        units = float(layer.params.units)
        n = shard.batch
        ones = np.ones_like(n)
        project = Kernel(
            flop=2.0 * n * units * (steps * query + positions * key),
            elements=n * (steps * query + positions * key) + units * (query + key) + n * units * (steps + positions),
            gemm=(n * (steps + positions), units * ones, 0.5 * (query + key) * ones),
            launches=2,
        )
        score = Kernel(
            flop=4.0 * n * steps * positions * units,
            elements=n * steps * positions * (units + 2.0),
            launches=3,
        )
        context = Kernel(
            flop=2.0 * n * steps * positions * key,
            elements=n * (steps * positions + positions * key + steps * key),
            gemm=(n * steps, float(key) * ones, float(positions) * ones),
        )
        forward: Any = (project, score, context)
        return LayerWork(
            forward=(forward,),
            backward_input=((project, score, score, context, context),),
            backward_weight=((project,),),
        )

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """Both projections, and per pair of positions the tanh of every unit, the score and its softmax."""
        (_, steps), (_, positions) = layer.input_shapes
        units = float(layer.params.units)
        return np.asarray(shard.batch * (units * (steps + positions) + steps * positions * (units + 2.0)))

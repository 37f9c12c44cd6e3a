"""Where a framework cuts a network into pipeline stages, where that is not the balanced cut of `costmodel.mesh.stages`."""

from __future__ import annotations

from costmodel.mesh.modules import ModuleKind, Modules
from costmodel.network.graph import Graph
from costmodel.software.framework import Framework
from costmodel.tolerances import EQUAL

__all__ = ["framework_blocks", "threshold_blocks", "threshold_last", "uncut_chunks"]


def framework_blocks(framework: Framework, graph: Graph, modules: Modules, chunks: int) -> tuple[int, ...] | None:
    """Blocks per chunk as a framework cuts them; None where it balances them.

    Parameters
    ----------
    framework : Framework
    graph : Graph
    modules : Modules
        Of the graph.
    chunks : int
        At most as many as blocks.
    """
    if framework.stages == "balanced" or chunks == 1:
        return None
    if framework.stages == "equal":
        each, rest = divmod(modules.num_blocks, chunks)
        return None if rest else (each,) * chunks
    return threshold_blocks(modules.num_blocks, chunks, _head(graph, modules))


def uncut_chunks(framework: Framework, graph: Graph, modules: Modules) -> tuple[int, ...]:
    """Numbers of chunks that a framework cannot run as its own cut makes them: the loss is not on the stage that it takes for the last."""
    if framework.stages != "threshold":
        return ()
    count, head = modules.num_blocks, _head(graph, modules)
    ends = ((chunks, threshold_last(count, chunks, head)) for chunks in range(2, count + 1))
    return tuple(chunks for chunks, (loss, last) in ends if loss != last)


def _head(graph: Graph, modules: Modules) -> float:
    """Cost of the head in blocks, as nanotron counts it: by the weights of matrices."""
    block = _matrix_weights(graph, modules.kinds[modules.blocks[0]])
    return _matrix_weights(graph, modules.kinds[modules.kind_of[-1]]) / block


def _matrix_weights(graph: Graph, kind: ModuleKind) -> int:
    layers = (graph.layers[index] for index in kind.layers)
    return sum(layer.weight_count + layer.tied_count for layer in layers if layer.kind == "linear")


def threshold_blocks(count: int, stages: int, head: float) -> tuple[int, ...]:
    """Blocks per stage where a stage ends after the block with which the sum of costs reaches its share of the total.

    nanotron (src/nanotron/models/base.py, build_model): blocks cost as many multiplications as they have weights, the head too, the
    embedding nothing. Stages at the end may hold no block. The code that is published ends a stage where the sum passes its share; only
    a network whose head costs a whole number of blocks tells the difference, and the one that was measured (16 blocks, a head of 4) has
    10 of them on the first of two stages and 5 on the first of four, by its step times and by the memory of its first rank.

    Parameters
    ----------
    count : int
        Blocks of the network, all alike.
    stages : int
    head : float
        Cost of the head, in blocks.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> threshold_blocks(32, 2, 2.2), threshold_blocks(16, 2, 4.0)
    ((18, 14), (10, 6))
    """
    places = _threshold_places(count, stages, head)
    return tuple(places[1 : count + 1].count(stage) for stage in range(stages))


def threshold_last(count: int, stages: int, head: float) -> tuple[int, int]:
    """Stage that computes the loss, and the one that nanotron takes for the last: it runs only where they are one.

    After the blocks come a norm, the head, a change of format and the loss, of which only the head costs anything. A stage ends after
    each of them while the sum of costs is above the stage's share (build_model, which then calls the stage at hand the last).

    Parameters
    ----------
    count, stages : int
    head : float
        As in `threshold_blocks`.

    Returns
    -------
    tuple of two int

    Examples
    --------
    >>> threshold_last(32, 2, 2.2)
    (1, 1)
    >>> threshold_last(16, 16, 4.0)  # stage 15 is left without anything
    (14, 15)
    """
    *_, loss, behind = _threshold_places(count, stages, head)
    return loss, behind


def _threshold_places(count: int, stages: int, head: float) -> list[int]:
    """Stages of the embedding, the blocks, the norm, the head, the change of format and the loss, and the stage at hand after them."""
    total, done, places = count + head, 0.0, [0]
    for position, cost in enumerate((0.0, *(1.0,) * count, 0.0, head, 0.0, 0.0)):
        done += cost
        share = total * (places[-1] + 1) / stages
        # Blocks end a stage where they reach its share, but for the rounding of the head's cost; what follows them has to pass it.
        ends = done >= share * (1.0 - EQUAL) and places[-1] < stages - 1 if position <= count else done > share
        places.append(places[-1] + ends)
    return places

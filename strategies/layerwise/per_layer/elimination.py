"""Exact minimum of node costs plus pair costs over a graph, by eliminating one node after the other.

Min-sum variable elimination (bucket elimination: Dechter, Artificial Intelligence 113, 1999). Eliminating a node writes
the best cost of its choice as a table over its remaining neighbours; a chain needs tables over one node, residual and
inception blocks over two. The bucket tree is then walked back for min-marginals: for every option of every node, the
least total cost of a choice that contains it.

Three levels of reuse: :class:`~strategies.layerwise.per_layer.problem.Structure` depends on the graph only,
:class:`Elimination` on the pair costs, and a run on the node costs, which a Lagrangian method changes many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.problem import ChoiceProblem, Step, Structure

CHUNK_ENTRIES = 65_536  # temporaries of this size stay in a core's cache


class Partition:
    """Classes of the options of one node.

    Parameters
    ----------
    classes : array of int, shape (options,)
        Class of each option, below ``count``.
    count : int

    Examples
    --------
    >>> p = Partition(np.array([0, 1, 0]), 2)
    >>> p.reduce(np.array([3.0, 5.0, 2.0])).tolist()
    [2.0, 5.0]
    """

    __slots__ = ("_order", "_present", "_representative", "_starts", "classes", "count")

    def __init__(self, classes: IntArray, count: int, representative: IntArray | None = None) -> None:
        self.classes = classes
        self.count = count
        self._order: IntArray | None = None
        self._representative = representative

    @classmethod
    def joint(cls, parts: Sequence[Partition], size: int) -> Partition:
        """Coarsest partition that refines all the given ones, of ``size`` options; its classes are all in use."""
        if not parts:
            return cls(np.zeros(size, dtype=np.int64), 1, np.zeros(1, dtype=np.int64))
        code = parts[0].classes
        for part in parts[1:]:
            if part.classes is not parts[0].classes:
                code = code * part.count + part.classes
        values, first, classes = np.unique(code, return_index=True, return_inverse=True)
        return cls(classes, len(values), first)

    @property
    def representative(self) -> IntArray:
        """An option of every class."""
        assert self._representative is not None
        return self._representative

    def _sort(self) -> IntArray:
        order = self._order = np.argsort(self.classes, kind="stable")
        ordered = self.classes[order]
        self._starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        self._present = ordered[self._starts]
        return order

    def reduce(self, values: FloatArray, axis: int = 0) -> FloatArray:
        """Minimum over the options of each class along one axis; infinity for an empty class."""
        order = self._sort() if self._order is None else self._order
        least: FloatArray = np.minimum.reduceat(values.take(order, axis=axis), self._starts, axis=axis)
        if len(self._present) == self.count:
            return least
        shape = list(least.shape)
        shape[axis] = self.count
        out = np.full(shape, np.inf)
        out[(slice(None),) * axis + (self._present,)] = least
        return out


def min_plus(left: FloatArray, right: FloatArray) -> FloatArray:
    """Product in (min, +) algebra, ``out[a, b] = min_k left[k, a] + right[k, b]``.

    Parameters
    ----------
    left, right : arrays, shape (terms, rows) and (terms, columns)

    Returns
    -------
    array, shape (rows, columns)

    Examples
    --------
    >>> min_plus(np.array([[1.0, 4.0], [3.0, 0.0]]), np.array([[10.0], [20.0]])).tolist()
    [[11.0], [14.0]]
    """
    terms = len(left)
    chunk = max(1, CHUNK_ENTRIES // (left.shape[1] * right.shape[1]))
    out: FloatArray = (left[:chunk, :, None] + right[:chunk, None, :]).min(axis=0)
    for start in range(chunk, terms, chunk):
        part = left[start : start + chunk, :, None] + right[start : start + chunk, None, :]
        np.minimum(out, part.min(axis=0), out=out)
    return out


MAX_TABLE_ENTRIES = 20_000_000


class TooWideError(ValueError):
    """Elimination would need tables past the memory it may use."""


@dataclass(slots=True)
class _Input:
    """A message used by a step."""

    nodes: tuple[int, ...]  # positions in the step's scope
    message: int  # the step that wrote it
    axes: tuple[int, ...]  # how to turn it to (own node, *nodes)
    index: tuple[IntArray, ...] | None  # joint class -> class of the message, per axis; None = the same
    groups: tuple[Partition, ...]  # the inverse, to send totals back


class _Bucket:
    """What one step needs besides node costs."""

    __slots__ = ("fixed", "inputs", "node", "own", "parts", "scope")

    def __init__(self, step: Step) -> None:
        self.node = step.node
        self.scope = step.scope
        self.own: Partition
        self.parts: tuple[Partition, ...]
        self.inputs: list[_Input] = []
        # One table per set of neighbours, axes (own classes, neighbour classes...): sum of the fixed inputs.
        self.fixed: dict[tuple[int, ...], FloatArray] = {}

    def tables(self, sent: Sequence[FloatArray | None]) -> dict[tuple[int, ...], FloatArray]:
        """Fixed tables plus the messages of this run."""
        if not self.inputs:
            return self.fixed
        out = dict(self.fixed)
        for source in self.inputs:
            table = sent[source.message]
            assert table is not None
            table = table.transpose(source.axes)
            if source.index is not None:
                table = table[np.ix_(*source.index)]
            out[source.nodes] = out[source.nodes] + table if source.nodes in out else table
        return out


class Elimination:
    """Elimination over the pair costs of one problem, to be run with any node costs.

    Parameters
    ----------
    structure : Structure
        Of the problem's graph.
    problem : ChoiceProblem

    Raises
    ------
    TooWideError
        When a table would have more than 20 million entries.

    Examples
    --------
    Two nodes that prefer different options, and a cost of 5 when they differ: agreeing is best.

    >>> from strategies.layerwise.per_layer.problem import Edge
    >>> from strategies.layerwise.per_layer.problem import Structure
    >>> same = np.array([[0.0, 5.0], [5.0, 0.0]])
    >>> two, zero = np.array([0, 1]), np.zeros(2)
    >>> p = ChoiceProblem(base_s=(np.array([1.0, 3.0]), np.array([4.0, 2.0])), hide_s=(zero, zero),
    ...     exchange_s=(zero, zero), memory_bytes=(zero, zero),
    ...     edges=(Edge(producer=0, consumer=1, producer_class=two, consumer_class=two, cost_s=same),))
    >>> value, choice = Elimination(Structure(2, [(0, 1)]), p).minimise(p.base_s)
    >>> float(value), choice.tolist()
    (5.0, [0, 0])
    >>> [m.tolist() for m in Elimination(Structure(2, [(0, 1)]), p).marginals(p.base_s)[2]]
    [[5.0, 5.0], [5.0, 5.0]]
    """

    def __init__(self, structure: Structure, problem: ChoiceProblem) -> None:
        self.structure = structure
        sizes = [len(b) for b in problem.base_s]
        written: dict[int, tuple[Partition, ...]] = {}
        self._buckets: list[_Bucket] = []
        for number, step in enumerate(structure.steps):
            bucket = _Bucket(step)
            # (nodes other than the own, classes of the own and of those, table or number of the message)
            raw: list[tuple[tuple[int, ...], tuple[Partition, ...], FloatArray | int]] = []
            for e in step.edges:
                edge = problem.edges[e]
                producer = Partition(edge.producer_class, edge.cost_s.shape[0])
                consumer = Partition(edge.consumer_class, edge.cost_s.shape[1])
                if edge.producer == step.node:
                    raw.append(((edge.consumer,), (producer, consumer), edge.cost_s))
                else:
                    raw.append(((edge.producer,), (consumer, producer), edge.cost_s.T))
            for s in step.messages:
                nodes = structure.steps[s].scope
                others = tuple(u for u in nodes if u != step.node)
                by_node = dict(zip(nodes, written[s], strict=True))
                raw.append((others, tuple(by_node[u] for u in (step.node, *others)), s))
            self._join(bucket, raw, sizes)
            self._buckets.append(bucket)
            if len(step.scope) > 1:
                written[number] = bucket.parts

    def _join(
        self,
        bucket: _Bucket,
        raw: list[tuple[tuple[int, ...], tuple[Partition, ...], FloatArray | int]],
        sizes: Sequence[int],
    ) -> None:
        """Make joint classes per node, check the size, and index every table by them."""
        own = [parts[0] for _, parts, _ in raw]
        bucket.own = Partition.joint(own, sizes[bucket.node])
        bucket.parts = tuple(
            Partition.joint(
                [p for nodes, parts, _ in raw for n, p in zip(nodes, parts[1:], strict=True) if n == u], sizes[u]
            )
            for u in bucket.scope
        )
        entries = int(np.prod([float(p.count) for p in bucket.parts]))
        if len(bucket.parts) > 2:
            entries *= bucket.own.count
        if entries > MAX_TABLE_ENTRIES:
            raise TooWideError(f"a table over {len(bucket.parts) + 1} nodes would need {entries} entries")
        position = {u: k for k, u in enumerate(bucket.scope)}
        for nodes, parts, table in raw:
            joint = (bucket.own, *(bucket.parts[position[u]] for u in nodes))
            index = tuple(p.classes[j.representative] for p, j in zip(parts, joint, strict=True))
            where = tuple(position[u] for u in nodes)
            if isinstance(table, int):
                own_nodes = self.structure.steps[table].scope
                axes = tuple(own_nodes.index(u) for u in (bucket.node, *nodes))
                same = all(np.array_equal(i, np.arange(p.count)) for i, p in zip(index, parts, strict=True))
                groups = () if same else tuple(Partition(i, p.count) for i, p in zip(index, parts, strict=True))
                bucket.inputs.append(_Input(where, table, axes, None if same else index, groups))
            else:
                fixed = np.ascontiguousarray(table[np.ix_(*index)])
                bucket.fixed[where] = bucket.fixed[where] + fixed if where in bucket.fixed else fixed

    def minimise(self, node_cost: Sequence[FloatArray]) -> tuple[float, IntArray]:
        """Least total cost and a choice that has it.

        Parameters
        ----------
        node_cost : sequence of arrays, node -> (options,)
            May be negative.

        Returns
        -------
        (float, array of int)
            The sum as computed (rounded), and the option of every node.
        """
        run = _Run(self._buckets, node_cost)
        return run.value, run.trace()

    def marginals(self, node_cost: Sequence[FloatArray]) -> tuple[float, IntArray, list[FloatArray]]:
        """Least total cost, a choice, and for every option of every node the least total with it.

        Parameters
        ----------
        node_cost : sequence of arrays, node -> (options,)

        Returns
        -------
        (float, array of int, list of arrays)
        """
        run = _Run(self._buckets, node_cost)
        return run.value, run.trace(), run.distribute()


class _Run:
    """One collection from the leaves to the roots, kept for tracing and distribution."""

    def __init__(self, buckets: list[_Bucket], node_cost: Sequence[FloatArray]) -> None:
        self.buckets = buckets
        self.cost = [np.array(c) for c in node_cost]  # own cost plus the messages over single nodes
        self.sent: list[FloatArray | None] = []
        self.tables: list[dict[tuple[int, ...], FloatArray]] = []
        self.reduced: list[FloatArray] = []
        self.value = 0.0
        for bucket in buckets:
            tables = bucket.tables(self.sent)
            own = bucket.own.reduce(self.cost[bucket.node])
            self.tables.append(tables)
            self.reduced.append(own)
            sent = _eliminate(len(bucket.scope), own, tables)
            self.sent.append(sent)
            if not bucket.scope:
                self.value += float(own.min())
            elif len(bucket.scope) == 1:
                self.cost[bucket.scope[0]] += sent[bucket.parts[0].classes]

    def trace(self) -> IntArray:
        """The choice: nodes in reverse order of elimination, each best for its neighbours' choice."""
        choice = np.zeros(len(self.cost), dtype=np.int64)
        for bucket, tables in zip(reversed(self.buckets), reversed(self.tables), strict=True):
            total = self.cost[bucket.node]
            if tables:
                at = [int(p.classes[choice[u]]) for u, p in zip(bucket.scope, bucket.parts, strict=True)]
                pairs = reduce(np.add, (_column(t, [at[k] for k in where]) for where, t in tables.items()))
                total = total + pairs[bucket.own.classes]
            choice[bucket.node] = int(total.argmin())
        return choice

    def distribute(self) -> list[FloatArray]:
        """Min-marginals: every bucket's table completed by what lies outside it (``outside``)."""
        marginal: list[FloatArray] = list(self.cost)
        outside: dict[int, FloatArray] = {}
        for number in reversed(range(len(self.buckets))):
            bucket, tables, own = self.buckets[number], self.tables[number], self.reduced[number]
            v, scope = bucket.node, bucket.scope
            if not scope:
                marginal[v] = self.cost[v] + (self.value - float(own.min()))
                continue
            if len(scope) == 1:
                outside[number] = bucket.parts[0].reduce(marginal[scope[0]]) - _table(self.sent[number])
            wanted = {source.nodes for source in bucket.inputs}
            rest, beliefs = _complete(len(scope), own, tables, outside.pop(number), wanted)
            marginal[v] = self.cost[v] + rest[bucket.own.classes]
            for source in bucket.inputs:
                belief = beliefs[source.nodes]
                for axis, group in enumerate(source.groups):
                    belief = group.reduce(belief, axis)
                message = _table(self.sent[source.message])
                outside[source.message] = belief.transpose(np.argsort(source.axes)) - message
        return marginal


def _table(table: FloatArray | None) -> FloatArray:
    assert table is not None
    return table


def _column(table: FloatArray, at: Sequence[int]) -> FloatArray:
    """Entries of all own classes for the neighbours' classes ``at``."""
    for k in reversed(at):
        table = table[..., k]
    return table


def _eliminate(width: int, own: FloatArray, tables: dict[tuple[int, ...], FloatArray]) -> FloatArray:
    """Minimise the bucket's total over its own node: a table over its neighbours."""
    if width == 0:
        return own
    if width == 1:
        return (tables[0,] + own[:, None]).min(axis=0)  # type: ignore[no-any-return]
    if width == 2 and (0, 1) not in tables:
        return min_plus(tables[0,] + own[:, None], tables[1,])
    return _full(width, own, tables).min(axis=0)  # type: ignore[no-any-return]


def _full(width: int, own: FloatArray, tables: dict[tuple[int, ...], FloatArray]) -> FloatArray:
    """The bucket's total over its own node and all neighbours."""
    total = own.reshape(-1, *(1,) * width)
    for where, table in tables.items():
        shape = [table.shape[0]] + [1] * width
        for axis, k in enumerate(where):
            shape[k + 1] = table.shape[axis + 1]
        total = total + table.reshape(shape)
    return total


def _complete(
    width: int,
    own: FloatArray,
    tables: dict[tuple[int, ...], FloatArray],
    outside: FloatArray,
    wanted: set[tuple[int, ...]],
) -> tuple[FloatArray, dict[tuple[int, ...], FloatArray]]:
    """Best completion of each own class, and the totals over (own, *nodes) for the tables that ask for them."""
    beliefs: dict[tuple[int, ...], FloatArray]
    if width == 1:
        whole = tables[0,] + outside[None, :]
        return whole.min(axis=1), {(0,): whole + own[:, None]}
    if width == 2 and (0, 1) not in tables:
        first, second = tables[0,], tables[1,]
        # through[j, a] = min_b second[j, b] + outside[a, b]
        through = min_plus(np.ascontiguousarray(second.T), np.ascontiguousarray(outside.T))
        total = first + through
        beliefs = {(0,): total + own[:, None]}
        if (1,) in wanted:
            back = min_plus(np.ascontiguousarray(first.T), outside)
            beliefs[1,] = second + back + own[:, None]
        return total.min(axis=1), beliefs
    whole = _full(width, own, tables) + outside[None]
    beliefs = {}
    for where in wanted:
        others = tuple(k + 1 for k in range(width) if k not in where)
        beliefs[where] = whole.min(axis=others)
    rest = whole.reshape(len(own), -1).min(axis=1) - own
    return rest, beliefs

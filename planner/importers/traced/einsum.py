"""Products written as sums over indices: linear layers, batched products and attention, as their labels say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.importers.traced.conversion import KINDS, Conversion, kinds
from planner.importers.traced.network import Fixed, Product, Value, Weight
from planner.importers.traced.products import add_linear, attended, note_samples
from planner.importers.traced.program import Operation, ProgramFault
from planner.importers.traced.views import View

__all__ = ["KINDS", "Labels", "labels_of"]


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of an equation with two operands, each in the order in which it is written."""

    left: str
    right: str
    out: str

    @property
    def batch(self) -> str:
        """In all three."""
        return "".join(label for label in self.out if label in self.left and label in self.right)

    @property
    def summed(self) -> str:
        """In both operands and not in the result."""
        return "".join(label for label in self.left if label in self.right and label not in self.out)

    def own(self, operand: str) -> str:
        """In one operand only, and in the result."""
        other = self.right if operand == self.left else self.left
        return "".join(label for label in self.out if label in operand and label not in other)

    @property
    def swapped(self) -> Labels:
        """The operands exchanged."""
        return Labels(self.right, self.left, self.out)


def labels_of(equation: str, ranks: tuple[int, ...]) -> Labels | None:
    """Read an equation of two operands; None for any other, for diagonals, and for sums over one operand alone.

    Examples
    --------
    >>> labels = labels_of("bqhd,bkhd->bhqk", (4, 4))
    >>> labels.batch, labels.summed, labels.own(labels.left), labels.own(labels.right)
    ('bh', 'd', 'q', 'k')
    >>> labels_of("...i,ij->...j", (3, 2))
    Labels(left='ABi', right='ij', out='ABj')
    >>> labels_of("ii,ij->j", (2, 2)) is None
    True
    """
    inside, arrow, out = equation.replace(" ", "").partition("->")
    operands = inside.split(",")
    if len(operands) != 2 or len(ranks) != 2:
        return None
    if not arrow:
        letters = sorted(set(inside) - set(",."))
        dots = "..." if "..." in inside else ""
        out = dots + "".join(label for label in letters if inside.count(label) == 1)
    free = [label for label in "ABCDEFGH" if label not in equation]
    spread = max(
        (rank - len(o.replace("...", "")) for o, rank in zip(operands, ranks, strict=True) if "..." in o), default=0
    )
    dots = "".join(free[: max(spread, 0)])
    written = []
    for operand, rank in zip(operands, ranks, strict=True):
        missing = rank - len(operand.replace("...", ""))
        written.append(operand.replace("...", dots[len(dots) - missing :] if missing else ""))
    labels = Labels(written[0], written[1], out.replace("...", dots))
    every = set(labels.left) | set(labels.right)
    is_plain = (
        all(len(set(text)) == len(text) and text.isalpha() for text in (labels.left, labels.right) if text)
        and [len(labels.left), len(labels.right)] == list(ranks)
        and set(labels.out) <= every
        and every - set(labels.out) == set(labels.summed)
        and len(set(labels.out)) == len(labels.out)
    )
    return labels if is_plain else None


@kinds("einsum")
def _einsum(self: Conversion, operation: Operation) -> Value:
    values = [self.values[name] for name in operation.inputs if name is not None]
    labels = labels_of(operation.attributes["equation"], tuple(len(value.shape) for value in values))
    if labels is None:
        raise _fault(operation)
    left, right = values
    sizes = dict(zip(labels.left + labels.right, (*left.shape, *right.shape), strict=True))
    if isinstance(left, (Weight, Fixed)) or (isinstance(right, Product) and right.is_probability):
        left, right, labels = right, left, labels.swapped
    if isinstance(right, (Weight, Fixed)):
        return _by_parameter(self, operation, self.plain(left), right, labels, sizes)
    if isinstance(left, Product) and left.is_probability and labels.left[-1:] == labels.summed:
        batch, rows = labels.left[:-2], labels.left[-2]
        if labels.batch and sorted(batch) == sorted(labels.batch):
            features = labels.own(labels.right)
            inside = _arranged(self, self.plain(right), labels.right, (*batch, labels.summed, features), sizes)
            shape = (*(sizes[label] for label in batch + rows), _size(features, sizes))
            made = attended(self, left, inside, shape)
            return _written(self, made, batch + rows, features, labels.out, sizes)
    return _of_two(self, self.plain(left), self.plain(right), labels, sizes)


def _fault(operation: Operation) -> ProgramFault:
    return ProgramFault(
        f"{operation.source} '{operation.outputs[0]}': '{operation.attributes['equation']}' is not known"
    )


def _size(labels: str, sizes: dict[str, int]) -> int:
    return math.prod(sizes[label] for label in labels)


def _arranged(self: Conversion, view: View, written: str, groups: tuple[str, ...], sizes: dict[str, int]) -> View:
    """Dimensions in the order of groups of labels, each group one dimension."""
    moved = view.permuted([written.index(label) for group in groups for label in group])
    shape = [_size(group, sizes) for group in groups]
    found = moved.reshaped(shape)
    if found is None:
        found = self.network.rearranged(moved).reshaped(shape)
    return found if found is not None else self.copied(moved, tuple(shape))


def _written(self: Conversion, view: View, before: str, last: str, out: str, sizes: dict[str, int]) -> View:
    """A result (labels one by one, then some in the last dimension) in the order that is asked for."""
    shape = tuple(sizes[label] for label in before + last)
    split = view if view.shape == shape else view.reshaped(shape) or self.copied(view, shape)
    return split.permuted([(before + last).index(label) for label in out])


def _by_parameter(
    self: Conversion, operation: Operation, view: View, weight: Weight | Fixed, labels: Labels, sizes: dict[str, int]
) -> View:
    """A linear layer, however many dimensions its features have."""
    if labels.batch or not labels.summed:
        raise _fault(operation)
    rows, features = labels.own(labels.left), labels.own(labels.right)
    source = _arranged(self, view, labels.left, (*rows, labels.summed), sizes)
    shape = (_size(labels.summed, sizes), _size(features, sizes))
    if isinstance(weight, Fixed):
        key = f"constant:{operation.outputs[0]}"
        matrix = Weight(shape=shape, key=key, table=weight.shape, is_trained=False)
    else:
        matrix = Weight(
            shape=shape, key=weight.key, table=weight.table, is_trained=weight.is_trained, piece=weight.piece
        )
    return _written(self, add_linear(self, source, matrix, None, transposed=False), rows, features, labels.out, sizes)


def _of_two(self: Conversion, left: View, right: View, labels: Labels, sizes: dict[str, int]) -> Value:
    """A batched product, which scores of attention are."""
    rows, columns = labels.own(labels.left), labels.own(labels.right)
    if labels.out.endswith(rows) and rows and not labels.out.endswith(columns):
        left, right, labels, rows, columns = right, left, labels.swapped, columns, rows
    batch = labels.batch
    queries = _arranged(self, left, labels.left, (*batch, rows, labels.summed), sizes)
    keys = _arranged(self, right, labels.right, (*batch, columns, labels.summed), sizes)
    note_samples(self, (*queries.dims[-2:], *keys.dims[-2:]))
    shape = (*(sizes[label] for label in batch), _size(rows, sizes), _size(columns, sizes))
    product = Product(queries=queries, keys=keys, shape=shape)
    if labels.out == batch + rows + columns and len(rows) == len(columns) == 1 and len(batch) > 0:
        return product
    plain = self.plain(product)
    whole = tuple(sizes[label] for label in batch + rows + columns)
    split = plain if plain.shape == whole else plain.reshaped(whole) or self.copied(plain, whole)
    return split.permuted([(batch + rows + columns).index(label) for label in labels.out])

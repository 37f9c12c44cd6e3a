"""Array types: what an annotation says about the numbers in an array; its shape stands in the docstring. Structs of such arrays.

All arrays of figures are of 64 bits: a sum of times in 32 bits would already differ between plans that are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


_T = TypeVar("_T", bound=np.generic)

_LARGEST = 2**62


def combined(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Find the distinct rows of some columns.

    Parameters
    ----------
    *columns : arrays (n,)
        Not negative.

    Returns
    -------
    first, inverse : arrays
        Where each distinct row occurs first, and for every row which of them it is.

    Examples
    --------
    >>> first, inverse = combined(np.array([1, 2, 1]), np.array([5, 5, 5]))
    >>> first.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        radix = int(column.max(initial=0)) + 1
        if size > _LARGEST // radix:
            _, key = np.unique(key, return_inverse=True)
            size = int(key.max(initial=0)) + 1
        key = key * radix + column
        size *= radix
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def between(sizes: FloatArray, values: FloatArray, column: IntArray, size: FloatArray) -> FloatArray:
    """Read off tables between their entries, along straight lines; outside of them, the nearest entry.

    Parameters
    ----------
    sizes : array (k,)
        Ascending.
    values : array (k, m)
        A table per column.
    column, size : arrays (n,)

    Examples
    --------
    >>> between(np.array([1.0, 4.0]), np.array([[2.0], [5.0]]), np.array([0, 0]), np.array([0.5, 2.0])).tolist()
    [2.0, 3.0]
    """
    if len(sizes) == 1:
        return np.asarray(values[0, column])
    before = np.clip(np.searchsorted(sizes, size, side="right") - 1, 0, len(sizes) - 2)
    low = sizes[before]
    share = np.clip((size - low) / (sizes[before + 1] - low), 0.0, 1.0)
    flat, width = values.reshape(-1), values.shape[1]
    index = before * width + column
    first = flat[index]
    return np.asarray(first + share * (flat[index + width] - first))


def ranges(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """Write out several ranges of numbers, one after the other.

    Parameters
    ----------
    first, count : arrays (n,)
        Where each range begins, and how long it is.

    Returns
    -------
    owner, number : arrays (sum of counts,)
        The range that each number is of, and the number.

    Examples
    --------
    >>> owner, number = ranges(np.array([7, 0]), np.array([2, 3]))
    >>> owner.tolist(), number.tolist()
    ([0, 0, 1, 1, 1], [7, 8, 0, 1, 2])
    """
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + np.repeat(first - (np.cumsum(count) - count), count)


def rows_of(values: NDArray[_T], index: NDArray[Any]) -> NDArray[_T]:
    """Select rows of an array with few columns, as ``values[index]`` but with the columns contiguous in memory.

    What follows then works along the rows, thousands at a time, and not along a handful of columns.

    Parameters
    ----------
    values : array (c, ...)
    index : array (n,)

    Returns
    -------
    array (n, ...)

    Examples
    --------
    >>> rows_of(np.array([[1, 2], [3, 4]]), np.array([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    """
    return np.take(values.T, index, axis=-1).T


def stacked(columns: Sequence[NDArray[_T]]) -> NDArray[_T]:
    """Stack arrays of as many rows along a new second axis, each column contiguous in memory as `rows_of` has it.

    Parameters
    ----------
    columns : k arrays (n, ...)

    Returns
    -------
    array (n, k, ...)

    Examples
    --------
    >>> stacked([np.array([1, 2, 3]), np.array([4, 5, 6])]).tolist()
    [[1, 4], [2, 5], [3, 6]]
    """
    return np.stack([column.T for column in columns], axis=-2).T


class StructOfArrays:
    """Base of a dataclass whose fields are arrays with a row for each item; what is no array is the same for all.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Points(StructOfArrays):
    ...     x: FloatArray
    >>> points = Points(x=np.array([1.0, 2.0, 3.0]))
    >>> points.take(np.array([2, 0])).x.tolist(), Points.joined([points, points.take(slice(1))]).x.tolist()
    ([3.0, 1.0], [1.0, 2.0, 3.0, 1.0])
    >>> points.repeated(2).x.tolist()
    [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    """

    __slots__ = ()

    def take(self, index: NDArray[Any] | slice | Sequence[int]) -> Self:
        """A selection of the rows; columns of it are contiguous in memory, as `rows_of` has them."""
        return type(self)(**{name: _selected(values, index) for name, values in self.columns().items()})

    def repeated(self, times: int) -> Self:
        """All rows so many times, one after the other."""
        return self if times == 1 else type(self).joined([self] * times)

    def columns(self) -> dict[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _names(type(self))}

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of several, one after the other; structs among the fields are joined, too."""
        return cls(**{name: _joined([getattr(part, name) for part in parts]) for name in _names(cls)})


class DeclaredColumns(StructOfArrays, Generic[_T]):
    """A struct of arrays whose columns are declared elsewhere, as settings of a plan or as figures of an answer; see `with_columns`."""

    __slots__ = ()

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **columns: object) -> None: ...

        def __getattr__(self, name: str) -> NDArray[_T]: ...

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


_C = TypeVar("_C", bound=type[StructOfArrays])


def with_columns(names: Iterable[str]) -> Callable[[_C], _C]:
    """Give a class a column for each name, before the fields of its own.

    Examples
    --------
    >>> @with_columns(("x", "y"))
    ... class Points(DeclaredColumns[np.float64]):
    ...     pass
    >>> Points(x=np.array([1.0, 2.0]), y=np.array([3.0, 4.0])).take([1]).y.tolist()
    [4.0]
    """

    def made(kind: _C) -> _C:
        kind.__annotations__ = {**dict.fromkeys(names, np.ndarray), **kind.__annotations__}
        return cast("_C", dataclass(frozen=True, kw_only=True)(kind))

    return made


_P = TypeVar("_P")


class PlanBatch(DeclaredColumns[np.int64], Generic[_P]):
    """Many plans; the columns are settings of a plan (`costmodel.fields.setting`), words as positions in what they may be.

    Attributes
    ----------
    plan_type : type
        The class of one plan, a dataclass.
    """

    __slots__ = ()
    plan_type: ClassVar[Any]

    @classmethod
    @functools.cache
    def settings(cls) -> Mapping[str, Field[Any]]:
        """The declarations of the columns."""
        return {item.name: item for item in fields(cls.plan_type) if item.name in cls.__dataclass_fields__}

    @classmethod
    def from_plans(cls, plans: Sequence[_P]) -> Self:
        """Struct of arrays of plans."""
        columns = {}
        for name, item in cls.settings().items():
            values = [getattr(plan, name) for plan in plans]
            words = item.metadata["of"]
            columns[name] = np.array([words.index(value) for value in values] if words else values, dtype=np.int64)
        return cls(**columns)

    def plan(self, n: int) -> _P:
        """One of the plans."""
        values: dict[str, object] = {}
        for name, item in self.settings().items():
            value, words = int(getattr(self, name)[n]), item.metadata["of"]
            values[name] = words[value] if words else bool(value) if item.default is False else value
        plan: _P = self.plan_type(**values)
        return plan


def _names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _selected(values: Any, index: NDArray[Any] | slice | Sequence[int]) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    is_plain = values.ndim == 1 or not isinstance(index, np.ndarray) or index.dtype == np.bool_
    return values[index] if is_plain else rows_of(values, np.asarray(index))


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, StructOfArrays):
        return type(first).joined(values)
    return np.concatenate(values) if isinstance(first, np.ndarray) else first


def largest_of(numbers: ArrayLike) -> FloatArray:
    """How many standard deviations the largest of so many normal numbers is expected above their mean.

    The normal quantile of ``(n - 3/8) / (n + 1/4)`` (G. Blom, Statistical Estimates and Transformed Beta Variables, 1958).

    >>> largest_of(np.array([1, 8, 64])).round(2).tolist()
    [0.0, 1.43, 2.34]
    """
    several, index = np.unique(numbers, return_inverse=True)
    found = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in several.tolist()]
    return np.array(found)[index.reshape(np.shape(numbers))]

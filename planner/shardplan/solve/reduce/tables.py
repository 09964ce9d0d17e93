"""Cost tables by number: equal tables have one number, and an operation on numbers is computed once.

Models repeat: 80 identical layers have 80 times the same tables. A table is interned by object, then by content, and
results of operations are stored by the numbers of their operands, so that the work grows with the number of *distinct*
tables and not with the graph.

Matrices come in pairs: `m ^ 1` is the transpose of `m`. Vectors are tables too, and are their own transpose. A matrix
is kept in a normal form: the parts that depend on its row or its column alone are taken out as two vectors, and the
constant as a number, so that separable tables vanish and equal parts of different tables become equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.budget import Budget
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.minplus import min_plus

NONE = -1
"""The number of a table that is zero everywhere."""

T = TypeVar("T")


class Split(NamedTuple):
    """`const + row[i] + column[j] + rest[i, j]`; a part is `NONE` if it is zero everywhere."""

    const: float
    row: int
    column: int
    rest: int


class Tables:
    """The store of all tables of one solve, which is within `budget`. Numbers are handed out in order of arrival, so
    runs are equal."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget
        self.arrays: list[Costs] = []
        self._by_object: dict[int, tuple[Any, int]] = {}
        self._by_content: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._memo: dict[Any, Any] = {}

    def intern(self, array: Costs) -> int:
        """The number of an array that its owner will not change."""
        seen = self._by_object.get(id(array))
        if seen is not None:
            return seen[1]
        number = self.add(np.ascontiguousarray(array, dtype=np.float64))
        self._by_object[id(array)] = (array, number)  # holds the array, so that its id stays its own
        return number

    def add(self, array: Costs) -> int:
        """The number of a new array: that of an equal one, or a new number."""
        alike = self._by_content.setdefault((array.shape, hash(array.tobytes())), [])
        for number in alike:
            if np.array_equal(self.arrays[number], array):
                return number
        alike.append(len(self.arrays))
        self.arrays += [array, array.T]
        return alike[-1]

    def known(self, key: Any) -> Any:
        """What `memo` stores, or `None`."""
        return self._memo.get(key)

    def memo(self, key: Any, compute: Callable[[], T]) -> T:
        """What `compute` gave the first time that `key` was requested. Raises `GivenUpError` some time after the budget
        has ended."""
        value: T | None = self._memo.get(key)
        if value is None:
            if self._budget is not None:
                self._budget.check()
            value = self._memo[key] = compute()
        return value

    def vector(self, array: Costs) -> tuple[float, int]:
        """(smallest entry, number of the rest). Entries may be infinite; all infinite gives (inf, NONE)."""
        least = float(np.minimum.reduce(array))
        if not math.isfinite(least):
            return least, NONE
        rest = array - least if least else array
        return least, self.add(rest) if np.count_nonzero(rest) else NONE

    def normal(self, vector: int) -> tuple[float, int]:
        """Normal form of a vector: (least entry, number of the rest)."""
        return self.memo(("normal", vector), lambda: self.vector(self.arrays[vector]))

    def scaled(self, table: int, factor: float) -> int:
        """`factor` times a table."""
        if factor == 1.0:
            return table
        return self.memo(("scaled", table, factor), lambda: self.add(self.arrays[table] * factor))

    def times(self, amounts: int, multiplier: float) -> tuple[float, int]:
        """The vector `multiplier * amounts`, rounded down, in normal form."""
        key = ("times", amounts, multiplier)
        return self.memo(key, lambda: self.vector(np.floor(self.arrays[amounts] * multiplier)))

    def split(self, matrix: int) -> Split:
        """Normal form of a matrix."""
        flip = matrix & 1
        return _seen(self.memo(("split", matrix ^ flip), lambda: self._split(self.arrays[matrix ^ flip])), flip)

    def _split(self, array: Costs) -> Split:
        row = np.minimum.reduce(array, axis=1)
        closed = ~np.isfinite(row)  # a choice with no partner: the vector forbids it, the matrix need not
        if np.count_nonzero(closed):
            rest, least = _without_closed(array, row, closed)
        else:
            rest = array - row[:, None]
            least = np.minimum.reduce(rest, axis=0)
        if np.count_nonzero(least):
            shut = ~np.isfinite(least)
            rest -= np.where(shut, 0.0, least)
            rest[:, shut] = 0.0
            rest[closed] = 0.0
        row_const, row_number = self.vector(row)
        column_const, column_number = self.vector(least)
        number = self.add(rest) if np.count_nonzero(rest) else NONE
        return Split(row_const + column_const, row_number, column_number, number)

    def sum_vectors(self, left: int, right: int) -> tuple[float, int]:
        """Vector `left + right`, its least entry taken out."""
        if NONE in (left, right):
            return 0.0, max(left, right)
        key = ("sum", min(left, right), max(left, right))
        return self.memo(key, lambda: self.vector(self.arrays[left] + self.arrays[right]))

    def sum_matrices(self, left: int, right: int) -> Split:
        """Matrix `left + right` in normal form."""
        flip = min(left, right) & 1  # the sum of two transposes is the transpose of the sum
        low, high = sorted((left ^ flip, right ^ flip))
        return _seen(self.memo(("sum", low, high), lambda: self._split(self.arrays[low] + self.arrays[high])), flip)

    def project(self, costs: int, matrix: int) -> tuple[float, int]:
        """The vector `min over k of costs[k] + matrix[k, j]`: the costs that an eliminated leaf adds to its
        neighbour."""
        return self.memo(("project", costs, matrix), lambda: self.vector(self._plus_costs(costs, matrix).min(axis=0)))

    def join(self, left: int, costs: int, right: int) -> Split:
        """The matrix `min over k of left[i, k] + costs[k] + right[k, j]` that an eliminated node leaves between its two
        neighbours."""
        flip = (right ^ 1) < left
        if flip:
            left, right = right ^ 1, left ^ 1
        return _seen(self.memo(("join", left, costs, right), lambda: self._join(left, costs, right)), int(flip))

    def _join(self, left: int, costs: int, right: int) -> Split:
        return self._split(min_plus(self._plus_costs(costs, left ^ 1).T, self.arrays[right]))

    def _plus_costs(self, costs: int, matrix: int) -> Costs:
        return self.arrays[matrix] if costs == NONE else self.arrays[matrix] + self.arrays[costs][:, None]

    def take(self, table: int, rows: tuple[int, ...]) -> int:
        """The rows of a matrix, or the entries of a vector, in the given order; not in normal form."""
        if table == NONE:
            return NONE
        return self.memo(("take", table, rows), lambda: self._take(table, rows))

    def _take(self, table: int, rows: tuple[int, ...]) -> int:
        array = self.arrays[table]
        flip = array.ndim == 2 and table & 1
        chosen = array[np.array(rows)]
        return self.add(np.ascontiguousarray(chosen.T)) ^ 1 if flip else self.add(chosen)

    def image(self, matrix: int) -> tuple[int, ...]:
        """The one finite column of every row, if every row has exactly one; else nothing."""
        return self.memo(("image", matrix), lambda: _image(self.arrays[matrix]))

    def diagonal(self, matrix: int) -> tuple[float, int]:
        """The diagonal as a vector in normal form."""
        return self.memo(("diagonal", matrix & ~1), lambda: self.vector(np.diagonal(self.arrays[matrix]).copy()))

    def has_infinity(self, table: int) -> bool:
        """Whether any entry is infinite."""
        return table != NONE and self.memo(("infinite", table & ~1), lambda: bool(np.isinf(self.arrays[table]).any()))


def _without_closed(array: Costs, row: Costs, closed: NDArray[np.bool_]) -> tuple[Costs, Costs]:
    """A matrix above the least entries `row` of its rows, with zeros in the closed rows; and the least entries of its
    columns in the others."""
    rest = array - np.where(closed, 0.0, row)[:, None]
    rest[closed] = 0.0
    return rest, rest.min(axis=0) if closed.all() else rest[~closed].min(axis=0)


def _seen(split: Split, flip: int) -> Split:
    """A normal form, or that of the transpose."""
    const, row, column, rest = split
    return Split(const, column, row, rest if rest == NONE else rest ^ 1) if flip else split


def _image(array: Costs) -> tuple[int, ...]:
    finite = np.isfinite(array)
    return tuple(finite.argmax(axis=1).tolist()) if (finite.sum(axis=1) == 1).all() else ()


def open_rows(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Positions of the true entries."""
    return tuple(int(i) for i in np.flatnonzero(mask))

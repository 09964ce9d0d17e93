"""Grouped matrix products and matrix decompositions in ONNX.

ONNX has no operators for decompositions. Products of the same operands, sizes and cost stand for them; their values are
wrong, and a plan needs no values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardplan.jax.planning.graph import Graph, Row, onnx_type


def _grouped(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """Rows in groups, each multiplied by the matrix of its group: the matrix of every row is looked up. Raises
    `NotImplementedError` where the groups are along the summed dim, and for batches."""
    rows, weights = (variable.aval.shape for variable in equation.invars[:2])
    dims = equation.params["ragged_dot_dimension_numbers"]
    (left, right), batches = dims.dot_dimension_numbers
    plain = list(left) == [1] and list(right) == [1] and not any(map(len, batches))
    if not plain or list(dims.lhs_ragged_dimensions) != [0] or list(dims.rhs_group_dimensions) != [0]:
        raise NotImplementedError("groups of other dims than rows")
    ends = graph.add("CumSum", [graph.add("Cast", [inputs[2]], to=graph.INT64), graph.ints0(0)])
    numbers = graph.constant(np.arange(rows[0]).reshape(-1, 1))
    passed = graph.add("GreaterOrEqual", [numbers, graph.add("Reshape", [ends, graph.ints(1, weights[0])])])
    group = graph.add("ReduceSum", [graph.add("Cast", [passed], to=graph.INT64), graph.ints(1)], keepdims=0)
    own = graph.add("Gather", [inputs[1], graph.add("Min", [group, graph.ints0(weights[0] - 1)])], axis=0)
    made = graph.add("MatMul", [graph.add("Reshape", [inputs[0], graph.ints(rows[0], 1, rows[1])]), own])
    return str(graph.add("Reshape", [made, graph.ints(*equation.outvars[0].aval.shape)]))


def _squared(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    made = graph.add("Add", [graph.add("MatMul", [inputs[0], inputs[0]]), inputs[0]])
    return str(graph.add("Trilu", [made], upper=0))


def _substituted(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("MatMul", inputs if equation.params["left_side"] else inputs[::-1]))


def _decomposed(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    """Parts of products of a matrix with itself, as large as the factors are; of their rows for vectors."""
    shape = equation.invars[0].aval.shape
    *_, m, n = shape
    flipped = graph.permuted(inputs[0], [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    narrow, wide = graph.add("MatMul", [flipped, inputs[0]]), graph.add("MatMul", [inputs[0], flipped])
    sources = {graph.add("MatMul", [inputs[0], narrow]): (m, n), narrow: (n, n), wide: (m, m)}
    return [_part_of(graph, sources, each.aval, len(shape)) for each in equation.outvars]


def _part_of(graph: Graph, sources: Mapping[str, tuple[int, int]], made: Any, rank: int) -> str:
    """The first rows and columns of the first matrix that has as many; a vector is the largest entries of its rows."""
    is_vector = len(made.shape) == rank - 1
    wanted = (made.shape[-1], 1) if is_vector else made.shape[-2:]
    source, sizes = next(each for each in sources.items() if each[1][0] >= wanted[0] and each[1][1] >= wanted[1])
    if is_vector:
        source = graph.add("ReduceMax", [source, graph.ints(rank - 1)], keepdims=0)
    for dim, (size, extent) in enumerate(zip(wanted[: len(made.shape) - rank + 2], sizes, strict=False), rank - 2):
        if size != extent:
            source = graph.add("Slice", [source, graph.ints(0), graph.ints(size), graph.ints(dim)])
    return str(graph.add("Cast", [source], to=onnx_type(made.dtype)))


MATRICES: Mapping[str, Row] = {
    **dict.fromkeys(("lu", "qr", "svd", "eigh"), _decomposed),
    "lu_pivots_to_permutation": lambda graph, _, inputs: graph.add("Identity", inputs),
    "ragged_dot_general": _grouped,
    "cholesky": _squared,
    "triangular_solve": _substituted,
}
"""Rows by the name of the primitive."""

"""Cumulative functions along a dim (`cumprod`, `cummax`, `cumlogsumexp`) in ONNX.

They take log2(n) rounds. Each round combines every element with one before it, at twice the distance of the last round
(Hillis and Steele, Data parallel algorithms, 1986).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardplan.jax.planning.graph import Graph, Row


def _running(combine: Callable[[Graph, str, str], str]) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        axis, size = equation.params["axis"], equation.invars[0].aval.shape[equation.params["axis"]]
        made, distance = inputs[0], 1
        while distance < size:
            parts = [(0, distance), (0, size - distance), (distance, size)]
            if equation.params["reverse"]:
                parts = [(size - end, size - start) for start, end in parts]
            first, before, own = (
                graph.add("Slice", [made, graph.ints(start), graph.ints(end), graph.ints(axis)]) for start, end in parts
            )
            joined = [first, combine(graph, before, own)]
            made = graph.add("Concat", joined[::-1] if equation.params["reverse"] else joined, axis=axis)
            distance *= 2
        return str(made)

    return row


def _by(kind: str) -> Row:
    return _running(lambda graph, one, other: str(graph.add(kind, [one, other])))


def _log_of_sum(graph: Graph, one: str, other: str) -> str:
    """log(exp(one) + exp(other)), without overflow."""
    apart = graph.add("Neg", [graph.add("Abs", [graph.add("Sub", [one, other])])])
    return str(graph.add("Add", [graph.add("Max", [one, other]), graph.add("Softplus", [apart])]))


RUNNING: Mapping[str, Row] = {
    "cumprod": _by("Mul"),
    "cummax": _by("Max"),
    "cummin": _by("Min"),
    "cumlogsumexp": _running(_log_of_sum),
}
"""Rows by the name of the primitive."""
